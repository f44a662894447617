//! What becomes of connections that are lost, stalled or full.

use std::sync::Arc;
use std::time::{Duration, Instant};

use norfab_fabric::LinkState;
use norfab_fabric::worker::WorkerHandle;
use norfab_protocol::KeepaliveConfig;
use norfab_protocol::message::{BrokerToWorker, Delivery, WorkerMessage};
use norfab_protocol::{Identity, JobId};
use norfab_service::{EventDraft, NoInput, SendError, Task, TaskContext};
use norfab_transport::{Context, Dealer, DealerOptions, LinkOptions, Router, RouterLink, RouterOptions};
use serde_json::json;

use crate::decision::{Bench, service, worker_options};
use crate::support::runtime;

/// Messages of tasks that may wait in the worker that has too much to say: more than what makes it stop to listen.
const MANY_MESSAGES: usize = 52_000;

/// Refusals in a row that show that nothing is on its way any more: each takes 100 ms.
const REFUSED_IN_A_ROW: u32 = 5;

fn idle() -> Task {
    Task::new("t", "", async |_: TaskContext, NoInput {}| Ok(json!(1)))
}

#[test]
fn a_worker_that_leaves_a_silent_broker_says_so_before_it_registers_again() {
    runtime().block_on(async {
        // Two beats in the hold time: it leaves before it would ask with READY.
        let keepalive = KeepaliveConfig { interval: Duration::from_millis(50), multiplier: 2 };
        let mut bench = Bench::with(service(idle()), |options| options.config.keepalive = keepalive);
        bench.expect_ready();
        // The broker says nothing for three hold times.
        for _ in 0..3 {
            let message = bench.next();
            assert!(
                matches!(message, WorkerMessage::Disconnect(_)),
                "after READY it would end the registration: {message:?}"
            );
            bench.expect_ready();
        }
    });
}

/// Says as much as is taken, and tells when that is nothing any more.
fn flood(full: tokio::sync::watch::Sender<bool>) -> Task {
    let full = Arc::new(full);
    Task::new("flood", "", move |context: TaskContext, NoInput {}| {
        let full = Arc::clone(&full);
        async move {
            let mut refused = 0;
            loop {
                match context.event(EventDraft::new("news")).await {
                    Ok(()) => refused = 0,
                    Err(SendError::QueueFull(_)) => refused += 1,
                    Err(error) => return Err::<serde_json::Value, _>(error.into()),
                }
                full.send_replace(refused >= REFUSED_IN_A_ROW);
            }
        }
    })
}

fn listen(context: &Context, endpoint: &str, options: &LinkOptions) -> Router {
    let end = Instant::now() + Duration::from_secs(20);
    loop {
        // The port may still be held for a moment.
        match Router::bind(context, endpoint, RouterOptions { link: options.clone(), ..RouterOptions::default() }) {
            Ok(router) => return router,
            Err(error) if Instant::now() > end => panic!("{error}"),
            Err(_) => std::thread::sleep(Duration::from_millis(10)),
        }
    }
}

fn first_message(router: &mut Router) -> WorkerMessage {
    let end = Instant::now() + Duration::from_secs(20);
    while Instant::now() < end {
        if let Some(received) = router.try_receive().expect("a link") {
            return WorkerMessage::decode(&received.frames).expect("a message");
        }
        router.wait(Some(Duration::from_millis(100))).expect("a link");
    }
    panic!("the worker does not come back");
}

#[test]
fn a_worker_with_more_to_say_than_its_link_takes_notices_that_the_broker_is_gone_and_comes_back() {
    runtime().block_on(async {
        let context = Context::new();
        // Little room, so that the worker has to keep most of it.
        let link = LinkOptions { send_queue: 100, ..LinkOptions::default() };
        let mut router = listen(&context, "tcp://127.0.0.1:*", &link);
        let endpoint = router.endpoint();
        let options = DealerOptions { link: link.clone(), keys: None };
        let dealer = Dealer::connect(&context, &endpoint, b"w1", options).expect("a dealer");
        let (full, mut is_full) = tokio::sync::watch::channel(false);
        let mut options = worker_options(service(flood(full)), Box::new(dealer));
        options.queue_messages = MANY_MESSAGES;
        let worker = WorkerHandle::start(options).expect("a worker");
        assert!(matches!(first_message(&mut router), WorkerMessage::Ready(_)));
        let post = BrokerToWorker::Post(Delivery {
            client: Identity::parse("c").expect("a name"),
            job: JobId::parse("1").expect("a name"),
            body: json!({ "task": "flood", "timeout": 600 }).to_string().into(),
        });
        router.try_send(b"w1", &post.encode()).expect("room");
        // It leaves; what comes is not read.
        router.wait(Some(Duration::ZERO)).expect("a link");
        for _ in 0..2 {
            is_full.wait_for(|full| *full).await.expect("the task meets the bound");
            // The connection is lost while it is full, and cannot be made for a moment while much waits for it.
            drop(router);
            let mut state = worker.state();
            let down = state.wait_for(|state| *state != LinkState::Connected);
            tokio::time::timeout(Duration::from_secs(10), down).await.expect("it is noticed").expect("a worker");
            router = listen(&context, &endpoint, &link);
            assert!(matches!(first_message(&mut router), WorkerMessage::Ready(_)));
        }
        worker.stop(Duration::ZERO).await;
    });
}
