//! What goes between the parts of a large result, and what stays behind it.

mod samples;

use std::path::PathBuf;
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};
use std::time::{Duration, Instant};

use norfab_jobs::testing::{Interference, TestWorkerStore};
use norfab_jobs::*;
use rusqlite::Connection;
use samples::*;

/// How long a test waits for what must come.
const PATIENCE: Duration = Duration::from_secs(30);

/// Lets its thread do one step at a time, and tells what that is.
struct Stepping {
    told: Sender<&'static str>,
    go: Receiver<()>,
    /// How often it is busy before it takes a part.
    busy: usize,
    /// How often a large operation finds no space.
    full: usize,
}

impl Interference for Stepping {
    fn apply(&mut self, operations: &[WorkerOperation]) -> Result<(), StoreError> {
        let is_full = self.full > 0 && operations.iter().any(Operation::is_large);
        self.full -= usize::from(is_full);
        self.told.send(if is_full { "full" } else { "apply" }).expect("the test listens");
        if is_full { Err(StoreError::DiskFull { path: PathBuf::new() }) } else { Ok(()) }
    }

    fn store_ahead(&mut self, _operation: &WorkerOperation) -> Option<Ahead> {
        self.told.send("part").expect("the test listens");
        // At the end of the test nobody says so any more.
        self.go.recv().ok();
        let is_busy = self.busy > 0;
        self.busy -= usize::from(is_busy);
        is_busy.then_some(Ahead::Busy)
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
        Self::on_a_disk(path, busy, 0)
    }

