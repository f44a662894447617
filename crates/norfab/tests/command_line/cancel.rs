//! `norfab cancel`, and `norfab run --cancel-on-interrupt`.

use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, test_kill_process};
use serde_json::json;

use crate::support::{FABRIC, Lab, Role, eventually};

/// Submits a job that would take a minute, and waits until it runs.
fn long_job(lab: &Lab) -> String {
    let id = lab.run(&["run", "filesharing", "echo", "sleep:=60", "--nowait"]).stdout.trim().to_owned();
    assert!(!id.is_empty());
    id
}

/// Starts a command that waits for a job of a minute, and waits until the job runs.
fn job_of_another_command(lab: &Lab) -> (Role, String) {
    let run = lab.spawn(&["run", "filesharing", "echo", "sleep:=60"]);
    run.told_on_stderr("starting");
    let id = lab.json(&["jobs", "--json", "--offline"])[0]["uuid"].as_str().expect("an id").to_owned();
    (run, id)
}

/// A broker and a worker in processes of their own: what happens to one does not happen to the other.
fn apart() -> (Lab, Role, Role) {
    let lab = Lab::new(FABRIC);
    let broker = lab.start(&["broker"]);
    let worker = worker(&lab);
    (lab, broker, worker)
}

fn worker(lab: &Lab) -> Role {
    let worker = lab.spawn(&["worker", "filesharing-worker-1"]);
    worker.ready("worker filesharing-worker-1");
    worker
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
fn whoever_cancels_is_named_by_the_system_where_no_variable_does() {
    let (lab, _up) = Lab::up();
    let id = long_job(&lab);
    let mut command = lab.command(&["cancel", &id]);
    command.env("USER", "").env_remove("LOGNAME");
    let ended = Role::spawn(command).end();
    let uid = rustix::process::getuid().as_raw();
    let users = std::fs::read_to_string("/etc/passwd").unwrap_or_default();
    let of_uid = users.lines().find(|line| line.split(':').nth(2) == Some(uid.to_string().as_str()));
    let user = of_uid.and_then(|line| line.split(':').next()).map_or(format!("uid {uid}"), str::to_owned);
    assert!(ended.stdout.contains(&format!("cancelled by {user}@")), "{ended:?}");
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
    let run = lab.spawn(&["run", "filesharing", "echo", "sleep:=60", "--json"]);
    run.told_on_stderr("starting");
    let id = lab.json(&["jobs", "--json", "--offline"])[0]["uuid"].as_str().expect("an id").to_owned();
    let ended = lab.run(&["cancel", &id, "--reason", "not now"]);
    assert_eq!(ended.code, Some(0), "{ended:?}");
    let run = run.end();
    assert_eq!(run.code, Some(1), "{run:?}");
    assert!(run.stderr.contains("cancelled by ") && run.stderr.contains(": not now"), "{}", run.stderr);
    let stored = lab.run(&["jobs", &id, "--json", "--offline"]).json();
    assert_eq!(run.json()["results"], stored["results"], "both show what the worker returned");
    let cancelled = stored["results"]["filesharing-worker-1"]["cancelled"].as_str().unwrap_or_default();
    assert!(cancelled.ends_with(": not now"), "{stored}");
}

#[test]
fn several_cancellations_of_one_client_at_once_all_reach_their_jobs() {
    let (lab, _up) = Lab::up();
    let ids: Vec<String> = (0..4).map(|_| long_job(&lab)).collect();
    let commands: Vec<Role> = ids.iter().map(|id| lab.spawn(&["cancel", id, "--json"])).collect();
    for (command, id) in commands.into_iter().zip(&ids) {
        let ended = command.end();
        assert_eq!((ended.code, &ended.json()["status"]), (Some(0), &json!("CANCELLED")), "{ended:?}");
        let job = lab.run(&["jobs", id, "--json", "--offline"]).json();
        assert_eq!(job["status"], "CANCELLED", "{job}");
        let cancelled = job["results"]["filesharing-worker-1"]["cancelled"].as_str().unwrap_or_default();
        assert!(cancelled.starts_with("cancelled by "), "{job}");
    }
}

#[test]
fn several_cancellations_without_a_broker_are_all_written_down() {
    let (lab, up) = Lab::up();
    let ids: Vec<String> = (0..3).map(|_| long_job(&lab)).collect();
    up.signal(Signal::KILL);
    up.end();
    let commands: Vec<Role> = ids.iter().map(|id| lab.spawn(&["cancel", id, "--wait", "20s", "--json"])).collect();
    eventually("all are written down", || {
        let jobs = lab.json(&["jobs", "--json", "--offline"]);
        jobs.as_array().expect("jobs").iter().all(|job| job["status"] == "CANCELLING")
    });
    for command in commands {
        command.signal(Signal::TERM);
        command.end();
    }
    let _up = lab.start(&["up"]);
    eventually("the worker is told of all", || {
        ids.iter().all(|id| lab.run(&["cancel", id, "--json"]).json()["status"] == "CANCELLED")
    });
}

#[test]
fn a_job_in_a_database_that_cannot_be_read_is_not_told_as_unknown() {
    let (lab, _up) = Lab::up();
    let id = long_job(&lab);
    for name in lab.names("__norfab__/files/client") {
        let database = lab.path(format!("__norfab__/files/client/{name}/jobs.db"));
        std::fs::write(database, "no database").expect("written");
    }
    let ended = lab.run(&["cancel", &id]);
    assert_eq!(ended.code, Some(5), "{ended:?}");
    assert!(ended.stderr.contains("is in none of the job databases that can be read"), "{ended:?}");
}

#[test]
fn a_job_whose_worker_is_away_stays_cancelled_and_is_told_later() {
    let (lab, up) = Lab::up();
    let id = long_job(&lab);
    up.signal(Signal::KILL);
    up.end();
    let begun = Instant::now();
    let ended = lab.run(&["cancel", &id, "--wait", "3s", "--json"]);
    assert!(begun.elapsed() >= Duration::from_secs(3), "the broker may come as long as that: {:?}", begun.elapsed());
    assert_eq!(ended.code, Some(4), "{ended:?}");
    let told = ended.json();
    assert!(told["errors"][0].as_str().is_some_and(|text| text.starts_with("cancelled by ")), "{told}");
    let worker = told["workers"]["filesharing-worker-1"].as_str().expect("it is named");
    assert!(worker.contains("was not told"), "{worker}");
    let pending = told["pending"].as_str().expect("it is pending");
    assert!(pending.contains("no broker was reached: it is written down"), "{pending}");
    assert!(ended.stderr.ends_with(&format!("error: {pending}\n")), "{ended:?}");
    let (error, hint) = (told["error"].as_str().expect("a text"), told["hint"].as_str().expect("a text"));
    assert_eq!((format!("{error}: {hint}").as_str(), &told["exit_code"]), (pending, &json!(4)), "{told}");
    assert_eq!(lab.json(&["jobs", "--json", "--offline"])[0]["status"], "CANCELLING");
    let text = lab.run(&["cancel", &id, "--wait", "10ms"]);
    assert!(text.stderr.contains("worker filesharing-worker-1: "), "{text:?}");
    let _up = lab.start(&["up"]);
    eventually("the worker is told and confirms", || {
        lab.run(&["cancel", &id, "--json"]).json()["status"] == "CANCELLED"
    });
}

#[test]
fn a_worker_that_does_not_confirm_is_named_with_what_is_known_of_it() {
    let (lab, _broker, worker) = apart();
    let id = long_job(&lab);
    worker.signal(Signal::STOP);
    let ended = lab.run(&["cancel", &id, "--wait", "1s", "--json"]);
    worker.signal(Signal::CONT);
    assert_eq!(ended.code, Some(4), "{ended:?}");
    let standing = ended.json()["workers"]["filesharing-worker-1"].clone();
    assert!(standing.as_str().is_some_and(|text| text.contains("has not confirmed it")), "{standing}");
    let ended = lab.run(&["cancel", &id, "--json"]);
    assert_eq!(
        (ended.code, &ended.json()["workers"]),
        (Some(0), &json!({"filesharing-worker-1": "ended"})),
        "{ended:?}"
    );
}

#[test]
fn a_worker_that_confirms_late_is_waited_for_as_long_as_the_caller_wants() {
    let lab = Lab::new(FABRIC);
    let _broker = lab.start(&["broker"]);
    let worker = lab.spawn(&["worker", "filesharing-worker-1"]);
    worker.ready("worker filesharing-worker-1");
    let id = long_job(&lab);
    worker.signal(Signal::STOP);
    let cancel = lab.spawn(&["cancel", &id, "--wait", "50s", "--json"]);
    // The client's own patience has ended then.
    cancel.told_on_stderr("warning: worker filesharing-worker-1 has not confirmed it yet and is waited for");
    worker.signal(Signal::CONT);
    let ended = cancel.end();
    assert_eq!((ended.code, &ended.json()["status"]), (Some(0), &json!("CANCELLED")), "{ended:?}");
}

#[test]
fn a_worker_that_does_not_confirm_is_named_also_where_another_command_waits_for_the_job() {
    let (lab, _broker, worker) = apart();
    let (run, id) = job_of_another_command(&lab);
    worker.signal(Signal::STOP);
    let ended = lab.run(&["cancel", &id, "--wait", "1s"]);
    worker.signal(Signal::CONT);
    assert_eq!(ended.code, Some(4), "{ended:?}");
    assert!(ended.stdout.contains("cancelled by "), "that command has written it down: {ended:?}");
    assert!(
        ended.stderr.contains("warning: worker filesharing-worker-1: cancelled, but the worker has not confirmed it")
    );
    let run = run.end();
    assert_eq!(run.code, Some(1), "{run:?}");
}

#[test]
fn a_worker_that_is_away_is_not_said_to_be_told_where_another_command_waits_for_the_job() {
    let (lab, _broker, worker) = apart();
    let (run, id) = job_of_another_command(&lab);
    worker.signal(Signal::KILL);
    worker.end();
    eventually("the broker has seen it go", || lab.json(&["workers", "--json"]) == json!([]));
    let ended = lab.run(&["cancel", &id, "--wait", "1s", "--json"]);
    assert_eq!(ended.code, Some(4), "{ended:?}");
    let standing = ended.json()["workers"]["filesharing-worker-1"].clone();
    assert!(standing.as_str().is_some_and(|text| text.contains("was not told")), "{standing}");
    run.stop(Signal::TERM);
}

#[test]
fn a_worker_that_is_away_is_not_said_to_be_told_later_where_the_command_that_has_the_job_has_not_heard_of_it() {
    let lab = Lab::new(FABRIC);
    let _broker = lab.start(&["broker"]);
    let worker = lab.spawn(&["worker", "filesharing-worker-1"]);
    worker.ready("worker filesharing-worker-1");
    let run = lab.spawn(&["run", "filesharing", "echo", "sleep:=60"]);
    run.told_on_stderr("starting");
    let id = lab.json(&["jobs", "--json", "--offline"])[0]["uuid"].as_str().expect("an id").to_owned();
    worker.signal(Signal::KILL);
    worker.end();
    eventually("the broker has seen it go", || lab.json(&["workers", "--json"]) == json!([]));
    // A command that is frozen hears of nothing.
    run.signal(Signal::STOP);
    let ended = lab.run(&["cancel", &id, "--wait", "1s", "--json"]);
    run.signal(Signal::CONT);
    assert_eq!(ended.code, Some(4), "{ended:?}");
    let told = ended.json();
    assert!(told["pending"].as_str().is_some_and(|text| text.contains("nothing is written down")), "{told}");
    let standing = told["workers"]["filesharing-worker-1"].as_str().expect("it is named");
    assert!(standing.contains("was not told") && !standing.contains("is told when it returns"), "{standing}");
    run.stop(Signal::TERM);
}

#[test]
fn a_job_that_nobody_ever_had_ends_at_once_and_never_runs() {
    let lab = Lab::new(FABRIC);
    let _broker = lab.start(&["broker"]);
    for whom in ["any", "all", "filesharing-worker-1"] {
        let waiting = ["run", "filesharing", "echo", "--nowait", "--wait-for-workers", "-w", whom];
        let id = lab.run(&waiting).stdout.trim().to_owned();
        let begun = Instant::now();
        let ended = lab.run(&["cancel", &id, "--reason", "nobody is there"]);
        assert_eq!((ended.code, ended.stderr.as_str()), (Some(0), ""), "{whom}: {ended:?}");
        assert!(ended.stdout.starts_with(&format!("job {id}: cancelled by ")), "{ended:?}");
        assert!(begun.elapsed() < Duration::from_secs(8), "{whom}: it waits for nothing: {:?}", begun.elapsed());
    }
    let ids: Vec<String> = lab
        .json(&["jobs", "--json", "--offline"])
        .as_array()
        .expect("rows")
        .iter()
        .map(|row| {
            assert_eq!(row["status"], "CANCELLED", "{row}");
            row["uuid"].as_str().expect("an id").to_owned()
        })
        .collect();
    let _worker = worker(&lab);
    for id in ids {
        assert_eq!(lab.run(&["jobs", &id, "--json"]).json()["status"], "CANCELLED");
        let remote = lab.run(&["run", "filesharing", "job_details", &format!("uuid={id}"), "--json"]);
        assert!(remote.stdout.contains("has no job with the id"), "its worker never had it: {remote:?}");
    }
}

#[test]
fn a_job_that_waits_for_workers_in_another_command_ends_there_as_cancelled() {
    let lab = Lab::new(FABRIC);
    let _broker = lab.start(&["broker"]);
    let run = lab.spawn(&["run", "filesharing", "echo", "--wait-for-workers"]);
    run.told_on_stderr("the job waits");
    let id = lab.json(&["jobs", "--json", "--offline"])[0]["uuid"].as_str().expect("an id").to_owned();
    let ended = lab.run(&["cancel", &id, "--reason", "not now"]);
    assert_eq!((ended.code, ended.stderr.as_str()), (Some(0), ""), "{ended:?}");
    let run = run.end();
    assert_eq!(run.code, Some(1), "{run:?}");
    assert!(run.stderr.contains("cancelled by ") && run.stderr.contains(": not now"), "{}", run.stderr);
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
    let _worker = worker(&lab);
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

#[test]
fn to_cancel_a_job_kills_all_processes_that_it_started_also_those_that_do_not_listen() {
    let (lab, _up) = Lab::up();
    let started = lab.path("started");
    // Neither the shell nor its child hears the polite signal. Both end with the folder.
    let deaf = format!("trap '' TERM HUP INT; while test -d '{}'; do sleep 0.1; done", lab.path("shared").display());
    let command =
        format!("command=({deaf}) & echo \"$! $$\" > '{0}.new'; mv '{0}.new' '{0}'; {deaf}", started.display());
    let id = lab.run(&["run", "filesharing", "run_shell_cmd", &command, "--nowait"]).stdout.trim().to_owned();
    eventually("both processes run", || started.exists());
    let processes: Vec<Pid> = lab
        .read("started")
        .split_whitespace()
        .map(|id| Pid::from_raw(id.parse().expect("a number")).expect("a process"))
        .collect();
    assert!(processes.len() == 2 && processes.iter().all(|id| test_kill_process(*id).is_ok()), "{processes:?}");
    let ended = lab.run(&["cancel", &id, "--json"]);
    assert_eq!((ended.code, &ended.json()["status"]), (Some(0), &json!("CANCELLED")), "{ended:?}");
    // The child is nobody's any more: whoever takes such processes in buries it.
    let gone = |id: &Pid| {
        std::fs::read_to_string(format!("/proc/{}/stat", id.as_raw_nonzero()))
            .map_or(true, |stat| stat.contains(") Z "))
    };
    eventually("no process is left", || processes.iter().all(gone));
}
