//! Large results, which go into a store in parts.

mod samples;

use std::collections::HashSet;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};
use std::time::{Duration, Instant};

use norfab_jobs::sqlite::LOG_BYTES_MAX;
use norfab_jobs::*;
use norfab_protocol::name::JobId;
use rusqlite::Connection;
use samples::*;

/// How long a test waits for what must come.
const PATIENCE: Duration = Duration::from_secs(30);

/// Tells the child of a test where to write.
const FOLDER_VARIABLE: &str = "NORFAB_JOBS_TEST_FOLDER";

/// Bytes of a result of several parts.
const BYTES: usize = 5 << 20;

fn rows(path: &Path, table: &str) -> i64 {
    let other = Connection::open(path).expect("a database");
    other.query_row(&format!("SELECT count(*) FROM {table}"), [], |row| row.get(0)).expect("a count")
}

fn worker(path: &Path) -> SqliteWorkerStore {
    SqliteWorkerStore::open(path, STAMP).expect("a database")
}

fn large_finish(number: usize) -> WorkerOperation {
    finish(number, WorkerState::Completed, &large(BYTES))
}

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

/// Lets its thread do one step at a time, and tells what that is.
struct Stepping {
    store: SqliteWorkerStore,
    told: Sender<&'static str>,
    go: Receiver<()>,
    /// How often it is busy before it takes a part.
    busy: usize,
}

impl Store for Stepping {
    type Operation = WorkerOperation;
    fn apply(&mut self, operations: &[WorkerOperation]) -> Result<Vec<Outcome>, StoreError> {
        self.told.send("apply").expect("the test listens");
        self.store.apply(operations)
    }
    fn store_ahead(&mut self, operation: &WorkerOperation) -> Result<Ahead, StoreError> {
        self.told.send("part").expect("the test listens");
        // At the end of the test nobody says so any more.
        self.go.recv().ok();
        if self.busy > 0 {
            self.busy -= 1;
            return Ok(Ahead::Busy);
        }
        self.store.store_ahead(operation)
    }
    fn drop_ahead(&mut self) {
        self.store.drop_ahead();
    }
    fn prune(&mut self, retention: &Retention, now: f64) -> Result<Pruned, StoreError> {
        self.store.prune(retention, now)
    }
    fn tidy(&mut self) -> Result<(), StoreError> {
        self.store.tidy()
    }
    fn set_aside(&self) -> Option<&SetAside> {
        self.store.set_aside()
    }
}

impl WorkerStore for Stepping {
    fn unfinished(&mut self, after: Option<PageEnd>, limit: usize) -> Result<Page<WorkerJob>, StoreError> {
        self.store.unfinished(after, limit)
    }
    fn job(&mut self, id: &JobId) -> Result<Option<WorkerJobDetails>, StoreError> {
        self.store.job(id)
    }
    fn result(&mut self, id: &JobId) -> Result<Option<(WorkerJob, Option<bytes::Bytes>)>, StoreError> {
        self.store.result(id)
    }
    fn known(&mut self, ids: &[JobId]) -> Result<HashSet<JobId>, StoreError> {
        self.store.known(ids)
    }
    fn list(&mut self, filter: &WorkerJobFilter) -> Result<Vec<WorkerJob>, StoreError> {
        self.store.list(filter)
    }
    fn statistics(&mut self) -> Result<Statistics<WorkerState>, StoreError> {
        self.store.statistics()
    }
}

/// A writer, its confirmations, what its store does, and the way to let it go on after it said that a part comes.
struct Stepped {
    writer: WorkerWriter<usize>,
    confirmed: Receiver<Confirmation<usize>>,
    does: Receiver<&'static str>,
    go: SyncSender<()>,
}

impl Stepped {
    fn new(path: PathBuf, busy: usize) -> Self {
        let (told, does) = channel();
        let (go, gate) = sync_channel(100);
        let open =
            move || Ok(Box::new(Stepping { store: worker(&path), told, go: gate, busy }) as Box<dyn WorkerStore>);
        let (writer, confirmed) = spawned(open);
        Self { writer, confirmed, does, go }
    }

