//! What waits for the writer's thread, and how the thread takes it.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::aside::{Aside, Load};
use super::{
    BATCH_BYTES_MAX, BATCH_OPERATIONS_MAX, BUSY_PAUSE, GATHER_OPERATIONS, GATHER_TIME, NEWS_MAX, QUEUE_BYTES_MAX,
    QUEUE_OPERATIONS_MAX, QUEUE_QUERIES_MAX, QueryError, Submission,
};
use crate::store::{Operation, Outcome, Store};

/// Is told whether the store has all changes.
pub(super) type RunQuery<S> = Box<dyn FnOnce(&mut S, bool) + Send>;

pub(super) struct Query<S: ?Sized> {
    /// The operations that were submitted before it.
    pub(super) after: u64,
    pub(super) wants: Wants,
    pub(super) run: RunQuery<S>,
}

impl<S: ?Sized + Store> Query<S> {
    /// Whether it need not wait for what is aside.
    fn passes<Token>(&self, aside: &Aside<S::Operation, Token>) -> bool {
        self.wants == Wants::Whatever || aside.has_none_up_to(self.after)
    }
}

/// What of what was submitted before it a query wants to see.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Wants {
    /// What is there, at once.
    Whatever,
    /// All, but for what could not be stored.
    Order,
    /// All: it is worth trying once more to store what could not be.
    All,
}

pub(super) struct Queue<S: ?Sized + Store, Token> {
    pub(super) operations: VecDeque<Submission<S, Token>>,
    pub(super) bytes: usize,
    /// What the thread has aside.
    pub(super) aside: Load,
    /// Operations that were ever submitted, and those of them that the thread took.
    pub(super) submitted: u64,
    taken: u64,
    pub(super) queries: VecDeque<Query<S>>,
    /// Operations with a token among those that wait: somebody waits for them.
    pub(super) awaited: usize,
    /// How the thread sleeps: waking it costs a system call that is not needed otherwise.
    sleep: Sleep,
    pub(super) closed: bool,
}

/// How the thread sleeps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Sleep {
    Awake,
    /// There is nothing to do.
    Idle,
    /// There is something that nobody waits for.
    Gathering,
}

impl<S: ?Sized + Store, Token> Queue<S, Token> {
    pub(super) fn accepts_query(&self) -> Result<(), QueryError> {
        match (self.closed, self.queries.len() >= QUEUE_QUERIES_MAX) {
            (true, _) => Err(QueryError::Closed),
            (false, true) => Err(QueryError::Full),
            (false, false) => Ok(()),
        }
    }

    /// Whether there is room for so many operations and bytes more. A single larger submission is taken when nothing else waits.
    pub(super) fn has_room(&self, operations: usize, bytes: usize) -> bool {
        let (operations_waiting, bytes_waiting) =
            (self.operations.len() + self.aside.operations_beyond, self.bytes + self.aside.bytes_beyond);
        let fits = operations_waiting + operations <= QUEUE_OPERATIONS_MAX && bytes_waiting + bytes <= QUEUE_BYTES_MAX;
        fits || (operations_waiting == 0 && bytes_waiting == 0)
    }

    /// Whether what waits is to be done at once.
    fn is_urgent(&self) -> bool {
        !self.queries.is_empty() || self.has_urgent_operations()
    }

    /// The same where large results are aside: what waits for them cannot be done now.
    fn is_urgent_beside(&self, aside: &Aside<S::Operation, Token>) -> bool {
        self.has_urgent_operations() || self.queries.iter().any(|query| query.passes(aside))
    }

    fn has_urgent_operations(&self) -> bool {
        let waits = !self.operations.is_empty();
        self.awaited > 0
            || (waits && self.closed)
            || self.operations.len() >= GATHER_OPERATIONS
            || self.bytes >= BATCH_BYTES_MAX
    }
}

#[derive(Default)]
pub(super) struct Counters {
    pub(super) commits: AtomicU64,
    pub(super) stored: AtomicU64,
    pub(super) refused: AtomicU64,
    pub(super) failed: AtomicU64,
    pub(super) tidy_failures: AtomicU64,
}

impl Counters {
    /// Counts a commit.
    pub(super) fn count(&self, outcomes: &[Outcome]) {
        self.commits.fetch_add(1, Ordering::Relaxed);
        for outcome in outcomes {
            let counter = if outcome.is_ok() { &self.stored } else { &self.refused };
            counter.fetch_add(1, Ordering::Relaxed);
        }
    }
}

pub(super) struct Shared<S: ?Sized + Store, Token> {
    pub(super) queue: Mutex<Queue<S, Token>>,
    filled: Condvar,
    pub(super) counters: Counters,
    /// What the owner should tell.
    pub(super) news: Mutex<Vec<String>>,
    pub(super) has_news: AtomicBool,
}

impl<S: ?Sized + Store, Token> Shared<S, Token> {
    pub(super) fn new() -> Self {
        Self {
            queue: Mutex::new(Queue {
                operations: VecDeque::new(),
                bytes: 0,
                aside: Load::default(),
                submitted: 0,
                taken: 0,
                queries: VecDeque::new(),
                awaited: 0,
                sleep: Sleep::Awake,
                closed: false,
            }),
            filled: Condvar::new(),
            counters: Counters::default(),
            news: Mutex::default(),
            has_news: AtomicBool::new(false),
        }
    }

