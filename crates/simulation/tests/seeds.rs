//! A few hundred seeds with every test run; thousands with `cargo xtask simulate`.

use std::time::Instant;

use norfab_simulation::run;
use norfab_simulation::trace::Trace;
use norfab_simulation::watch::Counts;

/// Seeds of a test run: some seconds in a debug build. `cargo xtask test` runs 10,000 besides, in a release build.
const SEEDS: u64 = 300;

#[test]
fn every_promise_holds_in_every_seed() {
    let mut total = Counts::default();
    for seed in 0..SEEDS {
        match run(seed, Instant::now(), Trace::Off) {
            Ok(summary) => total.add(&summary.counts),
            Err(error) => panic!("{error}\n  again: cargo xtask simulate --seeds 1 --first {seed} --trace"),
        }
    }
    // A simulation in which nothing happens proves nothing.
    assert!(total.faults > 1000 && total.starts > 1000, "{total}");
    assert!(total.ended.iter().all(|jobs| *jobs > 100), "{total}");
}

#[test]
fn a_seed_runs_the_same_way_every_time() {
    // Among them are some in which a worker knows many of the jobs that it is asked about.
    for seed in 0..160 {
        let fingerprint = || run(seed, Instant::now(), Trace::Fingerprint(0)).map(|summary| summary.trace);
        assert_eq!(fingerprint(), fingerprint(), "seed {seed}");
    }
}
