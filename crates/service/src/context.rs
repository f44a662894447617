//! What a running task knows, and how it speaks with its client.

use std::future;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use bytes::Bytes;
use norfab_protocol::body::{EventStatus, InputRequest, InputResponse, StreamCredit};
use norfab_protocol::{Event, EventType, Identity, JobId, ServiceName, TaskName};
use serde_json::{Map, Value, json};
use tokio::runtime::Handle;
use tokio::sync::{Mutex, mpsc};
use tokio::time;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use crate::content::Content;
use crate::event::EventDraft;
use crate::outlet::{SendError, TaskMessage, TaskOutlet};
use crate::port::{CREDITS_MAX, CancelReason, Shared, TaskPort};
use crate::question::{CreditError, InputError, Question};
use crate::service::Service;
use crate::view::{Clock, WorkerView};

/// What the worker knows of a job when it starts its task.
#[derive(Clone)]
pub struct ContextParts {
    /// The job.
    pub job: JobId,
    /// Who submitted it.
    pub client: Identity,
    /// The worker that runs it.
    pub worker: Identity,
    /// The service whose task it is.
    pub service: Arc<Service>,
    /// The task.
    pub task: TaskName,
    /// Seconds that the client waits, or the protocol's default where it did not say. Shown, and compared with the run
    /// time of a task that failed.
    pub timeout_seconds: u64,
    /// When the task is ended. `None` where the client did not say how long it waits: then nothing ends it.
    pub deadline: Option<Instant>,
    /// The way out.
    pub outlet: Arc<dyn TaskOutlet>,
    /// What may be seen of the worker.
    pub view: Arc<dyn WorkerView>,
    /// The clock.
    pub clock: Arc<dyn Clock>,
}

struct Inner {
    parts: ContextParts,
    shared: Arc<Shared>,
    credits: Mutex<mpsc::Receiver<StreamCredit>>,
    runtime: OnceLock<Handle>,
}

/// What a running task knows, and how it speaks with its client. Clones are the same context.
///
/// Methods that end in `_blocking` are for tasks made with [`crate::Task::blocking`]: they panic in an asynchronous task,
/// which becomes a failed result.
#[derive(Clone)]
pub struct TaskContext {
    inner: Arc<Inner>,
}

impl TaskContext {
    /// A context, and the port through which its worker reaches it.
    pub fn new(parts: ContextParts) -> (Self, TaskPort) {
        let (credits, received) = mpsc::channel(CREDITS_MAX);
        let shared = Arc::new(Shared::default());
        let port = TaskPort { shared: Arc::clone(&shared), credits };
        let inner = Inner { parts, shared, credits: Mutex::new(received), runtime: OnceLock::new() };
        (Self { inner: Arc::new(inner) }, port)
    }

    /// The job's id.
    pub fn job(&self) -> &JobId {
        &self.inner.parts.job
    }

    /// Who submitted the job.
    pub fn client(&self) -> &Identity {
        &self.inner.parts.client
    }

    /// The worker that runs it.
    pub fn worker(&self) -> &Identity {
        &self.inner.parts.worker
    }

    /// The name of the worker's service.
    pub fn service(&self) -> &ServiceName {
        self.inner.parts.service.name()
    }

    /// The service itself: its tasks and version.
    pub fn catalogue(&self) -> &Arc<Service> {
        &self.inner.parts.service
    }

    /// The task.
    pub fn task(&self) -> &TaskName {
        &self.inner.parts.task
    }

    /// Seconds that the client said it waits, or the protocol's default.
    pub fn timeout(&self) -> u64 {
        self.inner.parts.timeout_seconds
    }

    /// When the task is ended, where the client said how long it waits.
    pub fn deadline(&self) -> Option<Instant> {
        self.inner.parts.deadline
    }

    /// How long until the deadline: zero once it has passed, `None` where there is none.
    pub fn remaining(&self) -> Option<Duration> {
        let deadline = self.inner.parts.deadline?;
        Some(deadline.saturating_duration_since(self.clock().now()))
    }

    /// The clock.
    pub fn clock(&self) -> &dyn Clock {
        &*self.inner.parts.clock
    }

    /// What may be seen of the worker.
    pub fn view(&self) -> Arc<dyn WorkerView> {
        Arc::clone(&self.inner.parts.view)
    }

    /// The worker's merged inventory, with its secrets: show it to nobody.
    pub fn inventory(&self) -> Arc<Value> {
        self.inner.parts.view.inventory()
    }

    /// Cancelled when the job is to end. Hand it to what the task starts.
    pub fn cancelled(&self) -> CancellationToken {
        self.inner.shared.token().clone()
    }

