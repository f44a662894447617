//! Repositories on the host of the worker.

use std::fs;
use std::os::unix::fs::{PermissionsExt, chown, symlink};
use std::time::Duration;

use rustix::fs::{FileType, Mode};
use serde_json::json;

use crate::lab::{Lab, git};

#[tokio::test]
async fn paths_and_file_urls_of_bare_repositories_and_working_trees_are_read_where_they_are() {
    let lab = Lab::new();
    let bare = lab.origin.bare_text();
    let work = lab.origin.work.to_str().expect("text").to_owned();
    for url in [bare.clone(), format!("file://{bare}"), work, "origin.git".to_owned(), "origin".to_owned()] {
        let worker = lab.with_url(&url);
        assert_eq!(worker.clone().await, "cloned", "{url}");
        assert_eq!(worker.clone().await, "unchanged", "{url}");
        assert_eq!(lab.read("r/cfg/one.txt"), "v1\n");
        let mode = fs::metadata(lab.base().join("r/run.sh")).expect("there").permissions().mode();
        assert_eq!((mode & 0o100, lab.has("r/.git")), (0o100, false));
        assert_eq!(worker.run("delete_remote_git", json!({"name": "r"})).await["result"], json!(true));
        assert!(!lab.has("r") && !lab.folder().join("remotes/r").exists());
    }
}

#[tokio::test]
async fn what_is_pushed_deleted_and_pushed_by_force_is_followed() {
    let lab = Lab::new();
    let worker = lab.with_url(&lab.origin.bare_text());
    assert_eq!(worker.clone().await, "cloned");
    lab.origin.write("cfg/one.txt", "v2\n");
    fs::remove_file(lab.origin.work.join("run.sh")).expect("removed");
    lab.origin.push("main");
    assert_eq!(worker.clone().await, "cloned");
    assert_eq!((lab.read("r/cfg/one.txt").as_str(), lab.has("r/run.sh")), ("v2\n", false));
    git(&lab.origin.work, &["checkout", "-q", "--orphan", "other"]);
    lab.origin.write("cfg/one.txt", "v3\n");
    lab.origin.push("main");
    assert_eq!(worker.clone().await, "cloned");
    assert_eq!(lab.read("r/cfg/one.txt"), "v3\n");
    assert_eq!(worker.clone().await, "unchanged");
}

#[tokio::test]
async fn packed_and_symbolic_branches_tags_and_linked_working_trees_are_found() {
    let lab = Lab::new();
    let bare = &lab.origin.bare;
    git(bare, &["tag", "-a", "-m", "release", "v1.0", "main"]);
    git(bare, &["symbolic-ref", "refs/heads/latest", "refs/heads/main"]);
    git(bare, &["pack-refs", "--all"]);
    git(bare, &["gc", "-q"]);
    git(&lab.origin.work, &["worktree", "add", "-q", "../linked", "-b", "side"]);
    for (url, branch) in [("origin.git", "main"), ("origin.git", "v1.0"), ("origin.git", "latest"), ("linked", "side")]
    {
        let worker = lab.worker(json!([{"name": "r", "url": url, "branch": branch}]));
        assert_eq!(worker.clone().await, "cloned", "{branch}");
        assert_eq!(lab.read("r/cfg/deep/two.txt"), "two\n");
        worker.run("delete_remote_git", json!({"name": "r"})).await;
    }
}

#[tokio::test]
async fn what_is_no_repository_or_has_no_such_branch_is_named() {
    let lab = Lab::new();
    fs::create_dir(lab.outer().join("empty")).expect("made");
    git(lab.outer(), &["init", "-q", "--bare", "--object-format=sha256", "other.git"]);
    git(lab.outer(), &["init", "-q", "--bare", "nothing.git"]);
    let expected = [
        ("nope.git", "nope.git is not a git repository: check the URL"),
        ("empty", "empty is not a git repository: check the URL"),
        ("file:///nope", "file:///nope is not a git repository: check the URL"),
        ("nothing.git", "branch 'main' not found in nothing.git"),
        ("other.git", "other.git is a git repository of a kind that cannot be read: its objects are named by SHA-256"),
        (
            "svn://u:secret@h/a",
            "the URL svn://u:********@h/a cannot be used: its scheme is none of https, http, ssh and file",
        ),
    ];
    for (url, error) in expected {
        assert_eq!(lab.with_url(url).clone_error().await, error);
    }
    let worker = lab.worker(json!([{"name": "r", "url": "origin.git", "branch": "mai"}]));
    assert_eq!(worker.clone_error().await, "branch 'mai' not found in origin.git");
}

