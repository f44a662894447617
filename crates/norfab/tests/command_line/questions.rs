//! What the broker and services tell of themselves: `workers`, `tasks`, `mmi`, `inventory`, `broker-key`.

use std::time::{Duration, Instant};

use insta::assert_snapshot;
use serde_json::{Value, json};

use crate::support::{FABRIC, Lab};

/// Longest that a command may take that waits for nobody; one that waits takes eight seconds.
const AT_ONCE: Duration = Duration::from_secs(6);

#[test]
fn workers_are_a_table_or_a_document() {
    let (lab, _up) = Lab::up();
    let ended = lab.run(&["workers"]);
    assert_eq!((ended.code, ended.stderr.as_str()), (Some(0), ""));
    let mut lines = ended.stdout.lines();
    assert_snapshot!(lines.next().unwrap_or_default(), @"NAME                  SERVICE      STATUS  HOLDTIME  KEEPALIVES TX/RX  ALIVE (S)");
    assert!(
        lines.next().is_some_and(|line| line.starts_with("filesharing-worker-1  filesharing  alive ")),
        "{ended:?}"
    );
    let rows = lab.json(&["workers", "--json", "--service", "filesharing"]);
    assert_eq!(rows[0]["name"], "filesharing-worker-1");
    let nobody = lab.run(&["workers", "--service", "nope"]);
    assert_eq!(
        (nobody.code, nobody.stdout.as_str(), nobody.stderr.as_str()),
        (Some(0), "", "service 'nope' has no workers: 'norfab workers' shows those of all services\n")
    );
    assert_eq!(lab.json(&["workers", "--json", "--service", "nope"]), json!([]));
}

#[test]
fn tasks_of_a_service_or_worker_that_nobody_knows_are_not_waited_for_unless_that_is_wanted() {
    let lab = Lab::new(FABRIC);
    // A broker that has just begun is one on which a job would wait.
    let _broker = lab.start(&["broker"]);
    let told = |arguments: &[&str]| {
        let began = Instant::now();
        let ended = lab.run(&[&["tasks"], arguments].concat());
        assert!(began.elapsed() < AT_ONCE, "{arguments:?} took {:?}", began.elapsed());
        assert_eq!((ended.code, ended.stdout.as_str()), (Some(1), ""), "{arguments:?}: {ended:?}");
        ended.stderr
    };
    assert_snapshot!(told(&["filesharing"]), @"error: service 'filesharing' has no worker that is registered: nobody is registered, 'norfab workers' shows when somebody is; --wait-for-workers waits for who is to come");
    let waits = lab.spawn(&["tasks", "filesharing", "--wait-for-workers"]);
    let worker = lab.spawn(&["worker", "filesharing-worker-1"]);
    worker.ready("worker filesharing-worker-1");
    let ended = waits.end();
    assert_eq!((ended.code, ended.stderr.as_str()), (Some(0), ""), "{ended:?}");
    assert_snapshot!(told(&["nope"]), @"error: service 'nope' has no worker that is registered: services that have are filesharing, see 'norfab workers'; --wait-for-workers waits for who is to come");
    assert_snapshot!(told(&["filesharing", "--worker", "ghost"]), @"error: service 'filesharing' has no worker ghost that is registered: those that are registered are filesharing-worker-1; --wait-for-workers waits for who is to come");
}

