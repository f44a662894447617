//! Files that workers share.
//!
//! A file comes from whichever live worker has it. Workers of ours send it as a stream of records ([`norfab_files`]): every piece is
//! checked as it comes, and a transfer that breaks off goes on where it was, with the same worker or another one, in this process or
//! the next. Workers of Python NorFab send chunks one after the other without a hash for each; those are checked at the end.
//!
//! Until a file is whole it is `.NAME.part` beside its place.
//!
//! Reading order: `find` (who has it; `waiting`: how long those are waited for that are asked), `stream` (one transfer of one worker of ours), `fetch` (as many as it takes), `place` (where it
//! goes), `python` (workers of Python NorFab), `git` (files of git remotes). Many files: `many`, `schedule` (which worker sends which),
//! `batch` (one transfer of many); `cache` (files that were fetched before); `sync`, with `listing` (what is there) and `compare` (what is
//! here). `survey` (what each worker has), `names` (of Python's).
//! The other way: `taker` (who takes a file), `push` (one transfer to a worker), `upload` (as many as it takes).

mod ask;
mod batch;
mod cache;
mod compare;
mod fetch;
mod find;
mod git;
mod listing;
mod many;
mod names;
mod place;
mod push;
mod python;
mod schedule;
mod stream;
mod survey;
mod sync;
mod taker;
mod upload;
mod waiting;

use std::path::PathBuf;
use std::time::Duration;

use norfab_protocol::target::Target;
use norfab_protocol::{Identity, ServiceName, TaskName};
use serde_json::{Map, Value};

use super::{JobSpec, SubmitError};
use crate::queue::QueueError;

pub use cache::{CACHE_BYTES_DEFAULT, CacheEntry, CachedFile, Cleared, FileCache};
pub use find::GRACE;
pub use listing::LISTED_MAX;
pub use many::FileTarget;
pub use names::compare_paths;
pub use python::{CHUNK_BYTES, PIPELINE};
pub use schedule::FilesProgress;
pub use survey::{Answered, Asking, ENTRIES_MAX, EntryKind, SharedEntry, URLS_MAX};
pub use sync::{SyncOptions, Synced, Unsynced};
pub use upload::{BUSY_MAX, Upload, UploadError, Uploaded};

/// The service that shares files.
pub(crate) const SERVICE: &str = "filesharing";

/// How long a transfer may stand still in all before it is given up, whatever else its caller allows: as many attempts as that takes.
pub const STANDSTILL_MAX: Duration = Duration::from_secs(120);

/// What a transfer did.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fetched {
    /// Where the file is.
    pub path: PathBuf,
    /// Its size.
    pub bytes: u64,
    /// Bytes that were there already, of this file or of a transfer that broke off.
    pub had: u64,
    /// Its SHA-256, where its worker is one of ours.
    pub sha256: Option<String>,
    /// Its MD5, where its worker is one of Python NorFab.
    pub md5: Option<String>,
    /// Who sent it, the last where there were several; `None`: the file was there already, with this hash.
    pub worker: Option<Identity>,
}

/// Why a file is not there.
#[derive(Debug, thiserror::Error)]
pub enum FetchError {
    /// Not a file URL.
    #[error("'{0}' is no file URL: write nf://PATH or git://REMOTE/PATH")]
    Url(String),
    /// Nobody has it.
    #[error("no file sharing worker has '{url}': {reason}")]
    NotFound {
        /// Which.
        url: String,
        /// What the workers or the broker said.
        reason: String,
    },
    /// Workers were asked, and not all of those that might have it answered in time; or it did not come in time.
    #[error("'{url}' did not come within {timeout} s: {reason}", timeout = .timeout.as_secs_f64())]
    TimedOut {
        /// Which.
        url: String,
        /// How long was waited.
        timeout: Duration,
        /// What is known.
        reason: String,
    },
    /// Nobody who answered has it, and not all did that might have it.
    #[error("nobody who answered has '{url}', and it is not known who else: {reason}")]
    Silent {
        /// Which.
        url: String,
        /// What the workers said, and who did not.
        reason: String,
    },
    /// The job was not taken.
    #[error(transparent)]
    Submit(#[from] SubmitError),
    /// The queue to the owner.
    #[error(transparent)]
    Queue(#[from] QueueError),
    /// The transfer broke off, and again whenever it was tried.
    #[error(
        "the transfer of '{url}' from worker {worker} broke off after {received} of {size} bytes: {reason}; what came is kept, and \
         the next one goes on there"
    )]
    Broken {
        /// Which.
        url: String,
        /// From whom.
        worker: Identity,
        /// Bytes that came.
        received: u64,
        /// Bytes there are.
        size: u64,
        /// Why.
        reason: String,
    },
    /// The content is not what it should be.
    #[error("'{url}' from worker {worker} arrived with MD5 {found}, it should be {expected}: fetch it again")]
    Mismatch {
        /// Which.
        url: String,
        /// From whom.
        worker: Identity,
        /// What it should be.
        expected: String,
        /// What it is.
        found: String,
    },
    /// The target cannot be written.
    #[error("cannot write {path}: {error}", path = .path.display())]
    Write {
        /// Where.
        path: PathBuf,
        /// Why.
        error: std::io::Error,
    },
}

fn spec(task: &str, target: Target, kwargs: Value, timeout: Duration) -> JobSpec {
    let kwargs: Map<String, Value> = kwargs.as_object().cloned().unwrap_or_default();
    JobSpec {
        id: None,
        service: ServiceName::parse(SERVICE).expect("a name"),
        task: TaskName::parse(task).expect("a name"),
        target,
        kwargs,
        args: Vec::new(),
        timeout,
        waits: false,
    }
}

/// Errors: it is no URL of a file.
fn check_url(url: &str) -> Result<(), FetchError> {
    if url.starts_with("nf://") || git::is_git(url) { Ok(()) } else { Err(FetchError::Url(url.to_owned())) }
}

/// Why nobody is known to have something: `timed_out`, time was over; `silent`, somebody who might have it did not answer.
fn nobody_has(url: String, timeout: Duration, timed_out: bool, silent: bool, reason: String) -> FetchError {
    match (timed_out, silent) {
        (true, _) => FetchError::TimedOut { url, timeout, reason },
        (false, true) => FetchError::Silent { url, reason },
        (false, false) => FetchError::NotFound { url, reason },
    }
}
