//! Two that change one database: its owner, and one that prunes it.

mod samples;

use std::sync::atomic::{AtomicBool, Ordering};

use norfab_jobs::*;
use samples::*;

/// Times that each of them writes.
const ROUNDS: usize = 300;

#[test]
fn who_changes_a_database_at_the_same_time_waits_and_is_never_told_that_it_is_busy() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("jobs.db");
    let mut owner = SqliteClientStore::open(&path, STAMP).expect("a database");
    let mut other = SqliteClientStore::open_beside(&path).expect("a database");
    let ended = AtomicBool::new(false);
    let keep_none = Retention { jobs_max: 0, ..Retention::default() };
    let pruned = std::thread::scope(|scope| {
        let pruning = scope.spawn(|| {
            let mut pruned = 0;
            while !ended.load(Ordering::Relaxed) {
                pruned += other.prune(&keep_none, NOW).expect("it waits").jobs;
            }
            pruned
        });
        for number in 0..ROUNDS {
            let outcomes = owner.apply(&[client_insert(number), progress(number, ClientState::Failed)]);
            assert!(outcomes.expect("it waits").iter().all(Result::is_ok));
            owner.settle().expect("it waits");
        }
        ended.store(true, Ordering::Relaxed);
        pruning.join().expect("no panic")
    });
    assert!(pruned > 0, "they met");
    let left = owner.prune(&keep_none, NOW).expect("a step").jobs;
    assert!(left + pruned <= ROUNDS as u64, "{left}, {pruned}");
    assert_eq!(owner.statistics().expect("a query").total_jobs(), ROUNDS as u64 - left - pruned);
}
