//! Job databases of clients and workers.
//!
//! A client's database is its queue: submitting writes the job and returns. A worker's database is its promise: what it
//! acknowledged is in there. So both are written **before** the message that depends on it leaves, and both are read back
//! after a restart.
//!
//! Reading order:
//! 1. [`client`] and [`worker`]: what is stored, the operations that change it, and the rules of change. The rules are
//!    plain functions that all implementations call; there is no second copy of them in SQL.
//! 2. [`store`]: the trait that all stores share, and what an operation may answer.
//! 3. [`sqlite`]: one file per client or worker. [`memory`]: the same for tests and simulations.
//! 4. [`writer`]: the one thread that owns a store, commits in groups and confirms.
//! 5. [`retention`]: what is forgotten, and when. [`python`]: databases that Python NorFab left. [`testing`]: a store that fails, for tests.
//!
//! What a confirmation means: the operation survives the death of the process (kill -9 included). A few small operations are
//! noted in a journal beside the database first, `jobs.db-noted`, and go into it many at a time, and when there is a pause.
//! SQLite runs in WAL mode with `synchronous = NORMAL`, so
//! after a loss of power the database is whole but may lack the last moments.
//!
//! Times are seconds of the Unix epoch as `f64`, given by the caller; nothing here reads a clock.

pub mod client;
mod course;
pub mod error;
pub mod memory;
pub mod python;
pub mod retention;
pub mod sqlite;
pub mod store;
pub mod testing;
pub mod worker;
pub mod writer;

pub use client::{ClientJob, ClientJobDetails, ClientJobFilter, ClientOperation, ClientState, ClientStore};
pub use error::{OperationError, StoreError};
pub use memory::{MemoryClientStore, MemoryWorkerStore};
pub use retention::{Pruned, Retention};
pub use sqlite::{DamagedFile, Kept, SetAside, SqliteClientStore, SqliteWorkerStore};
pub use store::{
    Ahead, EVENTS_PER_JOB_MAX, LARGE_BYTES, LISTED_JOBS_MAX, Operation, Outcome, PAGE_BYTES_MAX, Page, PageEnd,
    Statistics, Store, UnreadableJob,
};
pub use worker::{WorkerJob, WorkerJobDetails, WorkerJobFilter, WorkerOperation, WorkerState, WorkerStore};
pub use writer::{
    ClientWriter, Confirmation, QueryError, StoreWriter, SubmitError, WorkerWriter, WriterStatistics, spawn,
    spawn_client, spawn_worker,
};
