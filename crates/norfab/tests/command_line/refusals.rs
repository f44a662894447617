//! Brokers that are not there, or do not let us in.

use std::time::{Duration, Instant};

use insta::{allow_duplicates, assert_snapshot};
use rustix::process::Signal;

use crate::support::{FABRIC, Lab};

/// Longest that a command may take to say that its broker is not there or refuses: one handshake.
const HANDSHAKE: Duration = Duration::from_secs(10);

fn key(lab: &Lab) -> (String, String) {
    let document = lab.json(&["broker-key", "--json"]);
    let text = |key: &str| document[key].as_str().expect("a text").to_owned();
    (text("public_key"), text("fingerprint"))
}

/// A key as a text that neither Jinja nor YAML takes for something else: keys may hold `{{`.
fn in_yaml(key: &str) -> String {
    format!("\"{}\"", key.replace('{', "\\x7b"))
}

#[test]
fn a_broker_that_is_not_there_is_named_at_once() {
    let lab = Lab::new(FABRIC);
    // A port that was free a moment ago.
    let broker = lab.start(&["broker"]);
    assert_eq!(broker.stop(Signal::TERM).code, Some(0));
    for arguments in [
        &["workers"][..],
        &["run", "filesharing", "echo"],
        &["files", "get", "nf://a", "here"],
        &["tasks", "filesharing"],
        &["mmi", "mmi.service.broker", "get_status"],
        &["inventory", "--remote"],
    ] {
        let began = Instant::now();
        let ended = lab.run(arguments);
        assert!(began.elapsed() < HANDSHAKE, "{arguments:?} took {:?}", began.elapsed());
        assert_eq!((ended.code, ended.stdout.as_str()), (Some(3), ""), "{arguments:?}: {ended:?}");
        allow_duplicates! { assert_snapshot!(lab.redacted(&ended.stderr), @"error: no broker answers at [endpoint] (nothing listens there, or a firewall is in between): start it there, or correct NORFAB_ENDPOINT") }
    }
    assert!(!lab.path("here").exists());
    let given = lab.run(&["workers", "--endpoint", "tcp://127.0.0.1:1"]);
    assert!(given.stderr.ends_with("start it there, or correct --endpoint\n"), "{given:?}");
    // A port that was free a moment ago: others may listen, but no broker does.
    let port = lab.endpoint().rsplit(':').next().expect("a port").to_owned();
    let anywhere = lab.run(&["workers", "--endpoint", &format!("tcp://*:{port}")]);
    assert_eq!(anywhere.code, Some(3), "{anywhere:?}");
    assert!(anywhere.stderr.contains("an endpoint to listen at"), "{anywhere:?}");
}

#[test]
fn a_wrong_key_is_told_with_endpoint_and_fingerprint() {
    let lab = Lab::new(FABRIC);
    let _broker = lab.start(&["broker"]);
    let (other, fingerprint) = key(&Lab::new(FABRIC));
    for given in [&["--broker-key", other.as_str()][..], &["-i", "listed"]] {
        lab.write(
            "listed/inventory.yaml",
            format!("broker:\n  endpoint: tcp://127.0.0.1:1\n  shared_key: {}\n", in_yaml(&other)),
        );
        let began = Instant::now();
        let ended = lab.run(&[&["workers"], given].concat());
        assert!(began.elapsed() < HANDSHAKE, "it took {:?}", began.elapsed());
        assert_eq!((ended.code, ended.stdout.as_str()), (Some(3), ""), "{ended:?}");
        let stderr = lab.redacted(&ended.stderr);
        assert!(stderr.starts_with("error: broker [endpoint] refused the connection: "), "{stderr}");
        assert!(
            stderr.contains(&format!("(expected key fingerprint {fingerprint}): compare with 'norfab broker-key'")),
            "{stderr}"
        );
    }
}

