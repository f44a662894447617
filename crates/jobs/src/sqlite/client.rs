//! A client's job database in SQLite.

use std::path::Path;

use bytes::Bytes;
use norfab_protocol::name::{Identity, JobId, ServiceName, TaskName};
use rusqlite::{Connection, OptionalExtension, Row, params};

use super::open::Kind;
use super::rows::{Change, JobRow, Rows, superseded};
use super::{Counts, Database, SetAside, blob, parsed, signed, unreadable};
use crate::client::{
    ClientJob, ClientJobDetails, ClientJobFilter, ClientOperation, ClientState, ClientStore, check_end, check_insert,
    check_open, check_progress,
};
use crate::error::{OperationError, StoreError};
use crate::retention::{Pruned, Retention};
use crate::store::{LISTED_JOBS_MAX, Outcome, Statistics, Store};

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
    rows: Rows<ClientState>,
}

impl SqliteClientStore {
    /// Opens or creates the file, readable for its owner only. A damaged file is kept under the name
    /// `<path>.damaged-<stamp>` and a new one begins. Errors: written by a newer version, not a client's database, no
    /// access, no space.
    pub fn open(path: &Path, stamp: &str) -> Result<Self, StoreError> {
        Database::open(path, &KIND, stamp).map(|database| Self { database, rows: Rows::default() })
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
        let superseded = superseded(operations, change);
        let Self { database, rows } = self;
        let applied = database.transaction(|connection, counts| {
            rows.begin(connection)?;
            let mut transaction = Transaction { connection, counts, rows };
            operations.iter().zip(superseded).map(|(one, superseded)| transaction.apply(one, superseded)).collect()
        });
        if applied.is_err() {
            rows.forget();
        }
        applied
    }

    fn prune(&mut self, retention: &Retention, now: f64) -> Result<Pruned, StoreError> {
        self.rows.forget();
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

/// The operations that write a job's state and lists.
fn change(operation: &ClientOperation) -> Option<(&JobId, Change)> {
    match operation {
        ClientOperation::Progress { id, state, finished, .. } if check_end(id, *state, *finished).is_ok() => {
            Some((id, if state.is_final() { Change::Final } else { Change::Passing }))
        }
        _ => None,
    }
}

/// What operations are applied in.
struct Transaction<'a> {
    connection: &'a Connection,
    counts: &'a mut Counts,
    rows: &'a mut Rows<ClientState>,
}

impl Transaction<'_> {
    fn apply(&mut self, operation: &ClientOperation, superseded: bool) -> rusqlite::Result<Outcome> {
        match operation {
            ClientOperation::Insert(job) => match check_insert(job) {
                Ok(()) => self.insert(job),
                refused => Ok(refused),
            },
            ClientOperation::Progress { id, state, dispatched, started, completed, errors, finished } => {
                let row = find(self.connection, self.rows, id)?;
                let before = row.as_ref().map(|row| row.course);
                if let refused @ Err(_) = check_progress(id, before, *state, *finished) {
                    return Ok(refused);
                }
                let Some(row) = row else {
                    return Ok(Err(OperationError::Unknown { id: id.clone() }));
                };
                self.counts.change(before.map(ClientState::as_str), state.as_str());
                row.course = *state;
                if superseded {
                    return Ok(Ok(()));
                }
                let (number, state) = (row.number, state.as_str());
                let (dispatched, started, completed) = (names(dispatched), names(started), names(completed));
                let errors = serde_json::json!(errors).to_string();
                // A statement that names the end also writes the index of unfinished jobs, so only an end uses one.
                match finished {
                    None => self
                        .connection
                        .prepare_cached(
                            "UPDATE job SET state = ?2, dispatched = ?3, started = ?4, completed = ?5, \
                             errors = ?6 WHERE number = ?1",
                        )?
                        .execute(params![number, state, dispatched, started, completed, errors])?,
                    Some(end) => self
                        .connection
                        .prepare_cached(
                            "UPDATE job SET state = ?2, dispatched = ?3, started = ?4, completed = ?5, \
                             errors = ?6, finished = ?7 WHERE number = ?1",
                        )?
                        .execute(params![number, state, dispatched, started, completed, errors, end])?,
                };
                Ok(Ok(()))
            }
            ClientOperation::Result { id, worker, payload } => {
                let row = find(self.connection, self.rows, id)?;
                if let refused @ Err(_) = check_open(id, row.as_ref().map(|row| row.course)) {
                    return Ok(refused);
                }
                let Some(row) = row else {
                    return Ok(Err(OperationError::Unknown { id: id.clone() }));
                };
                let mut insert = self.connection.prepare_cached(
                    "INSERT INTO result (job, worker, part, data) VALUES (?1, ?2, ?3, ?4) \
                     ON CONFLICT DO NOTHING",
                )?;
                for (part, data) in blob::parts(payload) {
                    // The first part tells whether there is a result already, so a refusal leaves no part behind.
                    if insert.execute(params![row.number, worker.as_str(), part, data])? == 0 {
                        return Ok(Err(OperationError::DuplicateResult { id: id.clone(), worker: worker.clone() }));
                    }
                }
                Ok(Ok(()))
            }
            ClientOperation::Event { id, body } => {
                let Some(row) = find(self.connection, self.rows, id)? else {
                    return Ok(Err(OperationError::Unknown { id: id.clone() }));
                };
                let stored = blob::insert_event(self.connection, row.number, &mut row.events, body)?;
                Ok(stored.then_some(()).ok_or_else(|| OperationError::TooManyEvents { id: id.clone() }))
            }
        }
    }

    fn insert(&mut self, job: &ClientJob) -> rusqlite::Result<Outcome> {
        let inserted = self
            .connection
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
        let number = self.connection.last_insert_rowid();
        self.counts.change(None, job.state.as_str());
        self.rows.inserted(&job.id, number, job.state);
        blob::insert_body(self.connection, number, &job.body)?;
        Ok(Ok(()))
    }
}

fn find<'a>(
    connection: &Connection,
    rows: &'a mut Rows<ClientState>,
    id: &JobId,
) -> rusqlite::Result<Option<&'a mut JobRow<ClientState>>> {
    rows.find(id, || {
        connection
            .prepare_cached("SELECT number, state FROM job WHERE id = ?1")?
            .query_row([id.as_str()], |row| Ok((row.get(0)?, parsed(row, 1, ClientState::parse)?)))
            .optional()
    })
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
