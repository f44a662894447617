//! What comes out of a client machine.

use bytes::Bytes;

use super::job::{JobRequest, JobState, Progress};
use super::lost::Lost;
use crate::body::{Event, InputRequest};
use crate::frame::{Frames, Status};
use crate::message::DecodeError;
use crate::name::{Identity, JobId};

/// What the store is to do.
#[derive(Debug, Clone)]
pub enum ClientStoreOperation {
    /// A new job.
    Insert(JobRequest),
    /// Its state and what belongs to it.
    Progress(Progress),
    /// One worker's Result as JSON.
    Result {
        /// Which job.
        job: JobId,
        /// Whose.
        worker: Identity,
        /// The Result.
        payload: Bytes,
    },
    /// An event as JSON.
    Event {
        /// Which job.
        job: JobId,
        /// The event.
        body: Bytes,
    },
}

/// What is confirmed by the store, in the order in which it was given to it: [`ClientStoreOperation::Insert`] of this job, then
/// that it is cancelled, if it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClientToken(pub JobId);

/// How a job ended.
#[derive(Debug, Clone)]
pub struct Outcome {
    /// A final state.
    pub state: JobState,
    /// Why it did not complete.
    pub errors: Vec<String>,
    /// Workers that returned nothing, and why.
    pub missing: Vec<(Identity, Lost)>,
}

/// News of a job for those who wait for it.
#[derive(Debug, Clone)]
pub enum JobUpdate {
    /// The store has it.
    Stored,
    /// Nobody it is for is registered, or not everyone whom it names; it waits for them. Who, for people.
    Waits(String),
    /// The broker handed it to these workers.
    Dispatched(Vec<Identity>),
    /// A worker has it.
    Accepted(Identity),
    /// An event; the body as it came.
    Event(Box<Event>, Bytes),
    /// A worker asks; also when only a GET brought it to light.
    Question(Identity, InputRequest),
    /// A worker's Result as JSON.
    Result(Identity, Bytes),
    /// Bytes.
    Stream(Bytes),
    /// The end; nothing comes after it.
    Finished(Outcome),
}

/// What the owner is to do.
#[derive(Debug)]
pub enum ClientOutput {
    /// Send, in order. With an id: may be thrown away while it waits, once [`ClientOutput::Forget`] names the job.
    Send(Frames, Option<JobId>),
    /// The job has ended: what still waits to be sent about it must not leave any more, its POST above all. A cancellation
    /// does leave.
    Forget(JobId),
    /// Store, and confirm with [`super::Client::stored`] where there is a token.
    Store(ClientStoreOperation, Option<ClientToken>),
    /// Tell who waits for the job.
    Update(JobId, JobUpdate),
    /// The answer to a management request.
    Management(JobId, Result<(Status, Bytes), ManagementFailure>),
    /// Drop the connection and make a new one.
    Reconnect,
    /// Log.
    Note(ClientNote),
}

/// Why a management request has no answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ManagementFailure {
    /// Nobody answered in time.
    #[error("no answer in time")]
    TimedOut,
    /// More than [`super::ClientConfig::management_max`].
    #[error("too many management requests wait for their answer")]
    TooMany,
}

/// What happened, for logs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ClientNote {
    /// The broker owed a word for [`super::SILENCE_MAX`].
    BrokerSilent,
    /// A message was refused.
    Refused(DecodeError),
    /// A message named a job that is not active.
    UnknownJob(JobId),
    /// A worker answered that was not asked.
    UnexpectedWorker(JobId, String),
    /// That a job is cancelled could not be stored; its workers are told all the same.
    CancelNotStored {
        /// Which.
        job: JobId,
        /// Why.
        error: String,
    },
    /// The broker found no worker for a question about a job that is under way; the job goes on.
    WorkerAway(JobId),
}

/// Counters since the start.
#[derive(Debug, Clone, Default)]
pub struct ClientCounters {
    /// Messages in.
    pub received: u64,
    /// Messages out.
    pub sent: u64,
    /// Events among those received.
    pub events: u64,
    /// Refused messages.
    pub refused: u64,
}
