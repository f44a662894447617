//! `take_file` as a client that does not keep to the protocol sees it.

use std::path::Path;
use std::time::Duration;

use bytes::{BufMut, BytesMut};
use norfab_file_sharing::service;
use norfab_files::record::{self, Facts};
use norfab_files::{Prefix, WINDOW_BYTES};
use norfab_protocol::body::PutBody;
use norfab_service::testing::{TestJob, TestWorker};
use norfab_service::{DeliverError, TaskMessage};
use proptest::prelude::*;
use serde_json::{Value, json};

const FACTS: Facts = Facts { size: 10, modified: 1_000_000, mode: 0o640 };

fn worker(folder: &Path) -> TestWorker {
    let inventory = json!({ "base_dir": "s", "uploads": { "folder": "in" } });
    TestWorker::new(service(&inventory, folder).expect("a service"))
}

/// An upload of ten bytes that waits for content, and where it is to begin.
async fn begin(worker: &TestWorker, arguments: Value) -> (TestJob, Value) {
    let mut kwargs = json!({ "url": "nf://in/f", "size": 10 });
    kwargs.as_object_mut().expect("an object").extend(arguments.as_object().expect("an object").clone());
    let mut job = worker.start("take_file", kwargs);
    let TaskMessage::Stream(word) = job.message().await else { panic!("it says something else") };
    (job, serde_json::from_slice(&word).expect("JSON"))
}

fn send(job: &TestJob, write: impl FnOnce(&mut BytesMut)) -> Result<(), DeliverError> {
    let mut message = BytesMut::new();
    write(&mut message);
    job.port().deliver(PutBody::Content(message.freeze()))
}

fn content(message: &mut BytesMut, offset: u64, before: &[u8], bytes: &[u8], is_last: bool) {
    let mut prefix = Prefix::default();
    prefix.update(before);
    prefix.update(bytes);
    record::write_content_head(message, 0, offset, bytes.len(), is_last);
    message.put_slice(bytes);
    message.put_slice(&prefix.hash().0);
}

#[tokio::test]
async fn what_no_client_of_ours_sends_ends_the_upload_with_the_reason() {
    let folder = tempfile::tempdir().expect("a folder");
    let worker = worker(folder.path());
    let larger = Facts { size: 11, ..FACTS };
    let begins = |message: &mut BytesMut| record::write_begin(message, 0, 0, FACTS);
    type Write = Box<dyn Fn(&mut BytesMut)>;
    let cases: Vec<(Write, &str, bool)> = vec![
        (Box::new(|message| message.put_slice(b"nonsense")), "half a record", true),
        (Box::new(move |message| record::write_begin(message, 0, 0, larger)), "was to have 10 bytes and has 11", false),
        (Box::new(|message| record::write_begin(message, 0, 5, FACTS)), "where nobody had asked for", true),
        (Box::new(|message| record::write_begin(message, 1, 0, FACTS)), "one file was to come", true),
        (Box::new(|message| content(message, 0, b"", b"abc", false)), "had not begun", true),
        (
            Box::new(move |message| {
                begins(message);
                begins(message);
            }),
            "before the one before it had ended",
            true,
        ),
        (
            Box::new(move |message| {
                begins(message);
                content(message, 3, b"abc", b"def", false);
            }),
            "bytes from 0 on were expected, and those from 3 on came",
            true,
        ),
        (
            Box::new(move |message| {
                begins(message);
                content(message, 0, b"", b"01234567890", true);
            }),
            "another size",
            true,
        ),
        (
            Box::new(move |message| {
                begins(message);
                content(message, 0, b"x", b"0123456789", true);
            }),
            "their SHA-256 is another",
            true,
        ),
        (
            Box::new(|message| {
                for _ in 0..65 {
                    record::write_failed(message, 0, 0, "");
                }
            }),
            "more records than one message may have at byte 1088",
            true,
        ),
        (Box::new(|message| record::write_failed(message, 0, 0, "no more")), "does not come: no more", false),
    ];
    for (write, expected, again) in cases {
        let (job, word) = begin(&worker, json!({})).await;
        assert_eq!(word["have_bytes"], 0, "nothing of it is kept: {expected}");
        send(&job, |message| write(message)).expect("delivered");
        let result = job.result().await;
        assert!(result.failed && result.errors[0].contains(expected), "{expected}: {:?}", result.errors);
        assert_eq!(result.value().expect("a value")["again"], again, "{expected}");
        assert!(!folder.path().join("s/in/f").exists(), "{expected}");
    }
}

