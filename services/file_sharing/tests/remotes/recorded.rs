//! Jobs of the Python service, as recorded, against this one: what differs is said in [`adjusted`].

use std::fs;
use std::os::unix::fs::symlink;
use std::time::Duration;

use serde::Deserialize;
use serde_json::{Map, Value, json};
use tokio::time;

use crate::lab::{Lab, RemoteWorker};

#[derive(Deserialize)]
struct Recorded {
    calls: Vec<Call>,
}

#[derive(Deserialize)]
struct Call {
    call: String,
    task: String,
    kwargs: Value,
    events: Vec<(String, String)>,
    result: Map<String, Value>,
}

/// Puts our path in the place of what was left out of the recording.
fn with_path(value: &Value, path: &str) -> Value {
    serde_json::from_str(&value.to_string().replace("<base>", path)).expect("still JSON")
}

/// What was recorded, with what differs from it on purpose, and why.
fn adjusted(call: &Call, path: &str) -> (Value, Vec<(String, String)>) {
    let mut result = with_path(&Value::Object(call.result.clone()), path);
    let mut events = call.events.clone();
    for (_, text) in &mut events {
        *text = text.replace("filesharing-worker-2", "test-worker");
    }
    result["task"] = json!(format!("test-worker:{}", call.task));
    // Python forgets the service where an exception ended the task.
    result["service"] = json!("filesharing");
    if result["failed"] == json!(true) && result["status"] == json!("completed") {
        result["status"] = json!("failed");
    }
    // Names come sorted, not as the disk has them.
    if call.task == "list_files"
        && let Some(names) = result["result"].as_array_mut()
    {
        names.sort_by_key(|name| name.as_str().map(str::to_owned));
    }
    let mut failed = |why: &str, name: &str| {
        let problem = format!("Git remote '{name}' synchronization failed: {why}");
        result["errors"] = json!([problem.clone()]);
        events.last_mut().expect("an event").1 = format!("test-worker - {problem}");
    };
    match call.call.as_str() {
        // Links are left out and counted.
        "clone_r2_symlink" => {
            result["failed"] = json!(false);
            result["status"] = json!("completed");
            result["result"]["status"] = json!("cloned");
            result["errors"] = json!([]);
            result["messages"] = json!(["1 symbolic links are left out: they are not served"]);
            let done = "test-worker - Git remote 'r2' synchronization completed with status 'cloned'";
            *events.last_mut().expect("an event") = ("INFO".to_owned(), done.to_owned());
        }
        // Errors say why.
        "clone_r3_nobranch" => failed(&format!("branch 'nobranch' not found in {path}"), "r3"),
        "clone_badurl" => failed("/nope.git is not a git repository: check the URL", "n7"),
        "remotes_after" => result["result"][1]["status"] = json!("cloned"),
        "create_nobranch" | "create_badmount" => {
            let error = match call.call.as_str() {
                "create_nobranch" => "argument branch: Remote branch is required for git remotes",
                _ => "argument mount: Remote mount must be a safe relative path",
            };
            result["errors"] = json!([error]);
            result["messages"] = json!([]);
        }
        // The empty folder above a mount goes with it; and our r2 is there.
        "list_root_end" => {
            result["result"] = json!([".dot", ".hiddir", "inlink", "nested", "outlink", "r1", "s.txt", "s4"]);
        }
        "inventory" => {
            result["result"]["base_dir"] = json!("base");
            // What is called a key is masked.
            result["result"]["extra_key"] = json!("********");
            // Python serves all of them.
            result["result"]["dotfiles"] = json!([".*"]);
            result["result"]["uploads"] = json!({"folder": "uploads/here"});
        }
        _ => {}
    }
    (result, events)
}

/// Without what is different each time.
fn comparable(mut result: Value, call: &Call) -> Value {
    let members = result.as_object_mut().expect("an object");
    for key in ["juuid", "task_started", "task_completed"] {
        members.shift_remove(key);
    }
    let no_time = |remote: &mut Value| {
        if remote["last_sync_attempt"].is_string() {
            remote["last_sync_attempt"] = json!("TIME");
        }
    };
    match &mut result["result"] {
        Value::Array(remotes) if call.task == "get_remotes" => remotes.iter_mut().for_each(no_time),
        remote @ Value::Object(_) if call.task == "git_clone" => no_time(remote),
        _ => {}
    }
    result
}

async fn settle(worker: &RemoteWorker) {
    let wait = async {
        while worker.told("r3").await["status"] != json!("failed")
            || worker.told("r4").await["status"] != json!("unchanged")
        {
            time::sleep(Duration::from_secs(1)).await;
        }
    };
    time::timeout(Duration::from_secs(600), wait).await.expect("they are synchronized by themselves");
}

#[tokio::test(start_paused = true)]
async fn every_recorded_job_has_the_recorded_events_and_result() {
    let lab = Lab::new();
    let path = lab.origin.bare_text();
    symlink("one.txt", lab.origin.work.join("cfg/link")).expect("linked");
    lab.origin.push("sym");
    fs::remove_file(lab.origin.work.join("cfg/link")).expect("removed");
    let base = lab.base();
    for folder in [".hiddir", "a__b__c"] {
        fs::create_dir(base.join(folder)).expect("made");
    }
    for file in ["s.txt", ".dot", ".hiddir/z.txt"] {
        fs::write(base.join(file), "s\n").expect("written");
    }
    symlink("s.txt", base.join("inlink")).expect("linked");
    symlink("/etc/hostname", base.join("outlink")).expect("linked");
    let worker = lab.worker(json!([
        {"name": "r1", "url": path, "branch": "main"},
        {"name": "r2", "mount": "nested/r2", "description": "<text>", "url": format!("file://{path}"), "branch": "sym",
         "username": "u", "password": "p"},
        {"name": "r3", "url": path, "branch": "nobranch", "auto_sync": true, "sync_interval": 1},
        {"name": "r4", "mount": "s4", "url": path, "branch": "main", "auto_sync": true, "sync_interval": 6},
    ]));
    settle(&worker).await;
    let recorded: Recorded = serde_json::from_str(include_str!("../data/recorded_git.json")).expect("recorded jobs");
    assert_eq!(recorded.calls.len(), 31);
    for call in &recorded.calls {
        match call.call.as_str() {
            "resolve_after_push" => {
                fs::remove_file(lab.origin.work.join("run.sh")).expect("removed");
                lab.origin.write("cfg/one.txt", "v2\n");
                lab.origin.push("main");
            }
            "clone_after_force" => {
                crate::lab::git(&lab.origin.work, &["reset", "-q", "--soft", "HEAD~1"]);
                lab.origin.write("cfg/one.txt", "v3\n");
                lab.origin.push("main");
            }
            "remotes_after" => settle(&worker).await,
            _ => {}
        }
        let (result, events) = worker.run_and_listen(&call.task, with_path(&call.kwargs, &path)).await;
        let (expected, expected_events) = adjusted(call, &path);
        assert_eq!(comparable(result, call), comparable(expected, call), "{}", call.call);
        assert_eq!(events, expected_events, "{}", call.call);
    }
}
