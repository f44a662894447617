//! Puts a run together: what happens next, to whom, and what becomes of it.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use norfab_protocol::client::Client;
use norfab_protocol::frame::Frames;
use norfab_protocol::name::{Identity, JobId};
use norfab_protocol::worker::Worker;

use crate::agenda::Agenda;
use crate::broker::BrokerNode;
use crate::client::{ClientNode, Confirmed};
use crate::plant::Plant;
use crate::scenario::{
    FAULTS_UNTIL, Fault, Role, SUBMITTED_UNTIL, Scenario, TIMEOUT_MAX, client_name, up_to, worker_name,
};
use crate::trace::{Shown, Trace};
use crate::watch::{Counts, Watch};
use crate::worker::{Step, WorkerNode};

/// When a run ends: every deadline has passed, every process is back, every task has ended.
const RUN_TIME: Duration =
    Duration::from_secs(SUBMITTED_UNTIL.as_secs() + TIMEOUT_MAX.as_secs() + 2 * FAULTS_UNTIL.as_secs());

/// Most steps of a run: one that needs more does not come to rest.
const STEPS_MAX: u64 = 300_000;

/// Processes that end between two outputs in one run, at most.
const STRIKES_MAX: u64 = 12;

/// Longest time until a lost connection is there again.
const RECONNECT_MAX: Duration = Duration::from_secs(3);

/// A client or a worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Peer {
    /// By its index.
    Client(usize),
    /// By its index.
    Worker(usize),
}

impl Peer {
    fn of(role: Role, index: usize) -> Self {
        match role {
            Role::Client => Self::Client(index),
            Role::Worker => Self::Worker(index),
        }
    }
}

/// What can happen.
#[derive(Debug)]
pub enum Occurrence {
    /// A client gets a job to do.
    Submit(usize),
    /// The caller of a job loses interest.
    Cancel(usize),
    /// A client asks the broker.
    Manage(usize),
    /// Something goes wrong.
    Fault(Fault),
    /// A message arrives at the broker, of a connection to this process of the broker.
    ToBroker(Peer, u64, u64, Frames),
    /// A message arrives at a peer.
    ToPeer(Peer, u64, Frames),
    /// A peer tries to connect; an attempt of an older connection is void.
    Connect(Peer, u64),
    /// A writer has done its batch. The number is the process's.
    Written(Peer, u64),
    /// A client hears what its writer has done.
    Confirmed(usize, u64, Vec<Confirmed>),
    /// A process begins again.
    Restart(Peer),
    /// The broker begins again.
    RestartBroker,
    /// A frozen worker goes on.
    Thaw(usize),
    /// A fault that lasts is over.
    Settle,
    /// A running task does something.
    Step(usize, u64, JobId, Step),
    /// A person answers a question.
    Answer(usize, u64, JobId, Identity, String),
}

/// A run.
pub struct World {
    pub(crate) scenario: Scenario,
    pub(crate) plant: Option<Plant>,
    pub(crate) random: fastrand::Rng,
    pub(crate) agenda: Agenda<Occurrence>,
    pub(crate) broker: BrokerNode,
    pub(crate) clients: Vec<ClientNode>,
    pub(crate) workers: Vec<WorkerNode>,
    pub(crate) peers: BTreeMap<Identity, Peer>,
    pub(crate) watch: Watch,
    pub(crate) trace: Trace,
}

/// What a run was like.
#[derive(Debug, Clone)]
pub struct Summary {
    /// Counts.
    pub counts: Counts,
    /// Steps taken.
    pub steps: u64,
    /// The fingerprint of the trace, if that was wanted.
    pub trace: Trace,
}

/// Runs one seed. `start` is any time. Errors: the first thing that did not hold, and when.
pub fn run(seed: u64, start: Instant, trace: Trace) -> Result<Summary, String> {
    run_with(seed, start, trace, None)
}