    /// Whether the job is to end: for loops of blocking tasks.
    pub fn is_cancelled(&self) -> bool {
        self.inner.shared.token().is_cancelled()
    }

    /// Why the job is to end, once it is.
    pub fn cancel_reason(&self) -> Option<CancelReason> {
        self.inner.shared.cancel_reason().cloned()
    }

    /// Waits until the job is to end before its task has ended: somebody cancelled it, its deadline has passed, or the worker stops.
    /// Needs a runtime with timers.
    pub async fn to_end(&self) {
        let deadline = async {
            // Without a timer where it has passed: one of no time takes until its next tick.
            while let Some(left) = self.remaining().filter(|left| !left.is_zero()) {
                time::sleep(left).await;
            }
            if self.deadline().is_none() {
                future::pending::<()>().await;
            }
        };
        tokio::select! {
            biased;
            () = self.inner.shared.token().cancelled() => {}
            () = deadline => {}
        }
    }

    /// Sends an event to the client. Errors: the worker's queue stayed full, or the worker has stopped.
    pub async fn event(&self, draft: impl Into<EventDraft>) -> Result<(), SendError> {
        let message = self.progress(draft.into());
        self.inner.parts.outlet.send(message).await
    }

    /// As [`Self::event`], for blocking tasks.
    pub fn event_blocking(&self, draft: impl Into<EventDraft>) -> Result<(), SendError> {
        let message = self.progress(draft.into());
        self.inner.parts.outlet.send_blocking(message)
    }

    /// Sends bytes to the client. They arrive in order, and only if the client has asked for them: see
    /// [`Self::next_credit`]. Errors: as [`Self::event`].
    pub async fn stream(&self, chunk: Bytes) -> Result<(), SendError> {
        let message = TaskMessage::Stream(chunk);
        self.inner.parts.outlet.send(message).await
    }

    /// As [`Self::stream`], for blocking tasks.
    pub fn stream_blocking(&self, chunk: Bytes) -> Result<(), SendError> {
        self.inner.parts.outlet.send_blocking(TaskMessage::Stream(chunk))
    }

    /// Waits until the client is ready for another chunk. Errors: it did not say so in time, or the job ends.
    pub async fn next_credit(&self, timeout: Duration) -> Result<StreamCredit, CreditError> {
        let wait = async {
            let mut credits = self.inner.credits.lock().await;
            credits.recv().await
        };
        let cancelled = self.inner.shared.token().cancelled();
        tokio::select! {
            biased;
            credit = time::timeout(timeout, wait) => match credit {
                Ok(Some(credit)) => Ok(credit),
                // A port that is gone delivers nothing any more: the worker stops.
                Ok(None) => Err(CreditError::JobCancelled(CancelReason::WorkerStops)),
                Err(_) => Err(CreditError::TimedOut { seconds: timeout.as_secs() }),
            },
            () = cancelled => Err(CreditError::JobCancelled(self.reason_or_stop())),
        }
    }

    /// What the client has said meanwhile, one word after the other; `None`: nothing more, or somebody else waits for it. Does not
    /// wait: a wait of no length takes a millisecond, by the clock of the runtime.
    pub fn credit_so_far(&self) -> Option<StreamCredit> {
        self.inner.credits.try_lock().ok()?.try_recv().ok()
    }

    /// As [`Self::next_credit`], for blocking tasks.
    pub fn next_credit_blocking(&self, timeout: Duration) -> Result<StreamCredit, CreditError> {
        self.runtime().block_on(self.next_credit(timeout))
    }

    /// Takes what the client sends from now on, of which at most so many bytes wait for the task at once
    /// ([`crate::content::CONTENT_BYTES_MAX`] at most): more is refused, and the task is told. What comes before this is refused, so
    /// the client waits until the task says where to begin. Of two of a job the second one gets what comes. Needs a runtime.
    pub fn content(&self, bytes_max: usize) -> Content {
        let shared = Arc::clone(&self.inner.shared);
        Content::open(shared, self.inner.shared.content_slot(), bytes_max, self.runtime())
    }

