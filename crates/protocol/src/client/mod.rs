//! The client's decisions: when a job is posted, asked about, complete, lost or too late.
//!
//! One input, then [`Client::poll_output`] until it is empty. A job is stored before it is posted. The row in the store
//! is the state; the same machine goes on from it after a restart ([`Client::restore`]).

mod acquaintances;
mod answering;
mod asking;
pub mod backlog;
mod cancel;
mod earlier;
mod job;
mod lost;
mod output;
mod posting;
mod replies;
mod sizes;
mod turned_away;

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::time::{Duration, Instant};

use bytes::Bytes;

pub use cancel::{CANCEL_ANSWER_MAX, CANCEL_PATIENCE};
pub use job::{JobRequest, JobState, Progress, RestoredClientJob};
pub use lost::Lost;
pub use output::{
    ClientCounters, ClientNote, ClientOutput, ClientStoreOperation, ClientToken, JobUpdate, ManagementFailure, Outcome,
};

use crate::body::{self, CancelBody, ManagementBody};
use crate::frame::Status;
use crate::message::{BrokerToClient, ClientCommand, ClientMessage, DecodeError, Reply};
use crate::name::{JobId, ServiceName};
use crate::target::Target;
use crate::timer::Timers;
use acquaintances::Acquaintances;
use asking::Asking;
use job::Job;

/// How long a broker may owe us a word before the connection is made anew: one whose other end is gone without a trace, behind a
/// proxy that keeps ours open, looks alive for ever. A word waits behind whatever message is under way, and only whole messages
/// are seen, so it must be longer than the largest takes on a slow line: 128 MiB at 5 Mbit/s are 215 s.
pub const SILENCE_MAX: Duration = Duration::from_secs(300);

/// How long after a connection a job for `any` or `all` that may have been posted on an earlier one is left alone. The broker may
/// be a new one, to which workers come back one by one: those that are asked who has the job, or get it, must be all of them.
pub const RETURN_TIME: Duration = Duration::from_secs(5);

/// Jobs that are being cancelled and take no other job's place in memory: some KB each beside their requests.
pub const CANCELLING_MAX: usize = 10_000;

/// Connections of which is remembered which process the broker was.
const RUNS_MAX: usize = 64;

/// How soon a job is posted again that nobody could get who is expected: their return is not to be felt. Doubled three times.
pub const EXPECTED_AGAIN: Duration = Duration::from_millis(500);

/// What the end of a job says where the broker found nobody for it, and not each of its POSTs is known to have gone nowhere.
const FOUND_NOBODY_ONCE: &str =
    "the broker found nobody for it when it was asked once, but a worker may have got it before or since";

/// Bounds and habits of a client.
#[derive(Debug, Clone)]
pub struct ClientConfig {
    /// First time to ask for a job that said nothing. Workers that send results unasked make this a safety net; for
    /// those that announce them it is one too; 0.21 workers that lost their last event need it.
    pub get_first: Duration,
    /// Longest time between two askings, as in the recorded 0.25 client.
    pub get_max: Duration,
    /// First time to repeat a POST without 202; doubled each time.
    pub post_again: Duration,
    /// Most jobs that are posted and unfinished; more wait in their order.
    pub in_flight_max: usize,
    /// Most management requests that wait for their answer.
    pub management_max: usize,
    /// Begins the ids of questions: another number for each process, so that nothing is taken for an answer that one before asked.
    pub seed: u64,
}

impl Default for ClientConfig {
    fn default() -> Self {
        Self {
            get_first: Duration::from_secs(1),
            get_max: Duration::from_secs(10),
            post_again: Duration::from_secs(2),
            in_flight_max: 10_000,
            management_max: 1024,
            seed: 0,
        }
    }
}