    fn on_a_disk(path: PathBuf, busy: usize, full: usize) -> Self {
        let (told, does) = channel();
        let (go, gate) = sync_channel(100);
        let stepping = Stepping { told, go: gate, busy, full };
        let open = move || Ok(Box::new(TestWorkerStore::over(worker(&path), stepping)) as Box<dyn WorkerStore>);
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
fn what_is_about_other_jobs_is_stored_between_the_parts_of_a_large_result_that_found_no_space_at_first() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("jobs.db");
    let stepped = Stepped::on_a_disk(path.clone(), 0, 2);
    stepped.begin();
    let confirmed = || stepped.confirmed.recv_timeout(PATIENCE).expect("a confirmation");
    // Once as it comes, and once when it is tried again.
    stepped.until_applied();
    assert!(confirmed().outcome.is_err_and(|error| error.is_disk_full()));
    assert_eq!(stepped.next_step(), "part");
    stepped.submit([(worker_event(1, "behind"), 12)]);
    stepped.until_applied();
    assert!(confirmed().outcome.is_err_and(|error| error.is_disk_full()), "it stays behind it");
    assert_eq!(stepped.next_step(), "part");
    for number in 20..23 {
        stepped.submit([(worker_event(2, "news"), number)]);
        stepped.go();
        assert_eq!(stepped.next_step(), "apply", "before the next part");
        assert_eq!(stepped.next_confirmed(), number);
        assert_eq!(stepped.next_step(), "part");
    }
    assert!(stepped.until_applied() > 1, "there were more parts");
    assert_eq!(stepped.next_confirmed(), 11);
    stepped.writer.close();
    let mut store = worker(&path);
    assert!(store.result(&id(1)).expect("a query").expect("a job").1.expect("a result") == large(BYTES));
    assert_eq!(store.job(&id(1)).expect("a query").expect("a job").events.len(), 1);
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
    assert_eq!(
        [stepped.next_step(), stepped.next_step()],
        ["apply", "part"],
        "what was behind it, then of the second one"
    );
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
    let log = || path.with_file_name("jobs.db-wal").metadata().expect("a log").len();
    assert!(log() > 40 << 20, "{} bytes", log());
    // It is not cut off while somebody reads, as often as that is tried, but soon after.
    std::thread::sleep(3 * norfab_jobs::writer::SETTLE_TIME);
    assert!(log() > 40 << 20, "{} bytes", log());
    drop(reader);
    let deadline = Instant::now() + PATIENCE;
    while log() > norfab_jobs::sqlite::LOG_BYTES_MAX {
        assert!(Instant::now() < deadline, "{} bytes", log());
        std::thread::sleep(Duration::from_millis(20));
    }
    drop(writer);
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

/// Is busy for so many times, or as long as nobody says otherwise, and tells when it was asked.
struct Busy {
    times: usize,
    asked: Sender<Instant>,
    go: Receiver<()>,
}

impl Interference for Busy {
    fn store_ahead(&mut self, _operation: &WorkerOperation) -> Option<Ahead> {
        // At the end of a test nobody listens any more.
        self.asked.send(Instant::now()).ok();
        // The first time, until the test says so.
        self.go.recv().ok();
        let is_busy = self.times > 0;
        self.times -= usize::from(is_busy);
        is_busy.then_some(Ahead::Busy)
    }
}

#[test]
fn a_store_that_is_busy_is_not_asked_more_often_because_a_query_waits_for_it() {
    const TIMES: usize = 100;
    let (asked, when) = channel();
    let (go, gate) = sync_channel(0);
    let busy = Busy { times: TIMES, asked, go: gate };
    let (writer, confirmed) = spawned(move || Ok(Box::new(TestWorkerStore::new(busy))));
    writer.try_submit(vec![(worker_insert(1), None), (large_finish(1), Some(1))]).expect("space");
    let first = when.recv_timeout(PATIENCE).expect("it is asked");
    let answer = writer.try_ask(|store| store.statistics().expect("statistics").total_jobs()).expect("room");
    drop(go);
    assert_eq!(answer.recv_timeout(PATIENCE), Ok(1));
    assert_eq!(confirmed.recv_timeout(PATIENCE).expect("a confirmation").outcome, Ok(()));
    let times: Vec<_> = when.try_iter().collect();
    assert_eq!(times.len(), TIMES);
    // A millisecond lies between two of them.
    let took = times[TIMES - 1] - first;
    assert!(took >= Duration::from_millis(TIMES as u64 / 2), "{took:?}");
}

#[test]
fn large_results_beyond_what_goes_aside_hold_up_no_other_job_and_fill_the_queue() {
    let (asked, when) = channel();
    let (go, gate) = sync_channel(0);
    let busy = Busy { times: 2, asked, go: gate };
    let (writer, confirmed) = spawned(move || Ok(Box::new(TestWorkerStore::new(busy))));
    // It goes before the writer does, which waits for its thread.
    let go = go;
    let next_confirmed = || {
        let Confirmation { token, outcome } = confirmed.recv_timeout(PATIENCE).expect("a confirmation");
        assert_eq!(outcome, Ok(()), "{token}");
        token
    };
    let submit = |operation, token| writer.try_submit(vec![(operation, Some(token))]);
    writer.try_submit((1..=5).map(|number| (worker_insert(number), Some(number))).collect()).expect("space");
    assert_eq!([1, 2, 3, 4, 5].map(|_| next_confirmed()), [1, 2, 3, 4, 5]);
    const EACH: usize = 40 << 20;
    let payload = bytes::Bytes::from(large(EACH));
    let finish = |number| {
        let (id, payload) = (id(number), payload.clone());
        WorkerOperation::Finish { id, state: WorkerState::Completed, at: NOW, payload }
    };
    // Three of them are more than goes aside, and a fourth more than waits beside that.
    submit(finish(1), 11).expect("space");
    when.recv_timeout(PATIENCE).expect("it is asked");
    for number in [2, 3] {
        submit(finish(number), 10 + number).expect("space");
        submit(worker_event(number, "behind"), 20 + number).expect("space");
        submit(worker_event(5, "news"), number).expect("space");
        go.send(()).expect("the thread waits");
        assert_eq!(next_confirmed(), number, "it waits for none of them");
        when.recv_timeout(PATIENCE).expect("it is asked");
    }
    let statistics = writer.statistics();
    assert_eq!(statistics.queued_operations, 5);
    assert!(statistics.queued_bytes > 3 * EACH as u64, "{statistics:?}");
    let refused = submit(finish(4), 14).expect_err("there is no room");
    submit(worker_event(5, "news"), 5).expect("there is some");
    drop(go);
    let confirmed: Vec<_> = (0..6).map(|_| next_confirmed()).filter(|token| *token != 5).collect();
    assert_eq!(confirmed, [11, 12, 22, 13, 23]);
    assert_eq!(writer.statistics().queued_bytes, 0);
    writer.try_submit(refused.into_operations()).expect("there is room again");
    assert_eq!(next_confirmed(), 14);
}

/// Tells what is applied: whether that is a new job, and how many bytes. It waits with what is more than a part of a result
/// until the test lets it.
struct Batches {
    told: Sender<(bool, usize)>,
    go: Receiver<()>,
}

impl Interference for Batches {
    fn apply(&mut self, operations: &[WorkerOperation]) -> Result<(), StoreError> {
        let bytes = operations.iter().map(Operation::bytes).sum();
        let begins = operations.iter().any(Operation::begins_a_job);
        self.told.send((begins, bytes)).expect("the test listens");
        if bytes > LARGE_BYTES {
            self.go.recv().ok();
        }
        Ok(())
    }
}

#[test]
fn what_waited_for_a_large_result_is_stored_in_batches_and_others_go_between_them() {
    use norfab_jobs::writer::BATCH_BYTES_MAX;
    const BEHIND: usize = 20;
    let (told, does) = channel();
    let (go, gate) = sync_channel(0);
    let (writer, confirmed) = spawned(move || Ok(Box::new(TestWorkerStore::new(Batches { told, go: gate }))));
    // It goes before the writer does, which waits for its thread.
    let go = go;
    let next = || does.recv_timeout(PATIENCE).expect("it does something");
    writer.try_submit(vec![(worker_insert(1), Some(1))]).expect("space");
    assert!(next().0);
    let body = bytes::Bytes::from(large(LARGE_BYTES));
    let mut operations = vec![(large_finish(1), Some(2))];
    let event = |token| (WorkerOperation::Event { id: id(1), body: body.clone() }, Some(token));
    operations.extend((0..BEHIND).map(|number| event(3 + number)));
    writer.try_submit(operations).expect("space");
    assert!((BYTES..BYTES + LARGE_BYTES).contains(&next().1), "the result itself");
    // What comes for its job meanwhile stays behind what waits for it.
    writer.try_submit(vec![(worker_insert(9), Some(99)), event(3 + BEHIND)]).expect("space");
    go.send(()).expect("the thread waits");
    assert!(next().0, "the new job");
    let mut batches = 0;
    let mut bytes = 0;
    while bytes < (BEHIND + 1) * LARGE_BYTES {
        let (_, of_batch) = next();
        assert!(of_batch < BATCH_BYTES_MAX + 2 * LARGE_BYTES, "{of_batch} bytes");
        go.send(()).expect("the thread waits");
        bytes += of_batch;
        batches += 1;
    }
    assert!(batches > 1);
    let tokens: Vec<_> =
        (0..BEHIND + 4).map(|_| confirmed.recv_timeout(PATIENCE).expect("a confirmation").token).collect();
    let expected: Vec<_> = [1, 2, 99].into_iter().chain(3..4 + BEHIND).collect();
    assert_eq!(tokens, expected);
}
