//! Jobs and operations for tests.

#![allow(dead_code, reason = "each test file uses a part")]

#[cfg(target_os = "linux")]
pub mod mounted;

use std::path::Path;

use bytes::Bytes;
use norfab_jobs::{
    ClientJob, ClientOperation, ClientState, SqliteWorkerStore, WorkerJob, WorkerOperation, WorkerState,
};
use norfab_protocol::name::{Identity, JobId, ServiceName, TaskName};
use rusqlite::Connection;

/// When the tests take place, Unix seconds.
pub const NOW: f64 = 1_800_000_000.0;

/// Names the file that is set aside.
pub const STAMP: &str = "20300101-000000";

pub fn id(number: usize) -> JobId {
    JobId::parse(&format!("{number:032x}")).expect("a name")
}

pub fn identity(name: &str) -> Identity {
    Identity::parse(name).expect("a name")
}

pub fn client_job(number: usize) -> ClientJob {
    ClientJob {
        id: id(number),
        service: ServiceName::parse("network").expect("a name"),
        task: TaskName::parse("cli").expect("a name"),
        target: r#"["worker-1","worker-2"]"#.to_owned(),
        body: Bytes::from(format!(r#"{{"task":"cli","kwargs":{{"number":{number}}},"args":[]}}"#)),
        timeout: 600,
        submitted: NOW + number as f64,
        deadline: NOW + number as f64 + 600.0,
        state: ClientState::New,
        dispatched: Vec::new(),
        started: Vec::new(),
        completed: Vec::new(),
        errors: Vec::new(),
        finished: None,
    }
}

pub fn client_insert(number: usize) -> ClientOperation {
    ClientOperation::Insert(client_job(number))
}

pub fn progress(number: usize, state: ClientState) -> ClientOperation {
    ClientOperation::Progress {
        id: id(number),
        state,
        dispatched: vec![identity("worker-1"), identity("worker-2")],
        started: vec![identity("worker-2")],
        completed: Vec::new(),
        errors: vec!["line \"one\"".to_owned()],
        finished: state.is_final().then_some(NOW + number as f64 + 1.0),
    }
}

pub fn result(number: usize, worker: &str, payload: &[u8]) -> ClientOperation {
    ClientOperation::Result { id: id(number), worker: identity(worker), payload: Bytes::copy_from_slice(payload) }
}

pub fn client_event(number: usize, text: &str) -> ClientOperation {
    ClientOperation::Event { id: id(number), body: Bytes::copy_from_slice(text.as_bytes()) }
}

pub fn worker_job(number: usize) -> WorkerJob {
    WorkerJob {
        id: id(number),
        client: identity("client-1"),
        task: TaskName::parse("cli").expect("a name"),
        body: Bytes::from(format!(r#"{{"task":"cli","kwargs":{{"number":{number}}},"args":[]}}"#)),
        timeout: 600,
        received: NOW + number as f64,
        deadline: NOW + number as f64 + 600.0,
        state: WorkerState::Pending,
        attempts: 0,
        started: None,
        finished: None,
    }
}

pub fn worker_insert(number: usize) -> WorkerOperation {
    WorkerOperation::Insert(worker_job(number))
}

pub fn state(number: usize, state: WorkerState, at: f64) -> WorkerOperation {
    WorkerOperation::State { id: id(number), state, at: NOW + at }
}

pub fn finish(number: usize, state: WorkerState, payload: &[u8]) -> WorkerOperation {
    let at = NOW + number as f64 + 1.0;
    WorkerOperation::Finish { id: id(number), state, at, payload: Bytes::copy_from_slice(payload) }
}

pub fn worker_event(number: usize, text: &str) -> WorkerOperation {
    WorkerOperation::Event { id: id(number), body: Bytes::copy_from_slice(text.as_bytes()) }
}

/// Bytes that do not repeat at any power of two, so that a mistake in cutting them shows.
pub fn large(bytes: usize) -> Vec<u8> {
    let period: Vec<u8> = (0..251).collect();
    let mut value = period.repeat(bytes / period.len() + 1);
    value.truncate(bytes);
    value
}

/// Bytes of a result of several parts.
pub const BYTES: usize = 5 << 20;

pub fn rows(path: &Path, table: &str) -> i64 {
    let other = Connection::open(path).expect("a database");
    other.query_row(&format!("SELECT count(*) FROM {table}"), [], |row| row.get(0)).expect("a count")
}

pub fn worker(path: &Path) -> SqliteWorkerStore {
    SqliteWorkerStore::open(path, STAMP).expect("a database")
}

pub fn large_finish(number: usize) -> WorkerOperation {
    finish(number, WorkerState::Completed, &large(BYTES))
}
