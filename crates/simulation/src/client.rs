//! A client, its store, and the people who use it.

use std::time::{Duration, Instant};

use norfab_protocol::Target;
use norfab_protocol::body::{self, FABRIC_VERSION, InputResponse, JobRequestBody, ManagementBody};
use norfab_protocol::client::backlog::{Backlog, BacklogBounds, Held, Reading};
use norfab_protocol::client::{
    Client, ClientOutput, ClientStoreOperation, ClientToken, JobRequest, JobState, JobUpdate, Progress,
};
use norfab_protocol::frame::Frames;
use norfab_protocol::message::{ClientCommand, ClientMessage};
use norfab_protocol::name::{Identity, JobId, ServiceName, TaskName};
use norfab_protocol::worker::Class;

use crate::plant::Plant;
use crate::scenario::{client_name, up_to};
use crate::store::{ClientItem, ClientRow, ClientRows, Place, Waiting, Writer};
use crate::wire::Wire;
use crate::world::{Occurrence, Peer, World, trace};

/// How long the answer to a management request may take.
const MANAGEMENT_TIMEOUT: Duration = Duration::from_secs(5);

/// Longest time that a person thinks.
const THINKING_MAX: Duration = Duration::from_secs(4);

/// Longest time between a change on the disk and the word that it is there.
const CONFIRMED_MAX: Duration = Duration::from_millis(50);

/// Jobs that were read back, and where they end.
pub(crate) type Page = (Vec<Waiting>, Option<Place>);

/// What a client's writer answers.
#[derive(Debug)]
pub enum Confirmed {
    /// A change is on the disk, or was refused.
    Stored(ClientToken, Result<(), String>),
    /// What was read back of the jobs that wait.
    Read(Reading<Place>, Result<Page, ()>),
    /// A job that is to be cancelled, why, and its row.
    Found(JobId, String, Option<Box<Waiting>>),
}

/// A client's process and disk.
pub struct ClientNode {
    /// Its number.
    pub index: usize,
    /// What its host's wall clock is ahead, in seconds.
    pub clock: i64,
    /// The process.
    pub machine: Option<Client>,
    /// It is not woken before: see [`Plant::Oversleep`].
    sleeps_until: Instant,
    /// Counts the processes.
    pub(crate) process: u64,
    pub(crate) alive_since: Instant,
    /// The connection.
    pub wire: Wire,
    pub(crate) writer: Writer<ClientItem>,
    /// What waits on the disk until the machine has room.
    pub(crate) backlog: Backlog<Place>,
    /// What the wall clock was ahead when the process began.
    pub(crate) steady: i64,
    /// Rows up to this one are those of a process before this one.
    pub(crate) last_number: Option<u64>,
    /// The same by the wall clock.
    pub(crate) began: i64,
    /// The disk.
    pub rows: ClientRows,
    management_open: usize,
}

impl ClientNode {
    /// A client that does not run yet.
    pub fn new(index: usize, now: Instant, bounds: BacklogBounds) -> Self {
        Self {
            index,
            clock: 0,
            machine: None,
            sleeps_until: now,
            process: 0,
            alive_since: now,
            wire: Wire::new(now),
            writer: Writer::default(),
            backlog: Backlog::new(bounds),
            steady: 0,
            last_number: None,
            began: 0,
            rows: ClientRows::default(),
            management_open: 0,
        }
    }

    /// When it wants to be woken.
    pub fn next_deadline(&self) -> Option<Instant> {
        let of_machine = self.machine.as_ref()?.next_deadline().map(|at| at.max(self.sleeps_until));
        [of_machine, self.backlog.deadline()].into_iter().flatten().min()
    }

    /// What must hold between two steps: no job is in two states.
    pub fn check(&self, bounds: &BacklogBounds) -> Option<String> {
        let machine = self.machine.as_ref()?;
        let has_ended = |(job, row): &(&JobId, &ClientRow)| {
            row.progress.state.is_final() && machine.state(job).is_some_and(|state| state != JobState::Cancelling)
        };
        if let Some((job, row)) = self.rows.0.iter().find(has_ended) {
            let (stored, held) = (row.progress.state, machine.state(job));
            return Some(format!("job {job} is in two states: {stored:?} on the disk, {held:?} in its client"));
        }
        // The last page that is read at the start may go beyond.
        let held = Held::of(machine);
        (held.jobs > bounds.jobs_max + bounds.page_jobs)
            .then(|| format!("client {} holds {} jobs, {bounds:?}", self.index, held.jobs))
    }

