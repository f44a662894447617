//! Runs tasks without a fabric: for the tests of services.
//!
//! ```
//! # use norfab_service::{NoInput, Service, ServiceName, Task, TaskContext, testing::TestWorker};
//! # #[tokio::main]
//! # async fn main() {
//! let service = Service::new(ServiceName::parse("demo").expect("a name")).task(Task::new(
//!     "hello",
//!     "Says hello.",
//!     async |context: TaskContext, _: NoInput| {
//!         context.event("thinking").await?;
//!         Ok("hello")
//!     },
//! ));
//! let mut job = TestWorker::new(service).start("hello", serde_json::json!({}));
//! assert_eq!(job.event().await.message, "thinking");
//! assert_eq!(job.result().await.value(), Some("hello".into()));
//! # }
//! ```

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use norfab_protocol::body::{InputRequest, InputResponse, PutBody};
use norfab_protocol::{Event, Identity, JobId, TaskName, TaskResult};
use serde_json::{Map, Value, json};
use tokio::runtime::Handle;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time;

use crate::BoxFuture;
use crate::context::{ContextParts, TaskContext};
use crate::outlet::{QueueFull, SendError, TaskMessage, TaskOutlet};
use crate::port::{DeliverError, TaskPort};
use crate::service::Service;
use crate::view::{Clock, JobDetailsQuery, JobFilter, LogFilter, ViewError, WorkerView};

/// How long a test waits for what must come: longer than any wait of a task without settings of its own, as paused time
/// passes by itself.
const PATIENCE: Duration = Duration::from_secs(180);

/// How long a send waits for room in a full test outlet.
pub const SEND_WAIT: Duration = Duration::from_millis(100);

/// Messages that a test outlet holds, unless told otherwise.
const OUTLET_MESSAGES: usize = 256;

/// The id of every test job.
pub const TEST_JOB: &str = "0123456789abcdef0123456789abcdef";

/// An outlet whose other side is a test.
pub struct TestOutlet {
    messages: mpsc::Sender<TaskMessage>,
}

impl TestOutlet {
    /// An outlet that holds so many messages, and its other side. Dropping that side stops the outlet.
    pub fn new(capacity: usize) -> (Self, mpsc::Receiver<TaskMessage>) {
        let (messages, received) = mpsc::channel(capacity);
        (Self { messages }, received)
    }

    fn full(&self, waited: Duration) -> SendError {
        let capacity = self.messages.max_capacity();
        SendError::QueueFull(QueueFull { capacity, waited })
    }
}

impl TaskOutlet for TestOutlet {
    fn try_send(&self, message: TaskMessage) -> Result<(), (SendError, TaskMessage)> {
        self.messages.try_send(message).map_err(|refused| match refused {
            mpsc::error::TrySendError::Full(message) => (self.full(Duration::ZERO), message),
            mpsc::error::TrySendError::Closed(message) => (SendError::Stopped, message),
        })
    }

    fn send(&self, message: TaskMessage) -> BoxFuture<'_, Result<(), SendError>> {
        Box::pin(async move {
            match time::timeout(SEND_WAIT, self.messages.send(message)).await {
                Ok(sent) => sent.map_err(|_| SendError::Stopped),
                Err(_) => Err(self.full(SEND_WAIT)),
            }
        })
    }

    fn send_blocking(&self, message: TaskMessage) -> Result<(), SendError> {
        Handle::current().block_on(self.send(message))
    }
}

/// A clock whose texts stand still and whose time is tokio's, which tests can pause.
#[derive(Debug, Clone, Copy, Default)]
pub struct TestClock;

impl Clock for TestClock {
    fn now(&self) -> Instant {
        time::Instant::now().into_std()
    }

    fn event_timestamp(&self) -> String {
        "30-Nov-2026 00:33:08.011".to_owned()
    }

    fn ctime(&self) -> String {
        "Mon Nov 30 00:33:08 2026".to_owned()
    }

    fn utc(&self) -> String {
        "2026-11-30T00:33:08.011000+00:00".to_owned()
    }
}

/// A view of a worker that has done nothing yet.
#[derive(Debug, Clone)]
pub struct TestView {
    /// What `inventory` tells.
    pub inventory: Arc<Value>,
    /// What `fetched_files_dir` tells.
    pub fetched_files_dir: PathBuf,
}

impl Default for TestView {
    fn default() -> Self {
        Self { inventory: Arc::new(json!({})), fetched_files_dir: PathBuf::from("fetchedfiles") }
    }
}

fn ready<'a, Answer: Send + 'a>(answer: Answer) -> BoxFuture<'a, Result<Answer, ViewError>> {
    Box::pin(async move { Ok(answer) })
}

