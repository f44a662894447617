//! Fetching one file: as many transfers as it takes.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use norfab_files::part::open_folder;
use norfab_files::record::Facts;
use norfab_files::source::hash_to;
use norfab_files::{Arrival, ContentHash, Part, Prefix, Sink};
use norfab_protocol::Identity;
use serde_json::json;

use super::super::ClientHandle;
use super::find::Holder;
use super::stream::{Broken, Patience, Receiver};
use super::{FetchError, Fetched, STANDSTILL_MAX};
use crate::clock::{SystemClock, TIMEOUT_MAX};

/// How long is waited between two attempts in which nothing came.
const ATTEMPT_INTERVAL: Duration = Duration::from_secs(1);

/// By how much an attempt has more patience at most than the first.
const PATIENCE_FACTOR_MAX: u32 = 8;

/// What a fetch is about.
pub(super) struct Wanted<'a> {
    pub(super) url: &'a str,
    pub(super) target: &'a Path,
    pub(super) timeout: Duration,
    pub(super) deadline: Instant,
}

impl Wanted<'_> {
    pub(super) fn cannot_write(&self, error: io::Error) -> FetchError {
        FetchError::Write { path: self.target.to_path_buf(), error }
    }

    /// What is left of the time. Errors: nothing.
    pub(super) fn time_left(&self, size: u64) -> Result<Duration, FetchError> {
        let left = self.deadline.saturating_duration_since(SystemClock::now());
        if left.is_zero() { Err(self.timed_out(format!("no time was left for its {size} bytes"))) } else { Ok(left) }
    }

    fn timed_out(&self, reason: String) -> FetchError {
        FetchError::TimedOut { url: self.url.to_owned(), timeout: self.timeout, reason }
    }
}

/// Where a file goes: its folder and its name there, which is another one where the target is a link to a file.
#[derive(Debug, Clone)]
pub(super) struct Place {
    pub(super) path: PathBuf,
    folder: PathBuf,
    pub(super) name: OsString,
}

impl Place {
    /// Errors: something is there that is no file, which a file would take the place of.
    pub(super) fn of(target: &Path) -> io::Result<Self> {
        let path = regular(target)?;
        let name = path.file_name().ok_or_else(|| io::Error::other("it names no file"))?.to_owned();
        let folder = path.parent().unwrap_or(Path::new("")).to_path_buf();
        Ok(Self { path, folder, name })
    }

    /// The file in which it gathers. Blocks.
    pub(super) fn part(&self) -> io::Result<Part> {
        if !self.folder.as_os_str().is_empty() {
            std::fs::create_dir_all(&self.folder)?;
        }
        Part::open(open_folder(&self.folder)?, &self.name)
    }
}

/// Writes one file into its part.
struct OneFile {
    part: Part,
    size: u64,
    /// The file is at its place already: nothing is written.
    is_there: bool,
    /// What was there before of what is received.
    had: u64,
    /// How much is there.
    received: u64,
    whole: Option<(ContentHash, Facts)>,
    failed: Option<String>,
}

impl Receiver for OneFile {
    fn arrived(&mut self, arrival: Arrival) -> io::Result<()> {
        match arrival {
            Arrival::Began { offset, facts, .. } => {
                self.is_there = self.is_there && offset == facts.size;
                (self.size, self.had, self.received) = (facts.size, offset, offset);
                if !self.is_there {
                    self.part.cut(offset)?;
                }
            }
            Arrival::Content { offset, bytes, .. } => {
                if !self.is_there {
                    self.part.write(&bytes, offset)?;
                }
                self.received = offset + bytes.len() as u64;
            }
            Arrival::Whole { hash, facts, .. } => {
                // Without that a host that goes down could leave an empty file under the name.
                if !self.is_there {
                    self.part.sync()?;
                }
                self.whole = Some((hash, facts));
            }
            Arrival::Failed { why, .. } => self.failed = Some(why),
        }
        Ok(())
    }

    fn is_done(&self) -> bool {
        self.whole.is_some() || self.failed.is_some()
    }
}

