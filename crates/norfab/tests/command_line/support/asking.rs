//! A worker of a service that is not in the binary: its tasks ask questions and send events.

use std::sync::Arc;
use std::time::Duration;

use norfab_fabric::worker::{RESULT_BYTES_MAX, WORKER_QUEUE_MESSAGES, WorkerHandle, WorkerOptions};
use norfab_jobs::SqliteWorkerStore;
use norfab_protocol::worker::WorkerConfig;
use norfab_protocol::{Identity, ServiceName};
use norfab_service::{
    BuiltinPolicy, EventDraft, NoInput, Question, Service, Task, TaskContext, TaskError, TaskOutput, schemars,
};
use norfab_transport::{Context, Dealer, DealerKeys, DealerOptions, KeyPair};
use serde_json::{Value, json};

use super::Lab;

/// A running worker named `asker` of the service `asking`.
pub struct AskingWorker {
    runtime: tokio::runtime::Runtime,
    worker: Option<WorkerHandle>,
}

#[derive(serde::Deserialize, schemars::JsonSchema)]
struct Events {
    /// How many.
    count: usize,
}

#[derive(serde::Deserialize, schemars::JsonSchema)]
struct Ask {
    /// The default answer.
    #[serde(default)]
    default: Value,
    /// Seconds to wait for the answer.
    #[serde(default = "minute")]
    timeout: u64,
}

fn minute() -> u64 {
    60
}

/// Between two events of `beat`.
const BEAT_INTERVAL: Duration = Duration::from_millis(50);

fn service() -> Service {
    Service::new(ServiceName::parse("asking").expect("a name"))
        .task(Task::new("ask", "Asks and returns the answer.", async |context: TaskContext, input: Ask| {
            let question = Question::new("go on?").default(input.default).timeout(input.timeout);
            let answer = context.ask(question).await?;
            Ok(json!({ "answer": answer }))
        }))
        .task(Task::new("events", "Sends events.", async |context: TaskContext, input: Events| {
            for number in 0..input.count {
                context.event(EventDraft::new(format!("event \u{1b}[31m{number}\nsecond line")).resource("r1")).await?;
            }
            Ok(json!(input.count))
        }))
        .task(Task::new("beat", "Sends events until it is cancelled.", async |context: TaskContext, NoInput {}| {
            while !context.cancelled().is_cancelled() {
                context.event(EventDraft::new("beating")).await?;
                tokio::time::sleep(BEAT_INTERVAL).await;
            }
            Ok(Value::Null)
        }))
        .task(Task::new("tell", "Tells\u{1b}[2J of errors without failing.", async |_: TaskContext, NoInput {}| {
            let output = TaskOutput::new(json!("done")).message("cut\u{1b}[31m short");
            Ok(output.error("r1 did not\u{1b}[2J answer").error("nor did r2"))
        }))
        .task(Task::new("refuse", "Fails.", async |_: TaskContext, NoInput {}| {
            Err::<Value, _>(TaskError::new("no\u{1b}[2J\nway"))
        }))
        .task(Task::new("nothing", "Returns nothing.", async |_: TaskContext, NoInput {}| Ok(Value::Null)))
        .with_builtin_tasks(BuiltinPolicy::default())
}

impl AskingWorker {
    /// Starts it at the lab's broker and waits until it is registered beside the file sharing.
    pub fn start(lab: &Lab) -> Self {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().expect("one");
        let key = lab.json(&["broker-key", "--json"])["public_key"].as_str().expect("a key").to_owned();
        let keys = DealerKeys { own: KeyPair::generate(), broker: key.parse().expect("a key") };
        let options = DealerOptions { keys: Some(keys), ..DealerOptions::default() };
        let context = Context::new();
        let link = Dealer::connect(&context, &lab.endpoint(), b"asker", options).expect("a dealer");
        let service = service();
        let database = lab.path("asker.db");
        let options = WorkerOptions {
            config: WorkerConfig::new(Identity::parse("asker").expect("a name"), service.name().clone()),
            link: Box::new(link),
            store: Box::new(move || Ok(Box::new(SqliteWorkerStore::open(&database, "now")?))),
            service: Arc::new(service),
            inventory: Arc::new(json!({})),
            runtime: runtime.handle().clone(),
            queue_messages: WORKER_QUEUE_MESSAGES,
            result_bytes_max: RESULT_BYTES_MAX,
            endpoint: lab.endpoint(),
            status: json!({}),
            fetched_files_dir: lab.path("fetched"),
            logs: Arc::new(|_| Ok(Vec::new())),
            begun_file: None,
            problem: norfab_fabric::tell_problem(),
        };
        let worker = WorkerHandle::start(options).expect("a worker");
        lab.registered(&["asker", "filesharing-worker-1"]);
        Self { runtime, worker: Some(worker) }
    }
}

impl Drop for AskingWorker {
    fn drop(&mut self) {
        if let Some(worker) = self.worker.take() {
            self.runtime.block_on(worker.stop(Duration::ZERO));
        }
    }
}