impl WorkerView for TestView {
    fn job_details(&self, _: JobDetailsQuery) -> BoxFuture<'_, Result<Option<Value>, ViewError>> {
        ready(None)
    }

    fn job_list(&self, _: JobFilter) -> BoxFuture<'_, Result<Vec<Value>, ViewError>> {
        ready(Vec::new())
    }

    fn logs(&self, _: LogFilter) -> BoxFuture<'_, Result<Vec<Value>, ViewError>> {
        ready(Vec::new())
    }

    fn stats(&self) -> BoxFuture<'_, Result<Value, ViewError>> {
        ready(json!({}))
    }

    fn status(&self) -> BoxFuture<'_, Result<Value, ViewError>> {
        ready(json!({}))
    }

    fn watchdog_stats(&self) -> BoxFuture<'_, Result<Value, ViewError>> {
        ready(json!({}))
    }

    fn watchdog_configuration(&self) -> BoxFuture<'_, Result<Value, ViewError>> {
        ready(json!({}))
    }

    fn inventory(&self) -> Arc<Value> {
        Arc::clone(&self.inventory)
    }

    fn version(&self) -> Value {
        json!({})
    }

    fn fetched_files_dir(&self) -> PathBuf {
        self.fetched_files_dir.clone()
    }
}

/// Runs the tasks of a service. Its methods panic where a test went wrong.
pub struct TestWorker {
    service: Arc<Service>,
    view: Arc<dyn WorkerView>,
    timeout: Option<u64>,
    outlet_messages: usize,
}

impl TestWorker {
    /// A worker named `test-worker` with a client named `test-client` that waits for ever.
    pub fn new(service: Service) -> Self {
        Self {
            service: Arc::new(service),
            view: Arc::new(TestView::default()),
            timeout: None,
            outlet_messages: OUTLET_MESSAGES,
        }
    }

    /// What tasks see of the worker.
    pub fn view(mut self, view: impl WorkerView + 'static) -> Self {
        self.view = Arc::new(view);
        self
    }

    /// How many seconds the client waits.
    pub fn timeout(mut self, seconds: u64) -> Self {
        self.timeout = Some(seconds);
        self
    }

    /// How many messages wait for the test before a task finds its outlet full.
    pub fn outlet_messages(mut self, messages: usize) -> Self {
        self.outlet_messages = messages;
        self
    }

    /// A context and its port, and the messages that come out.
    pub fn context(&self, task: &str) -> (TaskContext, TaskPort, mpsc::Receiver<TaskMessage>) {
        let (outlet, messages) = TestOutlet::new(self.outlet_messages);
        let clock = TestClock;
        let deadline = self.timeout.map(|seconds| clock.now() + Duration::from_secs(seconds));
        let (context, port) = TaskContext::new(ContextParts {
            job: JobId::parse(TEST_JOB).expect("a job id"),
            client: Identity::parse("test-client").expect("a name"),
            worker: Identity::parse("test-worker").expect("a name"),
            service: Arc::clone(&self.service),
            task: TaskName::parse(task).expect("a task name"),
            timeout_seconds: self.timeout.unwrap_or(norfab_protocol::body::DEFAULT_JOB_TIMEOUT_SECONDS),
            deadline,
            outlet: Arc::new(outlet),
            view: Arc::clone(&self.view),
            clock: Arc::new(clock),
        });
        (context, port, messages)
    }

    /// Starts a task with named arguments.
    pub fn start(&self, task: &str, kwargs: Value) -> TestJob {
        self.start_with(task, json!([]), kwargs)
    }

    /// Starts a task with arguments by position and by name.
    pub fn start_with(&self, task: &str, args: Value, kwargs: Value) -> TestJob {
        let (Value::Array(args), Value::Object(kwargs)) = (args, kwargs) else {
            panic!("args are a list and kwargs an object");
        };
        let (context, port, messages) = self.context(task);
        let service = Arc::clone(&self.service);
        TestJob { port, messages, running: tokio::spawn(async move { service.run(context, args, kwargs).await }) }
    }

    /// Runs a task with named arguments to its end.
    pub async fn run(&self, task: &str, kwargs: Value) -> TaskResult {
        self.start(task, kwargs).result().await
    }
}

/// A running task of a [`TestWorker`].
pub struct TestJob {
    port: TaskPort,
    messages: mpsc::Receiver<TaskMessage>,
    running: JoinHandle<TaskResult>,
}

impl TestJob {
    /// The worker's half of the task.
    pub fn port(&self) -> &TaskPort {
        &self.port
    }

    /// The next message of the task.
    pub async fn message(&mut self) -> TaskMessage {
        time::timeout(PATIENCE, self.messages.recv())
            .await
            .expect("the task sends nothing")
            .expect("the task has ended")
    }

    /// The next message, which is an event.
    pub async fn event(&mut self) -> Event {
        match self.message().await {
            TaskMessage::Event(event) => *event,
            TaskMessage::Stream(chunk) => panic!("{} bytes instead of an event", chunk.len()),
        }
    }

    /// The next message, which is a question.
    pub async fn question(&mut self) -> InputRequest {
        let event = self.event().await;
        event.input_request().expect("the event is no question")
    }

    /// Answers a question with a value.
    pub fn answer(&self, question: &InputRequest, value: impl Into<Value>) -> Result<(), DeliverError> {
        self.port.deliver(PutBody::Input(InputResponse {
            input_id: question.id.clone(),
            value: Some(value.into()),
            cancel: false,
            metadata: Value::Object(Map::new()),
        }))
    }

    /// Waits for the end. Events that nobody took stay where they are.
    pub async fn result(self) -> TaskResult {
        time::timeout(PATIENCE, self.running).await.expect("the task does not end").expect("tasks never panic")
    }
}
