//! What a fabric costs while nobody uses it.

use std::thread;
use std::time::Duration;

use norfab_peer_tests::{Security, Side, Site};
use serde_json::json;

use crate::figure::Plan;
use crate::machine::cpu_seconds;

/// Time for the parts to settle after their start.
const SETTLE: Duration = Duration::from_secs(3);

/// Milliseconds of CPU that the broker uses in a minute, with one worker and one client.
pub fn broker(plan: &Plan, side: Side) -> f64 {
    idle(plan, side)[0]
}

/// Milliseconds of CPU that a process with one worker uses in a minute.
pub fn worker(plan: &Plan, side: Side) -> f64 {
    idle(plan, side)[1]
}

/// Milliseconds of CPU that a client uses in a minute.
pub fn client(plan: &Plan, side: Side) -> f64 {
    idle(plan, side)[2]
}

fn idle(plan: &Plan, side: Side) -> [f64; 3] {
    let site = Site::new(Security::Curve);
    let share = site.folder().join("share");
    std::fs::create_dir(&share).expect("a new folder");
    let site = site.with_worker("w0", json!({"service": "filesharing", "base_dir": share}));
    let broker = site.start_broker(side);
    let worker = site.start_worker(side, "w0");
    let mut client = site.start_client(side, "client");
    client.wait_for_workers(&["w0"]);
    let processes = [broker.id(), worker.id(), client.peer().id()];
    thread::sleep(SETTLE);
    let seconds = plan.either(15, 60);
    let before = processes.map(cpu_seconds);
    thread::sleep(Duration::from_secs(u64::from(seconds)));
    let after = processes.map(cpu_seconds);
    [0, 1, 2].map(|index| (after[index] - before[index]) * 1e3 * 60.0 / f64::from(seconds))
}
