//! An owner's end of its store: what gathers here, is handed over, asked, read back and forgotten.

use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::time::{Duration, Instant};

use norfab_jobs::writer::{GATHER_OPERATIONS, GATHER_TIME, WriterStatistics};
use norfab_jobs::{Page, PageEnd, QueryError, Store, StoreError, StoreWriter, SubmitError};
use tracing::{error, warn};

use crate::clock::SystemClock;
use crate::inbox::Submitted;
use crate::pruning::{self, Pruning};
use crate::throttle::StoreFailures;

/// Store operations that may wait for the writer's queue before nothing more is taken in from the link.
const OPERATIONS_HIGH: usize = 4096;

/// How soon the writer's full queue is tried again. Only while it is full: an idle loop does not tick.
pub(crate) const STORE_RETRY: Duration = Duration::from_millis(5);

/// How long an owner waits at its end for what is not stored yet: a disk that hangs must not keep its process from ending. What may wait
/// is stored within a second on a good disk, and within this on one that takes 10 MB/s.
const CLOSE_WAIT: Duration = Duration::from_secs(10);

/// Jobs that are read back at once at start.
const RESTORE_PAGE: usize = 1000;

/// Jobs of such a page that cannot be read and are logged one by one.
const UNREADABLE_LOGGED: usize = 10;

/// How soon it is tried again to read what the last process left, where that needs space on the disk.
pub(crate) const RESTORE_AGAIN: Duration = Duration::from_secs(1);

/// What the last process left cannot be read as long as the disk is full; why, for people.
#[derive(Debug)]
pub(crate) struct NoSpace(pub(crate) String);

/// Opens a store on its thread, which runs as promptly as its owner: nothing is answered before it is stored.
pub(crate) fn promptly<Opened>(
    open: impl FnOnce() -> Opened + Send + 'static,
) -> impl FnOnce() -> Opened + Send + 'static {
    move || {
        norfab_transport::run_promptly();
        open()
    }
}

/// Runs on the store's thread and delivers its answer itself; an error says why it was not run.
pub(crate) type StoreQuery<S> = Box<dyn FnOnce(Result<&mut S, QueryError>) + Send>;

/// The owner's end.
pub(crate) struct Storing<S: ?Sized + Store + 'static, Token> {
    /// The role and its name, for people.
    who: String,
    writer: StoreWriter<S, Token>,
    operations: Vec<(S::Operation, Option<Token>)>,
    /// Until when operations that nobody waits for gather here.
    gather_until: Option<Instant>,
    failures: StoreFailures,
    pruning: Pruning,
}

impl<S: ?Sized + Store + 'static, Token: Clone + Send + 'static> Storing<S, Token> {
    pub(crate) fn new(who: String, writer: StoreWriter<S, Token>, now: Instant) -> Self {
        if let Some(aside) = writer.set_aside() {
            warn!("{who}: {aside}");
        }
        Self {
            who,
            writer,
            operations: Vec::new(),
            gather_until: None,
            failures: StoreFailures::default(),
            pruning: Pruning::new(now),
        }
    }

    /// Takes an operation. With a token it will be confirmed.
    pub(crate) fn push(&mut self, operation: S::Operation, token: Option<Token>) {
        self.operations.push((operation, token));
    }

    /// Whether everything was handed over.
    pub(crate) fn is_empty(&self) -> bool {
        self.operations.is_empty()
    }

    /// Whether so much waits that nothing more should come in.
    pub(crate) fn is_behind(&self) -> bool {
        self.operations.len() >= OPERATIONS_HIGH
    }

    /// Hands operations over if somebody waits for one of them, or they have gathered for a while: each time costs a wake-up
    /// of the store's thread. Now and then it says how many failed.
    pub(crate) fn gather(&mut self, now: Instant) -> Submitted {
        for news in self.writer.take_news() {
            warn!("{}: {news}", self.who);
        }
        if let Some(failed) = self.failures.news(now, || self.writer.statistics()) {
            error!("{}: {failed}", self.who);
        }
        if self.operations.iter().all(|(_, token)| token.is_none())
            && self.operations.len() < GATHER_OPERATIONS
            && self.gather_until.is_none_or(|until| now < until)
        {
            if !self.operations.is_empty() {
                self.gather_until.get_or_insert(now + GATHER_TIME);
            }
            return Submitted::Now;
        }
        self.submit()
    }

    /// Hands all operations to the store's thread.
    pub(crate) fn submit(&mut self) -> Submitted {
        self.gather_until = None;
        if self.operations.is_empty() {
            return Submitted::Now;
        }
        self.failures.submitted = true;
        match self.writer.try_submit(std::mem::take(&mut self.operations)) {
            Ok(()) => Submitted::Now,
            Err(SubmitError::Full(operations)) => {
                self.operations = operations;
                Submitted::Later
            }
            Err(SubmitError::Closed(lost)) => {
                error!("{}: the store has ended, {} changes of jobs are lost", self.who, lost.len());
                Submitted::Closed
            }
        }
    }

