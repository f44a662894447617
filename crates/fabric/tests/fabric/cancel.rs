//! Cancelled jobs, over real sockets and databases.

use std::time::Instant;

use norfab_fabric::client::{ClientHandle, JobHandle, WorkerReport};
use norfab_jobs::{ClientState, WorkerState};
use norfab_protocol::JobId;
use norfab_protocol::body::InputResponse;
use norfab_protocol::client::{JobState, JobUpdate};
use norfab_protocol::target::Target;
use norfab_service::CANCEL_GRACE;
use serde_json::json;

use crate::support::{Fabric, eventually, runtime, slow_begins, spec};

async fn stored_state(client: &ClientHandle, id: &JobId) -> (ClientState, Vec<String>) {
    let details = client.job(id.clone()).await.expect("room").expect("it can be read").expect("it is there");
    (details.job.state, details.job.errors)
}

async fn until_it_begins(job: &mut JobHandle) {
    loop {
        match job.next().await.expect("news") {
            JobUpdate::Event(event, _) if event.message == "starting" => return,
            _ => {}
        }
    }
}

#[test]
fn a_running_job_is_cancelled_on_its_workers_and_says_by_whom_and_why_on_both_sides() {
    runtime().block_on(async {
        let mut fabric = Fabric::start();
        fabric.worker("w1").await;
        fabric.worker("w2").await;
        let client = fabric.client("c").await;
        let mut slow = spec("slow");
        slow.target = Target::All;
        let mut job = client.submit(slow).await.expect("taken");
        slow_begins(&mut job, 2).await;
        let id = job.id().clone();
        assert_eq!(client.cancel(id.clone(), "the test", Some("typo".into())).await, Ok(true));
        let report = job.wait().await;
        assert_eq!(report.state, JobState::Cancelled, "{report:?}");
        let text = &report.errors[0];
        assert!(text.starts_with("cancelled by the test at ") && text.ends_with(": typo"), "{text}");
        assert!(report.workers.values().all(|report| matches!(report, WorkerReport::Returned(_))), "{report:?}");
        for result in report.results().values() {
            assert!(result.messages.contains(text), "what it returned says why it is not all: {result:?}");
        }
        assert_eq!(stored_state(&client, &id).await, (ClientState::Cancelled, report.errors.clone()));
        for worker in ["w1", "w2"] {
            assert_eq!(fabric.stored_state(worker, &id).await, Some(WorkerState::Cancelled));
        }
        assert_eq!(client.cancel(id, "the test", None).await, Ok(false), "it has ended");
        fabric.stop().await;
    });
}

#[test]
fn a_cancellation_reaches_a_worker_that_was_away_and_a_job_that_another_process_submitted() {
    runtime().block_on(async {
        let mut fabric = Fabric::start();
        fabric.worker_with("w1", 1).await;
        let client = fabric.client("c").await;
        let first = client.submit(spec("slow")).await.expect("taken");
        let mut queued = client.submit(spec("slow")).await.expect("taken");
        while !matches!(queued.next().await.expect("news"), JobUpdate::Accepted(_)) {}
        let id = queued.id().clone();
        fabric.stop_worker("w1").await;
        assert_eq!(first.wait().await.state, JobState::Completed, "it was told that its worker stops");
        assert_eq!(client.cancel(id.clone(), "the test", None).await, Ok(true));
        assert_eq!(stored_state(&client, &id).await.0, ClientState::Cancelling);
        client.stop().await;

        let client = fabric.client("c").await;
        assert_eq!(stored_state(&client, &id).await.0, ClientState::Cancelling, "nobody has confirmed it");
        fabric.worker_with("w1", 1).await;
        eventually("the worker confirms", async || stored_state(&client, &id).await.0 == ClientState::Cancelled).await;
        assert_eq!(fabric.stored_state("w1", &id).await, Some(WorkerState::Cancelled));
        fabric.stop().await;
    });
}

