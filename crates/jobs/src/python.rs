//! Reading the job databases that Python NorFab left: `NAME.db` of a client or of a worker, 0.21 to 0.25.
//!
//! They are only read. What a row says becomes operations on a store of ours; a job that the store knows is passed over, so reading a
//! file again changes nothing. A row that cannot be read is told and keeps no other back.

mod client;
mod worker;

use std::cell::Cell;
use std::collections::BTreeMap;
use std::io::Read;
use std::path::{Path, PathBuf};

use flate2::read::ZlibDecoder;
use norfab_protocol::name::TaskName;
use rusqlite::{Connection, OpenFlags, Row};
use serde_json::value::RawValue;
use serde_json::{Map, Value};

use crate::client::ClientStore;
use crate::error::{OperationError, StoreError};
use crate::store::{EVENTS_PER_JOB_MAX, Store};
use crate::worker::WorkerStore;

/// Bytes of all values of a job when they are unpacked: the largest result that a message can carry, and as much again.
const UNPACKED_BYTES_MAX: u64 = 256 << 20;

/// What the values of a job may still have.
struct Room(Cell<u64>);

impl Room {
    fn new() -> Self {
        Self(Cell::new(UNPACKED_BYTES_MAX))
    }
}

/// Rows that cannot be read and are described; more are only counted.
const PROBLEMS_MAX: usize = 20;

/// Whose database a file is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Owner {
    /// Jobs that were asked for.
    Client,
    /// Jobs that were run.
    Worker,
}

/// What became of the rows of a file.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Imported {
    /// Jobs that are in the store now and were not before.
    pub jobs: u64,
    /// Their events.
    pub events: u64,
    /// Jobs that the store knew already.
    pub known: u64,
    /// Jobs that have not ended and whose deadline has not passed: they are their owner's, and are not taken.
    pub unfinished: u64,
    /// Rows that cannot be read.
    pub unreadable: u64,
    /// What is wrong with the first of them.
    pub problems: Vec<String>,
    /// When the first of the imported jobs ended, Unix seconds: the next pruning forgets what is too old.
    pub oldest_end: Option<f64>,
}

/// Why a file is not read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ImportError {
    /// It is something else.
    #[error("{path} is no job database of Python NorFab ({reason}): name the NAME.db of a client or worker below __norfab__/files", path = .path.display())]
    Foreign {
        /// The file.
        path: PathBuf,
        /// What is missing.
        reason: String,
    },
    /// It cannot be read.
    #[error("cannot read {path}: {error}", path = .path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// What SQLite says.
        error: String,
    },
    /// The store does not take it. What was taken before stays.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// Clocks, as their reading is not the business of this crate.
pub struct Times<'a> {
    /// Now, Unix seconds.
    pub now: f64,
    /// Reads local time as Python wrote it, `Mon Nov 30 00:33:08 2026` or `2026-11-30 00:35:35`, into Unix seconds.
    pub read: &'a dyn Fn(&str) -> Option<f64>,
}

/// A job database of Python NorFab.
pub struct PythonJobs {
    connection: Connection,
    path: PathBuf,
    owner: Owner,
}

impl PythonJobs {
    /// Opens a file for reading. Errors: it is not there, or is no such database.
    pub fn open(path: &Path) -> Result<Self, ImportError> {
        let unreadable =
            |error: &dyn ToString| ImportError::Unreadable { path: path.to_owned(), error: error.to_string() };
        let found = path.metadata().map_err(|error| unreadable(&error))?;
        if !found.is_file() {
            return Err(ImportError::Foreign { path: path.to_owned(), reason: "it is not a file".to_owned() });
        }
        let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let connection = Connection::open_with_flags(path, flags).map_err(|error| unreadable(&error))?;
        let columns = columns(&connection).map_err(|error| match error.sqlite_error_code() {
            Some(rusqlite::ErrorCode::NotADatabase) => {
                ImportError::Foreign { path: path.to_owned(), reason: "it is no SQLite database".to_owned() }
            }
            _ => unreadable(&error),
        })?;
        let has = |name: &str| columns.iter().any(|column| column == name);
        let owner = match (has("workers_dispatched") && has("service"), has("client_address")) {
            (true, _) => Owner::Client,
            (false, true) => Owner::Worker,
            (false, false) => {
                let reason = "it has no table of jobs as these have it".to_owned();
                return Err(ImportError::Foreign { path: path.to_owned(), reason });
            }
        };
        Ok(Self { connection, path: path.to_owned(), owner })
    }

