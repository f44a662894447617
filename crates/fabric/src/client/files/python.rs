//! Fetching from workers of Python NorFab.
//!
//! The file is streamed in chunks: the worker sends the first one unasked, then one for each credit. Chunks carry no offset and no
//! hash, so their order is the only structure: one transfer is one job with one worker, and what came is right or wrong as a whole.

use std::collections::BTreeSet;
use std::io;
use std::time::Duration;

use bytes::Bytes;
use md5::{Digest, Md5};
use norfab_files::Part;
use norfab_files::record::Facts;
use norfab_protocol::TaskResult;
use norfab_protocol::client::{JobState, JobUpdate};
use norfab_protocol::target::Target;
use serde_json::json;

use super::super::ClientHandle;
use super::fetch::{Fruitless, Origin, Wanted};
use super::find::Holder;
use super::place::{Place, Ways, blocking};
use super::stream::{FIRST_MAX, STILL_MIN, is_lost};
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

/// How chunks ended before all were here.
enum Cut {
    /// What it is for all of it.
    Failed(FetchError),
    /// The transfer broke off.
    Off {
        received: u64,
        reason: String,
        /// The worker says that it does not send it.
        is_denied: bool,
        /// The job's time was over.
        timed_out: bool,
    },
}

impl From<FetchError> for Cut {
    fn from(error: FetchError) -> Self {
        Self::Failed(error)
    }
}

