//! Questions of a running task to its client.

use serde_json::{Map, Value};

use crate::outlet::SendError;
use crate::port::{CancelReason, QUESTIONS_MAX};

/// Seconds that a question waits for its answer, unless it says otherwise.
pub const QUESTION_TIMEOUT_SECONDS: u64 = 120;

/// A question to the client of the job.
///
/// ```
/// use norfab_service::Question;
/// let question = Question::new("delete 3 files?").default("no").timeout(30);
/// # let _ = question;
/// ```
#[derive(Debug, Clone, PartialEq)]
pub struct Question {
    pub(crate) question: String,
    pub(crate) default: Value,
    pub(crate) timeout: u64,
    pub(crate) metadata: Map<String, Value>,
}

impl Question {
    /// A question for people, without a default, that waits [`QUESTION_TIMEOUT_SECONDS`].
    pub fn new(question: impl Into<String>) -> Self {
        Self {
            question: question.into(),
            default: Value::Null,
            timeout: QUESTION_TIMEOUT_SECONDS,
            metadata: Map::new(),
        }
    }

    /// What an answer that names no value means. An answer of null stays null.
    pub fn default(mut self, default: impl Into<Value>) -> Self {
        self.default = default.into();
        self
    }

    /// How many seconds to wait. The job's own deadline ends the wait, too.
    pub fn timeout(mut self, seconds: u64) -> Self {
        self.timeout = seconds;
        self
    }

    /// What helps to answer, for programs: choices, a preview.
    pub fn metadata(mut self, key: impl Into<String>, value: impl Into<Value>) -> Self {
        self.metadata.insert(key.into(), value.into());
        self
    }
}

/// Why a question has no answer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InputError {
    /// The client said that no answer will come.
    #[error("the client cancelled the question {question:?}")]
    Cancelled {
        /// The question.
        question: String,
    },
    /// Nobody answered.
    #[error("nobody answered the question {question:?} within {seconds} s")]
    TimedOut {
        /// The question.
        question: String,
        /// How long the task waited.
        seconds: u64,
    },
    /// The job ends.
    #[error("the question {question:?} has no answer because the job ends: {reason}")]
    JobCancelled {
        /// The question.
        question: String,
        /// Why the job ends.
        reason: CancelReason,
    },
    /// Too many questions of this job are open.
    #[error("{QUESTIONS_MAX} questions of this job are open already: wait for an answer first")]
    TooManyOpen,
    /// The question, or the event that tells what became of it, could not be sent.
    #[error(transparent)]
    Send(#[from] SendError),
}

/// Why there is no credit for the next chunk.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CreditError {
    /// The client asked for nothing.
    #[error("the client asked for no further chunk within {seconds} s")]
    TimedOut {
        /// How long the task waited.
        seconds: u64,
    },
    /// The job ends.
    #[error("no further chunk is sent because the job ends: {0}")]
    JobCancelled(CancelReason),
}
