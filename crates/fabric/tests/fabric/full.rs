//! What a worker says of its jobs while its disk is full.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use norfab_fabric::LinkState;
use norfab_fabric::worker::{OpenWorkerStore, WorkerHandle};
use norfab_jobs::testing::{Interference, TestWorkerStore};
use norfab_jobs::{MemoryWorkerStore, Store, StoreError, WorkerJob, WorkerOperation, WorkerState};
use norfab_protocol::frame::Status;
use norfab_protocol::message::{BrokerToWorker, Delivery, WorkerMessage};
use norfab_protocol::{Identity, JobId, TaskName};
use norfab_service::{EventDraft, NoInput, SendError, Service, Task, TaskContext};
use norfab_transport::{Context, Dealer, DealerOptions, LinkOptions, Router, RouterLink, RouterOptions};
use serde_json::json;

use crate::decision::{Bench, service, worker_options};
use crate::support::{broker_at, runtime};

/// What a test does to a store, and sees of it.
#[derive(Default)]
struct Switches {
    full: AtomicBool,
    ended: AtomicUsize,
    asked: AtomicUsize,
}

struct Switched(Arc<Switches>);

/// What was noted last cannot be read without space, either.
struct FullFromTheStart(Arc<Switches>);

impl Interference for FullFromTheStart {
    fn unfinished(&mut self) -> Result<(), StoreError> {
        self.0.asked.fetch_add(1, Ordering::SeqCst);
        Switched(Arc::clone(&self.0)).apply(&[])
    }
}

impl Interference for Switched {
    fn apply(&mut self, operations: &[WorkerOperation]) -> Result<(), StoreError> {
        if self.0.full.load(Ordering::SeqCst) {
            return Err(StoreError::DiskFull { path: PathBuf::from("jobs.db") });
        }
        let ends = operations.iter().filter(|one| matches!(one, WorkerOperation::Finish { .. })).count();
        self.0.ended.fetch_add(ends, Ordering::SeqCst);
        Ok(())
    }
}

/// A worker whose disk is full when so many of its tasks have begun; each tells so many events then and returns so many bytes.
fn bench(switches: &Arc<Switches>, tasks: usize, events: usize, bytes: usize) -> Bench {
    let begun = Arc::new(tokio::sync::Barrier::new(tasks));
    let of_task = Arc::clone(switches);
    let task = Task::new("t", "Fills the disk.", move |context: TaskContext, NoInput {}| {
        let (begun, switches) = (Arc::clone(&begun), Arc::clone(&of_task));
        async move {
            begun.wait().await;
            switches.full.store(true, Ordering::SeqCst);
            for _ in 0..events {
                while let Err(SendError::QueueFull(_)) = context.event(EventDraft::new("news")).await {}
            }
            Ok(json!("x".repeat(bytes)))
        }
    });
    let of_store = Arc::clone(switches);
    let mut bench = Bench::with(service(task), |options| {
        options.store = Box::new(move || Ok(Box::new(TestWorkerStore::new(Switched(of_store)))));
    });
    bench.expect_ready();
    bench
}

fn tell(bench: &mut Bench, command: impl Fn(Delivery) -> BrokerToWorker, job: &str) {
    let delivery = Delivery {
        client: norfab_protocol::Identity::parse("c").expect("a name"),
        job: JobId::parse(job).expect("a name"),
        body: json!({ "task": "t" }).to_string().into(),
    };
    bench.router.try_send(b"w1", &command(delivery).encode()).expect("room");
}

fn next_status(bench: &mut Bench) -> Status {
    loop {
        if let WorkerMessage::Response(reply) = bench.next() {
            return reply.status;
        }
    }
}

#[test]
fn a_result_that_finds_no_space_is_sent_and_whoever_comes_back_for_it_gets_it_again() {
    runtime().block_on(async {
        let switches = Arc::new(Switches::default());
        let mut bench = bench(&switches, 1, 0, 10);
        bench.post("1", "t");
        assert_eq!(next_status(&mut bench), Status::ACCEPTED);
        assert_eq!(next_status(&mut bench), Status::OK, "it is sent");
        for again in [BrokerToWorker::Get, BrokerToWorker::Post, BrokerToWorker::Delete] {
            tell(&mut bench, again, "1");
            assert_eq!(next_status(&mut bench), Status::OK, "nothing else is known of it in the database");
        }
        assert_eq!(switches.ended.load(Ordering::SeqCst), 0);
        switches.full.store(false, Ordering::SeqCst);
        crate::support::eventually("it is stored by itself", async || switches.ended.load(Ordering::SeqCst) == 1).await;
        tell(&mut bench, BrokerToWorker::Get, "1");
        assert_eq!(next_status(&mut bench), Status::OK);
    });
}

