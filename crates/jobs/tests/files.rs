//! What happens to the files of the databases.

mod samples;

use std::path::Path;
use std::time::Duration;

use norfab_jobs::sqlite::LOG_BYTES_MAX;
use norfab_jobs::*;
use rusqlite::Connection;
use samples::*;

fn folder() -> tempfile::TempDir {
    tempfile::tempdir().expect("a folder")
}

fn filled(path: &Path, jobs: usize) {
    let mut store = SqliteClientStore::open(path, STAMP).expect("a database");
    let mut operations: Vec<_> = (0..jobs).map(client_insert).collect();
    operations.extend((0..jobs).map(|number| result(number, "worker-1", &large(5000))));
    assert!(store.apply(&operations).expect("a batch").iter().all(Result::is_ok));
}

#[test]
fn what_was_stored_is_there_after_a_restart() {
    let folder = folder();
    let path = folder.path().join("jobs.db");
    filled(&path, 10);
    let mut store = SqliteClientStore::open(&path, STAMP).expect("a database");
    assert_eq!(store.set_aside(), None);
    assert_eq!(store.unfinished(None, 100).expect("a query").jobs.len(), 10);
}

#[test]
fn a_row_that_cannot_be_read_keeps_no_other_job_from_being_read_back() {
    let folder = folder();
    let path = folder.path().join("jobs.db");
    filled(&path, 9);
    let other = Connection::open(&path).expect("a database");
    for (number, damage) in [(0, "service = ''"), (4, "state = 'NONSENSE'"), (8, "task = ''")] {
        let changed = other.execute(&format!("UPDATE job SET {damage} WHERE id = ?1"), [id(number).as_str()]);
        assert_eq!(changed, Ok(1), "{damage}");
    }
    drop(other);
    let mut store = SqliteClientStore::open(&path, STAMP).expect("a database");
    let (mut found, mut unreadable, mut after) = (Vec::new(), Vec::new(), None);
    loop {
        let Page { jobs, unreadable: problems, end } = store.unfinished(after, 2).expect("a query");
        found.extend(jobs.into_iter().map(|job| job.id));
        unreadable.extend(problems.into_iter().filter_map(|problem| problem.id));
        if end.is_none() {
            break;
        }
        after = end;
    }
    assert_eq!((found, unreadable), ([1, 2, 3, 5, 6, 7].map(id).to_vec(), [0, 4, 8].map(id).to_vec()));
}

#[test]
fn a_damaged_file_is_set_aside_and_a_new_one_begins() {
    type Damage = fn(&Path);
    let damages: [(&str, Damage); 3] = [
        ("no header", |path| std::fs::write(path, large(20_000)).expect("a file")),
        ("cut off", |path| {
            let bytes = std::fs::read(path).expect("a file");
            std::fs::write(path, &bytes[..bytes.len() / 2]).expect("a file");
        }),
        ("pages overwritten", |path| {
            let mut bytes = std::fs::read(path).expect("a file");
            bytes[3 * 4096..12 * 4096].fill(0xa5);
            std::fs::write(path, bytes).expect("a file");
        }),
    ];
    for (what, damage) in damages {
        let folder = folder();
        let path = folder.path().join("jobs.db");
        filled(&path, 50);
        damage(&path);
        let damaged = std::fs::read(&path).expect("a file");
        let mut store = SqliteClientStore::open(&path, STAMP).unwrap_or_else(|error| panic!("{what}: {error}"));
        let set_aside = store.set_aside().unwrap_or_else(|| panic!("{what}: not found")).clone();
        assert_eq!(set_aside.moved_to, folder.path().join(format!("jobs.db.damaged-{STAMP}")));
        let message = set_aside.to_string();
        assert!(message.contains("was damaged") && message.contains("a new one was begun"), "{message}");
        assert!(std::fs::read(&set_aside.moved_to).expect("the old file") == damaged, "{what}: changed");
        assert_eq!(store.apply(&[client_insert(1)]), Ok(vec![Ok(())]), "{what}");
        drop(store);
        // A second damage within the same stamp keeps the first file.
        std::fs::write(&path, large(20_000)).expect("a file");
        let store = SqliteClientStore::open(&path, STAMP).expect("a database");
        let second = store.set_aside().expect("damage").moved_to.clone();
        assert_ne!(second, set_aside.moved_to);
        assert!(std::fs::read(&set_aside.moved_to).expect("the old file") == damaged, "{what}: overwritten");
    }
}

