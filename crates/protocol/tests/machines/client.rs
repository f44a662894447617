//! Operations on the client.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::{Duration, Instant};

use arbitrary::Arbitrary;
use bytes::Bytes;
use norfab_protocol::Target;
use norfab_protocol::body::{InputResponse, ManagementBody};
use norfab_protocol::client::{
    Client, ClientConfig, ClientOutput, ClientStoreOperation, ClientToken, JobRequest, JobState, JobUpdate,
    RestoredClientJob,
};
use norfab_protocol::message::{ClientCommand, ClientMessage};
use norfab_protocol::name::{JobId, TaskName};

use super::{Body, JOBS, SERVICES, TARGETS, frames, job_id, pick, service_name, worker_name};

#[derive(Debug, Clone, Arbitrary)]
pub enum ClientOperation {
    Submit { job: u8, target: u8, seconds: u8 },
    Restore { job: u8, target: u8, seconds: u8, state: u8, dispatched: Vec<u8>, completed: Vec<u8> },
    Stored { fails: bool },
    Message { command: u8, service: u8, job: u8, status: u8, body: Body },
    Raw { frames: Vec<Vec<u8>> },
    Pass { milliseconds: u16 },
    Management { id: u8, milliseconds: u16 },
    Answer { job: u8, worker: Option<u8>, question: u8 },
    Credit { job: u8, offset: u64 },
    Cancel { job: u8 },
    Connected { connected: bool },
}

const COMMANDS: &[&str] = &["0x05", "0x08", "0x09", "0x11", "0x02"];
const STATUSES: &[&str] = &["202", "201", "300", "102", "200", "404", "400", "500", "299", "x"];

/// Most outputs of one input beside those that belong to jobs that end or begin with it.
const OUTPUTS_MAX: usize = 96;

struct Run {
    client: Client,
    now: Instant,
    inserts: VecDeque<JobId>,
    stored: BTreeSet<JobId>,
    /// Unfinished jobs, their state as last stored.
    open: BTreeMap<JobId, JobState>,
    deadlines: BTreeMap<JobId, Instant>,
    asked: BTreeSet<JobId>,
    /// Cancelled jobs whose callers were told of the end before all workers confirmed it.
    told: BTreeSet<JobId>,
}

/// Runs operations one after the other and checks the client after each. Panics where something does not hold.
pub fn run(operations: &[ClientOperation]) {
    let config = ClientConfig { in_flight_max: 2, management_max: 2, ..ClientConfig::default() };
    let mut run = Run {
        client: Client::new(config),
        now: Instant::now(),
        inserts: VecDeque::new(),
        stored: BTreeSet::new(),
        open: BTreeMap::new(),
        deadlines: BTreeMap::new(),
        asked: BTreeSet::new(),
        told: BTreeSet::new(),
    };
    for operation in operations {
        run.operate(operation);
        run.drain();
        assert_eq!(run.client.unfinished(), run.open.len(), "every job that ends says so");
    }
    // Everything has a deadline: when all have passed nothing is left.
    run.now += Duration::from_secs(1000);
    run.client.timeout(run.now);
    run.drain();
    assert_eq!(run.client.unfinished(), 0, "nothing is left");
    assert_eq!(run.client.next_deadline(), None, "and nothing waits for a time");
    assert!(run.asked.is_empty(), "every management request is answered");
}

impl Run {
    fn request(&self, job: u8, target: u8, seconds: u8) -> JobRequest {
        let timeout = Duration::from_secs(u64::from(seconds));
        JobRequest {
            job: job_id(job),
            service: service_name(0),
            task: TaskName::parse("t").expect("a name"),
            target: Target::parse(pick(TARGETS, target)),
            body: Bytes::from_static(b"{\"task\":\"t\"}"),
            timeout,
            deadline: self.now + timeout,
            waits: seconds.is_multiple_of(2),
        }
    }

