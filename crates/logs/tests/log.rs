//! A running log: layer, queues, writers and reader together.

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, SystemTime};

use norfab_logs::{
    EventLine, Level, LogConfig, LogGuard, LogQuery, LogSettings, Role, Terminal, log_event, read_logs, role_span,
    start,
};
use serde_json::Value;
use tracing::{Dispatch, debug, error, info, info_span, warn};
use tracing_subscriber::layer::SubscriberExt;

/// Long enough for any machine.
const PATIENCE: Duration = Duration::from_secs(20);

#[derive(Clone, Default)]
struct Screen(Arc<Mutex<Vec<u8>>>);

impl Write for Screen {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().write(bytes)
    }
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Screen {
    fn text(&self) -> String {
        String::from_utf8(self.0.lock().unwrap().clone()).unwrap()
    }
}

/// The folder of the log files below a base folder.
fn log_dir(base: &Path) -> PathBuf {
    base.join("__norfab__/logs")
}

fn log(base: &Path, settings: LogSettings) -> (Dispatch, LogGuard, Screen) {
    let screen = Screen::default();
    let (layer, guard) = start(LogConfig {
        dir: Some(log_dir(base)),
        settings,
        role: Role::Client,
        name: "nfcli".to_owned(),
        terminal: Some(Terminal::new(Box::new(screen.clone()), false)),
        wall_clock: SystemTime::now,
    })
    .unwrap();
    (Dispatch::new(tracing_subscriber::registry().with(layer)), guard, screen)
}

