//! One transfer to one worker: one job, to which the file goes as fast as the worker takes it.

use std::fs::File;
use std::os::unix::fs::MetadataExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use bytes::{Bytes, BytesMut};
use norfab_files::record::{self, CONTENT_FRAME_BYTES};
use norfab_files::source::Have;
use norfab_files::{ContentHash, MESSAGE_BYTES, Source, SourceError, WINDOW_BYTES};
use norfab_protocol::body::CONTENT_MARK;
use norfab_protocol::client::{JobState, JobUpdate};
use norfab_protocol::target::Target;
use norfab_protocol::{Identity, TaskResult};
use serde::Deserialize;
use serde_json::json;
use tokio::sync::mpsc;

use super::super::{ClientHandle, JobHandle, SubmitError};
use super::spec;
use super::stream::{FIRST_MAX, Patience, STILL_MIN, is_lost};
use super::upload::Taken;
use crate::clock::SystemClock;
use crate::queue::QueueError;

/// Messages that are read ahead of the connection.
const READ_AHEAD_MAX: usize = 4;

/// Bytes that may be on their way whatever the line: two messages behind each other, twice.
const ON_THE_WAY_MIN: u64 = 4 * MESSAGE_BYTES as u64;

/// What may be on its way takes about so long: on a slow line other messages of this client would wait behind it.
const ON_THE_WAY_TIME: Duration = Duration::from_millis(500);

/// How often the worker is told that the file is still read: less than it waits.
const SIGN_INTERVAL: Duration = Duration::from_secs(5);

/// How long the worker may take to bring to its disk what has come.
const END_MAX: Duration = Duration::from_secs(60);

/// What is to be sent.
pub(super) struct Push<'a> {
    pub(super) url: &'a str,
    pub(super) worker: &'a Identity,
    pub(super) overwrite: bool,
    pub(super) transfer: &'a str,
    pub(super) patience: Patience,
}

/// How a transfer ended.
pub(super) enum PushEnd {
    /// The file is there.
    Whole(Taken),
    /// The worker says so, and what it has is not what was sent.
    Differs(String),
    /// The worker does not want it, and will not.
    Refused(String),
    /// Somebody else uploads there.
    Busy(String),
    /// Others are before it: as many upload as the worker takes at once.
    Full(String),
    /// Another one may go on.
    Off(String),
    /// The file cannot be read.
    Unread(SourceError),
    /// The job was not taken.
    Submit(SubmitError),
}

impl From<QueueError> for PushEnd {
    fn from(error: QueueError) -> Self {
        Self::Off(error.to_string())
    }
}

/// What became of a transfer.
pub(super) struct Pushed {
    /// Where it began, if it did.
    pub(super) began: Option<u64>,
    /// How much of the file the worker had in the end.
    pub(super) sent: u64,
    pub(super) end: PushEnd,
}

/// What a worker says meanwhile.
#[derive(Deserialize)]
#[serde(untagged)]
enum Word {
    /// Where the file is wanted to begin, and how much may be on its way.
    Begin { have_bytes: u64, have_sha256: String, window: u64 },
    /// How many bytes of messages it has taken.
    Taken { taken: u64 },
}

/// What a worker says that does not take a file.
#[derive(Deserialize)]
struct Refusal {
    again: bool,
    #[serde(default)]
    busy: bool,
    #[serde(default)]
    full: bool,
}

/// A file as messages, made by a thread.
struct Reading {
    messages: mpsc::Receiver<Bytes>,
    /// How long it is and its hash, once all of it was read.
    thread: tokio::task::JoinHandle<Result<(u64, ContentHash), SourceError>>,
    /// Where it began; [`NOT_YET`] before that is known.
    began: Arc<AtomicU64>,
}

const NOT_YET: u64 = u64::MAX;

impl Reading {
    fn start(file: File, have: Option<Have>) -> Self {
        let (sender, messages) = mpsc::channel(READ_AHEAD_MAX);
        let began = Arc::new(AtomicU64::new(NOT_YET));
        let tells = Arc::clone(&began);
        let thread = tokio::task::spawn_blocking(move || read(file, have, &sender, &tells));
        Self { messages, thread, began }
    }

    fn began(&self) -> Option<u64> {
        Some(self.began.load(Ordering::SeqCst)).filter(|began| *began != NOT_YET)
    }
}

/// Reads a file and hands it over in messages. Errors: it cannot be read, or not as a whole; a last message says so.
fn read(
    file: File,
    have: Option<Have>,
    sender: &mpsc::Sender<Bytes>,
    began: &AtomicU64,
) -> Result<(u64, ContentHash), SourceError> {
    let mut message = BytesMut::from(CONTENT_MARK);
    let room = CONTENT_MARK.len() + MESSAGE_BYTES;
    let mut source = match Source::new(0, file, have, &|| sender.is_closed()) {
        Ok(source) => source,
        Err(error) => return failed(message, 0, error, sender),
    };
    began.store(source.offset(), Ordering::SeqCst);
    while !source.is_done() {
        if let Err(error) = source.fill(&mut message, room) {
            return failed(message, source.offset(), error, sender);
        }
        let mut next = BytesMut::with_capacity(room + CONTENT_FRAME_BYTES);
        next.extend_from_slice(CONTENT_MARK);
        let full = std::mem::replace(&mut message, next).freeze();
        if sender.blocking_send(full).is_err() {
            return Err(SourceError::Ended);
        }
    }
    Ok((source.size(), source.hash()))
}

