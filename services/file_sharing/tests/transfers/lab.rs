//! A broker, workers that share folders, and clients, in one process; and ways that lose or change what a worker sends.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use bytes::{Bytes, BytesMut};
use norfab_fabric::LinkState;
use norfab_fabric::broker::{BrokerHandle, BrokerInformation, BrokerOptions};
use norfab_fabric::client::{ClientHandle, ClientOptions};
use norfab_fabric::worker::{RESULT_BYTES_MAX, WORKER_QUEUE_MESSAGES, WorkerHandle, WorkerOptions};
use norfab_file_sharing::service;
use norfab_jobs::{MemoryClientStore, MemoryWorkerStore};
use norfab_protocol::Identity;
use norfab_protocol::body::CONTENT_MARK;
use norfab_protocol::broker::BrokerConfig;
use norfab_protocol::client::ClientConfig;
use norfab_protocol::message::WorkerMessage;
use norfab_protocol::worker::WorkerConfig;
use norfab_service::Service;
use norfab_transport::memory::MemoryNetwork;
use norfab_transport::{DealerLink, LinkError, LinkStatus, Ready, Received, SendError, Waker};
use serde_json::{Map, Value, json};
use tempfile::TempDir;

/// Far more than anything here takes.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// Messages that a link holds.
const LINK_MESSAGES: usize = 1000;

pub fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().expect("a runtime")
}

/// Bytes that no part of which is like another.
pub fn content(bytes: usize) -> Vec<u8> {
    let mut state = 1_u32;
    std::iter::repeat_with(|| {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 24) as u8
    })
    .take(bytes)
    .collect()
}