/// As [`run`], with an error that was planted.
pub fn run_with(seed: u64, start: Instant, trace: Trace, plant: Option<Plant>) -> Result<Summary, String> {
    let mut random = fastrand::Rng::with_seed(seed);
    let scenario = Scenario::draw(&mut random);
    let mut world = World::new(scenario, random, start, trace);
    world.plant = plant;
    if plant == Some(Plant::ForgetChoices) {
        world.broker.forgets = true;
        world.broker.restart(start, seed);
    }
    world.begin();
    let mut steps = 0;
    while world.agenda.elapsed() < RUN_TIME && world.step() {
        steps += 1;
        world.check_step();
        if steps > STEPS_MAX {
            world.watch.fail(format!("{steps} steps and no rest"));
        }
        if world.watch.broken.is_some() {
            break;
        }
    }
    if world.watch.broken.is_none() {
        world.check_rest();
    }
    match world.watch.broken {
        Some(what) => Err(format!("seed {seed}, {:?}: {what}", world.agenda.elapsed())),
        None => Ok(Summary { counts: world.watch.counts, steps, trace: world.trace }),
    }
}

macro_rules! trace {
    ($world:expr, $($line:tt)*) => {
        $world.trace.line($world.agenda.elapsed(), format_args!($($line)*))
    };
}
pub(crate) use trace;

impl World {
    fn new(scenario: Scenario, mut random: fastrand::Rng, start: Instant, trace: Trace) -> Self {
        let workers: Vec<WorkerNode> = (0..scenario.workers).map(|index| WorkerNode::new(index, start)).collect();
        let clients: Vec<ClientNode> =
            (0..scenario.clients).map(|index| ClientNode::new(index, start, scenario.backlog)).collect();
        let mut peers = BTreeMap::new();
        for index in 0..scenario.workers {
            peers.insert(Identity::parse(&worker_name(index)).expect("a name"), Peer::Worker(index));
        }
        for index in 0..scenario.clients {
            peers.insert(Identity::parse(&client_name(index)).expect("a name"), Peer::Client(index));
        }
        Self {
            watch: Watch::new(start, scenario.steps_clocks()),
            agenda: Agenda::new(start),
            broker: BrokerNode::new(start, random.u64(..)),
            clients,
            workers,
            peers,
            trace,
            random,
            plant: None,
            scenario,
        }
    }

    fn begin(&mut self) {
        trace!(self, "{:?}", self.scenario);
        for peer in self.peers.clone().into_values() {
            self.agenda.after(Duration::ZERO, Occurrence::Restart(peer));
        }
        for (index, job) in self.scenario.jobs.clone().into_iter().enumerate() {
            self.agenda.after(job.at, Occurrence::Submit(index));
            if let Some(after) = job.cancelled_after {
                self.agenda.after(job.at + after, Occurrence::Cancel(index));
            }
        }
        for client in 0..self.scenario.clients {
            let at = up_to(&mut self.random, SUBMITTED_UNTIL);
            self.agenda.after(at, Occurrence::Manage(client));
        }
        for (at, fault) in self.scenario.faults.clone() {
            self.agenda.after(at, Occurrence::Fault(fault));
        }
    }

    /// Lets the next thing happen. `false`: nothing will.
    fn step(&mut self) -> bool {
        let now = self.agenda.now();
        let timer = self.next_timer();
        match (self.agenda.next_at(), timer) {
            (None, None) => return false,
            (Some(at), Some((due, _))) if at < due.max(now) => {}
            (Some(_), None) => {}
            (_, Some((due, owner))) => {
                self.agenda.advance(due);
                self.timeout(owner);
                return true;
            }
        }
        let Some(occurrence) = self.agenda.take() else { return false };
        self.happen(occurrence);
        true
    }