impl ClientHandle {
    /// Fetches `nf://PATH` to a file, from whichever worker answers first that it has it. The file appears under its name
    /// only when it is whole and its hash is right. A file that is there with that hash is not fetched again, and what came before a
    /// transfer broke off is not, either: it is kept beside the target, also when this process ends. A worker that is lost
    /// meanwhile is replaced by another one that has the file. A target that is a link to a file stays one: what it points to is
    /// replaced. `progress` is told the bytes so far and the size. Errors: as [`FetchError`]; the target is then as it was.
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
        let wanted = Wanted { url, target, timeout, deadline: SystemClock::now() + timeout };
        // Before anybody is asked, so that a mistake is told at once.
        let place = Place::of(target).map_err(|error| wanted.cannot_write(error))?;
        let holder = self.find(url, wanted.deadline, timeout, &BTreeSet::new()).await?;
        match holder.md5 {
            None => self.fetch_ours(&wanted, place, holder, &mut progress).await,
            Some(_) => self.fetch_python(&wanted, &place, holder, &mut progress).await,
        }
    }

    async fn fetch_ours(
        &self,
        wanted: &Wanted<'_>,
        place: Place,
        mut holder: Holder,
        progress: &mut (dyn FnMut(u64, u64) + Send),
    ) -> Result<Fetched, FetchError> {
        let mut without = BTreeSet::new();
        let mut at_hand = AtHand::default();
        let mut fruitless = Fruitless::default();
        loop {
            let (part, sink, have, is_there) = at_hand.look(wanted, &place, holder.size).await?;
            wanted.time_left(holder.size)?;
            let before = at_hand.best;
            let receiver =
                OneFile { part, size: holder.size, is_there, had: 0, received: 0, whole: None, failed: None };
            let files = json!([{ "url": wanted.url, "have_bytes": have.0, "have_sha256": have.1 }]);
            let patience = Patience { deadline: wanted.deadline, factor: fruitless.factor() };
            // What is told is where it begins, and what comes then: messages have little beside content.
            let (size, first) = (holder.size, if is_there { holder.size } else { have.0 });
            let mut tell = |bytes: u64| progress((first + bytes).min(size), size);
            let (receiver, ended) = self.stream(&holder.worker, files, sink, receiver, patience, &mut tell).await;
            at_hand.first(receiver.had);
            if let Some((hash, facts)) = receiver.whole {
                let bytes = facts.size;
                progress(bytes, bytes);
                let had = at_hand.had.unwrap_or_default().min(bytes);
                let worker = (!receiver.is_there).then_some(holder.worker);
                if !receiver.is_there {
                    let cannot_write = |error| wanted.cannot_write(error);
                    // Once more: a transfer takes its time.
                    let place = Place::of(wanted.target).map_err(cannot_write)?;
                    receiver.part.keep(&place.name, facts).map_err(cannot_write)?;
                }
                let path = wanted.target.to_path_buf();
                return Ok(Fetched { path, bytes, had, sha256: Some(hash.to_string()), md5: None, worker });
            }
            let reason = match (receiver.failed, ended) {
                // It had it a moment ago, and may be writing it.
                (Some(why), _) => {
                    without.insert(holder.worker.clone());
                    why
                }
                (None, Err(Broken::Write(error))) => return Err(wanted.cannot_write(error)),
                (None, Err(Broken::Submit(error))) => return Err(error.into()),
                (None, Err(Broken::Off(reason))) => reason,
                (None, Ok(())) => "not all of it came".to_owned(),
            };
            tracing::info!(
                "client {}: the transfer of {} from worker {} broke off at {} of {} bytes: {reason}",
                self.identity(),
                wanted.url,
                holder.worker,
                receiver.received,
                receiver.size
            );
            if SystemClock::now() >= wanted.deadline {
                let (received, size) = (receiver.received, receiver.size);
                return Err(wanted.timed_out(format!("{received} of {size} bytes came from worker {}", holder.worker)));
            }
            fruitless.ended(receiver.received > before);
            at_hand.best = at_hand.best.max(receiver.received);
            let broken = |worker: Identity, reason| FetchError::Broken {
                url: wanted.url.to_owned(),
                worker,
                received: receiver.received,
                size: receiver.size,
                reason,
            };
            if fruitless.is_enough() {
                return Err(broken(holder.worker, reason));
            }
            fruitless.pause().await;
            holder = match self.again(wanted, &holder, &mut without).await {
                Ok(holder) => holder,
                Err(FetchError::TimedOut { .. }) => return Err(wanted.timed_out(reason)),
                Err(FetchError::NotFound { .. }) => return Err(broken(holder.worker, reason)),
                Err(error) => return Err(error),
            };
        }
    }

    /// Who sends the rest: another worker, where one has it, else whoever does.
    async fn again(
        &self,
        wanted: &Wanted<'_>,
        last: &Holder,
        without: &mut BTreeSet<Identity>,
    ) -> Result<Holder, FetchError> {
        if SystemClock::now() >= wanted.deadline {
            return Err(wanted.timed_out(String::new()));
        }
        let mut others = without.clone();
        others.insert(last.worker.clone());
        let found = self.find(wanted.url, wanted.deadline, wanted.timeout, &others).await;
        match found {
            Ok(holder) if holder.md5.is_none() => return Ok(holder),
            Err(FetchError::Submit(error)) => return Err(error.into()),
            // A worker of Python NorFab cannot go on with it.
            _ => {}
        }
        if without.contains(&last.worker) {
            without.clear();
        }
        // It is asked, and waited for, by the transfer itself.
        Ok(last.clone())
    }
}

