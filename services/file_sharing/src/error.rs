//! What can go wrong, at the start and while clients ask.

use std::io;
use std::path::PathBuf;

use rustix::io::Errno;

/// Why the service cannot start.
#[derive(Debug, thiserror::Error)]
pub enum FileSharingError {
    /// The inventory is no object.
    #[error("the inventory of the worker is {found}: it must be an object of keys and values")]
    NoObject {
        /// What it is.
        found: &'static str,
    },
    /// A key has a value of the wrong type, or none.
    #[error("inventory key '{key}': expected {expected}, found {found}")]
    Key {
        /// Which.
        key: &'static str,
        /// What it must be.
        expected: &'static str,
        /// What it is.
        found: String,
    },
    /// The service has a name that cannot be.
    #[error("inventory key 'service': {problem}")]
    ServiceName {
        /// What is wrong with it.
        problem: String,
    },
    /// Git repositories are to be mounted by what mounts none.
    #[error("inventory key 'remotes': this service has no git remotes")]
    Remotes,
    /// The folder cannot be made or read.
    #[error("cannot share the folder {}: {source}", path.display())]
    Folder {
        /// Which.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
}

/// Why a client does not get what it asks for. The first four texts are those that clients of the protocol compare.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Refusal {
    /// Not a URL of this service.
    #[error("'{url}' - invalid URL format")]
    Format { url: String },
    /// The way leads out of the shared folder, or cannot be a path.
    #[error("'{url}' - invalid URL path")]
    Path { url: String },
    /// No such file, or none that is served.
    #[error("'{url}' file not found")]
    NoFile { url: String },
    /// No such directory, or none that is served.
    #[error("Directory Not Found")]
    NoDirectory,
    /// A directory in the place of a file.
    #[error("'{url}' is a directory: give the URL of a file, or ask list_files what it holds")]
    IsDirectory { url: String },
    /// A device, a pipe or a socket.
    #[error("'{url}' is no regular file: devices, pipes and sockets are not served")]
    Special { url: String },
    /// The system says no.
    #[error("'{url}' cannot be read: {errno}")]
    Unreadable { url: String, errno: Errno },
    /// It was cut short while it was read.
    #[error("'{url}' became shorter while it was read: ask again once it is complete")]
    Shrunk { url: String },
    /// More than one answer can hold.
    #[error("'{url}' holds more than {entries} entries: ask for its folders one by one")]
    TooMany { url: String, entries: usize },
    /// Deeper than anybody nests folders on purpose.
    #[error("'{url}' holds folders nested deeper than {levels} levels: ask for one of the inner folders")]
    TooDeep { url: String, levels: usize },
    /// Somebody ends the job.
    #[error("'{url}' was not read to its end because the job ends")]
    Ended { url: String },
}
