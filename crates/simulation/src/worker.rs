//! A worker, its store, and its tasks.

use std::collections::{BTreeMap, BTreeSet, HashSet, VecDeque};
use std::time::{Duration, Instant};

use bytes::Bytes;
use norfab_protocol::body::{self, EventStatus, InputRequest, PutBody, Resource};
use norfab_protocol::frame::Frames;
use norfab_protocol::message::{BrokerToWorker, Delivery, WorkerMessage};
use norfab_protocol::name::{Identity, JobId};
use norfab_protocol::worker::{
    Abandoned, Asked, Class, Ending, LoadedJob, NotTaken, RestoredJob, StartJob, StoreFailure, Worker, WorkerConfig,
    WorkerOutput, WorkerStoreOperation, WorkerToken, result_reply,
};
use norfab_protocol::{Event, EventType, Severity};

use crate::client::{IDEMPOTENT, service};
use crate::plant::Plant;
use crate::scenario::{up_to, worker_name};
use crate::store::{WorkerItem, WorkerRows, Writer, seen};
use crate::wire::Wire;
use crate::world::{Occurrence, Peer, World, trace};

/// Longest time between two steps of a task.
const STEP_MAX: Duration = Duration::from_secs(6);

/// How long a task waits for an answer.
const QUESTION_TIMEOUT: Duration = Duration::from_secs(8);

/// What a task does next.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    /// Reports.
    Report,
    /// Sends bytes.
    Stream,
    /// Asks its client.
    Ask,
    /// Has waited long enough for the answer to this question.
    GiveUp(String),
    /// Ends.
    End,
}

/// What a worker's writer answers.
enum Confirmed {
    Loaded(JobId, Identity, Asked, Option<LoadedJob>),
    LookedUp(JobId, Identity, Vec<JobId>, HashSet<JobId>),
    Stored(WorkerToken, Result<(), StoreFailure>),
}

#[derive(Debug)]
struct Task {
    steps: VecDeque<Step>,
    question: Option<String>,
    questions: u32,
}

/// A worker's process and disk.
pub struct WorkerNode {
    /// Its name.
    pub identity: Identity,
    /// The process.
    pub machine: Option<Worker>,
    /// Counts the processes.
    process: u64,
    /// Set while the process is frozen.
    pub frozen_until: Option<Instant>,
    /// What arrived while it was.
    inbox: VecDeque<Frames>,
    /// What its host's wall clock is ahead, in seconds.
    pub clock: i64,
    /// The connection.
    pub wire: Wire,
    writer: Writer<WorkerItem>,
    /// The disk.
    pub rows: WorkerRows,
    /// The disk, too: tasks that have begun.
    begun: BTreeSet<JobId>,
    tasks: BTreeMap<JobId, Task>,
}

impl WorkerNode {
    /// A worker that does not run yet.
    pub fn new(index: usize, now: Instant) -> Self {
        Self {
            identity: Identity::parse(&worker_name(index)).expect("a name"),
            machine: None,
            process: 0,
            frozen_until: None,
            inbox: VecDeque::new(),
            clock: 0,
            wire: Wire::new(now),
            writer: Writer::default(),
            rows: WorkerRows::default(),
            begun: BTreeSet::new(),
            tasks: BTreeMap::new(),
        }
    }

    /// When it wants to be woken; never while it is frozen.
    pub fn next_deadline(&self) -> Option<Instant> {
        if self.frozen_until.is_some() {
            return None;
        }
        self.machine.as_ref()?.next_deadline()
    }

    /// What must hold between two steps: no job is in two states.
    pub fn check(&self) -> Option<String> {
        let machine = self.machine.as_ref()?;
        let has_ended = |job: &&JobId| self.rows.0.get(*job).is_some_and(|row| row.payload.is_some());
        if let Some(job) = self.tasks.keys().find(has_ended) {
            return Some(format!(
                "job {job} is in two states: it runs on {}, whose disk has its result",
                self.identity
            ));
        }
        (self.tasks.len() > machine.running())
            .then(|| format!("{} runs {} tasks and knows of {}", self.identity, self.tasks.len(), machine.running()))
    }