#[test]
fn a_job_that_another_client_cancels_ends_as_cancelled() {
    runtime().block_on(async {
        let mut fabric = Fabric::start();
        fabric.worker("w1").await;
        let client = fabric.client("c").await;
        let other = fabric.client("other").await;
        let mut job = client.submit(spec("slow")).await.expect("taken");
        while !matches!(job.next().await.expect("news"), JobUpdate::Accepted(_)) {}
        let id = job.id().clone();
        eventually("the other client is connected", async || {
            *other.state().borrow() == norfab_fabric::LinkState::Connected
        })
        .await;
        let target = Target::list(["w1"]);
        other
            .cancel_elsewhere(client.identity().clone(), id, spec("slow").service, target, "somebody else", None)
            .await
            .expect("room");
        let report = job.wait().await;
        assert_eq!(report.state, JobState::Cancelled, "{report:?}");
        assert!(report.errors[0].starts_with("cancelled by somebody else at "), "{report:?}");
        fabric.stop().await;
    });
}

#[test]
fn a_queued_job_ends_at_once_and_a_task_that_does_not_listen_is_ended_after_its_grace() {
    runtime().block_on(async {
        let mut fabric = Fabric::start();
        fabric.worker_with("w1", 1).await;
        let client = fabric.client("c").await;
        let mut deaf = client.submit(spec("deaf")).await.expect("taken");
        until_it_begins(&mut deaf).await;
        let mut queued = client.submit(spec("ok")).await.expect("taken");
        while !matches!(queued.next().await.expect("news"), JobUpdate::Accepted(_)) {}
        let id = queued.id().clone();
        assert_eq!(client.cancel(id.clone(), "the test", None).await, Ok(true));
        assert_eq!(queued.wait().await.state, JobState::Cancelled);
        assert_eq!(fabric.stored_state("w1", &id).await, Some(WorkerState::Cancelled));
        assert_eq!(fabric.stored_state("w1", deaf.id()).await, Some(WorkerState::Started), "it waited for nothing");

        let (id, asked) = (deaf.id().clone(), Instant::now());
        let behind = client.submit(spec("ok")).await.expect("taken");
        assert_eq!(client.cancel(id.clone(), "the test", Some("typo".into())).await, Ok(true));
        let report = deaf.wait().await;
        assert_eq!(report.state, JobState::Cancelled, "{report:?}");
        assert!(asked.elapsed() >= CANCEL_GRACE, "it could have returned what it has: {:?}", asked.elapsed());
        let result = report.results().into_values().next().expect("one");
        assert!(result.failed && result.errors[0].starts_with("the task was ended: cancelled"), "{result:?}");
        assert_eq!(fabric.stored_state("w1", &id).await, Some(WorkerState::Cancelled));
        assert!(behind.wait().await.succeeded(), "its place is free");
        fabric.stop().await;
    });
}

#[test]
fn a_job_that_asks_is_cancelled_and_its_question_is_none_any_more() {
    runtime().block_on(async {
        let mut fabric = Fabric::start();
        fabric.worker("w1").await;
        let client = fabric.client("c").await;
        let mut job = client.submit(spec("ask")).await.expect("taken");
        let question = loop {
            if let JobUpdate::Question(_, question) = job.next().await.expect("news") {
                break question.id;
            }
        };
        let (id, asked) = (job.id().clone(), Instant::now());
        assert_eq!(client.cancel(id.clone(), "the test", None).await, Ok(true));
        // Whoever was asked did not see that in time.
        let response =
            InputResponse { input_id: question, value: Some(json!("yes")), cancel: false, metadata: json!({}) };
        job.answer(None, response).await.expect("room");
        let report = job.wait().await;
        assert_eq!(report.state, JobState::Cancelled, "{report:?}");
        assert!(report.results().into_values().all(|result| result.failed), "{report:?}");
        assert!(asked.elapsed() < CANCEL_GRACE, "nobody waits for an answer: {:?}", asked.elapsed());
        assert_eq!(stored_state(&client, &id).await.0, ClientState::Cancelled);
        assert_eq!(fabric.stored_state("w1", &id).await, Some(WorkerState::Cancelled));
        fabric.stop().await;
    });
}
