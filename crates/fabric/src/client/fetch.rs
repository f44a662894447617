//! Fetching a file from the workers that share it.
//!
//! The file is streamed in chunks: the worker sends the first one unasked, then one for each credit. Chunks carry no offset,
//! so their order is the only structure: one transfer is one job with one worker.

use std::fs::File;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use bytes::Bytes;
use md5::{Digest, Md5};
use norfab_protocol::client::{JobState, JobUpdate};
use norfab_protocol::target::Target;
use norfab_protocol::{Identity, ServiceName, TaskName, TaskResult};
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::{ClientHandle, JobSpec, SubmitError};
use crate::clock::{SystemClock, TIMEOUT_MAX};
use crate::queue::QueueError;

/// Bytes in a chunk: as in the recorded clients, and what Python workers expect.
pub const CHUNK_BYTES: u64 = 256_000;

/// Credits on their way at once, as in the recorded clients.
pub const PIPELINE: u64 = 10;

/// How long the end of a transfer's job is waited for once all bytes are here. It is on its way; a worker that dies now has
/// still sent the file.
const END_WAIT: Duration = Duration::from_secs(1);

/// The service that shares files.
const SERVICE: &str = "filesharing";

/// What a file is.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct FileDetails {
    /// MD5 of its content.
    pub md5hash: Option<String>,
    /// Its size.
    pub size_bytes: Option<u64>,
    /// Whether it is there.
    pub exists: bool,
}

/// What a transfer did.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fetched {
    /// Where the file is.
    pub path: PathBuf,
    /// Its size.
    pub bytes: u64,
    /// Its MD5.
    pub md5: String,
    /// Who sent it; `None`: the file was there already, with this hash.
    pub worker: Option<Identity>,
}