    /// The last: hands all over, waits until it is stored, and closes the store. Not for a disk that hangs: what is not stored then is
    /// told, and the next process finds it as if this one had been killed.
    pub(crate) fn close(self) {
        self.close_within(CLOSE_WAIT);
    }

    fn close_within(mut self, wait: Duration) {
        let end = SystemClock::now() + wait;
        let mut later = false;
        while self.submit() == Submitted::Later {
            // The writer's queue is full and it works on it.
            later = SystemClock::now() >= end;
            if later {
                break;
            }
            std::thread::park_timeout(STORE_RETRY);
        }
        let Self { who, writer, .. } = self;
        let (ends, ended) = sync_channel::<()>(0);
        // The writer waits for its thread without a bound, so another one waits for that.
        let closing = std::thread::Builder::new().name("s-closing".to_owned()).spawn(move || {
            writer.close();
            drop(ends);
        });
        let left = if later { Duration::ZERO } else { end.saturating_duration_since(SystemClock::now()) };
        let ended = match closing {
            // It says nothing, and is gone when it has ended.
            Ok(_) => ended.recv_timeout(left) != Err(RecvTimeoutError::Timeout),
            // The writer was closed where the thread would have been, and was waited for.
            Err(_) => true,
        };
        if !ended {
            error!(
                "{who}: its disk takes more than {} s to store what happened last, and is not waited for: jobs may be found as they \
                 were before",
                wait.as_secs()
            );
        }
    }

    /// When [`Storing::gather`] or [`Storing::prune`] is wanted although nothing else happens. `submitted` is the last answer
    /// of the former.
    pub(crate) fn deadline(&self, now: Instant, submitted: Submitted) -> Option<Instant> {
        let retry = (submitted == Submitted::Later).then_some(now + STORE_RETRY);
        [self.gather_until, self.pruning.deadline(), retry].into_iter().flatten().min()
    }

    /// Forgets a bounded number of old jobs, if it is time. `tell` is called on the store's thread with whether there are more,
    /// and [`Storing::pruned`] has to be told.
    pub(crate) fn prune(&mut self, now: Instant, tell: impl FnOnce(bool) + Send + 'static) {
        if !self.pruning.take(now) {
            return;
        }
        if self.writer.try_query(move |store| tell(pruning::step(store))).is_err() {
            self.pruning.ended(now, false);
        }
    }

    /// A step of forgetting has ended.
    pub(crate) fn pruned(&mut self, now: Instant, more: bool) {
        self.pruning.ended(now, more);
    }

    /// Runs a query of somebody else after all that was handed over before.
    pub(crate) fn query(&mut self, query: StoreQuery<S>) {
        self.submit();
        match self.writer.accepts_query() {
            Ok(()) => {
                if let Err(error) = self.writer.try_query(move |store| query(Ok(store))) {
                    warn!("{}: {error}", self.who);
                }
            }
            Err(error) => query(Err(error)),
        }
    }

    /// Runs a query of the owner's own after all that was handed over before. It is told whether the store has all that has
    /// happened: a row may be older where its disk or its queue is full. Errors: it is not run.
    pub(crate) fn ask(&mut self, query: impl FnOnce(&mut S, bool) + Send + 'static) -> Result<(), QueryError> {
        let handed_over = self.submit() == Submitted::Now;
        self.writer.try_query_telling(move |store, is_whole| query(store, is_whole && handed_over))
    }

    /// Runs a query that must know all that happened before, because the owner begins jobs by its answer, after that is stored.
    /// Errors: it is not run; the store's queue has no room for what happened before. Where its disk has none, the query is told.
    pub(crate) fn ask_whole(
        &mut self,
        query: impl FnOnce(Result<&mut S, QueryError>) + Send + 'static,
    ) -> Result<(), QueryError> {
        match self.submit() {
            Submitted::Now => self.writer.try_query_whole(query),
            Submitted::Later => Err(QueryError::Behind),
            Submitted::Closed => Err(QueryError::Closed),
        }
    }

