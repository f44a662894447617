//! The bounded queue between everyone and an owner.

use std::time::Duration;

use norfab_transport::Waker;
use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};

/// How long a sender waits for room before it gets an error. Long enough for an owner that is busy with a large message,
/// short enough that nobody calls it stuck.
pub const SEND_WAIT: Duration = Duration::from_millis(100);

/// Why a queue did not take something.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum QueueError {
    /// It stayed full for [`SEND_WAIT`].
    #[error("the queue of {capacity} messages was full for {} ms: the other side does not take them fast enough", waited.as_millis())]
    Full {
        /// How many it holds.
        capacity: usize,
        /// How long the sender waited.
        waited: Duration,
    },
    /// The owner has stopped, or is stopping and takes nothing new.
    #[error("the owner of the queue has stopped")]
    Stopped,
}

/// A place in a queue: given back when what took it has left the process, or was dropped with a reason.
pub(crate) type Place = OwnedSemaphorePermit;

/// Places for messages that are counted until they have left, beyond the queue itself: so the owner never has to stop
/// reading its queue, in which the ends of jobs and the order to stop stand too.
#[derive(Debug, Clone)]
pub(crate) struct Places {
    free: Arc<Semaphore>,
    capacity: usize,
}

impl Places {
    pub(crate) fn new(capacity: usize) -> Self {
        let capacity = capacity.clamp(1, Semaphore::MAX_PERMITS);
        Self { free: Arc::new(Semaphore::new(capacity)), capacity }
    }

    /// Without waiting. Errors: none is free.
    pub(crate) fn try_take(&self) -> Result<Place, QueueError> {
        let full = QueueError::Full { capacity: self.capacity, waited: Duration::ZERO };
        Arc::clone(&self.free).try_acquire_owned().map_err(|_| full)
    }

    /// Waits at most [`SEND_WAIT`]. Errors: none came free.
    pub(crate) async fn take(&self) -> Result<Place, QueueError> {
        match tokio::time::timeout(SEND_WAIT, Arc::clone(&self.free).acquire_owned()).await {
            Ok(Ok(place)) => Ok(place),
            // Nobody closes the semaphore.
            Ok(Err(_)) => Err(QueueError::Stopped),
            Err(_) => Err(QueueError::Full { capacity: self.capacity, waited: SEND_WAIT }),
        }
    }

    pub(crate) fn capacity(&self) -> usize {
        self.capacity
    }

    /// How many are taken.
    pub(crate) fn taken(&self) -> usize {
        self.capacity - self.free.available_permits().min(self.capacity)
    }
}

/// The producers' end.
#[derive(Debug)]
pub struct QueueSender<T> {
    sender: mpsc::Sender<T>,
    waker: Waker,
}

impl<T> Clone for QueueSender<T> {
    fn clone(&self) -> Self {
        Self { sender: self.sender.clone(), waker: self.waker.clone() }
    }
}

/// A queue for an owner that the waker interrupts.
pub fn queue<T>(capacity: usize, waker: Waker) -> (QueueSender<T>, mpsc::Receiver<T>) {
    let (sender, receiver) = mpsc::channel(capacity);
    (QueueSender { sender, waker }, receiver)
}

impl<T> QueueSender<T> {
    /// Without waiting. Errors: full or stopped; the item comes back.
    pub fn try_send(&self, item: T) -> Result<(), (QueueError, T)> {
        match self.sender.try_send(item) {
            Ok(()) => {
                self.waker.wake();
                Ok(())
            }
            Err(mpsc::error::TrySendError::Full(item)) => {
                Err((QueueError::Full { capacity: self.sender.max_capacity(), waited: Duration::ZERO }, item))
            }
            Err(mpsc::error::TrySendError::Closed(item)) => Err((QueueError::Stopped, item)),
        }
    }

    /// Waits at most [`SEND_WAIT`]. Errors: full or stopped.
    pub async fn send(&self, item: T) -> Result<(), QueueError> {
        match self.sender.send_timeout(item, SEND_WAIT).await {
            Ok(()) => {
                self.waker.wake();
                Ok(())
            }
            Err(mpsc::error::SendTimeoutError::Timeout(_)) => {
                Err(QueueError::Full { capacity: self.sender.max_capacity(), waited: SEND_WAIT })
            }
            Err(mpsc::error::SendTimeoutError::Closed(_)) => Err(QueueError::Stopped),
        }
    }

    /// Waits until there is room: for the end of a job, which must not get lost, and for a stop. Errors: stopped.
    pub async fn send_patiently(&self, item: T) -> Result<(), QueueError> {
        self.sender.send(item).await.map_err(|_| QueueError::Stopped)?;
        self.waker.wake();
        Ok(())
    }

    /// Whether the owner has stopped.
    pub fn is_stopped(&self) -> bool {
        self.sender.is_closed()
    }
}
