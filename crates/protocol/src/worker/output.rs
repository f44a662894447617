//! What goes into a worker machine and what comes out of it.

use std::time::{Duration, Instant};

use bytes::Bytes;

use super::QUESTIONS_MAX;
use crate::body::{JobRequestBody, PutBody};
use crate::frame::Frames;
use crate::message::DecodeError;
use crate::name::{Identity, JobId, TaskName};

/// How urgent a message is, and what may become of it while the link takes nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Class {
    /// READY: before everything that waits.
    First,
    /// A beat: pointless once it is late.
    Beat,
    /// Everything else: in order, never dropped.
    Data,
    /// As [`Class::Data`], in the same order, but nobody waits for it: it may wait a moment to leave with what follows. The
    /// word that a job was taken, and what a task reports on its way.
    Unhurried,
}

/// A job as the store is to keep it.
#[derive(Debug, Clone)]
pub struct NewJob {
    /// Its id.
    pub job: JobId,
    /// Who asked.
    pub client: Identity,
    /// What for.
    pub task: TaskName,
    /// Seconds that its client said it waits.
    pub asked_timeout: Option<u64>,
    /// The same, or the protocol's default where the client did not say.
    pub timeout: u64,
    /// What is left of that now, where the client said how long it waits.
    pub time_left: Option<Duration>,
    /// The request as it came.
    pub body: Bytes,
}

/// What the store is to do.
#[derive(Debug, Clone)]
pub enum WorkerStoreOperation {
    /// A new job, in state PENDING.
    Insert(NewJob),
    /// It begins to run, which counts as an attempt.
    Started(JobId),
    /// It begins to run in place of an attempt that was counted and did not begin.
    StartedAnew(JobId),
    /// It waits for its client.
    Waiting(JobId),
    /// It has what it waited for, and goes on.
    Answered(JobId),
    /// It has ended.
    Finish {
        /// Which.
        job: JobId,
        /// How.
        ending: Ending,
        /// The Result as JSON.
        payload: Bytes,
    },
    /// An event of it.
    Event {
        /// Which.
        job: JobId,
        /// The event as JSON.
        body: Bytes,
    },
}

/// How a job ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ending {
    /// The task returned a result, failed or not.
    Completed,
    /// There is a result that says why there is none.
    Failed,
    /// Someone did not want it any more.
    Cancelled,
}

/// What is confirmed by the store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum WorkerToken {
    /// [`WorkerStoreOperation::Insert`].
    Insert(JobId),
    /// [`WorkerStoreOperation::Started`] or [`WorkerStoreOperation::StartedAnew`], before the job starts.
    Start(JobId),
    /// [`WorkerStoreOperation::Finish`]; once more when one that could not be stored is.
    Finish(JobId),
}

/// Why the store did not do it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StoreFailure {
    /// The job is known already.
    Duplicate,
    /// It has no such unfinished job, for people: the next process will not find it either.
    Refused(String),
    /// It has no space, or cannot be written, for people. It goes on trying to store the end of a job, and confirms that a second time.
    Failed(String),
    /// As [`Self::Failed`], but it keeps no more of what it cannot store, and does not try this again.
    GivenUp(String),
}

/// A job to run.
#[derive(Debug, Clone)]
pub struct StartJob {
    /// Its id.
    pub job: JobId,
    /// Who asked.
    pub client: Identity,
    /// What for.
    pub request: JobRequestBody,
    /// Seconds that its client waits, or the protocol's default where it did not say.
    pub timeout: u64,
    /// Which attempt this is: 1, or more where processes before this one ended while it ran.
    pub attempt: u32,
    /// Until when its client waits. `None`: it did not say, as 0.21 clients.
    pub deadline: Option<Instant>,
}

/// Why a job ends without having run to its end. The owner writes the result and gives it to [`super::Worker::finished`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Abandoned {
    /// Its deadline passed before it started.
    Expired,
    /// Its client cancelled it.
    Cancelled {
        /// Which client.
        by: Identity,
        /// Why.
        reason: Option<String>,
        /// Who, when and why, in the client's words.
        text: Option<String>,
        /// Nobody did: another worker has it, and the fabric takes it back from this one.
        back: bool,
    },
    /// The worker's process ended while it ran.
    Restarted,
    /// Its arguments cannot be read.
    Unreadable(String),
}

/// Why a job is not taken, if it is not known.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    /// Why.
    pub reason: String,
    /// Whether another worker may take it.
    pub retry: bool,
    /// Where its client counts them: the turn that is refused, as all before it ([`crate::body::Posting::turn`]).
    pub turn: Option<u32>,
}

/// Why a job is looked up.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Asked {
    /// Somebody wants to know its state.
    State,
    /// Somebody does not want it any more.
    ToCancel,
    /// Somebody posted it in this turn, where its client counts them, and the store has it.
    Again(Option<u32>),
    /// Somebody wants it to run, and it cannot be taken now.
    ToRun(Refusal),
}

