//! What clients must not get, whatever they ask for and whatever happens to the tree meanwhile.

use std::fs;
use std::os::unix::fs::symlink;
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use norfab_service::TaskMessage;
use rustix::fs::{CWD, FileType, Mode, mknodat};
use serde_json::{Value, json};

use crate::tree::Tree;

const SECRET: &str = "secret";

/// How long a tree that changes is asked, at least.
const HAMMERING: Duration = Duration::from_millis(700);

/// How long it is asked where a busy machine shows one side of the change only.
const PATIENCE: Duration = Duration::from_secs(20);

/// What the tasks say to a URL.
#[derive(Clone, Copy, Debug)]
enum Answer {
    Format,
    Path,
    Missing,
    /// As missing, but fetch_file says that it is no regular file.
    Special,
}
use Answer::{Format, Missing, Path as Outside, Special};

const HOSTILE: [(&str, Answer); 73] = [
    // Other schemes and no scheme.
    ("", Format),
    ("x", Format),
    ("../secret.txt", Format),
    ("/etc/passwd", Format),
    ("nf:/d/a.txt", Format),
    ("nf:d/a.txt", Format),
    ("NF://d/a.txt", Format),
    (" nf://d/a.txt", Format),
    ("file:///etc/passwd", Format),
    ("http://x", Format),
    ("git://r/d/a.txt", Format),
    ("\0nf://d/a.txt", Format),
    // Up and out.
    ("nf://..", Outside),
    ("nf://../", Outside),
    ("nf://../secret.txt", Outside),
    ("nf:///../secret.txt", Outside),
    ("nf://./../secret.txt", Outside),
    ("nf://d/../../secret.txt", Outside),
    ("nf://d/sub/../../../secret.txt", Outside),
    ("nf://nope/../../secret.txt", Outside),
    ("nf://../base/d/a.txt", Outside),
    ("nf://../../../../../../etc/passwd", Outside),
    ("nf://d//..//..//secret.txt", Outside),
    ("nf://d/a.txt/../../../secret.txt", Outside),
    ("nf://..\\secret.txt", Outside),
    ("nf://d\\..\\..\\secret.txt", Outside),
    ("nf://d/..\\../secret.txt", Outside),
    ("nf://\\..\\secret.txt", Outside),
    // Out by a link.
    ("nf://link.txt", Outside),
    ("nf://d/link.txt", Outside),
    ("nf://chain", Outside),
    ("nf://passwd", Outside),
    ("nf://root/etc/passwd", Outside),
    ("nf://out/secret.txt", Outside),
    ("nf://out/../out/secret.txt", Outside),
    ("nf://out/../secret.txt", Outside),
    ("nf://self/link.txt", Outside),
    ("nf://sub/../../../secret.txt", Outside),
    ("nf://proc/etc/passwd", Outside),
    ("nf://own_handles", Outside),
    // Written so that a filter might not see it.
    ("nf://%2e%2e/secret.txt", Missing),
    ("nf://..%2fsecret.txt", Missing),
    ("nf://d/..%5c..%5csecret.txt", Missing),
    ("nf://.../secret.txt", Missing),
    ("nf://.. /secret.txt", Missing),
    ("nf://\u{2025}/secret.txt", Missing),
    ("nf://\u{ff0e}\u{ff0e}/secret.txt", Missing),
    ("nf://..\u{2215}secret.txt", Missing),
    ("nf://..\u{ff3c}secret.txt", Missing),
    ("nf://\u{202e}txt.a/d", Missing),
    ("nf:///etc/passwd", Missing),
    ("nf:////etc/passwd", Missing),
    ("nf://\\\\host\\share\\x", Missing),
    ("nf://C:\\Windows\\win.ini", Missing),
    ("nf://CON", Missing),
    ("nf://d/a.txt::$DATA", Missing),
    ("nf://~/.ssh/id_rsa", Missing),
    ("nf://$HOME/.ssh/id_rsa", Missing),
    ("nf://d/*.txt", Missing),
    ("nf://d/a.txt\n", Missing),
    ("nf://d/a.txt?x=1", Missing),
    // No path can hold it.
    ("nf://\0", Outside),
    ("nf://d/a.txt\0.png", Outside),
    // Never served.
    ("nf://__norfab__/files/broker/private_keys/broker.key_secret", Missing),
    ("nf://d/../__norfab__/jobs.db", Missing),
    ("nf://self/__norfab__/jobs.db", Missing),
    ("nf://keys/broker.key_secret", Missing),
    ("nf://copied.key_secret", Missing),
    ("nf://.env", Missing),
    ("nf://environment", Missing),
    // Nothing that can be read to an end.
    ("nf://pipe", Special),
    ("nf://socket", Special),
    ("nf://link_to_pipe", Special),
];

