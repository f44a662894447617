//! Running tasks: what happens between a start and its result.

use std::future;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use norfab_protocol::body::{CANCELLATION_KEY, Event, EventStatus, JobRequestBody, Resource, Severity, cancel_text};
use norfab_protocol::worker::{Abandoned, Ending, StartJob, result_reply_of};
use norfab_protocol::{EventType, Identity, JobId, ResultStatus, TaskName, TaskResult};
use norfab_service::{
    BoxFuture, CancelReason, Clock, ContextParts, QueueFull, SendError, Service, TaskContext, TaskMessage, TaskOutlet,
    TaskPort, WorkerView,
};
use serde_json::{Map, Value};
use tokio::runtime::Handle;
use tokio::sync::oneshot;
use tracing::{Instrument, error, info};

use super::begun::{BegunTasks, NotWritten, write_beside_tasks};
use super::run::WorkerCommand;
use crate::clock::SystemClock;
use crate::queue::{Place, Places, QueueError, QueueSender, SEND_WAIT};

/// Bytes of a task's own errors that are kept where its result is larger than its worker sends: some screens of text.
const KEPT_ERROR_BYTES: usize = 8 << 10;

/// What all tasks of a worker share.
pub(super) struct Runner {
    pub(super) identity: Identity,
    pub(super) service: Arc<Service>,
    pub(super) commands: QueueSender<WorkerCommand>,
    pub(super) places: Places,
    pub(super) view: Arc<dyn WorkerView>,
    pub(super) runtime: Handle,
    pub(super) result_bytes_max: usize,
    pub(super) begun: BegunTasks,
}

/// The outbound queue as one job sees it.
struct Outlet {
    job: JobId,
    commands: QueueSender<WorkerCommand>,
    places: Places,
    runtime: Handle,
    /// Progress events for which there was no room. Their task was told; its client learns it with the result.
    without_room: Arc<AtomicU64>,
}

impl Outlet {
    async fn hand_over(&self, message: TaskMessage) -> Result<(), SendError> {
        let place = self.places.take().await.map_err(send_error)?;
        self.commands.send(self.wrap(message, place)).await.map_err(send_error)
    }

    fn wrap(&self, message: TaskMessage, place: Place) -> WorkerCommand {
        if let TaskMessage::Event(event) = &message {
            log(event);
        }
        WorkerCommand::Task { job: self.job.clone(), message, place }
    }
}

/// Copies an event into the log, where the inventory asks for it.
fn log(event: &Event) {
    let severity = match event.severity {
        Severity::Debug => norfab_logs::Level::Debug,
        Severity::Info => norfab_logs::Level::Info,
        Severity::Warning => norfab_logs::Level::Warning,
        Severity::Error => norfab_logs::Level::Error,
        Severity::Critical => norfab_logs::Level::Critical,
    };
    norfab_logs::log_event(&norfab_logs::EventLine {
        worker: event.worker.as_str(),
        task: &event.task,
        job_uuid: event.uuid.as_str(),
        event_type: match event.event_type {
            EventType::Progress => "progress",
            EventType::ResultReady => "result_ready",
            EventType::InputRequest => "input_request",
            EventType::InputResponse => "input_response",
        },
        severity,
        message: &event.message,
    });
}

fn send_error(error: QueueError) -> SendError {
    match error {
        QueueError::Full { capacity, waited } => SendError::QueueFull(QueueFull { capacity, waited }),
        QueueError::Stopped => SendError::Stopped,
    }
}

impl TaskOutlet for Outlet {
    fn try_send(&self, message: TaskMessage) -> Result<(), (SendError, TaskMessage)> {
        let place = match self.places.try_take() {
            Ok(place) => place,
            Err(error) => return Err((send_error(error), message)),
        };
        self.commands.try_send(self.wrap(message, place)).map_err(|(error, command)| match command {
            WorkerCommand::Task { message, .. } => (send_error(error), message),
            _ => unreachable!("the queue returns what it was given"),
        })
    }

