//! What is forgotten, and when.

use std::time::Duration;

/// Days that finished jobs are kept: long enough to look up last month's change.
pub const RETENTION_DAYS: u64 = 30;

/// Finished jobs that are kept: a listing of all of them stays quick.
pub const RETENTION_JOBS_MAX: u64 = 100_000;

/// Bytes that a database may use before finished jobs are forgotten early: hundreds of them may share a disk.
pub const RETENTION_BYTES_MAX: u64 = 1 << 30;

/// Most jobs that one step of pruning removes, so that the writer is soon back at its queue.
pub const PRUNED_JOBS_MAX: usize = 256;

/// Which finished jobs stay. They go in the order in which they were stored, while the first of them breaks any of the
/// three rules; so one that ran for hours may keep later ones for as long. Unfinished jobs always stay, and count for
/// nothing but bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Retention {
    /// Time since the job finished.
    pub age_max: Duration,
    /// Number of finished jobs.
    pub jobs_max: u64,
    /// Bytes that the database uses.
    pub bytes_max: u64,
}

impl Default for Retention {
    /// [`RETENTION_DAYS`], [`RETENTION_JOBS_MAX`], [`RETENTION_BYTES_MAX`].
    fn default() -> Self {
        Self {
            age_max: Duration::from_secs(RETENTION_DAYS * 24 * 60 * 60),
            jobs_max: RETENTION_JOBS_MAX,
            bytes_max: RETENTION_BYTES_MAX,
        }
    }
}

/// What a step of pruning removed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Pruned {
    /// Jobs.
    pub jobs: u64,
    /// Bytes that they used, about.
    pub bytes: u64,
    /// The step reached its bound: call again.
    pub more: bool,
}

impl Retention {
    /// The one rule: whether the finished job that was stored first goes, while `finished_jobs` are kept and `bytes` are used.
    pub(crate) fn ends(&self, finished: f64, now: f64, finished_jobs: u64, bytes: u64) -> bool {
        now - finished > self.age_max.as_secs_f64() || finished_jobs > self.jobs_max || bytes > self.bytes_max
    }
}
