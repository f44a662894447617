//! What programs read of failures: `--json` for each command, and where hints say that a value is from.

use rustix::process::Signal;
use serde_json::Value;

use crate::support::{Ended, FABRIC, Lab, Role, held_by};

/// An id that no job has.
const NO_JOB: &str = "0123456789abcdef0123456789abcdef";

/// A failure: what is typed, the exit code, what `error` has, what `hint` has; `None`: nothing is known to do.
type Row<'a> = (&'a [&'a str], i32, &'a str, Option<&'a str>);

/// Checks the one document of a failure, and that people read the same.
fn check(typed: &[&str], ended: &Ended, code: i32, error: &str, hint: Option<&str>) -> Value {
    assert_eq!(ended.code, Some(code), "{typed:?}: {ended:?}");
    let document = ended.json();
    assert_eq!(document["exit_code"], code, "{typed:?}: {document}");
    let told = document["error"].as_str().unwrap_or_default();
    assert!(!told.is_empty() && told.contains(error), "{typed:?}: {document}");
    assert_eq!(document["hint"].is_string(), hint.is_some(), "{typed:?}: {document}");
    if let (Some(told), Some(hint)) = (document["hint"].as_str(), hint) {
        assert!(told.contains(hint), "{typed:?}: {document}");
        assert!(words(&ended.stderr).contains(&words(told)), "{typed:?}: {ended:?}");
    }
    // Several errors stand on lines of their own there.
    let first = words(told.split("; ").next().unwrap_or_default());
    assert!(words(&ended.stderr).contains(&format!("error: {first}")), "{typed:?}: {ended:?}");
    document
}

/// A text without its layout.
fn words(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Runs each row in a lab. Returns the commands that it was about.
fn check_all<'a>(lab: &Lab, rows: &[Row<'a>]) -> Vec<&'a str> {
    for (typed, code, error, hint) in rows {
        check(typed, &lab.run(&[*typed, &["--json"]].concat()), *code, error, *hint);
    }
    rows.iter().map(|(typed, ..)| typed[0]).collect()
}