    /// What is left although everything is over.
    pub fn check_rest(&self) -> Vec<String> {
        let name = &self.identity;
        let mut broken = Vec::new();
        match &self.machine {
            None => broken.push(format!("{name} does not run")),
            Some(machine) => {
                if machine.unfinished() > 0 || machine.running() > 0 || !self.tasks.is_empty() {
                    broken.push(format!("{name} keeps {} jobs and {} tasks", machine.unfinished(), self.tasks.len()));
                }
            }
        }
        for (job, row) in &self.rows.0 {
            if row.payload.is_none() {
                broken.push(format!("job {job} never ended at {name}"));
            }
        }
        broken
    }
}

fn event(identity: &Identity, job: &JobId, kind: EventType, extras: Option<serde_json::Value>) -> Bytes {
    let status = match kind {
        EventType::ResultReady => EventStatus::Completed,
        EventType::Progress | EventType::InputRequest | EventType::InputResponse => EventStatus::Running,
    };
    body::encode(&Event {
        worker: identity.clone(),
        service: service(),
        uuid: job.clone(),
        event_type: kind,
        message: "news".to_owned(),
        task: "task".to_owned(),
        status,
        resource: Resource::default(),
        severity: Severity::Info,
        timestamp: "now".to_owned(),
        extras: extras.and_then(|extras| extras.as_object().cloned()),
        timeout: None,
    })
}

/// A question about many jobs as one who does not know such questions reads it.
fn without_jobs(frames: Frames) -> Frames {
    match BrokerToWorker::decode(&frames) {
        Ok(BrokerToWorker::Get(delivery)) => {
            BrokerToWorker::Get(Delivery { body: Bytes::from_static(b"{}"), ..delivery }).encode()
        }
        _ => frames,
    }
}

impl World {
    pub(crate) fn start_worker(&mut self, index: usize) {
        let now = self.agenda.now();
        let (plant, worker) = (self.plant, &mut self.workers[index]);
        let clock = worker.clock;
        worker.process += 1;
        let mut config = WorkerConfig::new(worker.identity.clone(), service());
        config.max_concurrent_jobs = self.scenario.max_concurrent_jobs;
        config.jobs_max = self.scenario.worker_jobs_max;
        worker.machine = Some(Worker::new(config, now));
        let restored: Vec<RestoredJob> = worker
            .rows
            .0
            .values()
            .filter(|row| row.payload.is_none())
            .map(|row| {
                let remaining = {
                    let time = row.new.time_left.unwrap_or_default();
                    let deadline = seen(row.received + time, row.clock, clock).unwrap_or(now);
                    let left = deadline.saturating_duration_since(now).min(time);
                    if plant == Some(Plant::GiveMoreTime) { time } else { left }
                };
                let begun = match plant {
                    Some(Plant::TakeForBegun) => true,
                    Some(Plant::BeginAgain) => false,
                    _ => worker.begun.contains(&row.new.job),
                };
                let attempts_max = if row.new.task.as_str() == IDEMPOTENT { u32::MAX } else { 1 };
                RestoredJob::of_row(row.new.clone(), remaining, row.attempts > 0, row.attempts, begun, attempts_max)
            })
            .collect();
        for job in restored {
            let Some(machine) = &mut self.workers[index].machine else { return };
            machine.restore(now, job);
            self.drain_worker(index);
        }
    }

    pub(crate) fn crash_worker(&mut self, index: usize) -> bool {
        let (late, now) = (self.random.bool(), self.agenda.now());
        let worker = &mut self.workers[index];
        if worker.machine.take().is_none() {
            return false;
        }
        self.watch.worker_crashed(&worker.identity);
        worker.wire.forget(late);
        worker.inbox.clear();
        worker.frozen_until = None;
        worker.tasks.clear();
        // The disk has any part of what was handed over, in its order.
        let mut items = worker.writer.crash();
        items.truncate(self.random.usize(..=items.len()));
        for item in items {
            if let WorkerItem::Apply(operation, _) = item {
                // Whether it is refused does not matter: nobody is there to be told.
                if worker.rows.apply(now, worker.clock, &operation).is_ok()
                    && let WorkerStoreOperation::Finish { job, .. } = &operation
                {
                    self.watch.result_stored(now, job, &worker.identity);
                }
            }
        }
        true
    }

