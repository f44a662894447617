//! The broker's decisions: who is registered, whom a request is for, what is said to whom.
//!
//! One input ([`Broker::message`], [`Broker::timeout`], [`Broker::answer`], [`Broker::stop`]), then
//! [`Broker::poll_output`] until it is empty. The owner reports a send that failed with [`Broker::undeliverable`] before
//! it takes the next output: a dispatch then goes to another worker, or the client is told the truth.
//!
//! The machine knows no sockets: "a worker is known" and "deliver this" are inputs and outputs.

mod answers;
mod departed;
mod management;
mod memory;
mod missed;
mod output;
mod registry;
mod relay;
mod sizes;
mod undelivered;

use std::collections::{HashMap, HashSet, VecDeque};
use std::time::{Duration, Instant};

use bytes::Bytes;

pub use departed::{DEPARTED_MAX, EXPECTED_BACK, GONE_KEPT};
pub use management::{AskId, AskKind, ManagementAsk, UNANSWERED_KEY};
pub use output::{
    BrokerCounters, BrokerNote, BrokerOutput, KnownWorker, Outgoing, Purpose, RestoredWorker, Undelivered,
};
pub use registry::WorkerView;

use crate::body::{self, CancelBody, Poster};
use crate::frame::{Frames, Status};
use crate::keepalive::KeepaliveConfig;
use crate::message::{
    BrokerToClient, BrokerToWorker, ClientCommand, ClientMessage, DecodeError, Delivery, Reply, ToBroker,
};
use crate::name::{Identity, JobId, ServiceName};
use crate::recent::Recent;
use crate::target::Target;
use answers::{echo, error_value};
use departed::Departed;
use memory::JobMemory;
use missed::Missed;
use registry::Registry;

/// Service name under which the broker answers about itself.
pub const MANAGEMENT_SERVICE: &str = "mmi.service.broker";
/// Service name under which the broker hands out inventories.
pub const INVENTORY_SERVICE: &str = "sid.service.broker";
/// Service name that stands for every service.
pub const EVERY_SERVICE: &str = "all";

/// An unregistered worker is told to register at most this often, so that two brokers with one name, or a worker that
/// does not understand, cannot make a storm.
pub const DISCONNECT_INTERVAL: Duration = Duration::from_secs(1);

/// How long after its beginning a broker takes workers that it does not know for ones that are on their way back: they find it
/// within 5 s, and some for those that were frozen or are many.
pub const YOUNG_TIME: Duration = Duration::from_secs(8);

/// Most jobs that came here first and that nobody has, which are remembered to be cancelled: 200 bytes each. One beyond that is
/// cancelled as one of which nothing is known, until its deadline.
const UNDISPATCHED_MAX: usize = 16_384;

/// Most cancelled jobs that are remembered, so that a POST that comes late does not run: up to 1.5 KB each.
const CANCELLED_MAX: usize = 4096;

/// Bounds and habits of a broker.
#[derive(Debug, Clone)]
pub struct BrokerConfig {
    /// Beats and hold time.
    pub keepalive: KeepaliveConfig,
    /// Seed of the choice among workers for target `any`.
    pub seed: u64,
    /// Most registered workers; a READY beyond is refused and counted. 100,000 records take about 50 MB.
    pub workers_max: usize,
    /// Most jobs whose chosen workers are remembered for a repeated POST, with four times as many workers in all. 65,536 take
    /// about 30 MB.
    pub remembered_jobs_max: usize,
    /// Most management requests that wait for an answer of the owner.
    pub asks_max: usize,
    /// Most unregistered identities whose last DISCONNECT is remembered.
    pub strangers_max: usize,
}

impl Default for BrokerConfig {
    fn default() -> Self {
        Self {
            keepalive: KeepaliveConfig::default(),
            seed: 0,
            workers_max: 100_000,
            remembered_jobs_max: 65_536,
            asks_max: 1024,
            strangers_max: 4096,
        }
    }
}

/// A request on its way to its workers, between the outputs of one input.
#[derive(Debug)]
struct Dispatch {
    /// When the request came.
    at: Instant,
    client: Identity,
    request: ClientMessage,
    /// Whom to try, in order.
    chosen: VecDeque<Identity>,
    /// Of a POST. A result of the only worker tells a client of ours who has the job.
    poster: Poster,
    /// The target is `any`: when the chosen one cannot be reached, another is tried.
    any: bool,
    /// For `any`: who can still be tried, once the first could not be reached.
    others: Option<Vec<Identity>>,
    /// Who was tried, reached or not.
    tried: Vec<Identity>,
    /// Who was tried and not reached.
    unreached: Vec<Identity>,
    /// A POST that was handed on before: `reached` is who got it then, and `had` the same, to be looked up.
    repeated: bool,
    had: HashSet<Identity>,
    /// For a cancellation: whom the job went to, as far as that is remembered, and whether nobody else can have it.
    holders: Vec<Identity>,
    whole: bool,
    reached: Vec<Identity>,
    in_flight: Option<Identity>,
}

