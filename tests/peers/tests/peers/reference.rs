//! Python against Python: what the harness itself must be able to do, and what the other tests are compared with.

use norfab_peer_tests::{Release, Security, Side, Site};
use serde_json::json;

use crate::shapes::{Fabric, Roles, every_shape_of_job};

#[test]
fn python_reference_0_21_2_plain() {
    every_shape_of_job(Roles::all(Side::Python(Release::V0_21_2)), Security::Plain);
}

#[test]
fn python_reference_0_21_2_curve() {
    every_shape_of_job(Roles::all(Side::Python(Release::V0_21_2)), Security::Curve);
}

#[test]
fn python_reference_0_25_0_plain() {
    every_shape_of_job(Roles::all(Side::Python(Release::V0_25_0)), Security::Plain);
}

#[test]
fn python_reference_0_25_0_curve() {
    every_shape_of_job(Roles::all(Side::Python(Release::V0_25_0)), Security::Curve);
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

#[test]
fn python_reference_parts_stop_when_asked() {
    let roles = Roles::all(Side::Python(Release::V0_25_0));
    let mut fabric = Fabric::start(roles, Security::Curve);
    assert!(fabric.client.peer().stop().success());
    for worker in &mut fabric.workers {
        assert!(worker.stop().success());
    }
    assert!(fabric.broker.stop().success());
}
