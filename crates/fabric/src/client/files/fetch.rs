//! Fetching one file: as many transfers as it takes.

use std::collections::BTreeSet;
use std::io;
use std::path::Path;
use std::time::{Duration, Instant};

use norfab_files::record::Facts;
use norfab_files::source::hash_to;
use norfab_files::{Arrival, ContentHash, Part, Prefix, Sink};
use norfab_protocol::Identity;
use norfab_protocol::target::Target;
use serde_json::json;

use super::super::ClientHandle;
use super::find::Holder;
use super::git::is_git;
use super::place::{Place, Ways};
use super::stream::{Broken, Patience, Receiver};
use super::{FetchError, Fetched, STANDSTILL_MAX, check_url};
use crate::clock::{SystemClock, TIMEOUT_MAX};

/// How long is waited between two attempts in which nothing came.
pub(super) const ATTEMPT_INTERVAL: Duration = Duration::from_secs(1);

/// By how much an attempt has more patience at most than the first.
const PATIENCE_FACTOR_MAX: u32 = 8;

/// What a fetch is about.
pub(super) struct Wanted<'a> {
    pub(super) url: &'a str,
    pub(super) target: &'a Path,
    pub(super) timeout: Duration,
    pub(super) deadline: Instant,
    pub(super) origin: Origin<'a>,
}

/// Whose file it is that is wanted. Another worker may have something else under the same URL.
#[derive(Debug, Clone)]
pub(super) enum Origin<'a> {
    /// That of any of these.
    Workers(Target),
    /// That of a git remote, by its URL: workers that know the remote say where they serve it.
    Git(&'a str),
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
    /// Whether what came before may be thrown away, as the worker has something else.
    replaces: bool,
}

impl Receiver for OneFile {
    fn arrived(&mut self, arrival: Arrival) -> io::Result<()> {
        match arrival {
            Arrival::Began { offset, facts, .. } => {
                self.is_there = self.is_there && offset == facts.size;
                (self.size, self.had, self.received) = (facts.size, offset, offset);
                if !self.is_there && self.part.bytes()? < offset {
                    // What is here is in the target, which was taken for the whole.
                    self.failed = Some("it became longer meanwhile".to_owned());
                } else if !self.is_there && offset == 0 && self.part.bytes()? > 0 && !self.replaces {
                    self.failed = Some("it does not begin with what came before".to_owned());
                } else if !self.is_there {
                    self.part.cut(offset)?;
                }
            }
            Arrival::Content { offset, bytes, .. } => {
                if !self.is_there && self.failed.is_none() {
                    self.part.write(&bytes, offset)?;
                }
                self.received = offset + bytes.len() as u64;
            }
            Arrival::Whole { hash, facts, .. } if self.failed.is_none() => {
                // Without that a host that goes down could leave an empty file under the name.
                if !self.is_there {
                    self.part.sync()?;
                }
                self.whole = Some((hash, facts));
            }
            // It comes again.
            Arrival::Whole { .. } => {}
            Arrival::Failed { why, .. } => self.failed = Some(why),
        }
        Ok(())
    }

    fn is_done(&self) -> bool {
        self.whole.is_some() || self.failed.is_some()
    }
}

