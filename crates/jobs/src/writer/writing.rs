//! What the writer's thread does: batch after batch, between the parts of large results, and what to do with those that cannot be
//! stored.

use std::collections::VecDeque;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::aside::{Aside, Released};
use super::held::Held;
use super::queue::{Counters, Shared, Wants};
use super::{BATCH_OPERATIONS_MAX, Confirmation, SETTLE_TIME};
use crate::error::{OperationError, StoreError};
use crate::store::{Ahead, Operation, Outcome, Store};

/// Turns with queries after which what is held is tried again, where the thread never has nothing to do: trying costs more than most
/// queries.
const HELD_TURNS: u32 = 8;

/// Batches after which large changes that are held are tried again, where the thread never has nothing to do.
const HELD_BATCHES: u32 = 32;

/// Batches for which somebody waits before a log that has grown is written back all the same: each is 64 MiB at most, and 256 changes as a
/// rule.
const TIDY_TURNS: u32 = 8;

/// By how much less is tried at once where there is no space for more.
const LESS_DIVISOR: usize = 8;

/// How soon a store that could not be settled, for want of space or because its log is in use, is tried again.
const SETTLE_RETRY: Duration = Duration::from_secs(1);

impl<S: ?Sized + Store, Token: Clone> Writing<'_, S, Token> {
    /// Stores the small changes that are held, in their order: fewer at once where there is little space. Errors: why it cannot be,
    /// and all that is left stays.
    fn retry(&mut self) -> Result<(), StoreError> {
        let mut most = BATCH_OPERATIONS_MAX;
        loop {
            let batch = self.held.batch(most);
            let count = batch.len();
            if count == 0 {
                break;
            }
            match self.store.apply(batch) {
                Ok(outcomes) => {
                    self.counters.count(&outcomes);
                    let tokens = self.held.take(count);
                    self.confirm_late(outcomes, tokens);
                }
                Err(StoreError::DiskFull { .. }) if count > 1 => most = (count / LESS_DIVISOR).max(1),
                Err(error) => return Err(error),
            }
        }
        self.told &= !self.held.is_empty();
        Ok(())
    }

    /// The same with the large ones, each of them at once: for who waits for all of it.
    fn retry_all(&mut self) -> Result<(), StoreError> {
        self.retry()?;
        self.tries = self.held.large_jobs();
        let mut problem = Ok(());
        while self.tries > 0 {
            if let Err(error) = self.retry_front() {
                problem = Err(error);
            }
        }
        if self.held.is_empty() { Ok(()) } else { problem }
    }

    /// Tries the large one whose turn it is.
    fn retry_front(&mut self) -> Result<(), StoreError> {
        let Some(front) = self.held.front() else {
            self.tries = 0;
            return Ok(());
        };
        match self.store.apply(std::slice::from_ref(front)) {
            Ok(outcomes) => {
                self.counters.count(&outcomes);
                let tokens = vec![self.held.take_front()];
                self.confirm_late(outcomes, tokens);
                self.begun = false;
                // There is space: all others may find some.
                self.tries = self.held.large_jobs();
                self.told &= !self.held.is_empty();
                Ok(())
            }
            Err(error) => {
                self.put_back(error.clone());
                Err(error)
            }
        }
    }

    /// It finds no space: those of other jobs are tried before it.
    fn put_back(&mut self, reason: StoreError) {
        self.drop_begun();
        self.held.put_back(reason);
        self.tries = self.tries.saturating_sub(1);
    }

    fn drop_begun(&mut self) {
        if self.begun {
            self.begun = false;
            self.store.drop_ahead();
        }
    }

    /// Stores one part of the large one whose turn it is, or all of it when its parts are there. Small ones are first: they may be
    /// about its job.
    fn store_held(&mut self) {
        self.busy = false;
        if self.retry().is_err() {
            self.drop_begun();
            self.tries = 0;
            return;
        }
        let Some(front) = self.held.front() else {
            self.tries = 0;
            return;
        };
        let ahead = if front.is_large() { self.store.store_ahead(front) } else { Ok(Ahead::Whole) };
        self.begun = front.is_large();
        match ahead {
            Ok(Ahead::More) => {}
            Ok(Ahead::Busy) => self.busy = true,
            // Where it finds no space it was put back.
            Ok(Ahead::Whole) => drop(self.retry_front()),
            Err(error) => self.put_back(error),
        }
    }

    /// Whether large ones that are held are being tried.
    fn is_trying(&self) -> bool {
        self.tries > 0
    }

    /// Whether the store takes the next part of what is there a little later.
    fn is_busy(&self, aside: &Aside<S::Operation, Token>) -> bool {
        self.busy && (self.is_trying() || !aside.is_empty())
    }

    fn confirm_late(&mut self, outcomes: Vec<Outcome>, tokens: Vec<Option<Token>>) {
        let confirmed = tokens.into_iter().zip(outcomes);
        self.late.extend(confirmed.filter_map(|(token, outcome)| Some(Confirmation { token: token?, outcome })));
    }

    /// Stores a batch, behind small changes that are held: the outcome of each operation. What has to stay behind a large one is held,
    /// too, and no job is begun while much is.
    fn write(&mut self, operations: Vec<S::Operation>, tokens: &[Option<Token>]) -> Vec<Outcome> {
        // What there is space for now keeps nobody back.
        if self.held.lets_all_pass() || (self.retry().is_ok() && self.held.lets_all_pass()) {
            return self.write_all(operations, tokens);
        }
        let reasons: Vec<Option<StoreError>> =
            operations.iter().map(|one| self.held.keeps_back(one).cloned()).collect();
        let (mut passing, mut passing_tokens) = (Vec::new(), Vec::new());
        let mut kept = VecDeque::new();
        for ((operation, token), reason) in operations.into_iter().zip(tokens).zip(&reasons) {
            match reason {
                Some(reason) if operation.begins_a_job() => {
                    self.counters.failed.fetch_add(1, Ordering::Relaxed);
                    kept.push_back(Err(OperationError::NotStored(reason.clone())));
                }
                Some(reason) => kept.extend(self.keep(vec![operation], std::slice::from_ref(token), reason)),
                None => {
                    passing.push(operation);
                    passing_tokens.push(token.clone());
                }
            }
        }
        let passed = if passing.is_empty() { Vec::new() } else { self.write_all(passing, &passing_tokens) };
        let mut passed = passed.into_iter();
        let outcomes = reasons.iter().map(|reason| if reason.is_some() { kept.pop_front() } else { passed.next() });
        outcomes.flatten().collect()
    }

    fn write_all(&mut self, operations: Vec<S::Operation>, tokens: &[Option<Token>]) -> Vec<Outcome> {
        match self.retry().and_then(|()| self.apply(&operations)) {
            Ok(outcomes) => outcomes,
            // There may be space for some of them.
            Err(StoreError::DiskFull { .. }) if operations.len() > 1 && self.held.is_empty() => {
                self.write_in_parts(operations, tokens)
            }
            Err(error) => self.keep(operations, tokens, &error),
        }
    }

    fn write_in_parts(&mut self, mut operations: Vec<S::Operation>, tokens: &[Option<Token>]) -> Vec<Outcome> {
        let most = operations.len().div_ceil(LESS_DIVISOR);
        let mut outcomes = Vec::with_capacity(operations.len());
        for tokens in tokens.chunks(most) {
            let part: Vec<_> = operations.drain(..tokens.len()).collect();
            if !self.held.is_empty() {
                // One that is kept keeps back those behind it that are about its job.
                outcomes.extend(self.write(part, tokens));
                continue;
            }
            outcomes.extend(match self.apply(&part) {
                Ok(outcomes) => outcomes,
                Err(error) => self.keep(part, tokens, &error),
            });
        }
        outcomes
    }

    /// What becomes of operations that could not be stored.
    fn keep(&mut self, operations: Vec<S::Operation>, tokens: &[Option<Token>], error: &StoreError) -> Vec<Outcome> {
        let mut outcomes = Vec::with_capacity(operations.len());
        for (operation, token) in operations.into_iter().zip(tokens) {
            // Who waits for it keeps it, and comes with it again.
            let is_kept_elsewhere = operation.is_confirmed_late() && token.is_some();
            let (outcome, lost) = if operation.begins_a_job() {
                // A change that finds no space does not keep out a new job that does.
                match self.apply(std::slice::from_ref(&operation)) {
                    Ok(mut outcomes) => (outcomes.pop().unwrap_or(Ok(())), false),
                    Err(error) => (Err(OperationError::NotStored(error)), true),
                }
            } else if self.held.keep(operation, token.clone(), error) {
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
        let is_whole = refused.is_none();
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
        } else if is_whole {
            // There is space, perhaps for what is held, too.
            self.tries = self.held.large_jobs();
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
    /// Jobs with large changes that are held and are to be tried now.
    tries: usize,
    /// One of them has parts in the store: it goes on before another is begun.
    begun: bool,
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
    let held = Held::new();
    let (late, tries) = (Vec::new(), 0);
    let mut writing = Writing { store, counters, held, tries, begun: false, late, told: false, busy: false };
    let mut aside = Aside::new();
    let mut settle_after = None;
    let (mut turns, mut batches, mut untidied): (u32, u32, u32) = (0, 0, 0);
    let mut tidies_next = false;
    while let Some(batch) = shared.take(settle_after, writing.is_trying(), writing.is_busy(&aside), &mut aside) {
        let has_nothing = batch.operations.is_empty() && batch.queries.is_empty() && aside.is_empty();
        if has_nothing && !writing.is_trying() {
            let settled = writing.retry().and_then(|()| writing.store.settle());
            counters.tidy_failures.fetch_add(u64::from(settled.is_err()), Ordering::Relaxed);
            // A log that is being written back, or read by another process, is cut off later.
            let is_done = settled.is_ok() && writing.store.is_settled();
            settle_after = (!is_done).then_some(SETTLE_RETRY);
            writing.tries = writing.held.large_jobs();
        }
        let mut written = !batch.operations.is_empty();
        if written {
            batches = batches.wrapping_add(1);
            if batches.is_multiple_of(HELD_BATCHES) {
                writing.tries = writing.held.large_jobs();
            }
            let outcomes = writing.write(batch.operations, &batch.tokens);
            shared.tell(writing.store.take_news());
            let confirmations = writing.confirmations(outcomes, batch.tokens);
            if !confirmations.is_empty() {
                confirm(confirmations);
            }
        }
        if !batch.queries.is_empty() && !writing.held.is_empty() {
            turns = turns.wrapping_add(1);
            // What fails again is tried again.
            if batch.queries.iter().any(|query| query.wants == Wants::All) {
                drop(writing.retry_all());
            } else if turns.is_multiple_of(HELD_TURNS) {
                drop(writing.retry());
                writing.tries = writing.held.large_jobs();
            }
        }
        if !writing.late.is_empty() {
            confirm(std::mem::take(&mut writing.late));
        }
        for query in batch.queries {
            let is_whole = writing.held.is_empty() && aside.has_none_up_to(query.after);
            (query.run)(&mut writing.store, is_whole);
        }
        // A part, or tidying up, and not both: who waits goes between them.
        if (!aside.is_empty() || writing.is_trying()) && !tidies_next {
            tidies_next = true;
            if writing.is_trying() && (writing.begun || aside.is_empty()) {
                written = true;
                writing.store_held();
                if !writing.late.is_empty() {
                    confirm(std::mem::take(&mut writing.late));
                }
            } else if let Some((outcomes, tokens)) = writing.store_aside(&mut aside) {
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
        let holds = !writing.held.is_empty();
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
    if writing.retry_all().is_err() {
        let lost = writing.held.len() as u64;
        counters.failed.fetch_add(lost, Ordering::Relaxed);
    }
    if !writing.late.is_empty() {
        confirm(writing.late);
    }
}
