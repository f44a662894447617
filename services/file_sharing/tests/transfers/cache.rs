//! Files that are kept for the next time.

use std::time::{Duration, UNIX_EPOCH};

use norfab_fabric::client::ClientHandle;
use norfab_fabric::client::files::{CachedFile, Cleared, FileCache};

use crate::lab::{Lab, PATIENCE, content, read, runtime};

async fn fetch(client: &ClientHandle, cache: &FileCache, name: &str) -> CachedFile {
    client.fetch_cached(&format!("nf://{name}"), cache, PATIENCE, |_, _| {}).await.expect("it is fetched")
}

/// Says that a file was used so many seconds after 1970.
fn used(cache: &FileCache, name: &str, seconds: u64) {
    let file = std::fs::File::open(cache.folder().join(name)).expect("there");
    let times = std::fs::FileTimes::new().set_accessed(UNIX_EPOCH + Duration::from_secs(seconds));
    file.set_times(times).expect("set");
}

fn names(cache: &FileCache) -> Vec<String> {
    let mut names: Vec<String> = cache.entries().expect("read").into_iter().map(|entry| entry.path).collect();
    names.sort();
    names
}

#[test]
fn a_file_is_kept_where_python_clients_keep_it_and_used_while_it_is_the_same() {
    runtime().block_on(async {
        let mut lab = Lab::new();
        lab.share("w1", "d/f", b"one");
        lab.worker("w1").await;
        let client = lab.client("c").await;
        let cache = FileCache::new(lab.path("fetchedfiles"), 1 << 20);
        assert_eq!((names(&cache), cache.clear(None).expect("cleared")), (Vec::new(), Cleared::default()));
        let first = fetch(&client, &cache, "d/f").await;
        assert_eq!(
            (first.fetched.path.clone(), read(&first.fetched.path)),
            (lab.path("fetchedfiles/d/f"), b"one".into())
        );
        assert_eq!(first.fetched.worker.expect("somebody").as_str(), "w1");
        // Another way to write it, and what a client of Python NorFab left there.
        let again = fetch(&client, &cache, "/d//./f").await;
        assert_eq!((again.fetched.worker, again.fetched.path), (None, first.fetched.path.clone()));
        lab.share("w1", "d/f", b"two");
        assert!(fetch(&client, &cache, "d/f").await.fetched.worker.is_some());
        assert_eq!(read(&first.fetched.path), b"two");
        for url in ["nf://../d/f", "nf://", "nf://.git/config", "nf://__norfab__/x", "http://x"] {
            assert!(client.fetch_cached(url, &cache, PATIENCE, |_, _| {}).await.is_err(), "{url}");
        }
        assert_eq!(names(&cache), ["d/f"]);
        client.stop().await;
    });
}

#[test]
fn what_was_not_used_for_the_longest_time_goes_first_and_never_what_is_in_use() {
    runtime().block_on(async {
        let mut lab = Lab::new();
        for name in ["a", "d/b", "c", "e"] {
            lab.share("w1", name, &content(1000));
        }
        lab.worker("w1").await;
        let client = lab.client("c").await;
        let cache = FileCache::new(lab.path("cache"), 3000);
        let kept = fetch(&client, &cache, "a").await;
        drop((fetch(&client, &cache, "d/b").await, fetch(&client, &cache, "c").await));
        for (at, name) in ["a", "d/b", "c"].into_iter().enumerate() {
            used(&cache, name, 1000 + at as u64);
        }
        drop(fetch(&client, &cache, "e").await);
        assert_eq!(names(&cache), ["a", "c", "e"], "a is older, and in use");
        assert!(!lab.path("cache/d").exists(), "its folder was empty");
        // What was used now stays.
        used(&cache, "c", 500);
        used(&cache, "e", 600);
        assert_eq!(fetch(&client, &cache, "c").await.fetched.worker, None);
        let cleared = cache.shrink(2000).expect("shrunk");
        assert_eq!(
            (cleared, names(&cache)),
            (Cleared { files: 1, bytes: 1000, in_use: 0 }, vec!["a".into(), "c".into()])
        );
        assert_eq!(cache.clear(Some("nf://c")).expect("cleared").files, 1);
        assert_eq!(cache.clear(None).expect("cleared"), Cleared { files: 0, bytes: 0, in_use: 1 });
        drop(kept);
        assert_eq!(cache.clear(None).expect("cleared"), Cleared { files: 1, bytes: 1000, in_use: 0 });
        assert!(cache.clear(Some("c")).is_err());
        client.stop().await;
    });
}

#[test]
fn what_is_in_the_way_in_the_cache_goes() {
    runtime().block_on(async {
        let mut lab = Lab::new();
        lab.share("w1", "x", b"a file");
        lab.worker("w1").await;
        let client = lab.client("c").await;
        let cache = FileCache::new(lab.path("cache"), 1 << 20);
        for _ in 0..2 {
            drop(fetch(&client, &cache, "x").await);
            assert_eq!(names(&cache), ["x"]);
            std::fs::remove_file(lab.path("w1/x")).expect("removed");
            lab.share("w1", "x/y", b"below");
            lab.share("w1", "x/z/y", b"below");
            drop((fetch(&client, &cache, "x/y").await, fetch(&client, &cache, "x/z/y").await));
            assert_eq!(names(&cache), ["x/y", "x/z/y"]);
            std::fs::remove_dir_all(lab.path("w1/x")).expect("removed");
            lab.share("w1", "x", b"a file");
        }
        client.stop().await;
    });
}

#[test]
fn files_that_are_fetched_at_once_into_a_cache_that_is_too_small_all_come() {
    runtime().block_on(async {
        let mut lab = Lab::new();
        for number in 0..40 {
            lab.share("w1", &format!("d{number}/f"), &content(1000));
        }
        lab.worker("w1").await;
        let client = lab.client("c").await;
        let cache = FileCache::new(lab.path("cache"), 2500);
        for _ in 0..5 {
            let mut fetching = tokio::task::JoinSet::new();
            for lane in 0..4 {
                let (client, cache) = (client.clone(), cache.clone());
                fetching.spawn(async move {
                    for number in (lane..40).step_by(4) {
                        drop(fetch(&client, &cache, &format!("d{number}/f")).await);
                    }
                });
            }
            fetching.join_all().await;
        }
        assert!(names(&cache).len() <= 3);
        client.stop().await;
    });
}

#[test]
fn what_is_left_of_the_transfer_of_a_file_goes_with_it_and_nothing_else() {
    let folder = tempfile::tempdir().expect("a folder");
    let cache = FileCache::new(folder.path().to_path_buf(), 1 << 20);
    std::fs::create_dir(folder.path().join("d")).expect("made");
    for name in ["x", ".x.part", "xy", ".xy.part", "d/x", "d/.x.part"] {
        std::fs::write(folder.path().join(name), "content").expect("written");
    }
    assert_eq!(cache.clear(Some("nf://x")).expect("cleared").files, 2);
    assert_eq!(names(&cache), [".xy.part", "d/.x.part", "d/x", "xy"]);
    assert_eq!(cache.clear(Some("nf://d/x")).expect("cleared").files, 2);
    assert_eq!(cache.clear(Some("nf://d")).expect("cleared").files, 0);
}
