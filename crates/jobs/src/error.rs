//! Why a store, or one operation on it, failed.

use std::path::PathBuf;

use norfab_protocol::name::{Identity, JobId};

use crate::store::EVENTS_PER_JOB_MAX;
use crate::writer::{QUEUE_BYTES_MAX, QUEUE_OPERATIONS_MAX};

/// What to do about a full disk. Pruning writes the log back first, for which the file may have to grow: a megabyte is enough where
/// the owner of the database had some time before the disk was full; where it is not, pruning says how much is missing.
const SPACE_ADVICE: &str = "free some space on that file system; with a megabyte, as a rule, 'norfab jobs prune' can give back what old jobs take";

/// What to do where pruning has said how much it needs.
const MORE_SPACE_ADVICE: &str = "free so much on that file system and try again: what there was went into the database";

/// Why a store as a whole did not do what it was asked: nothing of the batch was stored.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum StoreError {
    /// No space left. The store goes on and succeeds again when there is space.
    #[error("no space left for the job database {path}: {SPACE_ADVICE}", path = .path.display())]
    DiskFull {
        /// The database.
        path: PathBuf,
    },
    /// No space left to write the log back, without which pruning gives nothing back: nothing was deleted.
    #[error("no space left to prune the job database {path}: {kilobytes} kB more are needed: {MORE_SPACE_ADVICE}", path = .path.display(), kilobytes = .missing.div_ceil(1000))]
    NoSpaceToPrune {
        /// The database.
        path: PathBuf,
        /// How many bytes more it needs, about.
        missing: u64,
    },
    /// Written by a later version of this program.
    #[error("the job database {path} has schema version {found}, this program knows up to {known}: run the newer program, or move the file away", path = .path.display())]
    NewerSchema {
        /// The database.
        path: PathBuf,
        /// The version of its schema.
        found: i64,
        /// The latest version that we know.
        known: i64,
    },
    /// A SQLite database, but not one of ours.
    #[error("{path} is not a {expected} job database (application id {found:#x}): move the file away", path = .path.display())]
    Foreign {
        /// The file.
        path: PathBuf,
        /// What belongs there: `client` or `worker`.
        expected: &'static str,
        /// The application id in its header.
        found: i64,
    },
    /// The file was found damaged while it was in use; the next start sets it aside.
    #[error("the job database {path} is damaged ({error}): restart, which sets the file aside and begins a new one", path = .path.display())]
    Damaged {
        /// The database.
        path: PathBuf,
        /// What SQLite says.
        error: String,
    },
    /// The question was not asked.
    #[error(transparent)]
    Query(#[from] crate::writer::QueryError),
    /// A row that cannot be read as what it should be.
    #[error("the job database {path} has a job that cannot be read: {error}", path = .path.display())]
    Row {
        /// The database.
        path: PathBuf,
        /// What is wrong with it.
        error: String,
    },
    /// The file or its folder cannot be used.
    #[error("cannot {action} {path}: {error}", path = .path.display())]
    File {
        /// What was tried.
        action: &'static str,
        /// On what.
        path: PathBuf,
        /// What the system says.
        error: String,
    },
    /// Anything else that SQLite says: locked by another process for too long, an I/O error.
    #[error("the job database {path} failed: {error}", path = .path.display())]
    Database {
        /// The database.
        path: PathBuf,
        /// What SQLite says.
        error: String,
    },
    /// The writer's thread could not be started, or ended while the store was opened.
    #[error("cannot start the thread {name}: {error}")]
    Thread {
        /// The thread.
        name: String,
        /// What the system says.
        error: String,
    },
}

impl StoreError {
    /// What to do, with which the text ends. `None`: it does not end so, or is not asked for by itself.
    pub fn advice(&self) -> Option<&'static str> {
        match self {
            Self::DiskFull { .. } => Some(SPACE_ADVICE),
            Self::NoSpaceToPrune { .. } => Some(MORE_SPACE_ADVICE),
            _ => None,
        }
    }
}

/// Why one operation was not stored. The others of its batch are not affected, except by [`Self::NotStored`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum OperationError {
    /// A job with this id is in the store; it stays as it is.
    #[error("job {id} is already stored")]
    Duplicate {
        /// Which job.
        id: JobId,
    },
    /// No such job.
    #[error("job {id} is not stored")]
    Unknown {
        /// Which job.
        id: JobId,
    },
    /// The job's state is final and stays as it is.
    #[error("job {id} is {state}, which is final")]
    Final {
        /// Which job.
        id: JobId,
        /// Its state.
        state: &'static str,
    },
    /// This worker's result is stored; the first one stays.
    #[error("job {id} already has a result of {worker}")]
    DuplicateResult {
        /// Which job.
        id: JobId,
        /// Whose result.
        worker: Identity,
    },
    /// A final state without a time of its end, or a time of an end without a final state, or a time that is no number.
    #[error("job {id}: state {state} and the times given with it do not agree")]
    Inconsistent {
        /// Which job.
        id: JobId,
        /// The state asked for.
        state: &'static str,
    },
    /// The job has as many events as are kept.
    #[error("job {id} already has {EVENTS_PER_JOB_MAX} events, more are not kept")]
    TooManyEvents {
        /// Which job.
        id: JobId,
    },
    /// The whole batch failed.
    #[error(transparent)]
    NotStored(StoreError),
    /// The whole batch failed, and as much waits for space already as is kept, so many changes or so many bytes: this one is not kept to
    /// be tried again.
    #[error(
        "{0}, and beside what waits to be stored already it is more than is kept: {QUEUE_OPERATIONS_MAX} changes, or {mebibytes} MiB",
        mebibytes = QUEUE_BYTES_MAX >> 20
    )]
    GivenUp(StoreError),
}

impl OperationError {
    /// Whether the operation failed for want of space, so that it is worth trying again later.
    pub fn is_disk_full(&self) -> bool {
        matches!(self, Self::NotStored(StoreError::DiskFull { .. }) | Self::GivenUp(StoreError::DiskFull { .. }))
    }
}
