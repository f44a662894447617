//! What a user sees: the time of a job, jobs in a second, and a job for a hundred workers, stored on disk by the client
//! and by the workers.

use norfab_peer_tests::{Client, Job, Peer, Security, Side, Site};
use serde_json::json;

use crate::figure::Plan;

/// Jobs that are in flight at once.
const IN_FLIGHT: u32 = 2_000;

/// Workers that one job goes to.
const FAN_OUT: usize = 100;

/// Milliseconds of a job, one at a time: the median.
pub fn latency(plan: &Plan, side: Side) -> f64 {
    let mut fabric = Fabric::start(side, 1);
    fabric.client.run_one_by_one(job("any"), 5);
    median(fabric.client.run_one_by_one(job("any"), plan.either(200, 1_000))) * 1e3
}

/// Jobs in a second: one client, one worker, as many jobs in flight as [`IN_FLIGHT`]: the median of several bursts, as
/// one of ours takes a third of a second, and the slowest of ten takes half as long again as the fastest. Python needs
/// seconds for one, and gets one.
pub fn jobs_per_second(plan: &Plan, side: Side) -> f64 {
    let mut fabric = Fabric::start(side, 1);
    let bursts = if matches!(side, Side::Ours) { plan.either(9, 25) } else { 1 };
    let rate = |_| {
        let measured = fabric.client.run_many(job("any"), IN_FLIGHT);
        assert_eq!(measured["states"], json!({"COMPLETED": IN_FLIGHT}));
        f64::from(IN_FLIGHT) / measured["seconds"].as_f64().expect("a number")
    };
    median((0..bursts).map(rate).collect())
}

/// Milliseconds until the results of [`FAN_OUT`] workers are there: the median.
pub fn fan_out(plan: &Plan, side: Side) -> f64 {
    let mut fabric = Fabric::start(side, FAN_OUT);
    fabric.client.run_one_by_one(job("all"), 1);
    median(fabric.client.run_one_by_one(job("all"), plan.either(5, 20))) * 1e3
}

/// A broker, workers and a client.
struct Fabric {
    client: Client,
    _workers: Peer,
    _broker: Peer,
    _site: Site,
}

impl Fabric {
    fn start(side: Side, workers: usize) -> Self {
        let names: Vec<String> = (0..workers).map(|number| format!("w{number}")).collect();
        let mut site = Site::new(Security::Curve);
        for name in &names {
            site = site.with_service(name, "bench");
        }
        let broker = site.start_broker(side);
        let workers = site.start_workers(side, &names);
        let mut client = site.start_client(side, "client");
        client.wait_for_workers(&names.iter().map(String::as_str).collect::<Vec<_>>());
        Self { client, _workers: workers, _broker: broker, _site: site }
    }
}

/// The built-in task that gives back what it was given: 300 bytes.
fn job(workers: &str) -> Job {
    let data = json!({"host": "r1", "command": "show version", "pad": "x".repeat(250)});
    Job::new("bench", "echo").with("data", data).at(workers)
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}
