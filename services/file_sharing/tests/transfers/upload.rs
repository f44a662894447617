//! Uploading one file.

use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use norfab_fabric::client::{ClientHandle, JobSpec, Upload, UploadError, Uploaded};
use norfab_protocol::client::JobUpdate;
use norfab_protocol::target::Target;
use norfab_protocol::{Identity, ServiceName, TaskName};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use tokio::sync::Notify;
use tokio::task::JoinHandle;

use crate::lab::{Fate, Lab, PATIENCE, Way, content, eventually, read, runtime};

/// Bytes of a file that takes many messages.
const LARGE: usize = 20_000_000;

/// What of a transfer may be sent twice: what is under way when it breaks off.
const UNDER_WAY: u64 = 5 << 20;

pub fn allowed() -> Value {
    json!({ "uploads": { "folder": "incoming" } })
}

pub fn upload(lab: &Lab, from: &str, url: &str) -> Upload {
    let (path, url) = (lab.path(from), url.to_owned());
    Upload { path, url, worker: None, overwrite: false, timeout: PATIENCE }
}

pub async fn send(client: &ClientHandle, lab: &Lab, from: &str, url: &str) -> Result<Uploaded, UploadError> {
    client.send_file(&upload(lab, from, url), |_, _| {}).await
}

/// A transfer that goes on beside the test, and what says that so many bytes are there.
struct Sending {
    task: JoinHandle<Result<Uploaded, UploadError>>,
    came: Arc<Notify>,
}

fn begin(client: &ClientHandle, upload: Upload, bytes: u64) -> Sending {
    let client = client.clone();
    let came = Arc::new(Notify::new());
    let tells = Arc::clone(&came);
    let task = tokio::spawn(async move {
        let tell = |so_far, _| {
            if so_far > bytes {
                tells.notify_one();
            }
        };
        client.send_file(&upload, tell).await
    });
    Sending { task, came }
}

fn sent(way: &Way) -> u64 {
    way.bytes.load(Ordering::SeqCst)
}

fn sha256(content: &[u8]) -> String {
    Sha256::digest(content).iter().map(|byte| format!("{byte:02x}")).collect()
}

#[test]
fn a_file_arrives_with_its_hash_and_time_and_is_not_sent_twice() {
    runtime().block_on(async {
        let mut lab = Lab::new();
        let all = content(LARGE);
        std::fs::write(lab.path("f"), &all).expect("written");
        std::fs::set_permissions(lab.path("f"), std::fs::Permissions::from_mode(0o4777)).expect("changed");
        lab.worker_with("w1", allowed()).await;
        let (client, way) = lab.client_over("c").await;
        let seen = Arc::new(AtomicU64::new(0));
        let last = Arc::clone(&seen);
        let upload = upload(&lab, "f", "nf://incoming/new/deep/f");
        let tell = move |bytes, size| {
            assert!(bytes <= size && size == LARGE as u64, "{bytes} of {size}");
            assert!(last.fetch_max(bytes, Ordering::SeqCst) <= bytes, "it goes back");
        };
        let uploaded = client.send_file(&upload, tell).await.expect("it is sent");
        assert_eq!(seen.load(Ordering::SeqCst), LARGE as u64);
        let copy = lab.path("w1/incoming/new/deep/f");
        assert!(read(&copy) == all);
        let expected = Uploaded {
            url: "nf://incoming/new/deep/f".to_owned(),
            bytes: LARGE as u64,
            had: 0,
            sha256: sha256(&all),
            worker: Identity::parse("w1").expect("a name"),
            was_there: false,
            replaced: false,
        };
        assert_eq!(uploaded, expected);
        let (from, to) = (std::fs::metadata(lab.path("f")).expect("there"), std::fs::metadata(&copy).expect("there"));
        assert_eq!((from.mtime(), 0o755), (to.mtime(), to.mode() & 0o7777), "no setuid, and nobody else writes it");
        assert_eq!(lab.names("w1/incoming/new/deep"), ["f"]);
        let once = sent(&way);
        let again = client.send_file(&upload, |_, _| {}).await.expect("it is there");
        assert_eq!(again, Uploaded { had: LARGE as u64, was_there: true, ..expected });
        assert!(sent(&way) < once + 1000, "only that it is the same");
        // It can be fetched as any other.
        let fetched = client.fetch_file("nf://incoming/new/deep/f", &lab.path("back"), PATIENCE, |_, _| {}).await;
        assert_eq!(fetched.expect("it is fetched").sha256, Some(sha256(&all)));
        client.stop().await;
    });
}

