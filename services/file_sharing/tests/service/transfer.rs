//! Transfers: the order of chunks, their ends, and what clients may ask for.

use std::fs::{self, File};
use std::time::Duration;

use norfab_protocol::body::PutBody;
use norfab_service::testing::TestJob;
use norfab_service::{CancelReason, StreamCredit, TaskMessage};
use serde_json::{Value, json};

use crate::tree::{Tree, as_json, pattern};

fn credit(job: &TestJob, offset: u64) {
    job.port().deliver(PutBody::Credit(StreamCredit { offset })).expect("delivered");
}

async fn chunk(job: &mut TestJob) -> Vec<u8> {
    match job.message().await {
        TaskMessage::Stream(chunk) => chunk.to_vec(),
        TaskMessage::Event(event) => panic!("an event: {event:?}"),
    }
}

async fn succeeds(job: TestJob) {
    let result = as_json(&job.result().await);
    assert_eq!((&result["result"], &result["failed"]), (&json!(true), &json!(false)), "{result}");
}

#[tokio::test]
async fn chunks_come_in_the_order_in_which_they_are_asked_for() {
    let tree = Tree::new();
    let content = pattern(1000);
    tree.write("f", &content);
    let mut job = tree.worker.start("fetch_file", json!({"url": "nf://f", "chunk_size": 100}));
    assert_eq!(chunk(&mut job).await, content[..100]);
    let offsets = [500, 300, 300, 850, 0, 1];
    for offset in offsets {
        credit(&job, offset as u64);
    }
    for offset in offsets {
        assert_eq!(chunk(&mut job).await, content[offset..offset + 100]);
    }
    credit(&job, 950);
    assert_eq!(chunk(&mut job).await, content[950..]);
    succeeds(job).await;
}

#[tokio::test]
async fn a_transfer_ends_where_the_file_ends_and_leaves_further_requests() {
    let tree = Tree::new();
    let content = pattern(300);
    tree.write("f", &content);
    let mut job = tree.worker.start("fetch_file", json!({"url": "nf://f", "chunk_size": 100}));
    for offset in [200, 100] {
        credit(&job, offset);
    }
    assert_eq!(chunk(&mut job).await, content[..100]);
    assert_eq!(chunk(&mut job).await, content[200..]);
    succeeds(job).await;
}

#[tokio::test]
async fn an_offset_behind_the_end_ends_the_transfer_without_a_chunk() {
    let tree = Tree::new();
    tree.write("f", pattern(300));
    for offset in [300, 301, u64::MAX] {
        let (result, messages) = tree.run_and_listen("fetch_file", json!({"url": "nf://f", "offset": offset})).await;
        assert_eq!((&result["result"], messages.len()), (&json!(true), 0));
    }
    let mut job = tree.worker.start("fetch_file", json!({"url": "nf://f", "chunk_size": 100}));
    chunk(&mut job).await;
    credit(&job, u64::MAX);
    succeeds(job).await;
}

#[tokio::test]
async fn a_transfer_begins_at_the_offset_that_the_client_names() {
    let tree = Tree::new();
    let content = pattern(300);
    tree.write("f", &content);
    let kwargs = json!({"url": "nf://f", "chunk-size": 150, "offset": 100, "chunk-timeout": 1});
    let mut job = tree.worker.start("fetch_file", kwargs);
    assert_eq!(chunk(&mut job).await, content[100..250]);
    credit(&job, 250);
    assert_eq!(chunk(&mut job).await, content[250..]);
    succeeds(job).await;
}

#[tokio::test]
async fn an_empty_file_is_sent_without_a_chunk() {
    let tree = Tree::new();
    tree.write("empty", "");
    let (result, messages) = tree.run_and_listen("fetch_file", json!({"url": "nf://empty"})).await;
    assert_eq!((&result["result"], messages.len()), (&json!(true), 0));
}