#[test]
fn without_space_new_jobs_are_refused_with_the_reason_and_taken_again_when_there_is_some() {
    runtime().block_on(async {
        let switches = Arc::new(Switches::default());
        let mut bench = bench(&switches, 1, 0, 10);
        switches.full.store(true, Ordering::SeqCst);
        bench.post("1", "t");
        let refusal = loop {
            if let WorkerMessage::Response(reply) = bench.next() {
                break reply;
            }
        };
        let told: serde_json::Value = serde_json::from_slice(&refusal.payload).expect("JSON");
        assert_eq!((refusal.status, &told["retry"]), (Status::REFUSED, &json!(true)), "{told}");
        assert!(told["error"].as_str().is_some_and(|error| error.contains("cannot store the job")), "{told}");
        // It goes on serving: that it does not have the job is an answer, too.
        tell(&mut bench, BrokerToWorker::Get, "1");
        assert_eq!(next_status(&mut bench), Status::NOT_FOUND);
        switches.full.store(false, Ordering::SeqCst);
        bench.post("1", "t");
        assert_eq!(next_status(&mut bench), Status::ACCEPTED);
        assert_eq!(next_status(&mut bench), Status::OK);
    });
}

#[test]
fn an_end_for_which_the_store_had_no_place_either_is_stored_when_there_is_space() {
    runtime().block_on(async {
        let switches = Arc::new(Switches::default());
        // More changes than wait for space.
        let mut bench = bench(&switches, 1, 9000, 10);
        bench.post("1", "t");
        assert_eq!(next_status(&mut bench), Status::ACCEPTED);
        assert_eq!(next_status(&mut bench), Status::OK, "it is sent");
        tell(&mut bench, BrokerToWorker::Get, "1");
        assert_eq!(next_status(&mut bench), Status::OK, "and kept");
        assert_eq!(switches.ended.load(Ordering::SeqCst), 0);
        switches.full.store(false, Ordering::SeqCst);
        crate::support::eventually("it is stored by itself", async || switches.ended.load(Ordering::SeqCst) == 1).await;
    });
}

#[test]
fn of_a_job_whose_end_is_in_no_database_and_not_in_memory_nobody_is_told_that_it_runs() {
    runtime().block_on(async {
        let switches = Arc::new(Switches::default());
        let mut bench = bench(&switches, 2, 0, 40 << 20);
        for job in ["1", "2"] {
            bench.post(job, "t");
        }
        let answers = [(); 4].map(|()| next_status(&mut bench));
        assert_eq!(answers.iter().filter(|status| **status == Status::OK).count(), 2, "{answers:?}");
        // One of them is kept, the other one is more than the bound. What is looked up is answered in order.
        for job in ["1", "2", "unknown"] {
            tell(&mut bench, BrokerToWorker::Get, job);
        }
        let answers = [(); 2].map(|()| next_status(&mut bench));
        assert_eq!(answers, [Status::OK, Status::NOT_FOUND]);
    });
}

#[test]
fn an_end_that_the_store_gave_up_is_stored_when_the_worker_stops_if_there_is_space_by_then() {
    runtime().block_on(async {
        let switches = Arc::new(Switches::default());
        let of_task = Arc::clone(&switches);
        let task = Task::new("t", "Has more to say than is kept.", move |context: TaskContext, NoInput {}| {
            let switches = Arc::clone(&of_task);
            async move {
                switches.full.store(true, Ordering::SeqCst);
                for _ in 0..norfab_jobs::writer::QUEUE_OPERATIONS_MAX {
                    // There is room as fast as the test takes them.
                    while context.event("more").await.is_err() {}
                }
                Ok("done")
            }
        });
        let of_store = Arc::clone(&switches);
        let mut bench = Bench::with(service(task), |options| {
            options.store = Box::new(move || Ok(Box::new(TestWorkerStore::new(Switched(of_store)))));
        });
        bench.expect_ready();
        bench.post("1", "t");
        assert_eq!(next_status(&mut bench), Status::ACCEPTED);
        assert_eq!(next_status(&mut bench), Status::OK, "it is sent");
        switches.full.store(false, Ordering::SeqCst);
        bench.worker.stop(Duration::ZERO).await;
        assert_eq!(switches.ended.load(Ordering::SeqCst), 1);
    });
}

