//! What the stores of clients and workers have in common: how operations get into a database.
//!
//! A few small operations about jobs that are remembered (`rows`) are decided without the database and noted in its journal.
//! All others are applied in one transaction, together with what was noted before. Both ways decide by the same rules.

use std::collections::HashSet;
use std::path::{Path, PathBuf};

use norfab_protocol::name::JobId;
use rusqlite::Connection;

use super::ahead::{Brought, Parts};
use super::journal::{Found, JOURNAL_BYTES_MAX, Journal, Mark, Records, last_beside};
use super::open::{DamagedFile, Kept, Kind, Sharing, beside, copy_aside, file_error, move_aside};
use super::record::Recorded;
use super::replaced::Files;
use super::room::Through;
use super::rows::{Change, JobRow, Rows, superseded};
use super::{Counts, Database, SetAside, statement};
use crate::error::{OperationError, StoreError};
use crate::retention::{Pruned, Retention};
use crate::store::{Ahead, Operation, Outcome, Store};

/// What is added to the name of a database for its journal.
pub(super) const NOTED_SUFFIX: &str = "-noted";

/// News that nobody has taken and that are kept: each is about a file that somebody removed.
const NEWS_MAX: usize = 16;

/// Most operations of a batch that is noted: larger ones share a transaction well by themselves.
const NOTED_OPERATIONS_MAX: usize = 32;

/// Most bytes of a batch that is noted: larger ones would be written twice for little.
const NOTED_BYTES_MAX: usize = 64 << 10;

/// Noted operations after which the database takes them all: it then writes them in about a millisecond.
const SETTLED_OPERATIONS: usize = 256;

/// Bytes of the journal after which the database takes all that is noted.
const SETTLED_BYTES: u64 = JOURNAL_BYTES_MAX / 4;

/// The tables of a kind of store, and its rules.
pub trait Schema: Sized + Send + 'static {
    /// What changes it.
    type Operation: Operation + Recorded + Clone;
    /// What of a job its changes touch.
    type Course: Copy + Send;

    /// What the file must be.
    const KIND: Kind;

    /// Tables whose rows belong to a job by their column `job`.
    const TABLES: &[&str];

    /// For a new job, what it begins with, or why it cannot.
    fn begin(operation: &Self::Operation) -> Option<Result<Self::Course, OperationError>>;

    /// How an operation changes a job's course, if it is sure to be taken where the job is known and not final.
    fn change(operation: &Self::Operation) -> Option<Change>;

    /// The rule for all operations but new jobs: takes a known job on, or refuses.
    fn advance(operation: &Self::Operation, course: &mut Self::Course) -> Outcome;

    /// The result that an operation brings.
    fn brought(operation: &Self::Operation) -> Option<Brought<'_>>;

    /// Whether the database has a result in the place of this one.
    fn has_result(connection: &Connection, number: i64, brought: &Brought<'_>) -> rusqlite::Result<bool>;

    /// What else the database would refuse of an operation that [`Schema::advance`] takes, decided by what is remembered. It
    /// must be remembered.
    fn count(operation: &Self::Operation, row: &mut JobRow<Self::Course>) -> Outcome;

    /// The state as it is stored.
    fn state(course: &Self::Course) -> &'static str;

    /// The number and the course of a job in the database.
    fn look_up(connection: &Connection, id: &JobId) -> rusqlite::Result<Option<(i64, Self::Course)>>;

    /// Writes a new job; its number, or `None` where its id is stored.
    fn insert(connection: &Connection, operation: &Self::Operation) -> rusqlite::Result<Option<i64>>;

    /// Writes what an operation that was taken leaves in a known job's rows. `ahead`: what may be there of it.
    fn write(
        connection: &Connection,
        operation: &Self::Operation,
        row: &mut JobRow<Self::Course>,
        ahead: Option<&Parts>,
    ) -> rusqlite::Result<Outcome>;
}

/// A job database in a file.
pub struct SqliteStore<S: Schema> {
    pub(super) database: Database,
    pub(super) rows: Rows<S::Course>,
    /// `None`: another process holds it, and everything goes into the database at once.
    pub(super) journal: Option<Journal>,
    /// What is noted and not in the database yet. Whatever of it `rows` does not remember is decided by the database.
    pub(super) noted: Vec<S::Operation>,
    /// Parts of a large result whose operation has not come yet.
    pub(super) ahead: Option<Parts>,
    /// Where parts stand that belong to nobody: their job and value.
    pub(super) dropped: Vec<(i64, i64)>,
    /// Where another process notes what it has not settled: queries see it too.
    pub(super) beside: Option<PathBuf>,
    /// Of the owner of the jobs: names files that are set aside.
    pub(super) stamp: Option<String>,
    /// What people should know and nobody has taken yet.
    pub(super) news: Vec<String>,
    retention: Retention,
}

