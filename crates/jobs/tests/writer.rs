//! What the thread that owns a store promises.

mod samples;

use std::path::PathBuf;
use std::sync::mpsc::{Receiver, Sender, channel, sync_channel};
use std::time::Duration;

use norfab_jobs::testing::{Interference, TestWorkerStore};
use norfab_jobs::writer::{BATCH_OPERATIONS_MAX, QUEUE_BYTES_MAX, QUEUE_OPERATIONS_MAX, QUEUE_QUERIES_MAX};
use norfab_jobs::*;
use samples::*;

/// How long a test waits for what must come.
const PATIENCE: Duration = Duration::from_secs(30);

type Confirmed = Receiver<Confirmation<usize>>;

fn start(open: impl FnOnce() -> Box<dyn WorkerStore> + Send + 'static) -> (WorkerWriter<usize>, Confirmed) {
    let (sender, receiver) = channel();
    let writer = spawn_worker(
        "jobs-test",
        move || Ok(open()),
        move |confirmations| {
            for confirmation in confirmations {
                sender.send(confirmation).expect("the test listens");
            }
        },
    )
    .expect("a writer");
    (writer, receiver)
}

fn in_memory() -> (WorkerWriter<usize>, Confirmed) {
    start(|| Box::new(MemoryWorkerStore::new()))
}

fn in_file(path: PathBuf) -> (WorkerWriter<usize>, Confirmed) {
    start(move || Box::new(SqliteWorkerStore::open(&path, STAMP).expect("a database")))
}

/// Holds the thread until the returned sender is dropped.
fn hold(writer: &WorkerWriter<usize>) -> impl Drop + use<> {
    struct Gate(Option<std::sync::mpsc::SyncSender<()>>);
    impl Drop for Gate {
        fn drop(&mut self) {
            self.0 = None;
        }
    }
    let (gate, gated) = sync_channel::<()>(0);
    let (begun, begin) = sync_channel(1);
    writer
        .try_query(move |_| {
            begun.send(()).expect("the test waits");
            gated.recv().expect_err("nothing is sent");
        })
        .expect("a query");
    begin.recv_timeout(PATIENCE).expect("the thread is held");
    Gate(Some(gate))
}

/// Opens a database that is full with 200 pages.
fn with_little_room(folder: &tempfile::TempDir) -> impl FnOnce() -> Box<dyn WorkerStore> + Send + 'static {
    let path = folder.path().join("jobs.db");
    move || {
        let mut store = SqliteWorkerStore::open(&path, STAMP).expect("a database");
        store.limit_pages(200).expect("a limit");
        Box::new(store)
    }
}

#[test]
fn confirmations_come_in_the_order_of_submission() {
    let folder = tempfile::tempdir().expect("a folder");
    let (writer, confirmed) = in_file(folder.path().join("jobs.db"));
    for number in 0..2000 {
        let mut operations = vec![(worker_insert(number), Some(number))];
        // An operation without a token is stored and not confirmed.
        operations.push((worker_event(number, "news"), None));
        writer.try_submit(operations).expect("space");
    }
    for number in 0..2000 {
        let confirmation = confirmed.recv_timeout(PATIENCE).expect("a confirmation");
        assert_eq!(confirmation, Confirmation { token: number, outcome: Ok(()) });
    }
    let statistics = writer.statistics();
    assert_eq!((statistics.stored, statistics.refused, statistics.failed), (4000, 0, 0));
    writer.close();
    assert!(confirmed.recv_timeout(PATIENCE).is_err(), "nothing else was confirmed");
}

#[test]
fn several_threads_may_share_a_writer() {
    let (writer, confirmed) = in_memory();
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let writer = &writer;
            scope.spawn(move || {
                for number in 0..100 {
                    let number = thread * 100 + number;
                    writer.try_submit(vec![(worker_insert(number), Some(number))]).expect("space");
                }
            });
        }
    });
    writer.close();
    assert_eq!(confirmed.try_iter().filter(|confirmation| confirmation.outcome.is_ok()).count(), 400);
}

