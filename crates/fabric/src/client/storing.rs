//! A client's jobs in the words of its machine and in those of its store.

use std::time::{Duration, Instant};

use norfab_jobs::{ClientJob, ClientOperation, ClientState};
use norfab_protocol::client::{ClientStoreOperation, JobRequest, JobState, Progress, RestoredClientJob};
use norfab_protocol::target::Target;
use norfab_protocol::worker::TIMEOUT_SECONDS_MAX;

use crate::clock::SystemClock;

/// Requests up to this size are looked at for whether they wait for workers that nobody knows.
const WAIT_LOOKED_FOR: usize = 1 << 20;

/// A stored job in the machine's words, with the time that is left to it. `since`: when it was given to this process at the latest.
pub(super) fn restored(job: ClientJob, since: Instant) -> RestoredClientJob {
    let left = (job.deadline - SystemClock::steady_unix()).clamp(0.0, TIMEOUT_SECONDS_MAX as f64);
    // Not more than there was at its submission, whatever was done to the wall clock meanwhile; and what waits in the database
    // for its turn waits no longer than what does not.
    let waited = SystemClock::now().saturating_duration_since(since).as_secs_f64();
    // More than that at the beginning of this process comes from a wall clock that was set back before it. It is seen here only: what
    // is handed on is bounded.
    let ageless = left + waited > job.timeout as f64;
    let left = left.min((job.timeout.saturating_add(1) as f64 - waited).max(0.0));
    RestoredClientJob {
        state: state_of(job.state),
        request: JobRequest {
            job: job.id,
            service: job.service,
            task: job.task,
            target: Target::parse(&job.target),
            waits: job.body.len() <= WAIT_LOOKED_FOR && norfab_protocol::body::waits(&job.body),
            timeout: Duration::from_secs(job.timeout),
            deadline: SystemClock::now() + Duration::from_secs_f64(left),
            body: job.body,
        },
        dispatched: job.dispatched,
        started: job.started,
        completed: job.completed,
        errors: job.errors,
        ageless,
    }
}

/// A stored state in the machine's words.
pub(super) fn state_of(state: ClientState) -> JobState {
    match state {
        ClientState::New => JobState::New,
        ClientState::Submitting => JobState::Submitting,
        ClientState::Dispatched => JobState::Dispatched,
        ClientState::Started => JobState::Started,
        ClientState::WaitingClientInput => JobState::Waiting,
        ClientState::Cancelling => JobState::Cancelling,
        ClientState::Completed => JobState::Completed,
        ClientState::Failed => JobState::Failed,
        ClientState::Stale => JobState::Stale,
        ClientState::Cancelled => JobState::Cancelled,
    }
}

/// What the machine wants stored, in the store's words and with the wall time that only the store keeps.
pub(super) fn stored(operation: ClientStoreOperation) -> ClientOperation {
    let at = SystemClock::unix();
    match operation {
        ClientStoreOperation::Insert(request) => {
            let left = request.deadline.saturating_duration_since(SystemClock::now());
            ClientOperation::Insert(ClientJob {
                id: request.job,
                service: request.service,
                task: request.task,
                target: request.target.as_str().to_owned(),
                body: request.body,
                timeout: request.timeout.as_secs(),
                submitted: at,
                deadline: SystemClock::steady_unix() + left.as_secs_f64(),
                state: ClientState::New,
                dispatched: Vec::new(),
                started: Vec::new(),
                completed: Vec::new(),
                errors: Vec::new(),
                finished: None,
            })
        }
        ClientStoreOperation::Progress(Progress { job, state, dispatched, started, completed, errors }) => {
            let finished = state.is_final().then_some(at);
            let state = match state {
                JobState::New => ClientState::New,
                JobState::Submitting => ClientState::Submitting,
                JobState::Dispatched => ClientState::Dispatched,
                JobState::Started => ClientState::Started,
                JobState::Waiting => ClientState::WaitingClientInput,
                JobState::Cancelling => ClientState::Cancelling,
                JobState::Completed => ClientState::Completed,
                JobState::Failed => ClientState::Failed,
                JobState::Stale => ClientState::Stale,
                JobState::Cancelled => ClientState::Cancelled,
            };
            ClientOperation::Progress { id: job, state, dispatched, started, completed, errors, finished }
        }
        ClientStoreOperation::Result { job, worker, payload } => ClientOperation::Result { id: job, worker, payload },
        ClientStoreOperation::Event { job, body } => ClientOperation::Event { id: job, body },
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use norfab_protocol::{JobId, ServiceName, TaskName};

    use super::*;

    /// A job for ten minutes, of which these seconds are left by its row, in a process that began so long ago.
    fn read_back(left: f64, began: Duration) -> (bool, Duration) {
        let now = SystemClock::now();
        let job = restored(
            ClientJob {
                id: JobId::parse("1").expect("an id"),
                service: ServiceName::parse("s").expect("a name"),
                task: TaskName::parse("t").expect("a name"),
                target: "any".to_owned(),
                body: Bytes::from_static(b"{}"),
                timeout: 600,
                submitted: 0.0,
                deadline: SystemClock::steady_unix() + left,
                state: ClientState::New,
                dispatched: Vec::new(),
                started: Vec::new(),
                completed: Vec::new(),
                errors: Vec::new(),
                finished: None,
            },
            now.checked_sub(began).expect("the host has run for longer"),
        );
        (job.ageless, job.request.deadline.saturating_duration_since(now))
    }

    #[test]
    fn that_the_clock_was_set_back_is_seen_however_late_a_job_is_read_back() {
        let waited = Duration::from_secs(5);
        for began in [Duration::ZERO, waited] {
            let (ageless, left) = read_back(4000.0, began);
            assert!(ageless, "after {began:?}");
            assert!(left < Duration::from_secs(602) - began, "{left:?} after {began:?}");
            assert!(!read_back(590.0, began).0, "after {began:?}");
        }
        // There was more than all of its time when the process began.
        assert!(read_back(598.0, waited).0);
    }
}