impl ClientHandle {
    /// Fetches `nf://PATH`, or `git://REMOTE/PATH` as it is in the repository now, to a file, from whichever worker answers first that it
    /// has it. The file appears under its name only when it is whole and its hash is right. A file that is there with that hash is not fetched again, and what came before a
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
        let timeout = timeout.min(TIMEOUT_MAX);
        let origin = if is_git(url) { Origin::Git(url) } else { Origin::Workers(Target::All) };
        let wanted = Wanted { url, target, timeout, deadline: SystemClock::now() + timeout, origin };
        check_url(url)?;
        // Before anybody is asked, so that a mistake is told at once.
        let place = Place::of(target).map_err(|error| wanted.cannot_write(error))?;
        if !is_git(url) {
            return self.fetch_placed(&wanted, place, Target::All, &mut progress).await;
        }
        let (resolved, worker) = self.resolve_git(url, wanted.deadline, timeout, &BTreeSet::new()).await?;
        let wanted = Wanted { url: &resolved, ..wanted };
        // Others may have something else in the place of the checkout.
        self.fetch_placed(&wanted, place, Target::list([worker]), &mut progress).await
    }

    /// As [`Self::fetch_file`], from workers that are asked first.
    pub(super) async fn fetch_placed(
        &self,
        wanted: &Wanted<'_>,
        place: Place,
        target: Target,
        progress: &mut (dyn FnMut(u64, u64) + Send),
    ) -> Result<Fetched, FetchError> {
        let holder = self.find(wanted.url, target, wanted.deadline, wanted.timeout, &BTreeSet::new()).await?;
        match holder.md5 {
            None => self.fetch_ours(wanted, place, holder, progress).await,
            Some(_) => self.fetch_python(wanted, &place, holder, progress).await,
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
        // What came before stays as long as another worker may have the rest of it.
        let mut replaces = false;
        loop {
            let (part, sink, have, is_there) = at_hand.look(wanted, &place, holder.size).await?;
            wanted.time_left(holder.size)?;
            let before = at_hand.best;
            let receiver =
                OneFile { part, size: holder.size, is_there, had: 0, received: 0, whole: None, failed: None, replaces };
            let files = json!([{ "url": holder.url, "have_bytes": have.0, "have_sha256": have.1 }]);
            let patience = Patience { deadline: wanted.deadline, factor: fruitless.factor(), is_replaceable: false };
            // What is told is where it begins, and what comes then: messages have little beside content.
            let (size, first) = (holder.size, if is_there { holder.size } else { have.0 });
            let mut tell = |bytes: u64| progress((first + bytes).min(size), size);
            let (receiver, ended) = self.stream(&holder.worker, files, sink, receiver, patience, &mut tell).await;
            at_hand.first(receiver.had);
            at_hand.differs |= is_there && !receiver.is_there;
            if let Some((hash, facts)) = receiver.whole {
                let bytes = facts.size;
                progress(bytes, bytes);
                let had = at_hand.had.unwrap_or_default().min(bytes);
                let worker = (!receiver.is_there).then_some(holder.worker);
                if !receiver.is_there {
                    let kept = place.keep(receiver.part, facts, &mut Ways::default());
                    kept.map_err(|error| wanted.cannot_write(error))?;
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
            if receiver.received > before {
                at_hand.denied = 0;
            }
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
            holder = match self.again(wanted, &holder, &mut without, &mut at_hand.denied).await {
                Ok(next) => {
                    // Nobody else has it.
                    replaces |= next.worker == holder.worker;
                    next
                }
                Err(FetchError::TimedOut { .. }) => return Err(wanted.timed_out(reason)),
                Err(FetchError::NotFound { .. } | FetchError::Silent { .. }) => {
                    return Err(broken(holder.worker, reason));
                }
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
        denied: &mut u32,
    ) -> Result<Holder, FetchError> {
        if SystemClock::now() >= wanted.deadline {
            return Err(wanted.timed_out(String::new()));
        }
        let mut others = without.clone();
        others.insert(last.worker.clone());
        let (deadline, timeout) = (wanted.deadline, wanted.timeout);
        let found = match &wanted.origin {
            Origin::Workers(workers) => self.find(wanted.url, workers.clone(), deadline, timeout, &others).await,
            Origin::Git(url) => match self.resolve_git(url, deadline, timeout, &others).await {
                Ok((served, worker)) => self.find(&served, Target::list([worker]), deadline, timeout, &others).await,
                Err(error) => Err(error),
            },
        };
        match found {
            Ok(holder) if holder.md5.is_none() => return Ok(holder),
            Err(FetchError::Submit(error)) => return Err(error.into()),
            Err(error @ (FetchError::NotFound { .. } | FetchError::Silent { .. }))
                if without.contains(&last.worker) =>
            {
                *denied += 1;
                if *denied >= DENIALS_MAX {
                    return Err(error);
                }
            }
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

/// How often in a row a worker that had a file may not send it, where nobody else has it, before it counts as gone: whoever writes it
/// may be at it once or twice.
const DENIALS_MAX: u32 = 3;

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
    /// The file in its place is another one.
    differs: bool,
    /// How often the worker that had it did not send it, and nobody else had it.
    denied: u32,
}

type Looked = (Part, Sink, (u64, Option<String>), bool);

impl AtHand {
    fn first(&mut self, had: u64) {
        self.had.get_or_insert(had);
    }

    /// Opens the part, and hashes what is there: of the target, if that has the right size, or of the part. Whether it is the target.
    async fn look(&mut self, wanted: &Wanted<'_>, place: &Place, size: u64) -> Result<Looked, FetchError> {
        let may_be_there = !self.differs;
        let (place, deadline) = (place.clone(), wanted.deadline);
        let looking = tokio::task::spawn_blocking(move || {
            let is_ended = || SystemClock::now() >= deadline;
            let mut ways = Ways::default();
            let part = place.part(&mut ways)?;
            let mut prefix = Prefix::default();
            // What a transfer before this one left is of the version that is wanted more likely than what is in its place.
            let there = if may_be_there && size > 0 && part.bytes()? == 0 { place.file(size, &mut ways) } else { None };
            let is_there = there.is_some();
            if let Some(file) = there {
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