/// The broker's state.
#[derive(Debug)]
pub struct Broker {
    config: BrokerConfig,
    registry: Registry,
    strangers: HashMap<Identity, Instant>,
    remembered: JobMemory,
    /// Jobs whose first POST came here and that nobody has.
    undispatched: Recent<()>,
    /// Jobs that are cancelled as a whole, with who, when and why: no POST of them goes anywhere.
    cancelled: Recent<String>,
    departed: Departed,
    missed: Missed,
    /// The time of its first input.
    begun: Option<Instant>,
    asks: HashMap<AskId, management::PendingAsk>,
    next_ask: u64,
    dispatch: Option<Dispatch>,
    outputs: VecDeque<BrokerOutput>,
    counters: BrokerCounters,
    random: fastrand::Rng,
    stopped: bool,
}

impl Broker {
    /// An empty broker.
    pub fn new(config: BrokerConfig) -> Self {
        Self {
            registry: Registry::new(config.keepalive),
            strangers: HashMap::new(),
            remembered: JobMemory::new(config.remembered_jobs_max),
            undispatched: Recent::new(UNDISPATCHED_MAX),
            cancelled: Recent::new(CANCELLED_MAX),
            departed: Departed::default(),
            missed: Missed::default(),
            begun: None,
            asks: HashMap::new(),
            next_ask: 0,
            dispatch: None,
            outputs: VecDeque::new(),
            counters: BrokerCounters::default(),
            random: fastrand::Rng::with_seed(config.seed),
            stopped: false,
            config,
        }
    }

    /// A message came from the peer with this routing id.
    pub fn message(&mut self, now: Instant, peer: &[u8], frames: &[Bytes]) {
        debug_assert!(self.dispatch.is_none(), "outputs are drained before the next input");
        if self.stopped {
            return;
        }
        self.counters.received += 1;
        self.begun.get_or_insert(now);
        let peer = match Identity::from_frame(peer) {
            Ok(peer) => peer,
            Err(error) => {
                self.count_refusal("bad_peer");
                self.note(BrokerNote::BadPeer { error });
                return;
            }
        };
        match ToBroker::decode(frames) {
            Ok(ToBroker::Client(message)) => self.client_message(now, peer, message),
            Ok(ToBroker::Worker(message)) => self.worker_message(now, peer, message),
            Err(error) => self.refuse(&peer, frames, error),
        }
    }

    /// Time has passed: beats and expiries.
    pub fn timeout(&mut self, now: Instant) {
        while let Some((worker, expired)) = self.registry.take_due(now) {
            if expired {
                self.left(now, &worker);
                self.note(BrokerNote::Expired { worker });
            } else if let Some(service) = self.registry.beat(now, &worker) {
                let frames = BrokerToWorker::Keepalive(service).encode();
                self.send(worker, frames, Purpose::Keepalive);
            }
        }
    }

    /// Time has passed, and signs of life may wait unread: beats, but nobody is given up yet.
    pub fn timeout_behind(&mut self, now: Instant) {
        while let Some((worker, expired)) = self.registry.take_due(now) {
            if expired {
                self.registry.grant(now, &worker);
            } else if let Some(service) = self.registry.beat(now, &worker) {
                let frames = BrokerToWorker::Keepalive(service).encode();
                self.send(worker, frames, Purpose::Keepalive);
            }
        }
    }

    /// When [`Broker::timeout`] is wanted next.
    pub fn next_deadline(&self) -> Option<Instant> {
        self.registry.next_deadline()
    }

    /// The broker stops: every worker is told, nothing is taken any more.
    pub fn stop(&mut self) {
        self.stopped = true;
        for (worker, service) in self.registry.drain() {
            let frames = BrokerToWorker::Disconnect(service).encode();
            self.send(worker, frames, Purpose::Disconnect);
        }
    }

