//! One unfinished job of a client.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::time::{Duration, Instant};

use bytes::Bytes;

use super::asking::Around;
use super::lost::Lost;
use crate::body::{self, InputRequest, Posting};
use crate::broker::EVERY_SERVICE;
use crate::message::{ClientCommand, ClientMessage};
use crate::name::{Identity, JobId, ServiceName, TaskName};
use crate::target::Target;

/// A request that leaves within this time after its submission does not say how much of its time-out is left.
const SENT_AT_ONCE: Duration = Duration::from_secs(1);

/// Shortest time between two GETs to one worker that events cause.
const ANNOUNCED_ASK_INTERVAL: Duration = Duration::from_millis(50);

/// See [`Job::is_worth_a_row`].
const ROWS_WRITTEN_FIRST: usize = 64;

/// Most questions of one job that are remembered as told; a worker that asks more often than this in one job gets no person
/// to answer.
pub(super) const QUESTIONS_TOLD_MAX: usize = 10_000;

/// Most workers of one job that are taken in although the broker did not name them.
pub(super) const ADOPTED_MAX: usize = 10_000;

/// A job as its caller wants it.
#[derive(Debug, Clone)]
pub struct JobRequest {
    /// Its id.
    pub job: JobId,
    /// Which service.
    pub service: ServiceName,
    /// Which task; for texts, the body says it to the worker.
    pub task: TaskName,
    /// For whom.
    pub target: Target,
    /// The POST body.
    pub body: Bytes,
    /// How long the caller waits.
    pub timeout: Duration,
    /// Until when.
    pub deadline: Instant,
    /// Whether it waits for workers that are not registered, however little is known of them. Else it waits for those that the
    /// broker expects.
    pub waits: bool,
}

/// Where a job is. Final states never change.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum JobState {
    /// Stored or being stored.
    New,
    /// Posted.
    Submitting,
    /// The broker handed it on.
    Dispatched,
    /// A worker has it.
    Started,
    /// A worker asks.
    Waiting,
    /// Its caller does not want it any more, and not every worker that may have it has said that it ended there.
    Cancelling,
    /// Every worker returned its result.
    Completed,
    /// It was refused, or a worker lost it.
    Failed,
    /// Its deadline passed.
    Stale,
    /// Its caller does not want it any more.
    Cancelled,
}

impl JobState {
    /// Whether it ends here.
    pub fn is_final(self) -> bool {
        matches!(self, Self::Completed | Self::Failed | Self::Stale | Self::Cancelled)
    }
}

/// The changing part of a job's row.
#[derive(Debug, Clone, PartialEq)]
pub struct Progress {
    /// Which.
    pub job: JobId,
    /// Where it is.
    pub state: JobState,
    /// Who has it, once the broker said so.
    pub dispatched: Vec<Identity>,
    /// Who accepted it.
    pub started: Vec<Identity>,
    /// Whose result is there.
    pub completed: Vec<Identity>,
    /// Why it did not complete.
    pub errors: Vec<String>,
}

/// A job that the store had unfinished.
#[derive(Debug, Clone)]
pub struct RestoredClientJob {
    /// What was asked.
    pub request: JobRequest,
    /// Its state then.
    pub state: JobState,
    /// Who had it.
    pub dispatched: Vec<Identity>,
    /// Who had accepted it.
    pub started: Vec<Identity>,
    /// Whose result was there.
    pub completed: Vec<Identity>,
    /// Of one that is cancelled, by its client or on a worker: who wanted that, when and why.
    pub errors: Vec<String>,
    /// It is not known how old it is, although its deadline looks like one that tells: somebody set the wall clock back before this
    /// process began. A deadline that is further off than the time-out says the same.
    pub ageless: bool,
}

/// A cancellation on its way to the workers.
#[derive(Debug)]
pub(super) struct Cancel {
    /// Who, when and why.
    pub(super) text: String,
    /// Until when its caller waits for the workers to confirm it.
    pub(super) patience_ends: Instant,
    /// The caller was told that the job has ended.
    pub(super) told: bool,
    /// Whether it is written down.
    pub(super) written: Written,
    /// The row was given the end of the job at once, as it was nowhere.
    pub(super) row_has_ended: bool,
    /// When the workers are told again; how often they were.
    pub(super) next: Option<Instant>,
    pub(super) times: u32,
    /// When the broker handed it to a worker first, and how often, since the worker was away last.
    pub(super) handed: BTreeMap<Identity, (Instant, u32)>,
}

