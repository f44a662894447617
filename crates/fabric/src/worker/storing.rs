//! The worker's owner and its store: what is handed over, read back and forgotten.

use std::time::Duration;

use norfab_jobs::{PageEnd, QueryError, WorkerJob, WorkerOperation, WorkerState};
use norfab_protocol::body::JobRequestHead;
use norfab_protocol::worker::{Ending, NewJob, RestoredJob, TIMEOUT_SECONDS_MAX, WorkerStoreOperation};
use norfab_protocol::{Identity, JobId, ResultStatus, TaskResult};
use norfab_transport::LinkError;
use tracing::{error, warn};

use super::begun::Before;
use super::run::{Run, StoreAnswer};
use crate::clock::SystemClock;
use crate::storing::{NoSpace, RESTORE_AGAIN};

/// How often a task that may run again is begun, crashes of the worker included: one that ends its process each time must
/// not do so for ever.
const ATTEMPTS_MAX: u32 = 3;

/// Tasks for which there is space on the disk beforehand to write down that they begin: 256 bytes each.
const BEGUN_ROOM_MAX: usize = 1024;

/// How long nobody looks after a connection that has begun to be made, and it is kept: a fraction of what a handshake may take.
const LINK_ALONE_MAX: Duration = Duration::from_secs(1);

impl Run {
    /// Reads back what the last process left. Without space on the disk for that it waits until there is some, or until it is to stop:
    /// a worker that is there and does not know its jobs would leave them to their deadlines, and new ones find no space either.
    /// Errors: the link is broken.
    pub(super) fn restore(&mut self) -> Result<(), LinkError> {
        let began = SystemClock::now();
        let before = Before::read(self.begun_file.as_deref());
        let mut after: Option<PageEnd> = None;
        let mut is_told = false;
        loop {
            let from = after.clone();
            let page = self.storing.unfinished(from, |store, after, limit| store.unfinished(after, limit));
            let (jobs, end) = match page {
                Ok(page) => page,
                Err(NoSpace(problem)) => {
                    if !std::mem::replace(&mut is_told, true) {
                        let who = &self.runner.identity;
                        error!("worker {who} waits for space to read the jobs that it has not finished: {problem}");
                    }
                    self.take_commands();
                    if self.stopping.is_some() {
                        return Ok(());
                    }
                    std::thread::park_timeout(RESTORE_AGAIN);
                    continue;
                }
            };
            for job in jobs {
                self.restore_job(&before, job);
            }
            if end.is_none() {
                break;
            }
            after = end;
        }
        let room = self.machine.config().max_concurrent_jobs.min(BEGUN_ROOM_MAX);
        self.runner.begun.open(self.begun_file.as_deref(), room, std::mem::take(&mut self.begun_before));
        if SystemClock::now().saturating_duration_since(began) >= LINK_ALONE_MAX {
            // It was neither heard nor answered meanwhile, and the broker may have given it up: that would count as its fault.
            self.link.reconnect()?;
        }
        Ok(())
    }

    fn restore_job(&mut self, before: &Before, job: WorkerJob) {
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
                self.storing.push(finish, None);
                return;
            }
        };
        let started = job.state != WorkerState::Pending;
        let is_idempotent = self.runner.service.get(head.task.as_str()).is_some_and(|task| task.is_idempotent());
        let attempts_max = if is_idempotent { ATTEMPTS_MAX } else { 1 };
        let left = (job.deadline - SystemClock::unix()).clamp(0.0, TIMEOUT_SECONDS_MAX as f64);
        let (time_left, attempts) = (head.time_left(), job.attempts);
        // What was left when it came is the most that can be left, whatever was done to the wall clock meanwhile.
        let remaining = Duration::from_secs_f64(left).min(time_left.unwrap_or(Duration::MAX));
        let JobRequestHead { task, timeout: asked_timeout, .. } = head;
        let (job, client, timeout, body) = (job.id, job.client, job.timeout, job.body);
        let new = NewJob { job, client, task, asked_timeout, timeout, time_left, body };
        let begun = started && before.may_have_begun(&new.job);
        if begun {
            self.begun_before.push(new.job.clone());
        }
        let restored = RestoredJob::of_row(new, remaining, started, attempts, begun, attempts_max);
        self.machine.restore(SystemClock::now(), restored);
        if let Err(error) = self.perform() {
            error!("worker {}: {error}", self.runner.identity);
        }
    }

    pub(super) fn look_up(&mut self, jobs: Vec<JobId>, question: JobId, client: Identity) {
        let inbox = self.inbox.clone();
        // A job whose row is not there yet is in the machine, and whatever is missing of others does not make them unknown.
        let asked = self.storing.ask(move |store, _| {
            inbox.push([match store.known(&jobs) {
                Ok(stored) => StoreAnswer::LookedUp { jobs, question, client, stored },
                Err(error) => StoreAnswer::Unreadable { job: question, error },
            }]);
        });
        self.told_whether_asked(asked);
    }

    pub(super) fn told_whether_asked(&mut self, asked: Result<(), QueryError>) {
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
        WorkerStoreOperation::Insert(NewJob { job, client, task, timeout, time_left, body, .. }) => {
            let seconds = time_left.map_or(TIMEOUT_SECONDS_MAX as f64, |left| left.as_secs_f64());
            WorkerOperation::Insert(WorkerJob {
                id: job,
                client,
                task,
                body,
                timeout,
                received: at,
                deadline: at + seconds,
                state: WorkerState::Pending,
                attempts: 0,
                started: None,
                finished: None,
            })
        }
        WorkerStoreOperation::Started(id) => WorkerOperation::State { id, state: WorkerState::Started, at },
        WorkerStoreOperation::StartedAnew(id) => WorkerOperation::StartedAnew { id, at },
        WorkerStoreOperation::Waiting(id) => WorkerOperation::State { id, state: WorkerState::WaitingClientInput, at },
        WorkerStoreOperation::Answered(id) => WorkerOperation::Answered { id },
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
