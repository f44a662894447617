//! Making a folder like one that a worker shares.

use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use norfab_fabric::client::files::{SyncOptions, Synced};
use norfab_fabric::client::{ClientHandle, FetchError};
use norfab_protocol::target::Target;

use crate::lab::{Fate, Lab, PATIENCE, content, eventually, read, runtime};

const PLAIN: SyncOptions =
    SyncOptions { workers: Target::All, delete: false, dry_run: false, checksum: false, timeout: PATIENCE };

async fn sync(client: &ClientHandle, lab: &Lab, options: SyncOptions) -> Synced {
    client.sync("nf://d", &lab.path("copy"), options, |_| {}).await.expect("it is synchronized")
}

/// Shares so many small files in some folders, and one large one.
fn share_many(lab: &Lab, worker: &str, files: usize) {
    for number in 0..files {
        lab.share(worker, &format!("d/{}/f{number}", number % 10), &content(number % 3000));
    }
    lab.share(worker, "d/large", &content(2_000_000));
}

fn assert_is_like(lab: &Lab, worker: &str) {
    fn walk(folder: &Path, found: &mut Vec<std::path::PathBuf>) {
        for entry in std::fs::read_dir(folder).expect("a folder") {
            let path = entry.expect("an entry").path();
            if path.is_dir() { walk(&path, found) } else { found.push(path) }
        }
    }
    let (mut there, mut here) = (Vec::new(), Vec::new());
    walk(&lab.path(worker).join("d"), &mut there);
    walk(&lab.path("copy"), &mut here);
    assert_eq!(there.len(), here.len());
    for path in there {
        let copy = lab.path("copy").join(path.strip_prefix(lab.path(worker).join("d")).expect("below"));
        assert!(read(&copy) == read(&path), "{}", copy.display());
        let (one, other) = (std::fs::metadata(&path).expect("there"), std::fs::metadata(&copy).expect("there"));
        assert_eq!((one.mtime(), one.mode()), (other.mtime(), other.mode()), "{}", copy.display());
    }
}

#[test]
fn a_thousand_files_come_once_and_then_what_differs() {
    runtime().block_on(async {
        let mut lab = Lab::new();
        share_many(&lab, "w1", 1000);
        let script = lab.path("w1/d/3/f3");
        std::fs::set_permissions(&script, std::fs::Permissions::from_mode(0o755)).expect("changed");
        std::fs::create_dir_all(lab.path("w1/d/empty")).expect("made");
        let way = lab.worker("w1").await;
        let client = lab.client("c").await;
        let first = sync(&client, &lab, PLAIN).await;
        assert_eq!((first.files, first.unchanged, first.fetched.len()), (1001, 0, 1001));
        assert_eq!((first.failed.len(), first.worker.as_str()), (0, "w1"));
        assert_is_like(&lab, "w1");
        assert!(lab.path("copy/empty").is_dir());

        let streams = way.streams.load(Ordering::SeqCst);
        let again = sync(&client, &lab, PLAIN).await;
        assert_eq!((again.files, again.unchanged, again.fetched.len()), (1001, 1001, 0));
        assert_eq!(way.streams.load(Ordering::SeqCst), streams, "nothing is sent");

        lab.share("w1", "d/1/new", b"new");
        lab.share("w1", "d/large", &content(2_000_001));
        std::fs::remove_file(lab.path("copy/5/f5")).expect("removed");
        std::fs::set_permissions(&script, std::fs::Permissions::from_mode(0o700)).expect("changed");
        let touched = std::fs::File::options()
            .append(true)
            .open(lab.path("w1/d/9/f2999"))
            .or_else(|_| std::fs::File::options().append(true).open(lab.path("w1/d/9/f999")));
        touched.expect("there").set_modified(std::time::UNIX_EPOCH + Duration::from_secs(5)).expect("set");
        let third = sync(&client, &lab, PLAIN).await;
        assert_eq!(third.fetched, ["1/new", "5/f5", "large"]);
        assert_eq!(third.unchanged, 999, "one of them has another time and the same content");
        assert_is_like(&lab, "w1");
        client.stop().await;
    });
}

