//! What a job costs the broker: CPU time while bare sockets drive it as fast as it goes.

use norfab_peer_tests::{Environment, Security, Side, Site};
use serde_json::Value;

use crate::figure::Plan;

/// Microseconds of broker CPU for a job with so many workers registered.
pub fn broker_cpu_per_job(plan: &Plan, side: Side, workers: u32) -> f64 {
    let site = Site::new(Security::Curve);
    let broker = site.start_broker(side);
    let key = site.broker_key().expect("the site has CURVE");
    drive(plan, &site.endpoint(), &key, broker.id(), workers)
}

/// Drives whatever routes jobs at the endpoint, and gives microseconds of its CPU for a job.
pub fn drive(plan: &Plan, endpoint: &str, key: &str, process: u32, workers: u32) -> f64 {
    let output = Environment::NorFab0250
        .script("bench/route.py")
        .args(["--endpoint", endpoint, &format!("--server-key={key}")])
        .args(["--broker-pid", &process.to_string(), "--workers", &workers.to_string()])
        .args(["--seconds", &plan.either(3, 10).to_string()])
        .output()
        .expect("the driver starts");
    assert!(output.status.success(), "route.py: {}", String::from_utf8_lossy(&output.stderr));
    let measured: Value = serde_json::from_slice(&output.stdout).expect("the driver prints JSON");
    assert_eq!(measured["refused"], 0, "the broker refused jobs: {measured}");
    let number = |name: &str| measured[name].as_f64().expect("a number");
    number("broker_cpu_seconds") * 1e6 / number("jobs")
}
