//! Trees that change while clients ask for what is in them.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use norfab_service::TaskMessage;
use rustix::fs::{CWD, FileType, Mode, mknodat};
use serde_json::{Value, json};

use super::{SECRET, SECRET_HASHES, TASKS, question};
use crate::tree::Tree;

/// How long a tree that changes is asked, at least.
const HAMMERING: Duration = Duration::from_millis(700);

/// How long it is asked where a busy machine shows one side of the change only.
const PATIENCE: Duration = Duration::from_secs(20);

/// Puts `one` and `other` in the place of `name` by turns until it is dropped. Each change is one step for others.
struct Swapper {
    stop: Arc<AtomicBool>,
    thread: Option<thread::JoinHandle<u64>>,
}

impl Swapper {
    fn start(name: &Path, other: &Path) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let (stopped, name, other) = (Arc::clone(&stop), name.to_owned(), other.to_owned());
        let thread = thread::spawn(move || {
            let mut swaps = 0;
            while !stopped.load(Ordering::Relaxed) {
                let exchange = rustix::fs::RenameFlags::EXCHANGE;
                rustix::fs::renameat_with(CWD, &name, CWD, &other, exchange).expect("exchanged");
                swaps += 1;
            }
            swaps
        });
        Self { stop, thread: Some(thread) }
    }

    fn swaps(mut self) -> u64 {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.take().expect("running").join().expect("no panic")
    }
}

/// Asks for `url` for a while, until both sides of the change were seen, and gives all that was sent or told.
async fn hammer(tree: &Tree, url: &str) -> Vec<(Value, Vec<TaskMessage>)> {
    let began = Instant::now();
    let mut answers = Vec::new();
    loop {
        let seen = |failed: bool| answers.iter().any(|(result, _): &(Value, _)| result["failed"] == json!(failed));
        let enough = if seen(true) && seen(false) { HAMMERING } else { PATIENCE };
        if began.elapsed() > enough {
            return answers;
        }
        for task in TASKS {
            answers.push(tree.run_and_listen(task.name(), question(task, url)).await);
        }
    }
}

fn assert_nothing_leaks(answers: &[(Value, Vec<TaskMessage>)], secret_names: &str) {
    for (result, messages) in answers {
        for message in messages {
            if let TaskMessage::Stream(bytes) = message {
                assert!(!bytes.windows(SECRET.len()).any(|window| window == SECRET.as_bytes()), "{message:?}");
            }
        }
        let told = result["result"].to_string();
        let is_secret = |text: &&str| told.contains(*text);
        assert!(!SECRET_HASHES.iter().any(is_secret) && !told.contains(secret_names), "{result}");
    }
    // The test looked at both sides of the change.
    assert!(answers.iter().any(|(result, _)| result["failed"] == json!(true)));
    assert!(answers.iter().any(|(result, _)| result["failed"] == json!(false)));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_directory_swapped_for_a_link_while_it_is_opened_does_not_lead_out() {
    let tree = Tree::new();
    tree.write("swap/file.txt", "public");
    tree.write("swap/sub/file.txt", "public");
    for file in ["outside/file.txt", "outside/only_outside", "outside/sub/file.txt"] {
        let path = tree.outer().join(file);
        fs::create_dir_all(path.parent().expect("a parent")).expect("made");
        fs::write(path, SECRET).expect("written");
    }
    symlink("../outside", tree.base().join("other")).expect("linked");
    let swapper = Swapper::start(&tree.base().join("swap"), &tree.base().join("other"));
    let mut answers = Vec::new();
    for url in ["nf://swap/file.txt", "nf://swap/sub/file.txt", "nf://swap", "nf://swap/sub"] {
        answers.extend(hammer(&tree, url).await);
    }
    assert!(swapper.swaps() > 100);
    assert_nothing_leaks(&answers, "only_outside");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_file_swapped_for_a_link_while_it_is_opened_does_not_lead_out() {
    let tree = Tree::new();
    tree.write("file.txt", "public");
    fs::write(tree.outer().join("secret.txt"), SECRET).expect("written");
    symlink("../secret.txt", tree.base().join("other")).expect("linked");
    let swapper = Swapper::start(&tree.base().join("file.txt"), &tree.base().join("other"));
    let answers = hammer(&tree, "nf://file.txt").await;
    assert!(swapper.swaps() > 100);
    assert_nothing_leaks(&answers, "secret.txt");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_file_swapped_for_a_pipe_while_it_is_opened_blocks_nobody() {
    let tree = Tree::new();
    tree.write("file.txt", "public");
    mknodat(CWD, tree.base().join("other"), FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).expect("a pipe");
    let swapper = Swapper::start(&tree.base().join("file.txt"), &tree.base().join("other"));
    let answers = hammer(&tree, "nf://file.txt").await;
    assert!(swapper.swaps() > 100);
    assert_nothing_leaks(&answers, "other");
}
