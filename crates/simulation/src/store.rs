//! The stores: maps that a writer changes in batches, some time after it was told to. What a crash finds in the writer's
//! hands is written or lost.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Instant;

use bytes::Bytes;
use norfab_protocol::client::{ClientStoreOperation, ClientToken, JobRequest, JobState, Progress};
use norfab_protocol::name::{Identity, JobId};
use norfab_protocol::worker::{Asked, NewJob, StoreFailure, WorkerStoreOperation, WorkerToken};

/// A writer: what was handed to it and what it is writing at the moment.
#[derive(Debug)]
pub struct Writer<Item> {
    waiting: VecDeque<Item>,
    batch: Vec<Item>,
}

impl<Item> Default for Writer<Item> {
    fn default() -> Self {
        Self { waiting: VecDeque::new(), batch: Vec::new() }
    }
}

impl<Item> Writer<Item> {
    /// Hands it something.
    pub fn push(&mut self, item: Item) {
        self.waiting.push_back(item);
    }

    /// Begins a batch with all that has gathered. `true`: it did, and it will be done some time later.
    pub fn begin(&mut self) -> bool {
        if !self.batch.is_empty() || self.waiting.is_empty() {
            return false;
        }
        self.batch.extend(self.waiting.drain(..));
        true
    }

    /// The batch is done.
    pub fn take_batch(&mut self) -> Vec<Item> {
        std::mem::take(&mut self.batch)
    }

    /// The process ends. Returns the batch in hand, which the disk may have or not.
    pub fn crash(&mut self) -> Vec<Item> {
        self.waiting.clear();
        std::mem::take(&mut self.batch)
    }
}

/// What a worker's writer is told.
#[derive(Debug)]
pub enum WorkerItem {
    /// Change.
    Apply(WorkerStoreOperation, Option<WorkerToken>),
    /// Look up.
    Load(JobId, Identity, Asked),
    /// Look up which of these are there, for a question.
    LookUp(Vec<JobId>, JobId, Identity),
}

/// A worker's row.
#[derive(Debug)]
pub struct WorkerRow {
    /// The job.
    pub new: NewJob,
    /// When it came.
    pub received: Instant,
    /// What the wall clock was ahead then, in seconds.
    pub clock: i64,
    /// How often it began to run.
    pub attempts: u32,
    /// Its Result, and when it was stored.
    pub payload: Option<(Bytes, Instant)>,
}

/// A worker's database.
#[derive(Debug, Default)]
pub struct WorkerRows(pub BTreeMap<JobId, WorkerRow>);

impl WorkerRows {
    /// Does one thing.
    pub fn apply(&mut self, now: Instant, clock: i64, operation: &WorkerStoreOperation) -> Result<(), StoreFailure> {
        match operation {
            WorkerStoreOperation::Insert(new) => {
                if self.0.contains_key(&new.job) {
                    return Err(StoreFailure::Duplicate);
                }
                let row = WorkerRow { new: new.clone(), received: now, clock, attempts: 0, payload: None };
                self.0.insert(new.job.clone(), row);
            }
            WorkerStoreOperation::Started(job) => {
                if let Some(row) = self.0.get_mut(job) {
                    row.attempts += 1;
                }
            }
            WorkerStoreOperation::Waiting(_) | WorkerStoreOperation::Answered(_) => {}
            WorkerStoreOperation::Finish { job, payload, .. } => match self.0.get_mut(job) {
                Some(row) if row.payload.is_none() => row.payload = Some((payload.clone(), now)),
                _ => return Err(StoreFailure::Refused("no such unfinished job".to_owned())),
            },
            WorkerStoreOperation::Event { .. } => {}
        }
        Ok(())
    }
}

/// A client's row.
#[derive(Debug)]
pub struct ClientRow {
    /// What was asked.
    pub request: JobRequest,
    /// What the wall clock was ahead then, in seconds.
    pub clock: i64,
    /// How far it is.
    pub progress: Progress,
    /// Whose results are there.
    pub results: BTreeSet<Identity>,
}

/// A client's database.
#[derive(Debug, Default)]
pub struct ClientRows(pub BTreeMap<JobId, ClientRow>);

/// A time that a row has, as a process sees it whose wall clock was set since: `None` where it has passed.
pub fn seen(at: Instant, then: i64, clock: i64) -> Option<Instant> {
    let step = std::time::Duration::from_secs(then.abs_diff(clock));
    if then >= clock { Some(at + step) } else { at.checked_sub(step) }
}

/// What a client's writer is told.
pub type ClientItem = (ClientStoreOperation, Option<ClientToken>);

impl ClientRows {
    /// Does one thing.
    pub fn apply(&mut self, clock: i64, operation: &ClientStoreOperation) -> Result<(), String> {
        match operation {
            ClientStoreOperation::Insert(request) => {
                if self.0.contains_key(&request.job) {
                    return Err(format!("job {} is stored already", request.job));
                }
                let progress = Progress {
                    job: request.job.clone(),
                    state: JobState::New,
                    dispatched: Vec::new(),
                    started: Vec::new(),
                    completed: Vec::new(),
                    errors: Vec::new(),
                };
                let row = ClientRow { request: request.clone(), clock, progress, results: BTreeSet::new() };
                self.0.insert(request.job.clone(), row);
            }
            ClientStoreOperation::Progress(progress) => match self.0.get_mut(&progress.job) {
                Some(row) if !row.progress.state.is_final() => row.progress = progress.clone(),
                _ => return Err(format!("job {} is unknown or has ended", progress.job)),
            },
            ClientStoreOperation::Result { job, worker, .. } => match self.0.get_mut(job) {
                Some(row) if !row.progress.state.is_final() => {
                    row.results.insert(worker.clone());
                }
                _ => return Err(format!("job {job} is unknown or has ended")),
            },
            ClientStoreOperation::Event { .. } => {}
        }
        Ok(())
    }
}