#[test]
fn tasks_are_listed_and_one_task_is_shown_with_its_arguments() {
    let (lab, _up) = Lab::up();
    let list = lab.run(&["tasks", "filesharing"]);
    assert_eq!((list.code, list.stderr.as_str()), (Some(0), ""));
    assert!(list.stdout.starts_with("TASK "), "{}", list.stdout);
    for task in ["echo", "list_files", "run_shell_cmd"] {
        assert!(list.stdout.lines().any(|line| line.starts_with(&format!("{task} "))), "{task}: {}", list.stdout);
    }
    let one = lab.run(&["tasks", "filesharing", "list_files"]);
    assert_eq!((one.code, one.stderr.as_str()), (Some(0), ""));
    assert_snapshot!(one.stdout, @r"
    list_files

      Lists the names in a shared directory.

    ARGUMENT  TYPE    REQUIRED  DEFAULT  DESCRIPTION
    url       string  yes                URL of a directory, nf://path.
    ");
    let document = lab.json(&["tasks", "filesharing", "list_files", "--json"]);
    assert_eq!(document[0]["inputSchema"]["required"], json!(["url"]));
    let unknown = lab.run(&["tasks", "filesharing", "nope"]);
    assert_eq!((unknown.code, unknown.stdout.as_str()), (Some(1), ""));
    assert!(unknown.stderr.contains("nope"), "{}", unknown.stderr);
    let nobody = lab.run(&["tasks", "nope"]);
    assert_eq!(nobody.code, Some(1));
    assert_snapshot!(nobody.stderr, @"error: service 'nope' has no worker that is registered: services that have are filesharing, see 'norfab workers'; --wait-for-workers waits for who is to come");
}

#[test]
fn the_broker_answers_every_management_task() {
    let (lab, _up) = Lab::up();
    let ask = |task: &str, arguments: &[&str]| lab.json(&[&["mmi", "mmi.service.broker", task], arguments].concat());
    assert_eq!(ask("show_workers", &["service=filesharing"])[0]["name"], "filesharing-worker-1");
    assert_eq!(ask("get_stats", &[])["role"], "broker");
    assert_eq!(ask("get_status", &[])["security"]["zmq_auth"], true);
    assert!(ask("show_broker", &[]).is_object());
    assert_eq!(ask("show_broker_version", &[])["norfab"], env!("CARGO_PKG_VERSION"));
    assert_eq!(ask("show_broker_inventory", &[])["topology"]["broker"], true);
    let records = ask("get_logs", &["last:=1"]);
    assert_eq!(records.as_array().map(Vec::len), Some(1), "{records}");
    let inventory = lab.json(&["mmi", "sid.service.broker", "get_inventory", "name=filesharing-worker-1"]);
    assert_eq!(inventory["service"], "filesharing");
}

#[test]
fn what_the_broker_does_not_have_is_told() {
    let (lab, _up) = Lab::up();
    let of = |arguments: &[&str]| {
        let ended = lab.run(&[&["mmi"], arguments].concat());
        assert_eq!((ended.code, ended.stdout.as_str()), (Some(1), ""), "{ended:?}");
        ended.stderr
    };
    assert_snapshot!(of(&["mmi.service.broker", "nope"]), @"error: the broker has no task 'nope': it has show_workers, get_stats, get_status, show_broker, show_broker_version, show_broker_inventory and get_logs");
    assert_snapshot!(of(&["filesharing", "echo"]), @"error: the broker refused: service 'filesharing' takes jobs; only mmi.service.broker and sid.service.broker answer this command");
    assert_snapshot!(of(&["nope", "echo"]), @"error: the broker has no service 'nope': it has mmi.service.broker and sid.service.broker; 'norfab run' asks the services of workers");
    assert_snapshot!(of(&["mmi.service.broker", "get_logs", "last:=-1"]), @"error: the broker refused: argument 'last': expected a whole number, found -1");
    assert_snapshot!(of(&["sid.service.broker", "get_inventory"]), @"error: the broker refused: get_inventory needs the argument 'name', a text");
}

#[test]
fn the_inventory_is_shown_with_its_secrets_masked() {
    let lab = Lab::new(&format!(
        "{FABRIC}      lab: {{community: s3cret, enable_key: s3cret, dbpassword: s3cret, url: 'redis://user:s3/cret@host'}}\n  r-*:\n    - service: nornir\n      hosts: {{r1: {{username: admin, password: s3cret}}}}\n"
    ));
    let whole = lab.run(&["inventory"]);
    assert_eq!((whole.code, whole.stderr.as_str()), (Some(0), ""));
    assert!(whole.stdout.contains("password: ****") && !whole.stdout.contains("s3cret"), "{}", whole.stdout);
    let one = lab.run(&["inventory", "r-7"]);
    assert_snapshot!(one.stdout, @r"
    service: nornir
    hosts:
      r1:
        username: admin
        password: ********
    ");
    let unknown = lab.run(&["inventory", "ghost"]);
    assert_eq!((unknown.code, unknown.stdout.as_str()), (Some(5), ""));
    assert_snapshot!(unknown.stderr, @"error: nothing is known of worker 'ghost': add it or a pattern that matches it under 'workers' in inventory.yaml");
    let _up = lab.start(&["up"]);
    let of_broker = lab.run(&["inventory", "--remote", "--json"]);
    assert_eq!(of_broker.code, Some(0), "{of_broker:?}");
    assert!(!of_broker.stdout.contains("s3cret"), "{}", of_broker.stdout);
    assert_eq!(of_broker.json(), lab.json(&["inventory", "--json"]));
    assert_eq!(lab.json(&["inventory", "r-7", "--remote", "--json"]), lab.json(&["inventory", "r-7", "--json"]));
    // What the broker tells of a worker's own inventory hides as much.
    let of_worker = lab.json(&["run", "filesharing", "get_inventory", "--json"]);
    let inventory = &of_worker["results"]["filesharing-worker-1"]["result"];
    for key in ["community", "enable_key", "dbpassword"] {
        assert_eq!(inventory["lab"][key], "********", "{inventory}");
    }
    assert_eq!(inventory["lab"]["url"], "redis://user:********@host", "{inventory}");
    // Where there is no inventory file the broker is asked.
    let key = lab.json(&["broker-key", "--json"])["public_key"].as_str().expect("a key").to_owned();
    let elsewhere = Lab::empty();
    let of_broker =
        elsewhere.json(&["inventory", "r-7", "--json", "--endpoint", &lab.endpoint(), "--broker-key", &key]);
    assert_eq!(of_broker["hosts"]["r1"]["username"], "admin");
}

#[test]
fn the_brokers_public_key_is_shown_in_the_inventory_under_both_of_its_names() {
    let key = "x".repeat(40);
    for name in ["shared_key", "curve_public_key"] {
        let lab = Lab::new(&format!("broker: {{endpoint: 'tcp://127.0.0.1:1', {name}: {key}}}\n"));
        assert_eq!(lab.json(&["inventory", "--json"])["broker"][name], key.as_str());
    }
}

#[test]
fn the_brokers_key_is_the_one_in_its_file() {
    let lab = Lab::new(&FABRIC.replace("127.0.0.1:*", "127.0.0.1:5555"));
    let document = lab.json(&["broker-key", "--json"]);
    let key = document["public_key"].as_str().expect("a key");
    let file = document["file"].as_str().expect("a file");
    assert!(std::fs::read_to_string(file).expect("it is there").contains(&format!("public-key = \"{key}\"")));
    assert_eq!(document["endpoint"], "tcp://127.0.0.1:5555");
    let fingerprint = document["fingerprint"].as_str().expect("one");
    let ended = lab.run(&["broker-key"]);
    assert_eq!((ended.code, ended.stderr.as_str()), (Some(0), ""));
    let shown = lab.redacted(&ended.stdout).replace(key, "[key]").replace(fingerprint, "[fingerprint]");
    // One key in some sixty happens to look like a template.
    let shown = shown.replace("{% raw %}[key]{% endraw %}", "[key]");
    assert_snapshot!(shown, @r#"
    public key:  [key]
    fingerprint: [fingerprint]
    file:        [folder]/__norfab__/files/broker/public_keys/broker.key

    into inventory.yaml of workers and clients on other hosts:

    broker:
      endpoint: "tcp://127.0.0.1:5555"
      shared_key: '[key]'

    (a broker at tcp://127.0.0.1:5555 listens on its own host only: for others set broker.endpoint in inventory.yaml there to "tcp://*:5555" and restart it)
    "#);
}

#[test]
fn the_key_of_a_broker_that_ran_without_an_inventory_is_shown_without_one() {
    let lab = Lab::empty();
    let none = lab.run(&["broker-key"]);
    assert_eq!((none.code, none.stdout.as_str()), (Some(5), ""), "{none:?}");
    let _broker = lab.start(&["broker", "--endpoint", "tcp://127.0.0.1:*"]);
    let mut command = lab.command(&["broker-key", "--json"]);
    command.env_remove("NORFAB_ENDPOINT");
    let shown = crate::support::Role::spawn(command).end();
    assert_eq!(shown.code, Some(0), "{shown:?}");
    let key = shown.json()["public_key"].as_str().expect("a key").to_owned();
    assert_eq!(lab.run(&["workers", "--broker-key", &key]).code, Some(0));
    let wrong = lab.run(&["broker-key", "--broker-key", "x"]);
    assert_eq!((wrong.code, wrong.stdout.as_str()), (Some(5), ""), "{wrong:?}");
}

#[test]
fn a_host_that_knows_a_broker_elsewhere_makes_no_keys_for_it() {
    let broker = Lab::new(FABRIC);
    let key = broker.json(&["broker-key", "--json"])["public_key"].clone();
    // Inventories are templates, and a key may hold what begins an expression.
    let shared = key.to_string().replace('{', "\\x7b");
    let lab = Lab::new(&format!("broker:\n  endpoint: tcp://192.0.2.1:5555\n  shared_key: {shared}\n"));
    let document = lab.json(&["broker-key", "--json"]);
    assert_eq!(document["public_key"], key);
    assert_eq!(document["file"], Value::Null);
    assert!(!lab.path("__norfab__").exists());
}

#[test]
fn a_broker_that_does_not_encrypt_has_no_key() {
    let lab = Lab::new(&FABRIC.replace("broker:\n  endpoint", "broker:\n  zmq_auth: false\n  endpoint"));
    let ended = lab.run(&["broker-key"]);
    assert_eq!((ended.code, ended.stdout.as_str()), (Some(5), ""));
    assert_snapshot!(ended.stderr, @"error: this broker does not encrypt (broker.zmq_auth is false in inventory.yaml): it has no key to show");
    let _up = lab.start(&["up"]);
    lab.registered(&["filesharing-worker-1"]);
}

#[test]
fn broker_and_workers_check_what_logs_are_asked_for_by_one_rule() {
    let (lab, _up) = Lab::up();
    for level in ["loud", "WARN"] {
        let expected =
            format!("argument 'level': expected one of DEBUG, INFO, WARNING, ERROR, CRITICAL, found {level:?}");
        let level = format!("level={level}");
        let of_broker = lab.run(&["mmi", "mmi.service.broker", "get_logs", &level]);
        let of_worker = lab.run(&["run", "filesharing", "get_logs", &level, "-q"]);
        for ended in [of_broker, of_worker] {
            assert_eq!(ended.code, Some(1), "{ended:?}");
            assert!(ended.stderr.contains(&expected), "{ended:?}");
        }
    }
    let some = lab.json(&["mmi", "mmi.service.broker", "get_logs", "last:=3", "level=info"]);
    assert!(some.as_array().is_some_and(|records| !records.is_empty() && records.len() <= 3), "{some}");
    let wrong = lab.run(&["mmi", "mmi.service.broker", "get_logs", "level:=5"]);
    assert!(wrong.stderr.contains("argument 'level': expected a text, found 5"), "{wrong:?}");
}

#[test]
fn the_broker_decides_about_its_arguments() {
    let (lab, _up) = Lab::up();
    let of = |arguments: &[&str]| {
        let ended = lab.run(&[&["mmi"], arguments].concat());
        assert_eq!((ended.code, ended.stdout.as_str()), (Some(1), ""), "{ended:?}");
        ended.stderr
    };
    assert_snapshot!(of(&["mmi.service.broker", "get_logs", "lats:=5"]), @"error: the broker refused: unknown argument 'lats': get_logs takes last, level, logger, since, until");
    assert_snapshot!(of(&["mmi.service.broker", "get_stats", "a=b"]), @"error: the broker refused: unknown argument 'a': get_stats takes no arguments");
    assert_snapshot!(of(&["mmi.service.broker", "get_logs", "last=many"]), @r#"error: the broker refused: argument 'last': expected a whole number, found "many""#);
    // A number that was written as a text is one.
    let records = lab.json(&["mmi", "mmi.service.broker", "get_logs", "last=1"]);
    assert_eq!(records.as_array().map(Vec::len), Some(1), "{records}");
    let of_worker = lab.run(&["run", "filesharing", "get_logs", "last=20", "--events", "none"]);
    assert_eq!(of_worker.code, Some(1), "{of_worker:?}");
    assert!(of_worker.stderr.ends_with("hint: last=20 is a text: write last:=20 for a number\n"), "{of_worker:?}");
}

#[test]
fn a_task_that_the_inventory_must_allow_says_so() {
    let lab = Lab::new(&FABRIC.replace("      run_shell_cmd: true\n", ""));
    let up = lab.start(&["up"]);
    up.ready("worker filesharing-worker-1");
    let ended = lab.run(&["run", "filesharing", "run_shell_cmd", "command=true", "-q"]);
    assert_eq!(ended.code, Some(1), "{ended:?}");
    assert!(ended.stderr.contains("a worker has this one where its inventory says run_shell_cmd: true"), "{ended:?}");
}
