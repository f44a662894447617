//! The loop that owns a worker's socket.

use std::collections::{HashMap, HashSet};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use norfab_jobs::{Confirmation, OperationError, StoreError, WorkerStore, spawn_worker};
use norfab_protocol::frame::Frames;
use norfab_protocol::worker::{Abandoned, Class, Ending, StoreFailure, Worker, WorkerNote, WorkerOutput, WorkerToken};
use norfab_protocol::{EventType, Identity, JobId, TaskName};
use norfab_service::{CancelReason, TaskMessage, TaskPort};
use norfab_transport::{DealerLink, LinkError};
use serde_json::{Value, json};
use tokio::sync::{mpsc, oneshot, watch};
use tracing::{debug, error, info, warn};

use super::begun::BegunTasks;
use super::loads::{Load, Loaded, Loads};
use super::stopping::Stopping;
use super::storing::stored;
use super::tasks::{self, Runner};
use super::view::View;
use super::{RESULT_BYTES_LIMIT, WorkerOptions};
use crate::StartError;
use crate::clock::{SystemClock, TIMEOUT_MAX};
use crate::inbox::{Ahead, Confirmer, Inbox, Submitted, whole};
use crate::outbox::Outbox;
use crate::process::ProcessFigures;
use crate::queue::{Place, Places, QueueSender};
use crate::status::{LinkState, Standing, TellProblem};
use crate::storing::{StoreQuery, Storing, promptly};
use crate::throttle::{LOGGED_REFUSALS, Throttle};
use crate::turn::{Owner, Turn};

/// Messages and commands that one turn of the loop takes before it looks at everything else.
const TURN_MESSAGES: usize = 256;

/// How long what was said last has to leave after the loop has ended.
const LINGER: Duration = Duration::from_secs(2);

/// What others ask of the owner.
pub(super) enum WorkerCommand {
    /// A task speaks. The place is given back when the message has left.
    Task { job: JobId, message: TaskMessage, place: Place },
    /// A task has ended.
    Finished { job: JobId, ending: Ending, reply: bytes::Bytes, event: bytes::Bytes },
    /// A task that has not begun as the worker stops: the next process runs it.
    Left { job: JobId },
    /// Tell the statistics.
    Stats { answer: oneshot::Sender<Value> },
    /// Run a query on the store.
    Query(StoreQuery<dyn WorkerStore>),
    /// End.
    Stop { drain: Duration },
}

/// What the store's thread hands back.
pub(super) enum StoreAnswer {
    Confirmed(Confirmation<WorkerToken>),
    Loaded {
        load: Load,
        loaded: Loaded,
    },
    LookedUp {
        jobs: Vec<JobId>,
        question: JobId,
        client: Identity,
        stored: HashSet<JobId>,
    },
    /// What was asked for could not be read. Its client asks again.
    Unreadable {
        job: JobId,
        error: StoreError,
    },
    Pruned {
        more: bool,
    },
    /// The thread has ended, and nothing more is stored.
    Ended,
}

pub(super) struct Run {
    pub(super) machine: Worker,
    pub(super) link: Box<dyn DealerLink>,
    pub(super) storing: Storing<dyn WorkerStore, WorkerToken>,
    pub(super) loads: Loads,
    pub(super) outbox: Outbox,
    ahead: Ahead,
    commands: mpsc::Receiver<WorkerCommand>,
    places: Places,
    /// The place of the message that the machine is being given.
    place: Option<Place>,
    /// Places of messages whose store operations wait: while the store is behind, tasks wait too.
    pub(super) held: Vec<Place>,
    pub(super) inbox: Inbox<StoreAnswer>,
    store_ended: bool,
    pub(super) ports: HashMap<JobId, TaskPort>,
    /// Started jobs whose tasks have not begun as the worker stops, and which the next process runs. To the machine they run.
    pub(super) left: HashSet<JobId>,
    pub(super) runner: Arc<Runner>,
    state: watch::Sender<LinkState>,
    problem: TellProblem,
    pub(super) connected: bool,
    /// Whether it was connected and a warning said that it is not any more.
    lost: bool,
    was_connected: bool,
    standing: Standing,
    pub(super) stopping: Option<Stopping>,
    figures: ProcessFigures,
    statistics: Value,
    pub(super) throttle: Throttle,
    /// Where tasks are written down that begin.
    pub(super) begun_file: Option<PathBuf>,
    /// While jobs are read back: those whose tasks may have begun.
    pub(super) begun_before: Vec<JobId>,
}

