//! A disk that takes nothing and says nothing holds no command longer than its job may take.

use std::time::{Duration, Instant};

use rustix::fs::{CWD, FileType, Mode, mknodat};
use rustix::process::Signal;

use crate::support::{Ended, Lab, eventually};

/// What `norfab run` waits beyond its times on a busy machine.
const GRACE: Duration = Duration::from_secs(15);

/// How long a client has to start, however short the time-out of its job is.
const START_PATIENCE: Duration = Duration::from_secs(20);

/// Longer than it is noted beside the database, and shorter than the system takes in one argument.
const LARGE_BYTES: usize = 100_000;

fn told_as_not_stored(ended: &Ended) {
    assert_eq!((ended.code, ended.stdout.as_str()), (Some(4), ""), "{ended:?}");
    assert!(ended.stderr.contains("the job could not be stored in time and was not sent"), "{ended:?}");
}

#[test]
fn a_job_that_is_not_stored_within_its_time_is_given_up() {
    let (lab, up) = Lab::up();
    let large = format!("text={}", "x".repeat(LARGE_BYTES));
    // Its broker does not let it in before its database is open and cannot be written.
    up.signal(Signal::STOP);
    let run = lab.spawn(&["run", "filesharing", "echo", &large, "--name", "one", "-t", "1s"]);
    let file = |name: &str| lab.path(format!("__norfab__/files/client/one/{name}"));
    eventually("an open database", || file("jobs.db-noted").exists());
    let database = rusqlite::Connection::open(file("jobs.db")).expect("a database");
    database.busy_timeout(GRACE).expect("a time");
    database.execute_batch("BEGIN IMMEDIATE").expect("its owner waits for its broker");
    up.signal(Signal::CONT);
    let began = Instant::now();
    told_as_not_stored(&run.end());
    assert!(began.elapsed() < Duration::from_secs(1) + GRACE, "{:?}", began.elapsed());
}

#[test]
fn a_client_that_cannot_start_for_want_of_its_disk_is_given_up() {
    let (lab, _up) = Lab::up();
    lab.write("__norfab__/files/client/one/private_keys/none", "");
    // Whoever opens a pipe that nobody reads waits as for a file of a disk that is gone.
    let lock = lab.path("__norfab__/files/client/one/in-use");
    mknodat(CWD, &lock, FileType::Fifo, Mode::from_raw_mode(0o600), 0).expect("a pipe");
    let began = Instant::now();
    told_as_not_stored(&lab.run(&["run", "filesharing", "echo", "--name", "one", "-t", "1s"]));
    assert!(began.elapsed() >= START_PATIENCE, "a slow disk is no stuck one: {:?}", began.elapsed());
    assert!(began.elapsed() < START_PATIENCE + GRACE, "{:?}", began.elapsed());
}
