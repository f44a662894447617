//! What tasks may see of the worker that runs them, and the clock that they read. Implemented by the fabric.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use norfab_protocol::{Identity, JobId, TaskName};
use serde_json::Value;

use crate::BoxFuture;

/// Most log records that are given at once: some megabytes of JSON.
pub const LOG_RECORDS_MAX: usize = 10_000;

/// Log records that are given when nobody says how many.
pub const LOG_RECORDS_DEFAULT: usize = 100;

/// Levels of log records.
pub const LOG_LEVELS: [&str; 5] = ["DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL"];

/// Which job to tell, and how much of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JobDetailsQuery {
    /// The job.
    pub uuid: JobId,
    /// Whether with its result.
    pub result: bool,
    /// Whether with its events.
    pub events: bool,
}

/// Which jobs to list. An absent field does not filter.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JobFilter {
    /// Jobs that have not ended. With `completed` equal to this, the state does not filter.
    pub pending: bool,
    /// Jobs that have ended, well or badly.
    pub completed: bool,
    /// Jobs of this task.
    pub task: Option<TaskName>,
    /// So many of the newest.
    pub last: Option<u64>,
    /// Jobs of this client.
    pub client: Option<Identity>,
    /// The job with this id.
    pub uuid: Option<JobId>,
}

/// Which log records to give.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogFilter {
    /// So many of the newest, at most [`LOG_RECORDS_MAX`].
    pub last: usize,
    /// Records of this level, in capitals: `DEBUG`, `INFO`, `WARNING`, `ERROR` or `CRITICAL`.
    pub level: Option<String>,
    /// Records whose logger has this name.
    pub logger: Option<String>,
    /// Records at or after this time, as the log writes it.
    pub since: Option<String>,
    /// Records at or before this time, as the log writes it.
    pub until: Option<String>,
}

impl LogFilter {
    /// A checked filter: `last` is 100 unless given and 10,000 at most, the level may be in small letters. The one check for
    /// whoever is asked for logs. Errors: a level that is none.
    pub fn new(
        last: Option<usize>,
        level: Option<String>,
        logger: Option<String>,
        since: Option<String>,
        until: Option<String>,
    ) -> Result<Self, ViewError> {
        let typed = level;
        let level = typed.as_ref().map(|level| level.to_uppercase());
        if let (Some(typed), Some(level)) = (&typed, &level)
            && !LOG_LEVELS.contains(&level.as_str())
        {
            let known = LOG_LEVELS.join(", ");
            return Err(ViewError(format!("argument 'level': expected one of {known}, found {typed:?}")));
        }
        let last = last.unwrap_or(LOG_RECORDS_DEFAULT).min(LOG_RECORDS_MAX);
        Ok(Self { last, level, logger, since, until })
    }
}

/// Why the worker cannot tell: the text is for people and says what was asked for.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct ViewError(pub String);

/// What tasks may see of their worker. The shapes of the values are those of the built-in tasks in the protocol's
/// description.
pub trait WorkerView: Send + Sync {
    /// One job as an object of twelve keys, or `None` where the worker does not know it.
    fn job_details(&self, query: JobDetailsQuery) -> BoxFuture<'_, Result<Option<Value>, ViewError>>;
    /// Jobs, the newest first.
    fn job_list(&self, filter: JobFilter) -> BoxFuture<'_, Result<Vec<Value>, ViewError>>;
    /// Log records, the oldest first.
    fn logs(&self, filter: LogFilter) -> BoxFuture<'_, Result<Vec<Value>, ViewError>>;
    /// Answer of `get_stats`.
    fn stats(&self) -> BoxFuture<'_, Result<Value, ViewError>>;
    /// Answer of `get_worker_status`.
    fn status(&self) -> BoxFuture<'_, Result<Value, ViewError>>;
    /// Answer of `get_watchdog_stats`.
    fn watchdog_stats(&self) -> BoxFuture<'_, Result<Value, ViewError>>;
    /// Answer of `get_watchdog_configuration`.
    fn watchdog_configuration(&self) -> BoxFuture<'_, Result<Value, ViewError>>;
    /// The worker's merged inventory, with its secrets.
    fn inventory(&self) -> Arc<Value>;
    /// Versions of the worker and what it is made of: an object of texts. The service adds its own.
    fn version(&self) -> Value;
    /// The folder of files that the worker has fetched.
    fn fetched_files_dir(&self) -> PathBuf;
}

/// The clock that tasks read.
pub trait Clock: Send + Sync {
    /// For deadlines: never jumps.
    fn now(&self) -> Instant;
    /// For events: local time with milliseconds, `30-Nov-2026 00:33:08.011`.
    fn event_timestamp(&self) -> String;
    /// For results: local time in the form of C's `ctime`, `Mon Nov 30 00:33:08 2026`.
    fn ctime(&self) -> String;
    /// For results that are read in other time zones: UTC with microseconds, `2026-11-30T01:23:53.283543+00:00`.
    fn utc(&self) -> String;
}
