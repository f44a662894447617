//! A client's job database in SQLite.

use bytes::Bytes;
use norfab_protocol::name::{Identity, JobId, ServiceName, TaskName};
use rusqlite::{Connection, OptionalExtension, Row, params};

use super::ahead::{Brought, Parts};
use super::open::Kind;
use super::rows::{Change, JobRow};
use super::store::{Schema, SqliteStore};
use super::{ahead, blob, parsed, signed, unreadable};
use crate::client::{
    ClientJob, ClientJobDetails, ClientJobFilter, ClientOperation, ClientState, ClientStore, check_end, check_insert,
    check_open, check_progress,
};
use crate::error::{OperationError, StoreError};
use crate::store::{LARGE_BYTES, LISTED_JOBS_MAX, Outcome, Page, PageEnd, Statistics, Store};

/// The columns that [`read_job`] reads.
macro_rules! job_columns {
    () => {
        "number, id, service, task, target, timeout, submitted, deadline, state, \
         dispatched, started, completed, errors, finished"
    };
}

/// A client's job database in a file.
pub type SqliteClientStore = SqliteStore<ClientJobs>;

/// The tables of a client's database.
#[derive(Debug)]
pub enum ClientJobs {}

impl ClientStore for SqliteStore<ClientJobs> {
    fn unfinished(&mut self, after: Option<PageEnd>, limit: usize) -> Result<Page<ClientJob>, StoreError> {
        self.page(concat!(job_columns!(), ", body"), after, limit, read_job_and_body)
    }

    fn late(&mut self, before: f64, limit: usize) -> Result<Page<ClientJob>, StoreError> {
        // By the order of submission it would look at all of them.
        let sql = concat!(
            "SELECT ",
            job_columns!(),
            ", body FROM job INDEXED BY job_late WHERE finished IS NULL AND deadline < ?1 ORDER BY deadline, number LIMIT ?2"
        );
        self.page_of(sql, params![before, limit.min(LISTED_JOBS_MAX) as i64], read_job_and_body)
    }

    fn last_number(&mut self) -> Result<Option<u64>, StoreError> {
        self.read(None, |connection| {
            let number = |row: &Row<'_>| row.get::<_, Option<i64>>(0);
            Ok(connection.query_row("SELECT max(number) FROM job", [], number)?.map(i64::unsigned_abs))
        })
    }

    fn number(&mut self, id: &JobId) -> Result<Option<u64>, StoreError> {
        self.read(Some(id), |connection| {
            let mut select = connection.prepare_cached("SELECT number FROM job WHERE id = ?1")?;
            Ok(select.query_row([id.as_str()], |row| row.get::<_, i64>(0)).optional()?.map(i64::unsigned_abs))
        })
    }

