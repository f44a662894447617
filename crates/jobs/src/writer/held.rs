//! Changes that could not be stored, for want of space or because another process was in the way, and are tried again: they have
//! happened, so their job must not be found as it was before.
//!
//! Small ones are first, with each batch. Large ones, and what has to stay behind them, are tried when the thread has nothing else to
//! do, one after the other: none of them keeps others from being stored.

use std::collections::{HashMap, VecDeque};

use norfab_protocol::name::JobId;

use super::{BATCH_BYTES_MAX, BATCH_OPERATIONS_MAX, QUEUE_BYTES_MAX, QUEUE_OPERATIONS_MAX};
use crate::error::StoreError;
use crate::store::Operation;

/// Changes that are kept at most: as many as wait in the queue.
const HELD_OPERATIONS_MAX: usize = QUEUE_OPERATIONS_MAX;

/// Bytes of a change above which it waits among the large ones: one that finds no space keeps no smaller one waiting.
const SMALL_BYTES_MAX: usize = 64 << 10;

pub(super) struct Held<One, Token> {
    small: VecDeque<One>,
    /// Who wants to know of each.
    tokens: VecDeque<Option<Token>>,
    /// Large ones and later ones about their jobs. Those about one job are in their order.
    large: VecDeque<(One, Option<Token>)>,
    /// How many of the large ones, and of those behind them, each job has.
    jobs: HashMap<JobId, usize>,
    bytes: usize,
    /// Why the last one that was kept could not be stored.
    reason: Option<StoreError>,
}

impl<One: Operation, Token> Held<One, Token> {
    pub(super) fn new() -> Self {
        let (small, tokens, large) = (VecDeque::new(), VecDeque::new(), VecDeque::new());
        Self { small, tokens, large, jobs: HashMap::new(), bytes: 0, reason: None }
    }

    pub(super) fn len(&self) -> usize {
        self.small.len() + self.large.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// How many jobs have large ones.
    pub(super) fn large_jobs(&self) -> usize {
        self.jobs.len()
    }

    /// Why an operation has to wait behind one of its job. `None`: it has not.
    pub(super) fn keeps_back(&self, operation: &One) -> Option<&StoreError> {
        self.reason.as_ref().filter(|_| self.jobs.contains_key(operation.job()))
    }

    /// Keeps a change, unless too many are kept. `false`: it is lost.
    pub(super) fn keep(&mut self, operation: One, token: Option<Token>, reason: &StoreError) -> bool {
        let bytes = operation.bytes();
        let fits = self.len() < HELD_OPERATIONS_MAX && self.bytes + bytes <= QUEUE_BYTES_MAX;
        if fits {
            self.bytes += bytes;
            self.reason = Some(reason.clone());
            let kept = token.filter(|_| operation.is_confirmed_late());
            if bytes > SMALL_BYTES_MAX || self.jobs.contains_key(operation.job()) {
                *self.jobs.entry(operation.job().clone()).or_insert(0) += 1;
                self.large.push_back((operation, kept));
            } else {
                self.small.push_back(operation);
                self.tokens.push_back(kept);
            }
        }
        fits
    }

    /// The next small ones, as many as share a commit, and not more than `most`.
    pub(super) fn batch(&mut self, most: usize) -> &[One] {
        let mut bytes = 0;
        let within = |operation: &&One| {
            bytes += operation.bytes();
            bytes <= BATCH_BYTES_MAX
        };
        let count = self.small.iter().take(most.min(BATCH_OPERATIONS_MAX)).take_while(within).count();
        &self.small.make_contiguous()[..count]
    }

    /// The first so many small ones are stored: who wants to know of each.
    pub(super) fn take(&mut self, count: usize) -> Vec<Option<Token>> {
        self.bytes -= self.small.drain(..count).map(|operation| operation.bytes()).sum::<usize>();
        self.tokens.drain(..count).collect()
    }

    /// The large one, or the one behind one, that is tried next.
    pub(super) fn front(&self) -> Option<&One> {
        self.large.front().map(|(operation, _)| operation)
    }

    /// It is stored: who wants to know of it.
    pub(super) fn take_front(&mut self) -> Option<Token> {
        let (operation, token) = self.large.pop_front()?;
        self.bytes -= operation.bytes();
        if let Some(count) = self.jobs.get_mut(operation.job()) {
            *count -= 1;
            if *count == 0 {
                self.jobs.remove(operation.job());
            }
        }
        token
    }

    /// It is not: those of other jobs are tried before it, and before what is behind it.
    pub(super) fn put_back(&mut self, reason: StoreError) {
        self.reason = Some(reason);
        let Some(job) = self.front().map(|front| front.job().clone()) else { return };
        let (mut stay, mut others) = (VecDeque::new(), VecDeque::new());
        for kept in std::mem::take(&mut self.large) {
            if *kept.0.job() == job { &mut stay } else { &mut others }.push_back(kept);
        }
        others.append(&mut stay);
        self.large = others;
    }
}
