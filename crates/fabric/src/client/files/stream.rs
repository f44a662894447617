//! One transfer from one worker of ours: one job, whose stream is read, checked and written as fast as both sides can.

use std::io;
use std::time::{Duration, Instant};

use bytes::Bytes;
use norfab_files::{Arrival, Sink, WINDOW_BYTES};
use norfab_protocol::client::{JobState, JobUpdate};
use norfab_protocol::target::Target;
use norfab_protocol::{Identity, TaskResult};
use serde_json::{Value, json};
use tokio::sync::{mpsc, watch};

use super::super::{ClientHandle, JobHandle, SubmitError};
use super::spec;
use crate::LinkState;
use crate::clock::SystemClock;
use crate::queue::QueueError;

/// Messages that wait to be written. The window bounds their bytes.
const WRITTEN_LATER_MAX: usize = 64;

/// How often the worker is told how far it was read: often enough that it never waits where both sides are fast.
const CREDIT_BYTES: u64 = WINDOW_BYTES / 4;

/// How long nothing may come before a transfer counts as broken. On a slow line pieces come at long intervals: four times the longest
/// is waited for there.
pub(super) const STILL_MIN: Duration = Duration::from_secs(5);

/// How long the first piece may take: the worker reads what the client has first.
pub(super) const FIRST_MAX: Duration = Duration::from_secs(20);

/// How long the end of the job is waited for once all is here.
const END_WAIT: Duration = Duration::from_secs(1);

/// What takes what arrives. Its methods block.
pub(super) trait Receiver: Send + 'static {
    /// Something arrived and is right. Errors: it cannot be written.
    fn arrived(&mut self, arrival: Arrival) -> Result<(), io::Error>;

    /// Whether all has arrived.
    fn is_done(&self) -> bool;
}

/// How a transfer ended before all was there.
#[derive(Debug)]
pub(super) enum Broken {
    /// Here: what came cannot be written.
    Write(io::Error),
    /// There or on the way: another one may go on.
    Off(String),
    /// The job was not taken.
    Submit(SubmitError),
}

impl From<QueueError> for Broken {
    fn from(error: QueueError) -> Self {
        Self::Off(error.to_string())
    }
}

/// Patience with a transfer.
#[derive(Debug, Clone, Copy)]
pub(super) struct Patience {
    /// When it is given up whatever comes.
    pub(super) deadline: Instant,
    /// By how much what is waited for is longer than usual, after attempts in which nothing came.
    pub(super) factor: u32,
    /// Whether the first piece may take no longer than others: the worker has nothing to read before it, and another one can take its
    /// place.
    pub(super) is_replaceable: bool,
}

impl ClientHandle {
    /// Asks one worker for files, and hands what comes to `receiver`. `progress` is told how many bytes of messages have been written.
    /// The receiver comes back, with how it ended.
    pub(super) async fn stream<R: Receiver>(
        &self,
        worker: &Identity,
        files: Value,
        sink: Sink,
        receiver: R,
        patience: Patience,
        progress: &mut (dyn FnMut(u64) + Send),
    ) -> (R, Result<(), Broken>) {
        let left = patience.deadline.saturating_duration_since(SystemClock::now());
        let question = json!({ "files": files, "window": WINDOW_BYTES });
        let mut job = match self.submit(spec("send_files", Target::list([worker]), question, left)).await {
            Ok(job) => job,
            Err(error) => return (receiver, Err(Broken::Submit(error))),
        };
        let (messages, received) = mpsc::channel(WRITTEN_LATER_MAX);
        let (written_sender, written) = watch::channel(0);
        let writing = tokio::task::spawn_blocking(move || write(received, sink, receiver, &written_sender));
        let outcome = self.pass_on(&mut job, worker, messages, written, patience, progress).await;
        let (receiver, ended) = match writing.await {
            Ok(written) => written,
            // A panic in it is one here.
            Err(error) => std::panic::resume_unwind(error.into_panic()),
        };
        let outcome = ended.and(outcome);
        if receiver.is_done() {
            // Its own end follows what it sent. Without it the job would look unfinished for ever.
            let ended = async { while job.next().await.is_some() {} };
            tokio::time::timeout(END_WAIT, ended).await.ok();
            return (receiver, Ok(()));
        }
        if !matches!(outcome, Err(Broken::Off(_)) if job.report().state.is_final()) {
            // What is still sent would be in the way of the next attempt. It ends by itself where nobody can be told.
            job.cancel(self.identity().as_str(), Some("the transfer is broken off".to_owned())).await.ok();
        }
        let outcome = outcome.and(Err(Broken::Off("not all of it came".to_owned())));
        (receiver, outcome)
    }

