//! What clients must not get, whatever they ask for and whatever happens to the tree meanwhile.

mod races;
mod random;

use std::fs;
use std::os::unix::fs::symlink;
use std::os::unix::net::UnixListener;

use norfab_files::record::{What, read};
use norfab_service::TaskMessage;
use rustix::fs::{CWD, FileType, Mode, makedev, mknodat};
use serde_json::{Value, json};

use crate::tree::Tree;

const SECRET: &str = "secret";

/// MD5 and SHA-256 of it.
const SECRET_HASHES: [&str; 2] =
    ["5ebe2294ecd0e0f08eab7690d2a6ee69", "2bb80d537b1da3e38bd30361aa855686bde0eacd7162fef6a25fe97bf527a25b"];

/// Every task that takes a URL, and each way in which it does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Task {
    ListFiles,
    Walk,
    ListEntries,
    ListAll,
    FileDetails,
    DetailsOfMany,
    StatFiles,
    FetchFile,
    SendFiles,
}

const TASKS: [Task; 9] = [
    Task::ListFiles,
    Task::Walk,
    Task::ListEntries,
    Task::ListAll,
    Task::FileDetails,
    Task::DetailsOfMany,
    Task::StatFiles,
    Task::FetchFile,
    Task::SendFiles,
];

impl Task {
    fn name(self) -> &'static str {
        match self {
            Self::ListFiles => "list_files",
            Self::Walk => "walk",
            Self::ListEntries | Self::ListAll => "list_entries",
            Self::FileDetails | Self::DetailsOfMany => "file_details",
            Self::StatFiles => "stat_files",
            Self::FetchFile => "fetch_file",
            Self::SendFiles => "send_files",
        }
    }
}

/// The arguments with which a task is asked for a URL.
fn question(task: Task, url: &str) -> Value {
    match task {
        Task::ListFiles | Task::Walk | Task::ListEntries | Task::FetchFile => json!({ "url": url }),
        Task::ListAll => json!({ "url": url, "recursive": true, "after": "../d/.." }),
        Task::FileDetails => json!({ "url": url, "sha256": true }),
        Task::DetailsOfMany => json!({ "url": [url], "sha256": true }),
        Task::StatFiles => json!({ "urls": [url] }),
        Task::SendFiles => json!({ "files": [{ "url": url }] }),
    }
}

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

const HOSTILE: [(&str, Answer); 135] = [
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
    ("nf://handles/0", Outside),
    ("nf://cwd/Cargo.toml", Outside),
    ("nf://dev", Outside),
    ("nf://home", Outside),
    ("nf://beside", Outside),
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
    ("nf://%252e%252e/secret.txt", Missing),
    ("nf://%c0%ae%c0%ae/secret.txt", Missing),
    ("nf://..;/secret.txt", Missing),
    ("nf://....//secret.txt", Missing),
    ("nf://.\u{200b}./secret.txt", Missing),
    ("nf://\u{2024}\u{2024}/secret.txt", Missing),
    ("nf://\u{fe52}\u{fe52}/secret.txt", Missing),
    ("nf://\r../secret.txt", Missing),
    ("nf://d/\u{7f}", Missing),
    ("nf://\u{1b}[2Jd/a.txt", Missing),
    ("nf://d/a.txt/..", Missing),
    ("nf://d/a.txt/../a.txt", Missing),
    ("nf://d\u{8}/../../secret.txt", Outside),
    // Windows, and file systems of Windows.
    ("nf://c:/windows/win.ini", Missing),
    ("nf://\\\\?\\C:\\x", Missing),
    ("nf://\\\\.\\PhysicalDrive0", Missing),
    ("nf://NUL", Missing),
    ("nf://aux.txt", Missing),
    ("nf://d/COM1", Missing),
    ("nf://d/a.txt.", Missing),
    ("nf://d/a.txt ", Missing),
    ("nf://d./a.txt", Missing),
    ("nf://D/A.TXT", Missing),
    ("nf://d/a.txt:stream", Missing),
    ("nf://D~1/a.txt", Missing),
    // Other forms of a name that is there.
    ("nf://caf\u{e9}", Missing),
    ("nf://\u{ff44}/a.txt", Missing),
    ("nf://\u{501}/a.txt", Missing),
    // Links that lead nowhere.
    ("nf://loop", Missing),
    ("nf://loop/x", Missing),
    ("nf://ping", Missing),
    ("nf://broken", Missing),
    ("nf://long", Missing),
    ("nf://too_many/a.txt", Missing),
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
    ("nf://__norfab__", Missing),
    ("nf://d/__norfab__/jobs.db", Missing),
    ("nf://__NorFab__/jobs.db", Missing),
    ("nf://__norfab__./jobs.db", Missing),
    ("nf://__norfab__ /jobs.db", Missing),
    ("nf://__nor\u{200c}fab__/jobs.db", Missing),
    ("nf://__norfab__::$INDEX_ALLOCATION/jobs.db", Missing),
    ("nf://.git/config", Missing),
    ("nf://.GIT/HEAD", Missing),
    ("nf://d/.git/config", Missing),
    ("nf://.g\u{ad}it/config", Missing),
    ("nf://git_link/config", Missing),
    ("nf://git~1/config", Missing),
    ("nf://.vimrc", Missing),
    ("nf://d/.hidden/x", Missing),
    ("nf://.env.local", Missing),
    ("nf://.ENV", Missing),
    ("nf://copied.KEY_SECRET", Missing),
    ("nf://copied.key_secret~", Missing),
    ("nf://copied.key_secret.bak", Missing),
    ("nf://COPIED~1.KEY", Missing),
    ("nf://.a.txt.part", Missing),
    // Nothing that can be read to an end.
    ("nf://pipe", Special),
    ("nf://socket", Special),
    ("nf://link_to_pipe", Special),
    ("nf://d/device", Special),
];