    pub(crate) fn freeze(&mut self, index: usize, time: Duration) -> bool {
        let worker = &mut self.workers[index];
        if worker.machine.is_none() || worker.frozen_until.is_some() {
            return false;
        }
        worker.frozen_until = Some(self.agenda.now() + time);
        true
    }

    pub(crate) fn thaw(&mut self, index: usize) {
        let now = self.agenda.now();
        if self.workers[index].frozen_until.is_none_or(|at| at > now) {
            return;
        }
        trace!(self, "worker {index} goes on");
        self.watch.disturbed(now);
        self.workers[index].frozen_until = None;
        while let Some(frames) = self.workers[index].inbox.pop_front() {
            self.worker_message(index, frames);
        }
        self.flush(Peer::Worker(index));
    }

    pub(crate) fn worker_connected(&mut self, index: usize) {
        let now = self.agenda.now();
        if let Some(machine) = &mut self.workers[index].machine {
            machine.connected(now);
            self.drain_worker(index);
        }
    }

    pub(crate) fn worker_message(&mut self, index: usize, frames: Frames) {
        let now = self.agenda.now();
        let worker = &mut self.workers[index];
        if worker.frozen_until.is_some() {
            worker.inbox.push_back(frames);
        } else if let Some(machine) = &mut worker.machine {
            let is_plain = self.scenario.last_is_plain && index + 1 == self.scenario.workers;
            let frames = if is_plain { without_jobs(frames) } else { frames };
            machine.message(now, &frames);
            self.drain_worker(index);
        }
    }

    pub(crate) fn worker_timeout(&mut self, index: usize) {
        let now = self.agenda.now();
        if let Some(machine) = &mut self.workers[index].machine {
            machine.timeout(now);
            self.drain_worker(index);
        }
    }

    pub(crate) fn worker_written(&mut self, index: usize, process: u64) {
        let worker = &mut self.workers[index];
        if worker.process != process || worker.machine.is_none() {
            return;
        }
        if let Some(at) = worker.frozen_until {
            self.agenda.at(at, Occurrence::Written(Peer::Worker(index), process));
            return;
        }
        let now = self.agenda.now();
        // The disk has all of a batch before anybody hears of it.
        let mut confirmed = Vec::new();
        for item in worker.writer.take_batch() {
            let worker = &mut self.workers[index];
            match item {
                // Nothing is said of one whose end is being written.
                WorkerItem::Load(job, ..) if worker.writer.is_aside(&job) => {}
                WorkerItem::Load(job, client, asked) => {
                    let row = worker.rows.0.get(&job);
                    let loaded =
                        row.map(|row| LoadedJob { payload: row.payload.as_ref().map(|(payload, _)| payload.clone()) });
                    confirmed.push(Confirmed::Loaded(job, client, asked, loaded));
                }
                WorkerItem::LookUp(jobs, question, client) => {
                    self.watch.counts.questions += 1;
                    let stored = jobs.iter().filter(|job| worker.rows.0.contains_key(*job)).cloned().collect();
                    confirmed.push(Confirmed::LookedUp(question, client, jobs, stored));
                }
                WorkerItem::Apply(operation, token) => {
                    if self.plant == Some(Plant::ForgetDuplicates)
                        && let WorkerStoreOperation::Insert(new) = &operation
                    {
                        worker.rows.0.remove(&new.job);
                    }
                    let fails_per_mille = match operation {
                        WorkerStoreOperation::Started(_) | WorkerStoreOperation::StartedAnew(_) => {
                            self.scenario.unwritten_starts_per_mille
                        }
                        WorkerStoreOperation::Finish { .. } => self.scenario.unwritten_results_per_mille,
                        _ => 0,
                    };
                    let fails = fails_per_mille > 0 && self.random.u32(..1000) < fails_per_mille;
                    let gives_up =
                        fails && matches!(operation, WorkerStoreOperation::Finish { .. }) && self.random.bool();
                    let outcome = if gives_up {
                        Err(StoreFailure::GivenUp("the disk is full".to_owned()))
                    } else if fails {
                        Err(StoreFailure::Failed("the disk is full".to_owned()))
                    } else {
                        worker.rows.apply(now, worker.clock, &operation)
                    };
                    if let (WorkerStoreOperation::Finish { job, .. }, Ok(())) = (&operation, &outcome) {
                        self.watch.result_stored(now, job, &worker.identity);
                    }
                    if let WorkerStoreOperation::Finish { job, .. } = &operation
                        && fails
                    {
                        self.watch.result_not_stored(job, &worker.identity);
                        if !gives_up {
                            // The store keeps it, and says so when it is written.
                            worker.writer.push(WorkerItem::Apply(operation, token.clone()));
                        }
                    }
                    if let Some(token) = token
                        && self.plant != Some(Plant::AcknowledgeFirst)
                    {
                        confirmed.push(Confirmed::Stored(token, outcome));
                    }
                }
            }
        }
        for confirmed in confirmed {
            let Some(machine) = &mut self.workers[index].machine else { return };
            match confirmed {
                Confirmed::Loaded(job, client, asked, loaded) => machine.loaded(job, client, asked, loaded),
                Confirmed::LookedUp(question, client, jobs, stored) => {
                    machine.looked_up(question, client, jobs, &stored);
                }
                Confirmed::Stored(token, outcome) => machine.stored(now, token, outcome),
            }
            self.drain_worker(index);
        }
        self.drain_worker(index);
    }