    /// What must hold between two steps.
    fn check_step(&mut self) {
        self.watch.check_due(self.agenda.now());
        if let Some(machine) = self.broker.machine() {
            self.watch.check_sizes("the broker", machine.sizes());
        }
        for client in &self.clients {
            if let Some(broken) = client.check(&self.scenario.backlog) {
                self.watch.fail(broken);
            }
            if let Some(machine) = &client.machine {
                self.watch.check_sizes(client_name(client.index), machine.sizes());
            }
        }
        for worker in &self.workers {
            if let Some(broken) = worker.check() {
                self.watch.fail(broken);
            }
            if let Some(machine) = &worker.machine {
                self.watch.check_sizes(&worker.identity, machine.sizes());
            }
        }
    }

    fn next_timer(&self) -> Option<(Instant, Option<Peer>)> {
        let broker = self.broker.next_deadline().map(|at| (at, None));
        let clients = self
            .clients
            .iter()
            .enumerate()
            .filter_map(|(index, client)| client.next_deadline().map(|at| (at, Some(Peer::Client(index)))));
        let workers = self
            .workers
            .iter()
            .enumerate()
            .filter_map(|(index, worker)| worker.next_deadline().map(|at| (at, Some(Peer::Worker(index)))));
        broker.into_iter().chain(clients).chain(workers).min()
    }

    fn timeout(&mut self, owner: Option<Peer>) {
        match owner {
            None => self.broker_timeout(),
            Some(Peer::Client(index)) => self.client_timeout(index),
            Some(Peer::Worker(index)) => self.worker_timeout(index),
        }
        let now = self.agenda.now();
        let deadline = match owner {
            None => self.broker.next_deadline(),
            Some(Peer::Client(index)) => self.clients[index].next_deadline(),
            Some(Peer::Worker(index)) => self.workers[index].next_deadline(),
        };
        if deadline.is_some_and(|at| at <= now) {
            self.watch.fail(format!("the timer of {owner:?} is due again at once"));
        }
    }

    fn happen(&mut self, occurrence: Occurrence) {
        match occurrence {
            Occurrence::Submit(index) => self.submit(index),
            Occurrence::Cancel(index) => self.cancel(index),
            Occurrence::Manage(index) => self.manage(index),
            Occurrence::Fault(fault) => self.fault(fault),
            Occurrence::ToBroker(peer, epoch, process, frames) => {
                if self.wire(peer).arrives(epoch) && self.broker.process == process {
                    self.watch.counts.messages += 1;
                    trace!(self, "{peer:?} -> broker:{}", Shown(&frames));
                    self.broker_message(peer, &frames);
                }
            }
            Occurrence::ToPeer(peer, epoch, frames) => {
                if self.wire(peer).epoch == epoch {
                    self.watch.counts.messages += 1;
                    trace!(self, "broker -> {peer:?}:{}", Shown(&frames));
                    match peer {
                        Peer::Client(index) => self.client_message(index, &frames),
                        Peer::Worker(index) => self.worker_message(index, frames),
                    }
                }
            }
            Occurrence::Connect(peer, epoch) => self.connect(peer, epoch),
            Occurrence::Written(Peer::Client(index), process) => self.client_written(index, process),
            Occurrence::Written(Peer::Worker(index), process) => self.worker_written(index, process),
            Occurrence::Confirmed(index, process, confirmed) => self.client_confirmed(index, process, confirmed),
            Occurrence::Restart(peer) => {
                trace!(self, "{peer:?} begins");
                self.watch.disturbed(self.agenda.now());
                match peer {
                    Peer::Client(index) => self.start_client(index),
                    Peer::Worker(index) => self.start_worker(index),
                }
                let epoch = self.wire(peer).epoch;
                self.agenda.after(Duration::from_millis(1), Occurrence::Connect(peer, epoch));
            }
            Occurrence::RestartBroker => {
                trace!(self, "broker begins");
                self.watch.disturbed(self.agenda.now());
                let now = self.agenda.now();
                self.broker.restart(now, self.random.u64(..));
            }
            Occurrence::Thaw(index) => self.thaw(index),
            Occurrence::Settle => self.watch.disturbed(self.agenda.now()),
            Occurrence::Step(worker, process, job, step) => self.task_step(worker, process, job, step),
            Occurrence::Answer(client, process, job, worker, question) => {
                self.answer(client, process, &job, &worker, question);
            }
        }
    }

