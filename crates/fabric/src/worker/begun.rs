//! Which tasks have begun, so that a job whose worker was killed before its task began runs after all.
//!
//! A job is written down as started before it starts: a row that says so belongs to a task that began, or to one that was about to.
//! Which of the two is said here, by one short write right before the task begins: of the thread that runs it, or, while another
//! such write is under way, of one that may block. It goes through the system's cache and so outlives the process, but not the
//! system: after that all that was started counts as begun. In doubt a task has begun, as it must not run twice.

use std::collections::{HashMap, HashSet};
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::panic::{self, AssertUnwindSafe};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use norfab_jobs::OperationError;
use norfab_protocol::JobId;
use norfab_protocol::name::NAME_BYTES_MAX;
use tokio::runtime::Handle;
use tokio::sync::{Mutex as Turns, Semaphore};
use tracing::warn;

/// A name and its length. The first place says which run of the system wrote the file, the others which tasks have begun.
const PLACE_BYTES: usize = 1 + NAME_BYTES_MAX;

/// Largest file that is read: places for more tasks than run at once anywhere.
const READ_BYTES_MAX: u64 = 64 << 20;

/// What the process before this one left.
pub(super) enum Before {
    /// These tasks had begun, and no others.
    Known(HashSet<String>),
    /// Nothing is known: each that was started may have begun.
    Unknown,
}

impl Before {
    /// Reads the file.
    pub(super) fn read(path: Option<&Path>) -> Self {
        let Some(path) = path else { return Self::Unknown };
        let places = match read_places(path) {
            Ok(places) => places,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Self::Unknown,
            Err(error) => {
                warn!("{} cannot be read, so each job that was started counts as begun: {error}", path.display());
                return Self::Unknown;
            }
        };
        match (places.split_first(), system_run()) {
            (Some((Some(run), begun)), Some(now)) if *run == now => {
                Self::Known(begun.iter().flatten().cloned().collect())
            }
            _ => Self::Unknown,
        }
    }

    /// Whether the task of a job that was started may have begun.
    pub(super) fn may_have_begun(&self, job: &JobId) -> bool {
        match self {
            Self::Known(begun) => begun.contains(job.as_str()),
            Self::Unknown => true,
        }
    }
}

/// Where tasks are written down that begin.
#[derive(Default)]
pub(super) struct BegunTasks {
    /// Never held while the disk is used: the worker's owner takes it, and a disk that hangs must not stop its beats.
    places: Mutex<Option<Places>>,
    /// Held by who writes.
    turn: Turns<()>,
}

struct Places {
    file: Arc<File>,
    path: PathBuf,
    taken: HashMap<JobId, u64>,
    free: Vec<u64>,
    count: u64,
}

impl Places {
    /// A place for a task that has none.
    fn take(&mut self, job: &JobId) -> Option<u64> {
        if self.taken.contains_key(job) {
            return None;
        }
        let place = self.free.pop().unwrap_or_else(|| {
            self.count += 1;
            self.count
        });
        self.taken.insert(job.clone(), place);
        Some(place)
    }
}

impl BegunTasks {
    /// Begins a new file with those of the process before this one that have not ended in the database; it takes the place of the
    /// old one as a whole. Until then nothing may begin. `room`: how many tasks run at once.
    pub(super) fn open(&self, path: Option<&Path>, room: usize, before: Vec<JobId>) {
        let (Some(path), Some(run)) = (path, system_run()) else { return };
        match create(path, &run, room, before) {
            Ok(places) => *self.places() = Some(places),
            Err(error) => abandon(path, &error),
        }
    }

    /// Whether tasks are written down.
    pub(super) fn is_open(&self) -> bool {
        self.places().is_some()
    }

    /// Who writes next: see [`write_beside_tasks`].
    pub(super) fn turn(&self) -> &Turns<()> {
        &self.turn
    }

    /// A task begins. Returns when that is written, however long the disk takes.
    pub(super) fn begins(&self, job: &JobId) {
        self.begins_by(job, File::write_all_at);
    }