impl Run {
    pub(super) fn new(
        options: WorkerOptions,
        sender: QueueSender<WorkerCommand>,
        places: Places,
        commands: mpsc::Receiver<WorkerCommand>,
        inbox: Inbox<StoreAnswer>,
        state: watch::Sender<LinkState>,
    ) -> Result<Self, StartError> {
        let now = SystemClock::now();
        let identity = options.config.identity.clone();
        let confirmer = Confirmer::new(inbox.clone(), StoreAnswer::Ended);
        let name = super::thread_name("s", identity.as_str());
        let writer = spawn_worker(&name, promptly(options.store), move |confirmations| {
            confirmer.confirm(confirmations.into_iter().map(StoreAnswer::Confirmed));
        })?;
        let storing = Storing::new(format!("worker {identity}"), writer, now);
        let statistics = json!({
            "service": options.config.service,
            "broker": options.endpoint,
            "max_concurrent_jobs": options.config.max_concurrent_jobs,
        });
        let view = View {
            identity: identity.clone(),
            service: options.config.service.clone(),
            commands: sender.clone(),
            inventory: options.inventory,
            status: options.status,
            fetched_files_dir: options.fetched_files_dir,
            logs: options.logs,
            endpoint: options.endpoint,
        };
        let runner = Runner {
            identity,
            service: options.service,
            commands: sender,
            places: places.clone(),
            view: Arc::new(view),
            runtime: options.runtime,
            result_bytes_max: options.result_bytes_max.min(RESULT_BYTES_LIMIT),
            begun: BegunTasks::default(),
        };
        Ok(Self {
            machine: Worker::new(options.config, now),
            link: options.link,
            storing,
            loads: Loads::default(),
            outbox: Outbox::default(),
            ahead: Ahead::default(),
            commands,
            places,
            place: None,
            held: Vec::new(),
            inbox,
            store_ended: false,
            ports: HashMap::new(),
            left: HashSet::new(),
            runner: Arc::new(runner),
            state,
            problem: options.problem,
            connected: false,
            lost: false,
            was_connected: false,
            standing: Standing::default(),
            stopping: None,
            figures: ProcessFigures::default(),
            statistics,
            throttle: Throttle::new(LOGGED_REFUSALS),
            begun_file: options.begun_file,
            begun_before: Vec::new(),
        })
    }

    pub(super) fn run(mut self) {
        let span = norfab_logs::role_span(norfab_logs::Role::Worker, self.runner.identity.as_str());
        let _entered = span.enter();
        match self.restore().and_then(|()| self.turns()) {
            Ok(()) => info!("worker {} stopped", self.runner.identity),
            Err(error) => error!("worker {} lost its link: {error}", self.runner.identity),
        }
        self.commands.close();
        for port in self.ports.values() {
            port.cancel(CancelReason::WorkerStops);
        }
        // Ends of jobs that came last are stored, so that the next process does not take them for lost.
        while let Ok(command) = self.commands.try_recv() {
            if matches!(command, WorkerCommand::Finished { .. }) {
                self.command(command);
                if self.perform().is_err() {
                    break;
                }
            }
        }
        self.end_cancelled();
        self.machine.store_last_ends();
        // A link that is broken was told.
        drop(self.perform());
        // The last words leave before the disk is waited for. A link that is broken has nothing to say.
        self.link.wait(Some(Duration::ZERO), false).ok();
        self.storing.close();
        self.link.close(LINGER);
    }