#[tokio::test]
async fn more_than_may_wait_ends_the_upload_and_takes_no_memory() {
    let folder = tempfile::tempdir().expect("a folder");
    let worker = worker(folder.path());
    let (job, word) = begin(&worker, json!({ "window": 1000 })).await;
    assert_eq!(word["window"], 1000);
    let mut refused = 0;
    for _ in 0..200 {
        let piece = vec![0; 64 << 10];
        refused += usize::from(send(&job, |message| message.put_slice(&piece)).is_err());
    }
    assert!(refused > 190, "{refused} of 200");
    assert!(job.result().await.failed);
    let (job, word) = begin(&worker, json!({})).await;
    assert_eq!(word["window"], WINDOW_BYTES);
    job.port().cancel(norfab_service::CancelReason::Deadline);
    assert!(job.result().await.failed);
}

#[tokio::test]
async fn an_upload_that_only_says_that_it_lives_ends() {
    let folder = tempfile::tempdir().expect("a folder");
    let worker = worker(folder.path());
    let (job, _) = begin(&worker, json!({})).await;
    tokio::time::pause();
    for _ in 0..8 {
        send(&job, |_| {}).ok();
        tokio::time::advance(Duration::from_secs(20)).await;
        // Its thread takes it before the next one comes.
        tokio::task::spawn_blocking(|| std::thread::sleep(Duration::from_millis(50))).await.expect("slept");
    }
    tokio::time::resume();
    let result = job.result().await;
    assert!(result.failed && result.errors[0].contains("0 bytes came in 120 s"), "{:?}", result.errors);
    assert_eq!(result.value().expect("a value")["again"], true);
}

#[tokio::test]
async fn arguments_that_cannot_be_are_refused_before_anything_happens() {
    let folder = tempfile::tempdir().expect("a folder");
    let worker = worker(folder.path());
    for (arguments, expected) in [
        (json!({ "url": "nf://in/f", "size": 1, "window": 0 }), "argument 'window'"),
        (json!({ "url": "nf://in/f", "size": 1, "window": 1_u64 << 40 }), "argument 'window'"),
        (json!({ "url": "nf://in/f", "size": 1, "transfer": "x".repeat(65) }), "argument 'transfer'"),
        (json!({ "url": "nf://in/f", "size": -1 }), "size"),
        (json!({ "url": "nf://in/f", "size": u64::MAX }), "are the most that may be uploaded"),
        (json!({ "url": "nf://in/f" }), "size"),
        (json!({ "url": "nf://f", "size": 1 }), "is not below nf://in/"),
    ] {
        let result = worker.run("take_file", arguments.clone()).await;
        assert!(result.failed && result.errors[0].contains(expected), "{arguments}: {:?}", result.errors);
    }
    assert!(!folder.path().join("s/in").exists());
}

#[tokio::test]
async fn the_terms_say_what_is_allowed() {
    let folder = tempfile::tempdir().expect("a folder");
    let worker = worker(folder.path());
    let terms = worker.run("upload_terms", json!({})).await.value().expect("a value");
    assert_eq!((&terms["allowed"], &terms["folder"]), (&json!(true), &json!("nf://in/")));
    let terms = worker.run("upload_terms", json!({ "url": "nf://in/../f" })).await.value().expect("a value");
    assert_eq!((&terms["allowed"], &terms["reason"]), (&json!(false), &json!("'nf://in/../f' - invalid URL path")));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 40, ..ProptestConfig::default() })]
    #[test]
    fn no_messages_make_a_file_that_is_not_what_its_hash_says(
        cuts in proptest::collection::vec((0usize..4, 0usize..200, any::<u8>()), 0..6)
    ) {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
        runtime.expect("a runtime").block_on(async {
            let folder = tempfile::tempdir().expect("a folder");
            let worker = worker(folder.path());
            let (job, _) = begin(&worker, json!({})).await;
            let mut messages = vec![BytesMut::new(); 3];
            record::write_begin(&mut messages[0], 0, 0, FACTS);
            content(&mut messages[1], 0, b"", b"01234", false);
            content(&mut messages[2], 5, b"01234", b"56789", true);
            for (which, byte, value) in cuts {
                let message = &mut messages[which % 3];
                let length = message.len();
                message[byte % length] = value;
            }
            for message in messages {
                // The upload may have ended.
                job.port().deliver(PutBody::Content(message.freeze())).ok();
            }
            // What is not whole waits for more.
            job.port().deliver(PutBody::Content(bytes::Bytes::from_static(b"x"))).ok();
            let result = tokio::time::timeout(Duration::from_secs(60), job.result()).await.expect("it ends");
            let there = std::fs::read(folder.path().join("s/in/f")).ok();
            assert_eq!(there.is_some(), !result.failed, "{result:?}");
            assert!(there.is_none_or(|there| there == b"0123456789"));
        });
    }
}
