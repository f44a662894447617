//! What a worker stores: the jobs it accepted, what they returned, and events.

use std::collections::HashSet;
use std::fmt;

use bytes::Bytes;
use norfab_protocol::name::{Identity, JobId, TaskName};

use crate::error::{OperationError, StoreError};
use crate::store::{LARGE_BYTES, Operation, Outcome, Page, PageEnd, Paged, Statistics, Store};

/// Where a job is, as its worker sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum WorkerState {
    /// Accepted, not begun.
    Pending,
    /// Runs.
    Started,
    /// Asked its client and waits.
    WaitingClientInput,
    /// The task returned. Final.
    Completed,
    /// The task failed or could not run. Final.
    Failed,
    /// Cancelled. Final.
    Cancelled,
}

impl WorkerState {
    /// All states, in the order of a job's life.
    pub const ALL: [Self; 6] =
        [Self::Pending, Self::Started, Self::WaitingClientInput, Self::Completed, Self::Failed, Self::Cancelled];

    /// Whether the state never changes again.
    pub fn is_final(self) -> bool {
        match self {
            Self::Pending | Self::Started | Self::WaitingClientInput => false,
            Self::Completed | Self::Failed | Self::Cancelled => true,
        }
    }

    /// The state in capitals, as all peers write it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Pending => "PENDING",
            Self::Started => "STARTED",
            Self::WaitingClientInput => "WAITING_CLIENT_INPUT",
            Self::Completed => "COMPLETED",
            Self::Failed => "FAILED",
            Self::Cancelled => "CANCELLED",
        }
    }

    /// Reads what [`Self::as_str`] wrote; `None` for any other text.
    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|state| state.as_str() == text)
    }
}

impl fmt::Display for WorkerState {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.pad(self.as_str())
    }
}

/// A job of a worker.
#[derive(Debug, Clone, PartialEq)]
pub struct WorkerJob {
    /// Which job.
    pub id: JobId,
    /// Who asked.
    pub client: Identity,
    /// The task to run.
    pub task: TaskName,
    /// The POST body as received. Empty in listings.
    pub body: Bytes,
    /// Seconds from submission to deadline.
    pub timeout: u64,
    /// When it came, Unix seconds.
    pub received: f64,
    /// When nobody waits any more, Unix seconds.
    pub deadline: f64,
    /// Where it is.
    pub state: WorkerState,
    /// How often it was begun.
    pub attempts: u32,
    /// When the last attempt began, Unix seconds.
    pub started: Option<f64>,
    /// When it reached its final state, Unix seconds; exactly the final states have it.
    pub finished: Option<f64>,
}

/// A change of a worker's database.
#[derive(Debug, Clone, PartialEq)]
pub enum WorkerOperation {
    /// A new job. Refused: an id that is stored.
    Insert(WorkerJob),
    /// The job is in another state since `at`. `Started` begins an attempt: counts it and notes the time. A final state ends the job without a payload. Refused: unknown id, final state.
    State {
        /// Which job.
        id: JobId,
        /// Its new state.
        state: WorkerState,
        /// When, Unix seconds.
        at: f64,
    },
    /// The job runs since `at` in place of an attempt that was counted and did not begin. Refused: unknown id, final state.
    StartedAnew {
        /// Which job.
        id: JobId,
        /// When, Unix seconds.
        at: f64,
    },
    /// A job that waited for input goes on; this is no new attempt. Refused: unknown id, final state.
    Answered {
        /// Which job.
        id: JobId,
    },
    /// The end of a job and what it returned, in one. Refused: unknown id, final state, a state that is not final.
    Finish {
        /// Which job.
        id: JobId,
        /// Its final state.
        state: WorkerState,
        /// When, Unix seconds.
        at: f64,
        /// This worker's Result object as JSON.
        payload: Bytes,
    },
    /// An event, at any time of a job's life. Refused: unknown id, too many.
    Event {
        /// Which job.
        id: JobId,
        /// The EVENT body.
        body: Bytes,
    },
}

/// What an operation weighs beside its payload: names, times, the row around them.
const OPERATION_BYTES: usize = 256;

