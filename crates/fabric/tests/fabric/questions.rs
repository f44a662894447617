//! Questions of tasks and their answers, over real sockets and databases.

use norfab_fabric::client::JobHandle;
use norfab_protocol::Identity;
use norfab_protocol::body::{InputRequest, InputResponse};
use norfab_protocol::client::{JobState, JobUpdate};
use norfab_protocol::target::Target;
use serde_json::{Value, json};

use crate::support::{Fabric, runtime, spec};

fn response(id: &str, value: Value) -> InputResponse {
    InputResponse { input_id: id.to_owned(), value: Some(value), cancel: false, metadata: Value::Null }
}

async fn questions(job: &mut JobHandle, count: usize) -> Vec<(Identity, InputRequest)> {
    let mut asked = Vec::new();
    while asked.len() < count {
        if let JobUpdate::Question(worker, question) = job.next().await.expect("news") {
            asked.push((worker, question));
        }
    }
    asked
}

#[test]
fn several_workers_ask_at_once_and_each_gets_the_answer_to_its_own_question() {
    runtime().block_on(async {
        let mut fabric = Fabric::start();
        for worker in ["w1", "w2", "w3"] {
            fabric.worker(worker).await;
        }
        let client = fabric.client("c").await;
        let mut ask = spec("ask");
        ask.target = Target::All;
        let mut job = client.submit(ask).await.expect("taken");
        let mut asked = questions(&mut job, 3).await;
        // An id that nobody asked with, to everyone: nobody takes it for an answer.
        job.answer(None, response("ffffffffffffffffffffffffffffffff", json!("stray"))).await.expect("room");
        // The answer to one question, sent to everyone, is taken by who asked it only; another one is cancelled.
        let (first, question) = asked.pop().expect("three");
        job.answer(None, response(&question.id, json!(first))).await.expect("room");
        let (second, question) = asked.pop().expect("three");
        let cancel = InputResponse { cancel: true, value: None, ..response(&question.id, Value::Null) };
        job.answer(Some(second.clone()), cancel).await.expect("room");
        let (third, question) = asked.pop().expect("three");
        job.answer(Some(third.clone()), response(&question.id, json!(third))).await.expect("room");
        let report = job.wait().await;
        assert_eq!(report.state, JobState::Completed, "{report:?}");
        let results = report.results();
        for worker in [&first, &third] {
            assert_eq!(results[worker].value(), Some(json!(worker)), "{report:?}");
        }
        assert!(results[&second].failed && results[&second].errors[0].contains("cancelled"), "{:?}", results[&second]);
        fabric.stop().await;
    });
}

#[test]
fn a_question_is_answered_by_the_process_that_follows_the_one_that_was_asked() {
    runtime().block_on(async {
        let mut fabric = Fabric::start();
        fabric.worker("w1").await;
        fabric.worker("w2").await;
        let client = fabric.client("c").await;
        let mut ask = spec("ask");
        ask.target = Target::All;
        let mut job = client.submit(ask).await.expect("taken");
        let asked = questions(&mut job, 2).await;
        let id = job.id().clone();
        client.stop().await;

        let client = fabric.client("c").await;
        let mut job = client.watch(id).await.expect("room").expect("it is unfinished");
        let again = questions(&mut job, 2).await;
        for (worker, question) in &again {
            assert!(asked.iter().any(|(who, what)| who == worker && what.id == question.id), "the same ones");
            job.answer(Some(worker.clone()), response(&question.id, json!(worker))).await.expect("room");
        }
        let report = job.wait().await;
        assert_eq!(report.state, JobState::Completed, "{report:?}");
        assert!(report.results().iter().all(|(worker, result)| result.value() == Some(json!(worker))), "{report:?}");
        fabric.stop().await;
    });
}
