//! Job databases in SQLite: one file per client or worker, `jobs.db` in its folder.
//!
//! `open` prepares a file. `store` decides how operations get into it: a few small ones are noted in the `journal` beside it,
//! in the form of a `record`, many go into it together; `rows` remembers where jobs stand. `client` and `worker` have the
//! tables and the queries, `blob` what may be large, `ahead` the parts of large results. `log` writes SQLite's
//! log back, `room` asks whether there is space. `replaced` sees to files that somebody else removes.

mod ahead;
mod blob;
mod client;
mod journal;
mod log;
mod open;
mod reading;
mod record;
mod replaced;
mod room;
mod rows;
mod store;
mod worker;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::thread::JoinHandle;

use rusqlite::types::Type;
use rusqlite::{Connection, ErrorCode, Row};

pub use self::log::LOG_BYTES_MAX;
pub use client::{ClientJobs, SqliteClientStore};
pub use open::{DamagedFile, Kept, SetAside};
pub use store::{Schema, SqliteStore};
pub use worker::{SqliteWorkerStore, WorkerJobs};

use crate::error::StoreError;
use crate::retention::{PRUNED_JOBS_MAX, Pruned, Retention};
use crate::store::Statistics;

use open::Sharing;
use replaced::Files;

/// Name of the file in the folder of a client or worker. The file that Python peers keep there has another name.
pub const FILE_NAME: &str = "jobs.db";

/// Bytes that one step of pruning frees, so that the writer is soon back at its queue.
const PRUNED_BYTES_MAX: u64 = 64 << 20;

/// What a job takes beside its payloads, about.
const ROW_BYTES: u64 = 400;

/// By how much less is tried at once where there is no space for more.
const LESS_DIVISOR: u64 = 8;

/// Steps in which free pages are given back at most after one pruning: each may wait for the disk several times, and no job is stored
/// meanwhile.
const SHRINK_STEPS_MAX: usize = 64;

/// Free pages are given back to the file system when they are more than one in so many: fewer are soon used again.
const FREE_PAGES_DIVISOR: u64 = 8;

/// Free pages that are always kept: 1 MiB.
const FREE_PAGES_KEPT: u64 = 256;

/// An open database: what client and worker stores have in common.
struct Database {
    connection: Connection,
    sharing: Sharing,
    path: PathBuf,
    /// Which files these are.
    files: Files,
    set_aside: Option<SetAside>,
    /// Pages in the log, as SQLite told after the last commit.
    log_pages: Arc<AtomicUsize>,
    /// How long the log was when it was last written back.
    pages_written_back: usize,
    /// How long it was when the file was last seen to have, or given, what it lacks of it.
    pages_looked_at: usize,
    /// What writes it back beside this thread.
    write_back: Option<JoinHandle<()>>,
    /// It has not begun anew since that was begun.
    is_long_for_large: bool,
    /// Nothing more was given back of the free pages that were there when it was opened.
    is_shrunk: bool,
    page_bytes: u64,
    counts: Counts,
}

/// Jobs by state, counted once and kept up to date, because counting reads the whole table.
#[derive(Default)]
pub struct Counts {
    /// `None` until somebody asks.
    by_state: Option<BTreeMap<String, u64>>,
    /// What the transaction changes so far: from which state to which.
    changes: Vec<(Option<&'static str>, &'static str)>,
    /// Differs when another process wrote.
    version: u64,
}

impl Counts {
    fn change(&mut self, from: Option<&'static str>, to: &'static str) {
        if self.by_state.is_some() {
            self.changes.push((from, to));
        }
    }

    fn commit(&mut self) {
        let Some(by_state) = &mut self.by_state else {
            return;
        };
        for (from, to) in self.changes.drain(..) {
            if let Some(count) = from.and_then(|from| by_state.get_mut(from)) {
                *count = count.saturating_sub(1);
            }
            *by_state.entry(to.to_owned()).or_insert(0) += 1;
        }
    }
}

impl Database {
    /// Runs `work` in one transaction that has the write lock from its beginning, so that it never has to give up midway.
    fn transaction<T>(
        &mut self,
        work: impl FnOnce(&Connection, &mut Counts) -> rusqlite::Result<T>,
    ) -> Result<T, StoreError> {
        let connection = &self.connection;
        let counts = &mut self.counts;
        let result = statement(connection, "BEGIN IMMEDIATE")
            .and_then(|()| work(connection, counts))
            .and_then(|done| statement(connection, "COMMIT").map(|()| done));
        match &result {
            Ok(_) => counts.commit(),
            Err(_) => counts.changes.clear(),
        }
        if result.is_err() && !connection.is_autocommit() {
            // Its failure changes nothing: the next BEGIN would fail and say so.
            drop(statement(connection, "ROLLBACK"));
        }
        result.map_err(|error| self.error(error))
    }

