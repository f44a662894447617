//! Python against Python: what the harness itself must be able to do, and what the other tests are compared with.

use norfab_peer_tests::{Client, Job, Release, Security, Side, Site};
use serde_json::{Value, json};

#[test]
fn python_reference_0_21_2_plain() {
    every_shape_of_job(Release::V0_21_2, Security::Plain);
}

#[test]
fn python_reference_0_21_2_curve() {
    every_shape_of_job(Release::V0_21_2, Security::Curve);
}

#[test]
fn python_reference_0_25_0_plain() {
    every_shape_of_job(Release::V0_25_0, Security::Plain);
}

#[test]
fn python_reference_0_25_0_curve() {
    every_shape_of_job(Release::V0_25_0, Security::Curve);
}

#[test]
fn python_reference_bare_dealer_registers_a_worker_and_answers_a_job() {
    let site = Site::new(Security::Curve);
    let broker = site.start_broker(Side::Python(Release::V0_25_0));
    let key = site.broker_key().expect("the broker has CURVE");
    assert_eq!(broker.ready()["public_key"], key.as_str());
    let mut dealer = site.start_dealer(Some(&key));
    dealer.connect("worker", "hand-made");
    dealer.connect("client", json!({"hex": "ff00"}));
    dealer.send("worker", json!(["", "NFPW01", "0x01", "bare"]));
    // The broker answers READY with nothing but keepalives, so the client asks until the worker is known.
    let dispatched = loop {
        dealer.send("client", json!(["", "NFPC01", "0x04", "bare", "any", "id-1", "{}"]));
        let answer = dealer.receive("client", 30.0).expect("the broker answers a POST");
        if answer[5] == "202" {
            break answer;
        }
        assert_eq!(answer[5], "400");
    };
    assert_eq!(dispatched[..5], [json!(""), json!("NFPB01"), json!("0x05"), json!("bare"), json!("id-1")]);
    let post = loop {
        let message = dealer.receive("worker", 30.0).expect("the job arrives");
        if message[2] != "0x02" {
            break message;
        }
    };
    assert_eq!(post[2..], [json!("0x04"), json!({"hex": "ff00"}), json!(""), json!("id-1"), json!("{}")]);
}

/// Registration, results, errors, events, input, a file over streams and the broker's own services.
fn every_shape_of_job(release: Release, security: Security) {
    let site = Site::new(security).with_service("dummy-1", "dummy").with_service("dummy-\u{fc}", "dummy");
    let share = site.folder().join("share");
    std::fs::create_dir(&share).expect("a new folder");
    std::fs::write(share.join("a.bin"), vec![7; 600_000]).expect("a new file");
    let site = site.with_worker("files-1", json!({"service": "filesharing", "base_dir": share}));
    let side = Side::Python(release);
    let broker = site.start_broker(side);
    let workers = ["dummy-1", "dummy-\u{fc}", "files-1"];
    let _workers = workers.map(|name| site.start_worker(side, name));
    let mut client = site.start_client(release.environment(), "client-1");
    assert_eq!(client.wait_for_workers(&workers), workers);

    let results = client.run(Job::new("dummy", "ok").with("a", 1));
    assert_eq!(results["dummy-1"]["result"], json!({"a": 1, "b": "bee"}));
    assert_eq!(results["dummy-\u{fc}"]["result"], json!({"a": 1, "b": "bee"}));
    let raised = client.run(Job::new("dummy", "raises").with("text", "no such thing").at("dummy-1"));
    assert_eq!(raised["dummy-1"]["messages"], json!(["Worker experienced error: 'no such thing'"]));

    let id = client.submit(Job::new("dummy", "progress").at("dummy-1"));
    let events = client.all_events(&id);
    let warning = events.iter().find(|event| event["message"] == "all fields").expect("the event came");
    assert_eq!(warning["extras"], json!({"k": [1, {"z": null}]}));

    let id = client.submit(Job::new("dummy", "ask").with("question", "which one?").at("dummy-1"));
    let input = input_request(&mut client, &id);
    client.answer(&id, input["id"].as_str().expect("an id"), "that one");
    assert_eq!(client.wait(&id)["dummy-1"]["result"], "that one");

    let fetched = client.fetch_file("nf://a.bin");
    assert_eq!(fetched["status"], "200", "{fetched}");
    assert_eq!(fetched["size"], 600_000);
    let version = client.mmi("mmi.service.broker", "show_broker_version", json!({}));
    assert_eq!(version["results"]["norfab"], release.environment().name()[3..]);

    drop(broker);
}

/// The input request that a job waits with.
fn input_request(client: &mut Client, id: &str) -> Value {
    let events = client.events(id, "input_request");
    events.last().expect("an event came")["extras"]["input_request"].clone()
}
