//! The worker's decisions: what is stored before what is acknowledged, what starts when, what a GET is answered.
//!
//! One input, then [`Worker::poll_output`] until it is empty. Order is meaning: a job is stored before its 201 goes out,
//! a result is stored before its 200.

mod jobs;
mod output;
pub(crate) mod reply;
mod sizes;

use std::collections::{HashMap, HashSet, VecDeque};
use std::time::{Duration, Instant};

use bytes::Bytes;

pub use output::{
    Abandoned, Asked, Class, Ending, LoadedJob, NewJob, NotTaken, Refusal, RestoredJob, StartJob, StoreFailure,
    WorkerCounters, WorkerNote, WorkerOutput, WorkerStoreOperation, WorkerToken,
};
pub use reply::{cancellation_of, is_taken_back, result_reply, result_reply_of};

use crate::body::{self, EventType, InputRequest, StateReply};
use crate::frame::Status;
use crate::keepalive::{Keepalive, KeepaliveConfig};
use crate::message::{BrokerToWorker, WorkerMessage, WorkerReply};
use crate::name::{Identity, JobId, ServiceName, TaskName};
use crate::recent::Recent;
use reply::result_payload;

/// Shortest time between two reconnects that a DISCONNECT asks for: a broker that says nothing else cannot make a storm.
pub const RECONNECT_INTERVAL: Duration = Duration::from_secs(1);

/// Most questions that one job may have open; more are refused to the task. More than a service lets a job ask at once, so that
/// one whose answer is still on its way does not count against the next.
pub const QUESTIONS_MAX: usize = 128;

/// How soon it is tried again to write down that a job starts, after the store could not: it has no space, and nobody can do
/// anything about that sooner.
pub const START_AGAIN: Duration = Duration::from_secs(1);

/// Most bytes of results that could not be stored and are answered from memory: what the store keeps of them as well.
const UNSTORED_BYTES_MAX: usize = 64 << 20;

/// How soon the end of a job is given to the store again after that gave it up, and how many are at once: what the store takes in one
/// commit, so that a full one is not asked about all of them each time.
const FINISH_AGAIN: Duration = Duration::from_secs(1);
const FINISHES_AGAIN: usize = 512;

/// Most jobs that are remembered as cancelled before they came: up to 1.5 KB each.
const WITHDRAWN_MAX: usize = 4096;

/// Most jobs that are remembered as refused: about 300 bytes each. More than a broker holds back for one worker, so that no second
/// POST that is under way outlives it.
const REFUSED_MAX: usize = 16_384;

/// Payloads from this size on keep a slow line busy for so long that it matters.
const LARGE_BYTES: usize = 1 << 20;

/// The slowest line on which large results are expected to arrive, in bytes per second: 5 Mbit/s.
pub const SLOW_LINE_BYTES_PER_SECOND: u32 = 625_000;

/// Longest time that large messages make the broker's silence excusable.
const LINE_BUSY_MAX: Duration = Duration::from_secs(300);

/// Bounds and habits of a worker.
#[derive(Debug, Clone)]
pub struct WorkerConfig {
    /// Its name.
    pub identity: Identity,
    /// What it registers.
    pub service: ServiceName,
    /// Beats and hold time.
    pub keepalive: KeepaliveConfig,
    /// Most jobs that run at once; 5 in the recorded peers.
    pub max_concurrent_jobs: usize,
    /// Most jobs that are stored but have not ended; a POST beyond is refused. About 1 KB each beside their requests.
    pub jobs_max: usize,
    /// Most bytes in the requests of those jobs: each is in memory until it ends.
    pub jobs_bytes_max: usize,
}

impl WorkerConfig {
    /// The defaults for a name and a service.
    pub fn new(identity: Identity, service: ServiceName) -> Self {
        Self {
            identity,
            service,
            keepalive: KeepaliveConfig::default(),
            max_concurrent_jobs: 5,
            jobs_max: 100_000,
            jobs_bytes_max: 512 << 20,
        }
    }
}

#[derive(Debug, PartialEq, Eq)]
enum Phase {
    Storing,
    Queued,
    /// A place is taken for it; it starts when the store says that it is written down as started, so that a crash cannot
    /// make it run twice.
    Starting,
    Running,
    Finishing {
        ending: Ending,
        reply: Bytes,
        event: Bytes,
    },
    /// Its result was sent and could not be stored: who asks is answered from here until it is.
    Unstored {
        ending: Ending,
        reply: Bytes,
    },
}

