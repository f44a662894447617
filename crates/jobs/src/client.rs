//! What a client stores: its jobs, the results that came, and events.

use std::fmt;

use bytes::Bytes;
use norfab_protocol::name::{Identity, JobId, ServiceName, TaskName};

use crate::error::{OperationError, StoreError};
use crate::store::{LARGE_BYTES, Operation, Outcome, Page, PageEnd, Paged, Statistics, Store};

/// Where a job is, as its client sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ClientState {
    /// Stored, not sent.
    New,
    /// Sent to the broker, which has not answered.
    Submitting,
    /// The broker chose the workers.
    Dispatched,
    /// A worker has it.
    Started,
    /// A worker asked and waits for an answer.
    WaitingClientInput,
    /// Cancelled, and not every worker has confirmed that it ended there.
    Cancelling,
    /// All workers delivered. Final.
    Completed,
    /// Refused or failed. Final.
    Failed,
    /// The deadline passed. Final.
    Stale,
    /// Cancelled. Final.
    Cancelled,
}

impl ClientState {
    /// All states, in the order of a job's life.
    pub const ALL: [Self; 10] = [
        Self::New,
        Self::Submitting,
        Self::Dispatched,
        Self::Started,
        Self::WaitingClientInput,
        Self::Cancelling,
        Self::Completed,
        Self::Failed,
        Self::Stale,
        Self::Cancelled,
    ];

    /// Whether the state never changes again.
    pub fn is_final(self) -> bool {
        match self {
            Self::New
            | Self::Submitting
            | Self::Dispatched
            | Self::Started
            | Self::WaitingClientInput
            | Self::Cancelling => false,
            Self::Completed | Self::Failed | Self::Stale | Self::Cancelled => true,
        }
    }

    /// The state in capitals, as all peers write it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::New => "NEW",
            Self::Submitting => "SUBMITTING",
            Self::Dispatched => "DISPATCHED",
            Self::Started => "STARTED",
            Self::WaitingClientInput => "WAITING_CLIENT_INPUT",
            Self::Cancelling => "CANCELLING",
            Self::Completed => "COMPLETED",
            Self::Failed => "FAILED",
            Self::Stale => "STALE",
            Self::Cancelled => "CANCELLED",
        }
    }

    /// Reads what [`Self::as_str`] wrote; `None` for any other text.
    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|state| state.as_str() == text)
    }
}

impl fmt::Display for ClientState {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.pad(self.as_str())
    }
}

/// A job of a client.
#[derive(Debug, Clone, PartialEq)]
pub struct ClientJob {
    /// Which job.
    pub id: JobId,
    /// The service asked for.
    pub service: ServiceName,
    /// The task asked for.
    pub task: TaskName,
    /// The target frame as text.
    pub target: String,
    /// The POST body as sent. Empty in listings.
    pub body: Bytes,
    /// Seconds from submission to deadline.
    pub timeout: u64,
    /// When it was submitted, Unix seconds.
    pub submitted: f64,
    /// When nobody waits any more, Unix seconds.
    pub deadline: f64,
    /// Where it is.
    pub state: ClientState,
    /// Workers that the broker chose.
    pub dispatched: Vec<Identity>,
    /// Workers that have the job.
    pub started: Vec<Identity>,
    /// Workers that delivered.
    pub completed: Vec<Identity>,
    /// Why it failed.
    pub errors: Vec<String>,
    /// When it reached its final state, Unix seconds; exactly the final states have it.
    pub finished: Option<f64>,
}

