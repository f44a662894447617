//! The faults.

use std::thread;
use std::time::Duration;

use norfab_peer_tests::Site;

use crate::clock::Clock;
use crate::cut::Cut;
use crate::disk::SmallDisk;
use crate::round::{Fabric, JOBS};

/// One way in which things go wrong.
pub struct Fault {
    /// Its name on the command line and in the output.
    pub name: &'static str,
    /// Whether each round is another one, because its time is random.
    pub is_random: bool,
    /// Jobs that the fault submits itself.
    pub jobs_meanwhile: usize,
    /// Whether this machine lets us do it, or what is missing.
    pub possible: fn() -> Result<(), String>,
    /// Makes what the fault needs before anything starts.
    pub prepare: fn(Site) -> Prepared,
    /// Does it, in the middle of the jobs, and undoes it.
    pub strike: fn(&mut Fabric, &Means),
}

/// A site, and what its fault is done with.
pub struct Prepared {
    pub site: Site,
    pub means: Means,
}

/// What a fault is done with; it goes away with the round.
pub enum Means {
    Signals,
    Network(Cut),
    Disk(SmallDisk),
    Clock(Clock),
}

/// How long a part is frozen, and the network cut: longer than the hold time of 15 s.
const LONG: Duration = Duration::from_secs(20);

/// How long the disk stays full.
const FULL: Duration = Duration::from_secs(3);

/// Seconds that the wall clock is stepped by.
const STEP_SECONDS: i64 = 3600;

/// All faults, in the order in which they are tried.
pub const FAULTS: &[Fault] = &[
    Fault { strike: kill_broker, ..signal("broker_killed", true) },
    Fault { strike: kill_worker, ..signal("worker_killed", true) },
    Fault { strike: kill_client, ..signal("client_killed", true) },
    Fault { strike: freeze_broker, ..signal("broker_frozen", false) },
    Fault { strike: freeze_worker, ..signal("worker_frozen", false) },
    Fault { strike: freeze_client, ..signal("client_frozen", false) },
    Fault { possible: Cut::possible, prepare: cut, strike: cut_network, ..signal("network_cut", false) },
    Fault {
        possible: SmallDisk::possible,
        prepare: small_disk,
        strike: fill_disk,
        jobs_meanwhile: JOBS / 2,
        ..signal("disk_full", false)
    },
    Fault { possible: Clock::possible, prepare: clock, strike: step_clock, ..signal("clock_stepped", false) },
];

const fn signal(name: &'static str, is_random: bool) -> Fault {
    Fault { name, is_random, jobs_meanwhile: 0, possible: || Ok(()), prepare: nothing, strike: |_, _| {} }
}

fn nothing(site: Site) -> Prepared {
    Prepared { site, means: Means::Signals }
}

/// Some time within the two and a half seconds that the jobs take.
fn pause() {
    thread::sleep(Duration::from_millis(fastrand::u64(0..2000)));
}

/// How long a part that was killed is away.
fn away() {
    thread::sleep(Duration::from_millis(fastrand::u64(0..3000)));
}

fn kill_broker(fabric: &mut Fabric, _: &Means) {
    pause();
    fabric.broker.kill();
    away();
    fabric.restart_broker();
}

fn kill_worker(fabric: &mut Fabric, _: &Means) {
    pause();
    let index = fastrand::usize(..fabric.workers.len());
    fabric.workers[index].kill();
    away();
    fabric.restart_worker(index);
}

fn kill_client(fabric: &mut Fabric, _: &Means) {
    pause();
    fabric.client.peer().kill();
    away();
    fabric.restart_client();
}

fn freeze_broker(fabric: &mut Fabric, _: &Means) {
    pause();
    fabric.broker.freeze();
    thread::sleep(LONG);
    fabric.broker.thaw();
}

fn freeze_worker(fabric: &mut Fabric, _: &Means) {
    pause();
    fabric.workers[0].freeze();
    thread::sleep(LONG);
    fabric.workers[0].thaw();
}

fn freeze_client(fabric: &mut Fabric, _: &Means) {
    pause();
    fabric.client.peer().freeze();
    thread::sleep(LONG);
    fabric.client.peer().thaw();
}

fn cut(site: Site) -> Prepared {
    let cut = Cut::new();
    let site = site.at_host(cut.address()).with_workers_in(cut.namespace());
    Prepared { site, means: Means::Network(cut) }
}

fn cut_network(_: &mut Fabric, means: &Means) {
    let Means::Network(cut) = means else { return };
    pause();
    cut.down();
    thread::sleep(LONG);
    cut.up();
}

fn small_disk(site: Site) -> Prepared {
    let disk = SmallDisk::mount(&site.folder().join("__norfab__"));
    Prepared { site, means: Means::Disk(disk) }
}

fn fill_disk(fabric: &mut Fabric, means: &Means) {
    let Means::Disk(disk) = means else { return };
    disk.fill();
    fabric.submit(JOBS / 2);
    thread::sleep(FULL);
    disk.free();
}

fn clock(site: Site) -> Prepared {
    let clock = Clock::new();
    Prepared { site: site.with_variables(clock.variables()), means: Means::Clock(clock) }
}

fn step_clock(_: &mut Fabric, means: &Means) {
    let Means::Clock(clock) = means else { return };
    for step in [STEP_SECONDS, -STEP_SECONDS] {
        thread::sleep(Duration::from_millis(800));
        clock.step(step);
    }
}
