//! `run_shell_cmd` with real shells and real processes.
#![cfg(unix)]

use std::path::Path;
use std::time::Duration;

use norfab_service::builtin::SHELL_OUTPUT_BYTES_MAX;
use norfab_service::testing::{TestJob, TestWorker};
use norfab_service::{BuiltinPolicy, CancelReason, ResultStatus, Service, ServiceName, TaskResult};
use rustix::process::{Pid, test_kill_process};
use serde_json::{Value, json};

fn worker() -> TestWorker {
    let service = Service::new(ServiceName::parse("dummy").expect("a name"));
    TestWorker::new(service.with_builtin_tasks(BuiltinPolicy { shell: true }))
}

async fn run(kwargs: Value) -> TaskResult {
    worker().run("run_shell_cmd", kwargs).await
}

#[tokio::test]
async fn a_command_gives_its_outputs_and_its_exit_code() {
    let result = run(json!({"command": "echo öut; echo err >&2"})).await;
    let expected = r#"{"command":"echo öut; echo err >&2","stdout":"öut\n","stderr":"err\n","returncode":0,"timeout":null,"timed_out":false}"#;
    assert_eq!(result.result.get(), expected);
    assert!(!result.failed);
    assert_eq!(result.status, Some(ResultStatus::Completed));
}

#[tokio::test]
async fn a_command_that_fails_is_a_failed_result_with_what_it_complained() {
    let result = run(json!({"command": "echo bad >&2; exit 3"})).await;
    assert_eq!(result.value().expect("JSON")["returncode"], 3);
    assert_eq!(result.errors, ["bad\n"]);
    assert_eq!(result.status, Some(ResultStatus::Failed));
    let result = run(json!({"command": "exit 4"})).await;
    assert_eq!(result.errors, ["the command ended with exit status: 4"]);
    let result = run(json!({"command": "kill -9 $$"})).await;
    assert_eq!(result.value().expect("JSON")["returncode"], -9);
    assert!(result.failed);
}

#[tokio::test]
async fn output_that_is_not_utf_8_is_shown_as_far_as_it_is() {
    let result = run(json!({"command": r"printf 'a\377b'"})).await;
    assert_eq!(result.value().expect("JSON")["stdout"], "a\u{fffd}b");
    assert!(!result.failed);
}

#[tokio::test]
async fn output_without_end_is_cut_and_counted() {
    let more = 12_345;
    let bytes = SHELL_OUTPUT_BYTES_MAX + more;
    let result = run(json!({"command": format!("head -c {bytes} /dev/zero | tr '\\0' x")})).await;
    assert!(!result.failed);
    let stdout = result.value().expect("JSON")["stdout"].take();
    assert_eq!(stdout.as_str().map(str::len), Some(SHELL_OUTPUT_BYTES_MAX));
    assert_eq!(result.messages, ["stdout was cut: 8388608 bytes were kept, 12345 more were dropped"]);
}

#[tokio::test]
async fn a_command_past_its_time_keeps_what_it_wrote() {
    let result = run(json!({"command": "echo first; sleep 1000", "timeout": 1})).await;
    let expected = r#"{"command":"echo first; sleep 1000","stdout":"first\n","stderr":"","returncode":null,"timeout":1,"timed_out":true}"#;
    assert_eq!(result.result.get(), expected);
    assert_eq!(result.errors, ["Command timed out after 1 seconds"]);
    assert_eq!(result.status, Some(ResultStatus::Failed));
}

#[tokio::test]
async fn a_command_that_is_to_end_is_told_first_and_its_last_words_are_kept() {
    let command = "trap 'echo bye; exit' TERM; echo begun; while :; do sleep 0.05; done";
    let result = run(json!({"command": command, "timeout": 1})).await;
    assert_eq!(result.value().expect("JSON")["stdout"], "begun\nbye\n");
}

/// Starts a shell whose child writes its process id to a file, and waits for it.
async fn with_child(worker: &TestWorker, folder: &Path, before: &str) -> (TestJob, Pid) {
    let file = folder.join("pid");
    let command = format!("{before} sh -c 'echo $$ > {0}.new; mv {0}.new {0}; exec sleep 1000' & wait", file.display());
    let job = worker.start("run_shell_cmd", json!({"command": command}));
    let child = wait_for(|| {
        let text = std::fs::read_to_string(&file).ok()?;
        Pid::from_raw(text.trim().parse().ok()?)
    });
    (job, child.await)
}

async fn wait_for<Found>(look: impl Fn() -> Option<Found>) -> Found {
    let found = async {
        loop {
            if let Some(found) = look() {
                return found;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(20), found).await.expect("it comes")
}

/// A process that has ended is gone, or waits for whoever started it to notice.
fn has_ended(process: Pid) -> Option<()> {
    let state = std::fs::read_to_string(format!("/proc/{}/stat", process.as_raw_nonzero()));
    let is_zombie = state.is_ok_and(|text| text.contains(") Z "));
    (is_zombie || test_kill_process(process).is_err()).then_some(())
}

#[tokio::test]
async fn cancellation_kills_a_running_command_and_its_children() {
    let folder = tempfile::tempdir().expect("a folder");
    let (job, child) = with_child(&worker(), folder.path(), "echo begun;").await;
    assert_eq!(has_ended(child), None);
    job.port().cancel(CancelReason::Requested("by the operator".to_owned()));
    let result = job.result().await;
    wait_for(|| has_ended(child)).await;
    assert_eq!(result.errors, ["the command was killed: cancelled: by the operator"]);
    let value = result.value().expect("JSON");
    assert_eq!(value["stdout"], "begun\n");
    assert_eq!(value["timed_out"], false);
}

#[tokio::test]
async fn children_that_ignore_the_polite_signal_are_killed_at_the_deadline() {
    let folder = tempfile::tempdir().expect("a folder");
    let worker = worker().timeout(1);
    let (job, child) = with_child(&worker, folder.path(), "trap '' TERM;").await;
    let result = job.result().await;
    wait_for(|| has_ended(child)).await;
    assert_eq!(result.errors, ["the command was killed at the job's deadline"]);
    assert_eq!(result.status, Some(ResultStatus::Timeout));
    assert_eq!(result.value().expect("JSON")["timed_out"], true);
}

#[tokio::test]
async fn a_worker_that_drops_a_job_leaves_no_process_behind() {
    let folder = tempfile::tempdir().expect("a folder");
    let worker = worker();
    let (context, _port, _messages) = worker.context("run_shell_cmd");
    let file = folder.path().join("pid");
    let command = format!("echo $$ > {0}.new; mv {0}.new {0}; sleep 1000", file.display());
    let kwargs = json!({"command": command}).as_object().expect("an object").clone();
    let service = std::sync::Arc::clone(context.catalogue());
    let running = tokio::spawn(async move { service.run(context, Vec::new(), kwargs).await });
    let shell = wait_for(|| {
        let text = std::fs::read_to_string(&file).ok()?;
        Pid::from_raw(text.trim().parse().ok()?)
    })
    .await;
    running.abort();
    assert!(running.await.is_err_and(|error| error.is_cancelled()));
    wait_for(|| has_ended(shell)).await;
}
