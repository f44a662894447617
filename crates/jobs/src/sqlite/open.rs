//! From a path to an open database: permissions, settings, the check for damage, the schema.

use std::fmt;
use std::fs::{File, OpenOptions};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use rusqlite::hooks::Wal;
use rusqlite::{Connection, OpenFlags};

use super::replaced::Files;
use super::{Counts, Database, LOG_BYTES_MAX, number, store_error};
use crate::error::StoreError;

/// How long a write waits for another process that reads or prunes the same file.
pub(super) const BUSY_TIMEOUT: Duration = Duration::from_secs(5);

/// Databases up to this size are checked completely at start; of larger ones only the jobs, not what they carried, so that
/// a start takes less than a second.
const CHECKED_BYTES_MAX: u64 = 64 << 20;

/// Statements that are kept prepared: all that the stores use.
const STATEMENTS_CACHED: usize = 48;

/// A damaged file that is kept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SetAside {
    /// Which file.
    pub file: DamagedFile,
    /// How it is kept.
    pub kept: Kept,
    /// Where it was.
    pub path: PathBuf,
    /// Where it, or its copy, is now.
    pub moved_to: PathBuf,
    /// What is wrong with it.
    pub reason: String,
}

/// What can be damaged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DamagedFile {
    /// The database. It was moved out of the way, and there is a new one.
    Database,
    /// The journal beside it. What can be read of it is in the database.
    Journal,
}

/// How a damaged file is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kept {
    /// Under another name.
    Moved,
    /// As a copy under another name.
    Copied,
    /// Where it was, because there was no space for anything else: it is not written to, and the next start tries again.
    InPlace,
}

impl fmt::Display for SetAside {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { file, kept, path, moved_to, reason } = self;
        let (path, moved_to) = (path.display(), moved_to.display());
        match file {
            DamagedFile::Database => write!(
                formatter,
                "the job database {path} was damaged ({reason}): it is kept as {moved_to}, and a new one was begun \
                 without its jobs"
            ),
            DamagedFile::Journal => {
                write!(formatter, "the job journal {path} was damaged ({reason}): ")?;
                match kept {
                    Kept::Copied => write!(formatter, "a copy is kept as {moved_to}")?,
                    Kept::Moved => write!(formatter, "it is kept as {moved_to}")?,
                    Kept::InPlace => {
                        formatter.write_str("it could not be set aside and is left alone until the next start")?
                    }
                }
                formatter.write_str(", and the latest changes of some jobs are lost")
            }
        }
    }
}

/// What a file must be.
pub struct Kind {
    /// For people.
    pub name: &'static str,
    /// In the file's header.
    pub application_id: i64,
    /// The schema: each text leads from one version to the next.
    pub migrations: &'static [&'static str],
}

impl Database {
    /// Opens or creates. `stamp` names the damaged file if there is one: `jobs.db.damaged-<stamp>`; without it a damaged file
    /// is an error and stays where it is.
    pub(super) fn open(path: &Path, kind: &Kind, stamp: Option<&str>) -> Result<Self, StoreError> {
        let path = std::path::absolute(path).map_err(|error| file_error("find", path, &error))?;
        create_private(&path)?;
        match (connect(&path, kind, Sharing::Shared), stamp) {
            (Ok(opened), _) => Ok(Self::new(opened, path, None)),
            // What is shared with other processes takes some space. The owner can do without.
            (Err(StoreError::DiskFull { .. }), Some(_)) => {
                Ok(Self::new(connect(&path, kind, Sharing::Alone)?, path, None))
            }
            (Err(StoreError::Damaged { error, .. }), Some(stamp)) => {
                let set_aside = set_aside(&path, stamp, error)?;
                create_private(&path)?;
                Ok(Self::new(connect(&path, kind, Sharing::Shared)?, path, Some(set_aside)))
            }
            (Err(error), _) => Err(error),
        }
    }

    fn new(opened: Opened, path: PathBuf, set_aside: Option<SetAside>) -> Self {
        let Opened { connection, sharing, log_pages, page_bytes } = opened;
        let (files, counts) = (Files::of(&path), Counts::default());
        let (pages_written_back, pages_looked_at, write_back) = (0, 0, None);
        let (is_long_for_large, is_shrunk) = (false, false);
        Self {
            connection,
            sharing,
            path,
            files,
            set_aside,
            log_pages,
            pages_written_back,
            pages_looked_at,
            write_back,
            is_long_for_large,
            is_shrunk,
            page_bytes,
            counts,
        }
    }
}