#[tokio::test]
async fn pipes_and_endless_lines_in_a_repository_do_not_keep_us() {
    for (name, error) in [
        ("refs/heads/main", "branch 'main' not found in origin.git"),
        ("packed-refs", "origin.git cannot be reached: 'packed-refs' in it is no regular file"),
        ("commondir", "origin.git cannot be reached: 'commondir' in it is no regular file"),
        ("HEAD", "origin.git is not a git repository: check the URL"),
    ] {
        let lab = Lab::new();
        let place = lab.origin.bare.join(name);
        if name == "packed-refs" {
            fs::remove_file(lab.origin.bare.join("refs/heads/main")).expect("removed");
        }
        fs::remove_file(&place).ok();
        rustix::fs::mknodat(rustix::fs::CWD, &place, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).expect("a pipe");
        let worker = lab.with_url("origin.git");
        let ended = tokio::time::timeout(Duration::from_secs(20), worker.clone_error()).await;
        if ended.is_err() {
            // Lets the thread go on, without which the test does not end.
            drop(fs::OpenOptions::new().read(true).write(true).open(&place).expect("open"));
        }
        assert_eq!(ended.expect("it ends"), error);
    }
    let lab = Lab::new();
    fs::remove_file(lab.origin.bare.join("refs/heads/main")).expect("removed");
    fs::write(lab.origin.bare.join("packed-refs"), vec![b'x'; 100_000]).expect("written");
    let expected = "origin.git was not understood: its file packed-refs has a line of more than 8192 bytes";
    assert_eq!(lab.with_url("origin.git").clone_error().await, expected);
}

#[tokio::test]
async fn a_repository_of_another_user_is_read_only_where_the_inventory_lists_it() {
    let lab = Lab::new();
    let (root, other) = (rustix::process::geteuid().is_root(), 12_345);
    let remote = json!([{"name": "r", "url": "origin.git", "branch": "main"}]);
    if !root {
        // Only the one who may do everything can give something away. Who is trusted is tested beside the code.
        assert_eq!(lab.worker(remote).clone().await, "cloned");
        return;
    }
    chown(&lab.origin.bare, Some(other), None).expect("given away");
    let expected = "origin.git belongs to another user of this host (12345), who could harm this worker through it: list it \
                    under trusted_repositories in the inventory if that is meant";
    assert_eq!(lab.worker(remote.clone()).clone_error().await, expected);
    for trusted in [json!(["origin.git"]), json!(["nowhere", lab.outer()])] {
        let worker = lab.worker_with("test-worker", remote.clone(), trusted);
        assert!(["cloned", "unchanged"].contains(&worker.clone().await.as_str()));
    }
    chown(&lab.origin.bare, Some(0), None).expect("taken back");
    chown(lab.origin.bare.join("objects"), Some(other), None).expect("given away");
    assert_eq!(lab.worker(remote).clone_error().await, expected);
    // What leads to a repository counts, too.
    chown(lab.origin.bare.join("objects"), Some(0), None).expect("taken back");
    fs::create_dir(lab.outer().join("theirs")).expect("made");
    fs::write(lab.outer().join("theirs/.git"), format!("gitdir: {}\n", lab.origin.bare_text())).expect("written");
    assert_eq!(lab.with_url("theirs").clone().await, "cloned");
    for place in ["theirs/.git", "theirs"] {
        chown(lab.outer().join("theirs"), Some(0), None).expect("taken back");
        chown(lab.outer().join("theirs/.git"), Some(0), None).expect("taken back");
        chown(lab.outer().join(place), Some(other), None).expect("given away");
        let error = lab.with_url("theirs").clone_error().await;
        assert!(error.starts_with("theirs belongs to another user"), "{error}");
    }
}

