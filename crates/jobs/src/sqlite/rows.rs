//! What a store remembers of the rows of jobs, so that a change need neither look for its job nor be written when a later
//! one of the same transaction replaces it.

use std::collections::{HashMap, HashSet};

use norfab_protocol::name::JobId;
use rusqlite::Connection;

use super::number;

/// Jobs that are remembered before all are forgotten: some more than are usually in flight, and 2 MiB.
const ROWS_MAX: usize = 8192;

/// A job's row as the last change left it.
#[derive(Debug, Clone, Copy)]
pub(super) struct JobRow<Course> {
    pub number: i64,
    pub course: Course,
    /// Events stored for it; `None` until the first is stored after the row was looked up.
    pub events: Option<u64>,
}

/// Rows that this connection wrote or looked up lately.
#[derive(Debug)]
pub(super) struct Rows<Course> {
    rows: HashMap<JobId, JobRow<Course>>,
    /// Differs when another process wrote: then nothing that is remembered can be trusted.
    version: u64,
}

impl<Course> Default for Rows<Course> {
    fn default() -> Self {
        Self { rows: HashMap::new(), version: 0 }
    }
}

impl<Course> Rows<Course> {
    /// Called within each transaction before its first change.
    pub(super) fn begin(&mut self, connection: &Connection) -> rusqlite::Result<()> {
        let version = number(connection, "PRAGMA data_version")?;
        if version != self.version || self.rows.len() > ROWS_MAX {
            self.forget();
        }
        self.version = version;
        Ok(())
    }

    /// After a transaction that failed, and where rows were deleted.
    pub(super) fn forget(&mut self) {
        self.rows = HashMap::new();
    }

    /// Remembers a row that was just inserted.
    pub(super) fn inserted(&mut self, id: &JobId, number: i64, course: Course) {
        self.rows.insert(id.clone(), JobRow { number, course, events: Some(0) });
    }

    /// The row of a job; `look_up` reads its number and course when it is not remembered. `None`: there is none.
    pub(super) fn find(
        &mut self,
        id: &JobId,
        look_up: impl FnOnce() -> rusqlite::Result<Option<(i64, Course)>>,
    ) -> rusqlite::Result<Option<&mut JobRow<Course>>> {
        if !self.rows.contains_key(id) {
            let Some((number, course)) = look_up()? else { return Ok(None) };
            self.rows.insert(id.clone(), JobRow { number, course, events: None });
        }
        Ok(self.rows.get_mut(id))
    }
}

/// What a change leaves of the changes of the same job before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Change {
    /// It writes all that they wrote, and is itself replaced by the next.
    Passing,
    /// It writes all that they wrote, and nothing may come after it.
    Final,
}

/// Which operations of a transaction need not be written, because a later one replaces them: a job of hundreds of workers
/// brings its growing lists again and again. `change` names only those that are sure to be taken if the job is known and
/// not final; both hold where something is replaced, since what is replaced was taken itself and is not final.
pub(super) fn superseded<'a, Operation>(
    operations: &'a [Operation],
    change: impl Fn(&'a Operation) -> Option<(&'a JobId, Change)>,
) -> Vec<bool> {
    let mut later = HashSet::new();
    let mut superseded: Vec<bool> = operations
        .iter()
        .rev()
        .map(|operation| change(operation).is_some_and(|(id, change)| !later.insert(id) && change == Change::Passing))
        .collect();
    superseded.reverse();
    superseded
}