    fn submit(&self, operations: impl IntoIterator<Item = (WorkerOperation, usize)>) {
        let operations = operations.into_iter().map(|(operation, token)| (operation, Some(token))).collect();
        self.writer.try_submit(operations).expect("space");
    }

    fn next_step(&self) -> &'static str {
        self.does.recv_timeout(PATIENCE).expect("it does something")
    }

    fn next_confirmed(&self) -> usize {
        let Confirmation { token, outcome } = self.confirmed.recv_timeout(PATIENCE).expect("a confirmation");
        assert_eq!(outcome, Ok(()), "{token}");
        token
    }

    fn go(&self) {
        self.go.send(()).expect("the thread waits");
    }

    /// Jobs 1 to 3, and the thread before the first part of the result of job 1.
    fn begin(&self) {
        self.submit((1..=3).map(|number| (worker_insert(number), number)));
        assert_eq!([self.next_confirmed(), self.next_confirmed(), self.next_confirmed()], [1, 2, 3]);
        assert_eq!(self.next_step(), "apply");
        self.submit([(large_finish(1), 11)]);
        assert_eq!(self.next_step(), "part");
    }

    /// Lets it go on to its next part, or to the end.
    fn until_applied(&self) -> usize {
        let mut parts = 1;
        self.go();
        while self.next_step() == "part" {
            parts += 1;
            self.go();
        }
        parts
    }
}

fn spawned(
    open: impl FnOnce() -> Result<Box<dyn WorkerStore>, StoreError> + Send + 'static,
) -> (WorkerWriter<usize>, Receiver<Confirmation<usize>>) {
    let (sender, confirmed) = channel();
    let confirm = move |confirmations: Vec<_>| confirmations.into_iter().for_each(|one| drop(sender.send(one)));
    (spawn_worker("jobs-test", open, confirm).expect("a writer"), confirmed)
}

#[test]
fn what_is_about_other_jobs_is_stored_between_the_parts_of_a_large_result() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("jobs.db");
    let stepped = Stepped::new(path.clone(), 0);
    stepped.begin();
    for number in 20..24 {
        // While it is held before a part, something comes for another job.
        stepped.submit([(worker_event(2, "news"), number)]);
        stepped.go();
        assert_eq!(stepped.next_step(), "apply", "before the next part");
        assert_eq!(stepped.next_confirmed(), number);
        assert_eq!(stepped.next_step(), "part");
    }
    // A job that ended meanwhile is answered, and one that began is there.
    stepped.submit([(worker_insert(4), 24), (finish(3, WorkerState::Completed, b"{}"), 25)]);
    stepped.go();
    assert_eq!([stepped.next_step(), stepped.next_step()], ["apply", "part"]);
    assert_eq!([stepped.next_confirmed(), stepped.next_confirmed()], [24, 25]);
    assert!(stepped.until_applied() > 1, "there were more parts");
    assert_eq!(stepped.next_confirmed(), 11);
    stepped.writer.close();
    let mut store = worker(&path);
    assert!(store.result(&id(1)).expect("a query").expect("a job").1.expect("a result") == large(BYTES));
    assert_eq!(store.result(&id(3)).expect("a query").expect("a job").1.expect("a result"), "{}");
    assert_eq!(store.job(&id(2)).expect("a query").expect("a job").events.len(), 4);
}