/// The client's state.
#[derive(Debug)]
pub struct Client {
    config: ClientConfig,
    /// Each by itself: a map that grows copies what is in it, and a backlog is large.
    jobs: HashMap<JobId, Box<Job>>,
    /// Bytes of their requests.
    held_bytes: usize,
    waiting: VecDeque<JobId>,
    in_flight: usize,
    /// Jobs that are being cancelled.
    cancelling: usize,
    timers: Timers<JobId>,
    /// Open requests; with its message one that waits for a connection.
    management: HashMap<JobId, Option<ClientMessage>>,
    management_timers: Timers<JobId>,
    /// Which process the broker is at the other end of the connection, once one of ours has said so: it sends a repeated POST
    /// where the first went. Another process remembers nothing.
    broker_run: Option<u32>,
    /// The same of the connections before: the last [`RUNS_MAX`].
    runs: BTreeMap<u64, u32>,
    /// Counts the connections.
    connection: u64,
    connected_since: Option<Instant>,
    acquaintances: Acquaintances,
    asking: Asking,
    /// Since when the broker owes us a word, if it does: it answers each POST and GET at once.
    silent_since: Option<Instant>,
    /// Whether there is a connection. Without one nothing is posted or asked; jobs wait in their states.
    connected: bool,
    outputs: VecDeque<ClientOutput>,
    counters: ClientCounters,
}

impl Client {
    /// A client without jobs.
    pub fn new(config: ClientConfig) -> Self {
        Self {
            config,
            jobs: HashMap::new(),
            held_bytes: 0,
            waiting: VecDeque::new(),
            in_flight: 0,
            cancelling: 0,
            timers: Timers::default(),
            management: HashMap::new(),
            management_timers: Timers::default(),
            broker_run: None,
            runs: BTreeMap::new(),
            connection: 0,
            connected_since: None,
            acquaintances: Acquaintances::default(),
            asking: Asking::default(),
            silent_since: None,
            connected: true,
            outputs: VecDeque::new(),
            counters: ClientCounters::default(),
        }
    }

    /// A new job: it is stored, then posted.
    pub fn submit(&mut self, request: JobRequest) {
        let job = request.job.clone();
        if self.jobs.contains_key(&job) {
            let outcome = Outcome {
                state: JobState::Failed,
                errors: vec![format!("job {job} is being worked on already: job ids are unique")],
                missing: Vec::new(),
            };
            self.update(job, JobUpdate::Finished(outcome));
            return;
        }
        self.timers.set(job.clone(), request.deadline);
        self.insert(Box::new(Job::new(request.clone())));
        self.store(ClientStoreOperation::Insert(request), Some(ClientToken(job)));
    }

    /// The connection was made, anew or for the first time. A client that is told nothing takes itself for connected.
    pub fn connected(&mut self, now: Instant) {
        self.connected = true;
        self.connection += 1;
        self.silent_since = None;
        self.broker_run = None;
        self.connected_since = Some(now);
        self.ask_anew();
        let mut ids: Vec<JobId> = self.jobs.keys().cloned().collect();
        ids.sort_unstable();
        for (number, id) in ids.into_iter().enumerate() {
            let Some(job) = self.jobs.get_mut(&id) else { continue };
            // What was on its way may be lost. Not all at once: a thousand jobs must not make a storm.
            let at = now + self.config.get_first / 16 * (number % 16) as u32;
            if let Some(cancel) = &mut job.cancel {
                (cancel.times, cancel.next) = (0, cancel.is_written().then_some(at));
            } else if job.dispatched().is_some() {
                job.asked = 0;
                job.next_ask = Some(at);
            } else if job.posts > 0 {
                job.next_post = Some(job.again_at(now, at));
            } else if job.in_flight {
                // Its POST did not leave.
                job.next_post = Some(at);
            }
            // Nothing that was asked on the connection before is answered any more.
            (job.around, job.unanswered_rounds) = (None, 0);
            job.resend_answers = !job.answers.is_empty();
            self.set_timer(&id);
        }
        self.resend_answers();
        let mut requests: Vec<ClientMessage> = self.management.values_mut().filter_map(Option::take).collect();
        requests.sort_unstable_by(|one, other| one.job.cmp(&other.job));
        for request in requests {
            self.send(request);
        }
        self.post_waiting(now);
    }

    /// The connection is gone.
    pub fn disconnected(&mut self) {
        self.connected = false;
        self.silent_since = None;
    }

    /// Nothing was read from the link for reasons of our own (the store is behind): the broker's silence is not its fault.
    pub fn not_listening(&mut self) {
        self.silent_since = None;
    }

    /// Jobs of which the store has not confirmed yet that they are there, or that they are cancelled.
    pub fn unconfirmed(&self) -> usize {
        let is_open = |job: &Job| !job.stored || job.cancel.as_ref().is_some_and(|cancel| !cancel.is_written());
        self.jobs.values().filter(|job| is_open(job)).count()
    }

