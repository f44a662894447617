//! SQLite's log: when it is written back into the database, and when it is cut off.
//!
//! As a rule that is done by the thread of the store, in a few milliseconds. A large result makes a long log, and the disk takes its
//! time to sync one; so while such a result is stored another thread writes the log back, with a connection of its own. It waits for
//! nobody, and nobody but the next part waits for it.

use std::path::Path;
use std::sync::atomic::Ordering;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use rusqlite::config::DbConfig;
use rusqlite::{Connection, OpenFlags};

use super::open::{BUSY_TIMEOUT, Sharing};
use super::{Database, number};
use crate::error::StoreError;
use crate::writer::THREAD_STACK_BYTES;

/// Pages of the log after which it is written back into the database: 4 MiB, so that the log stays small and writing it
/// back takes milliseconds.
const CHECKPOINT_PAGES: usize = 1000;

/// Bytes of the log above which it is cut off once it is written back: one large result makes it as long as it is, and it would
/// stay so. Small logs are kept, as writing into a file that is there costs less.
pub const LOG_BYTES_MAX: u64 = 8 << 20;

/// Bytes of the log with which a large result waits until it is written back and begins anew. Less, and it waits for the disk more
/// often.
pub(super) const LOG_AHEAD_BYTES_MAX: u64 = 4 * LOG_BYTES_MAX;

/// Pages by which the log grows before somebody looks how much of it the file lacks.
const LOOKED_AT_PAGES: usize = 128;

/// Bytes that the file lacks at most while there is nothing else to do. Where others fill the disk then, pruning needs as much.
const LACKING_BYTES_MAX: u64 = 512 << 10;

impl Database {
    /// Writes the log back when it has grown; beside this thread, if that is wanted or the log is long because it was.
    pub(super) fn tidy(&mut self, beside: bool) -> Result<(), StoreError> {
        // Its thread is joined also where nothing is left to do.
        let is_written_back_beside = self.is_written_back_beside();
        let pages = self.pages_to_write_back();
        if pages < CHECKPOINT_PAGES
            || is_written_back_beside
            || ((beside || self.is_long_for_large) && self.write_back_beside())
        {
            return Ok(());
        }
        // Readers of other processes may hold part of the log back; it is tried again when the log has grown as much again.
        self.pages_written_back = self.log_pages.load(Ordering::Relaxed);
        self.number("PRAGMA wal_checkpoint(PASSIVE)")?;
        if self.log_is_long() { self.cut_log() } else { Ok(()) }
    }

    /// Pages that the log has grown by since it was written back.
    fn pages_to_write_back(&mut self) -> usize {
        let pages = self.log_pages.load(Ordering::Relaxed);
        if pages < self.pages_written_back {
            // SQLite began the log anew.
            (self.pages_written_back, self.is_long_for_large) = (0, false);
        }
        pages - self.pages_written_back
    }

    /// Whether a large result has to wait, because the log is long and is being written back. Where a reader keeps it from beginning
    /// anew after that, it grows on.
    pub(super) fn must_be_written_back(&mut self) -> bool {
        if self.log_bytes() < LOG_AHEAD_BYTES_MAX {
            return false;
        }
        self.is_written_back_beside() || (self.pages_to_write_back() > 0 && self.write_back_beside())
    }

    fn is_written_back_beside(&mut self) -> bool {
        if self.write_back.as_ref().is_some_and(JoinHandle::is_finished) {
            self.join_write_back();
        }
        self.write_back.is_some()
    }

    /// Begins to write the log back beside this thread. `false`: that cannot be.
    fn write_back_beside(&mut self) -> bool {
        if self.sharing == Sharing::Alone {
            return false;
        }
        let path = self.path.clone();
        let thread = thread::Builder::new().name("jobs-log".to_owned()).stack_size(THREAD_STACK_BYTES);
        let Ok(thread) = thread.spawn(move || {
            // What it leaves is left to the thread of the store, which says what is wrong.
            drop(write_back(&path));
        }) else {
            return false;
        };
        self.pages_written_back = self.log_pages.load(Ordering::Relaxed);
        self.write_back = Some(thread);
        self.is_long_for_large = true;
        true
    }

    /// Waits until nobody writes the log back beside this thread.
    pub(super) fn join_write_back(&mut self) {
        if let Some(thread) = self.write_back.take() {
            // A panic of it was printed when it happened; the log is as long as it was.
            drop(thread.join());
        }
    }

    pub(super) fn log_bytes(&self) -> u64 {
        self.log_pages.load(Ordering::Relaxed) as u64 * self.page_bytes
    }

    /// Whether the file may lack much of what is in the log.
    pub(super) fn may_lack(&self) -> bool {
        let pages = self.log_pages.load(Ordering::Relaxed);
        // A shorter one was begun anew.
        let looked_at = Some(self.pages_looked_at).filter(|looked_at| *looked_at <= pages);
        pages - looked_at.unwrap_or(0) >= LOOKED_AT_PAGES
    }

    /// Writes the log back where the file lacks much of it. Errors: no space; what there was is in the file.
    pub(super) fn write_back_lacking(&mut self) -> Result<(), StoreError> {
        let pages = self.log_pages.load(Ordering::Relaxed);
        if self.lacking()? > LACKING_BYTES_MAX {
            self.write_back()?;
            self.pages_written_back = pages;
        }
        self.pages_looked_at = pages;
        Ok(())
    }

    /// Whether the log is longer than [`LOG_BYTES_MAX`].
    pub(super) fn log_is_long(&self) -> bool {
        self.log_bytes() > LOG_BYTES_MAX
    }

    /// Writes the log back and leaves an empty one. Where another process reads, it stays as it is: nobody is waited for.
    pub(super) fn cut_log(&mut self) -> Result<(), StoreError> {
        let timeout = |time| self.connection.busy_timeout(time).map_err(|error| self.error(error));
        timeout(Duration::ZERO)?;
        let busy = self.number("PRAGMA wal_checkpoint(TRUNCATE)");
        timeout(BUSY_TIMEOUT)?;
        if busy? == 0 {
            self.log_pages.store(0, Ordering::Relaxed);
            (self.pages_written_back, self.is_long_for_large) = (0, false);
        }
        Ok(())
    }
}

fn write_back(path: &Path) -> rusqlite::Result<()> {
    // It is not made where it was removed.
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let connection = Connection::open_with_flags(path, flags)?;
    // The log is another connection's, should this be the last to be closed.
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, true)?;
    connection.busy_timeout(Duration::ZERO)?;
    connection.execute_batch("PRAGMA synchronous = NORMAL")?;
    number(&connection, "PRAGMA wal_checkpoint(PASSIVE)").map(|_| ())
}
