//! Who is registered. The cost of every operation that a message causes is independent of the number of workers but for
//! a logarithm at beats and registrations.

use std::collections::{BTreeMap, HashMap};
use std::time::{Duration, Instant};

use bytes::Bytes;

use crate::keepalive::{Keepalive, KeepaliveConfig};
use crate::name::{Identity, ServiceName};

#[derive(Debug)]
struct Record {
    service: ServiceName,
    service_frame: Bytes,
    /// Position in the list of its service's members.
    position: usize,
    keepalive: Keepalive,
    /// Since when it has left requests unanswered: it got one, and has said nothing about any job after it.
    owes_since: Option<Instant>,
    /// Order of registration, and this record's entry among the timers.
    serial: u64,
    timer: Instant,
}

/// A registered worker, for people.
#[derive(Debug, Clone, PartialEq)]
pub struct WorkerView {
    /// Its name.
    pub name: Identity,
    /// Its service.
    pub service: ServiceName,
    /// What is left of its hold time.
    pub hold_time_left: Duration,
    /// Time since its registration.
    pub age: Duration,
    /// Beats sent to it.
    pub keepalives_sent: u64,
    /// Beats received from it.
    pub keepalives_received: u64,
    /// For how long it has left requests unanswered, where that is longer than a beat: it says nothing about any job. It may hang; or its
    /// store or its line keep it from answering, as a large result on its way does; or there is nothing that it says to them, as a
    /// worker of Python to a POST that it knows.
    pub unanswered: Option<Duration>,
}

/// What a READY did.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Registration {
    New,
    Again,
    Moved { from: ServiceName },
}

#[derive(Debug)]
pub(super) struct Registry {
    config: KeepaliveConfig,
    workers: HashMap<Identity, Record>,
    services: HashMap<ServiceName, Vec<Identity>>,
    /// One entry a worker: not later than its next beat or expiry. A received beat moves the expiry only away, so the
    /// entry is looked at again when it comes due instead of being moved with every message.
    timers: BTreeMap<(Instant, u64), Identity>,
    next_serial: u64,
}

impl Registry {
    pub(super) fn new(config: KeepaliveConfig) -> Self {
        Self { config, workers: HashMap::new(), services: HashMap::new(), timers: BTreeMap::new(), next_serial: 0 }
    }

    pub(super) fn counts(&self) -> (usize, usize) {
        (self.workers.len(), self.services.len())
    }

    pub(super) fn timers(&self) -> usize {
        self.timers.len()
    }

    pub(super) fn contains(&self, worker: &Identity) -> bool {
        self.workers.contains_key(worker)
    }

    pub(super) fn get(&self, name: &str) -> Option<Identity> {
        self.workers.get_key_value(name).map(|(worker, _)| worker.clone())
    }

    pub(super) fn members(&self, service: &ServiceName) -> &[Identity] {
        self.services.get(service).map_or(&[], Vec::as_slice)
    }

    pub(super) fn service_frame(&self, worker: &Identity) -> Option<Bytes> {
        self.workers.get(worker).map(|record| record.service_frame.clone())
    }

    /// Every worker, in the order of registration.
    pub(super) fn all(&self) -> Vec<Identity> {
        let mut workers: Vec<(u64, &Identity)> =
            self.workers.iter().map(|(worker, record)| (record.serial, worker)).collect();
        workers.sort_unstable_by_key(|(serial, _)| *serial);
        workers.into_iter().map(|(_, worker)| worker.clone()).collect()
    }

    /// One worker of each service.
    pub(super) fn one_of_each(&self, random: &mut fastrand::Rng) -> Vec<Identity> {
        let mut services: Vec<_> = self.services.iter().collect();
        services.sort_unstable_by_key(|(service, _)| *service);
        services.into_iter().filter_map(|(_, members)| random.choice(members).cloned()).collect()
    }

    pub(super) fn register(&mut self, now: Instant, worker: Identity, service: ServiceName) -> Registration {
        if let Some(record) = self.workers.get_mut(&worker) {
            // A worker that came back, or moves: it has its whole hold time. Our own beats go on as they are.
            record.keepalive.extend(now);
            record.owes_since = None;
            let (timer, serial) = (record.timer, record.serial);
            if record.service == service {
                self.set_timer(&worker, timer, serial);
                return Registration::Again;
            }
            let from = record.service.clone();
            self.leave_service(&worker);
            let position = self.join_service(&worker, &service);
            if let Some(record) = self.workers.get_mut(&worker) {
                record.service_frame = frame(&service);
                record.service = service;
                record.position = position;
            }
            self.set_timer(&worker, timer, serial);
            return Registration::Moved { from };
        }
        let position = self.join_service(&worker, &service);
        let keepalive = Keepalive::new(self.config, now);
        let serial = self.next_serial;
        self.next_serial += 1;
        let timer = keepalive.deadline();
        self.timers.insert((timer, serial), worker.clone());
        let service_frame = frame(&service);
        self.workers
            .insert(worker, Record { service, service_frame, position, keepalive, owes_since: None, serial, timer });
        Registration::New
    }

