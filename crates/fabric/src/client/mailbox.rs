//! News of one job on the way to who waits for it.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};

use norfab_protocol::body::EventType;
use norfab_protocol::client::JobUpdate;
use tokio::sync::Notify;

/// Progress events that wait for a reader that is slow; more are dropped and counted. Everything else is kept: it is
/// bounded by the number of workers, by the questions a job may have open, and by the credits of a stream.
pub(crate) const EVENTS_WAITING_MAX: usize = 10_000;

#[derive(Debug, Default)]
struct Inner {
    updates: VecDeque<JobUpdate>,
    events: usize,
    dropped: u64,
    closed: bool,
}

/// Where the owner puts news and the caller takes it.
#[derive(Debug, Default)]
pub(crate) struct Mailbox {
    inner: Mutex<Inner>,
    filled: Notify,
}

impl Mailbox {
    pub(crate) fn new() -> Arc<Self> {
        Arc::default()
    }

    pub(crate) fn put(&self, update: JobUpdate) {
        {
            let mut inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
            if inner.closed {
                return;
            }
            if is_progress(&update) {
                if inner.events >= EVENTS_WAITING_MAX {
                    inner.dropped += 1;
                    return;
                }
                inner.events += 1;
            }
            inner.updates.push_back(update);
        }
        self.filled.notify_one();
    }

    /// The next update; `None` when none will come any more.
    pub(crate) async fn next(&self) -> Option<JobUpdate> {
        loop {
            let filled = self.filled.notified();
            {
                let mut inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
                if let Some(update) = inner.updates.pop_front() {
                    if is_progress(&update) {
                        inner.events -= 1;
                    }
                    return Some(update);
                }
                if inner.closed {
                    return None;
                }
            }
            filled.await;
        }
    }

    /// Nobody reads any more, or nobody writes any more.
    pub(crate) fn close(&self) {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner).closed = true;
        self.filled.notify_one();
    }

    /// Progress events that were dropped because their reader was slow.
    pub(crate) fn dropped(&self) -> u64 {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner).dropped
    }
}

fn is_progress(update: &JobUpdate) -> bool {
    matches!(update, JobUpdate::Event(event, _) if event.event_type == EventType::Progress)
}