    async fn pass_on(
        &self,
        job: &mut JobHandle,
        worker: &Identity,
        messages: mpsc::Sender<Bytes>,
        mut written: watch::Receiver<u64>,
        patience: Patience,
        progress: &mut (dyn FnMut(u64) + Send),
    ) -> Result<(), Broken> {
        let mut link = self.state();
        let mut dispatched = false;
        let (mut credited, mut longest) = (0, Duration::ZERO);
        let mut last = SystemClock::now();
        let first_max = if patience.is_replaceable { STILL_MIN } else { FIRST_MAX };
        let mut still_max = first_max * patience.factor;
        loop {
            let still_until = (last + still_max).min(patience.deadline);
            let wait = still_until.saturating_duration_since(SystemClock::now());
            tokio::select! {
                update = job.next() => match update {
                    Some(JobUpdate::Stream(message)) => {
                        let now = SystemClock::now();
                        longest = longest.max(now.saturating_duration_since(last));
                        last = now;
                        still_max = (longest * 4).max(STILL_MIN) * patience.factor;
                        if messages.send(message).await.is_err() {
                            // Writing has ended, and says why or that all is there.
                            return Ok(());
                        }
                    }
                    Some(JobUpdate::Result(_, payload)) => {
                        let failed = serde_json::from_slice::<TaskResult>(&payload).ok().filter(|result| result.failed);
                        if let Some(failed) = failed {
                            return Err(Broken::Off(failed.errors.join("; ")));
                        }
                        // All that it sent has come before.
                        return Ok(());
                    }
                    Some(JobUpdate::Finished(outcome)) if outcome.state != JobState::Completed => {
                        return Err(Broken::Off(outcome.errors.join("; ")));
                    }
                    // It is at it: it reads what the client has.
                    Some(JobUpdate::Event(..)) => last = SystemClock::now(),
                    Some(update) => dispatched |= matches!(update, JobUpdate::Dispatched(_)),
                    None => return Ok(()),
                },
                changed = written.changed() => {
                    let bytes = *written.borrow_and_update();
                    progress(bytes);
                    if bytes >= credited + CREDIT_BYTES {
                        credited = bytes;
                        job.credit(Some(worker.clone()), bytes).await?;
                    }
                    if changed.is_err() {
                        return Ok(());
                    }
                }
                // What was on its way is lost with the connection.
                () = is_lost(&mut link), if dispatched => {
                    return Err(Broken::Off("the connection to the broker was lost".to_owned()));
                }
                () = tokio::time::sleep(wait) => {
                    let waited = SystemClock::now().saturating_duration_since(last);
                    return Err(Broken::Off(format!("nothing came for {:.0} s", waited.as_secs_f64())));
                }
            }
        }
    }
}

/// Waits until the connection is lost.
pub(super) async fn is_lost(link: &mut watch::Receiver<LinkState>) {
    // An error says that the client has ended.
    drop(link.wait_for(|state| *state != LinkState::Connected).await);
}

/// Checks and writes what comes, until all is there or something is wrong.
fn write<R: Receiver>(
    mut messages: mpsc::Receiver<Bytes>,
    mut sink: Sink,
    mut receiver: R,
    written: &watch::Sender<u64>,
) -> (R, Result<(), Broken>) {
    let mut bytes = 0;
    let mut arrived = Vec::new();
    while let Some(message) = messages.blocking_recv() {
        let length = message.len() as u64;
        let taken = sink.take(message, &mut arrived);
        for arrival in arrived.drain(..) {
            // What is declared whole stays as it was when it was.
            if receiver.is_done() {
                break;
            }
            if let Err(error) = receiver.arrived(arrival) {
                return (receiver, Err(Broken::Write(error)));
            }
        }
        if let Err(error) = taken {
            return (receiver, Err(Broken::Off(error.to_string())));
        }
        bytes += length;
        written.send_replace(bytes);
        if receiver.is_done() {
            break;
        }
    }
    (receiver, Ok(()))
}