    pub(super) fn keepalive(&mut self, now: Instant, worker: &Identity) -> bool {
        match self.workers.get_mut(worker) {
            Some(record) => {
                record.keepalive.received(now);
                true
            }
            None => false,
        }
    }

    /// A worker gets a request that most workers answer at once: a POST, or a question about a job.
    pub(super) fn asked(&mut self, now: Instant, worker: &Identity) {
        if let Some(record) = self.workers.get_mut(worker) {
            record.owes_since.get_or_insert(now);
        }
    }

    /// A worker says something about a job.
    pub(super) fn answered(&mut self, worker: &Identity) {
        if let Some(record) = self.workers.get_mut(worker) {
            record.owes_since = None;
        }
    }

    /// A worker that sends anything is alive: while it is busy its beats may be late.
    pub(super) fn extend(&mut self, now: Instant, worker: &Identity) {
        if let Some(record) = self.workers.get_mut(worker) {
            record.keepalive.extend(now);
        }
    }

    /// A worker whose hold time ran out has until the next beat to be heard.
    pub(super) fn grant(&mut self, now: Instant, worker: &Identity) {
        let Some(record) = self.workers.get_mut(worker) else { return };
        record.keepalive.grant(now);
        let (timer, serial) = (record.timer, record.serial);
        self.set_timer(worker, timer, serial);
    }

    /// Takes a worker out; its service comes back if it was there.
    pub(super) fn remove(&mut self, worker: &Identity) -> Option<ServiceName> {
        self.leave_service(worker);
        let record = self.workers.remove(worker)?;
        self.timers.remove(&(record.timer, record.serial));
        Some(record.service)
    }

    /// Everyone, and nobody is registered any more.
    pub(super) fn drain(&mut self) -> Vec<(Identity, ServiceName)> {
        self.services.clear();
        self.timers.clear();
        let mut workers: Vec<_> = self.workers.drain().collect();
        workers.sort_unstable_by_key(|(_, record)| record.serial);
        workers.into_iter().map(|(worker, record)| (worker, record.service)).collect()
    }

    pub(super) fn next_deadline(&self) -> Option<Instant> {
        self.timers.first_key_value().map(|((at, _), _)| *at)
    }

    /// The next worker whose beat or expiry is due, and which of the two.
    pub(super) fn take_due(&mut self, now: Instant) -> Option<(Identity, bool)> {
        loop {
            let ((at, serial), worker) = self.timers.first_key_value()?;
            if *at > now {
                return None;
            }
            let (at, serial, worker) = (*at, *serial, worker.clone());
            let Some(record) = self.workers.get(&worker) else {
                self.timers.remove(&(at, serial));
                continue;
            };
            if record.keepalive.expired(now) {
                return Some((worker, true));
            }
            if record.keepalive.deadline() <= now {
                return Some((worker, false));
            }
            self.set_timer(&worker, at, serial);
        }
    }

    /// Takes the due beat of a worker and returns its service.
    pub(super) fn beat(&mut self, now: Instant, worker: &Identity) -> Option<ServiceName> {
        let record = self.workers.get_mut(worker)?;
        let due = record.keepalive.take_beat(now);
        let service = record.service.clone();
        let (timer, serial) = (record.timer, record.serial);
        self.set_timer(worker, timer, serial);
        due.then_some(service)
    }

    pub(super) fn views(&self, now: Instant) -> Vec<WorkerView> {
        let mut records: Vec<_> = self.workers.iter().collect();
        records.sort_unstable_by_key(|(_, record)| record.serial);
        records
            .into_iter()
            .map(|(name, record)| WorkerView {
                name: name.clone(),
                service: record.service.clone(),
                hold_time_left: record.keepalive.hold_time_left(now),
                age: record.keepalive.age(now),
                keepalives_sent: record.keepalive.sent(),
                keepalives_received: record.keepalive.beats_received(),
                unanswered: record
                    .owes_since
                    .map(|since| now.saturating_duration_since(since))
                    .filter(|unanswered| *unanswered > self.config.interval),
            })
            .collect()
    }

    fn set_timer(&mut self, worker: &Identity, old: Instant, serial: u64) {
        self.timers.remove(&(old, serial));
        if let Some(record) = self.workers.get_mut(worker) {
            record.timer = record.keepalive.deadline();
            self.timers.insert((record.timer, serial), worker.clone());
        }
    }

    fn join_service(&mut self, worker: &Identity, service: &ServiceName) -> usize {
        let members = self.services.entry(service.clone()).or_default();
        members.push(worker.clone());
        members.len() - 1
    }

    /// Takes a worker from its service's members; a service without members is forgotten.
    fn leave_service(&mut self, worker: &Identity) {
        let Some(record) = self.workers.get(worker) else {
            return;
        };
        let (service, position) = (record.service.clone(), record.position);
        let Some(members) = self.services.get_mut(&service) else {
            return;
        };
        members.swap_remove(position);
        if members.is_empty() {
            self.services.remove(&service);
            return;
        }
        if let Some(moved) = members.get(position).cloned()
            && let Some(record) = self.workers.get_mut(&moved)
        {
            record.position = position;
        }
    }
}

fn frame(service: &ServiceName) -> Bytes {
    Bytes::copy_from_slice(service.as_str().as_bytes())
}