    /// The next thing to do. `None`: take the next input.
    pub fn poll_output(&mut self) -> Option<BrokerOutput> {
        loop {
            if let Some(output) = self.outputs.pop_front() {
                return Some(output);
            }
            let dispatch = self.dispatch.as_mut()?;
            if let Some(reached) = dispatch.in_flight.take()
                && !dispatch.had.contains(&reached)
            {
                if matches!(dispatch.request.command, ClientCommand::Post | ClientCommand::Get) {
                    self.registry.asked(dispatch.at, &reached);
                }
                dispatch.reached.push(reached);
            }
            if let Some(worker) = dispatch.chosen.pop_front() {
                let delivery = Delivery {
                    client: dispatch.client.clone(),
                    job: dispatch.request.job.clone(),
                    body: dispatch.request.body.clone(),
                };
                let message = match dispatch.request.command {
                    ClientCommand::Get => BrokerToWorker::Get(delivery),
                    ClientCommand::Put => BrokerToWorker::Put(delivery),
                    ClientCommand::Delete => BrokerToWorker::Delete(delivery),
                    ClientCommand::Post | ClientCommand::Open | ClientCommand::Disconnect | ClientCommand::Mmi => {
                        BrokerToWorker::Post(delivery)
                    }
                };
                dispatch.tried.push(worker.clone());
                dispatch.in_flight = Some(worker.clone());
                self.counters.sent += 1;
                return Some(BrokerOutput::Send(Outgoing {
                    to: worker,
                    frames: message.encode(),
                    purpose: Purpose::Dispatch,
                    until_result: None,
                }));
            }
            if let Some(dispatch) = self.dispatch.take() {
                self.conclude(dispatch);
            }
        }
    }

    /// What was counted.
    pub fn counters(&self) -> &BrokerCounters {
        &self.counters
    }

    /// Registered workers in the order of their registration.
    pub fn workers(&self, now: Instant) -> Vec<WorkerView> {
        self.registry.views(now)
    }

    /// Number of registered workers and of services that have one.
    pub fn counts(&self) -> (usize, usize) {
        self.registry.counts()
    }

    /// The configuration.
    pub fn config(&self) -> &BrokerConfig {
        &self.config
    }

    fn note(&mut self, note: BrokerNote) {
        self.outputs.push_back(BrokerOutput::Note(note));
    }

    fn send(&mut self, to: Identity, frames: Frames, purpose: Purpose) {
        self.counters.sent += 1;
        self.outputs.push_back(BrokerOutput::Send(Outgoing { to, frames, purpose, until_result: None }));
    }

    fn count_refusal(&mut self, kind: &'static str) {
        *self.counters.refused.entry(kind).or_default() += 1;
    }

    fn reply(&mut self, to: &Identity, reply: Reply) {
        self.send(to.clone(), BrokerToClient::Response(reply).encode(), Purpose::Reply);
    }

    /// Refuses a message. A client that can be answered (its message names a service and a job) is.
    fn refuse(&mut self, peer: &Identity, frames: &[Bytes], error: DecodeError) {
        self.count_refusal(error.kind());
        if frames.len() >= 7
            && frames[0].is_empty()
            && frames[1] == crate::frame::CLIENT_HEADER
            && let Ok(service) = ServiceName::from_frame(&frames[3])
            && let Ok(job) = JobId::from_frame(&frames[5])
        {
            self.reply_refused(peer, service, job, echo(&frames[4]), error.to_string());
        }
        self.note(BrokerNote::Refused { peer: peer.to_string(), error });
    }

