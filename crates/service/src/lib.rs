//! What the author of a service sees: services, tasks, their context and their results.
//!
//! A [`Service`] is a name and its [`Task`]s. A task has a typed input, which is read and checked before it runs, and gets a
//! [`TaskContext`]: who asks, how long they wait, and the way to tell them something, ask them something, or send them bytes.
//!
//! ```
//! use norfab_service::schemars::{self, JsonSchema};
//! use norfab_service::{BuiltinPolicy, EventDraft, Question, Service, ServiceName, Task, TaskContext, TaskError};
//! use serde::Deserialize;
//!
//! /// What clients give: a wrong or missing argument is refused with its name before anything runs.
//! #[derive(Deserialize, JsonSchema)]
//! struct Reboot {
//!     /// Which switch.
//!     switch: String,
//!     /// Whether not to ask.
//!     #[serde(default)]
//!     force: bool,
//! }
//!
//! async fn reboot(context: TaskContext, input: Reboot) -> Result<String, TaskError> {
//!     if !input.force && context.ask(Question::new("reboot now?").default(false)).await? != true {
//!         return Err(TaskError::new("not rebooted: the client said no"));
//!     }
//!     context.event(EventDraft::new("rebooting").resource(&input.switch)).await?;
//!     Ok(format!("{} is up again", input.switch))
//! }
//!
//! let service = Service::new(ServiceName::parse("power")?)
//!     .task(Task::new("reboot", "Reboots a switch.", reboot))
//!     .with_builtin_tasks(BuiltinPolicy::default());
//! # use norfab_service::testing::TestWorker;
//! # tokio::runtime::Runtime::new()?.block_on(async {
//! let mut job = TestWorker::new(service).start("reboot", serde_json::json!({"switch": "sw-1"}));
//! let question = job.question().await;
//! job.answer(&question, true)?;
//! let result = job.result().await;
//! assert_eq!(result.value(), Some("sw-1 is up again".into()));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! # })?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! A longer one is in `examples/greeter.rs`.
//!
//! Reading order: [`service`], [`task`], [`context`], [`output`]; then [`event`] and [`question`] (what a task says and
//! asks), [`port`], [`outlet`] and [`view`] (the worker's side of a running task), [`builtin`] (the tasks that every worker
//! has) and [`testing`] (run a task without a fabric).
#![warn(missing_docs)]

use std::future::Future;
use std::pin::Pin;

pub mod arguments;
pub mod builtin;
pub mod content;
pub mod context;
pub mod event;
pub mod outlet;
pub mod output;
pub mod port;
pub mod question;
mod schema;
pub mod service;
mod supervision;
pub mod task;
pub mod testing;
pub mod view;

pub use arguments::ArgumentError;
pub use builtin::BuiltinPolicy;
pub use content::{Content, ContentError};
pub use context::{ContextParts, TaskContext};
pub use event::EventDraft;
pub use outlet::{QueueFull, SendError, TaskMessage, TaskOutlet};
pub use output::{TaskError, TaskOutput};
pub use port::{CREDITS_MAX, CancelReason, DeliverError, QUESTIONS_MAX, TaskPort};
pub use question::{CreditError, InputError, Question};
pub use service::Service;
pub use supervision::{CANCEL_GRACE, give_way, on_blocking_thread};
pub use task::{NoInput, Task};
pub use view::{Clock, JobDetailsQuery, JobFilter, LogFilter, ViewError, WorkerView};

// What authors name in their signatures, so that a service needs this crate only.
pub use bytes::Bytes;
pub use norfab_protocol::body::{EventStatus, Resource, StreamCredit};
pub use norfab_protocol::{
    Event, EventType, Identity, JobId, NameError, ResultStatus, ServiceName, Severity, TaskName, TaskResult,
};
pub use schemars;

/// A future behind a pointer, as the traits of this crate return it.
pub type BoxFuture<'a, Output> = Pin<Box<dyn Future<Output = Output> + Send + 'a>>;