    fn fault(&mut self, fault: Fault) {
        trace!(self, "FAULT {fault:?}");
        self.watch.counts.faults += 1;
        self.watch.disturbed(self.agenda.now());
        match fault {
            Fault::DropClient(index) => self.drop_wire(Peer::Client(index)),
            Fault::DropWorker(index) => self.drop_wire(Peer::Worker(index)),
            Fault::CrashClient(index, away) => {
                if self.crash_client(index) {
                    self.agenda.after(away, Occurrence::Restart(Peer::Client(index)));
                }
            }
            Fault::CrashWorker(index, away) => {
                if self.crash_worker(index) {
                    self.agenda.after(away, Occurrence::Restart(Peer::Worker(index)));
                }
            }
            Fault::CrashBroker(away) => {
                self.crash_broker(away);
            }
            Fault::FreezeWorker(index, away) => {
                if self.freeze(index, away) {
                    self.agenda.after(away, Occurrence::Thaw(index));
                }
            }
            Fault::StepClock(Role::Client, index, seconds) => self.clients[index].clock += seconds,
            Fault::StepClock(Role::Worker, index, seconds) => self.workers[index].clock += seconds,
            Fault::Stall(role, index, direction, away) => {
                let until = self.agenda.now() + away;
                self.wire(Peer::of(role, index)).stall(direction, until);
                self.agenda.after(away, Occurrence::Settle);
            }
            Fault::Cut(role, index, away) => self.cut(Peer::of(role, index), away),
            Fault::CutAll(away) => {
                for peer in self.peers.clone().into_values() {
                    self.cut(peer, away);
                }
            }
        }
    }

    fn cut(&mut self, peer: Peer, away: Duration) {
        let until = self.agenda.now() + away;
        self.drop_wire(peer);
        let wire = self.wire(peer);
        wire.cut_until = wire.cut_until.max(until);
        self.agenda.after(away, Occurrence::Settle);
    }

    fn crash_broker(&mut self, away: Duration) {
        if self.broker.crash() {
            self.watch.broker_lost();
            for peer in self.peers.clone().into_values() {
                self.drop_wire(peer);
            }
            self.agenda.after(away, Occurrence::RestartBroker);
        }
    }

    /// Whether the process that is about to do something ends before it does. `None` is the broker's.
    pub(crate) fn strikes(&mut self, whose: Option<Peer>) -> bool {
        let chance = self.scenario.strikes_per_10000;
        if chance == 0 || self.agenda.elapsed() >= FAULTS_UNTIL || self.random.u32(..10_000) >= chance {
            return false;
        }
        if whose.is_none() && !self.scenario.strikes_broker {
            return false;
        }
        // A process that ends with every job would do nothing else.
        if self.watch.counts.strikes >= STRIKES_MAX {
            return false;
        }
        let longest = Duration::from_secs(if self.random.bool() { 3 } else { 25 });
        let away = up_to(&mut self.random, longest);
        trace!(self, "STRIKE {whose:?} for {away:?}");
        self.watch.counts.strikes += 1;
        self.watch.disturbed(self.agenda.now());
        match whose {
            None => self.crash_broker(away),
            Some(peer) => {
                let crashed = match peer {
                    Peer::Client(index) => self.crash_client(index),
                    Peer::Worker(index) => self.crash_worker(index),
                };
                if crashed {
                    self.agenda.after(away, Occurrence::Restart(peer));
                }
            }
        }
        true
    }

    pub(crate) fn wire(&mut self, peer: Peer) -> &mut crate::wire::Wire {
        match peer {
            Peer::Client(index) => &mut self.clients[index].wire,
            Peer::Worker(index) => &mut self.workers[index].wire,
        }
    }