fn failed(
    mut message: BytesMut,
    offset: u64,
    error: SourceError,
    sender: &mpsc::Sender<Bytes>,
) -> Result<(u64, ContentHash), SourceError> {
    record::write_failed(&mut message, 0, offset, &error.to_string());
    // Whoever would read it has gone.
    sender.blocking_send(message.freeze()).ok();
    Err(error)
}

/// How far it is.
struct Way {
    /// What may be on its way, as the worker says.
    window: u64,
    /// Bytes of messages that were sent, and of those that the worker has taken.
    sent: u64,
    taken: u64,
    since: Instant,
}

impl Way {
    fn has_room(&self, now: Instant) -> bool {
        let lasted = now.saturating_duration_since(self.since).as_secs_f64().max(0.001);
        let at_once = self.taken as f64 / lasted * ON_THE_WAY_TIME.as_secs_f64();
        self.sent - self.taken < (at_once as u64).max(ON_THE_WAY_MIN).min(self.window)
    }
}

impl ClientHandle {
    /// Sends an open file. `progress` is told the bytes so far and the size.
    pub(super) async fn push(
        &self,
        push: Push<'_>,
        file: File,
        size: u64,
        progress: &mut (dyn FnMut(u64, u64) + Send),
    ) -> Pushed {
        let mut pushed = Pushed { began: None, sent: 0, end: PushEnd::Off(String::new()) };
        let left = push.patience.deadline.saturating_duration_since(SystemClock::now());
        let question = json!({
            "url": push.url,
            "size": size,
            "modified": file.metadata().map(|metadata| metadata.mtime()).unwrap_or_default(),
            "overwrite": push.overwrite,
            "transfer": push.transfer,
            "window": WINDOW_BYTES,
        });
        let mut job = match self.submit(spec("take_file", Target::list([push.worker]), question, left)).await {
            Ok(job) => job,
            Err(error) => return Pushed { end: PushEnd::Submit(error), ..pushed },
        };
        let mut tell = |began: u64, taken: u64| {
            let so_far = (began + taken).min(size);
            pushed.began = Some(began);
            pushed.sent = so_far;
            progress(so_far, size);
        };
        let end = self.pass(&mut job, &push, file, &mut tell).await;
        if !matches!(end, PushEnd::Whole(_)) && !job.report().state.is_final() {
            // What is still taken would be in the way of the next attempt. It ends by itself where nobody can be told.
            job.cancel(self.identity().as_str(), Some("the transfer is broken off".to_owned())).await.ok();
        }
        Pushed { end, ..pushed }
    }

