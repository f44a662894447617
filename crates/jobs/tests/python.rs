//! Job databases that Python NorFab 0.21.2 and 0.25.0 wrote: seven jobs of one client, some of them on the worker `w1`. The files in
//! `tests/python` are dumps of what these releases left.

mod samples;

use std::path::{Path, PathBuf};

use norfab_jobs::python::{ImportError, Imported, Owner, PythonJobs, Times};
use norfab_jobs::*;
use rusqlite::Connection;
use samples::id;
use serde_json::{Value, json};

/// The day on which the jobs ran, Unix seconds.
const DAY: f64 = 1_795_996_800.0;

const FILES: [(&str, &str, &str); 2] = [
    ("0.21.2", include_str!("python/client-0.21.2.sql"), include_str!("python/worker-0.21.2.sql")),
    ("0.25.0", include_str!("python/client-0.25.0.sql"), include_str!("python/worker-0.25.0.sql")),
];

/// Reads `Mon Nov 30 11:32:12 2026` and `2026-11-30 11:32:12` as far as these tests need it: the time of the day.
fn read(text: &str) -> Option<f64> {
    let time = text.split(' ').find(|word| word.contains(':'))?;
    let parts: Vec<f64> = time.split(':').filter_map(|part| part.parse().ok()).collect();
    let [hours, minutes, seconds] = parts[..] else { return None };
    text.contains("2026").then_some(DAY + hours * 3600.0 + minutes * 60.0 + seconds)
}

fn times(now: f64) -> Times<'static> {
    Times { now, read: &read }
}

/// The day after.
const LATER: f64 = DAY + 2.0 * 86_400.0;

fn database(folder: &Path, name: &str, dump: &str) -> PathBuf {
    let path = folder.join(name);
    let made = Connection::open(&path).expect("a database");
    // Tables stand in the order of their names.
    made.execute_batch("PRAGMA foreign_keys = OFF").expect("a setting");
    made.execute_batch(dump).expect("a dump");
    path
}

fn state(store: &mut SqliteClientStore, number: usize) -> ClientState {
    store.job(&id(number)).expect("a query").expect("a job").job.state
}