/// Whether it is written down that a job is cancelled.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Written {
    /// Not yet. `ends`: nobody has the job, and it ends then.
    NotYet { ends: bool },
    /// It is.
    Down,
    /// It could not be.
    Failed(String),
}

#[derive(Debug)]
pub(super) struct Job {
    pub(super) request: JobRequest,
    pub(super) state: JobState,
    /// The store has it.
    pub(super) stored: bool,
    /// The store said no: it has no row of this job.
    pub(super) refused_by_store: bool,
    pub(super) posts: u32,
    /// It counts among those in flight.
    pub(super) in_flight: bool,
    /// POSTs that the broker refused because nobody it is for is registered: they went nowhere.
    pub(super) refusals: u32,
    /// What the broker said then.
    pub(super) refusal: Option<String>,
    /// On which connection it was posted for the first time, or for the first time since it is known that nobody has it.
    pub(super) remembered_on: Option<u64>,
    /// On which connection it was posted first. `None`: it was not, or it may have been by a process before this one.
    pub(super) posted_on: Option<u64>,
    /// A process before this one may have posted it: it does not write down that it does.
    pub(super) may_be_posted: bool,
    /// It is not known how old it is: somebody set the wall clock back while no process ran.
    ageless: bool,
    pub(super) cancel: Option<Cancel>,
    /// What a worker said of a cancellation that somebody else asked for.
    pub(super) cancelled_elsewhere: Option<String>,
    /// Workers that have the job although it is with another one, and have not given it up yet; when they were told last.
    pub(super) turned_away: BTreeMap<Identity, Instant>,
    /// Those that have: nothing of it runs there any more.
    pub(super) gave_up: BTreeSet<Identity>,
    /// Workers that do not have the job yet: the broker expects them.
    pub(super) to_come: BTreeSet<Identity>,
    /// Those of them that were registered when the job was handed on: they are among its workers, whatever becomes of them.
    pub(super) unreached: BTreeSet<Identity>,
    /// Workers that were away when they were last asked for.
    pub(super) away: BTreeSet<Identity>,
    /// Who has it, in the broker's order.
    dispatched: Option<Vec<Identity>>,
    /// The same, to be looked up: a job may have thousands of workers.
    pub(super) expected: HashSet<Identity>,
    /// Those of them that have neither answered nor are lost.
    pub(super) missing: HashSet<Identity>,
    pub(super) started: BTreeSet<Identity>,
    pub(super) completed: BTreeSet<Identity>,
    pub(super) lost: BTreeMap<Identity, Lost>,
    /// Workers that send their results unasked.
    pub(super) pushes: BTreeSet<Identity>,
    pub(super) asked: u32,
    pub(super) next_ask: Option<Instant>,
    pub(super) next_post: Option<Instant>,
    /// How long after the others for any worker it is posted on a new connection, so that they do not leave all at once.
    pub(super) turn: Duration,
    /// How often it was posted again to one worker that had not got it, and when the next time may be.
    pub(super) posts_to: HashMap<Identity, (u32, Instant)>,
    /// How often a worker had too much to do for it, or stopped.
    pub(super) no_room: u32,
    /// [`body::Posting::turn`]: later than every one that is known to have been refused.
    pub(super) turn_of_posts: u32,
    /// Answers that were given and not confirmed, by question: for whom, and the body.
    pub(super) answers: BTreeMap<String, (Option<Identity>, Bytes)>,
    /// The answers are to be sent again.
    pub(super) resend_answers: bool,
    /// Everyone is being asked who has the job.
    pub(super) around: Option<Around>,
    /// Everyone was asked at some time, or a worker that did not take it: answers to that may come late.
    pub(super) asked_around: bool,
    /// Rounds of questions, one after the other, that the broker has not answered.
    pub(super) unanswered_rounds: u32,
    /// It is known that it never started anywhere, so it may be posted as if for the first time.
    pub(super) nobody_has_it: bool,
    pub(super) open_questions: Vec<(Identity, InputRequest)>,
    pub(super) seen_questions: BTreeSet<(Identity, String)>,
    pub(super) announced: HashMap<Identity, Instant>,
}

