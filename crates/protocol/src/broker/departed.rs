//! Workers that were registered a moment ago: jobs for them may wait.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use crate::name::{Identity, ServiceName};

/// How long a worker that went is expected back: longer than a process takes to be started again. Whoever asks for one later
/// most likely does not know that it is gone.
pub const EXPECTED_BACK: Duration = Duration::from_secs(30);

/// Most workers that are remembered; about 100 bytes each.
const DEPARTED_MAX: usize = 10_000;

#[derive(Debug, Default)]
pub(super) struct Departed {
    workers: HashMap<Identity, (ServiceName, Instant)>,
}

impl Departed {
    /// A worker went.
    pub(super) fn insert(&mut self, now: Instant, worker: Identity, service: ServiceName) {
        if self.workers.len() >= DEPARTED_MAX {
            self.workers.retain(|_, (_, at)| is_expected(now, *at));
        }
        if self.workers.len() < DEPARTED_MAX {
            self.workers.insert(worker, (service, now));
        }
    }

    /// A worker is registered.
    pub(super) fn remove(&mut self, worker: &Identity) {
        if !self.workers.is_empty() {
            self.workers.remove(worker);
        }
    }

    /// Whether a worker of this name is expected back.
    pub(super) fn has(&self, now: Instant, name: &str) -> bool {
        self.workers.get(name).is_some_and(|(_, at)| is_expected(now, *at))
    }

    /// Whether a worker of this service is expected back.
    pub(super) fn has_one_of(&self, now: Instant, service: &ServiceName) -> bool {
        self.workers.values().any(|(of, at)| of == service && is_expected(now, *at))
    }
}

fn is_expected(now: Instant, at: Instant) -> bool {
    now.saturating_duration_since(at) < EXPECTED_BACK
}