    /// What is left although everything is over.
    pub fn check_rest(&self) -> Vec<String> {
        let name = client_name(self.index);
        let mut broken = Vec::new();
        match &self.machine {
            None => broken.push(format!("{name} does not run")),
            Some(machine) => {
                if machine.unfinished() > 0 || machine.next_deadline().is_some() || self.wire.waiting() > 0 {
                    broken.push(format!("{name} keeps {} jobs", machine.unfinished()));
                }
                if !self.backlog.is_empty() {
                    broken.push(format!("{name} believes that jobs wait in its database"));
                }
            }
        }
        if self.management_open > 0 {
            broken.push(format!("{name} waits for {} management requests", self.management_open));
        }
        for (job, row) in &self.rows.0 {
            if !row.progress.state.is_final() {
                broken.push(format!("job {job} is stored as {:?}", row.progress.state));
            } else if row.progress.state == JobState::Completed
                && !row.progress.dispatched.iter().all(|worker| row.results.contains(worker))
            {
                broken.push(format!("job {job} is stored as complete without all its results"));
            }
        }
        broken
    }
}

/// The task that may run again on its worker after a crash.
pub(crate) const IDEMPOTENT: &str = "again";

/// What a client says that cancels a job.
const CANCELLED_BY_CALLER: &str = "cancelled by its caller";

/// The one service of the simulation.
pub(crate) fn service() -> ServiceName {
    ServiceName::parse("service").expect("a name")
}

/// The id of a planned job.
fn job_id(index: usize) -> JobId {
    JobId::parse(&format!("job-{index}")).expect("a name")
}

impl World {
    pub(crate) fn crash_client(&mut self, index: usize) -> bool {
        let late = self.random.bool();
        let client = &mut self.clients[index];
        if client.machine.take().is_none() {
            return false;
        }
        client.management_open = 0;
        self.watch.client_crashed(index);
        client.wire.forget(late);
        // The disk has any part of what was handed over, in its order.
        let mut items = client.writer.crash();
        items.truncate(self.random.usize(..=items.len()));
        for item in items {
            if let ClientItem::Apply(operation, _) = item {
                // Whether it is refused does not matter: nobody is there to be told.
                self.write_of_client(index, &operation).ok();
            }
        }
        self.watch.callers_went(&self.clients[index].rows);
        true
    }

    pub(crate) fn submit(&mut self, index: usize) {
        let planned = self.scenario.jobs[index].clone();
        let now = self.agenda.now();
        let client = &mut self.clients[planned.client];
        let Some(machine) = &mut client.machine else { return };
        let task = TaskName::parse(if planned.idempotent { IDEMPOTENT } else { "task" }).expect("a name");
        let request_body = JobRequestBody {
            task: task.clone(),
            kwargs: serde_json::Map::new(),
            args: Vec::new(),
            timeout: Some(planned.timeout.as_secs()),
            fabric: planned.fabric.then_some(FABRIC_VERSION),
            wait: planned.waits.then_some(true),
        };
        let deadline = now + planned.timeout;
        self.watch.submitted(now, planned.client, &job_id(index), &planned.target, deadline);
        let request = JobRequest {
            job: job_id(index),
            service: service(),
            task,
            target: planned.target,
            body: body::encode(&request_body),
            timeout: planned.timeout,
            deadline,
            waits: planned.waits,
        };
        if client.backlog.takes(Held::of(machine)) && self.plant != Some(Plant::TakeAll) {
            client.backlog.push(request.job.clone(), deadline);
            let token = ClientToken(request.job.clone());
            client.writer.push(ClientItem::Apply(ClientStoreOperation::Insert(request), Some(token)));
        } else {
            machine.submit(request);
        }
        self.drain_client(planned.client);
    }

    pub(crate) fn cancel(&mut self, index: usize) {
        let planned = &self.scenario.jobs[index];
        let (client, by, now) = (planned.client, planned.cancelled_by, self.agenda.now());
        let canceller = &mut self.clients[by];
        if let Some(machine) = &mut canceller.machine {
            let (id, text) = (job_id(index), CANCELLED_BY_CALLER.to_owned());
            if by != client {
                let of = Identity::parse(&client_name(client)).expect("a name");
                machine.cancel_elsewhere(Some(of), &id, service(), Target::All, text);
            } else if canceller.backlog.is_empty() || machine.state(&id).is_some() {
                machine.cancel(now, &id, text);
            } else {
                // It may be one that waits on the disk.
                canceller.backlog.asks();
                canceller.writer.push(ClientItem::Find(id, text));
            }
            self.drain_client(by);
        }
    }

    pub(crate) fn manage(&mut self, index: usize) {
        let now = self.agenda.now();
        let client = &mut self.clients[index];
        if let Some(machine) = &mut client.machine {
            client.management_open += 1;
            let request = ManagementBody {
                task: Some("show_workers".to_owned()),
                kwargs: serde_json::Map::new(),
                args: Vec::new(),
            };
            let id = JobId::parse(&format!("management-{index}")).expect("a name");
            let service = ServiceName::parse(norfab_protocol::broker::MANAGEMENT_SERVICE).expect("a name");
            machine.management(id, service, &request, now + MANAGEMENT_TIMEOUT);
            self.drain_client(index);
        }
    }