#[derive(Debug)]
struct ActiveJob {
    client: Identity,
    task: TaskName,
    /// The request as it came; read when the job starts, as what is read takes many times the memory.
    body: Bytes,
    timeout: u64,
    deadline: Option<Instant>,
    phase: Phase,
    questions: Vec<InputRequest>,
    /// Somebody cancelled it. Whatever its task returns, it ends as cancelled.
    cancelled: Option<Abandoned>,
    abandoned: bool,
    /// How often it was begun by processes before this one.
    attempts: u32,
    /// The store has counted one more, which did not begin.
    counted: bool,
    /// Its client is one of ours: a result tells it that the job was taken and has ended.
    fabric: bool,
    /// In which turn it was posted, where its client counts them: [`crate::body::Posting::turn`].
    turn: Option<u32>,
    /// Its task has said something, which is not to be read without what was said before.
    spoke: bool,
}

/// The worker's state.
#[derive(Debug)]
pub struct Worker {
    config: WorkerConfig,
    keepalive: Keepalive,
    /// The latest time that an input brought.
    now: Instant,
    /// Until when the large messages that were sent keep a slow line busy.
    line_busy_until: Instant,
    last_heard: Instant,
    last_connect: Option<Instant>,
    reconnect_at: Option<Instant>,
    jobs: HashMap<JobId, ActiveJob>,
    queue: VecDeque<JobId>,
    /// Jobs that were cancelled before they came, with who, when and why: a POST that comes late does not run.
    withdrawn: Recent<String>,
    /// Jobs that could not be taken, with the turn in which they were posted: another POST of that turn may come late.
    refused: Recent<u32>,
    /// Jobs that are being stored and have a place to run.
    reserved: HashSet<JobId>,
    /// Jobs that start or run.
    running: usize,
    /// Nothing starts before: the store could not write the last one down.
    start_again_at: Option<Instant>,
    /// Jobs whose end the store gave up, each once; when the next of them are given to it again.
    given_up: VecDeque<JobId>,
    finish_again_at: Option<Instant>,
    /// Bytes of the requests of all unfinished jobs.
    bytes: usize,
    /// Bytes of the results that could not be stored.
    unstored_bytes: usize,
    connected: bool,
    outputs: VecDeque<WorkerOutput>,
    counters: WorkerCounters,
    stopping: bool,
}

impl Worker {
    /// A worker that is not connected yet.
    pub fn new(config: WorkerConfig, now: Instant) -> Self {
        Self {
            keepalive: Keepalive::new(config.keepalive, now),
            now,
            line_busy_until: now,
            last_heard: now,
            last_connect: None,
            reconnect_at: None,
            jobs: HashMap::new(),
            queue: VecDeque::new(),
            withdrawn: Recent::new(WITHDRAWN_MAX),
            refused: Recent::new(REFUSED_MAX),
            reserved: HashSet::new(),
            running: 0,
            start_again_at: None,
            given_up: VecDeque::new(),
            finish_again_at: None,
            bytes: 0,
            unstored_bytes: 0,
            connected: false,
            outputs: VecDeque::new(),
            counters: WorkerCounters::default(),
            stopping: false,
            config,
        }
    }

    /// The socket is new: READY goes before everything else.
    pub fn connected(&mut self, now: Instant) {
        if self.last_connect.is_some() {
            self.counters.reconnects += 1;
        }
        self.connected = true;
        self.last_connect = Some(now);
        self.reconnect_at = None;
        self.hear(now);
        self.keepalive.restart(now);
        // Large results that waited for the connection leave on it right away.
        self.line_busy_until = self.line_busy_until.max(now);
        self.keepalive.extend(self.line_busy_until);
        self.send_ready();
    }

    /// The connection is gone and is being made again: nothing is expected of the broker meanwhile.
    pub fn disconnected(&mut self) {
        self.connected = false;
    }

    /// Nothing was read from the link for reasons of our own (the store is behind): the broker's silence is not its fault.
    pub fn not_listening(&mut self, now: Instant) {
        self.hear(now);
    }

    /// Nothing is expected of the broker for one hold time.
    fn hear(&mut self, now: Instant) {
        self.now = now;
        self.last_heard = now;
        self.keepalive.extend(now);
    }

