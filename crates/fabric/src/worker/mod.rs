//! The worker's owner loop and its handle.

mod begun;
mod loads;
mod run;
mod stopping;
mod storing;
mod tasks;
mod view;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use norfab_jobs::{StoreError, WorkerStore};
use norfab_protocol::frame::PAYLOAD_BYTES_MAX;
use norfab_protocol::worker::WorkerConfig;
use norfab_protocol::{Identity, ServiceName};
use norfab_service::Service;
use norfab_transport::{DealerLink, run_promptly};
use serde_json::Value;
use tokio::runtime::Handle;
use tokio::sync::watch;

pub use view::LogSource;
pub(crate) use view::versions;

use crate::StartError;
use crate::inbox::Inbox;
use crate::queue::{Places, QueueSender, queue};
use crate::status::{LinkState, TellProblem};
use run::{Run, WorkerCommand};

/// Messages that tasks may have waiting for their worker's owner, as in the recorded 0.25 worker.
pub const WORKER_QUEUE_MESSAGES: usize = 10_000;

/// Largest result that a worker sends unless its inventory says otherwise.
pub const RESULT_BYTES_MAX: usize = 64 << 20;

/// Largest result that a worker sends whatever its inventory says: more fits into no message.
pub const RESULT_BYTES_LIMIT: usize = PAYLOAD_BYTES_MAX - RESULT_WRAPPING_BYTES;

/// Room for what a message has around a result.
const RESULT_WRAPPING_BYTES: usize = 64 << 10;

const _: () = assert!(norfab_protocol::worker::QUESTIONS_MAX > norfab_service::QUESTIONS_MAX);
const _: () = assert!(norfab_protocol::frame::FRAMES_MAX == norfab_transport::options::FRAMES_MAX);

/// Opens the job database, on the thread that will own it.
pub type OpenWorkerStore = Box<dyn FnOnce() -> Result<Box<dyn WorkerStore>, StoreError> + Send>;

/// All that a worker needs.
pub struct WorkerOptions {
    /// Name, service, beats, bounds.
    pub config: WorkerConfig,
    /// Its socket.
    pub link: Box<dyn DealerLink>,
    /// Its database.
    pub store: OpenWorkerStore,
    /// What it runs.
    pub service: Arc<Service>,
    /// Its merged inventory.
    pub inventory: Arc<Value>,
    /// Where its tasks run.
    pub runtime: Handle,
    /// Messages of tasks that may be on their way from the task to the link: [`WORKER_QUEUE_MESSAGES`] unless there is a
    /// reason.
    pub queue_messages: usize,
    /// Largest result in bytes of JSON; [`RESULT_BYTES_LIMIT`] at most.
    pub result_bytes_max: usize,
    /// The broker's endpoint, for statistics.
    pub endpoint: String,
    /// What `get_worker_status` tells of folders and keys: an object with `directories` and `security`.
    pub status: Value,
    /// The folder of fetched files.
    pub fetched_files_dir: PathBuf,
    /// Where `get_logs` finds records.
    pub logs: LogSource,
    /// Where it is written down which tasks have begun, beside the database. `None`: nowhere, and a job that was about to begin when
    /// the process was killed ends as one that had.
    pub begun_file: Option<PathBuf>,
    /// What its log says of its link: [`tell_problem`](crate::tell_problem) names no place.
    pub problem: TellProblem,
}

/// A running worker. Dropping it leaves the worker running: [`WorkerHandle::stop`] ends it.
pub struct WorkerHandle {
    identity: Identity,
    service: ServiceName,
    commands: QueueSender<WorkerCommand>,
    state: watch::Receiver<LinkState>,
    /// Its other end goes with the thread, however that ends.
    ended: watch::Receiver<()>,
}

impl WorkerHandle {
    /// Starts the thread that owns the link. Errors: the database cannot be opened, the thread cannot be started.
    pub fn start(options: WorkerOptions) -> Result<Self, StartError> {
        let identity = options.config.identity.clone();
        let service = options.config.service.clone();
        let waker = options.link.waker();
        let inbox = Inbox::new(waker.clone());
        let places = Places::new(options.queue_messages);
        // What has no place waits for room: ends of jobs, questions of built-in tasks, the order to stop.
        let (commands, received) = queue(places.capacity() + CONTROL_COMMANDS, waker);
        let (state_sender, state) = watch::channel(LinkState::default());
        let (running, ended) = watch::channel(());
        let run = Run::new(options, commands.clone(), places, received, inbox, state_sender)?;
        std::thread::Builder::new()
            .name(thread_name("w", identity.as_str()))
            .stack_size(OWNER_STACK_BYTES)
            .spawn(move || {
                let _running = running;
                run_promptly();
                run.run();
            })
            .map_err(|error| StartError::Thread { role: format!("worker {identity}"), error })?;
        Ok(Self { identity, service, commands, state, ended })
    }

    /// Its name.
    pub fn identity(&self) -> &Identity {
        &self.identity
    }

    /// Its service.
    pub fn service(&self) -> &ServiceName {
        &self.service
    }

    /// How it stands with its broker.
    pub fn state(&self) -> watch::Receiver<LinkState> {
        self.state.clone()
    }

    /// Takes nothing new, gives running jobs `drain` to end, then ends them, says good-bye and closes. Returns when the
    /// thread has ended.
    pub async fn stop(self, drain: Duration) {
        if self.commands.send_patiently(WorkerCommand::Stop { drain }).await == Ok(()) {
            self.ended().await;
        }
    }

    /// Waits until its thread has ended: because it was told to stop, or because it lost its link for good.
    pub fn ended(&self) -> impl Future<Output = ()> + Send + use<> {
        let mut ended = self.ended.clone();
        async move { while ended.changed().await.is_ok() {} }
    }

    /// Whether the owner still takes commands.
    pub fn is_running(&self) -> bool {
        !self.commands.is_stopped()
    }
}

/// Commands without a place that may wait for the owner at once: a job each that ends, and questions.
const CONTROL_COMMANDS: usize = 1024;

/// Stack of an owner's thread. It holds no large values; the default of 2 MiB would only be address space, but a thousand
/// workers in a process make it worth saying.
pub(crate) const OWNER_STACK_BYTES: usize = 512 << 10;

/// A thread's name as the system shows it: at most 15 bytes.
pub(crate) fn thread_name(role: &str, name: &str) -> String {
    let mut text = format!("{role}-{name}");
    while text.len() > 15 {
        text.pop();
    }
    text
}