    fn operate(&mut self, operation: &ClientOperation) {
        match operation {
            ClientOperation::Submit { job, target, seconds } => {
                let request = self.request(*job, *target, *seconds);
                // An id that is being stored, or is unfinished, is taken: the owner makes unique ones.
                if !self.inserts.contains(&request.job) && !self.open.contains_key(&request.job) {
                    self.stored.remove(&request.job);
                    self.open.insert(request.job.clone(), JobState::New);
                    self.deadlines.insert(request.job.clone(), request.deadline);
                    self.client.submit(request);
                }
            }
            ClientOperation::Restore { job, target, seconds, state, dispatched, completed } => {
                let request = self.request(*job, *target, *seconds);
                let states = [
                    JobState::New,
                    JobState::Submitting,
                    JobState::Dispatched,
                    JobState::Started,
                    JobState::Waiting,
                    JobState::Cancelling,
                ];
                let names = |list: &[u8]| {
                    let names: BTreeSet<_> = list.iter().take(4).map(|index| worker_name(*index)).collect();
                    names.into_iter().collect::<Vec<_>>()
                };
                if !self.inserts.contains(&request.job) && !self.open.contains_key(&request.job) {
                    let id = request.job.clone();
                    let state = states[usize::from(*state) % states.len()];
                    self.stored.insert(id.clone());
                    // Without the broker's word it begins again.
                    let again =
                        state == JobState::Submitting || (dispatched.is_empty() && state != JobState::Cancelling);
                    self.open.insert(id.clone(), if again { JobState::New } else { state });
                    self.deadlines.insert(id, request.deadline);
                    let (dispatched, completed) = (names(dispatched), names(completed));
                    self.client.restore(
                        self.now,
                        RestoredClientJob {
                            request,
                            state,
                            dispatched,
                            started: completed.clone(),
                            completed,
                            errors: Vec::new(),
                            ageless: false,
                        },
                    );
                }
            }
            ClientOperation::Stored { fails } => {
                if let Some(job) = self.inserts.pop_front() {
                    let outcome = if *fails { Err("disk full".to_owned()) } else { Ok(()) };
                    if !fails {
                        self.stored.insert(job.clone());
                    }
                    self.client.stored(self.now, ClientToken(job), outcome);
                }
            }
            ClientOperation::Message { command, service, job, status, body } => {
                let mut message = frames(&[
                    b"",
                    b"NFPB01",
                    pick(COMMANDS, *command).as_bytes(),
                    pick(SERVICES, *service).as_bytes(),
                    pick(JOBS, *job).as_bytes(),
                    pick(STATUSES, *status).as_bytes(),
                ]);
                message.push(body.bytes());
                self.client.message(self.now, &message);
            }
            ClientOperation::Raw { frames } => {
                let message: Vec<Bytes> = frames.iter().map(|frame| Bytes::copy_from_slice(frame)).collect();
                self.client.message(self.now, &message);
            }
            ClientOperation::Pass { milliseconds } => {
                self.now += Duration::from_millis(u64::from(*milliseconds));
                self.client.timeout(self.now);
                let due = self.client.next_deadline();
                assert!(due.is_none_or(|at| at > self.now), "all that was due is done");
            }
            ClientOperation::Management { id, milliseconds } => {
                let id = JobId::parse(&format!("m{}", id % 4)).expect("a name");
                if self.asked.insert(id.clone()) {
                    let body = ManagementBody {
                        task: Some("show_workers".to_owned()),
                        kwargs: serde_json::Map::new(),
                        args: Vec::new(),
                    };
                    let deadline = self.now + Duration::from_millis(u64::from(*milliseconds));
                    self.client.management(id, service_name(0), &body, deadline);
                }
            }
            ClientOperation::Answer { job, worker, question } => {
                let response = InputResponse {
                    input_id: format!("q{}", question % 4),
                    value: None,
                    cancel: false,
                    metadata: serde_json::Value::Null,
                };
                let worker = worker.map(worker_name);
                self.client.answer(&job_id(*job), worker.as_ref(), &response);
            }
            ClientOperation::Credit { job, offset } => self.client.credit(&job_id(*job), None, *offset),
            ClientOperation::Connected { connected: true } => self.client.connected(self.now),
            ClientOperation::Connected { connected: false } => self.client.disconnected(),
            ClientOperation::Cancel { job } => {
                self.client.cancel(self.now, &job_id(*job), "cancelled by a test".to_owned());
            }
        }
    }

