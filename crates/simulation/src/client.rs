//! A client, its store, and the people who use it.

use std::time::{Duration, Instant};

use norfab_protocol::Target;
use norfab_protocol::body::{self, FABRIC_VERSION, InputResponse, JobRequestBody, ManagementBody};
use norfab_protocol::client::{
    Client, ClientConfig, ClientOutput, ClientStoreOperation, JobRequest, JobState, JobUpdate, Progress,
    RestoredClientJob,
};
use norfab_protocol::frame::Frames;
use norfab_protocol::message::{ClientCommand, ClientMessage};
use norfab_protocol::name::{Identity, JobId, ServiceName, TaskName};
use norfab_protocol::worker::Class;

use crate::plant::Plant;
use crate::scenario::{client_name, up_to};
use crate::store::{ClientItem, ClientRows, Writer, seen};
use crate::wire::Wire;
use crate::world::{Occurrence, Peer, World, trace};

/// How long the answer to a management request may take.
const MANAGEMENT_TIMEOUT: Duration = Duration::from_secs(5);

/// Longest time that a person thinks.
const THINKING_MAX: Duration = Duration::from_secs(4);

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
    process: u64,
    alive_since: Instant,
    /// The connection.
    pub wire: Wire,
    writer: Writer<ClientItem>,
    /// The disk.
    pub rows: ClientRows,
    management_open: usize,
}

impl ClientNode {
    /// A client that does not run yet.
    pub fn new(index: usize, now: Instant) -> Self {
        Self {
            index,
            clock: 0,
            machine: None,
            sleeps_until: now,
            process: 0,
            alive_since: now,
            wire: Wire::new(now),
            writer: Writer::default(),
            rows: ClientRows::default(),
            management_open: 0,
        }
    }

    /// When it wants to be woken.
    pub fn next_deadline(&self) -> Option<Instant> {
        self.machine.as_ref()?.next_deadline().map(|at| at.max(self.sleeps_until))
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
    pub(crate) fn start_client(&mut self, index: usize) {
        let now = self.agenda.now();
        let (forgets, client) = (self.plant == Some(Plant::ForgetCancellations), &mut self.clients[index]);
        let clock = client.clock;
        client.process += 1;
        client.alive_since = now;
        let seed = (index as u64) << 32 | client.process;
        let mut machine = Client::new(ClientConfig { seed, ..ClientConfig::default() });
        machine.disconnected();
        client.machine = Some(machine);
        let restored: Vec<RestoredClientJob> = client
            .rows
            .0
            .values()
            .filter(|row| !row.progress.state.is_final())
            .map(|row| RestoredClientJob {
                request: {
                    let mut request = row.request.clone();
                    let deadline = seen(request.deadline, row.clock, clock).unwrap_or(now).max(now);
                    request.deadline = deadline.min(now + request.timeout);
                    request
                },
                state: row.progress.state,
                dispatched: row.progress.dispatched.clone(),
                started: row.progress.started.clone(),
                completed: row.progress.completed.clone(),
                errors: row.progress.errors.clone(),
            })
            .collect();
        for mut job in restored {
            if forgets && job.state == JobState::Cancelling {
                job.state = JobState::Started;
            }
            let cancelled = job.state == JobState::Cancelling;
            let again = !cancelled && (job.dispatched.is_empty() || job.state == JobState::Submitting);
            let state = if again { JobState::New } else { job.state };
            self.watch.restored(&job.request.job, state, &job.dispatched, job.request.deadline);
            if let Some(machine) = &mut self.clients[index].machine {
                machine.restore(now, job);
            }
            self.drain_client(index);
        }
    }

    pub(crate) fn crash_client(&mut self, index: usize) -> bool {
        let written = self.random.bool();
        let client = &mut self.clients[index];
        if client.machine.take().is_none() {
            return false;
        }
        client.management_open = 0;
        client.wire.forget();
        for (operation, _) in client.writer.crash() {
            if written {
                // Whether it is refused does not matter: nobody is there to be told.
                client.rows.apply(client.clock, &operation).ok();
            }
        }
        true
    }

    pub(crate) fn submit(&mut self, index: usize) {
        let planned = self.scenario.jobs[index].clone();
        let now = self.agenda.now();
        let Some(machine) = &mut self.clients[planned.client].machine else { return };
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
        self.watch.submitted(planned.client, &job_id(index), &planned.target, deadline);
        machine.submit(JobRequest {
            job: job_id(index),
            service: service(),
            task,
            target: planned.target,
            body: body::encode(&request_body),
            timeout: planned.timeout,
            deadline,
            waits: planned.waits,
        });
        self.drain_client(planned.client);
    }

    pub(crate) fn cancel(&mut self, index: usize) {
        let planned = &self.scenario.jobs[index];
        let (client, by, now) = (planned.client, planned.cancelled_by, self.agenda.now());
        if let Some(machine) = &mut self.clients[by].machine {
            let text = CANCELLED_BY_CALLER.to_owned();
            if by == client {
                machine.cancel(now, &job_id(index), text);
            } else {
                let of = Identity::parse(&client_name(client)).expect("a name");
                machine.cancel_elsewhere(Some(of), &job_id(index), service(), Target::All, text);
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
            machine.timeout(now);
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
        for (operation, token) in self.clients[index].writer.take_batch() {
            if self.plant == Some(Plant::LoseResults) && matches!(operation, ClientStoreOperation::Result { .. }) {
                continue;
            }
            if let ClientStoreOperation::Progress(Progress { state: JobState::Cancelling, job, .. }) = &operation {
                self.watch.cancellation_stored(job);
            }
            let client = &mut self.clients[index];
            let outcome = client.rows.apply(client.clock, &operation);
            if let (Some(token), Some(machine)) = (token, &mut client.machine) {
                machine.stored(now, token, outcome);
                self.drain_client(index);
            } else if let Err(error) = outcome {
                self.watch.fail(format!("the store of client {index} refused: {error}: {operation:?}"));
            }
        }
        self.drain_client(index);
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

    fn drain_client(&mut self, index: usize) {
        loop {
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
                    client.writer.push((operation, token));
                }
                ClientOutput::Update(job, update) => self.client_update(index, &job, update),
                ClientOutput::Management(..) => client.management_open -= 1,
                ClientOutput::Reconnect => self.drop_wire(Peer::Client(index)),
                ClientOutput::Note(note) => trace!(self, "client {index}: {note:?}"),
            }
        }
        self.flush(Peer::Client(index));
        let process = self.clients[index].process;
        if self.clients[index].writer.begin() {
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
