//! `norfab worker`.

use insta::assert_snapshot;
use rustix::process::Signal;

use crate::support::{FABRIC, Lab};

#[test]
fn a_worker_is_told_its_data_by_the_broker() {
    let lab = Lab::new(&FABRIC.replace("filesharing-worker-1:", "files-*:\n    - service: filesharing"));
    let _broker = lab.start(&["broker"]);
    // This host knows nothing of the worker.
    lab.write("far/inventory.yaml", "broker: {endpoint: 'tcp://127.0.0.1:1'}\n");
    let key = lab.json(&["broker-key", "--json"])["public_key"].as_str().expect("a key").to_owned();
    let worker = lab.spawn(&["worker", "files-1", "files-2", "-i", "far", "--broker-key", &key]);
    worker.ready("worker files-1");
    lab.registered(&["files-1", "files-2"]);
    let told = lab.json(&["run", "filesharing", "get_inventory", "-w", "files-1", "--json"]);
    assert_eq!(told["results"]["files-1"]["result"]["run_shell_cmd"], true, "{told}");
    let ended = worker.stop(Signal::TERM);
    assert_eq!((ended.code, ended.stderr.as_str()), (Some(0), ""));
    let mut ready: Vec<&str> = ended.stdout.lines().collect();
    ready.sort_unstable();
    assert_snapshot!(lab.redacted(&ready.join("\n")), @r"
    ready: worker files-1 [endpoint]
    ready: worker files-2 [endpoint]
    ");
    // It said good-bye: nobody waits for its hold time.
    lab.registered(&[]);
}

#[test]
fn a_worker_whose_broker_was_stopped_says_when_it_is_connected_again() {
    let lab = Lab::new(FABRIC);
    let broker = lab.start(&["broker"]);
    // Where the next one listens, too.
    lab.write("inventory.yaml", FABRIC.replace("tcp://127.0.0.1:*", &lab.endpoint()));
    let worker = lab.spawn(&["worker", "filesharing-worker-1"]);
    worker.ready("worker filesharing-worker-1");
    assert_eq!(broker.stop(Signal::TERM).code, Some(0));
    worker.told_on_stderr("worker filesharing-worker-1: no broker answers");
    let _broker = lab.start(&["broker"]);
    worker.told_on_stderr("worker filesharing-worker-1 is connected again");
}

#[test]
fn a_worker_that_the_broker_does_not_know_is_told_its_data_by_this_host() {
    let lab = Lab::new(FABRIC);
    let _broker = lab.start(&["broker"]);
    lab.write(
        "far/inventory.yaml",
        "broker: {endpoint: 'tcp://127.0.0.1:1'}\nworkers: {mine: [{service: filesharing, base_dir: own}]}\n",
    );
    let key = lab.json(&["broker-key", "--json"])["public_key"].as_str().expect("a key").to_owned();
    let worker = lab.spawn(&["worker", "mine", "unknown", "-i", "far", "--broker-key", &key]);
    worker.ready("worker mine");
    lab.registered(&["mine"]);
    let ended = worker.stop(Signal::INT);
    assert_eq!(ended.code, Some(0));
    assert_snapshot!(lab.redacted(&ended.stderr), @"error: worker unknown: the broker's inventory has no data for it, nor has the one here: add 'unknown' or a pattern that matches it under 'workers' there and restart the broker, which reads inventory.yaml when it starts; or name a service with --service");
}

#[test]
fn a_worker_needs_no_inventory_where_its_service_is_named() {
    let lab = Lab::new(FABRIC);
    let _broker = lab.start(&["broker"]);
    let key = lab.json(&["broker-key", "--json"])["public_key"].as_str().expect("a key").to_owned();
    let elsewhere = Lab::empty();
    let endpoint = lab.endpoint();
    let worker = elsewhere.spawn(&[
        "worker",
        "files-2",
        "--service",
        "filesharing",
        "--endpoint",
        &endpoint,
        "--broker-key",
        &key,
    ]);
    worker.ready("worker files-2");
    lab.registered(&["files-2"]);
    assert_eq!(worker.stop(Signal::TERM).code, Some(0));

    let refused = elsewhere.run(&["worker", "w", "--service", "nope", "--endpoint", &endpoint, "--broker-key", &key]);
    assert_eq!(refused.code, Some(5));
    let error = "error: no worker could be started: worker w: service 'nope' is not built into this program";
    assert!(refused.stderr.contains(error), "{refused:?}");
}

#[test]
fn a_worker_waits_for_its_broker_and_says_so() {
    let lab = Lab::new(FABRIC);
    let broker = lab.start(&["broker"]);
    assert_eq!(broker.stop(Signal::TERM).code, Some(0));
    let worker = lab.spawn(&["worker", "filesharing-worker-1"]);
    worker.told_on_stderr("worker filesharing-worker-1 waits for its broker: no broker answers at");
    let _broker = lab.start(&["broker", "--endpoint", &lab.endpoint()]);
    worker.ready("worker filesharing-worker-1");
    lab.registered(&["filesharing-worker-1"]);
    assert_eq!(worker.stop(Signal::TERM).code, Some(0));

    let waiting = Lab::empty();
    let worker = waiting.spawn(&["worker", "w1", "--endpoint", "tcp://127.0.0.1:1", "--broker-key", "none"]);
    worker.told_on_stderr("waits for its broker");
    let ended = worker.stop(Signal::TERM);
    assert_eq!((ended.code, ended.stdout.as_str()), (Some(0), ""));
    assert_eq!(ended.stderr.matches("waits for its broker").count(), 1, "{}", ended.stderr);
}

#[test]
fn a_name_is_used_by_one_process_at_a_time() {
    let (lab, _up) = Lab::up();
    let ended = lab.run(&["worker", "filesharing-worker-1"]);
    assert_eq!((ended.code, ended.stdout.as_str()), (Some(5), ""));
    assert_snapshot!(lab.redacted(&ended.stderr), @r"
    error: no worker could be started: worker filesharing-worker-1: another process here runs it already: stop that one, or give this one another name
    ");
    let twice = lab.spawn(&["worker", "files-2", "files-2", "--service", "filesharing"]);
    twice.ready("worker files-2");
    twice.told_on_stderr("worker files-2: it is named twice: name each worker once");
}

/// A fabric whose broker listens at a port that is free now, so that a worker can know it before.
fn with_a_port() -> Lab {
    let free = std::net::TcpListener::bind("127.0.0.1:0").expect("a port").local_addr().expect("an address").port();
    Lab::new(&FABRIC.replace("127.0.0.1:*", &format!("127.0.0.1:{free}")))
}

#[test]
fn a_worker_that_starts_before_its_broker_ever_ran_waits_for_the_key() {
    let lab = with_a_port();
    let worker = lab.spawn(&["worker", "filesharing-worker-1"]);
    worker.told_on_stderr("waiting up to 30 s (--wait-for-key) for the broker's first start");
    let _broker = lab.start(&["broker"]);
    worker.ready("worker filesharing-worker-1");
    lab.registered(&["filesharing-worker-1"]);
    assert_eq!(worker.stop(Signal::TERM).code, Some(0));
}

#[test]
fn a_worker_does_not_wait_for_ever_for_the_key_of_a_broker_that_never_ran() {
    let lab = with_a_port();
    let ended = lab.run(&["worker", "filesharing-worker-1", "--wait-for-key", "300ms"]);
    assert_eq!((ended.code, ended.stdout.as_str()), (Some(3), ""), "{ended:?}");
    assert_snapshot!(lab.redacted(&ended.stderr), @r"
    warning: waiting up to 0.3 s (--wait-for-key) for the broker's first start: the broker of this inventory has not run yet, there are no keys in [folder]/__norfab__/files/broker: start it with 'norfab up'; if it runs with another --base-dir, give its key with --broker-key
    error: the broker of this inventory has not run yet, there are no keys in [folder]/__norfab__/files/broker: start it with 'norfab up'; if it runs with another --base-dir, give its key with --broker-key
    ");
    let waiting = lab.spawn(&["worker", "filesharing-worker-1"]);
    waiting.told_on_stderr("--wait-for-key");
    assert_eq!(waiting.stop(Signal::INT).code, Some(0), "a signal ends it");
}

#[test]
fn why_no_worker_could_be_started_is_in_the_log_as_well() {
    let lab = Lab::new(FABRIC);
    let _broker = lab.start(&["broker"]);
    let ended = lab.run(&["worker", "unknown", "other"]);
    assert_eq!((ended.code, ended.stdout.as_str()), (Some(5), ""), "{ended:?}");
    assert_eq!(ended.stderr.matches("worker unknown: ").count(), 1, "it is told once: {ended:?}");
    let log = lab.read("__norfab__/logs/worker-unknown.jsonl");
    for name in ["unknown", "other"] {
        assert!(log.contains(&format!("worker {name}: the broker's inventory has no data for it")), "{log}");
    }
}
