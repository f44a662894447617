//! Which workers were registered, written down for a broker after this one: it remembers nothing of what this one handed to
//! whom, and has to know who may have it.
//!
//! A line for each change, appended by a thread of its own: the owner waits for no disk. What is not written when the process
//! is killed are the changes of the last moment.

use std::collections::{BTreeMap, HashMap};
use std::fs::{File, OpenOptions};
use std::io::{self, BufWriter, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use norfab_protocol::broker::{GONE_KEPT, KnownWorker, RestoredWorker};
use norfab_protocol::{Identity, ServiceName};
use serde::{Deserialize, Serialize};
use tracing::{info, warn};

use crate::StartError;
use crate::clock::SystemClock;

/// Most bytes that are read at the start: more than all workers take that a broker remembers.
const READ_BYTES_MAX: u64 = 64 << 20;

/// Lines beyond two for each worker after which the file is written anew.
const LINES_SPARE: usize = 1000;

/// What is known of a worker: its service, and since when it is gone, in Unix seconds.
type Entry = (ServiceName, Option<f64>);

#[derive(Serialize, Deserialize)]
struct Line {
    worker: Identity,
    service: ServiceName,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    gone: Option<f64>,
}

/// Changes on their way to the disk: the last of each worker, so that there are never more than workers.
#[derive(Default)]
struct Waiting {
    changes: HashMap<Identity, Entry>,
    ends: bool,
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
}

/// The owner's end.
pub(super) struct WorkerBook {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
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
            BTreeMap::new()
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
            gone.get_or_insert(now);
        }
        let book = Book { path, known, file: None, lines: 0, failed: false };
        let of_thread = Arc::clone(&shared);
        let thread = std::thread::Builder::new()
            .name("b-workers".to_owned())
            .spawn(move || book.keep(&of_thread))
            .map_err(|error| StartError::Thread { role: "the broker's book of workers".to_owned(), error })?;
        Ok((Self { shared, thread: Some(thread) }, restored))
    }

    /// Takes a change.
    pub(super) fn note(&self, known: KnownWorker) {
        if self.thread.is_some() {
            let gone = known.gone.then(SystemClock::unix);
            self.shared.change(|waiting| {
                waiting.changes.insert(known.worker, (known.service, gone));
            });
        }
    }

    /// Waits until all is written.
    pub(super) fn close(self) {
        self.shared.change(|waiting| waiting.ends = true);
        if let Some(thread) = self.thread
            && thread.join().is_err()
        {
            warn!("the thread that writes down which workers are registered has failed");
        }
    }
}

/// The thread's end.
struct Book {
    path: PathBuf,
    known: BTreeMap<Identity, Entry>,
    /// Where lines are appended. `None`: the file is to be written anew.
    file: Option<File>,
    lines: usize,
    /// The last time failed, and that was told.
    failed: bool,
}

impl Book {
    fn keep(mut self, shared: &Shared) {
        let written = self.rewrite();
        self.tell(written);
        loop {
            let changes = {
                let waiting = shared.waiting.lock().unwrap_or_else(PoisonError::into_inner);
                let is_idle = |waiting: &mut Waiting| waiting.changes.is_empty() && !waiting.ends;
                let mut waiting = shared.filled.wait_while(waiting, is_idle).unwrap_or_else(PoisonError::into_inner);
                std::mem::take(&mut waiting.changes)
            };
            if changes.is_empty() {
                return;
            }
            let written = self.write(changes);
            self.tell(written);
        }
    }

    fn write(&mut self, changes: HashMap<Identity, Entry>) -> io::Result<()> {
        let mut text = Vec::new();
        for (worker, entry) in &changes {
            write_line(&mut text, worker, entry)?;
        }
        self.lines += changes.len();
        self.known.extend(changes);
        match self.file.take() {
            Some(mut file) if self.lines <= 2 * self.known.len() + LINES_SPARE => {
                file.write_all(&text)?;
                self.file = Some(file);
                Ok(())
            }
            _ => self.rewrite(),
        }
    }

    /// Writes the file anew, without those that went too long ago to matter.
    fn rewrite(&mut self) -> io::Result<()> {
        let now = SystemClock::unix();
        self.known.retain(|_, (_, gone)| gone.is_none_or(|at| now - at < GONE_KEPT.as_secs_f64()));
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

/// The last word on each worker. What is no line of ours, as the last one of a process that was killed, is left out.
fn read(path: &Path) -> io::Result<BTreeMap<Identity, Entry>> {
    let mut text = Vec::new();
    match File::open(path) {
        Ok(file) => file.take(READ_BYTES_MAX).read_to_end(&mut text)?,
        Err(error) if error.kind() == io::ErrorKind::NotFound => 0,
        Err(error) => return Err(error),
    };
    let lines = text.split(|byte| *byte == b'\n').filter_map(|line| serde_json::from_slice::<Line>(line).ok());
    Ok(lines.map(|Line { worker, service, gone }| (worker, (service, gone))).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

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
        let mut book = Book { path: path.clone(), known: BTreeMap::new(), file: None, lines: 0, failed: false };
        for gone in 0..10 * LINES_SPARE {
            let KnownWorker { worker, service, .. } = known("a", false);
            book.write(HashMap::from([(worker, (service, Some(gone as f64)))])).expect("written");
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
}
