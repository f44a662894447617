//! Jobs that end while others are read back from the database, and while it cannot be written.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use norfab_fabric::client::{ClientHandle, LookUpError};
use norfab_jobs::{
    ClientJob, ClientJobFilter, ClientOperation, ClientState, MemoryClientStore, Page, QueryError, Store, StoreError,
    UnreadableJob,
};
use norfab_protocol::JobId;
use norfab_protocol::client::JobState;
use norfab_transport::memory::MemoryNetwork;

use crate::hooked::{Hooked, Hooks, client_at};
use crate::many::{id, submit_all, unfinished};
use crate::support::{eventually, runtime, spec};

/// More than are held in memory.
const JOBS: usize = 4100;

/// As many end, so that there is room for a page.
const ENDED: usize = 600;

/// What a test does to a store, and sees of it.
#[derive(Default)]
struct Switches {
    /// Nothing can be written.
    full: AtomicBool,
    /// Nor read, as what was noted last needs space for that.
    full_to_read: AtomicBool,
    /// Writes, and such reads, that failed.
    failed: AtomicUsize,
    /// Pages that were read.
    read: AtomicUsize,
    /// Tells that a page was read, and holds it back until the other end is dropped.
    gate: Mutex<Option<(SyncSender<()>, Receiver<()>)>>,
    /// A job that cannot be read.
    unreadable: Mutex<Option<JobId>>,
}

impl Switches {
    fn has_read(&self) {
        self.read.fetch_add(1, Ordering::SeqCst);
        if let Some((told, open)) = self.gate.lock().expect("no panic").take() {
            told.send(()).expect("the test listens");
            open.recv().expect_err("nothing is sent");
        }
    }
}

impl Hooks for Arc<Switches> {
    fn apply(&mut self) -> Result<(), StoreError> {
        if !self.full.load(Ordering::SeqCst) {
            return Ok(());
        }
        self.failed.fetch_add(1, Ordering::SeqCst);
        Err(StoreError::DiskFull { path: PathBuf::from("jobs.db") })
    }
    fn reads(&mut self) -> Result<(), StoreError> {
        if self.full_to_read.load(Ordering::SeqCst) { self.apply() } else { Ok(()) }
    }
    fn unfinished(&mut self, page: &mut Page<ClientJob>) {
        if let Some(unreadable) = &*self.unreadable.lock().expect("no panic") {
            for job in page.jobs.extract_if(.., |job| job.id == *unreadable) {
                let error = StoreError::Row { path: PathBuf::from("jobs.db"), error: "no state".to_owned() };
                page.unreadable.push(UnreadableJob { id: Some(job.id), error });
            }
        }
        self.has_read();
    }
    fn late(&mut self) {
        self.has_read();
    }
}

/// A job of two hours that the process before this one was given.
fn new_job(number: usize, submitted: f64) -> ClientOperation {
    let spec = spec("ok");
    ClientOperation::Insert(ClientJob {
        id: id(number),
        service: spec.service,
        task: spec.task,
        target: "any".to_owned(),
        body: bytes::Bytes::from_static(b"{}"),
        timeout: 7200,
        submitted: submitted + number as f64 / 1000.0,
        deadline: submitted + 7200.0,
        state: ClientState::New,
        dispatched: Vec::new(),
        started: Vec::new(),
        completed: Vec::new(),
        errors: Vec::new(),
        finished: None,
    })
}

/// A client without a broker.
fn client_with(store: MemoryClientStore) -> (ClientHandle, Arc<Switches>) {
    let hooks = Arc::new(Switches::default());
    let switches = Arc::clone(&hooks);
    (client_at(&MemoryNetwork::new(), Hooked { store, hooks }), switches)
}

/// As above, with more jobs than it holds in memory.
async fn client_with_jobs() -> (ClientHandle, Arc<Switches>) {
    let (client, switches) = client_with(MemoryClientStore::default());
    submit_all(&client, JOBS, Duration::from_secs(600)).await;
    (client, switches)
}