impl Operation for WorkerOperation {
    fn job(&self) -> &JobId {
        match self {
            Self::Insert(job) => &job.id,
            Self::State { id, .. }
            | Self::StartedAnew { id, .. }
            | Self::Answered { id }
            | Self::Finish { id, .. }
            | Self::Event { id, .. } => id,
        }
    }

    fn bytes(&self) -> usize {
        OPERATION_BYTES
            + match self {
                Self::Insert(job) => job.body.len(),
                Self::State { .. } | Self::StartedAnew { .. } | Self::Answered { .. } => 0,
                Self::Finish { payload, .. } => payload.len(),
                Self::Event { body, .. } => body.len(),
            }
    }

    fn is_large(&self) -> bool {
        matches!(self, Self::Finish { payload, .. } if payload.len() > LARGE_BYTES)
    }

    fn begins_a_job(&self) -> bool {
        matches!(self, Self::Insert(_) | Self::State { state: WorkerState::Started, .. } | Self::StartedAnew { .. })
    }

    fn is_confirmed_late(&self) -> bool {
        // Until then the worker answers for the job from memory.
        matches!(self, Self::Finish { .. })
    }
}

/// A job with all that belongs to it.
#[derive(Debug, Clone, PartialEq)]
pub struct WorkerJobDetails {
    /// The job.
    pub job: WorkerJob,
    /// What it returned, if it ended with a result.
    pub payload: Option<Bytes>,
    /// Events in the order in which they were stored.
    pub events: Vec<Bytes>,
}

/// Which jobs to list. The default lists all, as does asking for both pending and completed.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct WorkerJobFilter {
    /// Unfinished jobs.
    pub pending: bool,
    /// Finished jobs.
    pub completed: bool,
    /// Of this task only.
    pub task: Option<TaskName>,
    /// At most so many; [`crate::LISTED_JOBS_MAX`] in any case.
    pub last: Option<usize>,
    /// Of this client only.
    pub client: Option<Identity>,
    /// This job only.
    pub uuid: Option<JobId>,
}

impl Paged for WorkerJob {
    fn request_bytes(&self) -> usize {
        self.body.len()
    }
}

/// A worker's job database.
pub trait WorkerStore: Store<Operation = WorkerOperation> {
    /// Unfinished jobs, the first received first, with bodies, after the end of the page before. At most `limit` and
    /// [`crate::LISTED_JOBS_MAX`].
    fn unfinished(&mut self, after: Option<PageEnd>, limit: usize) -> Result<Page<WorkerJob>, StoreError>;

    /// A job with result and events.
    fn job(&mut self, id: &JobId) -> Result<Option<WorkerJobDetails>, StoreError>;

    /// A job without body, and what it returned: all that a GET needs.
    fn result(&mut self, id: &JobId) -> Result<Option<(WorkerJob, Option<Bytes>)>, StoreError>;

    /// Which of these jobs are there, whatever their states: all that a question about many needs. A job of which not all could be
    /// written yet is.
    fn known(&mut self, ids: &[JobId]) -> Result<HashSet<JobId>, StoreError>;

    /// Jobs without bodies, the last stored first.
    fn list(&mut self, filter: &WorkerJobFilter) -> Result<Vec<WorkerJob>, StoreError>;

    /// How many jobs in which state.
    fn statistics(&mut self) -> Result<Statistics<WorkerState>, StoreError>;
}

/// The rule for new jobs: the time of the end goes with a final state, and times are numbers.
pub(crate) fn check_insert(job: &WorkerJob) -> Outcome {
    let times = job.received.is_finite()
        && job.deadline.is_finite()
        && job.started.is_none_or(f64::is_finite)
        && job.finished.is_none_or(f64::is_finite);
    if times && job.state.is_final() == job.finished.is_some() {
        return Ok(());
    }
    Err(inconsistent(&job.id, job.state))
}

pub(crate) fn inconsistent(id: &JobId, state: WorkerState) -> OperationError {
    OperationError::Inconsistent { id: id.clone(), state: state.as_str() }
}
