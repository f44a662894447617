//! A client that does not read, over real sockets and databases.

use norfab_jobs::WorkerState;
use norfab_protocol::body::InputResponse;
use norfab_protocol::client::JobUpdate;
use serde_json::{Value, json};

use crate::detour::{Detour, Held};
use crate::support::{EVENT, Fabric, eventually, kwargs, runtime, spec};

/// Events of one job: more than the broker and the buffers of a connection keep for one peer.
const EVENTS: u64 = 20_000;

/// Bytes that reach the client before it stops reading: it has connected, and has begun to hear of its job.
const PASSES: usize = 50_000;

#[test]
fn a_client_that_does_not_read_is_told_how_much_progress_it_missed_and_misses_no_question_and_no_result() {
    runtime().block_on(async {
        let mut fabric = Fabric::start();
        let detour = Detour::new(&fabric.endpoint, Held::FromBroker, PASSES);
        fabric.detour("slow", detour.endpoint());
        fabric.worker("w1").await;
        let (slow, other) = (fabric.client("slow").await, fabric.client("other").await);
        let mut chatter = spec("chatter");
        chatter.kwargs = kwargs(json!({"events": EVENTS}));
        let mut job = slow.submit(chatter).await.expect("taken");
        detour.wait_until_it_holds().await;
        // The worker says all of it and asks, and is there for others.
        eventually("the task has asked", async || {
            fabric.stored_state("w1", job.id()).await == Some(WorkerState::WaitingClientInput)
        })
        .await;
        assert!(other.run(spec("ok")).await.expect("taken").succeeded());

        detour.open();
        let mut numbers = Vec::new();
        while let Some(update) = job.next().await {
            match update {
                JobUpdate::Event(event, _) => numbers.extend(event.message.strip_prefix(EVENT).map(number)),
                JobUpdate::Question(worker, question) => {
                    let input_id = question.id;
                    let value = Some(json!("yes"));
                    let response = InputResponse { input_id, value, cancel: false, metadata: Value::Null };
                    job.answer(Some(worker), response).await.expect("room");
                }
                _ => {}
            }
        }
        let report = job.report();
        assert!(report.succeeded(), "{report:?}");
        assert_eq!(report.results().values().next().and_then(|result| result.value()), Some(json!("yes")));
        assert!(numbers.is_sorted_by(|first, second| first < second), "in their order, and each once");
        assert!(report.events_dropped > 0, "{} of {EVENTS} came", numbers.len());
        assert_eq!(numbers.len() as u64 + report.events_dropped, EVENTS, "all are accounted for");
        fabric.stop().await;
    });
}

fn number(text: &str) -> u64 {
    text.parse().expect("a number")
}
