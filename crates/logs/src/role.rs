//! Whose record it is: a role and its name, and the span that carries them.

use tracing::Span;

/// Bytes of a name that go into a file name: with role and ending it stays below the 255 that file systems allow.
pub const FILE_NAME_BYTES_MAX: usize = 200;

/// Target of the spans that carry a role.
pub(crate) const ROLE_TARGET: &str = "norfab::role";

/// The kinds of files in the log folder.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Role {
    /// The broker.
    Broker,
    /// A worker.
    Worker,
    /// A client, whatever shell or page stands in front of it.
    Client,
}

impl Role {
    /// All roles.
    pub const ALL: [Self; 3] = [Self::Broker, Self::Worker, Self::Client];

    /// The word in records and in file names: `broker`, `worker` and, for clients, `nfapi`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Broker => "broker",
            Self::Worker => "worker",
            Self::Client => "nfapi",
        }
    }

    /// The word for people.
    pub fn noun(self) -> &'static str {
        match self {
            Self::Broker => "broker",
            Self::Worker => "worker",
            Self::Client => "client",
        }
    }

    /// Reads the word of records and file names, or the one for people.
    pub fn from_word(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|role| role.as_str() == word || role.noun() == word)
    }
}

/// The span of one role in this process: what is logged inside goes to the file `<role>-<name>.jsonl`.
///
/// The thread of an owner enters it for as long as it runs; a task of a runtime is wrapped with `Instrument::instrument`, and
/// so is each job that a worker starts. The innermost role wins.
pub fn role_span(role: Role, name: &str) -> Span {
    // Of the gravest level, so that no filter ever takes it away.
    tracing::error_span!(target: ROLE_TARGET, "role", role = role.as_str(), name = name)
}

/// A role with its name and its file.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Owner {
    pub role: Role,
    pub name: String,
    pub file_name: String,
}

impl Owner {
    pub fn new(role: Role, name: &str) -> Self {
        Self { role, name: name.to_owned(), file_name: file_name(role, name) }
    }
}

/// Name of the file of a role: `worker-lab-1.jsonl`. A name that could leave the folder cannot: separators become `_`.
pub(crate) fn file_name(role: Role, name: &str) -> String {
    let mut safe = String::with_capacity(name.len());
    for character in name.chars() {
        let character = if matches!(character, '/' | '\\' | '\0') { '_' } else { character };
        if safe.len() + character.len_utf8() > FILE_NAME_BYTES_MAX {
            break;
        }
        safe.push(character);
    }
    format!("{}-{safe}.jsonl", role.as_str())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_named_as_python_names_them() {
        assert_eq!(file_name(Role::Broker, "NFPBroker"), "broker-NFPBroker.jsonl");
        assert_eq!(file_name(Role::Worker, "wörker-1"), "worker-wörker-1.jsonl");
        assert_eq!(file_name(Role::Client, "nfcli"), "nfapi-nfcli.jsonl");
    }

    #[test]
    fn no_name_leaves_the_folder_or_is_too_long_for_a_file() {
        assert_eq!(file_name(Role::Worker, "../../etc/x"), "worker-.._.._etc_x.jsonl");
        assert!(file_name(Role::Worker, &"ö".repeat(500)).len() <= 255);
    }
}
