//! Workers that this client saw lately: where one of them is away, it may have what nobody else has.

use std::collections::{BTreeSet, HashMap};
use std::time::{Duration, Instant};

use crate::name::{Identity, ServiceName};

/// How long a worker counts after it was seen. One that went for good holds up a job for `any` no longer than this, and only one
/// that was on its way while the broker ended.
const SEEN_FOR: Duration = Duration::from_secs(600);

/// How exactly that is known: each job would write it anew else.
const SEEN_EXACTLY: Duration = Duration::from_secs(10);

/// Most workers that are remembered, of all services; about 100 bytes each.
pub(super) const SEEN_MAX: usize = 20_000;

#[derive(Debug, Default)]
pub(super) struct Acquaintances {
    services: HashMap<ServiceName, HashMap<Identity, Instant>>,
    count: usize,
}

impl Acquaintances {
    /// The broker chose this worker of the service.
    pub(super) fn saw(&mut self, now: Instant, service: &ServiceName, worker: &Identity) {
        if let Some(at) = self.services.get_mut(service).and_then(|workers| workers.get_mut(worker)) {
            if *at + SEEN_EXACTLY <= now {
                *at = now;
            }
            return;
        }
        if self.count >= SEEN_MAX {
            self.services.retain(|_, workers| {
                workers.retain(|_, at| *at + SEEN_FOR > now);
                !workers.is_empty()
            });
            self.count = self.services.values().map(HashMap::len).sum();
        }
        if self.count < SEEN_MAX {
            self.count += 1;
            self.services.entry(service.clone()).or_default().insert(worker.clone(), now);
        }
    }

    /// Workers that are remembered.
    pub(super) fn len(&self) -> usize {
        self.count
    }

    /// Whether all workers of a service that were seen lately are among these.
    pub(super) fn are_all_in(&self, now: Instant, service: &ServiceName, workers: &BTreeSet<Identity>) -> bool {
        let Some(seen) = self.services.get(service) else { return true };
        seen.iter().all(|(worker, at)| *at + SEEN_FOR <= now || workers.contains(worker))
    }
}