impl Job {
    pub(super) fn new(request: JobRequest) -> Self {
        Self {
            request,
            state: JobState::New,
            stored: false,
            refused_by_store: false,
            posts: 0,
            in_flight: false,
            refusals: 0,
            refusal: None,
            remembered_on: None,
            posted_on: None,
            may_be_posted: false,
            ageless: false,
            cancel: None,
            cancelled_elsewhere: None,
            turned_away: BTreeMap::new(),
            gave_up: BTreeSet::new(),
            to_come: BTreeSet::new(),
            unreached: BTreeSet::new(),
            away: BTreeSet::new(),
            dispatched: None,
            expected: HashSet::new(),
            missing: HashSet::new(),
            started: BTreeSet::new(),
            completed: BTreeSet::new(),
            lost: BTreeMap::new(),
            pushes: BTreeSet::new(),
            asked: 0,
            next_ask: None,
            next_post: None,
            turn: Duration::ZERO,
            posts_to: HashMap::new(),
            no_room: 0,
            turn_of_posts: 0,
            unanswered_rounds: 0,
            answers: BTreeMap::new(),
            resend_answers: false,
            around: None,
            asked_around: false,
            nobody_has_it: false,
            open_questions: Vec::new(),
            seen_questions: BTreeSet::new(),
            announced: HashMap::new(),
        }
    }

    pub(super) fn restored(now: Instant, restored: RestoredClientJob) -> Self {
        let RestoredClientJob { request, state, dispatched, started, completed, errors: _, ageless } = restored;
        let state = if state == JobState::Submitting { JobState::New } else { state };
        let mut job = Self::new(request);
        job.stored = true;
        job.started = started.into_iter().collect();
        job.completed = completed.into_iter().collect();
        job.set_dispatched((!dispatched.is_empty()).then_some(dispatched));
        job.may_be_posted = true;
        job.ageless = ageless || job.request.deadline.saturating_duration_since(now) > job.request.timeout;
        job.state = if job.dispatched.is_some() || state == JobState::Cancelling { state } else { JobState::New };
        job
    }

    /// How long ago it was submitted, if that is known.
    pub(super) fn age(&self, now: Instant) -> Option<Duration> {
        let left = self.request.deadline.saturating_duration_since(now);
        (!self.ageless).then(|| self.request.timeout.saturating_sub(left))
    }

    /// This worker has the job, too. `None`: there are too many already.
    pub(super) fn adopt(&mut self, worker: &Identity) -> Option<Vec<Identity>> {
        let dispatched = self.dispatched.as_mut().filter(|dispatched| dispatched.len() < ADOPTED_MAX)?;
        dispatched.push(worker.clone());
        self.expected.insert(worker.clone());
        self.missing.insert(worker.clone());
        Some(dispatched.clone())
    }

    /// Who has the job, in the broker's order, once that is known.
    pub(super) fn dispatched(&self) -> Option<&[Identity]> {
        self.dispatched.as_deref()
    }

    /// It is known who has the job, or not any more.
    pub(super) fn set_dispatched(&mut self, dispatched: Option<Vec<Identity>>) {
        self.expected = dispatched.iter().flatten().cloned().collect();
        let is_open = |worker: &&Identity| !self.completed.contains(*worker) && !self.lost.contains_key(*worker);
        self.missing = self.expected.iter().filter(is_open).cloned().collect();
        self.dispatched = dispatched;
    }

    /// A worker's result is there. `false`: it was before.
    pub(super) fn complete(&mut self, worker: &Identity) -> bool {
        self.lost.remove(worker);
        self.missing.remove(worker);
        self.away.remove(worker);
        self.to_come.remove(worker);
        // Who has a result had the job, also where no 201 said so.
        self.started.insert(worker.clone());
        self.completed.insert(worker.clone())
    }

    pub(super) fn has_completed(&self, worker: &Identity) -> bool {
        self.completed.contains(worker)
    }

    /// No result will come from this worker.
    pub(super) fn lose(&mut self, worker: Identity, why: Lost) {
        self.missing.remove(&worker);
        self.lost.insert(worker, why);
    }

    /// The broker handed a question about the job to these of the workers that it names: the others are away.
    pub(super) fn note_absent(&mut self, target: &str, reached: &[Identity]) {
        let target = Target::parse(target);
        for name in target.listed_names().unwrap_or_default() {
            let Ok(worker) = Identity::parse(&name) else { continue };
            if reached.contains(&worker) {
                self.away.remove(&worker);
            } else if self.missing.contains(&worker) {
                self.away.insert(worker);
            }
        }
    }