    pub(super) fn tell(&self, news: Vec<String>) {
        if news.is_empty() {
            return;
        }
        let mut told = self.news.lock().unwrap_or_else(PoisonError::into_inner);
        if told.len() < NEWS_MAX {
            told.extend(news);
        }
        self.has_news.store(true, Ordering::Release);
    }

    /// No code panics while it holds the lock, so a poisoned queue is whole.
    pub(super) fn lock(&self) -> MutexGuard<'_, Queue<S, Token>> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn wake(&self, mut queue: MutexGuard<'_, Queue<S, Token>>) {
        let wake = match queue.sleep {
            Sleep::Awake => false,
            Sleep::Idle => true,
            Sleep::Gathering => queue.is_urgent(),
        };
        if wake {
            queue.sleep = Sleep::Awake;
        }
        drop(queue);
        if wake {
            self.filled.notify_one();
        }
    }

    /// Whether somebody waits for the thread.
    pub(super) fn is_urgent(&self) -> bool {
        self.lock().is_urgent()
    }

    /// Sleeps until somebody wakes the thread; `true`: the time is over.
    fn sleep<'a>(
        &self,
        queue: MutexGuard<'a, Queue<S, Token>>,
        time: Option<Duration>,
    ) -> (MutexGuard<'a, Queue<S, Token>>, bool) {
        let (mut queue, timed_out) = match time {
            None => (self.filled.wait(queue).unwrap_or_else(PoisonError::into_inner), false),
            Some(time) => {
                let (queue, timeout) = self.filled.wait_timeout(queue, time).unwrap_or_else(PoisonError::into_inner);
                (queue, timeout.timed_out())
            }
        };
        queue.sleep = Sleep::Awake;
        (queue, timed_out)
    }

    /// Sleeps until there is something to do, which after `settle_after` is an empty batch: time to settle. `None` when there
    /// never will be anything to do. Large results go aside, with what has to stay behind them, and while some are there, or others are
    /// `tried` again, it does not sleep, but for [`BUSY_PAUSE`] where the store is `busy` with them.
    pub(super) fn take(
        &self,
        settle_after: Option<Duration>,
        tried: bool,
        busy: bool,
        aside: &mut Aside<S::Operation, Token>,
    ) -> Option<Batch<S, Token>> {
        let pause = if busy { Some(BUSY_PAUSE) } else { settle_after };
        let mut queue = self.lock();
        while ((aside.is_empty() && !tried) || busy) && !queue.is_urgent_beside(aside) {
            if queue.operations.is_empty() {
                if queue.closed && aside.is_empty() {
                    return None;
                }
                queue.sleep = Sleep::Idle;
                let timed_out;
                (queue, timed_out) = self.sleep(queue, pause);
                if timed_out && queue.operations.is_empty() {
                    break;
                }
                continue;
            }
            queue.sleep = Sleep::Gathering;
            let timed_out;
            (queue, timed_out) = self.sleep(queue, Some(GATHER_TIME));
            if timed_out {
                break;
            }
        }
        let mut batch = Batch { operations: Vec::new(), tokens: Vec::new(), queries: VecDeque::new() };
        let mut bytes = 0;
        while batch.operations.len() < BATCH_OPERATIONS_MAX && bytes < BATCH_BYTES_MAX {
            let Some((operation, token)) = queue.operations.pop_front() else {
                break;
            };
            let goes_aside = aside.concerns(&operation);
            queue.bytes -= operation.bytes();
            queue.awaited -= usize::from(token.is_some());
            queue.taken += 1;
            if goes_aside {
                aside.push(queue.taken, operation, token);
            } else {
                bytes += operation.bytes();
                batch.operations.push(operation);
                batch.tokens.push(token);
            }
        }
        queue.aside = aside.load();
        // Queries see what was submitted before them, so they wait until all of that was taken. What came after them does not
        // hold them up.
        let taken = queue.taken;
        let is_due = |query: &Query<S>| query.after <= taken && query.passes(aside);
        if aside.is_empty() {
            while let Some(query) = queue.queries.pop_front_if(|query| is_due(query)) {
                batch.queries.push_back(query);
            }
        } else {
            let (due, later) = std::mem::take(&mut queue.queries).into_iter().partition(is_due);
            (batch.queries, queue.queries) = (due, later);
        }
        Some(batch)
    }
}

pub(super) struct Batch<S: ?Sized + Store, Token> {
    pub(super) operations: Vec<S::Operation>,
    pub(super) tokens: Vec<Option<Token>>,
    pub(super) queries: VecDeque<Query<S>>,
}

/// Marks the queue as closed when the thread ends, for whatever reason, and disconnects all that waits.
pub(super) struct EndOfThread<S: ?Sized + Store, Token>(pub(super) Arc<Shared<S, Token>>);

impl<S: ?Sized + Store, Token> Drop for EndOfThread<S, Token> {
    fn drop(&mut self) {
        let mut queue = self.0.lock();
        queue.closed = true;
        queue.bytes = 0;
        queue.aside = Load::default();
        let dropped = (std::mem::take(&mut queue.operations), std::mem::take(&mut queue.queries));
        drop(queue);
        // Tokens and queries are not ours: what their end does must not run under the lock.
        drop(dropped);
    }
}
