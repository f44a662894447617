//! Fetching one file.

use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use norfab_fabric::client::files::GRACE;
use norfab_fabric::client::{ClientHandle, FetchError, Fetched};
use norfab_protocol::ServiceName;
use norfab_service::{Service, Task, TaskContext};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::json;
use sha2::{Digest, Sha256};
use tokio::sync::Notify;
use tokio::task::JoinHandle;

use crate::lab::{Fate, Lab, PATIENCE, Way, content, eventually, read, runtime};

/// Bytes of a file that takes many messages.
const LARGE: usize = 20_000_000;

/// What of a transfer may be sent twice: what is under way when it breaks off.
const UNDER_WAY: u64 = 5 << 20;

async fn fetch(client: &ClientHandle, lab: &Lab, to: &str) -> Result<Fetched, FetchError> {
    client.fetch_file("nf://d/f", &lab.path(to), PATIENCE, |_, _| {}).await
}

/// A transfer that goes on beside the test, and what says that so many bytes are there.
struct Fetching {
    task: JoinHandle<Result<Fetched, FetchError>>,
    came: Arc<Notify>,
}

fn begin(client: &ClientHandle, lab: &Lab, bytes: u64) -> Fetching {
    let (client, target) = (client.clone(), lab.path("copy"));
    let came = Arc::new(Notify::new());
    let tells = Arc::clone(&came);
    let task = tokio::spawn(async move {
        let tell = |so_far, _| {
            if so_far > bytes {
                tells.notify_one();
            }
        };
        client.fetch_file("nf://d/f", &target, PATIENCE, tell).await
    });
    Fetching { task, came }
}

fn sent(way: &Way) -> u64 {
    way.bytes.load(Ordering::SeqCst)
}

fn sha256(content: &[u8]) -> String {
    Sha256::digest(content).iter().map(|byte| format!("{byte:02x}")).collect()
}

#[test]
fn a_file_arrives_with_its_hash_time_and_rights_and_is_not_fetched_twice() {
    runtime().block_on(async {
        let mut lab = Lab::new();
        let all = content(LARGE);
        lab.share("w1", "d/f", &all);
        let shared = lab.path("w1/d/f");
        std::fs::set_permissions(&shared, std::fs::Permissions::from_mode(0o750)).expect("changed");
        let way = lab.worker("w1").await;
        let client = lab.client("c").await;
        let seen = Arc::new(AtomicU64::new(0));
        let last = Arc::clone(&seen);
        let fetched = client
            .fetch_file("nf://d/f", &lab.path("new/copy"), PATIENCE, move |bytes, size| {
                assert!(bytes <= size && size == LARGE as u64, "{bytes} of {size}");
                assert!(last.fetch_max(bytes, Ordering::SeqCst) <= bytes, "it goes back");
            })
            .await
            .expect("it is fetched");
        assert_eq!(seen.load(Ordering::SeqCst), LARGE as u64);
        let copy = lab.path("new/copy");
        assert!(read(&copy) == all);
        assert_eq!((fetched.bytes, fetched.had), (LARGE as u64, 0));
        assert_eq!(fetched.sha256, Some(sha256(&all)));
        assert_eq!(fetched.worker.expect("somebody").as_str(), "w1");
        let (from, to) = (std::fs::metadata(shared).expect("there"), std::fs::metadata(&copy).expect("there"));
        assert_eq!((from.mtime(), from.mode()), (to.mtime(), to.mode()));
        assert_eq!(lab.names("new"), ["copy"]);
        let once = sent(&way);
        let again = fetch(&client, &lab, "new/copy").await.expect("it is there");
        assert_eq!((again.worker, again.had, again.sha256), (None, LARGE as u64, Some(sha256(&all))));
        assert!(sent(&way) < once + 1000, "only that it is the same");
        client.stop().await;
    });
}

