//! The stores: maps that a writer changes in batches, some time after it was told to. What a crash finds in the writer's
//! hands is written or lost.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Instant;

use bytes::Bytes;
use norfab_protocol::client::backlog::{BacklogBounds, Reading};
use norfab_protocol::client::{ClientStoreOperation, ClientToken, JobRequest, JobState, Progress, RestoredClientJob};
use norfab_protocol::name::{Identity, JobId};
use norfab_protocol::worker::{Asked, NewJob, StoreFailure, WorkerStoreOperation, WorkerToken};

/// What a writer is told.
pub trait Told {
    /// Of which job it is a change.
    fn changes(&self) -> Option<&JobId>;
    /// Whether it may be large: a result.
    fn is_result(&self) -> bool;
    /// Whether it is a question that waits for all that came before.
    fn waits(&self) -> bool;
}

impl Told for WorkerItem {
    fn changes(&self) -> Option<&JobId> {
        match self {
            Self::Apply(operation, _) => Some(match operation {
                WorkerStoreOperation::Insert(new) => &new.job,
                WorkerStoreOperation::Started(job)
                | WorkerStoreOperation::StartedAnew(job)
                | WorkerStoreOperation::Waiting(job)
                | WorkerStoreOperation::Answered(job)
                | WorkerStoreOperation::Finish { job, .. }
                | WorkerStoreOperation::Event { job, .. } => job,
            }),
            Self::Load(..) | Self::LookUp(..) => None,
        }
    }

    fn is_result(&self) -> bool {
        matches!(self, Self::Apply(WorkerStoreOperation::Finish { .. }, _))
    }

    fn waits(&self) -> bool {
        false
    }
}

impl Told for ClientItem {
    fn changes(&self) -> Option<&JobId> {
        match self {
            Self::Apply(operation, _) => Some(match operation {
                ClientStoreOperation::Insert(request) => &request.job,
                ClientStoreOperation::Progress(progress) => &progress.job,
                ClientStoreOperation::Result { job, .. } | ClientStoreOperation::Event { job, .. } => job,
            }),
            Self::Read(_) | Self::Find(..) => None,
        }
    }

    fn is_result(&self) -> bool {
        matches!(self, Self::Apply(ClientStoreOperation::Result { .. }, _))
    }

    fn waits(&self) -> bool {
        matches!(self, Self::Read(_) | Self::Find(..))
    }
}

/// A writer: what was handed to it and what it is writing at the moment.
#[derive(Debug)]
pub struct Writer<Item> {
    waiting: VecDeque<Item>,
    batch: Vec<Item>,
    /// Large results, which take several batches, and what came behind them of the same jobs.
    aside: VecDeque<Item>,
    /// A batch is written and that is not told yet.
    tells: bool,
}

impl<Item> Default for Writer<Item> {
    fn default() -> Self {
        Self { waiting: VecDeque::new(), batch: Vec::new(), aside: VecDeque::new(), tells: false }
    }
}

impl<Item: Told> Writer<Item> {
    /// Hands it something.
    pub fn push(&mut self, item: Item) {
        self.waiting.push_back(item);
    }

    /// Begins a batch with all that has gathered, but for results that `is_large` sets aside, and what of their jobs comes behind them.
    /// `true`: it did, and it will be done some time later.
    pub fn begin(&mut self, mut is_large: impl FnMut() -> bool) -> bool {
        if self.tells || !self.batch.is_empty() || (self.waiting.is_empty() && self.aside.is_empty()) {
            return false;
        }
        if self.waiting.is_empty() || !is_large() {
            self.batch.extend(self.aside.drain(..));
        }
        for item in std::mem::take(&mut self.waiting) {
            let is_behind = match item.changes() {
                Some(job) => self.is_aside(job),
                None => item.waits() && !self.aside.is_empty(),
            };
            if is_behind || item.is_result() && is_large() {
                self.aside.push_back(item);
            } else {
                self.batch.push(item);
            }
        }
        if self.batch.is_empty() {
            self.batch.extend(self.aside.drain(..));
        }
        true
    }

    /// Whether something of this job takes several batches.
    pub fn is_aside(&self, job: &JobId) -> bool {
        self.aside.iter().any(|item| item.changes() == Some(job))
    }

    /// That the batch is done is told: see [`Writer::take_batch_to_tell`].
    pub fn has_told(&mut self) {
        self.tells = false;
    }