    /// READY is the first message of a connection and a good-bye is the last.
    pub(crate) fn check_order(&mut self, index: usize, first: bool, gone: bool, frames: &Frames) {
        match WorkerMessage::decode(frames) {
            Ok(message) if gone => self.watch.fail(format!("worker {index} speaks after its good-bye: {message:?}")),
            Ok(message) if first => self.watch.worker_speaks_first(&self.workers[index].identity, &message),
            Ok(WorkerMessage::Disconnect(_)) => self.workers[index].wire.said_goodbye = true,
            Ok(_) => {}
            Err(error) => self.watch.fail(format!("worker {index} sends what nobody can read: {error}")),
        }
    }

    fn worker_sends(&mut self, index: usize, frames: Frames, class: Class, job: Option<JobId>) {
        let worker = &mut self.workers[index];
        match WorkerMessage::decode(&frames) {
            Ok(message) => self.watch.worker_says(&worker.identity, &message, &worker.rows),
            Err(error) => self.watch.fail(format!("worker {index} sends what nobody can read: {error}")),
        }
        worker.wire.send(frames, class, job);
    }

    fn drain_worker(&mut self, index: usize) {
        loop {
            if self.strikes(Some(Peer::Worker(index))) {
                return;
            }
            let worker = &mut self.workers[index];
            let Some(output) = worker.machine.as_mut().and_then(Worker::poll_output) else { break };
            match output {
                WorkerOutput::Withdraw(job) => worker.wire.forget_job(&job),
                WorkerOutput::Send(frames, class) => self.worker_sends(index, frames, class, None),
                WorkerOutput::Announce(job, frames) => self.worker_sends(index, frames, Class::Unhurried, Some(job)),
                WorkerOutput::Store(operation, token) => {
                    if let WorkerStoreOperation::Finish { job, ending, .. } = &operation {
                        self.watch.finishes(job, &worker.identity, *ending);
                    }
                    let first = token.clone().filter(|_| self.plant == Some(Plant::AcknowledgeFirst));
                    worker.writer.push(WorkerItem::Apply(operation, token));
                    if let (Some(token), Some(machine)) = (first, &mut worker.machine) {
                        machine.stored(self.agenda.now(), token, Ok(()));
                    }
                }
                WorkerOutput::Load { job, client, asked } => worker.writer.push(WorkerItem::Load(job, client, asked)),
                WorkerOutput::LookUp { jobs, question, client } => {
                    worker.writer.push(WorkerItem::LookUp(jobs, question, client));
                }
                WorkerOutput::Start(start) => self.start_task(index, start),
                WorkerOutput::Abandon { job, why, .. } => {
                    trace!(self, "worker {index}: {job} does not run: {why:?}");
                    if matches!(why, Abandoned::Cancelled { .. }) {
                        self.announce_cancel(index, &job, &why);
                    }
                    if why == Abandoned::Restarted {
                        self.watch.interrupted(&job, &self.workers[index].identity);
                    }
                    self.finish_task(index, &job, Ending::Failed);
                }
                WorkerOutput::Deliver { job, put } => self.deliver(index, &job, &put),
                WorkerOutput::Cancel { job, why, .. } => {
                    self.announce_cancel(index, &job, &why);
                    // Some tasks end when they are told to, others do not listen.
                    if self.random.bool() && self.workers[index].tasks.remove(&job).is_some() {
                        self.finish_task(index, &job, Ending::Cancelled);
                    }
                }
                WorkerOutput::Reconnect => {
                    self.last_word(Peer::Worker(index));
                    self.drop_wire(Peer::Worker(index));
                }
                WorkerOutput::Note(note) => trace!(self, "worker {index}: {note:?}"),
            }
        }
        self.flush(Peer::Worker(index));
        let process = self.workers[index].process;
        let large_per_mille = self.scenario.large_per_mille;
        if self.workers[index].writer.begin(|| large_per_mille > 0 && self.random.u32(..1000) < large_per_mille) {
            let delay = self.store_delay();
            self.agenda.after(delay, Occurrence::Written(Peer::Worker(index), process));
        }
    }

