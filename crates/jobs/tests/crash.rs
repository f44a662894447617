//! Death of the process and death of the disk.

mod samples;

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Command, Stdio};

use norfab_jobs::*;
#[cfg(target_os = "linux")]
use samples::mounted::Mounted;
use samples::*;

/// Tells the child of the test where to write.
const FOLDER_VARIABLE: &str = "NORFAB_JOBS_TEST_FOLDER";

/// Processes that are killed.
const ROUNDS: usize = 5;

#[test]
fn a_killed_process_lost_nothing_that_was_confirmed() {
    if let Some(folder) = std::env::var_os(FOLDER_VARIABLE) {
        return write_until_killed(Path::new(&folder));
    }
    let folder = tempfile::tempdir().expect("a folder");
    let mut confirmed = Vec::new();
    for round in 0..ROUNDS {
        let mut child = Command::new(std::env::current_exe().expect("this program"))
            .args(["--exact", "a_killed_process_lost_nothing_that_was_confirmed", "--nocapture"])
            .env(FOLDER_VARIABLE, folder.path())
            .stdout(Stdio::piped())
            .spawn()
            .expect("a child");
        let lines = BufReader::new(child.stdout.take().expect("its output")).lines();
        // Each round kills after another number of confirmations, so at another moment of the log's life.
        let enough = 100 + 211 * round;
        let mut count = 0;
        for line in lines {
            let line = line.expect("a line");
            let Some(number) = line.strip_prefix("stored ") else { continue };
            confirmed.push(number.parse::<usize>().expect("a number"));
            count += 1;
            if count == enough {
                child.kill().expect("a kill");
            }
        }
        child.wait().expect("an end");
        assert!(count >= enough, "the child ended by itself after {count}");
        let mut store = SqliteWorkerStore::open(&folder.path().join("jobs.db"), STAMP).expect("a database");
        assert_eq!(store.set_aside(), None);
        for number in &confirmed {
            let details = store.job(&id(*number)).expect("a query");
            let details = details.unwrap_or_else(|| panic!("round {round}: job {number} is lost"));
            assert_eq!(details.job.state, WorkerState::Completed);
            assert!(details.payload.expect("a result") == large(number % 9000));
        }
    }
}

/// Stores jobs with their results and prints the number of each when it is confirmed, until the parent kills us.
fn write_until_killed(folder: &Path) {
    let path = folder.join("jobs.db");
    let mut store = SqliteWorkerStore::open(&path, STAMP).expect("a database");
    let first = store.statistics().expect("a query").total_jobs() as usize;
    drop(store);
    let (sender, confirmed) = std::sync::mpsc::channel();
    let writer = spawn_worker(
        "jobs-test",
        move || Ok(Box::new(SqliteWorkerStore::open(&path, STAMP)?)),
        move |confirmations| {
            let mut output = std::io::stdout().lock();
            for Confirmation { token, outcome } in confirmations {
                outcome.expect("stored");
                writeln!(output, "stored {token}").expect("the parent listens");
                sender.send(()).expect("the writer waits");
            }
            output.flush().expect("the parent listens");
        },
    )
    .expect("a writer");
    for number in first.. {
        // The job and its result are separate operations, and the result is what is promised.
        let operations = vec![
            (worker_insert(number), None),
            (finish(number, WorkerState::Completed, &large(number % 9000)), Some(number)),
        ];
        writer.try_submit(operations).expect("space");
        // Some are in flight when the end comes.
        if number > first + 20 {
            confirmed.recv().expect("a confirmation");
        }
    }
}

/// A small file system: tests with a limit on the pages stand for those that need it where there is none.
#[cfg(target_os = "linux")]
const SMALL: &std::ffi::CStr = c"size=1m";

#[cfg(target_os = "linux")]
#[test]
fn a_full_file_system_refuses_and_recovers() {
    let Some(mounted) = Mounted::new(SMALL) else { return };
    let mut store = SqliteWorkerStore::open(&mounted.path("jobs.db"), STAMP).expect("a database");
    assert!(store.apply(&[worker_insert(0)]).expect("a batch")[0].is_ok());
    store.settle().expect("space");
    mounted.fill();
    let mut number = 1;
    let error = loop {
        match store.apply(&[worker_insert(number)]) {
            Ok(_) => number += 1,
            Err(error) => break error,
        }
        assert!(number < 10_000, "space never ended");
    };
    assert!(matches!(error, StoreError::DiskFull { .. }), "{error}");
    // What was stored is still answered.
    assert!(store.job(&id(0)).expect("a query").is_some());
    assert_eq!(store.job(&id(number)), Ok(None));
    // Of what is only noted it can say nothing now, rather than something wrong.
    assert!(matches!(store.job(&id(number - 1)), Err(StoreError::DiskFull { .. })));
    mounted.empty();
    assert_eq!(store.apply(&[worker_insert(number)]), Ok(vec![Ok(())]));
    assert_eq!(store.unfinished(None, 10_000).expect("a query").jobs.len(), number + 1);
}

