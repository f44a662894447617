//! The loop that owns the broker's socket.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::mpsc::{SyncSender, TrySendError, sync_channel};
use std::time::{Duration, Instant};

use norfab_protocol::broker::{
    AskKind, Broker, BrokerNote, BrokerOutput, ManagementAsk, Outgoing, Purpose, Undelivered, WorkerView,
};
use norfab_protocol::{Identity, JobId};
use norfab_transport::{LinkError, RouterLink, SendError};
use serde_json::{Value, json};
use tokio::sync::{mpsc, oneshot};
use tracing::{debug, error, info, warn};

use super::book::WorkerBook;
use super::management::{Answer, Question, answer};
use super::{BrokerOptions, LINGER};
use crate::StartError;
use crate::clock::SystemClock;
use crate::inbox::{Inbox, whole};
use crate::outbox::COMPANY_WAIT;
use crate::process::ProcessFigures;
use crate::throttle::{LOGGED_REFUSALS, Throttle};

/// Messages that one turn of the loop takes before it looks at everything else.
const TURN_MESSAGES: usize = 512;

/// Between two turns that have something to do this much time passes only if the process was held up.
const STALL: Duration = Duration::from_secs(1);

/// How long unread messages keep silent workers registered. Reading what gathered in a stall takes less: 100,000 messages a
/// second.
const BEHIND_MAX: Duration = Duration::from_secs(5);

/// Words that requests went on which are held at most.
const HELD_MAX: usize = 64;

/// Arrivals and departures that are logged in one interval: a fabric of a thousand workers that starts is news, one worker
/// that comes and goes without end is not.
const LOGGED_ARRIVALS: u32 = 2000;

/// What others ask of the owner.
pub(super) enum BrokerCommand {
    /// Tell the statistics.
    Stats { answer: oneshot::Sender<Value> },
    /// End.
    Stop,
}

pub(super) struct Run {
    name: String,
    machine: Broker,
    link: Box<dyn RouterLink>,
    commands: mpsc::Receiver<BrokerCommand>,
    inbox: Inbox<Answer>,
    questions: SyncSender<Question>,
    figures: ProcessFigures,
    /// Folders and keys, which do not change.
    known: Value,
    held: Held,
    throttle: Throttle,
    arrivals: Throttle,
    behind: Behind,
    book: WorkerBook,
    stop: bool,
}

impl Run {
    pub(super) fn new(
        options: BrokerOptions,
        commands: mpsc::Receiver<BrokerCommand>,
        inbox: Inbox<Answer>,
    ) -> Result<Self, StartError> {
        // As many as the machine has open at most.
        let (questions, asked) = sync_channel::<Question>(options.config.asks_max);
        let information = Arc::clone(&options.information);
        let answers = inbox.clone();
        let name = options.name.clone();
        std::thread::Builder::new()
            .name("b-management".to_owned())
            .spawn(move || {
                let span = norfab_logs::role_span(norfab_logs::Role::Broker, &name);
                let _entered = span.enter();
                for question in asked {
                    let id = question.id;
                    // What others wrote may panic; the next question is to be answered all the same.
                    let answer = catch_unwind(AssertUnwindSafe(|| answer(&*information, question)));
                    let answer = answer.unwrap_or_else(|_| Err("the broker failed to answer, see its log".to_owned()));
                    answers.push([Answer { id, answer }]);
                }
            })
            .map_err(|error| StartError::Thread { role: "the broker's management".to_owned(), error })?;
        let (book, known) = WorkerBook::open(options.workers_file)?;
        let mut machine = Broker::new(options.config);
        machine.restore(SystemClock::now(), known);
        Ok(Self {
            name: options.name,
            machine,
            link: options.link,
            commands,
            inbox,
            questions,
            figures: ProcessFigures::default(),
            known: options.information.status(),
            held: Held::default(),
            throttle: Throttle::new(LOGGED_REFUSALS),
            arrivals: Throttle::new(LOGGED_ARRIVALS),
            behind: Behind::default(),
            book,
            stop: false,
        })
    }

