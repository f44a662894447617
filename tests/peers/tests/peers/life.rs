//! Parts that crash, hang, come back, or just stay.

use std::thread;
use std::time::{Duration, Instant};

use norfab_peer_tests::{Client, Job, Peer, Release, Security, Side, Site};
use serde_json::{Value, json};

use crate::shapes::{Fabric, Roles, WORKERS};

/// The hold time of the protocol: a silent peer is given up after it.
const HOLD_TIME: Duration = Duration::from_secs(15);

/// By when workers must be back if they need not wait for their hold time: two keepalives, and time for slow machines.
const BACK_WITHIN: Duration = Duration::from_secs(9);

#[test]
fn our_broker_gets_workers_of_all_sides_back_before_their_hold_time() {
    let (site, names) = site_of_three_sides();
    let mut broker = site.start_broker(Side::Ours);
    let _workers = start_three_sides(&site, &names);
    for client in [Side::Ours, Side::Python(Release::V0_25_0)] {
        let mut client = site.start_client(client, "client");
        client.wait_for_workers(&names);
        broker.kill();
        broker = site.start_broker(Side::Ours);
        let back = Instant::now();
        client.wait_for_workers(&names);
        assert!(back.elapsed() < BACK_WITHIN, "workers were back after {:?}", back.elapsed());
        assert_all_work(&mut client, &names);
    }
}

#[test]
fn our_worker_is_back_at_a_python_broker_before_its_hold_time() {
    for release in Release::ALL {
        let site = Site::new(Security::Curve).with_service("ours", "dummy");
        let mut broker = site.start_broker(Side::Python(release));
        let _worker = site.start_worker(Side::Ours, "ours");
        let mut client = site.start_client(Side::Ours, "client");
        client.wait_for_workers(&["ours"]);
        broker.kill();
        broker = site.start_broker(Side::Python(release));
        let back = Instant::now();
        client.wait_for_workers(&["ours"]);
        assert!(back.elapsed() < BACK_WITHIN, "{release:?}: the worker was back after {:?}", back.elapsed());
        assert_all_work(&mut client, &["ours"]);
        assert!(broker.stop().success());
    }
}

#[test]
fn our_client_finishes_a_job_across_a_restart_of_the_broker() {
    for worker in [Side::Ours, Side::Python(Release::V0_25_0)] {
        let roles = Roles { worker, ..Roles::all(Side::Ours) };
        let mut fabric = Fabric::start(roles, Security::Curve);
        let id = fabric.client.submit(Job::new("dummy", "slow").with("seconds", 3).at("dummy-1"));
        fabric.client.events(&id, "starting");
        fabric.broker.kill();
        fabric.broker = fabric.site.start_broker(Side::Ours);
        let results = fabric.client.wait(&id);
        assert_eq!(results["dummy-1"]["result"].as_f64(), Some(3.0), "worker {worker:?}: {results}");
    }
}

#[test]
fn python_workers_are_asked_about_each_job_in_doubt_by_itself() {
    let (site, names) = site_of_three_sides();
    let mut broker = site.start_broker(Side::Ours);
    let _workers = start_three_sides(&site, &names);
    let mut client = site.start_client(Side::Ours, "client");
    client.wait_for_workers(&names);
    // It reads nothing of what is sent to it and ends: of none of these jobs is known who has it.
    broker.freeze();
    let ids: Vec<String> = (0..20).map(|number| format!("in-doubt-{number}")).collect();
    let path = site.folder().join("executions");
    let file = path.to_str().expect("a text");
    assert_eq!(client.submit_marked("dummy", &ids, file, 0.0, 60), json!({}), "all are taken");
    broker.kill();
    broker = site.start_broker(Side::Ours);
    assert_eq!(client.wait_for_all(60), json!({"COMPLETED": ids.len()}));
    let written = std::fs::read_to_string(&path).expect("jobs ran");
    for id in &ids {
        assert_eq!(written.lines().filter(|line| *line == format!("begin {id}")).count(), 1, "{id}: {written}");
    }
    assert!(broker.stop().success());
}