    /// See [`Owner::turn`].
    fn take_turn(&mut self) -> Result<Turn, LinkError> {
        let mut again = false;
        self.statuses();
        for answer in self.inbox.take() {
            self.store_answer(answer);
        }
        // While the store or the link is behind, nothing more of the broker is looked at: it would only add to what waits.
        // Commands are always taken, ends of jobs and the order to stop among them; tasks have their places.
        let gated = self.is_gated();
        if gated {
            self.ahead.fill(&mut *self.link)?;
            // Where the link is behind and holds more than can be read ahead, the hold time is what tells of a broker that is
            // gone.
            if self.is_store_behind() || !self.ahead.is_full() {
                self.machine.not_listening(SystemClock::now());
            }
        } else {
            again |= self.receive()?;
        }
        again |= self.take_commands();
        let now = SystemClock::now();
        if self.machine.next_deadline().is_some_and(|deadline| deadline <= now) {
            self.machine.timeout(now);
            self.perform()?;
        }
        let inbox = self.inbox.clone();
        self.storing.prune(now, move |more| inbox.push([StoreAnswer::Pruned { more }]));
        let stored = self.storing.gather(now);
        if self.storing.is_empty() {
            self.held.clear();
        }
        if stored == Submitted::Closed || self.store_ended {
            error!("worker {}: its store has ended, and it does too", self.runner.identity);
            return Ok(Turn::End);
        }
        self.outbox.flush(now, &mut *self.link)?;
        self.read_loads();
        if let Some(end) = self.stop_step()? {
            return Ok(end);
        }
        if again || (gated && !self.is_gated()) {
            return Ok(Turn::Again);
        }
        if gated {
            return Ok(Turn::Pause);
        }
        let stopping = self.stopping.as_ref().map(|stopping| stopping.aborted_by.unwrap_or(stopping.drained_by));
        let deadline =
            [self.machine.next_deadline(), self.storing.deadline(now, stored), self.outbox.deadline(), stopping];
        let deadline = deadline.into_iter().flatten().min();
        Ok(Turn::Wait(deadline.map(|deadline| deadline.saturating_duration_since(SystemClock::now()))))
    }

    /// What waits for a connection is no reason not to make one.
    fn is_gated(&self) -> bool {
        self.is_store_behind() || (self.connected && self.outbox.is_high())
    }

    fn is_store_behind(&self) -> bool {
        self.storing.is_behind()
    }

    fn statuses(&mut self) {
        while let Some(status) = self.link.next_status() {
            let Some(state) = LinkState::of(status) else { continue };
            // Each try ends the same way: once is enough.
            let is_new = state != *self.state.borrow();
            match (&state, is_new.then(|| (self.problem)(&state)).flatten()) {
                _ if !is_new => {}
                // As loud as the loss: who has read of that waits for this.
                (LinkState::Connected, _) if self.lost => {
                    warn!("worker {} is connected again", self.runner.identity);
                }
                (LinkState::Connected, _) => info!("worker {} is connected", self.runner.identity),
                (_, Some(problem)) => {
                    warn!("worker {}: {problem}", self.runner.identity);
                    // Also after a connection that the worker ended itself, as its broker said good-bye.
                    self.lost |= self.was_connected;
                }
                (_, None) => {}
            }
            self.lost = state != LinkState::Connected && (self.lost || self.connected);
            if state == LinkState::Connected {
                self.standing.connected(SystemClock::now());
            } else if let Some(why) = self.standing.lost(SystemClock::now(), &mut *self.link) {
                warn!("worker {}: {why}", self.runner.identity);
            }
            self.connected = state == LinkState::Connected;
            self.was_connected |= self.connected;
            if !self.connected {
                self.outbox.lost();
                self.machine.disconnected();
            } else {
                self.machine.connected(SystemClock::now());
                if let Err(error) = self.perform() {
                    error!("worker {}: {error}", self.runner.identity);
                }
            }
            self.state.send_replace(state);
        }
    }

    fn receive(&mut self) -> Result<bool, LinkError> {
        for _ in 0..TURN_MESSAGES {
            let Some(received) = self.ahead.next(&mut *self.link)? else { return Ok(false) };
            self.machine.message(SystemClock::now(), &whole(received));
            self.perform()?;
        }
        Ok(true)
    }

    pub(super) fn take_commands(&mut self) -> bool {
        for _ in 0..TURN_MESSAGES {
            let Ok(command) = self.commands.try_recv() else { return false };
            self.command(command);
            if let Err(error) = self.perform() {
                error!("worker {}: {error}", self.runner.identity);
            }
        }
        true
    }

    fn command(&mut self, command: WorkerCommand) {
        match command {
            WorkerCommand::Task { job, message, place } => {
                self.place = Some(place);
                self.task_message(&job, message);
            }
            WorkerCommand::Finished { job, ending, reply, event } => {
                self.ports.remove(&job);
                self.machine.finished(SystemClock::now(), &job, ending, reply, event);
            }
            WorkerCommand::Left { job } => self.leave(job),
            WorkerCommand::Stats { answer } => {
                // Who asked may have gone.
                drop(answer.send(self.statistics()));
            }
            WorkerCommand::Query(query) => self.storing.query(query),
            WorkerCommand::Stop { drain } => {
                if self.stopping.is_none() {
                    self.machine.stop();
                    let drained_by = SystemClock::now() + drain.min(TIMEOUT_MAX);
                    self.stopping = Some(Stopping { drained_by, aborted_by: None, said_goodbye: false });
                }
            }
        }
    }