    async fn pass(
        &self,
        job: &mut JobHandle,
        push: &Push<'_>,
        file: File,
        tell: &mut (dyn FnMut(u64, u64) + Send),
    ) -> PushEnd {
        let Patience { deadline, factor, .. } = push.patience;
        let mut link = self.state();
        let mut dispatched = false;
        let mut file = Some(file);
        let mut reading: Option<Reading> = None;
        let mut way = Way { window: 0, sent: 0, taken: 0, since: SystemClock::now() };
        // All of the file was handed over.
        let mut is_read = false;
        let (mut last, mut longest) = (way.since, Duration::ZERO);
        let mut still_max = FIRST_MAX * factor;
        let mut last_sign = last;
        loop {
            let now = SystemClock::now();
            let may_send = !is_read && way.has_room(now);
            let waits_for_file = reading.is_some() && may_send;
            let until = if waits_for_file { last_sign + SIGN_INTERVAL } else { last + still_max };
            let wait = until.min(deadline).saturating_duration_since(now);
            tokio::select! {
                biased;
                update = job.next() => match update {
                    Some(JobUpdate::Stream(word)) => {
                        let now = SystemClock::now();
                        match serde_json::from_slice(&word) {
                            Ok(Word::Begin { have_bytes, have_sha256, window }) => {
                                let Some(file) = file.take() else {
                                    return PushEnd::Off("the worker began twice".to_owned());
                                };
                                let have = have_sha256.parse().ok().map(|hash| Have { bytes: have_bytes, hash });
                                reading = Some(Reading::start(file, have));
                                (way.window, way.since, last_sign) = (window, now, now);
                            }
                            Ok(Word::Taken { taken }) => {
                                longest = longest.max(now.saturating_duration_since(last));
                                // A worker that has taken more than there was is believed as far as it can be true.
                                way.taken = way.taken.max(taken.min(way.sent));
                                if let Some(began) = reading.as_ref().and_then(Reading::began) {
                                    tell(began, way.taken);
                                }
                                still_max = (longest * 4).max(STILL_MIN) * factor;
                                if is_read && way.taken == way.sent {
                                    still_max = END_MAX * factor;
                                }
                            }
                            Err(error) => return PushEnd::Off(format!("the worker says what is not understood: {error}")),
                        }
                        last = now;
                    }
                    Some(JobUpdate::Result(_, payload)) => {
                        let end = result(&payload);
                        // Without its own end the job would look unfinished for ever.
                        let ended = async { while job.next().await.is_some() {} };
                        tokio::time::timeout(STILL_MIN, ended).await.ok();
                        return match (end, reading) {
                            (PushEnd::Whole(taken), reading) => confirmed(taken, reading).await,
                            // It says the same of it, in other words.
                            (end, Some(reading)) => unread(reading).await.unwrap_or(end),
                            (end, None) => end,
                        };
                    }
                    Some(JobUpdate::Finished(outcome)) if outcome.state != JobState::Completed => {
                        return PushEnd::Off(outcome.errors.join("; "));
                    }
                    // Its disk is at it.
                    Some(JobUpdate::Event(..)) => last = SystemClock::now(),
                    Some(update) => dispatched |= matches!(update, JobUpdate::Dispatched(_)),
                    None => return PushEnd::Off("the job ended".to_owned()),
                },
                message = next_message(&mut reading), if waits_for_file => match message {
                    Some(message) => {
                        way.sent += (message.len() - CONTENT_MARK.len()) as u64;
                        last_sign = SystemClock::now();
                        if way.sent == way.taken {
                            last = last_sign;
                        }
                        if let Err(end) = hand_over(job, push, message).await {
                            return end;
                        }
                    }
                    None => {
                        is_read = true;
                        // What is under way is taken, and then written.
                        last = SystemClock::now();
                        still_max = still_max.max(END_MAX * factor);
                    }
                },
                // What was on its way is lost with the connection.
                () = is_lost(&mut link), if dispatched => {
                    return PushEnd::Off("the connection to the broker was lost".to_owned());
                }
                () = tokio::time::sleep(wait) => {
                    let now = SystemClock::now();
                    if waits_for_file && now < deadline {
                        // The file is slow, and the worker must not take it for gone.
                        last_sign = now;
                        if let Err(end) = hand_over(job, push, Bytes::from_static(CONTENT_MARK)).await {
                            return end;
                        }
                        continue;
                    }
                    let waited = now.saturating_duration_since(last);
                    return PushEnd::Off(format!("the worker said nothing for {:.0} s", waited.as_secs_f64()));
                }
            }
        }
    }
}

async fn next_message(reading: &mut Option<Reading>) -> Option<Bytes> {
    match reading {
        Some(reading) => reading.messages.recv().await,
        None => std::future::pending().await,
    }
}

/// A queue that is full for a moment is a slow way to the broker.
async fn hand_over(job: &JobHandle, push: &Push<'_>, message: Bytes) -> Result<(), PushEnd> {
    loop {
        match job.content(push.worker.clone(), message.clone()).await {
            Ok(()) => return Ok(()),
            Err(QueueError::Full { .. }) if SystemClock::now() < push.patience.deadline => {}
            Err(error) => return Err(error.into()),
        }
    }
}

/// Why the file could not be read, if that is why the transfer ended.
async fn unread(reading: Reading) -> Option<PushEnd> {
    // Its thread ends where nobody takes what it reads.
    drop(reading.messages);
    match reading.thread.await {
        Ok(Ok(_) | Err(SourceError::Ended)) => None,
        Ok(Err(error)) => Some(PushEnd::Unread(error)),
        Err(error) => std::panic::resume_unwind(error.into_panic()),
    }
}

/// Whether what the worker has is what was read here.
async fn confirmed(taken: Taken, reading: Option<Reading>) -> PushEnd {
    let Some(reading) = reading else {
        return PushEnd::Differs("nothing was sent yet".to_owned());
    };
    drop(reading.messages);
    match reading.thread.await {
        Ok(Ok((size, hash))) => taken.differs(size, &hash.to_string()).map_or(PushEnd::Whole(taken), PushEnd::Differs),
        Ok(Err(SourceError::Ended)) => PushEnd::Differs("not all of it was sent yet".to_owned()),
        Ok(Err(error)) => PushEnd::Unread(error),
        Err(error) => std::panic::resume_unwind(error.into_panic()),
    }
}

fn result(payload: &[u8]) -> PushEnd {
    let result: TaskResult = match serde_json::from_slice(payload) {
        Ok(result) => result,
        Err(error) => return PushEnd::Off(format!("the worker's result cannot be read: {error}")),
    };
    if !result.failed {
        return match serde_json::from_str(result.result.get()) {
            Ok(taken) => PushEnd::Whole(taken),
            Err(error) => PushEnd::Off(format!("the worker's result cannot be read: {error}")),
        };
    }
    let reason = result.errors.join("; ");
    match serde_json::from_str(result.result.get()) {
        Ok(Refusal { again: false, .. }) => PushEnd::Refused(reason),
        Ok(Refusal { busy: true, .. }) => PushEnd::Busy(reason),
        Ok(Refusal { full: true, .. }) => PushEnd::Full(reason),
        // It was cancelled, or its worker began anew.
        Ok(Refusal { .. }) | Err(_) => PushEnd::Off(reason),
    }
}
