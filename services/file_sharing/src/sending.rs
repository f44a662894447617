//! The task that sends files to our clients: many one behind the other, each from where the client's own copy ends, and every piece with
//! a hash.

use std::cell::Cell;
use std::fs::File;
use std::sync::Arc;
use std::time::Duration;

use bytes::BytesMut;
use norfab_files::record::{self, CONTENT_FRAME_BYTES};
use norfab_files::source::Have;
use norfab_files::{MESSAGE_BYTES, Source, SourceError, WINDOW_BYTES, WINDOW_BYTES_MAX};
use norfab_service::{EventDraft, SendError, StreamCredit, Task, TaskContext, TaskError, TaskOutput};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::json;

use crate::share::Share;

/// Most files that one `send_files` sends: a request of about a megabyte.
pub const FILES_AT_ONCE_MAX: usize = 10_000;

/// Seconds that the client may take to read what is under way, where it does not say. As long as brokers believe in a peer that is
/// silent, and a client on a slow line has read something by then.
pub const PATIENCE_SECONDS_DEFAULT: u64 = 30;

/// Most seconds that a client may take.
pub const PATIENCE_SECONDS_MAX: u64 = 3600;

#[derive(Debug, Deserialize, JsonSchema)]
struct Input {
    /// The files, in the order in which they are sent.
    files: Vec<Wanted>,
    /// Bytes that may be on their way to the client.
    #[serde(default)]
    window: Option<u64>,
    /// Seconds to wait for the client to read.
    #[serde(default)]
    patience: Option<u64>,
}

#[derive(Debug, Deserialize, JsonSchema)]
struct Wanted {
    /// URL of a file, nf://path.
    url: String,
    /// How many of its first bytes the client has.
    #[serde(default)]
    have_bytes: u64,
    /// Their SHA-256, in hexadecimal digits.
    #[serde(default)]
    have_sha256: Option<String>,
}

pub(crate) fn task(share: &Arc<Share>) -> Task {
    let share = Arc::clone(share);
    Task::yielding(
        "send_files",
        "Sends shared files as a stream of records: see the protocol of NorFab's own clients.",
        move |context, input| send(&share, &context, input),
    )
}

fn send(share: &Share, context: &TaskContext, input: Input) -> Result<TaskOutput, TaskError> {
    let Input { files, window, patience } = input;
    if files.len() > FILES_AT_ONCE_MAX {
        let found = files.len();
        return Err(TaskError::new(format!(
            "argument 'files': expected a list of at most {FILES_AT_ONCE_MAX}, found a list of {found}"
        )));
    }
    let window = window.unwrap_or(WINDOW_BYTES);
    let patience = patience.unwrap_or(PATIENCE_SECONDS_DEFAULT);
    for (argument, value, max) in [("window", window, WINDOW_BYTES_MAX), ("patience", patience, PATIENCE_SECONDS_MAX)] {
        if !(1..=max).contains(&value) {
            return Err(TaskError::new(format!(
                "argument '{argument}': expected an integer from 1 to {max}, found {value}"
            )));
        }
    }
    let count = files.len();
    let mut stream =
        Stream { context, message: BytesMut::new(), window, patience: Duration::from_secs(patience), sent: 0, read: 0 };
    let mut failed = 0;
    for (index, wanted) in (0..).zip(files) {
        if !stream.file(share, index, &wanted)? {
            failed += 1;
        }
    }
    stream.flush()?;
    Ok(TaskOutput::new(json!({ "files": count - failed, "failed": failed, "bytes": stream.sent })))
}

/// How often the client hears that its beginning of a file is being read: several times in the time that it waits.
const TOLD_EVERY: Duration = Duration::from_secs(2);

/// The way to the client.
struct Stream<'a> {
    context: &'a TaskContext,
    message: BytesMut,
    window: u64,
    patience: Duration,
    /// Bytes of all messages.
    sent: u64,
    /// How many of them the client has read.
    read: u64,
}

impl Stream<'_> {
    /// Sends a file, or that it does not come. Whether it came. Errors: the client does not read, or the job ends.
    fn file(&mut self, share: &Share, index: u32, wanted: &Wanted) -> Result<bool, TaskError> {
        let context = self.context;
        let told = Cell::new(context.clock().now());
        let is_ended = || {
            let now = context.clock().now();
            if now.saturating_duration_since(told.get()) >= TOLD_EVERY {
                told.set(now);
                // Where it cannot be told, the client waits as long as it does.
                drop(context.event_blocking(EventDraft::new("reading what the client has")));
            }
            context.is_cancelled()
        };
        let file = match share.file(&wanted.url) {
            Ok(file) => File::from(file.handle),
            Err(refusal) => return self.failed(index, 0, &refusal.to_string()),
        };
        let hash = wanted.have_sha256.as_ref().map(|hash| hash.parse()).transpose();
        let hash = hash.map_err(|error| TaskError::new(format!("argument 'have_sha256': {error}")))?;
        let have = hash.map(|hash| Have { bytes: wanted.have_bytes, hash });
        let problem = |error: &SourceError| format!("'{}' {error}", wanted.url);
        let mut source = match Source::new(index, file, have, &is_ended) {
            Ok(source) => source,
            Err(error) => return self.failed(index, 0, &problem(&error)),
        };
        while !source.is_done() {
            if self.message.len() + CONTENT_FRAME_BYTES >= MESSAGE_BYTES {
                self.flush()?;
            }
            let before = self.message.len();
            if let Err(error) = source.fill(&mut self.message, MESSAGE_BYTES) {
                return self.failed(index, source.offset(), &problem(&error));
            }
            // It wants a message of its own.
            if self.message.len() == before || !source.is_done() {
                self.flush()?;
            }
        }
        Ok(true)
    }

    fn failed(&mut self, index: u32, offset: u64, why: &str) -> Result<bool, TaskError> {
        record::write_failed(&mut self.message, index, offset, why);
        if self.message.len() >= MESSAGE_BYTES {
            self.flush()?;
        }
        Ok(false)
    }

    /// A client that has read more than there was is believed as far as it can be true.
    fn has_read(&mut self, credit: StreamCredit) {
        self.read = self.read.max(credit.offset.min(self.sent));
    }

    /// Sends what has gathered, when the client has room for it.
    fn flush(&mut self) -> Result<(), TaskError> {
        if self.message.is_empty() {
            return Ok(());
        }
        // What the client has said meanwhile is read whether it is needed or not: there is room for so much only.
        while let Some(credit) = self.context.credit_so_far() {
            self.has_read(credit);
        }
        while self.sent - self.read >= self.window {
            let credit = self.context.next_credit_blocking(self.patience)?;
            self.has_read(credit);
        }
        let message = self.message.split().freeze();
        self.message.reserve(MESSAGE_BYTES + CONTENT_FRAME_BYTES);
        self.sent += message.len() as u64;
        let began = self.context.clock().now();
        loop {
            let full = match self.context.stream_blocking(message.clone()) {
                Ok(()) => return Ok(()),
                Err(full @ SendError::QueueFull(_)) => full,
                Err(stopped @ SendError::Stopped) => return Err(stopped.into()),
            };
            // That itself waits for room, so this does not spin. A full queue is a slow way to the client.
            let waited = self.context.clock().now().saturating_duration_since(began);
            if waited >= self.patience || self.context.is_cancelled() {
                return Err(full.into());
            }
        }
    }
}