#[test]
fn a_newer_schema_is_refused_and_left_alone() {
    let folder = folder();
    let path = folder.path().join("jobs.db");
    filled(&path, 1);
    let connection = Connection::open(&path).expect("a database");
    connection.pragma_update(None, "user_version", 99).expect("a version");
    drop(connection);
    let error = SqliteClientStore::open(&path, STAMP).err().expect("a refusal");
    let path_text = path.display();
    assert_eq!(
        error.to_string(),
        format!(
            "the job database {path_text} has schema version 99, this program knows up to 4: run the newer program, or move the file away"
        )
    );
    let connection = Connection::open(&path).expect("a database");
    let version: i64 = connection.pragma_query_value(None, "user_version", |row| row.get(0)).expect("a version");
    assert_eq!(version, 99);
}

#[test]
fn files_of_others_are_refused_and_left_alone() {
    let folder = folder();
    let of_client = folder.path().join("client.db");
    filled(&of_client, 1);
    let error = SqliteWorkerStore::open(&of_client, STAMP).err().expect("a refusal");
    assert!(matches!(error, StoreError::Foreign { expected: "worker", .. }), "{error}");

    let of_other = folder.path().join("other.db");
    let connection = Connection::open(&of_other).expect("a database");
    connection.execute_batch("CREATE TABLE jobs (uuid TEXT PRIMARY KEY)").expect("a table");
    drop(connection);
    let error = SqliteClientStore::open(&of_other, STAMP).err().expect("a refusal");
    assert!(matches!(error, StoreError::Foreign { expected: "client", found: 0, .. }), "{error}");
}

#[test]
fn a_folder_that_does_not_exist_is_named() {
    let folder = folder();
    let path = folder.path().join("nowhere").join("jobs.db");
    let error = SqliteClientStore::open(&path, STAMP).err().expect("a refusal");
    assert!(error.to_string().contains("nowhere"), "{error}");
    assert!(matches!(error, StoreError::File { .. }), "{error}");
}

#[cfg(unix)]
#[test]
fn only_the_owner_may_read_the_files() {
    use std::os::unix::fs::PermissionsExt;
    let folder = folder();
    let path = folder.path().join("jobs.db");
    for widened in [false, true] {
        let mut store = SqliteClientStore::open(&path, STAMP).expect("a database");
        store.apply(&[client_insert(usize::from(widened))]).expect("a batch");
        let mut names = 0;
        for entry in folder.path().read_dir().expect("a folder") {
            let entry = entry.expect("an entry");
            let mode = entry.metadata().expect("metadata").permissions().mode() & 0o777;
            assert_eq!(mode, 0o600, "{:?}", entry.file_name());
            names += 1;
        }
        assert_eq!(names, 4, "the database, its log and its index, and the journal");
        drop(store);
        // Somebody copied it carelessly: the next start corrects it.
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o644)).expect("permissions");
    }
}

#[test]
fn a_full_disk_fails_whole_batches_until_there_is_space() {
    let folder = folder();
    let path = folder.path().join("jobs.db");
    let mut store = SqliteClientStore::open(&path, STAMP).expect("a database");
    store.limit_pages(100).expect("a limit");
    store.apply(&[client_insert(0)]).expect("a batch");
    let too_much = [client_insert(1), progress(0, ClientState::Started), result(0, "worker-1", &large(1 << 20))];
    let error = store.apply(&too_much).expect_err("no space");
    assert!(matches!(error, StoreError::DiskFull { .. }), "{error}");
    assert!(error.to_string().contains("no space left"), "{error}");
    // Nothing of the batch is there.
    assert_eq!(store.job(&id(1)), Ok(None));
    assert_eq!(store.job(&id(0)).expect("a query").expect("a job").job.state, ClientState::New);
    store.limit_pages(1 << 20).expect("a limit");
    assert_eq!(store.apply(&too_much), Ok(vec![Ok(()); 3]));
}

