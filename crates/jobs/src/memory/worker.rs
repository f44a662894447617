//! A worker's job database in memory.

use std::collections::{BTreeMap, HashSet};

use bytes::Bytes;
use norfab_protocol::name::JobId;

use super::{Prunable, Table};
use crate::course::Course;
use crate::error::{OperationError, StoreError};
use crate::retention::{Pruned, Retention};
use crate::sqlite::SetAside;
use crate::store::{EVENTS_PER_JOB_MAX, LISTED_JOBS_MAX, Outcome, Page, PageEnd, Statistics, Store, page_length};
use crate::worker::{
    WorkerJob, WorkerJobDetails, WorkerJobFilter, WorkerOperation, WorkerState, WorkerStore, check_insert,
};

/// A worker's job database in memory. A clone is a copy: what a crash leaves behind in a simulation.
#[derive(Debug, Clone)]
pub struct MemoryWorkerStore {
    table: Table<Row>,
}

#[derive(Debug, Clone)]
struct Row {
    job: WorkerJob,
    payload: Option<Bytes>,
    events: Vec<Bytes>,
}

impl Row {
    fn course(&self) -> Course {
        Course {
            state: self.job.state,
            attempts: self.job.attempts,
            started: self.job.started,
            finished: self.job.finished,
        }
    }

    fn set(&mut self, course: Course) {
        self.job.state = course.state;
        self.job.attempts = course.attempts;
        self.job.started = course.started;
        self.job.finished = course.finished;
    }
}

impl Prunable for Row {
    fn id(&self) -> &JobId {
        &self.job.id
    }

    fn finished(&self) -> Option<f64> {
        self.job.finished
    }

    fn bytes(&self) -> u64 {
        let events = self.events.iter().map(Bytes::len).sum::<usize>();
        (self.job.body.len() + self.payload.as_ref().map_or(0, Bytes::len) + events) as u64
    }
}

impl Default for MemoryWorkerStore {
    fn default() -> Self {
        Self::new()
    }
}

impl MemoryWorkerStore {
    /// An empty database.
    pub fn new() -> Self {
        Self { table: Table::new() }
    }

    fn apply_one(&mut self, operation: &WorkerOperation) -> Outcome {
        match operation {
            WorkerOperation::Insert(job) => {
                check_insert(job)?;
                if self.table.get(&job.id).is_some() {
                    return Err(OperationError::Duplicate { id: job.id.clone() });
                }
                self.table.insert(Row { job: job.clone(), payload: None, events: Vec::new() });
                Ok(())
            }
            WorkerOperation::State { id, state, at } => {
                let row = self.table.known(id)?;
                row.set(Course::advance(id, row.course(), *state, *at)?);
                Ok(())
            }
            WorkerOperation::StartedAnew { id, at } => {
                let row = self.table.known(id)?;
                row.set(Course::started_anew(id, row.course(), *at)?);
                Ok(())
            }
            WorkerOperation::Answered { id } => {
                let row = self.table.known(id)?;
                row.set(Course::answered(id, row.course())?);
                Ok(())
            }
            WorkerOperation::Finish { id, state, at, payload } => {
                let row = self.table.known(id)?;
                row.set(Course::finish(id, row.course(), *state, *at)?);
                row.payload = Some(payload.clone());
                Ok(())
            }
            WorkerOperation::Event { id, body } => {
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

impl Store for MemoryWorkerStore {
    type Operation = WorkerOperation;

    fn apply(&mut self, operations: &[WorkerOperation]) -> Result<Vec<Outcome>, StoreError> {
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

impl WorkerStore for MemoryWorkerStore {
    fn unfinished(&mut self, after: Option<PageEnd>, limit: usize) -> Result<Page<WorkerJob>, StoreError> {
        let order =
            |job: &WorkerJob, (time, id): &PageEnd| job.received.total_cmp(time).then_with(|| job.id.as_str().cmp(id));
        let end = |job: &WorkerJob| (job.received, job.id.to_string());
        let mut jobs: Vec<WorkerJob> = self
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

    fn job(&mut self, id: &JobId) -> Result<Option<WorkerJobDetails>, StoreError> {
        Ok(self.table.get(id).map(|row| WorkerJobDetails {
            job: row.job.clone(),
            payload: row.payload.clone(),
            events: row.events.clone(),
        }))
    }

    fn result(&mut self, id: &JobId) -> Result<Option<(WorkerJob, Option<Bytes>)>, StoreError> {
        Ok(self.table.get(id).map(|row| (bodiless(&row.job), row.payload.clone())))
    }

    fn known(&mut self, ids: &[JobId]) -> Result<HashSet<JobId>, StoreError> {
        Ok(ids.iter().filter(|id| self.table.get(id).is_some()).cloned().collect())
    }

    fn list(&mut self, filter: &WorkerJobFilter) -> Result<Vec<WorkerJob>, StoreError> {
        let finality = (filter.pending != filter.completed).then_some(filter.completed);
        Ok(self
            .table
            .rows
            .values()
            .rev()
            .map(|row| &row.job)
            .filter(|job| {
                finality.is_none_or(|is_final| job.state.is_final() == is_final)
                    && filter.task.as_ref().is_none_or(|it| job.task == *it)
                    && filter.client.as_ref().is_none_or(|it| job.client == *it)
                    && filter.uuid.as_ref().is_none_or(|it| job.id == *it)
            })
            .take(filter.last.unwrap_or(usize::MAX).min(LISTED_JOBS_MAX))
            .map(bodiless)
            .collect())
    }

    fn statistics(&mut self) -> Result<Statistics<WorkerState>, StoreError> {
        let mut jobs_by_state = BTreeMap::new();
        for row in self.table.rows.values() {
            *jobs_by_state.entry(row.job.state).or_insert(0) += 1;
        }
        Ok(Statistics { jobs_by_state, bytes: self.table.bytes() })
    }
}

fn bodiless(job: &WorkerJob) -> WorkerJob {
    WorkerJob { body: Bytes::new(), ..job.clone() }
}