    pub(super) fn run(mut self) {
        let span = norfab_logs::role_span(norfab_logs::Role::Broker, &self.name);
        let _entered = span.enter();
        info!("broker {} listens at {}", self.name, self.link.endpoint());
        let ended = loop {
            match self.turn() {
                Ok(true) if self.stop => break Ok(()),
                Ok(true) => {}
                Ok(false) => {
                    let now = SystemClock::now();
                    let deadline = [self.machine.next_deadline(), self.held.deadline()].into_iter().flatten().min();
                    let timeout = deadline.map(|at| at.saturating_duration_since(now));
                    if let Err(error) = self.link.wait(timeout) {
                        break Err(error);
                    }
                }
                Err(error) => break Err(error),
            }
        };
        match ended {
            Ok(()) => info!("broker {} stopped", self.name),
            Err(error) => error!("broker {} lost its socket: {error}", self.name),
        }
        self.commands.close();
        // An error: the socket is broken, and that was said.
        drop(self.release());
        self.link.close(LINGER);
        self.book.close();
    }

    /// Looks once at everything that may have something to do. `true`: there may be more.
    fn turn(&mut self) -> Result<bool, LinkError> {
        for Answer { id, answer } in self.inbox.take() {
            self.machine.answer(id, answer);
            self.perform()?;
        }
        while let Ok(command) = self.commands.try_recv() {
            match command {
                BrokerCommand::Stats { answer } => {
                    // Who asked may have gone.
                    drop(answer.send(self.statistics()));
                }
                BrokerCommand::Stop => {
                    self.machine.stop();
                    self.perform()?;
                    self.stop = true;
                    return Ok(true);
                }
            }
        }
        let mut more = true;
        // One reading of the clock serves a batch: it takes well below a millisecond.
        let now = SystemClock::now();
        for _ in 0..TURN_MESSAGES {
            let Some(received) = self.link.try_receive()? else {
                more = false;
                break;
            };
            let peer = received.peer.clone();
            self.machine.message(now, &peer, &whole(received));
            self.perform()?;
        }
        let now = SystemClock::now();
        let excused = self.behind.is_excuse(now, more);
        if self.machine.next_deadline().is_some_and(|deadline| deadline <= now) {
            if excused {
                self.machine.timeout_behind(now);
            } else {
                self.machine.timeout(now);
            }
            self.perform()?;
        }
        if self.held.is_due(now) {
            self.release()?;
            self.perform()?;
        }
        Ok(more)
    }

    /// Does what the machine wants, in its order.
    fn perform(&mut self) -> Result<(), LinkError> {
        while let Some(output) = self.machine.poll_output() {
            match output {
                BrokerOutput::Send(outgoing) => match outgoing.purpose {
                    Purpose::Dispatched => {
                        if self.held.add(SystemClock::now(), outgoing) {
                            self.release()?;
                        }
                    }
                    Purpose::Relay | Purpose::Progress | Purpose::Missed | Purpose::Reply => {
                        // It may be for somebody whose 202 is held, and that comes first.
                        self.release()?;
                        self.send(&outgoing)?;
                    }
                    Purpose::Keepalive | Purpose::Disconnect | Purpose::Dispatch => self.send(&outgoing)?,
                },
                BrokerOutput::Withdraw(client, job) => self.held.withdraw(&client, &job),
                BrokerOutput::Remember(known) => self.book.note(known),
                BrokerOutput::Ask(ask) => self.ask(ask),
                BrokerOutput::Note(note) => self.note(&note),
            }
        }
        Ok(())
    }

    /// Sends what was held.
    fn release(&mut self) -> Result<(), LinkError> {
        while let Some(outgoing) = self.held.take() {
            self.send(&outgoing)?;
        }
        Ok(())
    }

    fn send(&mut self, outgoing: &Outgoing) -> Result<(), LinkError> {
        let Outgoing { to, frames, purpose, .. } = outgoing;
        let peer = to.as_str().as_bytes();
        let sent = match purpose {
            Purpose::Progress => self.link.try_send_minor(peer, frames),
            _ => self.link.try_send(peer, frames),
        };
        let reason = match sent {
            Ok(()) => return Ok(()),
            Err(SendError::Unroutable | SendError::Closed) => Undelivered::Unroutable,
            Err(SendError::Full) => Undelivered::Full,
            Err(SendError::Failed(error)) => return Err(error),
        };
        self.machine.undeliverable(outgoing, reason);
        Ok(())
    }