#[test]
fn what_gathered_is_committed_at_once() {
    let (writer, confirmed) = in_memory();
    let held = hold(&writer);
    for number in 0..100 {
        writer.try_submit(vec![(worker_insert(number), Some(number))]).expect("space");
    }
    drop(held);
    for _ in 0..100 {
        confirmed.recv_timeout(PATIENCE).expect("a confirmation");
    }
    assert_eq!(writer.statistics().commits, 1);
}

#[test]
fn refused_operations_are_confirmed_with_their_reason() {
    let (writer, confirmed) = in_memory();
    writer
        .try_submit(vec![
            (worker_insert(1), Some(0)),
            (worker_insert(1), Some(1)),
            (state(1, WorkerState::Started, 0.0), Some(2)),
        ])
        .expect("space");
    let outcomes: Vec<_> = (0..3).map(|_| confirmed.recv_timeout(PATIENCE).expect("a confirmation").outcome).collect();
    assert_eq!(outcomes, [Ok(()), Err(OperationError::Duplicate { id: id(1) }), Ok(())]);
    assert_eq!(writer.statistics().refused, 1);
}

#[test]
fn a_full_queue_returns_the_operations() {
    let (writer, confirmed) = in_memory();
    let held = hold(&writer);
    for number in 0..QUEUE_OPERATIONS_MAX {
        writer.try_submit(vec![(worker_insert(number), Some(number))]).expect("space");
    }
    let extra = vec![(worker_insert(QUEUE_OPERATIONS_MAX), Some(7)), (worker_event(0, "news"), None)];
    let error = writer.try_submit(extra.clone()).expect_err("a full queue");
    assert!(matches!(error, SubmitError::Full(_)));
    assert_eq!(error.into_operations(), extra);
    assert_eq!(writer.statistics().queued_operations, QUEUE_OPERATIONS_MAX as u64);
    drop(held);
    for _ in 0..QUEUE_OPERATIONS_MAX {
        confirmed.recv_timeout(PATIENCE).expect("a confirmation");
    }
    writer.try_submit(extra).expect("space again");
}

#[test]
fn bytes_are_bounded_but_one_large_operation_always_passes() {
    let (writer, confirmed) = in_memory();
    let held = hold(&writer);
    let payload = bytes::Bytes::from(large(QUEUE_BYTES_MAX + 1));
    let finish = WorkerOperation::Finish { id: id(1), state: WorkerState::Completed, at: NOW, payload };
    let small = || vec![(worker_insert(1), Some(1))];
    writer.try_submit(small()).expect("space");
    let refused = writer.try_submit(vec![(finish, Some(2))]).expect_err("too large beside others");
    drop(held);
    confirmed.recv_timeout(PATIENCE).expect("a confirmation");
    let held = hold(&writer);
    writer.try_submit(refused.into_operations()).expect("an empty queue takes it");
    assert!(matches!(writer.try_submit(small()), Err(SubmitError::Full(_))));
    drop(held);
    assert_eq!(confirmed.recv_timeout(PATIENCE).expect("a confirmation").outcome, Ok(()));
    assert_eq!(writer.statistics().queued_bytes, 0);
}

#[test]
fn a_query_sees_what_was_submitted_before_it() {
    let folder = tempfile::tempdir().expect("a folder");
    let (writer, confirmed) = in_file(folder.path().join("jobs.db"));
    for number in 0..1000 {
        writer.try_submit(vec![(worker_insert(number), Some(number))]).expect("space");
    }
    let found = writer.try_ask(|store| store.result(&id(999))).expect("a query");
    assert!(found.recv_timeout(PATIENCE).expect("an answer").expect("no error").is_some());
    // And its answer comes after the confirmations.
    assert_eq!(confirmed.try_iter().count(), 1000);
}

#[test]
fn a_query_does_not_wait_for_what_was_submitted_after_it() {
    let (writer, confirmed) = in_memory();
    let held = hold(&writer);
    let submit = |numbers: std::ops::Range<usize>| {
        let operations = numbers.map(|number| (worker_insert(number), Some(number))).collect();
        writer.try_submit(operations).expect("space");
    };
    submit(0..10);
    let seen = writer.try_ask(|store| store.statistics().expect("statistics").total_jobs()).expect("a query");
    // Several batches more: a store that is busy all the time has no moment without any.
    submit(10..10 + 4 * BATCH_OPERATIONS_MAX);
    drop(held);
    let seen = seen.recv_timeout(PATIENCE).expect("an answer");
    assert!((10..=BATCH_OPERATIONS_MAX as u64).contains(&seen), "after its batch and not after all: {seen}");
    writer.close();
    assert_eq!(confirmed.try_iter().count(), 10 + 4 * BATCH_OPERATIONS_MAX);
}