#[test]
fn a_running_worker_whose_broker_has_a_new_key_is_to_be_restarted() {
    let lab = Lab::new(FABRIC);
    let broker = lab.start(&["broker"]);
    // At the same port again, for the worker that is there.
    let again = FABRIC.replace("tcp://127.0.0.1:*", &lab.endpoint());
    let worker = lab.spawn(&["worker", "filesharing-worker-1"]);
    worker.ready("worker filesharing-worker-1");
    assert_eq!(broker.stop(Signal::TERM).code, Some(0));
    std::fs::remove_dir_all(lab.path("__norfab__/files/broker")).expect("it is there");
    lab.write("inventory.yaml", again);
    let _broker = lab.start(&["broker"]);
    let (_, fingerprint) = key(&lab);
    let file = lab.path("__norfab__/files/broker/public_keys/broker.key");
    worker.told_on_stderr(&format!(
        "the broker's key in {} is another one since this worker started, with the fingerprint {fingerprint}: restart this worker",
        file.display()
    ));
    assert!(!worker.stderr().contains("correct its"), "{}", worker.stderr());
    assert_eq!(worker.stop(Signal::TERM).code, Some(0));
    let worker = lab.spawn(&["worker", "filesharing-worker-1"]);
    worker.ready("worker filesharing-worker-1");
}

#[test]
fn a_worker_with_a_wrong_key_is_told_where_it_is_from() {
    let lab = Lab::new(FABRIC);
    let _broker = lab.start(&["broker"]);
    let (other, fingerprint) = key(&Lab::new(FABRIC));
    let worker =
        lab.spawn(&["worker", "w", "--service", "filesharing", "--broker-key", &other, "--base-dir", "elsewhere"]);
    worker.told_on_stderr(&format!("(expected key fingerprint {fingerprint})"));
    worker.told_on_stderr("correct --broker-key");
    worker.told_on_stderr("then restart this worker");
}

#[test]
fn only_a_key_that_worked_is_kept_and_its_copy_is_named() {
    let lab = Lab::new(FABRIC);
    let broker = lab.start(&["broker"]);
    let (right, _) = key(&lab);
    let (wrong, _) = key(&Lab::new(FABRIC));
    let listed = |key: &str| {
        let shared = if key.is_empty() { String::new() } else { format!(", shared_key: {}", in_yaml(key)) };
        lab.write("client/inventory.yaml", format!("broker: {{endpoint: '{}'{shared}}}\n", lab.endpoint()));
        lab.run(&["workers", "-i", "client"])
    };
    assert_eq!(listed(&wrong).code, Some(3));
    let unknown = listed("");
    assert_eq!(unknown.code, Some(5), "{unknown:?}");
    assert!(unknown.stderr.contains("the broker's public key is not known"), "{unknown:?}");
    assert_eq!(lab.run(&["workers", "-i", "client", "--broker-key", &right]).code, Some(0));
    assert_eq!(listed("").code, Some(5), "one that was given is not kept");
    assert_eq!(listed(&right).code, Some(0));
    assert_eq!(listed("").code, Some(0), "it is the copy");

    drop(broker);
    std::fs::remove_dir_all(lab.path("__norfab__/files/broker")).expect("it is there");
    lab.write("inventory.yaml", FABRIC.replace("tcp://127.0.0.1:*", &lab.endpoint()));
    let _broker = lab.start(&["broker"]);
    let refused = listed("");
    assert_eq!(refused.code, Some(3), "{refused:?}");
    let folder = lab.names("client/__norfab__/files/client").pop().expect("a client's folder");
    let copy = format!("client/__norfab__/files/client/{folder}/public_keys/broker.key");
    assert!(
        refused.stderr.contains(&format!("; the expected key is the copy in {}", lab.path(copy).display())),
        "{refused:?}"
    );
}

#[test]
fn a_host_without_the_broker_makes_no_keys_for_it() {
    let lab = Lab::new(FABRIC);
    let _broker = lab.start(&["broker"]);
    let (right, _) = key(&lab);
    lab.write("client/inventory.yaml", format!("broker: {{endpoint: '{}'}}\n", lab.endpoint()));
    let ended = lab.run(&["broker-key", "-i", "client"]);
    assert_eq!((ended.code, ended.stdout.as_str()), (Some(5), ""), "{ended:?}");
    assert!(ended.stderr.contains("run this on the broker's host"), "{ended:?}");
    assert!(!lab.path("client/__norfab__/files/broker").exists());
    let shared = in_yaml(&right);
    lab.write("client/inventory.yaml", format!("broker: {{endpoint: '{}', shared_key: {shared}}}\n", lab.endpoint()));
    assert_eq!(lab.run(&["workers", "-i", "client"]).code, Some(0));
    assert_eq!(lab.json(&["broker-key", "-i", "client", "--json"])["public_key"], right.as_str());
    // Keys that were made all the same come before the inventory's; whoever is refused with them is told where they are.
    assert_eq!(lab.run(&["broker-key", "-i", "client", "--create"]).code, Some(0));
    let ended = lab.run(&["workers", "-i", "client"]);
    assert_eq!(ended.code, Some(3), "{ended:?}");
    let file = lab.path("client/__norfab__/files/broker/public_keys/broker.key");
    assert!(ended.stderr.contains(&format!("the expected key is the one in {}", file.display())), "{ended:?}");
}

