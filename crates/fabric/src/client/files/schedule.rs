//! Many files from several workers at once: which of them sends which.

use std::collections::{BTreeSet, VecDeque};
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use norfab_protocol::Identity;
use tokio::task::JoinSet;

use super::super::ClientHandle;
use super::batch::{End, Ended, Tally, Wish};
use super::fetch::{ATTEMPT_INTERVAL, Fruitless};
use super::stream::{Broken, Patience};
use super::{FetchError, Fetched};
use crate::clock::SystemClock;

/// Files in one transfer: enough that what a job costs is little beside them, and few enough that work is left for other workers.
const BATCH_FILES_MAX: usize = 1000;

/// Fewest files in one transfer while others wait.
const BATCH_FILES_MIN: usize = 50;

/// Bytes of all files of one transfer but the last, for the same reasons.
const BATCH_BYTES_MAX: u64 = 64 << 20;

/// Transfers at once: as many as fill a disk and a line. Each has a thread of its own that writes.
const LANES_MAX: usize = 4;

/// How far many files are.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct FilesProgress {
    /// Files that are there, of those that are wanted.
    pub files_done: u64,
    /// Files that are wanted. Those that fail stay among them.
    pub files: u64,
    /// Bytes that are there, of whole files and of those under way. Fewer than before when a file is begun anew.
    pub bytes_done: u64,
    /// Bytes of all files that are known so far.
    pub bytes: u64,
}

impl Tally {
    pub(super) fn now(&self) -> FilesProgress {
        let read = |number: &std::sync::atomic::AtomicU64| number.load(Ordering::Relaxed);
        let bytes = read(&self.bytes);
        FilesProgress {
            files_done: read(&self.files_done),
            files: read(&self.files),
            bytes_done: read(&self.bytes_done).min(bytes),
            bytes,
        }
    }
}

/// Tells how far all is.
pub(super) type Tell<'a> = &'a mut (dyn FnMut(FilesProgress) + Send);

/// A file that is wanted, and who has it.
#[derive(Debug)]
pub(super) struct Item {
    pub(super) wish: Wish,
    /// Workers that have it, by their place: all the same version.
    pub(super) holders: BTreeSet<usize>,
    /// Those that have another version, for when no other is left.
    pub(super) spares: BTreeSet<usize>,
}

struct Worker {
    identity: Identity,
    is_busy: bool,
    /// Its last transfer broke off: it gets what nobody else has.
    is_broken: bool,
    fruitless: Fruitless,
    paused_until: Option<Instant>,
    /// The turn in which there was nothing for it.
    idle_in: Option<u64>,
}

/// All of it.
pub(super) struct Schedule<'a> {
    client: &'a ClientHandle,
    deadline: Instant,
    timeout: Duration,
    workers: Vec<Worker>,
    items: Vec<Item>,
    /// Those that nobody sends at the moment.
    pending: VecDeque<usize>,
    outcomes: Vec<Option<Result<Fetched, FetchError>>>,
    tally: Arc<Tally>,
    /// How often a transfer has ended: until the next one ends, what waits becomes less and nothing else.
    turn: u64,
}

impl<'a> Schedule<'a> {
    pub(super) fn new(
        client: &'a ClientHandle,
        deadline: Instant,
        timeout: Duration,
        workers: Vec<Identity>,
        items: Vec<Item>,
        tally: Arc<Tally>,
    ) -> Self {
        let worker = |identity| Worker {
            identity,
            is_busy: false,
            is_broken: false,
            fruitless: Fruitless::default(),
            paused_until: None,
            idle_in: None,
        };
        let workers = workers.into_iter().map(worker).collect();
        let (pending, outcomes) = ((0..items.len()).collect(), items.iter().map(|_| None).collect());
        Self { client, deadline, timeout, workers, items, pending, outcomes, tally, turn: 0 }
    }

