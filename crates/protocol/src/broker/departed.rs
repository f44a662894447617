//! Workers that were registered and are not: jobs for them may wait, and they may have what nobody else has.

use std::collections::{BTreeMap, HashMap};
use std::time::{Duration, Instant};

use super::{Broker, BrokerOutput, KnownWorker, RestoredWorker, YOUNG_TIME};
use crate::name::{Identity, ServiceName};
use crate::target::Target;

/// How long a worker that went is expected back: longer than a process takes to be started again. Whoever asks for one later
/// most likely does not know that it is gone.
pub const EXPECTED_BACK: Duration = Duration::from_secs(30);

/// How long a worker that went is remembered as one that may have a job of which its client does not know who has it: longer
/// than nearly every job has.
pub const GONE_KEPT: Duration = Duration::from_secs(7 * 24 * 60 * 60);

/// Most workers that are remembered; about 300 bytes each. As many as may be registered when a broker is killed.
pub const DEPARTED_MAX: usize = 100_000;

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
            let is_over = self.workers.get(first).is_none_or(|gone| is_forgotten(now, gone.at));
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

    /// How many are remembered, and at most.
    pub(super) fn size(&self) -> (usize, usize) {
        let of_services: usize = self.services.values().map(BTreeMap::len).sum();
        (self.workers.len().max(self.order.len()).max(of_services), DEPARTED_MAX)
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
        self.last_went(service).is_some_and(|at| is_expected(now, at))
    }

    /// When the last worker of this service went of those that are not back.
    fn last_went(&self, service: &ServiceName) -> Option<Instant> {
        self.services.get(service).and_then(BTreeMap::last_key_value).map(|(_, at)| *at)
    }
}

impl Broker {
    /// What the brokers before this one knew of workers: called before the first input. Those that do not come back may have
    /// jobs that nobody else has, as this broker does not remember what was handed to whom.
    pub fn restore(&mut self, now: Instant, workers: impl IntoIterator<Item = RestoredWorker>) {
        self.begun = Some(now);
        let mut workers: Vec<RestoredWorker> = workers.into_iter().collect();
        workers.sort_by_key(|known| std::cmp::Reverse(known.gone));
        for RestoredWorker { worker, service, gone } in workers {
            // Where a clock does not go back so far, it went later than it did, which is on the safe side.
            let at = gone.and_then(|gone| now.checked_sub(gone)).unwrap_or(now);
            if !is_forgotten(now, at) {
                self.departed.insert(at, worker, service);
            }
        }
    }

    /// A worker is not registered any more. `false`: it was not.
    pub(super) fn left(&mut self, now: Instant, worker: &Identity) -> bool {
        let Some(service) = self.registry.remove(worker) else { return false };
        self.remember_worker(worker, &service, true);
        self.departed.insert(now, worker.clone(), service);
        true
    }

    pub(super) fn remember_worker(&mut self, worker: &Identity, service: &ServiceName, gone: bool) {
        let known = KnownWorker { worker: worker.clone(), service: service.clone(), gone };
        self.outputs.push_back(BrokerOutput::Remember(known));
    }

    /// Of which age at least a job must be to have gone, through a broker before this one, to a worker that is not registered
    /// now, or that is and could not be reached. What this broker itself handed on it remembers. Whole seconds, less rather than
    /// more; `None`: there is no such job.
    pub(super) fn gone(&self, now: Instant, service: &ServiceName, is_one_unreached: bool) -> Option<u64> {
        let went = self.departed.last_went(service).filter(|at| !is_forgotten(now, *at));
        let went = if is_one_unreached { now } else { went? };
        let before = self.begun.map_or(went, |begun| begun.min(went));
        Some(now.saturating_duration_since(before).as_secs())
    }

    /// Whether workers that were registered at a broker before may not have come back yet.
    pub(super) fn is_young(&self, now: Instant) -> bool {
        self.begun.is_none_or(|begun| now.saturating_duration_since(begun) < YOUNG_TIME)
    }

