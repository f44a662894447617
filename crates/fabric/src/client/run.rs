//! The loop that owns a client's socket.

mod refill;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use norfab_jobs::{ClientStore, Confirmation, PAGE_BYTES_MAX, Page, PageEnd, StoreError, spawn_client};
use norfab_protocol::body::{InputResponse, ManagementBody};
use norfab_protocol::client::backlog::{Backlog, BacklogBounds, Held};
use norfab_protocol::client::{
    Client, ClientConfig, ClientNote, ClientOutput, ClientStoreOperation, ClientToken, JobRequest, JobUpdate, Lost,
    ManagementFailure, SILENCE_MAX,
};
use norfab_protocol::frame::{Command, Status};
use norfab_protocol::target::Target;
use norfab_protocol::worker::Class;
use norfab_protocol::{Identity, JobId, ServiceName};
use norfab_transport::{DealerLink, LinkError};
use serde_json::{Value, json};
use tokio::sync::{mpsc, oneshot, watch};
use tracing::{debug, error, info, warn};

use self::refill::{Earlier, Found, Reading, Waiting};
use super::ClientOptions;
use super::mailbox::Mailbox;
use super::storing::{restored, stored};
use crate::StartError;
use crate::clock::SystemClock;
use crate::inbox::{Ahead, Confirmer, Inbox, Submitted, whole};
use crate::outbox::Outbox;
use crate::process::ProcessFigures;
use crate::queue::Place;
use crate::status::{LinkState, Standing, TellProblem};
use crate::storing::{NoSpace, StoreQuery, Storing, promptly};
use crate::throttle::{LOGGED_REFUSALS, Throttle};
use crate::turn::{Owner, Turn};
use crate::worker::thread_name;

/// Messages and commands that one turn of the loop takes before it looks at everything else.
const TURN_MESSAGES: usize = 256;

/// What the machine holds: some kilobytes for each job, and more jobs than a broker and its workers have in hand at once; a few of
/// the largest messages, and what thousands of ordinary ones are.
const BACKLOG_BOUNDS: BacklogBounds =
    BacklogBounds { jobs_max: 4000, bytes_max: 64 << 20, page_jobs: REFILL_JOBS, page_bytes: PAGE_BYTES_MAX };

/// Jobs that are read back at once.
const REFILL_JOBS: usize = 500;

/// How long what was said last has to leave after the loop has ended.
const LINGER: Duration = Duration::from_secs(2);

/// The answer to a management request.
pub(super) type ManagementReply = Result<(Status, bytes::Bytes), ManagementFailure>;

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
        known: oneshot::Sender<Result<bool, StoreError>>,
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
    /// Content for the task of a job.
    Content {
        job: JobId,
        worker: Identity,
        body: bytes::Bytes,
    },
    Cancel {
        job: JobId,
        by: String,
        reason: Option<String>,
        /// Whether there is such an unfinished job.
        known: oneshot::Sender<Result<bool, StoreError>>,
    },
    /// Tells workers, and a client, that its job is cancelled.
    CancelElsewhere {
        client: Identity,
        job: JobId,
        service: ServiceName,
        target: Target,
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
    Query(StoreQuery<dyn ClientStore>),
    /// Workers that returned nothing yet.
    Missing {
        job: JobId,
        answer: oneshot::Sender<Vec<(Identity, Lost)>>,
    },
    Stats {
        answer: oneshot::Sender<Value>,
    },
    Stop {
        flush_by: Instant,
    },
}

fn cancel_text(by: &str, reason: Option<&str>) -> String {
    norfab_protocol::body::cancel_text(by, &SystemClock::ctime(), reason)
}

/// What the store's thread hands back.
pub(super) enum StoreAnswer {
    Confirmed(Confirmation<ClientToken>),
    Pruned {
        more: bool,
    },
    /// Jobs that wait in the database.
    Read(Reading, Found<Page<Waiting>>),
    /// A job that is perhaps one of them, and what is asked of it.
    Found(Box<Found<Option<Waiting>>>, Box<ClientCommand>),
    /// The thread has ended, and nothing more is stored.
    Ended,
}