    fn begins_by(&self, job: &JobId, write: impl FnOnce(&File, &[u8], u64) -> io::Result<()>) {
        let (file, place) = {
            let mut guard = self.places();
            let Some(places) = &mut *guard else { return };
            // One that has a place had begun in a process before this one, and may run again.
            let Some(place) = places.take(job) else { return };
            (Arc::clone(&places.file), place)
        };
        let Err(error) = write(&file, &place_of(job.as_str()), place * PLACE_BYTES as u64) else { return };
        // The file goes first: whoever begins without a place relies on its being gone.
        let path = self.places().as_ref().map(|places| places.path.clone());
        if let Some(path) = path {
            abandon(&path, &error);
            *self.places() = None;
        }
    }

    /// Whether it is written down that the task of a job has begun, in this process or in one before.
    pub(super) fn has(&self, job: &JobId) -> bool {
        self.places().as_ref().is_some_and(|places| places.taken.contains_key(job))
    }

    /// A task that was written down does not begin in this process after all. `false`: this could not be written, and it counts as
    /// begun.
    pub(super) fn does_not_begin(&self, job: &JobId) -> bool {
        let (file, place) = {
            let guard = self.places();
            let Some(places) = &*guard else { return false };
            let Some(place) = places.taken.get(job) else { return false };
            (Arc::clone(&places.file), *place)
        };
        // A place without a name is a free one.
        if let Err(error) = file.write_all_at(&[0], place * PLACE_BYTES as u64) {
            warn!("job {job} counts as begun although it has not: that cannot be taken back: {error}");
            return false;
        }
        self.has_ended(job);
        true
    }

    /// The store has confirmed the end of a job, or has refused it. Where the database does not have the job as started any more,
    /// its place is free. What stands there names a job that does not run again.
    pub(super) fn end_confirmed(&self, job: &JobId, outcome: &Result<(), OperationError>) {
        match outcome {
            Ok(()) | Err(OperationError::Unknown { .. } | OperationError::Final { .. }) => self.has_ended(job),
            // It is still there as started.
            Err(_) => {}
        }
    }

    fn has_ended(&self, job: &JobId) {
        if let Some(places) = &mut *self.places()
            && let Some(place) = places.taken.remove(job)
        {
            places.free.push(place);
        }
    }

    fn places(&self) -> std::sync::MutexGuard<'_, Option<Places>> {
        self.places.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Why a write was not done.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum NotWritten {
    /// It is not wanted any more, and had not begun.
    #[error("it is not to be written any more")]
    Unwanted,
    /// The runtime ends.
    #[error("the process ends")]
    Ends,
    /// The write panicked: what it said of that is in the log.
    #[error("the write panicked")]
    Panicked,
}

/// Whether a thread of the runtime writes, for any worker of the process.
static WRITES: AtomicBool = AtomicBool::new(false);

/// The right to write on a thread of the runtime.
struct OnRuntime;

impl OnRuntime {
    fn take() -> Option<Self> {
        // One that is made only to be dropped would give back the right of another.
        if WRITES.swap(true, Ordering::AcqRel) { None } else { Some(Self) }
    }
}

impl Drop for OnRuntime {
    fn drop(&mut self) {
        WRITES.store(false, Ordering::Release);
    }
}

/// Most writes of the process that are on threads of their own: half of those that the runtime has for all that may block, so that
/// disks that hang leave the others to the rest. With one for each worker, that many workers on such disks keep workers on good ones
/// waiting.
const WRITES_BESIDE_MAX: usize = 256;

static BESIDE: Semaphore = Semaphore::const_new(WRITES_BESIDE_MAX);

/// Runs a short write so that a disk that hangs holds at most one of the runtime's threads, which carry other tasks and other
/// workers too, and one that may block for each worker: `turn` is its file's, and whoever writes behind a write that hangs would
/// hang as well. A thread of its own for each write would cost more than ten times what the write does. `unless`: ends when the
/// write is not wanted any more; one that has begun is waited for. Errors: it is not written.
pub(super) async fn write_beside_tasks(
    runtime: &Handle,
    turn: &Turns<()>,
    unless: impl Future<Output = ()>,
    write: impl FnOnce() + Send + 'static,
) -> Result<(), NotWritten> {
    let mut unless = std::pin::pin!(unless);
    let _turn = tokio::select! {
        biased;
        // The usual case looks at nothing else.
        turn = turn.lock() => turn,
        () = &mut unless => return Err(NotWritten::Unwanted),
    };
    if runtime.metrics().num_workers() > 1
        && let Some(_right) = OnRuntime::take()
    {
        // What it changes is not looked at again.
        return panic::catch_unwind(AssertUnwindSafe(write)).map_err(|_| NotWritten::Panicked);
    }
    let _place = tokio::select! {
        biased;
        // Nobody closes it.
        place = BESIDE.acquire() => place.map_err(|_| NotWritten::Ends)?,
        () = unless => return Err(NotWritten::Unwanted),
    };
    let written = runtime.spawn_blocking(write).await;
    written.map_err(|error| if error.is_panic() { NotWritten::Panicked } else { NotWritten::Ends })
}

/// A file that does not have all that begin must not be believed by the next process.
fn abandon(path: &Path, error: &io::Error) {
    warn!(
        "{} cannot be written, so each job that is started counts as begun if this process is killed: {error}",
        path.display()
    );
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            warn!("{} cannot be removed: {error}; remove it before this worker is started again", path.display());
        }
        _ => {}
    }
}