    /// Whose it is.
    pub fn owner(&self) -> Owner {
        self.owner
    }

    /// Takes over the jobs of a client. Errors: the file or the store fails.
    pub fn import_client(&self, store: &mut dyn ClientStore, times: &Times<'_>) -> Result<Imported, ImportError> {
        let columns = "uuid, service, task, args, kwargs, timeout, deadline, status, workers_requested, \
                       workers_dispatched, workers_started, workers_completed, result_data, errors, received_timestamp, \
                       completed_timestamp";
        self.import(
            columns,
            store,
            |store, id| Ok(store.job(id)?.is_some()),
            |row| {
                let room = Room::new();
                client::job(row, times, &room, || self.events(row, |data| client::event(data, &room)))
            },
        )
    }

    /// Takes over the jobs of a worker. Errors: the file or the store fails.
    pub fn import_worker(&self, store: &mut dyn WorkerStore, times: &Times<'_>) -> Result<Imported, ImportError> {
        let columns = "uuid, client_address, task, args, kwargs, timeout, status, received_timestamp, started_timestamp, \
                       completed_timestamp, result_data";
        self.import(
            columns,
            store,
            |store, id| Ok(store.job(id)?.is_some()),
            |row| {
                let worker = self.path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
                let room = Room::new();
                worker::job(row, times, &room, |service| {
                    self.events(row, |data| {
                        worker::event(data, &room, &worker, service, &row.get::<_, String>("uuid")?)
                    })
                })
            },
        )
    }

