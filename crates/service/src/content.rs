//! What a client sends to a running task: pieces, in the order in which they come, as many as the task has room for.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use tokio::runtime::Handle;
use tokio::sync::{Notify, mpsc};
use tokio::time;

use crate::port::{CancelReason, DeliverError, Shared};

/// What a waiting piece counts at least: a small one costs its place in the queue and the message that it lies in.
pub const PIECE_BYTES_MIN: usize = 4 << 10;

/// Most bytes that a task may let wait.
pub const CONTENT_BYTES_MAX: usize = 128 << 20;

/// Why a task gets no further piece.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ContentError {
    /// None came.
    #[error("the client sent nothing for {seconds} s")]
    TimedOut {
        /// How long the task waited.
        seconds: u64,
    },
    /// More came than may wait. What came is not complete any more.
    #[error(
        "the client sent more than the {bytes_max} bytes that may wait here: it must not send more than it was told to"
    )]
    TooMuch {
        /// How many may wait.
        bytes_max: usize,
    },
    /// The job ends.
    #[error("no further content is taken because the job ends: {0}")]
    JobCancelled(CancelReason),
}

#[derive(Debug)]
struct Waiting {
    /// What pieces that wait count.
    bytes: AtomicUsize,
    bytes_max: usize,
    /// Something was refused; who waits is told of it.
    too_much: AtomicBool,
    refused: Notify,
}

/// The worker's end.
#[derive(Debug)]
pub(crate) struct ContentSender {
    pieces: mpsc::Sender<Bytes>,
    waiting: Arc<Waiting>,
}

fn counts(piece: &Bytes) -> usize {
    piece.len().max(PIECE_BYTES_MIN)
}

impl ContentSender {
    pub(crate) fn deliver(&self, piece: Bytes) -> Result<(), DeliverError> {
        let Waiting { bytes, bytes_max, too_much, refused } = &*self.waiting;
        let count = counts(&piece);
        let too_much_came = || {
            too_much.store(true, Ordering::SeqCst);
            refused.notify_one();
            DeliverError::ContentFull { bytes_max: *bytes_max }
        };
        // Behind a gap nothing is of use: it would only take room.
        if too_much.load(Ordering::SeqCst) || bytes.load(Ordering::SeqCst) + count > *bytes_max {
            return Err(too_much_came());
        }
        bytes.fetch_add(count, Ordering::SeqCst);
        self.pieces.try_send(piece).map_err(|refused| match refused {
            mpsc::error::TrySendError::Full(_) => too_much_came(),
            mpsc::error::TrySendError::Closed(_) => DeliverError::Ended,
        })
    }
}

/// Where the worker's end of a job's content is, once its task wants some.
pub(crate) type ContentSlot = Mutex<Option<ContentSender>>;

/// What a client sends to a task, from when the task asks for it: see [`crate::TaskContext::content`].
pub struct Content {
    pieces: mpsc::Receiver<Bytes>,
    waiting: Arc<Waiting>,
    shared: Arc<Shared>,
    runtime: Handle,
}

impl Content {
    pub(crate) fn open(shared: Arc<Shared>, slot: &ContentSlot, bytes_max: usize, runtime: Handle) -> Self {
        let bytes_max = bytes_max.clamp(PIECE_BYTES_MIN, CONTENT_BYTES_MAX);
        let (sender, pieces) = mpsc::channel(bytes_max / PIECE_BYTES_MIN);
        let waiting = Arc::new(Waiting {
            bytes: AtomicUsize::new(0),
            bytes_max,
            too_much: AtomicBool::new(false),
            refused: Notify::new(),
        });
        let sender = ContentSender { pieces: sender, waiting: Arc::clone(&waiting) };
        // A sender cannot be half changed.
        *slot.lock().unwrap_or_else(PoisonError::into_inner) = Some(sender);
        Self { pieces, waiting, shared, runtime }
    }

    /// The next piece. Errors: none came in time, too much came, or the job ends.
    pub async fn next(&mut self, timeout: Duration) -> Result<Bytes, ContentError> {
        // Whatever came before it is taken first.
        if self.waiting.too_much.load(Ordering::SeqCst) && self.pieces.is_empty() {
            return Err(ContentError::TooMuch { bytes_max: self.waiting.bytes_max });
        }
        let cancelled = self.shared.token().cancelled();
        let (pieces, waiting) = (&mut self.pieces, &self.waiting);
        let piece_or_refusal = async {
            tokio::select! {
                biased;
                piece = pieces.recv() => Some(piece),
                () = waiting.refused.notified() => None,
            }
        };
        let piece = tokio::select! {
            biased;
            () = cancelled => {
                let reason = self.shared.cancel_reason().cloned();
                return Err(ContentError::JobCancelled(reason.unwrap_or(CancelReason::WorkerStops)));
            }
            piece = time::timeout(timeout, piece_or_refusal) => piece,
        };
        match piece {
            Ok(Some(Some(piece))) => {
                self.waiting.bytes.fetch_sub(counts(&piece), Ordering::SeqCst);
                Ok(piece)
            }
            // A port that is gone delivers nothing any more: the worker stops.
            Ok(Some(None)) => Err(ContentError::JobCancelled(CancelReason::WorkerStops)),
            // One that alone is more than there is room for.
            Ok(None) => Err(ContentError::TooMuch { bytes_max: self.waiting.bytes_max }),
            Err(_) => Err(ContentError::TimedOut { seconds: timeout.as_secs() }),
        }
    }

    /// As [`Self::next`], for blocking tasks.
    pub fn next_blocking(&mut self, timeout: Duration) -> Result<Bytes, ContentError> {
        let runtime = self.runtime.clone();
        runtime.block_on(self.next(timeout))
    }
}
