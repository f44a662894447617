//! Remotes that are synchronized by themselves. Time is tokio's and passes by itself.

use std::fs;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::time;

use crate::lab::{Lab, RemoteWorker};

/// How long is waited for, which takes no time.
const PATIENCE: Duration = Duration::from_secs(600);

async fn until(worker: &RemoteWorker, status: &str) -> Value {
    let wait = async {
        loop {
            let told = worker.told("r").await;
            if told["status"] == json!(status) {
                return told;
            }
            time::sleep(Duration::from_millis(500)).await;
        }
    };
    time::timeout(PATIENCE, wait).await.expect("it comes to that")
}

#[tokio::test(start_paused = true)]
async fn a_remote_is_synchronized_after_a_second_and_then_in_its_interval() {
    let lab = Lab::new();
    let began = time::Instant::now();
    let remote = json!({"name": "r", "url": "origin.git", "branch": "main", "auto_sync": true, "sync_interval": 1});
    let worker = lab.worker(json!([remote]));
    assert_eq!(worker.told("r").await["status"], json!("unsynchronized"));
    until(&worker, "cloned").await;
    assert!((1..4).contains(&began.elapsed().as_secs()), "{:?}", began.elapsed());
    until(&worker, "unchanged").await;
    assert!((5..10).contains(&began.elapsed().as_secs()), "{:?}", began.elapsed());
    lab.origin.write("cfg/one.txt", "v2\n");
    lab.origin.push("main");
    until(&worker, "cloned").await;
    assert_eq!(lab.read("r/cfg/one.txt"), "v2\n");
}

#[tokio::test(start_paused = true)]
async fn a_remote_that_fails_is_tried_again_each_interval() {
    let lab = Lab::new();
    let worker = lab.worker(json!([]));
    let remote = json!({"name": "r", "url": "late.git", "branch": "main", "auto_sync": true, "sync_interval": 5});
    let created = worker.run("create_remote_git", remote).await;
    assert_eq!(created["result"], json!({"name": "r", "status": "unsynchronized"}));
    until(&worker, "failed").await;
    fs::rename(&lab.origin.bare, lab.outer().join("late.git")).expect("moved");
    until(&worker, "cloned").await;
    assert!(lab.has("r/run.sh"));
}

#[tokio::test(start_paused = true)]
async fn a_remote_without_auto_sync_is_left_alone_and_a_deleted_one_stays_deleted() {
    let lab = Lab::new();
    let remote =
        |name: &str, auto: bool| json!({"name": name, "url": "origin.git", "branch": "main", "auto_sync": auto});
    let worker = lab.worker(json!([remote("quiet", false), remote("r", true)]));
    until(&worker, "cloned").await;
    worker.run("delete_remote_git", json!({"name": "r"})).await;
    time::sleep(Duration::from_secs(120)).await;
    assert_eq!(worker.told("quiet").await["last_sync_attempt"], json!(null));
    assert!(!lab.has("r") && !lab.has("quiet"));
}