/// Ends jobs that are held in memory: the first that were submitted but for the very first.
async fn end_some(client: &ClientHandle) {
    for number in 1..=ENDED {
        assert_eq!(client.cancel(id(number), "tester", None).await, Ok(true));
    }
}

#[test]
fn a_job_that_ends_while_it_is_read_back_does_not_begin_again() {
    runtime().block_on(async {
        let (client, switches) = client_with_jobs().await;
        let (told, has_read) = sync_channel(1);
        let (open, gate) = sync_channel(0);
        *switches.gate.lock().expect("no panic") = Some((told, gate));
        end_some(&client).await;
        // A page that has the first job, as one that has not ended, is on its way.
        has_read.recv().expect("a page is read");
        assert_eq!(client.cancel(id(0), "tester", None).await, Ok(true));
        drop(open);
        let passes = switches.read.load(Ordering::SeqCst) + 2;
        eventually("the page was looked at", async || switches.read.load(Ordering::SeqCst) >= passes).await;
        eventually("all that waited are back", async || unfinished(&client).await == JOBS - ENDED - 1).await;
        assert!(client.watch(id(0)).await.expect("an answer").is_none(), "it has ended");
        client.stop().await;
    });
}

#[test]
fn jobs_whose_ends_a_full_disk_keeps_from_being_stored_do_not_begin_again() {
    runtime().block_on(async {
        let (client, switches) = client_with_jobs().await;
        switches.full.store(true, Ordering::SeqCst);
        let read = switches.read.load(Ordering::SeqCst);
        end_some(&client).await;
        eventually("it was tried", async || switches.failed.load(Ordering::SeqCst) >= 3).await;
        eventually("all of them have ended", async || unfinished(&client).await == JOBS - ENDED).await;
        assert_eq!(switches.read.load(Ordering::SeqCst), read, "rows that say too little are not read");
        let watched = client.watch(id(1)).await.map(|watched| watched.is_some());
        assert_eq!(watched, Err(LookUpError::Store(StoreError::Query(QueryError::Behind))));

        switches.full.store(false, Ordering::SeqCst);
        eventually("it goes on", async || switches.read.load(Ordering::SeqCst) > read + 1).await;
        eventually("all that waited are back", async || unfinished(&client).await == JOBS - ENDED).await;
        assert!(client.watch(id(1)).await.expect("an answer").is_none(), "it has ended");
        let ended = ClientJobFilter { state: Some(ClientState::Cancelled), ..ClientJobFilter::default() };
        assert_eq!(client.jobs(ended).await.expect("the client runs").expect("they can be read").len(), ENDED);
        client.stop().await;
    });
}

#[test]
fn a_job_that_finds_no_space_is_an_error_at_once_and_the_next_one_is_taken_when_there_is_some() {
    runtime().block_on(async {
        let (client, switches) = client_with(MemoryClientStore::default());
        switches.full.store(true, Ordering::SeqCst);
        let asked = Instant::now();
        let refused = client.run(spec("ok")).await.expect_err("it is in no database").to_string();
        assert!(refused.contains("could not be stored and was not sent"), "{refused}");
        assert!(refused.contains("jobs.db"), "it says where: {refused}");
        assert!(asked.elapsed() < Duration::from_secs(5), "nobody waits for space: {:?}", asked.elapsed());
        assert_eq!(unfinished(&client).await, 0);
        switches.full.store(false, Ordering::SeqCst);
        client.submit(spec("ok")).await.expect("there is space");
        assert_eq!(unfinished(&client).await, 1);
        client.stop().await;
    });
}