pub(super) fn file_error(action: &'static str, path: &Path, error: &std::io::Error) -> StoreError {
    StoreError::File { action, path: path.to_owned(), error: error.to_string() }
}

/// Payloads may hold secrets of devices: nobody else may read the file, nor the two that SQLite puts beside it, which get
/// the same permissions.
fn create_private(path: &Path) -> Result<(), StoreError> {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(false);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    let file = options.open(path).map_err(|error| file_error("open the job database", path, &error))?;
    restrict(&file, path)
}

#[cfg(unix)]
fn restrict(file: &File, path: &Path) -> Result<(), StoreError> {
    use std::os::unix::fs::PermissionsExt;
    let error = |error: std::io::Error| file_error("restrict the permissions of", path, &error);
    let mode = file.metadata().map_err(error)?.permissions().mode();
    if mode & 0o077 != 0 {
        file.set_permissions(std::fs::Permissions::from_mode(0o600)).map_err(error)?;
    }
    Ok(())
}

#[cfg(not(unix))]
fn restrict(_file: &File, _path: &Path) -> Result<(), StoreError> {
    Ok(())
}

pub(super) fn beside(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    name.into()
}

/// Moves the file and its log, under names by which SQLite's own tools find both.
fn set_aside(path: &Path, stamp: &str, reason: String) -> Result<SetAside, StoreError> {
    let moved_to = unused(path, stamp);
    let error = |error: std::io::Error| file_error("set aside the damaged", path, &error);
    std::fs::rename(path, &moved_to).map_err(error)?;
    let log = beside(path, "-wal");
    if log.exists() {
        std::fs::rename(&log, beside(&moved_to, "-wal")).map_err(error)?;
    }
    let noted = beside(path, "-noted");
    if noted.exists() {
        std::fs::rename(&noted, beside(&moved_to, "-noted")).map_err(error)?;
    }
    let index = beside(path, "-shm");
    if index.exists() {
        std::fs::remove_file(&index).map_err(error)?;
    }
    Ok(SetAside { file: DamagedFile::Database, kept: Kept::Moved, path: path.to_owned(), moved_to, reason })
}

/// Keeps a copy of a damaged journal. `None`: there is no space for one, or the system says no; nothing is left of it.
pub(super) fn copy_aside(path: &Path, stamp: &str) -> Option<PathBuf> {
    let copy = unused(path, stamp);
    if std::fs::copy(path, &copy).is_ok() {
        return Some(copy);
    }
    // Part of a copy would be taken for all of it. Where it cannot be removed, it was never made.
    drop(std::fs::remove_file(&copy));
    None
}

/// Gives a damaged journal another name, for which no space is needed.
pub(super) fn move_aside(path: &Path, stamp: &str) -> std::io::Result<PathBuf> {
    let moved_to = unused(path, stamp);
    std::fs::rename(path, &moved_to).map(|()| moved_to)
}

/// The name of a damaged file. A stamp that is in use gets a number: what was set aside once is never overwritten.
fn unused(path: &Path, stamp: &str) -> PathBuf {
    (0..u32::MAX)
        .map(|count| match count {
            0 => beside(path, &format!(".damaged-{stamp}")),
            _ => beside(path, &format!(".damaged-{stamp}-{count}")),
        })
        .find(|candidate| !candidate.exists())
        .unwrap_or_else(|| beside(path, ".damaged"))
}

/// Who may use a file at the same time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Sharing {
    /// Other processes too, by an index of the log in a file.
    Shared,
    /// Nobody else: the index is in memory.
    Alone,
}

/// What a file is once it is open.
struct Opened {
    connection: Connection,
    sharing: Sharing,
    /// Pages in the log, told by SQLite after each commit.
    log_pages: Arc<AtomicUsize>,
    page_bytes: u64,
}

