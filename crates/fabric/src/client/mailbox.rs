//! News of one job on the way to who waits for it.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};

use norfab_protocol::client::JobUpdate;
use tokio::sync::Notify;

/// Events that wait for a reader that is slow; more are dropped and counted. Results, questions and the end are kept: they
/// are bounded by the number of workers and by the questions that a job may have.
pub(crate) const EVENTS_WAITING_MAX: usize = 10_000;

/// Bytes of such events; more are dropped and counted.
pub(crate) const EVENT_BYTES_WAITING_MAX: usize = 64 << 20;

/// Bytes of a stream that wait for a reader that is slow. A reader that gives credits never has so many on the way; from a
/// worker that sends without credits they are dropped, and the transfer fails by its hash.
pub(crate) const STREAM_BYTES_WAITING_MAX: usize = 64 << 20;

#[derive(Debug, Default)]
struct Inner {
    updates: VecDeque<JobUpdate>,
    events: usize,
    event_bytes: usize,
    stream_bytes: usize,
    dropped: u64,
    /// The reader waits for the end, and wants the results with it.
    results_only: bool,
    /// The job was stored.
    stored: bool,
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

    /// `false`: nobody reads any more.
    pub(crate) fn put(&self, update: JobUpdate) -> bool {
        let wakes = {
            let mut inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
            if inner.closed {
                return false;
            }
            inner.stored |= matches!(update, JobUpdate::Stored);
            if let JobUpdate::Event(event, _) = &update
                && let Some(missed) = event.missed()
            {
                inner.dropped = inner.dropped.saturating_add(missed);
            }
            if inner.results_only && !is_result(&update) {
                return true;
            }
            match &update {
                JobUpdate::Event(_, body)
                    if inner.events >= EVENTS_WAITING_MAX
                        || inner.event_bytes + body.len() > EVENT_BYTES_WAITING_MAX =>
                {
                    inner.dropped += 1;
                    return true;
                }
                JobUpdate::Event(_, body) => {
                    inner.events += 1;
                    inner.event_bytes += body.len();
                }
                JobUpdate::Stream(bytes) if inner.stream_bytes + bytes.len() > STREAM_BYTES_WAITING_MAX => {
                    inner.dropped += 1;
                    return true;
                }
                JobUpdate::Stream(bytes) => inner.stream_bytes += bytes.len(),
                JobUpdate::Stored
                | JobUpdate::Waits(_)
                | JobUpdate::Dispatched(_)
                | JobUpdate::Accepted(_)
                | JobUpdate::Question(..)
                | JobUpdate::Result(..)
                | JobUpdate::Finished(_) => {}
            }
            let wakes = !inner.results_only || matches!(update, JobUpdate::Finished(_));
            inner.updates.push_back(update);
            wakes
        };
        if wakes {
            self.filled.notify_one();
        }
        true
    }

    /// News beside results and the end is thrown away from now on, and only the end wakes the reader.
    pub(crate) fn want_results_only(&self) {
        let mut inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        inner.results_only = true;
        inner.updates.retain(is_result);
        (inner.events, inner.event_bytes, inner.stream_bytes) = (0, 0, 0);
    }

    /// Whether the job got as far as into the database.
    pub(crate) fn was_stored(&self) -> bool {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner).stored
    }

    /// The next update; `None` when none will come any more.
    pub(crate) async fn next(&self) -> Option<JobUpdate> {
        loop {
            let filled = self.filled.notified();
            {
                let mut inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
                if let Some(update) = inner.updates.pop_front() {
                    match &update {
                        JobUpdate::Event(_, body) => {
                            inner.events -= 1;
                            inner.event_bytes -= body.len();
                        }
                        JobUpdate::Stream(bytes) => inner.stream_bytes -= bytes.len(),
                        _ => {}
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

    /// Nobody reads any more: what waits is thrown away, as thousands of jobs may be submitted that nobody waits for.
    pub(crate) fn abandon(&self) {
        let mut inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        inner.closed = true;
        inner.updates = VecDeque::new();
    }

    /// Whether nobody reads any more.
    pub(crate) fn is_closed(&self) -> bool {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner).closed
    }

    /// Nobody writes any more.
    pub(crate) fn close(&self) {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner).closed = true;
        self.filled.notify_one();
    }

    /// Events and chunks that were dropped because their reader was slow, and those of which the broker says that it dropped
    /// them.
    pub(crate) fn dropped(&self) -> u64 {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner).dropped
    }
}

fn is_result(update: &JobUpdate) -> bool {
    matches!(update, JobUpdate::Result(..) | JobUpdate::Finished(_))
}

#[cfg(test)]
mod tests {
    use norfab_protocol::Event;
    use norfab_protocol::body::MISSED_KEY;

    use super::*;

    #[test]
    fn events_that_nobody_reads_are_bounded_by_their_bytes_too() {
        let event: Event = serde_json::from_str(
            r#"{"worker":"w","service":"s","uuid":"1","event_type":"progress","message":"m","task":"t","timestamp":"now"}"#,
        )
        .expect("an event");
        let mailbox = Mailbox::new();
        let body = bytes::Bytes::from(vec![b' '; EVENT_BYTES_WAITING_MAX / 4]);
        for _ in 0..6 {
            assert!(mailbox.put(JobUpdate::Event(Box::new(event.clone()), body.clone())));
        }
        assert_eq!(mailbox.dropped(), 2);
    }

    #[test]
    fn events_that_the_broker_dropped_are_counted_also_for_who_waits_for_results_only() {
        let mut event: Event = serde_json::from_str(
            r#"{"worker":"w","service":"s","uuid":"1","event_type":"progress","message":"m","task":"t","timestamp":"now"}"#,
        )
        .expect("an event");
        event.extras = serde_json::json!({ MISSED_KEY: { "count": 5 } }).as_object().cloned();
        let mailbox = Mailbox::new();
        assert!(mailbox.put(JobUpdate::Event(Box::new(event.clone()), bytes::Bytes::new())));
        mailbox.want_results_only();
        assert!(mailbox.put(JobUpdate::Event(Box::new(event), bytes::Bytes::new())));
        assert_eq!(mailbox.dropped(), 10);
    }
}