impl<S: Schema> SqliteStore<S> {
    /// Opens or creates the file, readable for its owner only, and takes over what a process that died has noted beside it. A
    /// damaged file is kept under the name `<path>.damaged-<stamp>` and a new one begins; of a damaged journal a copy is kept.
    /// Errors: written by a newer version, not a database of this kind, no access, no space.
    ///
    /// One process at a time notes changes beside the database. A second one waits two seconds for the first to end, and then
    /// writes each change into the database at once.
    pub fn open(path: &Path, stamp: &str) -> Result<Self, StoreError> {
        Self::open_and(path, Some(stamp))
    }

    /// As [`SqliteStore::open`], for a process that looks at the jobs of another one, alive or dead: it sees what is noted as
    /// well. It is in nobody's way: it waits for nobody, keeps nothing locked, and leaves a damaged file to its owner, which is
    /// an error here.
    pub fn open_beside(path: &Path) -> Result<Self, StoreError> {
        let mut store = Self::open_and(path, None)?;
        // What could not be settled stands in the journal, and is read from there.
        store.journal = None;
        store.noted.clear();
        store.beside = Some(beside(&store.database.path, NOTED_SUFFIX));
        Ok(store)
    }

    /// With a stamp, for the owner of the jobs.
    fn open_and(path: &Path, stamp: Option<&str>) -> Result<Self, StoreError> {
        let mut database = Database::open(path, &S::KIND, stamp)?;
        let path = beside(&database.path, NOTED_SUFFIX);
        let failed = |error| file_error("open the job journal", &path, &error);
        let (journal, records, damage) = match Journal::open(&path, stamp.is_some(), failed, || mark(&database))? {
            // Whoever only looks leaves it to the owner to find out.
            Some(Found { damage: Some(_), .. }) if stamp.is_none() => (None, Vec::new(), None),
            Some(Found { journal, records, damage }) => (Some(journal), records, damage),
            None => (None, Vec::new(), None),
        };
        let noted = operations::<S>(&path, records)?;
        // The journal may have been made just now.
        database.files = Files::of(&database.path);
        let mut store = Self {
            database,
            rows: Rows::default(),
            journal,
            noted,
            ahead: None,
            dropped: Vec::new(),
            beside: None,
            stamp: stamp.map(str::to_owned),
            news: Vec::new(),
            retention: Retention::default(),
        };
        if store.database.sharing == Sharing::Alone {
            let path = store.database.path.display();
            store.news.push(format!(
                "no space left beside the job database {path}: no other process can read it until the next start with some \
                 space, and new jobs are refused meanwhile"
            ));
        }
        match store.settle() {
            // It stays noted until there is space.
            Ok(()) | Err(StoreError::DiskFull { .. }) => {}
            Err(error) => return Err(error),
        }
        if store.stamp.is_some() && store.journal.is_some() {
            store.database.remove_left_parts()?;
        }
        if let (Some(damage), Some(stamp)) = (damage, stamp) {
            store.database.set_aside = Some(store.set_journal_aside(path, stamp, damage));
        }
        Ok(store)
    }

    /// Keeps a damaged journal, by what a full disk leaves of three ways. None of them keeps the owner from starting.
    fn set_journal_aside(&mut self, path: PathBuf, stamp: &str, reason: String) -> SetAside {
        let aside =
            |kept, moved_to| SetAside { file: DamagedFile::Journal, kept, path: path.clone(), moved_to, reason };
        // What can be read of it must be in the database first.
        if self.noted.is_empty() {
            let copy = copy_aside(&path, stamp);
            if let (Some(copy), Some(journal)) = (copy, &mut self.journal)
                && journal.cut().is_ok()
            {
                return aside(Kept::Copied, copy);
            }
            if let Ok(moved_to) = move_aside(&path, stamp) {
                let begun = Journal::open(
                    &path,
                    true,
                    |error| file_error("open the job journal", &path, &error),
                    || mark(&self.database),
                );
                // Without one everything goes into the database at once.
                self.journal = begun.ok().flatten().map(|found| found.journal);
                self.database.files = Files::of(&self.database.path);
                return aside(Kept::Moved, moved_to);
            }
        }
        if let Some(journal) = &mut self.journal {
            journal.freeze();
        }
        aside(Kept::InPlace, path.clone())
    }

