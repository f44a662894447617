//! What a store remembers of the rows of jobs, so that a change need neither look for its job nor be written when a later
//! one of the same transaction replaces it.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet};

use norfab_protocol::name::{Identity, JobId};
use rusqlite::Connection;

use super::number;

/// Jobs that are remembered before all are forgotten: some more than are usually in flight. They are 2 MiB, beside the names of
/// the workers that unfinished ones have results of.
const ROWS_MAX: usize = 8192;

/// A job's row as the last change left it.
#[derive(Debug, Clone)]
pub struct JobRow<Course> {
    /// Its number in the database; 0 while it is only noted.
    pub number: i64,
    /// Where the job stands.
    pub course: Course,
    /// Events stored for it, if that is known.
    pub events: Option<u64>,
    /// Workers whose results are stored for it, if all are known. A worker's own database has none.
    pub returned: Option<HashSet<Identity>>,
}

impl<Course> JobRow<Course> {
    /// Whether nothing about the job need be looked up.
    pub(super) fn is_complete(&self) -> bool {
        self.events.is_some() && self.returned.is_some()
    }

    /// After its end a job takes no results, so nobody need know of which workers it has some.
    pub(super) fn end_if(&mut self, change: Option<Change>) {
        if change == Some(Change::Final) {
            self.returned = Some(HashSet::new());
        }
    }
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
    /// Called before the first change of each batch.
    pub(super) fn begin(&mut self, connection: &Connection) -> rusqlite::Result<()> {
        let version = number(connection, "PRAGMA data_version")?;
        if version != self.version || self.rows.len() > ROWS_MAX {
            self.forget();
        }
        self.version = version;
        Ok(())
    }

    /// After a batch that failed, and where rows were deleted.
    pub(super) fn forget(&mut self) {
        self.rows = HashMap::new();
    }

    pub(super) fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// Remembers a row that was just inserted.
    pub(super) fn inserted(&mut self, id: &JobId, number: i64, course: Course) {
        let row = JobRow { number, course, events: Some(0), returned: Some(HashSet::new()) };
        self.rows.insert(id.clone(), row);
    }

    /// The row of a job, if it is remembered.
    pub(super) fn get(&mut self, id: &JobId) -> Option<&mut JobRow<Course>> {
        self.rows.get_mut(id)
    }

    /// The row of a job; `look_up` reads its number and course when it is not remembered. `None`: there is none.
    pub(super) fn find(
        &mut self,
        id: &JobId,
        look_up: impl FnOnce() -> rusqlite::Result<Option<(i64, Course)>>,
    ) -> rusqlite::Result<Option<&mut JobRow<Course>>> {
        match self.rows.entry(id.clone()) {
            Entry::Occupied(row) => Ok(Some(row.into_mut())),
            Entry::Vacant(free) => {
                Ok(look_up()?
                    .map(|(number, course)| free.insert(JobRow { number, course, events: None, returned: None })))
            }
        }
    }

    /// Remembers again what was remembered before, where nothing later is. `settled`: only what was remembered was written, so
    /// that what is later adds the numbers of rows and nothing else.
    pub(super) fn add(&mut self, before: Self, settled: bool) {
        if before.version != self.version {
            return;
        }
        for (id, later) in std::mem::replace(&mut self.rows, before.rows) {
            match self.rows.get_mut(&id) {
                Some(row) if settled && row.is_complete() => row.number = later.number,
                _ => drop(self.rows.insert(id, later)),
            }
        }
    }

    /// Forgets one job.
    pub(super) fn forget_one(&mut self, id: &JobId) {
        self.rows.remove(id);
    }
}

/// What a change leaves of the changes of the same job before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Change {
    /// It writes all that they wrote, and is itself replaced by the next.
    Passing,
    /// It writes all that they wrote, and nothing may come after it.
    Final,
}

/// Which operations of a transaction need not be written, because a later one replaces them: a job of hundreds of workers
/// brings its growing lists again and again. `change` names only those that are sure to be taken if the job is known and
/// not final; both hold where something is replaced, since what is replaced was taken itself and is not final.
pub(super) fn superseded<'a, Operation>(
    operations: &[&'a Operation],
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
