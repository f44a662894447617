//! What a job can do on the wire, on a fabric whose three roles are given.

use norfab_peer_tests::{Client, Job, Peer, Release, Security, Side, Site};
use serde_json::{Value, json};

/// Who plays which role.
#[derive(Clone, Copy, Debug)]
pub struct Roles {
    pub broker: Side,
    pub worker: Side,
    pub client: Side,
}

impl Roles {
    /// All three from one side.
    pub fn all(side: Side) -> Self {
        Self { broker: side, worker: side, client: side }
    }

    /// Python in all roles but one, which is ours.
    pub fn our_broker(release: Release) -> Self {
        Self { broker: Side::Ours, ..Self::all(Side::Python(release)) }
    }

    /// See [`Roles::our_broker`].
    pub fn our_worker(release: Release) -> Self {
        Self { worker: Side::Ours, ..Self::all(Side::Python(release)) }
    }

    /// See [`Roles::our_broker`].
    pub fn our_client(release: Release) -> Self {
        Self { client: Side::Ours, ..Self::all(Side::Python(release)) }
    }
}

/// A running fabric with two workers of the service `dummy`, one of them with a name that is not ASCII.
pub struct Fabric {
    pub client: Client,
    pub workers: [Peer; 2],
    pub broker: Peer,
    pub site: Site,
}

/// The names of the two workers.
pub const WORKERS: [&str; 2] = ["dummy-1", "dummy-\u{fc}"];

impl Fabric {
    /// Starts all parts and waits until the broker knows the workers.
    pub fn start(roles: Roles, security: Security) -> Self {
        let site = Site::new(security).with_service(WORKERS[0], "dummy").with_service(WORKERS[1], "dummy");
        let broker = site.start_broker(roles.broker);
        let workers = WORKERS.map(|name| site.start_worker(roles.worker, name));
        let mut client = site.start_client(roles.client, "client-\u{e9}");
        assert_eq!(client.wait_for_workers(&WORKERS), WORKERS);
        Self { client, workers, broker, site }
    }
}

/// Targets, results, failures, events, input, large results and the broker's own services.
pub fn every_shape_of_job(roles: Roles, security: Security) {
    let mut fabric = Fabric::start(roles, security);
    let client = &mut fabric.client;
    targets(client);
    failures(client);
    events(client);
    input(client);
    large_result(client);
    broker_services(client, roles.broker);
}

fn targets(client: &mut Client) {
    let expected = json!({"a": 1, "b": "bee"});
    let ok = || Job::new("dummy", "ok").with("a", 1);
    for (target, names) in [
        (json!("all"), &WORKERS[..]),
        (json!(WORKERS), &WORKERS[..]),
        (json!([WORKERS[1], "nobody"]), &WORKERS[1..]),
        (json!("dummy-1"), &WORKERS[..1]),
    ] {
        let results = client.run(ok().at(target.clone()));
        assert_eq!(workers_of(&results), names, "target {target}: {results}");
        for name in names {
            assert_eq!(results[name]["result"], expected, "{results}");
            assert_eq!(results[name]["failed"], false, "{results}");
        }
    }
    let any = client.run(ok().at("any"));
    let [one] = &workers_of(&any)[..] else { panic!("any is one worker: {any}") };
    assert!(WORKERS.contains(&one.as_str()), "{any}");
    let refused = client.submit(ok().at("nobody").within(20));
    client.wait(&refused);
    assert_eq!(client.job(&refused)["status"], "FAILED");
}

fn failures(client: &mut Client) {
    let raised = client.run(Job::new("dummy", "raises").with("text", "no such thing").at("dummy-1"));
    let result = &raised["dummy-1"];
    assert_eq!(result["failed"], true, "{raised}");
    assert!(result.to_string().contains("no such thing"), "{raised}");
    let failed = &client.run(Job::new("dummy", "fails").at("dummy-1"))["dummy-1"];
    assert_eq!(failed["failed"], true, "{failed}");
    assert_eq!(failed["result"], "partial", "{failed}");
    assert_eq!(failed["errors"], json!(["first error", "second error"]), "{failed}");
    let wrong = &client.run(Job::new("dummy", "ok").with("a", "one").at("dummy-1"))["dummy-1"];
    assert_eq!(wrong["failed"], true, "{wrong}");
    let unknown = &client.run(Job::new("dummy", "no_such_task").at("dummy-1"))["dummy-1"];
    assert_eq!(unknown["failed"], true, "{unknown}");
}