#[test]
fn small_and_empty_files_arrive() {
    runtime().block_on(async {
        let mut lab = Lab::new();
        lab.worker_with("w1", allowed()).await;
        let client = lab.client("c").await;
        for bytes in [0, 1, 4096, 131_000, 131_072, 131_073] {
            let name = format!("f{bytes}");
            std::fs::write(lab.path(&name), content(bytes)).expect("written");
            let uploaded = send(&client, &lab, &name, &format!("nf://incoming/{name}")).await.expect("it is sent");
            assert_eq!(
                (uploaded.bytes, read(&lab.path(&format!("w1/incoming/{name}")))),
                (bytes as u64, content(bytes))
            );
        }
        client.stop().await;
    });
}

#[test]
fn what_is_lost_or_changed_on_the_way_is_found_and_sent_again_and_nothing_else() {
    runtime().block_on(async {
        for fate in [Fate::Lost, Fate::Changed] {
            let mut lab = Lab::new();
            std::fs::write(lab.path("f"), content(LARGE)).expect("written");
            lab.worker_with("w1", allowed()).await;
            let (client, way) = lab.client_over("c").await;
            way.plan(60, fate);
            way.plan(130, fate);
            send(&client, &lab, "f", "nf://incoming/f").await.unwrap_or_else(|error| panic!("{fate:?}: {error}"));
            assert!(read(&lab.path("w1/incoming/f")) == content(LARGE), "{fate:?}");
            assert!(way.streams.load(Ordering::SeqCst) > 155, "it happened");
            assert!(sent(&way) < LARGE as u64 + 2 * UNDER_WAY, "{fate:?}: {} bytes were sent", sent(&way));
            client.stop().await;
        }
    });
}

#[test]
fn the_next_process_goes_on_where_one_was_killed() {
    runtime().block_on(async {
        let mut lab = Lab::new();
        std::fs::write(lab.path("f"), content(LARGE)).expect("written");
        lab.worker_with("w1", allowed()).await;
        let (client, way) = lab.client_over("c").await;
        let sending = begin(&client, upload(&lab, "f", "nf://incoming/f"), LARGE as u64 / 2);
        sending.came.notified().await;
        // Nothing of it arrives any more, and nobody has said good-bye.
        way.is_dead.store(true, Ordering::SeqCst);
        sending.task.abort();
        drop(sending.task.await);
        let (next, second) = lab.client_over("next").await;
        let began = Instant::now();
        let uploaded = send(&next, &lab, "f", "nf://incoming/f").await.expect("it is sent");
        assert!(began.elapsed() < Duration::from_secs(25), "{:?}", began.elapsed());
        assert!(read(&lab.path("w1/incoming/f")) == content(LARGE));
        assert!(uploaded.had > LARGE as u64 / 2 - UNDER_WAY, "{uploaded:?}");
        assert!(sent(&second) < LARGE as u64 - uploaded.had + UNDER_WAY, "{} bytes were sent", sent(&second));
        assert_eq!(lab.names("w1/incoming"), ["f"]);
        next.stop().await;
    });
}

#[test]
fn a_transfer_outlives_its_broker() {
    runtime().block_on(async {
        let mut lab = Lab::new();
        std::fs::write(lab.path("f"), content(LARGE)).expect("written");
        lab.worker_with("w1", allowed()).await;
        let (client, way) = lab.client_over("c").await;
        let sending = begin(&client, upload(&lab, "f", "nf://incoming/f"), LARGE as u64 / 3);
        sending.came.notified().await;
        lab.restart_broker().await;
        sending.task.await.expect("no panic").expect("it is sent");
        assert!(read(&lab.path("w1/incoming/f")) == content(LARGE));
        assert!(sent(&way) < LARGE as u64 + 2 * UNDER_WAY, "{} bytes were sent", sent(&way));
        client.stop().await;
    });
}

#[test]
fn a_transfer_outlives_its_worker() {
    runtime().block_on(async {
        let mut lab = Lab::new();
        std::fs::write(lab.path("f"), content(LARGE)).expect("written");
        lab.worker_with("w1", allowed()).await;
        let (client, way) = lab.client_over("c").await;
        let sending = begin(&client, upload(&lab, "f", "nf://incoming/f"), LARGE as u64 / 3);
        sending.came.notified().await;
        lab.stop_worker().await;
        lab.worker_with("w1", allowed()).await;
        let uploaded = sending.task.await.expect("no panic").expect("it is sent");
        assert!(read(&lab.path("w1/incoming/f")) == content(LARGE));
        assert!(sent(&way) < LARGE as u64 + 2 * UNDER_WAY, "{} bytes were sent", sent(&way));
        assert_eq!(uploaded.had, 0, "it began with nothing");
        client.stop().await;
    });
}