/// Attempts in which nothing came.
#[derive(Debug, Default)]
pub(super) struct Fruitless {
    attempts: u32,
    since: Option<Instant>,
}

impl Fruitless {
    pub(super) fn ended(&mut self, brought_something: bool) {
        if brought_something {
            *self = Self::default();
        } else {
            self.attempts += 1;
            self.since.get_or_insert_with(SystemClock::now);
        }
    }

    pub(super) fn is_enough(&self) -> bool {
        self.since.is_some_and(|since| SystemClock::now().saturating_duration_since(since) >= STANDSTILL_MAX)
    }

    pub(super) fn factor(&self) -> u32 {
        (1 << self.attempts.min(8)).min(PATIENCE_FACTOR_MAX)
    }

    pub(super) async fn pause(&self) {
        if self.attempts > 0 {
            tokio::time::sleep(ATTEMPT_INTERVAL).await;
        }
    }
}

/// What there is of a file before an attempt.
#[derive(Debug, Default)]
struct AtHand {
    /// How much there was before the first.
    had: Option<u64>,
    /// The most that there ever was.
    best: u64,
    looked: bool,
}

type Looked = (Part, Sink, (u64, Option<String>), bool);

impl AtHand {
    fn first(&mut self, had: u64) {
        self.had.get_or_insert(had);
    }

    /// Opens the part, and hashes what is there: of the target, if that has the right size, or of the part. Whether it is the target.
    async fn look(&mut self, wanted: &Wanted<'_>, place: &Place, size: u64) -> Result<Looked, FetchError> {
        let first = !std::mem::replace(&mut self.looked, true);
        let (place, deadline) = (place.clone(), wanted.deadline);
        let looking = tokio::task::spawn_blocking(move || {
            let is_ended = || SystemClock::now() >= deadline;
            let part = place.part()?;
            let mut prefix = Prefix::default();
            // What a transfer before this one left is of the version that is wanted more likely than what is in its place.
            let is_there = first && part.bytes()? == 0 && is_as_long(&place.path, size);
            if is_there {
                let file = File::open(&place.path)?;
                prefix = hash_to(&file, size, &is_ended).unwrap_or_default();
            } else {
                let bytes = part.bytes()?.min(size);
                // What cannot be read is fetched.
                prefix = part.prefix(bytes, &is_ended).unwrap_or(prefix);
            }
            Ok((part, prefix, is_there))
        });
        let (part, prefix, is_there) = match looking.await {
            Ok(looked) => looked.map_err(|error| wanted.cannot_write(error))?,
            Err(error) => std::panic::resume_unwind(error.into_panic()),
        };
        let have = (prefix.bytes(), (prefix.bytes() > 0).then(|| prefix.hash().to_string()));
        let mut sink = Sink::default();
        sink.has(0, prefix);
        Ok((part, sink, have, is_there))
    }
}

/// Whether a file is there that may be the one that is wanted.
fn is_as_long(path: &Path, size: u64) -> bool {
    size > 0 && std::fs::symlink_metadata(path).is_ok_and(|metadata| metadata.is_file() && metadata.len() == size)
}

/// Where a file goes whose target is `target`: there, or where a link there leads to. Errors: something is there that is no
/// file, which a file would take the place of.
fn regular(target: &Path) -> io::Result<PathBuf> {
    let refused = || io::Error::other("it is there and not a regular file; '-' is standard output");
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
