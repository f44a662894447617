//! What all stores share.

use std::collections::BTreeMap;

use norfab_protocol::name::JobId;

use crate::error::{OperationError, StoreError};
use crate::retention::{Pruned, Retention};
use crate::sqlite::SetAside;

/// Most jobs that one listing or one page of unfinished jobs returns: a listing is for people, and recovery goes page by
/// page, so that memory does not grow with the database.
pub const LISTED_JOBS_MAX: usize = 10_000;

/// Bytes of requests with which a page of unfinished jobs ends: a page is in memory as a whole. The last job of it may be larger.
pub const PAGE_BYTES_MAX: usize = 16 << 20;

/// Most events kept per job: a task that reports in a loop must not fill the disk. Later events are refused.
pub const EVENTS_PER_JOB_MAX: usize = 10_000;

/// What became of one operation.
pub type Outcome = Result<(), OperationError>;

/// Bytes of a result above which it is large: it goes into a store in parts, and others go between them. Smaller ones take some
/// milliseconds.
pub const LARGE_BYTES: usize = 1 << 20;

/// Something that changes a store.
pub trait Operation: Send + 'static {
    /// The job that it is about.
    fn job(&self) -> &JobId;

    /// About how many bytes it holds; queues and batches are bounded by it.
    fn bytes(&self) -> usize;

    /// Whether it carries a result of more than [`LARGE_BYTES`].
    fn is_large(&self) -> bool;

    /// Whether it begins a job, or the run of one. Whoever begins one is told when it is not stored, and does not do it; all other
    /// changes have happened already.
    fn begins_a_job(&self) -> bool;

    /// Whether its owner wants to know when it is stored after all, where it could not be at once.
    fn is_confirmed_late(&self) -> bool;
}

/// What came of [`Store::store_ahead`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ahead {
    /// A part was stored, and there are more.
    More,
    /// The store is busy with those before: ask again a little later.
    Busy,
    /// All is there, or will be refused: apply the operation.
    Whole,
}

/// A job database.
pub trait Store: Send {
    /// What changes it.
    type Operation: Operation;

    /// Applies operations in their order, in one transaction. The outer error says that nothing was stored; otherwise there
    /// is one outcome per operation, and a refused operation leaves no trace and does not disturb the others.
    fn apply(&mut self, operations: &[Self::Operation]) -> Result<Vec<Outcome>, StoreError>;

    /// Stores one part more of what a large operation carries, ahead of the operation, in a step of some milliseconds. Nobody
    /// sees the parts before the operation is applied; they are taken back by [`Store::drop_ahead`], by parts of another
    /// operation, and by the next process after a crash. Errors: the part is not stored, those before it are.
    fn store_ahead(&mut self, _operation: &Self::Operation) -> Result<Ahead, StoreError> {
        Ok(Ahead::Whole)
    }

    /// Takes back what was stored ahead of an operation that is not applied.
    fn drop_ahead(&mut self) {}

    /// Puts what was applied into the form in which other processes read it; what was applied survives the death of the
    /// process without. The writer calls it when there is nothing else to do. Errors: no space; it stays as it is.
    fn settle(&mut self) -> Result<(), StoreError> {
        Ok(())
    }

    /// Whether [`Store::settle`] has nothing to do.
    fn is_settled(&self) -> bool {
        true
    }

    /// Forgets finished jobs as the retention says, never unfinished ones, in a bounded step: while [`Pruned::more`] is set,
    /// there is more to do. `now` in Unix seconds.
    fn prune(&mut self, retention: &Retention, now: f64) -> Result<Pruned, StoreError>;

    /// Does what can wait until the confirmations are out. The writer calls it after each batch.
    fn tidy(&mut self) -> Result<(), StoreError>;

    /// The damaged file that was set aside, or of which a copy was, when the store was opened.
    fn set_aside(&self) -> Option<&SetAside>;

    /// What [`Store::prune`] should keep.
    fn retention(&self) -> Retention {
        Retention::default()
    }

    /// What people should know of that happened since the last time: a file that was removed while it was in use.
    fn take_news(&mut self) -> Vec<String> {
        Vec::new()
    }
}

/// Where a page ends: a time, and among jobs of the same time an id.
pub type PageEnd = (f64, String);

/// A page of unfinished jobs.
#[derive(Debug, Clone)]
pub struct Page<Job> {
    /// Those that can be read.
    pub jobs: Vec<Job>,
    /// The others: they stay as they are.
    pub unreadable: Vec<UnreadableJob>,
    /// Where the next page begins; `None` for an empty page, after which there are no more.
    pub end: Option<PageEnd>,
}

/// A job that cannot be read.
#[derive(Debug, Clone)]
pub struct UnreadableJob {
    /// Which job, if that can be read.
    pub id: Option<JobId>,
    /// Why.
    pub error: StoreError,
}

/// A job that pages are made of.
pub(crate) trait Paged {
    /// Bytes of its request.
    fn request_bytes(&self) -> usize;
}

/// How many of the jobs make a page.
pub(crate) fn page_length<Job: Paged>(jobs: &[Job], limit: usize) -> usize {
    let mut bytes = 0;
    let fits = |job: &&Job| {
        let fits = bytes < PAGE_BYTES_MAX;
        bytes += job.request_bytes();
        fits
    };
    jobs.iter().take(limit.min(LISTED_JOBS_MAX)).take_while(fits).count()
}

/// How much a store holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Statistics<State: Ord> {
    /// Jobs by state; states without jobs are left out.
    pub jobs_by_state: BTreeMap<State, u64>,
    /// Bytes in use.
    pub bytes: u64,
}

impl<State: Ord> Statistics<State> {
    /// All jobs.
    pub fn total_jobs(&self) -> u64 {
        self.jobs_by_state.values().sum()
    }
}