fn hostile_tree() -> Tree {
    let tree = Tree::new();
    tree.write("d/a.txt", "alpha\n");
    tree.write("d/sub/b.txt", "beta\n");
    let hidden = [
        "__norfab__/files/broker/private_keys/broker.key_secret",
        "__norfab__/jobs.db",
        "d/__norfab__/jobs.db",
        "__NorFab__/jobs.db",
        "__norfab__./jobs.db",
        "__norfab__ /jobs.db",
        "__nor\u{200c}fab__/jobs.db",
        "__norfab__::$INDEX_ALLOCATION/jobs.db",
        ".git/config",
        ".GIT/HEAD",
        "d/.git/config",
        ".g\u{ad}it/config",
        ".vimrc",
        "d/.hidden/x",
        ".env",
        ".env.local",
        ".ENV",
        "copied.key_secret",
        "copied.KEY_SECRET",
        "copied.key_secret~",
        "copied.key_secret.bak",
        ".a.txt.part",
    ];
    for hidden in hidden {
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
        ("handles", "/proc/self/fd"),
        ("cwd", "/proc/self/cwd"),
        ("dev", "/dev/zero"),
        ("home", "../base/../outside/secret.txt"),
        ("loop", "loop"),
        ("ping", "pong"),
        ("pong", "ping"),
        ("broken", "nowhere"),
        ("git_link", ".git"),
        ("long", &"x/".repeat(2000)),
        ("beside", &format!("{}x/secret.txt", base.display())),
    ];
    for (name, target) in links {
        symlink(target, base.join(name)).expect("linked");
    }
    // More links on one way than anybody follows.
    let mut target = "d".to_owned();
    for number in 0..50 {
        let name = if number == 49 { "too_many".to_owned() } else { format!("l{number}") };
        symlink(&target, base.join(&name)).expect("linked");
        target = name;
    }
    // A folder whose path begins like that of the shared one.
    fs::create_dir(tree.outer().join("basex")).expect("made");
    fs::write(tree.outer().join("basex/secret.txt"), SECRET).expect("written");
    tree.write("cafe\u{301}", "decomposed\n");
    mknodat(CWD, base.join("pipe"), FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).expect("a pipe");
    // Only the system's administrator can make a device; a pipe stands for one elsewhere.
    let device = mknodat(CWD, base.join("d/device"), FileType::CharacterDevice, Mode::RUSR, makedev(1, 5));
    if device.is_err() {
        mknodat(CWD, base.join("d/device"), FileType::Fifo, Mode::RUSR, 0).expect("a pipe");
    }
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
        for task in TASKS {
            let (result, mut messages) = tree.run_and_listen(task.name(), question(task, url)).await;
            let shown = format!("{task:?} {url:?}: {result}");
            let (failed, error) = match task {
                Task::ListFiles | Task::Walk | Task::ListEntries | Task::ListAll => (true, &no_directory),
                Task::FileDetails => (true, &no_file),
                Task::FetchFile => (true, &not_sent),
                Task::DetailsOfMany => (false, &no_file),
                Task::StatFiles | Task::SendFiles => (false, &not_sent),
            };
            assert_eq!(result["failed"], json!(failed), "{shown}");
            match task {
                Task::StatFiles => {
                    assert_eq!(result["result"], json!([{"url": url, "kind": "missing", "error": error}]), "{shown}");
                }
                Task::SendFiles => {
                    assert_eq!(result["result"]["failed"], json!(1), "{shown}");
                    let Some(TaskMessage::Stream(message)) = messages.pop() else { panic!("{shown}") };
                    let records = read(message).expect("records");
                    assert!(matches!(&records[..], [only] if only.what == What::Failed(error.clone())), "{records:?}");
                }
                _ => assert_eq!(result["errors"], json!([error]), "{shown}"),
            }
            if task == Task::DetailsOfMany {
                let nothing = json!({"md5hash": null, "size_bytes": null, "exists": false});
                assert_eq!(result["result"][url]["result"], nothing, "{shown}");
            }
            assert_eq!(messages, [], "{shown}");
        }
    }
}