/// A change of a client's database.
#[derive(Debug, Clone, PartialEq)]
pub enum ClientOperation {
    /// A new job. Refused: an id that is stored.
    Insert(ClientJob),
    /// What is known about a job now; replaces what was. Refused: unknown id, final state.
    Progress {
        /// Which job.
        id: JobId,
        /// Where it is.
        state: ClientState,
        /// Workers that the broker chose.
        dispatched: Vec<Identity>,
        /// Workers that have the job.
        started: Vec<Identity>,
        /// Workers that delivered.
        completed: Vec<Identity>,
        /// Why it failed.
        errors: Vec<String>,
        /// When it finished, Unix seconds, with a final state only.
        finished: Option<f64>,
    },
    /// One worker's result. Refused: unknown id, final state (so store results before the final progress), a second
    /// result of the same worker.
    Result {
        /// Which job.
        id: JobId,
        /// Whose result.
        worker: Identity,
        /// The worker's Result object as JSON.
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

/// What a worker's name in a list weighs, about.
const NAME_BYTES: usize = 16;

/// What an operation weighs beside its payload: names, times, the row around them.
const OPERATION_BYTES: usize = 256;

impl Operation for ClientOperation {
    fn job(&self) -> &JobId {
        match self {
            Self::Insert(job) => &job.id,
            Self::Progress { id, .. } | Self::Result { id, .. } | Self::Event { id, .. } => id,
        }
    }

    fn bytes(&self) -> usize {
        OPERATION_BYTES
            + match self {
                Self::Insert(job) => job.body.len() + job.target.len(),
                Self::Progress { dispatched, started, completed, errors, .. } => {
                    let names = dispatched.len() + started.len() + completed.len();
                    names * NAME_BYTES + errors.iter().map(String::len).sum::<usize>()
                }
                Self::Result { payload, .. } => payload.len(),
                Self::Event { body, .. } => body.len(),
            }
    }

    fn is_large(&self) -> bool {
        matches!(self, Self::Result { payload, .. } if payload.len() > LARGE_BYTES)
    }

    fn begins_a_job(&self) -> bool {
        matches!(self, Self::Insert(_))
    }

    fn is_confirmed_late(&self) -> bool {
        false
    }
}

/// A job with all that came for it.
#[derive(Debug, Clone, PartialEq)]
pub struct ClientJobDetails {
    /// The job.
    pub job: ClientJob,
    /// Results by worker, in the order of the workers' names.
    pub results: Vec<(Identity, Bytes)>,
    /// Events in the order in which they were stored.
    pub events: Vec<Bytes>,
}

/// Which jobs to list. The default lists all.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct ClientJobFilter {
    /// At most so many; [`crate::LISTED_JOBS_MAX`] in any case.
    pub last: Option<usize>,
    /// In this state only.
    pub state: Option<ClientState>,
    /// Of this service only.
    pub service: Option<ServiceName>,
    /// Of this task only.
    pub task: Option<TaskName>,
    /// Submitted at or after, Unix seconds.
    pub since: Option<f64>,
}

/// A client's job database.
pub trait ClientStore: Store<Operation = ClientOperation> {
    /// Unfinished jobs, the earliest submitted first, with bodies, after the end of the page before: for recovery, and for a
    /// queue that lives on disk. At most `limit` and [`crate::LISTED_JOBS_MAX`], and not many more bytes than
    /// [`crate::PAGE_BYTES_MAX`].
    fn unfinished(&mut self, after: Option<PageEnd>, limit: usize) -> Result<Page<ClientJob>, StoreError>;

    /// Unfinished jobs whose deadline is before a time in Unix seconds, the earliest deadline first, with bodies. As many as
    /// [`ClientStore::unfinished`] returns.
    fn late(&mut self, before: f64, limit: usize) -> Result<Page<ClientJob>, StoreError>;

    /// The highest number of a job that is stored. A job that is stored later gets a higher one than all that are there.
    fn last_number(&mut self) -> Result<Option<u64>, StoreError>;

    /// The number of a job.
    fn number(&mut self, id: &JobId) -> Result<Option<u64>, StoreError>;

    /// A job with results and events.
    fn job(&mut self, id: &JobId) -> Result<Option<ClientJobDetails>, StoreError>;

    /// Jobs without bodies, the last stored first.
    fn list(&mut self, filter: &ClientJobFilter) -> Result<Vec<ClientJob>, StoreError>;

    /// How many jobs in which state.
    fn statistics(&mut self) -> Result<Statistics<ClientState>, StoreError>;
}

impl Paged for ClientJob {
    fn request_bytes(&self) -> usize {
        self.body.len()
    }
}

/// The rule for new jobs: the time of the end goes with a final state, and times are numbers.
pub(crate) fn check_insert(job: &ClientJob) -> Outcome {
    if job.submitted.is_finite() && job.deadline.is_finite() {
        return check_end(&job.id, job.state, job.finished);
    }
    Err(OperationError::Inconsistent { id: job.id.clone(), state: job.state.as_str() })
}

/// The rule for progress: `current` is the state as stored.
pub(crate) fn check_progress(id: &JobId, current: ClientState, state: ClientState, finished: Option<f64>) -> Outcome {
    check_open(id, current)?;
    check_end(id, state, finished)
}

/// The rule for results, and part of the others: the job is not final.
pub(crate) fn check_open(id: &JobId, current: ClientState) -> Outcome {
    if current.is_final() {
        return Err(OperationError::Final { id: id.clone(), state: current.as_str() });
    }
    Ok(())
}

/// The part of the rules that needs no stored job: final states have a time of their end, the others have none.
pub(crate) fn check_end(id: &JobId, state: ClientState, finished: Option<f64>) -> Outcome {
    if finished.is_none_or(f64::is_finite) && state.is_final() == finished.is_some() {
        return Ok(());
    }
    Err(OperationError::Inconsistent { id: id.clone(), state: state.as_str() })
}
