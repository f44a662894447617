//! `norfab health`.

use insta::assert_snapshot;
use rustix::process::Signal;
use serde_json::json;

use crate::support::{FABRIC, Lab, eventually, held_by};

/// A broker, and two workers in processes of their own; the second one runs one job at a time.
const TWO: &str = r#"
broker:
  endpoint: "tcp://127.0.0.1:*"
topology:
  broker: true
workers:
  files-1:
    - {service: filesharing, base_dir: shared}
  files-2:
    - {service: filesharing, base_dir: shared, run_shell_cmd: true, max_concurrent_jobs: 1}
"#;

#[test]
fn healthy_is_who_answers_a_job_and_nobody_else() {
    let lab = Lab::new(TWO);
    let _broker = lab.start(&["broker"]);
    let none = lab.run(&["health"]);
    assert_eq!((none.code, none.stderr.as_str()), (Some(1), "error: no worker is registered\n"), "{none:?}");
    let first = lab.spawn(&["worker", "files-1"]);
    let _second = lab.spawn(&["worker", "files-2"]);
    lab.registered(&["files-1", "files-2"]);
    let health = lab.json(&["health", "--json"]);
    assert_eq!(health["healthy"], true, "{health}");
    for worker in health["workers"].as_array().expect("rows") {
        assert_eq!((&worker["health"], &worker["error"]), (&json!("answers"), &json!(null)), "{health}");
        assert!(worker["milliseconds"].as_f64().is_some_and(|taken| taken > 0.0), "{health}");
    }
    assert_eq!(lab.json(&["jobs", "--json"]), json!([]), "probes are not kept");

    // One is frozen, which its process and its registration do not show; the other has something else to do.
    first.signal(Signal::STOP);
    let marker = lab.path("held");
    let held = lab.run(&["run", "filesharing", "run_shell_cmd", &held_by(&marker), "-w", "files-2", "--nowait"]);
    assert_eq!(held.code, Some(0), "{held:?}");
    eventually("the job runs", || marker.exists());
    let ended = lab.run(&["health", "filesharing", "-t", "1s", "--json"]);
    assert_eq!(ended.code, Some(1), "{ended:?}");
    let health = ended.json();
    let found: Vec<_> = health["workers"].as_array().expect("rows").iter().map(|row| row["health"].clone()).collect();
    assert_eq!((found, &health["healthy"]), (vec![json!("silent"), json!("busy")], &json!(false)), "{health}");
    let error = "worker files-1: registered, does not answer; worker files-2: takes jobs, does not get round to them";
    assert_eq!((&health["error"], &health["exit_code"]), (&json!(error), &json!(1)), "{health}");
    assert!(ended.stderr.contains(error), "{}", ended.stderr);
    let hint = health["hint"].as_str().expect("what to do");
    assert!(hint.contains("see its log") && hint.contains("-t TIME"), "{hint}");
    eventually(
        "the list of workers says so of the frozen one, which its last probes did not get an answer from",
        || {
            let rows = lab.json(&["workers", "--json"]);
            let of = |name: &str| rows.as_array().expect("rows").iter().find(|row| row["name"] == name).cloned();
            let is_silent = |name| of(name).is_some_and(|row| row["unanswered (s)"].is_string());
            is_silent("files-1") && !is_silent("files-2")
        },
    );
    assert!(lab.run(&["workers"]).stdout.contains("UNANSWERED (S)"));
    first.signal(Signal::CONT);
    std::fs::remove_file(&marker).expect("it is there");
    eventually("both answer again", || lab.run(&["health", "-t", "5s"]).code == Some(0));
}

#[test]
fn a_service_without_workers_is_named() {
    let lab = Lab::new(FABRIC);
    let _up = lab.start(&["up"]);
    lab.registered(&["filesharing-worker-1"]);
    let ended = lab.run(&["health", "filesharing", "nornir"]);
    assert_eq!(ended.code, Some(1), "{ended:?}");
    assert_eq!(ended.stdout.lines().count(), 2, "{ended:?}");
    assert_snapshot!(ended.stderr, @"error: service 'nornir' has no workers: 'norfab workers' shows those of all services");
}

#[test]
fn a_worker_that_refuses_jobs_is_told_from_one_that_says_nothing_and_its_reason_is_told() {
    let lab = Lab::new(TWO);
    let _broker = lab.start(&["broker"]);
    let worker = lab.spawn(&["worker", "files-2"]);
    lab.registered(&["files-2"]);
    let marker = lab.path("held");
    let held = lab.run(&["run", "filesharing", "run_shell_cmd", &held_by(&marker), "-w", "files-2", "--nowait"]);
    assert_eq!(held.code, Some(0), "{held:?}");
    eventually("the job runs", || marker.exists());
    // It lets its job come to its end, and takes no other.
    worker.signal(Signal::TERM);
    let mut last = json!(null);
    eventually("it refuses", || {
        last = lab.run(&["health", "--json", "-t", "1s"]).json()["workers"][0].clone();
        last["health"] == "refuses"
    });
    assert!(last["error"].as_str().is_some_and(|text| text.contains("worker files-2 is stopping")), "{last}");
    let ended = lab.run(&["health"]);
    assert_eq!(ended.code, Some(1), "{ended:?}");
    assert!(ended.stdout.contains("answers, refuses jobs"), "{ended:?}");
    assert!(ended.stderr.contains("answers, refuses jobs: why a worker refuses is told of each"), "{ended:?}");
    assert!(ended.stderr.contains("warning: worker files-2: refused: worker files-2 is stopping"), "{ended:?}");
    std::fs::remove_file(&marker).expect("it is there");
    worker.end();
}