    /// The store has a new job or a cancellation, or not. Both are confirmed in the order in which they were given to it.
    pub fn stored(&mut self, now: Instant, token: ClientToken, outcome: Result<(), String>) {
        let ClientToken(id) = token;
        let Some(job) = self.jobs.get_mut(&id) else {
            return;
        };
        if job.stored {
            return self.cancel_written(now, &id, outcome);
        }
        let cancelled = job.cancel.as_ref().map(|cancel| cancel.text.clone());
        match outcome {
            Ok(()) => {
                job.stored = true;
                self.update(id.clone(), JobUpdate::Stored);
                if cancelled.is_none() {
                    self.waiting.push_back(id);
                    self.post_waiting(now);
                }
            }
            Err(error) => {
                job.refused_by_store = true;
                let state = if cancelled.is_some() { JobState::Cancelled } else { JobState::Failed };
                let error = format!("the job could not be stored and was not sent: {error}");
                self.finish(now, &id, state, cancelled.into_iter().chain([error]).collect());
            }
        }
    }

    /// A job that the store had unfinished when the process began.
    pub fn restore(&mut self, now: Instant, mut restored: RestoredClientJob) {
        let errors = std::mem::take(&mut restored.errors);
        let mut job = Box::new(Job::restored(now, restored));
        let id = job.request.job.clone();
        let (posted, late) = (job.dispatched().is_some(), job.request.deadline <= now);
        let cancelled = job.state == JobState::Cancelling;
        if posted && !cancelled {
            self.in_flight += 1;
            job.in_flight = true;
        }
        self.insert(job);
        if cancelled {
            self.restore_cancel(now, &id, errors);
        } else if let Some(job) = self.jobs.get_mut(&id) {
            job.cancelled_elsewhere = errors.into_iter().next();
        }
        if !self.jobs.contains_key(&id) {
            // All had confirmed.
        } else if late {
            self.expire(now, &id);
        } else if cancelled {
            self.set_timer(&id);
        } else if posted {
            // The process may have ended between the last result and the end of the job.
            if !self.complete_if_done(now, &id) {
                if self.connected {
                    self.ask(now, &id);
                } else {
                    self.set_timer(&id);
                }
            }
        } else {
            self.waiting.push_back(id.clone());
            self.set_timer(&id);
        }
        self.post_waiting(now);
    }

    /// A new job that the store has already and that was never posted. It is posted behind the next input, or the call of
    /// [`Client::timeout`] that has to follow: one that is cancelled first never leaves.
    pub fn submit_stored(&mut self, request: JobRequest) {
        let id = request.job.clone();
        let mut job = Box::new(Job::new(request));
        job.stored = true;
        self.timers.set(id.clone(), job.request.deadline);
        self.insert(job);
        self.waiting.push_back(id);
    }

    fn insert(&mut self, job: Box<Job>) {
        self.held_bytes += job.request.body.len();
        self.jobs.insert(job.request.job.clone(), job);
    }

    /// A message came from the broker.
    pub fn message(&mut self, now: Instant, frames: &[Bytes]) {
        self.counters.received += 1;
        self.silent_since = None;
        match BrokerToClient::decode(frames) {
            Ok(BrokerToClient::Response(reply)) => {
                if let Err(error) = self.response(now, reply) {
                    self.refuse(error);
                }
            }
            Ok(BrokerToClient::Event(reply)) => {
                self.counters.events += 1;
                if let Err(error) = self.event(now, reply) {
                    self.refuse(error);
                }
            }
            Ok(BrokerToClient::Stream(Reply { job, payload, .. })) => {
                if self.is_answerable(&job) {
                    self.update(job, JobUpdate::Stream(payload));
                } else {
                    self.note(ClientNote::UnknownJob(job));
                }
            }
            Ok(BrokerToClient::Mmi(Reply { job, status, payload, .. })) => {
                self.management_answer(&job, Ok((status, payload)));
            }
            Err(error) => self.refuse(error),
        }
    }