    fn ask(&mut self, ask: ManagementAsk) {
        let own = match ask.kind {
            AskKind::Stats => Some(self.statistics()),
            AskKind::Status => Some(self.status()),
            AskKind::ShowBroker => Some(self.show_broker()),
            AskKind::Version => Some(crate::worker::versions()),
            AskKind::Inventory | AskKind::Logs | AskKind::WorkerInventory => None,
        };
        if let Some(own) = own {
            self.machine.answer(ask.id, Ok(own));
            return;
        }
        let id = ask.id;
        let refused = match self.questions.try_send(Question { id, kind: ask.kind, kwargs: ask.kwargs }) {
            Ok(()) => return,
            Err(TrySendError::Full(_)) => "the broker has too many questions open, try again",
            Err(TrySendError::Disconnected(_)) => "the broker is stopping",
        };
        self.machine.answer(id, Err(refused.to_owned()));
    }

    fn statistics(&mut self) -> Value {
        let now = SystemClock::now();
        let (worker_count, service_count) = self.machine.counts();
        let counters = self.machine.counters();
        let keepalive = self.machine.config().keepalive;
        let workers: Vec<Value> = self.machine.workers(now).iter().map(statistics_row).collect();
        json!({
            "schema_version": "1.0",
            "collected_at": SystemClock::utc(),
            "name": self.name,
            "role": "broker",
            "status": "active",
            "process": self.figures.read(now),
            "messaging": {
                "sent": counters.sent,
                "received": counters.received,
                "events_received": counters.events,
                "send_failures": counters.unroutable + counters.full,
                "receive_failures": counters.refused.values().sum::<u64>(),
                "unroutable": counters.unroutable,
                "full": counters.full,
                "refused": counters.refused,
                "told_to_register": counters.strangers,
            },
            "endpoint": self.link.endpoint(),
            "worker_count": worker_count,
            "service_count": service_count,
            "keepalive_interval_ms": u64::try_from(keepalive.interval.as_millis()).unwrap_or(u64::MAX),
            "keepalive_multiplier": keepalive.multiplier,
            "workers": workers,
        })
    }

    fn status(&self) -> Value {
        let mut value =
            json!({ "name": self.name, "role": "broker", "status": "active", "endpoint": self.link.endpoint() });
        if let (Value::Object(value), Value::Object(more)) = (&mut value, self.known.clone()) {
            value.extend(more);
        }
        value
    }

    /// The answer that 0.21 clients know, under their keys.
    fn show_broker(&self) -> Value {
        let status = &self.known;
        let (workers, services) = self.machine.counts();
        let keepalive = self.machine.config().keepalive;
        let of = |part: &str, key: &str| status[part][key].clone();
        json!({
            "endpoint": self.link.endpoint(),
            "status": "active",
            "keepalives": {
                "interval": u64::try_from(keepalive.interval.as_millis()).unwrap_or(u64::MAX),
                "multiplier": keepalive.multiplier,
            },
            "workers count": workers,
            "services count": services,
            "directories": {
                "base-dir": of("directories", "broker_base_dir"),
                "private-keys-dir": of("directories", "private_keys_dir"),
                "public-keys-dir": of("directories", "public_keys_dir"),
            },
            "security": {
                "broker-private-key-file": of("security", "broker_private_key_file"),
                "broker-public-key-file": of("security", "broker_public_key_file"),
                "zmq-auth": of("security", "zmq_auth"),
                "ip-allowlist": of("security", "ip_allowlist"),
            },
        })
    }

