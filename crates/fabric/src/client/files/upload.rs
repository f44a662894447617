//! Sending one file to a worker: as many transfers as it takes.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use norfab_files::SourceError;
use norfab_protocol::Identity;
use serde::Deserialize;

use super::super::{ClientHandle, SubmitError};
use super::fetch::Fruitless;
use super::push::{Push, PushEnd};
use super::stream::Patience;
use crate::clock::{SystemClock, TIMEOUT_MAX};
use crate::queue::QueueError;

/// How long is waited for another upload of the same URL to end: longer than a worker waits for a client that was killed.
pub const BUSY_MAX: Duration = Duration::from_secs(35);

/// How often is asked whether a worker that takes no more uploads at once takes one more.
const FULL_INTERVAL: Duration = Duration::from_secs(1);

/// What is to be uploaded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Upload {
    /// The file.
    pub path: PathBuf,
    /// Where to: `nf://PATH`, below a folder in which a worker takes uploads.
    pub url: String,
    /// To whom; the only one that takes it, unless given.
    pub worker: Option<Identity>,
    /// Whether it may replace a file with other content. The worker must allow that, too.
    pub overwrite: bool,
    /// How long it may take in all.
    pub timeout: Duration,
}

/// What an upload did.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Uploaded {
    /// Where the file is.
    pub url: String,
    /// Its size.
    pub bytes: u64,
    /// Bytes that the worker had already, of this file or of a transfer that broke off.
    pub had: u64,
    /// Its SHA-256.
    pub sha256: String,
    /// Who has it.
    pub worker: Identity,
    /// It was there already, with this content.
    pub was_there: bool,
    /// It took the place of another one.
    pub replaced: bool,
}

/// Why a file was not uploaded.
#[derive(Debug, thiserror::Error)]
pub enum UploadError {
    /// Not a file URL.
    #[error("'{0}' is no file URL: write nf://PATH")]
    Url(String),
    /// The file cannot be read.
    #[error("cannot read {path}: {error}", path = .path.display())]
    Read {
        /// Which.
        path: PathBuf,
        /// Why.
        error: std::io::Error,
    },
    /// Somebody writes it.
    #[error("{path} changed while it was sent: send it again when it stays the same", path = .path.display())]
    Changed {
        /// Which.
        path: PathBuf,
    },
    /// No worker takes it.
    #[error("nobody takes '{url}': {reason}")]
    NobodyTakes {
        /// Which.
        url: String,
        /// What the workers or the broker said.
        reason: String,
    },
    /// Several workers take it.
    #[error("the workers {workers} take '{url}': name one of them")]
    Several {
        /// Which.
        url: String,
        /// Who.
        workers: String,
    },
    /// The worker does not take it.
    #[error("worker {worker} does not take it: {reason}")]
    Refused {
        /// Who.
        worker: Identity,
        /// Why.
        reason: String,
    },
    /// The worker says that it has the file, and it has another one.
    #[error(
        "worker {worker} says that it has '{url}' now, and that is not what was sent: {reason}; see what is there before it is used"
    )]
    Differs {
        /// Which.
        url: String,
        /// Who.
        worker: Identity,
        /// What is another.
        reason: String,
    },
    /// It did not come to its end in time.
    #[error("'{url}' was not uploaded within {timeout} s: {reason}", timeout = .timeout.as_secs_f64())]
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
    /// The transfer broke off, and again whenever it was tried.
    #[error(
        "the transfer of '{url}' to worker {worker} broke off after {sent} of {size} bytes: {reason}; what came is kept there, and the \
         next one goes on behind it"
    )]
    Broken {
        /// Which.
        url: String,
        /// To whom.
        worker: Identity,
        /// Bytes that are there.
        sent: u64,
        /// Bytes there are.
        size: u64,
        /// Why.
        reason: String,
    },
}

/// What a worker says of a file that it has taken.
#[derive(Debug, Clone, Deserialize)]
pub(super) struct Taken {
    size_bytes: u64,
    had_bytes: u64,
    sha256: String,
    was_there: bool,
    replaced: bool,
}

impl Taken {
    /// How it differs from what was sent.
    pub(super) fn differs(&self, size: u64, sha256: &str) -> Option<String> {
        let Self { size_bytes, sha256: found, .. } = self;
        (*size_bytes != size || found != sha256)
            .then(|| format!("it has {size_bytes} bytes with the SHA-256 {found}, and {size} with {sha256} were sent"))
    }
}

impl ClientHandle {
    /// Uploads a file to a worker, where the inventory of that allows it. It appears there under its name only when it is whole, its hash
    /// is right, and it is on the disk. What came before a transfer broke off is not sent again: the worker keeps it, also when
    /// this process ends. A file that is there with the same content is not sent. `progress` is told the bytes so far and the size.
    /// Errors: as [`UploadError`]; no file has appeared then, except where the answer was lost.
    /// Where the worker takes no more uploads at once, it is asked again until the time is over.
    pub async fn send_file(
        &self,
        upload: &Upload,
        progress: impl FnMut(u64, u64) + Send,
    ) -> Result<Uploaded, UploadError> {
        self.send_file_in_turn(upload, progress, |_| {}).await
    }

