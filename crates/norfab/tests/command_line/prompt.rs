//! Questions of tasks: answered beforehand, on a terminal, or not at all.

use insta::assert_snapshot;
use rustix::process::Signal;

use crate::support::{AskingWorker, Lab, OnTerminal, eventually};

#[test]
fn an_answer_that_was_given_beforehand_is_taken() {
    let (lab, _up) = Lab::up();
    let _asking = AskingWorker::start(&lab);
    let ended = lab.run(&["run", "asking", "ask", "--answer", r#"{"vlan":7}"#]);
    assert_eq!((ended.code, ended.stdout.as_str()), (Some(0), "asker:\n  answer:\n    vlan: 7\n"), "{ended:?}");
    assert!(ended.stderr.contains("asking.ask go on?"), "{}", ended.stderr);
}

#[test]
fn an_answer_that_was_given_beforehand_is_a_yes_or_no_where_one_is_asked_for() {
    let (lab, _up) = Lab::up();
    let _asking = AskingWorker::start(&lab);
    for (given, advice) in
        [("yes", "--answer true says yes\n"), ("no", "--answer false says no\n"), ("core", "'\"text\"'\n")]
    {
        let ended = lab.run(&["run", "asking", "ask", "default:=false", "--answer", given]);
        assert_eq!(ended.code, Some(2), "{ended:?}");
        assert!(ended.stderr.ends_with(advice), "{ended:?}");
    }
    for (given, taken) in [("true", "true"), ("\"yes\"", "true"), ("\"N\"", "false")] {
        let ended = lab.run(&["run", "asking", "ask", "default:=false", "--answer", given]);
        assert_eq!((ended.code, ended.stdout), (Some(0), format!("asker:\n  answer: {taken}\n")), "{given}");
    }
    let ended = lab.run(&["run", "asking", "ask", "default:=false", "--answer", "7", "-q"]);
    assert_eq!((ended.code, ended.stdout.as_str()), (Some(1), ""), "{ended:?}");
    assert_snapshot!(ended.stderr.lines().next().unwrap_or_default(), @"warning: worker asker asks 'go on?' for yes or no, and --answer 7 is neither: --answer true says yes, --answer false no");
}

#[test]
fn an_answer_for_a_job_that_has_ended_is_told_to_go_nowhere() {
    let (lab, _up) = Lab::up();
    let id = lab.json(&["run", "filesharing", "echo", "--json"])["uuid"].as_str().expect("an id").to_owned();
    let ended = lab.run(&["jobs", &id, "--answer", "true"]);
    assert_eq!(ended.code, Some(0), "{ended:?}");
    assert_eq!(
        ended.stderr,
        format!("warning: job {id} has ended: nothing is asked any more, and --answer goes nowhere\n")
    );
}

#[test]
fn a_question_of_a_job_that_nobody_waited_for_is_answered_later() {
    let (lab, _up) = Lab::up();
    let _asking = AskingWorker::start(&lab);
    let id = lab.json(&["run", "asking", "ask", "--nowait", "--json"])["uuid"].as_str().expect("an id").to_owned();
    let hint = format!("worker asker asks 'go on?': 'norfab jobs {id} --answer JSON' answers it");
    eventually("the question is shown", || {
        let asked = lab.run(&["jobs", &id, "--wait", "2s", "--json"]);
        assert_eq!(asked.code, Some(4), "{asked:?}");
        asked.stderr.contains(&hint)
    });
    eventually("the answer is taken", || {
        let answered = lab.run(&["jobs", &id, "--wait", "5s", "--answer", "[1]", "--json"]);
        answered.code == Some(0) && answered.json()["results"]["asker"]["result"]["answer"] == serde_json::json!([1])
    });
}

#[test]
fn without_a_terminal_a_question_is_cancelled_with_a_hint() {
    let (lab, _up) = Lab::up();
    let _asking = AskingWorker::start(&lab);
    let ended = lab.run(&["run", "asking", "ask", "-q"]);
    assert_eq!((ended.code, ended.stdout.as_str()), (Some(1), ""), "{ended:?}");
    let mut lines = ended.stderr.lines();
    assert_snapshot!(lines.next().unwrap_or_default(), @"warning: worker asker asks 'go on?', and there is no terminal: the question is cancelled; --answer JSON answers it");
    assert!(lines.next().is_some_and(|line| line.starts_with("error: worker asker failed: ")), "{ended:?}");
}

#[test]
fn a_person_is_asked_on_the_terminal() {
    let (lab, _up) = Lab::up();
    let _asking = AskingWorker::start(&lab);
    let mut terminal = OnTerminal::start(&lab, &["run", "asking", "ask", "default:=false"]);
    terminal.shows("asker: go on? [y/N] (60 s): ");
    terminal.types("perhaps\n");
    terminal.shows("please answer y or n\nasker: go on? [y/N] (60 s): ");
    terminal.types("yes\n");
    let (ended, shown) = terminal.end();
    assert_eq!((ended.code, ended.stdout.as_str()), (Some(0), "asker:\n  answer: true\n"), "{shown}");

    let mut terminal = OnTerminal::start(&lab, &["run", "asking", "ask", "default=core"]);
    terminal.shows("asker: go on? [core] (60 s): ");
    terminal.types("\n");
    let (ended, _) = terminal.end();
    assert_eq!((ended.code, ended.stdout.as_str()), (Some(0), "asker:\n  answer: core\n"));
}

#[test]
fn the_end_of_input_cancels_and_ctrl_c_leaves() {
    let (lab, _up) = Lab::up();
    let _asking = AskingWorker::start(&lab);
    let mut terminal = OnTerminal::start(&lab, &["run", "asking", "ask"]);
    terminal.shows("asker: go on? (60 s): ");
    terminal.types("\u{4}");
    let (ended, shown) = terminal.end();
    assert_eq!((ended.code, ended.stdout.as_str()), (Some(1), ""), "{shown}");
    assert!(shown.contains("cancelled"), "{shown}");

    let terminal = OnTerminal::start(&lab, &["run", "asking", "ask"]);
    terminal.shows("asker: go on? (60 s): ");
    terminal.role.signal(Signal::INT);
    terminal.shows("on its workers? [y/N] (Ctrl-C again leaves it running): ");
    terminal.role.signal(Signal::INT);
    let (ended, shown) = terminal.end();
    assert_eq!(ended.code, Some(130), "{shown}");
    assert!(shown.contains("goes on"), "{shown}");
}

#[test]
fn ctrl_c_on_a_terminal_offers_to_cancel_the_job() {
    let (lab, _up) = Lab::up();
    let mut terminal = OnTerminal::start(&lab, &["run", "filesharing", "echo", "sleep:=60"]);
    terminal.shows("starting");
    terminal.role.signal(Signal::INT);
    terminal.shows("on its workers? [y/N]");
    terminal.types("n\n");
    terminal.shows("the job goes on");
    terminal.role.signal(Signal::INT);
    eventually("it is asked again", || terminal.shown().matches("on its workers? [y/N]").count() == 2);
    terminal.types("maybe\n");
    terminal.shows("please answer y or n");
    terminal.types("y\n");
    let (ended, shown) = terminal.end();
    assert_eq!(ended.code, Some(130), "{shown}");
    assert!(shown.contains("cancelled by "), "{shown}");
    assert_eq!(lab.json(&["jobs", "--json"])[0]["status"], "CANCELLED");
}

#[test]
fn whether_to_cancel_stands_below_what_is_told_meanwhile() {
    let (lab, _up) = Lab::up();
    let _asking = AskingWorker::start(&lab);
    let mut terminal = OnTerminal::start(&lab, &["run", "asking", "beat"]);
    terminal.shows("beating");
    terminal.role.signal(Signal::INT);
    let prompt = "on its workers? [y/N] (Ctrl-C again leaves it running): ";
    eventually("it stands below each event", || terminal.shown().matches(prompt).count() >= 3);
    assert!(terminal.shown().contains(&format!("{prompt}\r\u{1b}[K")), "{}", terminal.shown());
    terminal.types("y\n");
    let (ended, shown) = terminal.end();
    assert_eq!(ended.code, Some(130), "{shown}");
}

#[test]
fn ctrl_c_on_a_terminal_asks_programs_too() {
    let (lab, _up) = Lab::up();
    let mut terminal = OnTerminal::start(&lab, &["run", "filesharing", "echo", "sleep:=60", "--events", "json"]);
    terminal.shows("starting");
    terminal.role.signal(Signal::INT);
    terminal.shows("on its workers? [y/N] (Ctrl-C again leaves it running):\"");
    terminal.types("y\n");
    let (ended, shown) = terminal.end();
    assert_eq!(ended.code, Some(130), "{shown}");
    let lines = shown.lines().filter(|line| *line != "y");
    lines.for_each(|line| assert!(line.starts_with('{') && line.ends_with('}'), "{line:?}"));
    assert_eq!(lab.json(&["jobs", "--json"])[0]["status"], "CANCELLED");
}

#[test]
fn a_question_that_nobody_waits_for_any_more_ends_with_its_job() {
    let (lab, _up) = Lab::up();
    let _asking = AskingWorker::start(&lab);
    let terminal = OnTerminal::start(&lab, &["run", "asking", "ask", "timeout:=1"]);
    terminal.shows("asker: go on? (1 s): ");
    let (ended, shown) = terminal.end();
    assert_eq!(ended.code, Some(1), "{shown}");
    assert!(shown.contains("worker asker does not wait for the answer any more"), "{shown}");
}