#[test]
fn small_and_empty_files_arrive() {
    runtime().block_on(async {
        let mut lab = Lab::new();
        for (number, bytes) in [0, 1, 4096, 131_000, 131_072, 131_073].into_iter().enumerate() {
            lab.share("w1", &format!("f{number}"), &content(bytes));
        }
        lab.worker("w1").await;
        let client = lab.client("c").await;
        for (number, bytes) in [0, 1, 4096, 131_000, 131_072, 131_073].into_iter().enumerate() {
            let (url, copy) = (format!("nf://f{number}"), lab.path(&format!("copy{number}")));
            let fetched = client.fetch_file(&url, &copy, PATIENCE, |_, _| {}).await.expect("it is fetched");
            assert_eq!((fetched.bytes, read(&copy)), (bytes as u64, content(bytes)));
        }
        client.stop().await;
    });
}

#[test]
fn what_is_lost_or_changed_on_the_way_is_found_and_fetched_again_and_nothing_else() {
    runtime().block_on(async {
        for fate in [Fate::Lost, Fate::Changed] {
            let mut lab = Lab::new();
            lab.share("w1", "d/f", &content(LARGE));
            let way = lab.worker("w1").await;
            way.plan(60, fate);
            way.plan(130, fate);
            let client = lab.client("c").await;
            fetch(&client, &lab, "copy").await.unwrap_or_else(|error| panic!("{fate:?}: {error}"));
            assert!(read(&lab.path("copy")) == content(LARGE), "{fate:?}");
            assert!(way.streams.load(Ordering::SeqCst) > 160, "it happened");
            assert!(sent(&way) < LARGE as u64 + 2 * UNDER_WAY, "{fate:?}: {} bytes were sent", sent(&way));
            client.stop().await;
        }
    });
}

#[test]
fn a_worker_that_dies_is_replaced_by_another_one_in_the_same_transfer() {
    runtime().block_on(async {
        let mut lab = Lab::new();
        lab.share("w1", "d/f", &content(LARGE));
        let first = lab.worker("w1").await;
        first.plan(80, Fate::Last);
        let client = lab.client("c").await;
        let fetching = begin(&client, &lab, 0);
        eventually("the first has died", async || first.is_dead.load(Ordering::SeqCst)).await;
        lab.share("w2", "d/f", &content(LARGE));
        let second = lab.worker("w2").await;
        let fetched = fetching.task.await.expect("no panic").expect("it is fetched");
        assert_eq!(fetched.worker.expect("somebody").as_str(), "w2");
        assert!(read(&lab.path("copy")) == content(LARGE));
        let came = 80 * (128 << 10) - UNDER_WAY;
        assert!(sent(&second) < LARGE as u64 - came + 1_000_000, "{} bytes were sent", sent(&second));
        client.stop().await;
    });
}

#[test]
fn the_next_process_goes_on_where_one_was_killed() {
    runtime().block_on(async {
        let mut lab = Lab::new();
        lab.share("w1", "d/f", &content(LARGE));
        let way = lab.worker("w1").await;
        let client = lab.client("c").await;
        let fetching = begin(&client, &lab, LARGE as u64 / 2);
        fetching.came.notified().await;
        // Its state is gone, and what it wrote is there.
        fetching.task.abort();
        drop(fetching.task.await);
        client.stop().await;
        // The thread that wrote has still to see that.
        eventually("nobody writes it", async || {
            std::fs::File::open(lab.path(".copy.part")).is_ok_and(|part| part.try_lock().is_ok())
        })
        .await;
        let before = sent(&way);
        let next = lab.client("next").await;
        let fetched = fetch(&next, &lab, "copy").await.expect("it is fetched");
        assert!(read(&lab.path("copy")) == content(LARGE));
        assert!(fetched.had > LARGE as u64 / 2 - UNDER_WAY, "{fetched:?}");
        let more = sent(&way) - before;
        assert!(more < LARGE as u64 - fetched.had + UNDER_WAY, "{more} bytes were sent after {}", fetched.had);
        assert!(!lab.names(".").iter().any(|name| name.ends_with(".part")), "{:?}", lab.names("."));
        next.stop().await;
    });
}

