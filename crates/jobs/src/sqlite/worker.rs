//! A worker's job database in SQLite.

use std::collections::HashSet;

use bytes::Bytes;
use norfab_protocol::name::{Identity, JobId, TaskName};
use rusqlite::{Connection, OptionalExtension, Row, params};

use super::ahead::{Brought, Parts};
use super::open::Kind;
use super::rows::{Change, JobRow};
use super::store::{Schema, SqliteStore};
use super::{ahead, blob, parsed, signed};
use crate::course::Course;
use crate::error::{OperationError, StoreError};
use crate::store::{LARGE_BYTES, LISTED_JOBS_MAX, Outcome, Page, PageEnd, Statistics, Store};
use crate::worker::{
    WorkerJob, WorkerJobDetails, WorkerJobFilter, WorkerOperation, WorkerState, WorkerStore, check_insert,
};

/// The columns that [`read_job`] reads.
macro_rules! job_columns {
    () => {
        "number, id, client, task, timeout, submitted, deadline, state, attempts, started, finished"
    };
}

/// A worker's job database in a file.
pub type SqliteWorkerStore = SqliteStore<WorkerJobs>;

/// The tables of a worker's database.
#[derive(Debug)]
pub enum WorkerJobs {}

impl WorkerStore for SqliteStore<WorkerJobs> {
    fn unfinished(&mut self, after: Option<PageEnd>, limit: usize) -> Result<Page<WorkerJob>, StoreError> {
        self.page(concat!(job_columns!(), ", body"), after, limit, read_job_and_body)
    }

    fn job(&mut self, id: &JobId) -> Result<Option<WorkerJobDetails>, StoreError> {
        self.read(Some(id), |connection| {
            let mut select =
                connection.prepare_cached(concat!("SELECT ", job_columns!(), ", body FROM job WHERE id = ?1"))?;
            let found = select
                .query_row([id.as_str()], |row| Ok((row.get::<_, i64>(0)?, read_job_and_body(connection, row)?)))
                .optional()?;
            let Some((number, job)) = found else {
                return Ok(None);
            };
            Ok(Some(WorkerJobDetails {
                job,
                payload: payload(connection, number)?,
                events: blob::events(connection, number)?,
            }))
        })
    }

    fn result(&mut self, id: &JobId) -> Result<Option<(WorkerJob, Option<Bytes>)>, StoreError> {
        self.read(Some(id), |connection| {
            let mut select =
                connection.prepare_cached(concat!("SELECT ", job_columns!(), " FROM job WHERE id = ?1"))?;
            let found =
                select.query_row([id.as_str()], |row| Ok((row.get::<_, i64>(0)?, read_job(row)?))).optional()?;
            let Some((number, job)) = found else {
                return Ok(None);
            };
            Ok(Some((job, payload(connection, number)?)))
        })
    }

    fn known(&mut self, ids: &[JobId]) -> Result<HashSet<JobId>, StoreError> {
        let of_some = |connection: &Connection, ids: &[JobId]| {
            let mut select = connection.prepare_cached("SELECT 1 FROM job WHERE id = ?1")?;
            let mut known = HashSet::new();
            for id in ids {
                if select.exists([id.as_str()])? {
                    known.insert(id.clone());
                }
            }
            Ok(known)
        };
        match self.read(None, |connection| of_some(connection, ids)) {
            Err(StoreError::DiskFull { .. }) => {}
            answer => return answer,
        }
        let mut known = HashSet::new();
        for id in ids {
            match self.read(Some(id), |connection| of_some(connection, std::slice::from_ref(id))) {
                Ok(found) => known.extend(found),
                // Something of it is noted and cannot be written.
                Err(StoreError::DiskFull { .. }) => {
                    known.insert(id.clone());
                }
                Err(error) => return Err(error),
            }
        }
        Ok(known)
    }

    fn list(&mut self, filter: &WorkerJobFilter) -> Result<Vec<WorkerJob>, StoreError> {
        self.read(None, |connection| {
            let mut select = connection.prepare_cached(concat!(
                "SELECT ",
                job_columns!(),
                " FROM job WHERE (?1 IS NULL OR (finished IS NOT NULL) = ?1) \
                 AND (?2 IS NULL OR task = ?2) AND (?3 IS NULL OR client = ?3) \
                 AND (?4 IS NULL OR id = ?4) ORDER BY number DESC LIMIT ?5"
            ))?;
            let finality = (filter.pending != filter.completed).then_some(filter.completed);
            let limit = filter.last.unwrap_or(usize::MAX).min(LISTED_JOBS_MAX) as i64;
            select
                .query_map(
                    params![
                        finality,
                        filter.task.as_ref().map(TaskName::as_str),
                        filter.client.as_ref().map(Identity::as_str),
                        filter.uuid.as_ref().map(JobId::as_str),
                        limit
                    ],
                    read_job,
                )?
                .collect()
        })
    }

