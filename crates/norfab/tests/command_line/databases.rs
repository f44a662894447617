//! What roles make of the databases that they find.

use std::os::unix::fs::FileExt;

use rustix::process::Signal;

use crate::support::{FABRIC, Lab};

/// Bytes of a page of a database.
const PAGE: u64 = 4096;

#[test]
fn damaged_databases_are_set_aside_with_a_word_and_their_roles_serve_with_new_ones() {
    let lab = Lab::new(FABRIC);
    let _broker = lab.start(&["broker"]);
    let start = || {
        let worker = lab.spawn(&["worker", "filesharing-worker-1"]);
        worker.ready("worker filesharing-worker-1");
        worker
    };
    let worker = start();
    for name in ["one", "two"] {
        lab.json(&["run", "filesharing", "echo", "--json", "--name", name]);
    }
    assert_eq!(worker.stop(Signal::TERM).code, Some(0));
    let (of_worker, of_client) = ("__norfab__/files/worker/filesharing-worker-1", "__norfab__/files/client/one");
    for folder in [of_worker, of_client] {
        // Its head is whole: only who looks at all of it sees the damage.
        let file = std::fs::OpenOptions::new().write(true).open(lab.path(folder).join("jobs.db")).expect("a file");
        let length = file.metadata().expect("it is there").len();
        assert!(length > PAGE, "{folder}: {length}");
        file.write_all_at(&vec![0x55; (length - PAGE) as usize], PAGE).expect("written");
    }

    let worker = start();
    worker.told_on_stderr("jobs.db was damaged");
    let run = lab.run(&["run", "filesharing", "echo", "--json", "--name", "one"]);
    assert_eq!(run.code, Some(0), "{run:?}");
    assert!(run.stderr.contains("jobs.db was damaged"), "{}", run.stderr);
    for folder in [of_worker, of_client] {
        let names = lab.names(folder);
        assert!(names.iter().any(|name| name.starts_with("jobs.db.damaged-")), "{folder}: {names:?}");
    }
    let jobs = |name: &str| lab.json(&["jobs", "--json", "--name", name]).as_array().expect("rows").len();
    assert_eq!((jobs("one"), jobs("two")), (1, 1), "the new one begins empty, and no other is touched");
    assert_eq!(worker.stop(Signal::TERM).code, Some(0));
}

#[test]
fn finished_jobs_of_long_ago_are_forgotten_without_a_word_in_the_inventory_and_unfinished_ones_stay() {
    let lab = Lab::new(FABRIC);
    let _broker = lab.start(&["broker"]);
    let worker = lab.spawn(&["worker", "filesharing-worker-1"]);
    worker.ready("worker filesharing-worker-1");
    let id = |job: &serde_json::Value| job["uuid"].as_str().expect("an id").to_owned();
    let old = [(); 2].map(|()| id(&lab.json(&["run", "filesharing", "echo", "--json", "--name", "one"])));
    assert_eq!(worker.stop(Signal::TERM).code, Some(0));
    let nobody = ["run", "filesharing", "echo", "--nowait", "--wait-for-workers", "--name", "one"];
    let unfinished = lab.run(&nobody).stdout.trim().to_owned();
    // As if all of it were from the year before. The deadline of the last one stays ahead.
    let year = 365.0 * 86_400.0;
    for folder in ["client/one", "worker/filesharing-worker-1"] {
        let path = lab.path(format!("__norfab__/files/{folder}/jobs.db"));
        let database = rusqlite::Connection::open(path).expect("a database");
        let changed = database
            .execute("UPDATE job SET submitted = submitted - ?1, finished = finished - ?1", [year])
            .expect("it is written");
        assert!(changed >= 2, "{folder}: {changed}");
    }
    let worker = lab.spawn(&["worker", "filesharing-worker-1"]);
    worker.ready("worker filesharing-worker-1");
    let last = id(&lab.json(&["run", "filesharing", "echo", "--json", "--name", "one"]));
    let rows =
        |arguments: &[&str]| -> Vec<String> { lab.json(arguments).as_array().expect("rows").iter().map(id).collect() };
    crate::support::eventually("the client forgets", || {
        let kept = rows(&["jobs", "--json", "--offline", "--name", "one"]);
        kept.contains(&last) && kept.contains(&unfinished) && kept.len() == 2
    });
    // The worker has run the one that nobody waited for, too.
    let kept = || -> Vec<String> {
        let path = lab.path("__norfab__/files/worker/filesharing-worker-1/jobs.db");
        let database = rusqlite::Connection::open(path).expect("a database");
        let mut rows = database.prepare("SELECT id FROM job").expect("it can be read");
        rows.query_map([], |row| row.get(0)).expect("rows").map(|id| id.expect("a text")).collect()
    };
    crate::support::eventually("the worker forgets", || {
        let kept = kept();
        kept.contains(&last) && old.iter().all(|id| !kept.contains(id))
    });
}