    fn send(&self, message: TaskMessage) -> BoxFuture<'_, Result<(), SendError>> {
        Box::pin(async move {
            let progress = matches!(&message, TaskMessage::Event(event) if event.event_type == EventType::Progress);
            let sent = self.hand_over(message).await;
            if progress && matches!(sent, Err(SendError::QueueFull(_))) {
                self.without_room.fetch_add(1, Ordering::Relaxed);
            }
            sent
        })
    }

    fn send_blocking(&self, message: TaskMessage) -> Result<(), SendError> {
        // The usual case costs no runtime.
        match self.try_send(message) {
            Ok(()) => Ok(()),
            Err((SendError::Stopped, _)) => Err(SendError::Stopped),
            Err((SendError::QueueFull(_), message)) => self.runtime.block_on(self.send(message)),
        }
    }
}

/// Starts a task and returns the port through which it is reached. `stops`: those that run were told that the worker stops.
pub(super) fn start(runner: &Arc<Runner>, start: StartJob, stops: bool) -> (JobId, TaskPort) {
    let StartJob { job, client, request, timeout, attempt, deadline } = start;
    let JobRequestBody { task, kwargs, args, .. } = request;
    let without_room = Arc::new(AtomicU64::new(0));
    let outlet = Outlet {
        without_room: Arc::clone(&without_room),
        job: job.clone(),
        commands: runner.commands.clone(),
        places: runner.places.clone(),
        runtime: runner.runtime.clone(),
    };
    let parts = ContextParts {
        job: job.clone(),
        client,
        worker: runner.identity.clone(),
        service: Arc::clone(&runner.service),
        task: task.clone(),
        timeout_seconds: timeout,
        deadline,
        outlet: Arc::new(outlet),
        view: Arc::clone(&runner.view),
        clock: Arc::new(SystemClock),
    };
    let (context, port) = TaskContext::new(parts);
    if stops {
        port.cancel(CancelReason::WorkerStops);
    }
    let span = norfab_logs::role_span(norfab_logs::Role::Worker, runner.identity.as_str());
    let of_task = Arc::clone(runner);
    let id = job.clone();
    runner.runtime.spawn(
        async move {
            let runner = of_task;
            let written = write_to_begin(&runner, &context).await;
            if is_left(&runner, &context, attempt, &written).await {
                drop(context);
                leave(&runner, job).await;
                return;
            }
            let Some(mut result) = result_of(&runner, &context, written, args, kwargs).await else { return };
            if let Some(CancelReason::Requested(text)) = context.cancel_reason()
                && !result.errors.iter().any(|error| error.contains(&text))
            {
                // What it returns is what it had done until then, or all, if it did not listen.
                result.messages.push(text);
            }
            if attempt > 1 {
                result.messages.push(format!("attempt {attempt}: the worker was restarted while the job ran"));
            }
            let without_room = without_room.load(Ordering::Relaxed);
            if without_room > 0 {
                result.messages.push(format!(
                    "{without_room} progress events found no room in the worker's queue within {} ms",
                    SEND_WAIT.as_millis()
                ));
            }
            let ending = match (context.cancel_reason(), result.failed, result.status) {
                (Some(CancelReason::Requested(_)), _, _) => Ending::Cancelled,
                (_, true, Some(ResultStatus::Error | ResultStatus::Timeout)) => Ending::Failed,
                _ => Ending::Completed,
            };
            drop(context);
            finish(&runner, job, &task, ending, result).await;
        }
        .instrument(span),
    );
    (id, port)
}

/// Writes down that a task begins, unless its job is to end before that. Errors: it cannot begin.
async fn write_to_begin(runner: &Arc<Runner>, context: &TaskContext) -> Result<(), NotWritten> {
    if !runner.begun.is_open() {
        return Ok(());
    }
    // Where it is its turn at once nothing else is looked at.
    if is_to_end(context) {
        return Err(NotWritten::Unwanted);
    }
    let (of_write, id) = (Arc::clone(runner), context.job().clone());
    let write = move || of_write.begun.begins(&id);
    write_beside_tasks(&runner.runtime, runner.begun.turn(), context.to_end(), write).await
}