    fn announce_cancel(&mut self, index: usize, job: &JobId, why: &Abandoned) {
        let worker = &mut self.workers[index];
        self.watch.worker_cancels(job, &worker.identity);
        let text = "cancelled by its caller";
        let is_back = matches!(why, Abandoned::Cancelled { back: true, .. });
        let cancellation = (!is_back).then(|| serde_json::json!({ body::CANCELLATION_KEY: { "text": text } }));
        let body = event(&worker.identity, job, EventType::Progress, cancellation);
        let taken = worker.machine.as_mut().map(|machine| machine.announce_cancel(job, text, body));
        self.check_taken(index, job, taken);
    }

    fn start_task(&mut self, index: usize, start: StartJob) {
        let StartJob { job, attempt, request, .. } = start;
        trace!(self, "worker {index}: {job} runs");
        let again = request.task.as_str() == IDEMPOTENT && attempt > 1;
        let row = self.workers[index].rows.0.get(&job);
        let its_deadline = row.map(|row| row.received + row.new.time_left.unwrap_or_default());
        if its_deadline.is_some_and(|at| at < self.agenda.now()) && !self.scenario.steps_clocks() {
            self.watch.fail(format!("job {job} starts on worker {index} after the deadline that it came with"));
        }
        // One whose process ended before its task began is not counted a second time.
        if self.plant != Some(Plant::AcknowledgeFirst) && row.is_none_or(|row| row.attempts != attempt) {
            let attempts = row.map(|row| row.attempts);
            self.watch
                .fail(format!("attempt {attempt} of job {job} starts on worker {index}, whose disk has {attempts:?}"));
        }
        self.workers[index].begun.insert(job.clone());
        self.watch.started(self.agenda.now(), &job, &self.workers[index].identity, again);
        let mut steps: VecDeque<Step> = (0..self.random.u8(..4))
            .map(|_| match self.random.u8(..5) {
                0 => Step::Ask,
                1 => Step::Stream,
                _ => Step::Report,
            })
            .collect();
        steps.push_back(Step::End);
        self.workers[index].tasks.insert(job.clone(), Task { steps, question: None, questions: 0 });
        self.next_step(index, job);
    }

