//! The loop that owns a client's socket.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use norfab_jobs::writer::{GATHER_OPERATIONS, GATHER_TIME};
use norfab_jobs::{
    ClientJob, ClientOperation, ClientState, ClientStore, ClientWriter, Confirmation, QueryError, spawn_client,
};
use norfab_protocol::body::{InputResponse, ManagementBody};
use norfab_protocol::client::{
    Client, ClientNote, ClientOutput, ClientStoreOperation, ClientToken, JobRequest, JobState, JobUpdate,
    ManagementFailure, Progress, RestoredClientJob, SILENCE_MAX,
};
use norfab_protocol::frame::Status;
use norfab_protocol::target::Target;
use norfab_protocol::worker::{Class, TIMEOUT_SECONDS_MAX};
use norfab_protocol::{Identity, JobId, ServiceName};
use norfab_transport::{DealerLink, LinkError};
use serde_json::{Value, json};
use tokio::sync::{mpsc, oneshot, watch};
use tracing::{debug, error, info, warn};

use super::ClientOptions;
use super::mailbox::Mailbox;
use crate::StartError;
use crate::clock::SystemClock;
use crate::inbox::{Ahead, Confirmer, Inbox, Submitted, whole};
use crate::outbox::Outbox;
use crate::process::ProcessFigures;
use crate::pruning::{self, Pruning};
use crate::queue::Place;
use crate::status::LinkState;
use crate::throttle::{LOGGED_REFUSALS, StoreFailures, Throttle};
use crate::worker::thread_name;

/// Messages and commands that one turn of the loop takes before it looks at everything else.
const TURN_MESSAGES: usize = 256;

/// Store operations that may wait for the writer's queue before nothing more is taken in.
const OPERATIONS_HIGH: usize = 4096;

/// How soon the writer's full queue is tried again. Only while it is full: an idle loop does not tick.
const STORE_RETRY: Duration = Duration::from_millis(5);

/// How long what was said last has to leave after the loop has ended.
const LINGER: Duration = Duration::from_secs(2);

/// Jobs that are read back at once at start.
const RESTORE_PAGE: usize = 1000;

/// The answer to a management request.
pub(super) type ManagementReply = Result<(Status, bytes::Bytes), ManagementFailure>;