    /// Fetches all, and says of each, in the order of items, what became of it, with its index.
    pub(super) async fn run(mut self, tell: Tell<'_>) -> Vec<(usize, Result<Fetched, FetchError>)> {
        let mut lanes: JoinSet<(usize, Ended)> = JoinSet::new();
        loop {
            if SystemClock::now() >= self.deadline {
                let timeout = self.timeout;
                self.give_up(|wish| FetchError::TimedOut {
                    url: wish.url.clone(),
                    timeout,
                    reason: "no time was left for it".to_owned(),
                });
            }
            self.start(&mut lanes);
            if lanes.is_empty() && self.pending.is_empty() {
                break;
            }
            let paused = self.workers.iter().filter_map(|worker| worker.paused_until).min();
            let wait = paused.unwrap_or(self.deadline).min(self.deadline);
            let wait = wait.saturating_duration_since(SystemClock::now());
            tokio::select! {
                Some(ended) = lanes.join_next() => match ended {
                    Ok((worker, ended)) => self.ended(worker, ended),
                    Err(error) => std::panic::resume_unwind(error.into_panic()),
                },
                () = self.tally.changed.notified() => tell(self.tally.now()),
                () = tokio::time::sleep(wait), if paused.is_some() || lanes.is_empty() => {}
            }
        }
        tell(self.tally.now());
        let missing = |item: &Item| Err(not_there(&item.wish.url, "no worker was left".to_owned()));
        let outcomes = self.outcomes.into_iter().zip(&self.items);
        outcomes.map(|(outcome, item)| (item.wish.index, outcome.unwrap_or_else(|| missing(item)))).collect()
    }

    fn start(&mut self, lanes: &mut JoinSet<(usize, Ended)>) {
        let now = SystemClock::now();
        // Those that are reliable choose first.
        let mut order: Vec<usize> = (0..self.workers.len()).collect();
        order.sort_by_key(|worker| self.workers[*worker].is_broken);
        for worker in order {
            if lanes.len() >= LANES_MAX || self.pending.is_empty() {
                return;
            }
            let state = &mut self.workers[worker];
            state.paused_until.take_if(|until| *until <= now);
            if state.is_busy || state.paused_until.is_some() || state.idle_in == Some(self.turn) {
                continue;
            }
            let taken = self.take(worker);
            if taken.is_empty() {
                self.workers[worker].idle_in = Some(self.turn);
                continue;
            }
            let state = &mut self.workers[worker];
            state.is_busy = true;
            let (client, identity) = (self.client.clone(), state.identity.clone());
            let factor = state.fruitless.factor();
            let patience = Patience { deadline: self.deadline, factor, is_replaceable: self.workers.len() > 1 };
            let tally = Arc::clone(&self.tally);
            // The place among the items is what a batch gives back.
            let wishes = taken.iter().map(|item| Wish { index: *item, ..self.items[*item].wish.clone() }).collect();
            lanes.spawn(async move { (worker, client.batch(&identity, wishes, patience, tally).await) });
        }
    }

    /// What a worker is to send next.
    fn take(&mut self, worker: usize) -> Vec<usize> {
        let share = self.pending.len() / (2 * self.workers.len());
        let files_max =
            if self.workers.len() == 1 { BATCH_FILES_MAX } else { share.clamp(BATCH_FILES_MIN, BATCH_FILES_MAX) };
        let is_broken = self.workers[worker].is_broken;
        let (mut taken, mut bytes, mut left) = (Vec::new(), 0_u64, VecDeque::new());
        while let Some(item) = self.pending.pop_front() {
            let Item { wish, holders, .. } = &self.items[item];
            let is_his = holders.contains(&worker)
                && (!is_broken || holders.iter().all(|holder| self.workers[*holder].is_broken));
            if !is_his {
                left.push_back(item);
                continue;
            }
            taken.push(item);
            bytes = bytes.saturating_add(wish.size);
            if taken.len() >= files_max || bytes >= BATCH_BYTES_MAX {
                break;
            }
        }
        while let Some(item) = left.pop_back() {
            self.pending.push_front(item);
        }
        taken
    }

