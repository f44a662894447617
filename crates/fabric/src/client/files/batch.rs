//! One transfer of many files from one worker.

use std::collections::HashMap;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use norfab_files::record::Facts;
use norfab_files::source::hash_to;
use norfab_files::{Arrival, ContentHash, Part, Prefix, Sink};
use norfab_protocol::Identity;
use serde_json::{Value, json};
use tokio::sync::Notify;

use super::super::ClientHandle;
use super::place::{Place, Ways};
use super::stream::{Broken, Patience, Receiver};
use crate::clock::SystemClock;

/// From which size on it is looked for what an earlier transfer left of a file: a smaller one is fetched again sooner than that is
/// found out.
const RESUMED_BYTES_MIN: u64 = 64 << 10;

/// Files of which a beginning is kept open for a batch. A transfer that breaks off leaves one.
const RESUMED_MAX: usize = 16;

/// A file to fetch.
#[derive(Debug, Clone)]
pub(super) struct Wish {
    /// Its place among all.
    pub(super) index: usize,
    pub(super) url: String,
    pub(super) place: Place,
    /// As it was when it was asked for.
    pub(super) size: u64,
    /// Whether what is in its place may be it.
    pub(super) may_be_there: bool,
}

/// How it went with a file.
#[derive(Debug)]
pub(super) enum End {
    /// It is there.
    Whole {
        facts: Facts,
        hash: ContentHash,
        /// Bytes that were there before.
        had: u64,
        /// Its place had it already.
        was_there: bool,
    },
    /// It cannot be written here.
    Refused(io::Error),
    /// The worker does not send it.
    Failed(String),
    /// What is in its place is its beginning only, as it became longer: it is to be fetched without it.
    Again,
}

/// How far all are.
#[derive(Debug, Default)]
pub(super) struct Tally {
    pub(super) files: AtomicU64,
    pub(super) files_done: AtomicU64,
    pub(super) bytes: AtomicU64,
    pub(super) bytes_done: AtomicU64,
    pub(super) changed: Notify,
}

impl Tally {
    pub(super) fn file_done(&self) {
        self.files_done.fetch_add(1, Ordering::Relaxed);
        self.changed.notify_one();
    }

    pub(super) fn bytes_came(&self, bytes: u64) {
        self.bytes_done.fetch_add(bytes, Ordering::Relaxed);
        self.changed.notify_one();
    }
}

/// What of a file is here while it comes.
struct Current {
    index: usize,
    had: u64,
    /// What of it is in the tally.
    told: u64,
    to: To,
}

enum To {
    Part(Part),
    /// The file in its place has the content.
    There,
    /// Nothing can be written: what comes is left.
    Nowhere(io::Error),
    /// As [`End::Again`].
    Again,
}

/// Writes what comes to where it belongs.
pub(super) struct Batch {
    wishes: Vec<Wish>,
    ends: Vec<Option<End>>,
    left: usize,
    /// Beginnings that are here.
    parts: HashMap<usize, Part>,
    /// Whose hash is that of the file in its place.
    there: Vec<bool>,
    current: Option<Current>,
    ways: Ways,
    tally: Arc<Tally>,
}

/// A batch that has ended.
pub(super) struct Ended {
    pub(super) wishes: Vec<Wish>,
    pub(super) ends: Vec<Option<End>>,
    pub(super) ended: Result<(), Broken>,
    /// Whether anything came.
    pub(super) brought_something: bool,
}

impl Receiver for Batch {
    fn arrived(&mut self, arrival: Arrival) -> io::Result<()> {
        match arrival {
            Arrival::Began { file, offset, facts } => self.began(file, offset, facts),
            Arrival::Content { offset, bytes, .. } => {
                let Some(current) = &mut self.current else { return Ok(()) };
                if let To::Part(part) = &current.to
                    && let Err(error) = part.write(&bytes, offset)
                {
                    if is_of_all(&error) {
                        return Err(error);
                    }
                    // It is too large for the file system, for one: others may not be.
                    current.to = To::Nowhere(error);
                }
                current.told += bytes.len() as u64;
                self.tally.bytes_came(bytes.len() as u64);
                Ok(())
            }
            Arrival::Whole { hash, facts, .. } => {
                self.whole(hash, facts);
                Ok(())
            }
            Arrival::Failed { file, why } => {
                let file = file as usize;
                self.forget_current();
                if self.is_open(file) {
                    self.end(file, End::Failed(why));
                }
                Ok(())
            }
        }
    }

    fn is_done(&self) -> bool {
        self.left == 0
    }
}

impl Batch {
    /// Whether the worker has to read what is here before it sends.
    fn has_beginnings(&self) -> bool {
        !self.parts.is_empty() || self.there.contains(&true)
    }

    fn is_open(&self, file: usize) -> bool {
        self.ends.get(file).is_some_and(Option::is_none)
    }

    fn end(&mut self, file: usize, end: End) {
        self.ends[file] = Some(end);
        self.left -= 1;
    }

    /// Takes back what was told of a file that does not come whole.
    fn forget_current(&mut self) {
        if let Some(current) = self.current.take() {
            self.tally.bytes_done.fetch_sub(current.told, Ordering::Relaxed);
        }
    }

