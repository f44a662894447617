//! Addresses that the broker turned away, in its log.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use norfab_fabric::SystemClock;

/// How often a refused address is logged: one that tries again and again must not fill the log, which others need.
const TOLD_INTERVAL: Duration = Duration::from_secs(1);

/// Logs refused addresses, one for each [`TOLD_INTERVAL`], and counts the others.
#[derive(Debug, Default)]
pub struct Refusals(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    told: Option<Instant>,
    passed_over: u64,
}

impl Refusals {
    /// Logs a refusal, or counts it for the next line.
    pub fn tell(&self, address: &str, reason: &str) {
        // A count is whole, whatever happened to another thread.
        let due = self.0.lock().unwrap_or_else(PoisonError::into_inner).due(SystemClock::now());
        match due {
            Some(0) => tracing::warn!("refused {address}: {reason}"),
            Some(more) => tracing::warn!("refused {address}: {reason} ({more} more refusals since the last line)"),
            None => {}
        }
    }
}

impl State {
    /// Whether a refusal is told now, and how many were not since the last one.
    fn due(&mut self, now: Instant) -> Option<u64> {
        if self.told.is_some_and(|told| now.saturating_duration_since(told) < TOLD_INTERVAL) {
            self.passed_over += 1;
            return None;
        }
        self.told = Some(now);
        Some(std::mem::take(&mut self.passed_over))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusals_that_come_fast_are_counted_and_told_with_the_next_line() {
        let (mut state, begin) = (State::default(), Instant::now());
        assert_eq!(state.due(begin), Some(0));
        assert_eq!((state.due(begin), state.due(begin + TOLD_INTERVAL / 2)), (None, None));
        assert_eq!(state.due(begin + TOLD_INTERVAL), Some(2));
        assert_eq!(state.due(begin + 2 * TOLD_INTERVAL), Some(0));
    }
}