    fn error(&self, error: rusqlite::Error) -> StoreError {
        let path = self.path.clone();
        store_error(path, &error)
    }

    fn number(&self, sql: &str) -> Result<u64, StoreError> {
        number(&self.connection, sql).map_err(|error| self.error(error))
    }

    /// Bytes in use, without the pages that are free.
    fn bytes(&self) -> Result<u64, StoreError> {
        live_bytes(&self.connection, self.page_bytes).map_err(|error| self.error(error))
    }

    fn statistics<State: Ord>(
        &mut self,
        parse: impl Fn(&str) -> Option<State>,
    ) -> Result<Statistics<State>, StoreError> {
        let version = self.number("PRAGMA data_version")?;
        if self.counts.by_state.is_none() || self.counts.version != version {
            let by_state = count(&self.connection).map_err(|error| self.error(error))?;
            self.counts.by_state = Some(by_state);
            self.counts.version = version;
        }
        let mut jobs_by_state = BTreeMap::new();
        for (text, count) in self.counts.by_state.iter().flatten().filter(|(_, count)| **count > 0) {
            let state = parse(text).ok_or_else(|| StoreError::Row {
                path: self.path.clone(),
                error: format!("{count} jobs are in the unknown state {text:?}"),
            })?;
            jobs_by_state.insert(state, *count);
        }
        Ok(Statistics { jobs_by_state, bytes: self.bytes()? })
    }

    /// `tables` belong to the job by their column `job`. What is deleted needs some space in the log before it gives any back, so on
    /// a disk that is almost full less of it goes at once.
    ///
    /// The log is written back first: where the file has to grow for that, what is free must not go into a longer log, or nothing
    /// could be given back. An error means that this step deleted nothing; where it is that the log cannot be written back, it says how much
    /// is missing.
    fn prune(&mut self, tables: &[&str], retention: &Retention, now: f64) -> Result<Pruned, StoreError> {
        match self.write_back() {
            Err(StoreError::DiskFull { path }) => {
                return Err(StoreError::NoSpaceToPrune { path, missing: self.missing_to_prune()? });
            }
            done => done?,
        }
        let mut jobs_max = PRUNED_JOBS_MAX as u64;
        let mut pruned = loop {
            match self.forget(tables, retention, now, jobs_max) {
                Err(StoreError::DiskFull { .. }) if jobs_max > 1 => {
                    jobs_max = (jobs_max / LESS_DIVISOR).max(1);
                    self.write_back()?;
                }
                done => break done?,
            }
        };
        self.counts.by_state = None;
        match self.shrink() {
            Ok(more) => pruned.more |= more,
            // What went is gone. The rest is given back by a pruning that finds space.
            Err(StoreError::DiskFull { .. }) => {}
            Err(error) if pruned.jobs == 0 => return Err(error),
            // The next step says what is wrong.
            Err(_) => pruned.more = true,
        }
        Ok(pruned)
    }

    /// One step of pruning, with at most so many jobs.
    fn forget(
        &mut self,
        tables: &[&str],
        retention: &Retention,
        now: f64,
        jobs_max: u64,
    ) -> Result<Pruned, StoreError> {
        let page_bytes = self.page_bytes;
        let forget: Vec<String> = tables
            .iter()
            .map(|table| format!("DELETE FROM {table} WHERE job = ?1"))
            .chain(["storing WHERE job", "job WHERE number"].map(|rows| format!("DELETE FROM {rows} = ?1")))
            .collect();
        self.transaction(|connection, _| {
            let mut kept = number(connection, "SELECT count(*) FROM job WHERE finished IS NOT NULL")?;
            let candidates = connection
                .prepare_cached(
                    "SELECT number, finished FROM job WHERE finished IS NOT NULL \
                     ORDER BY number LIMIT ?1",
                )?
                .query_map([signed(jobs_max)], |row| Ok((row.get::<_, i64>(0)?, row.get::<_, f64>(1)?)))?
                .collect::<rusqlite::Result<Vec<_>>>()?;
            let before = live_bytes(connection, page_bytes)?;
            let mut bytes = before;
            let mut pruned = Pruned::default();
            for (number, finished) in candidates {
                if !retention.ends(finished, now, kept, bytes) {
                    break;
                }
                for sql in &forget {
                    connection.prepare_cached(sql)?.execute([number])?;
                }
                kept -= 1;
                bytes = live_bytes(connection, page_bytes)?;
                pruned.jobs += 1;
                pruned.bytes = before.saturating_sub(bytes);
                pruned.more = pruned.jobs == jobs_max || pruned.bytes >= PRUNED_BYTES_MAX;
                if pruned.more {
                    break;
                }
            }
            Ok(pruned)
        })
    }

