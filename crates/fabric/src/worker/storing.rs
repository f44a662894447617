//! The worker's owner and its store: what is handed over, read back and forgotten.

use std::time::{Duration, Instant};

use norfab_jobs::writer::{GATHER_OPERATIONS, GATHER_TIME};
use norfab_jobs::{SubmitError, WorkerJob, WorkerOperation, WorkerState};
use norfab_protocol::body::JobRequestHead;
use norfab_protocol::worker::{
    Asked, Ending, LoadedJob, NewJob, RestoredJob, TIMEOUT_SECONDS_MAX, WorkerStoreOperation,
};
use norfab_protocol::{Identity, JobId, ResultStatus, TaskResult};
use tracing::{error, warn};

use super::run::{Run, StoreAnswer};
use crate::clock::SystemClock;
use crate::inbox::Submitted;
use crate::pruning;

/// How often a task that may run again is begun, crashes of the worker included: one that ends its process each time must
/// not do so for ever.
const ATTEMPTS_MAX: u32 = 3;

/// Jobs that are read back at once at start.
const RESTORE_PAGE: usize = 1000;

impl Run {
    /// Hands operations over if somebody waits for one of them, or they have gathered for a while: each time costs a
    /// wake-up of the store's thread.
    pub(super) fn gather_operations(&mut self, now: Instant) -> Submitted {
        if self.operations.iter().all(|(_, token)| token.is_none())
            && self.operations.len() < GATHER_OPERATIONS
            && self.gather_until.is_none_or(|until| now < until)
        {
            if !self.operations.is_empty() {
                self.gather_until.get_or_insert(now + GATHER_TIME);
            }
            return Submitted::Now;
        }
        self.submit_operations()
    }

    /// Hands gathered operations to the store's thread.
    pub(super) fn submit_operations(&mut self) -> Submitted {
        self.gather_until = None;
        if self.operations.is_empty() {
            return Submitted::Now;
        }
        self.store_failures.submitted = true;
        match self.writer.try_submit(std::mem::take(&mut self.operations)) {
            Ok(()) => {
                self.held.clear();
                Submitted::Now
            }
            Err(SubmitError::Full(operations)) => {
                self.operations = operations;
                Submitted::Later
            }
            Err(SubmitError::Closed(lost)) => {
                error!("worker {}: the store has ended, {} changes of jobs are lost", self.runner.identity, lost.len());
                Submitted::Closed
            }
        }
    }

    /// Forgets a bounded number of old jobs.
    pub(super) fn prune(&mut self) {
        let inbox = self.inbox.clone();
        let asked = self.writer.try_query(move |store| {
            inbox.push([StoreAnswer::Pruned { more: pruning::step(store) }]);
        });
        if asked.is_err() {
            self.pruning.ended(SystemClock::now(), false);
        }
    }

    /// Reads back what the last process left.
    pub(super) fn restore(&mut self) {
        let mut after = None;
        loop {
            let page = after.clone();
            let asked = self.writer.try_ask(move |store| store.unfinished(page, RESTORE_PAGE));
            let jobs = match asked.map(|answer| answer.recv()) {
                Ok(Ok(Ok(jobs))) => jobs,
                Ok(Ok(Err(error))) => {
                    error!("worker {}: unfinished jobs cannot be read: {error}", self.runner.identity);
                    return;
                }
                Ok(Err(_)) | Err(_) => {
                    error!("worker {}: unfinished jobs cannot be read: the store has ended", self.runner.identity);
                    return;
                }
            };
            let Some(last) = jobs.last() else { return };
            after = Some((last.received, last.id.clone()));
            for job in jobs {
                self.restore_job(job);
            }
        }
    }

    pub(super) fn restore_job(&mut self, job: WorkerJob) {
        let head: JobRequestHead = match norfab_protocol::body::decode("a job request", &job.body) {
            Ok(head) => head,
            Err(error) => {
                error!("worker {}: stored job {} cannot be read: {error}", self.runner.identity, job.id);
                let result = TaskResult::failed(ResultStatus::Error, format!("the stored job cannot be read: {error}"));
                let finish = WorkerOperation::Finish {
                    id: job.id,
                    state: WorkerState::Failed,
                    at: SystemClock::unix(),
                    payload: norfab_protocol::body::encode(&result),
                };
                self.operations.push((finish, None));
                return;
            }
        };
        let started = job.state != WorkerState::Pending;
        let idempotent = self.runner.service.get(head.task.as_str()).is_some_and(|task| task.is_idempotent())
            && job.attempts < ATTEMPTS_MAX;
        let left = (job.deadline - SystemClock::unix()).clamp(0.0, TIMEOUT_SECONDS_MAX as f64);
        let JobRequestHead { task, timeout: asked_timeout, .. } = head;
        let new = NewJob { job: job.id, client: job.client, task, asked_timeout, timeout: job.timeout, body: job.body };
        let restored = RestoredJob { new, started: started && !idempotent, remaining: Duration::from_secs_f64(left) };
        self.machine.restore(SystemClock::now(), restored);
        if let Err(error) = self.perform() {
            error!("worker {}: {error}", self.runner.identity);
        }
    }

    pub(super) fn load(&mut self, job: JobId, client: Identity, asked: Asked) {
        // What was handed over before must be there when the query runs.
        self.submit_operations();
        let inbox = self.inbox.clone();
        let asked = self.writer.try_query(move |store| {
            let loaded = match store.result(&job) {
                Ok(found) => found.map(|(_, payload)| LoadedJob { payload }),
                Err(error) => {
                    error!("job {job} cannot be read: {error}");
                    return;
                }
            };
            inbox.push([StoreAnswer::Loaded { job, client, asked, loaded }]);
        });
        if let Err(error) = asked
            && self.throttle.admit()
        {
            // The client asks again.
            warn!("worker {}: {error}", self.runner.identity);
        }
    }
}

/// What the machine wants stored, in the store's words and with the wall time that only the store keeps.
pub(super) fn stored(operation: WorkerStoreOperation) -> WorkerOperation {
    let at = SystemClock::unix();
    match operation {
        WorkerStoreOperation::Insert(NewJob { job, client, task, asked_timeout, timeout, body }) => {
            let seconds = asked_timeout.unwrap_or(TIMEOUT_SECONDS_MAX).min(TIMEOUT_SECONDS_MAX);
            WorkerOperation::Insert(WorkerJob {
                id: job,
                client,
                task,
                body,
                timeout,
                received: at,
                deadline: at + seconds as f64,
                state: WorkerState::Pending,
                attempts: 0,
                started: None,
                finished: None,
            })
        }
        WorkerStoreOperation::Started(id) => WorkerOperation::State { id, state: WorkerState::Started, at },
        WorkerStoreOperation::Waiting(id) => WorkerOperation::State { id, state: WorkerState::WaitingClientInput, at },
        WorkerStoreOperation::Finish { job, ending, payload } => {
            let state = match ending {
                Ending::Completed => WorkerState::Completed,
                Ending::Failed => WorkerState::Failed,
                Ending::Cancelled => WorkerState::Cancelled,
            };
            WorkerOperation::Finish { id: job, state, at, payload }
        }
        WorkerStoreOperation::Event { job, body } => WorkerOperation::Event { id: job, body },
    }
}
