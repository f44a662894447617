//! Large results, which go into the database in parts: each in a transaction of its own, ahead of the operation that brings the result.
//!
//! A large result in one transaction keeps the changes of all other jobs waiting for as long as it takes. So only its last
//! transaction, in which the operation itself is applied, makes a result of the parts: until then nobody sees them, and what a
//! process that died has left of them is removed by the next.

use std::cell::Cell;

use bytes::Bytes;
use norfab_protocol::name::{Identity, JobId};
use rusqlite::{Connection, params};

use super::room::Through;
use super::store::{Schema, SqliteStore};
use super::{Database, unreadable};
use crate::error::StoreError;
use crate::store::{Ahead, Operation};

/// Bytes of a part: a transaction with one takes about two milliseconds, and fits into the cache of pages, without which SQLite
/// would read the log again for each commit.
const PART_BYTES: usize = 512 << 10;

/// Bytes that are reserved for a result at most before its parts are there: more than a message takes.
const RESERVED_BYTES_MAX: usize = 128 << 20;

/// The result that an operation brings.
#[derive(Debug)]
pub struct Brought<'a> {
    /// Whose it is, where a job has results of several.
    pub worker: Option<&'a Identity>,
    /// The result.
    pub payload: &'a Bytes,
}

/// Parts that are stored ahead of their operation.
#[derive(Debug)]
pub struct Parts {
    id: JobId,
    worker: Option<Identity>,
    /// How long the result is.
    bytes: usize,
    /// Where its parts stand.
    job: i64,
    value: i64,
    /// How much of it stands there.
    stored: usize,
    /// Whether the operation was applied.
    used: Cell<bool>,
}

impl Parts {
    fn is_of(&self, id: &JobId, brought: &Brought<'_>) -> bool {
        self.id == *id && self.worker.as_ref() == brought.worker && self.bytes == brought.payload.len()
    }
}

impl<S: Schema> SqliteStore<S> {
    /// See [`crate::Store::store_ahead`].
    pub(super) fn store_part(&mut self, operation: &S::Operation) -> Result<Ahead, StoreError> {
        let Some(brought) = S::brought(operation).filter(|_| operation.is_large()) else { return Ok(Ahead::Whole) };
        self.follow_files()?;
        if self.database.must_be_written_back() {
            return Ok(Ahead::Busy);
        }
        let id = operation.job();
        if !self.ahead.as_ref().is_some_and(|ahead| ahead.is_of(id, &brought)) {
            self.drop_parts();
            self.sweep()?;
            self.database.make_room(brought.payload.len(), Through::Parts)?;
            if self.noted.iter().any(|noted| noted.job() == id) {
                // It may be known to the journal only.
                self.write(&[])?;
            }
        } else {
            // Others fill the disk, too.
            self.database.make_room(PART_BYTES, Through::OneTransaction)?;
        }
        let before = self.ahead.as_ref();
        let bytes = brought.payload.len();
        let place = self.database.transaction(|connection, _| {
            let (job, value, stored) = match before {
                Some(Parts { job, value, stored, .. }) if is_storing(connection, *job, *value)? => {
                    (*job, *value, *stored)
                }
                // These are the first, or another process took the ones before for left behind and removed them.
                _ => match begin::<S>(connection, operation, &brought)? {
                    Some((job, value)) => (job, value, 0),
                    None => return Ok(None),
                },
            };
            let end = bytes.min(stored + PART_BYTES);
            insert(connection, job, value, &brought.payload[stored..end])?;
            Ok(Some((job, value, end)))
        })?;
        // What is refused is so for the reason that it has then.
        let Some((job, value, end)) = place else { return Ok(Ahead::Whole) };
        let (id, worker) = (id.clone(), brought.worker.cloned());
        self.ahead = Some(Parts { id, worker, bytes, job, value, stored: end, used: Cell::new(false) });
        Ok(if end < bytes { Ahead::More } else { Ahead::Whole })
    }

    /// See [`crate::Store::drop_ahead`].
    pub(super) fn drop_parts(&mut self) {
        if let Some(Parts { job, value, .. }) = self.ahead.take() {
            self.dropped.push((job, value));
            // A full disk may keep them there for a while, where they harm nobody.
            drop(self.sweep());
        }
    }

    /// Whether the result that an operation brings was stored ahead of it.
    pub(super) fn is_ahead(&self, operation: &S::Operation) -> bool {
        operation.is_large() && self.ahead.as_ref().is_some_and(|ahead| ahead.id == *operation.job())
    }

    /// After operations were applied: what was stored ahead of one of them belongs to it, or to nobody.
    pub(super) fn end_parts(&mut self, operations: &[S::Operation]) {
        let Some(ahead) = &self.ahead else { return };
        if ahead.used.get() {
            self.ahead = None;
        } else if operations.iter().any(|one| one.job() == &ahead.id && one.is_large()) {
            self.drop_parts();
        }
    }

    /// Removes parts that were dropped, where no other process has: their number may be that of a result by now. The file need not grow
    /// for them any more.
    pub(super) fn sweep(&mut self) -> Result<(), StoreError> {
        if self.dropped.is_empty() {
            return Ok(());
        }
        let dropped = &self.dropped;
        self.database.transaction(|connection, _| {
            dropped.iter().try_for_each(|&(job, value)| {
                if is_storing(connection, job, value)? { remove(connection, (job, value)) } else { Ok(()) }
            })
        })?;
        self.dropped.clear();
        self.database.forget_lacking()
    }
}

