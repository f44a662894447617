//! Which workers were registered, written down for a broker after this one: it remembers nothing of what this one handed to
//! whom, and has to know who may have it.
//!
//! A line for each change, appended by a thread of its own: the owner waits for no disk. What is not written when the process
//! is killed are the changes of the last moment.

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::{self, BufRead, BufReader, BufWriter, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use norfab_protocol::broker::{DEPARTED_MAX, GONE_KEPT, KnownWorker, RestoredWorker};
use norfab_protocol::{Identity, ServiceName};
use serde::{Deserialize, Serialize};
use tracing::{info, warn};

use crate::StartError;
use crate::clock::SystemClock;

/// Most bytes that are read at the start, a line at a time: more than all workers take that a broker remembers, twice and with
/// the longest names.
const READ_BYTES_MAX: u64 = 512 << 20;

/// Lines beyond two for each worker after which the file is written anew.
const LINES_SPARE: usize = 1000;

/// Names that may come in until those that went longest ago are looked for and forgotten: so many that it costs little each.
const NAMES_SPARE: usize = 20_000;

/// How soon a file that could not be written is tried again, whether anything changes or not.
const RETRY: Duration = Duration::from_secs(5);

/// How long the broker waits at its end for what is not written yet: a disk that hangs must not keep it from ending.
const CLOSE_WAIT: Duration = Duration::from_secs(5);

/// What is known of a worker: its service, and since when it is gone, in Unix seconds.
type Entry = (ServiceName, Option<f64>);

/// Bounded by [`forget_longest_gone`], as the broker bounds those that are registered.
type Known = BTreeMap<Identity, Entry>;

#[derive(Serialize, Deserialize)]
struct Line {
    worker: Identity,
    service: ServiceName,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    gone: Option<f64>,
}

/// Changes on their way to the disk: the last of each worker.
#[derive(Default)]
struct Waiting {
    changes: Known,
    /// How many were left when it was last looked for those that went longest ago.
    kept: usize,
    ends: bool,
}

impl Waiting {
    /// A disk that hangs while workers of ever new names come and go must not fill the memory.
    fn add(&mut self, worker: Identity, entry: Entry) {
        self.changes.insert(worker, entry);
        if self.changes.len() >= self.kept + NAMES_SPARE {
            forget_longest_gone(&mut self.changes);
            self.kept = self.changes.len();
        }
    }

    fn take(&mut self) -> Known {
        self.kept = 0;
        std::mem::take(&mut self.changes)
    }
}

#[derive(Default)]
struct Shared {
    waiting: Mutex<Waiting>,
    filled: Condvar,
}

impl Shared {
    fn change(&self, change: impl FnOnce(&mut Waiting)) {
        change(&mut self.waiting.lock().unwrap_or_else(PoisonError::into_inner));
        self.filled.notify_one();
    }

    /// Waits for changes and takes them. `true`: they are the last. `retry`: waits no longer than that, and for the end only.
    fn take(&self, retry: Option<Duration>) -> (Known, bool) {
        let waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        let mut waiting = match retry {
            None => {
                let is_idle = |waiting: &mut Waiting| waiting.changes.is_empty() && !waiting.ends;
                self.filled.wait_while(waiting, is_idle).unwrap_or_else(PoisonError::into_inner)
            }
            Some(time) => {
                let waited = self.filled.wait_timeout_while(waiting, time, |waiting| !waiting.ends);
                waited.unwrap_or_else(PoisonError::into_inner).0
            }
        };
        (waiting.take(), waiting.ends)
    }
}

/// The owner's end.
pub(super) struct WorkerBook {
    shared: Arc<Shared>,
    /// `None`: nothing is written.
    thread: Option<Writer>,
}

struct Writer {
    thread: JoinHandle<()>,
    /// Closed by the thread when it ends.
    ended: Receiver<()>,
}

impl WorkerBook {
    /// Opens the book, and says what is in it. Without a path nothing is written. A file that cannot be used is told in the log.
    /// Errors: the thread cannot be started.
    pub(super) fn open(path: Option<PathBuf>) -> Result<(Self, Vec<RestoredWorker>), StartError> {
        let shared = Arc::new(Shared::default());
        let Some(path) = path else { return Ok((Self { shared, thread: None }, Vec::new())) };
        let now = SystemClock::unix();
        let mut known = read(&path).unwrap_or_else(|error| {
            warn!("{} cannot be read, and who was registered before is not known: {error}", path.display());
            Known::new()
        });
        let restored = known
            .iter()
            .map(|(worker, (service, gone))| RestoredWorker {
                worker: worker.clone(),
                service: service.clone(),
                // A clock that was set back makes it seem to come: it went just now then, which is on the safe side.
                gone: gone.map(|at| Duration::try_from_secs_f64(now - at).unwrap_or_default()),
            })
            .collect();
        // Who does not come back went now, for the broker after this one.
        for (_, gone) in known.values_mut() {
            // A time to come would stay for ever.
            *gone = Some(gone.map_or(now, |at| at.min(now)));
        }
        let book = Book::new(path, known);
        let of_thread = Arc::clone(&shared);
        let (ends, ended) = sync_channel(0);
        let thread = std::thread::Builder::new()
            .name("b-workers".to_owned())
            .spawn(move || {
                let _ends: SyncSender<()> = ends;
                book.keep(&of_thread, RETRY);
            })
            .map_err(|error| StartError::Thread { role: "the broker's book of workers".to_owned(), error })?;
        Ok((Self { shared, thread: Some(Writer { thread, ended }) }, restored))
    }

    /// Takes a change.
    pub(super) fn note(&self, known: KnownWorker) {
        if self.thread.is_some() {
            let gone = known.gone.then(SystemClock::unix);
            self.shared.change(|waiting| waiting.add(known.worker, (known.service, gone)));
        }
    }

    /// Waits until all is written, or cannot be; not for a disk that hangs.
    pub(super) fn close(self) {
        self.close_within(CLOSE_WAIT);
    }

    fn close_within(self, wait: Duration) {
        self.shared.change(|waiting| waiting.ends = true);
        let Some(Writer { thread, ended }) = self.thread else { return };
        if ended.recv_timeout(wait) == Err(RecvTimeoutError::Timeout) {
            warn!(
                "the disk takes more than {} s to write down which workers are registered, and is not waited for: a broker \
                 that begins next may not know all of them",
                wait.as_secs()
            );
        } else if thread.join().is_err() {
            warn!("the thread that writes down which workers are registered has failed");
        }
    }
}

/// The thread's end.
struct Book {
    path: PathBuf,
    known: Known,
    /// Where lines are appended. `None`: the file is to be written anew.
    file: Option<File>,
    lines: usize,
    /// How many were known when the file was last written anew, or that was last tried.
    kept: usize,
    /// The last time failed, and that was told.
    failed: bool,
}

impl Book {
    fn new(path: PathBuf, known: Known) -> Self {
        Self { path, known, file: None, lines: 0, kept: 0, failed: false }
    }

    fn keep(mut self, shared: &Shared, retry: Duration) {
        let written = self.rewrite();
        self.tell(written);
        loop {
            let is_whole = self.file.is_some();
            let (changes, ends) = shared.take((!is_whole).then_some(retry));
            if !changes.is_empty() || !is_whole {
                let written = self.write(changes);
                self.tell(written);
            }
            if ends {
                return;
            }
        }
    }

    fn write(&mut self, changes: Known) -> io::Result<()> {
        let mut text = Vec::new();
        for (worker, entry) in &changes {
            write_line(&mut text, worker, entry)?;
        }
        self.lines += changes.len();
        self.known.extend(changes);
        let is_long = self.lines > 2 * self.known.len() + LINES_SPARE || self.known.len() > self.kept + NAMES_SPARE;
        // One that fails may leave half a line.
        if let Some(mut file) = self.file.take()
            && !is_long
            && file.write_all(&text).is_ok()
        {
            self.file = Some(file);
            return Ok(());
        }
        self.rewrite()
    }

    /// Writes the file anew, without those that went too long ago to matter.
    fn rewrite(&mut self) -> io::Result<()> {
        let now = SystemClock::unix();
        self.known.retain(|_, (_, gone)| gone.is_none_or(|at| now - at < GONE_KEPT.as_secs_f64()));
        forget_longest_gone(&mut self.known);
        self.kept = self.known.len();
        if let Some(folder) = self.path.parent() {
            std::fs::create_dir_all(folder)?;
        }
        let new = self.path.with_extension("new");
        let file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&new)?;
        let mut file = BufWriter::new(file);
        for (worker, entry) in &self.known {
            write_line(&mut file, worker, entry)?;
        }
        file.into_inner().map_err(io::IntoInnerError::into_error)?.sync_all()?;
        std::fs::rename(&new, &self.path)?;
        self.file = Some(OpenOptions::new().append(true).open(&self.path)?);
        self.lines = self.known.len();
        Ok(())
    }

    fn tell(&mut self, written: io::Result<()>) {
        match written {
            Ok(()) if std::mem::take(&mut self.failed) => info!("{} can be written again", self.path.display()),
            Ok(()) => {}
            Err(error) if !std::mem::replace(&mut self.failed, true) => {
                warn!(
                    "{} cannot be written: {error}; a broker that begins meanwhile may give jobs for any worker to a second one",
                    self.path.display()
                );
            }
            Err(_) => {}
        }
    }
}

