//! What the writer's thread does: batch after batch, between the parts of large results, and what to do with those that cannot be
//! stored.

use std::collections::VecDeque;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::aside::{Aside, Released};
use super::queue::{Counters, Shared, Wants};
use super::{BATCH_BYTES_MAX, BATCH_OPERATIONS_MAX, Confirmation, QUEUE_BYTES_MAX, QUEUE_OPERATIONS_MAX, SETTLE_TIME};
use crate::error::{OperationError, StoreError};
use crate::store::{Ahead, Operation, Outcome, Store};

/// Changes that could not be stored and are kept at most: as many as wait in the queue.
const HELD_OPERATIONS_MAX: usize = QUEUE_OPERATIONS_MAX;

/// Turns with queries after which what is held is tried again, where the thread never has nothing to do: trying costs more than most
/// queries.
const HELD_TURNS: u32 = 8;

/// Batches for which somebody waits before a log that has grown is written back all the same: each is 64 MiB at most, and 256 changes as a
/// rule.
const TIDY_TURNS: u32 = 8;

/// How soon a store that could not be settled, for want of space or because its log is in use, is tried again.
const SETTLE_RETRY: Duration = Duration::from_secs(1);

/// Changes that could not be stored, for want of space or because another process was in the way, and are tried again: they have
/// happened, so their job must not be found as it was before.
struct Held<One, Token> {
    operations: VecDeque<One>,
    /// Those of the operations, in their order.
    tokens: VecDeque<Option<Token>>,
    bytes: usize,
}

impl<One: Operation, Token> Held<One, Token> {
    /// Keeps a change, unless too many are kept. `false`: it is lost.
    fn keep(&mut self, operation: One, token: Option<Token>) -> bool {
        let bytes = operation.bytes();
        let fits = self.operations.len() < HELD_OPERATIONS_MAX && self.bytes + bytes <= QUEUE_BYTES_MAX;
        if fits {
            self.bytes += bytes;
            self.tokens.push_back(token.filter(|_| operation.is_confirmed_late()));
            self.operations.push_back(operation);
        }
        fits
    }

    /// The next of them, as many as share a commit.
    fn batch(&self) -> usize {
        let mut bytes = 0;
        let within = |operation: &&One| {
            bytes += operation.bytes();
            bytes <= BATCH_BYTES_MAX
        };
        self.operations.iter().take(BATCH_OPERATIONS_MAX).take_while(within).count().max(1)
    }
}

impl<S: ?Sized + Store, Token: Clone> Writing<'_, S, Token> {
    /// Stores what is held, in its order, large results in one step each: they are rare here, and what is held of their jobs stays in its
    /// order by that. Errors: why it cannot be, and all that is left stays.
    fn retry(&mut self) -> Result<(), StoreError> {
        while !self.held.operations.is_empty() {
            let count = self.held.batch();
            self.held.operations.make_contiguous();
            let outcomes = self.store.apply(&self.held.operations.as_slices().0[..count])?;
            self.counters.count(&outcomes);
            self.held.bytes -= self.held.operations.drain(..count).map(|operation| operation.bytes()).sum::<usize>();
            let confirmed = self.held.tokens.drain(..count).zip(outcomes);
            self.late.extend(confirmed.filter_map(|(token, outcome)| Some(Confirmation { token: token?, outcome })));
        }
        self.told = false;
        Ok(())
    }

    /// Stores a batch, behind what is held: the outcome of each operation.
    fn write(&mut self, operations: Vec<S::Operation>, tokens: &[Option<Token>]) -> Vec<Outcome> {
        match self.retry().and_then(|()| self.apply(&operations)) {
            Ok(outcomes) => outcomes,
            Err(error) => self.keep(operations, tokens, &error),
        }
    }

    /// What becomes of operations that could not be stored.
    fn keep(&mut self, operations: Vec<S::Operation>, tokens: &[Option<Token>], error: &StoreError) -> Vec<Outcome> {
        let mut outcomes = Vec::with_capacity(operations.len());
        for (operation, token) in operations.into_iter().zip(tokens) {
            // Who waits for it keeps it, and comes with it again.
            let is_kept_elsewhere = operation.is_confirmed_late() && token.is_some();
            let (outcome, lost) = if operation.begins_a_job() {
                // A large result that finds no space does not keep out a new job that does.
                match self.apply(std::slice::from_ref(&operation)) {
                    Ok(mut outcomes) => (outcomes.pop().unwrap_or(Ok(())), false),
                    Err(error) => (Err(OperationError::NotStored(error)), true),
                }
            } else if self.held.keep(operation, token.clone()) {
                (Err(OperationError::NotStored(error.clone())), false)
            } else {
                (Err(OperationError::GivenUp(error.clone())), !is_kept_elsewhere)
            };
            self.counters.failed.fetch_add(u64::from(lost), Ordering::Relaxed);
            outcomes.push(outcome);
        }
        outcomes
    }

    /// Stores some of what was released, or one part of the large result that is the first aside. When that is whole, or cannot be
    /// stored, it is released with what waited for it: others go between those batches, too. What was stored or refused, with its outcomes.
    fn store_aside(&mut self, aside: &mut Aside<S::Operation, Token>) -> Option<(Vec<Outcome>, Vec<Option<Token>>)> {
        self.busy = false;
        let (operations, tokens): Released<_, _> = aside.released();
        if !operations.is_empty() {
            return Some((self.write(operations, &tokens), tokens));
        }
        let large = aside.front()?;
        let refused = match self.retry().and_then(|()| self.store.store_ahead(large)) {
            Ok(Ahead::More) => return None,
            Ok(Ahead::Busy) => {
                self.busy = true;
                return None;
            }
            Ok(Ahead::Whole) => None,
            Err(error) => Some(error),
        };
        aside.release();
        let (operation, token) = aside.next_released()?;
        let (operations, tokens) = (vec![operation], vec![token]);
        let outcomes = match refused {
            None => self.write(operations, &tokens),
            Some(error) => {
                self.store.drop_ahead();
                self.keep(operations, &tokens, &error)
            }
        };
        if outcomes.iter().any(Result::is_err) {
            self.store.drop_ahead();
        }
        Some((outcomes, tokens))
    }

    /// What is confirmed of operations: those with a token, behind what was held.
    fn confirmations(&mut self, outcomes: Vec<Outcome>, tokens: Vec<Option<Token>>) -> Vec<Confirmation<Token>> {
        let mut confirmations = std::mem::take(&mut self.late);
        let confirmed = outcomes.into_iter().zip(tokens);
        confirmations.extend(confirmed.filter_map(|(outcome, token)| Some(Confirmation { token: token?, outcome })));
        confirmations
    }

    fn apply(&mut self, operations: &[S::Operation]) -> Result<Vec<Outcome>, StoreError> {
        let outcomes = self.store.apply(operations)?;
        self.counters.count(&outcomes);
        Ok(outcomes)
    }
}

