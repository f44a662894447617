//! How many bytes wait in libzmq, which counts messages only. Large frames are lent to it, so it tells when it is done with
//! them; small ones are bounded well enough by their number.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use crate::waker::Waker;

/// What is lent for all peers of a socket.
#[derive(Debug)]
pub(crate) struct Total {
    bytes: AtomicUsize,
    max: usize,
    /// The owner waits for room.
    wanted: AtomicBool,
    waker: Waker,
}

impl Total {
    /// Nothing yet; at most `max` bytes.
    pub(crate) fn new(max: usize, waker: Waker) -> Arc<Self> {
        Arc::new(Self { bytes: AtomicUsize::new(0), max, wanted: AtomicBool::new(false), waker })
    }

    /// The next frame that comes back wakes the owner. Look for room after this call, not before.
    pub(crate) fn want(&self) {
        self.wanted.store(true, Ordering::SeqCst);
    }
}

/// What is lent for one peer.
#[derive(Debug)]
pub(crate) struct Lent {
    bytes: AtomicUsize,
    max: usize,
    total: Arc<Total>,
}

impl Lent {
    /// Nothing yet; at most `max` bytes for this peer.
    pub(crate) fn new(max: usize, total: Arc<Total>) -> Arc<Self> {
        Arc::new(Self { bytes: AtomicUsize::new(0), max, total })
    }

    /// Whether there is room for so many bytes more. For a peer to which nothing is lent anything has room: others that do not
    /// read are not its fault, and a body that goes to a thousand peers is in memory once, although it counts for each.
    pub(crate) fn has_room(&self, bytes: usize) -> bool {
        let fits = |lent: usize, max: usize| lent.saturating_add(bytes) <= max;
        match self.bytes.load(Ordering::SeqCst) {
            0 => true,
            lent => fits(lent, self.max) && fits(self.total.bytes.load(Ordering::SeqCst), self.total.max),
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.bytes.load(Ordering::SeqCst) == 0
    }

    pub(crate) fn add(&self, bytes: usize) {
        self.bytes.fetch_add(bytes, Ordering::SeqCst);
        self.total.bytes.fetch_add(bytes, Ordering::SeqCst);
    }

    /// Called on whatever thread libzmq is done with a frame.
    pub(crate) fn take(&self, bytes: usize) {
        self.bytes.fetch_sub(bytes, Ordering::SeqCst);
        self.total.bytes.fetch_sub(bytes, Ordering::SeqCst);
        if self.total.wanted.load(Ordering::SeqCst) && self.total.wanted.swap(false, Ordering::SeqCst) {
            self.total.waker.wake();
        }
    }
}
