//! What can be wrong with an inventory. Every text names the file, the line and the key where they are known, the
//! value that was found and what to do.

use std::io;
use std::path::{Path, PathBuf};

use norfab_secrets::MASK;
use serde_json::Value;

use crate::key_path::KeyPath;
use crate::location::Location;

/// What to do about a name that cannot be a folder's.
const NAME_ADVICE: &str = "use letters, digits and dashes";

/// What to do about a dependency on a worker that is not started.
const UNLISTED_ADVICE: &str = "add it there or remove the dependency";

/// What to do where the inventory is not there.
const NO_FILE_ADVICE: &str = "give the path of an inventory, or create one with `norfab init`";

/// What to do about a folder in place of the inventory.
const NOT_A_FILE_ADVICE: &str = "give the path of the inventory.yaml itself";

/// An inventory, or data of one worker, that cannot be loaded.
#[derive(Debug, thiserror::Error)]
pub enum InventoryError {
    /// There is no such file.
    #[error("{}: no such file: {NO_FILE_ADVICE}", file.display())]
    NoSuchFile {
        /// The path as given.
        file: PathBuf,
    },
    /// The path names a folder or something else that is no file.
    #[error("{}: not a file: {NOT_A_FILE_ADVICE}", file.display())]
    NotAFile {
        /// The path as given.
        file: PathBuf,
    },
    /// The file is there but cannot be read.
    #[error("{}: cannot be read: {source}", file.display())]
    Read {
        /// The path as given.
        file: PathBuf,
        /// What the operating system says.
        source: io::Error,
    },
    /// A file is not UTF-8.
    #[error("{location}: not UTF-8: save the file with that encoding")]
    NotUtf8 {
        /// The first line that is not.
        location: Location,
    },
    /// A file exceeds the size that is loaded.
    #[error("{}: more than the {bytes_max} bytes that are loaded: split the file", file.display())]
    TooLarge {
        /// The path as given.
        file: PathBuf,
        /// The bound.
        bytes_max: usize,
    },
    /// The template cannot be rendered.
    #[error("{location}: template: {reason}")]
    Template {
        /// Line in the file, before rendering.
        location: Location,
        /// What the template engine says.
        reason: String,
    },
    /// The rendered text is not YAML, or more than we take.
    #[error("{location}: {problem}")]
    Yaml {
        /// Line of the rendered text.
        location: Location,
        /// What is wrong.
        problem: YamlProblem,
    },
    /// A value is not what its key asks for.
    #[error("{location}: {}{problem}", prefix(key))]
    Value {
        /// Where the key stands.
        location: Location,
        /// The key.
        key: KeyPath,
        /// What is wrong; boxed because results of everything here carry room for it.
        problem: Box<ValueProblem>,
    },
    /// A name cannot be a part of a path.
    #[error("{name:?} cannot be the name of a folder: {reason}; {NAME_ADVICE}")]
    NameIsNoFolder {
        /// The name.
        name: String,
        /// Why not.
        reason: &'static str,
    },
    /// The folder of a new environment is something else.
    #[error("{}: is there and no folder: choose another name for the new environment", folder.display())]
    NotAFolder {
        /// The path as given.
        folder: PathBuf,
    },
    /// A file of a new environment exists.
    #[error("{}: exists already: choose another folder, or overwrite it by force", file.display())]
    Exists {
        /// The first file that is in the way.
        file: PathBuf,
    },
    /// A file cannot be written.
    #[error("{}: cannot be written: {source}", file.display())]
    Write {
        /// The path.
        file: PathBuf,
        /// What the operating system says.
        source: io::Error,
    },
}

impl InventoryError {
    /// What to do, with which the text ends. `None`: it does not end so, or the text says nothing.
    pub fn advice(&self) -> Option<String> {
        Some(match self {
            Self::NoSuchFile { .. } => NO_FILE_ADVICE.to_owned(),
            Self::NotAFile { .. } => NOT_A_FILE_ADVICE.to_owned(),
            Self::NameIsNoFolder { .. } => NAME_ADVICE.to_owned(),
            Self::Value { problem, .. } => problem.advice()?,
            _ => return None,
        })
    }
}