#[test]
fn the_same_size_and_time_with_another_content_is_seen_where_hashes_are_compared() {
    runtime().block_on(async {
        let mut lab = Lab::new();
        lab.share("w1", "d/a", b"one");
        lab.share("w1", "d/b", b"two");
        lab.worker("w1").await;
        let client = lab.client("c").await;
        sync(&client, &lab, PLAIN).await;
        let time = std::fs::metadata(lab.path("copy/a")).expect("there").modified().expect("a time");
        std::fs::write(lab.path("copy/a"), b"eno").expect("written");
        let file = std::fs::File::options().append(true).open(lab.path("copy/a")).expect("there");
        file.set_modified(time).expect("set");
        assert_eq!(sync(&client, &lab, PLAIN).await.fetched.len(), 0);
        let options = SyncOptions { checksum: true, dry_run: true, ..PLAIN };
        let would = sync(&client, &lab, options).await;
        assert_eq!((would.fetched.as_slice(), would.unchanged), (&["a".to_owned()][..], 1));
        assert_eq!(read(&lab.path("copy/a")), b"eno");
        let done = sync(&client, &lab, SyncOptions { checksum: true, ..PLAIN }).await;
        assert_eq!((done.fetched, done.unchanged), (would.fetched, 1));
        assert_eq!(read(&lab.path("copy/a")), b"one");
        client.stop().await;
    });
}

#[test]
fn what_the_worker_does_not_have_is_removed_only_where_that_is_wanted() {
    runtime().block_on(async {
        let mut lab = Lab::new();
        lab.share("w1", "d/a/1", b"1");
        lab.share("w1", "d/b", b"2");
        lab.worker("w1").await;
        let client = lab.client("c").await;
        std::fs::create_dir_all(lab.path("outside")).expect("made");
        std::fs::write(lab.path("outside/kept"), "kept").expect("written");
        for name in ["extra", "a/extra", "old/deep/extra", ".git/config", ".hidden", "__pycache__/x"] {
            let path = lab.path("copy").join(name);
            std::fs::create_dir_all(path.parent().expect("a folder")).expect("made");
            std::fs::write(path, "mine").expect("written");
        }
        symlink(lab.path("outside"), lab.path("copy/link")).expect("linked");
        symlink(lab.path("outside"), lab.path("copy/old/link")).expect("linked");
        let plain = sync(&client, &lab, PLAIN).await;
        assert_eq!((plain.fetched.len(), plain.deleted.len()), (2, 0));
        assert!(lab.path("copy/extra").exists());

        let would = sync(&client, &lab, SyncOptions { delete: true, dry_run: true, ..PLAIN }).await;
        let extra = ["a/extra", "extra", "link", "old/deep/extra", "old/link"];
        assert_eq!(would.deleted, extra);
        assert!(lab.path("copy/old/deep/extra").exists());
        let done = sync(&client, &lab, SyncOptions { delete: true, ..PLAIN }).await;
        assert_eq!((done.deleted.as_slice(), done.failed.len()), (&extra.map(str::to_owned)[..], 0));
        assert_eq!(lab.names("copy"), [".git", ".hidden", "__pycache__", "a", "b"]);
        assert_eq!((lab.names("copy/a"), lab.names("copy/.git")), (vec!["1".to_owned()], vec!["config".to_owned()]));
        assert_eq!(lab.names("outside"), ["kept"]);

        std::fs::remove_dir_all(lab.path("w1/d")).expect("removed");
        std::fs::create_dir(lab.path("w1/d")).expect("made");
        let empty = sync(&client, &lab, SyncOptions { delete: true, ..PLAIN }).await;
        assert!(empty.deleted.is_empty() && empty.not_deleted.is_some_and(|why| why.contains("empty")));
        assert!(lab.path("copy/b").exists());
        client.stop().await;
    });
}

#[test]
fn a_dry_run_makes_nothing() {
    runtime().block_on(async {
        let mut lab = Lab::new();
        lab.share("w1", "d/a/1", b"1");
        lab.worker("w1").await;
        let client = lab.client("c").await;
        let would = sync(&client, &lab, SyncOptions { dry_run: true, delete: true, ..PLAIN }).await;
        assert_eq!((would.fetched, would.bytes), (vec!["a/1".to_owned()], 1));
        assert!(!lab.path("copy").exists());
        client.stop().await;
    });
}