    /// The batch is done, which is told some time later. No other begins before.
    pub fn take_batch_to_tell(&mut self) -> Vec<Item> {
        self.tells = true;
        self.take_batch()
    }

    /// The batch is done.
    pub fn take_batch(&mut self) -> Vec<Item> {
        std::mem::take(&mut self.batch)
    }

    /// The process ends. Returns all that was handed over and is not confirmed, of which the disk may have any first part.
    pub fn crash(&mut self) -> Vec<Item> {
        self.tells = false;
        let mut items = std::mem::take(&mut self.batch);
        items.extend(self.aside.drain(..).chain(self.waiting.drain(..)));
        items
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
    /// How often it was written down that it begins to run.
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
            WorkerStoreOperation::StartedAnew(_)
            | WorkerStoreOperation::Waiting(_)
            | WorkerStoreOperation::Answered(_) => {}
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
    /// What the wall clock was ahead when the process began that stored it, in seconds: deadlines are kept by clocks that nobody
    /// sets while a process runs.
    pub clock: i64,
    /// What the wall clock said when it was stored, in milliseconds.
    pub submitted: i64,
    /// Counts the rows.
    pub number: u64,
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
#[derive(Debug)]
pub enum ClientItem {
    /// Change.
    Apply(ClientStoreOperation, Option<ClientToken>),
    /// Read jobs back that wait.
    Read(Reading<Place>),
    /// Look whether a job waits that is to be cancelled, and why.
    Find(JobId, String),
}

/// Where a page ends.
pub type Place = (i64, JobId);

/// A job as the database has it.
#[derive(Debug)]
pub struct Waiting {
    /// The job, with the time that is left to it by the row: it moves where the wall clock was set between two processes.
    pub job: RestoredClientJob,
    /// Where it stands.
    pub place: Place,
    /// Counts the rows.
    pub number: u64,
}

impl ClientRow {
    /// As it is read back by a process that began when the wall clock was `clock` ahead.
    pub fn waiting(&self, now: Instant, clock: i64) -> Waiting {
        let mut request = self.request.clone();
        request.deadline = seen(request.deadline, self.clock, clock).unwrap_or(now);
        let progress = &self.progress;
        Waiting {
            place: (self.submitted, request.job.clone()),
            number: self.number,
            job: RestoredClientJob {
                request,
                state: progress.state,
                dispatched: progress.dispatched.clone(),
                started: progress.started.clone(),
                completed: progress.completed.clone(),
                errors: progress.errors.clone(),
                // By an hour, which is longer than any job waits: its deadline tells.
                ageless: clock < self.clock,
            },
        }
    }
}

impl ClientRows {
    /// A page of what is to be read, at most so many jobs and not many more bytes, and where it ends.
    pub fn read(
        &self,
        now: Instant,
        clock: i64,
        what: &Reading<Place>,
        bounds: &BacklogBounds,
    ) -> (Vec<Waiting>, Option<Place>) {
        let unfinished =
            self.0.values().filter(|row| !row.progress.state.is_final()).map(|row| row.waiting(now, clock));
        let mut found: Vec<Waiting> = match what {
            Reading::Next(after) => unfinished.filter(|job| Some(&job.place) > after.as_ref()).collect(),
            Reading::Late => unfinished.filter(|job| job.job.request.deadline < now).collect(),
        };
        match what {
            Reading::Next(_) => found.sort_by(|one, other| one.place.cmp(&other.place)),
            Reading::Late => found.sort_by_key(|job| job.job.request.deadline),
        }
        let mut bytes = 0;
        let fits = |job: &&Waiting| {
            let fits = bytes < bounds.page_bytes;
            bytes += job.job.request.body.len();
            fits
        };
        let length = found.iter().take(bounds.page_jobs).take_while(fits).count();
        found.truncate(length);
        let end = found.last().map(|job| job.place.clone());
        (found, end)
    }

    /// The highest number of a row.
    pub fn last_number(&self) -> Option<u64> {
        self.0.values().map(|row| row.number).max()
    }

    /// Does one thing. `wall` is what the wall clock says, in milliseconds.
    pub fn apply(&mut self, wall: i64, clock: i64, operation: &ClientStoreOperation) -> Result<(), String> {
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
                let row = ClientRow {
                    request: request.clone(),
                    clock,
                    submitted: wall,
                    number: self.last_number().map_or(0, |last| last + 1),
                    progress,
                    results: BTreeSet::new(),
                };
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