/// What the owner is to do.
#[derive(Debug)]
pub enum WorkerOutput {
    /// Send.
    Send(Frames, Class),
    /// Send, as [`Class::Unhurried`], what the result of this job says as well: that it was taken, that it starts.
    Announce(JobId, Frames),
    /// The result of this job follows, for a client that needs no more: what was announced of it and still waits for company
    /// need not leave.
    Withdraw(JobId),
    /// Store, and confirm with [`super::Worker::stored`] where there is a token.
    Store(WorkerStoreOperation, Option<WorkerToken>),
    /// Look a job up and tell [`super::Worker::loaded`].
    Load {
        /// Which.
        job: JobId,
        /// Who asks.
        client: Identity,
        /// What for: for [`super::Worker::loaded`].
        asked: Asked,
    },
    /// Look up which of these jobs are stored and tell [`super::Worker::looked_up`].
    LookUp {
        /// Which: at most [`crate::body::JOBS_ASKED_MAX`].
        jobs: Vec<JobId>,
        /// The id of the question.
        question: JobId,
        /// Who asks.
        client: Identity,
    },
    /// Run.
    Start(StartJob),
    /// Write a result for a job that will not run.
    Abandon {
        /// Which.
        job: JobId,
        /// What was asked.
        task: TaskName,
        /// Why.
        why: Abandoned,
    },
    /// Hand to the running task.
    Deliver {
        /// Which.
        job: JobId,
        /// Input or credit.
        put: PutBody,
    },
    /// Tell the client with [`super::Worker::announce_cancel`], and the running task to stop. It has a time of grace; what it
    /// returns is the result of a cancelled job.
    Cancel {
        /// Which.
        job: JobId,
        /// What was asked.
        task: TaskName,
        /// Who and why.
        why: Abandoned,
    },
    /// Drop the socket, make a new one, then call [`super::Worker::connected`].
    Reconnect,
    /// Log.
    Note(WorkerNote),
}

/// What happened, for logs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum WorkerNote {
    /// The broker was silent for its hold time.
    BrokerSilent,
    /// The broker asked to register again.
    BrokerAsked,
    /// A message was refused.
    Refused(DecodeError),
    /// A job was refused.
    JobRefused {
        /// Which.
        job: JobId,
        /// Why.
        reason: String,
    },
    /// A job does not start yet, as that could not be stored. It is tried again after [`super::START_AGAIN`].
    StartNotStored {
        /// Which.
        job: JobId,
        /// Why.
        error: String,
    },
    /// A result could not be stored; it was sent all the same, and is stored when that is possible.
    ResultNotStored {
        /// Which.
        job: JobId,
        /// Why.
        error: String,
    },
}

/// What is stored about a job that is not active.
#[derive(Debug, Clone)]
pub struct LoadedJob {
    /// The Result as JSON, once it has ended.
    pub payload: Option<Bytes>,
}

/// A job that the store had at start.
#[derive(Debug, Clone)]
pub struct RestoredJob {
    /// What was stored.
    pub new: NewJob,
    /// Whether its task began and may not begin once more: it ends as [`Abandoned::Restarted`].
    pub given_up: bool,
    /// What is left of its time.
    pub remaining: Duration,
    /// How often its task began.
    pub attempts: u32,
    /// Whether the store has counted one more attempt, which did not begin.
    pub counted: bool,
}

impl RestoredJob {
    /// A job of whose row is known whether it says that the job started and how often, whether its task may have begun the last
    /// time, and how often the task may begin. One whose process ended before its task began was not begun that time, however often
    /// that happened: the row counts it once.
    pub fn of_row(
        new: NewJob,
        remaining: Duration,
        started: bool,
        attempts: u32,
        may_have_begun: bool,
        attempts_max: u32,
    ) -> Self {
        let counted = started && !may_have_begun;
        let attempts = match (started, may_have_begun) {
            (true, true) => attempts.max(1),
            (true, false) => attempts.saturating_sub(1),
            (false, _) => attempts,
        };
        Self { new, given_up: attempts > 0 && attempts >= attempts_max, remaining, attempts, counted }
    }
}

/// Counters since the start.
#[derive(Debug, Clone, Default)]
pub struct WorkerCounters {
    /// Messages in.
    pub received: u64,
    /// Messages out.
    pub sent: u64,
    /// Refused messages.
    pub refused: u64,
    /// New sockets after the first.
    pub reconnects: u64,
    /// Inputs and credits for jobs that do not run.
    pub puts_ignored: u64,
}

/// Why an event or a chunk was not taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum NotTaken {
    /// The job has ended or never was.
    #[error("the job does not run")]
    NoSuchJob,
    /// More than [`QUESTIONS_MAX`].
    #[error("the job has {QUESTIONS_MAX} questions open, the most it may have")]
    TooManyQuestions,
}