    /// What [`Store::prune`] keeps where it is not told otherwise: [`Retention::default`] unless this is called.
    #[must_use]
    pub fn with_retention(mut self, retention: Retention) -> Self {
        self.retention = retention;
        self
    }

    /// What [`Store::prune`] would remove in all its steps, about; nothing is changed.
    pub fn plan(&mut self, retention: &Retention, now: f64) -> Result<Pruned, StoreError> {
        self.settle()?;
        self.database.plan(S::TABLES, retention, now).map_err(|error| self.database.error(error))
    }

    /// For a store that was opened beside its owner: the number of the last change that the owner has noted and the database does
    /// not have. The owner brings it there by itself, when it has nothing else to do or enough has gathered. Whoever changes the
    /// database and does not wait for that ([`SqliteStore::has_noted`]) does so without the last that happened.
    pub fn noted_by_owner(&mut self) -> Result<Option<u64>, StoreError> {
        let Some(path) = self.beside.clone() else { return Ok(None) };
        let Database { connection, .. } = &self.database;
        let last = (|| {
            statement(connection, "BEGIN IMMEDIATE").map_err(|error| self.database.error(error))?;
            last_beside(&path, mark(&self.database)?).map_err(|error| file_error("read the job journal", &path, &error))
        })();
        if !connection.is_autocommit() {
            // It can fail only where nothing was begun.
            drop(statement(connection, "ROLLBACK"));
        }
        last
    }

    /// Whether the database has the change of this number, and all before it.
    pub fn has_noted(&self, number: u64) -> Result<bool, StoreError> {
        Ok(mark(&self.database)?.applied >= number)
    }

    /// Writes what was pruned into the file, which gets shorter by that, instead of leaving it to its owner to do so one day. Where
    /// another process reads, it is left to it.
    pub fn give_back(&mut self) -> Result<(), StoreError> {
        self.database.cut_log()
    }

    /// The ids of all jobs, the first stored first. What is no id is left out.
    pub fn ids(&mut self) -> Result<Vec<JobId>, StoreError> {
        self.read(None, |connection| {
            let mut select = connection.prepare_cached("SELECT id FROM job ORDER BY number")?;
            let ids = select.query_map([], |row| row.get::<_, String>(0))?.collect::<rusqlite::Result<Vec<_>>>()?;
            Ok(ids.iter().filter_map(|id| JobId::parse(id).ok()).collect())
        })
    }

    /// Never lets the file grow beyond so many pages of 4096 bytes, and notes nothing beside it: a full disk, for tests.
    pub fn limit_pages(&mut self, pages: u32) -> Result<(), StoreError> {
        self.settle()?;
        self.journal = None;
        self.database.number(&format!("PRAGMA max_page_count = {pages}")).map(|_| ())
    }

    /// Decides and notes operations. `None`: the database has to.
    fn note(&mut self, operations: &[S::Operation]) -> Result<Option<Vec<Outcome>>, StoreError> {
        let Some(journal) = &mut self.journal else { return Ok(None) };
        let bytes: usize = operations.iter().map(Operation::bytes).sum();
        if operations.len() > NOTED_OPERATIONS_MAX || bytes > NOTED_BYTES_MAX {
            return Ok(None);
        }
        let connection = &self.database.connection;
        if let Err(error) = self.rows.begin(connection) {
            self.rows.forget();
            return Err(self.database.error(error));
        }
        // Once forgotten, what is noted is no longer known here: a new job could be taken twice.
        if (!self.noted.is_empty() && self.rows.is_empty()) || !is_decidable::<S>(&mut self.rows, operations) {
            return Ok(None);
        }
        let decided = (|| {
            let mut outcomes = Vec::with_capacity(operations.len());
            for operation in operations {
                let Some(outcome) = decide::<S>(connection, &mut self.rows, operation)? else { return Ok(None) };
                outcomes.push(outcome);
            }
            Ok(Some(outcomes))
        })();
        let outcomes = match decided {
            Ok(Some(outcomes)) => outcomes,
            undecided => {
                self.rows.forget();
                return undecided.map_err(|error| self.database.error(error));
            }
        };
        if outcomes.iter().all(Result::is_err) {
            return Ok(Some(outcomes));
        }
        let taken = || operations.iter().zip(&outcomes).filter(|(_, outcome)| outcome.is_ok()).map(|(one, _)| one);
        let noted = journal.note(|record| taken().for_each(|operation| operation.write(record)));
        if !matches!(noted, Ok(true)) {
            // No room there or on the disk: the database has to take it, or to say why it cannot.
            self.rows.forget();
            return Ok(None);
        }
        self.noted.extend(taken().cloned());
        Ok(Some(outcomes))
    }

