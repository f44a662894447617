//! What a large result costs on its way from a task to its caller: time, and memory of each process that it goes through.

use std::process::Stdio;
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use norfab_peer_tests::{Client, Job, Security, Side, Site, norfab};

use crate::figure::Plan;
use crate::machine::{peak_if_running, peak_megabytes};

/// Megabytes of the result as JSON, about.
const MEGABYTES: u32 = 50;

/// Seconds that a job has: a Python fabric takes half a minute and more.
const PATIENCE_SECONDS: u32 = 300;

/// Short jobs between two looks at whether large results still come.
const SHORT_JOBS: u32 = 10;

/// Time for the databases to tidy up after a result.
const SETTLE: Duration = Duration::from_secs(1);

/// How often the memory of a command is looked at: it holds what it prints for tenths of a second.
const LOOK_PAUSE: Duration = Duration::from_millis(2);

/// Seconds from the submission until the caller has a text of [`MEGABYTES`].
pub fn text_seconds(plan: &Plan, side: Side) -> f64 {
    measured(plan, side, Shape::Text).seconds
}

/// The most megabytes that the worker held for it.
pub fn text_peak_worker(plan: &Plan, side: Side) -> f64 {
    measured(plan, side, Shape::Text).worker
}

/// The most megabytes that the broker held for it.
pub fn text_peak_broker(plan: &Plan, side: Side) -> f64 {
    measured(plan, side, Shape::Text).broker
}

/// The most megabytes that the caller held for it.
pub fn text_peak_client(plan: &Plan, side: Side) -> f64 {
    measured(plan, side, Shape::Text).client
}

/// Seconds for a table instead of a text: hundreds of thousands of small objects.
pub fn table_seconds(plan: &Plan, side: Side) -> f64 {
    measured(plan, side, Shape::Table).seconds
}

/// The most megabytes that the worker held for the table.
pub fn table_peak_worker(plan: &Plan, side: Side) -> f64 {
    measured(plan, side, Shape::Table).worker
}

/// The most megabytes that the command `norfab run --json` held for the table, which it prints. A Python fabric has its client
/// here, of which its command line is made.
pub fn table_peak_command(plan: &Plan, side: Side) -> f64 {
    if side != Side::Ours {
        return measured(plan, side, Shape::Table).client;
    }
    let site = site();
    let _broker = site.start_broker(side);
    let _worker = site.start_worker(side, "w0");
    wait_for_worker(&site, side);
    let mut command = norfab();
    command.args(["run", "bench", "big", &format!("mb:={MEGABYTES}"), "--json", "--timeout", "60", "-i"]);
    command.arg(site.inventory()).stdin(Stdio::null()).stdout(Stdio::null());
    let mut command = command.spawn().expect("the binary starts");
    let mut peak = 0.0;
    loop {
        peak = peak_if_running(command.id()).map_or(peak, |megabytes| megabytes.max(peak));
        if let Some(ended) = command.try_wait().expect("the command is ours") {
            assert!(ended.success(), "the command failed: {ended}");
            return peak;
        }
        thread::sleep(LOOK_PAUSE);
    }
}

/// Milliseconds of the slowest short job of another caller at the same worker while large results come from it: its messages wait
/// behind those.
pub fn slowest_behind(plan: &Plan, side: Side) -> f64 {
    slowest(plan, side, Security::Curve, "w0")
}

/// The same without encryption.
pub fn slowest_behind_plain(plan: &Plan, side: Side) -> f64 {
    slowest(plan, side, Security::Plain, "w0")
}

/// The same at another worker: nothing has to wait but for a processor.
pub fn slowest_beside(plan: &Plan, side: Side) -> f64 {
    slowest(plan, side, Security::Curve, "w1")
}

fn slowest(plan: &Plan, side: Side, security: Security, at: &str) -> f64 {
    if side != Side::Ours {
        return f64::NAN;
    }
    let site = Site::new(security).with_service("w0", "bench").with_service("w1", "bench");
    let _broker = site.start_broker(side);
    let _workers = [site.start_worker(side, "w0"), site.start_worker(side, "w1")];
    let (mut caller, mut other) = (site.start_client(side, "caller"), site.start_client(side, "other"));
    caller.wait_for_workers(&["w0", "w1"]);
    other.wait_for_workers(&["w0", "w1"]);
    let large = Job::new("bench", "text").with("mb", MEGABYTES).at("w0").within(PATIENCE_SECONDS);
    let short = Job::new("bench", "ok").with("a", 1).at(at).within(PATIENCE_SECONDS);
    other.run_one_by_one(short.clone(), SHORT_JOBS);
    let seconds = thread::scope(|scope| {
        let large = scope.spawn(|| caller.run_one_by_one(large, plan.either(5, 20)));
        let mut taken = Vec::new();
        while !large.is_finished() {
            taken.extend(other.run_one_by_one(short.clone(), SHORT_JOBS));
        }
        taken
    });
    seconds.into_iter().fold(0.0, f64::max) * 1_000.0
}

/// What the result looks like.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Shape {
    Text,
    Table,
}

/// Seconds of one job, and the most megabytes that each process ever held.
#[derive(Clone, Copy)]
struct Measured {
    seconds: f64,
    worker: f64,
    broker: f64,
    client: f64,
}

/// One run serves all figures of a side and a shape.
fn measured(plan: &Plan, side: Side, shape: Shape) -> Measured {
    static MEASURED: Mutex<Vec<(Side, Shape, Measured)>> = Mutex::new(Vec::new());
    let mut known = MEASURED.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some((.., found)) = known.iter().find(|(of, what, _)| (*of, *what) == (side, shape)) {
        return *found;
    }
    let found = measure(plan, side, shape);
    known.push((side, shape, found));
    found
}

fn measure(plan: &Plan, side: Side, shape: Shape) -> Measured {
    let site = site();
    let broker = site.start_broker(side);
    let worker = site.start_worker(side, "w0");
    let mut client = wait_for_worker(&site, side);
    // A Python fabric needs minutes for several.
    let jobs = if side == Side::Ours { plan.either(3, 7) } else { 1 };
    let task = match shape {
        Shape::Text => "text",
        Shape::Table => "big",
    };
    let job = |megabytes| Job::new("bench", task).with("mb", megabytes).at("any").within(PATIENCE_SECONDS);
    client.run_one_by_one(job(0), 1);
    let one = |_| {
        thread::sleep(SETTLE);
        client.run_one_by_one(job(MEGABYTES), 1)[0]
    };
    let mut taken: Vec<f64> = (0..jobs).map(one).collect();
    taken.sort_by(f64::total_cmp);
    Measured {
        seconds: taken[taken.len() / 2],
        worker: peak_megabytes(worker.id()),
        broker: peak_megabytes(broker.id()),
        client: peak_megabytes(client.peer().id()),
    }
}

fn site() -> Site {
    Site::new(Security::Curve).with_service("w0", "bench")
}

/// A client that has seen the worker.
fn wait_for_worker(site: &Site, side: Side) -> Client {
    let mut client = site.start_client(side, "client");
    client.wait_for_workers(&["w0"]);
    client
}
