//! Large results, which go into a database in parts.

mod samples;

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use norfab_jobs::sqlite::LOG_BYTES_MAX;
use norfab_jobs::*;
use rusqlite::Connection;
use samples::*;

/// How long a test waits for what must come.
const PATIENCE: Duration = Duration::from_secs(30);

/// Tells the child of a test where to write.
const FOLDER_VARIABLE: &str = "NORFAB_JOBS_TEST_FOLDER";

/// Stores all that can be stored ahead; how many parts that were.
fn store_all_ahead<S: Store>(store: &mut S, operation: &S::Operation) -> usize {
    let mut parts = 1;
    loop {
        match store.store_ahead(operation).expect("space") {
            Ahead::More => parts += 1,
            // For as long as the disk takes.
            Ahead::Busy => std::thread::yield_now(),
            Ahead::Whole => break parts,
        }
    }
}

#[test]
fn a_process_that_is_killed_between_two_parts_leaves_a_job_without_an_end() {
    if let Some(folder) = std::env::var_os(FOLDER_VARIABLE) {
        let mut store = worker(&Path::new(&folder).join("jobs.db"));
        store.apply(&[worker_insert(1), worker_insert(2), state(1, WorkerState::Started, 1.0)]).expect("a batch");
        for _ in 0..4 {
            assert_eq!(store.store_ahead(&large_finish(1)), Ok(Ahead::More));
        }
        store.apply(&[worker_event(2, "confirmed")]).expect("a batch");
        println!("\nstored");
        loop {
            std::thread::park();
        }
    }
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("jobs.db");
    let mut child = Command::new(std::env::current_exe().expect("this program"))
        .args(["--exact", "a_process_that_is_killed_between_two_parts_leaves_a_job_without_an_end", "--nocapture"])
        .env(FOLDER_VARIABLE, folder.path())
        .stdout(Stdio::piped())
        .spawn()
        .expect("a child");
    let mut lines = BufReader::new(child.stdout.take().expect("its output")).lines();
    assert!(lines.any(|line| line.expect("a line") == "stored"), "it ended by itself");
    child.kill().expect("a kill");
    child.wait().expect("an end");
    assert!(rows(&path, "part") >= 4 && rows(&path, "storing") == 1);
    // Whoever only looks sees a job that runs, and leaves the rest to the owner.
    let mut beside = SqliteWorkerStore::open_beside(&path).expect("a database");
    let seen = beside.result(&id(1)).expect("a query").expect("a job");
    assert_eq!((seen.0.state, seen.1), (WorkerState::Started, None));
    drop(beside);
    let mut store = worker(&path);
    assert_eq!((rows(&path, "part"), rows(&path, "storing")), (0, 0));
    let details = store.job(&id(1)).expect("a query").expect("a job");
    assert_eq!((details.job.state, details.payload), (WorkerState::Started, None));
    assert_eq!(store.job(&id(2)).expect("a query").expect("a job").events, ["confirmed"]);
    assert_eq!(store.unfinished(None, 9).expect("a query").jobs.len(), 2);
    // The next process tells its own end.
    assert_eq!(store.apply(&[finish(1, WorkerState::Failed, b"{}")]), Ok(vec![Ok(())]));
    assert_eq!(store.result(&id(1)).expect("a query").expect("a job").1.expect("a result"), "{}");
}

#[test]
fn a_viewer_sees_no_result_until_all_of_it_is_there() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("jobs.db");
    let mut store = SqliteClientStore::open(&path, STAMP).expect("a database");
    store.apply(&[client_insert(1), progress(1, ClientState::Started), result(1, "worker-2", b"{}")]).expect("a batch");
    let mut beside = SqliteClientStore::open_beside(&path).expect("a database");
    let operation = result(1, "worker-1", &large(BYTES));
    let mut results = |workers: usize| {
        let details = beside.job(&id(1)).expect("a query").expect("a job");
        assert_eq!(details.job.state, ClientState::Started);
        assert_eq!(details.results.len(), workers);
        details.results.into_iter().next().expect("a result").1
    };
    while store.store_ahead(&operation) == Ok(Ahead::More) {
        assert_eq!(results(1), "{}");
    }
    assert_eq!(results(1), "{}", "it is there, and not its operation");
    assert_eq!(store.apply(&[operation]), Ok(vec![Ok(())]));
    assert!(results(2) == large(BYTES));
    assert_eq!(rows(&path, "storing"), 0);
}