    /// As [`Self::send_file`]. `waits` is told, once, why it waits for others that are before it.
    pub async fn send_file_in_turn(
        &self,
        upload: &Upload,
        mut progress: impl FnMut(u64, u64) + Send,
        mut waits: impl FnMut(&str) + Send,
    ) -> Result<Uploaded, UploadError> {
        let Upload { path, url, worker, overwrite, timeout } = upload;
        if !url.starts_with("nf://") {
            return Err(UploadError::Url(url.clone()));
        }
        let timeout = (*timeout).min(TIMEOUT_MAX);
        let deadline = SystemClock::now() + timeout;
        let unread = |error| UploadError::Read { path: path.clone(), error };
        // Before anybody is asked, so that a mistake is told at once.
        drop(open(path).await.map_err(unread)?);
        let worker = self.taker(url, worker.as_ref(), deadline, timeout).await?;
        let transfer = super::super::new_job_id().to_string();
        let (mut best, mut fruitless, mut had) = (0, Fruitless::default(), None);
        let mut busy: Option<(Instant, String)> = None;
        let mut has_waited = false;
        loop {
            let (file, size) = open(path).await.map_err(unread)?;
            let patience = Patience { deadline, factor: fruitless.factor(), is_replaceable: false };
            let push = Push { url, worker: &worker, overwrite: *overwrite, transfer: &transfer, patience };
            let pushed = self.push(push, file, size, &mut progress).await;
            if let Some(began) = pushed.began {
                had.get_or_insert(began);
            }
            let (is_busy, reason) = match pushed.end {
                PushEnd::Whole(taken) => {
                    let Taken { size_bytes, had_bytes, sha256, was_there, replaced } = taken;
                    progress(size_bytes, size_bytes);
                    let had = had.unwrap_or_default().min(had_bytes);
                    let (url, bytes) = (url.clone(), size_bytes);
                    return Ok(Uploaded { url, bytes, had, sha256, worker, was_there, replaced });
                }
                PushEnd::Differs(reason) => {
                    return Err(UploadError::Differs { url: url.clone(), worker, reason });
                }
                PushEnd::Refused(reason) => return Err(UploadError::Refused { worker, reason }),
                PushEnd::Unread(SourceError::Read(error)) => return Err(unread(error)),
                PushEnd::Unread(SourceError::Changed) => return Err(UploadError::Changed { path: path.clone() }),
                PushEnd::Unread(SourceError::Ended) => (false, "the file was not read to its end".to_owned()),
                PushEnd::Submit(error) => return Err(error.into()),
                PushEnd::Full(reason) => {
                    if !std::mem::replace(&mut has_waited, true) {
                        waits(&format!("worker {worker}: {reason}"));
                    }
                    if SystemClock::now() + FULL_INTERVAL >= deadline {
                        let (url, reason) = (url.clone(), format!("worker {worker}: {reason}"));
                        return Err(UploadError::TimedOut { url, timeout, reason });
                    }
                    // Nothing is wrong with the transfer.
                    (busy, fruitless) = (None, Fruitless::default());
                    tokio::time::sleep(FULL_INTERVAL).await;
                    continue;
                }
                PushEnd::Busy(reason) => (true, reason),
                PushEnd::Off(reason) => (false, reason),
            };
            let now = SystemClock::now();
            tracing::info!(
                "client {}: the transfer of {url} to worker {worker} broke off at {} of {size} bytes: {reason}",
                self.identity(),
                pushed.sent
            );
            if now >= deadline {
                let (sent, url) = (pushed.sent, url.clone());
                // The last attempt had no time to be told.
                let reason = busy.filter(|_| pushed.began.is_none()).map_or(reason, |(_, reason)| reason);
                let reason = format!("{sent} of {size} bytes came to worker {worker}; {reason}");
                return Err(UploadError::TimedOut { url, timeout, reason });
            }
            busy = if is_busy { busy.or_else(|| Some((now, reason.clone()))) } else { None };
            if busy.as_ref().is_some_and(|(since, _)| now.saturating_duration_since(*since) >= BUSY_MAX) {
                return Err(UploadError::Refused { worker, reason });
            }
            fruitless.ended(pushed.sent > best);
            best = best.max(pushed.sent);
            if fruitless.is_enough() {
                return Err(UploadError::Broken { url: url.clone(), worker, sent: pushed.sent, size, reason });
            }
            fruitless.pause().await;
        }
    }
}

/// Opens a file for reading, with its size. Errors: it is no regular file, or cannot be read.
async fn open(path: &Path) -> std::io::Result<(std::fs::File, u64)> {
    let path = path.to_path_buf();
    let opening = tokio::task::spawn_blocking(move || {
        use std::os::unix::fs::OpenOptionsExt;

        // A pipe must not make us wait.
        let flags = rustix::fs::OFlags::NONBLOCK | rustix::fs::OFlags::NOCTTY;
        let flags = i32::try_from(flags.bits()).unwrap_or_default();
        let file = std::fs::OpenOptions::new().read(true).custom_flags(flags).open(path)?;
        let metadata = file.metadata()?;
        match metadata.is_file() {
            true => Ok((file, metadata.len())),
            false => Err(std::io::Error::other("it is no regular file")),
        }
    });
    match opening.await {
        Ok(opened) => opened,
        Err(error) => std::panic::resume_unwind(error.into_panic()),
    }
}
