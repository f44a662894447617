//! What becomes of the shared folder: whose content is touched, and what is left.

use std::fs;
use std::os::unix::fs::symlink;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use serde_json::json;

use crate::lab::{Lab, git};

#[tokio::test]
async fn a_folder_with_content_of_its_own_is_never_replaced_nor_removed() {
    let lab = Lab::new();
    fs::create_dir(lab.base().join("r")).expect("made");
    fs::write(lab.base().join("r/mine.txt"), "mine").expect("written");
    let worker = lab.with_url("origin.git");
    let error = worker.clone_error().await;
    let expected = "the folder 'nf://r' is not one of this remote and has content: move it away or mount elsewhere";
    assert_eq!(error, expected);
    let result = worker.run("delete_remote_git", json!({"name": "r"})).await;
    assert_eq!(result["result"], json!(true));
    assert_eq!(result["messages"], json!(["the folder 'nf://r' has content of its own and stays"]));
    assert_eq!(lab.read("r/mine.txt"), "mine");
    assert!(!lab.has("__norfab__"));
}

#[tokio::test]
async fn an_empty_folder_and_an_equal_checkout_of_the_python_service_are_taken() {
    let lab = Lab::new();
    fs::create_dir(lab.base().join("r")).expect("made");
    let worker = lab.with_url("origin.git");
    assert_eq!(worker.clone().await, "cloned");
    worker.run("delete_remote_git", json!({"name": "r"})).await;
    // As the Python service leaves it: the files and nothing else.
    git(lab.outer(), &["clone", "-q", "origin.git", "base/r"]);
    fs::remove_dir_all(lab.base().join("r/.git")).expect("removed");
    let worker = lab.with_url("origin.git");
    assert_eq!(worker.clone().await, "cloned");
    assert_eq!(worker.clone().await, "unchanged");
    lab.origin.write("cfg/one.txt", "v2\n");
    lab.origin.push("main");
    assert_eq!(worker.clone().await, "cloned");
    assert_eq!(lab.read("r/cfg/one.txt"), "v2\n");
}

#[tokio::test]
async fn links_and_files_in_the_way_are_refused_and_nothing_is_written_through_them() {
    let lab = Lab::new();
    let outside = lab.outer().join("outside");
    fs::create_dir(&outside).expect("made");
    symlink(&outside, lab.base().join("way")).expect("linked");
    fs::write(lab.base().join("file"), "").expect("written");
    for (mount, name) in [("way", "way"), ("way/in", "way"), ("file", "file"), ("file/in", "file")] {
        let worker = lab.worker(json!([{"name": "r", "url": "origin.git", "branch": "main", "mount": mount}]));
        let expected = format!("'nf://{mount}' cannot be a folder: '{name}' on the way to it is a file or a link");
        assert_eq!(worker.clone_error().await, expected);
        worker.run("delete_remote_git", json!({"name": "r"})).await;
    }
    assert_eq!(fs::read_dir(&outside).expect("read").count(), 0);
    assert!(lab.has("file") && lab.base().join("way").is_symlink());
}

#[tokio::test]
async fn a_reserved_folder_that_is_a_link_is_named_before_anything_is_fetched() {
    let lab = Lab::new();
    let elsewhere = lab.outer().join("elsewhere");
    fs::create_dir(&elsewhere).expect("made");
    symlink(&elsewhere, lab.base().join("__norfab__")).expect("linked");
    let worker = lab.with_url("origin.git");
    let error = worker.clone_error().await;
    assert!(error.starts_with("'__norfab__' in the shared folder is a link or a file: "), "{error}");
    assert!(!lab.folder().join("remotes").exists() && fs::read_dir(&elsewhere).expect("read").next().is_none());
    let result = worker.run("delete_remote_git", json!({"name": "r"})).await;
    assert_eq!(result["result"], json!(true), "{result}");
}

#[tokio::test]
async fn workers_that_share_a_folder_do_not_take_each_others_places() {
    let lab = Lab::new();
    lab.origin.push("side");
    let remote = |branch: &str| json!([{"name": "r", "url": "origin.git", "branch": branch}]);
    let one = lab.worker_with("one", remote("main"), json!([]));
    assert_eq!(one.clone().await, "cloned");
    let other = lab.worker_with("other", remote("side"), json!([]));
    assert_eq!(other.clone_error().await, "the folder 'nf://r' is git remote 'r' of worker 'one': mount elsewhere");
    let result = other.run("delete_remote_git", json!({"name": "r"})).await;
    assert_eq!(result["messages"], json!(["the folder 'nf://r' has content of its own and stays"]));
    assert_eq!(one.clone().await, "unchanged");
    assert_eq!(lab.worker_with("other", remote("main"), json!([])).clone().await, "unchanged");
}

#[tokio::test]
async fn empty_parents_of_a_mount_go_with_it_and_others_stay() {
    let lab = Lab::new();
    let remote = |name: &str, mount: &str| json!({"name": name, "url": "origin.git", "branch": "main", "mount": mount});
    let worker = lab.worker(json!([remote("a", "m/n/a"), remote("b", "m/b")]));
    for name in ["a", "b"] {
        let result = worker.run("git_clone", json!({"name": name})).await;
        assert_eq!(result["result"]["status"], json!("cloned"));
    }
    assert!(lab.has("m/n/a/run.sh") && lab.has("m/b/run.sh"));
    worker.run("delete_remote_git", json!({"name": "a"})).await;
    assert!(!lab.has("m/n") && lab.has("m/b/run.sh"));
    worker.run("delete_remote_git", json!({"name": "b"})).await;
    assert_eq!(fs::read_dir(lab.base()).expect("read").count(), 0);
}

