//! More jobs than a client holds in memory.

use std::time::Duration;

use norfab_jobs::ClientState;
use norfab_protocol::client::JobState;

use crate::many::{id, submit, submit_all, unfinished};
use crate::support::{Fabric, eventually, runtime};

/// More than are held, by more than a page.
const JOBS: usize = 4700;

/// A time-out that no job meets.
const LONG: Duration = Duration::from_secs(120);

#[test]
fn jobs_beyond_what_is_held_wait_in_the_database_and_can_be_asked_about_cancelled_and_late() {
    runtime().block_on(async {
        let mut fabric = Fabric::start();
        fabric.worker("w1").await;
        let client = fabric.client("c").await;
        fabric.stop_broker().await;
        submit_all(&client, JOBS, LONG).await;
        assert_eq!(unfinished(&client).await, JOBS);
        // All of these wait in the database.
        let late = submit(&client, JOBS, Duration::from_millis(300)).await.expect("it is taken");
        let cancelled = submit(&client, JOBS + 1, LONG).await.expect("it is taken");
        assert!(submit(&client, JOBS + 1, LONG).await.is_err(), "its id is in use");
        let again = submit(&client, JOBS - 1, LONG).await;
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
        submit_all(&client, JOBS, LONG).await;
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
