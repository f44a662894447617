//! What nobody sane would send to our broker. It answers where it can, and goes on serving everybody else.

use norfab_peer_tests::{Dealer, Job, Release, Security};
use serde_json::{Value, json};

use crate::shapes::{Fabric, Roles};

/// Seconds to wait for an answer that must come.
const PATIENCE: f64 = 20.0;

#[test]
fn broker_outlives_malformed_messages_of_clients_and_workers() {
    let mut fabric = Fabric::start(Roles::our_broker(Release::V0_25_0), Security::Curve);
    let mut dealer = fabric.site.start_dealer(fabric.site.broker_key().as_deref());
    dealer.connect("text", "stranger");
    dealer.connect("bytes", json!({"hex": "ff80"}));
    let odd = json!({"hex": "c328"});
    let long = "x".repeat(100_000);
    let many: Vec<String> = (0..200).map(|number| number.to_string()).collect();
    let messages = [
        json!([""]),
        json!(["", ""]),
        json!(["no delimiter", "NFPC01", "0x04"]),
        json!(["", "NFPB01", "0x04", "dummy", "any", "id", "{}"]),
        json!(["", "NFPX01", "0x04", "dummy", "any", "id", "{}"]),
        json!(["", odd, odd, odd, odd, odd, odd]),
        json!(many),
        // Clients: too short, wrong commands, bodies that are no JSON, names that are no text or too long.
        json!(["", "NFPC01"]),
        json!(["", "NFPC01", "0x04"]),
        json!(["", "NFPC01", "0x04", "dummy", "any", "id"]),
        json!(["", "NFPC01", {"hex": "04"}, "dummy", "any", "id", "{}"]),
        json!(["", "NFPC01", "0x99", "dummy", "any", "id", "{}"]),
        json!(["", "NFPC01", "0x04", odd, "any", "id", "{}"]),
        json!(["", "NFPC01", "0x04", "dummy", odd, "id", "{}"]),
        json!(["", "NFPC01", "0x04", "dummy", "any", odd, "{}"]),
        json!(["", "NFPC01", "0x04", "dummy", "any", "id", odd]),
        json!(["", "NFPC01", "0x04", "dummy", "any", "id", "[1, 2"]),
        json!(["", "NFPC01", "0x04", long, "any", "id", "{}"]),
        json!(["", "NFPC01", "0x04", "dummy", "[[[[[[", "id", "{}"]),
        json!(["", "NFPC01", "0x06", "dummy", "all", "no-such-job", ""]),
        json!(["", "NFPC01", "0x10", "dummy", "all", "no-such-job", "{}"]),
        json!(["", "NFPC01", "0x11", "mmi.service.broker", "all", "id", "not json"]),
        json!(["", "NFPC01", "0x11", "sid.service.broker", "all", "id", "{\"task\":\"get_inventory\"}"]),
        // Workers: the READY that ends a Python broker, and messages of one that never registered.
        json!(["", "NFPW01"]),
        json!(["", "NFPW01", "0x01"]),
        json!(["", "NFPW01", "0x01", odd]),
        json!(["", "NFPW01", "0x01", ""]),
        json!(["", "NFPW01", "0x02", "dummy"]),
        json!(["", "NFPW01", "0x05", "client", "", "id", "200"]),
        json!(["", "NFPW01", "0x05", "nobody", "", "id", "200", "{}"]),
        json!(["", "NFPW01", "0x08", odd, "", "id", "200", "{}"]),
        json!(["", "NFPW01", "0x09", "client", "", "id", "200", odd]),
        json!(["", "NFPW01", "0x03", "dummy"]),
    ];
    for message in &messages {
        dealer.send("text", message.clone());
        assert_broker_answers(&mut dealer, message);
    }
    // A peer whose name is no text gets no answer, whatever it says.
    for message in messages.iter().chain([&show_workers()]) {
        dealer.send("bytes", message.clone());
    }
    assert_eq!(dealer.receive("bytes", 1.0), None);
    assert_broker_answers(&mut dealer, &json!("a peer without a proper name"));
    let results = fabric.client.run(Job::new("dummy", "ok").with("a", 1));
    assert_eq!(results["dummy-1"]["failed"], false, "{results}");
    assert_eq!(results["dummy-\u{fc}"]["failed"], false, "{results}");
}