fn events(client: &mut Client) {
    let id = client.submit(Job::new("dummy", "progress").at("dummy-1"));
    let events = client.all_events(&id);
    let messages: Vec<&str> = events.iter().filter_map(|event| event["message"].as_str()).collect();
    let sent = [
        "starting",
        "minimal",
        "all fields",
        "severity INFO",
        "severity DEBUG",
        "severity WARNING",
        "severity CRITICAL",
        "severity ERROR",
        "unicode \u{fc}\u{2192}\u{65e5}\u{672c}",
    ];
    assert_eq!(messages[..sent.len()], sent);
    let full = &events[2];
    assert_eq!(full["worker"], "dummy-1");
    assert_eq!(full["status"], "scheduled");
    assert_eq!(full["resource"], json!(["res-1", "res-2"]));
    assert_eq!(full["severity"], "WARNING");
    assert_eq!(full["timestamp"], "my-own-timestamp");
    assert_eq!(full["extras"], json!({"k": [1, {"z": null}]}));
    assert_eq!(full["timeout"], 33);
}

fn input(client: &mut Client) {
    let id = client.submit(Job::new("dummy", "ask").with("question", "which one?").at("all"));
    for name in WORKERS {
        let request = input_request(client, &id);
        assert_eq!(request["question"], "which one?", "for {name}: {request}");
        client.answer(&id, request["id"].as_str().expect("an id"), "that one");
    }
    let results = client.wait(&id);
    for name in WORKERS {
        assert_eq!(results[name]["result"], "that one", "{results}");
    }
    let id = client.submit(Job::new("dummy", "ask").at("dummy-1"));
    let request = input_request(client, &id);
    client.decline(&id, request["id"].as_str().expect("an id"));
    assert_eq!(client.wait(&id)["dummy-1"]["failed"], true);
}

fn large_result(client: &mut Client) {
    let results = client.run(Job::new("dummy", "big").with("mb", 10).at("any"));
    let (_, result) = results.as_object().and_then(|results| results.iter().next()).expect("one worker");
    assert_eq!(result["result"].as_array().map(Vec::len), Some(10 * 1_000_000 / 110));
}

fn broker_services(client: &mut Client, broker: Side) {
    let listed = client.mmi("mmi.service.broker", "show_workers", json!({"service": "dummy"}));
    assert_eq!(listed["status"], "200", "{listed}");
    assert_eq!(listed["results"].as_array().map(Vec::len), Some(2), "{listed}");
    assert_eq!(listed["results"][0]["status"], "alive", "{listed}");
    let version = client.mmi("mmi.service.broker", "show_broker_version", json!({}));
    match broker {
        Side::Python(release) => assert_eq!(version["results"]["norfab"], release.environment().name()[3..]),
        Side::Ours => assert!(version["results"]["norfab"].is_string(), "{version}"),
    }
    let inventory = client.mmi("sid.service.broker", "get_inventory", json!({"name": "dummy-1"}));
    assert_eq!(inventory["results"], json!({"service": "dummy"}), "{inventory}");
}

/// The next input request of a job.
fn input_request(client: &mut Client, id: &str) -> Value {
    let events = client.events(id, "input_request");
    let event = events.last().expect("an event came");
    assert_eq!(event["event_type"], "input_request", "{event}");
    event["extras"]["input_request"].clone()
}

fn workers_of(results: &Value) -> Vec<String> {
    let mut names: Vec<String> = results.as_object().into_iter().flat_map(|results| results.keys().cloned()).collect();
    names.sort();
    names
}
