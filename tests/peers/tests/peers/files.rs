//! Files over streams, between workers and clients of each side.

use std::fs;
use std::path::Path;
use std::process::Command;

use norfab_peer_tests::{Release, Security, Side, Site};
use serde_json::{Value, json};

/// Bytes of a file of several chunks with a short last one.
const SIZE: usize = 3_500_001;

#[test]
fn python_reference_files_arrive_over_streams() {
    for release in Release::ALL {
        fetched_by_python(Side::Python(release), Side::Python(release), release);
    }
}

#[test]
fn python_clients_fetch_from_our_worker() {
    for release in Release::ALL {
        fetched_by_python(Side::Ours, Side::Ours, release);
        fetched_by_python(Side::Python(release), Side::Ours, release);
    }
}

#[test]
fn python_clients_fetch_from_python_workers_behind_our_broker() {
    for release in Release::ALL {
        fetched_by_python(Side::Ours, Side::Python(release), release);
    }
}

#[test]
fn our_command_fetches_from_workers_of_all_sides() {
    for worker in [Side::Ours, Side::Python(Release::V0_21_2), Side::Python(Release::V0_25_0)] {
        let site = site();
        let _broker = site.start_broker(Side::Ours);
        let _worker = site.start_worker(worker, "files-1");
        let mut client = site.start_client(Side::Ours, "client-1");
        client.wait_for_workers(&["files-1"]);
        let copy = site.folder().join("copy.bin");
        let output = site.run_norfab(["files", "get", "nf://d/a.bin", copy.to_str().expect("the folder is text")]);
        assert!(output.status.success(), "{worker:?}: {}", String::from_utf8_lossy(&output.stderr));
        assert_eq!(fs::read(&copy).expect("the copy is there"), content(), "{worker:?}");
        let output = site.run_norfab(["files", "get", "nf://nothing.bin"]);
        assert!(!output.status.success(), "{worker:?}: a file that is not there was fetched");
    }
}

#[test]
fn our_command_synchronizes_with_workers_of_all_sides() {
    for worker in [Side::Ours, Side::Python(Release::V0_21_2), Side::Python(Release::V0_25_0)] {
        let site = site();
        let _broker = site.start_broker(Side::Ours);
        let _worker = site.start_worker(worker, "files-1");
        let mut client = site.start_client(Side::Ours, "client-1");
        client.wait_for_workers(&["files-1"]);
        let copy = site.folder().join("copy");
        let ended = |more: &[&str]| {
            let target = copy.to_str().expect("the folder is text");
            let output = site.run_norfab([&["files", "sync", "nf://d", target, "--json"], more].concat());
            let text = String::from_utf8_lossy(&output.stdout).into_owned();
            let errors = String::from_utf8_lossy(&output.stderr).into_owned();
            let document: Value = serde_json::from_str(&text).unwrap_or_else(|_| panic!("{worker:?}: {text} {errors}"));
            (output.status.code(), document)
        };
        let sync = |more: &[&str]| {
            let (code, document) = ended(more);
            assert_eq!(code, Some(0), "{worker:?}: {document}");
            document
        };
        let first = sync(&[]);
        assert_eq!((&first["fetched"], &first["bytes"]), (&json!(["a.bin"]), &json!(SIZE)), "{worker:?}: {first}");
        assert_eq!(fs::read(copy.join("a.bin")).expect("the copy is there"), content(), "{worker:?}");
        fs::write(copy.join("other"), "other").expect("written");
        let (code, again) = ended(&["--delete"]);
        assert_eq!((&again["unchanged"], &again["fetched"]), (&json!(1), &json!([])), "{worker:?}");
        if worker == Side::Ours {
            assert_eq!((code, &again["deleted"]), (Some(0), &json!(["other"])));
        } else {
            // Theirs do not say which folders they could not read: what is not listed may be there.
            assert_eq!((code, &again["deleted"]), (Some(1), &json!([])), "{worker:?}");
            let why = again["not_deleted"].as_str().expect("it is said");
            assert!(why.contains("workers of Python NorFab") && copy.join("other").exists(), "{worker:?}: {why}");
        }
        fs::write(copy.join("a.bin"), vec![0; SIZE]).expect("written");
        assert_eq!(sync(&["--checksum"])["fetched"], json!(["a.bin"]), "{worker:?}");
        assert_eq!(fs::read(copy.join("a.bin")).expect("the copy is there"), content(), "{worker:?}");
    }
}

