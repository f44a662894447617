//! What must hold after every step. The first thing that does not ends the run.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::time::{Duration, Instant};

use norfab_protocol::Target;
use norfab_protocol::client::{JobState, Outcome, Progress};
use norfab_protocol::frame::Status;
use norfab_protocol::message::WorkerMessage;
use norfab_protocol::name::{Identity, JobId};
use norfab_protocol::size::Size;
use norfab_protocol::worker::Ending;

use crate::store::{ClientRows, WorkerRows};

/// How long after the last disturbance a result that is stored at its worker may take to its client, once the client knows
/// who has the job: the longest time between two askings, and some for the messages.
const SETTLED_AFTER: Duration = Duration::from_secs(25);

/// The same while the client does not know who has the job: the longest time between two POSTs comes on top.
const POSTED_AFTER: Duration = Duration::from_secs(100);

/// How long after its deadline a job may end: those that wait on their client's disk are asked for once a second, a few at a time,
/// and a disk takes its time.
const LATE_MAX: Duration = Duration::from_secs(8);

/// How long a message may be under way, which nobody counts: to a worker to which nothing arrives and that is frozen then.
const UNDER_WAY_MAX: Duration = Duration::from_secs(60);

/// A job as its client sees it.
#[derive(Debug)]
struct WatchedJob {
    any: bool,
    all: bool,
    deadline: Instant,
    state: JobState,
    dispatched: bool,
    /// Since when its client's machine has it, where it was read back.
    held_since: Instant,
    /// Workers that the broker posted it to.
    posted: BTreeSet<Identity>,
    results: BTreeSet<Identity>,
    /// Who has it, as its client stored it last.
    holders: Vec<Identity>,
    ended: bool,
    /// Its caller was told that it is stored.
    acknowledged: bool,
    /// The row says that it was cancelled.
    cancelled: bool,
    /// As what it ended for its caller.
    told: Option<JobState>,
}

/// Counts of a run.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Counts {
    /// Jobs that ended, by state: completed, failed, stale, cancelled.
    pub ended: [u64; 4],
    /// Tasks begun.
    pub starts: u64,
    /// Jobs that a worker ended because they were cancelled.
    pub cancellations: u64,
    /// Faults that happened.
    pub faults: u64,
    /// Jobs that waited on their client's disk until there was room.
    pub waited: u64,
    /// Processes that ended between two of their outputs.
    pub strikes: u64,
    /// Messages that arrived.
    pub messages: u64,
    /// Questions about many jobs that a worker answered.
    pub questions: u64,
}

impl Counts {
    /// Adds those of another run.
    pub fn add(&mut self, other: &Self) {
        for (sum, count) in self.ended.iter_mut().zip(other.ended) {
            *sum += count;
        }
        self.starts += other.starts;
        self.cancellations += other.cancellations;
        self.faults += other.faults;
        self.strikes += other.strikes;
        self.waited += other.waited;
        self.messages += other.messages;
        self.questions += other.questions;
    }
}

impl fmt::Display for Counts {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [completed, failed, stale, cancelled] = self.ended;
        write!(
            formatter,
            "{} faults and {} ends between two outputs, {} messages, {} answers about many jobs, {} tasks begun; jobs: {} waited on \
             disks, {completed} completed, {failed} failed, {stale} stale, {cancelled} cancelled ({} of their parts by a worker)",
            self.faults, self.strikes, self.messages, self.questions, self.starts, self.waited, self.cancellations
        )
    }
}

/// The observer.
#[derive(Debug)]
pub struct Watch {
    jobs: BTreeMap<JobId, WatchedJob>,
    clients: BTreeMap<JobId, usize>,
    starts: BTreeMap<JobId, Vec<Identity>>,
    /// Jobs that workers acknowledged.
    accepted: BTreeSet<(JobId, Identity)>,
    stored_results: BTreeMap<(JobId, Identity), Instant>,
    /// Results that could not be stored, and may be sent all the same.
    unstored_results: BTreeSet<(JobId, Identity)>,
    /// Those of them that a process has in memory.
    in_memory: BTreeSet<(JobId, Identity)>,
    /// Cancellations that arrived at a worker's process.
    cancelled: BTreeSet<(JobId, Identity)>,
    /// Jobs that a worker's process ended as cancelled.
    ended_as_cancelled: BTreeSet<(JobId, Identity)>,
    disturbed: Instant,
    /// When those jobs are due that their clients have in hand.
    due: BTreeSet<(Instant, JobId)>,
    /// It forgot then which jobs went where.
    broker_was_lost: bool,
    steps_clocks: bool,
    /// What does not hold.
    pub broken: Option<String>,
    /// Counts.
    pub counts: Counts,
}

