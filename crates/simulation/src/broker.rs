//! The broker and what is around it.

use std::collections::BTreeMap;
use std::time::Instant;

use norfab_protocol::broker::{
    Broker, BrokerConfig, BrokerOutput, KnownWorker, Outgoing, Purpose, RestoredWorker, Undelivered,
};
use norfab_protocol::frame::Frames;
use norfab_protocol::message::BrokerToWorker;
use norfab_protocol::name::{Identity, ServiceName};
use serde_json::json;

use crate::plant::Plant;
use crate::scenario::{FAULTS_UNTIL, client_name, worker_name};
use crate::world::{Occurrence, Peer, World, trace};

/// The broker's process.
pub struct BrokerNode {
    machine: Option<Broker>,
    /// Counts the processes.
    pub process: u64,
    /// Words that requests went on, until something else is said to a client.
    held: Vec<Outgoing>,
    /// The disk: who was registered, and when it went.
    known: BTreeMap<Identity, (ServiceName, Option<Instant>)>,
    /// It remembers no choices: see [`crate::Plant::ForgetChoices`].
    pub forgets: bool,
}

impl BrokerNode {
    /// One that runs.
    pub fn new(now: Instant, seed: u64) -> Self {
        let mut node = Self { machine: None, process: 0, held: Vec::new(), known: BTreeMap::new(), forgets: false };
        node.restart(now, seed);
        node
    }

    /// Begins, knowing nobody.
    pub fn restart(&mut self, now: Instant, seed: u64) {
        self.process += 1;
        let mut machine = Broker::new(BrokerConfig {
            seed,
            remembered_jobs_max: if self.forgets { 0 } else { BrokerConfig::default().remembered_jobs_max },
            ..BrokerConfig::default()
        });
        machine.restore(
            now,
            self.known.iter().map(|(worker, (service, gone))| RestoredWorker {
                worker: worker.clone(),
                service: service.clone(),
                gone: gone.map(|at| now.saturating_duration_since(at)),
            }),
        );
        self.machine = Some(machine);
    }

    /// Ends. `false`: it had.
    pub fn crash(&mut self) -> bool {
        self.held.clear();
        self.machine.take().is_some()
    }

    /// The process.
    pub fn machine(&self) -> Option<&Broker> {
        self.machine.as_ref()
    }

    /// Whether it runs.
    pub fn is_up(&self) -> bool {
        self.machine.is_some()
    }

    /// When it wants to be woken.
    pub fn next_deadline(&self) -> Option<Instant> {
        self.machine.as_ref()?.next_deadline()
    }
}

impl World {
    pub(crate) fn broker_message(&mut self, peer: Peer, frames: &Frames) {
        let name = match peer {
            Peer::Client(index) => client_name(index),
            Peer::Worker(index) => worker_name(index),
        };
        let now = self.agenda.now();
        if self.plant == Some(Plant::LoseQuestions) && frames.get(2).is_some_and(|command| command == "0x06") {
            return;
        }
        if let Some(machine) = &mut self.broker.machine {
            machine.message(now, name.as_bytes(), frames);
            self.drain_broker();
        }
    }

    pub(crate) fn broker_timeout(&mut self) {
        let now = self.agenda.now();
        if let Some(machine) = &mut self.broker.machine {
            machine.timeout(now);
            self.broker_releases();
            self.drain_broker();
        }
    }

    fn drain_broker(&mut self) {
        loop {
            if self.strikes(None) {
                return;
            }
            let Some(output) = self.broker.machine.as_mut().and_then(Broker::poll_output) else { return };
            match output {
                BrokerOutput::Send(outgoing) => match outgoing.purpose {
                    Purpose::Dispatched if self.random.bool() => self.broker.held.push(outgoing),
                    Purpose::Dispatched | Purpose::Relay | Purpose::Progress | Purpose::Missed | Purpose::Reply => {
                        self.broker_releases();
                        self.broker_sends(outgoing);
                    }
                    Purpose::Keepalive | Purpose::Disconnect | Purpose::Dispatch => self.broker_sends(outgoing),
                },
                BrokerOutput::Withdraw(client, job) => {
                    self.broker.held.retain(|held| held.until_result.as_ref() != Some(&job) || held.to != client);
                }
                BrokerOutput::Remember(KnownWorker { worker, service, gone }) => {
                    if self.plant == Some(Plant::ForgetWorkers) {
                        continue;
                    }
                    let at = gone.then(|| self.agenda.now());
                    self.broker.known.insert(worker, (service, at));
                }
                BrokerOutput::Ask(ask) => {
                    if let Some(machine) = &mut self.broker.machine {
                        machine.answer(ask.id, Ok(json!({ "status": "fine" })));
                    }
                }
                BrokerOutput::Note(note) => trace!(self, "broker: {note:?}"),
            }
        }
    }

    fn broker_releases(&mut self) {
        for outgoing in std::mem::take(&mut self.broker.held) {
            self.broker_sends(outgoing);
        }
    }

    fn broker_sends(&mut self, outgoing: Outgoing) {
        let peer = self.peers.get(&outgoing.to).copied();
        let up = peer.is_some_and(|peer| self.wire(peer).up);
        let faulty = self.agenda.elapsed() < FAULTS_UNTIL;
        let full = faulty && self.random.u32(..1000) < self.scenario.full_per_mille;
        let failed = match (up, full) {
            (false, _) => Some(Undelivered::Unroutable),
            (true, true) => Some(Undelivered::Full),
            (true, false) => None,
        };
        if let Some(reason) = failed {
            if reason == Undelivered::Full {
                self.watch.disturbed(self.agenda.now());
            }
            if let Some(machine) = &mut self.broker.machine {
                machine.undeliverable(&outgoing, reason);
            }
            return;
        }
        let Some(peer) = peer else { return };
        let Outgoing { to, frames, .. } = outgoing;
        if let Ok(BrokerToWorker::Post(delivery)) = BrokerToWorker::decode(&frames) {
            self.watch.posted(&delivery.job, &to);
        }
        let (delay, now) = (self.delay(), self.agenda.now());
        let wire = self.wire(peer);
        let (at, epoch) = (wire.arrival_at_peer(now, delay), wire.epoch);
        if self.comes_twice() {
            self.agenda.at(at, Occurrence::ToPeer(peer, epoch, frames.clone()));
        }
        self.agenda.at(at, Occurrence::ToPeer(peer, epoch, frames));
    }
}
