//! A worker that is stopped while jobs are about to start. Which tasks have begun is known where the system says which of its runs
//! this is.

use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use norfab_jobs::testing::{Interference, TestWorkerStore};
use norfab_jobs::{SqliteWorkerStore, Store, StoreError, WorkerOperation, WorkerState, WorkerStore};
use norfab_protocol::client::JobState;
use norfab_protocol::frame::Status;
use norfab_protocol::message::{BrokerToWorker, Delivery, WorkerMessage};
use norfab_protocol::{Identity, JobId, ServiceName};
use norfab_service::{NoInput, Service, Task, TaskContext};
use norfab_transport::RouterLink;
use norfab_transport::memory::MemoryRouter;
use serde_json::json;
use tokio::sync::mpsc;

use crate::decision::{Bench, service};
use crate::restart::{begun_places, left};
use crate::support::{Fabric, eventually, runtime, spec};

/// How long a worker may take to end when nothing holds it up any more: less than what it grants tasks that do not end.
const STOP_MAX: Duration = Duration::from_secs(5);

/// A disk that hangs while the start of a job is written down, until it is let go.
struct HangsAtStart {
    /// Starts before that one.
    before: u32,
    hangs: mpsc::UnboundedSender<()>,
    let_go: std::sync::mpsc::Receiver<()>,
}

impl Interference for HangsAtStart {
    fn apply(&mut self, operations: &[WorkerOperation]) -> Result<(), StoreError> {
        let starts = |operation: &WorkerOperation| {
            matches!(
                operation,
                WorkerOperation::State { state: WorkerState::Started, .. } | WorkerOperation::StartedAnew { .. }
            )
        };
        if operations.iter().any(starts) {
            if self.before == 0 {
                self.hangs.send(()).expect("the test waits for it");
                self.let_go.recv().expect("the test lets it go");
            }
            self.before = self.before.wrapping_sub(1);
        }
        Ok(())
    }
}

#[test]
fn a_job_whose_task_has_not_begun_when_its_worker_stops_runs_after_the_restart_unless_it_was_cancelled() {
    for cancelled in [false, true] {
        runtime().block_on(stopped_before_it_begins(cancelled));
    }
}

async fn stopped_before_it_begins(cancelled: bool) {
    let mut fabric = Fabric::start();
    let path = fabric.database("w1");
    let (to_hang, mut hangs) = mpsc::unbounded_channel();
    let (let_go, to_let_go) = std::sync::mpsc::channel();
    let (to_say, mut said) = mpsc::unbounded_channel();
    let (may_end, to_end) = tokio::sync::watch::channel(false);
    // A task that says when it begins, and when it is told that its worker stops.
    let task = Task::new("holds", "Ends when it may.", move |context: TaskContext, NoInput {}| {
        let (to_say, mut to_end) = (to_say.clone(), to_end.clone());
        async move {
            to_say.send(()).expect("the test waits for it");
            context.cancelled().cancelled().await;
            to_say.send(()).expect("the test waits for it");
            to_end.wait_for(|may_end| *may_end).await.expect("the test says it");
            Ok("ended early")
        }
    });
    let of_store = path.clone();
    fabric
        .worker_changed("w1", |options| {
            options.service = Arc::new(Service::new(ServiceName::parse("s").expect("a name")).task(task));
            options.store = Box::new(move || {
                let hanging = HangsAtStart { before: 1, hangs: to_hang, let_go: to_let_go };
                Ok(Box::new(TestWorkerStore::over(SqliteWorkerStore::open(&of_store, "now")?, hanging)))
            });
        })
        .await;
    let client = fabric.client("c").await;
    let holds = client.submit(spec("holds")).await.expect("taken");
    said.recv().await.expect("it begins");
    let job = client.submit(spec("ok")).await.expect("taken");
    let id = job.id().clone();
    hangs.recv().await.expect("it is about to start");
    let mut let_go_at = Instant::now();
    let stops = async {
        said.recv().await.expect("all that run are told that the worker stops");
        let_go.send(()).expect("it hangs");
        if cancelled {
            assert!(job.cancel("me", None).await.expect("a client"));
            // Its worker is there still, as one task has not ended.
            eventually("its end is stored", async || state_of(&path, &id) == Some(WorkerState::Cancelled)).await;
        }
        may_end.send(true).expect("it waits for it");
        let_go_at = Instant::now();
    };
    tokio::join!(fabric.stop_worker("w1"), stops);
    let took = let_go_at.elapsed();
    assert!(took < STOP_MAX, "the worker waits for nothing that will not come: {took:?}");
    if !cancelled {
        assert_eq!(state_of(&path, &id), Some(WorkerState::Started), "no end is told");
    }
    assert!(holds.wait().await.succeeded());
    fabric.worker("w1").await;
    let report = job.wait().await;
    let state = if cancelled { JobState::Cancelled } else { JobState::Completed };
    assert_eq!((report.state, report.succeeded()), (state, !cancelled), "{report:?}");
    let state = if cancelled { WorkerState::Cancelled } else { WorkerState::Completed };
    eventually("its end is stored", async || state_of(&path, &id) == Some(state)).await;
    fabric.stop().await;
}