    /// A message came from the broker.
    pub fn message(&mut self, now: Instant, frames: &[Bytes]) {
        self.now = now;
        self.counters.received += 1;
        let message = match BrokerToWorker::decode(frames) {
            Ok(message) => message,
            Err(error) => {
                self.counters.refused += 1;
                self.note(WorkerNote::Refused(error));
                return;
            }
        };
        // Whatever it says, the broker is there: while a large message comes in, its beats are late.
        self.hear(now);
        match message {
            BrokerToWorker::Keepalive(_) => self.keepalive.received(now),
            BrokerToWorker::Disconnect(_) => {
                self.note(WorkerNote::BrokerAsked);
                let earliest = self.last_connect.map_or(now, |last| last + RECONNECT_INTERVAL);
                if earliest <= now {
                    self.reconnect(now);
                } else {
                    self.reconnect_at = Some(earliest);
                }
            }
            BrokerToWorker::Post(delivery) => self.post(now, delivery),
            BrokerToWorker::Get(delivery) => self.get(delivery),
            BrokerToWorker::Put(delivery) => self.put(&delivery),
            BrokerToWorker::Delete(delivery) => self.delete(delivery),
        }
    }

    /// Time has passed.
    pub fn timeout(&mut self, now: Instant) {
        self.now = now;
        self.start_jobs(now);
        self.finish_again(now);
        if !self.connected {
            return;
        }
        if self.reconnect_at.is_some_and(|at| at <= now) {
            self.reconnect(now);
        } else if self.keepalive.expired(now) {
            self.note(WorkerNote::BrokerSilent);
            self.send(&WorkerMessage::Disconnect(self.config.service.clone()), Class::Beat);
            self.reconnect(now);
        } else if self.keepalive.take_beat(now) {
            // A broker that was killed and came back knows nobody and says nothing if it is not ours. After two missed
            // beats a READY goes out in place of the beat: brokers that know us take no notice of it.
            if now.saturating_duration_since(self.last_heard) > self.config.keepalive.interval * 2 {
                self.send_ready();
            } else {
                self.send(&WorkerMessage::Keepalive(self.config.service.clone()), Class::Beat);
            }
        }
    }

    /// When [`Worker::timeout`] is wanted next.
    pub fn next_deadline(&self) -> Option<Instant> {
        let of_connection = self.connected.then(|| self.keepalive.deadline());
        let reconnect = self.reconnect_at.filter(|_| self.connected);
        [of_connection, reconnect, self.start_again_at, self.finish_again_at].into_iter().flatten().min()
    }

    /// The store has done what a token stands for, or has not.
    pub fn stored(&mut self, now: Instant, token: WorkerToken, outcome: Result<(), StoreFailure>) {
        self.now = now;
        match token {
            WorkerToken::Insert(job) => self.inserted(now, job, outcome),
            WorkerToken::Start(job) => self.start(now, job, outcome),
            WorkerToken::Finish(job) => self.result_stored(now, job, outcome),
        }
    }

    /// The answer to [`WorkerOutput::Load`].
    pub fn loaded(&mut self, job: JobId, client: Identity, asked: Asked, loaded: Option<LoadedJob>) {
        match loaded {
            // It is here by now, though it was not when it was looked up.
            None | Some(LoadedJob { payload: None }) if self.jobs.contains_key(&job) => match asked {
                // Of a cancellation the client hears when it comes again.
                Asked::State | Asked::ToCancel | Asked::Again(_) => self.reply_active(client, &job),
                Asked::ToRun(_) => self.reply_taken(client, job),
            },
            None if let Asked::ToRun(refusal) = asked => self.refuse(client, job, refusal),
            None if asked == Asked::ToCancel => {
                self.reply_state(client, job, Status::NOT_FOUND, CANCELLED_WORD);
            }
            None => self.reply_state(client, job, Status::NOT_FOUND, NOT_FOUND_WORD),
            Some(LoadedJob { payload: Some(payload) }) => {
                if is_taken_back(&payload) {
                    match asked {
                        Asked::ToRun(refusal) => return self.refuse(client, job, refusal),
                        Asked::Again(turn) => return self.refuse_given_up(client, job, turn),
                        Asked::State | Asked::ToCancel => {}
                    }
                }
                let reply = result_reply(&self.config.identity, &payload);
                self.reply(client, job, Status::OK, reply);
            }
            Some(LoadedJob { payload: None }) => self.reply_state(client, job, Status::PENDING, "STARTED"),
        }
    }