#[test]
fn each_failure_of_each_command_is_one_document_with_error_hint_and_exit_code() {
    let mut commands = Vec::new();

    // An inventory that is none.
    let broken = Lab::new("broker: [\n");
    let yaml = "inventory.yaml:";
    commands.extend(check_all(
        &broken,
        &[
            (&["up"], 5, yaml, None),
            (&["broker"], 5, yaml, None),
            (&["worker", "w"], 5, yaml, None),
            (&["run", "s", "t"], 5, yaml, None),
            (&["mmi", "mmi.service.broker", "get_status"], 5, yaml, None),
            (&["files", "get", "nf://a"], 5, yaml, None),
            (&["jobs"], 5, yaml, None),
            (&["jobs", "prune"], 5, yaml, None),
            (&["jobs", "export"], 5, yaml, None),
            (&["jobs", "import"], 5, yaml, None),
            (&["cancel", NO_JOB], 5, yaml, None),
            (&["workers"], 5, yaml, None),
            (&["health"], 5, yaml, None),
            (&["tasks", "s"], 5, yaml, None),
            (&["inventory"], 5, yaml, None),
            (&["broker-key"], 5, yaml, None),
        ],
    ));

    // Nothing says where the broker is.
    let nowhere = "there is no inventory.yaml here";
    let rows: Vec<Row<'_>> =
        [&["workers"][..], &["run", "s", "t"], &["up"], &["worker", "w"], &["jobs"], &["broker-key"]]
            .map(|typed| (typed, 5, nowhere, Some("norfab init")))
            .to_vec();
    check_all(&Lab::empty(), &rows);
    let up: Row<'_> = (&["up", "--endpoint", "tcp://127.0.0.1:1"], 5, nowhere, Some("norfab init"));
    check_all(&Lab::empty(), &[up]);

    // A folder that is there, none that can be made, and a command line that is none.
    let lab = Lab::new(FABRIC);
    commands.extend(check_all(&lab, &[(&["init", "."], 5, "inventory.yaml exists already", Some("--force"))]));
    let mut command = lab.command(&["demo", "--json"]);
    command.env("TMPDIR", lab.path("inventory.yaml"));
    check(&["demo"], &Role::spawn(command).end(), 1, "inventory.yaml", None);
    commands.push("demo");
    // It only fails where it is called wrongly.
    commands.push("completion");
    check_all(
        &lab,
        &[
            (&["workers", "--nope"], 2, "unexpected argument '--nope'", Some("")),
            (&["run", "s"], 2, "required arguments were not provided: <TASK>", Some("'norfab run -h' shows")),
            (&["jobs", "prune", "--keep"], 2, "a value is required for '--keep", Some("'norfab jobs prune -h' shows")),
            (&["run", "s", "t", "--timeout", "soon"], 2, "is no time: write", Some("'norfab run -h' shows")),
            (&["run", "s", "t", "-t", "-5"], 2, "'-5' is no time: write 500ms", Some("'norfab run -h' shows")),
            (&["run", "s", "t", "-t", "-5s"], 2, "unexpected argument '-5'", Some("'norfab run -h' shows")),
            (&["jobs", "--last", "-1"], 2, "'-1' is no count: write a whole number", Some("'norfab jobs -h' shows")),
            (&["jobs", "--last", "abc"], 2, "'abc' is no count", Some("'norfab jobs -h' shows")),
            (&["inventory", "--worker", "x"], 2, "unexpected argument '--worker'", Some("'norfab inventory -h' shows")),
            (&["run", "s", "t", "--timout", "5"], 2, "unexpected argument '--timout'", Some("'--timeout'")),
            (&["run", "s", "t", "--nowait", "--answer", "1"], 2, "does not go with --nowait", Some("norfab jobs UUID")),
            (&["init", "inventory.yaml"], 5, "is there and no folder", Some("another name")),
            (&["nonsense"], 2, "unrecognized subcommand", Some("'norfab -h' lists the commands")),
            (&["run", "s", "t", "word"], 2, "argument 'word'", Some("key=text")),
            (&["run", "s", "t", "url:=nf://a"], 2, "not JSON", Some("url=nf://a")),
            (&["run", "s", "t", "-w", ""], 2, "--workers names nobody", Some("any, all")),
            (&["run", "s", "t", "--answer", "yes"], 2, "--answer is not JSON", Some("--answer true says yes")),
            (&["mmi", "mmi.service.broker", "t", "word"], 2, "argument 'word'", Some("key=text")),
            (&["files", "get", "a"], 2, "'a' is no file URL", Some("write nf://PATH")),
            (&["files", "get", "nf://"], 2, "names no file", Some("nf://PATH")),
            (&["files", "ls", "x"], 2, "'x' is no file URL", Some("write nf://PATH")),
            (&["files", "get", "nf://a/x", "nf://b/x"], 2, "would both become 'x'", Some("one after the other")),
            (&["files", "ls", "-w", ""], 2, "--workers names nobody", Some("any, all")),
            (&["files", "stat", "x"], 2, "'x' is no file URL", Some("write nf://PATH")),
            (&["completion", "tcsh"], 2, "invalid value 'tcsh'", Some("'zsh'")),
            (&["jobs", ""], 2, "job id is empty", Some("norfab jobs")),
            (&["jobs", "--offline", "prune"], 2, "do not go with 'prune'", None),
            (&["jobs", "--last", "5", "export"], 2, "do not go with 'prune'", None),
            (&["jobs", "--wait", "2s", "prune"], 2, "do not go with 'prune'", None),
            (&["run", "mmi.service.broker", "get_stats"], 2, "is the broker itself", Some("norfab mmi")),
            (&["tasks", "sid.service.broker"], 2, "is the broker itself", Some("norfab mmi")),
            (&["jobs", NO_JOB, "--answer", "yes"], 2, "--answer is not JSON", Some("--answer true says yes")),
            (&["cancel", ""], 2, "job id is empty", Some("norfab jobs")),
            (&["run", "", "t"], 2, "service name is empty", Some("norfab workers")),
            (&["run", "s", ""], 2, "task name is empty", Some("norfab tasks s")),
            (&["mmi", "", "t"], 2, "service name is empty", Some("mmi.service.broker")),
            (&["workers", "--name", "../x"], 5, "cannot be the name of a folder: it has a slash", Some("use letters")),
            (&["jobs", "--name", "a\tb"], 5, "cannot be the name of a folder", Some("use letters, digits and dashes")),
            (
                &["worker", "../x", "--service", "filesharing", "--broker-key", "none"],
                5,
                "no worker could be started: \"../x\" cannot be the name of a folder",
                Some("use letters"),
            ),
            (
                &["workers", "--endpoint", "nope", "--broker-key", "none"],
                5,
                "malformed endpoint",
                Some("write tcp://HOST:PORT"),
            ),
            (&["jobs", NO_JOB], 1, "is not known here", Some("norfab jobs")),
            (&["jobs", "export", "inventory.yaml"], 5, "is there already", Some("--force")),
            (
                &["workers", "--broker-key", "short"],
                5,
                "--broker-key: \"short\" is not a CURVE key",
                Some("norfab broker-key"),
            ),
            (&["broker", "--broker-key", "short"], 5, "\"short\" is not a CURVE key", Some("norfab broker-key")),
            (
                &["worker", "w", "--service", "nope", "--broker-key", "none"],
                5,
                "no worker could be started: worker w: service 'nope' is not built into",
                Some("Python NorFab"),
            ),
            (&["inventory", "ghost"], 5, "nothing is known of worker 'ghost'", Some("inventory.yaml")),
            (&["broker-key", "--broker-key", "none"], 5, "--broker-key none says", Some("without it")),
            (&["run", "s", "t"], 3, "has not run yet", Some("norfab up")),
        ],
    );

    // A broker that is not there any more.
    assert_eq!(lab.start(&["broker"]).stop(Signal::TERM).code, Some(0));
    let asking: [&[&str]; 7] = [
        &["run", "filesharing", "echo"],
        &["mmi", "mmi.service.broker", "get_status"],
        &["files", "get", "nf://a", "here"],
        &["workers"],
        &["health"],
        &["tasks", "filesharing"],
        &["inventory", "--remote"],
    ];
    check_all(&lab, &asking.map(|typed| (typed, 3, "no broker answers at", Some("correct NORFAB_ENDPOINT"))));

    // One with another key, and one that listens at the same port.
    let _up = lab.start(&["up"]);
    lab.registered(&["filesharing-worker-1"]);
    let other = Lab::new(FABRIC).json(&["broker-key", "--json"])["public_key"].as_str().expect("a key").to_owned();
    let with_key = asking.map(|typed| [typed, &["--broker-key", &other]].concat());
    let rows: Vec<Row<'_>> =
        with_key.iter().map(|typed| (&typed[..], 3, "refused the connection", Some("correct --broker-key"))).collect();
    check_all(&lab, &rows);
    for command in ["up", "broker"] {
        check_all(&lab, &[(&[command], 5, "the address is in use", Some("NORFAB_ENDPOINT"))]);
    }

    // What nobody has.
    let nobody = "service 'nope' has no worker that can be reached";
    check_all(
        &lab,
        &[
            (&["run", "nope", "echo"], 1, nobody, Some("norfab workers")),
            (&["run", "nope", "echo", "--nowait"], 1, nobody, Some("norfab workers")),
            (&["run", "filesharing", "nope"], 1, "has no task \"nope\"", None),
            (&["run", "filesharing", "echo", "raise_error=no"], 1, "worker filesharing-worker-1 failed: no", None),
            (&["run", "filesharing", "list_files", "folder=x"], 1, "folder", None),
            (&["run", "filesharing", "echo", "sleep=1"], 1, "argument 'sleep'", Some("sleep:=1")),
            (
                &["run", "filesharing", "echo", "-w", "filesharing-worker-1,ghost"],
                1,
                "worker ghost is not",
                Some("'norfab workers' shows"),
            ),
            (
                &["run", "filesharing", "echo", "-w", "filesharing-worker-1,ghost", "--nowait"],
                1,
                "worker ghost is not",
                Some("'norfab workers' shows"),
            ),
            (&["mmi", "nope", "get_status"], 1, "the broker has no service 'nope'", Some("mmi.service.broker")),
            (&["mmi", "mmi.service.broker", "nope"], 1, "nope", Some("show_workers")),
            (&["files", "get", "nf://nope"], 1, "nf://nope", Some("norfab files ls nf://")),
            (&["files", "ls", "nf://nope"], 1, "nf://nope", Some("norfab files ls nf://")),
            (&["files", "tree", "-w", "ghost"], 1, "has no worker ghost that", Some("norfab workers")),
            (
                &["mmi", "mmi.service.broker", "get_logs", "lst:=2"],
                1,
                "unknown argument 'lst'",
                Some("get_logs takes last"),
            ),
            (&["tasks", "nope"], 1, "service 'nope' has no worker that is registered", Some("norfab workers")),
            (&["tasks", "filesharing", "--worker", "g*"], 1, "has no worker g* that", Some("have no meaning in them")),
            (&["tasks", "filesharing", "nope"], 1, "nope", None),
            (&["cancel", NO_JOB], 1, "is not known here", Some("norfab jobs")),
            (&["inventory", "ghost", "--remote"], 5, "nothing is known of worker 'ghost'", Some("broker's host")),
            (&["worker", "filesharing-worker-1"], 5, "no worker could be started", Some("stop that one")),
        ],
    );

    for command in lab.run(&["-h"]).stdout.lines().skip_while(|line| *line != "Commands:").skip(1) {
        let Some(name) = command.split_whitespace().next() else { break };
        assert!(name == "help" || commands.contains(&name), "nothing checks {name}");
    }
}