/// Why a file is not there.
#[derive(Debug, thiserror::Error)]
pub enum FetchError {
    /// Not a file URL.
    #[error("'{0}' is no file URL: write nf://PATH")]
    Url(String),
    /// Nobody has it.
    #[error("no file sharing worker has '{url}': {reason}")]
    NotFound {
        /// Which.
        url: String,
        /// What the workers or the broker said.
        reason: String,
    },
    /// Workers were asked, and not all of those that might have it answered in time; or it did not come in time.
    #[error("'{url}' did not come within {timeout} s: {reason}", timeout = .timeout.as_secs_f64())]
    TimedOut {
        /// Which.
        url: String,
        /// How long was waited.
        timeout: Duration,
        /// What is known.
        reason: String,
    },
    /// The job was not taken.
    #[error(transparent)]
    Submit(#[from] SubmitError),
    /// The queue to the owner.
    #[error(transparent)]
    Queue(#[from] QueueError),
    /// The transfer broke off.
    #[error("the transfer of '{url}' from worker {worker} broke off after {received} of {size} bytes: {reason}")]
    Broken {
        /// Which.
        url: String,
        /// From whom.
        worker: Identity,
        /// Bytes that came.
        received: u64,
        /// Bytes there are.
        size: u64,
        /// Why.
        reason: String,
    },
    /// The content is not what it should be.
    #[error("'{url}' from worker {worker} arrived with MD5 {found}, it should be {expected}: fetch it again")]
    Mismatch {
        /// Which.
        url: String,
        /// From whom.
        worker: Identity,
        /// What it should be.
        expected: String,
        /// What it is.
        found: String,
    },
    /// The target cannot be written.
    #[error("cannot write {path}: {error}", path = .path.display())]
    Write {
        /// Where.
        path: PathBuf,
        /// Why.
        error: std::io::Error,
    },
}

impl ClientHandle {
    /// Fetches `nf://PATH` to a file, from whichever worker answers first that it has it. The file appears under its name
    /// only when it is whole and its hash matches. A file that is there with the right hash is not fetched again.
    /// A target that is a link to a file stays one: what it points to is replaced. `progress` is told the bytes so far and the
    /// size. Errors: as [`FetchError`]; the target is then as it was.
    pub async fn fetch_file(
        &self,
        url: &str,
        target: &Path,
        timeout: Duration,
        mut progress: impl FnMut(u64, u64) + Send,
    ) -> Result<Fetched, FetchError> {
        if !url.starts_with("nf://") {
            return Err(FetchError::Url(url.to_owned()));
        }
        let timeout = timeout.min(TIMEOUT_MAX);
        let deadline = SystemClock::now() + timeout;
        let failed = |error| FetchError::Write { path: target.to_path_buf(), error };
        // Before anybody is asked, so that a mistake is told at once.
        let place = regular(target).map_err(failed)?;
        let (worker, size, md5) = self.find(url, timeout).await?;
        let (there, hash) = (place.clone(), md5.clone());
        // Reading a large file takes a while; the runtime has others to serve.
        let known = tokio::task::spawn_blocking(move || has_hash(&there, size, &hash)).await.ok().flatten();
        if let Some(bytes) = known {
            progress(bytes, size);
            return Ok(Fetched { path: target.to_path_buf(), bytes, md5, worker: None });
        }
        let left = deadline.saturating_duration_since(SystemClock::now());
        let late = |reason: String| FetchError::TimedOut { url: url.to_owned(), timeout, reason };
        if left.is_zero() {
            return Err(late(format!("no time was left for its {size} bytes")));
        }
        let folder = place.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
        std::fs::create_dir_all(folder).map_err(failed)?;
        let part = PartFile::create(folder, &place).map_err(failed)?;
        let found =
            self.stream(url, &worker, size, left, part, target, &mut progress).await.map_err(|error| match error {
                // What was given, not what was left of it.
                FetchError::TimedOut { reason, .. } => late(reason),
                error => error,
            })?;
        if found.1 != md5 {
            return Err(FetchError::Mismatch { url: url.to_owned(), worker, expected: md5, found: found.1 });
        }
        // Once more: a transfer takes its time.
        let place = regular(target).map_err(failed)?;
        found.0.keep(&place).map_err(failed)?;
        Ok(Fetched { path: target.to_path_buf(), bytes: size, md5, worker: Some(worker) })
    }

    /// The first worker that has the file, with size and hash. Workers that are registered but do not answer cost nothing
    /// as long as another one has it.
    async fn find(&self, url: &str, timeout: Duration) -> Result<(Identity, u64, String), FetchError> {
        let not_found = |reason: String| FetchError::NotFound { url: url.to_owned(), reason };
        let mut job = self.submit(spec("file_details", Target::All, json!({ "url": url }), timeout)).await?;
        let mut reasons = Vec::new();
        let mut timed_out = false;
        while let Some(update) = job.next().await {
            match update {
                JobUpdate::Result(worker, payload) => match details(&payload) {
                    Ok((size, md5)) => return Ok((worker, size, md5)),
                    Err(reason) => reasons.push(reason),
                },
                JobUpdate::Finished(outcome) => {
                    timed_out = outcome.state == JobState::Stale;
                    reasons.extend(outcome.errors);
                }
                _ => {}
            }
        }
        reasons.dedup();
        let reason = reasons.join("; ");
        Err(if timed_out { FetchError::TimedOut { url: url.to_owned(), timeout, reason } } else { not_found(reason) })
    }

    #[allow(clippy::too_many_arguments, reason = "one transfer, used once")]
    async fn stream(
        &self,
        url: &str,
        worker: &Identity,
        size: u64,
        timeout: Duration,
        mut part: PartFile,
        target: &Path,
        progress: &mut (impl FnMut(u64, u64) + Send),
    ) -> Result<(PartFile, String), FetchError> {
        let arguments = json!({ "url": url, "offset": 0, "chunk_size": CHUNK_BYTES });
        let mut job = self.submit(spec("fetch_file", Target::list([worker]), arguments, timeout)).await?;
        let mut hash = Md5::new();
        let mut received = 0;
        let mut asked = CHUNK_BYTES;
        let mut credits = PIPELINE;
        let mut reason = "the job ended".to_owned();
        let mut timed_out = false;
        while received < size
            && let Some(update) = job.next().await
        {
            match update {
                JobUpdate::Stream(chunk) => {
                    hash.update(&chunk);
                    part.write(&chunk).map_err(|error| FetchError::Write { path: target.to_path_buf(), error })?;
                    received += chunk.len() as u64;
                    progress(received.min(size), size);
                    credits += 1;
                    while credits > 0 && asked < size {
                        job.credit(Some(worker.clone()), asked).await?;
                        asked += CHUNK_BYTES;
                        credits -= 1;
                    }
                }
                JobUpdate::Result(_, payload) => {
                    if let Ok(result) = serde_json::from_slice::<TaskResult>(&payload)
                        && result.failed
                    {
                        reason = result.errors.join("; ");
                    }
                }
                JobUpdate::Finished(outcome) if outcome.state != JobState::Completed => {
                    reason = outcome.errors.join("; ");
                    timed_out = outcome.state == JobState::Stale;
                }
                _ => {}
            }
        }
        if received == size {
            // The bytes are here; the job's own end follows them. Without it the job would look unfinished for ever.
            let ended = async { while job.next().await.is_some() {} };
            tokio::time::timeout(END_WAIT, ended).await.ok();
        }
        if received < size && timed_out {
            let reason = format!("{received} of {size} bytes came from worker {worker}");
            return Err(FetchError::TimedOut { url: url.to_owned(), timeout, reason });
        }
        if received < size {
            return Err(FetchError::Broken { url: url.to_owned(), worker: worker.clone(), received, size, reason });
        }
        Ok((part, hexadecimal(hash)))
    }
}

/// Where a file goes whose target is `target`: there, or where a link there leads to. Errors: something is there that is no
/// file, which a file would take the place of.
fn regular(target: &Path) -> std::io::Result<PathBuf> {
    let refused = || std::io::Error::other("it is there and not a regular file; '-' is standard output");
    let kind = match std::fs::symlink_metadata(target) {
        Ok(metadata) => metadata.file_type(),
        // Whatever else is wrong shows when it is written.
        Err(_) => return Ok(target.to_path_buf()),
    };
    if kind.is_file() {
        return Ok(target.to_path_buf());
    }
    let leads_to = if kind.is_symlink() { target.canonicalize().ok() } else { None };
    leads_to.filter(|path| path.is_file()).ok_or_else(refused)
}

/// A file beside its target that goes away unless it is kept.
struct PartFile {
    file: File,
    path: Option<PathBuf>,
}

impl PartFile {
    fn create(folder: &Path, target: &Path) -> std::io::Result<Self> {
        let name = target.file_name().unwrap_or_default().to_string_lossy();
        let path = folder.join(format!(".{name}.{}.part", uuid::Uuid::new_v4().simple()));
        let file = File::options().write(true).create_new(true).open(&path)?;
        Ok(Self { file, path: Some(path) })
    }

    fn write(&mut self, chunk: &Bytes) -> std::io::Result<()> {
        self.file.write_all(chunk)
    }

    fn keep(mut self, target: &Path) -> std::io::Result<()> {
        if let Some(path) = self.path.take() {
            std::fs::rename(&path, target).inspect_err(|_| self.path = Some(path))?;
        }
        Ok(())
    }
}

impl Drop for PartFile {
    fn drop(&mut self) {
        if let Some(path) = &self.path {
            // Nothing can be done about a file that cannot be removed; its name says what it is.
            std::fs::remove_file(path).ok();
        }
    }
}

fn spec(task: &str, target: Target, kwargs: Value, timeout: Duration) -> JobSpec {
    let kwargs: Map<String, Value> = kwargs.as_object().cloned().unwrap_or_default();
    JobSpec {
        id: None,
        service: ServiceName::parse(SERVICE).expect("a name"),
        task: TaskName::parse(task).expect("a name"),
        target,
        kwargs,
        args: Vec::new(),
        timeout,
        waits: false,
    }
}

/// Size and hash in a worker's answer, or why it has none.
fn details(payload: &[u8]) -> Result<(u64, String), String> {
    let result: TaskResult = serde_json::from_slice(payload).map_err(|error| error.to_string())?;
    if result.failed {
        return Err(result.errors.join("; "));
    }
    let details: FileDetails = serde_json::from_str(result.result.get()).map_err(|error| error.to_string())?;
    match details {
        FileDetails { md5hash: Some(md5), size_bytes: Some(size), exists: true } => Ok((size, md5)),
        _ => Err("the worker does not have it".to_owned()),
    }
}

fn has_hash(path: &Path, size: u64, md5: &str) -> Option<u64> {
    let mut file = File::open(path).ok()?;
    let metadata = file.metadata().ok()?;
    if !metadata.is_file() || metadata.len() != size {
        return None;
    }
    let mut hash = Md5::new();
    let mut buffer = vec![0; 64 << 10];
    loop {
        match file.read(&mut buffer).ok()? {
            0 => break,
            read => hash.update(&buffer[..read]),
        }
    }
    (hexadecimal(hash) == md5).then_some(size)
}

fn hexadecimal(hash: Md5) -> String {
    hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
}