#[test]
fn nothing_is_stored_ahead_of_what_will_be_refused() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("worker.db");
    let mut store = worker(&path);
    store.apply(&[worker_insert(1), state(1, WorkerState::Cancelled, 1.0), worker_insert(2)]).expect("a batch");
    let not_final = finish(2, WorkerState::Started, &large(BYTES));
    for operation in [large_finish(7), large_finish(1), not_final, finish(2, WorkerState::Completed, b"{}")] {
        assert_eq!(store.store_ahead(&operation), Ok(Ahead::Whole));
    }
    assert_eq!((rows(&path, "part"), rows(&path, "storing")), (0, 0));
    let path = folder.path().join("client.db");
    let mut store = SqliteClientStore::open(&path, STAMP).expect("a database");
    let operation = result(1, "worker-1", &large(BYTES));
    store.apply(&[client_insert(1), result(1, "worker-1", b"{}")]).expect("a batch");
    assert_eq!(store.store_ahead(&operation), Ok(Ahead::Whole));
    assert!(matches!(store.apply(&[operation]).expect("a batch")[..], [Err(OperationError::DuplicateResult { .. })]));
    assert_eq!((rows(&path, "part"), rows(&path, "storing")), (0, 0));
}

#[test]
fn parts_whose_operation_does_not_come_are_removed() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("jobs.db");
    let mut store = worker(&path);
    store.apply(&[worker_insert(1), worker_insert(2)]).expect("a batch");
    let parts = store_all_ahead(&mut store, &large_finish(1)) as i64;
    assert_eq!((rows(&path, "part"), rows(&path, "storing")), (parts, 1));
    // Another one begins.
    assert_eq!(store.store_ahead(&large_finish(2)), Ok(Ahead::More));
    assert_eq!((rows(&path, "part"), rows(&path, "storing")), (1, 1));
    // The job ended in another way, as another process may have it.
    store.apply(&[state(2, WorkerState::Cancelled, 1.0)]).expect("a batch");
    store_all_ahead(&mut store, &large_finish(1));
    assert_eq!(store.apply(&[state(1, WorkerState::Cancelled, 1.0)]), Ok(vec![Ok(())]));
    assert!(matches!(store.apply(&[large_finish(1)]).expect("a batch")[..], [Err(OperationError::Final { .. })]));
    assert_eq!((rows(&path, "part"), rows(&path, "storing")), (0, 0));
}

#[test]
fn pruning_takes_the_parts_of_what_it_forgets_and_no_others() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("jobs.db");
    let mut store = worker(&path);
    for number in 0..4 {
        store.apply(&[worker_insert(number)]).expect("a batch");
        store_all_ahead(&mut store, &large_finish(number));
        store.apply(&[large_finish(number)]).expect("a batch");
        store.tidy().expect("tidied");
    }
    let before = path.metadata().expect("a file").len();
    let each = rows(&path, "part") / 4;
    let retention = Retention { jobs_max: 1, ..Retention::default() };
    let planned = store.plan(&retention, NOW).expect("a plan");
    assert!(planned.jobs == 3 && planned.bytes >= 3 * BYTES as u64, "{planned:?}");
    while store.prune(&retention, NOW).expect("a step").more {}
    store.tidy().expect("tidied");
    store.settle().expect("space");
    assert_eq!(rows(&path, "part"), each);
    let after = path.metadata().expect("a file").len();
    assert!(after < before / 2, "{after} bytes after {before}");
    assert!(store.result(&id(3)).expect("a query").expect("a job").1.expect("a result") == large(BYTES));
}

#[test]
fn the_log_is_written_back_while_a_large_result_is_stored_and_cut_off_afterwards() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("jobs.db");
    let log_bytes = || path.with_file_name("jobs.db-wal").metadata().expect("a log").len();
    let mut store = worker(&path);
    store.apply(&[worker_insert(1), worker_insert(2)]).expect("a batch");
    let operation = finish(1, WorkerState::Completed, &large(60 << 20));
    loop {
        let ahead = store.store_ahead(&operation).expect("space");
        store.tidy().expect("tidied");
        // What the last part takes comes on top.
        assert!(log_bytes() <= 4 * LOG_BYTES_MAX + (1 << 20), "{} bytes", log_bytes());
        match ahead {
            Ahead::More => {}
            // Others need not wait for the disk.
            Ahead::Busy => assert!(store.job(&id(2)).expect("a query").is_some()),
            Ahead::Whole => break,
        }
    }
    assert_eq!(store.apply(&[operation]), Ok(vec![Ok(())]));
    let deadline = Instant::now() + PATIENCE;
    while !store.is_settled() {
        assert!(Instant::now() < deadline, "it never settled");
        store.settle().expect("space");
    }
    assert!(log_bytes() <= LOG_BYTES_MAX, "{} bytes", log_bytes());
    drop(store);
    assert!(!path.with_file_name("jobs.db-wal").exists(), "nobody has it open any more");
    assert!(worker(&path).result(&id(1)).expect("a query").expect("a job").1.expect("a result") == large(60 << 20));
}