#[test]
fn another_version_is_sent_whole_although_a_part_of_an_older_one_is_there() {
    runtime().block_on(async {
        let mut lab = Lab::new();
        let all = content(1_000_000);
        std::fs::write(lab.path("f"), &all).expect("written");
        lab.share("w1", "incoming/.f.part", &vec![7; 1_200_000]);
        lab.worker_with("w1", allowed()).await;
        let client = lab.client("c").await;
        let uploaded = send(&client, &lab, "f", "nf://incoming/f").await.expect("it is sent");
        assert_eq!((uploaded.had, read(&lab.path("w1/incoming/f")) == all), (0, true));
        client.stop().await;
    });
}

#[test]
fn a_file_is_replaced_only_where_both_sides_want_that() {
    runtime().block_on(async {
        for (allows, wants) in [(false, false), (false, true), (true, false), (true, true)] {
            let mut lab = Lab::new();
            let inventory = json!({ "uploads": { "folder": "incoming", "overwrite": allows } });
            lab.share("w1", "incoming/shorter", b"old");
            lab.share("w1", "incoming/as_long", b"olden");
            lab.worker_with("w1", inventory).await;
            std::fs::write(lab.path("f"), b"newer").expect("written");
            let client = lab.client("c").await;
            for name in ["shorter", "as_long"] {
                let url = format!("nf://incoming/{name}");
                let upload = Upload { overwrite: wants, ..upload(&lab, "f", &url) };
                let uploaded = client.send_file(&upload, |_, _| {}).await;
                let there = read(&lab.path(&format!("w1/incoming/{name}")));
                if allows && wants {
                    assert!(uploaded.expect("it is sent").replaced);
                    assert_eq!(there, b"newer");
                } else {
                    let error = uploaded.expect_err("refused").to_string();
                    assert!(error.contains("is there already, with other content"), "{error}");
                    assert!(there.starts_with(b"old"));
                }
            }
            assert_eq!(lab.names("w1/incoming"), ["as_long", "shorter"]);
            client.stop().await;
        }
    });
}

#[test]
fn of_two_uploads_to_one_place_the_second_waits_and_is_told_who_is_before_it() {
    runtime().block_on(async {
        let mut lab = Lab::new();
        let (one, other) = (content(LARGE), vec![9; LARGE - 1]);
        std::fs::write(lab.path("one"), &one).expect("written");
        std::fs::write(lab.path("other"), &other).expect("written");
        lab.worker_with("w1", allowed()).await;
        let (first, way) = lab.client_over("first").await;
        let second = lab.client("second").await;
        let sending = begin(&first, upload(&lab, "one", "nf://incoming/f"), LARGE as u64 / 3);
        sending.came.notified().await;
        // The first one stands still, and another file does not take its place.
        way.is_dead.store(true, Ordering::SeqCst);
        let short = Upload { timeout: Duration::from_secs(5), ..upload(&lab, "other", "nf://incoming/f") };
        let error = second.send_file(&short, |_, _| {}).await.expect_err("somebody is before it").to_string();
        assert!(error.contains("client first is uploading 'nf://incoming/f'"), "{error}");
        assert_eq!(lab.names("w1/incoming"), [".f.part"]);
        // Its own goes on.
        way.is_dead.store(false, Ordering::SeqCst);
        sending.task.await.expect("no panic").expect("it is sent");
        assert!(read(&lab.path("w1/incoming/f")) == one);
        let error = send(&second, &lab, "other", "nf://incoming/f").await.expect_err("it is there").to_string();
        assert!(error.contains("is there already"), "{error}");
        // Both at once, with the same content: one is not sent, or goes on where the other was.
        let (a, b) = tokio::join!(
            send(&first, &lab, "one", "nf://incoming/both"),
            send(&second, &lab, "one", "nf://incoming/both")
        );
        assert!(a.is_ok() && b.is_ok(), "{a:?} {b:?}");
        assert!(read(&lab.path("w1/incoming/both")) == one);
        first.stop().await;
        second.stop().await;
    });
}

pub fn job(service: &str, task: &str, worker: &str, kwargs: Value) -> JobSpec {
    JobSpec {
        target: Target::list([&Identity::parse(worker).expect("a name")]),
        kwargs: kwargs.as_object().cloned().expect("an object"),
        timeout: PATIENCE,
        ..JobSpec::new(ServiceName::parse(service).expect("a name"), TaskName::parse(task).expect("a name"))
    }
}

