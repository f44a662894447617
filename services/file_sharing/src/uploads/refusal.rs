//! Why a client cannot upload.

use std::time::Duration;

use norfab_files::{SinkError, SourceError};
use norfab_service::{ContentError, Identity, SendError};
use rustix::io::Errno;

use super::progress::PROGRESS_BYTES_MIN;
use crate::error::Refusal;

/// Why an upload is not taken, or not to its end.
#[derive(Debug, thiserror::Error)]
pub(crate) enum UploadRefusal {
    /// The URL is none that this service can have.
    #[error(transparent)]
    Url(#[from] Refusal),
    #[error(
        "worker {worker} takes no uploads: to allow them, write the folder for them into its inventory, as in 'uploads: {{folder: \
         incoming}}'"
    )]
    NotAllowed { worker: Identity },
    #[error(
        "'{url}' is not below {folder}, the folder for uploads: write {folder}NAME, or change uploads.folder in the worker's inventory"
    )]
    Outside { url: String, folder: String },
    #[error("'{url}' names a folder: write the name of the file behind it")]
    NoName { url: String },
    #[error(
        "'{url}': nothing can be uploaded under the name {name:?}; names that begin with a dot can be where the worker's inventory lists \
         them in dotfiles"
    )]
    Name { url: String, name: String },
    #[error("'{url}' has more than {levels} folders below the one for uploads: put it higher")]
    TooDeep { url: String, levels: usize },
    #[error("'{url}' cannot be a folder: '{name}' on the way to it is a file or a link")]
    InTheWay { url: String, name: String },
    #[error("'{url}' is there and no regular file: upload under another name")]
    NoFile { url: String },
    #[error(
        "'{url}' is there already, with other content: upload under another name, or replace it where both sides allow that \
             (--overwrite, and uploads.overwrite in the worker's inventory)"
    )]
    Exists { url: String },
    #[error("'{url}' cannot be written: {errno}")]
    Unwritable { url: String, errno: Errno },
    #[error("'{url}' cannot be written: {error}; what came is kept, and the next upload goes on there")]
    Write { url: String, error: std::io::Error },
    #[error(
        "'{url}' was not brought to the worker's disk: {error}; what came is thrown away, as nobody knows what of it is there: see to that disk, \
         and upload it again"
    )]
    Unsynced { url: String, error: std::io::Error },
    #[error(
        "'{url}' is there, and the worker's disk does not say that it stays: {error}; see to that disk, and upload it again"
    )]
    NotSafe { url: String, error: std::io::Error },
    #[error(
        "'{url}' cannot be written, as the worker's disk has no space for it: {detail}; what came is kept, and the next upload goes on there"
    )]
    DiskFull { url: String, detail: String },
    #[error(
        "'{url}' has {size} bytes, and {max} are the most that may be uploaded at once: uploads.max_file_bytes in the worker's inventory says so"
    )]
    FileTooLarge { url: String, size: u64, max: u64 },
    #[error(
        "'{url}' has {size} bytes, and {folder} has room for {left} of {max}, with what others are uploading: have files removed \
         there, or uploads.max_total_bytes raised in the worker's inventory"
    )]
    NoRoom { url: String, folder: String, size: u64, left: u64, max: u64 },
    #[error(
        "'{url}' needs {adds} files and folders, and {folder} holds {found} of {max}, with what others are uploading: have some removed there, \
         or uploads.max_files raised in the worker's inventory"
    )]
    TooManyFiles { url: String, folder: String, found: u64, adds: u64, max: u64 },
    #[error("client {client} is uploading '{url}': wait until that has ended")]
    Busy { url: String, client: Identity },
    #[error(
        "'{url}': the attempt before this one has not ended within {waited:?}: the worker's disk still writes what came"
    )]
    Slow { url: String, waited: Duration },
    #[error("{max} uploads are under way here: wait until one has ended")]
    TooMany { max: usize },
    #[error("client {client} has {max} uploads under way here, as many as one may: wait until one has ended")]
    TooManyOfClient { client: Identity, max: usize },
    #[error(
        "'{url}' does not get on: {bytes} bytes came in {seconds} s, and {PROGRESS_BYTES_MIN} are the least; what came is kept, and the next \
         upload goes on there"
    )]
    Standstill { url: String, bytes: u64, seconds: u64 },
    #[error(
        "{folder} was not counted within {waited:?}, and nobody knows whether there is room: wait until the worker's disk has less to do"
    )]
    Uncounted { folder: String, waited: Duration },
    #[error("another upload of '{url}' has taken the place of this one")]
    Superseded { url: String },
    #[error("the folder of '{url}' was moved away while it was uploaded: upload it again")]
    Moved { url: String },
    #[error("'{url}' was to have {expected} bytes and has {found}: upload it again")]
    OtherSize { url: String, expected: u64, found: u64 },
    #[error("'{url}' does not come: {why}")]
    Withdrawn { url: String, why: String },
    #[error("'{url}': {error}")]
    Broken { url: String, error: SinkError },
    #[error("'{url}': {error}")]
    Silent { url: String, error: ContentError },
    #[error("'{url}' {error}")]
    Unreadable { url: String, error: SourceError },
    #[error("'{url}' is not wanted any more, and did not get its name: {why}")]
    Ended { url: String, why: String },
    #[error(transparent)]
    Send(#[from] SendError),
    #[error("{0}")]
    Argument(String),
}

impl UploadRefusal {
    /// Whether nothing is wrong with it but that others are before it.
    pub(crate) fn is_full(&self) -> bool {
        matches!(self, Self::TooMany { .. } | Self::TooManyOfClient { .. })
    }

    /// Whether the same upload may come to its end if it is tried again.
    pub(crate) fn may_pass(&self) -> bool {
        match self {
            Self::Busy { .. }
            | Self::Slow { .. }
            | Self::TooMany { .. }
            | Self::TooManyOfClient { .. }
            | Self::Standstill { .. }
            | Self::Uncounted { .. }
            | Self::Superseded { .. }
            | Self::Moved { .. }
            | Self::Broken { .. }
            | Self::Silent { .. }
            | Self::Ended { .. }
            | Self::Unreadable { .. }
            | Self::Send(_) => true,
            Self::Url(_)
            | Self::NotAllowed { .. }
            | Self::Outside { .. }
            | Self::NoName { .. }
            | Self::Name { .. }
            | Self::TooDeep { .. }
            | Self::InTheWay { .. }
            | Self::NoFile { .. }
            | Self::Exists { .. }
            | Self::Unwritable { .. }
            | Self::Write { .. }
            | Self::Unsynced { .. }
            | Self::NotSafe { .. }
            | Self::DiskFull { .. }
            | Self::FileTooLarge { .. }
            | Self::NoRoom { .. }
            | Self::TooManyFiles { .. }
            | Self::OtherSize { .. }
            | Self::Withdrawn { .. }
            | Self::Argument(_) => false,
        }
    }
}