    /// A running task reports. Errors: the job does not run, or has too many questions open.
    pub fn event(
        &mut self,
        job: &JobId,
        class: EventType,
        question: Option<InputRequest>,
        answered: Option<&str>,
        body: Bytes,
    ) -> Result<(), NotTaken> {
        let active = self.jobs.get_mut(job).filter(|active| active.phase == Phase::Running);
        let active = active.ok_or(NotTaken::NoSuchJob)?;
        active.spoke = true;
        let waited = !active.questions.is_empty();
        match class {
            EventType::InputRequest => {
                if active.questions.len() >= QUESTIONS_MAX {
                    return Err(NotTaken::TooManyQuestions);
                }
                active.questions.extend(question);
            }
            EventType::InputResponse => active.questions.retain(|open| Some(open.id.as_str()) != answered),
            EventType::Progress | EventType::ResultReady => {}
        }
        let waits = !active.questions.is_empty();
        let client = active.client.clone();
        if waits != waited {
            let operation = if waits {
                WorkerStoreOperation::Waiting(job.clone())
            } else {
                WorkerStoreOperation::Answered(job.clone())
            };
            self.store(operation, None);
        }
        let urgency = match class {
            EventType::Progress => Class::Unhurried,
            EventType::InputRequest | EventType::InputResponse | EventType::ResultReady => Class::Data,
        };
        self.store(WorkerStoreOperation::Event { job: job.clone(), body: body.clone() }, None);
        self.send_event(client, job.clone(), body, urgency);
        Ok(())
    }

    /// A job that was just given to the owner has started; `body` is the event that says so. Errors: the job does not run.
    pub fn announce_start(&mut self, job: &JobId, body: Bytes) -> Result<(), NotTaken> {
        let active = self.jobs.get(job).filter(|active| active.phase == Phase::Running);
        let client = active.ok_or(NotTaken::NoSuchJob)?.client.clone();
        self.store(WorkerStoreOperation::Event { job: job.clone(), body: body.clone() }, None);
        let reply = WorkerReply { client, job: job.clone(), status: Status::OK, payload: body };
        self.counters.sent += 1;
        self.outputs.push_back(WorkerOutput::Announce(job.clone(), WorkerMessage::Event(reply).encode()));
        Ok(())
    }

    /// A job was cancelled: `text` says by whom, when and why, and stands in its result, `body` is the event that says so. Its client needs
    /// one of them where somebody else cancelled the job. Errors:
    /// there is no such unfinished job.
    pub fn announce_cancel(&mut self, job: &JobId, said: &str, body: Bytes) -> Result<(), NotTaken> {
        let active = self.jobs.get_mut(job).ok_or(NotTaken::NoSuchJob)?;
        if let Some(Abandoned::Cancelled { text, .. }) = &mut active.cancelled {
            *text = Some(said.to_owned());
        }
        active.spoke = true;
        let client = active.client.clone();
        self.store(WorkerStoreOperation::Event { job: job.clone(), body: body.clone() }, None);
        self.send_event(client, job.clone(), body, Class::Data);
        Ok(())
    }

    /// A running task sends bytes. Errors: the job does not run.
    pub fn stream(&mut self, job: &JobId, bytes: Bytes) -> Result<(), NotTaken> {
        let active = self.jobs.get_mut(job).filter(|active| active.phase == Phase::Running);
        let active = active.ok_or(NotTaken::NoSuchJob)?;
        active.spoke = true;
        let client = active.client.clone();
        let reply = WorkerReply { client, job: job.clone(), status: Status::OK, payload: bytes };
        self.send(&WorkerMessage::Stream(reply), Class::Data);
        Ok(())
    }

    /// A task has ended, or an abandoned job has its result. `reply` is the whole 200 body as [`result_reply`] makes it,
    /// `event` the body of the last event. One that was cancelled ends as that, whatever its task returned. A second end of one job is ignored.
    pub fn finished(&mut self, now: Instant, job: &JobId, ending: Ending, reply: Bytes, event: Bytes) {
        let Some(active) = self.jobs.get_mut(job) else {
            return;
        };
        match active.phase {
            Phase::Starting | Phase::Running => self.running -= 1,
            Phase::Queued | Phase::Storing => self.queue.retain(|queued| queued != job),
            Phase::Finishing { .. } | Phase::Unstored { .. } => return,
        }
        let (ending, reply) = active.end(&self.config.identity, ending, reply);
        let payload = result_payload(&self.config.identity, &reply);
        active.questions.clear();
        let last_event = WorkerStoreOperation::Event { job: job.clone(), body: event.clone() };
        active.phase = Phase::Finishing { ending, reply, event };
        let operation = WorkerStoreOperation::Finish { job: job.clone(), ending, payload };
        self.store(operation, Some(WorkerToken::Finish(job.clone())));
        // It leaves after the result; written down with it, it costs no commit of its own.
        self.store(last_event, None);
        self.start_jobs(now);
    }

    /// Nothing new is taken or started; what runs goes on, and what is queued stays in the store.
    pub fn stop(&mut self) {
        self.stopping = true;
        self.queue.clear();
        self.start_again_at = None;
    }