#[test]
fn restarted_worker_takes_the_place_of_the_one_that_was_killed() {
    for roles in [Roles::our_worker(Release::V0_21_2), Roles::our_broker(Release::V0_25_0), Roles::all(Side::Ours)] {
        let mut fabric = Fabric::start(roles, Security::Curve);
        fabric.workers[0].kill();
        fabric.workers[0] = fabric.site.start_worker(roles.worker, WORKERS[0]);
        // A Python broker takes the new worker for the old one, so it may be listed before it is there.
        let results = (0..20).map(|_| fabric.client.run(Job::new("dummy", "ok").with("a", 1).at("all").within(5)));
        let mut results = results.filter(|results| WORKERS.iter().all(|name| results[name]["failed"] == false));
        assert!(results.next().is_some(), "{roles:?}: the restarted worker does not answer");
    }
}

#[test]
fn worker_that_stops_when_asked_is_gone_at_once() {
    for broker in [Side::Ours, Side::Python(Release::V0_25_0)] {
        let roles = Roles { broker, worker: Side::Ours, client: Side::Python(Release::V0_25_0) };
        let mut fabric = Fabric::start(roles, Security::Curve);
        assert!(fabric.workers[0].stop().success());
        let stopped = Instant::now();
        while fabric.client.workers_seen() != WORKERS[1..] {
            assert!(stopped.elapsed() < HOLD_TIME / 2, "{broker:?} still lists the worker");
            thread::sleep(Duration::from_millis(20));
        }
    }
}

#[test]
fn worker_that_hangs_expires_after_the_hold_time_and_comes_back() {
    let roles = Roles { client: Side::Python(Release::V0_25_0), ..Roles::all(Side::Ours) };
    let mut fabric = Fabric::start(roles, Security::Curve);
    fabric.workers[0].freeze();
    let frozen = Instant::now();
    while fabric.client.workers_seen() != WORKERS[1..] {
        assert!(frozen.elapsed() < HOLD_TIME * 2, "a frozen worker is still listed");
        thread::sleep(Duration::from_millis(100));
    }
    // Its last keepalive came up to one interval before it froze.
    assert!(frozen.elapsed() > HOLD_TIME - Duration::from_secs(3), "given up after {:?}", frozen.elapsed());
    fabric.workers[0].thaw();
    fabric.client.wait_for_workers(&WORKERS);
    assert_all_work(&mut fabric.client, &WORKERS);
}

#[test]
fn idle_fabrics_stay_together_past_two_hold_times() {
    let fabrics: Vec<(Site, Peer, Vec<Peer>, Client)> =
        [Side::Ours, Side::Python(Release::V0_21_2), Side::Python(Release::V0_25_0)]
            .map(|broker| {
                let (site, names) = site_of_three_sides();
                let running = site.start_broker(broker);
                let workers = start_three_sides(&site, &names);
                let mut client = site.start_client(Side::Ours, "client");
                client.wait_for_workers(&names);
                (site, running, workers, client)
            })
            .into();
    thread::sleep(HOLD_TIME * 2 + Duration::from_secs(3));
    for (_site, _broker, _workers, mut client) in fabrics {
        let listed = client.mmi("mmi.service.broker", "show_workers", json!({}))["results"].take();
        for worker in listed.as_array().expect("a list") {
            let number = |key: &str, part: usize| -> u32 {
                let text = worker[key].as_str().expect("these are texts");
                text.split(" / ").nth(part).and_then(|text| text.parse().ok()).expect("a number")
            };
            assert!(number("alive (s)", 0) >= 30, "registered anew: {worker}");
            assert!(number("keepalives tx/rx", 0) >= 12, "{worker}");
            assert!(number("keepalives tx/rx", 1) >= 12, "{worker}");
        }
        assert_all_work(&mut client, &["ours", "python-0.21.2", "python-0.25.0"]);
    }
}

fn site_of_three_sides() -> (Site, [&'static str; 3]) {
    let names = ["ours", "python-0.21.2", "python-0.25.0"];
    let mut site = Site::new(Security::Curve);
    for name in names {
        site = site.with_service(name, "dummy");
    }
    (site, names)
}

fn start_three_sides(site: &Site, names: &[&str; 3]) -> Vec<Peer> {
    let sides = [Side::Ours, Side::Python(Release::V0_21_2), Side::Python(Release::V0_25_0)];
    sides.into_iter().zip(names).map(|(side, name)| site.start_worker(side, name)).collect()
}

fn assert_all_work(client: &mut Client, names: &[&str]) {
    let results: Value = client.run(Job::new("dummy", "ok").with("a", 1).within(30));
    for name in names {
        assert_eq!(results[name]["failed"], false, "{results}");
    }
}