#[test]
fn who_follows_a_job_that_cannot_be_read_back_is_told() {
    runtime().block_on(async {
        let (client, switches) = client_with_jobs().await;
        let mut waiting = spec("ok");
        waiting.id = Some(id(JOBS));
        let waiting = client.submit(waiting).await.expect("it is taken");
        *switches.unreadable.lock().expect("no panic") = Some(id(JOBS));
        end_some(&client).await;
        let report = waiting.wait().await;
        assert_eq!(report.state, JobState::Failed);
        assert!(report.errors[0].contains("cannot be read back"), "{:?}", report.errors);
        client.stop().await;
    });
}

#[test]
fn jobs_of_an_earlier_process_may_have_been_posted_although_the_clock_was_set_back() {
    runtime().block_on(async {
        // Submitted an hour from now, and later.
        let submitted = SystemTime::now().duration_since(UNIX_EPOCH).expect("it is later").as_secs_f64() + 3600.0;
        let stored = |number| new_job(number, submitted);
        let mut store = MemoryClientStore::default();
        let operations: Vec<_> = (0..JOBS).map(stored).collect();
        assert!(store.apply(&operations).expect("memory").iter().all(Result::is_ok));
        let (client, _) = client_with(store);
        // It waits in the database.
        assert_eq!(client.cancel(id(JOBS - 1), "tester", None).await, Ok(true));
        let cancelling = ClientJobFilter { state: Some(ClientState::Cancelling), ..ClientJobFilter::default() };
        let jobs = client.jobs(cancelling).await.expect("the client runs").expect("they can be read");
        assert_eq!(jobs.len(), 1, "whoever has it is told");
        client.stop().await;
    });
}

#[test]
fn jobs_that_cannot_be_read_on_a_full_disk_when_a_client_begins_are_read_when_there_is_space() {
    runtime().block_on(async {
        let submitted = SystemTime::now().duration_since(UNIX_EPOCH).expect("it is later").as_secs_f64();
        let mut store = MemoryClientStore::default();
        let operations: Vec<_> = (0..3).map(|number| new_job(number, submitted)).collect();
        assert!(store.apply(&operations).expect("memory").iter().all(Result::is_ok));
        let hooks = Arc::new(Switches::default());
        hooks.full.store(true, Ordering::SeqCst);
        hooks.full_to_read.store(true, Ordering::SeqCst);
        let switches = Arc::clone(&hooks);
        let client = client_at(&MemoryNetwork::new(), Hooked { store, hooks });
        eventually("it was tried again", async || switches.failed.load(Ordering::SeqCst) >= 2).await;
        switches.full.store(false, Ordering::SeqCst);
        eventually("they are held", async || unfinished(&client).await == 3).await;
        assert!(client.watch(id(2)).await.expect("an answer").is_some());
        client.stop().await;
    });
}

#[test]
fn a_job_of_a_client_that_began_on_a_full_disk_has_its_whole_time() {
    runtime().block_on(async {
        let submitted = SystemTime::now().duration_since(UNIX_EPOCH).expect("it is later").as_secs_f64();
        let mut store = MemoryClientStore::default();
        let left = store.apply(&[new_job(1, submitted)]).expect("memory");
        assert!(left.iter().all(Result::is_ok));
        let hooks = Arc::new(Switches::default());
        hooks.full.store(true, Ordering::SeqCst);
        hooks.full_to_read.store(true, Ordering::SeqCst);
        let switches = Arc::clone(&hooks);
        let client = client_at(&MemoryNetwork::new(), Hooked { store, hooks });
        // A second or so each: longer together than the job has.
        eventually("it was tried again", async || switches.failed.load(Ordering::SeqCst) >= 6).await;
        switches.full.store(false, Ordering::SeqCst);
        let mut spec = spec("ok");
        spec.timeout = Duration::from_secs(2);
        let began = Instant::now();
        let report = client.submit(spec).await.expect("there is space").wait().await;
        assert!(began.elapsed() >= Duration::from_millis(1500), "{:?}: {report:?}", began.elapsed());
        client.stop().await;
    });
}
