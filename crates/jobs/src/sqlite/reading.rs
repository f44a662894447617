//! How questions are asked: of the database, or beside its owner, as it will be when it has what the owner noted.

use std::path::Path;

use norfab_protocol::name::JobId;
use rusqlite::{Connection, Row, params};

use super::journal::read_beside;
use super::open::file_error;
use super::rows::Rows;
use super::store::{Schema, SqliteStore, apply, mark, operations};
use super::{Counts, Database, statement, store_error};
use crate::error::StoreError;
use crate::store::{LISTED_JOBS_MAX, Operation, PAGE_BYTES_MAX, Page, PageEnd, Paged, UnreadableJob};

impl<S: Schema> SqliteStore<S> {
    /// Asks the database about all jobs, or about one. On a full disk it can answer only about jobs of which nothing is noted.
    pub(super) fn read<T>(
        &mut self,
        job: Option<&JobId>,
        query: impl FnOnce(&Connection) -> rusqlite::Result<T>,
    ) -> Result<T, StoreError> {
        if let Some(path) = self.beside.clone() {
            return self.read_beside(&path, query);
        }
        let concerned = |noted: &[S::Operation]| job.is_none_or(|job| noted.iter().any(|one| one.job() == job));
        match self.write_noted() {
            Err(StoreError::DiskFull { .. }) if !concerned(&self.noted) => {}
            settled => settled?,
        }
        query(&self.database.connection).map_err(|error| self.database.error(error))
    }

    /// A page of unfinished jobs; `columns` are what `read` reads. One row that cannot be read keeps none of the others back.
    pub(super) fn page<Job: Paged>(
        &mut self,
        columns: &str,
        after: Option<PageEnd>,
        limit: usize,
        read: impl Fn(&Connection, &Row<'_>) -> rusqlite::Result<Job>,
    ) -> Result<Page<Job>, StoreError> {
        let (time, id) = after.unwrap_or((f64::NEG_INFINITY, String::new()));
        let sql = format!(
            "SELECT {columns} FROM job WHERE finished IS NULL AND (submitted, id) > (?1, ?2) \
             ORDER BY submitted, id LIMIT ?3"
        );
        self.page_of(&sql, params![time, id, limit.min(LISTED_JOBS_MAX) as i64], read)
    }

    /// What a query finds, as a page.
    pub(super) fn page_of<Job: Paged>(
        &mut self,
        sql: &str,
        parameters: impl rusqlite::Params,
        read: impl Fn(&Connection, &Row<'_>) -> rusqlite::Result<Job>,
    ) -> Result<Page<Job>, StoreError> {
        let path = self.database.path.clone();
        self.read(None, |connection| {
            let mut select = connection.prepare_cached(sql)?;
            let mut rows = select.query(parameters)?;
            let mut page = Page { jobs: Vec::new(), unreadable: Vec::new(), end: None };
            let mut bytes = 0;
            while bytes < PAGE_BYTES_MAX
                && let Some(row) = rows.next()?
            {
                let id = row.get::<_, String>("id");
                match read(connection, row) {
                    Ok(job) => {
                        bytes += job.request_bytes();
                        page.jobs.push(job);
                    }
                    Err(error) => {
                        let id = id.as_ref().ok().and_then(|id| JobId::parse(id).ok());
                        page.unreadable.push(UnreadableJob { id, error: store_error(path.clone(), &error) });
                    }
                }
                if let (Ok(time), Ok(id)) = (row.get("submitted"), id) {
                    page.end = Some((time, id));
                }
            }
            Ok(page)
        })
    }

    /// Asks the database as it will be when it has what another process noted: in a transaction that is then taken back.
    fn read_beside<T>(
        &mut self,
        path: &Path,
        query: impl FnOnce(&Connection) -> rusqlite::Result<T>,
    ) -> Result<T, StoreError> {
        let Database { connection, .. } = &self.database;
        let asked = (|| {
            statement(connection, "BEGIN IMMEDIATE").map_err(|error| self.database.error(error))?;
            let mark = mark(&self.database)?;
            let records = read_beside(path, mark).map_err(|error| file_error("read the job journal", path, &error))?;
            let (mut rows, mut counts) = (Rows::default(), Counts::default());
            for operation in operations::<S>(path, records)? {
                // What is refused here will be refused there.
                drop(
                    apply::<S>(connection, &mut counts, &mut rows, &operation, false, None)
                        .map_err(|error| self.database.error(error))?,
                );
            }
            query(connection).map_err(|error| self.database.error(error))
        })();
        if !connection.is_autocommit() {
            // It can fail only where nothing was begun.
            drop(statement(connection, "ROLLBACK"));
        }
        asked
    }
}
