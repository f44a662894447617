//! Clients that ask again and again what became of a job.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use bytes::Bytes;
use norfab_jobs::StoreError;
use norfab_jobs::testing::{Interference, TestWorkerStore};
use norfab_protocol::message::{BrokerToWorker, Delivery, WorkerMessage};
use norfab_protocol::{Identity, JobId};
use norfab_service::{EventDraft, NoInput, Task, TaskContext};
use norfab_transport::RouterLink;
use serde_json::json;

use crate::decision::{Bench, service};
use crate::support::runtime;

/// How often a client asks while the first answer is read.
const QUESTIONS: usize = 4;

/// Far more than anything here takes.
const PATIENCE: Duration = Duration::from_secs(20);

/// Reads the first result when the test says so, and counts those that are read.
struct Slow {
    read: Arc<AtomicUsize>,
    goes_on: Receiver<()>,
}

impl Interference for Slow {
    fn result(&mut self, _: &JobId) -> Result<(), StoreError> {
        if self.read.fetch_add(1, Ordering::SeqCst) == 0 {
            self.goes_on.recv().expect("the test goes on");
        }
        Ok(())
    }
}

impl Bench {
    fn ask(&mut self, job: &str) {
        let client = Identity::parse("c").expect("a name");
        let question = Delivery { client, job: JobId::parse(job).expect("a name"), body: Bytes::from("{}") };
        self.router.try_send(b"w1", &BrokerToWorker::Get(question).encode()).expect("room");
    }

    fn tell(&mut self, job: &str) {
        let client = Identity::parse("c").expect("a name");
        let job = JobId::parse(job).expect("a name");
        let credit = Delivery { client, job, body: Bytes::from(r#"{"offset":0}"#) };
        self.router.try_send(b"w1", &BrokerToWorker::Put(credit).encode()).expect("room");
    }

    /// Waits until a task says something.
    fn hear(&mut self, said: &str) {
        loop {
            if let WorkerMessage::Event(reply) = self.next()
                && String::from_utf8_lossy(&reply.payload).contains(said)
            {
                return;
            }
        }
    }

    /// Waits until a job's result has come, and counts those of another one before it.
    fn result_after(&mut self, job: &str, counted: &str) -> usize {
        let mut count = 0;
        loop {
            if let WorkerMessage::Response(reply) = self.next()
                && reply.status.code() == 200
            {
                if reply.job.as_str() == job {
                    return count;
                }
                count += usize::from(reply.job.as_str() == counted);
            }
        }
    }
}

#[test]
fn a_result_that_is_asked_for_again_while_it_is_read_is_read_and_sent_once() {
    runtime().block_on(async {
        let (go, goes_on) = channel();
        let read = Arc::new(AtomicUsize::new(0));
        let task = Task::new("t", "", async |_: TaskContext, NoInput {}| Ok(json!(1)));
        let counted = Arc::clone(&read);
        let listen = Task::new("listen", "", async |context: TaskContext, NoInput {}| {
            context.next_credit(PATIENCE).await?;
            context.event(EventDraft::new("heard")).await?;
            Ok(json!(1))
        });
        let mut bench = Bench::with(service(task).task(listen), |options| {
            options.store = Box::new(move || Ok(Box::new(TestWorkerStore::new(Slow { read: counted, goes_on }))));
        });
        bench.expect_ready();
        bench.post("1", "t");
        bench.result_after("1", "");
        bench.post("listens", "listen");
        bench.hear("starting");
        for _ in 0..QUESTIONS {
            bench.ask("1");
        }
        // It comes behind them.
        bench.tell("listens");
        bench.hear("heard");
        go.send(()).expect("it waits");
        bench.post("2", "t");
        assert_eq!(bench.result_after("2", "1"), 1);
        assert_eq!(read.load(Ordering::SeqCst), 1);
        // What was answered may be asked again.
        bench.ask("1");
        bench.result_after("1", "");
        assert_eq!(read.load(Ordering::SeqCst), 2);
    });
}