    fn task_message(&mut self, job: &JobId, message: TaskMessage) {
        let taken = match message {
            TaskMessage::Event(event) => {
                let question = match event.event_type {
                    EventType::InputRequest => event.input_request(),
                    EventType::Progress | EventType::ResultReady | EventType::InputResponse => None,
                };
                let body = norfab_protocol::body::encode(&*event);
                let answered = event.input_response_id();
                self.machine.event(job, event.event_type, question, answered, body)
            }
            TaskMessage::Stream(bytes) => self.machine.stream(job, bytes),
        };
        if let Err(reason) = taken {
            self.place = None;
            debug!("worker {}: a message of job {job} was not sent: {reason}", self.runner.identity);
        }
    }

    fn store_answer(&mut self, answer: StoreAnswer) {
        let now = SystemClock::now();
        match answer {
            StoreAnswer::Confirmed(Confirmation { token, outcome }) => {
                if let WorkerToken::Finish(job) = &token {
                    self.runner.begun.end_confirmed(job, &outcome);
                }
                let outcome = outcome.map_err(|error| match error {
                    OperationError::Duplicate { .. } => StoreFailure::Duplicate,
                    OperationError::NotStored(error) => StoreFailure::Failed(error.to_string()),
                    OperationError::GivenUp(error) => StoreFailure::GivenUp(error.to_string()),
                    error => StoreFailure::Refused(error.to_string()),
                });
                self.machine.stored(now, token, outcome);
            }
            StoreAnswer::Loaded { load, loaded } => self.loaded(load, loaded),
            StoreAnswer::LookedUp { jobs, question, client, stored } => {
                self.machine.looked_up(question, client, jobs, &stored);
            }
            StoreAnswer::Unreadable { job, error } => self.is_unreadable(&job, &error),
            StoreAnswer::Pruned { more } => self.storing.pruned(now, more),
            StoreAnswer::Ended => self.store_ended = true,
        }
        if let Err(error) = self.perform() {
            error!("worker {}: {error}", self.runner.identity);
        }
    }

    pub(super) fn is_unreadable(&mut self, job: &JobId, error: &StoreError) {
        if self.throttle.admit() {
            error!(job_uuid = %job, "worker {}: job {job} cannot be read: {error}", self.runner.identity);
        }
    }

    /// Does what the machine wants, in its order.
    pub(super) fn perform(&mut self) -> Result<(), LinkError> {
        while let Some(output) = self.machine.poll_output() {
            match output {
                WorkerOutput::Send(frames, class) => self.send(frames, class, None),
                WorkerOutput::Announce(job, frames) => self.send(frames, Class::Unhurried, Some(job)),
                WorkerOutput::Withdraw(job) => self.outbox.withdraw(&job),
                WorkerOutput::Store(operation, token) => self.storing.push(stored(operation), token),
                WorkerOutput::Load { job, client, asked } => self.load(job, client, asked),
                WorkerOutput::LookUp { jobs, question, client } => self.look_up(jobs, question, client),
                WorkerOutput::Start(start) => {
                    let body = tasks::starting_event(&self.runner, &start.job, &start.request.task);
                    if let Err(reason) = self.machine.announce_start(&start.job, body) {
                        debug!(
                            "worker {}: job {} said nothing at its start: {reason}",
                            self.runner.identity, start.job
                        );
                    }
                    let port = tasks::start(&self.runner, start, self.is_aborting());
                    self.ports.insert(port.0, port.1);
                }
                WorkerOutput::Abandon { job, task, why } => self.abandon(&job, &task, &why),
                WorkerOutput::Deliver { job, put } => {
                    if let Some(port) = self.ports.get(&job)
                        && let Err(reason) = port.deliver(put)
                    {
                        debug!("worker {}: input for job {job} was not taken: {reason}", self.runner.identity);
                    }
                }
                WorkerOutput::Cancel { job, task, why } => {
                    self.announce_cancel(&job, &task, &why);
                    self.cancel_left(&job, &task, &why);
                    if let Some(port) = self.ports.get(&job) {
                        port.cancel(CancelReason::Requested(tasks::reason(&why)));
                    }
                }
                WorkerOutput::Reconnect => {
                    if self.connected {
                        self.outbox.leave(&mut *self.link)?;
                    }
                    self.connected = false;
                    self.link.reconnect()?;
                }
                WorkerOutput::Note(note) => self.note(&note),
            }
        }
        Ok(())
    }