    fn drain(&mut self) {
        let mut outputs = 0;
        let mut forgotten = Vec::new();
        while let Some(output) = self.client.poll_output() {
            outputs += 1;
            assert!(outputs <= OUTPUTS_MAX, "one input has few outputs");
            match output {
                ClientOutput::Forget(job) => forgotten.push(job),
                ClientOutput::Send(message, _) => {
                    let message = ClientMessage::decode(&message).expect("the broker can read what we send");
                    if message.command == ClientCommand::Post {
                        assert!(self.stored.contains(&message.job), "{} is stored before it is posted", message.job);
                        assert_ne!(
                            self.open.get(&message.job),
                            Some(&JobState::Cancelling),
                            "{} is cancelled",
                            message.job
                        );
                        assert!(self.deadlines[&message.job] > self.now, "nobody waits for {}", message.job);
                    }
                }
                ClientOutput::Store(ClientStoreOperation::Insert(request), token) => {
                    assert_eq!(token, Some(ClientToken(request.job.clone())));
                    self.inserts.push_back(request.job);
                }
                ClientOutput::Store(ClientStoreOperation::Progress(progress), token) => {
                    if let Some(ClientToken(job)) = token {
                        assert!(matches!(progress.state, JobState::Cancelling | JobState::Cancelled));
                        self.inserts.push_back(job);
                    }
                    let before = self.open.get_mut(&progress.job).expect("nothing is stored after the end");
                    assert!(may_follow(*before, progress.state), "{before:?} then {:?}", progress.state);
                    *before = progress.state;
                    if progress.state.is_final() && self.told.remove(&progress.job) {
                        self.open.remove(&progress.job);
                    }
                }
                ClientOutput::Store(
                    ClientStoreOperation::Result { job, .. } | ClientStoreOperation::Event { job, .. },
                    None,
                ) => {
                    assert!(self.open.contains_key(&job), "nothing is stored after the end");
                }
                ClientOutput::Store(operation, Some(_)) => panic!("{operation:?} has no token"),
                ClientOutput::Update(job, JobUpdate::Finished(outcome)) => {
                    assert!(outcome.state.is_final());
                    let last = *self.open.get(&job).expect("a job ends once");
                    if self.client.end_was_told(&job) {
                        assert!(self.told.insert(job.clone()), "a job ends once");
                    } else {
                        assert!(!self.told.contains(&job), "a job ends once");
                        self.open.remove(&job);
                    }
                    assert!(
                        last == outcome.state || !last.is_final(),
                        "stored as {last:?}, told as {:?}",
                        outcome.state
                    );
                    if outcome.state == JobState::Completed {
                        assert_eq!(outcome.missing, [], "complete means complete");
                    }
                }
                ClientOutput::Update(job, _) => {
                    assert!(self.open.contains_key(&job) && !self.told.contains(&job), "nothing comes after the end");
                }
                ClientOutput::Management(id, _) => assert!(self.asked.remove(&id), "{id} is answered once"),
                ClientOutput::Reconnect | ClientOutput::Note(_) => {}
            }
        }
        let is_over = |job| self.open.get(job).is_none_or(|state| *state == JobState::Cancelling || state.is_final());
        assert!(forgotten.iter().all(is_over), "only what has ended or is cancelled is forgotten");
    }
}

/// The table of states: forward, between started and waiting, and to an end.
fn may_follow(before: JobState, after: JobState) -> bool {
    let rank = |state| match state {
        JobState::New => 0,
        JobState::Submitting => 1,
        JobState::Dispatched => 2,
        JobState::Started | JobState::Waiting => 3,
        JobState::Cancelling => 4,
        JobState::Completed | JobState::Failed | JobState::Stale if before == JobState::Cancelling => 0,
        JobState::Completed | JobState::Failed | JobState::Stale | JobState::Cancelled => 5,
    };
    // Back only where the one worker that had it did not take it, and another is looked for.
    let elsewhere = before == JobState::Dispatched && after == JobState::Submitting;
    !before.is_final() && (rank(before) <= rank(after) || elsewhere)
}
