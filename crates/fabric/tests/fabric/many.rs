//! Many jobs of one client, each with a number.

use std::time::Duration;

use norfab_fabric::client::{ClientHandle, JobHandle, SubmitError};
use norfab_protocol::JobId;
use tokio::task::JoinSet;

use crate::support::spec;

/// Submissions at the same time.
const AT_ONCE: usize = 128;

/// The id of a numbered job.
pub fn id(number: usize) -> JobId {
    JobId::parse(&format!("{number:032x}")).expect("a name")
}

/// Submits one of them.
pub async fn submit(client: &ClientHandle, number: usize, timeout: Duration) -> Result<JobHandle, SubmitError> {
    let mut spec = spec("ok");
    (spec.id, spec.timeout) = (Some(id(number)), timeout);
    client.submit(spec).await
}

/// Submits the first so many, and waits until all are taken.
pub async fn submit_all(client: &ClientHandle, jobs: usize, timeout: Duration) {
    let mut submissions = JoinSet::new();
    for number in 0..jobs {
        let client = client.clone();
        submissions.spawn(async move { submit(&client, number, timeout).await.map(drop) });
        if submissions.len() == AT_ONCE {
            submissions.join_next().await.expect("one").expect("no panic").expect("it is taken");
        }
    }
    while let Some(taken) = submissions.join_next().await {
        taken.expect("no panic").expect("it is taken");
    }
}

/// How many have not ended.
pub async fn unfinished(client: &ClientHandle) -> usize {
    client.statistics().await.expect("the client runs")["unfinished_jobs"].as_u64().expect("a number") as usize
}
