//! Progress events that did not go to their client: counted, and told to it as soon as it takes something.

use std::collections::{BTreeMap, HashMap};

use serde::Deserialize;
use serde_json::json;

use super::Undelivered;
use crate::body::{self, Event, EventStatus, EventType, MISSED_KEY, Resource, Severity};
use crate::message::DecodeError;
use crate::name::{Identity, JobId};
use crate::size::Size;

/// Most jobs whose missing events are counted; beyond, the oldest count is given up. About 1 KB each.
const JOBS_MAX: usize = 4096;

/// Bytes of a text of an event that is kept for the word that it was dropped.
const TEXT_BYTES_MAX: usize = 256;

/// What an event is, as far as it matters whether it may be dropped.
#[derive(Default, Deserialize)]
pub(super) struct EventKind {
    #[serde(default)]
    event_type: Option<EventType>,
    #[serde(default)]
    status: EventStatus,
}

impl EventKind {
    /// Reads it. One of a kind that we do not know, or that says the same thing twice, passes as what is not progress.
    pub(super) fn read(body: &[u8]) -> Result<Self, DecodeError> {
        body::check_and_read(body).or_else(|_| body::check_object(body).map(|()| Self::default()))
    }

    /// A task tells how it goes on. That it asks, has ended or was cancelled is never dropped.
    pub(super) fn is_progress(&self) -> bool {
        self.event_type == Some(EventType::Progress) && self.status != EventStatus::Cancelled
    }
}

#[derive(Debug)]
struct Missing {
    number: u64,
    count: u64,
    /// The client was not connected.
    away: bool,
    /// Its queue was full.
    slow: bool,
    /// The last of them, without its content.
    last: Event,
}

/// What clients do not know yet.
#[derive(Debug, Default)]
pub(super) struct Missed {
    jobs: HashMap<(Identity, JobId), Missing>,
    /// By number: in the order in which they began to miss something.
    order: BTreeMap<u64, (Identity, JobId)>,
    next: u64,
}

impl Missed {
    /// An event, or the word about some, did not leave.
    pub(super) fn add(&mut self, client: &Identity, body: &[u8], reason: Undelivered) {
        let Ok(event) = serde_json::from_slice::<Event>(body) else { return };
        let count = event.missed().unwrap_or(1);
        let (away, slow) = (reason == Undelivered::Unroutable, reason == Undelivered::Full);
        let key = (client.clone(), event.uuid.clone());
        if let Some(missing) = self.jobs.get_mut(&key) {
            missing.count = missing.count.saturating_add(count);
            (missing.away, missing.slow) = (missing.away || away, missing.slow || slow);
            return;
        }
        if self.jobs.len() >= JOBS_MAX
            && let Some((_, oldest)) = self.order.pop_first()
        {
            self.jobs.remove(&oldest);
        }
        self.order.insert(self.next, key.clone());
        self.jobs.insert(key, Missing { number: self.next, count, away, slow, last: without_content(event) });
        self.next += 1;
    }

    /// How much it holds, and may hold.
    pub(super) fn size(&self) -> Size {
        Size::new("jobs with dropped events", self.jobs.len().max(self.order.len()), JOBS_MAX)
    }

    /// The word for a client that is about to get something else of this job.
    pub(super) fn take(&mut self, client: &Identity, job: &JobId) -> Option<Event> {
        if self.jobs.is_empty() {
            return None;
        }
        let key = (client.clone(), job.clone());
        let Missing { number, count, away, slow, last } = self.jobs.remove(&key)?;
        self.order.remove(&number);
        let plural = if count == 1 { "event" } else { "events" };
        let why = match (away, slow) {
            (true, false) => "this client was not connected",
            (true, true) => "this client was not connected, and takes them too slowly",
            (false, _) => "this client takes them too slowly",
        };
        Some(Event {
            message: format!("{count} progress {plural} of this job did not arrive: {why}"),
            severity: Severity::Warning,
            extras: json!({ MISSED_KEY: { "count": count } }).as_object().cloned(),
            ..last
        })
    }
}

fn without_content(mut event: Event) -> Event {
    for text in [&mut event.task, &mut event.timestamp] {
        if text.len() > TEXT_BYTES_MAX {
            text.clear();
        }
    }
    Event {
        message: String::new(),
        resource: Resource::default(),
        extras: None,
        timeout: None,
        status: EventStatus::Running,
        event_type: EventType::Progress,
        ..event
    }
}