#[test]
fn our_command_uploads_to_our_worker_behind_brokers_of_all_sides_and_to_no_python_worker() {
    for broker in [Side::Ours, Side::Python(Release::V0_21_2), Side::Python(Release::V0_25_0)] {
        let site = site();
        let _broker = site.start_broker(broker);
        let _worker = site.start_worker(Side::Ours, "files-1");
        site.start_client(Side::Ours, "watcher").wait_for_workers(&["files-1"]);
        let from = site.folder().join("collected.bin");
        fs::write(&from, content()).expect("written");
        let from = from.to_str().expect("the folder is text");
        let output = site.run_norfab(["files", "put", from, "nf://incoming/router.bin"]);
        assert!(output.status.success(), "{broker:?}: {}", String::from_utf8_lossy(&output.stderr));
        let copy = site.folder().join("share/incoming/router.bin");
        assert_eq!(fs::read(copy).expect("it is there"), content(), "{broker:?}");
        let mut client = site.start_client(Side::Python(Release::V0_25_0), "client-1");
        client.wait_for_workers(&["files-1"]);
        let fetched = client.fetch_file("nf://incoming/router.bin");
        let path = fetched["content"].as_str().unwrap_or_else(|| panic!("{broker:?}: {fetched}"));
        assert_eq!(fs::read(path).expect("the copy is there"), content(), "{broker:?}");
    }
    for release in Release::ALL {
        let site = site();
        let _broker = site.start_broker(Side::Ours);
        let _worker = site.start_worker(Side::Python(release), "files-1");
        site.start_client(Side::Ours, "watcher").wait_for_workers(&["files-1"]);
        let from = site.folder().join("collected.bin");
        fs::write(&from, content()).expect("written");
        let output = site.run_norfab(["files", "put", from.to_str().expect("text"), "nf://incoming/router.bin"]);
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{release:?}: {said}");
        assert!(said.contains("worker files-1 takes no uploads: it is one of Python NorFab"), "{release:?}: {said}");
        assert!(!site.folder().join("share/incoming").exists(), "{release:?}");
    }
}

/// The Python worker leaves its checkout to ours, in the same shared folder.
#[test]
fn clients_of_both_fetch_from_git_remotes_of_a_python_worker_and_of_ours_in_its_place() {
    let site = Site::new(Security::Curve);
    let git = |folder: &Path, arguments: &[&str]| {
        let who = ["-c", "user.name=Test", "-c", "user.email=test@example.net"];
        let output = Command::new("git").current_dir(folder).args(who).args(arguments).output().expect("git runs");
        assert!(output.status.success(), "git {arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    };
    let work = site.folder().join("work");
    let commit = |version: &str| {
        fs::create_dir_all(work.join("d")).expect("a folder");
        fs::write(work.join("d/f.txt"), version).expect("a file");
        git(&work, &["add", "-A"]);
        git(&work, &["commit", "-q", "-m", version]);
    };
    fs::create_dir(&work).expect("a new folder");
    git(&work, &["init", "-q", "-b", "main"]);
    commit("one");
    let share = site.folder().join("share");
    let remote = json!({"name": "r", "mount": "m/r", "url": work, "branch": "main", "type": "git"});
    let site = site.with_worker("files-1", json!({"service": "filesharing", "base_dir": share, "remotes": [remote]}));
    let _broker = site.start_broker(Side::Ours);
    let fetched = |expected: &str, who: &str| {
        let mut client = site.start_client(Side::Python(Release::V0_25_0), who);
        client.wait_for_workers(&["files-1"]);
        let fetched = client.fetch_file("git://r/d/f.txt");
        let path = fetched["content"].as_str().unwrap_or_else(|| panic!("{who}: {fetched}"));
        assert_eq!(fs::read_to_string(path).expect("the copy is there"), expected, "{who}");
    };
    let by_our_command = |expected: &str| {
        let copy = site.folder().join("copy.txt");
        let output = site.run_norfab(["files", "get", "git://r/d/f.txt", copy.to_str().expect("text")]);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        assert_eq!(fs::read_to_string(copy).expect("the copy is there"), expected);
    };
    {
        let _worker = site.start_worker(Side::Python(Release::V0_25_0), "files-1");
        fetched("one", "client-1");
        by_our_command("one");
    }
    let _worker = site.start_worker(Side::Ours, "files-1");
    fetched("one", "client-2");
    commit("two");
    by_our_command("two");
    fetched("two", "client-3");
}

fn fetched_by_python(broker: Side, worker: Side, client: Release) {
    let site = site();
    let _broker = site.start_broker(broker);
    let _worker = site.start_worker(worker, "files-1");
    let mut client = site.start_client(Side::Python(client), "client-1");
    client.wait_for_workers(&["files-1"]);
    let fetched = client.fetch_file("nf://d/a.bin");
    let status = |fetched: &Value| fetched["status"].as_str().map(str::to_owned);
    assert_eq!(status(&fetched).as_deref(), Some("200"), "broker {broker:?}, worker {worker:?}: {fetched}");
    let path = fetched["content"].as_str().expect("the path of the copy");
    assert_eq!(fs::read(path).expect("the copy is there"), content(), "broker {broker:?}, worker {worker:?}");
    assert_eq!(client.fetch_file("nf://empty")["size"], 0);
    // The stock client refuses the second itself.
    for (url, refused) in [("nf://nothing.bin", "404"), ("nf://../inventory.yaml", "500")] {
        let fetched = client.fetch_file(url);
        assert_eq!(status(&fetched).as_deref(), Some(refused), "{url}: {fetched}");
    }
}

fn site() -> Site {
    let site = Site::new(Security::Curve);
    let share = site.folder().join("share");
    fs::create_dir_all(share.join("d")).expect("a new folder");
    fs::write(share.join("d/a.bin"), content()).expect("a new file");
    fs::write(share.join("empty"), "").expect("a new file");
    site.with_worker("files-1", json!({"service": "filesharing", "base_dir": share, "uploads": {"folder": "incoming"}}))
}

/// Bytes that differ from chunk to chunk.
fn content() -> Vec<u8> {
    (0..SIZE).map(|position| (position / 7919 + position) as u8).collect()
}
