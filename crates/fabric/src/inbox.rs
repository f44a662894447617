//! What helper threads hand back to an owner: confirmations and answers of a store.

use std::sync::{Arc, Mutex, PoisonError};

use norfab_protocol::frame::{FRAMES_MAX, Frames};
use norfab_transport::{Received, Waker};

/// A list that the owner takes as a whole. It is bounded by what the owner asked for: at most one item for each operation
/// and query that the store's queues hold.
#[derive(Debug)]
pub(crate) struct Inbox<T> {
    items: Arc<Mutex<Vec<T>>>,
    waker: Waker,
}

impl<T> Clone for Inbox<T> {
    fn clone(&self) -> Self {
        Self { items: Arc::clone(&self.items), waker: self.waker.clone() }
    }
}

impl<T> Inbox<T> {
    pub(crate) fn new(waker: Waker) -> Self {
        Self { items: Arc::new(Mutex::new(Vec::new())), waker }
    }

    pub(crate) fn push(&self, items: impl IntoIterator<Item = T>) {
        self.items.lock().unwrap_or_else(PoisonError::into_inner).extend(items);
        self.waker.wake();
    }

    pub(crate) fn take(&self) -> Vec<T> {
        std::mem::take(&mut *self.items.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// The frames of a message. One that the link cut off keeps a frame too many, so that it is refused for what it was.
pub(crate) fn whole(received: Received) -> Frames {
    let Received { mut frames, truncated, .. } = received;
    if truncated {
        frames.resize(frames.len().max(FRAMES_MAX + 1), bytes::Bytes::new());
    }
    frames
}