fn is_to_end(context: &TaskContext) -> bool {
    context.is_cancelled() || is_late(context)
}

fn is_late(context: &TaskContext) -> bool {
    context.remaining() == Some(Duration::ZERO)
}

/// Whether a job is left to the next process: the worker stops, its task has not begun, and that process will know it. One that was
/// cancelled or is late ends here, and so does one of which the next process would say that its task may have begun.
async fn is_left(runner: &Arc<Runner>, context: &TaskContext, attempt: u32, written: &Result<(), NotWritten>) -> bool {
    if context.cancel_reason() != Some(CancelReason::WorkerStops) || is_late(context) || !runner.begun.is_open() {
        return false;
    }
    match written {
        Err(NotWritten::Unwanted) if !runner.begun.has(context.job()) => true,
        // Also what was written in a process before: the database knows of that. Where it cannot be taken back, one that began before
        // is left all the same, as it may run more than once, and counts as begun once more.
        Ok(()) | Err(NotWritten::Unwanted) => take_back(runner, context.job()).await || attempt > 1,
        Err(NotWritten::Ends | NotWritten::Panicked) => false,
    }
}

/// Takes back that a task begins, which was written while the worker was told to stop. `false`: it counts as begun.
async fn take_back(runner: &Arc<Runner>, job: &JobId) -> bool {
    let (of_write, id) = (Arc::clone(runner), job.clone());
    let (tell, told) = oneshot::channel();
    // Whoever asks waits for it, unless the process ends.
    let write = move || {
        tell.send(of_write.begun.does_not_begin(&id)).ok();
    };
    let written = write_beside_tasks(&runner.runtime, runner.begun.turn(), future::pending(), write).await;
    written.is_ok() && told.await.unwrap_or(false)
}

/// Tells the worker's owner not to wait for a job. No end of it is told or stored.
async fn leave(runner: &Runner, job: JobId) {
    let worker = &runner.identity;
    info!(job_uuid = %job, "worker {worker}: job {job} has not begun and is left to the next process, as the worker stops");
    // An owner that has ended waits for nobody any more.
    runner.commands.send_patiently(WorkerCommand::Left { job }).await.ok();
}

/// Runs the task of a job, if it may begin. `None`: the process ends; the job is in its database as started, and the next process deals
/// with it.
async fn result_of(
    runner: &Runner,
    context: &TaskContext,
    written: Result<(), NotWritten>,
    args: Vec<Value>,
    kwargs: Map<String, Value>,
) -> Option<TaskResult> {
    match written {
        // One that waited until it was cancelled or late does not begin any more.
        Ok(()) | Err(NotWritten::Unwanted) => Some(runner.service.run(context.clone(), args, kwargs).await),
        Err(NotWritten::Ends) => None,
        Err(NotWritten::Panicked) => {
            let text = "the task did not begin, as writing that down panicked: the worker's log says more";
            error!(job_uuid = %context.job(), "worker {}: job {}: {text}", runner.identity, context.job());
            Some(not_run(runner, context.job(), context.task(), ResultStatus::Error, text.to_owned()))
        }
    }
}

async fn finish(runner: &Arc<Runner>, job: JobId, task: &TaskName, ending: Ending, result: TaskResult) {
    let reply = reply(runner, &job, result);
    let event = completed_event(runner, &job, task);
    let command = WorkerCommand::Finished { job, ending, reply, event };
    // The end of a job waits as long as it takes. An error says that the worker has stopped: the job is in its database
    // as started, and the next process deals with it.
    if let Err(error) = runner.commands.send_patiently(command).await {
        info!("worker {}: a job ended after the worker: {error}", runner.identity);
    }
}