#[test]
fn pruning_beside_an_owner_that_rests_shrinks_the_file_at_once() {
    let folder = folder();
    let path = folder.path().join("jobs.db");
    let mut owner = SqliteWorkerStore::open(&path, STAMP).expect("a database");
    for number in 0..8 {
        let operations = [worker_insert(number), finish(number, WorkerState::Completed, &large(1 << 20))];
        owner.apply(&operations).expect("a batch");
        owner.tidy().expect("tidied");
    }
    let lengths =
        || ["", "-wal"].map(|suffix| folder.path().join(format!("jobs.db{suffix}")).metadata().map(|of| of.len()));
    let mut other = SqliteWorkerStore::open_beside(&path).expect("a database");
    while other.prune(&Retention { jobs_max: 1, ..Retention::default() }, NOW).expect("a step").more {}
    other.tidy().expect("tidied");
    other.give_back().expect("nobody reads");
    let [database, log] = lengths().map(|length| length.expect("a file"));
    assert!(database < 4 << 20 && log == 0, "{database} and {log} bytes");
    assert!(owner.job(&id(7)).expect("a query").is_some());
    owner.apply(&[worker_insert(9)]).expect("it goes on");
    owner.settle().expect("it goes on");
    assert!(other.job(&id(9)).expect("a query").is_some());
}

#[test]
fn pruning_shrinks_the_file() {
    let folder = folder();
    let path = folder.path().join("jobs.db");
    let mut store = SqliteWorkerStore::open(&path, STAMP).expect("a database");
    for number in 0..8 {
        let operations = [worker_insert(number), finish(number, WorkerState::Completed, &large(4 << 20))];
        store.apply(&operations).expect("a batch");
        store.tidy().expect("tidied");
    }
    let before = path.metadata().expect("a file").len();
    assert!(before > 30 << 20, "{before} bytes");
    while store.prune(&Retention { jobs_max: 1, ..Retention::default() }, NOW).expect("a step").more {}
    store.tidy().expect("tidied");
    let after = path.metadata().expect("a file").len();
    assert!(after < 8 << 20, "{after} bytes after {before}");
    assert!(store.result(&id(7)).expect("a query").expect("a job").1.expect("a result") == large(4 << 20));
}

#[test]
fn a_plan_says_what_pruning_would_remove_and_changes_nothing() {
    let folder = folder();
    let mut store = SqliteWorkerStore::open(&folder.path().join("jobs.db"), STAMP).expect("a database");
    for number in 0..20 {
        let operations = [worker_insert(number), finish(number, WorkerState::Completed, &large(100_000))];
        store.apply(&operations).expect("a batch");
    }
    store.apply(&[worker_insert(20)]).expect("a batch");
    assert_eq!(store.ids().expect("a query"), (0..21).map(id).collect::<Vec<_>>());
    let all = Retention::default();
    assert_eq!(store.plan(&all, NOW).expect("a plan"), Pruned::default());
    let bounds = [
        Retention { jobs_max: 5, ..all },
        Retention { age_max: Duration::from_secs(10), ..all },
        Retention { bytes_max: 1 << 20, ..all },
        Retention { bytes_max: 0, ..all },
    ];
    for retention in bounds {
        let planned = store.plan(&retention, NOW + 25.0).expect("a plan");
        assert_eq!(store.ids().expect("a query").len(), 21);
        // On a copy, as the next one counts from the same state.
        let copy = folder.path().join("copy.db");
        store.settle().expect("space");
        for suffix in ["", "-wal"] {
            let to = folder.path().join(format!("copy.db{suffix}"));
            std::fs::copy(folder.path().join(format!("jobs.db{suffix}")), to).expect("a copy");
        }
        let mut copied = SqliteWorkerStore::open(&copy, STAMP).expect("a database");
        let mut pruned = 0;
        loop {
            let step = copied.prune(&retention, NOW + 25.0).expect("a step");
            pruned += step.jobs;
            if !step.more {
                break;
            }
        }
        drop(copied);
        std::fs::remove_file(&copy).expect("it is there");
        assert!(planned.jobs.abs_diff(pruned) <= 1, "{retention:?}: planned {planned:?}, pruned {pruned}");
        assert!(planned.jobs <= 20 && planned.bytes >= planned.jobs * 100_000, "{planned:?}");
    }
}

#[test]
fn the_log_stays_small() {
    let folder = folder();
    let path = folder.path().join("jobs.db");
    let mut store = SqliteWorkerStore::open(&path, STAMP).expect("a database");
    // About 40 MiB of changed pages.
    for number in 0..2000 {
        store.apply(&[worker_insert(number), finish(number, WorkerState::Completed, &large(3000))]).expect("a batch");
        store.tidy().expect("tidied");
    }
    let log = folder.path().join("jobs.db-wal").metadata().expect("a log").len();
    assert!(log <= 16 << 20, "{log} bytes");
}