    /// Asks the client and waits for its answer: its value, null where it is null, the question's default where the answer
    /// names no value. Several questions may wait at once. Errors: as [`InputError`].
    pub async fn ask(&self, question: Question) -> Result<Value, InputError> {
        let request = InputRequest {
            id: Uuid::new_v4().simple().to_string(),
            question: question.question,
            default: question.default,
            timeout: Some(question.timeout),
            metadata: Value::Object(question.metadata),
        };
        if let Some(reason) = self.cancel_reason() {
            let question = request.question;
            return Err(InputError::JobCancelled { question, reason });
        }
        // Open before it is sent: the answer may be faster than we are.
        let (open, answered) = self.inner.shared.open_question(request.clone()).ok_or(InputError::TooManyOpen)?;
        self.send_question(&request, question.timeout).await?;

        let cancelled = self.inner.shared.token().cancelled();
        let wait = time::timeout(Duration::from_secs(question.timeout), answered);
        let answer = tokio::select! {
            biased;
            answer = wait => answer,
            () = cancelled => return Err(self.question_lost(request)),
        };
        // Closed before its fate is told: nothing is open that the client believes closed.
        drop(open);
        match answer {
            Ok(Ok(response)) => self.answered(request, response).await,
            // Only the guard and `deliver` take a question away, and the guard is ours: the answer was on its way.
            Ok(Err(_)) => Err(self.question_lost(request)),
            Err(_) => {
                let fate = json!({ "input_id": request.id });
                self.send_fate(&request.question, EventStatus::Timeout, fate).await?;
                Err(InputError::TimedOut { question: request.question, seconds: question.timeout })
            }
        }
    }

    /// As [`Self::ask`], for blocking tasks.
    pub fn ask_blocking(&self, question: Question) -> Result<Value, InputError> {
        self.runtime().block_on(self.ask(question))
    }

    async fn answered(&self, request: InputRequest, response: InputResponse) -> Result<Value, InputError> {
        let metadata = match response.metadata {
            Value::Null => Value::Object(Map::new()),
            metadata => metadata,
        };
        let fate = json!({ "input_id": request.id, "metadata": metadata });
        let status = if response.cancel { EventStatus::Cancelled } else { EventStatus::Received };
        self.send_fate(&request.question, status, fate).await?;
        if response.cancel {
            let question = request.question;
            return Err(InputError::Cancelled { question });
        }
        Ok(response.value.unwrap_or(request.default))
    }

    /// The job ends with a question open: its client learns that no answer is awaited, if there is room to say so.
    fn question_lost(&self, request: InputRequest) -> InputError {
        let fate = json!({ "input_id": request.id, "metadata": {} });
        let message = self.fate(&request.question, EventStatus::Cancelled, fate);
        // The result of the job follows and says the same, so a full queue loses nothing.
        drop(self.inner.parts.outlet.try_send(message));
        InputError::JobCancelled { question: request.question, reason: self.reason_or_stop() }
    }

    async fn send_question(&self, request: &InputRequest, timeout: u64) -> Result<(), SendError> {
        let mut draft = EventDraft::new(&request.question).status(EventStatus::WaitingClientInput).timeout(timeout);
        draft = draft.extra("input_request", json!(request));
        let message = self.message(EventType::InputRequest, draft);
        self.inner.parts.outlet.send(message).await
    }

    async fn send_fate(&self, question: &str, status: EventStatus, fate: Value) -> Result<(), SendError> {
        let message = self.fate(question, status, fate);
        self.inner.parts.outlet.send(message).await
    }

    fn fate(&self, question: &str, status: EventStatus, fate: Value) -> TaskMessage {
        let draft = EventDraft::new(question).status(status).extra("input_response", fate);
        self.message(EventType::InputResponse, draft)
    }

    fn progress(&self, draft: EventDraft) -> TaskMessage {
        self.message(EventType::Progress, draft)
    }

    fn message(&self, event_type: EventType, draft: EventDraft) -> TaskMessage {
        let task = draft.task.unwrap_or_else(|| self.task().to_string());
        let timestamp = draft.timestamp.unwrap_or_else(|| self.clock().event_timestamp());
        TaskMessage::Event(Box::new(Event {
            worker: self.worker().clone(),
            service: self.service().clone(),
            uuid: self.job().clone(),
            event_type,
            message: draft.message,
            task,
            status: draft.status,
            resource: draft.resource,
            severity: draft.severity,
            timestamp,
            extras: draft.extras,
            timeout: draft.timeout,
        }))
    }

    fn reason_or_stop(&self) -> CancelReason {
        self.cancel_reason().unwrap_or(CancelReason::WorkerStops)
    }

    /// Ends the job from within: its deadline has passed.
    pub(crate) fn cancel(&self, reason: CancelReason) {
        self.inner.shared.cancel(reason);
    }

    /// Remembers the runtime that drives the task, for the blocking methods on threads of the task's own making.
    pub(crate) fn enter(&self, runtime: Handle) {
        self.inner.runtime.get_or_init(|| runtime);
    }

    fn runtime(&self) -> Handle {
        let remembered = self.inner.runtime.get();
        remembered.cloned().unwrap_or_else(Handle::current)
    }
}