fn records(base: &Path, file: &str) -> Vec<Value> {
    let text = fs::read_to_string(log_dir(base).join(file)).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn messages(records: &[Value]) -> Vec<&str> {
    records.iter().map(|record| record["message"].as_str().unwrap()).collect()
}

#[derive(Debug, thiserror::Error)]
#[error("cannot connect")]
struct Outer(#[source] Inner);

#[derive(Debug, thiserror::Error)]
#[error("no route")]
struct Inner;

#[test]
fn an_event_is_a_record_of_pythons_shape_with_its_fields_behind_the_message() {
    let base = tempfile::tempdir().unwrap();
    let (dispatch, guard, screen) = log(base.path(), LogSettings::default());
    tracing::dispatcher::with_default(&dispatch, || {
        let _role = role_span(Role::Worker, "w1").entered();
        let _job = info_span!("run_job", job_uuid = "4f", task = "cli").entered();
        let cause = Outer(Inner);
        warn!(
            retries = 3,
            host = "r 1",
            up = false,
            plain = "x",
            client = "c1",
            exception = &cause as &dyn std::error::Error,
            "no {}",
            "answer"
        );
    });
    assert!(guard.handle().flush(PATIENCE));
    let found = records(base.path(), "worker-w1.jsonl");
    let record = found[0].as_object().unwrap();
    let keys: Vec<&str> = record.keys().map(String::as_str).collect();
    assert_eq!(
        keys.join(" "),
        "ts level logger message pid processName threadName role name module function line filename client task job_uuid exception"
    );
    assert_eq!(record["message"], "no answer retries=3 host=\"r 1\" up=false plain=x");
    assert_eq!(record["exception"], "cannot connect: no route");
    for (key, value) in [
        ("level", "WARNING"),
        ("logger", "log"),
        ("role", "worker"),
        ("name", "w1"),
        ("module", "log"),
        ("function", "run_job"),
        ("filename", "log.rs"),
        ("client", "c1"),
        ("task", "cli"),
        ("job_uuid", "4f"),
    ] {
        assert_eq!(record[key], value, "{key}");
    }
    assert!(record["threadName"].as_str().unwrap().starts_with("an_event_is_a_record"));
    assert!(record["line"].as_u64().unwrap() > 50);
    let text = screen.text();
    assert!(text.contains(" WARNING worker w1: no answer retries=3 host=\"r 1\" up=false plain=x\n"), "{text}");
    assert!(text.ends_with("\n    cannot connect: no route\n"), "{text}");
}

#[test]
fn roles_of_one_process_have_files_of_their_own_and_the_rest_goes_to_the_default() {
    let base = tempfile::tempdir().unwrap();
    let (dispatch, guard, screen) = log(base.path(), LogSettings::default());
    tracing::dispatcher::with_default(&dispatch, || {
        info!("outside");
        role_span(Role::Broker, "NFPBroker").in_scope(|| {
            info!("of the broker");
            role_span(Role::Worker, "w1").in_scope(|| info!("of the worker"));
        });
        debug!("not wanted");
    });
    drop(guard);
    assert_eq!(messages(&records(base.path(), "nfapi-nfcli.jsonl")), ["outside"]);
    assert_eq!(messages(&records(base.path(), "broker-NFPBroker.jsonl")), ["of the broker"]);
    assert_eq!(messages(&records(base.path(), "worker-w1.jsonl")), ["of the worker"]);
    assert_eq!(screen.text(), "", "news are not shown to people who did not ask for them");
}

#[test]
fn hundreds_of_workers_on_threads_of_their_own_lose_nothing_and_are_not_mixed_up() {
    const THREADS: usize = 8;
    const WORKERS_PER_THREAD: usize = 25;
    const RECORDS: usize = 15;
    let base = tempfile::tempdir().unwrap();
    let settings = LogSettings { file_bytes_max: 2_000, ..LogSettings::default() };
    let (dispatch, guard, _screen) = log(base.path(), settings);
    thread::scope(|scope| {
        for thread in 0..THREADS {
            let dispatch = &dispatch;
            scope.spawn(move || {
                tracing::dispatcher::with_default(dispatch, || {
                    for worker in 0..WORKERS_PER_THREAD {
                        let name = format!("w-{thread}-{worker}");
                        let _role = role_span(Role::Worker, &name).entered();
                        for number in 0..RECORDS {
                            info!(number, "{name}");
                        }
                    }
                });
            });
        }
    });
    let handle = guard.handle();
    assert!(handle.flush(PATIENCE));
    assert_eq!(handle.lost_total(), 0, "{} records fit into the queue", THREADS * WORKERS_PER_THREAD * RECORDS);
    for worker in
        (0..THREADS).flat_map(|thread| (0..WORKERS_PER_THREAD).map(move |worker| format!("w-{thread}-{worker}")))
    {
        let query = LogQuery { role: Some(Role::Worker), name: Some(worker.clone()), ..LogQuery::default() };
        let found = read_logs(handle.dir().unwrap(), &query);
        let expected: Vec<String> = (0..RECORDS).map(|number| format!("{worker} number={number}")).collect();
        assert_eq!(messages(&found), expected);
    }
    assert!(log_dir(base.path()).join("worker-w-0-0.jsonl.1").exists(), "files were rotated");
}

#[test]
fn job_events_are_logged_only_where_the_inventory_asks_for_them() {
    for (log_events, expected) in
        [(false, vec![]), (true, vec!["EVENT w1:cli - 2 of 3 done", "EVENT w1:cli - all lost"])]
    {
        let base = tempfile::tempdir().unwrap();
        let (dispatch, guard, _screen) = log(base.path(), LogSettings { log_events, ..LogSettings::default() });
        let line = EventLine {
            worker: "w1",
            task: "cli",
            job_uuid: "4f",
            event_type: "progress",
            severity: Level::Info,
            message: "2 of 3 done",
        };
        tracing::dispatcher::with_default(&dispatch, || {
            log_event(&line);
            log_event(&EventLine { severity: Level::Critical, message: "all lost", ..line });
            log_event(&EventLine { severity: Level::Debug, message: "detail", ..line });
        });
        drop(guard);
        let found = read_logs(&log_dir(base.path()), &LogQuery::default());
        assert_eq!(messages(&found), expected);
        if let [first, second] = &found[..] {
            assert_eq!((&first["level"], &second["level"]), (&Value::from("INFO"), &Value::from("CRITICAL")));
            let fields = ["logger", "worker", "task", "job_uuid", "event_type"].map(|key| first[key].as_str().unwrap());
            assert_eq!(fields, ["norfab.events", "w1", "cli", "4f", "progress"]);
        }
    }
}

#[test]
fn libraries_below_us_do_not_fill_a_log_of_level_debug() {
    let base = tempfile::tempdir().unwrap();
    let (dispatch, guard, screen) = log(base.path(), LogSettings::default().with_verbosity(2, 0));
    tracing::dispatcher::with_default(&dispatch, || {
        debug!(target: "hyper::proto", "bytes");
        info!(target: "hyper::proto", "news");
        debug!(target: "norfab_fabric::broker", "detail");
        tracing::trace!(target: "norfab_fabric::broker", "more detail");
    });
    drop(guard);
    let found = records(base.path(), "nfapi-nfcli.jsonl");
    assert_eq!(messages(&found), ["news", "detail", "more detail"]);
    assert_eq!(found[2]["level"], "DEBUG");
    assert!(screen.text().contains(" DEBUG client nfcli: more detail\n"));
}

#[test]
fn an_unwritable_folder_is_told_once_on_the_terminal_and_stops_nobody() {
    let base = tempfile::tempdir().unwrap();
    fs::write(base.path().join("__norfab__"), "a file where the folder should be").unwrap();
    let (dispatch, guard, screen) = log(base.path(), LogSettings::default());
    tracing::dispatcher::with_default(&dispatch, || {
        for number in 0..1_000 {
            info!(number, "unheard");
        }
        error!("seen by people");
    });
    drop(guard);
    let text = screen.text();
    assert_eq!(text.matches("cannot write the log file").count(), 1, "{text}");
    assert!(text.contains(" ERROR client nfcli: seen by people\n"), "{text}");
    assert_eq!(text.lines().count(), 2, "{text}");
}

#[test]
fn a_payload_in_a_message_is_cut() {
    let base = tempfile::tempdir().unwrap();
    let (dispatch, guard, _screen) = log(base.path(), LogSettings::default());
    tracing::dispatcher::with_default(&dispatch, || info!(payload = ?vec![7; 1_000_000], "much"));
    drop(guard);
    let found = records(base.path(), "nfapi-nfcli.jsonl");
    let message = messages(&found)[0];
    assert!(message.len() < 9_000 && message.ends_with("... (cut)"), "{}", message.len());
}