    fn import<S: ?Sized + Store>(
        &self,
        columns: &str,
        store: &mut S,
        knows: impl Fn(&mut S, &norfab_protocol::JobId) -> Result<bool, StoreError>,
        job: impl Fn(&Row<'_>) -> Result<Found<S::Operation>, Unreadable>,
    ) -> Result<Imported, ImportError> {
        let failed =
            |error: rusqlite::Error| ImportError::Unreadable { path: self.path.clone(), error: error.to_string() };
        let mut imported = Imported::default();
        let mut select = self
            .connection
            .prepare(&format!("SELECT {columns} FROM jobs ORDER BY created_at, rowid"))
            .map_err(failed)?;
        let mut rows = select.query([]).map_err(failed)?;
        while let Some(row) = rows.next().map_err(failed)? {
            let (id, operations, events, ended) = match job(row) {
                Ok(Found::Unfinished) => {
                    imported.unfinished += 1;
                    continue;
                }
                Ok(Found::Job { id, operations, events, ended }) => (id, operations, events, ended),
                Err(Unreadable(why)) => {
                    imported.unreadable += 1;
                    if imported.problems.len() < PROBLEMS_MAX {
                        let uuid: String = row.get("uuid").unwrap_or_else(|_| "without an id".to_owned());
                        imported.problems.push(format!("job {uuid}: {why}"));
                    }
                    continue;
                }
            };
            if knows(store, &id)? {
                imported.known += 1;
                continue;
            }
            let is_refusal = |outcome: &OperationError| !matches!(outcome, OperationError::TooManyEvents { .. });
            match store.apply(&operations)?.into_iter().filter_map(Result::err).find(is_refusal) {
                None => {}
                Some(OperationError::NotStored(error)) => return Err(error.into()),
                // Others follow from the first.
                Some(refused) => {
                    imported.unreadable += 1;
                    if imported.problems.len() < PROBLEMS_MAX {
                        imported.problems.push(refused.to_string());
                    }
                    continue;
                }
            }
            imported.jobs += 1;
            imported.events += events;
            imported.oldest_end = Some(imported.oldest_end.map_or(ended, |oldest| oldest.min(ended)));
        }
        store.settle()?;
        Ok(imported)
    }

    /// The bodies of a job's events, as many as a store takes; those that cannot be read are left out.
    fn events(
        &self,
        row: &Row<'_>,
        read: impl Fn(&[u8]) -> Result<Vec<u8>, Unreadable>,
    ) -> Result<Vec<Vec<u8>>, Unreadable> {
        let uuid: String = row.get("uuid")?;
        let mut select =
            self.connection.prepare_cached("SELECT event_data FROM events WHERE job_uuid = ?1 ORDER BY id LIMIT ?2")?;
        let mut rows = select.query(rusqlite::params![uuid, EVENTS_PER_JOB_MAX as i64])?;
        let mut events = Vec::new();
        while let Some(row) = rows.next()? {
            if let Some(data) = bytes_of(row, "event_data")? {
                events.extend(read(data).ok());
            }
        }
        Ok(events)
    }
}

/// What a row says.
enum Found<Operation> {
    Unfinished,
    Job { id: norfab_protocol::JobId, operations: Vec<Operation>, events: u64, ended: f64 },
}

/// Why a row cannot be read.
struct Unreadable(String);

impl From<rusqlite::Error> for Unreadable {
    fn from(error: rusqlite::Error) -> Self {
        Self(error.to_string())
    }
}

impl From<serde_json::Error> for Unreadable {
    fn from(error: serde_json::Error) -> Self {
        Self(error.to_string())
    }
}

impl From<norfab_protocol::name::NameError> for Unreadable {
    fn from(error: norfab_protocol::name::NameError) -> Self {
        Self(error.to_string())
    }
}

fn columns(connection: &Connection) -> rusqlite::Result<Vec<String>> {
    connection.prepare("SELECT name FROM pragma_table_info('jobs')")?.query_map([], |row| row.get(0))?.collect()
}

/// A text or a blob; the two versions differ in which they use.
fn bytes_of<'row>(row: &'row Row<'_>, column: &str) -> Result<Option<&'row [u8]>, Unreadable> {
    row.get_ref(column)?.as_bytes_or_null().map_err(|error| Unreadable(format!("{column}: {error}")))
}

/// The JSON of a value, which is packed unless a setting said otherwise.
fn unpacked(packed: &[u8], room: &Room) -> Result<Vec<u8>, Unreadable> {
    let mut text = Vec::new();
    if packed.first().is_some_and(|byte| matches!(byte, b'{' | b'[' | b'"')) {
        text.extend_from_slice(packed);
    } else {
        let mut decoder = ZlibDecoder::new(packed).take(room.0.get() + 1);
        decoder.read_to_end(&mut text).map_err(|error| Unreadable(format!("a packed value: {error}")))?;
    }
    let Some(left) = room.0.get().checked_sub(text.len() as u64) else {
        // Nor has what comes after it.
        room.0.set(0);
        return Err(Unreadable(format!("the values of the job have more than {UNPACKED_BYTES_MAX} bytes")));
    };
    room.0.set(left);
    Ok(text)
}

/// The POST body that a job must have had.
fn body(row: &Row<'_>, room: &Room, task: &TaskName, timeout: u64) -> Result<Vec<u8>, Unreadable> {
    let part = |column: &str| -> Result<Value, Unreadable> {
        let Some(packed) = bytes_of(row, column)? else { return Ok(Value::Null) };
        let mut value: Map<String, Value> = serde_json::from_slice(&unpacked(packed, room)?)?;
        Ok(value.remove(column).unwrap_or_default())
    };
    let of_object = |value| if let Value::Object(value) = value { value } else { Map::new() };
    let of_list = |value| if let Value::Array(value) = value { value } else { Vec::new() };
    let (kwargs, args) = (of_object(part("kwargs")?), of_list(part("args")?));
    // Only what these releases send: it may have no keys that came later.
    let body = serde_json::json!({"task": task, "kwargs": kwargs, "args": args, "timeout": timeout});
    Ok(serde_json::to_vec(&body)?)
}

/// A time as Python wrote it.
fn time(row: &Row<'_>, column: &str, times: &Times<'_>) -> Result<Option<f64>, Unreadable> {
    let text: Option<String> = row.get(column)?;
    match text {
        None => Ok(None),
        Some(text) => (times.read)(&text).map(Some).ok_or_else(|| Unreadable(format!("{column}: {text:?} is no time"))),
    }
}

/// Results by worker, each as it was written.
type Results = BTreeMap<String, Box<RawValue>>;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_values_of_a_job_unpack_to_is_bounded_together() {
        let room = Room(Cell::new(100));
        let value = format!("{{{:50}}}", "");
        let mut packed = flate2::write::ZlibEncoder::new(Vec::new(), flate2::Compression::fast());
        std::io::Write::write_all(&mut packed, value.as_bytes()).expect("memory");
        let packed = packed.finish().expect("memory");
        assert!(unpacked(&packed, &room).is_ok_and(|text| text == value.as_bytes()));
        for value in [value.as_bytes(), &packed, b"{}"] {
            assert!(unpacked(value, &room).is_err(), "nothing more is taken");
        }
    }
}