/// The files of a worker that was killed with jobs 1 to 3 noted, the second of them in a damaged record.
#[cfg(target_os = "linux")]
fn dead_with_a_damaged_journal(folder: &Path) {
    let alive = folder.join("alive.db");
    let mut store = SqliteWorkerStore::open(&alive, STAMP).expect("a database");
    for number in 1..=3 {
        store.apply(&[worker_insert(number)]).expect("a batch");
    }
    assert!(!store.is_settled());
    for suffix in ["", "-wal", "-noted"] {
        let of = |name: &str| folder.join(format!("{name}.db{suffix}"));
        let mut bytes = std::fs::read(of("alive")).expect("a file");
        if suffix == "-noted" {
            bytes.truncate(bytes.iter().rposition(|byte| *byte != 0).expect("records") + 1);
            let middle = bytes.len() / 2;
            bytes[middle] ^= 1;
        }
        std::fs::write(of("jobs"), bytes).expect("a file");
    }
    drop(store);
    for suffix in ["", "-noted"] {
        std::fs::remove_file(folder.join(format!("alive.db{suffix}"))).expect("it is there");
    }
}

#[cfg(target_os = "linux")]
#[test]
fn a_full_disk_and_a_damaged_journal_keep_nobody_from_starting() {
    let Some(mounted) = Mounted::new(SMALL) else { return };
    let (path, noted) = (mounted.path("jobs.db"), mounted.path("jobs.db-noted"));
    dead_with_a_damaged_journal(mounted.folder());
    let before = std::fs::read(&noted).expect("a journal");
    mounted.fill();
    let mut store = SqliteWorkerStore::open(&path, STAMP).expect("it starts");
    let aside = store.set_aside().expect("damage").clone();
    assert_eq!((aside.file, aside.kept), (DamagedFile::Journal, Kept::InPlace), "{aside}");
    assert_eq!(std::fs::read(&noted).expect("the journal"), before);
    assert!(store.take_news()[0].contains("no space"));
    assert_eq!(store.job(&id(7)), Ok(None), "it answers");
    let refused = store.apply(&[worker_insert(4)]).expect_err("no space");
    assert!(matches!(refused, StoreError::DiskFull { .. }), "{refused}");
    mounted.empty();
    assert_eq!(store.apply(&[worker_insert(4)]), Ok(vec![Ok(())]));
    assert_eq!(std::fs::read(&noted).expect("the journal"), before, "it waits for the next start");
    drop(store);
    let mut store = SqliteWorkerStore::open(&path, STAMP).expect("it starts");
    let aside = store.set_aside().expect("damage").clone();
    assert_eq!((aside.file, aside.kept), (DamagedFile::Journal, Kept::Copied), "{aside}");
    assert_eq!(std::fs::read(&aside.moved_to).expect("a copy"), before);
    let jobs = [1, 2, 3, 4].map(|number| store.job(&id(number)).expect("a query").is_some());
    assert_eq!(jobs, [true, false, false, true]);
    drop(store);
    assert_eq!(SqliteWorkerStore::open(&path, STAMP).expect("it starts").set_aside(), None);
}

#[cfg(target_os = "linux")]
#[test]
fn a_damaged_journal_for_whose_copy_there_is_no_space_is_moved() {
    let Some(mounted) = Mounted::new(SMALL) else { return };
    let (path, noted) = (mounted.path("jobs.db"), mounted.path("jobs.db-noted"));
    dead_with_a_damaged_journal(mounted.folder());
    // There is space for what can be read of it, and none for a copy.
    let mut file = std::fs::File::options().append(true).open(&noted).expect("a journal");
    file.write_all(&vec![0; 300 << 10]).expect("space");
    let length = noted.metadata().expect("the journal").len();
    mounted.fill();
    mounted.leave(200 << 10);
    let mut store = SqliteWorkerStore::open(&path, STAMP).expect("it starts");
    let aside = store.set_aside().expect("damage").clone();
    assert_eq!((aside.file, aside.kept), (DamagedFile::Journal, Kept::Moved), "{aside}");
    assert_eq!(aside.moved_to.metadata().expect("the journal").len(), length);
    assert!(store.job(&id(1)).expect("a query").is_some());
    store.apply(&[worker_insert(4)]).expect("a batch");
    assert!(!store.is_settled(), "a new journal takes it");
    drop(store);
    let mut store = SqliteWorkerStore::open(&path, STAMP).expect("it starts");
    assert!(store.set_aside().is_none() && store.job(&id(4)).expect("a query").is_some());
}

#[cfg(target_os = "linux")]
#[test]
fn with_little_space_old_jobs_give_back_what_they_take() {
    let Some(mounted) = Mounted::new(c"size=16m") else { return };
    let path = mounted.path("jobs.db");
    let mut store = SqliteWorkerStore::open(&path, STAMP).expect("a database");
    for number in 0..200 {
        let operations = [worker_insert(number), finish(number, WorkerState::Completed, &large(40_000))];
        store.apply(&operations).expect("space");
        store.tidy().expect("space");
    }
    drop(store);
    let length = || path.metadata().expect("a file").len();
    let before = length();
    mounted.fill();
    let all_but_one = Retention { jobs_max: 1, ..Retention::default() };
    let error = SqliteWorkerStore::open_beside(&path).map(drop).expect_err("no space at all");
    let advice = error.advice().expect("it says what to do");
    assert!(error.to_string().ends_with(advice) && advice.contains("free some space"), "{error}");
    mounted.leave(160 << 10);
    let mut store = SqliteWorkerStore::open_beside(&path).expect("enough to look");
    let mut pruned = 0;
    loop {
        let step = store.prune(&all_but_one, NOW).expect("a step");
        store.tidy().expect("tidied");
        pruned += step.jobs;
        if !step.more {
            break;
        }
    }
    store.give_back().expect("nobody else reads");
    assert_eq!(pruned, 199);
    assert!(length() < before / 4, "{} bytes after {before}", length());
    assert!(store.job(&id(199)).expect("a query").is_some());
}
