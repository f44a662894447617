//! Random URLs on random trees, both made of what has harmed file servers before.

use std::fs;
use std::os::unix::fs::symlink;

use bytes::Bytes;
use norfab_files::record::{Record, What, read};
use norfab_service::TaskMessage;
use proptest::collection::vec;
use proptest::prelude::*;
use serde_json::Value;

use super::{SECRET, SECRET_HASHES, TASKS, Task, question};
use crate::tree::Tree;

/// Names in trees, most of them in URLs, too.
const NAMES: [&str; 28] = [
    "a",
    "b",
    "c",
    "A",
    "d.txt",
    ".env",
    ".git",
    ".GIT",
    "__norfab__",
    "__NORFAB__",
    "x.key_secret",
    "x.key_secret~",
    ".vimrc",
    "..a",
    "...",
    " ",
    "a ",
    "a.",
    "a:b",
    "CON",
    "aux.txt",
    "GIT~1",
    "a~1",
    "\u{e9}",
    "e\u{301}",
    "\u{202e}a",
    "%2e%2e",
    "__pycache__",
];

/// What else stands between slashes in URLs and links.
const PIECES: [&str; 14] = [
    "..",
    ".",
    "",
    "..\\",
    "\\",
    "..\\..",
    "%2f",
    "base",
    "outside",
    "secret.txt",
    "C:",
    "~",
    "\u{ff0e}\u{ff0e}",
    "\u{2215}",
];

/// Starts of URLs.
const STARTS: [&str; 8] = ["nf://", "nf:///", "nf://\\", "nf://./", "nf:/", "NF://", "file:///", ""];

/// What begins where no name helps.
const ROOTS: [&str; 7] = ["/", "/proc/self/root/", "/proc/self/cwd/", "/dev/", "/etc/", "../", "OUTER/"];

/// Where links lead that are meant to lead astray.
const TARGETS: [&str; 14] = [
    "../secret.txt",
    "../outside",
    "../outside/secret.txt",
    "../../secret.txt",
    "OUTER/secret.txt",
    "OUTER/outside",
    "/",
    "/etc/passwd",
    "/proc/self/fd",
    ".",
    "..",
    ".git",
    "__norfab__",
    "a/../../secret.txt",
];

/// What is in every file that may be told, and its MD5.
const PUBLIC: &str = "public";
const PUBLIC_MD5: &str = "4c9184f37cff01bcdc32dc486ec36961";