    /// A connection is lost; the peer tries to get a new one.
    pub(crate) fn drop_wire(&mut self, peer: Peer) {
        let late = self.random.bool();
        let wire = self.wire(peer);
        wire.drop_connection(late);
        let epoch = wire.epoch;
        match peer {
            Peer::Client(index) => self.clients[index].machine.as_mut().map(Client::disconnected),
            Peer::Worker(index) => self.workers[index].machine.as_mut().map(Worker::disconnected),
        };
        let delay = Duration::from_millis(10) + up_to(&mut self.random, RECONNECT_MAX);
        self.agenda.after(delay, Occurrence::Connect(peer, epoch));
    }

    fn connect(&mut self, peer: Peer, epoch: u64) {
        if self.wire(peer).epoch != epoch || self.wire(peer).up || !self.alive(peer) {
            return;
        }
        let frozen = match peer {
            Peer::Worker(index) => self.workers[index].frozen_until,
            Peer::Client(_) => None,
        };
        let now = self.agenda.now();
        let ready = self.broker.is_up() && frozen.is_none() && self.wire(peer).cut_until <= now;
        if !ready {
            let delay = Duration::from_millis(50) + up_to(&mut self.random, RECONNECT_MAX);
            self.agenda.after(delay, Occurrence::Connect(peer, epoch));
            return;
        }
        trace!(self, "{peer:?} is connected");
        self.watch.disturbed(self.agenda.now());
        self.wire(peer).connect(now);
        match peer {
            Peer::Worker(index) => self.worker_connected(index),
            Peer::Client(index) => self.client_connected(index),
        }
    }

    fn alive(&self, peer: Peer) -> bool {
        match peer {
            Peer::Client(index) => self.clients[index].machine.is_some(),
            Peer::Worker(index) => self.workers[index].machine.is_some(),
        }
    }

    /// What waits in a peer leaves, if there is a connection.
    pub(crate) fn flush(&mut self, peer: Peer) {
        while let Some(frames) = self.wire(peer).next_to_send() {
            if self.strikes(Some(peer)) {
                return;
            }
            self.leaves(peer, frames);
        }
    }

    /// A peer that is about to drop its connection says its last word.
    pub(crate) fn last_word(&mut self, peer: Peer) {
        if let Some(frames) = self.wire(peer).last_word() {
            self.leaves(peer, frames);
        }
    }

    fn leaves(&mut self, peer: Peer, frames: Frames) {
        let wire = self.wire(peer);
        let (first, gone) = (!std::mem::replace(&mut wire.spoke, true), wire.said_goodbye);
        if let Peer::Worker(index) = peer {
            self.check_order(index, first, gone, &frames);
        }
        let delay = self.delay();
        let now = self.agenda.now();
        let wire = self.wire(peer);
        let (at, epoch) = (wire.arrival_at_broker(now, delay), wire.epoch);
        let process = self.broker.process;
        if self.comes_twice() {
            self.agenda.at(at, Occurrence::ToBroker(peer, epoch, process, frames.clone()));
        }
        self.agenda.at(at, Occurrence::ToBroker(peer, epoch, process, frames));
    }

    /// Whether a message arrives twice.
    pub(crate) fn comes_twice(&mut self) -> bool {
        self.random.u32(..1000) < self.scenario.twice_per_mille
    }

    pub(crate) fn delay(&mut self) -> Duration {
        Duration::from_micros(50) + up_to(&mut self.random, self.scenario.delay_max)
    }

    pub(crate) fn store_delay(&mut self) -> Duration {
        Duration::from_micros(100) + up_to(&mut self.random, self.scenario.store_delay_max)
    }

    /// Everything is over: nothing may be left anywhere.
    fn check_rest(&mut self) {
        for client in &self.clients {
            for broken in client.check_rest() {
                self.watch.broken.get_or_insert(broken);
            }
            self.watch.check_rest_of_client(client.index, &client.rows);
        }
        for worker in &self.workers {
            for broken in worker.check_rest() {
                self.watch.broken.get_or_insert(broken);
            }
            self.watch.check_rest_of_worker(&worker.identity, &worker.rows);
        }
    }
}
