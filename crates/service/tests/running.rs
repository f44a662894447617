//! How tasks end: well, badly, too late, with a panic, or because somebody ended them.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use norfab_service::schemars::{self, JsonSchema};
use norfab_service::testing::{TEST_JOB, TestWorker};
use norfab_service::{
    CancelReason, NoInput, ResultStatus, Service, ServiceName, Task, TaskContext, TaskError, TaskOutput, TaskResult,
};
use serde::Deserialize;
use serde_json::{Value, json};

fn worker(task: Task) -> TestWorker {
    TestWorker::new(Service::new(ServiceName::parse("dienst-ü").expect("a name")).task(task))
}

#[derive(Debug, Deserialize, JsonSchema)]
struct Pair {
    a: i64,
    #[serde(default)]
    b: Option<String>,
}

fn pair() -> Task {
    Task::new("ok", "Gives both.", async |_: TaskContext, input: Pair| Ok(json!({"a": input.a, "b": input.b})))
}

fn assert_failed(result: &TaskResult, status: ResultStatus, error: &str) {
    assert_eq!(result.errors, [error]);
    assert!(result.failed);
    assert_eq!(result.status, Some(status));
}

#[tokio::test]
async fn a_result_is_completed_with_all_that_the_task_did_not_say() {
    let job = worker(pair()).start_with("ok", json!([4]), json!({"b": "ünï — 日本 🚀"}));
    let result = job.result().await;
    let text = serde_json::to_string(&result).expect("plain data");
    let time = "Mon Nov 30 00:33:08 2026";
    let expected = format!(
        r#"{{"result":{{"a":4,"b":"ünï — 日本 🚀"}},"failed":false,"errors":[],"task":"test-worker:ok","messages":[],"juuid":"{TEST_JOB}","resources":[],"resources_failed":[],"status":"completed","task_started":"{time}","task_completed":"{time}","service":"dienst-ü","diff":null,"dry_run":false}}"#
    );
    assert_eq!(text, expected);
}

#[tokio::test]
async fn arguments_that_do_not_fit_never_reach_the_task() {
    let task = Task::new("ok", "", async |_: TaskContext, _: Pair| -> Result<(), TaskError> { panic!("ran") });
    let worker = worker(task);
    let result = worker.run("ok", json!({"a": "not-an-int"})).await;
    let error = r#"argument 'a': expected an integer, found string "not-an-int""#;
    assert_failed(&result, ResultStatus::Error, error);
    assert_eq!(result.task.as_deref(), Some("test-worker:ok"));
    assert_eq!(result.service.as_deref(), Some("dienst-ü"));
    let result = worker.run("ok", json!({"b": null})).await;
    let error = "missing argument 'a', the task takes 'a', 'b'";
    assert_failed(&result, ResultStatus::Error, error);
}

#[tokio::test]
async fn a_task_that_does_not_exist_is_told_with_those_that_do() {
    let result = worker(pair()).run("nope", json!({})).await;
    let error = r#"service 'dienst-ü' has no task "nope": its tasks are ok"#;
    assert_failed(&result, ResultStatus::Error, error);
}

#[tokio::test]
async fn what_a_task_says_of_itself_stays() {
    let task = Task::new("ok", "", async |_: TaskContext, _: NoInput| {
        Ok(TaskOutput::new([1, 2])
            .failed("e1")
            .error("e2")
            .message("m")
            .resource("r1")
            .resource_failed("r2")
            .status(ResultStatus::NoMatch)
            .diff("+x")
            .dry_run(true)
            .task("mine"))
    });
    let result = worker(task).run("ok", json!({})).await;
    assert_eq!(result.value(), Some(json!([1, 2])));
    assert_eq!(result.errors, ["e1", "e2"]);
    assert_eq!(result.status, Some(ResultStatus::NoMatch));
    assert_eq!(result.task.as_deref(), Some("mine"));
    assert_eq!(result.diff, Some(json!("+x")));
    assert!(result.failed && result.dry_run);
}

#[tokio::test]
async fn a_failed_result_without_a_status_is_failed_not_completed() {
    let task =
        Task::new("ok", "", async |_: TaskContext, _: NoInput| Ok(TaskOutput::new("half").failed("the other half")));
    let result = worker(task).run("ok", json!({})).await;
    assert_failed(&result, ResultStatus::Failed, "the other half");
    assert_eq!(result.value(), Some(json!("half")));
}