#[tokio::test]
async fn a_checkout_that_somebody_removes_comes_back() {
    let lab = Lab::new();
    let worker = lab.with_url("origin.git");
    assert_eq!(worker.clone().await, "cloned");
    fs::remove_dir_all(lab.base().join("r")).expect("removed");
    assert_eq!(worker.clone().await, "cloned");
    assert!(lab.has("r/run.sh"));
}

#[tokio::test]
async fn what_a_killed_process_leaves_is_removed_at_the_next_start() {
    let lab = Lab::new();
    drop(lab.with_url("origin.git"));
    let left = lab.base().join("__norfab__/checkouts/test-worker/new-r/deep");
    fs::create_dir_all(&left).expect("made");
    fs::write(left.join("half"), "ha").expect("written");
    let packs = lab.folder().join("remotes/r/repository/objects/pack");
    fs::create_dir_all(&packs).expect("made");
    for name in [".tmpAbc", "pack-1.pack", "pack-2.idx"] {
        fs::write(packs.join(name), "half").expect("written");
    }
    let worker = lab.with_url("origin.git");
    assert!(!lab.has("__norfab__"));
    assert_eq!(worker.clone().await, "cloned");
    assert_eq!(fs::read_dir(&packs).expect("read").count(), 0);
}

#[tokio::test]
async fn the_checkout_survives_a_restart_and_a_lost_repository() {
    let lab = Lab::new();
    assert_eq!(lab.with_url("origin.git").clone().await, "cloned");
    assert_eq!(lab.with_url("origin.git").clone().await, "unchanged");
    fs::remove_dir_all(lab.folder()).expect("removed");
    lab.origin.write("cfg/one.txt", "v2\n");
    lab.origin.push("main");
    assert_eq!(lab.with_url("origin.git").clone().await, "cloned");
    assert_eq!(lab.read("r/cfg/one.txt"), "v2\n");
}

#[tokio::test]
async fn a_reader_sees_the_old_files_or_the_new_ones_and_never_a_mixture() {
    let lab = Lab::new();
    let write = |version: u32| {
        for number in 0..50 {
            lab.origin.write(&format!("many/{number}"), version.to_string());
        }
        lab.origin.push("main");
    };
    write(0);
    let worker = lab.with_url("origin.git");
    worker.clone().await;
    let over = Arc::new(AtomicBool::new(false));
    let reader = {
        let (over, file) = (Arc::clone(&over), lab.base().join("r/many/7"));
        thread::spawn(move || {
            let mut seen = vec![0];
            while !over.load(Ordering::Relaxed) {
                let version: u32 = fs::read_to_string(&file).expect("always there").parse().expect("never half");
                if seen.last() != Some(&version) {
                    seen.push(version);
                }
            }
            seen
        })
    };
    for version in 1..6 {
        let before = fs::File::open(lab.base().join("r/many")).expect("open");
        write(version);
        assert_eq!(worker.clone().await, "cloned");
        let count = |folder: &fs::File| rustix::fs::Dir::read_from(folder).expect("read").count();
        assert_eq!(count(&before), 52, "who has the old folder open sees all of it");
        assert_eq!(count(&fs::File::open(lab.base().join("r/many")).expect("open")), 52);
    }
    over.store(true, Ordering::Relaxed);
    let seen = reader.join().expect("always whole");
    assert!(seen.is_sorted(), "{seen:?}");
}

#[tokio::test(start_paused = true)]
async fn the_files_before_are_kept_for_a_while() {
    let lab = Lab::new();
    let worker = lab.with_url("origin.git");
    worker.clone().await;
    lab.origin.push("main");
    worker.clone().await;
    let old = lab.base().join("__norfab__/checkouts/test-worker/old-r");
    assert!(old.join("run.sh").exists());
    let gone = async {
        while lab.has("__norfab__") {
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(600), gone).await.expect("it goes");
    assert!(lab.has("r/run.sh"));
}

#[tokio::test]
async fn jobs_about_one_remote_wait_for_each_other() {
    let lab = Lab::new();
    let worker = lab.with_url("origin.git");
    let (one, other) = tokio::join!(worker.clone(), worker.clone());
    let mut both = [one, other];
    both.sort();
    assert_eq!(both, ["cloned", "unchanged"]);
}

#[tokio::test]
async fn a_remote_is_never_mounted_where_files_are_uploaded() {
    let lab = Lab::new();
    let worker = lab.worker(json!([]));
    for (mount, is_taken) in
        [("uploads/here", false), ("uploads/here/x", false), ("uploads", false), ("uploads/other", true)]
    {
        let remote = json!({"name": "r", "url": "origin.git", "branch": "main", "mount": mount});
        let result = worker.run("create_remote_git", remote).await;
        let expected = format!("Remote mount 'nf://{mount}' collides with the folder for uploads: mount elsewhere");
        assert_eq!(result["errors"] == json!([expected]), !is_taken, "{result}");
    }
}