#[test]
fn jobs_and_their_events_pass_while_a_file_is_sent() {
    runtime().block_on(async {
        let mut lab = Lab::new();
        std::fs::write(lab.path("f"), content(3 * LARGE)).expect("written");
        lab.worker_with("w1", allowed()).await;
        let client = lab.client("c").await;
        let sending = begin(&client, upload(&lab, "f", "nf://incoming/f"), 0);
        sending.came.notified().await;
        let mut slowest = Duration::ZERO;
        let mut jobs = 0;
        while !sending.task.is_finished() {
            let began = Instant::now();
            let report = client.run(job("filesharing", "list_files", "w1", json!({ "url": "nf://" }))).await;
            assert!(report.expect("taken").succeeded());
            slowest = slowest.max(began.elapsed());
            jobs += 1;
        }
        sending.task.await.expect("no panic").expect("it is sent");
        assert!(jobs > 1 && slowest < Duration::from_secs(2), "{jobs} jobs, the slowest took {slowest:?}");
        client.stop().await;
    });
}

#[test]
fn a_worker_that_says_nothing_is_sent_no_more_than_a_window() {
    runtime().block_on(async {
        let mut lab = Lab::new();
        std::fs::write(lab.path("f"), content(2 * LARGE)).expect("written");
        let worker = lab.worker_with("w1", allowed()).await;
        let (client, way) = lab.client_over("c").await;
        let sending = begin(&client, upload(&lab, "f", "nf://incoming/f"), 0);
        sending.came.notified().await;
        // It takes what comes and cannot say so: what is sent then lies on the way, as with one that takes nothing.
        worker.is_dead.store(true, Ordering::SeqCst);
        let before = sent(&way);
        let part = lab.path("w1/incoming/.f.part");
        eventually("what is under way has come", async || {
            let there = std::fs::metadata(&part).map_or(0, |part| part.len());
            tokio::time::sleep(Duration::from_millis(300)).await;
            std::fs::metadata(&part).is_ok_and(|part| part.len() == there)
        })
        .await;
        let more = sent(&way) - before;
        assert!(more < UNDER_WAY, "{more} bytes were sent that nobody had asked for");
        worker.is_dead.store(false, Ordering::SeqCst);
        sending.task.await.expect("no panic").expect("it goes on");
        assert!(read(&lab.path("w1/incoming/f")) == content(2 * LARGE));
        client.stop().await;
    });
}

#[test]
fn a_worker_that_takes_no_more_uploads_says_so_at_once_and_the_client_waits_for_its_turn() {
    runtime().block_on(async {
        let mut lab = Lab::new();
        std::fs::write(lab.path("f"), b"content").expect("written");
        lab.worker_with("w1", allowed()).await;
        let mut held = Vec::new();
        for number in 0..2 {
            let client = lab.client(&format!("holder{number}")).await;
            let kwargs = json!({ "url": format!("nf://incoming/{number}"), "size": 7 });
            let mut job = client.submit(job("filesharing", "take_file", "w1", kwargs)).await.expect("taken");
            loop {
                if let Some(JobUpdate::Stream(_)) = job.next().await {
                    break;
                }
            }
            held.push((client, job));
        }
        // Five jobs are what a worker runs: these are left to others.
        let (client, other) = (lab.client("c").await, lab.client("other").await);
        let (waits, mut waited) = tokio::sync::mpsc::unbounded_channel();
        let upload = upload(&lab, "f", "nf://incoming/f");
        let sending = {
            let upload = upload.clone();
            let client = client.clone();
            tokio::spawn(async move {
                client
                    .send_file_in_turn(&upload, |_, _| {}, |reason| waits.send(reason.to_owned()).expect("read"))
                    .await
            })
        };
        let reason = tokio::time::timeout(PATIENCE, waited.recv()).await.expect("in time").expect("a reason");
        assert_eq!(reason, "worker w1: 2 uploads are under way here: wait until one has ended");
        let short = Upload { timeout: Duration::from_millis(1500), ..upload };
        let error = other.send_file(&short, |_, _| {}).await.expect_err("no time").to_string();
        assert!(error.contains("within 1.5 s: worker w1: 2 uploads are under way here"), "{error}");
        let listed =
            client.run(job("filesharing", "list_files", "w1", json!({ "url": "nf://" }))).await.expect("taken");
        assert!(listed.succeeded());
        let (holder, first) = held.remove(0);
        first.cancel("holder0", None).await.expect("sent");
        sending.await.expect("no panic").expect("it is sent");
        assert_eq!(waited.recv().await, None, "it is said once");
        for client in [holder, held.remove(0).0, client, other] {
            client.stop().await;
        }
    });
}