/// Runs on the store's thread and delivers its answer itself; or is told why it does not run.
pub(super) type StoreQuery = Box<dyn FnOnce(Result<&mut (dyn ClientStore + 'static), QueryError>) + Send>;

/// What others ask of the owner.
pub(super) enum ClientCommand {
    Submit {
        request: JobRequest,
        mailbox: Arc<Mailbox>,
        place: Place,
    },
    Watch {
        job: JobId,
        mailbox: Arc<Mailbox>,
        known: oneshot::Sender<bool>,
    },
    Answer {
        job: JobId,
        worker: Option<Identity>,
        response: InputResponse,
    },
    Credit {
        job: JobId,
        worker: Option<Identity>,
        offset: u64,
    },
    Cancel {
        job: JobId,
        by: String,
        reason: Option<String>,
    },
    Management {
        id: JobId,
        service: ServiceName,
        request: ManagementBody,
        deadline: Instant,
        answer: oneshot::Sender<ManagementReply>,
    },
    Query(StoreQuery),
    Stats {
        answer: oneshot::Sender<Value>,
    },
    Stop {
        flush_by: Instant,
    },
}

/// What the store's thread hands back.
pub(super) enum StoreAnswer {
    Confirmed(Confirmation<ClientToken>),
    Pruned {
        more: bool,
    },
    /// The thread has ended, and nothing more is stored.
    Ended,
}

pub(super) struct Run {
    identity: Identity,
    machine: Client,
    link: Box<dyn DealerLink>,
    writer: ClientWriter<ClientToken>,
    operations: Vec<(ClientOperation, Option<ClientToken>)>,
    /// Until when operations that nobody waits for gather here.
    gather_until: Option<Instant>,
    outbox: Outbox,
    ahead: Ahead,
    commands: mpsc::Receiver<ClientCommand>,
    inbox: Inbox<StoreAnswer>,
    store_ended: bool,
    mailboxes: HashMap<JobId, Vec<Arc<Mailbox>>>,
    /// Places of jobs that the store has not confirmed: submissions do not gather in memory while it is behind.
    unconfirmed: HashMap<JobId, Place>,
    management: HashMap<JobId, oneshot::Sender<ManagementReply>>,
    state: watch::Sender<LinkState>,
    connected: bool,
    was_connected: bool,
    figures: ProcessFigures,
    flush_by: Option<Instant>,
    /// The machine wants another connection.
    reconnect: bool,
    pruning: Pruning,
    throttle: Throttle,
    store_failures: StoreFailures,
}

impl Run {
    pub(super) fn new(
        options: ClientOptions,
        commands: mpsc::Receiver<ClientCommand>,
        inbox: Inbox<StoreAnswer>,
        state: watch::Sender<LinkState>,
    ) -> Result<Self, StartError> {
        let confirmer = Confirmer::new(inbox.clone(), StoreAnswer::Ended);
        let name = thread_name("s", options.identity.as_str());
        let writer = spawn_client(&name, options.store, move |confirmations| {
            confirmer.confirm(confirmations.into_iter().map(StoreAnswer::Confirmed));
        })?;
        if let Some(aside) = writer.set_aside() {
            warn!(client = %options.identity, "{aside}");
        }
        let mut machine = Client::new(options.config);
        // The link says when it is connected.
        machine.disconnected();
        Ok(Self {
            identity: options.identity,
            machine,
            link: options.link,
            writer,
            operations: Vec::new(),
            gather_until: None,
            outbox: Outbox::default(),
            ahead: Ahead::default(),
            commands,
            inbox,
            store_ended: false,
            mailboxes: HashMap::new(),
            unconfirmed: HashMap::new(),
            management: HashMap::new(),
            state,
            connected: false,
            was_connected: false,
            figures: ProcessFigures::default(),
            flush_by: None,
            reconnect: false,
            pruning: Pruning::new(SystemClock::now()),
            throttle: Throttle::new(LOGGED_REFUSALS),
            store_failures: StoreFailures::default(),
        })
    }

    pub(super) fn run(mut self) {
        let span = norfab_logs::role_span(norfab_logs::Role::Client, self.identity.as_str());
        let _entered = span.enter();
        self.restore();
        let ended = loop {
            match self.turn() {
                Ok(Turn::Again) => {}
                Ok(Turn::Wait(timeout)) => {
                    if let Err(error) = self.link.wait(timeout, self.outbox.is_due() && self.connected) {
                        break Err(error);
                    }
                }
                // Overload, not idleness: what holds us up is looked at again soon, and the link is readable meanwhile.
                Ok(Turn::Pause) if self.connected => std::thread::park_timeout(STORE_RETRY),
                // It is not without a connection, and only who waits for one gets one.
                Ok(Turn::Pause) => {
                    if let Err(error) = self.link.wait(Some(STORE_RETRY), false) {
                        break Err(error);
                    }
                }
                Ok(Turn::End) => break Ok(()),
                Err(error) => break Err(error),
            }
        };
        if let Err(error) = ended {
            error!("client {} lost its link: {error}", self.identity);
        }
        self.commands.close();
        // Who handed something over a moment ago must not wait for ever.
        while let Ok(command) = self.commands.try_recv() {
            if let ClientCommand::Submit { mailbox, .. } | ClientCommand::Watch { mailbox, .. } = command {
                mailbox.close();
            }
        }
        for mailbox in self.mailboxes.values().flatten() {
            mailbox.close();
        }
        while self.submit_operations() == Submitted::Later {
            // The writer's queue is full and it works on it; what waits here must not get lost at the end.
            std::thread::park_timeout(STORE_RETRY);
        }
        self.writer.close();
        self.link.close(LINGER);
    }

    /// Looks once at everything that may have something to do.
    fn turn(&mut self) -> Result<Turn, LinkError> {
        let mut again = false;
        while let Some(status) = self.link.next_status() {
            let Some(state) = LinkState::of(status) else { continue };
            match state.problem() {
                // Each try ends the same way: once is enough.
                _ if state == *self.state.borrow() => {}
                // Who starts a client waits for its first connection and tells why there is none.
                Some(problem) if !self.was_connected => info!("client {}: {problem}", self.identity),
                Some(problem) => warn!("client {}: {problem}", self.identity),
                None => {}
            }
            self.connected = state == LinkState::Connected;
            self.was_connected |= self.connected;
            if self.connected {
                self.machine.connected(SystemClock::now());
            } else {
                self.machine.disconnected();
            }
            self.perform();
            self.state.send_replace(state);
        }
        for answer in self.inbox.take() {
            match answer {
                StoreAnswer::Confirmed(Confirmation { token, outcome }) => {
                    self.unconfirmed.remove(&token.0);
                    self.machine.stored(SystemClock::now(), token, outcome.map_err(|error| error.to_string()));
                    self.perform();
                }
                StoreAnswer::Pruned { more } => self.pruning.ended(SystemClock::now(), more),
                StoreAnswer::Ended => self.store_ended = true,
            }
        }
        // While the store is behind, nothing more of the broker is looked at; commands are always taken, and submissions have
        // their places.
        let gated = self.operations.len() >= OPERATIONS_HIGH;
        if gated {
            self.machine.not_listening();
            self.ahead.fill(&mut *self.link)?;
        } else {
            again |= self.receive()?;
        }
        again |= self.take_commands();
        let now = SystemClock::now();
        if self.machine.next_deadline().is_some_and(|deadline| deadline <= now) {
            self.machine.timeout(now);
            self.perform();
        }
        if std::mem::take(&mut self.reconnect) {
            self.connected = false;
            self.link.reconnect()?;
        }
        if self.pruning.take(now) {
            self.prune();
        }
        let stored = self.gather_operations(now);
        if stored == Submitted::Closed || self.store_ended {
            error!("client {}: its store has ended, and it does too", self.identity);
            return Ok(Turn::End);
        }
        if let Some(failed) = self.store_failures.news(now, || self.writer.statistics()) {
            error!("client {}: {failed}", self.identity);
        }
        self.outbox.flush(now, &mut *self.link)?;
        if let Some(flush_by) = self.flush_by
            && ((self.machine.unconfirmed() == 0 && (self.outbox.is_empty() || !self.connected)) || now >= flush_by)
        {
            return Ok(Turn::End);
        }
        if again || (gated && self.operations.len() < OPERATIONS_HIGH) {
            return Ok(Turn::Again);
        }
        if gated {
            return Ok(Turn::Pause);
        }
        let retry = (stored == Submitted::Later).then_some(now + STORE_RETRY);
        let deadline = [self.machine.next_deadline(), retry, self.flush_by, self.pruning.deadline(), self.gather_until]
            .into_iter()
            .flatten()
            .min();
        Ok(Turn::Wait(deadline.map(|deadline| deadline.saturating_duration_since(SystemClock::now()))))
    }

    fn receive(&mut self) -> Result<bool, LinkError> {
        for _ in 0..TURN_MESSAGES {
            let Some(received) = self.ahead.next(&mut *self.link)? else { return Ok(false) };
            self.machine.message(SystemClock::now(), &whole(received));
            self.perform();
        }
        Ok(true)
    }

    fn take_commands(&mut self) -> bool {
        for _ in 0..TURN_MESSAGES {
            let command = match self.commands.try_recv() {
                Ok(command) => command,
                Err(mpsc::error::TryRecvError::Empty) => return false,
                Err(mpsc::error::TryRecvError::Disconnected) => {
                    // Nobody holds the client any more.
                    self.flush_by.get_or_insert_with(|| SystemClock::now() + LINGER);
                    return false;
                }
            };
            self.command(command);
            self.perform();
        }
        true
    }

    fn command(&mut self, command: ClientCommand) {
        match command {
            ClientCommand::Submit { request, mailbox, place } => {
                if self.flush_by.is_some() || self.machine.state(&request.job).is_some() {
                    // Refused while stopping, and where two jobs would share an id.
                    mailbox.close();
                    return;
                }
                self.mailboxes.insert(request.job.clone(), vec![mailbox]);
                self.unconfirmed.insert(request.job.clone(), place);
                self.machine.submit(request);
            }
            ClientCommand::Watch { job, mailbox, known } => {
                let active = self.machine.state(&job).is_some();
                if active {
                    for (worker, question) in self.machine.open_questions(&job) {
                        mailbox.put(JobUpdate::Question(worker.clone(), question.clone()));
                    }
                    self.mailboxes.entry(job).or_default().push(mailbox);
                } else {
                    mailbox.close();
                }
                // Who asked may have gone.
                known.send(active).ok();
            }
            ClientCommand::Answer { job, worker, response } => self.machine.answer(&job, worker.as_ref(), &response),
            ClientCommand::Credit { job, worker, offset } => self.machine.credit(&job, worker.as_ref(), offset),
            ClientCommand::Cancel { job, by, reason } => self.machine.cancel(SystemClock::now(), &job, &by, reason),
            ClientCommand::Management { id, service, request, deadline, answer } => {
                self.management.insert(id.clone(), answer);
                self.machine.management(id, service, &request, deadline);
            }
            ClientCommand::Query(query) => {
                self.submit_operations();
                match self.writer.accepts_query() {
                    Ok(()) => {
                        if let Err(error) = self.writer.try_query(move |store| query(Ok(store))) {
                            warn!("client {}: {error}", self.identity);
                        }
                    }
                    Err(error) => query(Err(error)),
                }
            }
            ClientCommand::Stats { answer } => {
                let counters = self.machine.counters().clone();
                let value = json!({
                    "name": self.identity,
                    "role": "client",
                    "process": self.figures.read(SystemClock::now()),
                    "messaging": {
                        "sent": counters.sent,
                        "received": counters.received,
                        "events_received": counters.events,
                        "send_failures": self.outbox.failures(),
                        "receive_failures": counters.refused,
                    },
                    "unfinished_jobs": self.machine.unfinished(),
                    "outbound_queue_depth": self.outbox.len(),
                });
                // Who asked may have gone.
                drop(answer.send(value));
            }
            ClientCommand::Stop { flush_by } => self.flush_by = Some(flush_by),
        }
    }

    /// Does what the machine wants, in its order.
    fn perform(&mut self) {
        while let Some(output) = self.machine.poll_output() {
            match output {
                ClientOutput::Send(frames, job) => self.outbox.push(SystemClock::now(), frames, Class::Data, job, None),
                ClientOutput::Forget(job) => self.outbox.forget(&job),
                ClientOutput::Store(operation, token) => self.operations.push((stored(operation), token)),
                ClientOutput::Update(job, update) => {
                    let end = matches!(update, JobUpdate::Finished(_));
                    if let Some(mailboxes) = self.mailboxes.get_mut(&job) {
                        mailboxes.retain(|mailbox| mailbox.put(update.clone()));
                    }
                    if end {
                        for mailbox in self.mailboxes.remove(&job).into_iter().flatten() {
                            mailbox.close();
                        }
                    }
                }
                ClientOutput::Management(id, reply) => {
                    if let Some(answer) = self.management.remove(&id) {
                        // Who asked may have gone.
                        drop(answer.send(reply));
                    }
                }
                ClientOutput::Reconnect => self.reconnect = true,
                ClientOutput::Note(note) => self.note(&note),
            }
        }
    }

    fn note(&mut self, note: &ClientNote) {
        let throttled =
            matches!(note, ClientNote::Refused(_) | ClientNote::UnexpectedWorker(..) | ClientNote::WorkerAway(_));
        if throttled && !self.throttle.admit() {
            return;
        }
        let client = &self.identity;
        match note {
            ClientNote::BrokerSilent => {
                warn!("client {client}: the broker owed an answer for {} s, connecting anew", SILENCE_MAX.as_secs());
            }
            ClientNote::Refused(error) => warn!("client {client}: refused a message of the broker: {error}"),
            ClientNote::UnknownJob(job) => debug!("client {client}: a message about job {job}, which is not active"),
            ClientNote::UnexpectedWorker(job, worker) => {
                warn!("client {client}: worker {worker} answered for job {job}, which it was not given");
            }
            ClientNote::WorkerAway(job) => info!("client {client}: a worker of job {job} is away"),
        }
    }

    /// Hands operations over if somebody waits for one of them, or they have gathered for a while: each time costs a
    /// wake-up of the store's thread.
    fn gather_operations(&mut self, now: Instant) -> Submitted {
        if self.operations.iter().all(|(_, token)| token.is_none())
            && self.operations.len() < GATHER_OPERATIONS
            && self.gather_until.is_none_or(|until| now < until)
        {
            if !self.operations.is_empty() {
                self.gather_until.get_or_insert(now + GATHER_TIME);
            }
            return Submitted::Now;
        }
        self.submit_operations()
    }

    /// Hands gathered operations to the store's thread.
    fn submit_operations(&mut self) -> Submitted {
        self.gather_until = None;
        if self.operations.is_empty() {
            return Submitted::Now;
        }
        self.store_failures.submitted = true;
        match self.writer.try_submit(std::mem::take(&mut self.operations)) {
            Ok(()) => Submitted::Now,
            Err(norfab_jobs::SubmitError::Closed(lost)) => {
                error!("client {}: {} changes of jobs are not stored: the writer has ended", self.identity, lost.len());
                Submitted::Closed
            }
            Err(error) => {
                self.operations = error.into_operations();
                Submitted::Later
            }
        }
    }

    /// Forgets a bounded number of old jobs.
    fn prune(&mut self) {
        let inbox = self.inbox.clone();
        let asked = self.writer.try_query(move |store| {
            inbox.push([StoreAnswer::Pruned { more: pruning::step(store) }]);
        });
        if asked.is_err() {
            self.pruning.ended(SystemClock::now(), false);
        }
    }

    /// Reads back what the last process left unfinished.
    fn restore(&mut self) {
        let mut after = None;
        loop {
            let page = after.clone();
            let asked = self.writer.try_ask(move |store| store.unfinished(page, RESTORE_PAGE));
            let jobs = match asked.map(|answer| answer.recv()) {
                Ok(Ok(Ok(jobs))) => jobs,
                Ok(Ok(Err(error))) => {
                    error!("client {}: unfinished jobs cannot be read: {error}", self.identity);
                    return;
                }
                Ok(Err(_)) | Err(_) => {
                    error!("client {}: unfinished jobs cannot be read: the store has ended", self.identity);
                    return;
                }
            };
            let Some(last) = jobs.last() else { return };
            after = Some((last.submitted, last.id.clone()));
            for job in jobs {
                self.machine.restore(SystemClock::now(), restored(job));
                self.perform();
            }
        }
    }
}

enum Turn {
    Again,
    Pause,
    Wait(Option<Duration>),
    End,
}

fn restored(job: ClientJob) -> RestoredClientJob {
    let left = (job.deadline - SystemClock::unix()).clamp(0.0, TIMEOUT_SECONDS_MAX as f64);
    RestoredClientJob {
        state: match job.state {
            ClientState::New => JobState::New,
            ClientState::Submitting => JobState::Submitting,
            ClientState::Dispatched => JobState::Dispatched,
            ClientState::Started => JobState::Started,
            ClientState::WaitingClientInput => JobState::Waiting,
            ClientState::Completed => JobState::Completed,
            ClientState::Failed => JobState::Failed,
            ClientState::Stale => JobState::Stale,
            ClientState::Cancelled => JobState::Cancelled,
        },
        request: JobRequest {
            job: job.id,
            service: job.service,
            task: job.task,
            target: Target::parse(&job.target),
            body: job.body,
            timeout: Duration::from_secs(job.timeout),
            deadline: SystemClock::now() + Duration::from_secs_f64(left),
        },
        dispatched: job.dispatched,
        started: job.started,
        completed: job.completed,
    }
}

/// What the machine wants stored, in the store's words and with the wall time that only the store keeps.
fn stored(operation: ClientStoreOperation) -> ClientOperation {
    let at = SystemClock::unix();
    match operation {
        ClientStoreOperation::Insert(request) => {
            let left = request.deadline.saturating_duration_since(SystemClock::now());
            ClientOperation::Insert(ClientJob {
                id: request.job,
                service: request.service,
                task: request.task,
                target: request.target.as_str().to_owned(),
                body: request.body,
                timeout: request.timeout.as_secs(),
                submitted: at,
                deadline: at + left.as_secs_f64(),
                state: ClientState::New,
                dispatched: Vec::new(),
                started: Vec::new(),
                completed: Vec::new(),
                errors: Vec::new(),
                finished: None,
            })
        }
        ClientStoreOperation::Progress(Progress { job, state, dispatched, started, completed, errors }) => {
            let finished = state.is_final().then_some(at);
            let state = match state {
                JobState::New => ClientState::New,
                JobState::Submitting => ClientState::Submitting,
                JobState::Dispatched => ClientState::Dispatched,
                JobState::Started => ClientState::Started,
                JobState::Waiting => ClientState::WaitingClientInput,
                JobState::Completed => ClientState::Completed,
                JobState::Failed => ClientState::Failed,
                JobState::Stale => ClientState::Stale,
                JobState::Cancelled => ClientState::Cancelled,
            };
            ClientOperation::Progress { id: job, state, dispatched, started, completed, errors, finished }
        }
        ClientStoreOperation::Result { job, worker, payload } => ClientOperation::Result { id: job, worker, payload },
        ClientStoreOperation::Event { job, body } => ClientOperation::Event { id: job, body },
    }
}
