//! More jobs than a client holds in memory.

use std::time::Duration;

use norfab_fabric::client::{ClientHandle, JobHandle, SubmitError};
use norfab_jobs::ClientState;
use norfab_protocol::JobId;
use norfab_protocol::client::JobState;
use tokio::task::JoinSet;

use crate::support::{Fabric, eventually, runtime, spec};

/// More than are held, by more than a page.
const JOBS: usize = 4700;

/// Submissions at the same time.
const AT_ONCE: usize = 128;

fn id(number: usize) -> JobId {
    JobId::parse(&format!("{number:032x}")).expect("a name")
}

async fn submitted(client: &ClientHandle, number: usize, timeout: Duration) -> Result<JobHandle, SubmitError> {
    let mut spec = spec("ok");
    (spec.id, spec.timeout) = (Some(id(number)), timeout);
    client.submit(spec).await
}

async fn unfinished(client: &ClientHandle) -> u64 {
    client.statistics().await.expect("the client runs")["unfinished_jobs"].as_u64().expect("a number")
}

#[test]
fn jobs_beyond_what_is_held_wait_in_the_database_and_can_be_asked_about_cancelled_and_late() {
    runtime().block_on(async {
        let mut fabric = Fabric::start();
        fabric.worker("w1").await;
        let client = fabric.client("c").await;
        fabric.stop_broker().await;
        let mut submissions = JoinSet::new();
        for number in 0..JOBS {
            let client = client.clone();
            submissions.spawn(async move { submitted(&client, number, Duration::from_secs(120)).await.map(drop) });
            if submissions.len() == AT_ONCE {
                submissions.join_next().await.expect("one").expect("no panic").expect("it is taken");
            }
        }
        while let Some(taken) = submissions.join_next().await {
            taken.expect("no panic").expect("it is taken");
        }
        assert_eq!(unfinished(&client).await, JOBS as u64);
        // All of these wait in the database.
        let late = submitted(&client, JOBS, Duration::from_millis(300)).await.expect("it is taken");
        let cancelled = submitted(&client, JOBS + 1, Duration::from_secs(120)).await.expect("it is taken");
        assert!(submitted(&client, JOBS + 1, Duration::from_secs(120)).await.is_err(), "its id is in use");
        let again = submitted(&client, JOBS - 1, Duration::from_secs(120)).await;
        assert!(again.is_err(), "its id is stored");
        let watched = client.watch(id(JOBS - 2)).await.expect("the client runs").expect("it has not ended");
        assert_eq!(late.wait().await.state, JobState::Stale, "nobody has to wait for room");
        assert!(cancelled.cancel("tester", None).await.is_ok());
        assert_eq!(cancelled.wait().await.state, JobState::Cancelled);

        fabric.restart_broker().await;
        assert!(matches!(watched.wait().await.state, JobState::Completed | JobState::Failed));
        eventually("all have ended", async || unfinished(&client).await == 0).await;
        client.stop().await;
        let states = fabric.stored_states("c");
        let count = |state| states.get(&state).copied().unwrap_or_default();
        // Where the broker was asked before the worker was back, nobody had it.
        let ended = count(ClientState::Completed) + count(ClientState::Failed);
        assert_eq!(
            [ended, count(ClientState::Stale), count(ClientState::Cancelled)],
            [JOBS as u64, 1, 1],
            "{states:?}"
        );
        fabric.stop_worker("w1").await;
        assert_eq!(fabric.stored_jobs("w1").await, count(ClientState::Completed), "each ran once");
        fabric.stop().await;
    });
}

#[test]
fn what_waited_in_the_database_is_posted_by_the_next_client_of_the_name() {
    runtime().block_on(async {
        let mut fabric = Fabric::start();
        fabric.worker("w1").await;
        let client = fabric.client("c").await;
        fabric.stop_broker().await;
        let mut submissions = JoinSet::new();
        for number in 0..JOBS {
            let client = client.clone();
            submissions.spawn(async move { submitted(&client, number, Duration::from_secs(120)).await.map(drop) });
            if submissions.len() == AT_ONCE {
                submissions.join_next().await.expect("one").expect("no panic").expect("it is taken");
            }
        }
        while let Some(taken) = submissions.join_next().await {
            taken.expect("no panic").expect("it is taken");
        }
        client.stop().await;
        fabric.restart_broker().await;
        eventually("the worker is back", async || fabric.is_registered("w1").await).await;
        let client = fabric.client("c").await;
        eventually("all have ended", async || unfinished(&client).await == 0).await;
        client.stop().await;
        let states = fabric.stored_states("c");
        assert_eq!(states.get(&ClientState::Completed), Some(&(JOBS as u64)), "{states:?}");
        fabric.stop_worker("w1").await;
        assert_eq!(fabric.stored_jobs("w1").await, JOBS as u64, "each ran once");
        fabric.stop().await;
    });
}
