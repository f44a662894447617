//! Workers that were registered a moment ago: jobs for them may wait.

use std::collections::{BTreeMap, HashMap};
use std::time::{Duration, Instant};

use crate::name::{Identity, ServiceName};

/// How long a worker that went is expected back: longer than a process takes to be started again. Whoever asks for one later
/// most likely does not know that it is gone.
pub const EXPECTED_BACK: Duration = Duration::from_secs(30);

/// Most workers that are remembered; about 300 bytes each.
const DEPARTED_MAX: usize = 10_000;

/// Nothing here looks at all of them: thousands go at once, and each job for nobody asks.
#[derive(Debug, Default)]
pub(super) struct Departed {
    workers: HashMap<Identity, Gone>,
    /// By number, so in the order in which they went.
    order: BTreeMap<u64, Identity>,
    /// When those of a service went, by number.
    services: HashMap<ServiceName, BTreeMap<u64, Instant>>,
    next: u64,
}

#[derive(Debug)]
struct Gone {
    number: u64,
    service: ServiceName,
    at: Instant,
}

impl Departed {
    /// A worker went. Where there are too many, the first that went is forgotten.
    pub(super) fn insert(&mut self, now: Instant, worker: Identity, service: ServiceName) {
        self.remove(&worker);
        while let Some((_, first)) = self.order.first_key_value() {
            let is_over = self.workers.get(first).is_none_or(|gone| !is_expected(now, gone.at));
            if !is_over && self.order.len() < DEPARTED_MAX {
                break;
            }
            let first = first.clone();
            self.remove(&first);
        }
        let number = self.next;
        self.next += 1;
        self.order.insert(number, worker.clone());
        self.services.entry(service.clone()).or_default().insert(number, now);
        self.workers.insert(worker, Gone { number, service, at: now });
    }

    /// A worker is registered.
    pub(super) fn remove(&mut self, worker: &Identity) {
        let Some(Gone { number, service, .. }) = self.workers.remove(worker) else { return };
        self.order.remove(&number);
        if let Some(of_service) = self.services.get_mut(&service) {
            of_service.remove(&number);
            if of_service.is_empty() {
                self.services.remove(&service);
            }
        }
    }

    /// Whether a worker of this name is expected back.
    pub(super) fn has(&self, now: Instant, name: &str) -> bool {
        self.workers.get(name).is_some_and(|gone| is_expected(now, gone.at))
    }

    /// Whether a worker of this service is expected back: the last that went, if any is.
    pub(super) fn has_one_of(&self, now: Instant, service: &ServiceName) -> bool {
        let last = self.services.get(service).and_then(BTreeMap::last_key_value);
        last.is_some_and(|(_, at)| is_expected(now, *at))
    }
}

fn is_expected(now: Instant, at: Instant) -> bool {
    now.saturating_duration_since(at) < EXPECTED_BACK
}

#[cfg(test)]
mod tests {
    use super::*;

    fn worker(number: usize) -> Identity {
        Identity::parse(&format!("w{number}")).expect("a name")
    }

    fn service(text: &str) -> ServiceName {
        ServiceName::parse(text).expect("a name")
    }

    #[test]
    fn a_service_is_expected_back_as_long_as_one_of_its_workers_is() {
        let (mut departed, now) = (Departed::default(), Instant::now());
        departed.insert(now, worker(1), service("a"));
        departed.insert(now + Duration::from_secs(10), worker(2), service("a"));
        let late = now + EXPECTED_BACK;
        assert!(departed.has_one_of(late, &service("a")) && !departed.has_one_of(late, &service("b")));
        assert!(!departed.has(late, "w1") && departed.has(late, "w2"));
        departed.remove(&worker(2));
        assert!(!departed.has_one_of(late, &service("a")));
        departed.insert(late, worker(1), service("b"));
        assert!(departed.has_one_of(late, &service("b")) && !departed.has_one_of(late, &service("a")));
        assert_eq!((departed.workers.len(), departed.order.len(), departed.services.len()), (1, 1, 1));
    }

    #[test]
    fn the_first_that_went_is_forgotten_first_and_the_last_is_always_remembered() {
        let (mut departed, now) = (Departed::default(), Instant::now());
        for number in 0..DEPARTED_MAX + 5 {
            departed.insert(now, worker(number), service("a"));
        }
        assert_eq!((departed.workers.len(), departed.order.len()), (DEPARTED_MAX, DEPARTED_MAX));
        assert!(!departed.has(now, "w4") && departed.has(now, "w5") && departed.has(now, "w10004"));
        departed.insert(now + EXPECTED_BACK, worker(0), service("b"));
        assert_eq!((departed.workers.len(), departed.services.len()), (1, 1), "whose time is over goes");
    }
}