#[tokio::test]
async fn any_error_ends_a_task_and_tells_its_causes() {
    let task = Task::blocking("ok", "", |_: TaskContext, _: NoInput| -> Result<(), _> {
        let text = std::fs::read_to_string("does-not-exist-anywhere")?;
        Err(TaskError::new(text))
    });
    let result = worker(task).run("ok", json!({})).await;
    let error = "No such file or directory (os error 2)";
    assert_failed(&result, ResultStatus::Error, error);
}

#[tokio::test]
async fn a_panic_is_a_failed_result_wherever_it_happens() {
    let waiting = Task::new("ok", "", async |_: TaskContext, _: NoInput| -> Result<(), _> {
        tokio::task::yield_now().await;
        panic!("boom {}", 1)
    });
    let result = worker(waiting).run("ok", json!({})).await;
    assert_failed(&result, ResultStatus::Error, "the task panicked: boom 1");

    let boom = |_: TaskContext, _: NoInput| -> Result<(), _> { panic!("boom") };
    for on_thread in [Task::blocking("ok", "", boom), Task::yielding("ok", "", boom)] {
        let result = worker(on_thread).run("ok", json!({})).await;
        assert_failed(&result, ResultStatus::Error, "the task panicked: boom");
    }

    fn before(_: TaskContext, _: NoInput) -> std::future::Ready<Result<(), TaskError>> {
        panic!("before the first await")
    }
    let result = worker(Task::new("ok", "", before)).run("ok", json!({})).await;
    let error = "the task panicked: before the first await";
    assert_failed(&result, ResultStatus::Error, error);

    struct Grenade;
    impl Drop for Grenade {
        fn drop(&mut self) {
            panic!("when dropped")
        }
    }
    let dropping = Task::new("ok", "", async |context: TaskContext, _: NoInput| {
        let _grenade = Grenade;
        context.event("begun").await?;
        std::future::pending::<()>().await;
        Ok(())
    });
    let mut job = worker(dropping).start("ok", json!({}));
    assert_eq!(job.event().await.message, "begun");
    job.port().cancel(CancelReason::Requested(String::new()));
    tokio::time::pause();
    let result = job.result().await;
    assert_failed(&result, ResultStatus::Failed, "the task was ended: cancelled");
}