/// A worker whose disk is full when it begins, and which has a job of the process before it.
fn begun_on_a_full_disk(switches: &Arc<Switches>) -> Bench {
    let (service, store) = full_from_the_start(switches);
    Bench::with(service, move |options| options.store = store)
}

fn full_from_the_start(switches: &Arc<Switches>) -> (Service, OpenWorkerStore) {
    switches.full.store(true, Ordering::SeqCst);
    let mut store = MemoryWorkerStore::new();
    let job = WorkerJob {
        id: JobId::parse("1").expect("a name"),
        client: Identity::parse("c").expect("a name"),
        task: TaskName::parse("t").expect("a name"),
        state: WorkerState::Pending,
        timeout: 60,
        body: json!({ "task": "t", "timeout": 60 }).to_string().into(),
        received: 0.0,
        deadline: f64::from(u32::MAX),
        started: None,
        finished: None,
        attempts: 0,
    };
    store.apply(&[WorkerOperation::Insert(job)]).expect("memory");
    let of_store = FullFromTheStart(Arc::clone(switches));
    let task = Task::new("t", "", async |_: TaskContext, NoInput {}| Ok(json!(1)));
    (service(task), Box::new(move || Ok(Box::new(TestWorkerStore::over(store, of_store)))))
}

#[test]
fn a_worker_that_begins_on_a_full_disk_is_there_when_it_knows_its_jobs() {
    runtime().block_on(async {
        let switches = Arc::new(Switches::default());
        let mut bench = begun_on_a_full_disk(&switches);
        crate::support::eventually("it tries again", async || switches.asked.load(Ordering::SeqCst) > 1).await;
        assert!(bench.router.try_receive().expect("a link").is_none(), "nobody gives it jobs");
        switches.full.store(false, Ordering::SeqCst);
        bench.expect_ready();
        assert_eq!(next_status(&mut bench), Status::OK, "the job of the process before it has run");
    });
}

#[test]
fn a_worker_that_waits_for_space_to_begin_can_be_stopped() {
    runtime().block_on(async {
        let switches = Arc::new(Switches::default());
        let bench = begun_on_a_full_disk(&switches);
        crate::support::eventually("it waits", async || switches.asked.load(Ordering::SeqCst) > 0).await;
        bench.worker.stop(Duration::ZERO).await;
        assert!(switches.full.load(Ordering::SeqCst));
    });
}

#[test]
fn a_worker_that_has_waited_for_space_to_begin_does_not_take_its_broker_for_frozen() {
    runtime().block_on(async {
        let context = Context::new();
        // Less time for a handshake than it waits.
        let link = LinkOptions { handshake_timeout: Duration::from_millis(700), ..LinkOptions::default() };
        let options = RouterOptions { link: link.clone(), ..RouterOptions::default() };
        let broker = broker_at(Router::bind(&context, "tcp://127.0.0.1:*", options).expect("a router"));
        let options = DealerOptions { link, keys: None };
        let dealer = Dealer::connect(&context, broker.endpoint(), b"w1", options).expect("a dealer");
        let switches = Arc::new(Switches::default());
        let (service, store) = full_from_the_start(&switches);
        let mut options = worker_options(service, Box::new(dealer));
        options.store = store;
        let worker = WorkerHandle::start(options).expect("a worker");
        let mut state = worker.state();
        crate::support::eventually("it tries again", async || switches.asked.load(Ordering::SeqCst) > 2).await;
        switches.full.store(false, Ordering::SeqCst);
        state.changed().await.expect("a worker");
        assert_eq!(*state.borrow(), LinkState::Connected, "the first that it says");
        worker.stop(Duration::ZERO).await;
        broker.stop().await;
    });
}