#[test]
fn a_transfer_outlives_its_broker() {
    runtime().block_on(async {
        let mut lab = Lab::new();
        lab.share("w1", "d/f", &content(LARGE));
        let way = lab.worker("w1").await;
        let client = lab.client("c").await;
        let fetching = begin(&client, &lab, LARGE as u64 / 3);
        fetching.came.notified().await;
        lab.restart_broker().await;
        fetching.task.await.expect("no panic").expect("it is fetched");
        assert!(read(&lab.path("copy")) == content(LARGE));
        assert!(sent(&way) < LARGE as u64 + 2 * UNDER_WAY, "{} bytes were sent", sent(&way));
        client.stop().await;
    });
}

#[test]
fn a_newer_version_is_fetched_whole_although_a_part_of_an_older_one_is_there() {
    runtime().block_on(async {
        let mut lab = Lab::new();
        let all = content(1_000_000);
        lab.share("w1", "d/f", &all);
        lab.worker("w1").await;
        let client = lab.client("c").await;
        std::fs::write(lab.path(".copy.part"), vec![7; 700_000]).expect("written");
        std::fs::write(lab.path("copy"), vec![8; all.len()]).expect("written");
        let fetched = fetch(&client, &lab, "copy").await.expect("it is fetched");
        assert_eq!((fetched.had, read(&lab.path("copy")) == all), (0, true));
        // As long as the one that is shared, and another one.
        std::fs::write(lab.path("other"), vec![8; all.len()]).expect("written");
        let fetched = fetch(&client, &lab, "other").await.expect("it is fetched");
        assert_eq!((fetched.had, read(&lab.path("other")) == all), (0, true));
        client.stop().await;
    });
}

#[test]
fn a_worker_that_does_not_answer_costs_nothing_where_another_has_the_file_and_a_second_where_none_has() {
    runtime().block_on(async {
        let mut lab = Lab::new();
        let silent = lab.worker("w1").await;
        silent.is_dead.store(true, Ordering::SeqCst);
        lab.share("w2", "d/f", b"here");
        lab.worker("w2").await;
        let client = lab.client("c").await;
        let began = Instant::now();
        fetch(&client, &lab, "copy").await.expect("it is fetched");
        let missing = client.fetch_file("nf://nowhere", &lab.path("x"), PATIENCE, |_, _| {}).await;
        let error = missing.expect_err("nobody has it").to_string();
        assert!(error.contains("worker w1 has not answered"), "{error}");
        assert!(began.elapsed() < PATIENCE / 2, "it costs a second and not the time-out: {:?}", began.elapsed());
        client.stop().await;
    });
}

#[test]
fn what_cannot_be_fetched_says_why_and_leaves_nothing() {
    runtime().block_on(async {
        let mut lab = Lab::new();
        lab.share("w1", "d/f", b"here");
        lab.worker("w1").await;
        let client = lab.client("c").await;
        std::fs::create_dir(lab.path("folder")).expect("made");
        for (url, target, expected) in [
            ("http://d/f", "x", "is no file URL"),
            ("nf://d/nowhere", "x", "no file sharing worker has 'nf://d/nowhere': 'nf://d/nowhere' file not found"),
            ("nf://d", "x", "it is a directory"),
            ("nf://../d/f", "x", "invalid URL path"),
            ("nf://d/f", "folder", "not a regular file"),
        ] {
            let error =
                client.fetch_file(url, &lab.path(target), PATIENCE, |_, _| {}).await.expect_err(url).to_string();
            assert!(error.contains(expected), "{url}: {error}");
        }
        assert!(!lab.path("x").exists() && !lab.names(".").iter().any(|name| name.ends_with(".part")));
        symlink("real", lab.path("link")).expect("linked");
        std::fs::write(lab.path("real"), "old").expect("written");
        fetch(&client, &lab, "link").await.expect("it is fetched");
        assert_eq!(read(&lab.path("real")), b"here");
        assert!(std::fs::symlink_metadata(lab.path("link")).expect("there").is_symlink());
        client.stop().await;
    });
}

