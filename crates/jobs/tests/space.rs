//! What pruning gives back, on a disk that is full and on one that is not.

mod samples;

use std::path::Path;

use norfab_jobs::*;
use samples::*;

/// Nothing stays that has ended.
const KEEP_NONE: Retention = Retention { age_max: std::time::Duration::MAX, jobs_max: 0, bytes_max: u64::MAX };

/// Steps, until there is no more to do; the jobs that went.
fn prune_all(store: &mut SqliteWorkerStore, retention: &Retention) -> Result<u64, StoreError> {
    let mut jobs = 0;
    loop {
        let step = store.prune(retention, NOW)?;
        jobs += step.jobs;
        store.tidy()?;
        if !step.more {
            break store.give_back().map(|()| jobs);
        }
    }
}

fn bytes(path: &Path) -> u64 {
    path.metadata().expect("a file").len()
}

#[cfg(target_os = "linux")]
mod full {
    use samples::mounted::Mounted;

    use super::*;

    /// Bytes that the database cannot be written without, and that stand in its log.
    const LACKING: usize = 600_000;

    /// Size of the file system.
    const SIZE: &std::ffi::CStr = c"size=48m";

    /// A database with four large results, the last of which is in the log only, on a disk that is full then.
    fn fill_with_results(mounted: &Mounted) -> SqliteWorkerStore {
        let mut owner = worker(&mounted.path("jobs.db"));
        for number in 0..3 {
            owner.apply(&[worker_insert(number), large_finish(number)]).expect("space");
            owner.settle().expect("space");
            owner.give_back().expect("space");
        }
        let last = finish(3, WorkerState::Completed, &large(LACKING));
        owner.apply(&[worker_insert(3), last]).expect("space");
        owner.settle().expect("space");
        mounted.fill();
        owner
    }

    #[test]
    fn with_a_megabyte_large_results_are_given_back_that_the_log_cannot_be_written_back_without() {
        for is_owner_alive in [true, false] {
            let Some(mounted) = Mounted::new(SIZE) else { return };
            let path = mounted.path("jobs.db");
            let owner = Some(fill_with_results(&mounted)).filter(|_| is_owner_alive);
            let before = bytes(&path);
            mounted.leave(1 << 20);
            let mut store = SqliteWorkerStore::open_beside(&path).expect("enough to look");
            assert_eq!(prune_all(&mut store, &KEEP_NONE), Ok(4));
            assert!(bytes(&path) < 2 << 20, "{} bytes after {before}", bytes(&path));
            assert!(owner.is_none_or(|mut owner| owner.job(&id(3)) == Ok(None)));
        }
    }

    #[test]
    fn nothing_is_deleted_where_the_log_cannot_be_written_back() {
        let Some(mounted) = Mounted::new(SIZE) else { return };
        let path = mounted.path("jobs.db");
        let _owner = fill_with_results(&mounted);
        mounted.leave(LACKING as u64 / 2);
        let mut store = SqliteWorkerStore::open_beside(&path).expect("enough to look");
        let refused = store.prune(&KEEP_NONE, NOW).expect_err("no space");
        assert!(matches!(refused, StoreError::DiskFull { .. }), "{refused}");
        assert_eq!(rows(&path, "job"), 4);
        // What it took was not in vain: as much again is enough.
        mounted.leave(LACKING as u64 / 2 + (200 << 10));
        assert_eq!(prune_all(&mut store, &KEEP_NONE), Ok(4));
        assert!(bytes(&path) < 2 << 20, "{} bytes", bytes(&path));
    }

    #[test]
    fn a_little_space_that_a_process_before_left_is_given_back_although_the_disk_was_full_at_first() {
        /// Less than an eighth of the file, and more than is kept anyway.
        const LEFT: usize = 2 << 20;
        let Some(mounted) = Mounted::new(SIZE) else { return };
        let path = mounted.path("jobs.db");
        let mut before = worker(&path);
        before.apply(&[worker_insert(0), finish(0, WorkerState::Completed, &large(LEFT))]).expect("space");
        for number in 1..5 {
            before.apply(&[worker_insert(number), large_finish(number)]).expect("space");
        }
        drop(before);
        let other = rusqlite::Connection::open(&path).expect("a database");
        assert_eq!(other.execute("DELETE FROM part WHERE job = 1", []), Ok(LEFT.div_ceil(512 << 10)));
        drop(other);
        let whole = bytes(&path);
        let mut store = worker(&path);
        mounted.fill();
        assert_eq!(prune_all(&mut store, &Retention::default()), Ok(0));
        assert_eq!(bytes(&path), whole);
        mounted.empty();
        assert_eq!(prune_all(&mut store, &Retention::default()), Ok(0));
        let shorter = whole - bytes(&path);
        assert!(shorter > LEFT as u64 / 4, "{shorter} bytes shorter");
    }
}

#[test]
fn the_space_of_left_parts_and_of_all_jobs_is_given_back_though_it_takes_several_steps() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("jobs.db");
    let mut store = worker(&path);
    for number in 0..17 {
        store.apply(&[worker_insert(number), large_finish(number)]).expect("a batch");
    }
    store.apply(&[worker_insert(17)]).expect("a batch");
    while store.store_ahead(&large_finish(17)).expect("space") != Ahead::Whole {}
    // Its result never comes: the process has ended.
    drop(store);
    let with_parts = bytes(&path);
    let mut store = worker(&path);
    assert_eq!(rows(&path, "storing"), 0);
    assert_eq!(prune_all(&mut store, &Retention::default()), Ok(0));
    let without = bytes(&path);
    assert!(without + BYTES as u64 <= with_parts + (2 << 20), "{without} bytes after {with_parts}");
    assert_eq!(prune_all(&mut store, &KEEP_NONE), Ok(17));
    assert!(bytes(&path) < 2 << 20, "{} bytes after {without}", bytes(&path));
}