impl Watch {
    /// Watches a run. `steps_clocks`: some promises need to know across a restart how much time has passed.
    pub fn new(now: Instant, steps_clocks: bool) -> Self {
        Self {
            jobs: BTreeMap::new(),
            clients: BTreeMap::new(),
            starts: BTreeMap::new(),
            accepted: BTreeSet::new(),
            stored_results: BTreeMap::new(),
            unstored_results: BTreeSet::new(),
            in_memory: BTreeSet::new(),
            cancelled: BTreeSet::new(),
            ended_as_cancelled: BTreeSet::new(),
            disturbed: now,
            due: BTreeSet::new(),
            broker_was_lost: false,
            steps_clocks,
            broken: None,
            counts: Counts::default(),
        }
    }

    /// Notes that something does not hold.
    pub fn fail(&mut self, what: String) {
        self.broken.get_or_insert(what);
    }

    /// The broker's process ends. Some promises need one that remembers.
    pub fn broker_lost(&mut self) {
        self.broker_was_lost = true;
    }

    /// A client's process ends: nobody has its jobs in hand.
    pub fn client_crashed(&mut self, client: usize) {
        let clients = &self.clients;
        self.due.retain(|(_, job)| clients.get(job) != Some(&client));
    }

    /// A client's process has ended, and its callers with it. Of what they were told the next process knows only what is on the disk.
    pub fn callers_went(&mut self, rows: &ClientRows) {
        for (job, _) in rows.0.iter().filter(|(_, row)| !row.progress.state.is_final()) {
            if let Some(watched) = self.jobs.get_mut(job) {
                watched.told = None;
            }
        }
    }

    /// A job is not to be expected to end at its deadline.
    pub fn in_nobodys_hands(&mut self, job: &JobId) {
        self.due.retain(|(_, due)| due != job);
    }

    /// After each step: no job is without an end after its deadline, while its client runs.
    pub fn check_due(&mut self, now: Instant) {
        if let Some((deadline, job)) = self.due.first()
            && *deadline + LATE_MAX < now
        {
            let what = format!("job {job} has no end {:?} after its deadline", now - *deadline);
            self.fail(what);
        }
    }

    /// A client begins: what it acknowledged is on its disk.
    pub fn check_acknowledged(&mut self, client: usize, rows: &ClientRows) {
        let is_lost = |(job, watched): &(&JobId, &WatchedJob)| {
            watched.acknowledged && self.clients.get(*job) == Some(&client) && !rows.0.contains_key(*job)
        };
        if let Some(job) = self.jobs.iter().find(is_lost).map(|(job, _)| job.clone()) {
            self.fail(format!("job {job} was acknowledged and is lost"));
        }
    }

    /// What a machine holds stays within its bounds.
    pub fn check_sizes(&mut self, who: impl fmt::Display, sizes: impl Iterator<Item = Size>) {
        for Size { what, count, max } in sizes.filter(Size::is_exceeded) {
            self.fail(format!("{who} holds too much: {count} {what}, at most {max} are expected"));
        }
    }

    /// Something went wrong, or right again.
    pub fn disturbed(&mut self, now: Instant) {
        self.disturbed = now;
    }

    /// A client takes a new job.
    pub fn submitted(&mut self, now: Instant, client: usize, job: &JobId, target: &Target, deadline: Instant) {
        self.clients.insert(job.clone(), client);
        let watched = WatchedJob {
            any: *target == Target::Any,
            all: *target == Target::All,
            deadline,
            state: JobState::New,
            dispatched: false,
            held_since: now,
            posted: BTreeSet::new(),
            results: BTreeSet::new(),
            holders: Vec::new(),
            ended: false,
            acknowledged: false,
            cancelled: false,
            told: None,
        };
        self.jobs.insert(job.clone(), watched);
    }

    /// A client found the job in its store at its start.
    pub fn restored(&mut self, now: Instant, job: &JobId, state: JobState, dispatched: &[Identity], deadline: Instant) {
        if let Some(watched) = self.jobs.get_mut(job) {
            watched.held_since = now;
            self.due.remove(&(watched.deadline, job.clone()));
            if !state.is_final() {
                self.due.insert((deadline, job.clone()));
            }
            watched.holders = dispatched.to_vec();
            watched.deadline = deadline;
            watched.state = state;
            watched.dispatched = !dispatched.is_empty();
            watched.ended = false;
        }
    }

