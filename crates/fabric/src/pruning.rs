//! Forgetting old jobs, now and then.

use std::time::{Duration, Instant};

use norfab_jobs::Store;
use tracing::warn;

use crate::clock::SystemClock;

/// How often finished jobs that are too old or too many are forgotten. An idle role wakes up for it once an hour.
const PRUNE_INTERVAL: Duration = Duration::from_secs(3600);

/// When the next step is due. A step is bounded; while there is more, the next one follows at once.
#[derive(Debug)]
pub(crate) struct Pruning {
    next: Option<Instant>,
}

impl Pruning {
    /// The first step is due at once: a process may live shorter than the interval.
    pub(crate) fn new(now: Instant) -> Self {
        Self { next: Some(now) }
    }

    /// When the next step is due; `None` while one is under way.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        self.next
    }

    /// Takes the step that is due.
    pub(crate) fn take(&mut self, now: Instant) -> bool {
        self.next.take_if(|next| *next <= now).is_some()
    }

    /// A step has ended.
    pub(crate) fn ended(&mut self, now: Instant, more: bool) {
        self.next = Some(if more { now } else { now + PRUNE_INTERVAL });
    }
}

/// Forgets a bounded number of jobs, on the store's thread. `true`: there are more.
pub(crate) fn step<S: Store + ?Sized>(store: &mut S) -> bool {
    match store.prune(&store.retention(), SystemClock::unix()) {
        Ok(pruned) => pruned.more,
        Err(error) => {
            warn!("old jobs are not forgotten: {error}");
            false
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_follow_at_once_while_there_is_more_and_then_after_the_interval() {
        let now = Instant::now();
        let mut pruning = Pruning::new(now);
        assert!(pruning.take(now));
        assert_eq!(pruning.deadline(), None, "one at a time");
        pruning.ended(now, true);
        assert!(pruning.take(now));
        pruning.ended(now, false);
        assert!(!pruning.take(now));
        assert_eq!(pruning.deadline(), Some(now + PRUNE_INTERVAL));
    }
}