    fn next_step(&mut self, index: usize, job: JobId) {
        let worker = &mut self.workers[index];
        let Some(step) = worker.tasks.get_mut(&job).and_then(|task| task.steps.pop_front()) else { return };
        let process = worker.process;
        let delay = up_to(&mut self.random, STEP_MAX);
        self.agenda.after(delay, Occurrence::Step(index, process, job, step));
    }

    pub(crate) fn task_step(&mut self, index: usize, process: u64, job: JobId, step: Step) {
        let worker = &mut self.workers[index];
        if worker.process != process {
            return;
        }
        if let Some(at) = worker.frozen_until {
            self.agenda.at(at, Occurrence::Step(index, process, job, step));
            return;
        }
        let Some(task) = worker.tasks.get_mut(&job) else { return };
        match step {
            Step::Report => {
                self.report(index, &job, EventType::Progress, None);
                self.next_step(index, job);
            }
            Step::Stream => {
                let taken = worker.machine.as_mut().map(|machine| machine.stream(&job, Bytes::from_static(b"bytes")));
                self.check_taken(index, &job, taken);
                self.next_step(index, job);
            }
            Step::Ask => {
                task.questions += 1;
                let question = format!("{job}-{index}-{}", task.questions);
                task.question = Some(question.clone());
                self.report(index, &job, EventType::InputRequest, Some(&question));
                let give_up = Occurrence::Step(index, process, job, Step::GiveUp(question));
                self.agenda.after(QUESTION_TIMEOUT, give_up);
            }
            Step::GiveUp(question) => {
                if task.question.as_ref() == Some(&question) {
                    task.question = None;
                    self.report(index, &job, EventType::InputResponse, Some(&question));
                    self.next_step(index, job);
                }
            }
            Step::End => {
                worker.tasks.remove(&job);
                self.finish_task(index, &job, Ending::Completed);
            }
        }
        self.drain_worker(index);
    }

    fn deliver(&mut self, index: usize, job: &JobId, put: &PutBody) {
        let PutBody::Input(input) = put else { return };
        let Some(task) = self.workers[index].tasks.get_mut(job) else {
            return self.watch.fail(format!("worker {index} has input for {job}, which does not run"));
        };
        if task.question.as_ref() == Some(&input.input_id) {
            task.question = None;
            self.report(index, job, EventType::InputResponse, Some(&input.input_id));
            self.next_step(index, job.clone());
        }
    }

    fn report(&mut self, index: usize, job: &JobId, kind: EventType, question: Option<&str>) {
        let worker = &mut self.workers[index];
        let (extras, request) = match (kind, question) {
            (EventType::InputRequest, Some(id)) => {
                let request = InputRequest {
                    id: id.to_owned(),
                    question: "well?".to_owned(),
                    default: serde_json::Value::Null,
                    timeout: Some(QUESTION_TIMEOUT.as_secs()),
                    metadata: serde_json::Value::Null,
                };
                (Some(serde_json::json!({ "input_request": request })), Some(request))
            }
            (EventType::InputResponse, Some(id)) => {
                (Some(serde_json::json!({ "input_response": { "input_id": id } })), None)
            }
            _ => (None, None),
        };
        let body = event(&worker.identity, job, kind, extras);
        let answered = (kind == EventType::InputResponse).then_some(question).flatten();
        let taken = worker.machine.as_mut().map(|machine| machine.event(job, kind, request, answered, body));
        self.check_taken(index, job, taken);
    }

    fn check_taken(&mut self, index: usize, job: &JobId, taken: Option<Result<(), NotTaken>>) {
        if let Some(Err(reason)) = taken {
            self.watch.fail(format!("worker {index} does not take news of {job}, which runs: {reason}"));
        }
    }

    fn finish_task(&mut self, index: usize, job: &JobId, ending: Ending) {
        let now = self.agenda.now();
        let worker = &mut self.workers[index];
        let last = event(&worker.identity, job, EventType::ResultReady, None);
        let reply = result_reply(&worker.identity, b"{\"result\":true}");
        if let Some(machine) = &mut worker.machine {
            machine.finished(now, job, ending, reply, last);
        }
    }
}