    fn ended(&mut self, worker: usize, Ended { wishes, ends, ended, brought_something }: Ended) {
        self.workers[worker].is_busy = false;
        self.turn += 1;
        let mut open = Vec::new();
        for (wish, end) in wishes.into_iter().zip(ends) {
            let item = wish.index;
            match end {
                Some(End::Whole { facts, hash, had, was_there }) => {
                    self.outcomes[item] = Some(Ok(Fetched {
                        path: wish.place.shown().to_path_buf(),
                        bytes: facts.size,
                        had,
                        sha256: Some(hash.to_string()),
                        md5: None,
                        worker: (!was_there).then(|| self.workers[worker].identity.clone()),
                    }));
                }
                Some(End::Refused(error)) => {
                    let path = wish.place.shown().to_path_buf();
                    self.outcomes[item] = Some(Err(FetchError::Write { path, error }));
                }
                Some(End::Failed(why)) => self.without(item, worker, why, &mut open),
                Some(End::Again) | None => {
                    let kept = &mut self.items[item].wish;
                    (kept.size, kept.may_be_there) = (wish.size, wish.may_be_there);
                    open.push(item);
                }
            }
        }
        for item in open.into_iter().rev() {
            self.pending.push_front(item);
        }
        match ended {
            Ok(()) => {
                let state = &mut self.workers[worker];
                (state.is_broken, state.fruitless) = (false, Fruitless::default());
            }
            Err(Broken::Off(reason)) => self.broke_off(worker, reason, brought_something),
            Err(Broken::Write(error)) => {
                self.give_up(|wish| FetchError::Write { path: wish.place.shown().to_path_buf(), error: same(&error) })
            }
            Err(Broken::Submit(error)) => self.give_up(|wish| not_there(&wish.url, error.to_string())),
        }
    }

    fn broke_off(&mut self, worker: usize, reason: String, brought_something: bool) {
        let state = &mut self.workers[worker];
        tracing::info!(
            "client {}: a transfer from worker {} broke off: {reason}",
            self.client.identity(),
            state.identity
        );
        state.is_broken = true;
        state.fruitless.ended(brought_something);
        state.paused_until = (!brought_something).then(|| SystemClock::now() + ATTEMPT_INTERVAL);
        if state.fruitless.is_enough() {
            for item in std::mem::take(&mut self.pending) {
                let mut open = Vec::new();
                if self.items[item].holders.contains(&worker) {
                    self.without(item, worker, reason.clone(), &mut open);
                } else {
                    open.push(item);
                }
                self.pending.extend(open);
            }
        }
    }

    /// One worker less has a file.
    fn without(&mut self, item: usize, worker: usize, why: String, open: &mut Vec<usize>) {
        let Item { wish, holders, spares } = &mut self.items[item];
        holders.remove(&worker);
        if holders.is_empty() {
            spares.remove(&worker);
            std::mem::swap(holders, spares);
        }
        if holders.is_empty() {
            self.outcomes[item] = Some(Err(not_there(&wish.url, why)));
        } else {
            open.push(item);
        }
    }

    /// Nothing that waits is fetched any more.
    fn give_up(&mut self, error: impl Fn(&Wish) -> FetchError) {
        for item in std::mem::take(&mut self.pending) {
            self.outcomes[item] = Some(Err(error(&self.items[item].wish)));
        }
    }
}

fn not_there(url: &str, reason: String) -> FetchError {
    FetchError::NotFound { url: url.to_owned(), reason }
}

/// Errors of the system are not cloned.
fn same(error: &io::Error) -> io::Error {
    match error.raw_os_error() {
        Some(code) => io::Error::from_raw_os_error(code),
        None => io::Error::new(error.kind(), error.to_string()),
    }
}