    /// The last thing that is stored: every end that the store gave up is given to it once more. There may be space by now, and the next
    /// process would find these jobs as begun and without an end.
    pub fn store_last_ends(&mut self) {
        self.give_again(usize::MAX);
        self.finish_again_at = None;
    }

    /// Says good-bye to the broker.
    pub fn disconnect(&mut self) {
        self.send(&WorkerMessage::Disconnect(self.config.service.clone()), Class::Data);
    }

    /// Jobs that run or whose result is being stored.
    pub fn unfinished(&self) -> usize {
        let is_open = |job: &&ActiveJob| !matches!(job.phase, Phase::Queued | Phase::Unstored { .. });
        self.jobs.values().filter(is_open).count()
    }

    /// Jobs that run.
    pub fn running(&self) -> usize {
        self.running
    }

    /// The next thing to do. `None`: take the next input.
    pub fn poll_output(&mut self) -> Option<WorkerOutput> {
        self.outputs.pop_front()
    }

    /// What was counted.
    pub fn counters(&self) -> &WorkerCounters {
        &self.counters
    }

    /// Beats and hold time, for statistics.
    pub fn keepalive(&self) -> &Keepalive {
        &self.keepalive
    }

    /// The configuration.
    pub fn config(&self) -> &WorkerConfig {
        &self.config
    }

    fn note(&mut self, note: WorkerNote) {
        self.outputs.push_back(WorkerOutput::Note(note));
    }

    fn store(&mut self, operation: WorkerStoreOperation, token: Option<WorkerToken>) {
        self.outputs.push_back(WorkerOutput::Store(operation, token));
    }

    fn send(&mut self, message: &WorkerMessage, class: Class) {
        self.counters.sent += 1;
        let frames = message.encode();
        let bytes = frames.iter().map(Bytes::len).sum::<usize>();
        if bytes >= LARGE_BYTES {
            self.occupy_line(bytes);
        }
        self.outputs.push_back(WorkerOutput::Send(frames, class));
    }

    /// While a large message leaves on a slow line our beats wait behind it, the broker gives us up and says nothing more. To
    /// drop the connection then would cut the message off; that the line itself is dead is for the link to find out.
    fn occupy_line(&mut self, bytes: usize) {
        let time = Duration::from_secs_f64(bytes as f64 / f64::from(SLOW_LINE_BYTES_PER_SECOND));
        self.line_busy_until = (self.line_busy_until.max(self.now) + time).min(self.now + LINE_BUSY_MAX);
        self.keepalive.extend(self.line_busy_until);
    }

    fn send_ready(&mut self) {
        self.send(&WorkerMessage::Ready(self.config.service.clone()), Class::First);
    }

    /// Both timers start again: nothing is due before the owner says that there is a connection.
    fn reconnect(&mut self, now: Instant) {
        self.connected = false;
        self.reconnect_at = None;
        self.keepalive.restart(now);
        self.outputs.push_back(WorkerOutput::Reconnect);
    }

    fn reply(&mut self, client: Identity, job: JobId, status: Status, payload: Bytes) {
        self.send(&WorkerMessage::Response(WorkerReply { client, job, status, payload }), Class::Data);
    }

    fn reply_state(&mut self, client: Identity, job: JobId, status: Status, word: &str) {
        let body = self.state_reply(job.clone(), word);
        self.reply(client, job, status, body::encode(&body));
    }

    fn state_reply(&self, job: JobId, word: &str) -> StateReply {
        StateReply {
            worker: self.config.identity.clone(),
            uuid: job,
            service: self.config.service.clone(),
            status: word.to_owned(),
            error: None,
            retry: None,
            turn: None,
            known: None,
        }
    }

    fn send_event(&mut self, client: Identity, job: JobId, body: Bytes, class: Class) {
        let reply = WorkerReply { client, job, status: Status::OK, payload: body };
        self.send(&WorkerMessage::Event(reply), class);
    }

    fn refuse(&mut self, client: Identity, job: JobId, refusal: Refusal) {
        let Refusal { reason, retry, turn } = refusal;
        self.counters.refused += 1;
        self.note(WorkerNote::JobRefused { job: job.clone(), reason: reason.clone() });
        let (error, retry) = (Some(reason), retry.then_some(true));
        let body = StateReply { error, retry, turn, ..self.state_reply(job.clone(), "REFUSED") };
        self.reply(client, job, Status::REFUSED, body::encode(&body));
    }
}

/// The word of a 404 that answers a question.
const NOT_FOUND_WORD: &str = "JOB NOT FOUND";

pub use crate::body::{CANCELLED_WORD, TIMEOUT_SECONDS_MAX};

#[cfg(test)]
mod tests;
