//! Jobs that end while others are read back from the database, and while it cannot be written.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use norfab_fabric::client::{ClientHandle, ClientOptions, LookUpError};
use norfab_jobs::{
    ClientJob, ClientJobDetails, ClientJobFilter, ClientOperation, ClientState, ClientStore, MemoryClientStore,
    Outcome, Page, PageEnd, Pruned, QueryError, Retention, SetAside, Statistics, Store, StoreError, UnreadableJob,
};
use norfab_protocol::client::{ClientConfig, JobState};
use norfab_protocol::{Identity, JobId};
use norfab_transport::memory::MemoryNetwork;
use tokio::task::JoinSet;

use crate::support::{eventually, runtime, spec};

/// More than are held in memory.
const JOBS: usize = 4100;

/// As many end, so that there is room for a page.
const ENDED: usize = 600;

/// Submissions at the same time.
const AT_ONCE: usize = 128;

/// What a test does to a store, and sees of it.
#[derive(Default)]
struct Switches {
    /// Nothing can be written.
    full: AtomicBool,
    /// Writes that failed.
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

struct Switched {
    store: MemoryClientStore,
    switches: Arc<Switches>,
}

impl Store for Switched {
    type Operation = ClientOperation;
    fn apply(&mut self, operations: &[ClientOperation]) -> Result<Vec<Outcome>, StoreError> {
        if self.switches.full.load(Ordering::SeqCst) {
            self.switches.failed.fetch_add(1, Ordering::SeqCst);
            return Err(StoreError::DiskFull { path: PathBuf::from("jobs.db") });
        }
        self.store.apply(operations)
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

impl ClientStore for Switched {
    fn unfinished(&mut self, after: Option<PageEnd>, limit: usize) -> Result<Page<ClientJob>, StoreError> {
        let mut page = self.store.unfinished(after, limit)?;
        if let Some(unreadable) = &*self.switches.unreadable.lock().expect("no panic") {
            for job in page.jobs.extract_if(.., |job| job.id == *unreadable) {
                let error = StoreError::Row { path: PathBuf::from("jobs.db"), error: "no state".to_owned() };
                page.unreadable.push(UnreadableJob { id: Some(job.id), error });
            }
        }
        self.switches.has_read();
        Ok(page)
    }
    fn late(&mut self, before: f64, limit: usize) -> Result<Page<ClientJob>, StoreError> {
        let page = self.store.late(before, limit);
        self.switches.has_read();
        page
    }
    fn job(&mut self, id: &JobId) -> Result<Option<ClientJobDetails>, StoreError> {
        self.store.job(id)
    }
    fn last_number(&mut self) -> Result<Option<u64>, StoreError> {
        self.store.last_number()
    }
    fn number(&mut self, id: &JobId) -> Result<Option<u64>, StoreError> {
        self.store.number(id)
    }
    fn list(&mut self, filter: &ClientJobFilter) -> Result<Vec<ClientJob>, StoreError> {
        self.store.list(filter)
    }
    fn statistics(&mut self) -> Result<Statistics<ClientState>, StoreError> {
        self.store.statistics()
    }
}

fn id(number: usize) -> JobId {
    JobId::parse(&format!("{number:032x}")).expect("a name")
}

/// A client without a broker.
fn client_with(store: MemoryClientStore) -> (ClientHandle, Arc<Switches>) {
    let switches = Arc::new(Switches::default());
    let of_store = Arc::clone(&switches);
    let identity = Identity::parse("c").expect("a name");
    let options = ClientOptions {
        link: Box::new(MemoryNetwork::new().dealer("broker", identity.as_str().as_bytes(), 1000).expect("a dealer")),
        identity,
        config: ClientConfig::default(),
        store: Box::new(move || Ok(Box::new(Switched { store, switches: of_store }) as Box<dyn ClientStore>)),
    };
    (ClientHandle::start(options).expect("a client"), switches)
}

/// As above, with more jobs than it holds in memory.
async fn client_with_jobs() -> (ClientHandle, Arc<Switches>) {
    let (client, switches) = client_with(MemoryClientStore::default());
    let mut submissions = JoinSet::new();
    for number in 0..JOBS {
        let client = client.clone();
        submissions.spawn(async move {
            let mut spec = spec("ok");
            (spec.id, spec.timeout) = (Some(id(number)), Duration::from_secs(600));
            client.submit(spec).await.map(drop)
        });
        if submissions.len() == AT_ONCE {
            submissions.join_next().await.expect("one").expect("no panic").expect("it is taken");
        }
    }
    while let Some(taken) = submissions.join_next().await {
        taken.expect("no panic").expect("it is taken");
    }
    (client, switches)
}

async fn unfinished(client: &ClientHandle) -> usize {
    client.statistics().await.expect("the client runs")["unfinished_jobs"].as_u64().expect("a number") as usize
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
        let stored = |number: usize| {
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
        };
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
