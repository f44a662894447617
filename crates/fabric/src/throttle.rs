//! Keeping what peers can cause out of the log, beyond a bound.

use std::time::{Duration, Instant};

use norfab_jobs::writer::WriterStatistics;
use tracing::warn;

use crate::clock::SystemClock;

/// Refusals that are logged in one interval; more are only counted.
pub(crate) const LOGGED_REFUSALS: u32 = 20;

/// See [`LOGGED_REFUSALS`].
const LOG_INTERVAL: Duration = Duration::from_secs(10);

/// Lets a hostile peer fill counters but not the log.
#[derive(Debug)]
pub(crate) struct Throttle {
    max: u32,
    since: Option<Instant>,
    logged: u32,
}

impl Throttle {
    pub(crate) fn new(max: u32) -> Self {
        Self { max, since: None, logged: 0 }
    }

    /// Whether this record is logged.
    pub(crate) fn admit(&mut self) -> bool {
        let now = SystemClock::now();
        if self.since.is_none_or(|since| now.saturating_duration_since(since) >= LOG_INTERVAL) {
            if self.logged > self.max {
                warn!("{} more such records were not logged", self.logged - self.max);
            }
            self.since = Some(now);
            self.logged = 0;
        }
        self.logged += 1;
        self.logged <= self.max
    }
}

/// Operations of a store that failed. Most have nobody who waits for them, so nobody else says so.
#[derive(Debug, Default)]
pub(crate) struct StoreFailures {
    /// Something was handed over since the last look.
    pub(crate) submitted: bool,
    looked: Option<Instant>,
    known: u64,
}

impl StoreFailures {
    /// One sentence where there are new ones, once in a while.
    pub(crate) fn news(&mut self, now: Instant, statistics: impl FnOnce() -> WriterStatistics) -> Option<String> {
        if !self.submitted || self.looked.is_some_and(|at| now.saturating_duration_since(at) < LOG_INTERVAL) {
            return None;
        }
        (self.submitted, self.looked) = (false, Some(now));
        let failed = statistics().failed;
        let new = failed - std::mem::replace(&mut self.known, failed);
        (new > 0)
            .then(|| format!("{new} changes of jobs could not be stored, {failed} since the start: see to its disk"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_more_records_are_admitted_in_one_interval_than_allowed() {
        let mut throttle = Throttle::new(2);
        let admitted: Vec<bool> = (0..4).map(|_| throttle.admit()).collect();
        assert_eq!(admitted, [true, true, false, false]);
    }

    #[test]
    fn what_a_store_could_not_do_is_told_once_and_with_its_number() {
        let mut failures = StoreFailures::default();
        let now = SystemClock::now();
        let told = |failures: &mut StoreFailures, now, failed| {
            failures.submitted = true;
            failures.news(now, || WriterStatistics { failed, ..WriterStatistics::default() })
        };
        assert_eq!(told(&mut failures, now, 0), None);
        let later = now + LOG_INTERVAL;
        assert!(told(&mut failures, later, 3).is_some_and(|text| text.starts_with("3 changes")));
        assert_eq!(told(&mut failures, later + LOG_INTERVAL / 2, 4), None);
        assert!(told(&mut failures, later + LOG_INTERVAL, 5).is_some_and(|text| text.starts_with("2 changes")));
    }
}