#[test]
fn whoever_wanted_json_however_wrongly_gets_it() {
    let ended = Lab::empty().run(&["jobs", "--json=yes"]);
    check(&["jobs", "--json=yes"], &ended, 2, "unexpected value 'yes' for '--json'", Some("'norfab jobs -h' shows"));
}

#[test]
fn what_ended_a_job_stands_beside_what_its_workers_returned() {
    let (lab, _up) = Lab::up();
    let ended = lab.run(&["run", "filesharing", "echo", "raise_error=no", "--json"]);
    let document = check(&["run"], &ended, 1, "worker filesharing-worker-1 failed: no", None);
    assert_eq!(document["results"]["filesharing-worker-1"]["failed"], true, "{document}");
    let id = document["uuid"].as_str().expect("an id");
    let stored = lab.run(&["jobs", id, "--json"]).json();
    assert_eq!((&stored["exit_code"], &stored["status"]), (&1.into(), &"COMPLETED".into()), "{stored}");
    assert_eq!(stored["error"], format!("job {id}: a worker failed"));
    // Standard error is for programs, too.
    let ended = lab.run(&["run", "nope", "echo", "--json", "--events", "json"]);
    assert_eq!(ended.json()["exit_code"], 1, "{ended:?}");
    // A broker that has just begun may be waited for.
    let last = ended.stderr.lines().last().expect("a line");
    let line: Value = serde_json::from_str(last).expect("a line of JSON");
    assert_eq!(line["level"], "ERROR");
}

