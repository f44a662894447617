//! The broker's owner loop and its handle.

mod book;
mod management;
mod run;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use norfab_protocol::broker::BrokerConfig;
use norfab_transport::{RouterLink, run_promptly};
use serde_json::{Map, Value};
use tokio::sync::{oneshot, watch};

use crate::StartError;
use crate::inbox::Inbox;
use crate::queue::{QueueError, QueueSender, queue};
use crate::worker::{OWNER_STACK_BYTES, thread_name};
use run::{BrokerCommand, Run};

/// Commands that may wait for the broker's owner. There are few: statistics and the stop.
const BROKER_QUEUE_COMMANDS: usize = 1024;

/// What the broker is asked and does not know itself. Called on a thread of its own, which may block.
pub trait BrokerInformation: Send + Sync {
    /// The merged data of a worker; `None`: nothing is known of it. Errors: for people.
    fn worker_inventory(&self, name: &str) -> Result<Option<Value>, String>;
    /// The whole inventory with secrets masked.
    fn inventory(&self) -> Result<Value, String>;
    /// Log records, as `get_logs` filters them.
    fn logs(&self, kwargs: &Map<String, Value>) -> Result<Vec<Value>, String>;
    /// What `get_status` tells of folders and keys: an object with `directories` and `security`, their values null without
    /// CURVE.
    fn status(&self) -> Value;
}

/// All that a broker needs.
pub struct BrokerOptions {
    /// Its name: `NFPBroker` unless said otherwise.
    pub name: String,
    /// Beats, bounds.
    pub config: BrokerConfig,
    /// Its socket, bound.
    pub link: Box<dyn RouterLink>,
    /// What it is asked.
    pub information: Arc<dyn BrokerInformation>,
    /// Where it writes down which workers are registered, for the broker after it. `None`: nowhere, and jobs for any worker that
    /// are on their way when it is killed may run twice where their worker is away then.
    pub workers_file: Option<PathBuf>,
}

/// A running broker. Dropping it leaves the broker running: [`BrokerHandle::stop`] ends it.
pub struct BrokerHandle {
    endpoint: String,
    commands: QueueSender<BrokerCommand>,
    /// Its other end goes with the thread, however that ends.
    ended: watch::Receiver<()>,
}

impl BrokerHandle {
    /// Starts the thread that owns the link. Errors: the thread cannot be started.
    pub fn start(options: BrokerOptions) -> Result<Self, StartError> {
        let endpoint = options.link.endpoint();
        let waker = options.link.waker();
        let inbox = Inbox::new(waker.clone());
        let (commands, received) = queue(BROKER_QUEUE_COMMANDS, waker);
        let (running, ended) = watch::channel(());
        let name = options.name.clone();
        let run = Run::new(options, received, inbox)?;
        std::thread::Builder::new()
            .name(thread_name("b", &name))
            .stack_size(OWNER_STACK_BYTES)
            .spawn(move || {
                let _running = running;
                run_promptly();
                run.run();
            })
            .map_err(|error| StartError::Thread { role: format!("broker {name}"), error })?;
        Ok(Self { endpoint, commands, ended })
    }

    /// Where it listens.
    pub fn endpoint(&self) -> &str {
        &self.endpoint
    }

    /// The answer of `get_stats`. Errors: the broker has stopped, or its queue stayed full.
    pub async fn statistics(&self) -> Result<Value, QueueError> {
        let (answer, received) = oneshot::channel();
        self.commands.send(BrokerCommand::Stats { answer }).await?;
        received.await.map_err(|_| QueueError::Stopped)
    }

    /// Waits until its thread has ended: because it was told to stop, or because it lost its socket for good.
    pub fn ended(&self) -> impl Future<Output = ()> + Send + use<> {
        let mut ended = self.ended.clone();
        async move { while ended.changed().await.is_ok() {} }
    }

    /// Tells every worker, closes the socket, and returns when the thread has ended.
    pub async fn stop(self) {
        if self.commands.send_patiently(BrokerCommand::Stop).await == Ok(()) {
            self.ended().await;
        }
    }
}

/// How long what was said last has to leave after the loop has ended.
const LINGER: Duration = Duration::from_secs(1);