#[test]
fn what_is_about_the_job_of_a_large_result_stays_behind_it() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("jobs.db");
    let stepped = Stepped::new(path.clone(), 0);
    stepped.begin();
    // Another large result comes behind the first, with its own news before and behind it.
    stepped.submit([
        (worker_event(1, "behind"), 12),
        (worker_event(2, "before"), 21),
        (large_finish(2), 22),
        (worker_event(2, "behind"), 23),
        (worker_event(3, "news"), 31),
        (worker_event(1, "behind"), 13),
    ]);
    stepped.go();
    assert_eq!([stepped.next_step(), stepped.next_step()], ["apply", "part"]);
    assert_eq!([stepped.next_confirmed(), stepped.next_confirmed()], [21, 31]);
    stepped.until_applied();
    assert_eq!([stepped.next_confirmed(), stepped.next_confirmed(), stepped.next_confirmed()], [11, 12, 13]);
    assert_eq!(stepped.next_step(), "part", "of the second one");
    stepped.until_applied();
    assert_eq!([stepped.next_confirmed(), stepped.next_confirmed()], [22, 23]);
    stepped.writer.close();
    let mut store = worker(&path);
    for number in [1, 2] {
        let details = store.job(&id(number)).expect("a query").expect("a job");
        assert!(details.payload.expect("a result") == large(BYTES));
        assert_eq!(details.events.len(), 2);
    }
}

#[test]
fn a_query_waits_for_a_large_result_before_it_unless_it_takes_what_is_there() {
    let folder = tempfile::tempdir().expect("a folder");
    let stepped = Stepped::new(folder.path().join("jobs.db"), 0);
    stepped.begin();
    let (told, answers) = channel();
    let state = |store: &mut (dyn WorkerStore + 'static)| {
        let (job, payload) = store.result(&id(1)).expect("a query").expect("a job");
        (job.state, payload.map(|payload| payload.len()))
    };
    let tell = |what: &'static str| {
        let told = told.clone();
        move |store: &mut (dyn WorkerStore + 'static), is_whole| {
            told.send((what, is_whole, state(store))).expect("the test listens");
        }
    };
    let (whole, after, at_once) = (tell("whole"), tell("after"), tell("at once"));
    stepped.writer.try_query(move |store| after(store, true)).expect("room");
    stepped.writer.try_query_whole(move |store| whole(store.expect("it is not behind"), true)).expect("room");
    stepped.writer.try_query_telling(at_once).expect("room");
    stepped.go();
    let answer = || answers.recv_timeout(PATIENCE).expect("an answer");
    assert_eq!(answer(), ("at once", false, (WorkerState::Pending, None)));
    assert_eq!(stepped.next_step(), "part");
    stepped.until_applied();
    assert_eq!(answer(), ("after", true, (WorkerState::Completed, Some(BYTES))));
    assert_eq!(answer(), ("whole", true, (WorkerState::Completed, Some(BYTES))));
}

#[test]
fn a_store_that_is_busy_with_parts_takes_other_jobs_and_is_asked_again() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("jobs.db");
    let stepped = Stepped::new(path.clone(), 3);
    stepped.begin();
    stepped.submit([(worker_event(2, "news"), 21)]);
    stepped.go();
    assert_eq!([stepped.next_step(), stepped.next_step()], ["apply", "part"]);
    assert_eq!(stepped.next_confirmed(), 21);
    // Also when nothing else will come.
    let Stepped { writer, confirmed, does, go } = stepped;
    drop(go);
    writer.close();
    assert_eq!(confirmed.try_iter().map(|one| (one.token, one.outcome)).collect::<Vec<_>>(), [(11, Ok(()))]);
    assert_eq!(does.try_iter().last(), Some("apply"));
    assert!(worker(&path).result(&id(1)).expect("a query").expect("a job").1.expect("a result") == large(BYTES));
}