#[test]
fn a_signal_is_a_failure_that_programs_can_read() {
    let (lab, _up) = Lab::up();
    let marker = lab.path("held");
    let run = lab.spawn(&["run", "filesharing", "run_shell_cmd", &held_by(&marker), "--json"]);
    crate::support::eventually("the job runs", || marker.exists());
    let ended = run.stop(Signal::TERM);
    assert_eq!((ended.code, &ended.json()["exit_code"]), (Some(143), &143.into()), "{ended:?}");
    assert!(ended.json()["hint"].as_str().is_some_and(|text| text.starts_with("'norfab jobs ")), "{ended:?}");
    assert!(ended.json()["error"].as_str().is_some_and(|text| text.starts_with("terminated: job ")), "{ended:?}");
    std::fs::remove_file(&marker).expect("it is there");
}

#[test]
fn a_list_that_goes_on_after_a_failure_has_it_as_an_entry() {
    let (lab, _up) = Lab::up();
    lab.json(&["run", "filesharing", "echo", "--json", "--name", "one"]);
    lab.write("__norfab__/files/client/one/jobs.db", "this is no database");
    let ended = lab.run(&["jobs", "export", "--json", "--name", "one"]);
    assert_eq!(ended.code, Some(1), "{ended:?}");
    let list = ended.json();
    assert!(list[0]["error"].as_str().is_some_and(|text| ended.stderr.contains(text)), "{ended:?}");
    let ended = lab.run(&["jobs", "export", "out.json", "--json", "--name", "one"]);
    assert_eq!((ended.code, &ended.json()["exit_code"]), (Some(1), &1.into()), "{ended:?}");
    lab.write("other.db", "this is no database");
    let ended = lab.run(&["jobs", "import", "other.db", "--json"]);
    assert_eq!(ended.code, Some(1), "{ended:?}");
    assert_eq!(ended.json()[0]["file"], "other.db");
    assert!(ended.json()[0]["error"].as_str().is_some_and(|text| ended.stderr.contains(text)), "{ended:?}");
    assert!(ended.json()[0]["hint"].as_str().is_some_and(|text| text.starts_with("name the NAME.db")), "{ended:?}");
}