    /// Time has passed.
    pub fn timeout(&mut self, now: Instant) {
        while let Some(id) = self.management_timers.take_due(now) {
            // It may still wait to be sent.
            self.outputs.push_back(ClientOutput::Forget(id.clone()));
            self.management_answer(&id, Err(ManagementFailure::TimedOut));
        }
        if self.silent_since.is_some_and(|since| since + SILENCE_MAX <= now) {
            self.note(ClientNote::BrokerSilent);
            self.disconnected();
            self.outputs.push_back(ClientOutput::Reconnect);
        }
        while let Some(id) = self.timers.take_due(now) {
            let Some(job) = self.jobs.get(&id) else {
                continue;
            };
            if job.request.deadline <= now {
                self.expire(now, &id);
            } else if let Some(cancel) = &job.cancel {
                let (tells, ends) = (
                    cancel.next.is_some_and(|at| at <= now),
                    cancel.is_written() && !cancel.told && cancel.patience_ends <= now,
                );
                if ends {
                    self.cancel_patience_ended(&id);
                }
                if tells && self.connected {
                    self.tell_workers(now, &id);
                }
                self.set_timer(&id);
            } else if self.connected && job.next_ask.is_some_and(|at| at <= now) {
                self.ask(now, &id);
            } else if self.connected && job.next_post.is_some_and(|at| at <= now) {
                self.post_in_turn(now, &id);
            } else {
                self.set_timer(&id);
            }
        }
        self.post_waiting(now);
        self.ask_who_has(now);
        self.ask_in_turn(now);
    }

    /// When [`Client::timeout`] is wanted next.
    pub fn next_deadline(&self) -> Option<Instant> {
        let silence = self.silent_since.map(|since| since + SILENCE_MAX);
        [self.timers.next(), self.management_timers.next(), silence, self.asking.due()].into_iter().flatten().min()
    }

    /// Asks the broker itself. The answer comes as [`ClientOutput::Management`].
    pub fn management(&mut self, id: JobId, service: ServiceName, request: &ManagementBody, deadline: Instant) {
        if self.management.len() >= self.config.management_max {
            self.outputs.push_back(ClientOutput::Management(id, Err(ManagementFailure::TooMany)));
            return;
        }
        self.management_timers.set(id.clone(), deadline);
        let message = ClientMessage {
            command: ClientCommand::Mmi,
            service,
            target: Target::Any,
            job: id.clone(),
            body: body::encode(request),
        };
        if self.connected {
            self.management.insert(id, None);
            self.send(message);
        } else {
            self.management.insert(id, Some(message));
        }
    }

    /// The next thing to do. `None`: take the next input.
    pub fn poll_output(&mut self) -> Option<ClientOutput> {
        self.outputs.pop_front()
    }

    /// The state of an unfinished job.
    pub fn state(&self, job: &JobId) -> Option<JobState> {
        self.jobs.get(job).map(|job| job.state)
    }

    /// Whether an unfinished job has nothing more to tell: it was cancelled, and only its workers have not confirmed that yet.
    pub fn end_was_told(&self, job: &JobId) -> bool {
        self.jobs.get(job).is_some_and(|job| job.end_was_told())
    }

    /// What was counted.
    pub fn counters(&self) -> &ClientCounters {
        &self.counters
    }

    /// Whether anyone can have an answer: the store has the job, so it was or may have been posted. Before that an answer is
    /// a guess, or one for an earlier job with this id. So it is of one that is being stored as cancelled because it was nowhere.
    fn is_answerable(&self, id: &JobId) -> bool {
        let is_over = |job: &Job| job.cancel.as_ref().is_some_and(|cancel| cancel.row_has_ended);
        self.jobs.get(id).is_some_and(|job| job.stored && !is_over(job))
    }

    fn note(&mut self, note: ClientNote) {
        self.outputs.push_back(ClientOutput::Note(note));
    }

    fn refuse(&mut self, error: DecodeError) {
        self.counters.refused += 1;
        self.note(ClientNote::Refused(error));
    }

    fn update(&mut self, job: JobId, update: JobUpdate) {
        if self.end_was_told(&job) {
            return;
        }
        self.outputs.push_back(ClientOutput::Update(job, update));
    }

    fn store(&mut self, operation: ClientStoreOperation, token: Option<ClientToken>) {
        self.outputs.push_back(ClientOutput::Store(operation, token));
    }

    fn send(&mut self, message: ClientMessage) {
        self.counters.sent += 1;
        let purgeable = Some(message.job.clone());
        self.outputs.push_back(ClientOutput::Send(message.encode(), purgeable));
    }

    fn set_timer(&mut self, id: &JobId) {
        if let Some(job) = self.jobs.get(id) {
            self.timers.set(id.clone(), job.next_wake(self.connected));
        }
    }