#[test]
fn another_process_may_read_and_prune_meanwhile() {
    let folder = folder();
    let path = folder.path().join("jobs.db");
    let mut one = SqliteClientStore::open(&path, STAMP).expect("a database");
    let mut other = SqliteClientStore::open_beside(&path).expect("a database");
    one.apply(&[client_insert(1), client_insert(2), progress(2, ClientState::Failed)]).expect("a batch");
    assert_eq!(one.statistics().expect("a query").total_jobs(), 2);
    assert_eq!(other.unfinished(None, 10).expect("a query").jobs.len(), 1);
    other.prune(&Retention { jobs_max: 0, ..Retention::default() }, NOW).expect("a step");
    assert_eq!(one.statistics().expect("a query").total_jobs(), 1);
    assert_eq!(one.apply(&[progress(1, ClientState::Started)]), Ok(vec![Ok(())]));
}

#[test]
fn whoever_only_looks_leaves_a_damaged_file_where_it_is() {
    let folder = folder();
    let path = folder.path().join("jobs.db");
    std::fs::write(&path, large(20_000)).expect("a file");
    let refused = SqliteClientStore::open_beside(&path).err().expect("it cannot be read");
    assert!(matches!(refused, StoreError::Damaged { .. }), "{refused}");
    assert_eq!(std::fs::read(&path).expect("the file"), large(20_000));
    assert_eq!(std::fs::read_dir(folder.path()).expect("a folder").count(), 1);
}

#[test]
fn what_another_process_wrote_counts() {
    let folder = folder();
    let path = folder.path().join("jobs.db");
    let mut store = SqliteWorkerStore::open(&path, STAMP).expect("a database");
    assert_eq!(store.apply(&[worker_insert(1), worker_event(1, "first")]), Ok(vec![Ok(()), Ok(())]));
    store.settle().expect("space");
    let mut other = SqliteWorkerStore::open_beside(&path).expect("a database");
    let theirs = [worker_event(1, "theirs"), finish(1, WorkerState::Completed, b"{}")];
    assert_eq!(other.apply(&theirs), Ok(vec![Ok(()), Ok(())]));
    let ours = [worker_event(1, "ours"), state(1, WorkerState::Started, 1.0)];
    assert!(matches!(store.apply(&ours).expect("a batch")[..], [Ok(()), Err(OperationError::Final { .. })]));
    let found = store.job(&id(1)).expect("a query").expect("a job");
    assert_eq!(found.events, ["first", "theirs", "ours"]);
}

#[test]
fn who_looks_at_the_jobs_of_a_dead_owner_takes_over_what_it_noted_and_lets_go() {
    let folder = folder();
    let path = folder.path().join("jobs.db");
    let mut store = SqliteWorkerStore::open(&path, STAMP).expect("a database");
    store.apply(&[worker_insert(1)]).expect("a batch");
    let mut beside = SqliteWorkerStore::open_beside(&path).expect("a database");
    assert!(beside.job(&id(1)).expect("a query").is_some(), "the owner lives and has it noted");
    assert_eq!(beside.list(&WorkerJobFilter::default()).expect("a query").len(), 1);
    assert!(!store.is_settled());
    store.apply(&[state(1, WorkerState::Started, 1.0)]).expect("a batch");
    assert_eq!(beside.job(&id(1)).expect("a query").expect("a job").job.state, WorkerState::Started);
    // As its files would be after kill -9.
    let dead = folder.path().join("dead.db");
    for suffix in ["", "-wal", "-noted"] {
        let of = |name: &str| folder.path().join(format!("{name}.db{suffix}"));
        std::fs::copy(of("jobs"), of("dead")).expect("a copy");
    }
    store.settle().expect("space");
    assert!(beside.job(&id(1)).expect("a query").is_some());
    let mut beside = SqliteWorkerStore::open_beside(&dead).expect("a database");
    assert!(beside.job(&id(1)).expect("a query").is_some());
    // Had it kept the lock, this owner would note nothing and show its change at once.
    let mut owner = SqliteWorkerStore::open(&dead, STAMP).expect("a database");
    owner.apply(&[worker_insert(2)]).expect("a batch");
    assert!(!owner.is_settled());
}