    fn statistics(&mut self) -> Result<Statistics<WorkerState>, StoreError> {
        self.settle()?;
        self.database.statistics(WorkerState::parse)
    }
}

impl Schema for WorkerJobs {
    type Operation = WorkerOperation;
    type Course = Course;

    const KIND: Kind = Kind {
        name: "worker",
        // "NFJW"
        application_id: 0x4e46_4a57,
        migrations: &[include_str!("worker_1.sql"), include_str!("noted.sql"), include_str!("parts.sql")],
    };
    const TABLES: &[&str] = &["body", "result", "event", "part"];

    fn begin(operation: &WorkerOperation) -> Option<Result<Course, OperationError>> {
        let WorkerOperation::Insert(job) = operation else { return None };
        let WorkerJob { state, attempts, started, finished, .. } = *job;
        Some(check_insert(job).map(|()| Course { state, attempts, started, finished }))
    }

    fn change(operation: &WorkerOperation) -> Option<Change> {
        match operation {
            WorkerOperation::State { state, at, .. } if at.is_finite() => {
                Some(if state.is_final() { Change::Final } else { Change::Passing })
            }
            WorkerOperation::StartedAnew { at, .. } if at.is_finite() => Some(Change::Passing),
            WorkerOperation::Answered { .. } => Some(Change::Passing),
            WorkerOperation::Finish { state, at, .. } if at.is_finite() && state.is_final() => Some(Change::Final),
            _ => None,
        }
    }

    fn advance(operation: &WorkerOperation, course: &mut Course) -> Outcome {
        *course = match operation {
            WorkerOperation::State { id, state, at } => Course::advance(id, *course, *state, *at)?,
            WorkerOperation::StartedAnew { id, at } => Course::started_anew(id, *course, *at)?,
            WorkerOperation::Answered { id } => Course::answered(id, *course)?,
            WorkerOperation::Finish { id, state, at, .. } => Course::finish(id, *course, *state, *at)?,
            WorkerOperation::Insert(_) | WorkerOperation::Event { .. } => *course,
        };
        Ok(())
    }

