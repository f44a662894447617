//! What was loaded, but perhaps not as its author meant it.

use std::fmt;

use norfab_secrets::MASK;

use crate::location::Location;

/// Something to tell the user about a file that could be loaded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Warning {
    /// Where it stands.
    pub location: Location,
    /// The key path, like `topology.workers[0]`; empty at the root.
    pub key: String,
    /// What it is.
    pub kind: WarningKind,
}

/// The kinds of warnings.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum WarningKind {
    /// A mapping has the key twice: the last one counts.
    DuplicateKey {
        /// Line of the one that was replaced.
        first_line: usize,
    },
    /// A plain scalar means something else in YAML 1.2 than in YAML 1.1, which inventories are written in.
    Yaml12Differs {
        /// The scalar as written.
        text: String,
        /// What it means here, as JSON.
        meaning: String,
        /// What YAML 1.2 makes of it, as JSON.
        yaml_1_2: String,
    },
    /// As [`Yaml12Differs`](Self::Yaml12Differs), for a secret: what it is is not told.
    SecretYaml12Differs,
    /// An infinity or a not-a-number, for which JSON has no spelling: loaded as null.
    NotFinite {
        /// The scalar as written.
        text: String,
    },
    /// An integer beyond 64 bits: loaded as text.
    IntegerTooLarge {
        /// The scalar as written.
        text: String,
    },
    /// Further warnings of the file were not recorded.
    More,
    /// A line of the `.env` file that is no assignment: skipped.
    DotenvLineSkipped,
    /// A key that nothing here or in NorFab reads: it has no effect.
    UnknownKey {
        /// The known key that is most like it, if one is.
        nearest: Option<&'static str>,
        /// The keys that are known there.
        known: &'static [&'static str],
    },
    /// A worker is listed twice in the topology: its dependencies were joined.
    WorkerListedTwice {
        /// The name of the worker.
        worker: String,
    },
}

impl fmt::Display for Warning {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}: ", self.location)?;
        if !self.key.is_empty() {
            write!(formatter, "{}: ", self.key)?;
        }
        match &self.kind {
            WarningKind::DuplicateKey { first_line } => write!(
                formatter,
                "duplicate key, already on line {first_line}: the last one counts, remove one of them"
            ),
            WarningKind::Yaml12Differs { text, meaning, yaml_1_2 } => write!(
                formatter,
                "{text} is read as {meaning} (YAML 1.1); YAML 1.2 reads {yaml_1_2}: write {} or quote it",
                if meaning.starts_with('"') { yaml_1_2 } else { meaning }
            ),
            WarningKind::SecretYaml12Differs => {
                write!(
                    formatter,
                    "{MASK} is read in another way by YAML 1.2 (this is YAML 1.1): quote it if it is text"
                )
            }
            WarningKind::NotFinite { text } => {
                write!(formatter, "{text} has no spelling in JSON and is read as null: quote it to keep the text")
            }
            WarningKind::IntegerTooLarge { text } => {
                write!(formatter, "{text} does not fit into 64 bits and is read as text: quote it")
            }
            WarningKind::More => formatter.write_str("further warnings of this file are not shown"),
            WarningKind::DotenvLineSkipped => formatter.write_str("not an assignment like NAME=value, skipped"),
            WarningKind::UnknownKey { nearest: Some(nearest), .. } => {
                write!(formatter, "not a known key, it has no effect: did you mean {nearest}?")
            }
            WarningKind::UnknownKey { nearest: None, known } => {
                write!(formatter, "not a known key, it has no effect: known are {}", known.join(", "))
            }
            WarningKind::WorkerListedTwice { worker } => {
                write!(formatter, "worker {worker:?} is listed twice: its dependencies are joined, remove one of them")
            }
        }
    }
}
