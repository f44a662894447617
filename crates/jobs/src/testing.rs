//! A store that does not do what it should: for the tests of those who use one.

use std::collections::HashSet;

use bytes::Bytes;
use norfab_protocol::name::JobId;

use crate::error::StoreError;
use crate::memory::MemoryWorkerStore;
use crate::retention::{Pruned, Retention};
use crate::sqlite::SetAside;
use crate::store::{Ahead, Outcome, Page, PageEnd, Statistics, Store};
use crate::worker::{WorkerJob, WorkerJobDetails, WorkerJobFilter, WorkerOperation, WorkerState, WorkerStore};

/// What a test sees of a store, and makes of it. An error is what the store answers, which then does nothing.
pub trait Interference: Send {
    /// Operations are to be applied.
    fn apply(&mut self, _operations: &[WorkerOperation]) -> Result<(), StoreError> {
        Ok(())
    }

    /// A part of a large operation is to be stored ahead of its end. Something: what the store answers to that.
    fn store_ahead(&mut self, _operation: &WorkerOperation) -> Option<Ahead> {
        None
    }

    /// A result is asked for.
    fn result(&mut self, _id: &JobId) -> Result<(), StoreError> {
        Ok(())
    }

    /// Unfinished jobs are asked for.
    fn unfinished(&mut self) -> Result<(), StoreError> {
        Ok(())
    }

    /// There is time to tidy up.
    fn tidy(&mut self) -> Result<(), StoreError> {
        Ok(())
    }
}

/// A worker's store, in memory unless it is over another one, with which a test interferes.
#[derive(Debug, Default)]
pub struct TestWorkerStore<I, S = MemoryWorkerStore> {
    store: S,
    interference: I,
}

impl<I: Interference> TestWorkerStore<I> {
    /// An empty one in memory.
    pub fn new(interference: I) -> Self {
        Self::over(MemoryWorkerStore::new(), interference)
    }
}

impl<I: Interference, S: WorkerStore> TestWorkerStore<I, S> {
    /// One over another store.
    pub fn over(store: S, interference: I) -> Self {
        Self { store, interference }
    }
}

impl<I: Interference, S: WorkerStore> Store for TestWorkerStore<I, S> {
    type Operation = WorkerOperation;

    fn apply(&mut self, operations: &[WorkerOperation]) -> Result<Vec<Outcome>, StoreError> {
        self.interference.apply(operations)?;
        self.store.apply(operations)
    }

    fn store_ahead(&mut self, operation: &WorkerOperation) -> Result<Ahead, StoreError> {
        match self.interference.store_ahead(operation) {
            Some(answer) => Ok(answer),
            None => self.store.store_ahead(operation),
        }
    }

    fn drop_ahead(&mut self) {
        self.store.drop_ahead();
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

impl<I: Interference, S: WorkerStore> WorkerStore for TestWorkerStore<I, S> {
    fn unfinished(&mut self, after: Option<PageEnd>, limit: usize) -> Result<Page<WorkerJob>, StoreError> {
        self.interference.unfinished()?;
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
