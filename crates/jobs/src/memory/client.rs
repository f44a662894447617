//! A client's job database in memory.

use std::collections::BTreeMap;

use bytes::Bytes;
use norfab_protocol::name::{Identity, JobId};

use super::{Prunable, Table};
use crate::client::{
    ClientJob, ClientJobDetails, ClientJobFilter, ClientOperation, ClientState, ClientStore, check_insert, check_open,
    check_progress,
};
use crate::error::{OperationError, StoreError};
use crate::retention::{Pruned, Retention};
use crate::sqlite::SetAside;
use crate::store::{EVENTS_PER_JOB_MAX, LISTED_JOBS_MAX, Outcome, Page, PageEnd, Statistics, Store, page_length};

/// A client's job database in memory. A clone is a copy: what a crash leaves behind in a simulation.
#[derive(Debug, Clone)]
pub struct MemoryClientStore {
    table: Table<Row>,
}

#[derive(Debug, Clone)]
struct Row {
    job: ClientJob,
    results: BTreeMap<Identity, Bytes>,
    events: Vec<Bytes>,
}

impl Prunable for Row {
    fn id(&self) -> &JobId {
        &self.job.id
    }

    fn finished(&self) -> Option<f64> {
        self.job.finished
    }

    fn bytes(&self) -> u64 {
        let results = self.results.values().map(Bytes::len).sum::<usize>();
        let events = self.events.iter().map(Bytes::len).sum::<usize>();
        (self.job.body.len() + results + events) as u64
    }
}

impl Default for MemoryClientStore {
    fn default() -> Self {
        Self::new()
    }
}

impl MemoryClientStore {
    /// An empty database.
    pub fn new() -> Self {
        Self { table: Table::new() }
    }

    fn apply_one(&mut self, operation: &ClientOperation) -> Outcome {
        match operation {
            ClientOperation::Insert(job) => {
                check_insert(job)?;
                if self.table.get(&job.id).is_some() {
                    return Err(OperationError::Duplicate { id: job.id.clone() });
                }
                self.table.insert(Row { job: job.clone(), results: BTreeMap::new(), events: Vec::new() });
                Ok(())
            }
            ClientOperation::Progress { id, state, dispatched, started, completed, errors, finished } => {
                let row = self.table.known(id)?;
                check_progress(id, row.job.state, *state, *finished)?;
                row.job.state = *state;
                row.job.dispatched.clone_from(dispatched);
                row.job.started.clone_from(started);
                row.job.completed.clone_from(completed);
                row.job.errors.clone_from(errors);
                row.job.finished = *finished;
                Ok(())
            }
            ClientOperation::Result { id, worker, payload } => {
                let row = self.table.known(id)?;
                check_open(id, row.job.state)?;
                if row.results.contains_key(worker) {
                    return Err(OperationError::DuplicateResult { id: id.clone(), worker: worker.clone() });
                }
                row.results.insert(worker.clone(), payload.clone());
                Ok(())
            }
            ClientOperation::Event { id, body } => {
                let row = self.table.known(id)?;
                if row.events.len() >= EVENTS_PER_JOB_MAX {
                    return Err(OperationError::TooManyEvents { id: id.clone() });
                }
                row.events.push(body.clone());
                Ok(())
            }
        }
    }
}

impl Store for MemoryClientStore {
    type Operation = ClientOperation;

    fn apply(&mut self, operations: &[ClientOperation]) -> Result<Vec<Outcome>, StoreError> {
        Ok(operations.iter().map(|one| self.apply_one(one)).collect())
    }

    fn prune(&mut self, retention: &Retention, now: f64) -> Result<Pruned, StoreError> {
        Ok(self.table.prune(retention, now))
    }

    fn tidy(&mut self) -> Result<(), StoreError> {
        Ok(())
    }

    fn set_aside(&self) -> Option<&SetAside> {
        None
    }
}

impl ClientStore for MemoryClientStore {
    fn unfinished(&mut self, after: Option<PageEnd>, limit: usize) -> Result<Page<ClientJob>, StoreError> {
        let order =
            |job: &ClientJob, (time, id): &PageEnd| job.submitted.total_cmp(time).then_with(|| job.id.as_str().cmp(id));
        let end = |job: &ClientJob| (job.submitted, job.id.to_string());
        let mut jobs: Vec<ClientJob> = self
            .table
            .rows
            .values()
            .map(|row| &row.job)
            .filter(|job| !job.state.is_final())
            .filter(|job| after.as_ref().is_none_or(|after| order(job, after).is_gt()))
            .cloned()
            .collect();
        jobs.sort_by(|one, other| order(one, &end(other)));
        jobs.truncate(page_length(&jobs, limit));
        let end = jobs.last().map(end);
        Ok(Page { jobs, unreadable: Vec::new(), end })
    }

    fn late(&mut self, before: f64, limit: usize) -> Result<Page<ClientJob>, StoreError> {
        let is_late = |job: &&ClientJob| !job.state.is_final() && job.deadline < before;
        let mut jobs: Vec<ClientJob> = self.table.rows.values().map(|row| &row.job).filter(is_late).cloned().collect();
        jobs.sort_by(|one, other| one.deadline.total_cmp(&other.deadline));
        jobs.truncate(page_length(&jobs, limit));
        let end = jobs.last().map(|job| (job.submitted, job.id.to_string()));
        Ok(Page { jobs, unreadable: Vec::new(), end })
    }

    fn last_number(&mut self) -> Result<Option<u64>, StoreError> {
        Ok(self.table.rows.last_key_value().map(|(number, _)| *number))
    }

    fn number(&mut self, id: &JobId) -> Result<Option<u64>, StoreError> {
        Ok(self.table.numbers.get(id).copied())
    }

    fn job(&mut self, id: &JobId) -> Result<Option<ClientJobDetails>, StoreError> {
        Ok(self.table.get(id).map(|row| ClientJobDetails {
            job: row.job.clone(),
            results: row.results.clone().into_iter().collect(),
            events: row.events.clone(),
        }))
    }

    fn list(&mut self, filter: &ClientJobFilter) -> Result<Vec<ClientJob>, StoreError> {
        Ok(self
            .table
            .rows
            .values()
            .rev()
            .map(|row| &row.job)
            .filter(|job| {
                filter.state.is_none_or(|state| job.state == state)
                    && filter.service.as_ref().is_none_or(|it| job.service == *it)
                    && filter.task.as_ref().is_none_or(|it| job.task == *it)
                    && filter.since.is_none_or(|since| job.submitted >= since)
            })
            .take(filter.last.unwrap_or(usize::MAX).min(LISTED_JOBS_MAX))
            .map(|job| ClientJob { body: Bytes::new(), ..job.clone() })
            .collect())
    }

    fn statistics(&mut self) -> Result<Statistics<ClientState>, StoreError> {
        let mut jobs_by_state = BTreeMap::new();
        for row in self.table.rows.values() {
            *jobs_by_state.entry(row.job.state).or_insert(0) += 1;
        }
        Ok(Statistics { jobs_by_state, bytes: self.table.bytes() })
    }
}