#[tokio::test]
async fn a_value_that_is_no_json_is_told_and_the_rest_of_the_outcome_stays() {
    let task = Task::new("ok", "", async |_: TaskContext, _: NoInput| {
        let no_texts_as_keys = BTreeMap::from([(vec![1], "x")]);
        Ok(TaskOutput::new(no_texts_as_keys).resource("switch-1").status(ResultStatus::Updated).diff("+x"))
    });
    let result = worker(task).run("ok", json!({})).await;
    let error = "the result cannot be written as JSON: key must be a string";
    assert_failed(&result, ResultStatus::Error, error);
    assert_eq!(result.messages, [r#"the task ended with status "updated" before its result could not be written"#]);
    assert_eq!(result.resources, ["switch-1"]);
    assert_eq!(result.diff, Some(json!("+x")));
    assert_eq!(result.value(), Some(Value::Null));
}

#[tokio::test(start_paused = true)]
async fn a_task_past_its_deadline_is_told_then_ended() {
    let told = Arc::new(AtomicBool::new(false));
    let tell = Arc::clone(&told);
    let task = Task::new("ok", "", move |context: TaskContext, _: NoInput| {
        let told = Arc::clone(&tell);
        async move {
            context.cancelled().cancelled().await;
            assert_eq!(context.cancel_reason(), Some(CancelReason::Deadline));
            assert_eq!(context.remaining(), Some(Duration::ZERO));
            told.store(true, Ordering::Relaxed);
            std::future::pending::<()>().await;
            Ok(())
        }
    });
    let began = tokio::time::Instant::now();
    let result = worker(task).timeout(7).run("ok", json!({})).await;
    let error = "the task did not end within its time-out of 7 s";
    assert_failed(&result, ResultStatus::Timeout, error);
    assert!(told.load(Ordering::Relaxed));
    let seconds = began.elapsed().as_secs();
    assert_eq!(seconds, 7 + norfab_service::CANCEL_GRACE.as_secs());
}

#[tokio::test(start_paused = true)]
async fn a_task_that_returns_what_it_has_at_its_deadline_is_heard() {
    let task = Task::new("ok", "", async |context: TaskContext, _: NoInput| {
        context.cancelled().cancelled().await;
        Ok(TaskOutput::new("half").failed("out of time"))
    });
    let result = worker(task).timeout(7).run("ok", json!({})).await;
    assert_failed(&result, ResultStatus::Failed, "out of time");
    assert_eq!(result.value(), Some(json!("half")));
}

#[tokio::test(start_paused = true)]
async fn a_task_that_fails_after_more_than_its_time_has_timed_out_and_one_that_succeeds_has_not() {
    // The client did not say how long it waits: nothing ends the task, the protocol's 60 s are compared.
    let late = |fails: bool| {
        Task::new("ok", "", move |_: TaskContext, _: NoInput| async move {
            tokio::time::sleep(Duration::from_secs(61)).await;
            if fails { Err(TaskError::new("late")) } else { Ok("late") }
        })
    };
    let result = worker(late(true)).run("ok", json!({})).await;
    assert_failed(&result, ResultStatus::Timeout, "late");
    let result = worker(late(false)).run("ok", json!({})).await;
    assert_eq!(result.status, Some(ResultStatus::Completed));
}

#[tokio::test(start_paused = true)]
async fn a_cancelled_job_ends_with_the_reason_and_the_first_reason_stands() {
    let task = Task::new("ok", "", async |context: TaskContext, _: NoInput| {
        context.event("begun").await?;
        std::future::pending::<()>().await;
        Ok(())
    });
    let mut job = worker(task).start("ok", json!({}));
    assert_eq!(job.event().await.message, "begun");
    job.port().cancel(CancelReason::Requested("wrong switch".to_owned()));
    job.port().cancel(CancelReason::WorkerStops);
    let result = job.result().await;
    let error = "the task was ended: cancelled: wrong switch";
    assert_failed(&result, ResultStatus::Failed, error);
}

#[tokio::test]
async fn a_blocking_task_sees_that_it_is_cancelled() {
    let until_cancelled = |context: TaskContext, _: NoInput| {
        context.event_blocking("started")?;
        while !context.is_cancelled() {
            std::thread::yield_now();
        }
        Ok("stopped half way")
    };
    for task in [Task::blocking("ok", "", until_cancelled), Task::yielding("ok", "", until_cancelled)] {
        let mut job = worker(task).start("ok", json!({}));
        assert_eq!(job.event().await.message, "started");
        job.port().cancel(CancelReason::WorkerStops);
        let result = job.result().await;
        assert_eq!(result.value(), Some(json!("stopped half way")));
    }
}

/// Elsewhere no thread can do that alone.
#[cfg(target_os = "linux")]
#[tokio::test]
async fn a_yielding_task_gives_way_to_other_threads_and_to_no_more_than_those() {
    let niceness = || rustix::process::getpriority_process(None).expect("known");
    let of_thread = move |_: TaskContext, _: NoInput| {
        // It can wait for futures, too.
        tokio::runtime::Handle::current().block_on(tokio::task::yield_now());
        Ok(json!(niceness()))
    };
    let usual = niceness();
    for (task, expected) in [
        (Task::yielding("ok", "", of_thread), (usual + 10).min(19)),
        // No thread that others use afterwards has become slow.
        (Task::blocking("ok", "", of_thread), usual),
    ] {
        let result = worker(task).run("ok", json!({})).await;
        assert_eq!(result.value(), Some(json!(expected)), "{result:?}");
    }
    assert_eq!(niceness(), usual);
}

/// A task that says when it begins, as one that is a future and as one that blocks.
fn saying() -> (Arc<AtomicBool>, [Task; 2]) {
    let ran = Arc::new(AtomicBool::new(false));
    let (of_task, of_blocking) = (Arc::clone(&ran), Arc::clone(&ran));
    let task = Task::new("ok", "", move |_: TaskContext, _: NoInput| {
        let ran = Arc::clone(&of_task);
        async move {
            ran.store(true, Ordering::SeqCst);
            Ok("ran")
        }
    });
    let blocking = Task::blocking("ok", "", move |_: TaskContext, _: NoInput| {
        of_blocking.store(true, Ordering::SeqCst);
        Ok("ran")
    });
    (ran, [task, blocking])
}

#[tokio::test]
async fn a_job_that_is_cancelled_or_late_before_its_task_begins_never_begins() {
    let requested = || CancelReason::Requested("cancelled by me".to_owned());
    for (seconds, reasons, status, error) in [
        (60, vec![requested()], ResultStatus::Failed, "the task did not begin: cancelled by me"),
        // Whose deadline has passed as well was cancelled all the same, and a worker that stops is the least of the reasons.
        (0, vec![requested()], ResultStatus::Failed, "the task did not begin: cancelled by me"),
        (0, vec![], ResultStatus::Timeout, "the task did not begin: its deadline has passed"),
        (0, vec![CancelReason::WorkerStops], ResultStatus::Timeout, "the task did not begin: its deadline has passed"),
        (60, vec![CancelReason::WorkerStops], ResultStatus::Error, "the task did not begin: the worker stops"),
    ] {
        let (ran, tasks) = saying();
        for task in tasks {
            // Nothing is polled before the test waits.
            let job = worker(task).timeout(seconds).start("ok", json!({}));
            for reason in &reasons {
                job.port().cancel(reason.clone());
            }
            let result = job.result().await;
            assert!(!ran.load(Ordering::SeqCst), "it began, though {reasons:?} with {seconds} s");
            assert_failed(&result, status, error);
            assert_eq!(result.task_started, None);
        }
    }
}

#[test]
fn a_blocking_task_that_was_cancelled_while_it_waited_for_a_thread_never_begins() {
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = runtime.enable_time().max_blocking_threads(1).build().expect("a runtime");
    let (ran, [_, blocking]) = saying();
    runtime.block_on(async {
        let (go, goes) = std::sync::mpsc::sync_channel::<()>(1);
        let taken = tokio::task::spawn_blocking(move || goes.recv());
        let job = worker(blocking).start("ok", json!({}));
        // It waits for the only thread then.
        tokio::task::yield_now().await;
        job.port().cancel(CancelReason::Requested("cancelled by me".to_owned()));
        go.send(()).expect("it waits for it");
        taken.await.expect("no panic").expect("told");
        let result = job.result().await;
        assert_failed(&result, ResultStatus::Failed, "the task did not begin: cancelled by me");
    });
    assert!(!ran.load(Ordering::SeqCst));
}

#[test]
fn what_was_to_run_on_a_thread_does_not_when_nobody_waits_for_it_any_more() {
    let runtime = tokio::runtime::Builder::new_current_thread().max_blocking_threads(1).build().expect("a runtime");
    let ran = Arc::new(AtomicBool::new(false));
    let of_thread = Arc::clone(&ran);
    runtime.block_on(async {
        let (go, goes) = std::sync::mpsc::sync_channel::<()>(1);
        let taken = tokio::task::spawn_blocking(move || goes.recv());
        let waits = tokio::spawn(norfab_service::on_blocking_thread(move || of_thread.store(true, Ordering::SeqCst)));
        tokio::task::yield_now().await;
        waits.abort();
        assert!(waits.await.is_err_and(|error| error.is_cancelled()));
        go.send(()).expect("it waits for it");
        taken.await.expect("no panic").expect("told");
        tokio::task::spawn_blocking(|| ()).await.expect("behind it");
    });
    assert!(!ran.load(Ordering::SeqCst));
}

#[tokio::test(start_paused = true)]
async fn what_a_task_has_done_by_its_deadline_stands() {
    let task = Task::new("ok", "", async |context: TaskContext, _: NoInput| {
        tokio::time::sleep(Duration::from_secs(context.timeout())).await;
        Ok("done")
    });
    let result = worker(task).timeout(7).run("ok", json!({})).await;
    assert_eq!((result.status, result.value()), (Some(ResultStatus::Completed), Some(json!("done"))));
}

#[tokio::test]
async fn tasks_are_sorted_and_the_services_own_wins_over_a_built_in_one() {
    let own = || Task::new("echo", "Mine.", async |_: TaskContext, _: NoInput| Ok("mine"));
    let name = || ServiceName::parse("s").expect("a name");
    let policy = norfab_service::BuiltinPolicy::default();
    let before = Service::new(name()).task(own()).with_builtin_tasks(policy);
    let after = Service::new(name()).with_builtin_tasks(policy).task(own());
    for service in [before, after] {
        let names: Vec<&str> = service.tasks().map(|task| task.name().as_str()).collect();
        assert!(names.is_sorted());
        assert_eq!(names.len(), 12);
        assert!(!names.contains(&"run_shell_cmd"));
        let result = TestWorker::new(service).run("echo", json!({})).await;
        assert_eq!(result.value(), Some(json!("mine")));
    }
}