#[test]
fn a_worker_that_dies_in_the_middle_is_replaced_and_what_came_is_not_fetched_again() {
    runtime().block_on(async {
        let mut lab = Lab::new();
        share_many(&lab, "w1", 1000);
        std::fs::create_dir(lab.path("w2")).expect("made");
        let copied = std::process::Command::new("cp").arg("-a").arg(lab.path("w1/d")).arg(lab.path("w2/d")).status();
        assert!(copied.expect("it runs").success());
        let (first, second) = (lab.worker("w1").await, lab.worker("w2").await);
        first.plan(2, Fate::Last);
        let client = lab.client("c").await;
        let synced = sync(&client, &lab, PLAIN).await;
        assert_eq!((synced.fetched.len(), synced.failed.len()), (1001, 0), "{:?}", synced.failed);
        assert_is_like(&lab, "w1");
        let sent = first.bytes.load(Ordering::SeqCst) + second.bytes.load(Ordering::SeqCst);
        assert!(sent < 2_000_000 + 1_600_000 + (1 << 20), "{sent} bytes were sent");
        client.stop().await;
    });
}

#[test]
fn the_only_worker_is_waited_for_and_so_is_the_broker() {
    runtime().block_on(async {
        let mut lab = Lab::new();
        share_many(&lab, "w1", 300);
        lab.share("w1", "d/larger", &content(20_000_000));
        let way = lab.worker("w1").await;
        way.plan(10, Fate::Last);
        let client = lab.client("c").await;
        let (syncing, target) = (client.clone(), lab.path("copy"));
        let task = tokio::spawn(async move { syncing.sync("nf://d", &target, PLAIN, |_| {}).await });
        eventually("the worker has died", async || way.is_dead.load(Ordering::SeqCst)).await;
        let streams = way.streams.load(Ordering::SeqCst);
        way.is_dead.store(false, Ordering::SeqCst);
        eventually("it sends again", async || way.streams.load(Ordering::SeqCst) > streams + 20).await;
        lab.restart_broker().await;
        let synced = task.await.expect("no panic").expect("it is synchronized");
        assert_eq!((synced.failed.len(), synced.fetched.len()), (0, 302), "{:?}", synced.failed);
        assert_is_like(&lab, "w1");
        client.stop().await;
    });
}

#[test]
fn the_next_synchronization_goes_on_where_one_was_killed() {
    runtime().block_on(async {
        let mut lab = Lab::new();
        lab.share("w1", "d/large", &content(20_000_000));
        lab.share("w1", "d/a", b"a");
        let way = lab.worker("w1").await;
        let client = lab.client("c").await;
        let came = Arc::new(tokio::sync::Notify::new());
        let (tells, syncing, target) = (Arc::clone(&came), client.clone(), lab.path("copy"));
        let task = tokio::spawn(async move {
            let tell = |now: norfab_fabric::client::files::FilesProgress| {
                assert!(now.bytes_done <= now.bytes && now.files == 2);
                if now.bytes_done > 10_000_000 {
                    tells.notify_one();
                }
            };
            syncing.sync("nf://d", &target, PLAIN, tell).await
        });
        came.notified().await;
        task.abort();
        drop(task.await);
        client.stop().await;
        eventually("nobody writes it", async || {
            std::fs::File::open(lab.path("copy/.large.part")).is_ok_and(|part| part.try_lock().is_ok())
        })
        .await;
        let before = way.bytes.load(Ordering::SeqCst);
        let next = lab.client("next").await;
        let synced = sync(&next, &lab, PLAIN).await;
        assert_eq!((synced.fetched.as_slice(), synced.unchanged), (&["large".to_owned()][..], 1));
        assert!(synced.had > 5_000_000, "{}", synced.had);
        assert!(way.bytes.load(Ordering::SeqCst) - before < 15_000_000);
        assert!(read(&lab.path("copy/large")) == content(20_000_000));
        assert_eq!(lab.names("copy"), ["a", "large"]);
        next.stop().await;
    });
}