    /// A client stores how far a job is.
    pub fn progressed(&mut self, progress: &Progress) {
        let Progress { job, state, .. } = progress;
        let state = *state;
        let Some(watched) = self.jobs.get_mut(job) else {
            return self.fail(format!("progress of the unknown job {job}"));
        };
        watched.holders.clone_from(&progress.dispatched);
        let cancelled = watched.cancelled;
        let before = std::mem::replace(&mut watched.state, state);
        if cancelled && state.is_final() && state != JobState::Cancelled {
            self.fail(format!("job {job} was cancelled and became {state:?}"));
        }
        if !may_follow(before, state) {
            self.fail(format!("job {job} was {before:?} and became {state:?}"));
        }
    }

    /// A caller is told that its job is stored.
    pub fn acknowledged(&mut self, job: &JobId, is_stored: bool) {
        if let Some(watched) = self.jobs.get_mut(job) {
            watched.acknowledged = true;
            if !watched.ended {
                self.due.insert((watched.deadline, job.clone()));
            }
        }
        if !is_stored {
            self.fail(format!("job {job} is acknowledged before it is stored"));
        }
    }

    /// A client's disk has that a job is cancelled.
    pub fn cancellation_stored(&mut self, job: &JobId) {
        if let Some(watched) = self.jobs.get_mut(job) {
            watched.cancelled = true;
        }
    }

    /// Everything is over: what a client took is on its disk, with the end that its caller was told.
    pub fn check_rest_of_client(&mut self, client: usize, rows: &ClientRows) {
        let mut broken = Vec::new();
        for (job, row) in &rows.0 {
            if let Some(told) = self.jobs.get_mut(job).and_then(|watched| watched.told.take())
                && told != row.progress.state
            {
                broken.push(format!("job {job} ended as {told:?} and is stored as {:?}", row.progress.state));
            }
            if let Some(watched) = self.jobs.get_mut(job) {
                watched.acknowledged = false;
            }
        }
        let of_client = |job: &JobId| self.clients.get(job) == Some(&client);
        let lost = self.jobs.iter().find(|(job, watched)| watched.acknowledged && of_client(job));
        if let Some((job, _)) = lost {
            broken.push(format!("job {job} was acknowledged and is lost"));
        }
        broken.into_iter().for_each(|broken| self.fail(broken));
    }

    /// Everything is over: a worker has the jobs that it acknowledged.
    pub fn check_rest_of_worker(&mut self, worker: &Identity, rows: &WorkerRows) {
        let lost = self.accepted.iter().find(|(job, of)| of == worker && !rows.0.contains_key(job));
        if let Some((job, _)) = lost.cloned() {
            self.fail(format!("{worker} acknowledged job {job} and lost it"));
        }
    }

    /// The broker posts a job to a worker.
    pub fn posted(&mut self, job: &JobId, worker: &Identity) {
        if let Some(watched) = self.jobs.get_mut(job) {
            watched.posted.insert(worker.clone());
        }
    }

    /// The client knows who has the job.
    pub fn dispatched(&mut self, job: &JobId) {
        if let Some(watched) = self.jobs.get_mut(job) {
            watched.dispatched = true;
        }
    }

    /// A result reached its client.
    pub fn result(&mut self, job: &JobId, worker: &Identity, client_restarted: bool) {
        let Some(watched) = self.jobs.get_mut(job) else {
            return self.fail(format!("a result of the unknown job {job}"));
        };
        let ended = watched.ended;
        let new = watched.results.insert(worker.clone());
        if ended {
            self.fail(format!("a result of job {job} after its end"));
        } else if !new && !client_restarted {
            self.fail(format!("the result of {worker} for job {job} was told twice"));
        } else if !self.stored_results.contains_key(&(job.clone(), worker.clone()))
            && !self.unstored_results.contains(&(job.clone(), worker.clone()))
        {
            self.fail(format!("{worker} sent a result of job {job} that it had not stored"));
        }
    }

    /// Whether a worker has told how a job ended.
    pub fn has_result(&self, job: &JobId) -> bool {
        self.jobs.get(job).is_some_and(|watched| !watched.results.is_empty())
    }

