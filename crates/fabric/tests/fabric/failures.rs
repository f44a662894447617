//! What a role does when a part of it, or of its host, fails.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, sync_channel};
use std::time::{Duration, Instant};

use bytes::Bytes;
use norfab_fabric::broker::BrokerInformation;
use norfab_fabric::client::{JobSpec, SubmitError};
use norfab_jobs::{ClientJobFilter, MemoryClientStore, QueryError, StoreError};
use norfab_protocol::broker::BrokerConfig;
use norfab_protocol::client::JobUpdate;
use norfab_protocol::frame::Command;
use norfab_protocol::message::{BrokerToWorker, ClientCommand, ClientMessage, WorkerMessage};
use norfab_protocol::target::Target;
use norfab_protocol::{JobId, KeepaliveConfig, ServiceName};
use norfab_service::{NoInput, Task, TaskContext};
use norfab_transport::memory::{MemoryNetwork, MemoryRouter};
use norfab_transport::{LinkError, Ready, Received, RouterLink, SendError, Waker};
use serde_json::{Map, Value, json};

use crate::decision::{Bench, Player, service};
use crate::hooked::{Hooked, Hooks, client_at, client_with_room};
use crate::support::{Fabric, Information, broker_with, kwargs, management, runtime, spec};

/// Longest that a test waits for what must come.
const PATIENCE: Duration = Duration::from_secs(20);

struct Panics;

impl BrokerInformation for Panics {
    fn worker_inventory(&self, _: &str) -> Result<Option<Value>, String> {
        panic!("a file that nobody expected");
    }
    fn inventory(&self) -> Result<Value, String> {
        Ok(json!({"still": "here"}))
    }
    fn logs(&self, _: &Map<String, Value>) -> Result<Vec<Value>, String> {
        Ok(Vec::new())
    }
    fn status(&self) -> Value {
        json!({})
    }
}

#[test]
fn a_broker_whose_information_panics_says_so_and_answers_the_next_question() {
    runtime().block_on(async {
        let network = MemoryNetwork::new();
        let router = network.router("broker").expect("a router");
        let broker = broker_with(router, BrokerConfig::default(), Arc::new(Panics));
        let client = client_at(&network, MemoryClientStore::default());
        let inventory = ServiceName::parse("sid.service.broker").expect("a name");
        let answer = client.management(inventory, "get_inventory", kwargs(json!({"name": "w"})), PATIENCE).await;
        assert_eq!(answer.expect("room").status.code(), 500);
        let answer = client.management(management(), "show_broker_inventory", Map::new(), PATIENCE).await;
        assert_eq!(answer.expect("room").results, json!({"still": "here"}));
        client.stop().await;
        broker.stop().await;
    });
}

/// A socket whose owner is held up once, as when its host is suspended.
struct Stalling {
    router: MemoryRouter,
    stall: Arc<AtomicBool>,
    time: Duration,
}

impl RouterLink for Stalling {
    fn try_send(&mut self, peer: &[u8], frames: &[Bytes]) -> Result<(), SendError> {
        self.router.try_send(peer, frames)
    }
    fn try_receive(&mut self) -> Result<Option<Received>, LinkError> {
        self.router.try_receive()
    }
    fn wait(&mut self, timeout: Option<Duration>) -> Result<Ready, LinkError> {
        let ready = self.router.wait(timeout);
        if self.stall.swap(false, Ordering::SeqCst) {
            std::thread::sleep(self.time);
        }
        ready
    }
    fn waker(&self) -> Waker {
        self.router.waker()
    }
    fn endpoint(&self) -> String {
        self.router.endpoint()
    }
    fn close(self: Box<Self>, linger: Duration) {
        Box::new(self.router).close(linger);
    }
}

