//! What a synchronization removes here, and when it does not.

use norfab_fabric::client::ClientHandle;
use norfab_fabric::client::files::{SyncOptions, Synced};
use norfab_protocol::target::Target;

use crate::lab::{Lab, PATIENCE, runtime};
use crate::workers::{Manner, Ours, python};

async fn sync(client: &ClientHandle, lab: &Lab, workers: Target) -> Synced {
    let options = SyncOptions { workers, delete: true, dry_run: false, checksum: false, timeout: PATIENCE };
    client.sync("nf://d", &lab.path("copy"), options, |_| {}).await.expect("it is synchronized")
}

/// A file here that no worker has.
fn mine(lab: &Lab) {
    std::fs::create_dir_all(lab.path("copy")).expect("made");
    std::fs::write(lab.path("copy/mine"), "mine").expect("written");
}

fn assert_kept(lab: &Lab, synced: &Synced, why: &str) {
    assert!(lab.path("copy/mine").exists() && synced.deleted.is_empty(), "{synced:?}");
    let told = synced.not_deleted.as_deref().unwrap_or_default();
    assert!(told.contains(why), "{told}");
}

#[test]
fn nothing_is_removed_where_several_workers_have_the_folder_and_none_is_named() {
    runtime().block_on(async {
        let mut lab = Lab::new();
        lab.share("w1", "d/a", b"of w1");
        lab.share("w2", "d/b", b"of w2");
        lab.share("w3", "other", b"of w3");
        for name in ["w1", "w2", "w3"] {
            lab.worker(name).await;
        }
        let client = lab.client("c").await;
        mine(&lab);
        for _ in 0..5 {
            let synced = sync(&client, &lab, Target::All).await;
            assert_kept(&lab, &synced, "name one with --workers");
            let told = synced.not_deleted.expect("why");
            assert!(told.contains("w1") && told.contains("w2") && !told.contains("w3"), "{told}");
        }
        assert_kept(&lab, &sync(&client, &lab, Target::Any).await, "name one with --workers");
        for (worker, names) in [("w2", ["b"]), ("w1", ["a"])] {
            let synced = sync(&client, &lab, Target::from_words(worker)).await;
            assert_eq!((synced.worker.as_str(), synced.not_deleted), (worker, None));
            assert_eq!(lab.names("copy"), names);
        }
        client.stop().await;
    });
}

#[test]
fn nothing_is_removed_where_a_worker_is_silent_that_may_have_the_folder() {
    runtime().block_on(async {
        let mut lab = Lab::new();
        lab.worker_of("w1", Ours { stats: Manner::hangs_after(0), ..Ours::default() }.service()).await;
        lab.share("w2", "d/a", b"of w2");
        lab.worker("w2").await;
        let client = lab.client("c").await;
        mine(&lab);
        assert_kept(&lab, &sync(&client, &lab, Target::All).await, "w2, w1");
        client.stop().await;
    });
}

#[test]
fn nothing_is_removed_where_something_did_not_come() {
    runtime().block_on(async {
        let mut lab = Lab::new();
        let files = Ours::with(&[("a", b"1"), ("b", b"2")]);
        lab.worker_of("w1", Ours { kept: vec!["b".to_owned()], ..files }.service()).await;
        let client = lab.client("c").await;
        mine(&lab);
        let synced = sync(&client, &lab, Target::All).await;
        assert_eq!((synced.fetched.as_slice(), synced.failed.len()), (&["a".to_owned()][..], 1));
        assert_kept(&lab, &synced, "1 files did not come");
        client.stop().await;
    });
}

#[test]
fn nothing_is_removed_by_what_a_worker_of_python_tells() {
    runtime().block_on(async {
        let mut lab = Lab::new();
        lab.worker_of("w1", python(b"content".to_vec(), None)).await;
        let client = lab.client("c").await;
        mine(&lab);
        let synced = sync(&client, &lab, Target::from_words("w1")).await;
        assert_eq!((synced.fetched.as_slice(), synced.failed.len()), (&["f".to_owned()][..], 0), "{synced:?}");
        assert_kept(&lab, &synced, "Python NorFab");
        client.stop().await;
    });
}

#[test]
fn what_every_worker_hides_stays_here_in_all_forms_of_its_name() {
    runtime().block_on(async {
        let mut lab = Lab::new();
        lab.share("w1", "d/a", b"content");
        lab.worker("w1").await;
        let client = lab.client("c").await;
        mine(&lab);
        let hidden = [".vimrc", "\u{200b}.vimrc", "broker.key_secret", "broker.key_secret.bak", "x.key_secret~"];
        for name in hidden {
            std::fs::write(lab.path("copy").join(name), "mine").expect("written");
        }
        let synced = sync(&client, &lab, Target::All).await;
        assert_eq!((synced.deleted, synced.not_deleted), (vec!["mine".to_owned()], None));
        for name in hidden {
            assert!(lab.path("copy").join(name).exists(), "{name:?}");
        }
        client.stop().await;
    });
}
