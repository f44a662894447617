//! Repositories made with the `git` program, and a worker with remotes.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;

use norfab_file_sharing::{RemotesHome, service_with_remotes};
use norfab_service::TaskMessage;
use norfab_service::testing::{TestClock, TestView, TestWorker};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::runtime::Handle;
use tracing::Span;

/// The `git` program in a folder, with nobody's settings.
pub fn git_command(folder: &Path) -> Command {
    let mut command = Command::new("git");
    command.current_dir(folder).env_clear().stdin(Stdio::null());
    if let Some(path) = std::env::var_os("PATH") {
        command.env("PATH", path);
    }
    for who in ["AUTHOR", "COMMITTER"] {
        command.env(format!("GIT_{who}_NAME"), "Test").env(format!("GIT_{who}_EMAIL"), "test@example.net");
    }
    command.env("GIT_CONFIG_GLOBAL", "/dev/null").env("GIT_CONFIG_SYSTEM", "/dev/null").env("GIT_CONFIG_COUNT", "0");
    command
}

/// Runs it and gives what it prints.
pub fn git(folder: &Path, arguments: &[&str]) -> String {
    let output = git_command(folder).args(arguments).output().expect("git is installed");
    assert!(output.status.success(), "git {arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("text").trim_end().to_owned()
}

/// A repository with a working tree, and a bare one to which it is pushed.
pub struct Origin {
    pub work: PathBuf,
    pub bare: PathBuf,
}

impl Origin {
    /// With one commit on `main`: `run.sh`, `.hid/f`, `cfg/one.txt` and `cfg/deep/two.txt`.
    pub fn new(folder: &Path) -> Self {
        let (work, bare) = (folder.join("work"), folder.join("origin.git"));
        fs::create_dir_all(&work).expect("made");
        git(folder, &["init", "-q", "--bare", "-b", "main", "origin.git"]);
        git(&work, &["init", "-q", "-b", "main"]);
        let origin = Self { work, bare };
        origin.write("run.sh", "#!/bin/sh\n");
        fs::set_permissions(origin.work.join("run.sh"), fs::Permissions::from_mode(0o755)).expect("set");
        origin.write(".hid/f", "");
        origin.write("cfg/one.txt", "v1\n");
        origin.write("cfg/deep/two.txt", "two\n");
        origin.push("main");
        origin
    }

    pub fn write(&self, path: &str, content: impl AsRef<[u8]>) {
        let path = self.work.join(path);
        fs::create_dir_all(path.parent().expect("a parent")).expect("made");
        fs::write(path, content).expect("written");
    }

    /// Commits all there is and pushes it, by force where it must be.
    pub fn push(&self, branch: &str) {
        git(&self.work, &["add", "-A", "."]);
        git(&self.work, &["commit", "-q", "--allow-empty", "-m", "change"]);
        git(&self.work, &["push", "-q", "--force", &self.bare_text(), &format!("HEAD:refs/heads/{branch}")]);
    }

    /// Pushes a tree without a working tree: `entries` as `git mktree` reads them.
    pub fn push_tree(&self, branch: &str, entries: &str) {
        let tree = self.make_tree(entries);
        let commit = git(&self.bare, &["commit-tree", &tree, "-m", "made"]);
        git(&self.bare, &["update-ref", &format!("refs/heads/{branch}"), &commit]);
    }

    /// A tree of entries, which may be hostile.
    pub fn make_tree(&self, entries: &str) -> String {
        // `git mktree` refuses some names; the object itself may be anything.
        let mut bytes = Vec::new();
        for line in entries.lines() {
            let (head, name) = line.split_once('\t').expect("a name");
            let mut words = head.split(' ');
            let (mode, _, id) = (words.next().expect("a mode"), words.next(), words.next().expect("an id"));
            bytes.extend_from_slice(format!("{} {name}\0", mode.trim_start_matches('0')).as_bytes());
            bytes.extend((0..40).step_by(2).map(|at| u8::from_str_radix(&id[at..at + 2], 16).expect("an id")));
        }
        self.hash_object("tree", &bytes)
    }

    pub fn hash_object(&self, kind: &str, content: &[u8]) -> String {
        let file = self.bare.join("content");
        fs::write(&file, content).expect("written");
        git(&self.bare, &["hash-object", "-w", "--literally", "-t", kind, "content"])
    }

    pub fn bare_text(&self) -> String {
        self.bare.to_str().expect("text").to_owned()
    }
}

/// A worker with remotes, on a shared folder `base` in a folder of its own, and an origin.
pub struct Lab {
    outer: PathBuf,
    pub origin: Origin,
    _kept: Option<TempDir>,
}

impl Lab {
    pub fn new() -> Self {
        let outer = tempfile::tempdir().expect("a folder");
        let origin = Origin::new(outer.path());
        fs::create_dir(outer.path().join("base")).expect("made");
        Self { outer: outer.path().to_owned(), origin, _kept: Some(outer) }
    }

    /// The lab of another process.
    pub fn of_other(outer: &Path) -> Self {
        let origin = Origin { work: outer.join("work"), bare: outer.join("origin.git") };
        Self { outer: outer.to_owned(), origin, _kept: None }
    }

    /// Starts a worker. It ends when it is dropped, and another can be started on what it leaves.
    pub fn worker(&self, remotes: Value) -> RemoteWorker {
        self.worker_with("test-worker", remotes, json!([]))
    }

    /// A worker of a name that trusts repositories in these places.
    pub fn worker_with(&self, name: &str, remotes: Value, trusted: Value) -> RemoteWorker {
        let mut inventory = json!({
            "service": "filesharing", "base_dir": "base", "remotes": remotes, "extra_key": "kept", "dotfiles": [".*"],
            "uploads": {"folder": "uploads/here"},
        });
        if trusted != json!([]) {
            inventory["trusted_repositories"] = trusted;
        }
        let home = RemotesHome {
            worker: name.to_owned(),
            folder: self.folder().with_file_name(name),
            local_base: self.outer.clone(),
            clock: Arc::new(TestClock),
            runtime: Handle::current(),
            span: Span::none(),
        };
        let service = service_with_remotes(&inventory, &self.outer, home).expect("a service");
        let view = TestView { inventory: Arc::new(inventory), ..TestView::default() };
        RemoteWorker { worker: TestWorker::new(service).view(view) }
    }

    /// A worker with the remote `r` of branch `main` at a URL.
    pub fn with_url(&self, url: &str) -> RemoteWorker {
        self.worker(json!([{"name": "r", "url": url, "branch": "main"}]))
    }

    /// The folder that all is in.
    pub fn outer(&self) -> &Path {
        &self.outer
    }

    /// The shared folder.
    pub fn base(&self) -> PathBuf {
        self.outer.join("base")
    }

    /// The folder of the worker.
    pub fn folder(&self) -> PathBuf {
        self.outer.join("__norfab__/files/worker/test-worker")
    }

    /// The content of a shared file.
    pub fn read(&self, path: &str) -> String {
        fs::read_to_string(self.base().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
    }

    /// Whether there is a shared file or folder.
    pub fn has(&self, path: &str) -> bool {
        self.base().join(path).exists()
    }
}

pub struct RemoteWorker {
    pub worker: TestWorker,
}

impl RemoteWorker {
    /// Runs a task to its end and gives its result as clients get it.
    pub async fn run(&self, task: &str, kwargs: Value) -> Value {
        serde_json::to_value(self.worker.run(task, kwargs).await).expect("plain data")
    }

    /// As [`Self::run`], with the severities and texts of its events.
    pub async fn run_and_listen(&self, task: &str, kwargs: Value) -> (Value, Vec<(String, String)>) {
        let (context, _port, mut messages) = self.worker.context(task);
        let service = Arc::clone(context.catalogue());
        let result = service.run(context, Vec::new(), kwargs.as_object().expect("an object").clone()).await;
        let mut events = Vec::new();
        while let Ok(TaskMessage::Event(event)) = messages.try_recv() {
            let severity = serde_json::to_value(event.severity).expect("a word");
            events.push((severity.as_str().expect("a word").to_owned(), event.message));
        }
        (serde_json::to_value(result).expect("plain data"), events)
    }

    /// Synchronizes the remote `r` and gives the status.
    pub async fn clone(&self) -> String {
        let result = self.run("git_clone", json!({"name": "r"})).await;
        assert_eq!(result["failed"], json!(false), "{result}");
        result["result"]["status"].as_str().expect("a status").to_owned()
    }

    /// Synchronizes the remote `r`, which must fail, and gives the error without its beginning.
    pub async fn clone_error(&self) -> String {
        let result = self.run("git_clone", json!({"name": "r"})).await;
        assert_eq!((&result["failed"], &result["result"]["status"]), (&json!(true), &json!("failed")), "{result}");
        let error = result["errors"][0].as_str().expect("an error");
        let rest = error.strip_prefix("Git remote 'r' synchronization failed: ");
        rest.unwrap_or_else(|| panic!("{error}")).to_owned()
    }

    /// How the remote of a name is.
    pub async fn told(&self, name: &str) -> Value {
        self.run("get_remotes", json!({"name": name})).await["result"][0].clone()
    }
}

/// What tells the inner run of a test from the outer one.
const INNER: &str = "NORFAB_TEST_INNER";

/// Whether this is the process of a test in a process of its own.
pub fn is_inner() -> bool {
    std::env::var_os(INNER).is_some()
}

/// This test in a process of its own, with variables that a process cannot change for itself.
pub fn inner_command(test: &str, variables: &[(&str, &str)]) -> Command {
    let mut command = Command::new(std::env::current_exe().expect("a test program"));
    command.args(["--exact", test, "--nocapture"]).env(INNER, "1").envs(variables.iter().copied());
    command
}

/// Runs a test in a process of its own. True in that process, which is to do the work; elsewhere it has been done, or this panics.
pub fn in_own_process(test: &str, variables: &[(&str, &str)]) -> bool {
    if is_inner() {
        return true;
    }
    let output = inner_command(test, variables).output().expect("runs");
    let told = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && told.contains("1 passed"), "{told}");
    false
}
