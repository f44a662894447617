//! A worker's job database in SQLite.

use std::path::Path;

use bytes::Bytes;
use norfab_protocol::name::{Identity, JobId, TaskName};
use rusqlite::{Connection, OptionalExtension, Row, params};

use super::open::Kind;
use super::rows::{Change, JobRow, Rows, superseded};
use super::{Counts, Database, SetAside, blob, parsed, signed};
use crate::error::{OperationError, StoreError};
use crate::retention::{Pruned, Retention};
use crate::store::{LISTED_JOBS_MAX, Outcome, Statistics, Store};
use crate::worker::{
    Course, WorkerJob, WorkerJobDetails, WorkerJobFilter, WorkerOperation, WorkerState, WorkerStore, check_insert,
};

const KIND: Kind = Kind {
    name: "worker",
    // "NFJW"
    application_id: 0x4e46_4a57,
    migrations: &[include_str!("worker_1.sql")],
};

/// Tables whose rows belong to a job.
const TABLES: [&str; 3] = ["body", "result", "event"];

/// The columns that [`read_job`] reads.
macro_rules! job_columns {
    () => {
        "number, id, client, task, timeout, submitted, deadline, state, attempts, started, finished"
    };
}

/// A worker's job database in a file.
pub struct SqliteWorkerStore {
    database: Database,
    rows: Rows<Course>,
}

impl SqliteWorkerStore {
    /// Opens or creates the file, readable for its owner only. A damaged file is kept under the name
    /// `<path>.damaged-<stamp>` and a new one begins. Errors: written by a newer version, not a worker's database, no
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

impl Store for SqliteWorkerStore {
    type Operation = WorkerOperation;

    fn apply(&mut self, operations: &[WorkerOperation]) -> Result<Vec<Outcome>, StoreError> {
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

impl WorkerStore for SqliteWorkerStore {
    fn unfinished(&mut self, after: Option<(f64, JobId)>, limit: usize) -> Result<Vec<WorkerJob>, StoreError> {
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

    fn job(&mut self, id: &JobId) -> Result<Option<WorkerJobDetails>, StoreError> {
        self.read(|connection| {
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
        self.read(|connection| {
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

    fn list(&mut self, filter: &WorkerJobFilter) -> Result<Vec<WorkerJob>, StoreError> {
        self.read(|connection| {
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
        self.database.statistics(WorkerState::parse)
    }
}

/// The operations that write a job's course.
fn change(operation: &WorkerOperation) -> Option<(&JobId, Change)> {
    match operation {
        WorkerOperation::State { id, state, at } if at.is_finite() => {
            Some((id, if state.is_final() { Change::Final } else { Change::Passing }))
        }
        WorkerOperation::Finish { id, state, at, .. } if at.is_finite() && state.is_final() => {
            Some((id, Change::Final))
        }
        _ => None,
    }
}

/// What operations are applied in.
struct Transaction<'a> {
    connection: &'a Connection,
    counts: &'a mut Counts,
    rows: &'a mut Rows<Course>,
}

impl Transaction<'_> {
    fn apply(&mut self, operation: &WorkerOperation, superseded: bool) -> rusqlite::Result<Outcome> {
        match operation {
            WorkerOperation::Insert(job) => match check_insert(job) {
                Ok(()) => self.insert(job),
                refused => Ok(refused),
            },
            WorkerOperation::State { id, state, at } => {
                let course = |current| Course::advance(id, current, *state, *at);
                Ok(self.update(id, superseded, course)?.map(|_| ()))
            }
            WorkerOperation::Finish { id, state, at, payload } => {
                let course = |current| Course::finish(id, current, *state, *at);
                let number = match self.update(id, superseded, course)? {
                    Ok(number) => number,
                    Err(refused) => return Ok(Err(refused)),
                };
                let mut insert =
                    self.connection.prepare_cached("INSERT INTO result (job, part, data) VALUES (?1, ?2, ?3)")?;
                for (part, data) in blob::parts(payload) {
                    insert.execute(params![number, part, data])?;
                }
                Ok(Ok(()))
            }
            WorkerOperation::Event { id, body } => {
                let Some(row) = find(self.connection, self.rows, id)? else {
                    return Ok(Err(OperationError::Unknown { id: id.clone() }));
                };
                let stored = blob::insert_event(self.connection, row.number, &mut row.events, body)?;
                Ok(stored.then_some(()).ok_or_else(|| OperationError::TooManyEvents { id: id.clone() }))
            }
        }
    }

    fn insert(&mut self, job: &WorkerJob) -> rusqlite::Result<Outcome> {
        let inserted = self
            .connection
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
            return Ok(Err(OperationError::Duplicate { id: job.id.clone() }));
        }
        let number = self.connection.last_insert_rowid();
        self.counts.change(None, job.state.as_str());
        let WorkerJob { state, attempts, started, finished, .. } = *job;
        self.rows.inserted(&job.id, number, Course { state, attempts, started, finished });
        blob::insert_body(self.connection, number, &job.body)?;
        Ok(Ok(()))
    }

    /// Gives a job its next course, written unless it is superseded. The answer is the row's number or the refusal.
    fn update(
        &mut self,
        id: &JobId,
        superseded: bool,
        next: impl FnOnce(Option<Course>) -> Result<Course, OperationError>,
    ) -> rusqlite::Result<Result<i64, OperationError>> {
        let row = find(self.connection, self.rows, id)?;
        let before = row.as_ref().map(|row| row.course);
        let (row, course) = match (row, next(before)) {
            (_, Err(refused)) => return Ok(Err(refused)),
            (Some(row), Ok(course)) => (row, course),
            (None, Ok(_)) => return Ok(Err(OperationError::Unknown { id: id.clone() })),
        };
        self.counts.change(before.map(|before| before.state.as_str()), course.state.as_str());
        row.course = course;
        let number = row.number;
        if superseded {
            return Ok(Ok(number));
        }
        // A statement that names the end also writes the index of unfinished jobs, so only an end uses one.
        let sql = match course.finished {
            None => "UPDATE job SET state = ?2, attempts = ?3, started = ?4 WHERE number = ?1",
            Some(_) => {
                "UPDATE job SET state = ?2, attempts = ?3, started = ?4, finished = ?5 \
                 WHERE number = ?1"
            }
        };
        let mut update = self.connection.prepare_cached(sql)?;
        let state = course.state.as_str();
        match course.finished {
            None => update.execute(params![number, state, course.attempts, course.started])?,
            Some(end) => update.execute(params![number, state, course.attempts, course.started, end])?,
        };
        Ok(Ok(number))
    }
}

fn find<'a>(
    connection: &Connection,
    rows: &'a mut Rows<Course>,
    id: &JobId,
) -> rusqlite::Result<Option<&'a mut JobRow<Course>>> {
    rows.find(id, || {
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
    })
}

fn payload(connection: &Connection, job: i64) -> rusqlite::Result<Option<Bytes>> {
    let mut select = connection.prepare_cached("SELECT data FROM result WHERE job = ?1 ORDER BY part")?;
    blob::join(select.query([job])?, 0)
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