/// What is wrong with a YAML text.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum YamlProblem {
    /// The grammar.
    #[error("not valid YAML: {reason}")]
    Syntax {
        /// What the parser says.
        reason: String,
    },
    /// The text is longer than what is loaded.
    #[error("{bytes} bytes, more than the {bytes_max} that are loaded: split the file")]
    TextTooLong {
        /// Its length.
        bytes: usize,
        /// The bound.
        bytes_max: usize,
    },
    /// With its aliases expanded, the text is larger than what is loaded.
    #[error("more than {nodes_max} values or {bytes_max} bytes of text once aliases are expanded: use fewer aliases")]
    TooLarge {
        /// The bound of scalars, lists and mappings.
        nodes_max: usize,
        /// The bound of text.
        bytes_max: usize,
    },
    /// The nesting is deeper than what is loaded.
    #[error("nested deeper than {depth_max} levels: flatten the data")]
    TooDeep {
        /// The bound.
        depth_max: usize,
    },
    /// A character that YAML does not allow.
    #[error("control character {character:?} is not allowed: remove it, or write it as an escape in double quotes")]
    ControlCharacter {
        /// The character.
        character: char,
    },
    /// Another document follows.
    #[error("a second document begins here: an inventory file holds one, remove the `---`")]
    SecondDocument,
    /// A tag that the safe loader does not know either.
    #[error("tag {tag} is not supported: remove it")]
    UnknownTag {
        /// The tag.
        tag: String,
    },
    /// A tag on a value that cannot have it.
    #[error("tag {tag} does not fit {found}: remove the tag or change the value")]
    TagDoesNotFit {
        /// The tag.
        tag: String,
        /// The value.
        found: String,
    },
    /// A plain scalar that looks like a type and is none of it.
    #[error("expected {expected}, found {text}: quote it if it is text")]
    BadScalar {
        /// The scalar.
        text: String,
        /// What it looks like.
        expected: &'static str,
    },
    /// A key that is a list or a mapping.
    #[error(
        "a key must be text, a number, a boolean or null, found a list or a mapping: quote text that begins with [ or {{"
    )]
    KeyNoScalar,
    /// An alias of an anchor that is nowhere above it.
    #[error(
        "alias *{name} of an anchor that was not defined before: define it with &{name} further up, or quote the text"
    )]
    UnknownAnchor {
        /// The name.
        name: String,
    },
    /// A line that begins with a tab.
    #[error("not valid YAML: a tab in the indentation: replace tabs with spaces")]
    TabIndents,
    /// An alias without its anchor.
    #[error("alias of an anchor that was not defined before: define it with & further up")]
    UnknownAlias,
    /// An alias of something it is part of.
    #[error("alias of the value around it would never end: remove it")]
    AliasInsideItself,
    /// `<<` with something that has no keys.
    #[error("<< expects a mapping or a list of mappings, found {found}: name the anchor of a mapping")]
    MergeOfNoMapping {
        /// What it has.
        found: String,
    },
}

/// What is wrong with a value.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ValueProblem {
    /// Another type or another range is needed.
    #[error("expected {expected}, found {found}")]
    Unexpected {
        /// What is needed.
        expected: &'static str,
        /// What is there.
        found: String,
    },
    /// Whoever uses the value cannot.
    #[error("{problem}")]
    Refused {
        /// What was expected and found.
        problem: String,
    },
    /// The key is needed and missing.
    #[error("missing: add {example}")]
    Missing {
        /// A line that would do.
        example: &'static str,
    },
    /// The inventory says nothing.
    #[error("the inventory is empty: it needs at least a broker section with an endpoint")]
    EmptyInventory,
    /// Two keys for the broker's public key that disagree.
    #[error("differs from broker.shared_key, which is the same setting under its older name: remove one of them")]
    TwoBrokerKeys,
    /// Workers wait for each other.
    #[error("workers wait for each other: {}: remove one of these dependencies", path.join(" -> "))]
    DependencyCycle {
        /// The names on the way; the last one is the first one.
        path: Vec<String>,
    },
    /// A worker waits for one that is not started.
    #[error("depends on {missing:?}, which is not in topology.workers: {UNLISTED_ADVICE}")]
    UnlistedDependency {
        /// The name that is not listed.
        missing: String,
    },
    /// A file of worker data does not exist.
    #[error("no such file: {}: {}", file.display(), correct_the_path(base_dir))]
    NoSuchWorkerFile {
        /// The path that was tried.
        file: PathBuf,
        /// What relative paths count from.
        base_dir: PathBuf,
    },
    /// A file of worker data has no mapping at its top.
    #[error("{} must hold a mapping, found {found}", file.display())]
    WorkerFileNoMapping {
        /// The file.
        file: PathBuf,
        /// What it holds.
        found: String,
    },
}

impl ValueProblem {
    fn advice(&self) -> Option<String> {
        match self {
            Self::Missing { example } => Some(format!("add {example}")),
            Self::NoSuchWorkerFile { base_dir, .. } => Some(correct_the_path(base_dir)),
            Self::UnlistedDependency { .. } => Some(UNLISTED_ADVICE.to_owned()),
            _ => None,
        }
    }
}

fn correct_the_path(base_dir: &Path) -> String {
    format!("create it or correct the path, which counts from {}", base_dir.display())
}

/// `key: `, or nothing at the root.
fn prefix(key: &KeyPath) -> String {
    let key = key.to_string();
    if key.is_empty() { key } else { format!("{key}: ") }
}

/// Longest piece of a value that an error shows, in characters: enough to find it.
const SHOWN_CHARACTERS_MAX: usize = 60;

/// A value in the words of an error; a secret's type only.
pub(crate) fn shown_at(path: &KeyPath, value: &Value) -> String {
    match value {
        Value::String(text) if path.is_secret() && !text.is_empty() => format!("text {MASK}"),
        Value::Number(_) if path.is_secret() => format!("the number {MASK}"),
        Value::Bool(_) if path.is_secret() => format!("the flag {MASK}"),
        other => shown(other),
    }
}

/// A value in the words of an error.
pub(crate) fn shown(value: &Value) -> String {
    match value {
        Value::Null => "nothing".to_owned(),
        Value::Bool(flag) => flag.to_string(),
        Value::Number(number) => format!("the number {number}"),
        Value::String(text) => {
            let mut short: String = text.chars().take(SHOWN_CHARACTERS_MAX).collect();
            if short.len() < text.len() {
                short.push('…');
            }
            format!("text {short:?}")
        }
        Value::Array(items) if items.is_empty() => "an empty list".to_owned(),
        Value::Array(_) => "a list".to_owned(),
        Value::Object(entries) if entries.is_empty() => "an empty mapping".to_owned(),
        Value::Object(_) => "a mapping".to_owned(),
    }
}