#[test]
fn a_job_that_one_process_after_the_other_leaves_counts_the_attempts_that_began_and_no_others() {
    for began in [false, true] {
        runtime().block_on(left_twice(began));
    }
}

/// `began`: whether its task, which may run twice then, had begun in a process that was killed, or was only about to.
async fn left_twice(began: bool) {
    let folder = tempfile::tempdir().expect("a folder");
    let (path, begun_file) = (folder.path().join("w1.db"), folder.path().join("w1.begun"));
    let mut store = SqliteWorkerStore::open(&path, "now").expect("a store");
    for outcome in store.apply(&left("1", "t", true, 600.0)).expect("room") {
        outcome.expect("it is taken");
    }
    drop(store);
    std::fs::write(&begun_file, begun_places(if began { &["1"] } else { &[] })).expect("written");
    let bench = |hanging: Option<HangsAtStart>| {
        let task = Task::new("t", "", async |_: TaskContext, NoInput {}| Ok("done"));
        Bench::with(service(if began { task.idempotent() } else { task }), |options| {
            let path = path.clone();
            options.begun_file = Some(begun_file.clone());
            options.store = Box::new(move || {
                let store = SqliteWorkerStore::open(&path, "now")?;
                Ok(match hanging {
                    Some(hanging) => Box::new(TestWorkerStore::over(store, hanging)),
                    None => Box::new(store),
                })
            });
        })
    };
    let attempts = if began { 2 } else { 1 };
    for _ in 0..2 {
        let (to_hang, mut hangs) = mpsc::unbounded_channel();
        let (let_go, to_let_go) = std::sync::mpsc::channel();
        let hanging = HangsAtStart { before: 0, hangs: to_hang, let_go: to_let_go };
        let Bench { network: _network, mut router, worker } = bench(Some(hanging));
        hangs.recv().await.expect("it is about to start");
        let mut stops = Box::pin(worker.stop(Duration::ZERO));
        tokio::time::timeout(Duration::ZERO, &mut stops).await.expect_err("it does not end at once");
        // The owner has taken that when it takes the first question, and does the rest of it before it takes the second.
        for _ in 0..2 {
            assert_eq!(answer(&mut router), Status::PENDING);
        }
        let_go.send(()).expect("it hangs");
        stops.await;
        let mut store = SqliteWorkerStore::open_beside(&path).expect("a store");
        let job = store.job(&JobId::parse("1").expect("a name")).expect("it can be read").expect("a row").job;
        assert_eq!((job.state, job.attempts), (WorkerState::Started, attempts), "it is left");
    }
    let mut last = bench(None);
    let result = loop {
        if let WorkerMessage::Response(reply) = last.next() {
            break reply;
        }
    };
    let told: serde_json::Value = serde_json::from_slice(&result.payload).expect("JSON");
    let messages: &[&str] = if began { &["attempt 2: the worker was restarted while the job ran"] } else { &[] };
    assert_eq!((&told["w1"]["result"], &told["w1"]["messages"]), (&json!("done"), &json!(messages)), "{told}");
    last.worker.stop(Duration::ZERO).await;
    let mut store = SqliteWorkerStore::open_beside(&path).expect("a store");
    let job = store.job(&JobId::parse("1").expect("a name")).expect("it can be read").expect("a row").job;
    assert_eq!((job.state, job.attempts), (WorkerState::Completed, attempts));
}