    /// Applies what was noted.
    pub(super) fn write_noted(&mut self) -> Result<(), StoreError> {
        if self.noted.is_empty() { Ok(()) } else { self.write(&[]).map(drop) }
    }

    /// Applies what was noted and then `operations`, in one transaction.
    pub(super) fn write(&mut self, operations: &[S::Operation]) -> Result<Vec<Outcome>, StoreError> {
        let bytes = operations.iter().filter(|one| !self.is_ahead(one)).map(Operation::bytes).sum();
        self.database.make_room(bytes, Through::OneTransaction)?;
        let Self { database, rows, journal, noted, ahead, .. } = self;
        let before = if noted.is_empty() { Rows::default() } else { std::mem::take(rows) };
        let all: Vec<&S::Operation> = noted.iter().chain(operations).collect();
        let superseded = superseded(&all, |operation| S::change(operation).map(|change| (operation.job(), change)));
        let last_noted = journal.as_ref().filter(|_| !noted.is_empty()).map(Journal::number);
        let applied = database.transaction(|connection, counts| {
            rows.begin(connection)?;
            let one =
                |(operation, superseded)| apply::<S>(connection, counts, rows, operation, superseded, ahead.as_ref());
            let outcomes = all.iter().copied().zip(superseded).map(one).collect::<rusqlite::Result<Vec<_>>>()?;
            if let Some(number) = last_noted {
                connection.prepare_cached("UPDATE noted SET number = ?1")?.execute([number.cast_signed()])?;
            }
            Ok(outcomes)
        });
        let mut outcomes = match applied {
            Ok(outcomes) => outcomes,
            Err(error) => {
                rows.forget();
                return Err(error);
            }
        };
        rows.add(before, operations.is_empty());
        let of_operations = outcomes.split_off(noted.len());
        for (operation, _) in noted.iter().zip(outcomes).filter(|(_, outcome)| outcome.is_err()) {
            // Another process was there first.
            rows.forget_one(operation.job());
        }
        noted.clear();
        if let Some(journal) = journal {
            journal.begin_anew();
        }
        self.end_parts(operations);
        Ok(of_operations)
    }
}

impl<S: Schema> Store for SqliteStore<S> {
    type Operation = S::Operation;

    fn apply(&mut self, operations: &[S::Operation]) -> Result<Vec<Outcome>, StoreError> {
        self.follow_files()?;
        match self.note(operations)? {
            Some(outcomes) => Ok(outcomes),
            None => self.write(operations),
        }
    }

    fn store_ahead(&mut self, operation: &S::Operation) -> Result<Ahead, StoreError> {
        self.store_part(operation)
    }

    fn drop_ahead(&mut self) {
        self.drop_parts();
    }

    fn settle(&mut self) -> Result<(), StoreError> {
        self.write_noted()?;
        // While a large result is stored the log is long for that.
        match (self.ahead.is_none(), self.database.log_is_long(), self.database.may_lack()) {
            (true, true, _) => self.database.cut_log(),
            (true, false, true) => self.database.write_back_lacking(),
            _ => Ok(()),
        }
    }

    fn is_settled(&self) -> bool {
        let is_written = self.noted.is_empty() && self.dropped.is_empty();
        is_written && !self.database.log_is_long() && !self.database.may_lack()
    }

    fn prune(&mut self, retention: &Retention, now: f64) -> Result<Pruned, StoreError> {
        self.write_noted()?;
        self.rows.forget();
        self.database.prune(S::TABLES, retention, now)
    }

    fn tidy(&mut self) -> Result<(), StoreError> {
        self.sweep()?;
        let much = self.journal.as_ref().is_some_and(|journal| journal.bytes() >= SETTLED_BYTES);
        if much || self.noted.len() >= SETTLED_OPERATIONS {
            // What the file lacks is for quieter times: it would be written back eight times as often here.
            self.write_noted()?;
        }
        self.database.tidy(self.ahead.is_some())
    }