    /// Whether a worker that a POST is for may be registered soon.
    pub(super) fn is_expected(&self, now: Instant, service: &ServiceName, target: &Target) -> bool {
        self.is_young(now)
            || match target.names() {
                None => self.departed.has_one_of(now, service),
                Some(names) => names.iter().any(|name| self.departed.has(now, name)),
            }
    }

    /// Who is named by a list, is not registered and may be soon.
    pub(super) fn absent(&self, now: Instant, target: &Target) -> Vec<Identity> {
        let young = self.is_young(now);
        let names = target.listed_names().unwrap_or_default();
        let missing =
            names.iter().filter(|name| self.registry.get(name).is_none() && (young || self.departed.has(now, name)));
        missing.filter_map(|name| Identity::parse(name).ok()).collect()
    }
}

fn is_forgotten(now: Instant, at: Instant) -> bool {
    now.saturating_duration_since(at) >= GONE_KEPT
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

    /// A broker, and what it says of those that went.
    fn asked(broker: &mut Broker, now: Instant) -> Option<u64> {
        let frames =
            ["", "NFPC01", "0x06", "s", "all", "job", "{}"].map(|part| bytes::Bytes::copy_from_slice(part.as_bytes()));
        broker.message(now, b"client", &frames);
        let mut gone = None;
        while let Some(output) = broker.poll_output() {
            if let BrokerOutput::Send(outgoing) = output
                && outgoing.frames[5] == "202"
            {
                let body: crate::body::Dispatched = serde_json::from_slice(&outgoing.frames[6]).expect("a 202");
                gone = Some(body.gone);
            }
        }
        gone.expect("an answer")
    }

    fn ready(broker: &mut Broker, now: Instant, worker: &str) -> Vec<KnownWorker> {
        let frames = ["", "NFPW01", "0x01", "s"].map(|part| bytes::Bytes::copy_from_slice(part.as_bytes()));
        broker.message(now, worker.as_bytes(), &frames);
        let outputs = std::iter::from_fn(|| broker.poll_output());
        outputs
            .filter_map(|output| if let BrokerOutput::Remember(known) = output { Some(known) } else { None })
            .collect()
    }

    #[test]
    fn a_question_to_all_says_how_old_a_job_is_that_a_worker_may_have_of_a_broker_before_this_one() {
        let mut broker = Broker::new(crate::broker::BrokerConfig::default());
        let now = Instant::now();
        let known = |number, gone: Option<u64>| RestoredWorker {
            worker: worker(number),
            service: service("s"),
            gone: gone.map(Duration::from_secs),
        };
        broker.restore(now, [known(1, None), known(2, Some(900)), known(3, Some(8 * 24 * 60 * 60))]);
        let registered = KnownWorker { worker: worker(4), service: service("s"), gone: false };
        assert_eq!(ready(&mut broker, now, "w4"), [registered], "before anything is given to it");
        assert!(ready(&mut broker, now, "w4").is_empty(), "once");
        let later = now + Duration::from_secs(20);
        assert_eq!(asked(&mut broker, later), Some(20), "w1 was there when the last one ended");
        ready(&mut broker, later, "w1");
        assert_eq!(asked(&mut broker, later), Some(920), "w2 went before that");
        ready(&mut broker, later, "w2");
        assert_eq!(asked(&mut broker, later), None, "and w3 so long ago that it does not matter");
        assert!(broker.left(later, &worker(1)));
        assert_eq!(
            asked(&mut broker, later),
            Some(20),
            "this broker knows what it gave to it, but not what the last one did"
        );
    }

    #[test]
    fn the_first_that_went_is_forgotten_first_and_the_last_is_always_remembered() {
        let (mut departed, now) = (Departed::default(), Instant::now());
        for number in 0..DEPARTED_MAX + 5 {
            departed.insert(now, worker(number), service("a"));
        }
        assert_eq!((departed.workers.len(), departed.order.len()), (DEPARTED_MAX, DEPARTED_MAX));
        assert!(!departed.has(now, "w4") && departed.has(now, "w5") && departed.has(now, "w100004"));
        departed.insert(now + GONE_KEPT, worker(0), service("b"));
        assert_eq!((departed.workers.len(), departed.services.len()), (1, 1), "whose time is over goes");
    }
}