#[test]
fn what_was_noted_goes_with_the_database_that_is_set_aside_or_deleted() {
    let folder = folder();
    let path = folder.path().join("jobs.db");
    let of = |suffix: &str| folder.path().join(format!("jobs.db{suffix}"));
    let store = |noted: usize| {
        let mut store = SqliteWorkerStore::open(&path, STAMP).expect("a database");
        store.apply(&[worker_insert(noted)]).expect("a batch");
        assert!(!store.is_settled());
        // Its journal as it is after kill -9.
        let journal = std::fs::read(of("-noted")).expect("a journal");
        drop(store);
        std::fs::write(of("-noted"), journal).expect("a file");
    };
    store(1);
    std::fs::remove_file(&path).expect("it is there");
    let mut deleted = SqliteWorkerStore::open(&path, STAMP).expect("a database");
    assert_eq!(deleted.job(&id(1)), Ok(None), "its journal is that of another database");
    drop(deleted);
    store(2);
    std::fs::write(&path, large(20_000)).expect("a file");
    let mut damaged = SqliteWorkerStore::open(&path, STAMP).expect("a database");
    assert_eq!(damaged.job(&id(2)), Ok(None));
    let aside = damaged.set_aside().expect("damage").moved_to.clone();
    assert!(aside.with_file_name(format!("{}-noted", aside.file_name().expect("a name").display())).exists());
}

#[test]
fn a_copy_of_a_damaged_journal_is_kept_and_what_can_be_read_of_it_is_taken() {
    let folder = folder();
    let path = folder.path().join("jobs.db");
    let noted = folder.path().join("jobs.db-noted");
    let mut store = SqliteWorkerStore::open(&path, STAMP).expect("a database");
    for number in 1..=3 {
        store.apply(&[worker_insert(number)]).expect("a batch");
    }
    assert!(!store.is_settled());
    // As it is after kill -9, but for a byte in the record of the second job.
    let mut journal = std::fs::read(&noted).expect("a journal");
    journal.truncate(journal.iter().rposition(|byte| *byte != 0).expect("records") + 1);
    let middle = journal.len() / 2;
    journal[middle] ^= 1;
    // The database forgets what it takes now.
    let before: Vec<_> = ["", "-wal"].map(|suffix| folder.path().join(format!("jobs.db{suffix}"))).to_vec();
    let dead: Vec<_> = before.iter().map(|path| std::fs::read(path).expect("a file")).collect();
    drop(store);
    for (path, bytes) in before.iter().zip(dead) {
        std::fs::write(path, bytes).expect("a file");
    }
    std::fs::write(&noted, &journal).expect("a file");
    let mut beside = SqliteWorkerStore::open_beside(&path).expect("a database");
    assert!(beside.job(&id(1)).expect("a query").is_some());
    assert_eq!(beside.set_aside(), None, "that is for the owner");
    drop(beside);
    let mut store = SqliteWorkerStore::open(&path, STAMP).expect("a database");
    let jobs = [1, 2, 3].map(|number| store.job(&id(number)).expect("a query").is_some());
    assert_eq!(jobs, [true, false, false]);
    let aside = store.set_aside().expect("damage").clone();
    assert_eq!(aside.file, DamagedFile::Journal);
    assert_eq!(aside.moved_to, folder.path().join(format!("jobs.db-noted.damaged-{STAMP}")));
    assert_eq!(std::fs::read(&aside.moved_to).expect("a copy"), journal);
    assert!(aside.to_string().contains("change 2 cannot be read, and change 3 is there"), "{aside}");
    store.apply(&[worker_insert(4)]).expect("a batch");
    drop(store);
    let mut store = SqliteWorkerStore::open(&path, STAMP).expect("a database");
    assert_eq!(store.set_aside(), None);
    assert!(store.job(&id(4)).expect("a query").is_some());
}

#[cfg(target_os = "linux")]
#[test]
fn a_journal_that_is_no_file_is_an_error_and_nobody_waits() {
    let folder = folder();
    let path = folder.path().join("jobs.db");
    let pipe = folder.path().join("jobs.db-noted");
    let mode = rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR;
    rustix::fs::mkfifoat(rustix::fs::CWD, &pipe, mode).expect("a pipe");
    let (tell, told) = std::sync::mpsc::channel();
    std::thread::spawn(move || tell.send(SqliteWorkerStore::open(&path, STAMP).err()));
    // Whoever reads from it waits for ever.
    let error = told.recv_timeout(Duration::from_secs(20)).expect("an answer in time").expect("a refusal");
    assert!(error.to_string().contains("jobs.db-noted"), "{error}");
}