#[test]
fn a_broker_that_was_held_up_gives_nobody_up_whose_beats_it_has_not_read() {
    let network = MemoryNetwork::new();
    let stall = Arc::new(AtomicBool::new(false));
    let keepalive = KeepaliveConfig { interval: Duration::from_millis(200), multiplier: 3 };
    let router = network.router("broker").expect("a router");
    let link = Stalling { router, stall: Arc::clone(&stall), time: keepalive.hold_time() * 2 };
    let broker = broker_with(link, BrokerConfig { keepalive, ..BrokerConfig::default() }, Arc::new(Information));
    let service = ServiceName::parse("s").expect("a name");
    let (mut worker, mut client) =
        (Player::with_room(&network, "w1", 10_000), Player::with_room(&network, "c", 10_000));
    let request = |command, job: &str| {
        let job = JobId::parse(job).expect("a name");
        let body = Bytes::from_static(br#"{"task":"t"}"#);
        ClientMessage { command, service: service.clone(), target: Target::All, job, body }.encode()
    };
    worker.say(&WorkerMessage::Ready(service.clone()).encode());
    client.say(&request(ClientCommand::Post, "1"));
    let posted = |frames: &[Bytes]| BrokerToWorker::decode(frames).ok();
    while !matches!(worker.next(posted), BrokerToWorker::Post(_)) {}
    // More than is read at once comes before the worker's beat.
    stall.store(true, Ordering::SeqCst);
    for _ in 0..3000 {
        client.say(&request(ClientCommand::Open, "1"));
    }
    worker.say(&WorkerMessage::Keepalive(service.clone()).encode());
    client.say(&request(ClientCommand::Post, "2"));
    loop {
        match worker.next(posted) {
            BrokerToWorker::Keepalive(_) => {}
            BrokerToWorker::Post(delivery) => break assert_eq!(delivery.job.as_str(), "2"),
            other => panic!("it was given up: {other:?}"),
        }
    }
    runtime().block_on(broker.stop());
}

struct NoDisk;

impl Hooks for NoDisk {
    fn apply(&mut self) -> Result<(), StoreError> {
        panic!("no disk");
    }
}

#[test]
fn a_client_whose_store_ends_ends_too_and_nobody_waits_for_it() {
    runtime().block_on(async {
        let store = MemoryClientStore::default();
        let client = client_at(&MemoryNetwork::new(), Hooked { store, hooks: NoDisk });
        let submitted = tokio::time::timeout(PATIENCE, client.submit(spec("ok"))).await;
        assert!(submitted.expect("an answer").is_err());
        let again = tokio::time::timeout(PATIENCE, client.submit(spec("ok"))).await;
        assert!(matches!(again.expect("an answer"), Err(SubmitError::Queue(_))));
    });
}

/// Lists nothing before the other end is dropped.
struct Gate(Receiver<()>);

impl Hooks for Gate {
    fn list(&mut self) {
        // Nothing is ever sent.
        self.0.recv().ok();
    }
}

#[test]
fn a_question_to_a_store_that_has_too_many_gets_the_reason() {
    runtime().block_on(async {
        let (open, gate) = sync_channel::<()>(0);
        let store = MemoryClientStore::default();
        let client = client_at(&MemoryNetwork::new(), Hooked { store, hooks: Gate(gate) });
        let (told, mut answers) = tokio::sync::mpsc::channel(16);
        // As many as the thread may have taken already, as many as may wait, and one.
        for _ in 0..2 * norfab_jobs::writer::QUEUE_QUERIES_MAX + 1 {
            let (client, told) = (client.clone(), told.clone());
            tokio::spawn(async move { told.send(client.jobs(ClientJobFilter::default()).await).await });
        }
        drop(told);
        let mut refused = 0;
        let mut open = Some(open);
        while let Some(answer) = tokio::time::timeout(PATIENCE, answers.recv()).await.expect("answers") {
            match answer.expect("the client runs") {
                Err(StoreError::Query(QueryError::Full)) => {
                    refused += 1;
                    open = None;
                }
                other => assert!(open.is_none() && other.is_ok(), "{other:?}"),
            }
        }
        assert!(refused > 0);
        client.stop().await;
    });
}

#[test]
fn a_result_beyond_the_limit_of_a_worker_that_says_nothing_of_it_is_replaced() {
    runtime().block_on(async {
        let mut fabric = Fabric::start();
        fabric.worker("w1").await;
        let client = fabric.client("c").await;
        let mut job = spec("big");
        job.kwargs = kwargs(json!({"bytes": (64 << 20) + 1}));
        let report = client.run(job).await.expect("taken");
        let result = report.results().into_values().next().expect("one");
        assert!(result.failed && result.errors[0].contains("67108864"), "{:?}", result.errors);
        assert!(client.run(spec("ok")).await.expect("taken").succeeded(), "it goes on");
        fabric.stop().await;
    });
}

#[test]
fn a_result_beyond_what_fits_into_a_message_is_replaced_whatever_the_inventory_says() {
    runtime().block_on(async {
        let huge = Task::new("huge", "", async |_: TaskContext, NoInput {}| Ok(json!("x".repeat(129 << 20))));
        let mut bench = Bench::with(service(huge), |options| options.result_bytes_max = usize::MAX);
        bench.expect_ready();
        bench.post("1", "huge");
        let payload = loop {
            if let WorkerMessage::Response(reply) = bench.next()
                && reply.status.code() == 200
            {
                break reply.payload;
            }
        };
        assert!(payload.len() < 4096, "{} bytes", payload.len());
        let result: Value = serde_json::from_slice(&payload).expect("JSON");
        let result = &result["w1"];
        assert!(result["errors"].to_string().contains("result_bytes_max"), "{result}");
        // How the task ended is kept.
        assert_eq!((&result["failed"], &result["status"]), (&json!(true), &json!("completed")), "{result}");
        assert_eq!(result["messages"], json!(["the task itself succeeded, only its result is missing"]));
    });
}

#[test]
fn who_begins_to_follow_a_job_is_told_its_open_questions() {
    runtime().block_on(async {
        let mut fabric = Fabric::start();
        fabric.worker("w1").await;
        let client = fabric.client("c").await;
        let mut job = client.submit(spec("ask")).await.expect("taken");
        while !matches!(job.next().await.expect("news"), JobUpdate::Question(..)) {}
        let mut followed = client.watch(job.id().clone()).await.expect("room").expect("it is unfinished");
        let news = tokio::time::timeout(PATIENCE, followed.next()).await.expect("at once");
        assert!(matches!(news, Some(JobUpdate::Question(..))), "{news:?}");
        job.cancel("the test", None).await.expect("room");
        fabric.stop().await;
    });
}

#[test]
fn a_post_that_waits_to_leave_when_the_connection_is_lost_is_decided_anew_on_the_next_one() {
    runtime().block_on(async {
        let network = MemoryNetwork::new();
        let router = network.router("broker").expect("a router");
        // One message leaves; the next one waits, as nobody reads.
        let client = client_with_room(&network, 1, MemoryClientStore::default());
        let mut jobs = Vec::new();
        for id in ["left", "waits"] {
            let id = JobId::parse(id).expect("a name");
            // It is posted in the turn in which it is taken.
            jobs.push(client.submit(JobSpec { id: Some(id), ..spec("t") }).await.expect("taken"));
        }
        drop(router);
        let mut router = network.router("broker").expect("a router");
        let end = Instant::now() + PATIENCE;
        let mut about: Vec<(Command, String, Value)> = Vec::new();
        // The first may be with a worker: all are asked who has it, together with whatever else may be with one.
        let asks = |(command, job, body): &(Command, String, Value)| {
            *command == Command::Get && (job == "left" || body.to_string().contains("left"))
        };
        while !about.last().is_some_and(asks) {
            assert!(Instant::now() < end, "{about:?}");
            match router.try_receive().expect("a link") {
                Some(Received { frames, .. }) => {
                    let command = Command::from_frame(&frames[2]).expect("a command");
                    let body: Value = serde_json::from_slice(&frames[6]).expect("JSON");
                    about.push((command, String::from_utf8_lossy(&frames[5]).into_owned(), body));
                }
                None => tokio::time::sleep(Duration::from_millis(5)).await,
            }
        }
        let (first, question) = (&about[0], &about[about.len() - 1]);
        assert_eq!((first.0, &*first.1, &first.2["again"]), (Command::Post, "waits", &Value::Null), "{about:?}");
        assert!(!question.2.to_string().contains("waits"), "{about:?}");
        client.stop().await;
    });
}

#[test]
fn a_job_that_is_cancelled_before_its_post_has_left_ends_at_once_where_there_is_no_connection() {
    runtime().block_on(async {
        let network = MemoryNetwork::new();
        let router = network.router("broker").expect("a router");
        // One message leaves; the next one waits, as nobody reads.
        let client = client_with_room(&network, 1, MemoryClientStore::default());
        client.submit(spec("t")).await.expect("taken");
        let job = client.submit(spec("t")).await.expect("taken");
        let mut state = client.state();
        drop(router);
        state.wait_for(|state| *state != norfab_fabric::LinkState::Connected).await.expect("an owner");
        let id = job.id().clone();
        assert!(job.cancel("me", None).await.expect("room"));
        job.wait().await;
        let row = client.job(id).await.expect("room").expect("a store").expect("a row").job;
        assert_eq!(row.state, norfab_jobs::ClientState::Cancelled, "nobody is to be told: it never left");
        client.stop().await;
    });
}
