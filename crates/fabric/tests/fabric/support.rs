//! A fabric in one process, with real sockets, keys and databases.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use norfab_fabric::broker::{BrokerHandle, BrokerInformation, BrokerOptions};
use norfab_fabric::client::{ClientHandle, ClientOptions, JobHandle, JobSpec};
use norfab_fabric::worker::{RESULT_BYTES_MAX, WORKER_QUEUE_MESSAGES, WorkerHandle, WorkerOptions};
use norfab_jobs::{SqliteClientStore, SqliteWorkerStore};
use norfab_protocol::broker::BrokerConfig;
use norfab_protocol::client::{ClientConfig, JobUpdate};
use norfab_protocol::worker::WorkerConfig;
use norfab_protocol::{Identity, ServiceName, TaskName};
use norfab_service::{BuiltinPolicy, EventDraft, NoInput, Question, SendError, Service, Task, TaskContext, TaskError};
use norfab_transport::{Context, Dealer, DealerKeys, DealerOptions, KeyPair, Router, RouterLink, RouterOptions};
use serde_json::{Map, Value, json};

/// Longest that a test waits for anything.
const PATIENCE: Duration = Duration::from_secs(90);

/// Jobs that run at once on a worker.
const CONCURRENT_JOBS: usize = 5;

/// What stands before the number in the events of the task `chatter`.
pub const EVENT: &str = "event ";

pub fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().expect("a runtime")
}

pub fn kwargs(value: Value) -> Map<String, Value> {
    value.as_object().cloned().expect("an object")
}

pub fn management() -> ServiceName {
    ServiceName::parse("mmi.service.broker").expect("a name")
}

/// What the task `slow` says when it has begun.
pub const SLOW_BEGUN: &str = "it waits";

/// Waits until the task `slow` of a job has begun on so many workers.
pub async fn slow_begins(job: &mut JobHandle, workers: usize) {
    let mut begun = 0;
    while begun < workers {
        if let JobUpdate::Event(event, _) = job.next().await.expect("news") {
            begun += usize::from(event.message == SLOW_BEGUN);
        }
    }
}

pub fn spec(task: &str) -> JobSpec {
    let mut spec = JobSpec::new(ServiceName::parse("s").expect("a name"), TaskName::parse(task).expect("a name"));
    spec.timeout = PATIENCE;
    if task == "ok" {
        spec.kwargs = kwargs(json!({"a": 1}));
    }
    spec
}

