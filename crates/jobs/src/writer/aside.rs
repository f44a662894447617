//! Large results on their way into the store, and what has to stay behind them.

use std::collections::{HashMap, HashSet, VecDeque};

use norfab_protocol::name::JobId;

use super::{QUEUE_BYTES_MAX, QUEUE_OPERATIONS_MAX};
use crate::store::Operation;

/// Large operations, which are stored one after the other, and the later ones about their jobs, in the order of submission. As many
/// as wait in the queue; beyond that all waits there.
pub(super) struct Aside<One, Token> {
    operations: VecDeque<Waiting<One, Token>>,
    bytes: usize,
    /// How many of them each job has.
    jobs: HashMap<JobId, usize>,
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
        Self { operations: VecDeque::new(), bytes: 0, jobs: HashMap::new() }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.operations.is_empty()
    }

    /// Whether an operation belongs here.
    pub(super) fn concerns(&self, operation: &One) -> bool {
        operation.is_large() || self.jobs.contains_key(operation.job())
    }

    /// Whether there is room for it. A single larger one is taken when there is no other.
    pub(super) fn has_room(&self, operation: &One) -> bool {
        let fits = self.operations.len() < QUEUE_OPERATIONS_MAX && self.bytes + operation.bytes() <= QUEUE_BYTES_MAX;
        fits || self.is_empty()
    }

    pub(super) fn push(&mut self, number: u64, operation: One, token: Option<Token>) {
        self.bytes += operation.bytes();
        *self.jobs.entry(operation.job().clone()).or_insert(0) += 1;
        self.operations.push_back(Waiting { number, operation, token });
    }

    /// Whether none of so many operations that were submitted first is here.
    pub(super) fn has_none_up_to(&self, number: u64) -> bool {
        self.operations.front().is_none_or(|first| first.number > number)
    }

    /// The one that is stored in parts now: always a large one.
    pub(super) fn front(&self) -> Option<&One> {
        self.operations.front().map(|waiting| &waiting.operation)
    }

    /// The front, whose parts are there, and all that waited for it and for no other.
    pub(super) fn release(&mut self) -> Released<One, Token> {
        let (mut operations, mut tokens) = (Vec::new(), Vec::new());
        let mut held_up: HashSet<JobId> = HashSet::new();
        for (place, waiting) in std::mem::take(&mut self.operations).into_iter().enumerate() {
            let job = waiting.operation.job();
            let stays = (place > 0 && waiting.operation.is_large()) || held_up.contains(job);
            if stays {
                held_up.insert(job.clone());
                self.operations.push_back(waiting);
                continue;
            }
            self.bytes -= waiting.operation.bytes();
            if let Some(count) = self.jobs.get_mut(job) {
                *count -= 1;
                if *count == 0 {
                    self.jobs.remove(waiting.operation.job());
                }
            }
            operations.push(waiting.operation);
            tokens.push(waiting.token);
        }
        (operations, tokens)
    }
}