pub async fn eventually(what: &str, mut check: impl AsyncFnMut() -> bool) {
    let end = Instant::now() + PATIENCE;
    while Instant::now() < end {
        if check().await {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("not within {PATIENCE:?}: {what}");
}

struct Information;

impl BrokerInformation for Information {
    fn worker_inventory(&self, _: &str) -> Result<Option<Value>, String> {
        Ok(None)
    }
    fn inventory(&self) -> Result<Value, String> {
        Ok(json!({}))
    }
    fn logs(&self, _: &Map<String, Value>) -> Result<Vec<Value>, String> {
        Ok(Vec::new())
    }
    fn status(&self) -> Value {
        json!({})
    }
}

/// What happens to what a worker or client sends.
#[derive(Default)]
pub struct Way {
    /// Messages of streams, or with content, so far.
    pub streams: AtomicUsize,
    /// Their bytes.
    pub bytes: AtomicU64,
    /// Nothing of it arrives any more.
    pub is_dead: AtomicBool,
    /// Those of them that are lost or changed, by their number.
    plan: Mutex<Vec<(usize, Fate)>>,
}

/// What happens to a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fate {
    /// It does not arrive.
    Lost,
    /// One of its bits is another one.
    Changed,
    /// It and all that follow do not arrive: their worker has died.
    Last,
}

impl Way {
    pub fn plan(&self, number: usize, fate: Fate) {
        self.plan.lock().unwrap_or_else(PoisonError::into_inner).push((number, fate));
    }

    /// What is sent instead of a message. `None`: nothing.
    fn passes(&self, frames: &[Bytes]) -> Option<Vec<Bytes>> {
        let is_stream = matches!(WorkerMessage::decode(frames), Ok(WorkerMessage::Stream(_)));
        let is_content = frames.last().is_some_and(|body| body.starts_with(CONTENT_MARK));
        if is_stream || is_content {
            let number = self.streams.fetch_add(1, Ordering::SeqCst);
            let bytes = frames.last().map_or(0, Bytes::len);
            self.bytes.fetch_add(bytes as u64, Ordering::SeqCst);
            let plan = self.plan.lock().unwrap_or_else(PoisonError::into_inner);
            match plan.iter().find(|(at, _)| *at == number).map(|(_, fate)| *fate) {
                Some(Fate::Lost) => return None,
                Some(Fate::Changed) => return Some(changed(frames)),
                Some(Fate::Last) => self.is_dead.store(true, Ordering::SeqCst),
                None => {}
            }
        }
        (!self.is_dead.load(Ordering::SeqCst)).then(|| frames.to_vec())
    }
}

fn changed(frames: &[Bytes]) -> Vec<Bytes> {
    let mut frames = frames.to_vec();
    if let Some(last) = frames.last_mut() {
        let mut bytes = BytesMut::from(&last[..]);
        let middle = bytes.len() / 2;
        bytes[middle] ^= 1;
        *last = bytes.freeze();
    }
    frames
}

/// A link over such a way.
struct OverWay<L> {
    link: L,
    way: Arc<Way>,
}

impl<L: DealerLink> DealerLink for OverWay<L> {
    fn try_send(&mut self, frames: &[Bytes]) -> Result<(), SendError> {
        match self.way.passes(frames) {
            Some(frames) => self.link.try_send(&frames),
            None => Ok(()),
        }
    }
    fn try_receive(&mut self) -> Result<Option<Received>, LinkError> {
        self.link.try_receive()
    }
    fn wait(&mut self, timeout: Option<Duration>, want_write: bool) -> Result<Ready, LinkError> {
        self.link.wait(timeout, want_write)
    }
    fn waker(&self) -> Waker {
        self.link.waker()
    }
    fn lasted(&mut self) {
        self.link.lasted();
    }
    fn reconnect(&mut self) -> Result<(), LinkError> {
        self.link.reconnect()
    }
    fn next_status(&mut self) -> Option<LinkStatus> {
        self.link.next_status()
    }
    fn close(self: Box<Self>, linger: Duration) {
        Box::new(self.link).close(linger);
    }
}

pub struct Lab {
    network: MemoryNetwork,
    broker: Option<BrokerHandle>,
    folder: TempDir,
    workers: Vec<WorkerHandle>,
}

impl Lab {
    pub fn new() -> Self {
        let network = MemoryNetwork::new();
        let broker = Some(broker(&network));
        Self { network, broker, folder: tempfile::tempdir().expect("a folder"), workers: Vec::new() }
    }

    /// Where a client puts what it fetches.
    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// The names in a folder of it.
    pub fn names(&self, folder: &str) -> Vec<String> {
        let entries = fs::read_dir(self.path(folder)).expect("a folder");
        let mut names: Vec<String> =
            entries.map(|entry| entry.expect("an entry").file_name().into_string().expect("text")).collect();
        names.sort();
        names
    }

    /// Puts a file into the folder that a worker shares.
    pub fn share(&self, worker: &str, name: &str, content: &[u8]) {
        let path = self.folder.path().join(worker).join(name);
        fs::create_dir_all(path.parent().expect("a parent")).expect("made");
        fs::write(path, content).expect("written");
    }

    pub async fn worker(&mut self, name: &str) -> Arc<Way> {
        self.worker_with(name, json!({})).await
    }

    /// One whose inventory has some more keys.
    pub async fn worker_with(&mut self, name: &str, mut inventory: Value) -> Arc<Way> {
        inventory["base_dir"] = json!(name);
        let service = service(&inventory, self.folder.path()).expect("a service");
        self.worker_of(name, service).await
    }

    /// A worker with tasks of its own.
    pub async fn worker_of(&mut self, name: &str, service: Service) -> Arc<Way> {
        let way = Arc::new(Way::default());
        let link = self.network.dealer("broker", name.as_bytes(), LINK_MESSAGES).expect("a link");
        let config = WorkerConfig::new(identity(name), service.name().clone());
        let options = WorkerOptions {
            config,
            link: Box::new(OverWay { link, way: Arc::clone(&way) }),
            store: Box::new(|| Ok(Box::new(MemoryWorkerStore::default()))),
            service: Arc::new(service),
            inventory: Arc::new(json!({})),
            runtime: tokio::runtime::Handle::current(),
            queue_messages: WORKER_QUEUE_MESSAGES,
            result_bytes_max: RESULT_BYTES_MAX,
            endpoint: "broker".to_owned(),
            status: json!({}),
            fetched_files_dir: self.folder.path().join("fetched"),
            logs: Arc::new(|_| Ok(Vec::new())),
            begun_file: None,
            problem: norfab_fabric::tell_problem(),
        };
        self.workers.push(WorkerHandle::start(options).expect("a worker"));
        eventually("the worker is registered", async || self.is_registered(name).await).await;
        way
    }

    /// Ends the last worker that was started.
    pub async fn stop_worker(&mut self) {
        self.workers.pop().expect("a worker").stop(Duration::ZERO).await;
    }

    async fn is_registered(&self, name: &str) -> bool {
        let Some(broker) = &self.broker else { return false };
        let statistics = broker.statistics().await.expect("a broker");
        statistics["workers"].as_array().expect("a list").iter().any(|worker| worker["name"] == name)
    }

    pub async fn client(&self, name: &str) -> ClientHandle {
        self.client_over(name).await.0
    }

    /// With the way of what it sends.
    pub async fn client_over(&self, name: &str) -> (ClientHandle, Arc<Way>) {
        let way = Arc::new(Way::default());
        let link = self.network.dealer("broker", name.as_bytes(), LINK_MESSAGES).expect("a link");
        let client = ClientHandle::start(ClientOptions {
            identity: identity(name),
            config: ClientConfig::default(),
            link: Box::new(OverWay { link, way: Arc::clone(&way) }),
            store: Box::new(|| Ok(Box::new(MemoryClientStore::default()))),
            problem: norfab_fabric::tell_problem(),
        })
        .expect("a client");
        let mut state = client.state();
        state.wait_for(|state| *state == LinkState::Connected).await.expect("it runs");
        (client, way)
    }

    /// Ends the broker, and starts another one.
    pub async fn restart_broker(&mut self) {
        if let Some(broker) = self.broker.take() {
            broker.stop().await;
        }
        self.broker = Some(broker(&self.network));
    }
}

fn identity(name: &str) -> Identity {
    Identity::parse(name).expect("a name")
}

fn broker(network: &MemoryNetwork) -> BrokerHandle {
    BrokerHandle::start(BrokerOptions {
        name: "NFPBroker".to_owned(),
        config: BrokerConfig::default(),
        link: Box::new(network.router("broker").expect("a router")),
        information: Arc::new(Information),
        workers_file: None,
    })
    .expect("a broker")
}

/// What is in a file.
pub fn read(path: &Path) -> Vec<u8> {
    fs::read(path).expect("it is there")
}