    fn set_aside(&self) -> Option<&SetAside> {
        self.database.set_aside.as_ref()
    }

    fn retention(&self) -> Retention {
        self.retention
    }

    fn take_news(&mut self) -> Vec<String> {
        self.news.truncate(NEWS_MAX);
        std::mem::take(&mut self.news)
    }
}

impl<S: Schema> Drop for SqliteStore<S> {
    fn drop(&mut self) {
        self.database.join_write_back();
        // An error loses nothing: what is noted stays so, and the next process takes it over.
        drop(self.settle());
        if let Some(journal) = self.journal.as_mut().filter(|_| self.noted.is_empty()) {
            journal.empty();
        }
    }
}

/// What a database knows of its journal.
pub(super) fn mark(database: &Database) -> Result<Mark, StoreError> {
    let read = |row: &rusqlite::Row<'_>| Ok(Mark { applied: row.get::<_, i64>(0)?.cast_unsigned(), seed: row.get(1)? });
    database.connection.query_row("SELECT number, seed FROM noted", [], read).map_err(|error| database.error(error))
}

/// The operations of a journal's records.
pub(super) fn operations<S: Schema>(path: &Path, records: Records) -> Result<Vec<S::Operation>, StoreError> {
    let mut operations = Vec::new();
    for record in records {
        let mut record = &record[..];
        while !record.is_empty() {
            let operation = S::Operation::read(&mut record).ok_or_else(|| StoreError::Row {
                path: path.to_owned(),
                error: "a change that was noted is unknown: run the program that wrote it, or a later one".to_owned(),
            })?;
            operations.push(operation);
        }
    }
    Ok(operations)
}

/// Whether what is remembered is enough for all operations, but for new jobs whose ids are stored already.
fn is_decidable<S: Schema>(rows: &mut Rows<S::Course>, operations: &[S::Operation]) -> bool {
    let mut new = HashSet::new();
    operations.iter().all(|operation| {
        let id = operation.job();
        if S::begin(operation).is_some() {
            new.insert(id);
            return true;
        }
        new.contains(id) || rows.get(id).is_some_and(|row| row.is_complete())
    })
}

/// Decides an operation by what is remembered. `None`: that is not enough.
fn decide<S: Schema>(
    connection: &Connection,
    rows: &mut Rows<S::Course>,
    operation: &S::Operation,
) -> rusqlite::Result<Option<Outcome>> {
    let id = operation.job();
    let row = match (S::begin(operation), rows.get(id)) {
        (Some(Err(refused)), _) => return Ok(Some(Err(refused))),
        (Some(Ok(course)), row) => {
            if row.is_some() || S::look_up(connection, id)?.is_some() {
                return Ok(Some(Err(OperationError::Duplicate { id: id.clone() })));
            }
            rows.inserted(id, 0, course);
            return Ok(Some(Ok(())));
        }
        (None, Some(row)) if row.is_complete() => row,
        (None, _) => return Ok(None),
    };
    let mut course = row.course;
    let outcome = S::advance(operation, &mut course).and_then(|()| S::count(operation, row));
    if outcome.is_ok() {
        row.course = course;
        row.end_if(S::change(operation));
    }
    Ok(Some(outcome))
}

/// Applies an operation to the database.
pub(super) fn apply<S: Schema>(
    connection: &Connection,
    counts: &mut Counts,
    rows: &mut Rows<S::Course>,
    operation: &S::Operation,
    superseded: bool,
    ahead: Option<&Parts>,
) -> rusqlite::Result<Outcome> {
    let id = operation.job();
    match S::begin(operation) {
        None => {}
        Some(Err(refused)) => return Ok(Err(refused)),
        Some(Ok(course)) => {
            let Some(number) = S::insert(connection, operation)? else {
                return Ok(Err(OperationError::Duplicate { id: id.clone() }));
            };
            counts.change(None, S::state(&course));
            rows.inserted(id, number, course);
            return Ok(Ok(()));
        }
    }
    let Some(row) = rows.find(id, || S::look_up(connection, id))? else {
        return Ok(Err(OperationError::Unknown { id: id.clone() }));
    };
    let before = S::state(&row.course);
    if let Err(refused) = S::advance(operation, &mut row.course) {
        return Ok(Err(refused));
    }
    counts.change(Some(before), S::state(&row.course));
    row.end_if(S::change(operation));
    if superseded {
        return Ok(Ok(()));
    }
    S::write(connection, operation, row, ahead)
}