#[test]
fn hostile_urls_are_all_different() {
    let mut urls: Vec<&str> = HOSTILE.iter().map(|(url, _)| *url).collect();
    urls.sort_unstable();
    urls.dedup();
    assert_eq!(urls.len(), HOSTILE.len());
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
    for task in [Task::ListFiles, Task::Walk, Task::ListEntries, Task::ListAll] {
        let question =
            if task == Task::ListAll { json!({"url": "nf://", "recursive": true}) } else { question(task, "nf://") };
        let told = tree.run(task.name(), question).await;
        let shown = told["result"].to_string();
        assert!(shown.contains("too_many") && shown.contains("link.txt"), "{task:?}: {shown}");
        for hidden in ["norfab", "fab__", ".env", "key_secret", ".git", ".vimrc", ".hidden", ".part", "jobs.db"] {
            assert!(!shown.to_lowercase().contains(hidden), "{task:?}: {hidden} in {shown}");
        }
        if task != Task::ListFiles {
            for beyond in ["pipe", "socket", "device", "secret.txt\"", "etc"] {
                let links = ["link_to_pipe"];
                let shown = links.iter().fold(shown.clone(), |shown, link| shown.replace(link, ""));
                assert!(!shown.contains(beyond), "{task:?}: {beyond} in {shown}");
            }
        }
    }
}

#[tokio::test]
async fn names_that_no_url_can_hold_are_left_out_and_counted() {
    use std::ffi::OsStr;
    use std::os::unix::ffi::OsStrExt;

    let tree = Tree::new();
    tree.write("d/good", "");
    for name in [&b"\xff\xfe"[..], b"\xc3\x28", b"a\\b", b"\xed\xa0\x80"] {
        fs::write(tree.base().join("d").join(OsStr::from_bytes(name)), SECRET).expect("written");
    }
    for task in [Task::ListFiles, Task::Walk, Task::ListEntries] {
        let told = tree.run(task.name(), question(task, "nf://d")).await;
        assert_eq!(
            told["messages"],
            json!(["4 names that no URL can hold are left out: rename these files"]),
            "{told}"
        );
        assert!(told["result"].to_string().contains("good"), "{told}");
    }
}

#[tokio::test]
async fn a_tree_that_is_nested_without_an_end_is_refused_and_its_start_is_not() {
    let tree = Tree::new();
    let mut deep = String::new();
    for _ in 0..200 {
        deep.push_str("d/");
        fs::create_dir(tree.base().join(&deep)).expect("made");
    }
    tree.write("d/f", "");
    for (task, question) in
        [("walk", json!({"url": "nf://"})), ("list_entries", json!({"url": "nf://", "recursive": true}))]
    {
        let error = tree.errors(task, question).await;
        assert_eq!(error, ["'nf://' holds folders nested deeper than 64 levels: ask for one of the inner folders"]);
    }
    let told = tree.run("list_entries", json!({"url": "nf://", "recursive": true, "depth": 2})).await;
    let paths: Vec<&Value> =
        told["result"]["entries"].as_array().expect("a list").iter().map(|entry| &entry["path"]).collect();
    assert_eq!(paths, ["d", "d/d", "d/f"]);
    let beyond = format!("nf://{}", "d/".repeat(190));
    assert!(tree.run("list_files", json!({"url": beyond})).await["failed"] == json!(false), "one call opens it");
    let by_link = format!("nf://d/../{}", "d/".repeat(190));
    assert_eq!(tree.errors("list_files", json!({"url": by_link})).await, ["Directory Not Found"]);
}

#[tokio::test]
async fn a_huge_directory_comes_page_by_page_and_whole() {
    let tree = Tree::new();
    fs::create_dir(tree.base().join("huge")).expect("made");
    for number in 0..25_000 {
        fs::write(tree.base().join(format!("huge/{number:05}")), "").expect("written");
    }
    let mut told = Vec::new();
    let mut question = json!({"url": "nf://huge"});
    loop {
        let page = tree.run("list_entries", question.clone()).await["result"].clone();
        let entries = page["entries"].as_array().expect("a list");
        assert!(!entries.is_empty() && entries.len() <= 10_000);
        told.extend(entries.iter().map(|entry| entry["path"].as_str().expect("a path").to_owned()));
        if page["next"].is_null() {
            break;
        }
        question["after"] = page["next"].clone();
    }
    assert!(told.len() == 25_000 && told.is_sorted() && told[24_999] == "24999", "{}", told.len());
}

#[tokio::test]
async fn where_to_go_on_in_a_listing_is_no_path() {
    let tree = hostile_tree();
    for after in ["", "..", "../../x", "/etc", "d/../..", "\0", "\u{10ffff}", &"x/".repeat(100_000), ".env", "zzz"] {
        for recursive in [true, false] {
            let told = tree.run("list_entries", json!({"url": "nf://d", "recursive": recursive, "after": after})).await;
            assert_eq!(told["failed"], json!(false), "{after:?}: {told}");
            let entries = told["result"]["entries"].as_array().expect("a list");
            let known = ["a.txt", "link.txt", "sub", "sub/b.txt"];
            assert!(entries.iter().all(|entry| known.iter().any(|name| entry["path"] == *name)), "{after:?}: {told}");
        }
    }
}