/// The thread's own.
struct Writing<'a, S: ?Sized + Store, Token> {
    store: Box<S>,
    counters: &'a Counters,
    held: Held<S::Operation, Token>,
    /// What was held and is stored now, or refused: to be confirmed once more.
    late: Vec<Confirmation<Token>>,
    /// That changes are held was said.
    told: bool,
    /// The store takes the next part a little later.
    busy: bool,
}

/// Stores, confirms and answers until there will never be anything to do.
pub(super) fn run<S: ?Sized + Store, Token: Clone>(
    shared: &Shared<S, Token>,
    store: Box<S>,
    mut confirm: impl FnMut(Vec<Confirmation<Token>>),
) {
    let counters = &shared.counters;
    let held = Held { operations: VecDeque::new(), tokens: VecDeque::new(), bytes: 0 };
    let mut writing = Writing { store, counters, held, late: Vec::new(), told: false, busy: false };
    let mut aside = Aside::new();
    let mut settle_after = None;
    let (mut turns, mut untidied): (u32, u32) = (0, 0);
    let mut tidies_next = false;
    while let Some(batch) = shared.take(settle_after, writing.busy, &mut aside) {
        if batch.operations.is_empty() && batch.queries.is_empty() && aside.is_empty() {
            let settled = writing.retry().and_then(|()| writing.store.settle());
            counters.tidy_failures.fetch_add(u64::from(settled.is_err()), Ordering::Relaxed);
            // A log that is being written back, or read by another process, is cut off later.
            let is_done = settled.is_ok() && writing.store.is_settled();
            settle_after = (!is_done).then_some(SETTLE_RETRY);
        }
        let mut written = !batch.operations.is_empty();
        if written {
            let outcomes = writing.write(batch.operations, &batch.tokens);
            shared.tell(writing.store.take_news());
            let confirmations = writing.confirmations(outcomes, batch.tokens);
            if !confirmations.is_empty() {
                confirm(confirmations);
            }
        }
        if !batch.queries.is_empty() && !writing.held.operations.is_empty() {
            turns += 1;
            if turns.is_multiple_of(HELD_TURNS) || batch.queries.iter().any(|query| query.wants == Wants::All) {
                // What fails again is tried again.
                drop(writing.retry());
            }
        }
        if !writing.late.is_empty() {
            confirm(std::mem::take(&mut writing.late));
        }
        for query in batch.queries {
            let is_whole = writing.held.operations.is_empty() && aside.has_none_up_to(query.after);
            (query.run)(&mut writing.store, is_whole);
        }
        // A part, or tidying up, and not both: who waits goes between them.
        if !aside.is_empty() && !tidies_next {
            tidies_next = true;
            if let Some((outcomes, tokens)) = writing.store_aside(&mut aside) {
                written = true;
                // Whoever hears of it finds room.
                shared.lock().aside = aside.load();
                shared.tell(writing.store.take_news());
                let confirmations = writing.confirmations(outcomes, tokens);
                if !confirmations.is_empty() {
                    confirm(confirmations);
                }
            }
        } else if !tidies_next && untidied < TIDY_TURNS && shared.is_urgent() {
            // Writing back what a burst left takes a while: who waits goes first.
            untidied += 1;
        } else {
            tidies_next = false;
            untidied = 0;
            counters.tidy_failures.fetch_add(u64::from(writing.store.tidy().is_err()), Ordering::Relaxed);
        }
        let holds = !writing.held.operations.is_empty();
        if holds && !writing.told {
            writing.told = true;
            shared.tell(vec![
                "changes of jobs cannot be stored for now: they are kept in memory and tried again".to_owned(),
            ]);
        }
        if holds {
            settle_after = Some(SETTLE_RETRY);
        } else if written {
            settle_after = (!writing.store.is_settled()).then_some(SETTLE_TIME);
        }
    }
    // The last try. What is lost then leaves its job as one that has not ended, and the next process goes on with it.
    if writing.retry().is_err() {
        let lost = writing.held.operations.len() as u64;
        counters.failed.fetch_add(lost, Ordering::Relaxed);
    }
    if !writing.late.is_empty() {
        confirm(writing.late);
    }
}