    /// Workers that the broker was asked for with this target, does not know and does not expect any more are none of the job's:
    /// it is as if they had been unknown from the beginning. One that was registered then is named as lost. Who has the job then;
    /// `None`: nothing changes.
    pub(super) fn give_up_absent(
        &mut self,
        target: &str,
        reached: &[Identity],
        expected: &[Identity],
    ) -> Option<Vec<Identity>> {
        if self.to_come.is_empty() || self.request.waits {
            return None;
        }
        let asked = Target::parse(target).names().unwrap_or_default();
        let is_gone = |worker: &&Identity| {
            asked.iter().any(|name| name == worker.as_str()) && !reached.contains(worker) && !expected.contains(worker)
        };
        let gone: BTreeSet<Identity> = self.to_come.iter().filter(is_gone).cloned().collect();
        let stays = |worker: &&Identity| !gone.contains(*worker) || self.unreached.contains(*worker);
        let left: Vec<Identity> = self.dispatched.iter().flatten().filter(stays).cloned().collect();
        if gone.is_empty() || left.is_empty() {
            return None;
        }
        self.to_come.retain(|worker| !gone.contains(worker));
        for worker in gone.intersection(&self.unreached) {
            self.lost.insert(worker.clone(), Lost::Unreached);
        }
        self.set_dispatched(Some(left.clone()));
        Some(left)
    }

    /// Whether one worker has it, and another one gets it where that one does not take it.
    pub(super) fn moves(&self) -> bool {
        self.request.target == Target::Any && self.request.service.as_str() != EVERY_SERVICE
    }

    /// The worker that was said to have it does not.
    pub(super) fn is_with_nobody_known(&mut self) {
        self.set_dispatched(None);
        self.state = JobState::Submitting;
        self.next_ask = None;
        // The word on a question to that worker may come late. It is not the one on the next POST.
        self.asked_around = true;
    }

    /// The broker knows none of the workers that were asked.
    pub(super) fn note_all_absent(&mut self) {
        self.away = self.missing.iter().cloned().collect();
    }

    /// Workers from which no result will come, and why.
    pub(super) fn lost(&self) -> &BTreeMap<Identity, Lost> {
        &self.lost
    }

    /// Whether an answer of this worker is one that was asked for. Before the 202 anyone may answer: only who got the
    /// POST knows the id. But who is to give it up has not got it from us.
    pub(super) fn expects(&self, worker: &Identity) -> bool {
        if self.dispatched.is_none() { !self.turned_away.contains_key(worker) } else { self.expected.contains(worker) }
    }

    /// Whether a worker that has not got the job may be posted it now: the first time at once, then after longer and longer
    /// times. `true` counts.
    pub(super) fn may_post_to(&mut self, worker: &Identity, now: Instant, first: Duration, max: Duration) -> bool {
        let (again, at) = self.posts_to.get(worker).copied().unwrap_or((0, now));
        if at > now {
            return false;
        }
        self.posts_to.insert(worker.clone(), (again + 1, now + (first * (1 << again.min(8))).min(max)));
        true
    }

    /// Workers that have the job and have not answered.
    pub(super) fn missing(&self) -> Vec<Identity> {
        let dispatched = self.dispatched.as_deref().unwrap_or_default();
        dispatched.iter().filter(|worker| self.missing.contains(*worker)).cloned().collect()
    }

    pub(super) fn is_done(&self) -> bool {
        self.dispatched.is_some() && self.missing.is_empty()
    }

    pub(super) fn may_ask_now(&mut self, now: Instant, worker: &Identity) -> bool {
        if let Some(last) = self.announced.get(worker)
            && now.saturating_duration_since(*last) < ANNOUNCED_ASK_INTERVAL
        {
            return false;
        }
        self.announced.insert(worker.clone(), now);
        true
    }

    /// The target for all that may have the job: for `any`, where it is not known who, that is everybody.
    pub(super) fn everyone(&self) -> Target {
        match (&self.dispatched, &self.request.target) {
            (Some(workers), _) => Target::list(workers),
            (None, Target::Any) => Target::All,
            (None, target) => target.clone(),
        }
    }

    /// The workers that the target names.
    pub(super) fn named_workers(&self) -> Vec<Identity> {
        let names = self.request.target.names().unwrap_or_default();
        names.iter().filter_map(|name| Identity::parse(name).ok()).collect()
    }

    /// Adds named workers to those that the word on a POST of this connection says have it. Who is away now may have the job from an
    /// earlier POST, to a broker that knew it. `unreached` are those of whom it is known that they do not.
    pub(super) fn add_those_away(&self, connection: u64, workers: &mut Vec<Identity>, unreached: &[Identity]) {
        if self.posted_on == Some(connection) {
            return;
        }
        for worker in self.named_workers() {
            if !workers.contains(&worker) && !unreached.contains(&worker) {
                workers.push(worker);
            }
        }
    }

    /// Named workers that it waits for although nothing is known of them.
    pub(super) fn waited_for(&self) -> Vec<Identity> {
        if self.request.waits { self.named_workers() } else { Vec::new() }
    }

