//! The task that sends a file: the first chunk at once, and one more for each offset that the client asks for.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use norfab_service::{
    ArgumentError, CreditError, SendError, Task, TaskContext, TaskError, TaskOutput, on_blocking_thread,
};
use rustix::fd::OwnedFd;
use rustix::io::{Errno, pread};
use schemars::JsonSchema;
use serde::Deserialize;

use crate::digest::FileKey;
use crate::error::Refusal;
use crate::share::Share;

/// Bytes of a chunk where the client does not say.
pub const CHUNK_BYTES_DEFAULT: u64 = 256_000;

/// Most bytes of a chunk. A chunk is one message, held in memory by worker, broker and client.
pub const CHUNK_BYTES_MAX: u64 = 16 * 1024 * 1024;

/// Seconds that the client may take to ask for another chunk, where it does not say.
pub const CHUNK_TIMEOUT_SECONDS_DEFAULT: u64 = 5;

/// Most seconds that a client may take. An abandoned transfer holds a job and a file that long.
pub const CHUNK_TIMEOUT_SECONDS_MAX: u64 = 3600;

/// Bytes of chunks that were sent and are kept to be filled again. A transfer has little more than this under way.
const KEPT_BYTES_MAX: usize = 4 * 1024 * 1024;

#[derive(Debug, Deserialize, JsonSchema)]
struct Input {
    /// URL of a file, nf://path.
    url: String,
    /// Bytes of a chunk.
    #[schemars(with = "u64", default = "chunk_bytes", range(min = 1, max = CHUNK_BYTES_MAX))]
    chunk_size: Option<u64>,
    /// Where to begin, in bytes from the start of the file.
    #[serde(default)]
    offset: u64,
    /// Seconds to wait for the client to ask for another chunk.
    #[schemars(with = "u64", default = "chunk_timeout", range(min = 1, max = CHUNK_TIMEOUT_SECONDS_MAX))]
    chunk_timeout: Option<u64>,
    /// Other name of chunk_size.
    #[serde(rename = "chunk-size")]
    chunk_size_dashed: Option<u64>,
    /// Other name of chunk_timeout.
    #[serde(rename = "chunk-timeout")]
    chunk_timeout_dashed: Option<u64>,
}

fn chunk_bytes() -> u64 {
    CHUNK_BYTES_DEFAULT
}

fn chunk_timeout() -> u64 {
    CHUNK_TIMEOUT_SECONDS_DEFAULT
}

pub(crate) fn task(share: &Arc<Share>) -> Task {
    let share = Arc::clone(share);
    Task::new(
        "fetch_file",
        "Sends a shared file in chunks: the first at once, then one for each offset that the client asks for.",
        move |context, input| fetch(Arc::clone(&share), context, input),
    )
}

/// The value that stands under one of an argument's two names. Errors: under both.
fn one(name: &str, value: Option<u64>, dashed: Option<u64>) -> Result<Option<u64>, ArgumentError> {
    match (value, dashed) {
        (Some(_), Some(_)) => Err(ArgumentError::Twice { name: name.to_owned() }),
        (value, dashed) => Ok(value.or(dashed)),
    }
}

async fn fetch(share: Arc<Share>, context: TaskContext, input: Input) -> Result<TaskOutput, TaskError> {
    let chunk_bytes = one("chunk_size", input.chunk_size, input.chunk_size_dashed)?.unwrap_or_else(chunk_bytes);
    let timeout_seconds =
        one("chunk_timeout", input.chunk_timeout, input.chunk_timeout_dashed)?.unwrap_or_else(chunk_timeout);
    within("chunk_size", chunk_bytes, CHUNK_BYTES_MAX)?;
    within("chunk_timeout", timeout_seconds, CHUNK_TIMEOUT_SECONDS_MAX)?;
    let patience = Duration::from_secs(timeout_seconds);
    let url = input.url;
    let opened = {
        let url = url.clone();
        on_blocking_thread(move || share.file(&url)).await?
    };
    let file = match opened {
        Ok(file) => file,
        Err(refusal) => return Ok(TaskOutput::default().failed(refusal.to_string())),
    };
    let size = FileKey::of(&file.stat).size;
    let handle = Arc::new(file.handle);
    let mut kept = KeptChunks::default();
    let mut offset = input.offset;
    loop {
        let wanted = chunk_bytes.min(size.saturating_sub(offset));
        let chunk = read(&handle, &url, offset, wanted, &mut kept).await?;
        let position = offset.saturating_add(wanted);
        if !chunk.is_empty() {
            kept.keep(&chunk);
            send(&context, chunk, patience).await?;
        }
        if position >= size {
            return Ok(TaskOutput::new(true));
        }
        offset = match context.next_credit(patience).await {
            Ok(credit) => credit.offset,
            Err(CreditError::TimedOut { seconds }) => {
                return Err(TaskError::new(format!(
                    "{}:{} - {seconds}s chunk timeout reached before received next chunk request from client",
                    context.worker(),
                    context.task(),
                )));
            }
            Err(ended @ CreditError::JobCancelled(_)) => return Err(ended.into()),
        };
    }
}

