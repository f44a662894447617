//! A store that does not do what it should: for the tests of those who use one.

use std::collections::HashSet;

use bytes::Bytes;
use norfab_protocol::name::JobId;

use crate::error::StoreError;
use crate::memory::MemoryWorkerStore;
use crate::retention::{Pruned, Retention};
use crate::sqlite::SetAside;
use crate::store::{Outcome, Page, PageEnd, Statistics, Store};
use crate::worker::{WorkerJob, WorkerJobDetails, WorkerJobFilter, WorkerOperation, WorkerState, WorkerStore};

/// What a test sees of a store, and makes of it. An error is what the store answers, which then does nothing.
pub trait Interference: Send {
    /// Operations are to be applied.
    fn apply(&mut self, _operations: &[WorkerOperation]) -> Result<(), StoreError> {
        Ok(())
    }

    /// A result is asked for.
    fn result(&mut self, _id: &JobId) -> Result<(), StoreError> {
        Ok(())
    }

    /// There is time to tidy up.
    fn tidy(&mut self) -> Result<(), StoreError> {
        Ok(())
    }
}

/// A worker's store in memory with which a test interferes.
#[derive(Debug, Default)]
pub struct TestWorkerStore<I> {
    store: MemoryWorkerStore,
    interference: I,
}

impl<I: Interference> TestWorkerStore<I> {
    /// An empty one.
    pub fn new(interference: I) -> Self {
        Self { store: MemoryWorkerStore::new(), interference }
    }
}

impl<I: Interference> Store for TestWorkerStore<I> {
    type Operation = WorkerOperation;

    fn apply(&mut self, operations: &[WorkerOperation]) -> Result<Vec<Outcome>, StoreError> {
        self.interference.apply(operations)?;
        self.store.apply(operations)
    }

    fn prune(&mut self, retention: &Retention, now: f64) -> Result<Pruned, StoreError> {
        self.store.prune(retention, now)
    }

    fn tidy(&mut self) -> Result<(), StoreError> {
        self.interference.tidy()?;
        self.store.tidy()
    }

    fn set_aside(&self) -> Option<&SetAside> {
        self.store.set_aside()
    }
}

impl<I: Interference> WorkerStore for TestWorkerStore<I> {
    fn unfinished(&mut self, after: Option<PageEnd>, limit: usize) -> Result<Page<WorkerJob>, StoreError> {
        self.store.unfinished(after, limit)
    }

    fn job(&mut self, id: &JobId) -> Result<Option<WorkerJobDetails>, StoreError> {
        self.store.job(id)
    }

    fn result(&mut self, id: &JobId) -> Result<Option<(WorkerJob, Option<Bytes>)>, StoreError> {
        self.interference.result(id)?;
        self.store.result(id)
    }

    fn known(&mut self, ids: &[JobId]) -> Result<HashSet<JobId>, StoreError> {
        self.store.known(ids)
    }

    fn list(&mut self, filter: &WorkerJobFilter) -> Result<Vec<WorkerJob>, StoreError> {
        self.store.list(filter)
    }

    fn statistics(&mut self) -> Result<Statistics<WorkerState>, StoreError> {
        self.store.statistics()
    }
}