    /// A job ended for its client.
    /// `stored` are workers whose results are on the client's disk.
    pub fn ended(
        &mut self,
        now: Instant,
        job: &JobId,
        outcome: &Outcome,
        alive_since: Instant,
        stored: &BTreeSet<Identity>,
    ) {
        let Some(watched) = self.jobs.get_mut(job) else {
            return self.fail(format!("the end of the unknown job {job}"));
        };
        if std::mem::replace(&mut watched.ended, true) {
            return self.fail(format!("job {job} ended twice"));
        }
        let index = match outcome.state {
            JobState::Completed => 0,
            JobState::Failed => 1,
            JobState::Stale => 2,
            JobState::Cancelled => 3,
            state => return self.fail(format!("job {job} ended as {state:?}")),
        };
        self.counts.ended[index] += 1;
        self.due.remove(&(watched.deadline, job.clone()));
        watched.told = Some(outcome.state);
        let is_named = |worker: &&Identity| {
            watched.results.contains(*worker)
                || stored.contains(*worker)
                || outcome.missing.iter().any(|(missing, _)| missing == *worker)
        };
        let unnamed = watched.holders.iter().find(|worker| !is_named(worker)).cloned();
        if let Some(worker) = unnamed {
            return self.fail(format!("job {job} ended without a result of {worker} and does not name it"));
        }
        let (deadline, dispatched) = (watched.deadline, watched.dispatched);
        let held_since = watched.held_since;
        let (results, posted) = (watched.results.clone(), watched.posted.clone());
        // One that waits on its client's disk is looked for there.
        if now > deadline.max(alive_since) + LATE_MAX {
            self.fail(format!("job {job} ended {:?} after its deadline", now - deadline));
        }
        let without: Vec<&Identity> = posted.difference(&results).collect();
        if outcome.state == JobState::Completed
            && (!outcome.missing.is_empty() || !without.is_empty() && !self.broker_was_lost)
        {
            let without = format!("{without:?} {:?}", outcome.missing);
            self.fail(format!("job {job} completed without {without}"));
        }
        if outcome.state == JobState::Cancelled {
            return;
        }
        let is_cancelled = |worker: &&Identity| self.ended_as_cancelled.contains(&(job.clone(), (*worker).clone()));
        if outcome.state == JobState::Completed
            && let Some(worker) = results.iter().find(is_cancelled)
        {
            self.fail(format!("job {job} was cancelled on {worker} and is told as completed"));
        }
        let patience = if dispatched { SETTLED_AFTER } else { POSTED_AFTER };
        let stored: Vec<(Identity, Instant)> = self
            .stored_results
            .iter()
            .filter(|((stored, _), _)| stored == job)
            .map(|((_, worker), at)| (worker.clone(), *at))
            .collect();
        for (worker, at) in stored {
            let counted = !self.broker_was_lost || outcome.missing.iter().any(|(missing, _)| *missing == worker);
            let quiet_since = at.max(self.disturbed).max(alive_since).max(held_since);
            if counted && !results.contains(&worker) && quiet_since + patience <= now {
                self.fail(format!(
                    "job {job} ended as {:?} without the result that {worker} stored {:?} before",
                    outcome.state,
                    now - at
                ));
            }
        }
    }

    /// A worker begins a task.
    pub fn started(&mut self, now: Instant, job: &JobId, worker: &Identity, may_run_again: bool) {
        self.counts.starts += 1;
        if self.cancelled.contains(&(job.clone(), worker.clone())) {
            self.fail(format!("job {job} starts on {worker}, which was told that it is cancelled"));
        }
        let is_late = self.jobs.get(job).is_some_and(|watched| watched.deadline + UNDER_WAY_MAX < now);
        if is_late && !self.steps_clocks {
            self.fail(format!("job {job} starts on {worker} long after its deadline"));
        }
        let workers = self.starts.entry(job.clone()).or_default();
        let again = workers.contains(worker);
        let other = !workers.is_empty() && !again;
        workers.push(worker.clone());
        if again && !may_run_again {
            self.fail(format!("job {job} runs twice on {worker}"));
        }
        if other && self.jobs.get(job).is_some_and(|watched| watched.any) {
            self.fail(format!("job {job} for any runs on {worker} and on another worker"));
        }
    }

    /// A worker tells that its process ended while a job ran.
    pub fn interrupted(&mut self, job: &JobId, worker: &Identity) {
        if !self.starts.get(job).is_some_and(|workers| workers.contains(worker)) {
            self.fail(format!("job {job} is told as interrupted on {worker} and had not begun there"));
        }
    }

    /// A worker's process ends.
    pub fn worker_crashed(&mut self, worker: &Identity) {
        self.cancelled.retain(|(_, told)| told != worker);
        self.in_memory.retain(|(_, of)| of != worker);
    }