/// Bytes of the log beside a database.
fn log_bytes(path: &Path) -> u64 {
    path.with_file_name("jobs.db-wal").metadata().map_or(0, |found| found.len())
}

#[test]
fn after_a_burst_the_log_is_cut_off_as_soon_as_nobody_reads() {
    let folder = folder();
    let path = folder.path().join("jobs.db");
    let mut store = SqliteWorkerStore::open(&path, STAMP).expect("a database");
    store.apply(&[worker_insert(0), worker_insert(1)]).expect("a batch");
    store.settle().expect("space");
    // Somebody reads, and keeps the log from being written back.
    let reader = Connection::open(&path).expect("a database");
    reader.execute_batch("BEGIN; SELECT count(*) FROM job").expect("a query");
    store.apply(&[finish(0, WorkerState::Completed, &large(40 << 20))]).expect("a batch");
    store.tidy().expect("tidied");
    assert!(!store.is_settled(), "there is something left to do");
    store.settle().expect("it waits for nobody");
    assert!(log_bytes(&path) > 40 << 20, "{} bytes", log_bytes(&path));
    reader.execute_batch("COMMIT").expect("the end of the query");
    store.settle().expect("settled");
    assert!(log_bytes(&path) <= LOG_BYTES_MAX, "{} bytes", log_bytes(&path));
    assert!(store.is_settled());
    // And where nobody reads, at once.
    store.apply(&[finish(1, WorkerState::Completed, &large(40 << 20))]).expect("a batch");
    store.tidy().expect("tidied");
    assert!(log_bytes(&path) <= LOG_BYTES_MAX, "{} bytes", log_bytes(&path));
    assert!(store.result(&id(1)).expect("a query").expect("a job").1.expect("a result") == large(40 << 20));
}

#[test]
fn a_database_of_an_earlier_schema_is_taken_over_with_its_jobs() {
    let folder = folder();
    for (name, application_id, schema) in [
        ("client", 0x4e46_4a43, include_str!("../src/sqlite/client_1.sql")),
        ("worker", 0x4e46_4a57, include_str!("../src/sqlite/worker_1.sql")),
    ] {
        let old = Connection::open(folder.path().join(format!("{name}.db"))).expect("a database");
        old.execute_batch(schema).expect("the first schema");
        old.execute_batch(&format!("PRAGMA application_id = {application_id}; PRAGMA user_version = 1"))
            .expect("its version");
        let (columns, values) = match name {
            "client" => {
                ("service, target, dispatched, started, completed, errors", "'s', 'any', '[]', '[]', '[]', '[]'")
            }
            _ => ("client, attempts", "'client-1', 0"),
        };
        old.execute_batch(&format!(
            "INSERT INTO job (id, state, submitted, deadline, timeout, task, {columns}) \
             VALUES ('{}', '{}', 1.0, 2.0, 600, 'cli', {values});
             INSERT INTO body (job, part, data) VALUES (1, 0, x'7b7d')",
            id(1),
            if name == "client" { "NEW" } else { "PENDING" },
        ))
        .expect("a job");
    }
    let mut client = SqliteClientStore::open(&folder.path().join("client.db"), STAMP).expect("it is taken over");
    assert_eq!(client.unfinished(None, 10).expect("a query").jobs[0].id, id(1));
    assert_eq!(client.apply(&[progress(1, ClientState::Started)]), Ok(vec![Ok(())]));
    let mut worker = SqliteWorkerStore::open(&folder.path().join("worker.db"), STAMP).expect("it is taken over");
    assert_eq!(worker.unfinished(None, 10).expect("a query").jobs[0].body, "{}");
    assert_eq!(worker.apply(&[finish(1, WorkerState::Completed, b"{}")]), Ok(vec![Ok(())]));
}