    fn progress(&mut self, id: &JobId) {
        if let Some(job) = self.jobs.get(id) {
            let progress = job.progress(Vec::new());
            self.store(ClientStoreOperation::Progress(progress), None);
        }
    }

    /// Ends the job if every worker that has it has answered or is lost.
    fn complete_if_done(&mut self, now: Instant, id: &JobId) -> bool {
        let Some(job) = self.jobs.get(id) else {
            return true;
        };
        if job.cancel.is_some() {
            return self.end_if_confirmed(now, id);
        }
        if !job.is_done() {
            return false;
        }
        let lost = job.lost().iter().map(|(worker, lost)| lost.of_worker(worker));
        let errors: Vec<String> = job.cancelled_elsewhere.clone().into_iter().chain(lost).collect();
        let state = match (&job.cancelled_elsewhere, errors.is_empty()) {
            (Some(_), _) => JobState::Cancelled,
            (None, true) => JobState::Completed,
            (None, false) => JobState::Failed,
        };
        self.finish(now, id, state, errors);
        true
    }

    fn expire(&mut self, now: Instant, id: &JobId) {
        let Some(job) = self.jobs.get(id) else { return };
        if job.cancel.is_some() {
            self.cancel_expired(now, id);
            return;
        }
        let error = format!(
            "job '{id}' service '{}' task '{}' timeout expired after {} seconds; worker execution may continue",
            job.request.service,
            job.request.task,
            job.request.timeout.as_secs()
        );
        // Whoever reads that nobody was found takes it that nothing runs, and may want the job once more.
        let found_nobody = match &job.refusal {
            Some(_) if job.may_be_taken() => Some(FOUND_NOBODY_ONCE.to_owned()),
            refusal => refusal.clone(),
        };
        let errors = std::iter::once(error).chain(found_nobody).collect();
        // A POST that is still under way says how much time was left when it was sent: this comes behind it.
        let withdrawn =
            job.may_still_begin().filter(|_| self.connected).map(|target| (job.request.service.clone(), target));
        self.finish(now, id, JobState::Stale, errors);
        if let Some((service, target)) = withdrawn {
            let text = format!("cancelled by the fabric: the deadline of job {id} has passed");
            let body = body::encode(&CancelBody { text: Some(text), ends: true, ..CancelBody::default() });
            self.send(ClientMessage { command: ClientCommand::Delete, service, target, job: id.clone(), body });
        }
    }

    fn finish(&mut self, now: Instant, id: &JobId, state: JobState, errors: Vec<String>) {
        let Some(mut job) = self.jobs.remove(id) else {
            return;
        };
        self.held_bytes -= job.request.body.len();
        if self.jobs.is_empty() {
            // Nobody waits for a word any more.
            self.silent_since = None;
        }
        self.timers.remove(id);
        if job.in_flight {
            self.in_flight -= 1;
        }
        if job.cancel.is_some() {
            self.cancelling -= 1;
        }
        job.state = state;
        if !self.connected || state != JobState::Completed {
            self.outputs.push_back(ClientOutput::Forget(id.clone()));
        }
        // Also where the store has not confirmed the job yet: it does things in order, and a job that ended must not be
        // found unfinished after a restart.
        if !job.refused_by_store && !job.cancel.as_ref().is_some_and(|cancel| cancel.row_has_ended) {
            let unconfirmed = job.unconfirmed_in_words();
            let errors = errors.iter().cloned().chain(unconfirmed).collect();
            self.store(ClientStoreOperation::Progress(job.progress(errors)), None);
        }
        if !job.end_was_told() {
            let missing = job.missing_why();
            let problem = job.cancel.as_ref().and_then(|cancel| cancel.written.problem());
            let errors = errors.into_iter().chain(problem).collect();
            self.update(id.clone(), JobUpdate::Finished(Outcome { state, errors, missing }));
        }
        self.post_waiting(now);
    }

    fn management_answer(&mut self, id: &JobId, answer: Result<(Status, Bytes), ManagementFailure>) {
        // An answer after its caller gave up is dropped here, it waits in no queue.
        if self.management.remove(id).is_some() {
            self.management_timers.remove(id);
            self.outputs.push_back(ClientOutput::Management(id.clone(), answer));
        }
    }
}

#[cfg(test)]
mod tests;