    pub(crate) fn client_connected(&mut self, index: usize) {
        let now = self.agenda.now();
        if let Some(machine) = &mut self.clients[index].machine {
            machine.connected(now);
            self.drain_client(index);
        }
    }

    pub(crate) fn client_message(&mut self, index: usize, frames: &Frames) {
        let now = self.agenda.now();
        if let Some(machine) = &mut self.clients[index].machine {
            machine.message(now, frames);
            self.drain_client(index);
        }
    }

    pub(crate) fn client_timeout(&mut self, index: usize) {
        let now = self.agenda.now();
        if let Some(machine) = &mut self.clients[index].machine {
            if machine.next_deadline().is_some_and(|at| at <= now) {
                machine.timeout(now);
            }
            if self.plant == Some(Plant::Oversleep) {
                self.clients[index].sleeps_until = now + Duration::from_secs(30);
            }
            self.drain_client(index);
        }
    }

    pub(crate) fn client_written(&mut self, index: usize, process: u64) {
        if self.clients[index].process != process || self.clients[index].machine.is_none() {
            return;
        }
        let now = self.agenda.now();
        // The disk has all of a batch before anybody hears of it.
        let mut confirmed = Vec::new();
        for item in self.clients[index].writer.take_batch_to_tell() {
            let client = &self.clients[index];
            match item {
                ClientItem::Apply(ClientStoreOperation::Result { .. }, _) if self.plant == Some(Plant::LoseResults) => {
                }
                ClientItem::Apply(operation, token) => {
                    let outcome = self.write_of_client(index, &operation);
                    match token {
                        Some(token) => confirmed.push(Confirmed::Stored(token, outcome)),
                        None => {
                            if let Err(error) = outcome {
                                self.watch.fail(format!("the store of client {index} refused: {error}: {operation:?}"));
                            }
                        }
                    }
                }
                ClientItem::Read(what) => {
                    let page = client.rows.read(now, client.steady, &what, &self.scenario.backlog);
                    let fails = self.random.u32(..1000) < self.scenario.unread_per_mille;
                    confirmed.push(Confirmed::Read(what, if fails { Err(()) } else { Ok(page) }));
                }
                ClientItem::Find(job, text) => {
                    let found = client.rows.0.get(&job).map(|row| Box::new(row.waiting(now, client.steady)));
                    confirmed.push(Confirmed::Found(job, text, found));
                }
            }
        }
        // What else happens meanwhile may be heard of first.
        let delay = up_to(&mut self.random, CONFIRMED_MAX);
        self.agenda.after(delay, Occurrence::Confirmed(index, process, confirmed));
    }

    pub(crate) fn client_confirmed(&mut self, index: usize, process: u64, confirmed: Vec<Confirmed>) {
        if self.clients[index].process != process {
            return;
        }
        let now = self.agenda.now();
        self.clients[index].writer.has_told();
        for confirmed in confirmed {
            let client = &mut self.clients[index];
            let Some(machine) = &mut client.machine else { return };
            match confirmed {
                Confirmed::Stored(token, outcome) => {
                    if client.backlog.confirmed(&token.0, outcome.is_ok()) {
                        let is_stored = client.rows.0.contains_key(&token.0);
                        self.watch.acknowledged(&token.0, is_stored);
                    } else {
                        machine.stored(now, token, outcome);
                    }
                }
                Confirmed::Read(what, page) => self.read_back(index, &what, page),
                Confirmed::Found(job, text, found) => {
                    if let Some(waiting) = found {
                        self.take_back(index, *waiting);
                    }
                    let client = &mut self.clients[index];
                    client.backlog.has_answered();
                    let Some(machine) = &mut client.machine else { return };
                    machine.cancel(now, &job, text);
                    self.taken_back(index);
                }
            }
            self.drain_client(index);
        }
        self.drain_client(index);
    }

    fn write_of_client(&mut self, index: usize, operation: &ClientStoreOperation) -> Result<(), String> {
        if let ClientStoreOperation::Progress(Progress { state: JobState::Cancelling, job, .. }) = operation {
            self.watch.cancellation_stored(job);
        }
        let wall = self.wall_of_client(index);
        let client = &mut self.clients[index];
        client.rows.apply(wall, client.steady, operation)
    }

