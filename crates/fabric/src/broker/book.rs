//! Which workers were registered, written down for a broker after this one: it remembers nothing of what this one handed to
//! whom, and has to know who may have it.
//!
//! A line for each change, appended by a thread of its own: the owner waits for no disk. What is not written when the process
//! is killed are the changes of the last moment.

use std::collections::{BTreeMap, HashSet};
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

/// Longest line that is looked at: two names whose every byte is escaped, and what is around them.
const LINE_BYTES_MAX: u64 = 8 << 10;

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
    /// Some of those were forgotten since the last time that changes were taken.
    forgot: bool,
    /// Who is registered: bounded as the broker bounds them.
    registered: HashSet<Identity>,
    ends: bool,
}

/// Changes as they are taken.
struct Taken {
    changes: Known,
    /// Who is registered, where that some went was forgotten.
    registered: Option<HashSet<Identity>>,
    /// They are the last.
    ends: bool,
}

impl Waiting {
    /// A disk that hangs while workers of ever new names come and go must not fill the memory.
    fn add(&mut self, worker: Identity, entry: Entry) {
        if entry.1.is_none() {
            self.registered.insert(worker.clone());
        } else {
            self.registered.remove(&worker);
        }
        self.changes.insert(worker, entry);
        if self.changes.len() >= self.kept + NAMES_SPARE {
            let before = self.changes.len();
            forget_longest_gone(&mut self.changes);
            self.kept = self.changes.len();
            self.forgot |= self.kept < before;
        }
    }

    fn take(&mut self) -> Taken {
        self.kept = 0;
        let registered = std::mem::take(&mut self.forgot).then(|| self.registered.clone());
        Taken { changes: std::mem::take(&mut self.changes), registered, ends: self.ends }
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

    /// Waits for changes and takes them. `retry`: waits no longer than that, and for the end only.
    fn take(&self, retry: Option<Duration>) -> Taken {
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
        waiting.take()
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
            let Taken { changes, registered, ends } = shared.take((!is_whole).then_some(retry));
            if let Some(registered) = registered {
                self.forget_unregistered(&registered);
            }
            if !changes.is_empty() || self.file.is_none() {
                let written = self.write(changes);
                self.tell(written);
            }
            if ends {
                return;
            }
        }
    }

    /// Forgets those of whom nobody says any more that they went: so many went after them. The file is to be written anew.
    fn forget_unregistered(&mut self, registered: &HashSet<Identity>) {
        self.known.retain(|worker, (_, gone)| gone.is_some() || registered.contains(worker));
        self.file = None;
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
    let mut reader = BufReader::new(file.take(most));
    let mut line = Vec::new();
    loop {
        line.clear();
        if reader.by_ref().take(LINE_BYTES_MAX).read_until(b'\n', &mut line)? == 0 {
            break;
        }
        if line.len() as u64 == LINE_BYTES_MAX && !line.ends_with(b"\n") {
            reader.skip_until(b'\n')?;
            continue;
        }
        let Ok(Line { worker, service, gone }) = serde_json::from_slice(&line) else { continue };
        known.insert(worker, (service, gone));
        if known.len() >= kept + NAMES_SPARE {
            forget_longest_gone(&mut known);
            kept = known.len();
        }
    }
    Ok(known)
}

#[cfg(test)]
mod tests;
