//! The one thread that owns a store.
//!
//! Owners hand operations over and go on; the thread takes all that has gathered, commits once and confirms. What depends
//! on an operation (a POST, a 201, a result) leaves when its confirmation comes. A slow disk delays confirmations and
//! nothing else; a full disk makes them failures until there is space again. New jobs are refused then; what happened to others is
//! kept, in bounds, and stored when there is space.
//!
//! A large result goes into the store in parts. What is about other jobs passes it between two of them; what is about its own job
//! stays behind it.

mod aside;
mod held;
mod queue;
mod writing;

use std::sync::atomic::Ordering;
use std::sync::mpsc;
use std::sync::{Arc, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use self::queue::{EndOfThread, Query, RunQuery, Shared, Wants};
use crate::client::ClientStore;
use crate::error::StoreError;
use crate::sqlite::SetAside;
use crate::store::{Operation, Outcome, Store};
use crate::worker::WorkerStore;

/// Most operations that wait for the thread: some tenths of a second of work at the measured rate.
pub const QUEUE_OPERATIONS_MAX: usize = 8192;

/// Most bytes that wait for the thread. A single larger submission is taken when nothing else waits.
pub const QUEUE_BYTES_MAX: usize = 64 << 20;

/// Most queries that wait for the thread.
pub const QUEUE_QUERIES_MAX: usize = 1024;

/// News that wait for the owner: more than these say nothing new.
const NEWS_MAX: usize = 16;

/// Most operations in one commit, so that the first of them is not kept waiting by the last.
pub const BATCH_OPERATIONS_MAX: usize = 512;

/// How long operations that nobody waits for gather before they are committed, so that they share a commit with others: a
/// crash loses what happened in this time, which is as if it had come a moment earlier.
pub const GATHER_TIME: Duration = Duration::from_millis(5);

/// How long the thread has nothing to do before it settles its store: other processes then read what it holds.
pub const SETTLE_TIME: Duration = Duration::from_millis(100);

/// Operations that nobody waits for that are committed, or handed over, without further gathering.
pub const GATHER_OPERATIONS: usize = 256;

/// Bytes after which a commit takes no further operation, for the same reason.
pub const BATCH_BYTES_MAX: usize = 8 << 20;

/// How soon a store that is busy with parts of a large result is asked whether it takes the next.
const BUSY_PAUSE: Duration = Duration::from_millis(1);

/// Stack of the thread. SQLite without optimisation overflows 256 KiB when it opens a database. A process may have hundreds of
/// these threads, but pages of a stack that are never touched cost address space only.
pub const THREAD_STACK_BYTES: usize = 1 << 20;

/// What became of an operation that was submitted with a token. One that could not be stored is confirmed a second time when
/// it is, where that matters ([`Operation::is_confirmed_late`]), but not one that was given up ([`crate::OperationError::GivenUp`]).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Confirmation<Token> {
    /// The token of the operation.
    pub token: Token,
    /// Whether it is stored.
    pub outcome: Outcome,
}

/// Why operations were not taken. They come back unchanged.
#[derive(Debug, thiserror::Error)]
pub enum SubmitError<Submission> {
    /// [`QUEUE_OPERATIONS_MAX`] or [`QUEUE_BYTES_MAX`] reached: wait for confirmations, then submit again.
    #[error(
        "the queue of the job database is full ({QUEUE_OPERATIONS_MAX} operations or {QUEUE_BYTES_MAX} bytes): try again later"
    )]
    Full(Vec<Submission>),
    /// The writer ended.
    #[error("the writer of the job database has ended")]
    Closed(Vec<Submission>),
}

impl<Submission> SubmitError<Submission> {
    /// The operations, to submit them again.
    pub fn into_operations(self) -> Vec<Submission> {
        match self {
            Self::Full(operations) | Self::Closed(operations) => operations,
        }
    }
}

/// Why a query was not taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum QueryError {
    /// [`QUEUE_QUERIES_MAX`] reached.
    #[error("{QUEUE_QUERIES_MAX} queries already wait for the job database: try again when some are answered")]
    Full,
    /// The writer ended.
    #[error("the writer of the job database has ended")]
    Closed,
    /// The database is not told all that has happened: its disk or the queue is full.
    #[error("changes of jobs wait to be stored, because the disk is full or slow: try again when they are")]
    Behind,
}