    fn began(&mut self, file: u32, offset: u64, facts: Facts) -> io::Result<()> {
        let index = file as usize;
        self.forget_current();
        if !self.is_open(index) {
            // No worker of ours does so: nothing that it says is believed any more.
            let why = || End::Failed("its worker sent a file that it had not been asked for".to_owned());
            for open in (0..self.ends.len()).filter(|index| self.ends[*index].is_none()).collect::<Vec<_>>() {
                self.end(open, why());
            }
            return Ok(());
        }
        let is_there = self.there[index] && offset > 0 && offset == facts.size;
        let to = if is_there { To::There } else { self.open(index, offset)? };
        self.tally.bytes_came(offset);
        // As it is now, which may be another size than it had.
        self.tally.bytes.fetch_add(facts.size, Ordering::Relaxed);
        self.tally.bytes.fetch_sub(self.wishes[index].size, Ordering::Relaxed);
        self.wishes[index].size = facts.size;
        self.current = Some(Current { index, had: offset, told: offset, to });
        Ok(())
    }

    /// Errors: nothing can be written at all.
    fn open(&mut self, index: usize, offset: u64) -> io::Result<To> {
        let opened = match self.parts.remove(&index) {
            Some(part) => Ok(part),
            None if offset > 0 => return Ok(To::Again),
            None => self.wishes[index].place.part(&mut self.ways),
        };
        let part = match opened {
            Ok(part) => part,
            Err(error) if is_of_all(&error) => return Err(error),
            Err(error) => return Ok(To::Nowhere(error)),
        };
        if part.bytes()? > offset {
            part.cut(offset)?;
        }
        Ok(To::Part(part))
    }

    fn whole(&mut self, hash: ContentHash, facts: Facts) {
        let Some(Current { index, had, told, to }) = self.current.take() else { return };
        let place = &self.wishes[index].place;
        let was_there = matches!(to, To::There);
        let kept = match to {
            To::Again => {
                self.tally.bytes_done.fetch_sub(told, Ordering::Relaxed);
                self.wishes[index].may_be_there = false;
                return self.end(index, End::Again);
            }
            To::Part(part) => place.keep(part, facts, &mut self.ways),
            To::There => place.is_right(facts, &mut self.ways),
            To::Nowhere(error) => Err(error),
        };
        let end = match kept {
            Ok(()) => {
                self.tally.file_done();
                End::Whole { facts, hash, had, was_there }
            }
            Err(error) => {
                self.tally.bytes_done.fetch_sub(told, Ordering::Relaxed);
                End::Refused(error)
            }
        };
        self.end(index, end);
    }
}

/// Whether an error is one of the whole disk or process rather than of one file.
pub(super) fn is_of_all(error: &io::Error) -> bool {
    use rustix::io::Errno;

    let of_all = [Errno::NOSPC, Errno::DQUOT, Errno::ROFS, Errno::IO, Errno::MFILE, Errno::NFILE];
    of_all.iter().any(|errno| error.raw_os_error() == Some(errno.raw_os_error()))
}

type Prepared = (Vec<Value>, Sink, Batch);

/// Looks at what is here of the files. Blocks.
fn prepare(wishes: Vec<Wish>, tally: Arc<Tally>, is_ended: &dyn Fn() -> bool) -> Prepared {
    let (mut files, mut sink, mut parts) = (Vec::new(), Sink::default(), HashMap::new());
    let mut there = vec![false; wishes.len()];
    let mut ways = Ways::default();
    for (index, wish) in wishes.iter().enumerate() {
        let (mut have, place) = (Prefix::default(), &wish.place);
        if wish.size >= RESUMED_BYTES_MIN && parts.len() < RESUMED_MAX {
            // What a transfer before this one left is of the version that is wanted more likely than what is in its place. An error shows
            // when it is written.
            if let Some((part, bytes)) =
                place.part(&mut ways).ok().and_then(|part| part.bytes().ok().map(|b| (part, b)))
                && bytes > 0
            {
                have = part.prefix(bytes.min(wish.size), is_ended).unwrap_or_default();
                parts.insert(index, part);
            }
        }
        if have.bytes() == 0
            && wish.may_be_there
            && wish.size > 0
            && let Some(file) = place.file(wish.size, &mut ways)
        {
            have = hash_to(&file, wish.size, is_ended).unwrap_or_default();
            there[index] = have.bytes() > 0;
            // An unreadable beginning is none.
            parts.remove(&index);
        }
        files.push(if have.bytes() == 0 {
            json!({ "url": wish.url })
        } else {
            json!({ "url": wish.url, "have_bytes": have.bytes(), "have_sha256": have.hash().to_string() })
        });
        sink.has(index as u32, have);
    }
    let (ends, left) = (wishes.iter().map(|_| None).collect(), wishes.len());
    (files, sink, Batch { wishes, ends, left, parts, there, current: None, ways, tally })
}

impl ClientHandle {
    /// Fetches files from one worker, one behind the other.
    pub(super) async fn batch(
        &self,
        worker: &Identity,
        wishes: Vec<Wish>,
        mut patience: Patience,
        tally: Arc<Tally>,
    ) -> Ended {
        let deadline = patience.deadline;
        let preparing = tokio::task::spawn_blocking(move || prepare(wishes, tally, &|| SystemClock::now() >= deadline));
        let (files, sink, batch) = match preparing.await {
            Ok(prepared) => prepared,
            Err(error) => std::panic::resume_unwind(error.into_panic()),
        };
        patience.is_replaceable &= !batch.has_beginnings();
        let before = batch.left;
        let (mut batch, ended) = self.stream(worker, Value::Array(files), sink, batch, patience, &mut |_| {}).await;
        let brought_something = batch.left < before || batch.current.as_ref().is_some_and(|it| it.told > it.had);
        batch.forget_current();
        Ended { wishes: batch.wishes, ends: batch.ends, ended, brought_something }
    }
}