#[tokio::test(start_paused = true)]
async fn a_client_that_asks_for_nothing_more_ends_the_transfer_after_its_time() {
    let tree = Tree::new();
    tree.write("f", pattern(300_000));
    for (kwargs, seconds) in [(json!({"url": "nf://f"}), 5), (json!({"url": "nf://f", "chunk_timeout": 17}), 17)] {
        let began = tokio::time::Instant::now();
        let (result, messages) = tree.run_and_listen("fetch_file", kwargs).await;
        let expected = format!(
            "test-worker:fetch_file - {seconds}s chunk timeout reached before received next chunk request from client"
        );
        assert_eq!(result["errors"], json!([expected]));
        assert_eq!((&result["failed"], &result["status"]), (&json!(true), &json!("error")));
        assert_eq!(messages.len(), 1);
        let waited = began.elapsed();
        assert!(waited >= Duration::from_secs(seconds) && waited < Duration::from_secs(seconds + 1), "{waited:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_full_queue_is_waited_for_as_long_as_a_slow_client() {
    let mut tree = Tree::new();
    tree.worker = tree.worker.outlet_messages(1);
    let content = pattern(300);
    tree.write("f", &content);
    let mut job = tree.worker.start("fetch_file", json!({"url": "nf://f", "chunk_size": 100}));
    credit(&job, 100);
    credit(&job, 200);
    // Longer than a message waits for room, shorter than the client may take.
    tokio::time::sleep(Duration::from_secs(3)).await;
    for part in content.chunks(100) {
        assert_eq!(chunk(&mut job).await, part);
    }
    succeeds(job).await;

    let job = tree.worker.start("fetch_file", json!({"url": "nf://f", "chunk_size": 100}));
    credit(&job, 100);
    let result = job.result().await;
    assert!(result.failed && result.errors[0].contains("outbound queue of 1 messages was full"), "{result:?}");
}

#[tokio::test]
async fn a_transfer_ends_with_its_job() {
    let tree = Tree::new();
    tree.write("f", pattern(300));
    let mut job = tree.worker.start("fetch_file", json!({"url": "nf://f", "chunk_size": 100, "chunk_timeout": 3600}));
    chunk(&mut job).await;
    job.port().cancel(CancelReason::WorkerStops);
    let result = job.result().await;
    assert_eq!(result.errors, ["no further chunk is sent because the job ends: the worker stops"]);
}

#[tokio::test]
async fn arguments_out_of_range_are_refused_with_their_range() {
    let tree = Tree::new();
    tree.write("f", "x");
    let rows: [(Value, &str); 8] = [
        (json!({"chunk_size": 0}), "argument 'chunk_size': expected an integer from 1 to 16777216, found 0"),
        (
            json!({"chunk_size": 16_777_217}),
            "argument 'chunk_size': expected an integer from 1 to 16777216, found 16777217",
        ),
        (json!({"chunk-size": 0}), "argument 'chunk_size': expected an integer from 1 to 16777216, found 0"),
        (json!({"chunk_size": -1}), "argument 'chunk_size': expected an integer of at least 1, found integer -1"),
        (json!({"offset": -1}), "argument 'offset': expected an integer of at least 0, found integer -1"),
        (json!({"chunk_size": "9"}), "argument 'chunk_size': expected an integer, found string \"9\""),
        (json!({"chunk_timeout": 0}), "argument 'chunk_timeout': expected an integer from 1 to 3600, found 0"),
        (json!({"chunk_timeout": 3601}), "argument 'chunk_timeout': expected an integer from 1 to 3600, found 3601"),
    ];
    for (mut kwargs, error) in rows {
        kwargs["url"] = json!("nf://f");
        assert_eq!(tree.errors("fetch_file", kwargs).await, [error]);
    }
    let urls = vec!["nf://f"; 10_001];
    let error = "argument 'url': expected a list of at most 10000, found a list of 10001";
    assert_eq!(tree.errors("file_details", json!({"url": urls})).await, [error]);
}

#[tokio::test]
async fn names_in_any_language_are_listed_described_and_sent() {
    let tree = Tree::new();
    let names =
        ["größe.txt", "ファイル", "файл с пробелами.cfg", "emoji \u{1f4c4}", "e\u{301}", "\u{e9}", "a\nb", "'quoted'"];
    for name in names {
        tree.write(&format!("ordner ü/{name}"), name);
    }
    let listed = tree.run("list_files", json!({"url": "nf://ordner ü"})).await;
    assert_eq!(listed["result"].as_array().expect("names").len(), names.len());
    let walked = tree.run("walk", json!({"url": "nf://"})).await;
    for url in walked["result"].as_array().expect("URLs") {
        let (result, messages) = tree.run_and_listen("fetch_file", json!({"url": url})).await;
        assert_eq!(result["result"], json!(true), "{url}");
        let name = url.as_str().expect("text").strip_prefix("nf://ordner ü/").expect("in the folder").to_owned();
        assert_eq!(messages, [TaskMessage::Stream(name.into())]);
    }
    let described = tree.run("file_details", json!({"url": walked["result"]})).await;
    assert_eq!(described["errors"], json!([]));
    assert_eq!(described["result"].as_object().expect("entries").len(), names.len());
}

#[tokio::test]
async fn the_end_of_a_file_of_two_gigabytes_is_sent() {
    let tree = Tree::new();
    let size = 2 * 1024 * 1024 * 1024_u64;
    let file = File::create(tree.base().join("huge")).expect("made");
    file.set_len(size).expect("grown");
    std::os::unix::fs::FileExt::write_all_at(&file, b"the end", size - 7).expect("written");
    let mut job = tree.worker.start("fetch_file", json!({"url": "nf://huge", "chunk_size": 1000}));
    assert_eq!(chunk(&mut job).await, [0; 1000]);
    credit(&job, size - 10);
    assert_eq!(chunk(&mut job).await, b"\0\0\0the end");
    succeeds(job).await;
}

#[tokio::test]
async fn a_file_that_is_cut_short_during_a_transfer_fails_it() {
    let tree = Tree::new();
    tree.write("f", pattern(300));
    let mut job = tree.worker.start("fetch_file", json!({"url": "nf://f", "chunk_size": 100}));
    chunk(&mut job).await;
    File::options().write(true).open(tree.base().join("f")).expect("opened").set_len(150).expect("cut");
    credit(&job, 100);
    let result = job.result().await;
    assert_eq!(result.errors, ["'nf://f' became shorter while it was read: ask again once it is complete"]);
}

#[tokio::test]
async fn a_file_that_is_replaced_during_a_transfer_is_sent_as_it_was() {
    let tree = Tree::new();
    let content = pattern(300);
    tree.write("f", &content);
    let mut job = tree.worker.start("fetch_file", json!({"url": "nf://f", "chunk_size": 150}));
    assert_eq!(chunk(&mut job).await, content[..150]);
    tree.write("new", vec![0; 300]);
    fs::rename(tree.base().join("new"), tree.base().join("f")).expect("renamed");
    credit(&job, 150);
    assert_eq!(chunk(&mut job).await, content[150..]);
    succeeds(job).await;
}

#[tokio::test]
async fn details_follow_the_file_when_it_changes() {
    let tree = Tree::new();
    let hash = |result: Value| result["result"]["md5hash"].as_str().map(str::to_owned);
    tree.write("f", "alpha\n");
    for _ in 0..3 {
        let details = tree.run("file_details", json!({"url": "nf://f"})).await;
        assert_eq!(hash(details).as_deref(), Some("9f9f90dbe3e5ee1218c86b8839db1995"));
    }
    // As long as before, and at once: only the time of its change tells.
    for content in ["beta!\n", "gamma\n", "alpha\n"] {
        tree.write("f", content);
        let fresh = Tree::new();
        fresh.write("g", content);
        let expected = hash(fresh.run("file_details", json!({"url": "nf://g"})).await);
        assert_eq!(hash(tree.run("file_details", json!({"url": "nf://f"})).await), expected);
    }
}

#[tokio::test]
async fn a_large_file_is_read_once_for_many_questions() {
    let tree = Tree::new();
    let bytes = 32 * 1024 * 1024;
    tree.write("large", pattern(bytes));
    let first = tree.run("file_details", json!({"url": "nf://large"})).await;
    assert_eq!(first["result"]["size_bytes"], json!(bytes));
    let begun = std::time::Instant::now();
    for _ in 0..100 {
        let again = tree.run("file_details", json!({"url": "nf://large"})).await;
        assert_eq!(again["result"], first["result"]);
    }
    // A hundred readings would take seconds even on the fastest machine.
    assert!(begun.elapsed() < Duration::from_secs(1), "{:?}", begun.elapsed());
}

#[tokio::test]
async fn an_argument_under_both_of_its_names_is_refused() {
    let tree = Tree::new();
    tree.write("f", "x");
    for (name, dashed) in [("chunk_size", "chunk-size"), ("chunk_timeout", "chunk-timeout")] {
        let result = tree.worker.run("fetch_file", json!({"url": "nf://f", name: 5, dashed: 5})).await;
        assert_eq!(result.errors, [format!("argument '{name}' was given twice")]);
    }
}
