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
    use std::sync::mpsc::{Receiver, channel};
    use std::time::{Duration, Instant};

    use samples::mounted::Mounted;

    use super::*;

    /// Bytes that the database cannot be written without, and that stand in its log.
    const LACKING: usize = 600_000;

    const PATIENCE: Duration = Duration::from_secs(20);

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
        let StoreError::NoSpaceToPrune { missing, .. } = refused else { panic!("{refused}") };
        assert_eq!(rows(&path, "job"), 4);
        assert!(refused.to_string().contains(&format!(" {} kB more are needed", missing.div_ceil(1000))), "{refused}");
        // What it took was not in vain.
        assert!(missing < LACKING as u64 / 2 + (200 << 10), "{missing} bytes are missing");
        // Little less is not enough, and what it says is.
        mounted.leave(missing - (160 << 10));
        let refused = store.prune(&KEEP_NONE, NOW).expect_err("no space");
        let StoreError::NoSpaceToPrune { missing, .. } = refused else { panic!("{refused}") };
        assert!(missing < 170 << 10, "{missing} bytes are missing");
        mounted.leave(missing);
        assert_eq!(prune_all(&mut store, &KEEP_NONE), Ok(4));
        assert!(bytes(&path) < 2 << 20, "{} bytes", bytes(&path));
    }

    /// Of the thread that owns a database in such a file system.
    struct Owner {
        writer: WorkerWriter<usize>,
        confirmed: Receiver<Confirmation<usize>>,
    }

    impl Owner {
        fn new(path: &Path) -> Self {
            let (confirm, confirmed) = channel();
            let path = path.to_owned();
            let writer = spawn_worker(
                "test",
                move || Ok(Box::new(worker(&path))),
                move |all| all.into_iter().for_each(|one| confirm.send(one).expect("the test waits")),
            );
            Self { writer: writer.expect("a writer"), confirmed }
        }

        /// What becomes of an operation about a job.
        fn outcome(&self, operation: WorkerOperation, number: usize) -> Outcome {
            self.writer.try_submit(vec![(operation, Some(number))]).expect("space in the queue");
            self.confirmed(number)
        }

        fn confirmed(&self, number: usize) -> Outcome {
            let found = self.confirmed.recv_timeout(PATIENCE).expect("a confirmation");
            assert_eq!(found.token, number);
            found.outcome
        }

        /// Tries what is held once more: whether that was stored.
        fn is_whole(&self) -> bool {
            let (told, answer) = channel();
            let query = move |store: Result<&mut (dyn WorkerStore + 'static), QueryError>| {
                told.send(store.is_ok()).expect("it is heard")
            };
            self.writer.try_query_whole(query).expect("room");
            answer.recv_timeout(PATIENCE).expect("an answer")
        }

        /// Stores large results until one finds no space: which.
        fn fill_with_large_results(&self) -> usize {
            for number in 0.. {
                assert_eq!(self.outcome(worker_insert(number), number), Ok(()));
                if let Err(refused) = self.outcome(large_finish(number), number) {
                    assert!(refused.is_disk_full(), "{refused}");
                    return number;
                }
            }
            unreachable!("it is full before")
        }
    }

    #[test]
    fn a_large_result_that_waits_for_space_leaves_what_is_freed_to_small_changes_and_to_pruning() {
        let Some(mounted) = Mounted::new(SIZE) else { return };
        let path = mounted.path("jobs.db");
        let owner = Owner::new(&path);
        mounted.fill();
        mounted.leave(36 << 20);
        let waits = owner.fill_with_large_results();
        assert!(waits > 2, "{waits} are stored");
        // A few, so that what the first of them may find is not enough.
        let all = waits..waits + 3;
        for number in all.clone().skip(1) {
            assert_eq!(owner.outcome(worker_insert(number), number), Ok(()));
            assert!(owner.outcome(large_finish(number), number).is_err());
        }
        mounted.fill();
        let log = || bytes(&mounted.path("jobs.db-wal"));
        let before = log();
        for more in 1..4 {
            mounted.leave(300 << 10);
            assert!(!owner.is_whole(), "it is tried, and there is too little");
            assert_eq!(owner.outcome(worker_insert(all.end + more), all.end + more), Ok(()));
        }
        assert!(log() < before + (300 << 10), "{} bytes after {before}", log());
        let mut store = SqliteWorkerStore::open_beside(&path).expect("enough to look");
        assert_eq!(prune_all(&mut store, &KEEP_NONE), Ok(waits as u64));
        mounted.empty();
        // There is enough for them now, one after the other.
        for number in all {
            assert_eq!(owner.confirmed(number), Ok(()));
            let stored = store.result(&id(number)).expect("a query").expect("a job");
            assert!(stored.1.expect("a result") == large(BYTES));
        }
    }

    #[test]
    fn a_large_result_that_waits_keeps_no_smaller_one_waiting_and_is_stored_when_there_is_space() {
        let Some(mounted) = Mounted::new(SIZE) else { return };
        let path = mounted.path("jobs.db");
        let owner = Owner::new(&path);
        mounted.fill();
        mounted.leave(32 << 20);
        let waits = owner.fill_with_large_results();
        mounted.fill();
        assert!(!owner.is_whole());
        // Behind it, and smaller: it goes first where there is space for it only.
        assert_eq!(owner.outcome(worker_insert(waits + 1), waits + 1), Ok(()));
        let small = finish(waits + 1, WorkerState::Completed, &large(200_000));
        assert!(owner.outcome(small, waits + 1).is_err_and(|error| error.is_disk_full()));
        mounted.leave(2 << 20);
        assert_eq!(owner.confirmed(waits + 1), Ok(()));
        mounted.empty();
        assert_eq!(owner.confirmed(waits), Ok(()));
        assert_eq!(rows(&path, "storing"), 0);
    }

    #[test]
    fn a_large_result_in_the_middle_of_which_the_disk_was_filled_leaves_nothing_that_pruning_must_write_first() {
        let Some(mounted) = Mounted::new(SIZE) else { return };
        let path = mounted.path("jobs.db");
        let mut owner = worker(&path);
        owner.apply(&[worker_insert(0), large_finish(0), worker_insert(1)]).expect("space");
        owner.settle().expect("space");
        owner.give_back().expect("space");
        let result = finish(1, WorkerState::Completed, &large(8 << 20));
        for _ in 0..10 {
            assert_eq!(owner.store_ahead(&result), Ok(Ahead::More));
        }
        mounted.fill();
        let refused = owner.store_ahead(&result).expect_err("no space");
        assert!(matches!(refused, StoreError::DiskFull { .. }), "{refused}");
        owner.drop_ahead();
        mounted.leave(256 << 10);
        owner.tidy().expect("enough to take the parts back");
        let mut store = SqliteWorkerStore::open_beside(&path).expect("enough to look");
        assert_eq!(prune_all(&mut store, &KEEP_NONE), Ok(1));
        assert!(bytes(&path) < 2 << 20, "{} bytes", bytes(&path));
    }

    #[test]
    fn what_an_owner_that_has_time_wrote_is_in_the_file_so_that_pruning_needs_little_space() {
        let Some(mounted) = Mounted::new(SIZE) else { return };
        let path = mounted.path("jobs.db");
        let owner = Owner::new(&path);
        // The log is short enough to be left as it is.
        let result = finish(0, WorkerState::Completed, &large(3 << 20));
        assert_eq!(owner.outcome(worker_insert(0), 0), Ok(()));
        assert_eq!(owner.outcome(result, 0), Ok(()));
        let end = Instant::now() + PATIENCE;
        while bytes(&path) < 3 << 20 {
            assert!(Instant::now() < end, "{} bytes are in the file", bytes(&path));
            std::thread::sleep(Duration::from_millis(5));
        }
        mounted.fill();
        mounted.leave(128 << 10);
        let mut store = SqliteWorkerStore::open_beside(&path).expect("enough to look");
        assert_eq!(prune_all(&mut store, &KEEP_NONE), Ok(1));
        assert!(bytes(&path) < 2 << 20, "{} bytes", bytes(&path));
    }

    #[test]
    fn the_end_of_a_clients_job_stays_behind_a_result_that_finds_no_space() {
        /// More than what is small, and less than what is stored in parts.
        const RESULT: usize = 300 << 10;
        let Some(mounted) = Mounted::new(SIZE) else { return };
        let path = mounted.path("client.db");
        let writer = spawn_client::<usize>(
            "test",
            move || Ok(Box::new(SqliteClientStore::open(&path, STAMP).expect("a database"))),
            drop,
        )
        .expect("a writer");
        let details = || {
            let (told, answer) = channel();
            let query = move |store: Result<&mut (dyn ClientStore + 'static), QueryError>| {
                told.send(store.map(|store| store.job(&id(0)).expect("readable").expect("a job")))
                    .expect("it is heard");
            };
            writer.try_query_whole(query).expect("room");
            answer.recv_timeout(PATIENCE).expect("an answer")
        };
        writer.try_submit(vec![(client_insert(0), None)]).expect("space in the queue");
        assert!(details().is_ok());
        mounted.fill();
        // For the end, and not for the result.
        mounted.leave(1400 << 10);
        let end = progress(0, ClientState::Completed);
        let result = result(0, "worker-1", &large(RESULT));
        writer.try_submit(vec![(result, None), (end, None)]).expect("space in the queue");
        assert_eq!(details().map(|_| ()), Err(QueryError::Behind), "the result is stored although there is no space");
        mounted.empty();
        let until = Instant::now() + PATIENCE;
        let found = loop {
            match details() {
                Ok(found) if found.job.state.is_final() => break found,
                _ => assert!(Instant::now() < until, "it does not end"),
            }
            std::thread::sleep(Duration::from_millis(5));
        };
        assert_eq!(found.results.iter().map(|(_, payload)| payload.len()).collect::<Vec<_>>(), [RESULT]);
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