    /// Asks at the start, and waits for the answer. `None`: there is none, which is logged.
    pub(crate) fn first<Answer: Send + 'static>(
        &self,
        query: impl FnOnce(&mut S) -> Result<Answer, StoreError> + Send + 'static,
    ) -> Option<Answer> {
        let problem = match self.writer.try_ask(query).map(|answer| answer.recv()) {
            Ok(Ok(Ok(answer))) => return Some(answer),
            Ok(Ok(Err(error))) => error.to_string(),
            Ok(Err(_)) | Err(_) => "the store has ended".to_owned(),
        };
        error!("{}: the job database has no answer: {problem}", self.who);
        None
    }

    /// Reads back a page of what the last process left; waits for it. Empty at the end, and when it cannot be read, which is
    /// logged. Errors: not before there is space on the disk, which changes that were noted last need to become readable.
    pub(crate) fn unfinished<Job: Send + 'static>(
        &self,
        after: Option<PageEnd>,
        read: impl FnOnce(&mut S, Option<PageEnd>, usize) -> Result<Page<Job>, StoreError> + Send + 'static,
    ) -> Result<(Vec<Job>, Option<PageEnd>), NoSpace> {
        let asked = self.writer.try_ask(move |store| read(store, after, RESTORE_PAGE));
        let problem = match asked.map(|answer| answer.recv()) {
            Ok(Ok(Ok(Page { jobs, unreadable, end }))) => {
                for problem in unreadable.iter().take(UNREADABLE_LOGGED) {
                    error!("{}: an unfinished job cannot be read and stays as it is: {}", self.who, problem.error);
                }
                if unreadable.len() > UNREADABLE_LOGGED {
                    error!("{}: {} more cannot be read", self.who, unreadable.len() - UNREADABLE_LOGGED);
                }
                return Ok((jobs, end));
            }
            Ok(Ok(Err(error @ StoreError::DiskFull { .. }))) => return Err(NoSpace(error.to_string())),
            Ok(Ok(Err(error))) => error.to_string(),
            Ok(Err(_)) | Err(_) => "the store has ended".to_owned(),
        };
        error!("{}: unfinished jobs cannot be read: {problem}", self.who);
        Ok((Vec::new(), None))
    }

    /// What the store's thread did so far.
    pub(crate) fn statistics(&self) -> WriterStatistics {
        self.writer.statistics()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use norfab_jobs::{MemoryWorkerStore, WorkerOperation, WorkerStore, spawn_worker};
    use norfab_protocol::JobId;

    use super::*;

    /// Far more than anything here takes.
    const DEADLINE: Duration = Duration::from_secs(20);

    #[test]
    fn a_disk_that_hangs_does_not_keep_an_owner_from_ending() {
        for waits in [0, 1, norfab_jobs::writer::QUEUE_OPERATIONS_MAX + 1] {
            let (confirmed, stored) = mpsc::sync_channel(1);
            let open = || Ok(Box::new(MemoryWorkerStore::default()) as Box<dyn WorkerStore>);
            // The first one is enough.
            let confirm = move |_| confirmed.try_send(()).unwrap_or_default();
            let writer = spawn_worker::<u8>("s-test", open, confirm).expect("a thread");
            let mut storing = Storing::new("worker w".to_owned(), writer, SystemClock::now());
            let (done, hangs) = mpsc::sync_channel::<()>(1);
            let (begins, begun) = mpsc::sync_channel(1);
            storing.query(Box::new(move |_| {
                begins.send(()).expect("the test waits for it");
                hangs.recv().expect("the test ends it");
            }));
            begun.recv_timeout(DEADLINE).expect("it hangs");
            let operation = |number: usize| {
                let id = JobId::parse(&number.to_string()).expect("a name");
                (WorkerOperation::Answered { id }, Some(0))
            };
            // Those that wait for room are one more than what is handed over at once.
            for some in [0..waits.min(1), waits.min(1)..waits] {
                some.map(operation).for_each(|(operation, token)| storing.push(operation, token));
                storing.submit();
            }
            let (to_say, said) = mpsc::sync_channel(1);
            std::thread::spawn(move || {
                storing.close_within(Duration::from_millis(50));
                to_say.send(()).expect("the test waits for it");
            });
            said.recv_timeout(DEADLINE).expect("it ends all the same");
            // The thread that was left ends too, when it can.
            done.send(()).expect("it waits for it");
            if waits > 0 {
                stored.recv_timeout(DEADLINE).expect("what was handed over is stored");
            }
        }
    }

    #[test]
    fn an_owner_that_ends_waits_for_what_is_not_stored_yet() {
        let (confirmed, stored) = mpsc::sync_channel(1);
        let open = || Ok(Box::new(MemoryWorkerStore::default()) as Box<dyn WorkerStore>);
        let confirm = move |_| confirmed.try_send(()).expect("room");
        let writer = spawn_worker::<u8>("s-test", open, confirm).expect("a thread");
        let mut storing = Storing::new("worker w".to_owned(), writer, SystemClock::now());
        storing.push(WorkerOperation::Answered { id: JobId::parse("1").expect("a name") }, Some(0));
        storing.close();
        stored.try_recv().expect("it is stored");
    }
}