#[test]
fn a_large_result_of_an_earlier_schema_comes_back() {
    let folder = tempfile::tempdir().expect("a folder");
    let noted = include_str!("../src/sqlite/noted.sql");
    let first = (include_str!("../src/sqlite/client_1.sql"), include_str!("../src/sqlite/worker_1.sql"));
    let (client, of_worker) = (folder.path().join("client.db"), folder.path().join("worker.db"));
    let whole = large(5 << 19);
    let insert = |path: &Path, schema: &[&str], header: &str, job: &str, row: &str, values: &str| {
        let old = Connection::open(path).expect("a database");
        schema.iter().for_each(|text| old.execute_batch(text).expect("a schema"));
        old.execute_batch(header).expect("its version");
        old.execute(job, [id(1).as_str()]).expect("a job");
        for (part, data) in whole.chunks(1 << 20).enumerate() {
            old.execute(&format!("INSERT INTO result ({row}) VALUES ({values})"), rusqlite::params![part as i64, data])
                .expect("a part");
        }
    };
    insert(
        &client,
        &[first.0, noted, include_str!("../src/sqlite/client_3.sql")],
        "PRAGMA application_id = 0x4e464a43; PRAGMA user_version = 3",
        "INSERT INTO job (id, state, submitted, deadline, timeout, service, task, target, dispatched, started, completed, errors) \
         VALUES (?1, 'STARTED', 1.0, 2.0, 600, 's', 'cli', 'any', '[]', '[]', '[]', '[]')",
        "job, worker, part, data",
        "1, 'worker-1', ?1, ?2",
    );
    insert(
        &of_worker,
        &[first.1, noted],
        "PRAGMA application_id = 0x4e464a57; PRAGMA user_version = 2",
        "INSERT INTO job (id, state, submitted, deadline, finished, timeout, client, task, attempts) \
         VALUES (?1, 'COMPLETED', 1.0, 2.0, 2.0, 600, 'client-1', 'cli', 1)",
        "job, part, data",
        "1, ?1, ?2",
    );
    let mut client = SqliteClientStore::open(&client, STAMP).expect("it is taken over");
    let next = result(1, "worker-2", &large(BYTES));
    store_all_ahead(&mut client, &next);
    assert_eq!(client.apply(&[next]), Ok(vec![Ok(())]));
    let results = client.job(&id(1)).expect("a query").expect("a job").results;
    assert!(results.len() == 2 && results[0].1 == whole && results[1].1 == large(BYTES));
    let mut worker = worker(&of_worker);
    assert!(worker.result(&id(1)).expect("a query").expect("a job").1.expect("a result") == whole);
    assert_eq!(worker.prune(&Retention { jobs_max: 0, ..Retention::default() }, NOW).expect("a step").jobs, 1);
    assert_eq!(rows(&of_worker, "result"), 0);
}

#[test]
fn a_result_of_which_a_part_is_missing_is_an_error_and_no_result() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("jobs.db");
    let mut store = worker(&path);
    store.apply(&[worker_insert(1)]).expect("a batch");
    store_all_ahead(&mut store, &large_finish(1));
    store.apply(&[large_finish(1)]).expect("a batch");
    let other = Connection::open(&path).expect("a database");
    assert_eq!(other.execute("DELETE FROM part WHERE number = 2", []), Ok(1));
    let error = store.result(&id(1)).expect_err("it is not whole");
    assert!(matches!(&error, StoreError::Row { error, .. } if error.contains("bytes")), "{error}");
}

