//! What workers cost in memory once they have done some work. The first one is told by what its process holds; one more
//! by what it adds, since a process that Python forks shares most of what it holds with its parent.

use norfab_peer_tests::{Job, Peer, Release, Security, Side, Site};
use serde_json::json;

use crate::figure::Plan;
use crate::machine::{private_megabytes, resident_megabytes};

/// Workers beside the first one.
const MORE: u32 = 10;

/// Jobs that each worker does before it is measured.
const JOBS: u32 = 20;

/// Megabytes of a process with one worker.
pub fn first_worker(_: &Plan, side: Side) -> f64 {
    with_one_worker(side, resident_megabytes)
}

/// Megabytes that one more worker costs, started the way the side starts several.
pub fn next_worker(_: &Plan, side: Side) -> f64 {
    let site = site();
    let broker = site.start_broker(side);
    let names: Vec<String> = (0..=MORE).map(|number| format!("w{number}")).collect();
    let workers = site.start_workers(side, &names);
    work(&site, &names.iter().map(String::as_str).collect::<Vec<_>>());
    match side {
        Side::Python(_) => {
            let processes = processes(&workers);
            let all: f64 = processes.iter().map(|process| private_megabytes(*process)).sum();
            all / processes.len() as f64
        }
        Side::Ours => {
            let all = private_megabytes(workers.id());
            drop((workers, broker));
            (all - with_one_worker(side, private_megabytes)) / f64::from(MORE)
        }
    }
}

/// Starts a process with one worker, lets it work, and measures it.
fn with_one_worker(side: Side, measure: fn(u32) -> f64) -> f64 {
    let site = site();
    let _broker = site.start_broker(side);
    let worker = site.start_worker(side, "w0");
    work(&site, &["w0"]);
    measure(worker.id())
}

/// Gives all of these workers something to do.
fn work(site: &Site, names: &[&str]) {
    let mut client = site.start_client(Side::Python(Release::V0_25_0), "client");
    client.wait_for_workers(names);
    client.run_one_by_one(Job::new("filesharing", "echo").with("pad", "x".repeat(260)).at(names), JOBS);
}

fn site() -> Site {
    let mut site = Site::new(Security::Curve);
    let share = site.folder().join("share");
    std::fs::create_dir(&share).expect("a new folder");
    for number in 0..=MORE {
        site = site.with_worker(&format!("w{number}"), json!({"service": "filesharing", "base_dir": share}));
    }
    site
}

/// The processes of a Python fleet.
fn processes(fleet: &Peer) -> Vec<u32> {
    let listed = fleet.ready()["pids"].as_array().expect("a fleet names its processes");
    listed.iter().map(|id| id.as_u64().and_then(|id| u32::try_from(id).ok()).expect("an id")).collect()
}