#[test]
fn links_that_take_the_place_of_folders_meanwhile_lead_nothing_out() {
    runtime().block_on(async {
        let mut lab = Lab::new();
        for number in 0..2000 {
            lab.share("w1", &format!("d/{}/f{number}", number % 200), b"from the worker");
        }
        lab.worker("w1").await;
        let client = lab.client("c").await;
        std::fs::create_dir_all(lab.path("copy")).expect("made");
        std::fs::create_dir_all(lab.path("outside")).expect("made");
        let ended = Arc::new(AtomicBool::new(false));
        let (stop, copy, outside) = (Arc::clone(&ended), lab.path("copy"), lab.path("outside"));
        // The folder becomes a link and a folder again, all the time.
        let swapping = std::thread::spawn(move || {
            let mut swapped = 0;
            for number in (0..200).cycle() {
                if stop.load(Ordering::Relaxed) {
                    return swapped;
                }
                let (folder, away) = (copy.join(number.to_string()), copy.join(format!(".away{number}")));
                if std::fs::rename(&folder, &away).is_ok() {
                    swapped += u32::from(symlink(&outside, &folder).is_ok());
                    std::fs::remove_file(&folder).ok();
                    std::fs::rename(&away, &folder).ok();
                } else if symlink(&outside, &folder).is_ok() {
                    std::fs::remove_file(&folder).ok();
                }
            }
            swapped
        });
        for round in 0..5 {
            let synced = sync(&client, &lab, SyncOptions { delete: round % 2 == 0, ..PLAIN }).await;
            assert_eq!(synced.files, 2000);
            for number in 0..2000 {
                std::fs::remove_file(lab.path(&format!("copy/{}/f{number}", number % 200))).ok();
            }
        }
        ended.store(true, Ordering::Relaxed);
        assert!(swapping.join().expect("no panic") > 0);
        assert_eq!(lab.names("outside"), Vec::<String>::new());
        client.stop().await;
    });
}

#[test]
fn links_and_folders_in_the_way_fail_their_files_and_no_others() {
    runtime().block_on(async {
        let mut lab = Lab::new();
        for name in ["a/1", "b/1", "c", "e", "f"] {
            lab.share("w1", &format!("d/{name}"), b"new");
        }
        lab.worker("w1").await;
        let client = lab.client("c").await;
        std::fs::create_dir_all(lab.path("outside")).expect("made");
        std::fs::write(lab.path("outside/secret"), "old").expect("written");
        std::fs::create_dir_all(lab.path("copy/e")).expect("made");
        symlink(lab.path("outside"), lab.path("copy/a")).expect("linked");
        symlink(lab.path("outside/secret"), lab.path("copy/f")).expect("linked");
        let synced = sync(&client, &lab, PLAIN).await;
        assert_eq!(synced.fetched, ["b/1", "c", "f"]);
        let failed: Vec<&str> = synced.failed.iter().map(|failed| failed.path.as_str()).collect();
        assert!(failed.contains(&"a/1") && failed.contains(&"e"), "{:?}", synced.failed);
        assert_eq!(
            (lab.names("outside"), read(&lab.path("outside/secret"))),
            (vec!["secret".to_owned()], b"old".to_vec())
        );
        assert!(std::fs::symlink_metadata(lab.path("copy/f")).expect("there").is_file());
        client.stop().await;
    });
}

#[test]
fn what_cannot_be_synchronized_says_why() {
    runtime().block_on(async {
        let mut lab = Lab::new();
        lab.share("w1", "d/a", b"1");
        lab.worker("w1").await;
        let client = lab.client("c").await;
        let error = async |url: &str| client.sync(url, &lab.path("copy"), PLAIN, |_| {}).await.expect_err(url);
        assert!(matches!(error("git://r/d").await, FetchError::Url(_)));
        for (url, expected) in
            [("nf://d/a", "it is a file"), ("nf://x", "file not found"), ("nf://../d", "invalid URL path")]
        {
            let error = error(url).await.to_string();
            assert!(error.contains(expected), "{url}: {error}");
        }
        assert!(!lab.path("copy").exists());
        std::fs::write(lab.path("copy"), "a file").expect("written");
        assert!(matches!(error("nf://d").await, FetchError::Write { .. }));
        client.stop().await;
    });
}