    /// What pruning would remove. Bytes are those of payloads and a little for each row, as nothing is tried.
    fn plan(&self, tables: &[&str], retention: &Retention, now: f64) -> rusqlite::Result<Pruned> {
        let connection = &self.connection;
        let sizes: String = tables
            .iter()
            .map(|table| format!("+ (SELECT total(length(data)) FROM {table} WHERE {table}.job = job.number)"))
            .collect();
        let sql = format!(
            "SELECT finished, ifnull(length(body), 0) {sizes} FROM job WHERE finished IS NOT NULL ORDER BY number"
        );
        let mut kept = number(connection, "SELECT count(*) FROM job WHERE finished IS NOT NULL")?;
        let mut bytes = live_bytes(connection, self.page_bytes)?;
        let mut planned = Pruned::default();
        let mut select = connection.prepare(&sql)?;
        let mut rows = select.query([])?;
        while let Some(row) = rows.next()? {
            if !retention.ends(row.get(0)?, now, kept, bytes) {
                break;
            }
            let of_job = row.get::<_, f64>(1)? as u64 + ROW_BYTES;
            kept -= 1;
            bytes = bytes.saturating_sub(of_job);
            planned.jobs += 1;
            planned.bytes += of_job;
        }
        Ok(planned)
    }

    /// Writes the log back, so that what comes next is written where the log is. Where another process reads, part of it stays.
    fn write_back(&mut self) -> Result<(), StoreError> {
        self.number("PRAGMA wal_checkpoint(PASSIVE)").map(drop)
    }

    /// Gives free pages back to the file system when there are many, as after jobs that went; until that came to its end once also
    /// fewer, which jobs that were being stored when a process died may have left. The file gets shorter when the log is written back.
    /// `true`: there are more, as a step has a bound. What finds no space to be moved stays for the next pruning. Errors: the file
    /// cannot be read or written.
    fn shrink(&mut self) -> Result<bool, StoreError> {
        let free = self.number("PRAGMA freelist_count")?;
        let pages = self.number("PRAGMA page_count")?;
        let is_little = self.is_shrunk && free <= pages / FREE_PAGES_DIVISOR;
        if free <= FREE_PAGES_KEPT || is_little {
            self.is_shrunk = true;
            return Ok(false);
        }
        let spare = free - FREE_PAGES_KEPT;
        let pages = spare.min(PRUNED_BYTES_MAX / self.page_bytes);
        let left = step_by_step(pages, |at_once| {
            let given_back = self.give_back(at_once);
            // The file gets shorter by that, and the next piece has the whole log to itself.
            self.write_back()?;
            given_back
        })?;
        // A file that somebody else made may have pages that cannot be moved.
        let more = pages < spare && self.number("PRAGMA freelist_count")? < free;
        self.is_shrunk = left == 0 && !more;
        Ok(more)
    }

    fn give_back(&self, pages: u64) -> Result<(), StoreError> {
        let vacuum = || {
            let sql = format!("PRAGMA incremental_vacuum({pages})");
            let mut statement = self.connection.prepare(&sql)?;
            let mut rows = statement.query([])?;
            // Each step frees one page.
            while rows.next()?.is_some() {}
            Ok(())
        };
        vacuum().map_err(|error| self.error(error))
    }
}