#[test]
fn too_many_queries_are_refused() {
    let (writer, _confirmed) = in_memory();
    let held = hold(&writer);
    for _ in 0..QUEUE_QUERIES_MAX {
        writer.try_query(|_| ()).expect("space");
    }
    assert_eq!(writer.try_query(|_| ()), Err(QueryError::Full));
    drop(held);
}

#[test]
fn closing_stores_and_confirms_what_waits() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("jobs.db");
    let (writer, confirmed) = in_file(path.clone());
    let held = hold(&writer);
    for number in 0..3000 {
        writer.try_submit(vec![(worker_insert(number), Some(number))]).expect("space");
    }
    let answer = writer.try_ask(|store| store.statistics()).expect("a query");
    drop(held);
    writer.close();
    assert_eq!(confirmed.try_iter().filter(|confirmation| confirmation.outcome.is_ok()).count(), 3000);
    assert_eq!(answer.try_recv().expect("an answer").expect("no error").total_jobs(), 3000);
    let mut store = SqliteWorkerStore::open(&path, STAMP).expect("a database");
    assert_eq!(store.unfinished(None, 10_000).expect("a query").jobs.len(), 3000);
    assert!(!folder.path().join("jobs.db.damaged-").exists());
}

#[test]
fn a_store_that_does_not_open_says_why() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("nowhere").join("jobs.db");
    let opened = spawn_worker(
        "jobs-test",
        move || Ok(Box::new(SqliteWorkerStore::open(&path, STAMP)?)),
        |_: Vec<Confirmation<()>>| (),
    );
    assert!(matches!(opened.err(), Some(StoreError::File { .. })));
}

#[test]
fn a_damaged_file_is_reported_by_the_writer() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("jobs.db");
    std::fs::write(&path, large(10_000)).expect("a file");
    let (writer, _confirmed) = in_file(path.clone());
    assert_eq!(writer.set_aside().expect("damage").path, path);
}

#[test]
fn a_thread_that_dies_returns_operations_and_disconnects_queries() {
    let (writer, confirmed) = in_memory();
    let answer = writer.try_ask(|_| -> usize { panic!("planned by the test") }).expect("a query");
    assert!(answer.recv_timeout(PATIENCE).is_err());
    // The callback goes with the thread.
    assert!(confirmed.recv_timeout(PATIENCE).is_err());
    let operations = vec![(worker_insert(1), Some(1))];
    loop {
        match writer.try_submit(operations.clone()) {
            // The thread is still unwinding.
            Ok(()) | Err(SubmitError::Full(_)) => std::thread::yield_now(),
            Err(SubmitError::Closed(returned)) => break assert_eq!(returned, operations),
        }
    }
    assert_eq!(writer.try_query(|_| ()), Err(QueryError::Closed));
}

