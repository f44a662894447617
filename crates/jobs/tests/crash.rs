//! Death of the process and death of the disk.

mod samples;

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Command, Stdio};

use norfab_jobs::*;
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

/// A small file system of its own, where the system lets us mount one.
#[cfg(target_os = "linux")]
#[test]
fn a_full_file_system_refuses_and_recovers() {
    use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};
    use std::ffi::CString;

    struct Mounted(tempfile::TempDir);
    impl Drop for Mounted {
        fn drop(&mut self) {
            unmount(self.0.path(), UnmountFlags::DETACH).expect("an unmount");
        }
    }
    let folder = tempfile::tempdir().expect("a folder");
    let options = CString::new("size=1m").expect("a text");
    if let Err(error) = mount("none", folder.path(), "tmpfs", MountFlags::empty(), Some(options.as_c_str())) {
        // Without the right to mount, the tests with a limit on the pages stand for this one.
        assert!(error == rustix::io::Errno::PERM || error == rustix::io::Errno::ACCESS, "{error}");
        return;
    }
    let mounted = Mounted(folder);
    let mut store = SqliteWorkerStore::open(&mounted.0.path().join("jobs.db"), STAMP).expect("a database");
    assert!(store.apply(&[worker_insert(0)]).expect("a batch")[0].is_ok());
    store.settle().expect("space");
    // Something else takes the space.
    let filler = mounted.0.path().join("filler");
    let mut file = std::fs::File::create(&filler).expect("a file");
    while file.write_all(&[0; 4096]).is_ok() {}
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
    std::fs::remove_file(&filler).expect("space again");
    drop(file);
    assert_eq!(store.apply(&[worker_insert(number)]), Ok(vec![Ok(())]));
    assert_eq!(store.unfinished(None, 10_000).expect("a query").jobs.len(), number + 1);
}