fn create(path: &Path, run: &str, room: usize, before: Vec<JobId>) -> io::Result<Places> {
    let count = before.len() as u64;
    let mut text = place_of(run).to_vec();
    for job in &before {
        text.extend(place_of(job.as_str()));
    }
    // Space for as many as run at once, so that a full disk is no matter later.
    let spare = count + 1..count + 1 + room as u64;
    text.resize(text.len() + room * PLACE_BYTES, 0);
    let new = path.with_extension("new");
    // As the database, for its owner only.
    let file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&new)?;
    file.write_all_at(&text, 0)?;
    std::fs::rename(&new, path)?;
    let count = count + room as u64;
    let taken = before.into_iter().zip(1..).collect();
    Ok(Places { file: Arc::new(file), path: path.to_owned(), taken, free: spare.rev().collect(), count })
}

fn place_of(name: &str) -> [u8; PLACE_BYTES] {
    let mut place = [0; PLACE_BYTES];
    // A name has at most as many bytes as fit, and at most 255.
    let length = name.len().min(NAME_BYTES_MAX);
    place[0] = length as u8;
    place[1..=length].copy_from_slice(&name.as_bytes()[..length]);
    place
}

fn read_places(path: &Path) -> io::Result<Vec<Option<String>>> {
    let there = std::fs::metadata(path)?;
    // Opening something else, such as a pipe, could wait for ever.
    if !there.is_file() {
        return Err(io::Error::other("it is no regular file"));
    }
    let length = there.len();
    if length > READ_BYTES_MAX {
        return Err(io::Error::other(format!("it has {length} bytes, at most {READ_BYTES_MAX} are read")));
    }
    let text = std::fs::read(path)?;
    let name = |place: &[u8]| {
        let (length, rest) = place.split_first()?;
        let name = rest.get(..usize::from(*length)).filter(|name| !name.is_empty())?;
        std::str::from_utf8(name).ok().map(str::to_owned)
    };
    Ok(text.chunks(PLACE_BYTES).map(name).collect())
}

