//! Jobs whose workers are not there yet, over real sockets and databases.

use std::time::Duration;

use norfab_fabric::client::{JobSpec, WorkerReport};
use norfab_protocol::client::{JobState, JobUpdate, Lost};
use norfab_protocol::target::Target;
use norfab_protocol::{Identity, ServiceName, TaskName};
use serde_json::json;

use crate::support::{Fabric, runtime, spec};

#[test]
fn a_job_waits_for_a_worker_that_is_being_restarted() {
    runtime().block_on(async {
        let mut fabric = Fabric::start();
        fabric.worker("w1").await;
        fabric.worker("w2").await;
        let client = fabric.client("c").await;
        fabric.stop_worker("w2").await;
        let mut named = spec("ok");
        named.target = Target::list(["w1", "w2"]);
        let mut named = client.submit(named).await.expect("taken");
        // One that stops before its task has begun leaves the job to its next process, and there is none here.
        let (mut waits, mut returned) = (false, false);
        while !(waits && returned) {
            match named.next().await.expect("news") {
                JobUpdate::Waits(_) => waits = true,
                JobUpdate::Result(..) => returned = true,
                _ => {}
            }
        }
        fabric.stop_worker("w1").await;
        let mut any = client.submit(spec("ok")).await.expect("taken");
        while !matches!(any.next().await.expect("news"), JobUpdate::Waits(_)) {}
        fabric.worker("w2").await;
        let report = any.wait().await;
        assert_eq!(report.state, JobState::Completed, "{report:?}");
        let report = named.wait().await;
        assert_eq!((report.state, report.workers.len()), (JobState::Completed, 2), "{report:?}");
        fabric.stop().await;
    });
}

#[test]
fn jobs_right_after_the_start_of_a_broker_wait_for_its_workers() {
    runtime().block_on(async {
        let mut fabric = Fabric::start();
        let client = fabric.client("c").await;
        let mut job = client.submit(spec("ok")).await.expect("taken");
        while !matches!(job.next().await.expect("news"), JobUpdate::Waits(_)) {}
        // One that waits for whoever it is, without a word of the broker that somebody is expected.
        let mut patient =
            JobSpec::new(ServiceName::parse("s").expect("a name"), TaskName::parse("ok").expect("a name"));
        patient.kwargs = spec("ok").kwargs;
        patient.target = Target::parse("w1");
        patient.waits = true;
        let patient = client.submit(patient).await.expect("taken");
        fabric.worker("w1").await;
        for job in [job, patient] {
            let report = job.wait().await;
            assert_eq!(report.state, JobState::Completed, "{report:?}");
        }
        fabric.stop().await;
    });
}

#[test]
fn a_worker_that_stays_away_is_named_beside_what_the_others_returned() {
    runtime().block_on(async {
        let mut fabric = Fabric::start();
        for worker in ["w1", "w2", "w3"] {
            fabric.worker_with(worker, 1).await;
        }
        let client = fabric.client("c").await;
        // One is busy, so that it has the job and has not begun it when it goes.
        let mut busy = spec("slow");
        busy.target = Target::parse("w2");
        let mut busy = client.submit(busy).await.expect("taken");
        while !matches!(busy.next().await.expect("news"), JobUpdate::Accepted(_)) {}
        fabric.stop_worker("w3").await;
        let mut job = spec("ok");
        job.target = Target::list(["w1", "w2", "w3"]);
        job.timeout = Duration::from_secs(4);
        let mut job = client.submit(job).await.expect("taken");
        let second = Identity::parse("w2").expect("a name");
        while !matches!(job.next().await.expect("news"), JobUpdate::Accepted(worker) if worker == second) {}
        fabric.stop_worker("w2").await;
        let report = job.wait().await;
        assert_eq!(report.state, JobState::Stale, "{report:?}");
        let results = report.results();
        let of = |worker: &str| &results[&Identity::parse(worker).expect("a name")];
        assert_eq!((of("w1").failed, of("w1").value()), (false, Some(json!({"a": 1}))), "{report:?}");
        for worker in ["w2", "w3"] {
            let missing = &report.workers[&Identity::parse(worker).expect("a name")];
            assert!(matches!(missing, WorkerReport::Missing(Lost::Vanished)), "{worker}: {report:?}");
            assert!(of(worker).failed && of(worker).errors[0].starts_with("the worker vanished"), "{:?}", of(worker));
        }
        fabric.stop().await;
    });
}
