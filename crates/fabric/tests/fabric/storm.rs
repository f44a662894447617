//! Many workers come back at once.

use norfab_fabric::client::{ClientHandle, JobHandle};
use norfab_protocol::client::JobState;
use norfab_protocol::target::Target;

use crate::support::{Fabric, eventually, runtime, spec};

/// Workers in the test; a thousand are a figure of the benchmark.
const WORKERS: usize = 50;

/// Jobs that are submitted before the broker goes, and as many while it is away.
const JOBS: usize = 100;

async fn submit(client: &ClientHandle, target: &Target) -> Vec<JobHandle> {
    let mut jobs = Vec::new();
    for _ in 0..JOBS {
        let mut job = spec("ok");
        job.target = target.clone();
        // As of somebody who knows that workers may be away.
        job.waits = true;
        jobs.push(client.submit(job).await.expect("taken"));
    }
    jobs
}

#[test]
fn all_workers_return_to_a_restarted_broker_and_no_job_is_lost() {
    runtime().block_on(async {
        let mut fabric = Fabric::start();
        let names: Vec<String> = (0..WORKERS).map(|number| format!("w{number}")).collect();
        for name in &names {
            fabric.worker(name).await;
        }
        let client = fabric.client("c").await;
        let mut jobs = submit(&client, &Target::Any).await;
        fabric.stop_broker().await;
        jobs.extend(submit(&client, &Target::Any).await);
        let of_each = Target::list(names.iter().map(String::as_str));
        let mut job = spec("ok");
        job.target = of_each;
        let everywhere = client.submit(job).await.expect("taken");
        fabric.restart_broker().await;
        for name in &names {
            eventually("the worker is back", async || fabric.is_registered(name).await).await;
        }
        for job in jobs {
            let report = job.wait().await;
            assert_eq!((report.state, report.workers.len()), (JobState::Completed, 1), "{report:?}");
        }
        let report = everywhere.wait().await;
        assert!(report.succeeded() && report.workers.len() == WORKERS, "{report:?}");
        // Each job ran once: those for any on one worker each, the last one on all.
        let mut stored = 0;
        for name in &names {
            fabric.stop_worker(name).await;
            stored += fabric.stored_jobs(name).await;
        }
        assert_eq!(stored, (2 * JOBS + WORKERS) as u64);
        fabric.stop().await;
    });
}