/// What is made at a path.
#[derive(Debug, Clone)]
enum Node {
    File(Vec<&'static str>),
    Link(Vec<&'static str>, String),
}

fn name() -> impl Strategy<Value = &'static str> {
    prop::sample::select(&NAMES[..])
}

fn piece() -> impl Strategy<Value = String> {
    prop_oneof![
        6 => name().prop_map(str::to_owned),
        4 => prop::sample::select(&PIECES[..]).prop_map(str::to_owned),
        1 => any::<char>().prop_map(|character| character.to_string()),
    ]
}

fn way() -> impl Strategy<Value = String> {
    vec(piece(), 0..6).prop_map(|pieces| pieces.join("/"))
}

fn node() -> impl Strategy<Value = Node> {
    let root = prop_oneof![3 => Just(""), 2 => prop::sample::select(&ROOTS[..])];
    let astray = prop_oneof![
        (root, way()).prop_map(|(root, way)| format!("{root}{way}")),
        prop::sample::select(&TARGETS[..]).prop_map(str::to_owned),
    ];
    prop_oneof![
        3 => vec(name(), 1..4).prop_map(Node::File),
        2 => (vec(name(), 1..3), astray).prop_map(|(place, target)| Node::Link(place, target)),
    ]
}

/// A URL, behind that of a node of the tree where there is an index.
#[derive(Debug, Clone)]
struct Asked {
    start: &'static str,
    at: Option<prop::sample::Index>,
    way: String,
}

impl Asked {
    fn url(&self, nodes: &[Node]) -> String {
        let node = self.at.filter(|_| !nodes.is_empty()).map(|at| at.get(nodes));
        let place = match node {
            Some(Node::File(place) | Node::Link(place, _)) => place.join("/"),
            None => String::new(),
        };
        let slash = if place.is_empty() || self.way.is_empty() { "" } else { "/" };
        format!("{}{place}{slash}{}", self.start, self.way)
    }
}

fn asked() -> impl Strategy<Value = Asked> {
    let start = prop_oneof![8 => Just("nf://"), 2 => prop::sample::select(&STARTS[..])];
    let way = prop_oneof![Just(String::new()), way()];
    let at = prop::option::of(any::<prop::sample::Index>());
    (start, at, way).prop_map(|(start, at, way)| Asked { start, at, way })
}

/// Whether what the tree has there must never be told: its names say so, in words of their own. `dotfiles`: those are served.
fn is_hidden(place: &[&str], dotfiles: bool) -> bool {
    let never = [".env", ".git", ".GIT", "__norfab__", "__NORFAB__", "x.key_secret", "x.key_secret~"];
    place.iter().any(|name| never.contains(name) || !dotfiles && [".vimrc", "..a", "..."].contains(name))
}

/// Makes what can be made: a file may be in the place of a folder. Links come last, so that nothing is made through one.
fn grow(tree: &Tree, nodes: &[Node], dotfiles: bool) {
    let outside = tree.outer().join("outside");
    fs::create_dir_all(&outside).expect("made");
    for file in [outside.join("secret.txt"), outside.join("a"), tree.outer().join("secret.txt"), tree.outer().join("a")]
    {
        fs::write(file, SECRET).expect("written");
    }
    for node in nodes {
        let (Node::File(place) | Node::Link(place, _)) = node;
        let path = tree.base().join(place.join("/"));
        let content = if is_hidden(place, dotfiles) { SECRET } else { PUBLIC };
        let made = fs::create_dir_all(path.parent().expect("a parent"));
        if let (Ok(()), Node::File(_)) = (made, node) {
            // A folder may be there.
            fs::write(path, content).ok();
        }
    }
    for node in nodes {
        if let Node::Link(place, target) = node {
            let target = target.replace("OUTER", &tree.outer().display().to_string());
            // Something else may be there, or no link can say so.
            symlink(target, tree.base().join(place.join("/"))).ok();
        }
    }
}

fn check(task: Task, url: &str, told: &(Value, Vec<TaskMessage>)) -> Result<(), TestCaseError> {
    let (result, messages) = told;
    let shown = result["result"].to_string();
    prop_assert!(!SECRET_HASHES.iter().any(|hash| shown.contains(hash)), "{task:?} {url:?}: {result}");
    if task == Task::FileDetails && result["failed"] == false {
        prop_assert_eq!(&result["result"]["md5hash"], PUBLIC_MD5, "{:?}: {}", url, result);
    }
    for error in result["errors"].as_array().into_iter().flatten() {
        let error = error.as_str().unwrap_or_default().replace(url, "");
        prop_assert!(!error.contains("panic"), "{task:?} {url:?}: {error}");
    }
    for message in messages {
        let TaskMessage::Stream(bytes) = message else { continue };
        let contents = match task {
            Task::SendFiles => read(bytes.clone()).expect("records").into_iter().filter_map(content).collect(),
            _ => vec![bytes.clone()],
        };
        for content in contents {
            prop_assert_eq!(&content[..], PUBLIC.as_bytes(), "{:?} {:?}", task, url);
        }
    }
    Ok(())
}

fn content(record: Record) -> Option<Bytes> {
    match record.what {
        What::Content { bytes, .. } => Some(bytes),
        What::Begin(_) | What::Failed(_) => None,
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn no_url_on_any_tree_gives_what_is_not_shared(
        nodes in vec(node(), 0..24),
        urls in vec(asked(), 1..24),
        dotfiles in any::<bool>(),
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        runtime.block_on(async {
            let tree = if dotfiles { Tree::with_dotfiles() } else { Tree::new() };
            grow(&tree, &nodes, dotfiles);
            for asked in &urls {
                let url = asked.url(&nodes);
                for task in TASKS {
                    let told = tree.run_and_listen(task.name(), question(task, &url)).await;
                    check(task, &url, &told)?;
                }
            }
            // What listings tell can be fetched, and is public.
            let listed = tree.run("list_entries", serde_json::json!({"url": "nf://", "recursive": true})).await;
            for entry in listed["result"]["entries"].as_array().into_iter().flatten() {
                let path = entry["path"].as_str().expect("a path");
                let names: Vec<&str> = path.split('/').collect();
                prop_assert!(!is_hidden(&names, dotfiles), "{path}");
                if entry["kind"] == "file" {
                    let url = format!("nf://{path}");
                    let (result, messages) = tree.run_and_listen("fetch_file", serde_json::json!({"url": url})).await;
                    prop_assert_eq!(&messages, &[TaskMessage::Stream(PUBLIC.into())], "{}: {}", url, result);
                }
            }
            Ok(())
        })?;
    }
}