pub(super) struct Run {
    identity: Identity,
    machine: Client,
    link: Box<dyn DealerLink>,
    storing: Storing<dyn ClientStore, ClientToken>,
    outbox: Outbox,
    ahead: Ahead,
    commands: mpsc::Receiver<ClientCommand>,
    inbox: Inbox<StoreAnswer>,
    store_ended: bool,
    mailboxes: HashMap<JobId, Vec<Arc<Mailbox>>>,
    /// How many mailboxes there were when those that nobody reads were last thrown away.
    mailboxes_swept: usize,
    backlog: Backlog<PageEnd>,
    /// Places of jobs that the store has not confirmed: submissions do not gather in memory while it is behind.
    unconfirmed: HashMap<JobId, Place>,
    management: HashMap<JobId, oneshot::Sender<ManagementReply>>,
    state: watch::Sender<LinkState>,
    problem: TellProblem,
    connected: bool,
    was_connected: bool,
    /// Whether a warning said that it is not connected any more.
    lost: bool,
    standing: Standing,
    figures: ProcessFigures,
    flush_by: Option<Instant>,
    /// The machine wants another connection.
    reconnect: bool,
    throttle: Throttle,
    /// When this process began.
    since: Instant,
    /// Unix seconds: jobs that were submitted before are those of a process before this one.
    began: f64,
    earlier: Earlier,
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
        let writer = spawn_client(&name, promptly(options.store), move |confirmations| {
            confirmer.confirm(confirmations.into_iter().map(StoreAnswer::Confirmed));
        })?;
        let storing = Storing::new(format!("client {}", options.identity), writer, SystemClock::now());
        let seed = fastrand::u64(..);
        let mut machine = Client::new(ClientConfig { seed, ..options.config });
        // The link says when it is connected.
        machine.disconnected();
        Ok(Self {
            identity: options.identity,
            machine,
            link: options.link,
            storing,
            outbox: Outbox::default(),
            ahead: Ahead::default(),
            commands,
            inbox,
            store_ended: false,
            mailboxes: HashMap::new(),
            mailboxes_swept: 0,
            backlog: Backlog::new(BACKLOG_BOUNDS),
            unconfirmed: HashMap::new(),
            management: HashMap::new(),
            state,
            problem: options.problem,
            connected: false,
            was_connected: false,
            lost: false,
            standing: Standing::default(),
            figures: ProcessFigures::default(),
            flush_by: None,
            reconnect: false,
            throttle: Throttle::new(LOGGED_REFUSALS),
            began: SystemClock::unix(),
            since: SystemClock::now(),
            earlier: Earlier::default(),
        })
    }

    pub(super) fn run(mut self) {
        let span = norfab_logs::role_span(norfab_logs::Role::Client, self.identity.as_str());
        let _entered = span.enter();
        self.restore();
        if let Err(error) = self.turns() {
            error!("client {} lost its link: {error}", self.identity);
        }
        self.commands.close();
        // Who handed something over a moment ago must not wait for ever.
        while let Ok(command) = self.commands.try_recv() {
            if let ClientCommand::Submit { mailbox, .. } | ClientCommand::Watch { mailbox, .. } = command {
                mailbox.close();
            }
        }
        // The last words leave before the disk is waited for. A link that is broken has nothing to say.
        self.link.wait(Some(Duration::ZERO), false).ok();
        self.storing.close();
        // What was stored in the last moment will be posted by the next client of this name: it was taken.
        for answer in self.inbox.take() {
            if let StoreAnswer::Confirmed(Confirmation { token, outcome: Ok(()) }) = answer {
                for mailbox in self.mailboxes.get(&token.0).into_iter().flatten() {
                    mailbox.put(JobUpdate::Stored);
                }
            }
        }
        for mailbox in self.mailboxes.values().flatten() {
            mailbox.close();
        }
        self.link.close(LINGER);
    }

    /// See [`Owner::turn`].
    fn take_turn(&mut self) -> Result<Turn, LinkError> {
        let mut again = false;
        while let Some(status) = self.link.next_status() {
            let Some(state) = LinkState::of(status) else { continue };
            // Each try ends the same way: once is enough.
            let is_new = state != *self.state.borrow();
            match is_new.then(|| (self.problem)(&state)).flatten() {
                _ if !is_new => {}
                // Who starts a client waits for its first connection and tells why there is none.
                Some(problem) if !self.was_connected => info!("client {}: {problem}", self.identity),
                Some(problem) => warn!("client {}: {problem}", self.identity),
                // As loud as the loss.
                None if self.lost => warn!("client {} is connected again", self.identity),
                None => {}
            }
            self.lost = state != LinkState::Connected && (self.lost || self.connected);
            if state == LinkState::Connected {
                self.standing.connected(SystemClock::now());
            } else if let Some(why) = self.standing.lost(SystemClock::now(), &mut *self.link) {
                warn!("client {}: {why}", self.identity);
            }
            self.connected = state == LinkState::Connected;
            self.was_connected |= self.connected;
            // Also where there is no connection: what waits is cancelled or decided anew as something that has not left.
            self.take_back_posts();
            if self.connected {
                self.ahead.connected();
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
                    if self.backlog.confirmed(&token.0, outcome.is_ok()) {
                        self.waits_in_database(token.0, outcome.map_err(|error| error.to_string()));
                        continue;
                    }
                    self.machine.stored(SystemClock::now(), token, outcome.map_err(|error| error.to_string()));
                    self.perform();
                }
                StoreAnswer::Pruned { more } => self.storing.pruned(SystemClock::now(), more),
                StoreAnswer::Read(what, page) => self.read_back(&what, page),
                StoreAnswer::Found(job, command) => self.found(*job, *command),
                StoreAnswer::Ended => self.store_ended = true,
            }
        }
        // While the store is behind, nothing more of the broker is looked at; commands are always taken, and submissions have
        // their places.
        let gated = self.storing.is_behind();
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
        self.refill(now);
        let inbox = self.inbox.clone();
        self.storing.prune(now, move |more| inbox.push([StoreAnswer::Pruned { more }]));
        let stored = self.storing.gather(now);
        if stored == Submitted::Closed || self.store_ended {
            error!("client {}: its store has ended, and it does too", self.identity);
            return Ok(Turn::End);
        }
        self.outbox.flush(now, &mut *self.link)?;
        if let Some(flush_by) = self.flush_by
            && ((self.machine.unconfirmed() == 0
                && self.backlog.is_stored()
                && (self.outbox.is_empty() || !self.connected))
                || now >= flush_by)
        {
            return Ok(Turn::End);
        }
        if again || (gated && !self.storing.is_behind()) {
            return Ok(Turn::Again);
        }
        if gated {
            return Ok(Turn::Pause);
        }
        let of_backlog = self.backlog.deadline();
        let deadline = [self.machine.next_deadline(), self.flush_by, self.storing.deadline(now, stored), of_backlog];
        let deadline = deadline.into_iter().flatten().min();
        Ok(Turn::Wait(deadline.map(|deadline| deadline.saturating_duration_since(SystemClock::now()))))
    }

    fn receive(&mut self) -> Result<bool, LinkError> {
        for _ in 0..TURN_MESSAGES {
            let is_earlier = self.ahead.is_next_of_earlier_connection();
            let Some(received) = self.ahead.next(&mut *self.link)? else { return Ok(false) };
            let (now, frames) = (SystemClock::now(), whole(received));
            if is_earlier {
                self.machine.message_of_earlier_connection(now, &frames);
            } else {
                self.machine.message(now, &frames);
            }
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
            self.ask_or_command(command);
            self.perform();
        }
        true
    }

    fn command(&mut self, command: ClientCommand) {
        match command {
            ClientCommand::Submit { request, mailbox, place } => {
                let known = self.machine.state(&request.job).is_some() || self.mailboxes.contains_key(&request.job);
                if self.flush_by.is_some() || known {
                    // Refused while stopping, and where two jobs would share an id.
                    mailbox.close();
                    return;
                }
                self.mailboxes.insert(request.job.clone(), vec![mailbox]);
                self.unconfirmed.insert(request.job.clone(), place);
                if self.backlog.takes(Held::of(&self.machine)) {
                    self.backlog.push(request.job.clone(), request.deadline);
                    self.earlier.stores(&request.job);
                    let token = ClientToken(request.job.clone());
                    self.storing.push(stored(ClientStoreOperation::Insert(request)), Some(token));
                } else {
                    self.machine.submit(request);
                }
            }
            ClientCommand::Watch { job, mailbox, known } => {
                let active = self.machine.state(&job).is_some() && !self.machine.end_was_told(&job);
                if active {
                    for (worker, question) in self.machine.open_questions(&job) {
                        mailbox.put(JobUpdate::Question(worker.clone(), question.clone()));
                    }
                    self.mailboxes.entry(job).or_default().push(mailbox);
                } else {
                    mailbox.close();
                }
                // Who asked may have gone.
                known.send(Ok(active)).ok();
            }
            ClientCommand::Answer { job, worker, response } => self.machine.answer(&job, worker.as_ref(), &response),
            ClientCommand::Credit { job, worker, offset } => self.machine.credit(&job, worker.as_ref(), offset),
            ClientCommand::Content { job, worker, body } => self.machine.content(&job, &worker, body),
            ClientCommand::Cancel { job, by, reason, known } => {
                let text = cancel_text(&by, reason.as_deref());
                // Who asked may have gone.
                known.send(Ok(self.machine.cancel(SystemClock::now(), &job, text))).ok();
            }
            ClientCommand::CancelElsewhere { client, job, service, target, by, reason } => {
                let text = cancel_text(&by, reason.as_deref());
                self.machine.cancel_elsewhere(Some(client), &job, service, target, text);
            }
            ClientCommand::Management { id, service, request, deadline, answer } => {
                self.management.insert(id.clone(), answer);
                self.machine.management(id, service, &request, deadline);
            }
            ClientCommand::Query(query) => self.storing.query(query),
            // Who asked may have gone.
            ClientCommand::Missing { job, answer } => drop(answer.send(self.machine.missing(&job))),
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
                    "unfinished_jobs": self.machine.unfinished() + self.backlog.len(),
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
                ClientOutput::Store(operation, token) => {
                    if let ClientStoreOperation::Progress(progress) = &operation
                        && progress.state.is_final()
                    {
                        self.backlog.has_ended(&progress.job);
                    }
                    self.storing.push(stored(operation), token);
                }
                ClientOutput::Update(job, update) => self.tell(&job, &update),
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

    /// Tells whoever follows a job.
    fn tell(&mut self, job: &JobId, update: &JobUpdate) {
        if let Some(mailboxes) = self.mailboxes.get_mut(job) {
            mailboxes.retain(|mailbox| mailbox.put(update.clone()));
        }
        if matches!(update, JobUpdate::Finished(_)) {
            for mailbox in self.mailboxes.remove(job).into_iter().flatten() {
                mailbox.close();
            }
        }
    }

    /// What was about to leave when the connection was lost leaves on the next one, but for POSTs: the machine decides anew whether, to
    /// whom and with which words, as the next broker may not remember to whom the job went.
    fn take_back_posts(&mut self) {
        let (machine, now) = (&mut self.machine, SystemClock::now());
        self.outbox.remove(|job, frames| {
            let is_post = frames.get(2).and_then(|frame| Command::from_frame(frame)) == Some(Command::Post);
            if is_post {
                machine.has_not_left(now, job, frames);
            }
            is_post
        });
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
            ClientNote::CancelNotStored { job, error } => {
                error!("client {client}: job {job} is cancelled, but that could not be stored: {error}");
            }
            ClientNote::WorkerAway(job) => info!("client {client}: a worker of job {job} is away"),
        }
    }

    /// Reads back what the last process left unfinished.
    fn restore(&mut self) {
        // Where nobody can say it, it is asked for again with the first jobs that can be read.
        if let Some(last_number) = self.storing.first(|store| store.last_number()) {
            self.earlier.is(last_number);
        }
        let mut after = None;
        loop {
            let from = after.clone();
            let page = self.storing.unfinished(from, |store, after, limit| store.unfinished(after, limit));
            let (jobs, end) = match page {
                Ok(page) => page,
                Err(NoSpace(problem)) => {
                    error!(
                        "client {}: jobs that have not ended are read when there is space: {problem}",
                        self.identity
                    );
                    // As those that wait there for their turn, which are read when they can be.
                    return self.backlog.left_by_last_process(after, SystemClock::now());
                }
            };
            for job in jobs {
                self.machine.restore(SystemClock::now(), restored(job, self.since));
                self.perform();
            }
            if end.is_none() {
                return;
            }
            after = end;
            if self.backlog.is_enough(Held::of(&self.machine)) {
                return self.backlog.left_by_last_process(after, SystemClock::now());
            }
        }
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