/// The body of the 200. A result beyond the limit is replaced by one that says so and keeps how the task ended.
fn reply(runner: &Runner, job: &JobId, result: TaskResult) -> Bytes {
    let written = result_reply_of(&runner.identity, &result);
    let problem = match written {
        Ok(reply) if reply.len() <= runner.result_bytes_max => return reply,
        Ok(reply) => format!(
            "the result has {} bytes of JSON, more than the {} that worker {} sends: ask for less at once, or raise \
             result_bytes_max in its inventory",
            reply.len(),
            runner.result_bytes_max,
            runner.identity
        ),
        Err(error) => format!("the result cannot be written as JSON: {error}"),
    };
    error!(job_uuid = %job, "job {job}: {problem}");
    let outcome = if result.failed { "failed" } else { "succeeded" };
    // Why the task failed is what its caller needs most.
    let mut room = KEPT_ERROR_BYTES.min(runner.result_bytes_max);
    let fits = |error: &String| {
        let fits = error.len() <= room;
        room = room.saturating_sub(error.len());
        fits
    };
    let errors = std::iter::once(problem).chain(result.errors.into_iter().take_while(fits)).collect();
    let replaced = TaskResult {
        result: TaskResult::default().result,
        diff: None,
        resources: Vec::new(),
        resources_failed: Vec::new(),
        failed: true,
        messages: vec![format!("the task itself {outcome}, only its result is missing")],
        errors,
        ..result
    };
    result_reply_of(&runner.identity, &replaced).expect("texts can be written as JSON")
}

fn event(
    runner: &Runner,
    job: &JobId,
    task: &TaskName,
    event_type: EventType,
    message: &str,
    status: EventStatus,
) -> Event {
    Event {
        worker: runner.identity.clone(),
        service: runner.service.name().clone(),
        uuid: job.clone(),
        event_type,
        message: message.to_owned(),
        task: task.to_string(),
        status,
        resource: Resource::default(),
        severity: Severity::Info,
        timestamp: SystemClock::event_timestamp(),
        extras: None,
        timeout: None,
    }
}

/// The first event of a job. Its owner sends it with the start, before anything that the task says.
pub(super) fn starting_event(runner: &Runner, job: &JobId, task: &TaskName) -> Bytes {
    let event = event(runner, job, task, EventType::Progress, "starting", EventStatus::Running);
    log(&event);
    norfab_protocol::body::encode(&event)
}

fn completed_event(runner: &Runner, job: &JobId, task: &TaskName) -> Bytes {
    let event = event(runner, job, task, EventType::ResultReady, "completed", EventStatus::Completed);
    log(&event);
    norfab_protocol::body::encode(&event)
}

/// The event that says that a job was cancelled, by whom, when and why.
pub(super) fn cancelled_event(runner: &Runner, job: &JobId, task: &TaskName, why: &Abandoned, text: &str) -> Bytes {
    let mut event = event(runner, job, task, EventType::Progress, text, EventStatus::Cancelled);
    event.severity = Severity::Warning;
    if !matches!(why, Abandoned::Cancelled { back: true, .. }) {
        event.extras = serde_json::json!({ CANCELLATION_KEY: { "text": text } }).as_object().cloned();
    }
    log(&event);
    norfab_protocol::body::encode(&event)
}

/// Why a job is given up, for people.
pub(super) fn reason(why: &Abandoned) -> String {
    match why {
        Abandoned::Expired => "its deadline passed before it started".to_owned(),
        Abandoned::Cancelled { text: Some(text), .. } => text.clone(),
        Abandoned::Cancelled { by, reason, text: None, .. } => {
            cancel_text(by.as_str(), &SystemClock::ctime(), reason.as_deref())
        }
        Abandoned::Unreadable(error) => format!("its request cannot be read: {error}"),
        Abandoned::Restarted => "worker restarted while the job ran, or before its end was stored".to_owned(),
    }
}

/// The result of a job that will not run.
pub(super) fn abandoned(runner: &Runner, job: &JobId, task: &TaskName, why: &Abandoned) -> (Ending, Bytes, Bytes) {
    let (status, ending) = match why {
        Abandoned::Expired => (ResultStatus::Timeout, Ending::Failed),
        Abandoned::Cancelled { .. } => (ResultStatus::Failed, Ending::Cancelled),
        Abandoned::Restarted | Abandoned::Unreadable(_) => (ResultStatus::Error, Ending::Failed),
    };
    let result = not_run(runner, job, task, status, reason(why));
    (ending, reply(runner, job, result), completed_event(runner, job, task))
}