#[cfg(unix)]
#[test]
fn a_database_that_somebody_removes_is_begun_anew_with_the_jobs_that_have_not_ended() {
    let folder = folder();
    let path = folder.path().join("jobs.db");
    let files = || ["", "-wal", "-shm", "-noted"].map(|suffix| folder.path().join(format!("jobs.db{suffix}")));
    for all in [true, false] {
        let mut store = SqliteWorkerStore::open(&path, STAMP).expect("a database");
        let body = large(5000);
        let waiting = WorkerJob { body: body.clone().into(), ..worker_job(1) };
        let operations = [WorkerOperation::Insert(waiting), worker_insert(2), finish(2, WorkerState::Completed, b"{}")];
        store.apply(&operations).expect("a batch");
        store.apply(&[worker_event(1, "of job 1"), state(1, WorkerState::Started, 1.0)]).expect("it is noted");
        for file in files().into_iter().take(if all { 4 } else { 1 }).filter(|file| file.exists()) {
            std::fs::remove_file(file).expect("it is there");
        }
        assert_eq!(store.apply(&[worker_insert(3)]), Ok(vec![Ok(())]));
        let news = store.take_news();
        assert!(news.len() == 1 && news[0].contains("with the 1 jobs"), "{news:?}");
        assert_eq!(store.take_news(), [""; 0]);
        assert_eq!(store.apply(&[finish(1, WorkerState::Completed, b"[1]")]), Ok(vec![Ok(())]));
        drop(store);
        let mut store = SqliteWorkerStore::open(&path, STAMP).expect("a database");
        assert_eq!(store.set_aside(), None);
        let details = store.job(&id(1)).expect("a query").expect("a job");
        assert_eq!((&details.job.body[..], &details.events[..]), (&body[..], &["of job 1".into()][..]));
        assert_eq!(details.payload.as_deref(), Some(&b"[1]"[..]));
        assert_eq!(store.job(&id(2)), Ok(None), "it had ended");
        assert!(store.job(&id(3)).expect("a query").is_some());
        drop(store);
        files().iter().filter(|file| file.exists()).for_each(|file| std::fs::remove_file(file).expect("it is there"));
    }
}

#[cfg(unix)]
#[test]
fn a_database_that_somebody_replaces_is_used_as_it_is() {
    let folder = folder();
    let (path, other) = (folder.path().join("jobs.db"), folder.path().join("other.db"));
    let mut one = SqliteClientStore::open(&other, STAMP).expect("a database");
    one.apply(&[client_insert(7)]).expect("a batch");
    drop(one);
    let mut store = SqliteClientStore::open(&path, STAMP).expect("a database");
    store.apply(&[client_insert(1)]).expect("a batch");
    std::fs::rename(&other, &path).expect("a replacement");
    assert_eq!(store.apply(&[client_insert(2)]), Ok(vec![Ok(())]));
    assert!(store.take_news()[0].contains("replaced the job database"));
    let mut ids: Vec<_> = store.unfinished(None, 9).expect("a query").jobs.into_iter().map(|job| job.id).collect();
    ids.sort();
    assert_eq!(ids, [id(2), id(7)]);
    // One that is damaged is set aside as at a start.
    std::fs::write(&other, large(20_000)).expect("a file");
    std::fs::rename(&other, &path).expect("a replacement");
    assert_eq!(store.apply(&[client_insert(3)]), Ok(vec![Ok(())]));
    let news = store.take_news();
    assert!(news.len() == 2 && news[1].contains("was damaged"), "{news:?}");
    // A journal alone: nothing is lost.
    store.apply(&[client_insert(4)]).expect("it is noted");
    assert!(!store.is_settled());
    std::fs::remove_file(folder.path().join("jobs.db-noted")).expect("it is there");
    assert_eq!(store.apply(&[client_insert(5)]), Ok(vec![Ok(())]));
    assert!(store.take_news()[0].contains("nothing is lost"));
    assert!(folder.path().join("jobs.db-noted").exists());
    assert_eq!(store.unfinished(None, 9).expect("a query").jobs.len(), 3);
}

#[test]
fn unfinished_jobs_outlive_a_new_database_that_cannot_be_made_at_first() {
    let folder = folder();
    let path = folder.path().join("jobs.db");
    let mut store = SqliteClientStore::open(&path, STAMP).expect("a database");
    assert_eq!(store.apply(&[client_insert(1), client_insert(2)]), Ok(vec![Ok(()), Ok(())]));
    store.settle().expect("space");
    std::fs::remove_file(&path).expect("it is there");
    let begun = folder.path().join("jobs.db.begun");
    std::fs::create_dir(&begun).expect("a folder in the way");
    assert!(store.apply(&[client_insert(3)]).is_err(), "no new one can be made");
    assert!(store.apply(&[client_insert(3)]).is_err(), "as before");
    std::fs::remove_dir(&begun).expect("it is empty");
    assert_eq!(store.apply(&[client_insert(3)]), Ok(vec![Ok(())]));
    assert_eq!(store.unfinished(None, 9).expect("a query").jobs.len(), 3);
}