#[test]
fn closing_stores_a_large_result_and_what_is_behind_it() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("jobs.db");
    let opened = path.clone();
    let (writer, confirmed) = spawned(move || Ok(Box::new(worker(&opened))));
    let operations = [(worker_insert(1), 0), (large_finish(1), 1), (worker_event(1, "behind"), 2)];
    writer.try_submit(operations.map(|(operation, token)| (operation, Some(token))).into()).expect("space");
    writer.close();
    let confirmed: Vec<_> = confirmed.try_iter().map(|one| (one.token, one.outcome)).collect();
    assert_eq!(confirmed, [(0, Ok(())), (1, Ok(())), (2, Ok(()))]);
    let details = worker(&path).job(&id(1)).expect("a query").expect("a job");
    assert!(details.payload.expect("a result") == large(BYTES));
    assert_eq!(details.events.len(), 1);
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
fn a_large_result_that_finds_no_space_leaves_none_of_its_parts_and_is_stored_later() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("jobs.db");
    let opened = path.clone();
    let (writer, confirmed) = spawned(move || {
        let mut store = worker(&opened);
        store.limit_pages(1800).expect("a limit");
        Ok(Box::new(store))
    });
    let outcome = |operation| {
        writer.try_submit(vec![(operation, Some(0))]).expect("space in the queue");
        confirmed.recv_timeout(PATIENCE).expect("a confirmation").outcome
    };
    for number in 0..2 {
        assert_eq!(outcome(worker_insert(number)), Ok(()));
    }
    assert_eq!(outcome(large_finish(0)), Ok(()));
    // Of the second there is space for a third.
    let refused = outcome(large_finish(1));
    assert!(matches!(refused, Err(OperationError::NotStored(StoreError::DiskFull { .. }))), "{refused:?}");
    assert_eq!(rows(&path, "storing"), 0);
    assert_eq!(rows(&path, "part"), rows(&path, "result") * BYTES.div_ceil(512 << 10) as i64);
    assert_eq!(outcome(worker_insert(2)), Ok(()), "a new job finds space");
    let retention = Retention { jobs_max: 0, ..Retention::default() };
    let pruned = writer.try_ask(move |store| store.prune(&retention, NOW)).expect("a query");
    assert_eq!(pruned.recv_timeout(PATIENCE).expect("an answer").expect("no error").jobs, 1);
    assert_eq!(confirmed.recv_timeout(PATIENCE).expect("it is confirmed once more").outcome, Ok(()));
    let found = writer.try_ask(|store| store.result(&id(1))).expect("a query");
    let found = found.recv_timeout(PATIENCE).expect("an answer").expect("no error").expect("a job");
    assert!(found.1.expect("a result") == large(BYTES));
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
fn a_reader_that_keeps_the_log_from_being_written_back_keeps_no_large_result() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("jobs.db");
    let opened = path.clone();
    let (writer, confirmed) = spawned(move || Ok(Box::new(worker(&opened))));
    writer.try_submit(vec![(worker_insert(1), Some(1))]).expect("space");
    assert_eq!(confirmed.recv_timeout(PATIENCE).expect("a confirmation").outcome, Ok(()));
    let reader = Connection::open(&path).expect("a database");
    reader.execute_batch("BEGIN; SELECT count(*) FROM job").expect("a query");
    let operation = finish(1, WorkerState::Completed, &large(40 << 20));
    writer.try_submit(vec![(operation, Some(2))]).expect("space");
    assert_eq!(confirmed.recv_timeout(PATIENCE).expect("a confirmation").outcome, Ok(()));
    let log = path.with_file_name("jobs.db-wal").metadata().expect("a log").len();
    assert!(log > 40 << 20, "{log} bytes");
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
fn many_large_results_at_once_are_all_stored_in_their_order() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("jobs.db");
    let (writer, confirmed) = spawned(move || Ok(Box::new(worker(&path))));
    let mut operations: Vec<_> = (0..40).map(|number| (worker_insert(number), None)).collect();
    let payload: bytes::Bytes = large(LARGE_BYTES + 1).into();
    operations.extend((0..40).map(|number| {
        let (id, payload) = (id(number), payload.clone());
        (WorkerOperation::Finish { id, state: WorkerState::Completed, at: NOW, payload }, Some(number))
    }));
    // More than goes aside at once: the rest waits in the queue, and is refused where that is full.
    let deadline = Instant::now() + PATIENCE;
    for operation in operations {
        let mut operation = vec![operation];
        while let Err(refused) = writer.try_submit(operation) {
            assert!(Instant::now() < deadline, "it never had room");
            operation = refused.into_operations();
            std::thread::yield_now();
        }
    }
    for number in 0..40 {
        let confirmation = confirmed.recv_timeout(PATIENCE).expect("a confirmation");
        assert_eq!(confirmation, Confirmation { token: number, outcome: Ok(()) });
    }
    assert_eq!(writer.statistics().stored, 80);
}
