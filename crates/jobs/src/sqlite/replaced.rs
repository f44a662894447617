//! Files that somebody removes or replaces while they are in use. Without a look at them a store would go on for ever with a file
//! that nobody else can find, and all that it confirms would be gone with the process.

use std::fs;
use std::path::{Path, PathBuf};

use rusqlite::Connection;
use rusqlite::config::DbConfig;

use super::journal::{Found, Journal};
use super::open::{beside, file_error};
use super::store::{NOTED_SUFFIX, Schema, SqliteStore, mark};
use super::{Database, statement};
use crate::error::StoreError;
use crate::store::Store;

/// What is added to the name of a database for its log.
const LOG_SUFFIX: &str = "-wal";

/// What is added to the name of a database while a new one is made in its place.
const BEGUN_SUFFIX: &str = ".begun";

/// Which file has a name. Systems that do not say so have none, and then nothing is noticed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct FileId(#[cfg(unix)] (u64, u64));

impl FileId {
    /// `None`: no file has this name, or nobody can say.
    #[cfg(unix)]
    fn of(path: &Path) -> Option<Self> {
        Self::found(path).ok()
    }

    #[cfg(not(unix))]
    fn of(_path: &Path) -> Option<Self> {
        None
    }

    #[cfg(unix)]
    fn found(path: &Path) -> std::io::Result<Self> {
        use std::os::unix::fs::MetadataExt;
        let found = fs::metadata(path)?;
        Ok(Self((found.dev(), found.ino())))
    }

    /// Whether the name does not stand for this file any more. A name that cannot be looked up for a while still does.
    #[cfg(unix)]
    fn is_gone(self, path: &Path) -> bool {
        match Self::found(path) {
            Ok(found) => found != self,
            Err(error) => error.kind() == std::io::ErrorKind::NotFound,
        }
    }

    #[cfg(not(unix))]
    fn is_gone(self, _path: &Path) -> bool {
        false
    }
}

/// The files of an open database.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Files {
    database: Option<FileId>,
    log: Option<FileId>,
    journal: Option<FileId>,
}

impl Files {
    /// Those that have the names now.
    pub(super) fn of(path: &Path) -> Self {
        Self {
            database: FileId::of(path),
            log: FileId::of(&beside(path, LOG_SUFFIX)),
            journal: FileId::of(&beside(path, NOTED_SUFFIX)),
        }
    }
}

impl<S: Schema> SqliteStore<S> {
    /// Looks whether the names still stand for the files in use, and goes on with those that they stand for. Two questions to the
    /// file system, microseconds. Errors: no new file can be made; the old one stays in use, and it is tried again.
    pub(super) fn follow_files(&mut self) -> Result<(), StoreError> {
        let Some(stamp) = self.stamp.clone() else { return Ok(()) };
        let path = self.database.path.clone();
        let files = self.database.files;
        if files.database.is_some_and(|file| file.is_gone(&path)) {
            self.begin_anew(&path, &stamp)?;
        } else if self.journal.is_some() && files.journal.is_none_or(|file| file.is_gone(&beside(&path, NOTED_SUFFIX)))
        {
            // What it held is known here. The database takes it, and then nothing was lost.
            self.settle()?;
            self.open_journal_anew(&path)?;
            self.news.push(format!(
                "somebody removed or replaced the job journal {}{NOTED_SUFFIX} while it was in use: a new one was begun, \
                 and nothing is lost",
                path.display()
            ));
        }
        Ok(())
    }

    fn begin_anew(&mut self, path: &Path, stamp: &str) -> Result<(), StoreError> {
        // The file without a name is still there for this process. What is noted must be in it before it is copied; a full
        // disk loses the latest changes.
        drop(self.settle());
        let removed = !path.try_exists().map_err(|error| file_error("find", path, &error))?;
        let begun = beside(path, BEGUN_SUFFIX);
        let carried = if removed { Some(self.carry_unfinished(&begun)?) } else { None };
        let log = beside(path, LOG_SUFFIX);
        if FileId::of(&log) == self.database.files.log && self.database.files.log.is_some() {
            // It belongs to the file that is gone. The new one must not take it for its own.
            fs::remove_file(&log).map_err(|error| file_error("remove", &log, &error))?;
        }
        if carried.is_some() {
            fs::rename(&begun, path).map_err(|error| file_error("rename", &begun, &error))?;
        }
        // Until here the old file is in use, and all that failed can be tried again. SQLite would write its log back and then
        // remove whatever file has the name of it.
        let keep_log = self.database.connection.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, true);
        keep_log.map_err(|error| self.database.error(error))?;
        self.database.connection = Connection::open_in_memory().map_err(|error| self.database.error(error))?;
        self.database.join_write_back();
        let aside = {
            self.database = Database::open(path, &S::KIND, Some(stamp))?;
            self.database.set_aside.as_ref().map(ToString::to_string)
        };
        self.rows.forget();
        // What had begun begins anew.
        (self.ahead, self.dropped) = (None, Vec::new());
        self.open_journal_anew(path)?;
        self.database.remove_left_parts()?;
        let path = path.display();
        self.news.push(match carried {
            Some(jobs) => format!(
                "somebody removed the job database {path} while it was in use: a new one was begun with the {jobs} jobs \
                 that have not ended; those that had ended are lost"
            ),
            None => format!("somebody replaced the job database {path} while it was in use: the new file is used from now on"),
        });
        self.news.extend(aside);
        Ok(())
    }

    /// Makes a new database with the jobs that have not ended; how many these are.
    fn carry_unfinished(&self, begun: &Path) -> Result<u64, StoreError> {
        for suffix in ["", LOG_SUFFIX, "-shm"] {
            let left: PathBuf = beside(begun, suffix);
            if left.exists() {
                fs::remove_file(&left).map_err(|error| file_error("remove", &left, &error))?;
            }
        }
        drop(Database::open(begun, &S::KIND, None)?);
        let connection = &self.database.connection;
        let carried = (|| {
            connection.execute("ATTACH ?1 AS begun", [begun.to_string_lossy()])?;
            statement(connection, "BEGIN")?;
            let jobs = connection.execute("INSERT INTO begun.job SELECT * FROM main.job WHERE finished IS NULL", [])?;
            for table in S::TABLES.iter().chain(&["storing"]) {
                let unfinished = "job IN (SELECT number FROM begun.job)";
                connection
                    .execute(&format!("INSERT INTO begun.{table} SELECT * FROM main.{table} WHERE {unfinished}"), [])?;
            }
            statement(connection, "COMMIT")?;
            Ok(jobs as u64)
        })();
        if !connection.is_autocommit() {
            // It can fail only where nothing was begun.
            drop(statement(connection, "ROLLBACK"));
        }
        // It fails where it was not attached.
        drop(connection.execute("DETACH begun", []));
        carried.map_err(|error| self.database.error(error))
    }

    fn open_journal_anew(&mut self, path: &Path) -> Result<(), StoreError> {
        self.journal = None;
        let noted = beside(path, NOTED_SUFFIX);
        let failed = |error| file_error("open the job journal", &noted, &error);
        // Records that it has are those of another database, or are in this one.
        let found = Journal::open(&noted, true, failed, || mark(&self.database))?;
        self.journal = found.map(|Found { journal, .. }| journal);
        self.database.files = Files::of(path);
        Ok(())
    }
}