#[test]
fn request_that_python_never_answers_is_answered() {
    let fabric = Fabric::start(Roles::our_broker(Release::V0_25_0), Security::Curve);
    let mut dealer = fabric.site.start_dealer(fabric.site.broker_key().as_deref());
    dealer.connect("client", "asker");
    for (service, body) in [
        ("mmi.service.broker", "not json"),
        ("mmi.service.broker", "[]"),
        ("sid.service.broker", "{\"task\":\"get_inventory\",\"kwargs\":{}}"),
        ("sid.service.broker", "not json"),
    ] {
        let id = format!("{service} {body}");
        dealer.send("client", json!(["", "NFPC01", "0x11", service, "all", id, body]));
        let frames = dealer.receive("client", PATIENCE).unwrap_or_else(|| panic!("no answer to {id}"));
        assert_eq!(frames[4], id.as_str());
        assert_eq!(dealer.receive("client", PATIENCE).expect("the answer comes twice")[2], "0x11");
    }
    dealer.send("client", json!(["", "NFPC01", "0x99", "dummy", "any", "odd command", "{}"]));
    let frames = dealer.receive("client", PATIENCE).expect("an unsupported command is refused");
    assert_eq!(frames.len(), 7, "{frames:?}");
    assert_eq!(frames[4], "odd command");
}

#[test]
fn broker_with_keys_is_deaf_to_plain_peers_and_to_those_with_another_key() {
    let mut fabric = Fabric::start(Roles::our_broker(Release::V0_25_0), Security::Curve);
    let other = Fabric::start(Roles::our_broker(Release::V0_25_0), Security::Curve);
    for key in [None, other.site.broker_key()] {
        let mut dealer = fabric.site.start_dealer(key.as_deref());
        dealer.connect("client", "intruder");
        // Taken or not: neither must bring an answer.
        dealer.offer("client", show_workers());
        assert_eq!(dealer.receive("client", 1.5), None, "with key {key:?}");
    }
    assert_eq!(fabric.client.workers_seen().len(), 2);
}

#[test]
fn two_thousand_peers_that_connect_at_once_are_all_served() {
    let mut fabric = Fabric::start(Roles::our_broker(Release::V0_25_0), Security::Curve);
    let mut dealer = fabric.site.start_dealer(fabric.site.broker_key().as_deref());
    assert_eq!(dealer.crowd(2_000, show_workers()), 2_000);
    assert_eq!(fabric.client.workers_seen().len(), 2);
}

#[test]
fn heartbeats_of_zeromq_are_answered_with_and_without_encryption() {
    for security in [Security::Plain, Security::Curve] {
        let fabric = Fabric::start(Roles::our_broker(Release::V0_25_0), security);
        let mut dealer = fabric.site.start_dealer(fabric.site.broker_key().as_deref());
        assert_eq!(dealer.cut_off_with_heartbeats(4), 0, "{security:?}");
    }
}

fn show_workers() -> Value {
    json!(["", "NFPC01", "0x11", "mmi.service.broker", "all", "id", "{\"task\":\"show_workers\",\"kwargs\":{}}"])
}

/// Asks for the workers and skips the answers to what was sent before.
fn assert_broker_answers(dealer: &mut Dealer, after: &Value) {
    let question = json!(["", "NFPC01", "0x11", "mmi.service.broker", "all", "last", "{\"task\":\"show_workers\"}"]);
    dealer.send("text", question);
    while let Some(frames) = dealer.receive("text", PATIENCE) {
        if frames.get(4).is_some_and(|id| id == "last") {
            return;
        }
    }
    panic!("the broker does not answer after {after}");
}
