//! A client's job database in SQLite.

use std::collections::HashSet;
use std::path::Path;

use bytes::Bytes;
use norfab_protocol::name::{Identity, JobId, ServiceName, TaskName};
use rusqlite::{Connection, OptionalExtension, Row, params};

use super::open::Kind;
use super::{Counts, Database, SetAside, blob, parsed, signed, unreadable};
use crate::client::{
    ClientJob, ClientJobDetails, ClientJobFilter, ClientOperation, ClientState, ClientStore, check_end, check_insert,
    check_open, check_progress,
};
use crate::error::{OperationError, StoreError};
use crate::retention::{Pruned, Retention};
use crate::store::{LISTED_JOBS_MAX, Operation, Outcome, Statistics, Store};

const KIND: Kind = Kind {
    name: "client",
    // "NFJC"
    application_id: 0x4e46_4a43,
    migrations: &[include_str!("client_1.sql")],
};

/// Tables whose rows belong to a job.
const TABLES: [&str; 3] = ["body", "result", "event"];

/// The columns that [`read_job`] reads.
macro_rules! job_columns {
    () => {
        "number, id, service, task, target, timeout, submitted, deadline, state, \
         dispatched, started, completed, errors, finished"
    };
}

/// A client's job database in a file.
pub struct SqliteClientStore {
    database: Database,
}

impl SqliteClientStore {
    /// Opens or creates the file, readable for its owner only. A damaged file is kept under the name
    /// `<path>.damaged-<stamp>` and a new one begins. Errors: written by a newer version, not a client's database, no
    /// access, no space.
    pub fn open(path: &Path, stamp: &str) -> Result<Self, StoreError> {
        Database::open(path, &KIND, stamp).map(|database| Self { database })
    }

    /// Never lets the file grow beyond so many pages of 4096 bytes: a full disk, for tests.
    pub fn limit_pages(&mut self, pages: u32) -> Result<(), StoreError> {
        self.database.number(&format!("PRAGMA max_page_count = {pages}")).map(|_| ())
    }

    fn read<T>(&self, query: impl FnOnce(&Connection) -> rusqlite::Result<T>) -> Result<T, StoreError> {
        query(&self.database.connection).map_err(|error| self.database.error(error))
    }
}

impl Store for SqliteClientStore {
    type Operation = ClientOperation;

    fn apply(&mut self, operations: &[ClientOperation]) -> Result<Vec<Outcome>, StoreError> {
        let bytes = operations.iter().map(Operation::bytes).sum();
        let superseded = superseded(operations);
        self.database.transaction(operations.len(), bytes, |connection, counts| {
            let one = |(operation, superseded)| apply_one(connection, counts, operation, superseded);
            operations.iter().zip(superseded).map(one).collect()
        })
    }

    fn prune(&mut self, retention: &Retention, now: f64) -> Result<Pruned, StoreError> {
        self.database.prune(&TABLES, retention, now)
    }

    fn tidy(&mut self) -> Result<(), StoreError> {
        self.database.tidy()
    }

    fn set_aside(&self) -> Option<&SetAside> {
        self.database.set_aside.as_ref()
    }
}

impl ClientStore for SqliteClientStore {
    fn unfinished(&mut self, after: Option<(f64, JobId)>, limit: usize) -> Result<Vec<ClientJob>, StoreError> {
        self.read(|connection| {
            let (time, id) = match &after {
                Some((time, id)) => (*time, id.as_str()),
                None => (f64::NEG_INFINITY, ""),
            };
            let mut select = connection.prepare_cached(concat!(
                "SELECT ",
                job_columns!(),
                ", body FROM job WHERE finished IS NULL AND (submitted, id) > (?1, ?2) \
                 ORDER BY submitted, id LIMIT ?3"
            ))?;
            let limit = limit.min(LISTED_JOBS_MAX) as i64;
            select.query_map(params![time, id, limit], |row| read_job_and_body(connection, row))?.collect()
        })
    }

    fn job(&mut self, id: &JobId) -> Result<Option<ClientJobDetails>, StoreError> {
        self.read(|connection| {
            let mut select =
                connection.prepare_cached(concat!("SELECT ", job_columns!(), ", body FROM job WHERE id = ?1"))?;
            let found = select
                .query_row([id.as_str()], |row| Ok((row.get::<_, i64>(0)?, read_job_and_body(connection, row)?)))
                .optional()?;
            let Some((number, job)) = found else {
                return Ok(None);
            };
            Ok(Some(ClientJobDetails {
                job,
                results: results(connection, number)?,
                events: blob::events(connection, number)?,
            }))
        })
    }