#[test]
fn a_full_disk_is_confirmed_as_such_and_the_thread_goes_on() {
    let folder = tempfile::tempdir().expect("a folder");
    let (writer, confirmed) = start(with_little_room(&folder));
    writer.try_submit((0..20).map(|number| (worker_insert(number), Some(number))).collect()).expect("space");
    assert!((0..20).all(|_| confirmed.recv_timeout(PATIENCE).expect("a confirmation").outcome.is_ok()));
    // Results fill the disk until one finds no space.
    let mut stored = 0;
    let refused = loop {
        let result = finish(stored, WorkerState::Completed, &large(100_000));
        writer.try_submit(vec![(result, Some(stored))]).expect("space in the queue");
        match confirmed.recv_timeout(PATIENCE).expect("a confirmation").outcome {
            Ok(()) => stored += 1,
            Err(error) => break error,
        }
    };
    assert!(refused.is_disk_full(), "{refused}");
    assert!(stored > 3, "{stored} were stored");
    // What is not stored has happened, so nobody may act on the rows without it.
    let is_whole = || {
        let (told, answer) = channel();
        let query = move |store: Result<&mut (dyn WorkerStore + 'static), QueryError>| {
            told.send(store.map(|_| ())).expect("it is heard")
        };
        writer.try_query_whole(query).expect("room");
        answer.recv_timeout(PATIENCE).expect("an answer")
    };
    assert_eq!(is_whole(), Err(QueryError::Behind));
    // A new job is refused if there is no space for it either.
    let large_job = WorkerJob { body: large(100_000).into(), ..worker_job(20) };
    writer.try_submit(vec![(WorkerOperation::Insert(large_job), Some(20))]).expect("space in the queue");
    assert!(confirmed.recv_timeout(PATIENCE).expect("a confirmation").outcome.is_err_and(|error| error.is_disk_full()));
    assert_eq!(writer.statistics().failed, 1);
    assert!(writer.take_news().iter().any(|news| news.contains("tried again")));
    // What is stored can be read. The result happened: where there is space it is stored without anybody's doing.
    let retention = Retention { jobs_max: 1, ..Retention::default() };
    let pruned = writer.try_ask(move |store| store.prune(&retention, NOW)).expect("a query");
    pruned.recv_timeout(PATIENCE).expect("an answer").expect("no error");
    assert_eq!(is_whole(), Ok(()), "it is tried first");
    let end = std::time::Instant::now() + PATIENCE;
    loop {
        let found = writer.try_ask(move |store| store.result(&id(stored))).expect("a query");
        let (job, payload) = found.recv_timeout(PATIENCE).expect("an answer").expect("no error").expect("a job");
        if let Some(payload) = payload {
            assert_eq!((job.state, payload.len()), (WorkerState::Completed, 100_000));
            break;
        }
        assert!(std::time::Instant::now() < end, "it never got there");
        std::thread::sleep(Duration::from_millis(20));
    }
    assert_eq!(writer.statistics().failed, 1);
    let late = confirmed.recv_timeout(PATIENCE).expect("it is confirmed once more");
    assert_eq!((late.token, late.outcome), (stored, Ok(())));
}

#[test]
fn changes_of_other_jobs_pass_a_large_result_that_finds_no_space_and_what_is_about_its_job_stays_behind_it() {
    let folder = tempfile::tempdir().expect("a folder");
    let (writer, confirmed) = start(with_little_room(&folder));
    let outcome = |operation, token| {
        writer.try_submit(vec![(operation, Some(token))]).expect("space in the queue");
        let found = confirmed.recv_timeout(PATIENCE).expect("a confirmation");
        assert_eq!(found.token, token);
        found.outcome
    };
    for number in 0..3 {
        assert_eq!(outcome(worker_insert(number), number), Ok(()));
    }
    for number in [0, 1] {
        let held = outcome(finish(number, WorkerState::Completed, &large(2_000_000)), number);
        assert!(matches!(held, Err(OperationError::NotStored(StoreError::DiskFull { .. }))), "{held:?}");
    }
    let behind = outcome(worker_event(0, "behind"), 3);
    assert!(matches!(behind, Err(OperationError::NotStored(StoreError::DiskFull { .. }))), "{behind:?}");
    assert_eq!(outcome(worker_event(2, "passes"), 4), Ok(()));
    // One larger than what is small waits for itself only, and so does each of the others.
    let held = outcome(finish(2, WorkerState::Completed, &large(900_000)), 5);
    assert!(held.is_err_and(|error| error.is_disk_full()));
    writer
        .try_ask(|store| store.result(&id(2)).map(drop))
        .expect("a query")
        .recv_timeout(PATIENCE)
        .expect("it goes on")
        .expect("a row");
}