    fn brought(operation: &WorkerOperation) -> Option<Brought<'_>> {
        let WorkerOperation::Finish { payload, .. } = operation else { return None };
        Some(Brought { worker: None, payload })
    }

    fn has_result(_connection: &Connection, _number: i64, _brought: &Brought<'_>) -> rusqlite::Result<bool> {
        // Only a job that has ended has one, and that takes no second end.
        Ok(false)
    }

    fn count(operation: &WorkerOperation, row: &mut JobRow<Course>) -> Outcome {
        match operation {
            WorkerOperation::Event { id, .. } => blob::count_event(id, &mut row.events),
            WorkerOperation::Insert(_)
            | WorkerOperation::State { .. }
            | WorkerOperation::StartedAnew { .. }
            | WorkerOperation::Answered { .. }
            | WorkerOperation::Finish { .. } => Ok(()),
        }
    }

    fn state(course: &Course) -> &'static str {
        course.state.as_str()
    }

    fn look_up(connection: &Connection, id: &JobId) -> rusqlite::Result<Option<(i64, Course)>> {
        connection
            .prepare_cached("SELECT number, state, attempts, started, finished FROM job WHERE id = ?1")?
            .query_row([id.as_str()], |row| {
                let course = Course {
                    state: parsed(row, 1, WorkerState::parse)?,
                    attempts: row.get(2)?,
                    started: row.get(3)?,
                    finished: row.get(4)?,
                };
                Ok((row.get(0)?, course))
            })
            .optional()
    }

    fn insert(connection: &Connection, operation: &WorkerOperation) -> rusqlite::Result<Option<i64>> {
        let WorkerOperation::Insert(job) = operation else { return Ok(None) };
        let inserted = connection
            .prepare_cached(
                "INSERT INTO job (id, client, task, timeout, submitted, deadline, state, attempts, \
                 started, finished, body) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11) \
                 ON CONFLICT DO NOTHING",
            )?
            .execute(params![
                job.id.as_str(),
                job.client.as_str(),
                job.task.as_str(),
                signed(job.timeout),
                job.received,
                job.deadline,
                job.state.as_str(),
                job.attempts,
                job.started,
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
        operation: &WorkerOperation,
        row: &mut JobRow<Course>,
        ahead: Option<&Parts>,
    ) -> rusqlite::Result<Outcome> {
        let number = row.number;
        match operation {
            WorkerOperation::Insert(_) => {}
            WorkerOperation::State { .. } | WorkerOperation::StartedAnew { .. } | WorkerOperation::Answered { .. } => {
                write_course(connection, number, &row.course)?;
            }
            WorkerOperation::Finish { id, payload, .. } => {
                write_course(connection, number, &row.course)?;
                if payload.len() > LARGE_BYTES {
                    let ahead = ahead::of(connection, ahead, id, number, &Brought { worker: None, payload })?;
                    let value = ahead::value(connection, number, ahead)?;
                    connection
                        .prepare_cached(
                            "INSERT INTO result (job, part, data, value, bytes) VALUES (?1, 0, x'', ?2, ?3)",
                        )?
                        .execute(params![number, value, signed(payload.len() as u64)])?;
                    ahead::write(connection, number, value, payload, ahead)?;
                } else {
                    connection
                        .prepare_cached("INSERT INTO result (job, part, data) VALUES (?1, 0, ?2)")?
                        .execute(params![number, &payload[..]])?;
                }
            }
            WorkerOperation::Event { id, body } => {
                return blob::insert_event(connection, id, number, &mut row.events, body);
            }
        }
        Ok(Ok(()))
    }
}

fn write_course(connection: &Connection, number: i64, course: &Course) -> rusqlite::Result<()> {
    // A statement that names the end also writes the index of unfinished jobs, so only an end uses one.
    let sql = match course.finished {
        None => "UPDATE job SET state = ?2, attempts = ?3, started = ?4 WHERE number = ?1",
        Some(_) => {
            "UPDATE job SET state = ?2, attempts = ?3, started = ?4, finished = ?5 \
             WHERE number = ?1"
        }
    };
    let mut update = connection.prepare_cached(sql)?;
    let state = course.state.as_str();
    match course.finished {
        None => update.execute(params![number, state, course.attempts, course.started])?,
        Some(end) => update.execute(params![number, state, course.attempts, course.started, end])?,
    };
    Ok(())
}

fn payload(connection: &Connection, job: i64) -> rusqlite::Result<Option<Bytes>> {
    let mut select = connection.prepare_cached("SELECT data, value, bytes FROM result WHERE job = ?1 ORDER BY part")?;
    let mut rows = select.query([job])?;
    let mut payload: Option<Vec<u8>> = None;
    while let Some(row) = rows.next()? {
        match row.get(1)? {
            Some(value) => payload = Some(ahead::read(connection, job, value, row.get(2)?, 2)?),
            // Earlier versions of this program have large ones here in several rows.
            None => payload.get_or_insert_default().extend_from_slice(row.get_ref(0)?.as_blob()?),
        }
    }
    Ok(payload.map(Bytes::from))
}

fn read_job(row: &Row<'_>) -> rusqlite::Result<WorkerJob> {
    Ok(WorkerJob {
        id: parsed(row, 1, |text| JobId::parse(text).ok())?,
        client: parsed(row, 2, |text| Identity::parse(text).ok())?,
        task: parsed(row, 3, |text| TaskName::parse(text).ok())?,
        body: Bytes::new(),
        timeout: row.get::<_, i64>(4)?.unsigned_abs(),
        received: row.get(5)?,
        deadline: row.get(6)?,
        state: parsed(row, 7, WorkerState::parse)?,
        attempts: row.get(8)?,
        started: row.get(9)?,
        finished: row.get(10)?,
    })
}

fn read_job_and_body(connection: &Connection, row: &Row<'_>) -> rusqlite::Result<WorkerJob> {
    let body = match row.get_ref(11)?.as_blob_or_null()? {
        Some(body) => Bytes::copy_from_slice(body),
        None => blob::body(connection, row.get(0)?)?,
    };
    Ok(WorkerJob { body, ..read_job(row)? })
}
