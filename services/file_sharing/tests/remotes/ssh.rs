//! Repositories through the ssh program. In place of it stands a script that runs the command on this host.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::{Duration, Instant};

use serde_json::json;

use crate::lab::{Lab, RemoteWorker, git, in_own_process};

/// A script in the place of ssh. What it does is in a file beside it, so that it can change.
fn script(folder: &Path) -> String {
    let script = folder.join("ssh.sh");
    let text = "#!/bin/sh\nfor last; do :; done\ncommand=$last\nhere=$(dirname \"$0\")\nprintf '%s\\n' \"$@\" > \"$here/arguments\"\n. \
                \"$here/behaviour\"\n";
    fs::write(&script, text).expect("written");
    fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).expect("set");
    script.to_str().expect("text").to_owned()
}

#[test]
fn a_repository_is_fetched_through_the_ssh_program_and_its_complaints_are_told() {
    let outer = tempfile::tempdir().expect("a folder");
    let name = "ssh::a_repository_is_fetched_through_the_ssh_program_and_its_complaints_are_told";
    if !in_own_process(name, &[("GIT_SSH_COMMAND", &script(outer.path()))]) {
        return;
    }
    let folder = std::env::var("GIT_SSH_COMMAND").expect("set");
    let folder = Path::new(&folder).parent().expect("a folder").to_owned();
    let behave = |behaviour: &str| fs::write(folder.join("behaviour"), behaviour).expect("written");
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let lab = Lab::new();
        let url = format!("ssh://git@example.net:2222{}", lab.origin.bare_text());
        let worker = lab.with_url(&url);
        for behaviour in ["exec sh -c \"$command\"", "unset GIT_PROTOCOL; exec sh -c \"$command\""] {
            behave(behaviour);
            lab.origin.write("cfg/one.txt", behaviour);
            lab.origin.push("main");
            assert_eq!(worker.clone().await, "cloned");
            assert_eq!(worker.clone().await, "unchanged");
            assert_eq!(lab.read("r/cfg/one.txt"), behaviour);
        }
        let arguments = fs::read_to_string(folder.join("arguments")).expect("written");
        let expected =
            "-o\nBatchMode=yes\n-o\nConnectTimeout=15\n-o\nSendEnv=GIT_PROTOCOL\n-p\n2222\n--\ngit@example.net\n";
        assert!(arguments.starts_with(expected), "{arguments}");
        git(&lab.folder().join("remotes/r/repository"), &["fsck", "--connectivity-only"]);

        let complaints = [
            (
                "echo 'git@example.net: Permission denied (publickey).' >&2; exit 255",
                "refused the credentials of 'git'",
            ),
            ("echo 'ssh: Could not resolve hostname example.net: x' >&2; exit 255", "host 'example.net' not found"),
            ("echo 'ssh: connect to host example.net port 22: Connection refused' >&2; exit 255", "Connection refused"),
            ("exit 3", "ended without a word"),
            ("echo 'Welcome!'; sleep 600", "was not understood: it answers with something else than git's protocol"),
            ("printf '0029ERR access denied or no repository ex\\n'; sleep 600", "said: access denied or no"),
        ];
        for (behaviour, told) in complaints {
            behave(behaviour);
            let error = worker.clone_error().await;
            assert!(error.contains(told), "{behaviour}: {error}");
        }
        behave("exec sh -c \"$command\"");
        let nowhere = lab.worker(json!([{"name": "r", "url": "git@example.net:nowhere/x'y.git", "branch": "main"}]));
        let error = nowhere.clone_error().await;
        assert_eq!(error, "git@example.net:nowhere/x'y.git is not a git repository: check the URL");

        // A program that hangs is ended with all that it has started.
        behave("echo $$ > \"$here/running\"; sleep 600; echo");
        let worker = RemoteWorker { worker: lab.with_url(&url).worker.timeout(1) };
        let began = Instant::now();
        assert_eq!(worker.clone_error().await, "it was ended before it was complete");
        assert!(began.elapsed() < Duration::from_secs(5), "{:?}", began.elapsed());
        let running = fs::read_to_string(folder.join("running")).expect("it ran");
        // Nobody may have waited for it, but it does not run: a process that is killed ends when it is its turn.
        let until = Instant::now() + Duration::from_secs(10);
        loop {
            let state = fs::read_to_string(Path::new("/proc").join(running.trim()).join("stat")).unwrap_or_default();
            if state.is_empty() || state.contains(") Z ") {
                break;
            }
            assert!(Instant::now() < until, "{state}");
            tokio::task::yield_now().await;
        }
    });
}
