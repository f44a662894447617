//! Ours and Python's in one fabric: every role of ours among parts of each release, in the clear and over CURVE.

use norfab_peer_tests::{Job, Release, Security, Side, Site};
use serde_json::json;

use crate::shapes::{Roles, WORKERS, every_shape_of_job};

#[test]
fn our_broker_serves_python_0_21_2_plain() {
    every_shape_of_job(Roles::our_broker(Release::V0_21_2), Security::Plain);
}

#[test]
fn our_broker_serves_python_0_21_2_curve() {
    every_shape_of_job(Roles::our_broker(Release::V0_21_2), Security::Curve);
}

#[test]
fn our_broker_serves_python_0_25_0_plain() {
    every_shape_of_job(Roles::our_broker(Release::V0_25_0), Security::Plain);
}

#[test]
fn our_broker_serves_python_0_25_0_curve() {
    every_shape_of_job(Roles::our_broker(Release::V0_25_0), Security::Curve);
}

#[test]
fn our_worker_serves_python_0_21_2_plain() {
    every_shape_of_job(Roles::our_worker(Release::V0_21_2), Security::Plain);
}

#[test]
fn our_worker_serves_python_0_21_2_curve() {
    every_shape_of_job(Roles::our_worker(Release::V0_21_2), Security::Curve);
}

#[test]
fn our_worker_serves_python_0_25_0_plain() {
    every_shape_of_job(Roles::our_worker(Release::V0_25_0), Security::Plain);
}

#[test]
fn our_worker_serves_python_0_25_0_curve() {
    every_shape_of_job(Roles::our_worker(Release::V0_25_0), Security::Curve);
}

#[test]
fn our_client_uses_python_0_21_2_plain() {
    every_shape_of_job(Roles::our_client(Release::V0_21_2), Security::Plain);
}

#[test]
fn our_client_uses_python_0_21_2_curve() {
    every_shape_of_job(Roles::our_client(Release::V0_21_2), Security::Curve);
}

#[test]
fn our_client_uses_python_0_25_0_plain() {
    every_shape_of_job(Roles::our_client(Release::V0_25_0), Security::Plain);
}

#[test]
fn our_client_uses_python_0_25_0_curve() {
    every_shape_of_job(Roles::our_client(Release::V0_25_0), Security::Curve);
}

#[test]
fn ours_alone_plain() {
    every_shape_of_job(Roles::all(Side::Ours), Security::Plain);
}

#[test]
fn ours_alone_curve() {
    every_shape_of_job(Roles::all(Side::Ours), Security::Curve);
}

#[test]
fn python_client_uses_our_worker_behind_our_broker() {
    for release in Release::ALL {
        let roles = Roles { client: Side::Python(release), ..Roles::all(Side::Ours) };
        every_shape_of_job(roles, Security::Curve);
    }
}

#[test]
fn our_client_uses_python_workers_behind_our_broker() {
    for release in Release::ALL {
        let roles = Roles { worker: Side::Python(release), ..Roles::all(Side::Ours) };
        every_shape_of_job(roles, Security::Curve);
    }
}

#[test]
fn one_service_has_workers_of_all_sides() {
    let sides = [Side::Ours, Side::Python(Release::V0_21_2), Side::Python(Release::V0_25_0)];
    let names = ["ours", "python-0.21.2", "python-0.25.0"];
    for broker in sides {
        let mut site = Site::new(Security::Curve);
        for name in names {
            site = site.with_service(name, "dummy");
        }
        let _broker = site.start_broker(broker);
        let _workers = [0, 1, 2].map(|index| site.start_worker(sides[index], names[index]));
        for client in sides {
            let mut client = site.start_client(client, "client");
            client.wait_for_workers(&names);
            let results = client.run(Job::new("dummy", "ok").with("a", 7));
            for name in names {
                assert_eq!(results[name]["result"], json!({"a": 7, "b": "bee"}), "broker {broker:?}: {results}");
            }
        }
    }
}

#[test]
fn host_elsewhere_knows_the_broker_by_its_shared_key() {
    for broker in [Side::Ours, Side::Python(Release::V0_25_0)] {
        let site = Site::new(Security::Curve).with_service(WORKERS[0], "dummy").with_service(WORKERS[1], "dummy");
        let _broker = site.start_broker(broker);
        let elsewhere = site.elsewhere(site.broker_key().as_deref());
        let _ours = elsewhere.start_worker(Side::Ours, WORKERS[0]);
        let _python = elsewhere.start_worker(Side::Python(Release::V0_25_0), WORKERS[1]);
        for client in [Side::Ours, Side::Python(Release::V0_25_0)] {
            let mut client = elsewhere.start_client(client, "client");
            client.wait_for_workers(&WORKERS);
            let results = client.run(Job::new("dummy", "ok").with("a", 7));
            for name in WORKERS {
                assert_eq!(results[name]["failed"], false, "broker {broker:?}: {results}");
            }
        }
    }
}