#[tokio::test]
async fn one_link_in_a_repository_is_left_out_and_counted() {
    let lab = Lab::new();
    symlink("cfg/one.txt", lab.origin.work.join("link")).expect("linked");
    symlink("/etc", lab.origin.work.join("cfg/out")).expect("linked");
    lab.origin.push("main");
    let worker = lab.with_url("origin.git");
    let result = worker.run("git_clone", json!({"name": "r"})).await;
    assert_eq!(result["result"]["status"], json!("cloned"));
    assert_eq!(result["messages"], json!(["2 symbolic links are left out: they are not served"]));
    assert!(fs::symlink_metadata(lab.base().join("r/link")).is_err() && lab.has("r/cfg/one.txt"));
}

#[tokio::test]
async fn a_file_of_a_remote_is_found_listed_and_fetched_as_any_other() {
    let lab = Lab::new();
    let worker = lab.with_url("origin.git");
    let result = worker.run("resolve_git_url", json!({"url": "git://r/cfg/one.txt"})).await;
    assert_eq!(result["result"], json!("nf://r/cfg/one.txt"));
    let details = worker.run("file_details", json!({"url": result["result"]})).await;
    assert_eq!(details["result"]["size_bytes"], json!(3));
    let listed = worker.run("list_files", json!({"url": "nf://r"})).await;
    assert_eq!(listed["result"], json!([".hid", "cfg", "run.sh"]));
    let walked = worker.run("walk", json!({"url": "nf://"})).await;
    let expected = ["nf://r/run.sh", "nf://r/.hid/f", "nf://r/cfg/one.txt", "nf://r/cfg/deep/two.txt"];
    assert_eq!(walked["result"], json!(expected));
    let folder = worker.run("resolve_git_url", json!({"url": "git://r/cfg"})).await;
    assert_eq!(folder["errors"], json!(["'git://r/cfg' file not found"]));
}

#[tokio::test]
async fn the_tasks_have_the_arguments_of_the_python_service() {
    let lab = Lab::new();
    let worker = lab.with_url("origin.git");
    let (context, _port, _messages) = worker.worker.context("get_remotes");
    let arguments = |task: &str| {
        let described = context.catalogue().get(task).expect("the task").describe();
        let properties = described["inputSchema"]["properties"].as_object().expect("properties").clone();
        (properties.keys().cloned().collect::<Vec<_>>(), described["inputSchema"]["required"].clone())
    };
    let (names, required) = arguments("create_remote_git");
    let expected =
        ["name", "mount", "description", "url", "branch", "type", "username", "password", "auto_sync", "sync_interval"];
    let sorted = |mut names: Vec<String>| {
        names.sort();
        names
    };
    assert_eq!(sorted(names), sorted(expected.map(str::to_owned).to_vec()));
    assert_eq!(required, json!(["name", "url"]));
    for task in ["git_clone", "delete_remote_git"] {
        assert_eq!(arguments(task), (vec!["name".to_owned()], json!(["name"])));
    }
    assert_eq!(arguments("resolve_git_url"), (vec!["url".to_owned()], json!(["url"])));
    assert_eq!(arguments("get_remotes").0, ["name"]);
}

#[tokio::test]
async fn a_second_remote_of_a_name_and_too_many_remotes_are_refused() {
    let lab = Lab::new();
    let worker = lab.worker(json!([]));
    let remote = |name: String| json!({"name": name, "url": "origin.git", "branch": "main"});
    for number in 0..256 {
        let result = worker.run("create_remote_git", remote(format!("r{number}"))).await;
        assert_eq!(result["failed"], json!(false), "{result}");
    }
    let result = worker.run("create_remote_git", remote("r7".to_owned())).await;
    assert_eq!(result["errors"], json!(["Remote 'r7' is already configured"]));
    let result = worker.run("create_remote_git", remote("more".to_owned())).await;
    let error = "Remote 'more' is one too many: a worker has at most 256, delete another";
    assert_eq!(result["errors"], json!([error]));
}
