//! Runs a task's future so that it ends: by itself, at its deadline, or when it is cancelled, and never with a panic.

use std::any::Any;
use std::future::{self, Future};
use std::panic::{self, AssertUnwindSafe};
use std::pin::Pin;
use std::task::{Context, Poll};
use std::thread;
use std::time::Duration;

use norfab_protocol::ResultStatus;
use tokio::runtime::Handle;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio::{task, time};

use crate::BoxFuture;
use crate::context::TaskContext;
use crate::output::TaskError;
use crate::port::CancelReason;
use crate::task::Outcome;

/// How long a task that is to end may take to return what it has. Long enough to kill a command and read what it wrote,
/// short enough that a worker's stop does not look like a hang.
pub const CANCEL_GRACE: Duration = Duration::from_secs(5);

/// Drives a task to its end. What ends it from outside is an error that says so. A job that has waited since it was taken may be
/// cancelled or late by now: its task does not begin then.
pub(crate) async fn supervise(context: &TaskContext, work: BoxFuture<'static, Outcome>) -> Outcome {
    if let Ok(runtime) = Handle::try_current() {
        context.enter(runtime);
    }
    let mut work = Caught { work: Some(work), begun: false };
    tokio::select! {
        biased;
        () = context.to_end() => {}
        outcome = Pin::new(&mut work) => return outcome,
    };
    let is_late = !context.is_cancelled();
    if !work.begun {
        if is_late {
            context.cancel(CancelReason::Deadline);
        }
        return Err(not_begun(context));
    }
    // What is done already stands, whatever came at the same time.
    if let Poll::Ready(outcome) = future::poll_fn(|polled| Poll::Ready(Pin::new(&mut work).poll(polled))).await {
        return outcome;
    }
    if is_late {
        context.cancel(CancelReason::Deadline);
    }
    match time::timeout(CANCEL_GRACE, Pin::new(&mut work)).await {
        Ok(outcome) => outcome,
        Err(_) => {
            // Dropped here, so that what it holds is free before its result is told.
            drop(work);
            Err(abandoned(context))
        }
    }
}

/// Why a job that waited since it was taken is not to begin. `None`: it may.
pub(crate) fn refusal_to_begin(context: &TaskContext) -> Option<TaskError> {
    (context.is_cancelled() || context.remaining() == Some(Duration::ZERO)).then(|| not_begun(context))
}

/// The error of a task that did not begin: it was cancelled, else its deadline has passed, else the worker stops.
fn not_begun(context: &TaskContext) -> TaskError {
    let reason = context.cancel_reason().filter(|reason| matches!(reason, CancelReason::Requested(_)));
    let is_late = context.remaining() == Some(Duration::ZERO);
    let reason = reason.or_else(|| is_late.then_some(CancelReason::Deadline)).or_else(|| context.cancel_reason());
    let error = TaskError::new(match &reason {
        Some(reason) => format!("the task did not begin: {reason}"),
        // Nobody asks without a reason.
        None => "the task did not begin".to_owned(),
    });
    if reason == Some(CancelReason::Deadline) { error.status(ResultStatus::Timeout) } else { error }
}

fn abandoned(context: &TaskContext) -> TaskError {
    TaskError::new(match context.cancel_reason() {
        Some(CancelReason::Deadline) => format!("the task did not end within its time-out of {} s", context.timeout()),
        Some(reason) => format!("the task was ended: {reason}"),
        // The token is cancelled only after its reason was set.
        None => "the task was ended".to_owned(),
    })
}

fn panicked(payload: Box<dyn Any + Send>) -> TaskError {
    let text = match payload.downcast::<String>() {
        Ok(text) => *text,
        Err(payload) => match payload.downcast::<&'static str>() {
            Ok(text) => (*text).to_owned(),
            Err(_) => "a value that is no text".to_owned(),
        },
    };
    TaskError::new(format!("the task panicked: {text}"))
}

/// Runs a function on a thread that may block, for the part of a task that works on files or computes. A panic goes on to who
/// waits for it. Where all such threads are taken it waits for one, and does not run any more if whoever waits for it has gone.
/// Errors: the runtime stops.
pub async fn on_blocking_thread<Output: Send + 'static>(
    run: impl FnOnce() -> Output + Send + 'static,
) -> Result<Output, TaskError> {
    let mut running = NotLeftBehind(task::spawn_blocking(run));
    match (&mut running.0).await {
        Ok(output) => Ok(output),
        Err(error) => match error.try_into_panic() {
            Ok(payload) => panic::resume_unwind(payload),
            Err(error) => Err(TaskError::new(format!("the runtime stopped before the task could run: {error}"))),
        },
    }
}

/// By how much a yielding thread is nicer than others: the scheduler gives it a tenth of what it gives one of them that is
/// as busy, and all of what they leave.
#[cfg(target_os = "linux")]
const NICENESS: i32 = 10;

/// Lets the calling thread, and those that it makes from now on, give way to others. It cannot be taken back. Where the system
/// does not allow it, everything is as before.
pub fn give_way() {
    // Elsewhere it is the whole process that this is about.
    #[cfg(target_os = "linux")]
    if let Ok(niceness) = rustix::process::getpriority_process(None) {
        rustix::process::setpriority_process(None, niceness + NICENESS).ok();
    }
}

/// As [`on_blocking_thread`], on a thread of its own that gives way to others. It can wait for futures with the runtime's handle.
/// Errors: there can be no thread more.
pub(crate) async fn on_yielding_thread<Output: Send + 'static>(
    run: impl FnOnce() -> Output + Send + 'static,
) -> Result<Output, TaskError> {
    let (sender, output) = oneshot::channel();
    let runtime = Handle::current();
    let body = move || {
        give_way();
        let _entered = runtime.enter();
        // Nobody reads it where the task was given up.
        drop(sender.send(panic::catch_unwind(AssertUnwindSafe(run))));
    };
    if let Err(error) = thread::Builder::new().name("yielding".to_owned()).spawn(body) {
        return Err(TaskError::new(format!("the task has no thread to run on: {error}")));
    }
    match output.await {
        Ok(Ok(output)) => Ok(output),
        Ok(Err(payload)) => panic::resume_unwind(payload),
        Err(_) => Err(TaskError::new("the thread of the task ended without a result")),
    }
}

/// Takes back what has not begun when it is dropped.
struct NotLeftBehind<Output>(JoinHandle<Output>);

impl<Output> Drop for NotLeftBehind<Output> {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// A future whose panics are errors, when it is polled and when it is dropped.
struct Caught {
    work: Option<BoxFuture<'static, Outcome>>,
    /// It was polled: the task has begun.
    begun: bool,
}

impl Caught {
    fn abandon(&mut self) -> Result<(), TaskError> {
        let work = self.work.take();
        // A future that panicked or is dropped half way is not looked at again.
        panic::catch_unwind(AssertUnwindSafe(|| drop(work))).map_err(panicked)
    }
}

impl Future for Caught {
    type Output = Outcome;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Outcome> {
        self.begun = true;
        let Some(work) = self.work.as_mut() else {
            return Poll::Pending;
        };
        let polled = panic::catch_unwind(AssertUnwindSafe(|| work.as_mut().poll(context)));
        let outcome = match polled {
            Ok(Poll::Pending) => return Poll::Pending,
            Ok(Poll::Ready(outcome)) => outcome,
            Err(payload) => Err(panicked(payload)),
        };
        Poll::Ready(self.abandon().and(outcome))
    }
}

impl Drop for Caught {
    fn drop(&mut self) {
        // Whoever drops the supervised task has given it up: the text of a panic on the way has no reader.
        drop(self.abandon());
    }
}
