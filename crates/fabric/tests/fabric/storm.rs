//! Many workers come back, or answer, at once.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use norfab_fabric::client::{ClientHandle, JobHandle};
use norfab_protocol::client::JobState;
use norfab_protocol::frame::Status;
use norfab_protocol::message::{BrokerToWorker, WorkerMessage, WorkerReply};
use norfab_protocol::target::Target;
use norfab_protocol::worker::result_reply;
use norfab_protocol::{Identity, ServiceName};
use norfab_transport::{Dealer, DealerLink};
use serde_json::json;

use crate::support::{Fabric, eventually, runtime, spec};

/// Workers in the test; a thousand are a figure of the benchmark.
const WORKERS: usize = 50;

/// Jobs that are submitted before the broker goes, and as many while it is away.
const JOBS: usize = 100;

async fn submit(client: &ClientHandle, target: &Target) -> Vec<JobHandle> {
    let mut jobs = Vec::new();
    for _ in 0..JOBS {
        let mut job = spec("ok");
        job.target = target.clone();
        // As of somebody who knows that workers may be away.
        job.waits = true;
        jobs.push(client.submit(job).await.expect("taken"));
    }
    jobs
}

#[test]
fn all_workers_return_to_a_restarted_broker_and_no_job_is_lost() {
    runtime().block_on(async {
        let mut fabric = Fabric::start();
        let names: Vec<String> = (0..WORKERS).map(|number| format!("w{number}")).collect();
        for name in &names {
            fabric.worker(name).await;
        }
        let client = fabric.client("c").await;
        let mut jobs = submit(&client, &Target::Any).await;
        fabric.stop_broker().await;
        jobs.extend(submit(&client, &Target::Any).await);
        let of_each = Target::list(names.iter().map(String::as_str));
        let mut job = spec("ok");
        job.target = of_each;
        let everywhere = client.submit(job).await.expect("taken");
        fabric.restart_broker().await;
        for name in &names {
            eventually("the worker is back", async || fabric.is_registered(name).await).await;
        }
        for job in jobs {
            let report = job.wait().await;
            assert_eq!((report.state, report.workers.len()), (JobState::Completed, 1), "{report:?}");
        }
        let report = everywhere.wait().await;
        assert!(report.succeeded() && report.workers.len() == WORKERS, "{report:?}");
        // Each job ran once: those for any on one worker each, the last one on all.
        let mut stored = 0;
        for name in &names {
            fabric.stop_worker(name).await;
            stored += fabric.stored_jobs(name).await;
        }
        assert_eq!(stored, (2 * JOBS + WORKERS) as u64);
        fabric.stop().await;
    });
}

/// Workers that answer at the same moment.
const ANSWERS: usize = 2000;

/// A worker that is only a socket: it takes what comes and answers it at once.
struct Answering {
    name: Identity,
    link: Box<Dealer>,
    /// What its link did not take yet.
    unsent: VecDeque<Vec<Bytes>>,
}

impl Answering {
    fn new(fabric: &Fabric, number: usize) -> Self {
        let name = Identity::parse(&format!("w{number}")).expect("a name");
        let ready = WorkerMessage::Ready(ServiceName::parse("s").expect("a name")).encode();
        Self { link: fabric.dealer(name.as_str()), name, unsent: VecDeque::from([ready]) }
    }

    /// Does what can be done without waiting.
    fn turn(&mut self) {
        self.link.wait(Some(Duration::ZERO), !self.unsent.is_empty()).expect("a link");
        while self.link.next_status().is_some() {}
        while let Some(received) = self.link.try_receive().expect("a link") {
            let BrokerToWorker::Post(post) = BrokerToWorker::decode(&received.frames).expect("a message") else {
                continue;
            };
            let reply = |status, payload| {
                let reply = WorkerReply { client: post.client.clone(), job: post.job.clone(), status, payload };
                WorkerMessage::Response(reply).encode()
            };
            let accepted = json!({"worker": self.name, "uuid": post.job, "service": "s", "status": "ACCEPTED"});
            self.unsent.push_back(reply(Status::ACCEPTED, accepted.to_string().into()));
            let result = json!({"result": self.name, "failed": false}).to_string();
            self.unsent.push_back(reply(Status::OK, result_reply(&self.name, result.as_bytes())));
        }
        while let Some(message) = self.unsent.front() {
            if self.link.try_send(message).is_err() {
                return;
            }
            self.unsent.pop_front();
        }
    }
}

#[test]
fn two_thousand_workers_that_answer_at_once_lose_nothing() {
    runtime().block_on(async {
        let fabric = Fabric::start();
        let mut workers: Vec<_> = (0..ANSWERS).map(|number| Answering::new(&fabric, number)).collect();
        let ended = Arc::new(AtomicBool::new(false));
        let stops = Arc::clone(&ended);
        let turns = tokio::task::spawn_blocking(move || {
            while !stops.load(Ordering::Relaxed) {
                workers.iter_mut().for_each(Answering::turn);
            }
        });
        eventually("all are registered", async || fabric.workers().await == ANSWERS).await;
        let client = fabric.client("c").await;
        let mut job = spec("ok");
        job.target = Target::All;
        let report = client.run(job).await.expect("taken");
        assert!(report.succeeded(), "{:?}", report.errors);
        let views = report.views();
        assert_eq!(views.len(), ANSWERS);
        for (worker, view) in views {
            assert_eq!(view.result.get(), json!(worker).to_string(), "each said its own");
        }
        ended.store(true, Ordering::Relaxed);
        turns.await.expect("no panic");
        fabric.stop().await;
    });
}