fn connect(path: &Path, kind: &Kind, sharing: Sharing) -> Result<Opened, StoreError> {
    let sql_error = |error: rusqlite::Error| store_error(path.to_owned(), &error);
    // The store is used by one thread at a time, as `&mut` guarantees; SQLite need not lock for that.
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let mut connection = Connection::open_with_flags(path, flags).map_err(sql_error)?;
    connection.set_prepared_statement_cache_capacity(STATEMENTS_CACHED);
    connection.busy_timeout(BUSY_TIMEOUT).map_err(sql_error)?;
    if sharing == Sharing::Alone {
        connection.execute_batch("PRAGMA locking_mode = EXCLUSIVE").map_err(sql_error)?;
    }
    configure(&connection).map_err(sql_error)?;
    check(&connection, path)?;
    migrate(&mut connection, path, kind)?;
    let page_bytes = number(&connection, "PRAGMA page_size").map_err(sql_error)?;
    let log_pages = Arc::new(AtomicUsize::new(0));
    let told = Arc::clone(&log_pages);
    // It takes the place of SQLite's own rule, which would write the log back before the commit returns.
    let hook = move |_: &mut Wal, pages: i32| {
        told.store(usize::try_from(pages).unwrap_or(0), Ordering::Relaxed);
        Ok(())
    };
    connection.wal_hook(Some(hook)).map_err(sql_error)?;
    Ok(Opened { connection, sharing, log_pages, page_bytes })
}

/// Settings of the connection. They leave a file that is not new as it is, because it may be damaged. `auto_vacuum` must
/// come before the journal mode, which writes the first page.
fn configure(connection: &Connection) -> rusqlite::Result<()> {
    if number(connection, "PRAGMA page_count")? == 0 {
        connection.execute_batch("PRAGMA auto_vacuum = INCREMENTAL;")?;
    }
    connection.execute_batch(
        "PRAGMA journal_mode = WAL;
         PRAGMA synchronous = NORMAL;
         PRAGMA cache_size = -4096;
         PRAGMA mmap_size = 0;
         PRAGMA temp_store = MEMORY;
         PRAGMA cell_size_check = ON;
         PRAGMA trusted_schema = OFF;
         PRAGMA foreign_keys = OFF;",
    )?;
    connection.execute_batch(&format!("PRAGMA journal_size_limit = {LOG_BYTES_MAX};"))
}

fn check(connection: &Connection, path: &Path) -> Result<(), StoreError> {
    let sql_error = |error: rusqlite::Error| store_error(path.to_owned(), &error);
    let pages = number(connection, "PRAGMA page_count").map_err(sql_error)?;
    let page_bytes = number(connection, "PRAGMA page_size").map_err(sql_error)?;
    let sql =
        if pages * page_bytes <= CHECKED_BYTES_MAX { "PRAGMA quick_check(1)" } else { "PRAGMA quick_check('job')" };
    let found: String = connection.query_row(sql, [], |row| row.get(0)).map_err(sql_error)?;
    if found == "ok" {
        return Ok(());
    }
    Err(StoreError::Damaged { path: path.to_owned(), error: found })
}

fn migrate(connection: &mut Connection, path: &Path, kind: &Kind) -> Result<(), StoreError> {
    let sql_error = |error: rusqlite::Error| store_error(path.to_owned(), &error);
    let transaction =
        connection.transaction_with_behavior(rusqlite::TransactionBehavior::Immediate).map_err(sql_error)?;
    let pragma =
        |sql: &str| -> Result<i64, StoreError> { transaction.query_row(sql, [], |row| row.get(0)).map_err(sql_error) };
    let found = pragma("PRAGMA user_version")?;
    let application_id = pragma("PRAGMA application_id")?;
    let tables = pragma("SELECT count(*) FROM sqlite_schema")?;
    let is_new = found == 0 && application_id == 0 && tables == 0;
    if !is_new && application_id != kind.application_id {
        return Err(StoreError::Foreign { path: path.to_owned(), expected: kind.name, found: application_id });
    }
    let known = kind.migrations.len() as i64;
    let missing = usize::try_from(found).ok().and_then(|found| kind.migrations.get(found..));
    let Some(missing) = missing else {
        return Err(StoreError::NewerSchema { path: path.to_owned(), found, known });
    };
    if missing.is_empty() {
        return Ok(());
    }
    for migration in missing {
        transaction.execute_batch(migration).map_err(sql_error)?;
    }
    transaction
        .execute_batch(&format!("PRAGMA application_id = {}; PRAGMA user_version = {known};", kind.application_id))
        .map_err(sql_error)?;
    transaction.commit().map_err(sql_error)
}
