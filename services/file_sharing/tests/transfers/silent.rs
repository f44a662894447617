//! Workers that are gone, or say nothing more: they cost seconds, and others take their place.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use norfab_fabric::client::files::SyncOptions;
use norfab_fabric::client::{ClientHandle, FetchError, Fetched};
use norfab_protocol::target::Target;

use crate::lab::{Lab, content, read, runtime};
use crate::workers::{Manner, Ours, python};

/// The time that a command has unless it is given another one.
const LONG: Duration = Duration::from_secs(600);

const PLAIN: SyncOptions =
    SyncOptions { workers: Target::All, delete: false, dry_run: false, checksum: false, timeout: LONG };

/// A moment longer than another worker takes.
const MOMENT: Duration = Duration::from_millis(300);

async fn fetch(client: &ClientHandle, lab: &Lab, url: &str) -> Result<Fetched, FetchError> {
    client.fetch_file(url, &lab.path("copy"), LONG, |_, _| {}).await
}

fn assert_seconds(began: Instant) {
    assert!(began.elapsed() < Duration::from_secs(50), "{:?}", began.elapsed());
}

#[test]
fn a_worker_that_hangs_while_it_lists_is_left_for_another_one() {
    runtime().block_on(async {
        let mut lab = Lab::new();
        lab.worker_of("hangs", Ours { lists: Manner::hangs_after(0), ..Ours::with(&[("a", b"1")]) }.service()).await;
        lab.worker_of("w1", Ours { stats: Manner::slow(MOMENT), ..Ours::with(&[("a", b"1")]) }.service()).await;
        let client = lab.client("c").await;
        let began = Instant::now();
        let synced = client.sync("nf://d", &lab.path("copy"), PLAIN, |_| {}).await.expect("it is synchronized");
        assert_eq!((synced.worker.as_str(), synced.fetched.len()), ("w1", 1));
        assert_seconds(began);
        client.stop().await;
    });
}

#[test]
fn a_worker_that_hangs_while_it_is_asked_what_it_has_of_the_same_is_left_out() {
    runtime().block_on(async {
        let mut lab = Lab::new();
        lab.worker_of("w1", Ours::with(&[("a", b"1")]).service()).await;
        let hangs = Manner { slow: MOMENT, hangs_after: Some(1) };
        lab.worker_of("hangs", Ours { stats: hangs, ..Ours::with(&[("a", b"1")]) }.service()).await;
        let client = lab.client("c").await;
        let began = Instant::now();
        let synced = client.sync("nf://d", &lab.path("copy"), PLAIN, |_| {}).await.expect("it is synchronized");
        assert_eq!((synced.worker.as_str(), synced.fetched.len()), ("w1", 1));
        assert_seconds(began);
        client.stop().await;
    });
}

#[test]
fn a_worker_that_needs_more_than_a_second_is_waited_for_although_another_has_nothing() {
    runtime().block_on(async {
        let mut lab = Lab::new();
        lab.share("w1", "other", b"");
        lab.worker("w1").await;
        let slow = Ours { stats: Manner::slow(Duration::from_millis(2500)), ..Ours::with(&[("a", b"1")]) };
        lab.worker_of("slow", slow.service()).await;
        let client = lab.client("c").await;
        let synced = client.sync("nf://d", &lab.path("copy"), PLAIN, |_| {}).await.expect("it is synchronized");
        assert_eq!((synced.worker.as_str(), synced.fetched.len()), ("slow", 1));
        client.stop().await;
    });
}

#[test]
fn a_worker_that_is_gone_costs_seconds_where_it_is_the_only_one_or_the_others_have_nothing() {
    runtime().block_on(async {
        let mut lab = Lab::new();
        let gone = lab.worker("gone").await;
        gone.is_dead.store(true, Ordering::SeqCst);
        let client = lab.client("c").await;
        for _ in 0..2 {
            let began = Instant::now();
            let error = fetch(&client, &lab, "nf://d/f").await.expect_err("nobody answers");
            assert!(matches!(error, FetchError::Silent { .. }) && error.to_string().contains("worker gone"), "{error}");
            let error = client.sync("nf://d", &lab.path("folder"), PLAIN, |_| {}).await.expect_err("nobody answers");
            assert!(matches!(error, FetchError::Silent { .. }) && error.to_string().contains("worker gone"), "{error}");
            assert_seconds(began);
            lab.share("w1", "other", b"");
            lab.worker("w1").await;
        }
        client.stop().await;
    });
}

#[test]
fn a_file_of_a_git_remote_comes_from_no_worker_that_does_not_know_the_remote() {
    runtime().block_on(async {
        let mut lab = Lab::new();
        let (right, wrong) = (content(5000), content(100));
        let knows = Ours::with(&[("f", &right)]);
        let git = Some("nf://d/f".to_owned());
        lab.worker_of("breaks", Ours { breaks: Some(1000), git, ..knows.clone() }.service()).await;
        lab.worker_of("other", Ours::with(&[("f", &wrong)]).service()).await;
        let client = lab.client("c").await;
        let error = fetch(&client, &lab, "git://r/f").await.expect_err("nobody has the rest");
        assert!(error.to_string().contains("file not found"), "{error}");
        assert!(!lab.path("copy").exists());

        let elsewhere = Ours { git: Some("nf://d/moved".to_owned()), ..Ours::with(&[("moved", &right)]) };
        lab.worker_of("knows", elsewhere.service()).await;
        let fetched = fetch(&client, &lab, "git://r/f").await.expect("another one knows the remote");
        assert_eq!((fetched.worker.expect("somebody").as_str(), read(&lab.path("copy"))), ("knows", right));
        client.stop().await;
    });
}

#[test]
fn a_worker_of_python_that_hangs_is_replaced_by_one_that_has_the_same() {
    runtime().block_on(async {
        let mut lab = Lab::new();
        let whole = content(1_000_000);
        lab.worker_of("hangs", python(whole.clone(), Some(2))).await;
        let client = lab.client("c").await;
        let target = lab.path("copy");
        let (asked, came) = (client.clone(), std::sync::Arc::new(tokio::sync::Notify::new()));
        let tells = std::sync::Arc::clone(&came);
        let began = Instant::now();
        let tell = move |bytes, _| {
            if bytes > 500_000 {
                tells.notify_one();
            }
        };
        let fetching = tokio::spawn(async move { asked.fetch_file("nf://d/f", &target, LONG, tell).await });
        came.notified().await;
        lab.worker_of("another", python(content(999_999), None)).await;
        lab.worker_of("same", python(whole.clone(), None)).await;
        let fetched = fetching.await.expect("no panic").expect("it is fetched");
        assert_eq!((fetched.worker.expect("somebody").as_str(), read(&lab.path("copy")) == whole), ("same", true));
        assert_seconds(began);
        client.stop().await;
    });
}
