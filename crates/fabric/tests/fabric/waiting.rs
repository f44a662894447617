//! Jobs whose workers are not there yet, over real sockets and databases.

use norfab_protocol::client::{JobState, JobUpdate};
use norfab_protocol::target::Target;
use norfab_protocol::{ServiceName, TaskName};

use norfab_fabric::client::JobSpec;

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
        while !matches!(named.next().await.expect("news"), JobUpdate::Waits(_)) {}
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
