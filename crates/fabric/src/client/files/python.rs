//! Fetching from workers of Python NorFab.
//!
//! The file is streamed in chunks: the worker sends the first one unasked, then one for each credit. Chunks carry no offset and no
//! hash, so their order is the only structure: one transfer is one job with one worker, and what came is right or wrong as a whole.

use bytes::Bytes;
use md5::{Digest, Md5};
use norfab_files::Part;
use norfab_files::record::Facts;
use norfab_protocol::client::{JobState, JobUpdate};
use norfab_protocol::target::Target;
use norfab_protocol::{Identity, TaskResult};
use serde_json::json;
use std::io;
use std::time::Duration;

use super::super::ClientHandle;
use super::fetch::Wanted;
use super::find::Holder;
use super::place::{Place, Ways, blocking};
use super::{FetchError, Fetched, spec};
use crate::clock::SystemClock;

/// Bytes in a chunk: as in the recorded clients, and what Python workers expect.
pub const CHUNK_BYTES: u64 = 256_000;

/// Credits on their way at once, as in the recorded clients.
pub const PIPELINE: u64 = 10;

/// How long the end of a transfer's job is waited for once all bytes are here. It is on its way; a worker that dies now has
/// still sent the file.
const END_WAIT: Duration = Duration::from_secs(1);

/// Bytes that are hashed at once.
const HASHED_AT_ONCE: u64 = 64 << 10;

/// Permissions of what comes without any.
const MODE: u32 = 0o644;

/// A part with the hash of what is in it.
struct Gathering {
    part: Part,
    hash: Md5,
    bytes: u64,
}

impl Gathering {
    /// What is there of a file of this size, in whole chunks: a transfer can go on between two of them only. Blocks.
    fn open(place: &Place, size: u64) -> io::Result<Self> {
        let part = place.part(&mut Ways::default())?;
        let kept = part.bytes()?.min(size) / CHUNK_BYTES * CHUNK_BYTES;
        let mut gathering = Self { part, hash: Md5::new(), bytes: 0 };
        let mut buffer = vec![0; HASHED_AT_ONCE as usize];
        while gathering.bytes < kept {
            let wanted = (kept - gathering.bytes).min(HASHED_AT_ONCE) as usize;
            gathering.part.read(&mut buffer[..wanted], gathering.bytes)?;
            gathering.hash.update(&buffer[..wanted]);
            gathering.bytes += wanted as u64;
        }
        gathering.part.cut(kept)?;
        Ok(gathering)
    }

    fn write(&mut self, chunk: &Bytes) -> io::Result<()> {
        self.hash.update(chunk);
        self.part.write(chunk, self.bytes)?;
        self.bytes += chunk.len() as u64;
        Ok(())
    }
}

impl ClientHandle {
    /// As [`ClientHandle::fetch_file`], from a worker of Python NorFab.
    pub(super) async fn fetch_python(
        &self,
        wanted: &Wanted<'_>,
        place: &Place,
        Holder { worker, size, md5 }: Holder,
        progress: &mut (dyn FnMut(u64, u64) + Send),
    ) -> Result<Fetched, FetchError> {
        let cannot_write = |error| wanted.cannot_write(error);
        let expected = md5.unwrap_or_default();
        let path = wanted.target.to_path_buf();
        let (there, hash) = (place.clone(), expected.clone());
        // Reading a large file takes a while; the runtime has others to serve.
        if blocking(move || Ok(has_hash(&there, size, &hash))).await.map_err(cannot_write)? {
            progress(size, size);
            return Ok(Fetched { path, bytes: size, had: size, sha256: None, md5: Some(expected), worker: None });
        }
        let mut had = None;
        loop {
            let opened = place.clone();
            let gathering = blocking(move || Gathering::open(&opened, size)).await.map_err(cannot_write)?;
            let first = *had.get_or_insert(gathering.bytes);
            let began = gathering.bytes;
            let gathering = self.chunks(wanted, &worker, size, gathering, progress).await?;
            let found = hexadecimal(gathering.hash);
            if found == expected {
                let facts = Facts { size, modified: SystemClock::unix() as i64, mode: MODE };
                place.keep(gathering.part, facts, &mut Ways::default()).map_err(cannot_write)?;
                return Ok(Fetched {
                    path,
                    bytes: size,
                    had: first,
                    sha256: None,
                    md5: Some(found),
                    worker: Some(worker),
                });
            }
            gathering.part.remove().map_err(cannot_write)?;
            if began == 0 {
                return Err(FetchError::Mismatch { url: wanted.url.to_owned(), worker, expected, found });
            }
            // What was there before is of something else: all of it is fetched.
            had = Some(0);
        }
    }

    async fn chunks(
        &self,
        wanted: &Wanted<'_>,
        worker: &Identity,
        size: u64,
        mut gathering: Gathering,
        progress: &mut (dyn FnMut(u64, u64) + Send),
    ) -> Result<Gathering, FetchError> {
        if gathering.bytes == size && size > 0 {
            return Ok(gathering);
        }
        let left = wanted.time_left(size)?;
        let arguments = json!({ "url": wanted.url, "offset": gathering.bytes, "chunk_size": CHUNK_BYTES });
        let mut job = self.submit(spec("fetch_file", Target::list([worker]), arguments, left)).await?;
        let mut asked = gathering.bytes + CHUNK_BYTES;
        let mut credits = PIPELINE;
        let mut reason = "the job ended".to_owned();
        let mut timed_out = false;
        while gathering.bytes < size
            && let Some(update) = job.next().await
        {
            match update {
                JobUpdate::Stream(chunk) => {
                    gathering = blocking(move || gathering.write(&chunk).map(|()| gathering))
                        .await
                        .map_err(|error| wanted.cannot_write(error))?;
                    progress(gathering.bytes.min(size), size);
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
        let (url, received) = (wanted.url.to_owned(), gathering.bytes);
        if received >= size {
            // The bytes are here; the job's own end follows them. Without it the job would look unfinished for ever.
            let ended = async { while job.next().await.is_some() {} };
            tokio::time::timeout(END_WAIT, ended).await.ok();
            return Ok(gathering);
        }
        if timed_out {
            let reason = format!("{received} of {size} bytes came from worker {worker}");
            return Err(FetchError::TimedOut { url, timeout: wanted.timeout, reason });
        }
        Err(FetchError::Broken { url, worker: worker.clone(), received, size, reason })
    }
}

fn has_hash(place: &Place, size: u64, md5: &str) -> bool {
    let Some(mut file) = place.file(size, &mut Ways::default()) else { return false };
    md5_of(&mut file).is_some_and(|found| found == md5)
}

/// The MD5 of a file. `None`: it cannot be read.
pub(super) fn md5_of(file: &mut std::fs::File) -> Option<String> {
    use std::io::Read;

    let mut hash = Md5::new();
    let mut buffer = vec![0; HASHED_AT_ONCE as usize];
    loop {
        match file.read(&mut buffer) {
            Ok(0) => return Some(hexadecimal(hash)),
            Ok(read) => hash.update(&buffer[..read]),
            Err(_) => return None,
        }
    }
}

fn hexadecimal(hash: Md5) -> String {
    hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
}