#[test]
fn a_broker_of_this_inventory_that_never_ran_is_to_be_started() {
    let lab = Lab::new(FABRIC);
    for arguments in [&["workers"][..], &["run", "filesharing", "echo"]] {
        let ended = lab.run(arguments);
        assert_eq!((ended.code, ended.stdout.as_str()), (Some(3), ""), "{ended:?}");
        allow_duplicates! { assert_snapshot!(lab.redacted(&ended.stderr), @"error: the broker of this inventory has not run yet, there are no keys in [folder]/__norfab__/files/broker: start it with 'norfab up'; if it runs with another --base-dir, give its key with --broker-key") }
    }
}

#[test]
fn a_broker_that_is_frozen_is_not_said_to_refuse_a_key() {
    let lab = Lab::new(FABRIC);
    let broker = lab.start(&["broker"]);
    lab.registered(&[]);
    broker.signal(Signal::STOP);
    let worker = lab.spawn(&["worker", "w1", "--service", "filesharing"]);
    worker.told_on_stderr("no answer from the broker at ");
    let told = worker.stderr();
    assert!(told.contains("it may be frozen or overloaded"), "{told}");
    assert!(!told.contains("fingerprint") && !told.contains("refused"), "{told}");
    broker.signal(Signal::CONT);
    worker.ready("worker w1");
}

#[test]
fn an_address_that_is_not_admitted_gets_no_advice_about_keys() {
    let lab = Lab::new(&FABRIC.replace("127.0.0.1:*\"", "127.0.0.1:*\"\n  ip_allowlist: ['192.0.2.1']"));
    let _broker = lab.start(&["broker"]);
    let ended = lab.run(&["workers"]);
    assert_eq!((ended.code, ended.stdout.as_str()), (Some(3), ""), "{ended:?}");
    assert!(ended.stderr.contains("see broker.ip_allowlist"), "{ended:?}");
    for advice in ["fingerprint", "expected key", "remove the folder", "broker-key"] {
        assert!(!ended.stderr.contains(advice), "{ended:?}");
    }
}

#[test]
fn another_broker_at_the_port_of_ours_is_told_without_advice_to_remove_keys() {
    let lab = Lab::new(FABRIC);
    let (_, _) = key(&lab);
    let other = Lab::new(FABRIC);
    let _broker = other.start(&["broker"]);
    let ended = lab.run(&["workers", "--endpoint", &other.endpoint()]);
    assert_eq!((ended.code, ended.stdout.as_str()), (Some(3), ""), "{ended:?}");
    assert!(ended.stderr.contains("another broker may listen at this port"), "{ended:?}");
    assert!(ended.stderr.contains("another one listens there, so stop it or choose another port"), "{ended:?}");
    assert!(!ended.stderr.contains("remove the folder"), "{ended:?}");
}

#[test]
fn a_key_from_the_environment_is_named_by_its_variable() {
    let lab = Lab::empty();
    let mut command = lab.command(&["workers", "--endpoint", "tcp://127.0.0.1:1"]);
    command.env("NORFAB_BROKER_KEY", "short");
    let ended = crate::support::Role::spawn(command).end();
    assert_eq!((ended.code, ended.stdout.as_str()), (Some(5), ""), "{ended:?}");
    assert!(ended.stderr.starts_with("error: NORFAB_BROKER_KEY: \"short\" is not a CURVE key"), "{ended:?}");
}

#[test]
fn a_key_file_with_nothing_in_it_and_a_base_folder_that_is_a_file_say_what_to_do() {
    let lab = Lab::new(FABRIC);
    lab.write("__norfab__/files/broker/private_keys/broker.key_secret", "");
    let ended = lab.run(&["broker"]);
    assert_eq!((ended.code, ended.stdout.as_str()), (Some(5), ""), "{ended:?}");
    assert!(ended.stderr.ends_with("restore the file, or remove it and a new one is made\n"), "{ended:?}");
    let ended = lab.run(&["broker", "--base-dir", "inventory.yaml"]);
    assert_eq!((ended.code, ended.stdout.as_str()), (Some(5), ""), "{ended:?}");
    assert_snapshot!(lab.redacted(&ended.stderr), @"error: [folder]/inventory.yaml is no folder, and keys, jobs and logs go below it: correct --base-dir");
}

