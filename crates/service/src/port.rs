//! The worker's half of a running task: what comes in for it goes through here.

use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::{fmt, mem};

use norfab_protocol::body::{InputRequest, InputResponse, PutBody, StreamCredit};
use tokio::sync::{mpsc, oneshot};
use tokio_util::sync::CancellationToken;

use crate::content::ContentSlot;

/// Most stream credits that wait for a task. A client holds one more than its pipeline in flight, and a pipeline is a
/// few dozen at most; a thousand leaves room for clients that send all credits of a file at once.
pub const CREDITS_MAX: usize = 1024;

/// Most questions of one job that wait for an answer at the same time. Each is a prompt that a person sees.
pub const QUESTIONS_MAX: usize = 64;

/// Why a job is to end early.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CancelReason {
    /// Somebody asked for it; the text is theirs, and may be empty.
    Requested(String),
    /// Its deadline has passed.
    Deadline,
    /// The worker stops.
    WorkerStops,
}

impl fmt::Display for CancelReason {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Requested(reason) if reason.is_empty() => formatter.write_str("cancelled"),
            // Who, when and why, in a sentence of its own.
            Self::Requested(text) if text.starts_with("cancelled ") => formatter.write_str(text),
            Self::Requested(reason) => write!(formatter, "cancelled: {reason}"),
            Self::Deadline => formatter.write_str("its deadline has passed"),
            Self::WorkerStops => formatter.write_str("the worker stops"),
        }
    }
}

/// Why something that came in does not reach the task. Nobody needs to be told: the protocol has no answer to a PUT.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DeliverError {
    /// No open question has this id: it was answered, has timed out, or belongs to another worker.
    #[error("no open question has the id {id:?}")]
    UnknownQuestion {
        /// The id in the answer.
        id: String,
    },
    /// The task does not read its credits.
    #[error("{CREDITS_MAX} stream credits wait already, the credit for offset {offset} is refused")]
    CreditsFull {
        /// The offset in the credit.
        offset: u64,
    },
    /// The task takes no content, or not yet.
    #[error("the task takes no content")]
    NoContent,
    /// The task has no room for it, and gets no more.
    #[error("{bytes_max} bytes of content wait already, what came is refused")]
    ContentFull {
        /// How many may wait.
        bytes_max: usize,
    },
    /// The task has ended.
    #[error("the task has ended")]
    Ended,
}

struct OpenQuestion {
    request: InputRequest,
    answer: oneshot::Sender<InputResponse>,
}

/// What port and context share.
#[derive(Default)]
pub(crate) struct Shared {
    token: CancellationToken,
    reason: OnceLock<CancelReason>,
    questions: Mutex<Vec<OpenQuestion>>,
    content: ContentSlot,
}

impl Shared {
    pub(crate) fn cancel(&self, reason: CancelReason) {
        // The first reason stands, and is there before the token says that there is one.
        self.reason.get_or_init(|| reason);
        self.token.cancel();
    }

    pub(crate) fn token(&self) -> &CancellationToken {
        &self.token
    }

    pub(crate) fn content_slot(&self) -> &ContentSlot {
        &self.content
    }

    pub(crate) fn cancel_reason(&self) -> Option<&CancelReason> {
        self.reason.get()
    }

    /// Opens a question. `None` where [`QUESTIONS_MAX`] are open.
    pub(crate) fn open_question(
        self: &Arc<Self>,
        request: InputRequest,
    ) -> Option<(QuestionGuard, oneshot::Receiver<InputResponse>)> {
        let (answer, answered) = oneshot::channel();
        let guard = QuestionGuard { shared: Arc::clone(self), id: request.id.clone() };
        let mut questions = self.lock();
        if questions.len() >= QUESTIONS_MAX {
            // The guard takes the same lock when it is dropped.
            drop(questions);
            return None;
        }
        questions.push(OpenQuestion { request, answer });
        drop(questions);
        Some((guard, answered))
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Vec<OpenQuestion>> {
        // Nothing panics while the lock is held, and a list of questions cannot be half changed.
        self.questions.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Closes a question when its asker no longer waits, in whatever way that came about.
pub(crate) struct QuestionGuard {
    shared: Arc<Shared>,
    id: String,
}

impl Drop for QuestionGuard {
    fn drop(&mut self) {
        let mut questions = self.shared.lock();
        questions.retain(|question| question.request.id != self.id);
    }
}

/// The worker's half of a running task, made together with its [`crate::TaskContext`]. Nothing here waits.
pub struct TaskPort {
    pub(crate) shared: Arc<Shared>,
    pub(crate) credits: mpsc::Sender<StreamCredit>,
}

impl TaskPort {
    /// Gives the task what a client sent. Errors: as [`DeliverError`]; the content is dropped then, and the caller
    /// counts it.
    pub fn deliver(&self, body: PutBody) -> Result<(), DeliverError> {
        match body {
            PutBody::Input(response) => self.deliver_input(response),
            PutBody::Credit(credit) => self.credits.try_send(credit).map_err(|refused| match refused {
                mpsc::error::TrySendError::Full(credit) => DeliverError::CreditsFull { offset: credit.offset },
                mpsc::error::TrySendError::Closed(_) => DeliverError::Ended,
            }),
            PutBody::Content(piece) => {
                let content = self.shared.content.lock().unwrap_or_else(PoisonError::into_inner);
                content.as_ref().ok_or(DeliverError::NoContent)?.deliver(piece)
            }
        }
    }

    fn deliver_input(&self, response: InputResponse) -> Result<(), DeliverError> {
        let mut questions = self.shared.lock();
        let Some(index) = questions.iter().position(|question| question.request.id == response.input_id) else {
            return Err(DeliverError::UnknownQuestion { id: response.input_id });
        };
        // The order of the others is kept: `open_questions` tells the oldest first.
        let question = questions.remove(index);
        mem::drop(questions);
        question.answer.send(response).map_err(|_| DeliverError::Ended)
    }

    /// Asks the task to end. It is told through its token, and has [`crate::CANCEL_GRACE`] to return what it has.
    /// The first reason stands.
    pub fn cancel(&self, reason: CancelReason) {
        self.shared.cancel(reason);
    }

    /// The questions that wait for an answer, the oldest first: what a GET is answered with 102 for.
    pub fn open_questions(&self) -> Vec<InputRequest> {
        let questions = self.shared.lock();
        questions.iter().map(|question| question.request.clone()).collect()
    }

    /// Whether nobody holds the task's context any more.
    pub fn has_ended(&self) -> bool {
        self.credits.is_closed()
    }
}