    fn client_message(&mut self, now: Instant, client: Identity, request: ClientMessage) {
        if self.registry.contains(&client) {
            self.note(BrokerNote::NameTaken { worker: client.clone() });
        }
        if matches!(request.service.as_str(), MANAGEMENT_SERVICE | INVENTORY_SERVICE) {
            self.management_request(now, &client, &request);
            return;
        }
        let checked = match request.command {
            ClientCommand::Post => body::check_job_request(&request.body),
            ClientCommand::Put => body::check_put(&request.body).map(|()| Poster::default()),
            _ => Ok(Poster::default()),
        };
        let poster = match checked {
            Ok(poster) => poster,
            Err(error) => {
                self.count_refusal(error.kind());
                let ClientMessage { service, job, target, .. } = request;
                self.reply_refused(&client, service, job, echo(target.as_str().as_bytes()), error.to_string());
                self.note(BrokerNote::Refused { peer: client.to_string(), error });
                return;
            }
        };
        if request.command == ClientCommand::Post
            && let Some(text) = self.cancelled.get(&client, &request.job)
        {
            let text = text.clone();
            self.tell_cancelled(&client, request.service, request.job, &request.target, text);
            return;
        }
        let cancel = match request.command {
            ClientCommand::Delete => body::decode::<CancelBody>("a cancellation", &request.body).unwrap_or_default(),
            _ => CancelBody::default(),
        };
        let owner = cancel.client.clone().unwrap_or_else(|| client.clone());
        let whole =
            self.remembered.is_whole(&owner, &request.job) || self.undispatched.get(&owner, &request.job).is_some();
        self.remember_cancelled(&client, &request, &cancel);
        // A repeated POST goes to those that got the first, and to nobody else even if they are away: they have the job,
        // and the client goes on asking for them. One that names workers is for those.
        let repeated = self.remembered_workers(&client, &request);
        let chosen: Vec<Identity> = match (&request.target, &repeated) {
            (Target::Any | Target::All, Some(workers)) => {
                workers.iter().filter(|worker| self.registry.contains(worker)).cloned().collect()
            }
            (_, None) | (Target::Text(_), Some(_)) => self.choose(&request),
        };
        // A cancellation that names nobody goes where the job went: its client does not know yet.
        let holders = match request.command {
            ClientCommand::Delete => self.remembered.holders(&owner, &request.job),
            _ => Vec::new(),
        };
        let knows = cancel.ends && whole;
        let chosen = match (&request.target, holders.as_slice()) {
            (_, []) if !knows => chosen,
            (Target::Text(_), _) => chosen,
            (Target::Any | Target::All, holders) => {
                holders.iter().filter(|worker| self.registry.contains(worker)).cloned().collect()
            }
        };
        // A cancellation that reaches nobody is answered all the same, where it is known that nobody has the job.
        if chosen.is_empty() && repeated.is_none() && holders.is_empty() && !knows {
            if poster.first {
                self.undispatched.insert(&client, &request.job, ());
            }
            self.refuse_target(now, &client, request, poster, false);
            return;
        }
        let any = request.target == Target::Any && request.service.as_str() != EVERY_SERVICE;
        match request.command {
            ClientCommand::Post | ClientCommand::Get | ClientCommand::Put | ClientCommand::Delete => {
                self.dispatch = Some(Dispatch {
                    at: now,
                    client,
                    request,
                    chosen: chosen.into(),
                    poster,
                    any: repeated.is_none() && any,
                    others: None,
                    tried: Vec::new(),
                    unreached: Vec::new(),
                    repeated: repeated.is_some(),
                    holders,
                    whole,
                    had: repeated.iter().flatten().cloned().collect(),
                    reached: repeated.unwrap_or_default(),
                    in_flight: None,
                });
            }
            ClientCommand::Open | ClientCommand::Disconnect => {}
            ClientCommand::Mmi => {
                let error = format!(
                    "service '{}' takes jobs; only {MANAGEMENT_SERVICE} and {INVENTORY_SERVICE} answer this command",
                    request.service
                );
                self.reply_management(&client, request.service, request.job, Status::REFUSED, &error_value(error));
            }
        }
    }

    /// To whom a POST went before.
    fn remembered_workers(&self, client: &Identity, request: &ClientMessage) -> Option<Vec<Identity>> {
        match request.command {
            ClientCommand::Post => self.remembered.get(client, &request.job).map(<[Identity]>::to_vec),
            _ => None,
        }
    }

    /// Whom a request is for.
    fn choose(&mut self, request: &ClientMessage) -> Vec<Identity> {
        let every = request.service.as_str() == EVERY_SERVICE;
        let members = self.registry.members(&request.service);
        if !every && members.is_empty() {
            return Vec::new();
        }
        match &request.target {
            Target::Any if every => self.registry.one_of_each(&mut self.random),
            Target::All if every => self.registry.all(),
            Target::Any => vec![members[self.random.usize(..members.len())].clone()],
            Target::All => members.to_vec(),
            Target::Text(text) => {
                let names = match self.registry.get(text) {
                    Some(worker) => return vec![worker],
                    None => request.target.listed_names().unwrap_or_default(),
                };
                let mut chosen: Vec<Identity> = Vec::with_capacity(names.len());
                let mut seen = std::collections::HashSet::with_capacity(names.len());
                for name in names {
                    if let Some(worker) = self.registry.get(&name)
                        && seen.insert(worker.clone())
                    {
                        chosen.push(worker);
                    }
                }
                chosen
            }
        }
    }
}

#[cfg(test)]
mod tests;