    /// A worker ends a job because it was cancelled.
    pub fn worker_cancels(&mut self, job: &JobId, worker: &Identity) {
        self.counts.cancellations += 1;
        self.cancelled.insert((job.clone(), worker.clone()));
    }

    /// A worker hands the end of a job to its store.
    pub fn finishes(&mut self, job: &JobId, worker: &Identity, ending: Ending) {
        if ending != Ending::Cancelled && self.cancelled.contains(&(job.clone(), worker.clone())) {
            self.fail(format!("job {job} was cancelled on {worker} and ends there as {ending:?}"));
        }
        if ending == Ending::Cancelled {
            self.ended_as_cancelled.insert((job.clone(), worker.clone()));
        } else {
            // The process that cancelled it ended before that was stored.
            self.ended_as_cancelled.remove(&(job.clone(), worker.clone()));
        }
    }

    /// A client stores that a job is cancelled everywhere: nobody has it any more.
    pub fn cancelled<'a>(
        &mut self,
        now: Instant,
        job: &JobId,
        mut workers: impl Iterator<Item = (&'a Identity, &'a WorkerRows)>,
    ) {
        let Some(watched) = self.jobs.get(job) else { return };
        let keeps = |(worker, rows): (&Identity, &WorkerRows)| {
            let is_unstored = self.unstored_results.contains(&(job.clone(), worker.clone()));
            (!is_unstored && rows.0.get(job).is_some_and(|row| row.payload.is_none())).then(|| worker.clone())
        };
        // Of a job for all that was posted to two brokers nobody knows every worker, nor the other of two for any.
        if now < watched.deadline
            && !(self.broker_was_lost && (watched.all || watched.any && watched.posted.len() > 1))
            && let Some(worker) = workers.find_map(keeps)
        {
            self.fail(format!("job {job} is stored as cancelled, and {worker} still has it"));
        }
    }

    /// A worker's disk has a result.
    pub fn result_stored(&mut self, now: Instant, job: &JobId, worker: &Identity) {
        let of_worker = (job.clone(), worker.clone());
        self.unstored_results.remove(&of_worker);
        self.in_memory.remove(&of_worker);
        self.stored_results.entry(of_worker).or_insert(now);
    }

    /// A worker's disk could not take a result.
    pub fn result_not_stored(&mut self, job: &JobId, worker: &Identity) {
        self.unstored_results.insert((job.clone(), worker.clone()));
        self.in_memory.insert((job.clone(), worker.clone()));
    }

    /// A worker says something: not before its disk knows it.
    pub fn worker_says(&mut self, worker: &Identity, message: &WorkerMessage, rows: &WorkerRows) {
        let WorkerMessage::Response(reply) = message else { return };
        let row = rows.0.get(&reply.job);
        if reply.status == Status::ACCEPTED {
            self.accepted.insert((reply.job.clone(), worker.clone()));
        }
        if reply.status == Status::ACCEPTED && row.is_none() {
            self.fail(format!("{worker} accepts job {} before it is stored", reply.job));
        }
        if reply.status == Status::REFUSED
            && let Some(watched) = self.jobs.get_mut(&reply.job).filter(|watched| watched.any)
        {
            // Another one gets it.
            watched.posted.remove(worker);
        }
        let is_unstored = self.in_memory.contains(&(reply.job.clone(), worker.clone()));
        if reply.status == Status::OK && !is_unstored && row.is_none_or(|row| row.payload.is_none()) {
            self.fail(format!("{worker} sends the result of job {} before it is stored", reply.job));
        }
    }

    /// The first message on a new connection of a worker.
    pub fn worker_speaks_first(&mut self, worker: &Identity, message: &WorkerMessage) {
        if !matches!(message, WorkerMessage::Ready(_)) {
            self.fail(format!("{worker} begins a connection with {message:?}"));
        }
    }
}

/// The table of states: forward, between started and waiting, and to an end.
fn may_follow(before: JobState, after: JobState) -> bool {
    let rank = |state| match state {
        JobState::New => 0,
        JobState::Submitting => 1,
        JobState::Dispatched => 2,
        JobState::Started | JobState::Waiting => 3,
        JobState::Cancelling => 4,
        // Cancelled never becomes anything else.
        JobState::Completed | JobState::Failed | JobState::Stale if before == JobState::Cancelling => 0,
        JobState::Completed | JobState::Failed | JobState::Stale | JobState::Cancelled => 5,
    };
    // Back only where the one worker that had it did not take it, and another is looked for.
    let elsewhere = before == JobState::Dispatched && after == JobState::Submitting;
    !before.is_final() && (rank(before) <= rank(after) || elsewhere)
}