impl ClientHandle {
    /// As [`ClientHandle::fetch_file`], from a worker of Python NorFab. One that is lost is replaced by another one whose file has the
    /// same hash, and what came stays.
    pub(super) async fn fetch_python(
        &self,
        wanted: &Wanted<'_>,
        place: &Place,
        mut holder: Holder,
        progress: &mut (dyn FnMut(u64, u64) + Send),
    ) -> Result<Fetched, FetchError> {
        let cannot_write = |error| wanted.cannot_write(error);
        let (size, expected) = (holder.size, holder.md5.clone().unwrap_or_default());
        let path = wanted.target.to_path_buf();
        let (there, hash) = (place.clone(), expected.clone());
        // Reading a large file takes a while; the runtime has others to serve.
        if blocking(move || Ok(has_hash(&there, size, &hash))).await.map_err(cannot_write)? {
            progress(size, size);
            return Ok(Fetched { path, bytes: size, had: size, sha256: None, md5: Some(expected), worker: None });
        }
        let mut had = None;
        let mut fruitless = Fruitless::default();
        loop {
            let opened = place.clone();
            let gathering = blocking(move || Gathering::open(&opened, size)).await.map_err(cannot_write)?;
            let first = *had.get_or_insert(gathering.bytes);
            let began = gathering.bytes;
            let gathering = match self.chunks(wanted, &holder, gathering, fruitless.factor(), progress).await {
                Ok(gathering) => gathering,
                Err(Cut::Failed(error)) => return Err(error),
                Err(Cut::Off { received, reason, is_denied, timed_out }) => {
                    let (url, worker) = (wanted.url.to_owned(), holder.worker.clone());
                    if timed_out || SystemClock::now() >= wanted.deadline {
                        let reason = format!("{received} of {size} bytes came from worker {worker}");
                        return Err(FetchError::TimedOut { url, timeout: wanted.timeout, reason });
                    }
                    fruitless.ended(received > began);
                    let next = match fruitless.is_enough() {
                        true => None,
                        false => self.same_elsewhere(wanted, &holder, &expected).await?,
                    };
                    match next {
                        Some(next) => holder = next,
                        None if is_denied || fruitless.is_enough() => {
                            return Err(FetchError::Broken { url, worker, received, size, reason });
                        }
                        // It may come back.
                        None => fruitless.pause().await,
                    }
                    continue;
                }
            };
            let worker = holder.worker.clone();
            let found = hexadecimal(gathering.hash);
            if found == expected {
                let facts = Facts { size, modified: SystemClock::unix() as i64, mode: MODE };
                // Without that a host that goes down could leave an empty file under the name.
                let (place, part) = (place.clone(), gathering.part);
                blocking(move || {
                    part.sync()?;
                    place.keep(part, facts, &mut Ways::default())
                })
                .await
                .map_err(cannot_write)?;
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

    /// Another worker that has the same file. Errors: nobody can be asked.
    async fn same_elsewhere(
        &self,
        wanted: &Wanted<'_>,
        lost: &Holder,
        md5: &str,
    ) -> Result<Option<Holder>, FetchError> {
        let Origin::Workers(workers) = &wanted.origin else { return Ok(None) };
        let mut without = BTreeSet::from([lost.worker.clone()]);
        loop {
            match self.find(wanted.url, workers.clone(), wanted.deadline, wanted.timeout, &without).await {
                Ok(holder) if holder.size == lost.size && holder.md5.as_deref() == Some(md5) => {
                    return Ok(Some(holder));
                }
                // It has another one, or is one of ours, which tells no hash unasked.
                Ok(other) => drop(without.insert(other.worker)),
                Err(FetchError::Submit(error)) => return Err(error.into()),
                Err(_) => return Ok(None),
            }
        }
    }

    /// `factor`: by how much longer it is waited for chunks than usual.
    async fn chunks(
        &self,
        wanted: &Wanted<'_>,
        holder: &Holder,
        mut gathering: Gathering,
        factor: u32,
        progress: &mut (dyn FnMut(u64, u64) + Send),
    ) -> Result<Gathering, Cut> {
        let (worker, size) = (&holder.worker, holder.size);
        if gathering.bytes == size && size > 0 {
            return Ok(gathering);
        }
        let left = wanted.time_left(size)?;
        let arguments = json!({ "url": holder.url, "offset": gathering.bytes, "chunk_size": CHUNK_BYTES });
        let spec = spec("fetch_file", Target::list([worker]), arguments, left);
        let mut job = self.submit(spec).await.map_err(FetchError::from)?;
        let mut asked = gathering.bytes + CHUNK_BYTES;
        let mut credits = PIPELINE;
        let mut reason = "the job ended".to_owned();
        let (mut timed_out, mut is_denied, mut has_said, mut dispatched) = (false, false, false, false);
        let mut link = self.state();
        // On a slow line chunks come at long intervals.
        let (mut last, mut longest, mut still_max) = (SystemClock::now(), Duration::ZERO, FIRST_MAX * factor);
        while gathering.bytes < size {
            let wait = (last + still_max).min(wanted.deadline).saturating_duration_since(SystemClock::now());
            let update = tokio::select! {
                update = job.next() => update,
                // What was on its way is lost with the connection.
                () = is_lost(&mut link), if dispatched => {
                    reason = "the connection to the broker was lost".to_owned();
                    None
                }
                () = tokio::time::sleep(wait) => {
                    let waited = SystemClock::now().saturating_duration_since(last);
                    reason = format!("nothing came for {:.0} s", waited.as_secs_f64());
                    None
                }
            };
            let Some(update) = update else { break };
            match update {
                JobUpdate::Stream(chunk) => {
                    let now = SystemClock::now();
                    longest = longest.max(now.saturating_duration_since(last));
                    (last, still_max) = (now, (longest * 4).max(STILL_MIN) * factor);
                    gathering = blocking(move || gathering.write(&chunk).map(|()| gathering))
                        .await
                        .map_err(|error| wanted.cannot_write(error))?;
                    progress(gathering.bytes.min(size), size);
                    credits += 1;
                    while credits > 0 && asked < size {
                        job.credit(Some(worker.clone()), asked).await.map_err(FetchError::from)?;
                        asked += CHUNK_BYTES;
                        credits -= 1;
                    }
                }
                JobUpdate::Result(_, payload) => {
                    if let Ok(result) = serde_json::from_slice::<TaskResult>(&payload)
                        && result.failed
                    {
                        let errors = result.errors.join("; ");
                        // It may go better: it also fails so where its own broker was gone for a while.
                        is_denied = !errors.contains(TRACEBACK);
                        (reason, has_said) = (last_line(&errors), true);
                    }
                }
                JobUpdate::Finished(outcome) if outcome.state != JobState::Completed => {
                    if !has_said {
                        reason = last_line(&outcome.errors.join("; "));
                    }
                    timed_out = outcome.state == JobState::Stale;
                }
                JobUpdate::Dispatched(_) => dispatched = true,
                _ => {}
            }
        }
        if gathering.bytes >= size {
            // The bytes are here; the job's own end follows them. Without it the job would look unfinished for ever.
            let ended = async { while job.next().await.is_some() {} };
            tokio::time::timeout(END_WAIT, ended).await.ok();
            return Ok(gathering);
        }
        if !job.report().state.is_final() {
            // What is still sent would be in the way of the next attempt. It ends by itself where nobody can be told.
            job.cancel(self.identity().as_str(), Some("the transfer is broken off".to_owned())).await.ok();
        }
        Err(Cut::Off { received: gathering.bytes, reason, is_denied, timed_out })
    }
}

/// How a traceback of Python begins.
const TRACEBACK: &str = "Traceback (most recent call last)";

/// What a traceback of Python says at its end; other texts as they are.
fn last_line(text: &str) -> String {
    match text.contains(TRACEBACK) {
        true => text.lines().map(str::trim).rfind(|line| !line.is_empty()).unwrap_or_default().to_owned(),
        false => text.to_owned(),
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