#[test]
fn a_clients_jobs_come_over_with_results_and_events_and_only_once() {
    for (version, client, _) in FILES {
        let folder = tempfile::tempdir().expect("a folder");
        let python = PythonJobs::open(&database(folder.path(), "reports.db", client)).expect("it is one");
        assert_eq!(python.owner(), Owner::Client);
        let mut store = SqliteClientStore::open(&folder.path().join("jobs.db"), "now").expect("a database");
        let imported = python.import_client(&mut store, &times(LATER)).expect("an import");
        assert_eq!((imported.jobs, imported.known, imported.unreadable), (7, 0, 0), "{version}: {imported:?}");
        assert!(imported.events >= 12 && imported.oldest_end.is_some(), "{version}: {imported:?}");
        let states = [1, 2, 3, 4, 5, 6, 7].map(|number| state(&mut store, number));
        let expected = [
            ClientState::Completed,
            ClientState::Completed,
            ClientState::Completed,
            ClientState::Failed,
            ClientState::Stale,
            ClientState::Completed,
            ClientState::Stale,
        ];
        assert_eq!(states, expected, "{version}");
        let first = store.job(&id(1)).expect("a query").expect("a job");
        assert_eq!((first.job.target.as_str(), first.job.timeout), ("all", 60));
        let body: Value = serde_json::from_slice(&first.job.body).expect("JSON");
        assert_eq!(body["kwargs"], json!({"a": 1, "b": "übung"}));
        assert_eq!(first.results.iter().map(|(worker, _)| worker.as_str()).collect::<Vec<_>>(), ["w1", "w2"]);
        let result: Value = serde_json::from_slice(&first.results[0].1).expect("JSON");
        assert_eq!(result["result"], json!({"a": 1, "b": "übung"}), "{version}");
        let event: Value = serde_json::from_slice(&first.events[0]).expect("JSON");
        assert_eq!((&event["uuid"], &event["message"]), (&json!(id(1)), &json!("starting")), "{version}");
        assert!(first.job.finished.expect("an end") - first.job.submitted < 5.0, "{:?}", first.job);
        let targeted = store.job(&id(2)).expect("a query").expect("a job").job.target;
        assert_eq!(targeted, r#"["w1"]"#);
        assert!(store.unfinished(None, 10).expect("a query").jobs.is_empty(), "nothing is sent again");
        let again = python.import_client(&mut store, &times(LATER)).expect("an import");
        assert_eq!(again, Imported { known: 7, ..Imported::default() });
        assert_eq!(store.job(&id(1)), Ok(Some(first)), "it is as it was");
    }
}

#[test]
fn jobs_that_their_owner_may_still_end_are_left_to_it() {
    for (version, client, worker) in FILES {
        let folder = tempfile::tempdir().expect("a folder");
        let python = PythonJobs::open(&database(folder.path(), "c.db", client)).expect("it is one");
        let mut store = MemoryClientStore::default();
        // Job 7 has another hour.
        let imported = python.import_client(&mut store, &times(DAY + 86_400.0 / 2.0)).expect("an import");
        assert_eq!((imported.jobs, imported.unfinished), (6, 1), "{version}: {imported:?}");
        let python = PythonJobs::open(&database(folder.path(), "w.db", worker)).expect("it is one");
        let mut store = MemoryWorkerStore::default();
        let imported = python.import_worker(&mut store, &times(DAY + 86_400.0 / 2.0)).expect("an import");
        // Clients of 0.21 do not tell their workers how long they wait: a minute is what these take for granted.
        assert_eq!(imported.unfinished, u64::from(version != "0.21.2"), "{version}: {imported:?}");
    }
}

#[test]
fn a_workers_jobs_come_over_with_what_they_returned() {
    for (version, _, worker) in FILES {
        let folder = tempfile::tempdir().expect("a folder");
        let python = PythonJobs::open(&database(folder.path(), "w1.db", worker)).expect("it is one");
        assert_eq!(python.owner(), Owner::Worker);
        let mut store = SqliteWorkerStore::open(&folder.path().join("jobs.db"), "now").expect("a database");
        let imported = python.import_worker(&mut store, &times(LATER)).expect("an import");
        assert!(imported.jobs >= 4 && imported.unreadable == 0, "{version}: {imported:?}");
        let first = store.job(&id(1)).expect("a query").expect("a job");
        assert_eq!(
            (first.job.client.as_str(), first.job.attempts, first.job.state),
            ("reports", 1, WorkerState::Completed)
        );
        let result: Value = serde_json::from_slice(&first.payload.expect("a result")).expect("JSON");
        assert_eq!(result["result"], json!({"a": 1, "b": "übung"}), "{version}");
        let event: Value = serde_json::from_slice(&first.events[0]).expect("JSON");
        assert_eq!((&event["worker"], &event["uuid"]), (&json!("w1"), &json!(id(1))), "{version}");
        assert_eq!(store.job(&id(2)).expect("a query").expect("a job").job.state, WorkerState::Failed);
        let left = store.job(&id(7)).expect("a query").expect("a job");
        assert_eq!((left.job.state, left.payload), (WorkerState::Failed, None), "it was running when its worker died");
        let jobs = imported.jobs;
        let again = python.import_worker(&mut store, &times(LATER)).expect("an import");
        assert_eq!(again, Imported { known: jobs, ..Imported::default() });
    }
}

#[test]
fn rows_that_cannot_be_read_are_told_and_keep_no_other_back() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = database(folder.path(), "reports.db", FILES[1].1);
    let broken = Connection::open(&path).expect("a database");
    for (number, damage) in
        [(1, "status = 'ODD'"), (2, "result_data = x'789c0102'"), (3, "kwargs = '{'"), (6, "service = ''")]
    {
        let changed = broken.execute(&format!("UPDATE jobs SET {damage} WHERE uuid = ?1"), [id(number).as_str()]);
        assert_eq!(changed, Ok(1), "{damage}");
    }
    // Without packing, as `jobs_compress: false` writes it.
    let plain = r#"{"kwargs":{"a":1}}"#;
    broken.execute("UPDATE jobs SET kwargs = ?1 WHERE uuid = ?2", [plain, id(4).as_str()]).expect("a change");
    drop(broken);
    let mut store = MemoryClientStore::default();
    let python = PythonJobs::open(&path).expect("it is one");
    let imported = python.import_client(&mut store, &times(LATER)).expect("an import");
    assert_eq!((imported.jobs, imported.unreadable, imported.problems.len()), (3, 4, 4), "{imported:?}");
    assert!(imported.problems[0].contains("status \"ODD\" is unknown"), "{:?}", imported.problems);
    let body = store.job(&id(4)).expect("a query").expect("a job").job.body;
    assert!(String::from_utf8_lossy(&body).contains(r#""kwargs":{"a":1}"#));
}

#[test]
fn a_job_that_the_store_refuses_is_one_problem_and_not_counted_as_taken() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = database(folder.path(), "reports.db", FILES[1].1);
    let broken = Connection::open(&path).expect("a database");
    let changed = broken.execute("UPDATE jobs SET deadline = 9e999 WHERE status IN ('COMPLETED', 'FAILED')", []);
    let refused = changed.expect("a change") as u64;
    drop(broken);
    let mut store = MemoryClientStore::default();
    let imported =
        PythonJobs::open(&path).expect("it is one").import_client(&mut store, &times(LATER)).expect("an import");
    assert_eq!((imported.jobs, imported.unreadable), (7 - refused, refused), "{imported:?}");
    assert_eq!(imported.problems.len() as u64, refused);
}

#[test]
fn other_files_are_refused_by_name() {
    let folder = tempfile::tempdir().expect("a folder");
    let text = folder.path().join("notes.db");
    std::fs::write(&text, "x".repeat(5000)).expect("a file");
    let ours = folder.path().join("jobs.db");
    drop(SqliteClientStore::open(&ours, "now").expect("a database"));
    for path in [&text, &ours, &folder.path().to_owned()] {
        let refused = PythonJobs::open(path).err().expect("it is none");
        assert!(matches!(refused, ImportError::Foreign { .. }), "{refused}");
        assert!(refused.to_string().contains(&path.display().to_string()), "{refused}");
    }
    let missing = PythonJobs::open(&folder.path().join("missing.db")).err().expect("it is not there");
    assert!(matches!(missing, ImportError::Unreadable { .. }), "{missing}");
}
