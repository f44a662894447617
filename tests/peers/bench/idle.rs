//! What a fabric costs while nobody uses it.

use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use norfab_peer_tests::{Security, Side, Site};
use serde_json::json;

use crate::figure::Plan;
use crate::machine::{cpu_seconds, wake_ups};

/// Time for the parts to settle after their start.
const SETTLE: Duration = Duration::from_secs(3);

/// Milliseconds of CPU that the broker uses in a minute, with one worker and one client.
pub fn broker_cpu(plan: &Plan, side: Side) -> f64 {
    idle(plan, side)[0].milliseconds
}

/// Milliseconds of CPU that a process with one worker uses in a minute.
pub fn worker_cpu(plan: &Plan, side: Side) -> f64 {
    idle(plan, side)[1].milliseconds
}

/// Milliseconds of CPU that a client uses in a minute.
pub fn client_cpu(plan: &Plan, side: Side) -> f64 {
    idle(plan, side)[2].milliseconds
}

/// How often a thread of the broker wakes up in a minute. Each beat of its worker takes two, and so does each of its own;
/// there are 24 of either.
pub fn broker_wake_ups(plan: &Plan, side: Side) -> f64 {
    idle(plan, side)[0].wake_ups
}

/// How often a thread of a process with one worker wakes up in a minute.
pub fn worker_wake_ups(plan: &Plan, side: Side) -> f64 {
    idle(plan, side)[1].wake_ups
}

/// How often a thread of a client wakes up in a minute.
pub fn client_wake_ups(plan: &Plan, side: Side) -> f64 {
    idle(plan, side)[2].wake_ups
}

/// What an idle process needs in a minute.
#[derive(Clone, Copy)]
struct Idle {
    milliseconds: f64,
    wake_ups: f64,
}

/// Broker, worker and client. One run serves the figures of all three.
fn idle(plan: &Plan, side: Side) -> [Idle; 3] {
    static MEASURED: Mutex<Vec<(Side, [Idle; 3])>> = Mutex::new(Vec::new());
    let mut measured = MEASURED.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some((_, idle)) = measured.iter().find(|(of, _)| *of == side) {
        return *idle;
    }
    let idle = measure(plan, side);
    measured.push((side, idle));
    idle
}

fn measure(plan: &Plan, side: Side) -> [Idle; 3] {
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
    let seconds = plan.either(20, 60);
    let read = |process| (cpu_seconds(process), wake_ups(process));
    let before = processes.map(read);
    thread::sleep(Duration::from_secs(u64::from(seconds)));
    let after = processes.map(read);
    let minutes = f64::from(seconds) / 60.0;
    [0, 1, 2].map(|index| Idle {
        milliseconds: (after[index].0 - before[index].0) * 1e3 / minutes,
        wake_ups: (after[index].1 - before[index].1) / minutes,
    })
}