    fn list(&mut self, filter: &ClientJobFilter) -> Result<Vec<ClientJob>, StoreError> {
        self.read(|connection| {
            let mut select = connection.prepare_cached(concat!(
                "SELECT ",
                job_columns!(),
                " FROM job WHERE (?1 IS NULL OR state = ?1) AND (?2 IS NULL OR service = ?2) \
                 AND (?3 IS NULL OR task = ?3) AND (?4 IS NULL OR submitted >= ?4) \
                 ORDER BY number DESC LIMIT ?5"
            ))?;
            let limit = filter.last.unwrap_or(usize::MAX).min(LISTED_JOBS_MAX) as i64;
            select
                .query_map(
                    params![
                        filter.state.map(ClientState::as_str),
                        filter.service.as_ref().map(ServiceName::as_str),
                        filter.task.as_ref().map(TaskName::as_str),
                        filter.since,
                        limit
                    ],
                    read_job,
                )?
                .collect()
        })
    }

    fn statistics(&mut self) -> Result<Statistics<ClientState>, StoreError> {
        self.database.statistics(ClientState::parse)
    }
}

/// Which progresses need not be written, because a later one of the same batch replaces them: a job of hundreds of workers
/// brings its growing lists again and again. Only one that is sure to be taken replaces another: the job is known by then,
/// and not final, since the replaced one is neither refused nor final.
fn superseded(operations: &[ClientOperation]) -> Vec<bool> {
    let mut later = HashSet::new();
    let mut superseded: Vec<bool> = operations
        .iter()
        .rev()
        .map(|operation| match operation {
            ClientOperation::Progress { id, state, finished, .. } if check_end(id, *state, *finished).is_ok() => {
                !later.insert(id) && !state.is_final()
            }
            _ => false,
        })
        .collect();
    superseded.reverse();
    superseded
}

fn apply_one(
    connection: &Connection,
    counts: &mut Counts,
    operation: &ClientOperation,
    superseded: bool,
) -> rusqlite::Result<Outcome> {
    match operation {
        ClientOperation::Insert(job) => match check_insert(job) {
            Ok(()) => insert(connection, counts, job),
            refused => Ok(refused),
        },
        ClientOperation::Progress { id, state, dispatched, started, completed, errors, finished } => {
            let (number, current) = find(connection, id)?;
            if let refused @ Err(_) = check_progress(id, current, *state, *finished) {
                return Ok(refused);
            }
            if superseded {
                return Ok(Ok(()));
            }
            connection
                .prepare_cached(
                    "UPDATE job SET state = ?2, dispatched = ?3, started = ?4, completed = ?5, \
                     errors = ?6 WHERE number = ?1",
                )?
                .execute(params![
                    number,
                    state.as_str(),
                    names(dispatched),
                    names(started),
                    names(completed),
                    serde_json::json!(errors).to_string()
                ])?;
            if finished.is_some() {
                // A statement of its own, because each that names the end writes the index of unfinished jobs.
                connection
                    .prepare_cached("UPDATE job SET finished = ?2 WHERE number = ?1")?
                    .execute(params![number, finished])?;
            }
            counts.change(current.map(ClientState::as_str), state.as_str());
            Ok(Ok(()))
        }
        ClientOperation::Result { id, worker, payload } => {
            let (number, current) = find(connection, id)?;
            if let refused @ Err(_) = check_open(id, current) {
                return Ok(refused);
            }
            let mut insert = connection.prepare_cached(
                "INSERT INTO result (job, worker, part, data) VALUES (?1, ?2, ?3, ?4) \
                 ON CONFLICT DO NOTHING",
            )?;
            for (part, data) in blob::parts(payload) {
                // The first part tells whether there is a result already, so a refusal leaves no part behind.
                if insert.execute(params![number, worker.as_str(), part, data])? == 0 {
                    return Ok(Err(OperationError::DuplicateResult { id: id.clone(), worker: worker.clone() }));
                }
            }
            Ok(Ok(()))
        }
        ClientOperation::Event { id, body } => {
            let (number, current) = find(connection, id)?;
            if current.is_none() {
                return Ok(Err(OperationError::Unknown { id: id.clone() }));
            }
            let stored = blob::insert_event(connection, number, body)?;
            Ok(stored.then_some(()).ok_or_else(|| OperationError::TooManyEvents { id: id.clone() }))
        }
    }
}