#[test]
fn a_job_that_was_cancelled_and_whose_task_is_not_waited_for_any_more_when_its_worker_stops_ends_as_cancelled() {
    // The task holds one of its threads.
    let of_tasks = runtime();
    runtime().block_on(async {
        let mut fabric = Fabric::start();
        let path = fabric.database("w1");
        let (to_say, mut said) = mpsc::unbounded_channel();
        let (let_go, to_let_go) = std::sync::mpsc::channel();
        let to_let_go = Arc::new(Mutex::new(to_let_go));
        let task = Task::new("deaf", "Blocks its thread, which nobody can end.", move |_: TaskContext, NoInput {}| {
            let (to_say, to_let_go) = (to_say.clone(), Arc::clone(&to_let_go));
            async move {
                to_say.send(()).expect("the test waits for it");
                to_let_go.lock().expect("one task").recv().expect("the test lets it go");
                Ok("ended too late")
            }
        });
        fabric
            .worker_changed("w1", |options| {
                options.service = Arc::new(service(task));
                options.runtime = of_tasks.handle().clone();
            })
            .await;
        let client = fabric.client("c").await;
        let job = client.submit(spec("deaf")).await.expect("taken");
        let id = job.id().clone();
        said.recv().await.expect("it begins");
        assert!(job.cancel("me", None).await.expect("a client"));
        eventually("its worker has told that it is cancelled", async || {
            let mut store = SqliteWorkerStore::open_beside(&path).expect("a store");
            let events = store.job(&id).expect("it can be read").expect("a row").events;
            events.iter().any(|event| String::from_utf8_lossy(event).contains("cancelled by me"))
        })
        .await;
        fabric.stop_worker("w1").await;
        assert_eq!(state_of(&path, &id), Some(WorkerState::Cancelled));
        let_go.send(()).expect("it waits for it");
        fabric.worker("w1").await;
        let report = job.wait().await;
        assert_eq!(report.state, JobState::Cancelled, "{report:?}");
        fabric.stop().await;
    });
}

/// Asks the worker about its job.
fn answer(router: &mut MemoryRouter) -> Status {
    let (client, job) = (Identity::parse("c").expect("a name"), JobId::parse("1").expect("a name"));
    let question = BrokerToWorker::Get(Delivery { client, job, body: "{}".into() });
    let end = Instant::now() + Duration::from_secs(20);
    // It may not be connected yet.
    while router.try_send(b"w1", &question.encode()).is_err() && Instant::now() < end {
        router.wait(Some(Duration::from_millis(10))).expect("a link");
    }
    while Instant::now() < end {
        let Some(received) = router.try_receive().expect("a link") else {
            router.wait(Some(Duration::from_millis(100))).expect("a link");
            continue;
        };
        if let WorkerMessage::Response(reply) = WorkerMessage::decode(&received.frames).expect("a message") {
            return reply.status;
        }
    }
    panic!("the worker says nothing");
}

fn state_of(database: &Path, job: &JobId) -> Option<WorkerState> {
    let mut store = SqliteWorkerStore::open_beside(database).expect("a store");
    store.job(job).expect("it can be read").map(|details| details.job.state)
}
