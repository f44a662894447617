//! Files of git remotes, by their own URLs.

use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use norfab_fabric::SystemClock;
use norfab_fabric::client::files::{FileCache, FileTarget};
use norfab_file_sharing::{RemotesHome, service_with_remotes};
use serde_json::json;

use crate::lab::{Lab, PATIENCE, read, runtime};

fn git(folder: &Path, arguments: &[&str]) {
    let who = ["-c", "user.name=Test", "-c", "user.email=test@example.net", "-c", "commit.gpgsign=false"];
    let output = Command::new("git").current_dir(folder).args(who).args(arguments).output().expect("git runs");
    assert!(output.status.success(), "git {arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
}

fn commit(lab: &Lab, version: &str) {
    lab.share("origin", "d/f.txt", version.as_bytes());
    git(&lab.path("origin"), &["add", "-A"]);
    git(&lab.path("origin"), &["commit", "-q", "-m", version]);
}

/// A worker of a repository.
async fn worker(lab: &mut Lab, name: &str) {
    let remote = json!({"name": "r", "mount": "m/r", "url": lab.path("origin"), "branch": "main"});
    let home = RemotesHome {
        worker: name.to_owned(),
        folder: lab.path(&format!("{name}-data")),
        local_base: lab.path("."),
        clock: Arc::new(SystemClock),
        runtime: tokio::runtime::Handle::current(),
        span: tracing::Span::none(),
    };
    let inventory = json!({"base_dir": name, "remotes": [remote]});
    let service = service_with_remotes(&inventory, &lab.path("."), home).expect("a service");
    lab.worker_of(name, service).await;
}

#[test]
fn a_file_of_a_remote_comes_as_it_is_in_the_repository_from_a_worker_that_knows_it() {
    runtime().block_on(async {
        let mut lab = Lab::new();
        lab.share("origin", "run.sh", b"#!/bin/sh\n");
        git(&lab.path("origin"), &["init", "-q", "-b", "main"]);
        commit(&lab, "one");
        // It has another file where the other one has its checkout, and no remote.
        lab.share("w1", "m/r/d/f.txt", b"something else");
        lab.worker("w1").await;
        worker(&mut lab, "w2").await;
        let client = lab.client("c").await;
        let copy = lab.path("copy");
        let fetched = client.fetch_file("git://r/d/f.txt", &copy, PATIENCE, |_, _| {}).await.expect("it is fetched");
        assert_eq!((read(&copy), fetched.worker.expect("somebody").as_str()), (b"one".into(), "w2"));
        commit(&lab, "two");
        let of = |url: &str, name: &str| FileTarget { url: url.to_owned(), target: lab.path(name) };
        let files = vec![
            of("git://r/d/f.txt", "copy"),
            of("git://r/run.sh", "run.sh"),
            of("nf://m/r/d/f.txt", "nf"),
            of("git://r/nowhere", "x"),
            of("git://other/f", "x"),
            of("git://r", "x"),
        ];
        let mut outcomes = client.fetch_files(files, PATIENCE, |_| {}).await;
        let errors: Vec<String> =
            outcomes.split_off(3).into_iter().map(|outcome| outcome.expect_err("it fails").to_string()).collect();
        assert!(outcomes.iter().all(Result::is_ok), "{outcomes:?}");
        assert_eq!((read(&copy), read(&lab.path("run.sh"))), (b"two".into(), b"#!/bin/sh\n".into()));
        for (error, expected) in errors.iter().zip(["file not found", "has a remote 'other'", "is no file URL"]) {
            assert!(error.contains(expected), "{error}");
        }
        let cache = FileCache::new(lab.path("cache"), 1 << 20);
        let cached = client.fetch_cached("git://r/d/f.txt", &cache, PATIENCE, |_, _| {}).await.expect("it is fetched");
        assert_eq!(cached.fetched.path, lab.path("cache/m/r/d/f.txt"));
        client.stop().await;
    });
}