#[cfg(unix)]
#[test]
fn a_database_that_is_removed_between_two_parts_is_begun_anew_with_the_whole_result() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("jobs.db");
    let mut store = SqliteClientStore::open(&path, STAMP).expect("a database");
    store.apply(&[client_insert(1)]).expect("a batch");
    let (one, other) = (result(1, "worker-1", &large(BYTES)), result(1, "worker-2", &large(BYTES)));
    store_all_ahead(&mut store, &one);
    assert_eq!(store.apply(&[one]), Ok(vec![Ok(())]));
    assert_eq!(store.store_ahead(&other), Ok(Ahead::More));
    std::fs::remove_file(&path).expect("it is there");
    store_all_ahead(&mut store, &other);
    assert_eq!(rows(&path, "storing"), 1, "the parts from before are gone");
    assert_eq!(store.apply(&[other]), Ok(vec![Ok(())]));
    let results = store.job(&id(1)).expect("a query").expect("a job").results;
    assert!(results.len() == 2 && results.iter().all(|(_, payload)| *payload == large(BYTES)));
}

#[test]
fn a_result_whose_parts_another_process_took_for_left_behind_is_stored_whole() {
    for parts_before in [2, usize::MAX] {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("jobs.db");
        let first = worker(&path);
        let mut second = worker(&path);
        second.apply(&[worker_insert(1), state(1, WorkerState::Started, 1.0)]).expect("a batch");
        for _ in 0..parts_before {
            if second.store_ahead(&large_finish(1)).expect("space") == Ahead::Whole {
                break;
            }
        }
        // The first one, which held the journal, ends, and a third one takes over.
        drop(first);
        let third = worker(&path);
        assert_eq!((rows(&path, "part"), rows(&path, "storing")), (0, 0));
        while parts_before == 2 && second.store_ahead(&large_finish(1)).expect("space") != Ahead::Whole {}
        assert_eq!(second.apply(&[large_finish(1)]), Ok(vec![Ok(())]));
        assert!(second.result(&id(1)).expect("a query").expect("a job").1.expect("a result") == large(BYTES));
        assert_eq!(rows(&path, "part"), BYTES.div_ceil(512 << 10) as i64, "of the whole result, and no others");
        drop(third);
    }
}

#[test]
fn a_result_is_not_removed_that_got_the_number_of_parts_that_were_dropped_and_that_another_process_removed() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("jobs.db");
    let first = worker(&path);
    let mut second = worker(&path);
    second.apply(&[worker_insert(1), state(1, WorkerState::Started, 1.0)]).expect("a batch");
    store_all_ahead(&mut second, &large_finish(1));
    // The operation itself cannot be applied, and the parts cannot be removed.
    let lock = Connection::open(&path).expect("a database");
    lock.execute_batch("BEGIN IMMEDIATE").expect("the lock");
    assert!(second.apply(&[large_finish(1)]).is_err());
    second.drop_ahead();
    drop(lock);
    assert_eq!(rows(&path, "storing"), 1);
    // The first one, which held the journal, ends, and a third one takes over.
    drop(first);
    let third = worker(&path);
    assert_eq!((rows(&path, "part"), rows(&path, "storing")), (0, 0));
    assert_eq!(second.apply(&[large_finish(1)]), Ok(vec![Ok(())]));
    second.tidy().expect("nothing is left to remove");
    assert!(second.result(&id(1)).expect("a query").expect("a job").1.expect("a result") == large(BYTES));
    drop(third);
}

#[test]
fn a_result_is_not_mixed_with_parts_of_another_one_that_another_process_removed() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("jobs.db");
    let open = || SqliteClientStore::open(&path, STAMP).expect("a database");
    let (first, mut second) = (open(), open());
    second.apply(&[client_insert(1)]).expect("a batch");
    let (one, other) = (result(1, "worker-1", &large(BYTES)), result(1, "worker-2", &large(BYTES + 1)));
    assert_eq!(second.store_ahead(&one), Ok(Ahead::More));
    drop(first);
    let third = open();
    assert_eq!((rows(&path, "part"), rows(&path, "storing")), (0, 0));
    assert_eq!(second.apply(&[other]), Ok(vec![Ok(())]));
    store_all_ahead(&mut second, &one);
    assert_eq!(second.apply(&[one]), Ok(vec![Ok(())]));
    second.tidy().expect("nothing is left to remove");
    let results = second.job(&id(1)).expect("a query").expect("a job").results;
    assert!(results.len() == 2 && results[0].1 == large(BYTES) && results[1].1 == large(BYTES + 1));
    drop(third);
}