/// What the thread did since it began.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct WriterStatistics {
    /// Transactions that succeeded.
    pub commits: u64,
    /// Operations that are stored.
    pub stored: u64,
    /// Operations that were refused one by one: duplicates, late progress.
    pub refused: u64,
    /// New jobs that were not stored, and other changes that were given up because too many wait for space.
    pub failed: u64,
    /// Times that tidying up failed: the log of the database grows until it succeeds.
    pub tidy_failures: u64,
    /// Operations that wait now, with those of large results.
    pub queued_operations: u64,
    /// Bytes that wait now, with those of large results: up to [`QUEUE_BYTES_MAX`] in the queue, and as many of large results.
    pub queued_bytes: u64,
}

/// An operation on the way to its store, with the token to confirm it by; without a token it is not confirmed.
pub type Submission<S, Token> = (<S as Store>::Operation, Option<Token>);

/// The handle of the thread that owns a store. Dropping it drains the queue and joins the thread.
pub struct StoreWriter<S: ?Sized + Store, Token> {
    shared: Arc<Shared<S, Token>>,
    thread: Option<JoinHandle<()>>,
    set_aside: Option<SetAside>,
}

/// The writer of a client's database.
pub type ClientWriter<Token> = StoreWriter<dyn ClientStore, Token>;

/// The writer of a worker's database.
pub type WorkerWriter<Token> = StoreWriter<dyn WorkerStore, Token>;

/// Starts the writer of a client's database; see [`spawn`].
pub fn spawn_client<Token: Clone + Send + 'static>(
    name: &str,
    open: impl FnOnce() -> Result<Box<dyn ClientStore>, StoreError> + Send + 'static,
    confirm: impl FnMut(Vec<Confirmation<Token>>) + Send + 'static,
) -> Result<ClientWriter<Token>, StoreError> {
    spawn(name, open, confirm)
}

/// Starts the writer of a worker's database; see [`spawn`].
pub fn spawn_worker<Token: Clone + Send + 'static>(
    name: &str,
    open: impl FnOnce() -> Result<Box<dyn WorkerStore>, StoreError> + Send + 'static,
    confirm: impl FnMut(Vec<Confirmation<Token>>) + Send + 'static,
) -> Result<WorkerWriter<Token>, StoreError> {
    spawn(name, open, confirm)
}

/// Starts a thread called `name` (the system shows 15 bytes of it), opens the store on it and waits until it is open.
/// `confirm` is called on that thread once per commit, with the confirmations in the order of submission, but that those of
/// other jobs pass a large result; it must not block and must not wait for this writer. Errors: those of `open`, and a thread that cannot be started.
pub fn spawn<S: ?Sized + Store + 'static, Token: Clone + Send + 'static>(
    name: &str,
    open: impl FnOnce() -> Result<Box<S>, StoreError> + Send + 'static,
    confirm: impl FnMut(Vec<Confirmation<Token>>) + Send + 'static,
) -> Result<StoreWriter<S, Token>, StoreError> {
    let shared = Arc::new(Shared::new());
    let failed = |error: String| StoreError::Thread { name: name.to_owned(), error };
    let (opened, open_result) = mpsc::sync_channel(1);
    let of_thread = Arc::clone(&shared);
    let thread = std::thread::Builder::new()
        .name(name.to_owned())
        .stack_size(THREAD_STACK_BYTES)
        .spawn(move || {
            let end = EndOfThread(of_thread);
            let told = match open() {
                Ok(mut store) => {
                    end.0.tell(store.take_news());
                    let told = opened.send(Ok(store.set_aside().cloned()));
                    writing::run(&end.0, store, confirm);
                    told
                }
                Err(error) => opened.send(Err(error)),
            };
            // Whoever spawned us waits for the answer, so it can only fail if that thread was torn down.
            drop(told);
        })
        .map_err(|error| failed(error.to_string()))?;
    let set_aside = open_result.recv().map_err(|_| failed("it ended while it opened the store".to_owned()))??;
    Ok(StoreWriter { shared, thread: Some(thread), set_aside })
}

impl<S: ?Sized + Store + 'static, Token: Clone + Send + 'static> StoreWriter<S, Token> {
    /// Hands operations over, all or none, without waiting. Errors: the queue is full or the writer ended; the operations
    /// come back.
    pub fn try_submit(&self, operations: Vec<Submission<S, Token>>) -> Result<(), SubmitError<Submission<S, Token>>> {
        let bytes = operations.iter().map(|(one, _)| one.bytes()).sum::<usize>();
        let mut queue = self.shared.lock();
        if queue.closed {
            return Err(SubmitError::Closed(operations));
        }
        if !queue.has_room(operations.len(), bytes) {
            return Err(SubmitError::Full(operations));
        }
        queue.bytes += bytes;
        queue.submitted += operations.len() as u64;
        queue.awaited += operations.iter().filter(|(_, token)| token.is_some()).count();
        queue.operations.extend(operations);
        self.shared.wake(queue);
        Ok(())
    }