fn hostile_tree() -> Tree {
    let tree = Tree::new();
    tree.write("d/a.txt", "alpha\n");
    tree.write("d/sub/b.txt", "beta\n");
    for hidden in
        ["__norfab__/files/broker/private_keys/broker.key_secret", "__norfab__/jobs.db", ".env", "copied.key_secret"]
    {
        tree.write(hidden, SECRET);
    }
    fs::create_dir(tree.outer().join("outside")).expect("made");
    fs::write(tree.outer().join("outside/secret.txt"), SECRET).expect("written");
    fs::write(tree.outer().join("secret.txt"), SECRET).expect("written");
    let base = tree.base();
    let links = [
        ("link.txt", "../secret.txt"),
        ("d/link.txt", "../../secret.txt"),
        ("chain", "d/link.txt"),
        ("passwd", "/etc/passwd"),
        ("root", "/"),
        ("out", "../outside"),
        ("self", "."),
        ("sub", "d/sub"),
        ("proc", "/proc/self/root"),
        ("own_handles", "/proc/self/fd/0"),
        ("keys", "__norfab__/files/broker/private_keys"),
        ("environment", ".env"),
        ("link_to_pipe", "pipe"),
    ];
    for (name, target) in links {
        symlink(target, base.join(name)).expect("linked");
    }
    mknodat(CWD, base.join("pipe"), FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).expect("a pipe");
    drop(UnixListener::bind(base.join("socket")).expect("a socket"));
    tree
}

#[tokio::test]
async fn no_hostile_url_is_answered_with_anything_but_its_error() {
    let tree = hostile_tree();
    for (url, answer) in HOSTILE {
        let path_error = match answer {
            Format => Some(format!("'{url}' - invalid URL format")),
            Outside => Some(format!("'{url}' - invalid URL path")),
            Missing | Special => None,
        };
        let no_directory = path_error.clone().unwrap_or_else(|| "Directory Not Found".to_owned());
        let no_file = path_error.unwrap_or_else(|| format!("'{url}' file not found"));
        let not_sent = match answer {
            Special => format!("'{url}' is no regular file: devices, pipes and sockets are not served"),
            Format | Outside | Missing => no_file.clone(),
        };
        for (task, error) in [
            ("list_files", &no_directory),
            ("walk", &no_directory),
            ("file_details", &no_file),
            ("fetch_file", &not_sent),
        ] {
            let (result, messages) = tree.run_and_listen(task, json!({"url": url})).await;
            assert_eq!(messages, [], "{task} {url:?}");
            assert_eq!(result["failed"], json!(true), "{task} {url:?}");
            assert_eq!(result["errors"], json!([error]), "{task} {url:?}");
        }
        let many = tree.run("file_details", json!({"url": [url]})).await;
        assert_eq!(many["errors"], json!([no_file]), "{url:?}");
        assert_eq!(many["result"][url]["result"]["exists"], json!(false), "{url:?}");
    }
}

#[tokio::test]
async fn a_url_that_is_too_long_is_refused_without_being_repeated_whole() {
    let tree = hostile_tree();
    let long = format!("nf://{}", "x/".repeat(1_000_000));
    let errors = tree.errors("fetch_file", json!({"url": long})).await;
    assert!(errors[0].ends_with("...' - invalid URL path") && errors[0].len() < 300, "{errors:?}");
    let deep = format!("nf://{}", "self/".repeat(800));
    assert_eq!(tree.errors("list_files", json!({"url": deep})).await, ["Directory Not Found"]);
}

#[tokio::test]
async fn listings_do_not_tell_what_is_never_served() {
    let tree = hostile_tree();
    let names = tree.run("list_files", json!({"url": "nf://"})).await;
    let shown = names["result"].to_string();
    for hidden in ["__norfab__", "\".env\"", "key_secret"] {
        assert!(!shown.contains(hidden), "{hidden} in {shown}");
    }
    let urls = tree.run("walk", json!({"url": "nf://"})).await;
    let shown = urls["result"].to_string();
    for hidden in ["__norfab__", ".env", "key_secret", "pipe", "socket", "outside", "etc"] {
        assert!(!shown.contains(hidden), "{hidden} in {shown}");
    }
}

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
        for task in ["fetch_file", "file_details", "list_files", "walk"] {
            answers.push(tree.run_and_listen(task, json!({"url": url})).await);
        }
    }
}

fn assert_nothing_leaks(answers: &[(Value, Vec<TaskMessage>)], secret_names: &str) {
    // Of the bytes "secret".
    let secret_hash = "5ebe2294ecd0e0f08eab7690d2a6ee69";
    for (result, messages) in answers {
        for message in messages {
            assert_ne!(*message, TaskMessage::Stream(SECRET.into()));
        }
        let told = result["result"].to_string();
        assert!(!told.contains(secret_hash) && !told.contains(secret_names), "{result}");
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
