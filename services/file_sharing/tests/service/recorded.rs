//! Jobs of the Python service, as recorded, against this one. Results are the same in every key, but for what
//! [`adjusted`] says.

use std::fs;
use std::os::unix::fs::symlink;

use norfab_protocol::body::PutBody;
use norfab_service::testing::TestJob;
use norfab_service::{BuiltinPolicy, StreamCredit, TaskMessage};
use serde::Deserialize;
use serde_json::{Map, Value, json};

use crate::tree::{Tree, as_json, pattern};

/// The size of the large file, of whose content only lengths were recorded.
const LARGE_BYTES: usize = 3_500_000;

#[derive(Deserialize)]
struct Recorded {
    flows: Vec<Job>,
    calls: Vec<Job>,
}

#[derive(Deserialize)]
struct Job {
    #[serde(alias = "call")]
    flow: String,
    task: String,
    kwargs: Value,
    #[serde(default)]
    exchange: Vec<Step>,
    result: Map<String, Value>,
}

#[derive(Deserialize)]
#[serde(rename_all = "snake_case")]
enum Step {
    Put(u64),
    /// In hexadecimal.
    Stream(String),
    StreamBytes(usize),
}

fn recorded() -> Recorded {
    serde_json::from_str(include_str!("../data/recorded.json")).expect("recorded jobs")
}

fn bytes(hexadecimal: &str) -> Vec<u8> {
    let digit = |index: usize| u8::from_str_radix(&hexadecimal[index..index + 2], 16).expect("hexadecimal");
    (0..hexadecimal.len()).step_by(2).map(digit).collect()
}

/// What the chunks of a recorded transfer hold together.
fn content(flows: &[Job], flow: &str) -> Vec<u8> {
    let steps = flows.iter().filter(|job| job.flow == flow).flat_map(|job| &job.exchange);
    steps
        .flat_map(|step| match step {
            Step::Stream(chunk) => bytes(chunk),
            Step::Put(_) | Step::StreamBytes(_) => Vec::new(),
        })
        .collect()
}

/// The folder that the flows were recorded on.
fn flow_tree(flows: &[Job]) -> Tree {
    let tree = Tree::with_dotfiles();
    tree.write("d/a.txt", "alpha\n");
    tree.write("d/sub/b.txt", "beta\n");
    tree.write("d/.hidden", "");
    tree.write("d/__pycache__/c.pyc", "");
    tree.write("empty.bin", "");
    tree.write("small.bin", content(flows, "stream_file_4_chunks"));
    tree.write("med.bin", content(flows, "stream_file_16_chunks_pipeline_3"));
    tree.write("large.bin", pattern(LARGE_BYTES));
    fs::write(tree.outer().join("secret.txt"), "secret").expect("written");
    symlink("../secret.txt", tree.base().join("link.txt")).expect("linked");
    tree
}

/// What differs from the recorded result on purpose, and why.
fn adjusted(mut result: Map<String, Value>) -> Value {
    let failed = result["failed"] == json!(true);
    // Our worker has another name.
    for number in 1..=3 {
        let recorded = format!("filesharing-worker-{number}");
        result["task"] = json!(result["task"].as_str().map(|task| task.replacen(&recorded, "test-worker", 1)));
    }
    // Python forgets the service where an exception ended the task.
    result["service"] = json!("filesharing");
    // A task that failed has not completed.
    if failed && result["status"] == json!("completed") {
        result["status"] = json!("failed");
    }
    // Names come sorted, not as the disk has them.
    if let Some(Value::Array(names)) = result.get_mut("result") {
        names.sort_by_key(|name| name.as_str().map(order));
    }
    let first_error = result["errors"].get(0).and_then(Value::as_str).unwrap_or_default().to_owned();
    // An error is told without the lines of a program in which it came up, and once.
    if let Some(text) = first_error.strip_prefix("<traceback> RuntimeError: ") {
        result["errors"] = json!([text.replacen("filesharing-worker-1", "test-worker", 1)]);
        result["messages"] = json!([]);
    }
    Value::Object(result)
}

/// Files of a directory before those of the directories in it, as a walk goes.
fn order(name: &str) -> Vec<(bool, String)> {
    let parts: Vec<&str> = name.trim_start_matches("nf://").split('/').collect();
    let last = parts.len() - 1;
    parts.iter().enumerate().map(|(index, part)| (index < last, (*part).to_owned())).collect()
}

async fn play(mut job: TestJob, exchange: &[Step]) -> Value {
    for step in exchange {
        match step {
            Step::Put(offset) => {
                let credit = PutBody::Credit(StreamCredit { offset: *offset });
                job.port().deliver(credit).expect("delivered");
            }
            Step::Stream(expected) => {
                assert_eq!(job.message().await, TaskMessage::Stream(bytes(expected).into()));
            }
            Step::StreamBytes(expected) => match job.message().await {
                TaskMessage::Stream(chunk) => assert_eq!(chunk.len(), *expected),
                TaskMessage::Event(event) => panic!("an event: {event:?}"),
            },
        }
    }
    as_json(&job.result().await)
}

