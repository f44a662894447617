//! Workers that say they have what they were not sent, and one whose disk is slow.

use std::fs;
use std::time::Duration;

use norfab_files::Arrival;
use norfab_files::{Prefix, Sink};
use norfab_protocol::ServiceName;
use norfab_service::{EventDraft, Service, Task, TaskContext, TaskError, TaskOutput};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::json;

use crate::lab::{Lab, PATIENCE, runtime};
use crate::upload::send;

const CONTENT: &[u8] = b"from the client";

#[derive(Deserialize, JsonSchema)]
#[allow(dead_code, reason = "what clients say and nobody here reads")]
struct Terms {
    url: String,
}

#[derive(Deserialize, JsonSchema)]
#[allow(dead_code, reason = "what clients say and nobody here reads")]
struct Put {
    url: String,
    size: u64,
    modified: i64,
    overwrite: bool,
    transfer: String,
    window: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Does {
    NothingAndSaysSo,
    OtherHash,
    OtherSize,
    IsSlow,
}

fn whole(size: u64, sha256: &str) -> TaskOutput {
    TaskOutput::new(json!({
        "url": "nf://in/f", "size_bytes": size, "had_bytes": 0, "sha256": sha256, "was_there": false, "replaced": false,
    }))
}

async fn take(context: TaskContext, does: Does) -> Result<TaskOutput, TaskError> {
    let mut prefix = Prefix::default();
    let empty = prefix.hash().to_string();
    prefix.update(CONTENT);
    let (size, right) = (CONTENT.len() as u64, prefix.hash().to_string());
    if does == Does::NothingAndSaysSo {
        return Ok(whole(size, &right));
    }
    let mut content = context.content(1 << 20);
    let begin = json!({ "have_bytes": 0, "have_sha256": empty, "window": 1 << 20 });
    context.stream(begin.to_string().into()).await.map_err(|error| TaskError::new(error.to_string()))?;
    let (mut sink, mut arrived) = (Sink::default(), Vec::new());
    while !arrived.iter().any(|arrival| matches!(arrival, Arrival::Whole { .. })) {
        let piece = content.next(PATIENCE).await.map_err(|error| TaskError::new(error.to_string()))?;
        sink.take(piece, &mut arrived).map_err(|error| TaskError::new(error.to_string()))?;
    }
    Ok(match does {
        Does::OtherHash => whole(size, &empty),
        Does::OtherSize => whole(size + 1, &right),
        Does::NothingAndSaysSo | Does::IsSlow => {
            // It has taken some of it, and then its disk stands still for longer than a client waits for a word.
            context.stream(json!({ "taken": 1 }).to_string().into()).await.ok();
            for _ in 0..4 {
                tokio::time::sleep(Duration::from_secs(2)).await;
                context.event(EventDraft::new("writing what came")).await.ok();
            }
            whole(size, &right)
        }
    })
}

fn service(does: Does) -> Service {
    Service::new(ServiceName::parse("filesharing").expect("a name"))
        .task(Task::new("upload_terms", "", async |_: TaskContext, _: Terms| {
            Ok::<_, TaskError>(TaskOutput::new(json!({ "allowed": true, "reason": null })))
        }))
        .task(Task::new("take_file", "", move |context: TaskContext, _: Put| take(context, does)))
}

#[test]
fn a_worker_that_has_something_else_than_was_sent_is_not_believed() {
    runtime().block_on(async {
        for (does, expected) in [
            (Does::NothingAndSaysSo, "nothing was sent yet"),
            (Does::OtherHash, "it has 15 bytes with the SHA-256 e3b0c442"),
            (Does::OtherSize, "it has 16 bytes with the SHA-256"),
        ] {
            let mut lab = Lab::new();
            fs::write(lab.path("f"), CONTENT).expect("written");
            lab.worker_of("w1", service(does)).await;
            let client = lab.client("c").await;
            let error = send(&client, &lab, "f", "nf://in/f").await.expect_err("refused").to_string();
            assert!(
                error.starts_with("worker w1 says that it has 'nf://in/f' now") && error.contains(expected),
                "{error}"
            );
            client.stop().await;
        }
    });
}

#[test]
fn a_worker_that_says_what_its_disk_is_at_is_waited_for() {
    runtime().block_on(async {
        let mut lab = Lab::new();
        fs::write(lab.path("f"), CONTENT).expect("written");
        lab.worker_of("w1", service(Does::IsSlow)).await;
        let (client, way) = lab.client_over("c").await;
        send(&client, &lab, "f", "nf://in/f").await.expect("it is sent");
        assert_eq!(way.streams.load(std::sync::atomic::Ordering::SeqCst), 1, "once");
        client.stop().await;
    });
}
