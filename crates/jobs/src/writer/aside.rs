//! Large results on their way into the store, and what has to stay behind them.

use std::collections::{HashMap, HashSet, VecDeque};

use norfab_protocol::name::JobId;

use super::{BATCH_BYTES_MAX, BATCH_OPERATIONS_MAX, QUEUE_BYTES_MAX, QUEUE_OPERATIONS_MAX};
use crate::store::Operation;

/// Large operations, which are stored one after the other, and the later ones about their jobs, in the order of submission. There is
/// room for as many as wait in the queue. What is beyond that takes room in the queue, which takes nothing more when it is full: what is about other jobs
/// passes all the same.
pub(super) struct Aside<One, Token> {
    operations: VecDeque<Waiting<One, Token>>,
    /// How many of them each job has.
    jobs: HashMap<JobId, usize>,
    /// Those that can be applied, as what they waited for is there, and how many each job has.
    released: VecDeque<Waiting<One, Token>>,
    released_jobs: HashMap<JobId, usize>,
    /// Of all.
    bytes: usize,
}

/// How much is aside.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Load {
    pub(super) operations: usize,
    pub(super) bytes: usize,
    /// How much of it takes room in the queue.
    pub(super) operations_beyond: usize,
    pub(super) bytes_beyond: usize,
}

struct Waiting<One, Token> {
    /// How many operations were submitted with it and before.
    number: u64,
    operation: One,
    token: Option<Token>,
}

/// Operations that can be applied now, with their tokens.
pub(super) type Released<One, Token> = (Vec<One>, Vec<Option<Token>>);

impl<One: Operation, Token> Aside<One, Token> {
    pub(super) fn new() -> Self {
        Self {
            operations: VecDeque::new(),
            jobs: HashMap::new(),
            released: VecDeque::new(),
            released_jobs: HashMap::new(),
            bytes: 0,
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.operations.is_empty() && self.released.is_empty()
    }

    /// Whether an operation belongs here.
    pub(super) fn concerns(&self, operation: &One) -> bool {
        operation.is_large()
            || self.jobs.contains_key(operation.job())
            || self.released_jobs.contains_key(operation.job())
    }

    /// How much is here.
    pub(super) fn load(&self) -> Load {
        // A single larger one leaves the queue to others.
        let bytes_max = QUEUE_BYTES_MAX.max(self.front().map_or(0, Operation::bytes));
        let operations = self.operations.len() + self.released.len();
        Load {
            operations,
            bytes: self.bytes,
            operations_beyond: operations.saturating_sub(QUEUE_OPERATIONS_MAX),
            bytes_beyond: self.bytes.saturating_sub(bytes_max),
        }
    }

    pub(super) fn push(&mut self, number: u64, operation: One, token: Option<Token>) {
        self.bytes += operation.bytes();
        // What waits for nothing but what is released goes behind that.
        let waits = operation.is_large() || self.jobs.contains_key(operation.job());
        let (operations, jobs) =
            if waits { (&mut self.operations, &mut self.jobs) } else { (&mut self.released, &mut self.released_jobs) };
        *jobs.entry(operation.job().clone()).or_insert(0) += 1;
        operations.push_back(Waiting { number, operation, token });
    }

    /// Whether none of so many operations that were submitted first is here.
    pub(super) fn has_none_up_to(&self, number: u64) -> bool {
        [self.operations.front(), self.released.front()].into_iter().flatten().all(|first| first.number > number)
    }

    /// The one that is stored in parts now: always a large one.
    pub(super) fn front(&self) -> Option<&One> {
        self.operations.front().map(|waiting| &waiting.operation)
    }

    /// Releases the front, whose parts are there, and all that waited for it and for no other.
    pub(super) fn release(&mut self) {
        let mut held_up: HashSet<JobId> = HashSet::new();
        for (place, waiting) in std::mem::take(&mut self.operations).into_iter().enumerate() {
            let job = waiting.operation.job();
            let stays = (place > 0 && waiting.operation.is_large()) || held_up.contains(job);
            if stays {
                held_up.insert(job.clone());
                self.operations.push_back(waiting);
                continue;
            }
            count_down(&mut self.jobs, job);
            *self.released_jobs.entry(job.clone()).or_insert(0) += 1;
            self.released.push_back(waiting);
        }
    }

    /// What was released, as much as shares a commit; empty when nothing is left.
    pub(super) fn released(&mut self) -> Released<One, Token> {
        let (mut operations, mut tokens) = (Vec::new(), Vec::new());
        let mut bytes = 0;
        while operations.len() < BATCH_OPERATIONS_MAX && bytes < BATCH_BYTES_MAX {
            let Some((operation, token)) = self.next_released() else { break };
            bytes += operation.bytes();
            operations.push(operation);
            tokens.push(token);
        }
        (operations, tokens)
    }

    /// The first that was released.
    pub(super) fn next_released(&mut self) -> Option<(One, Option<Token>)> {
        let Waiting { operation, token, .. } = self.released.pop_front()?;
        self.bytes -= operation.bytes();
        count_down(&mut self.released_jobs, operation.job());
        Some((operation, token))
    }
}

fn count_down(jobs: &mut HashMap<JobId, usize>, job: &JobId) {
    if let Some(count) = jobs.get_mut(job) {
        *count -= 1;
        if *count == 0 {
            jobs.remove(job);
        }
    }
}