#[test]
fn a_file_that_somebody_writes_meanwhile_is_fetched_when_it_stays_the_same() {
    runtime().block_on(async {
        let mut lab = Lab::new();
        lab.share("w1", "d/f", &content(LARGE));
        let way = lab.worker("w1").await;
        let client = lab.client("c").await;
        let fetching = begin(&client, &lab, 0);
        eventually("it is under way", async || way.streams.load(Ordering::SeqCst) > 5).await;
        let newer: Vec<u8> = content(LARGE).into_iter().rev().collect();
        lab.share("w1", "d/f", &newer);
        fetching.task.await.expect("no panic").expect("it is fetched");
        let copy = read(&lab.path("copy"));
        assert!(copy == newer || copy == content(LARGE), "half of one and half of the other");
        tokio::time::timeout(Duration::from_secs(5), client.stop()).await.expect("it ends");
    });
}

#[test]
fn what_came_before_is_not_given_up_for_another_version_as_long_as_somebody_has_the_rest() {
    runtime().block_on(async {
        let mut lab = Lab::new();
        let all = content(LARGE);
        for name in ["w1", "w2"] {
            lab.share(name, "d/f", &all);
        }
        let (first, second) = (lab.worker("w1").await, lab.worker("w2").await);
        let client = lab.client("c").await;
        first.plan(60, Fate::Last);
        second.plan(60, Fate::Last);
        // One of them sends the beginning and dies. Its file is then found at one worker in five.
        let Fetching { task, came } = begin(&client, &lab, 1 << 20);
        came.notified().await;
        for name in ["x1", "x2", "x3", "x4"] {
            lab.share(name, "d/f", &vec![7; LARGE / 2]);
            lab.worker(name).await;
        }
        lab.share("y", "d/f", &all);
        let last = lab.worker("y").await;
        let fetched = task.await.expect("it ends").expect("it is fetched");
        assert!(read(&lab.path("copy")) == all, "{:?} has something else", fetched.worker);
        assert!(sent(&last) < LARGE as u64 + (1 << 20), "once at most");
        client.stop().await;
    });
}

#[test]
fn a_file_that_is_removed_meanwhile_is_not_asked_for_until_the_time_is_over() {
    runtime().block_on(async {
        let mut lab = Lab::new();
        lab.share("w1", "d/f", &content(LARGE));
        let way = lab.worker("w1").await;
        // Further than the window lets it be when the first of it is here.
        way.plan(100, Fate::Lost);
        let shared = lab.path("w1/d/f");
        let client = lab.client("c").await;
        let tell = |bytes, _| {
            if bytes > 1 << 20 {
                std::fs::remove_file(&shared).ok();
            }
        };
        let refused = client.fetch_file("nf://d/f", &lab.path("copy"), PATIENCE, tell).await.expect_err("it is gone");
        assert!(matches!(refused, FetchError::Broken { .. }), "{refused}");
        client.stop().await;
    });
}

#[derive(Deserialize, JsonSchema)]
#[allow(dead_code, reason = "what clients say and nobody here reads")]
struct Url {
    url: String,
    #[serde(default)]
    offset: u64,
    #[serde(default)]
    chunk_size: u64,
}

#[test]
fn who_has_taken_the_question_is_waited_for_although_another_one_has_nothing() {
    runtime().block_on(async {
        let mut lab = Lab::new();
        // As workers of Python NorFab do: they read the whole file for its hash.
        let slow = Service::new(ServiceName::parse("filesharing").expect("a name"))
            .task(Task::new("file_details", "", async |_: TaskContext, _: Url| {
                tokio::time::sleep(GRACE * 2).await;
                Ok(json!({ "md5hash": "900150983cd24fb0d6963f7d28e17f72", "size_bytes": 3, "exists": true }))
            }))
            .task(Task::blocking("fetch_file", "", |context: TaskContext, _: Url| {
                context.stream_blocking("abc".into())?;
                Ok(json!(true))
            }));
        lab.worker_of("slow", slow).await;
        lab.share("w1", "other", b"");
        lab.worker("w1").await;
        let client = lab.client("c").await;
        let fetched = fetch(&client, &lab, "copy").await.expect("it is fetched");
        assert_eq!((fetched.worker.expect("somebody").as_str(), read(&lab.path("copy"))), ("slow", b"abc".to_vec()));
        client.stop().await;
    });
}
