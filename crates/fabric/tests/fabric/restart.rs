//! What a worker makes of jobs that its process before left in the database.

use std::time::Duration;

use bytes::Bytes;
use norfab_fabric::SystemClock;
use norfab_jobs::{SqliteWorkerStore, Store, WorkerJob, WorkerOperation, WorkerState, WorkerStore};
use norfab_protocol::{Identity, JobId, TaskName, TaskResult};

use crate::support::{Fabric, eventually, runtime, slow_begins, spec};

/// How long the caller of a job waits that is long on its way: far longer than a restarted broker takes to get all back.
const TIMEOUT: Duration = Duration::from_secs(20);

/// How much of it passes before the job leaves.
const AWAY: Duration = Duration::from_secs(3);

/// A job as a process that was killed left it: begun once, or only stored.
pub(crate) fn left(id: &str, task: &str, begun: bool, deadline: f64) -> Vec<WorkerOperation> {
    let now = SystemClock::unix();
    let id = JobId::parse(id).expect("a name");
    let insert = WorkerOperation::Insert(WorkerJob {
        id: id.clone(),
        client: Identity::parse("c").expect("a name"),
        task: TaskName::parse(task).expect("a name"),
        body: Bytes::from(format!(r#"{{"task":"{task}","timeout":600}}"#)),
        timeout: 600,
        received: now,
        deadline: now + deadline,
        state: WorkerState::Pending,
        attempts: 0,
        started: None,
        finished: None,
    });
    let started = WorkerOperation::State { id, state: WorkerState::Started, at: now };
    if begun { vec![insert, started] } else { vec![insert] }
}

/// The file of a process in this run of the system that says which tasks began.
#[cfg(target_os = "linux")]
pub(crate) fn begun_places(jobs: &[&str]) -> Vec<u8> {
    let run = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").expect("the system says");
    let place = |name: &str| {
        let mut place = [0; 256];
        place[0] = name.len() as u8;
        place[1..=name.len()].copy_from_slice(name.as_bytes());
        place
    };
    [run.trim()].iter().chain(jobs).flat_map(|name| place(name)).collect()
}

#[test]
fn queued_jobs_run_begun_ones_fail_unless_they_may_run_twice_and_late_ones_never_start() {
    runtime().block_on(async {
        let mut fabric = Fabric::start();
        let path = fabric.database("w1");
        {
            let mut store = SqliteWorkerStore::open(&path, "now").expect("a store");
            let jobs = [
                left("queued", "again", false, 600.0),
                left("begun", "slow", true, 600.0),
                left("twice", "again", true, 600.0),
                left("late", "again", false, -1.0),
            ];
            for outcome in store.apply(&jobs.concat()).expect("room") {
                outcome.expect("it is taken");
            }
        }
        fabric.worker("w1").await;
        let ended = async |id: &str| {
            let id = JobId::parse(id).expect("a name");
            let mut ended = None;
            eventually("the job ends", async || {
                let mut store = SqliteWorkerStore::open_beside(&path).expect("a store");
                ended = store.job(&id).expect("it can be read").filter(|details| details.job.state.is_final());
                ended.is_some()
            })
            .await;
            let details = ended.expect("it has ended");
            let result: TaskResult = serde_json::from_slice(&details.payload.expect("a result")).expect("a result");
            (details.job.state, details.job.attempts, result)
        };
        let (state, attempts, result) = ended("queued").await;
        assert_eq!((state, attempts, result.failed), (WorkerState::Completed, 1, false), "{result:?}");
        let (state, attempts, result) = ended("begun").await;
        assert_eq!(
            (state, attempts, &*result.errors[0]),
            (WorkerState::Failed, 1, "worker restarted while the job ran, or before its end was stored")
        );
        let (state, attempts, result) = ended("twice").await;
        assert_eq!((state, attempts, result.failed), (WorkerState::Completed, 2, false), "{result:?}");
        assert_eq!(result.messages, ["attempt 2: the worker was restarted while the job ran"]);
        let (state, attempts, result) = ended("late").await;
        assert_eq!(
            (state, attempts, &*result.errors[0]),
            (WorkerState::Failed, 0, "its deadline passed before it started")
        );
        fabric.stop().await;
    });
}

#[cfg(target_os = "linux")]
#[test]
fn a_job_that_was_started_and_whose_task_had_not_begun_runs_after_the_restart() {
    runtime().block_on(async {
        let mut fabric = Fabric::start();
        let path = fabric.database("w1");
        {
            let mut store = SqliteWorkerStore::open(&path, "now").expect("a store");
            let mut jobs = [left("waited", "ok", true, 600.0), left("begun", "ok", true, 600.0)];
            for job in &mut jobs {
                let WorkerOperation::Insert(job) = &mut job[0] else { panic!("the job comes first") };
                job.body = Bytes::from_static(br#"{"task":"ok","timeout":600,"kwargs":{"a":1}}"#);
            }
            for outcome in store.apply(&jobs.concat()).expect("room") {
                outcome.expect("it is taken");
            }
        }
        // As the process left it that was killed: only one of the two tasks began.
        std::fs::write(path.with_extension("begun"), begun_places(&["begun"])).expect("written");
        fabric.worker("w1").await;
        for (id, state, attempts) in [("waited", WorkerState::Completed, 1), ("begun", WorkerState::Failed, 1)] {
            let id = JobId::parse(id).expect("a name");
            let mut ended = None;
            eventually("the job ends", async || {
                let mut store = SqliteWorkerStore::open_beside(&path).expect("a store");
                ended = store.job(&id).expect("it can be read").filter(|details| details.job.state.is_final());
                ended.is_some()
            })
            .await;
            let details = ended.expect("it has ended");
            let result: TaskResult = serde_json::from_slice(&details.payload.expect("a result")).expect("a result");
            assert_eq!((details.job.state, details.job.attempts), (state, attempts), "{result:?}");
            assert!(result.messages.is_empty(), "the attempt that did not begin is none: {result:?}");
        }
        fabric.stop().await;
    });
}

#[test]
fn a_job_that_was_long_on_its_way_does_not_start_after_its_time_although_its_client_is_gone() {
    runtime().block_on(async {
        let mut fabric = Fabric::start();
        fabric.worker_with("w1", 1).await;
        let (client, other) = (fabric.client("c").await, fabric.client("other").await);
        let mut busy = other.submit(spec("slow")).await.expect("taken");
        slow_begins(&mut busy, 1).await;
        // Its broker is away for much of the time that its caller waits.
        fabric.stop_broker().await;
        let mut late = spec("ok");
        late.timeout = TIMEOUT;
        let late = client.submit(late).await.expect("taken").id().clone();
        tokio::time::sleep(AWAY).await;
        fabric.restart_broker().await;
        eventually("it is with the worker", async || fabric.stored_state("w1", &late).await.is_some()).await;
        // Nobody can withdraw it now.
        client.stop().await;
        let path = fabric.database("w1");
        let mut store = SqliteWorkerStore::open_beside(&path).expect("a store");
        let waiting = store.job(&late).expect("it can be read").expect("a row").job;
        let left = waiting.deadline - waiting.received;
        assert!(left <= (TIMEOUT - AWAY).as_secs_f64(), "its time began when its caller's did: {left} s are left");
        // Its worker has something else to do until its time is over.
        eventually("its time is over", async || SystemClock::unix() > waiting.deadline).await;
        busy.cancel("me", None).await.expect("a client");
        let mut ended = None;
        eventually("its turn comes", async || {
            let mut store = SqliteWorkerStore::open_beside(&path).expect("a store");
            ended = store.job(&late).expect("it can be read").filter(|details| details.job.state.is_final());
            ended.is_some()
        })
        .await;
        let details = ended.expect("it has ended");
        let result: TaskResult = serde_json::from_slice(&details.payload.expect("a result")).expect("a result");
        assert_eq!(
            (details.job.state, details.job.attempts, &*result.errors.join("")),
            (WorkerState::Failed, 0, "its deadline passed before it started"),
            "{:?}",
            details.job
        );
        fabric.stop().await;
    });
}
