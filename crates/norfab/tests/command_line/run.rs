//! `norfab run`.

use insta::{allow_duplicates, assert_snapshot};
use rustix::process::Signal;
use serde_json::{Value, json};

use crate::support::{AskingWorker, FABRIC, Lab, eventually, held_by};

/// A fabric with two workers of one service.
fn two_workers() -> (Lab, crate::support::Role, crate::support::Role) {
    let (lab, up) = Lab::up();
    let second = lab.spawn(&["worker", "files-2", "--service", "filesharing"]);
    second.ready("worker files-2");
    lab.registered(&["files-2", "filesharing-worker-1"]);
    (lab, up, second)
}

fn workers_of(document: &Value) -> Vec<&str> {
    document["results"].as_object().expect("results").keys().map(String::as_str).collect()
}

#[test]
fn results_go_to_standard_output_and_events_to_standard_error() {
    let (lab, _up) = Lab::up();
    let ended =
        lab.run(&["run", "filesharing", "echo", "text=a b", "json:={\"list\":[1,true,null]}", "sign=x:=y", "sleep:=1"]);
    assert_eq!(ended.code, Some(0), "{ended:?}");
    let stdout = lab.redacted(&ended.stdout);
    let client = stdout.lines().find(|line| line.contains("client_address")).expect("a line").to_owned();
    assert_snapshot!(stdout.replace(&client, "  client_address: [client]"), @r"
    filesharing-worker-1:
      juuid: [id]
      client_address: [client]
      timeout: 600
      task: echo
      args: []
      kwargs:
        text: a b
        json:
          list:
            - 1
            - true
            - null
        sign: x:=y
    ");
    assert_snapshot!(lab.redacted(&ended.stderr), @"[time] INFO     filesharing-worker-1 running filesharing.echo starting");
    let quiet = lab.run(&["run", "filesharing", "list_files", "url=nf://", "-q"]);
    assert_eq!((quiet.code, quiet.stderr.as_str()), (Some(0), ""));
    let none = lab.run(&["run", "filesharing", "list_files", "url=nf://", "--events", "none"]);
    assert_eq!((none.code, none.stderr.as_str()), (Some(0), ""));
}

#[test]
fn a_job_goes_to_all_any_or_those_that_are_named() {
    let (lab, _up, _second) = two_workers();
    let of = |workers: &str| lab.json(&["run", "filesharing", "echo", "--json", "--workers", workers]);
    assert_eq!(workers_of(&of("all")), ["files-2", "filesharing-worker-1"]);
    assert_eq!(workers_of(&of("any")).len(), 1);
    assert_eq!(workers_of(&of("files-2")), ["files-2"]);
    assert_eq!(workers_of(&of("filesharing-worker-1,files-2")), ["files-2", "filesharing-worker-1"]);
    let default = lab.json(&["run", "filesharing", "echo", "--json"]);
    assert_eq!(workers_of(&default), ["files-2", "filesharing-worker-1"]);
}

#[test]
fn the_document_of_a_job_has_its_id_its_state_and_every_result() {
    let (lab, _up) = Lab::up();
    let document = lab.json(&["run", "filesharing", "echo", "a=1", "--json", "-t", "90s"]);
    assert_eq!(
        document.as_object().expect("one").keys().collect::<Vec<_>>(),
        ["uuid", "service", "task", "status", "errors", "results"]
    );
    assert_eq!(document["status"], "COMPLETED");
    assert_eq!(document["errors"], json!([]));
    let result = &document["results"]["filesharing-worker-1"];
    assert_eq!(result["failed"], false);
    assert_eq!(result["result"]["kwargs"], json!({"a": "1"}));
    assert_eq!(result["result"]["timeout"], 90);
    assert_eq!(result["juuid"], document["uuid"]);
    assert_eq!(result.as_object().map(serde_json::Map::len), Some(14));
}

#[test]
fn a_task_that_fails_ends_with_1_and_its_reason() {
    let (lab, _up) = Lab::up();
    let ended = lab.run(&["run", "filesharing", "echo", "raise_error=first line\nsecond line", "-q"]);
    assert_eq!((ended.code, ended.stdout.as_str()), (Some(1), ""));
    assert_snapshot!(ended.stderr, @r"
    error: worker filesharing-worker-1 failed:
      first line
      second line
    ");
    let ended = lab.run(&["run", "filesharing", "list_files", "folder=x", "-q"]);
    assert_eq!(ended.code, Some(1));
    assert!(ended.stderr.contains("folder"), "{}", ended.stderr);
    let document = lab.run(&["run", "filesharing", "echo", "raise_error=no", "--json", "-q"]);
    assert_eq!((document.code, document.stderr.as_str()), (Some(1), "error: worker filesharing-worker-1 failed: no\n"));
    let document = document.json();
    assert_eq!(document["status"], "COMPLETED");
    assert_eq!(document["results"]["filesharing-worker-1"]["errors"], json!(["no"]));
    let unknown = lab.run(&["run", "filesharing", "nope", "-q"]);
    assert_eq!(unknown.code, Some(1));
    assert!(unknown.stderr.contains("service 'filesharing' has no task \"nope\": its tasks are"), "{unknown:?}");
}

#[test]
fn whom_nobody_knows_is_named() {
    let (lab, _up) = Lab::up();
    let of = |arguments: &[&str]| {
        let ended = lab.run(&[&["run"], arguments, &["-q"]].concat());
        assert_eq!(ended.code, Some(1), "{ended:?}");
        ended.stderr
    };
    assert_snapshot!(of(&["nope", "echo"]), @"error: service 'nope' has no worker that can be reached: 'norfab workers' shows those that are registered");
    assert_snapshot!(of(&["nope", "echo", "--nowait"]), @"error: service 'nope' has no worker that can be reached: 'norfab workers' shows those that are registered");
    assert_snapshot!(of(&["filesharing", "echo", "-w", "ghost"]), @"error: service 'filesharing' has no worker ghost that can be reached: 'norfab workers' shows those that are registered");
    assert_snapshot!(of(&["filesharing", "echo", "-w", "a,b"]), @"error: service 'filesharing' has none of the workers a,b that can be reached: 'norfab workers' shows those that are registered");
    assert_snapshot!(of(&["filesharing", "echo", "-w", "ghost", "--json"]), @"error: service 'filesharing' has no worker ghost that can be reached: 'norfab workers' shows those that are registered");
    assert!(of(&["filesharing", "echo", "-w", "file*"]).contains("* and ? have no meaning in them"));
    assert_snapshot!(of(&["filesharing", "echo", "-w", "filesharing-worker-1,ghost"]), @"error: worker ghost is not registered for service 'filesharing': the job did not go to it");
    let document = lab.run(&["run", "filesharing", "echo", "-w", "filesharing-worker-1,ghost", "--json"]);
    assert_eq!(document.code, Some(1));
    let document = document.json();
    assert_eq!(document["results"]["filesharing-worker-1"]["failed"], false);
    assert!(document["errors"][0].as_str().is_some_and(|error| error.contains("ghost")), "{document}");
}

#[test]
fn arguments_that_are_none_are_usage() {
    let lab = Lab::new(crate::support::FABRIC);
    let of = |arguments: &[&str]| {
        let ended = lab.run(&[&["run", "s", "t"], arguments].concat());
        assert_eq!((ended.code, ended.stdout.as_str()), (Some(2), ""), "{ended:?}");
        ended.stderr
    };
    assert_snapshot!(of(&["word"]), @"error: argument 'word': write key=text or key:=JSON");
    assert_snapshot!(of(&["key:={"]), @"error: argument 'key:={': the part after := is not JSON: EOF while parsing an object at line 1 column 1");
    assert_snapshot!(of(&["=text"]), @"error: argument '=text' has no key before its sign");
    assert_snapshot!(of(&["a=1", "a=2"]), @"error: argument 'a' is given twice");
    assert_snapshot!(of(&["-w", "any,all"]), @"error: --workers any,all: 'any' stands alone, it is not combined with names: write any, all, or names with commas");
    assert_snapshot!(of(&["--nowait", "--answer", "true"]), @"error: --answer does not go with --nowait, as nobody is here any more when the task asks: 'norfab jobs UUID --answer JSON' answers it then");
    assert_snapshot!(of(&["--answer", "yes"]), @"error: --answer is not JSON: expected value at line 1 column 1: --answer true says yes");
}

#[test]
fn a_worker_that_does_not_answer_in_time_is_named() {
    let (lab, _up) = Lab::up();
    let marker = lab.path("held");
    // It outlives the time that a worker gives it to end by itself, so that the worker has nothing to say before its client is gone.
    let held = held_by(&marker).replacen("command=", "command=trap '' TERM; ", 1);
    let ended = lab.run(&["run", "filesharing", "run_shell_cmd", &held, "--timeout", "1s", "-q"]);
    assert_eq!((ended.code, ended.stdout.as_str()), (Some(4), ""));
    assert_snapshot!(lab.redacted(&ended.stderr), @"error: worker filesharing-worker-1 returned no result in time; it may still be at work on job [id]");
    std::fs::remove_file(&marker).ok();
    let ended = lab.run(&["run", "filesharing", "run_shell_cmd", &held, "--timeout", "1s", "-q", "--json"]);
    assert_eq!(ended.code, Some(4));
    assert!(ended.stderr.starts_with("error: worker filesharing-worker-1 returned no result in time"), "{ended:?}");
    let document = ended.json();
    assert_eq!(document["status"], "STALE");
    let result = &document["results"]["filesharing-worker-1"];
    assert_eq!((&result["failed"], &result["status"]), (&json!(true), &json!("timeout")));
    let id = document["uuid"].as_str().expect("an id");
    let asks = format!("'norfab run filesharing job_details uuid={id} -w filesharing-worker-1'");
    let hint = document["hint"].as_str().expect("a hint");
    assert!(hint.starts_with(&format!("'norfab jobs {id}' shows")) && hint.contains(&asks), "{hint}");
    let details =
        lab.json(&["run", "filesharing", "job_details", &format!("uuid={id}"), "-w", "filesharing-worker-1", "--json"]);
    assert_eq!(details["results"]["filesharing-worker-1"]["result"]["uuid"], id, "{details}");
    std::fs::remove_file(&marker).ok();
    let ended = lab.run(&["run", "filesharing", "run_shell_cmd", &held, "--timeout", "1s", "--events", "none"]);
    assert!(ended.stderr.contains("hint: 'norfab jobs "), "{ended:?}");
    std::fs::remove_file(&marker).ok();
}

#[test]
fn a_job_that_nobody_took_in_time_is_told_as_such() {
    let (lab, _up) = Lab::up();
    let of = |arguments: &[&str]| {
        let ended = lab.run(&[&["run"], arguments, &["--wait-for-workers", "-t", "1s"]].concat());
        assert_eq!(ended.code, Some(4), "{ended:?}");
        ended
    };
    assert_snapshot!(of(&["nope", "echo"]).stderr, @r"
    service 'nope' has no worker that can be reached at the moment: the job waits
    error: service 'nope' has no worker that can be reached, and none came in time: 'norfab workers' shows those that are registered
    ");
    assert_snapshot!(of(&["filesharing", "echo", "-w", "ghost"]).stderr, @r"
    service 'filesharing' has no worker ghost that can be reached at the moment: the job waits
    error: service 'filesharing' has no worker ghost that can be reached, and none came in time: 'norfab workers' shows those that are registered
    ");
    let document = of(&["nope", "echo", "--json"]).json();
    assert_eq!((&document["status"], &document["exit_code"]), (&json!("STALE"), &json!(4)), "{document}");
    assert!(document["hint"].as_str().is_some_and(|hint| hint.contains("norfab workers")), "{document}");
    let stored = lab.run(&["jobs", document["uuid"].as_str().expect("an id"), "--json"]);
    let told = "has ended as STALE: service 'nope' has no worker that can be reached, and none came in time";
    assert!(stored.json()["error"].as_str().is_some_and(|error| error.ends_with(told)), "{stored:?}");
    assert_eq!((stored.code, &stored.json()["hint"]), (Some(4), &document["hint"]), "{stored:?}");
    let named = of(&["filesharing", "echo", "-w", "a,b", "--json"]).json();
    let stored = lab.run(&["jobs", named["uuid"].as_str().expect("an id")]);
    assert!(stored.stderr.contains("has none of the workers a,b that can be reached, and none came"), "{stored:?}");
}

#[test]
fn events_as_json_are_whole_lines_and_so_is_everything_else() {
    let (lab, _up) = Lab::up();
    let _asking = AskingWorker::start(&lab);
    let ended = lab.run(&["run", "asking", "events", "count:=500", "--events", "json"]);
    assert_eq!(ended.code, Some(0), "{ended:?}");
    let lines: Vec<Value> = ended
        .stderr
        .lines()
        .map(|line| serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}")))
        .collect();
    let messages: Vec<&str> = lines
        .iter()
        .filter(|line| line["resource"] == json!(["r1"]) || line["resource"] == "r1")
        .filter_map(|line| line["message"].as_str())
        .collect();
    let expected: Vec<String> = (0..500).map(|number| format!("event \u{1b}[31m{number}\nsecond line")).collect();
    assert_eq!(messages, expected);
    let quiet = lab.run(&["run", "asking", "events", "count:=5", "--events", "json", "-q"]);
    assert_eq!((quiet.code, quiet.stderr.as_str()), (Some(0), ""));
    let quiet = lab.run(&["run", "asking", "events", "count=x", "--events", "json", "-q"]);
    let error: Value = serde_json::from_str(&quiet.stderr).unwrap_or_else(|error| panic!("{error}: {quiet:?}"));
    assert_eq!((quiet.code, &error["level"]), (Some(1), &json!("ERROR")));
    for arguments in [&["asking", "events", "count=x"][..], &["nope", "x"], &["asking", "events", "wrong"]] {
        let ended = lab.run(&[&["run"], arguments, &["--events", "json"]].concat());
        assert_ne!(ended.code, Some(0), "{ended:?}");
        let last = ended.stderr.lines().last().expect("a line");
        let last: Value = serde_json::from_str(last).unwrap_or_else(|error| panic!("{error}: {ended:?}"));
        assert_eq!(last["level"], "ERROR", "{last}");
    }
}

#[test]
fn an_event_cannot_steer_the_terminal() {
    let (lab, _up) = Lab::up();
    let _asking = AskingWorker::start(&lab);
    let ended = lab.run(&["run", "asking", "events", "count:=1"]);
    let event = ended.stderr.lines().find(|line| line.contains("[r1]")).unwrap_or_else(|| panic!("{ended:?}"));
    assert!(event.ends_with(r"asking.events [r1] event \u{1b}[31m0\nsecond line"), "{event}");
    let nothing = lab.run(&["run", "asking", "nothing", "-q"]);
    assert_eq!((nothing.code, nothing.stdout.as_str()), (Some(0), "asker:\n  null\n"));
}

#[test]
fn ctrl_c_leaves_the_job_running_and_says_how_to_look_at_it() {
    let (lab, _up) = Lab::up();
    let marker = lab.path("held");
    let run = lab.spawn(&["run", "filesharing", "run_shell_cmd", &held_by(&marker), "-q"]);
    eventually("the job runs", || marker.exists());
    let ended = run.stop(Signal::INT);
    assert_eq!((ended.code, ended.stdout.as_str()), (Some(130), ""));
    assert_snapshot!(lab.redacted(&ended.stderr), @r"

    interrupted: job [id] goes on; 'norfab jobs [id]' shows what becomes of it, 'norfab cancel [id]' cancels it
    ");
    let id = ended.stderr.split_whitespace().find(|word| word.len() == 32).expect("an id").to_owned();
    let unfinished = lab.run(&["jobs", &id, "--wait", "1s"]);
    assert_eq!(unfinished.code, Some(4), "{unfinished:?}");
    std::fs::remove_file(&marker).expect("it is there");
    let document = lab.json(&["jobs", &id, "--wait", "1m", "--json"]);
    assert_eq!(document["results"]["filesharing-worker-1"]["result"]["stdout"], "released\n", "{document}");
}

#[test]
fn sigterm_says_the_same_without_a_line_for_the_terminal() {
    let (lab, _up) = Lab::up();
    let marker = lab.path("held");
    let run = lab.spawn(&["run", "filesharing", "run_shell_cmd", &held_by(&marker), "-q"]);
    eventually("the job runs", || marker.exists());
    let ended = run.stop(Signal::TERM);
    std::fs::remove_file(&marker).expect("it is there");
    assert_eq!((ended.code, ended.stdout.as_str()), (Some(143), ""));
    assert!(ended.stderr.starts_with("terminated: job "), "{ended:?}");
}

#[test]
fn clients_at_the_same_time_have_names_of_their_own() {
    let (lab, _up) = Lab::up();
    let marker = lab.path("held");
    let first = lab.spawn(&["run", "filesharing", "run_shell_cmd", &held_by(&marker), "-q"]);
    eventually("the job runs", || marker.exists());
    let of = |arguments: &[&str]| {
        let document = lab.json(&[&["run", "filesharing", "echo", "--json"], arguments].concat());
        document["results"]["filesharing-worker-1"]["result"]["client_address"].as_str().expect("a name").to_owned()
    };
    let second = of(&[]);
    assert!(second.ends_with("-2"), "{second}");
    assert_eq!(of(&["--name", "mine"]), "mine");
    std::fs::remove_file(&marker).expect("it is there");
    assert_eq!(first.end().code, Some(0));
    assert_eq!(of(&[]), second.trim_end_matches("-2"));

    let marker = lab.path("held");
    let _first = lab.spawn(&["run", "filesharing", "run_shell_cmd", &held_by(&marker), "-q", "--name", "mine"]);
    eventually("the job runs", || marker.exists());
    let taken = lab.run(&["workers", "--name", "mine"]);
    assert_eq!(taken.code, Some(5));
    assert_snapshot!(taken.stderr, @"error: client name 'mine' is in use by another process here: wait for it, or give another --name");
    std::fs::remove_file(&marker).expect("it is there");
}

#[test]
fn a_client_cannot_have_the_name_of_a_worker_that_runs_here() {
    let (lab, up) = Lab::up();
    for command in [&["workers"][..], &["run", "filesharing", "echo"], &["health"]] {
        let taken = lab.run(&[command, &["--name", "filesharing-worker-1"]].concat());
        assert_eq!(taken.code, Some(5), "{taken:?}");
        allow_duplicates! { assert_snapshot!(taken.stderr, @"error: client name 'filesharing-worker-1' is the name of a worker that runs here: give another --name") }
    }
    assert_eq!(lab.run(&["run", "filesharing", "echo", "-q"]).code, Some(0));
    // What is stored under the name can be looked at.
    assert_eq!(lab.run(&["jobs", "--name", "filesharing-worker-1", "--offline"]).code, Some(0));
    assert_eq!(up.stop(Signal::TERM).code, Some(0));
    let _broker = lab.start(&["broker"]);
    assert_eq!(lab.run(&["workers", "--name", "filesharing-worker-1"]).code, Some(0));
}

#[test]
fn errors_and_messages_of_results_that_did_not_fail_are_told_and_steer_no_terminal() {
    let (lab, _up) = Lab::up();
    let _asking = AskingWorker::start(&lab);
    let ended = lab.run(&["run", "asking", "tell", "--events", "none"]);
    assert_eq!((ended.code, ended.stdout.as_str()), (Some(0), "asker:\n  done\n"), "{ended:?}");
    assert_snapshot!(ended.stderr, @r"
    asker: cut\u{1b}[31m short
    warning: worker asker:
      r1 did not\u{1b}[2J answer
      nor did r2
    ");
    let quiet = lab.run(&["run", "asking", "tell", "-q"]);
    assert_snapshot!(quiet.stderr, @r"
    warning: worker asker:
      r1 did not\u{1b}[2J answer
      nor did r2
    ");
    let failed = lab.run(&["run", "asking", "refuse", "-q"]);
    assert_eq!(failed.code, Some(1));
    assert!(!failed.stderr.contains('\u{1b}') && failed.stderr.contains("no\\u{1b}[2J"), "{failed:?}");
    let one = lab.run(&["tasks", "asking", "tell"]);
    assert!(!one.stdout.contains('\u{1b}') && one.stdout.contains("Tells\\u{1b}[2J"), "{one:?}");
    for arguments in [&["tell"][..], &["refuse"], &["events", "count:=2"]] {
        let ended = lab.run(&[&["run", "asking"], arguments, &["--events", "json"]].concat());
        assert!(!ended.stderr.is_empty());
        for line in ended.stderr.lines() {
            let value: Value = serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line:?}"));
            assert!(value.is_object(), "{line}");
        }
    }
}

#[test]
fn a_full_disk_is_no_success() {
    let (lab, _up) = Lab::up();
    for arguments in [
        &["run", "filesharing", "echo", "-q"][..],
        &["workers"],
        &["workers", "--json"],
        &["inventory"],
        &["run", "filesharing", "echo", "--events", "json"],
    ] {
        let mut command = lab.command(arguments);
        command.stdout(std::fs::File::options().write(true).open("/dev/full").expect("it is there"));
        let ended = crate::support::Role::spawn(command).end();
        assert_eq!(ended.code, Some(1), "{arguments:?}: {ended:?}");
        assert!(ended.stderr.contains("cannot write to standard output: No space left"), "{arguments:?}: {ended:?}");
    }
}

#[test]
fn a_job_that_is_not_waited_for_names_whom_it_does_not_reach() {
    let (lab, _up) = Lab::up();
    let ended = lab.run(&["run", "filesharing", "echo", "-w", "filesharing-worker-1,ghost", "--nowait"]);
    // The broker has just begun, so the worker may be on its way.
    assert_eq!((ended.code, ended.stdout.trim().len()), (Some(0), 32), "{ended:?}");
    assert_snapshot!(ended.stderr, @"warning: not registered at the moment: ghost: the job waits");
}

#[test]
fn a_target_of_nobody_is_a_wrong_command_line() {
    let lab = Lab::new(FABRIC);
    for workers in ["", ",", " , "] {
        let ended = lab.run(&["run", "filesharing", "echo", "-w", workers]);
        assert_eq!((ended.code, ended.stdout.as_str()), (Some(2), ""), "{ended:?}");
        assert_eq!(ended.stderr, "error: --workers names nobody: write any, all, or names with commas\n");
    }
}

#[test]
fn a_job_for_a_worker_whose_connection_was_just_lost_waits_for_it() {
    let lab = Lab::new(FABRIC);
    let _broker = lab.start(&["broker"]);
    // Until then it takes anybody for somebody who is on the way.
    eventually("the broker knows its workers", || lab.run(&["run", "nobody", "echo", "-t", "1s"]).code == Some(1));
    for whom in ["filesharing-worker-1", "any", "all"] {
        let worker = lab.spawn(&["worker", "filesharing-worker-1"]);
        worker.ready("worker filesharing-worker-1");
        lab.registered(&["filesharing-worker-1"]);
        // The broker takes it for registered until its hold time is over.
        worker.signal(Signal::KILL);
        worker.end();
        let run = lab.spawn(&["run", "filesharing", "echo", "-w", whom]);
        run.told_on_stderr("the job waits");
        let _worker = lab.spawn(&["worker", "filesharing-worker-1"]);
        let ended = run.end();
        assert_eq!(ended.code, Some(0), "{whom}: {ended:?}");
    }
}

#[test]
fn a_result_beyond_the_limit_of_its_worker_is_told_with_how_its_task_ended() {
    let lab = Lab::new(&format!("{FABRIC}      result_bytes_max: 2000\n"));
    let _up = lab.start(&["up"]);
    lab.registered(&["filesharing-worker-1"]);
    assert_eq!(lab.run(&["run", "filesharing", "echo", "text=short"]).code, Some(0));
    let long = "printf '%3000s'";
    for (command, outcome, errors) in
        [(long, "succeeded", 1), (&*format!("{long}; echo broken >&2; exit 3"), "failed", 2)]
    {
        let command = format!("command={command}");
        let ended = lab.run(&["run", "filesharing", "run_shell_cmd", &command, "--json"]);
        assert_eq!(ended.code, Some(1), "{ended:?}");
        let document = ended.json();
        let result = &document["results"]["filesharing-worker-1"];
        assert_eq!((&result["failed"], &result["result"]), (&json!(true), &json!(null)), "{result}");
        let told = result["errors"].as_array().expect("a list");
        assert!(told[0].as_str().is_some_and(|text| text.contains("raise result_bytes_max")), "{result}");
        assert_eq!(told.len(), errors, "those of the task itself are kept: {result}");
        assert!(told[1..].iter().all(|error| error.to_string().contains("broken")), "{result}");
        assert_eq!(result["messages"][0], format!("the task itself {outcome}, only its result is missing"), "{result}");
    }
}
