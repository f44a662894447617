//! `norfab cancel`, and `norfab run --cancel-on-interrupt`.

use rustix::process::Signal;
use serde_json::json;

use crate::support::{FABRIC, Lab, eventually};

/// Submits a job that would take a minute, and waits until it runs.
fn long_job(lab: &Lab) -> String {
    let id = lab.run(&["run", "filesharing", "echo", "sleep:=60", "--nowait"]).stdout.trim().to_owned();
    assert!(!id.is_empty());
    id
}

#[test]
fn a_job_is_cancelled_on_its_workers_and_says_so_ever_after() {
    let (lab, _up) = Lab::up();
    let id = long_job(&lab);
    let ended = lab.run(&["cancel", &id, "--reason", "typo"]);
    assert_eq!((ended.code, ended.stderr.as_str()), (Some(0), ""), "{ended:?}");
    assert!(ended.stdout.starts_with(&format!("job {id}: cancelled by ")), "{}", ended.stdout);
    assert!(ended.stdout.ends_with(": typo\n"), "{}", ended.stdout);

    let shown = lab.run(&["jobs", &id, "--json"]);
    assert_eq!(shown.code, Some(1));
    let job = shown.json();
    assert_eq!(job["status"], "CANCELLED");
    let text = job["errors"][0].as_str().expect("a text").to_owned();
    assert!(text.starts_with("cancelled by ") && text.ends_with(": typo"), "{text}");
    let result = &job["results"]["filesharing-worker-1"];
    assert_eq!(result["failed"], true, "{result}");
    assert!(result.to_string().contains(&text), "{result}");
    let remote = lab.json(&["run", "filesharing", "job_details", &format!("uuid={id}"), "--json"]);
    assert!(remote.to_string().contains("CANCELLED"), "its worker knows it as cancelled: {remote}");

    let again = lab.run(&["cancel", &id, "--json"]);
    assert_eq!((again.code, &again.json()["status"]), (Some(0), &json!("CANCELLED")));
}

#[test]
fn what_cannot_be_cancelled_says_why() {
    let (lab, _up) = Lab::up();
    let unknown = lab.run(&["cancel", "nope"]);
    assert_eq!(unknown.code, Some(1));
    assert!(unknown.stderr.contains("job nope is not known here"), "{}", unknown.stderr);
    let job = lab.json(&["run", "filesharing", "echo", "--json"]);
    let ended = lab.run(&["cancel", job["uuid"].as_str().expect("an id")]);
    assert_eq!(ended.code, Some(1));
    assert!(ended.stderr.contains("has ended already: COMPLETED"), "{}", ended.stderr);
}

#[test]
fn a_job_that_another_command_waits_for_is_cancelled_and_that_command_is_told() {
    let (lab, _up) = Lab::up();
    let run = lab.spawn(&["run", "filesharing", "echo", "sleep:=60"]);
    run.told_on_stderr("starting");
    let id = lab.json(&["jobs", "--json", "--offline"])[0]["uuid"].as_str().expect("an id").to_owned();
    let ended = lab.run(&["cancel", &id, "--reason", "not now"]);
    assert_eq!(ended.code, Some(0), "{ended:?}");
    let run = run.end();
    assert_eq!(run.code, Some(1), "{run:?}");
    assert!(run.stderr.contains("cancelled by ") && run.stderr.contains(": not now"), "{}", run.stderr);
}

#[test]
fn a_job_whose_worker_is_away_stays_cancelled_and_is_told_later() {
    let (lab, up) = Lab::up();
    let id = long_job(&lab);
    let mut up = Some(up);
    if let Some(up) = up.take() {
        up.signal(Signal::KILL);
        up.end();
    }
    let ended = lab.run(&["cancel", &id, "--wait", "1s"]);
    assert_eq!(ended.code, Some(4), "{ended:?}");
    assert!(ended.stdout.contains("cancelled by "), "{ended:?}");
    assert_eq!(lab.json(&["jobs", "--json", "--offline"])[0]["status"], "CANCELLING");
    let _up = lab.start(&["up"]);
    eventually("the worker is told and confirms", || {
        lab.run(&["cancel", &id, "--json"]).json()["status"] == "CANCELLED"
    });
}

#[test]
fn a_signal_cancels_the_job_where_that_is_asked_for() {
    for (signal, code) in [(Signal::INT, 130), (Signal::TERM, 143)] {
        let (lab, _up) = Lab::up();
        let run = lab.spawn(&["run", "filesharing", "echo", "sleep:=60", "--cancel-on-interrupt"]);
        run.told_on_stderr("starting");
        let ended = run.stop(signal);
        assert_eq!(ended.code, Some(code), "{ended:?}");
        assert!(ended.stderr.contains("cancelled by "), "{}", ended.stderr);
        assert_eq!(lab.json(&["jobs", "--json"])[0]["status"], "CANCELLED");
    }
}

#[test]
fn to_cancel_a_job_sends_no_other_one() {
    let lab = Lab::new(FABRIC);
    let _broker = lab.start(&["broker"]);
    let waiting = ["run", "filesharing", "echo", "--nowait", "--wait-for-workers"];
    let ids: Vec<String> = (0..2).map(|_| lab.run(&waiting).stdout.trim().to_owned()).collect();
    let worker = lab.spawn(&["worker", "filesharing-worker-1"]);
    worker.ready("worker filesharing-worker-1");
    let ended = lab.run(&["cancel", &ids[0], "--wait", "3s"]);
    assert!(ended.stdout.contains("cancelled by "), "{ended:?}");
    let state = |id: &str| {
        let jobs = lab.json(&["jobs", "--json", "--offline"]);
        let rows = jobs.as_array().expect("rows").clone();
        rows.iter().find(|row| row["uuid"] == id).expect("a row")["status"].clone()
    };
    assert_eq!(state(&ids[1]), "NEW", "it waits for a command that means it");
    lab.run(&["jobs", &ids[1]]);
    assert_eq!(state(&ids[1]), "COMPLETED");
}