fn not_run(runner: &Runner, job: &JobId, task: &TaskName, status: ResultStatus, why: String) -> TaskResult {
    TaskResult {
        task: Some(format!("{}:{}", runner.identity, task)),
        juuid: Some(job.to_string()),
        service: Some(runner.service.name().to_string()),
        task_completed: Some(SystemClock.ctime()),
        ..TaskResult::failed(status, why)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicBool;

    use norfab_protocol::ServiceName;
    use norfab_service::testing::{TestView, TestWorker};
    use norfab_service::{NoInput, Task};
    use norfab_transport::DealerLink;
    use norfab_transport::memory::MemoryNetwork;
    use serde_json::json;
    use tokio::sync::mpsc;

    use super::super::begun::Before;
    use super::*;
    use crate::queue::queue;

    /// Far more than anything here takes.
    const PATIENCE: Duration = Duration::from_secs(20);

    /// A worker with one task, which says when it has run.
    struct Bench {
        runner: Arc<Runner>,
        commands: mpsc::Receiver<WorkerCommand>,
        ran: Arc<AtomicBool>,
        _folder: tempfile::TempDir,
        begun_file: std::path::PathBuf,
    }

    impl Bench {
        fn new() -> Self {
            let ran = Arc::new(AtomicBool::new(false));
            let of_task = Arc::clone(&ran);
            let task = Task::new("t", "", move |_: TaskContext, _: NoInput| {
                let ran = Arc::clone(&of_task);
                async move {
                    ran.store(true, Ordering::SeqCst);
                    Ok("ran")
                }
            });
            let link = MemoryNetwork::new().dealer("memory", b"w", 8).expect("a link");
            let (sender, commands) = queue(8, link.waker());
            let runner = Runner {
                identity: Identity::parse("w").expect("a name"),
                service: Arc::new(Service::new(ServiceName::parse("s").expect("a name")).task(task)),
                commands: sender,
                places: Places::new(8),
                view: Arc::new(TestView::default()),
                runtime: Handle::current(),
                result_bytes_max: 1 << 20,
                begun: BegunTasks::default(),
            };
            let folder = tempfile::tempdir().expect("a folder");
            let begun_file = folder.path().join("begun");
            runner.begun.open(Some(&begun_file), 1, Vec::new());
            Self { runner: Arc::new(runner), commands, ran, _folder: folder, begun_file }
        }

        fn job(&self, left: Option<Duration>) -> StartJob {
            StartJob {
                job: JobId::parse("1").expect("a name"),
                client: Identity::parse("c").expect("a name"),
                request: norfab_protocol::body::decode("a job request", br#"{"task":"t"}"#).expect("a request"),
                timeout: 60,
                attempt: 1,
                deadline: left.map(|left| SystemClock::now() + left),
            }
        }

        /// The end of the job, and what its result says.
        async fn end(&mut self) -> (Ending, Value) {
            let command = tokio::time::timeout(PATIENCE, self.commands.recv()).await.expect("in time").expect("one");
            let WorkerCommand::Finished { ending, reply, .. } = command else { panic!("it says something else") };
            let mut result: Value = serde_json::from_slice(&reply).expect("JSON");
            (ending, result["w"].take())
        }

        fn has_begun(&self) -> bool {
            let job = JobId::parse("1").expect("a name");
            self.ran.load(Ordering::SeqCst) || Before::read(Some(&self.begun_file)).may_have_begun(&job)
        }
    }

    #[tokio::test]
    async fn a_job_that_is_cancelled_or_late_while_it_waits_for_the_disk_ends_and_never_begins() {
        for (cancelled, left, ending, status) in [
            (true, Some(PATIENCE), Ending::Cancelled, "failed"),
            (true, None, Ending::Cancelled, "failed"),
            (false, Some(Duration::from_millis(1)), Ending::Failed, "timeout"),
        ] {
            let mut bench = Bench::new();
            let runner = Arc::clone(&bench.runner);
            // The write of another task, which hangs.
            let _hangs = runner.begun.turn().lock().await;
            let (_, port) = start(&bench.runner, bench.job(left), false);
            // It waits for its turn then.
            tokio::task::yield_now().await;
            if cancelled {
                port.cancel(CancelReason::Requested("cancelled by me".to_owned()));
            }
            let (end, result) = bench.end().await;
            assert_eq!((end, &result["status"]), (ending, &json!(status)), "{result}");
            assert!(!bench.has_begun());
        }
    }

    #[tokio::test]
    async fn a_job_whose_task_has_not_begun_as_its_worker_stops_is_left_to_the_next_process() {
        for stops_before in [true, false] {
            let mut bench = Bench::new();
            let runner = Arc::clone(&bench.runner);
            // The write of another task, which hangs.
            let hangs = if stops_before { None } else { Some(runner.begun.turn().lock().await) };
            let (job, port) = start(&bench.runner, bench.job(None), stops_before);
            // It waits for its turn then.
            tokio::task::yield_now().await;
            port.cancel(CancelReason::WorkerStops);
            let command = tokio::time::timeout(PATIENCE, bench.commands.recv()).await.expect("in time").expect("one");
            assert!(matches!(command, WorkerCommand::Left { job: left } if left == job), "no end is told");
            assert!(!bench.has_begun());
            drop(hangs);
        }
    }

    #[tokio::test]
    async fn that_a_task_begins_is_taken_back_where_its_worker_was_told_to_stop_meanwhile() {
        let bench = Bench::new();
        let worker = TestWorker::new(Service::new(ServiceName::parse("s").expect("a name")));
        let (context, port, _messages) = worker.context("t");
        let is_written = || Before::read(Some(&bench.begun_file)).may_have_begun(context.job());
        bench.runner.begun.begins(context.job());
        assert!(!is_left(&bench.runner, &context, 1, &Ok(())).await && is_written(), "it begins");
        port.cancel(CancelReason::WorkerStops);
        assert!(!is_left(&bench.runner, &context, 1, &Err(NotWritten::Panicked)).await && is_written());
        for (attempt, written) in [(1, Ok(())), (2, Ok(())), (2, Err(NotWritten::Unwanted))] {
            bench.runner.begun.begins(context.job());
            assert!(is_left(&bench.runner, &context, attempt, &written).await);
            assert!(!is_written(), "the next process would count an attempt that did not begin: {attempt} {written:?}");
        }
        assert!(is_left(&bench.runner, &context, 1, &Err(NotWritten::Unwanted)).await, "it is written nowhere");
        // What cannot be taken back.
        assert!(is_left(&bench.runner, &context, 2, &Ok(())).await, "it may run more than once");
        assert!(!is_left(&bench.runner, &context, 1, &Ok(())).await, "the next process would end it as interrupted");
    }

    #[tokio::test]
    async fn a_job_of_which_the_next_process_would_not_know_that_it_has_not_begun_ends_as_its_worker_stops() {
        let mut bench = Bench::new();
        let runner = Arc::get_mut(&mut bench.runner).expect("nobody else has it");
        runner.begun = BegunTasks::default();
        drop(start(&bench.runner, bench.job(None), true));
        let (ending, result) = bench.end().await;
        assert_eq!(
            (ending, &result["errors"][0]),
            (Ending::Failed, &json!("the task did not begin: the worker stops"))
        );
        assert!(!bench.ran.load(Ordering::SeqCst));
    }

    #[tokio::test]
    async fn a_job_of_which_a_fault_kept_it_from_being_written_down_that_it_begins_ends_as_failed() {
        let bench = Bench::new();
        let worker = TestWorker::new(Service::new(ServiceName::parse("s").expect("a name")));
        let (context, _port, _messages) = worker.context("t");
        let run = |written| result_of(&bench.runner, &context, written, Vec::new(), Map::new());
        assert!(run(Err(NotWritten::Ends)).await.is_none());
        let result = run(Err(NotWritten::Panicked)).await.expect("an end");
        assert!(result.failed && !bench.has_begun(), "{:?}", result.errors);
        assert_eq!(run(Ok(())).await.expect("an end").value(), Some(json!("ran")));
    }
}