fn insert(connection: &Connection, counts: &mut Counts, job: &ClientJob) -> rusqlite::Result<Outcome> {
    let inserted = connection
        .prepare_cached(
            "INSERT INTO job (id, service, task, target, timeout, submitted, deadline, state, \
             dispatched, started, completed, errors, finished, body) \
             VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14) \
             ON CONFLICT DO NOTHING",
        )?
        .execute(params![
            job.id.as_str(),
            job.service.as_str(),
            job.task.as_str(),
            job.target,
            signed(job.timeout),
            job.submitted,
            job.deadline,
            job.state.as_str(),
            names(&job.dispatched),
            names(&job.started),
            names(&job.completed),
            serde_json::json!(job.errors).to_string(),
            job.finished,
            blob::inline(&job.body)
        ])?;
    if inserted == 0 {
        return Ok(Err(OperationError::Duplicate { id: job.id.clone() }));
    }
    counts.change(None, job.state.as_str());
    blob::insert_body(connection, connection.last_insert_rowid(), &job.body)?;
    Ok(Ok(()))
}

/// The row's number, meaningless without a state, and the job's state.
fn find(connection: &Connection, id: &JobId) -> rusqlite::Result<(i64, Option<ClientState>)> {
    let found = connection
        .prepare_cached("SELECT number, state FROM job WHERE id = ?1")?
        .query_row([id.as_str()], |row| Ok((row.get(0)?, Some(parsed(row, 1, ClientState::parse)?))))
        .optional()?;
    Ok(found.unwrap_or((0, None)))
}

fn names(names: &[Identity]) -> String {
    serde_json::json!(names).to_string()
}

fn read_names(row: &Row<'_>, column: usize) -> rusqlite::Result<Vec<Identity>> {
    serde_json::from_str(row.get_ref(column)?.as_str()?).map_err(|error| unreadable(column, error.to_string()))
}

fn read_job(row: &Row<'_>) -> rusqlite::Result<ClientJob> {
    Ok(ClientJob {
        id: parsed(row, 1, |text| JobId::parse(text).ok())?,
        service: parsed(row, 2, |text| ServiceName::parse(text).ok())?,
        task: parsed(row, 3, |text| TaskName::parse(text).ok())?,
        target: row.get(4)?,
        body: Bytes::new(),
        timeout: row.get::<_, i64>(5)?.unsigned_abs(),
        submitted: row.get(6)?,
        deadline: row.get(7)?,
        state: parsed(row, 8, ClientState::parse)?,
        dispatched: read_names(row, 9)?,
        started: read_names(row, 10)?,
        completed: read_names(row, 11)?,
        errors: parsed(row, 12, |text| serde_json::from_str(text).ok())?,
        finished: row.get(13)?,
    })
}

fn read_job_and_body(connection: &Connection, row: &Row<'_>) -> rusqlite::Result<ClientJob> {
    let body = match row.get_ref(14)?.as_blob_or_null()? {
        Some(body) => Bytes::copy_from_slice(body),
        None => blob::body(connection, row.get(0)?)?,
    };
    Ok(ClientJob { body, ..read_job(row)? })
}

fn results(connection: &Connection, job: i64) -> rusqlite::Result<Vec<(Identity, Bytes)>> {
    let mut select =
        connection.prepare_cached("SELECT worker, data FROM result WHERE job = ?1 ORDER BY worker, part")?;
    let mut rows = select.query([job])?;
    let mut results: Vec<(Identity, Vec<u8>)> = Vec::new();
    while let Some(row) = rows.next()? {
        let worker = row.get_ref(0)?.as_str()?;
        let part = row.get_ref(1)?.as_blob()?;
        match results.last_mut() {
            Some((last, value)) if last.as_str() == worker => value.extend_from_slice(part),
            _ => {
                let worker = parsed(row, 0, |text| Identity::parse(text).ok())?;
                results.push((worker, part.to_vec()));
            }
        }
    }
    Ok(results.into_iter().map(|(worker, value)| (worker, Bytes::from(value))).collect())
}