    fn job(&mut self, id: &JobId) -> Result<Option<ClientJobDetails>, StoreError> {
        self.read(Some(id), |connection| {
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
        self.read(None, |connection| {
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
        self.settle()?;
        self.database.statistics(ClientState::parse)
    }
}

impl Schema for ClientJobs {
    type Operation = ClientOperation;
    type Course = ClientState;

    const KIND: Kind = Kind {
        name: "client",
        // "NFJC"
        application_id: 0x4e46_4a43,
        migrations: &[
            include_str!("client_1.sql"),
            include_str!("noted.sql"),
            include_str!("client_3.sql"),
            include_str!("parts.sql"),
        ],
    };
    const TABLES: &[&str] = &["body", "result", "event", "part"];

    fn begin(operation: &ClientOperation) -> Option<Result<ClientState, OperationError>> {
        let ClientOperation::Insert(job) = operation else { return None };
        Some(check_insert(job).map(|()| job.state))
    }

    fn change(operation: &ClientOperation) -> Option<Change> {
        match operation {
            ClientOperation::Progress { id, state, finished, .. } if check_end(id, *state, *finished).is_ok() => {
                Some(if state.is_final() { Change::Final } else { Change::Passing })
            }
            _ => None,
        }
    }

    fn advance(operation: &ClientOperation, course: &mut ClientState) -> Outcome {
        match operation {
            ClientOperation::Progress { id, state, finished, .. } => {
                check_progress(id, *course, *state, *finished)?;
                *course = *state;
                Ok(())
            }
            ClientOperation::Result { id, .. } => check_open(id, *course),
            ClientOperation::Insert(_) | ClientOperation::Event { .. } => Ok(()),
        }
    }

    fn brought(operation: &ClientOperation) -> Option<Brought<'_>> {
        let ClientOperation::Result { worker, payload, .. } = operation else { return None };
        Some(Brought { worker: Some(worker), payload })
    }

    fn has_result(connection: &Connection, number: i64, brought: &Brought<'_>) -> rusqlite::Result<bool> {
        let worker = brought.worker.map(Identity::as_str);
        connection
            .prepare_cached("SELECT 1 FROM result WHERE job = ?1 AND worker = ?2")?
            .exists(params![number, worker])
    }

    fn count(operation: &ClientOperation, row: &mut JobRow<ClientState>) -> Outcome {
        match operation {
            ClientOperation::Result { id, worker, .. } => {
                let is_new = row.returned.as_mut().is_none_or(|returned| returned.insert(worker.clone()));
                is_new.then_some(()).ok_or_else(|| duplicate_result(id, worker))
            }
            ClientOperation::Event { id, .. } => blob::count_event(id, &mut row.events),
            ClientOperation::Insert(_) | ClientOperation::Progress { .. } => Ok(()),
        }
    }

    fn state(course: &ClientState) -> &'static str {
        course.as_str()
    }

    fn look_up(connection: &Connection, id: &JobId) -> rusqlite::Result<Option<(i64, ClientState)>> {
        connection
            .prepare_cached("SELECT number, state FROM job WHERE id = ?1")?
            .query_row([id.as_str()], |row| Ok((row.get(0)?, parsed(row, 1, ClientState::parse)?)))
            .optional()
    }

    fn insert(connection: &Connection, operation: &ClientOperation) -> rusqlite::Result<Option<i64>> {
        let ClientOperation::Insert(job) = operation else { return Ok(None) };
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
            return Ok(None);
        }
        let number = connection.last_insert_rowid();
        blob::insert_body(connection, number, &job.body)?;
        Ok(Some(number))
    }

    fn write(
        connection: &Connection,
        operation: &ClientOperation,
        row: &mut JobRow<ClientState>,
        ahead: Option<&Parts>,
    ) -> rusqlite::Result<Outcome> {
        let number = row.number;
        match operation {
            ClientOperation::Insert(_) => {}
            ClientOperation::Progress { state, dispatched, started, completed, errors, finished, .. } => {
                let state = state.as_str();
                let (dispatched, started, completed) = (names(dispatched), names(started), names(completed));
                let errors = serde_json::json!(errors).to_string();
                // A statement that names the end also writes the index of unfinished jobs, so only an end uses one.
                match finished {
                    None => connection
                        .prepare_cached(
                            "UPDATE job SET state = ?2, dispatched = ?3, started = ?4, completed = ?5, \
                             errors = ?6 WHERE number = ?1",
                        )?
                        .execute(params![number, state, dispatched, started, completed, errors])?,
                    Some(end) => connection
                        .prepare_cached(
                            "UPDATE job SET state = ?2, dispatched = ?3, started = ?4, completed = ?5, \
                             errors = ?6, finished = ?7 WHERE number = ?1",
                        )?
                        .execute(params![number, state, dispatched, started, completed, errors, end])?,
                };
            }
            ClientOperation::Result { id, worker, payload } => {
                let is_large = payload.len() > LARGE_BYTES;
                let ahead = ahead::of(connection, ahead, id, number, &Brought { worker: Some(worker), payload })?;
                let value = if is_large { Some(ahead::value(connection, number, ahead)?) } else { None };
                let bytes = value.map(|_| signed(payload.len() as u64));
                let data = if is_large { &[][..] } else { payload };
                let inserted = connection
                    .prepare_cached(
                        "INSERT INTO result (job, worker, part, data, value, bytes) VALUES (?1, ?2, 0, ?3, ?4, ?5) \
                         ON CONFLICT DO NOTHING",
                    )?
                    .execute(params![number, worker.as_str(), data, value, bytes])?;
                // It comes before its parts, so that a refusal leaves none behind.
                if inserted == 0 {
                    return Ok(Err(duplicate_result(id, worker)));
                }
                if let Some(value) = value {
                    ahead::write(connection, number, value, payload, ahead)?;
                }
                if let Some(returned) = &mut row.returned {
                    returned.insert(worker.clone());
                }
            }
            ClientOperation::Event { id, body } => {
                return blob::insert_event(connection, id, number, &mut row.events, body);
            }
        }
        Ok(Ok(()))
    }
}

fn duplicate_result(id: &JobId, worker: &Identity) -> OperationError {
    OperationError::DuplicateResult { id: id.clone(), worker: worker.clone() }
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
    let mut select = connection
        .prepare_cached("SELECT worker, data, value, bytes FROM result WHERE job = ?1 ORDER BY worker, part")?;
    let mut rows = select.query([job])?;
    let mut results: Vec<(Identity, Vec<u8>)> = Vec::new();
    while let Some(row) = rows.next()? {
        let worker = row.get_ref(0)?.as_str()?;
        let part = row.get_ref(1)?.as_blob()?;
        match results.last_mut() {
            // Earlier versions of this program have large ones here in several rows.
            Some((last, value)) if last.as_str() == worker => value.extend_from_slice(part),
            _ => {
                let worker = parsed(row, 0, |text| Identity::parse(text).ok())?;
                let payload = match row.get(2)? {
                    Some(value) => ahead::read(connection, job, value, row.get(3)?, 3)?,
                    None => part.to_vec(),
                };
                results.push((worker, payload));
            }
        }
    }
    Ok(results.into_iter().map(|(worker, value)| (worker, Bytes::from(value))).collect())
}