#[test]
fn without_encryption_there_is_no_key_to_show_and_the_reason_is_told() {
    let lab = Lab::new(FABRIC);
    let told = |arguments: &[&str]| {
        let ended = lab.run(arguments);
        assert_eq!((ended.code, ended.stdout.as_str()), (Some(5), ""), "{ended:?}");
        ended.stderr
    };
    assert!(told(&["broker-key", "--broker-key", "none"]).contains("--broker-key none says"));
    lab.write("plain/inventory.yaml", "broker: {endpoint: 'tcp://127.0.0.1:1', zmq_auth: false}\n");
    assert!(told(&["broker-key", "-i", "plain"]).contains("broker.zmq_auth is false in plain/inventory.yaml"));
}

#[test]
fn one_side_that_encrypts_alone_is_told() {
    let lab = Lab::new(FABRIC);
    let _broker = lab.start(&["broker"]);
    let began = Instant::now();
    let plain = lab.run(&["workers", "--broker-key", "none"]);
    assert_eq!((plain.code, plain.stdout.as_str()), (Some(3), ""), "{plain:?}");
    assert!(plain.stderr.contains("refused the connection"), "{plain:?}");
    assert!(plain.stderr.contains(&lab.endpoint()), "{plain:?}");
    assert!(plain.stderr.contains("zmq_auth"), "{plain:?}");
    assert!(began.elapsed() < 2 * HANDSHAKE, "it took {:?}", began.elapsed());

    let (given, _) = key(&lab);
    let lab = Lab::new(&FABRIC.replace("broker:\n  endpoint", "broker:\n  zmq_auth: false\n  endpoint"));
    let _broker = lab.start(&["broker"]);
    lab.registered(&[]);
    let began = Instant::now();
    let encrypted = lab.run(&["workers", "--broker-key", &given]);
    assert_eq!((encrypted.code, encrypted.stdout.as_str()), (Some(3), ""), "{encrypted:?}");
    assert!(encrypted.stderr.contains(&lab.endpoint()), "{encrypted:?}");
    assert!(encrypted.stderr.contains("zmq_auth"), "{encrypted:?}");
    assert!(began.elapsed() < 2 * HANDSHAKE, "it took {:?}", began.elapsed());
}

#[test]
fn what_cannot_be_a_key_an_endpoint_or_a_name_is_configuration() {
    let lab = Lab::empty();
    let of = |arguments: &[&str]| {
        let ended = lab.run(&[&["workers"], arguments].concat());
        assert_eq!((ended.code, ended.stdout.as_str()), (Some(5), ""), "{arguments:?}: {ended:?}");
        lab.redacted(&ended.stderr)
    };
    assert_snapshot!(of(&["--endpoint", "tcp://127.0.0.1:1", "--broker-key", "short"]), @r#"error: --broker-key: "short" is not a CURVE key: 40 characters of Z85 are needed, these are 5 bytes: give what 'norfab broker-key' prints on the broker's host"#);
    assert_snapshot!(of(&["--endpoint", "127.0.0.1:1", "--broker-key", "none"]), @r#"error: malformed endpoint "127.0.0.1:1": it starts neither with tcp:// nor with ipc://; write tcp://HOST:PORT, tcp://[IPV6]:PORT, tcp://*:PORT or ipc://PATH: the endpoint is from --endpoint"#);
    assert_snapshot!(of(&["--endpoint", "tcp://127.0.0.1:*", "--broker-key", "none"]), @"error: the broker at tcp://127.0.0.1:* takes whatever port is free: give the one that it printed with --endpoint");
    assert_snapshot!(of(&["--endpoint", "tcp://127.0.0.1:1"]), @"error: the broker's public key is not known: give what 'norfab broker-key' prints on its host with --broker-key KEY, or '--broker-key none' if it does not encrypt");
    assert_snapshot!(of(&["--endpoint", "tcp://127.0.0.1:1", "--broker-key", "none", "--name", "a/b"]), @r#"error: --name: "a/b" cannot be the name of a folder: it has a slash, a backslash or a control character; use letters, digits and dashes"#);
}