    /// Runs `query` on the thread, after all that was submitted before, large results included, and after its confirmations. It
    /// delivers its answer itself, and is dropped without being run if the writer ends first. Errors: too many wait, or the writer ended.
    pub fn try_query(&self, query: impl FnOnce(&mut S) + Send + 'static) -> Result<(), QueryError> {
        self.put_query(Wants::Order, Box::new(move |store, _| query(store)))
    }

    /// As [`Self::try_query`], for who acts on the answer: a change that could not be stored has happened all the same, and its job
    /// must not be taken for what its row says. Such changes are tried once more before the query runs, and while one is left it
    /// gets [`QueryError::Behind`] and not the store.
    pub fn try_query_whole(
        &self,
        query: impl FnOnce(Result<&mut S, QueryError>) + Send + 'static,
    ) -> Result<(), QueryError> {
        let query =
            move |store: &mut S, is_whole: bool| query(if is_whole { Ok(store) } else { Err(QueryError::Behind) });
        self.put_query(Wants::All, Box::new(query))
    }

    /// As [`Self::try_query`], for who can use what is there: the query passes large results, and is told whether that is all, or
    /// changes that have happened are missing because they are not stored yet or could not be.
    pub fn try_query_telling(&self, query: impl FnOnce(&mut S, bool) + Send + 'static) -> Result<(), QueryError> {
        self.put_query(Wants::Whatever, Box::new(query))
    }

    fn put_query(&self, wants: Wants, run: RunQuery<S>) -> Result<(), QueryError> {
        let mut queue = self.shared.lock();
        queue.accepts_query()?;
        let after = queue.submitted;
        queue.queries.push_back(Query { after, wants, run });
        self.shared.wake(queue);
        Ok(())
    }

    /// Whether [`Self::try_query`] would take a query now. Errors: why not.
    pub fn accepts_query(&self) -> Result<(), QueryError> {
        self.shared.lock().accepts_query()
    }

    /// As [`Self::try_query`], with a receiver for the answer; it reports a disconnection if the writer ends first.
    pub fn try_ask<Answer: Send + 'static>(
        &self,
        query: impl FnOnce(&mut S) -> Answer + Send + 'static,
    ) -> Result<mpsc::Receiver<Answer>, QueryError> {
        let (sender, receiver) = mpsc::sync_channel(1);
        self.try_query(move |store| {
            // Whoever asked may have gone, and then nobody misses the answer.
            drop(sender.send(query(store)));
        })?;
        Ok(receiver)
    }

    /// The damaged file that was set aside when the store was opened: tell people.
    pub fn set_aside(&self) -> Option<&SetAside> {
        self.set_aside.as_ref()
    }

    /// What people should know of that happened since the last time.
    pub fn take_news(&self) -> Vec<String> {
        if !self.shared.has_news.swap(false, Ordering::AcqRel) {
            return Vec::new();
        }
        std::mem::take(&mut self.shared.news.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// What the thread did so far.
    pub fn statistics(&self) -> WriterStatistics {
        let counters = &self.shared.counters;
        let (queued_operations, queued_bytes) = {
            let queue = self.shared.lock();
            let operations = queue.operations.len() + queue.aside.operations;
            (operations as u64, (queue.bytes + queue.aside.bytes) as u64)
        };
        WriterStatistics {
            commits: counters.commits.load(Ordering::Relaxed),
            stored: counters.stored.load(Ordering::Relaxed),
            refused: counters.refused.load(Ordering::Relaxed),
            failed: counters.failed.load(Ordering::Relaxed),
            tidy_failures: counters.tidy_failures.load(Ordering::Relaxed),
            queued_operations,
            queued_bytes,
        }
    }

    /// Refuses new operations, stores and confirms those that wait, answers queries, closes the store. The same as dropping.
    pub fn close(self) {
        drop(self);
    }
}

impl<S: ?Sized + Store, Token> Drop for StoreWriter<S, Token> {
    fn drop(&mut self) {
        let mut queue = self.shared.lock();
        queue.closed = true;
        self.shared.wake(queue);
        if let Some(thread) = self.thread.take()
            && thread.thread().id() != std::thread::current().id()
        {
            // A panic of the thread was printed when it happened, and all that waited for it was disconnected.
            drop(thread.join());
        }
    }
}
