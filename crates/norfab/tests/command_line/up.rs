//! `norfab up` and `norfab broker`.

use insta::{allow_duplicates, assert_snapshot};
use rustix::process::Signal;
use serde_json::Value;

use crate::support::{FABRIC, Lab, held_by};

#[test]
fn up_says_who_serves_and_stops_cleanly_on_both_signals() {
    for signal in [Signal::INT, Signal::TERM] {
        let (lab, up) = Lab::up();
        let ended = up.stop(signal);
        assert_eq!(ended.code, Some(0), "{signal:?}: {ended:?}");
        allow_duplicates! { assert_snapshot!(lab.redacted(&ended.stdout), @r"
        ready: broker NFPBroker [endpoint]
        ready: worker filesharing-worker-1 [endpoint]
        ") }
        assert_eq!(ended.stderr, "");
    }
}

#[test]
fn up_with_json_prints_a_line_of_json_for_each() {
    let lab = Lab::new(FABRIC);
    let up = lab.spawn(&["up", "--json"]);
    let broker: Value = serde_json::from_str(&up.line(|_| true)).expect("JSON");
    let worker: Value = serde_json::from_str(&up.line(|_| true)).expect("JSON");
    assert_eq!((&broker["ready"], &broker["name"]), (&"broker".into(), &"NFPBroker".into()));
    assert_eq!((&worker["ready"], &worker["name"]), (&"worker".into(), &"filesharing-worker-1".into()));
    assert_eq!(broker["endpoint"], worker["endpoint"]);
    assert_eq!(up.stop(Signal::TERM).code, Some(0));
}

#[test]
fn workers_that_cannot_start_are_told_with_their_reasons_and_the_others_serve() {
    let lab = Lab::new(
        r#"
broker: {endpoint: "tcp://127.0.0.1:*"}
topology:
  broker: true
  workers: [no-service, strange, no-data, no-file, bad-number, bad-flag, good, {late: {depends_on: [good, no-data]}}]
workers:
  no-service: [{some: thing}]
  strange: [{service: strange}]
  no-file: [missing.yaml]
  bad-number: [{service: filesharing, base_dir: shared, max_concurrent_jobs: many}]
  bad-flag: [shared/flag.yaml]
  good: [{service: filesharing, base_dir: shared}]
  late: [{service: filesharing, base_dir: shared}]
"#,
    );
    lab.write("shared/flag.yaml", "service: filesharing\nrun_shell_cmd: 'true'\n");
    let up = lab.start(&["up"]);
    up.ready("worker late");
    lab.registered(&["filesharing-worker-1", "good", "late"]);
    let results = lab.json(&["run", "filesharing", "echo", "--json", "--workers", "good,late"]);
    assert_eq!(results["results"].as_object().map(|results| results.len()), Some(2));
    let ended = up.stop(Signal::TERM);
    assert_eq!(ended.code, Some(0));
    assert_snapshot!(lab.redacted(&ended.stderr), @r#"
    error: worker no-service: its inventory data names no service: add 'service: NAME'
    error: worker strange: service 'strange' is not built into this program (it has: filesharing): start this worker with Python NorFab on any host, it connects to the same broker
    error: worker no-data: the inventory has no data for it: add 'no-data' or a pattern that matches it under 'workers'
    error: worker no-file: inventory.yaml:9: workers.no-file[0]: no such file: [folder]/missing.yaml: create it or correct the path, which counts from [folder]
    error: worker bad-number: inventory.yaml:10: workers.bad-number[0].max_concurrent_jobs: expected a whole number from 1 to 512, found "many"
    error: worker bad-flag: [folder]/shared/flag.yaml:2: run_shell_cmd: expected true or false, found "true"
    warning: worker late starts without no-data, which could not start
    "#);
    // The log has it, too, for whoever looks later.
    assert!(lab.read("__norfab__/logs/broker-NFPBroker.jsonl").contains("worker no-service: its inventory data"));
}

#[test]
fn workers_that_cannot_start_have_a_line_of_json_too() {
    let lab = Lab::new(&format!("{FABRIC}  ghost: [{{service: nope}}]\n  lost: [missing.yaml]\n"));
    lab.write(
        "inventory.yaml",
        lab.read("inventory.yaml").replace("broker: true", "broker: true\n  workers: [ghost, lost]"),
    );
    let up = lab.spawn(&["up", "--json"]);
    let ready = |line: &str| line.contains("\"ready\":\"worker\"");
    up.line(ready);
    let ended = up.stop(Signal::TERM);
    assert_eq!(ended.code, Some(0), "{ended:?}");
    let lines: Vec<Value> = ended.stdout.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    let of = |name: &str| lines.iter().find(|line| line["name"] == name).unwrap_or_else(|| panic!("{ended:?}"));
    for (name, error, hint) in [
        ("ghost", "service 'nope' is not built into", "Python NorFab"),
        ("lost", "no such file", "create it or correct"),
    ] {
        let line = of(name);
        assert_eq!(line["failed"], "worker", "{line}");
        let text = |key: &str| line[key].as_str().unwrap_or_default().to_owned();
        assert!(text("error").starts_with(&format!("worker {name}: ")) && text("error").contains(error), "{line}");
        assert!(text("hint").starts_with("start this") || text("hint").contains(hint), "{line}");
        assert!(!text("error").contains(hint), "{line}");
        assert!(ended.stderr.contains(&format!("error: {}: {}", text("error"), text("hint"))), "{ended:?}");
    }
}

#[test]
fn why_a_worker_cannot_start_is_told_however_quiet_the_log_is() {
    let lab = Lab::new(&format!(
        "{FABRIC}  ghost: [{{service: nope}}]\nlogging: {{handlers: {{terminal: {{level: CRITICAL}}}}}}\n"
    ));
    lab.write("inventory.yaml", lab.read("inventory.yaml").replace("broker: true", "broker: true\n  workers: [ghost]"));
    let up = lab.start(&["up", "-qq"]);
    up.ready("worker filesharing-worker-1");
    let ended = up.stop(Signal::TERM);
    assert!(ended.stderr.starts_with("error: worker ghost: service 'nope' is not built into"), "{ended:?}");
    assert_eq!(ended.stderr.lines().count(), 1, "{ended:?}");
}

#[test]
fn a_worker_that_comes_late_is_told_as_ready_all_the_same() {
    let lab = Lab::new(&FABRIC.replace("broker: true", "broker: true\n  workers_init_timeout: 0"));
    let up = lab.start(&["up"]);
    up.ready("worker filesharing-worker-1");
    assert_eq!(up.stop(Signal::TERM).code, Some(0));
}

#[test]
fn values_that_cannot_be_used_are_told_with_file_line_and_key() {
    let told = |text: &str| {
        let lab = Lab::new(text);
        let ended = lab.run(&["up"]);
        assert_eq!((ended.code, ended.stdout.as_str()), (Some(5), ""), "{ended:?}");
        ended.stderr
    };
    let broker = "topology: {broker: true}\nbroker:\n  endpoint: 'tcp://127.0.0.1:*'\n";
    assert_snapshot!(told(&format!("{broker}  ip_allowlist:\n    - 10.0.0.0/8\n    - 10.0.0.300\n")), @r#"error: inventory.yaml:6: broker.ip_allowlist[1]: "10.0.0.300" is neither an address, nor a network such as 192.0.2.0/24, nor *"#);
    assert_snapshot!(told(&format!("{broker}logging:\n  root:\n    level: LOUD\n")), @r#"error: inventory.yaml:6: logging.root.level: expected DEBUG, INFO, WARNING, ERROR or CRITICAL, found "LOUD""#);
    assert_snapshot!(told(&format!("{broker}logging:\n  handlers: {{file: {{backupCount: 5000}}}}\n")), @"error: inventory.yaml:5: logging.handlers.file.backupCount: expected a whole number from 0 to 1000, found 5000");
}

#[test]
fn a_broker_that_cannot_listen_leaves_no_keys() {
    let taken = Lab::new(FABRIC);
    let _broker = taken.start(&["broker"]);
    let lab = Lab::new(&FABRIC.replace("tcp://127.0.0.1:*", &taken.endpoint()));
    for command in ["broker", "up"] {
        let ended = lab.run(&[command]);
        assert_eq!((ended.code, ended.stdout.as_str()), (Some(5), ""), "{ended:?}");
        assert!(ended.stderr.contains("the address is in use by another process"), "{ended:?}");
        assert!(!lab.path("__norfab__/files/broker").exists(), "{command}");
    }
    lab.write(
        "inventory.yaml",
        format!("{}  ip_allowlist: [nonsense]\n", "broker:\n  endpoint: 'tcp://127.0.0.1:*'\n"),
    );
    assert_eq!(lab.run(&["broker"]).code, Some(5));
    assert!(!lab.path("__norfab__/files/broker").exists());
}

#[test]
fn a_misspelt_endpoint_is_named() {
    let lab = Lab::new("broker:\n  endpiont: 'tcp://127.0.0.1:1'\ntopology: {broker: true}\n");
    for arguments in [&["up"][..], &["broker"], &["workers"]] {
        let ended = lab.run(arguments);
        assert_eq!((ended.code, ended.stdout.as_str()), (Some(5), ""), "{ended:?}");
        allow_duplicates! { assert_snapshot!(ended.stderr, @r"
        warning: inventory.yaml:2: broker.endpiont: not a known key, it has no effect: did you mean endpoint?
        error: nothing says where the broker is: inventory.yaml:2 has broker.endpiont, which is no known key: write endpoint
        ") }
    }
}

#[test]
fn an_endpoint_that_a_missing_variable_leaves_empty_is_named() {
    let lab = Lab::new("broker:\n  endpoint: '{{ env.NOT_SET }}'\ntopology: {broker: true}\n");
    for arguments in [&["up"][..], &["workers"]] {
        let ended = lab.run(arguments);
        assert_eq!((ended.code, ended.stdout.as_str()), (Some(5), ""), "{ended:?}");
        allow_duplicates! { assert_snapshot!(ended.stderr, @"error: inventory.yaml:2: broker.endpoint: it is empty: write tcp://HOST:PORT, and where it is a template, set the variables that it names") }
    }
}

#[test]
fn a_topology_with_nothing_to_start_says_so() {
    let lab = Lab::new("broker: {endpoint: 'tcp://127.0.0.1:*'}\n");
    let ended = lab.run(&["up"]);
    assert_eq!((ended.code, ended.stdout.as_str()), (Some(5), ""));
    assert_snapshot!(ended.stderr, @"error: the topology in inventory.yaml has nothing to start: set topology.broker to true, or list topology.workers");
}

#[test]
fn a_topology_without_a_broker_starts_its_workers_with_the_data_of_the_broker_elsewhere() {
    let lab = Lab::new(
        "broker: {endpoint: 'tcp://127.0.0.1:*'}\nworkers:\n  far-1: [{service: filesharing, base_dir: shared}]\n",
    );
    let broker = lab.start(&["broker"]);
    lab.write("far/inventory.yaml", "broker: {endpoint: 'tcp://127.0.0.1:1'}\ntopology: {workers: [far-1]}\n");
    let key = lab.json(&["broker-key", "--json"])["public_key"].as_str().expect("a key").to_owned();
    let workers = lab.spawn(&["up", "-i", "far", "--broker-key", &key]);
    workers.ready("worker far-1");
    lab.registered(&["far-1"]);
    assert_eq!(workers.stop(Signal::TERM).code, Some(0));
    lab.registered(&[]);
    assert_eq!(broker.stop(Signal::TERM).code, Some(0));
}

#[test]
fn running_jobs_have_time_to_end_and_a_second_signal_does_not_wait() {
    let (lab, up) = Lab::up();
    let marker = lab.path("held");
    let job = lab.spawn(&["run", "filesharing", "run_shell_cmd", &held_by(&marker), "--json"]);
    crate::support::eventually("the job runs", || marker.exists());
    up.signal(Signal::TERM);
    // The worker says good-bye when its last job has ended; until then it takes no new one.
    std::fs::remove_file(&marker).expect("it is there");
    let ended = job.end();
    assert_eq!(ended.code, Some(0), "{ended:?}");
    assert_eq!(up.end().code, Some(0));

    let (lab, up) = Lab::up();
    let marker = lab.path("held");
    let _job = lab.spawn(&["run", "filesharing", "run_shell_cmd", &held_by(&marker)]);
    crate::support::eventually("the job runs", || marker.exists());
    up.signal(Signal::TERM);
    up.told_on_stderr("waiting up to 10 s for running jobs; Ctrl-C or SIGTERM again does not wait for them\n");
    up.signal(Signal::INT);
    up.told_on_stderr("stopping without waiting for running jobs");
    std::fs::remove_file(&marker).expect("it is there");
    assert_eq!(up.end().code, Some(0));
}

#[test]
fn a_broker_alone_serves_until_it_is_stopped() {
    let lab = Lab::new(FABRIC);
    for signal in [Signal::INT, Signal::TERM] {
        let broker = lab.start(&["broker"]);
        lab.registered(&[]);
        let ended = broker.stop(signal);
        assert_eq!((ended.code, ended.stderr.as_str()), (Some(0), ""), "{signal:?}");
        allow_duplicates! { assert_snapshot!(lab.redacted(&ended.stdout), @"ready: broker NFPBroker [endpoint]") }
    }
}

#[test]
fn a_broker_takes_no_key_but_its_own() {
    let lab = Lab::new(FABRIC);
    let other = Lab::new(FABRIC).json(&["broker-key", "--json"])["public_key"].as_str().expect("a key").to_owned();
    for command in ["broker", "up"] {
        let ended = lab.run(&[command, "--broker-key", &other]);
        assert_eq!((ended.code, ended.stdout.as_str()), (Some(5), ""), "{ended:?}");
        assert!(ended.stderr.contains("--broker-key is not the key of the broker that starts here"), "{ended:?}");
        assert!(ended.stderr.contains("from its first start on: leave --broker-key out here"), "{ended:?}");
        assert!(!lab.path("__norfab__/files/broker").exists(), "no keys were made");
    }
    let own = lab.json(&["broker-key", "--json"])["public_key"].as_str().expect("a key").to_owned();
    let mut command = lab.command(&["broker"]);
    command.env("NORFAB_BROKER_KEY", &other);
    let ended = crate::support::Role::spawn(command).end();
    assert!(ended.stderr.contains("leave NORFAB_BROKER_KEY out here; 'norfab broker-key' shows"), "{ended:?}");
    // A variable for the commands of this host does no harm.
    let broker = lab.start(&["broker", "--broker-key", &own]);
    assert_eq!(broker.stop(Signal::TERM).code, Some(0));
}

#[test]
fn a_port_that_is_in_use_is_named() {
    let lab = Lab::new(FABRIC);
    let _broker = lab.start(&["broker"]);
    for command in ["broker", "up"] {
        let ended = lab.run(&[command]);
        assert_eq!((ended.code, ended.stdout.as_str()), (Some(5), ""), "{ended:?}");
        allow_duplicates! { assert_snapshot!(lab.redacted(&ended.stderr), @"error: cannot listen on [endpoint]: the address is in use by another process; stop it or choose another port: the endpoint is from NORFAB_ENDPOINT") }
    }
}

#[test]
fn a_warning_of_the_inventory_is_shown_once() {
    let lab = Lab::new(&FABRIC.replace("run_shell_cmd: true", "run_shell_cmd: yes"));
    let up = lab.start(&["up"]);
    lab.registered(&["filesharing-worker-1"]);
    let of_command = lab.run(&["inventory", "--remote"]);
    assert_eq!(of_command.code, Some(0), "{of_command:?}");
    let of_quiet = lab.run(&["inventory", "-q"]);
    let of_up = up.stop(Signal::TERM);
    for (stderr, count) in [(&of_up.stderr, 1), (&of_command.stderr, 1), (&of_quiet.stderr, 0)] {
        assert_eq!(stderr.matches("warning: inventory.yaml:9").count(), count, "{stderr}");
    }
}

#[test]
fn what_yaml_1_2_reads_differently_is_counted_where_it_is_not_the_subject() {
    let lab =
        Lab::new(&format!("{}      others: [on, off]\n", FABRIC.replace("run_shell_cmd: true", "run_shell_cmd: yes")));
    let _up = lab.start(&["up"]);
    let line = "3 values in inventory.yaml would read differently in YAML 1.2: 'norfab inventory' tells which";
    let workers = lab.run(&["workers"]);
    assert!(workers.stderr.starts_with(&format!("warning: {line}\n")), "{workers:?}");
    assert!(!workers.stderr.contains("inventory.yaml:9"), "{workers:?}");
    assert_eq!(lab.run(&["inventory"]).stderr.matches("(YAML 1.1)").count(), 3);
    lab.registered(&["filesharing-worker-1"]);
    let run = lab.run(&["run", "filesharing", "echo", "--events", "json"]);
    let first: serde_json::Value =
        serde_json::from_str(run.stderr.lines().next().expect("a line")).expect("a line of JSON");
    assert_eq!(first, serde_json::json!({"level": "WARNING", "message": line}), "{run:?}");
    let quiet = lab.run(&["run", "filesharing", "echo", "--events", "json", "-q"]);
    assert!(!quiet.stderr.contains("YAML"), "{quiet:?}");
}

#[test]
fn workers_that_start_elsewhere_are_warned_about_before_they_ask() {
    let lab = Lab::new(&format!("{FABRIC}  far-*:\n    - missing.yaml\n    - 5\n  wrong: text\n"));
    for command in ["up", "broker"] {
        let ended = lab.start(&[command]).stop(Signal::TERM);
        assert_eq!(ended.code, Some(0), "{ended:?}");
        assert!(ended.stderr.contains("warning: inventory.yaml:11: workers.far-*[0]: no such file: "), "{ended:?}");
        assert!(
            ended.stderr.contains("warning: inventory.yaml:12: workers.far-*[1]: expected the path of a file"),
            "{ended:?}"
        );
        assert!(ended.stderr.contains("warning: inventory.yaml:13: workers.wrong: expected a list"), "{ended:?}");
    }
}

#[test]
fn a_shared_folder_that_cannot_be_is_told_with_file_and_line() {
    for (value, problem) in
        [("5", "expected the path of a folder, found the number 5"), ("inventory.yaml/x", "cannot share the folder")]
    {
        let lab = Lab::new(&FABRIC.replace("base_dir: shared", &format!("base_dir: {value}")));
        let role = lab.start(&["up"]);
        let told = "error: worker filesharing-worker-1: inventory.yaml:8: workers.filesharing-worker-1[0].base_dir: ";
        role.told_on_stderr(&format!("{told}{problem}"));
        role.stop(Signal::TERM);
    }
}

#[test]
fn hooks_and_plugins_that_nobody_runs_are_told_once() {
    let lab = Lab::new(&format!("{FABRIC}hooks: {{startup: [x]}}\nplugins: {{a: {{}}}}\n"));
    for command in ["up", "broker"] {
        let role = lab.start(&[command]);
        let ended = role.stop(Signal::TERM);
        let told = "warning: hooks and plugins in the inventory: this program runs none; they are for Python workers and clients\n";
        assert_eq!(ended.stderr.matches(told).count(), 1, "{ended:?}");
    }
}
