//! Job databases in memory: for tests and simulations, under the same contract as the files.

mod client;
mod worker;

use std::collections::{BTreeMap, HashMap};

use norfab_protocol::name::JobId;

pub use client::MemoryClientStore;
pub use worker::MemoryWorkerStore;

use crate::error::OperationError;
use crate::retention::{PRUNED_JOBS_MAX, Pruned, Retention};

/// Rows by number, which is the order of insertion, and by id.
#[derive(Debug, Clone)]
struct Table<Row> {
    rows: BTreeMap<u64, Row>,
    numbers: HashMap<JobId, u64>,
    next: u64,
}

/// What the table must know of a row to forget it.
trait Prunable {
    fn id(&self) -> &JobId;
    fn finished(&self) -> Option<f64>;
    fn bytes(&self) -> u64;
}

impl<Row: Prunable> Table<Row> {
    fn new() -> Self {
        Self { rows: BTreeMap::new(), numbers: HashMap::new(), next: 0 }
    }

    fn get(&self, id: &JobId) -> Option<&Row> {
        self.rows.get(self.numbers.get(id)?)
    }

    fn get_mut(&mut self, id: &JobId) -> Option<&mut Row> {
        self.rows.get_mut(self.numbers.get(id)?)
    }

    /// The row of a job that operations are about.
    fn known(&mut self, id: &JobId) -> Result<&mut Row, OperationError> {
        self.get_mut(id).ok_or_else(|| OperationError::Unknown { id: id.clone() })
    }

    /// The caller made sure that the id is new.
    fn insert(&mut self, row: Row) {
        self.numbers.insert(row.id().clone(), self.next);
        self.rows.insert(self.next, row);
        self.next += 1;
    }

    fn bytes(&self) -> u64 {
        self.rows.values().map(Prunable::bytes).sum()
    }

    fn prune(&mut self, retention: &Retention, now: f64) -> Pruned {
        // In the order in which they were stored.
        let finished: Vec<(f64, u64)> =
            self.rows.iter().filter_map(|(number, row)| Some((row.finished()?, *number))).collect();
        let mut bytes = self.bytes();
        let mut kept = finished.len() as u64;
        let mut pruned = Pruned::default();
        for (end, number) in finished {
            if !retention.ends(end, now, kept, bytes) {
                break;
            }
            if pruned.jobs == PRUNED_JOBS_MAX as u64 {
                pruned.more = true;
                break;
            }
            if let Some(row) = self.rows.remove(&number) {
                self.numbers.remove(row.id());
                kept -= 1;
                bytes -= row.bytes();
                pruned.jobs += 1;
                pruned.bytes += row.bytes();
            }
        }
        pruned
    }
}
