//! What happens when: the virtual clock.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// Future occurrences. Those of one time happen in the order in which they were noted.
#[derive(Debug)]
pub struct Agenda<Occurrence> {
    start: Instant,
    now: Instant,
    entries: BTreeMap<(Instant, u64), Occurrence>,
    next: u64,
}

impl<Occurrence> Agenda<Occurrence> {
    /// An empty agenda. `start` is any time: only differences count.
    pub fn new(start: Instant) -> Self {
        Self { start, now: start, entries: BTreeMap::new(), next: 0 }
    }

    /// The virtual time.
    pub fn now(&self) -> Instant {
        self.now
    }

    /// The virtual time since the start, for people.
    pub fn elapsed(&self) -> Duration {
        self.now.saturating_duration_since(self.start)
    }

    /// Notes something; what lies in the past happens now.
    pub fn at(&mut self, at: Instant, occurrence: Occurrence) {
        self.entries.insert((at.max(self.now), self.next), occurrence);
        self.next += 1;
    }

    /// Notes something for later.
    pub fn after(&mut self, delay: Duration, occurrence: Occurrence) {
        self.at(self.now + delay, occurrence);
    }

    /// When the next thing happens.
    pub fn next_at(&self) -> Option<Instant> {
        self.entries.first_key_value().map(|((at, _), _)| *at)
    }

    /// Lets the clock run to the next thing and takes it.
    pub fn take(&mut self) -> Option<Occurrence> {
        let ((at, _), occurrence) = self.entries.pop_first()?;
        self.now = at;
        Some(occurrence)
    }

    /// Lets the clock run to a time before the next thing.
    pub fn advance(&mut self, to: Instant) {
        self.now = self.now.max(to);
    }
}