/// Without what is different in every job.
fn comparable(mut result: Value) -> Value {
    let members = result.as_object_mut().expect("an object");
    for key in ["juuid", "task_started", "task_completed"] {
        assert!(members.shift_remove(key).is_some_and(|value| value.is_string()), "{key}");
    }
    result
}

#[tokio::test]
async fn every_recorded_flow_has_the_recorded_chunks_and_result() {
    let flows = recorded().flows;
    let tree = flow_tree(&flows);
    assert_eq!(flows.len(), 35);
    for job in &flows {
        let result = comparable(play(tree.worker.start(&job.task, job.kwargs.clone()), &job.exchange).await);
        let mut expected = adjusted(job.result.clone());
        if job.flow == "fs_fetch_dir_as_file" {
            // The recorded error names the Python exception and the path on the worker's disk.
            let error = "'nf://d' is a directory: give the URL of a file, or ask list_files what it holds";
            expected["errors"] = json!([error]);
            expected["messages"] = json!([]);
            expected["status"] = json!("failed");
        }
        if job.flow == "stream_file_default_chunk_3_5MB" && job.task == "file_details" {
            let details = &mut expected["result"]["nf://large.bin"]["result"]["md5hash"];
            *details = result["result"]["nf://large.bin"]["result"]["md5hash"].clone();
            assert!(details.is_string());
        }
        assert_eq!(result, expected, "{}", job.flow);
    }
}

#[tokio::test]
async fn every_recorded_call_has_the_recorded_result() {
    let tree = Tree::with_dotfiles();
    for file in ["s4/run.sh", "s4/.hid/f", "s4/cfg/one.txt", "s4/cfg/deep/two.txt", ".hiddir/z.txt", ".dot"] {
        tree.write(file, "");
    }
    tree.write("s.txt", "s\n");
    fs::create_dir(tree.base().join("a__b__c")).expect("made");
    symlink("s.txt", tree.base().join("inlink")).expect("linked");
    symlink("/etc/hostname", tree.base().join("outlink")).expect("linked");
    for job in recorded().calls {
        if job.flow == "version" || job.flow.contains("dunder") {
            continue;
        }
        let result = comparable(tree.run(&job.task, job.kwargs).await);
        let mut expected = adjusted(job.result);
        if job.flow == "fetch_dir_direct" {
            let error = "'nf://a__b__c' is a directory: give the URL of a file, or ask list_files what it holds";
            expected["errors"] = json!([error]);
            expected["messages"] = json!([]);
            expected["status"] = json!("failed");
        }
        assert_eq!(result, expected, "{}", job.flow);
    }
}

#[tokio::test]
async fn a_folder_below_double_underscores_is_walked_as_any_other() {
    let outer = tempfile::tempdir().expect("a folder");
    let base = outer.path().join("__norfab__/a__b/files");
    fs::create_dir_all(&base).expect("made");
    fs::write(base.join("f.txt"), "").expect("written");
    let service = norfab_file_sharing::service(&json!({"base_dir": base}), outer.path()).expect("a service");
    let worker = norfab_service::testing::TestWorker::new(service);
    for job in recorded().calls.into_iter().filter(|job| job.flow.contains("dunder")) {
        let result = comparable(as_json(&worker.run(&job.task, job.kwargs).await));
        let mut expected = adjusted(job.result);
        if job.flow == "walk_dunder_base" {
            // Python finds nothing here.
            assert_eq!(expected["result"], json!([]));
            expected["result"] = json!(["nf://f.txt"]);
        }
        assert_eq!(result, expected, "{}", job.flow);
    }
}

#[tokio::test]
async fn a_folder_that_is_a_link_is_walked_with_right_urls() {
    let tree = Tree::new();
    tree.write("d/f.txt", "");
    symlink("base", tree.outer().join("link")).expect("linked");
    let service = norfab_file_sharing::service(&json!({"base_dir": "link"}), tree.outer()).expect("a service");
    let worker = norfab_service::testing::TestWorker::new(service);
    let result = as_json(&worker.run("walk", json!({"url": "nf://"})).await);
    assert_eq!(result["result"], json!(["nf://d/f.txt"]));
}

#[tokio::test]
async fn the_version_has_the_recorded_keys() {
    let outer = tempfile::tempdir().expect("a folder");
    let service = norfab_file_sharing::service(&json!({}), outer.path()).expect("a service");
    let worker = norfab_service::testing::TestWorker::new(service.with_builtin_tasks(BuiltinPolicy::default()));
    let result = as_json(&worker.run("get_version", json!({})).await);
    let recorded = recorded().calls.into_iter().find(|job| job.flow == "version").expect("recorded");
    for key in recorded.result["result"].as_object().expect("an object").keys() {
        assert!(result["result"][key].is_string(), "{key}");
    }
    assert_eq!(result["result"]["platform"], json!("linux"));
}