fn write_line(to: &mut impl Write, worker: &Identity, (service, gone): &Entry) -> io::Result<()> {
    let line = Line { worker: worker.clone(), service: service.clone(), gone: *gone };
    serde_json::to_writer(&mut *to, &line)?;
    to.write_all(b"\n")
}

/// Forgets those that went longest ago where there are more than a broker remembers.
fn forget_longest_gone(known: &mut Known) {
    let mut times: Vec<f64> = known.values().filter_map(|(_, gone)| *gone).collect();
    let Some(over) = times.len().checked_sub(DEPARTED_MAX).filter(|over| *over > 0) else { return };
    let (before, last, _) = times.select_nth_unstable_by(over - 1, f64::total_cmp);
    let last = *last;
    // Many may have gone at once: of those only as many go as have to.
    let mut of_last = over - before.iter().filter(|at| **at < last).count();
    known.retain(|_, (_, gone)| match *gone {
        Some(at) if at < last => false,
        Some(at) if at == last && of_last > 0 => {
            of_last -= 1;
            false
        }
        _ => true,
    });
}

/// The last word on each worker. What is no line of ours, as the last one of a process that was killed, is left out.
fn read(path: &Path) -> io::Result<Known> {
    read_end(path, READ_BYTES_MAX)
}

/// Where the file is longer than `most` bytes, its end says what came last.
fn read_end(path: &Path, most: u64) -> io::Result<Known> {
    // Opening something else, such as a pipe, could wait for ever.
    match std::fs::metadata(path) {
        Ok(there) if there.is_file() => {}
        Ok(_) => return Err(io::Error::other("it is no regular file")),
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Known::new()),
        Err(error) => return Err(error),
    }
    let mut file = File::open(path)?;
    let length = file.metadata()?.len();
    if length > most {
        warn!(
            "{} has {length} bytes, of which only the last {most} are read: some workers may not be known",
            path.display()
        );
        file.seek(SeekFrom::End(-i64::try_from(most).unwrap_or(i64::MAX)))?;
    }
    let mut known = Known::new();
    let mut kept = 0;
    for line in BufReader::new(file.take(most)).split(b'\n') {
        let Ok(Line { worker, service, gone }) = serde_json::from_slice(&line?) else { continue };
        known.insert(worker, (service, gone));
        if known.len() >= kept + NAMES_SPARE {
            forget_longest_gone(&mut known);
            kept = known.len();
        }
    }
    Ok(known)
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;

    /// Far more than anything here takes.
    const DEADLINE: Duration = Duration::from_secs(20);

    fn known(worker: &str, gone: bool) -> KnownWorker {
        let service = ServiceName::parse("s").expect("a name");
        KnownWorker { worker: Identity::parse(worker).expect("a name"), service, gone }
    }

    fn names(restored: &[RestoredWorker]) -> Vec<(&str, bool)> {
        restored.iter().map(|known| (known.worker.as_str(), known.gone.is_none())).collect()
    }

    #[test]
    fn the_next_broker_knows_who_was_registered_and_who_had_gone() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("workers.jsonl");
        let (book, restored) = WorkerBook::open(Some(path.clone())).expect("a thread");
        assert!(restored.is_empty());
        for name in ["a", "b", "c"] {
            book.note(known(name, false));
        }
        book.note(known("b", true));
        book.close();
        // As a process leaves it that is killed while it writes.
        let mut file = OpenOptions::new().append(true).open(&path).expect("the file");
        file.write_all(b"{\"worker\":\"c\",\"serv").expect("written");
        let (book, restored) = WorkerBook::open(Some(path.clone())).expect("a thread");
        assert_eq!(names(&restored), [("a", true), ("b", false), ("c", true)]);
        book.note(known("c", false));
        book.close();
        let (book, restored) = WorkerBook::open(Some(path)).expect("a thread");
        assert_eq!(names(&restored), [("a", false), ("b", false), ("c", true)], "a did not come back");
        book.close();
    }

    #[test]
    fn a_worker_that_comes_and_goes_does_not_fill_the_disk() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("workers.jsonl");
        let mut book = Book::new(path.clone(), Known::new());
        for gone in 0..10 * LINES_SPARE {
            let KnownWorker { worker, service, .. } = known("a", false);
            book.write(Known::from([(worker, (service, Some(gone as f64)))])).expect("written");
        }
        let lines = std::fs::read(&path).expect("the file").iter().filter(|byte| **byte == b'\n').count();
        assert!(lines <= 3 + LINES_SPARE, "{lines} lines");
    }

    #[test]
    fn a_file_that_cannot_be_written_stops_nobody() {
        let folder = tempfile::tempdir().expect("a folder");
        std::fs::write(folder.path().join("file"), "").expect("written");
        let (book, restored) = WorkerBook::open(Some(folder.path().join("file/workers"))).expect("a thread");
        // Nobody knows who was registered before: it is said in the log.
        assert!(restored.is_empty());
        book.note(known("a", false));
        book.close();
    }

    fn gone(name: usize, at: f64) -> (Identity, Entry) {
        let KnownWorker { worker, service, .. } = known(&format!("w{name}"), true);
        (worker, (service, Some(at)))
    }

    #[test]
    fn those_that_went_longest_ago_are_forgotten_where_there_are_too_many() {
        let mut all: Known = (0..DEPARTED_MAX + 10).map(|number| gone(number, number.max(20) as f64)).collect();
        let KnownWorker { worker, service, .. } = known("here", false);
        all.insert(worker.clone(), (service, None));
        forget_longest_gone(&mut all);
        assert_eq!(all.len(), DEPARTED_MAX + 1);
        assert!(all.contains_key(&worker), "it is registered");
        let lost = (0..DEPARTED_MAX + 10).filter(|number| !all.contains_key(&gone(*number, 0.0).0)).max();
        assert!(lost <= Some(20), "{lost:?} went later than others");
    }

    #[test]
    fn ever_new_names_fill_neither_memory_nor_disk() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("workers.jsonl");
        let mut book = Book::new(path.clone(), Known::new());
        let mut waiting = Waiting::default();
        let now = SystemClock::unix();
        let names = 2 * (DEPARTED_MAX + NAMES_SPARE);
        for number in 0..names {
            let (worker, entry) = gone(number, now + number as f64);
            waiting.add(worker, entry);
            assert!(waiting.changes.len() <= DEPARTED_MAX + NAMES_SPARE);
        }
        for first in (0..names).step_by(NAMES_SPARE / 4) {
            let some = (first..first + NAMES_SPARE / 4).map(|number| gone(number, now + number as f64)).collect();
            book.write(some).expect("written");
            assert!(book.known.len() <= DEPARTED_MAX + NAMES_SPARE);
        }
        let read = read(&path).expect("the file");
        assert!(read.len() <= DEPARTED_MAX + NAMES_SPARE, "{} names", read.len());
        assert!(read.contains_key(&gone(names - 1, 0.0).0), "the last one is known");
    }

    #[test]
    fn of_a_file_that_is_too_long_the_end_is_read() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("workers.jsonl");
        let mut text = Vec::new();
        for number in 0..100 {
            let (worker, entry) = gone(number, 0.0);
            write_line(&mut text, &worker, &entry).expect("in memory");
        }
        std::fs::write(&path, &text).expect("written");
        let read = read_end(&path, text.len() as u64 / 2).expect("the file");
        assert!(!read.contains_key(&gone(0, 0.0).0) && read.contains_key(&gone(99, 0.0).0));
        assert!((45..=50).contains(&read.len()), "{} names", read.len());
    }

    /// Whoever opens it to write waits until somebody reads.
    fn pipe_in_place_of(path: &Path) -> PathBuf {
        let pipe = path.with_extension("new");
        let made = std::process::Command::new("mkfifo").arg(&pipe).status().expect("mkfifo runs");
        assert!(made.success());
        pipe
    }

    /// A book of one worker that could not be written the first time, and now could be.
    fn failed_once(path: &Path, retry: Duration) -> (Arc<Shared>, JoinHandle<()>) {
        let pipe = pipe_in_place_of(path);
        let shared = Arc::new(Shared::default());
        let book = Book::new(path.to_owned(), Known::from([gone(1, SystemClock::unix())]));
        let of_thread = Arc::clone(&shared);
        let thread = std::thread::spawn(move || book.keep(&of_thread, retry));
        // It has opened the pipe then, which is no file that a disk could keep.
        let reader = File::open(&pipe).expect("it is opened");
        std::fs::remove_file(&pipe).expect("removed");
        drop(reader);
        (shared, thread)
    }

    #[test]
    fn a_file_that_could_not_be_written_is_written_although_nothing_changes_any_more() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("workers.jsonl");
        let (shared, thread) = failed_once(&path, Duration::from_millis(1));
        let deadline = Instant::now() + DEADLINE;
        while !path.exists() && Instant::now() < deadline {
            std::thread::yield_now();
        }
        assert_eq!(read(&path).expect("the file").len(), 1);
        shared.change(|waiting| waiting.ends = true);
        thread.join().expect("ended");
    }

    #[test]
    fn a_file_that_could_not_be_written_is_tried_once_more_at_the_end() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("workers.jsonl");
        let (shared, thread) = failed_once(&path, Duration::from_secs(3600));
        shared.change(|waiting| waiting.ends = true);
        thread.join().expect("ended");
        assert_eq!(read(&path).expect("the file").len(), 1);
    }

    #[test]
    fn a_pipe_in_place_of_the_file_holds_up_nothing_and_times_to_come_are_now() {
        let folder = tempfile::tempdir().expect("a folder");
        let pipe = pipe_in_place_of(&folder.path().join("other"));
        assert!(read(&pipe).expect_err("an error").to_string().contains("no regular file"));
        let path = folder.path().join("workers.jsonl");
        std::fs::write(&path, "{\"worker\":\"a\",\"service\":\"s\",\"gone\":1e15}\n").expect("written");
        let (book, restored) = WorkerBook::open(Some(path.clone())).expect("a thread");
        assert_eq!(restored.len(), 1);
        book.close();
        let known = read(&path).expect("the file");
        assert!(known.values().all(|(_, gone)| gone.is_some_and(|at| at <= SystemClock::unix())), "{known:?}");
    }

    #[test]
    fn a_disk_that_hangs_does_not_keep_the_broker_from_ending() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("workers.jsonl");
        let pipe = pipe_in_place_of(&path);
        let (book, _) = WorkerBook::open(Some(path)).expect("a thread");
        let (to_say, said) = sync_channel(1);
        std::thread::spawn(move || {
            book.close_within(Duration::from_millis(50));
            to_say.send(()).expect("the test waits for it");
        });
        said.recv_timeout(DEADLINE).expect("it ends all the same");
        // The thread that was left ends too.
        drop(File::open(&pipe).expect("it waits for a reader"));
    }
}