impl Database {
    /// Removes the parts that another process left without an end, and that belong to nobody. A full disk may keep them until the
    /// next start.
    pub(super) fn remove_left_parts(&mut self) -> Result<(), StoreError> {
        if self.number("SELECT count(*) FROM storing")? == 0 {
            return Ok(());
        }
        let removed = self.transaction(|connection, _| {
            let left = connection
                .prepare_cached("SELECT job, value FROM storing")?
                .query_map([], |row| Ok((row.get(0)?, row.get(1)?)))?
                .collect::<rusqlite::Result<Vec<_>>>()?;
            left.into_iter().try_for_each(|place| remove(connection, place))
        });
        match removed {
            Err(StoreError::DiskFull { .. }) => Ok(()),
            removed => removed,
        }
    }
}

/// Where the parts of an operation's result will stand. `None`: it will be refused.
fn begin<S: Schema>(
    connection: &Connection,
    operation: &S::Operation,
    brought: &Brought<'_>,
) -> rusqlite::Result<Option<(i64, i64)>> {
    let Some((job, mut course)) = S::look_up(connection, operation.job())? else { return Ok(None) };
    if S::advance(operation, &mut course).is_err() || S::has_result(connection, job, brought)? {
        return Ok(None);
    }
    let value = next_value(connection, job)?;
    connection.prepare_cached("INSERT INTO storing (job, value) VALUES (?1, ?2)")?.execute([job, value])?;
    Ok(Some((job, value)))
}

fn insert(connection: &Connection, job: i64, value: i64, part: &[u8]) -> rusqlite::Result<()> {
    let mut insert = connection.prepare_cached("INSERT INTO part (job, value, data) VALUES (?1, ?2, ?3)")?;
    insert.execute(params![job, value, part]).map(|_| ())
}

/// Whether parts that were begun ahead stand there still. There are none without this, but of results that are whole.
fn is_storing(connection: &Connection, job: i64, value: i64) -> rusqlite::Result<bool> {
    connection.prepare_cached("SELECT 1 FROM storing WHERE job = ?1 AND value = ?2")?.exists([job, value])
}

fn remove(connection: &Connection, (job, value): (i64, i64)) -> rusqlite::Result<()> {
    connection.prepare_cached("DELETE FROM part WHERE job = ?1 AND value = ?2")?.execute([job, value])?;
    connection.prepare_cached("DELETE FROM storing WHERE job = ?1 AND value = ?2")?.execute([job, value])?;
    Ok(())
}

fn next_value(connection: &Connection, job: i64) -> rusqlite::Result<i64> {
    connection
        .prepare_cached("SELECT ifnull(max(value), -1) + 1 FROM part WHERE job = ?1")?
        .query_row([job], |row| row.get(0))
}

/// The number of a large result of a job: that of the parts that stand there, or of parts that are to be written.
pub(super) fn value(connection: &Connection, job: i64, ahead: Option<&Parts>) -> rusqlite::Result<i64> {
    ahead.map_or_else(|| next_value(connection, job), |ahead| Ok(ahead.value))
}

/// Writes a large result's parts, or makes those that stand there a part of the job.
pub(super) fn write(
    connection: &Connection,
    job: i64,
    value: i64,
    payload: &[u8],
    ahead: Option<&Parts>,
) -> rusqlite::Result<()> {
    if let Some(ahead) = ahead {
        ahead.used.set(true);
        connection.prepare_cached("DELETE FROM storing WHERE job = ?1 AND value = ?2")?.execute([job, value])?;
        return Ok(());
    }
    payload.chunks(PART_BYTES).try_for_each(|part| insert(connection, job, value, part))
}

/// What was stored ahead of an operation about a job with this number, if all of it is there. It is not where another process took it
/// for left behind, and removed it.
pub(super) fn of<'a>(
    connection: &Connection,
    ahead: Option<&'a Parts>,
    id: &JobId,
    job: i64,
    brought: &Brought<'_>,
) -> rusqlite::Result<Option<&'a Parts>> {
    let is_whole = |ahead: &&Parts| ahead.is_of(id, brought) && ahead.job == job && ahead.stored == ahead.bytes;
    let Some(ahead) = ahead.filter(is_whole) else { return Ok(None) };
    Ok(is_storing(connection, job, ahead.value)?.then_some(ahead))
}

/// Puts a large result together. `column` is that of its length, for errors.
pub(super) fn read(
    connection: &Connection,
    job: i64,
    value: i64,
    bytes: i64,
    column: usize,
) -> rusqlite::Result<Vec<u8>> {
    let mut whole = Vec::with_capacity(usize::try_from(bytes).unwrap_or(0).min(RESERVED_BYTES_MAX));
    let mut select =
        connection.prepare_cached("SELECT data FROM part WHERE job = ?1 AND value = ?2 ORDER BY number")?;
    let mut rows = select.query([job, value])?;
    while let Some(row) = rows.next()? {
        whole.extend_from_slice(row.get_ref(0)?.as_blob()?);
    }
    if i64::try_from(whole.len()) != Ok(bytes) {
        return Err(unreadable(column, format!("of a result of {bytes} bytes there are {}", whole.len())));
    }
    Ok(whole)
}