#[test]
fn hints_name_the_option_the_variable_or_the_file_that_a_value_is_from() {
    let lab = Lab::new(FABRIC);
    lab.write("plain/lab.yaml", "broker: {endpoint: 'tcp://127.0.0.1:1', zmq_auth: false}\n");
    lab.write("free/lab.yaml", "broker: {endpoint: 'tcp://127.0.0.1:*', zmq_auth: false}\n");
    lab.write("keyless/lab.yaml", "broker: {endpoint: 'tcp://127.0.0.1:1'}\n");
    lab.write("file", "");
    let refused = "tcp://127.0.0.1:1";
    // What is typed, which variables are set, what the hint or the error ends with.
    type Case<'a> = (&'a [&'a str], &'a [(&'a str, &'a str)], &'a str);
    let cases: &[Case<'_>] = &[
        (&["workers", "--endpoint", refused, "--broker-key", "none"], &[], "or correct --endpoint"),
        (&["workers", "--broker-key", "none"], &[("ENDPOINT", refused)], "or correct NORFAB_ENDPOINT"),
        (&["workers", "--broker-key", "none", "--endpoint", refused], &[("ENDPOINT", "x")], "or correct --endpoint"),
        (&["workers", "-i", "plain/lab.yaml"], &[], "or correct broker.endpoint in plain/lab.yaml"),
        (&["workers"], &[("INVENTORY", "plain/lab.yaml")], "or correct broker.endpoint in plain/lab.yaml"),
        (&["workers", "--broker-key", "none", "--endpoint", "nope"], &[], "the endpoint is from --endpoint"),
        (&["workers", "--broker-key", "none"], &[("ENDPOINT", "nope")], "the endpoint is from NORFAB_ENDPOINT"),
        (&["broker", "--broker-key", "none"], &[("ENDPOINT", "nope")], "the endpoint is from NORFAB_ENDPOINT"),
        (&["workers", "--broker-key", "none"], &[("ENDPOINT", "tcp://h:*")], "that it printed with NORFAB_ENDPOINT"),
        (&["workers", "-i", "free/lab.yaml"], &[], "or write a port into broker.endpoint in free/lab.yaml"),
        (
            &["workers", "--endpoint", refused],
            &[("BROKER_KEY", "short")],
            "NORFAB_BROKER_KEY: \"short\" is not a CURVE key",
        ),
        (&["broker-key"], &[("BROKER_KEY", "short")], "NORFAB_BROKER_KEY: \"short\" is not a CURVE key"),
        (&["broker-key"], &[("BROKER_KEY", "none")], "NORFAB_BROKER_KEY none says that the broker does not encrypt"),
        (&["broker-key", "-i", "plain/lab.yaml"], &[], "(broker.zmq_auth is false in plain/lab.yaml)"),
        (&["workers", "-i", "keyless/lab.yaml"], &[], "set broker.shared_key in keyless/lab.yaml to what"),
        (&["workers", "--base-dir", "file"], &[], "correct --base-dir"),
        (&["workers"], &[("BASE_DIR", "file")], "correct NORFAB_BASE_DIR"),
        (&["workers", "--name", "a/b", "--broker-key", "none"], &[("ENDPOINT", refused)], "--name: \"a/b\""),
        (&["workers", "--broker-key", "none"], &[("NAME", "a/b"), ("ENDPOINT", refused)], "NORFAB_NAME: \"a/b\""),
        (&["workers", "-i", "missing.yaml"], &[], "the path is from --inventory"),
        (&["workers"], &[("INVENTORY", "missing.yaml")], "the path is from NORFAB_INVENTORY"),
        (&["workers"], &[("INVENTORY_DIR", "missing")], "the folder is from NORFAB_INVENTORY_DIR"),
        (&["inventory", "ghost", "-i", "plain/lab.yaml"], &[], "under 'workers' in plain/lab.yaml"),
        (&["up", "-i", "plain/lab.yaml"], &[], "the topology in plain/lab.yaml has nothing to start"),
    ];
    for (typed, variables, told) in cases {
        let mut command = lab.command(&[*typed, &["--json"]].concat());
        command.envs(variables.iter().map(|(name, value)| (format!("NORFAB_{name}"), *value)));
        let ended = Role::spawn(command).end();
        assert!(ended.code.is_some_and(|code| code > 1), "{typed:?} {variables:?}: {ended:?}");
        let document = ended.json();
        let texts = [&document["error"], &document["hint"]].map(|text| text.as_str().unwrap_or_default());
        assert!(texts.iter().any(|text| text.contains(told)), "{typed:?} {variables:?}: {document}");
    }
}

#[test]
fn hints_about_keys_name_where_the_key_is_from() {
    let lab = Lab::new(FABRIC);
    let _broker = lab.start(&["broker"]);
    let other = Lab::new(FABRIC).json(&["broker-key", "--json"])["public_key"].as_str().expect("a key").to_owned();
    let listed = other.replace('{', "\\x7b");
    lab.write("listed/lab.yaml", format!("broker: {{endpoint: 'tcp://127.0.0.1:1', shared_key: \"{listed}\"}}\n"));
    let hint = |typed: &[&str], variable: Option<&str>| {
        let mut command = lab.command(&[&["workers", "--json"], typed].concat());
        command.envs(variable.map(|value| ("NORFAB_BROKER_KEY", value)));
        let ended = Role::spawn(command).end();
        assert_eq!(ended.code, Some(3), "{ended:?}");
        ended.json()["hint"].as_str().expect("a hint").to_owned()
    };
    let of_option = hint(&["--broker-key", &other], None);
    assert!(of_option.contains("correct --broker-key; if that broker does not encrypt, set --broker-key to none"));
    let of_variable = hint(&[], Some(&other));
    assert!(of_variable.contains("correct NORFAB_BROKER_KEY; if"), "{of_variable}");
    let of_file = hint(&["-i", "listed/lab.yaml"], None);
    assert!(of_file.contains("correct broker.shared_key in listed/lab.yaml; if"), "{of_file}");
    assert!(of_file.contains("set broker.zmq_auth in listed/lab.yaml to false"), "{of_file}");
    // It encrypts, and here nothing is.
    let plain = hint(&[], Some("none"));
    assert!(plain.starts_with("compare NORFAB_ENDPOINT and NORFAB_BROKER_KEY with broker.endpoint"), "{plain}");
}