/// Which run of the system this is: what was not on the disk when another one ended is lost. `None`: the system does not say.
fn system_run() -> Option<String> {
    let text = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
    Some(text.trim().to_owned()).filter(|run| !run.is_empty() && run.len() <= NAME_BYTES_MAX)
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::thread;
    use std::time::Duration;

    use norfab_jobs::QueryError;

    use super::*;

    /// Far more than anything here takes.
    const DEADLINE: Duration = Duration::from_secs(10);

    fn id(text: &str) -> JobId {
        JobId::parse(text).expect("a name")
    }

    fn begun(before: &Before) -> Vec<bool> {
        ["1", "2", "3", "4"].map(|job| before.may_have_begun(&id(job))).to_vec()
    }

    #[test]
    fn the_next_process_knows_which_tasks_had_begun() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("begun");
        assert_eq!(begun(&Before::read(Some(&path))), [true; 4], "without a file nothing is known");
        let tasks = BegunTasks::default();
        tasks.begins(&id("4"));
        tasks.open(Some(&path), 1, vec![id("1")]);
        tasks.begins(&id("2"));
        tasks.begins(&id("3"));
        assert_eq!(begun(&Before::read(Some(&path))), [true, true, true, false]);
        // The place of one that has ended is given to the next.
        tasks.has_ended(&id("2"));
        tasks.begins(&id("4"));
        assert_eq!(begun(&Before::read(Some(&path))), [true, false, true, true]);
    }

    #[test]
    fn a_task_that_does_not_begin_after_all_is_not_known_as_begun_and_its_place_is_free() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("begun");
        let tasks = BegunTasks::default();
        assert!(!tasks.does_not_begin(&id("1")), "nothing is written down");
        tasks.open(Some(&path), 2, Vec::new());
        tasks.begins(&id("1"));
        tasks.begins(&id("2"));
        assert!(tasks.does_not_begin(&id("1")));
        assert_eq!(begun(&Before::read(Some(&path))), [false, true, false, false]);
        assert!(!tasks.does_not_begin(&id("1")), "it has no place any more");
        tasks.begins(&id("3"));
        assert_eq!(begun(&Before::read(Some(&path))), [false, true, true, false]);
    }

    #[test]
    fn what_another_run_of_the_system_wrote_says_nothing() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("begun");
        create(&path, "another", 2, Vec::new()).expect("written");
        assert_eq!(begun(&Before::read(Some(&path))), [true; 4]);
        std::fs::write(&path, "no such file").expect("written");
        assert_eq!(begun(&Before::read(Some(&path))), [true; 4]);
    }

    #[test]
    fn a_file_that_cannot_be_written_is_not_there() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("begun");
        std::fs::write(&path, "old").expect("written");
        std::fs::create_dir(folder.path().join("begun.new")).expect("in the way");
        let tasks = BegunTasks::default();
        tasks.open(Some(&path), 1, Vec::new());
        tasks.begins(&id("1"));
        assert!(!path.exists(), "the old one must not be believed");
    }

    #[test]
    fn a_write_that_hangs_holds_up_neither_the_owner_nor_other_tasks() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("begun");
        let tasks = Arc::new(BegunTasks::default());
        tasks.open(Some(&path), 2, Vec::new());
        tasks.begins(&id("1"));
        let (written, hangs) = mpsc::sync_channel(1);
        let (to_say, said) = mpsc::sync_channel(1);
        let of_task = Arc::clone(&tasks);
        let hanging = thread::spawn(move || {
            of_task.begins_by(&id("2"), |file, text, at| {
                to_say.send(()).expect("the test waits for it");
                hangs.recv().expect("the test ends it");
                file.write_all_at(text, at)
            });
        });
        said.recv_timeout(DEADLINE).expect("it writes");
        let (done, is_done) = mpsc::sync_channel(1);
        let of_owner = Arc::clone(&tasks);
        thread::spawn(move || {
            of_owner.end_confirmed(&id("1"), &Ok(()));
            of_owner.begins(&id("3"));
            done.send(()).expect("the test waits for it");
        });
        is_done.recv_timeout(DEADLINE).expect("neither the owner nor another task waits for the disk");
        written.send(()).expect("it waits for it");
        hanging.join().expect("written");
        assert_eq!(begun(&Before::read(Some(&path))), [false, true, true, false]);
    }

    #[test]
    fn writes_that_hang_leave_a_thread_for_other_tasks() {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).build().expect("a runtime");
        let (to_say, said) = mpsc::sync_channel(1);
        let mut hanging = Vec::new();
        for _ in 0..3 {
            let (written, hangs) = mpsc::sync_channel::<()>(1);
            let to_say = to_say.clone();
            let handle = runtime.handle().clone();
            let write = move || {
                to_say.send(()).expect("the test waits for it");
                hangs.recv().expect("the test ends it");
            };
            // Of a worker each.
            let turn = Turns::new(());
            let never = std::future::pending();
            let task = runtime.spawn(async move { write_beside_tasks(&handle, &turn, never, write).await });
            hanging.push((written, task));
        }
        for _ in 0..3 {
            said.recv_timeout(DEADLINE).expect("each writes");
        }
        runtime.spawn(async move { to_say.send(()).expect("the test waits for it") });
        said.recv_timeout(DEADLINE).expect("another task runs");
        for (written, task) in hanging {
            written.send(()).expect("it waits for it");
            runtime.block_on(task).expect("no panic").expect("written");
        }
    }

    #[test]
    fn a_worker_whose_disk_hangs_holds_one_thread_and_a_write_that_waits_behind_it_is_not_done_when_it_is_not_wanted() {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .max_blocking_threads(2)
            .build()
            .expect("a runtime");
        let (handle, turn) = (runtime.handle().clone(), Arc::new(Turns::new(())));
        let (to_say, said) = mpsc::sync_channel(1);
        let (written, hangs) = mpsc::sync_channel::<()>(1);
        let (of_first, first_handle) = (Arc::clone(&turn), handle.clone());
        let first = runtime.spawn(async move {
            let write = move || {
                to_say.send(()).expect("the test waits for it");
                hangs.recv().expect("the test ends it");
            };
            write_beside_tasks(&first_handle, &of_first, std::future::pending(), write).await
        });
        said.recv_timeout(DEADLINE).expect("it writes");
        let others = (0..3).map(|_| {
            let (turn, handle) = (Arc::clone(&turn), handle.clone());
            let (unwanted, unless) = tokio::sync::oneshot::channel::<()>();
            let unless = async move { drop(unless.await) };
            let write = || panic!("it is not wanted");
            (unwanted, runtime.spawn(async move { write_beside_tasks(&handle, &turn, unless, write).await }))
        });
        let others: Vec<_> = others.collect();
        // Another worker's file finds a thread that may block.
        let (free, is_free) = mpsc::sync_channel(1);
        let of_other = handle.clone();
        let other = runtime.spawn(async move {
            let write = move || free.send(()).expect("the test waits for it");
            write_beside_tasks(&of_other, &Turns::new(()), std::future::pending(), write).await
        });
        is_free.recv_timeout(DEADLINE).expect("it is written");
        assert_eq!(runtime.block_on(other).expect("no panic"), Ok(()));
        for (unwanted, task) in others {
            drop(unwanted);
            assert_eq!(runtime.block_on(task).expect("no panic"), Err(NotWritten::Unwanted));
        }
        written.send(()).expect("it waits for it");
        assert_eq!(runtime.block_on(first).expect("no panic"), Ok(()));
    }

    #[test]
    fn a_write_that_panics_is_told_and_the_next_one_is_done() {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).build().expect("a runtime");
        let (handle, turn) = (runtime.handle().clone(), Turns::new(()));
        let never = std::future::pending;
        runtime.block_on(async {
            for _ in 0..2 {
                let written = write_beside_tasks(&handle, &turn, never(), || panic!("a fault")).await;
                assert_eq!(written, Err(NotWritten::Panicked));
            }
            assert_eq!(write_beside_tasks(&handle, &turn, never(), || ()).await, Ok(()));
        });
        // Another test may write at the moment.
        let end = std::time::Instant::now() + DEADLINE;
        while WRITES.load(Ordering::Acquire) {
            assert!(std::time::Instant::now() < end, "no thread of the runtime writes any more");
            thread::yield_now();
        }
    }

    #[test]
    fn tasks_that_cannot_be_written_down_leave_no_file_behind() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("begun");
        let tasks = BegunTasks::default();
        tasks.open(Some(&path), 2, Vec::new());
        tasks.begins_by(&id("1"), |_, _, _| Err(io::Error::other("the disk is full")));
        assert!(!path.exists());
        tasks.begins(&id("2"));
        assert!(!path.exists());
    }

    #[test]
    fn the_place_of_a_job_that_the_database_does_not_have_as_started_is_free() {
        let folder = tempfile::tempdir().expect("a folder");
        let tasks = BegunTasks::default();
        tasks.open(Some(&folder.path().join("begun")), 1, Vec::new());
        let confirmed = |outcome: Result<(), OperationError>| {
            tasks.begins(&id("1"));
            tasks.end_confirmed(&id("1"), &outcome);
            let is_free = tasks.places().as_ref().is_some_and(|places| places.taken.is_empty());
            tasks.has_ended(&id("1"));
            is_free
        };
        assert!(confirmed(Ok(())));
        assert!(confirmed(Err(OperationError::Unknown { id: id("1") })));
        assert!(confirmed(Err(OperationError::Final { id: id("1"), state: "COMPLETED" })));
        assert!(!confirmed(Err(OperationError::Inconsistent { id: id("1"), state: "COMPLETED" })));
        assert!(!confirmed(Err(OperationError::NotStored(QueryError::Behind.into()))));
    }
}
