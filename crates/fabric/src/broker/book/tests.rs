//! The book on real files.

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

#[test]
fn a_line_that_is_longer_than_any_of_ours_is_left_out_and_those_behind_it_are_read() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("workers.jsonl");
    let line = |name: usize| {
        let (worker, entry) = gone(name, 0.0);
        let mut line = Vec::new();
        write_line(&mut line, &worker, &entry).expect("in memory");
        line
    };
    let long = vec![b' '; 2 * LINE_BYTES_MAX as usize];
    std::fs::write(&path, [line(1), long.clone(), line(2), line(3), long].concat()).expect("written");
    let read = read(&path).expect("the file");
    let names: Vec<&Identity> = read.keys().collect();
    assert_eq!(names, [&gone(1, 0.0).0, &gone(3, 0.0).0]);
    // The longest of ours is none of these.
    let quotes = "\u{1}".repeat(norfab_protocol::name::NAME_BYTES_MAX);
    let (worker, service) = (serde_json::to_string(&quotes), serde_json::to_string(&quotes));
    let longest = worker.expect("a text").len() + service.expect("a text").len() + 100;
    assert!(longest < LINE_BYTES_MAX as usize, "{longest} bytes");
}

#[test]
fn that_a_worker_went_is_not_forgotten_while_the_file_has_it_as_registered() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("workers.jsonl");
    let shared = Arc::new(Shared::default());
    let registered = |name: usize| (gone(name, 0.0).0, (known("w", false).service, None));
    let mut book = Book::new(path.clone(), Known::new());
    book.rewrite().expect("written");
    let names = DEPARTED_MAX + NAMES_SPARE;
    let begin = SystemClock::unix() - names as f64 / 1000.0;
    shared.change(|waiting| {
        [0, names].into_iter().for_each(|name| {
            let (worker, entry) = registered(name);
            waiting.add(worker, entry);
        })
    });
    let Taken { changes, .. } = shared.take(None);
    book.write(changes).expect("written");
    assert_eq!(read(&path).expect("the file").len(), 2);
    // The disk hangs while the first one goes, and so many after it.
    shared.change(|waiting| {
        for name in 0..names {
            let (worker, entry) = gone(name, begin + name as f64 / 1000.0);
            waiting.add(worker, entry);
        }
        waiting.ends = true;
    });
    book.keep(&shared, RETRY);
    let read = read(&path).expect("the file");
    assert!(!read.contains_key(&gone(0, 0.0).0), "it went before all others");
    assert_eq!(read[&registered(names).0].1, None, "it is there");
    assert!(read.len() <= DEPARTED_MAX + 1, "{} names", read.len());
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
    let (book, _) = WorkerBook::open(Some(path.clone())).expect("a thread");
    let (to_say, said) = sync_channel(1);
    std::thread::spawn(move || {
        book.close_within(Duration::from_millis(50));
        to_say.send(()).expect("the test waits for it");
    });
    said.recv_timeout(DEADLINE).expect("it ends all the same");
    // The thread that was left ends too, while its folder is there: its next try finds no pipe. Who opens one for both waits for nobody.
    let away = folder.path().join("away");
    std::fs::rename(&pipe, &away).expect("renamed");
    let _reader = OpenOptions::new().read(true).write(true).open(&away).expect("a pipe");
    let deadline = Instant::now() + DEADLINE;
    while !path.exists() {
        assert!(Instant::now() < deadline, "it does not end");
        std::thread::yield_now();
    }
}