    fn note(&mut self, note: &BrokerNote) {
        match note {
            BrokerNote::Registered { worker, service } => {
                if self.arrivals.admit() {
                    info!("worker {worker} registered for service {service}");
                }
            }
            BrokerNote::Moved { worker, from, to } => {
                if self.arrivals.admit() {
                    info!("worker {worker} moved from service {from} to {to}");
                }
            }
            BrokerNote::Left { worker } => {
                if self.arrivals.admit() {
                    info!("worker {worker} left");
                }
            }
            BrokerNote::Expired { worker } => {
                if self.arrivals.admit() {
                    warn!("worker {worker} was silent for its hold time and is gone");
                }
            }
            BrokerNote::Stranger { worker } => {
                if self.arrivals.admit() {
                    info!("worker {worker} is not registered and was told to register");
                }
            }
            BrokerNote::NameTaken { worker } => {
                if self.throttle.admit() {
                    warn!(
                        "a client has connected under the name {worker}, which is that of a worker, and gets its messages \
                         until the worker connects again: names are unique in a fabric, give the client another (--name)"
                    );
                }
            }
            BrokerNote::RegistryFull { worker } if !self.throttle.admit() => debug!("worker {worker} was refused"),
            BrokerNote::RegistryFull { worker } => {
                error!("worker {worker} was refused: {} workers are registered", self.machine.counts().0);
            }
            BrokerNote::Refused { peer, error } => {
                if self.throttle.admit() {
                    warn!("refused a message of {peer}: {error}");
                }
            }
            BrokerNote::BadPeer { error } => {
                if self.throttle.admit() {
                    warn!("refused a message of a peer without a proper name: {error}");
                }
            }
            BrokerNote::Undelivered { to, purpose: Purpose::Dispatch, reason } => {
                if self.throttle.admit() {
                    warn!("a job did not reach worker {to}: {}", why(*reason));
                }
            }
            BrokerNote::Undelivered { to, purpose, reason } => {
                debug!("a message ({purpose:?}) did not reach {to}: {}", why(*reason));
            }
        }
    }
}

fn why(reason: Undelivered) -> &'static str {
    match reason {
        Undelivered::Unroutable => "it is not connected",
        Undelivered::Full => "its queue is full",
    }
}

fn statistics_row(worker: &WorkerView) -> Value {
    json!({
        "name": worker.name,
        "service": worker.service,
        "status": "alive",
        "holdtime_seconds": (worker.hold_time_left.as_secs_f64() * 10.0).round() / 10.0,
        "uptime_seconds": worker.age.as_secs(),
        "keepalives_sent": worker.keepalives_sent,
        "keepalives_received": worker.keepalives_received,
        "unanswered_seconds": worker.unanswered.map(|time| (time.as_secs_f64() * 10.0).round() / 10.0),
    })
}

/// Whether signs of life may lie unread in our own socket: after a stall of the process whoever is silent is so because of us.
#[derive(Default)]
struct Behind {
    since: Option<Instant>,
    last_turn: Option<Instant>,
}

impl Behind {
    /// After a turn of the loop. `more`: it did not read all that there is.
    fn is_excuse(&mut self, now: Instant, more: bool) -> bool {
        let stalled = self.last_turn.is_some_and(|last| now.saturating_duration_since(last) >= STALL);
        self.last_turn = Some(now);
        if !more {
            self.since = None;
            return false;
        }
        if stalled || self.since.is_none() {
            self.since = Some(now);
        }
        // Messages may never end; then they are no excuse any more.
        self.since.is_some_and(|since| now.saturating_duration_since(since) < BEHIND_MAX)
    }
}

/// Words that requests went on: each waits a moment to leave together with what the workers say, because each departure
/// wakes threads here and at the client.
#[derive(Default)]
struct Held {
    queue: VecDeque<Outgoing>,
    until: Option<Instant>,
}

impl Held {
    /// `true`: no more fit.
    fn add(&mut self, now: Instant, outgoing: Outgoing) -> bool {
        self.until.get_or_insert(now + COMPANY_WAIT);
        self.queue.push_back(outgoing);
        self.queue.len() >= HELD_MAX
    }

    /// A result says more than the word that its request went on.
    fn withdraw(&mut self, client: &Identity, job: &JobId) {
        self.queue.retain(|outgoing| outgoing.until_result.as_ref() != Some(job) || outgoing.to != *client);
        if self.queue.is_empty() {
            self.until = None;
        }
    }

    fn take(&mut self) -> Option<Outgoing> {
        let next = self.queue.pop_front();
        if next.is_none() {
            self.until = None;
        }
        next
    }

    fn is_due(&self, now: Instant) -> bool {
        self.until.is_some_and(|until| until <= now)
    }

    fn deadline(&self) -> Option<Instant> {
        self.until
    }
}
