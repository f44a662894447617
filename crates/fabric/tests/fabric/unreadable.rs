//! What a worker logs of jobs that its store cannot read.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use norfab_jobs::StoreError;
use norfab_jobs::testing::{Interference, TestWorkerStore};
use norfab_protocol::message::{BrokerToWorker, Delivery, WorkerMessage};
use norfab_protocol::{Identity, JobId};
use norfab_service::{NoInput, Task, TaskContext};
use norfab_transport::RouterLink;
use serde_json::json;
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};

use crate::decision::{Bench, service};
use crate::support::runtime;

/// Questions about the job: more than may be logged of them.
const QUESTIONS: usize = 100;

/// In the error that is counted.
const PROBLEM: &str = "sector 7 is gone";

struct Unreadable;

impl Interference for Unreadable {
    fn result(&mut self, _: &JobId) -> Result<(), StoreError> {
        Err(StoreError::Database { path: "jobs.db".into(), error: PROBLEM.to_owned() })
    }
}

/// Counts the records of the problem.
#[derive(Clone, Default)]
struct Counting(Arc<AtomicUsize>);

impl Visit for Counting {
    fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
        if field.name() == "message" && format!("{value:?}").contains(PROBLEM) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }
}

impl Subscriber for Counting {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }
    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }
    fn record(&self, _: &Id, _: &Record<'_>) {}
    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn event(&self, event: &Event<'_>) {
        event.record(&mut self.clone());
    }
    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}
}

#[test]
fn questions_about_a_job_that_cannot_be_read_do_not_fill_the_log() {
    runtime().block_on(async {
        let logged = Counting::default();
        tracing::subscriber::set_global_default(logged.clone()).expect("the only one of these tests");
        let task = Task::new("t", "", async |_: TaskContext, NoInput {}| Ok(json!(1)));
        let mut bench = Bench::with(service(task), |options| {
            options.store = Box::new(|| Ok(Box::new(TestWorkerStore::new(Unreadable))));
        });
        bench.expect_ready();
        for number in 0..QUESTIONS {
            let client = Identity::parse("c").expect("a name");
            let question = Delivery { client, job: JobId::parse("lost").expect("a name"), body: Bytes::from("{}") };
            bench.router.try_send(b"w1", &BrokerToWorker::Get(question).encode()).expect("room");
            // When it has taken a job that came later, it has been told of the one before.
            let job = number.to_string();
            bench.post(&job, "t");
            loop {
                match bench.next() {
                    WorkerMessage::Response(reply) if reply.job.as_str() == job && reply.status.code() == 200 => break,
                    WorkerMessage::Response(reply) => assert_eq!(reply.job.as_str(), job),
                    _ => {}
                }
            }
        }
        let logged = logged.0.load(Ordering::SeqCst);
        assert!((1..QUESTIONS / 2).contains(&logged), "{logged} records");
    });
}
