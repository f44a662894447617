//! The way out of a task: events and bytes, into the bounded queue of its worker.

use std::time::Duration;

use bytes::Bytes;
use norfab_protocol::Event;

use crate::BoxFuture;

/// What a running task sends to its client.
#[derive(Debug, Clone, PartialEq)]
pub enum TaskMessage {
    /// News, a question, or what became of it: `event_type` in the event says which.
    Event(Box<Event>),
    /// Bytes, in order, without any structure.
    Stream(Bytes),
}

/// The worker's outbound queue stayed full.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "the outbound queue of {capacity} messages was full for {waited:?}: the broker does not take messages fast enough, \
     send less often or try again"
)]
pub struct QueueFull {
    /// How many messages the queue holds.
    pub capacity: usize,
    /// How long the sender waited for room.
    pub waited: Duration,
}

/// Why a message did not leave.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SendError {
    /// No room in the queue.
    #[error(transparent)]
    QueueFull(#[from] QueueFull),
    /// The worker has stopped: nothing of this job can reach its client any more.
    #[error("the worker has stopped and sends nothing any more")]
    Stopped,
}

/// The outbound queue as **one job** sees it: the owner of the other side knows the job and its client, so a message
/// carries neither. Implemented by the fabric's worker, and by [`crate::testing::TestOutlet`].
///
/// `Ok` means that the queue took the message; nothing that was taken is dropped later.
pub trait TaskOutlet: Send + Sync {
    /// Does not wait. Errors: as [`SendError`]; the message comes back.
    fn try_send(&self, message: TaskMessage) -> Result<(), (SendError, TaskMessage)>;

    /// Waits a short, fixed time for room. Errors: as [`SendError`].
    fn send(&self, message: TaskMessage) -> BoxFuture<'_, Result<(), SendError>>;

    /// As [`Self::send`], for threads that may block: never called on a thread that drives futures.
    fn send_blocking(&self, message: TaskMessage) -> Result<(), SendError>;
}
