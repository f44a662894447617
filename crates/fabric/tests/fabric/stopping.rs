//! A worker that is stopped while jobs are about to start. Which tasks have begun is known where the system says which of its runs
//! this is.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use norfab_jobs::testing::{Interference, TestWorkerStore};
use norfab_jobs::{SqliteWorkerStore, StoreError, WorkerOperation, WorkerState, WorkerStore};
use norfab_protocol::client::JobState;
use norfab_protocol::{JobId, ServiceName};
use norfab_service::{NoInput, Service, Task, TaskContext};
use tokio::sync::mpsc;

use crate::support::{Fabric, eventually, runtime, spec};

/// How long a worker may take to end when nothing holds it up any more: less than what it grants tasks that do not end.
const STOP_MAX: Duration = Duration::from_secs(5);

/// A disk that hangs while the second start of a job is written down, until it is let go.
struct HangsAtSecondStart {
    starts: u32,
    hangs: mpsc::UnboundedSender<()>,
    let_go: std::sync::mpsc::Receiver<()>,
}

impl Interference for HangsAtSecondStart {
    fn apply(&mut self, operations: &[WorkerOperation]) -> Result<(), StoreError> {
        let starts = |operation: &&WorkerOperation| {
            matches!(operation, WorkerOperation::State { state: WorkerState::Started, .. })
        };
        if operations.iter().any(|operation| starts(&operation)) {
            self.starts += 1;
            if self.starts == 2 {
                self.hangs.send(()).expect("the test waits for it");
                self.let_go.recv().expect("the test lets it go");
            }
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
                let hanging = HangsAtSecondStart { starts: 0, hangs: to_hang, let_go: to_let_go };
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

fn state_of(database: &Path, job: &JobId) -> Option<WorkerState> {
    let mut store = SqliteWorkerStore::open_beside(database).expect("a store");
    store.job(job).expect("it can be read").map(|details| details.job.state)
}