fn within(argument: &str, value: u64, max: u64) -> Result<(), TaskError> {
    if (1..=max).contains(&value) {
        return Ok(());
    }
    Err(TaskError::new(format!("argument '{argument}': expected an integer from 1 to {max}, found {value}")))
}

/// Reads exactly so many bytes.
async fn read(
    handle: &Arc<OwnedFd>,
    url: &str,
    offset: u64,
    wanted: u64,
    kept: &mut KeptChunks,
) -> Result<Bytes, TaskError> {
    if wanted == 0 {
        return Ok(Bytes::new());
    }
    let wanted = usize::try_from(wanted)?;
    let handle = Arc::clone(handle);
    let mut buffer = kept.take(wanted);
    let read = on_blocking_thread(move || {
        let mut filled = 0;
        while filled < wanted {
            match pread(&handle, &mut buffer[filled..wanted], offset + filled as u64) {
                Ok(0) => return Ok(None),
                Ok(count) => filled += count,
                Err(Errno::INTR) => {}
                Err(errno) => return Err(errno),
            }
        }
        Ok(Some(buffer))
    });
    let url = || url.to_owned();
    match read.await? {
        Ok(Some(buffer)) => Ok(buffer.freeze()),
        Ok(None) => Err(Refusal::Shrunk { url: url() }.into()),
        Err(errno) => Err(Refusal::Unreadable { url: url(), errno }.into()),
    }
}

/// Sends a chunk. A full queue is a slow way to the client: as long as a slow client, it is waited for.
async fn send(context: &TaskContext, chunk: Bytes, patience: Duration) -> Result<(), TaskError> {
    let began = context.clock().now();
    loop {
        let full = match context.stream(chunk.clone()).await {
            Ok(()) => return Ok(()),
            Err(full @ SendError::QueueFull(_)) => full,
            Err(stopped @ SendError::Stopped) => return Err(stopped.into()),
        };
        // `stream` itself waits for room, so this does not spin.
        let waited = context.clock().now().saturating_duration_since(began);
        if waited >= patience || context.is_cancelled() {
            return Err(full.into());
        }
    }
}

/// Chunks that were sent, to be filled again once nobody reads them any more: fresh memory costs more than the copy.
#[derive(Default)]
struct KeptChunks {
    chunks: VecDeque<Bytes>,
    bytes: usize,
}

impl KeptChunks {
    fn keep(&mut self, chunk: &Bytes) {
        if chunk.len() > KEPT_BYTES_MAX {
            return;
        }
        self.bytes += chunk.len();
        self.chunks.push_back(chunk.clone());
        while self.bytes > KEPT_BYTES_MAX {
            let Some(oldest) = self.chunks.pop_front() else {
                return;
            };
            self.bytes -= oldest.len();
        }
    }

    /// A buffer of so many bytes with anything in it.
    fn take(&mut self, wanted: usize) -> BytesMut {
        // Chunks leave the queue in order: if the oldest is still in use, the others are.
        if self.chunks.front().is_some_and(|oldest| oldest.is_unique() && oldest.len() >= wanted)
            && let Some(oldest) = self.chunks.pop_front()
        {
            self.bytes -= oldest.len();
            if let Ok(mut buffer) = oldest.try_into_mut() {
                buffer.truncate(wanted);
                return buffer;
            }
        }
        BytesMut::zeroed(wanted)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chunk(bytes: usize) -> Bytes {
        BytesMut::zeroed(bytes).freeze()
    }

    #[test]
    fn a_chunk_is_filled_again_once_nobody_reads_it() {
        let mut kept = KeptChunks::default();
        let sent = chunk(1000);
        let place = sent.as_ptr();
        kept.keep(&sent);
        assert_ne!(kept.take(1000).as_ptr(), place);
        drop(sent);
        let again = kept.take(900);
        assert_eq!((again.as_ptr(), again.len()), (place, 900));
    }

    #[test]
    fn no_more_is_kept_than_a_transfer_has_under_way() {
        let mut kept = KeptChunks::default();
        for _ in 0..10 {
            kept.keep(&chunk(KEPT_BYTES_MAX / 3));
        }
        assert_eq!((kept.chunks.len(), kept.bytes), (3, KEPT_BYTES_MAX / 3 * 3));
        kept.keep(&chunk(KEPT_BYTES_MAX + 1));
        assert_eq!(kept.chunks.len(), 3);
        assert_eq!(kept.take(KEPT_BYTES_MAX).len(), KEPT_BYTES_MAX);
    }
}