    fn send(&mut self, frames: Frames, class: Class, job: Option<JobId>) {
        if class == Class::Beat && !self.connected {
            return;
        }
        let mut place = if matches!(class, Class::Data | Class::Unhurried) { self.place.take() } else { None };
        if self.storing.is_behind() {
            self.held.extend(place.take());
        }
        self.outbox.push(SystemClock::now(), frames, class, job, place);
    }

    /// Tells the job's client that it was cancelled: that may have been somebody else.
    fn announce_cancel(&mut self, job: &JobId, task: &TaskName, why: &Abandoned) {
        let text = tasks::reason(why);
        info!(job_uuid = %job, "worker {}: job {job} is {text}", self.runner.identity);
        let body = tasks::cancelled_event(&self.runner, job, task, why, &text);
        if let Err(reason) = self.machine.announce_cancel(job, &text, body) {
            debug!("worker {}: that job {job} is cancelled was not told: {reason}", self.runner.identity);
        }
    }

    fn abandon(&mut self, job: &JobId, task: &TaskName, why: &Abandoned) {
        if matches!(why, Abandoned::Cancelled { .. }) {
            self.announce_cancel(job, task, why);
        }
        let (ending, reply, event) = tasks::abandoned(&self.runner, job, task, why);
        self.machine.finished(SystemClock::now(), job, ending, reply, event);
    }

    fn note(&mut self, note: &WorkerNote) {
        if matches!(note, WorkerNote::Refused(_) | WorkerNote::JobRefused { .. } | WorkerNote::StartNotStored { .. })
            && !self.throttle.admit()
        {
            return;
        }
        let worker = &self.runner.identity;
        match note {
            WorkerNote::BrokerSilent => {
                warn!("worker {worker}: the broker was silent for its hold time, connecting anew")
            }
            WorkerNote::BrokerAsked => info!("worker {worker}: the broker asks to register again"),
            WorkerNote::Refused(error) => warn!("worker {worker}: refused a message of the broker: {error}"),
            WorkerNote::JobRefused { job, reason } => {
                warn!(job_uuid = %job, "worker {worker}: refused job {job}: {reason}")
            }
            WorkerNote::StartNotStored { job, error } => {
                error!(job_uuid = %job, "worker {worker}: job {job} waits, that it starts could not be stored: {error}");
            }
            WorkerNote::ResultNotStored { job, error } => {
                error!(job_uuid = %job, "worker {worker}: the result of job {job} was sent but not stored: {error}");
            }
        }
    }

    /// The part of `get_stats` that only the owner knows; the view adds the rest.
    fn statistics(&mut self) -> Value {
        let now = SystemClock::now();
        let mut value = self.statistics.clone();
        let counters = self.machine.counters();
        value["process"] = self.figures.read(now);
        value["messaging"] = json!({
            "sent": counters.sent,
            "received": counters.received,
            "events_received": 0,
            "send_failures": self.outbox.failures(),
            "receive_failures": counters.refused,
        });
        value["reconnects"] = counters.reconnects.into();
        let store = self.storing.statistics();
        value["store"] = json!({ "stored": store.stored, "refused": store.refused, "failed": store.failed });
        value["outbound_queue_depth"] = self.outbox.len().max(self.places.taken()).into();
        value["running_jobs"] = self.machine.running().into();
        value["keepalives_sent"] = self.machine.keepalive().sent().into();
        value["keepalives_received"] = self.machine.keepalive().beats_received().into();
        value
    }
}

impl Owner for Run {
    fn turn(&mut self) -> Result<Turn, LinkError> {
        self.take_turn()
    }

    fn link(&mut self) -> &mut dyn DealerLink {
        &mut *self.link
    }

    fn is_connected(&self) -> bool {
        self.connected
    }

    fn wants_to_send(&self) -> bool {
        self.outbox.is_due()
    }
}
