//! Whether there is space for what is to be written. What finds none halfway has taken what there was, into a log that gets no shorter
//! before the file has grown, and then neither small changes nor pruning have any. So what is not small is not begun unless there is
//! enough to end it, and to write it back.

use std::path::Path;

use super::log::LOG_AHEAD_BYTES_MAX;
use super::{Database, step_by_step};
use crate::error::StoreError;

/// Bytes of a change up to which nothing is asked: small changes go on until the disk is full.
pub(super) const SMALL_BYTES_MAX: usize = 64 << 10;

/// Space that larger changes leave to small ones, and to pruning.
const SPARED_BYTES: u64 = 1 << 20;

/// On a small file system they leave one part in so many instead.
const SPARED_DIVISOR: u64 = 16;

/// What pages and the log need beside what is in them: less than one part in so many.
const EXTRA_DIVISOR: u64 = 64;

/// What pruning needs beside what the file lacks, for an index and what the file system itself needs.
const PRUNING_BYTES: u64 = 128 << 10;

/// Where something is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Through {
    /// In one transaction.
    OneTransaction,
    /// In parts, between which the log is written back.
    Parts,
}

impl Database {
    /// Sees to it that there is space for so many bytes: where it is short, what is in the log is brought into the file first, and what
    /// the log takes is given back. Errors: there is too little, and nothing was changed.
    pub(super) fn make_room(&mut self, bytes: usize, through: Through) -> Result<(), StoreError> {
        if bytes <= SMALL_BYTES_MAX || self.has_room(bytes, through)? {
            return Ok(());
        }
        // What there is after that is measured.
        self.join_write_back();
        self.forget_lacking()?;
        match self.cut_log() {
            Ok(()) | Err(StoreError::DiskFull { .. }) => {}
            Err(error) => return Err(error),
        }
        if self.has_room(bytes, through)? { Ok(()) } else { Err(StoreError::DiskFull { path: self.path.clone() }) }
    }

    fn has_room(&self, bytes: usize, through: Through) -> Result<bool, StoreError> {
        // What cannot be asked about shows when it is written.
        let Some(Space { free, spared }) = Space::of(&self.path) else { return Ok(true) };
        let bytes = bytes as u64 + bytes as u64 / EXTRA_DIVISOR;
        let in_log = match through {
            Through::OneTransaction => bytes,
            Through::Parts => bytes.min(LOG_AHEAD_BYTES_MAX),
        };
        // The file lacks no more than is in the log.
        if free >= in_log + bytes + self.log_bytes() + spared {
            return Ok(true);
        }
        let unused = self.number("PRAGMA freelist_count")? * self.page_bytes;
        Ok(free >= in_log + bytes.saturating_sub(unused) + self.lacking()? + spared)
    }

    /// Forgets free pages that the file would have to grow for, and that stood in what was dropped: those that there is space to forget.
    pub(super) fn forget_lacking(&self) -> Result<(), StoreError> {
        let free = self.number("PRAGMA freelist_count")?;
        let pages = free.min(self.lacking()? / self.page_bytes);
        // As many at once as the cache holds are not written.
        step_by_step(pages, |at_once| self.give_back(at_once)).map(drop)
    }

    /// By how many bytes the file has to grow to take what is in the log.
    pub(super) fn lacking(&self) -> Result<u64, StoreError> {
        let pages = self.number("PRAGMA page_count")?;
        let file = self.path.metadata().map_or(0, |file| file.len());
        Ok((pages * self.page_bytes).saturating_sub(file))
    }

    /// How many bytes more pruning needs, about.
    pub(super) fn missing_to_prune(&self) -> Result<u64, StoreError> {
        let free = Space::of(&self.path).map_or(0, |space| space.free);
        Ok((self.lacking()? + PRUNING_BYTES).saturating_sub(free))
    }
}

/// What a file system has.
struct Space {
    /// Bytes that we may use.
    free: u64,
    /// Bytes that are left to small changes.
    spared: u64,
}

impl Space {
    /// `None`: it does not say.
    #[cfg(unix)]
    fn of(path: &Path) -> Option<Self> {
        let found = rustix::fs::statvfs(path).ok().filter(|found| found.f_blocks > 0)?;
        let bytes = |blocks: u64| blocks.saturating_mul(found.f_frsize);
        let spared = SPARED_BYTES.min(bytes(found.f_blocks) / SPARED_DIVISOR);
        Some(Self { free: bytes(found.f_bavail), spared })
    }

    #[cfg(not(unix))]
    fn of(_path: &Path) -> Option<Self> {
        None
    }
}