/// Gives pages back, as many at once as there is space for: less after a failure, and more again after a success, which made space.
/// What [`SHRINK_STEPS_MAX`] steps leave, and what finds no space however little it is, is left to the next pruning: so many pages.
fn step_by_step(pages: u64, mut give_back: impl FnMut(u64) -> Result<(), StoreError>) -> Result<u64, StoreError> {
    let (mut left, mut at_once) = (pages, pages);
    for _ in 0..SHRINK_STEPS_MAX {
        if left == 0 {
            break;
        }
        at_once = at_once.min(left);
        match give_back(at_once) {
            Ok(()) => {
                left -= at_once;
                at_once *= 2;
            }
            Err(StoreError::DiskFull { .. }) if at_once > 1 => at_once = (at_once / LESS_DIVISOR).max(1),
            Err(StoreError::DiskFull { .. }) => break,
            Err(error) => return Err(error),
        }
    }
    Ok(left)
}

fn count(connection: &Connection) -> rusqlite::Result<BTreeMap<String, u64>> {
    connection
        .prepare_cached("SELECT state, count(*) FROM job GROUP BY state")?
        .query_map([], |row| Ok((row.get(0)?, row.get::<_, i64>(1)?.unsigned_abs())))?
        .collect()
}

fn live_bytes(connection: &Connection, page_bytes: u64) -> rusqlite::Result<u64> {
    let pages = number(connection, "PRAGMA page_count")?;
    let free = number(connection, "PRAGMA freelist_count")?;
    Ok(pages.saturating_sub(free) * page_bytes)
}

fn statement(connection: &Connection, sql: &str) -> rusqlite::Result<()> {
    connection.prepare_cached(sql)?.execute([]).map(|_| ())
}

fn number(connection: &Connection, sql: &str) -> rusqlite::Result<u64> {
    connection.prepare_cached(sql)?.query_row([], |row| row.get::<_, i64>(0)).map(i64::unsigned_abs)
}

/// SQLite has signed integers only; a time-out of 292 billion years may as well be one of 584 billion.
fn signed(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

/// A column that must be a text of a certain form.
fn parsed<T>(row: &Row<'_>, column: usize, parse: impl FnOnce(&str) -> Option<T>) -> rusqlite::Result<T> {
    let text = row.get_ref(column)?.as_str()?;
    parse(text).ok_or_else(|| unreadable(column, format!("{text:?} is not what belongs there")))
}

fn unreadable(column: usize, error: String) -> rusqlite::Error {
    rusqlite::Error::FromSqlConversionFailure(column, Type::Text, error.into())
}

fn store_error(path: PathBuf, error: &rusqlite::Error) -> StoreError {
    /// The index of the log could not grow, which no other code says.
    const SHARED_MEMORY_SIZE: i32 = rusqlite::ffi::SQLITE_IOERR_SHMSIZE;
    match error {
        rusqlite::Error::SqliteFailure(failure, _) => match failure.code {
            ErrorCode::DiskFull => StoreError::DiskFull { path },
            _ if failure.extended_code == SHARED_MEMORY_SIZE => StoreError::DiskFull { path },
            ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase => {
                StoreError::Damaged { path, error: error.to_string() }
            }
            _ => StoreError::Database { path, error: error.to_string() },
        },
        rusqlite::Error::FromSqlConversionFailure(..)
        | rusqlite::Error::InvalidColumnType(..)
        | rusqlite::Error::IntegralValueOutOfRange(..) => StoreError::Row { path, error: error.to_string() },
        _ => StoreError::Database { path, error: error.to_string() },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Gives pages back where there is space for so many at once, which grows with those that were; how many were, and in how many steps.
    fn given_back(pages: u64, mut space: u64, grows: bool) -> (u64, usize) {
        let (mut given, mut steps) = (0, 0);
        let left = step_by_step(pages, |at_once| {
            steps += 1;
            if at_once > space {
                return Err(StoreError::DiskFull { path: PathBuf::new() });
            }
            given += at_once;
            space += if grows { at_once } else { 0 };
            Ok(())
        })
        .expect("what finds no space stays");
        assert_eq!(given + left, pages);
        (given, steps)
    }

    #[test]
    fn pages_are_given_back_in_larger_steps_as_space_grows_and_in_a_bounded_number_of_them() {
        let (given, steps) = given_back(16_384, 5, true);
        assert!(given == 16_384 && steps < 32, "{given} in {steps}");
        let (given, steps) = given_back(16_384, 5, false);
        assert!(given > 0 && steps == SHRINK_STEPS_MAX, "{given} in {steps}");
        assert_eq!(given_back(16_384, 16_384, false), (16_384, 1));
        assert_eq!(given_back(16_384, 0, true).0, 0);
    }
}