#[test]
fn a_change_that_is_not_kept_for_later_is_confirmed_as_given_up() {
    let folder = tempfile::tempdir().expect("a folder");
    let (writer, confirmed) = start(with_little_room(&folder));
    let outcome = |operation| {
        writer.try_submit(vec![(operation, Some(0))]).expect("space in the queue");
        confirmed.recv_timeout(PATIENCE).expect("a confirmation").outcome
    };
    for number in [0, 1] {
        assert_eq!(outcome(worker_insert(number)), Ok(()));
    }
    let held = outcome(finish(0, WorkerState::Completed, &large(2_000_000)));
    assert!(matches!(held, Err(OperationError::NotStored(StoreError::DiskFull { .. }))), "{held:?}");
    let events = (1..QUEUE_OPERATIONS_MAX).map(|_| (worker_event(0, "e"), None));
    writer.try_submit(events.collect()).expect("space in the queue");
    for _ in 0..3 {
        let lost = outcome(finish(0, WorkerState::Completed, b"{}"));
        assert!(matches!(lost, Err(OperationError::GivenUp(StoreError::DiskFull { .. }))), "{lost:?}");
        let lost = lost.expect_err("it is given up");
        assert!(lost.is_disk_full());
        // Either bound may be what was met.
        assert!(
            lost.to_string().ends_with(&format!("more than is kept: {QUEUE_OPERATIONS_MAX} changes, or 64 MiB")),
            "{lost}"
        );
    }
    assert_eq!(writer.statistics().failed, 0, "whoever hears of it comes with it again");
    writer.try_submit(vec![(worker_event(0, "e"), None)]).expect("space in the queue");
    let event = outcome(worker_event(0, "e"));
    assert!(matches!(event, Err(OperationError::GivenUp(_))), "{event:?}");
    assert_eq!(writer.statistics().failed, 2, "nobody has these");
}

#[test]
fn what_was_confirmed_goes_into_the_database_when_the_thread_has_nothing_to_do() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("jobs.db");
    let (writer, confirmed) = in_file(path.clone());
    writer.try_submit(vec![(worker_insert(1), Some(1))]).expect("space");
    assert_eq!(confirmed.recv_timeout(PATIENCE).expect("a confirmation").outcome, Ok(()));
    let any_program = rusqlite::Connection::open(&path).expect("a database");
    let end = std::time::Instant::now() + PATIENCE;
    while any_program.query_one("SELECT count(*) FROM job", [], |row| row.get::<_, i64>(0)) != Ok(1) {
        assert!(std::time::Instant::now() < end, "it never got there");
        std::thread::yield_now();
    }
    writer.close();
}

/// Tells what is done with its store.
struct Telling(Sender<&'static str>);

impl Interference for Telling {
    fn apply(&mut self, _: &[WorkerOperation]) -> Result<(), StoreError> {
        self.0.send("apply").expect("the test listens");
        Ok(())
    }
    fn tidy(&mut self) -> Result<(), StoreError> {
        self.0.send("tidy").expect("the test listens");
        Ok(())
    }
}

#[test]
fn who_waits_goes_before_tidying_up() {
    let (told, does) = channel();
    let (writer, _confirmed) = start(move || Box::new(TestWorkerStore::new(Telling(told))));
    let held = hold(&writer);
    writer.try_submit(vec![(worker_insert(1), Some(1))]).expect("space");
    drop(held);
    let next = || does.recv_timeout(PATIENCE).expect("it does something");
    assert_eq!([next(), next()], ["apply", "tidy"]);
}

#[test]
fn whoever_prunes_beside_an_owner_waits_for_what_it_noted() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("jobs.db");
    let (writer, confirmed) = in_file(path.clone());
    let ended = [(worker_insert(1), None), (finish(1, WorkerState::Completed, b"{}"), Some(1))];
    writer.try_submit(ended.into()).expect("room");
    assert!(confirmed.recv_timeout(PATIENCE).expect("a confirmation").outcome.is_ok());
    let held = hold(&writer);
    let mut other = SqliteWorkerStore::open_beside(&path).expect("a database");
    let last = other.noted_by_owner().expect("a journal").expect("it has it in its journal only");
    assert_eq!(other.has_noted(last), Ok(false));
    drop(held);
    let end = std::time::Instant::now() + PATIENCE;
    while other.has_noted(last) != Ok(true) {
        assert!(std::time::Instant::now() < end, "it never got there");
        std::thread::yield_now();
    }
    assert_eq!(other.noted_by_owner(), Ok(None), "there is nothing to wait for");
    let all = Retention { jobs_max: 0, ..Retention::default() };
    assert_eq!(other.prune(&all, NOW).expect("a step").jobs, 1);
}