pub async fn eventually(what: &str, mut check: impl AsyncFnMut() -> bool) {
    let end = Instant::now() + PATIENCE;
    while Instant::now() < end {
        if check().await {
            return;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    panic!("not within {PATIENCE:?}: {what}");
}

pub struct Information;

impl BrokerInformation for Information {
    fn worker_inventory(&self, name: &str) -> Result<Option<Value>, String> {
        Ok((name != "ghost").then(|| json!({"service": "s"})))
    }
    fn inventory(&self) -> Result<Value, String> {
        Ok(json!({}))
    }
    fn logs(&self, _: &Map<String, Value>) -> Result<Vec<Value>, String> {
        Ok(Vec::new())
    }
    fn status(&self) -> Value {
        json!({"directories": {}, "security": {}})
    }
}

pub struct Fabric {
    context: Context,
    keys: KeyPair,
    broker: Option<BrokerHandle>,
    pub endpoint: String,
    folder: tempfile::TempDir,
    workers: BTreeMap<String, WorkerHandle>,
    /// Endpoints of those that take another way to the broker.
    detours: BTreeMap<String, String>,
}

impl Fabric {
    pub fn start() -> Self {
        let context = Context::new();
        let keys = KeyPair::generate();
        let broker = broker(&context, &keys, "tcp://127.0.0.1:*");
        let endpoint = broker.endpoint().to_owned();
        let folder = tempfile::tempdir().expect("a folder");
        Self {
            context,
            keys,
            broker: Some(broker),
            endpoint,
            folder,
            workers: BTreeMap::new(),
            detours: BTreeMap::new(),
        }
    }

    pub async fn stop_broker(&mut self) {
        self.broker.take().expect("a broker").stop().await;
    }

    pub async fn restart_broker(&mut self) {
        if let Some(broker) = self.broker.take() {
            broker.stop().await;
        }
        let end = Instant::now() + PATIENCE;
        loop {
            // The port may still be held for a moment.
            let options = RouterOptions { keys: Some(self.keys.clone()), ..RouterOptions::default() };
            match Router::bind(&self.context, &self.endpoint, options) {
                Ok(router) => {
                    self.broker = Some(broker_at(router));
                    return;
                }
                Err(error) if Instant::now() > end => panic!("{error}"),
                Err(_) => tokio::time::sleep(Duration::from_millis(10)).await,
            }
        }
    }

    /// A link to the broker.
    pub fn dealer(&self, name: &str) -> Box<Dealer> {
        let keys = DealerKeys { own: KeyPair::generate(), broker: self.keys.public };
        let options = DealerOptions { keys: Some(keys), ..DealerOptions::default() };
        let endpoint = self.detours.get(name).unwrap_or(&self.endpoint);
        Box::new(Dealer::connect(&self.context, endpoint, name.as_bytes(), options).expect("a dealer"))
    }

    /// Has a worker or client that is started later connect to this endpoint.
    pub fn detour(&mut self, name: &str, endpoint: &str) {
        self.detours.insert(name.to_owned(), endpoint.to_owned());
    }

    pub fn database(&self, name: &str) -> PathBuf {
        self.folder.path().join(format!("{name}.db"))
    }

    pub async fn worker(&mut self, name: &str) {
        self.worker_changed(name, |_| {}).await;
    }

    pub async fn worker_with(&mut self, name: &str, max_concurrent_jobs: usize) {
        self.worker_changed(name, |options| options.config.max_concurrent_jobs = max_concurrent_jobs).await;
    }

    /// A worker that is not as the others.
    pub async fn worker_changed(&mut self, name: &str, change: impl FnOnce(&mut WorkerOptions)) {
        let mut config =
            WorkerConfig::new(Identity::parse(name).expect("a name"), ServiceName::parse("s").expect("a name"));
        config.max_concurrent_jobs = CONCURRENT_JOBS;
        let path = self.database(name);
        let mut options = WorkerOptions {
            config,
            link: self.dealer(name),
            store: Box::new(move || Ok(Box::new(SqliteWorkerStore::open(&path, "now")?))),
            service: Arc::new(service()),
            inventory: Arc::new(json!({"service": "s"})),
            runtime: tokio::runtime::Handle::current(),
            queue_messages: WORKER_QUEUE_MESSAGES,
            result_bytes_max: RESULT_BYTES_MAX,
            endpoint: self.endpoint.clone(),
            status: json!({}),
            fetched_files_dir: self.folder.path().join("fetched"),
            logs: Arc::new(|_| Ok(Vec::new())),
            begun_file: Some(self.database(name).with_extension("begun")),
            problem: norfab_fabric::tell_problem(),
        };
        change(&mut options);
        let worker = WorkerHandle::start(options).expect("a worker");
        self.workers.insert(name.to_owned(), worker);
        eventually("the worker is registered", async || self.is_registered(name).await).await;
    }

    pub async fn is_registered(&self, name: &str) -> bool {
        let Some(broker) = &self.broker else { return false };
        let statistics = broker.statistics().await.expect("a broker");
        let workers = statistics["workers"].as_array().expect("a list");
        workers.iter().any(|worker| worker["name"] == name)
    }

    /// How many are registered.
    pub async fn workers(&self) -> usize {
        let statistics = self.broker.as_ref().expect("a broker").statistics().await.expect("a broker");
        statistics["workers"].as_array().expect("a list").len()
    }

    /// Beats of a worker that the broker has received.
    pub async fn beats(&self, name: &str) -> u64 {
        let statistics = self.broker.as_ref().expect("a broker").statistics().await.expect("a broker");
        let workers = statistics["workers"].as_array().expect("a list");
        let worker = workers.iter().find(|worker| worker["name"] == name).expect("it is registered");
        worker["keepalives_received"].as_u64().expect("a number")
    }

    pub async fn stop_worker(&mut self, name: &str) {
        self.workers.remove(name).expect("a worker").stop(Duration::ZERO).await;
    }

    pub async fn client(&self, name: &str) -> ClientHandle {
        let path = self.database(name);
        let options = ClientOptions {
            identity: Identity::parse(name).expect("a name"),
            config: ClientConfig::default(),
            link: self.dealer(name),
            store: Box::new(move || Ok(Box::new(SqliteClientStore::open(&path, "now")?))),
            problem: norfab_fabric::tell_problem(),
        };
        ClientHandle::start(options).expect("a client")
    }

    pub fn stored_states(&self, client: &str) -> BTreeMap<norfab_jobs::ClientState, u64> {
        use norfab_jobs::ClientStore;
        let mut store = SqliteClientStore::open_beside(&self.database(client)).expect("a store");
        store.statistics().expect("statistics").jobs_by_state
    }

    pub async fn stored_jobs(&self, worker: &str) -> u64 {
        use norfab_jobs::WorkerStore;
        let mut store = SqliteWorkerStore::open_beside(&self.database(worker)).expect("a store");
        store.statistics().expect("statistics").total_jobs()
    }

    pub async fn stored_state(&self, worker: &str, job: &norfab_protocol::JobId) -> Option<norfab_jobs::WorkerState> {
        use norfab_jobs::WorkerStore;
        let mut store = SqliteWorkerStore::open_beside(&self.database(worker)).expect("a store");
        store.job(job).expect("it can be read").map(|details| details.job.state)
    }

    pub async fn stop(mut self) {
        for (_, worker) in std::mem::take(&mut self.workers) {
            worker.stop(Duration::from_secs(1)).await;
        }
        if let Some(broker) = self.broker.take() {
            broker.stop().await;
        }
    }
}

fn broker(context: &Context, keys: &KeyPair, endpoint: &str) -> BrokerHandle {
    let options = RouterOptions { keys: Some(keys.clone()), ..RouterOptions::default() };
    broker_at(Router::bind(context, endpoint, options).expect("a router"))
}

pub fn broker_at(router: impl RouterLink + 'static) -> BrokerHandle {
    broker_with(router, BrokerConfig::default(), Arc::new(Information))
}

pub fn broker_with(
    router: impl RouterLink + 'static,
    config: BrokerConfig,
    information: Arc<dyn BrokerInformation>,
) -> BrokerHandle {
    let name = "NFPBroker".to_owned();
    BrokerHandle::start(BrokerOptions { name, config, link: Box::new(router), information, workers_file: None })
        .expect("a broker")
}

#[derive(serde::Deserialize, schemars::JsonSchema)]
struct OkInput {
    a: i64,
}

#[derive(serde::Deserialize, schemars::JsonSchema)]
struct BigInput {
    bytes: usize,
}

#[derive(serde::Deserialize, schemars::JsonSchema)]
struct ChatterInput {
    events: u64,
}

/// Numbered events, each until there is room for it, and then a question.
async fn chatter(context: TaskContext, input: ChatterInput) -> Result<Value, TaskError> {
    for number in 1..=input.events {
        while let Err(error) = context.event(EventDraft::new(format!("{EVENT}{number}"))).await {
            if !matches!(error, SendError::QueueFull(_)) {
                return Err(error.into());
            }
        }
    }
    Ok(context.ask(Question::new("proceed?")).await?)
}

fn service() -> Service {
    Service::new(ServiceName::parse("s").expect("a name"))
        .task(Task::new("ok", "Returns its argument.", async |_: TaskContext, input: OkInput| {
            Ok(json!({"a": input.a}))
        }))
        .task(Task::new("big", "Returns a long text.", async |_: TaskContext, input: BigInput| {
            Ok(json!("x".repeat(input.bytes)))
        }))
        .task(Task::new("ask", "Asks.", async |context: TaskContext, NoInput {}| {
            Ok(context.ask(Question::new("proceed?")).await?)
        }))
        .task(Task::new("again", "May run twice.", async |_: TaskContext, NoInput {}| Ok(json!("done"))).idempotent())
        .task(Task::new("chatter", "Says much and asks.", chatter))
        .task(Task::new("deaf", "Never ends by itself.", async |_: TaskContext, NoInput {}| {
            std::future::pending::<()>().await;
            Ok(json!(null))
        }))
        .task(Task::new("slow", "Waits until it is told to end.", async |context: TaskContext, NoInput {}| {
            // That it starts is told before it has begun.
            context.event(SLOW_BEGUN).await?;
            context.cancelled().cancelled().await;
            Ok(json!("ended early"))
        }))
        .with_builtin_tasks(BuiltinPolicy::default())
}