    /// In which turn this worker was posted the job last: in a later one than the others, where it got it by itself.
    pub(super) fn turn_for(&self, worker: &Identity) -> u32 {
        let by_itself = if self.moves() { 0 } else { self.posts_to.get(worker).map_or(0, |(again, _)| *again) };
        self.turn_of_posts.saturating_add(by_itself)
    }

    /// The POST for a target. `again`: it may not be the first.
    pub(super) fn post_to(&self, now: Instant, target: Target, again: bool, turn: u32) -> ClientMessage {
        let left = self.request.deadline.saturating_duration_since(now);
        // One that is sent at once says it with its time-out.
        let remaining = (left + SENT_AT_ONCE < self.request.timeout).then_some(left);
        let posting = Posting { remaining, again, turn };
        let body = body::posted_as(&self.request.body, posting);
        ClientMessage {
            command: ClientCommand::Post,
            service: self.request.service.clone(),
            target,
            job: self.request.job.clone(),
            body,
        }
    }

    /// Whether no worker has shown that it has the job, and none was asked.
    pub(super) fn is_untouched(&self) -> bool {
        self.started.is_empty() && self.completed.is_empty() && self.announced.is_empty()
    }

    /// Whether the number of workers that accepted or answered is one that is written down. With many workers not every one
    /// is: each row names them all. What is not written is asked for again after a restart.
    pub(super) fn is_worth_a_row(&self) -> bool {
        let count = self.started.len() + self.completed.len();
        count <= ROWS_WRITTEN_FIRST || count.is_multiple_of(ROWS_WRITTEN_FIRST)
    }

    /// Forgets that announced results were asked for: the next 202 is the one for the POST.
    pub(super) fn announced_nothing(&mut self) {
        self.announced.clear();
    }

    /// Whether a 202 with this target is the answer to the POST. Before it only an announced result makes us ask, and that
    /// asks one worker, or that it is not known who has a job for `any`, and that asks all.
    pub(super) fn is_dispatch(&self, target: &str) -> bool {
        self.announced.is_empty() && !self.asked_around || self.request.target.as_str() == target
    }

    /// When something is to be done about it; without a connection only what needs none.
    pub(super) fn next_wake(&self, connected: bool) -> Instant {
        let cancel = self.cancel.as_ref();
        let patience = cancel.filter(|cancel| !cancel.told && cancel.is_written()).map(|cancel| cancel.patience_ends);
        let told_again = cancel.and_then(|cancel| cancel.next);
        let sends = [self.next_ask, self.next_post, told_again].into_iter().flatten().filter(|_| connected);
        sends.chain(patience).fold(self.request.deadline, Instant::min)
    }

    /// Whether it waits for its first POST.
    pub(super) fn waits_for_post(&self) -> bool {
        self.stored && self.posts == 0 && !self.in_flight && self.cancel.is_none()
    }

    /// Who may begin it although its deadline has passed: this process posted it, and they have not said that they have it. Those
    /// that have keep the deadline themselves.
    pub(super) fn may_still_begin(&self) -> Option<Target> {
        if self.dispatched.is_none() {
            return (self.posts > self.refusals).then(|| self.everyone());
        }
        let silent: Vec<Identity> =
            self.missing().into_iter().filter(|worker| !self.started.contains(worker)).collect();
        (self.posts > 0 && !silent.is_empty()).then(|| Target::list(silent))
    }

    /// Whether a POST of it may have reached a worker.
    pub(super) fn may_be_taken(&self) -> bool {
        self.posts > self.refusals || self.may_be_posted
    }

    /// Whether anybody may have the job.
    pub(super) fn may_be_anywhere(&self) -> bool {
        self.may_be_taken() || self.dispatched.is_some()
    }

    /// A worker may have said that somebody cancelled it there, and in which words. Whether that is new.
    pub(super) fn is_cancelled_elsewhere(&mut self, said: Option<String>) -> bool {
        if self.cancelled_elsewhere.is_some() || said.is_none() {
            return false;
        }
        self.cancelled_elsewhere = said.map(body::bounded_cancel_text);
        true
    }

    pub(super) fn progress(&self, errors: Vec<String>) -> Progress {
        Progress {
            job: self.request.job.clone(),
            state: self.state,
            dispatched: self.dispatched.clone().unwrap_or_default(),
            started: self.started.iter().cloned().collect(),
            completed: self.completed.iter().cloned().collect(),
            errors: match &self.cancel {
                Some(cancel) if errors.is_empty() => vec![cancel.text.clone()],
                // A process after this one has to know it, too.
                None if errors.is_empty() => self.cancelled_elsewhere.iter().cloned().collect(),
                _ => errors,
            },
        }
    }
}
