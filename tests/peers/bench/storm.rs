//! How long a large fabric is without workers after its broker crashed and came back: all of them connect at once.

use std::thread;
use std::time::{Duration, Instant};

use norfab_peer_tests::{Job, Security, Side, Site};
use serde_json::json;

use crate::figure::Plan;

/// Workers, all in one process.
const WORKERS: usize = 1_000;

/// Jobs that are under way when the broker is killed, and a large number of them. Each may be with any of the workers, and all are
/// asked.
const JOBS: u32 = 100;
const MANY_JOBS: u32 = 2_000;

/// How long the broker is away.
const OUTAGE: Duration = Duration::from_secs(2);

/// Seconds that the jobs have.
const PATIENCE_SECONDS: u32 = 120;

/// Seconds from the moment the broker is back until it knows all workers; then all jobs must come to their end. A thousand
/// Python workers, a process of 80 MB each, do not fit: not a number.
pub fn until_all_serve(_: &Plan, side: Side) -> f64 {
    storm(side, JOBS).0
}

/// The same with many jobs.
pub fn until_all_serve_with_many_jobs(_: &Plan, side: Side) -> f64 {
    storm(side, MANY_JOBS).0
}

/// Seconds from the moment the broker is back until all of many jobs have come to their end.
pub fn until_all_jobs_end(_: &Plan, side: Side) -> f64 {
    storm(side, MANY_JOBS).1
}

fn storm(side: Side, jobs: u32) -> (f64, f64) {
    if side != Side::Ours {
        return (f64::NAN, f64::NAN);
    }
    let names: Vec<String> = (0..WORKERS).map(|number| format!("w{number}")).collect();
    let mut site = Site::new(Security::Curve);
    for name in &names {
        site = site.with_service(name, "bench");
    }
    let names_of: Vec<&str> = names.iter().map(String::as_str).collect();
    let mut broker = site.start_broker(side);
    let _workers = site.start_workers(side, &names);
    let mut client = site.start_client(side, "client");
    client.wait_for_workers(&names_of);
    let data = json!({"host": "r1", "command": "show version", "pad": "x".repeat(250)});
    client.submit_many(Job::new("bench", "echo").with("data", data).at("any").within(PATIENCE_SECONDS), jobs);
    broker.kill();
    thread::sleep(OUTAGE);
    let _broker = site.start_broker(side);
    let back = Instant::now();
    client.wait_for_workers(&names_of);
    let registered = back.elapsed().as_secs_f64();
    assert_eq!(client.wait_for_all(PATIENCE_SECONDS), json!({"COMPLETED": jobs}));
    (registered, back.elapsed().as_secs_f64())
}