    pub(crate) fn answer(&mut self, index: usize, process: u64, job: &JobId, worker: &Identity, question: String) {
        let client = &mut self.clients[index];
        if client.process == process
            && let Some(machine) = &mut client.machine
        {
            let response =
                InputResponse { input_id: question, value: None, cancel: false, metadata: serde_json::Value::Null };
            machine.answer(job, Some(worker), &response);
            self.drain_client(index);
        }
    }

    pub(crate) fn drain_client(&mut self, index: usize) {
        loop {
            if self.strikes(Some(Peer::Client(index))) {
                return;
            }
            let client = &mut self.clients[index];
            let Some(output) = client.machine.as_mut().and_then(Client::poll_output) else { break };
            match output {
                ClientOutput::Send(frames, job) => {
                    if let Ok(ClientMessage { command: ClientCommand::Delete, job, body, .. }) =
                        ClientMessage::decode(&frames)
                        && let Some(row) = client.rows.0.get(&job)
                        && body.windows(CANCELLED_BY_CALLER.len()).any(|part| part == CANCELLED_BY_CALLER.as_bytes())
                        && !matches!(row.progress.state, JobState::Cancelling | JobState::Cancelled)
                    {
                        self.watch.fail(format!("a worker is told that job {job} is cancelled before it is stored"));
                    }
                    client.wire.send(frames, Class::Data, job);
                }
                ClientOutput::Forget(job) => client.wire.forget_job(&job),
                ClientOutput::Store(operation, token) => {
                    if let ClientStoreOperation::Progress(progress) = &operation {
                        self.watch.progressed(progress);
                        if progress.state == JobState::Cancelled {
                            let rows = self.workers.iter().map(|worker| (&worker.identity, &worker.rows));
                            self.watch.cancelled(self.agenda.now(), &progress.job, rows);
                        }
                    }
                    if let ClientStoreOperation::Progress(progress) = &operation
                        && progress.state.is_final()
                    {
                        client.backlog.has_ended(&progress.job);
                    }
                    client.writer.push(ClientItem::Apply(operation, token));
                }
                ClientOutput::Update(job, update) => self.client_update(index, &job, update),
                ClientOutput::Management(..) => client.management_open -= 1,
                ClientOutput::Reconnect => self.drop_wire(Peer::Client(index)),
                ClientOutput::Note(note) => trace!(self, "client {index}: {note:?}"),
            }
        }
        self.refill(index);
        self.flush(Peer::Client(index));
        let process = self.clients[index].process;
        let large_per_mille = self.scenario.large_per_mille;
        if self.clients[index].writer.begin(|| large_per_mille > 0 && self.random.u32(..1000) < large_per_mille) {
            let delay = self.store_delay();
            self.agenda.after(delay, Occurrence::Written(Peer::Client(index), process));
        }
    }

    fn client_update(&mut self, index: usize, job: &JobId, update: JobUpdate) {
        let now = self.agenda.now();
        match update {
            JobUpdate::Stored => self.watch.acknowledged(job, self.clients[index].rows.0.contains_key(job)),
            JobUpdate::Waits(_) => {}
            JobUpdate::Dispatched(workers) => {
                trace!(self, "client {index}: {job} is with {workers:?}");
                self.watch.dispatched(job);
            }
            JobUpdate::Accepted(worker) => trace!(self, "client {index}: {job} accepted by {worker}"),
            JobUpdate::Event(..) | JobUpdate::Stream(_) => {}
            JobUpdate::Question(worker, question) => {
                if self.random.u8(..5) > 0 {
                    let process = self.clients[index].process;
                    let thinking = up_to(&mut self.random, THINKING_MAX);
                    self.agenda.after(thinking, Occurrence::Answer(index, process, job.clone(), worker, question.id));
                }
            }
            JobUpdate::Result(worker, _) => {
                trace!(self, "client {index}: {job} has the result of {worker}");
                let restarted = self.clients[index].process > 1;
                self.watch.result(job, &worker, restarted);
            }
            JobUpdate::Finished(outcome) => {
                trace!(self, "client {index}: {job} ended: {outcome:?}");
                let client = &self.clients[index];
                let alive_since = client.alive_since;
                // Nobody goes on with a job whose deadline has passed, and one that was never stored is nowhere. Where a worker
                // says that it is cancelled, by somebody else perhaps, that worker has it in its own database.
                if outcome.state == JobState::Cancelled
                    && !self.watch.has_result(job)
                    && let Some(row) = client.rows.0.get(job)
                    && row.request.deadline > now
                    && row.progress.dispatched.is_empty()
                    && !matches!(row.progress.state, JobState::Cancelling | JobState::Cancelled)
                {
                    self.watch.fail(format!("job {job} is told as cancelled before that is stored"));
                }
                let stored = client.rows.0.get(job).map(|row| row.results.clone()).unwrap_or_default();
                self.watch.ended(now, job, &outcome, alive_since, &stored);
            }
        }
    }
}
