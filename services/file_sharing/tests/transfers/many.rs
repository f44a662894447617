//! Fetching many files.

use std::sync::atomic::Ordering;

use norfab_fabric::client::FetchError;
use norfab_fabric::client::files::{FileTarget, FilesProgress};

use crate::lab::{Fate, Lab, PATIENCE, content, read, runtime};

fn wanted(lab: &Lab, name: &str) -> FileTarget {
    FileTarget { url: format!("nf://{name}"), target: lab.path("copies").join(name) }
}

#[test]
fn many_files_arrive_and_each_that_does_not_says_why() {
    runtime().block_on(async {
        let mut lab = Lab::new();
        for number in 0..300 {
            lab.share("w1", &format!("d/f{number}"), &content(number * 7));
        }
        lab.share("w1", "large", &content(3_000_000));
        let way = lab.worker("w1").await;
        let client = lab.client("c").await;
        let mut files: Vec<FileTarget> = (0..300).map(|number| wanted(&lab, &format!("d/f{number}"))).collect();
        files.extend([wanted(&lab, "large"), wanted(&lab, "nowhere")]);
        files.push(FileTarget { url: "nf://d".to_owned(), target: lab.path("x") });
        files.push(FileTarget { url: "http://x".to_owned(), target: lab.path("x") });
        files.push(FileTarget { url: "git://r/x".to_owned(), target: lab.path("x") });
        std::fs::create_dir_all(lab.path("copies/d/f7")).expect("made");
        let mut last = FilesProgress::default();
        let outcomes = client.fetch_files(files.clone(), PATIENCE, |now| last = now).await;
        assert_eq!(outcomes.len(), files.len());
        for (number, outcome) in outcomes.iter().enumerate().take(301).filter(|(number, _)| *number != 7) {
            let fetched = outcome.as_ref().unwrap_or_else(|error| panic!("{number}: {error}"));
            assert_eq!(fetched.path, files[number].target);
        }
        for number in (0..300).filter(|number| *number != 7) {
            assert_eq!(read(&files[number].target), content(number * 7));
        }
        assert!(read(&lab.path("copies/large")) == content(3_000_000));
        let failed: Vec<&FetchError> = outcomes.iter().filter_map(|outcome| outcome.as_ref().err()).collect();
        let texts: Vec<String> = failed.iter().map(ToString::to_string).collect();
        assert_eq!(failed.len(), 5, "{texts:?}");
        for (text, expected) in texts.iter().zip([
            "not a regular file",
            "'nf://nowhere' file not found",
            "it is a directory",
            "is no file URL",
            "no file sharing worker has 'git://r/x'",
        ]) {
            assert!(text.contains(expected), "{text}");
        }
        assert_eq!((last.files_done, last.files), (300, 305));
        assert_eq!(last.bytes_done, last.bytes);
        assert!(way.streams.load(Ordering::SeqCst) < 60, "many files share a message");

        let streams = way.bytes.load(Ordering::SeqCst);
        let again = client.fetch_files(vec![wanted(&lab, "large"), wanted(&lab, "d/f9")], PATIENCE, |_| {}).await;
        for outcome in again {
            assert_eq!(outcome.expect("it is there").worker, None);
        }
        assert!(way.bytes.load(Ordering::SeqCst) < streams + 1000, "only that they are the same");
        client.stop().await;
    });
}

#[test]
fn several_workers_send_at_the_same_time_and_others_go_on_for_one_that_dies() {
    runtime().block_on(async {
        let mut lab = Lab::new();
        for number in 0..1000 {
            for worker in ["w1", "w2", "w3"] {
                let name = format!("d/f{number}");
                lab.share(worker, &name, &content(5000 + number));
                let file = std::fs::File::options().append(true).open(lab.path(worker).join(&name)).expect("there");
                file.set_modified(std::time::UNIX_EPOCH + std::time::Duration::from_secs(1_000_000)).expect("set");
            }
        }
        let mut ways = Vec::new();
        for worker in ["w1", "w2", "w3"] {
            ways.push(lab.worker(worker).await);
        }
        ways[1].plan(3, Fate::Last);
        let client = lab.client("c").await;
        let files: Vec<FileTarget> = (0..1000).map(|number| wanted(&lab, &format!("d/f{number}"))).collect();
        let outcomes = client.fetch_files(files.clone(), PATIENCE, |_| {}).await;
        let mut senders = std::collections::BTreeMap::new();
        for (number, outcome) in outcomes.into_iter().enumerate() {
            let fetched = outcome.unwrap_or_else(|error| panic!("{number}: {error}"));
            *senders.entry(fetched.worker.expect("somebody").to_string()).or_insert(0) += 1;
            assert!(read(&files[number].target) == content(5000 + number), "{number}");
        }
        assert!(ways[1].is_dead.load(Ordering::SeqCst));
        assert!(senders["w1"] > 50 && senders["w3"] > 50, "{senders:?}");
        client.stop().await;
    });
}
