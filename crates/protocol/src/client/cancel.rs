//! A cancellation, from the caller's word until every worker that may have the job has confirmed it.
//!
//! The row says CANCELLING until then, so that a process after this one goes on telling the workers that were away. Nothing
//! leads from there but to CANCELLED: a result that comes late is kept, and changes nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use super::job::{Cancel, Job, JobState, Written};
use super::lost::Lost;
use super::output::{ClientNote, ClientOutput, ClientStoreOperation, ClientToken, JobUpdate, Outcome};
use super::{CANCELLING_MAX, Client};
use crate::body::{self, CancelBody, Dispatched};
use crate::message::{ClientCommand, ClientMessage};
use crate::name::{Identity, JobId, ServiceName};
use crate::target::Target;

/// How long a caller waits for the workers to confirm a cancellation before it is told that the job has ended: longer than a
/// worker lets a task end by itself, plus the way there and back.
pub const CANCEL_PATIENCE: Duration = Duration::from_secs(10);

/// How long a worker is told that is there and says nothing. One that is frozen or has a slow disk is back by then; workers of
/// Python NorFab never answer.
pub const CANCEL_ANSWER_MAX: Duration = Duration::from_secs(60);

/// How often it was told by then at least.
const CANCELS_MIN: u32 = 3;

impl Client {
    /// Unfinished jobs.
    pub fn unfinished(&self) -> usize {
        self.jobs.len()
    }

    /// Workers of an unfinished job that returned nothing, with what is known of each; of one that is being cancelled, how that
    /// stands there.
    pub fn missing(&self, job: &JobId) -> Vec<(Identity, Lost)> {
        self.jobs.get(job).map(|job| job.missing_why()).unwrap_or_default()
    }

    /// Bytes of the requests of all unfinished jobs.
    pub fn held_bytes(&self) -> usize {
        self.held_bytes
    }

    /// Unfinished jobs that take the place of others: not those that are being cancelled, which may wait for workers that are
    /// away until their deadline, but for those of them beyond [`CANCELLING_MAX`].
    pub fn held(&self) -> usize {
        self.jobs.len() - self.cancelling.min(CANCELLING_MAX)
    }

    /// Cancels a job. `text` says who wanted that, when and why: see [`body::cancel_text`]. It is written down before anybody is
    /// told, as a process after this one would go on with the job. Then one that cannot be anywhere ends; else its workers are
    /// told, again and again until they confirm it or its deadline has passed, across restarts of this process. Its caller is
    /// told of the end when all have confirmed, after [`CANCEL_PATIENCE`] at the latest. Where it cannot be written down, all
    /// are told nevertheless, and the end says so. `false`: there is no such unfinished job.
    pub fn cancel(&mut self, now: Instant, id: &JobId, text: String) -> bool {
        let Some(job) = self.jobs.get_mut(id) else { return false };
        if job.cancel.is_some() {
            return true;
        }
        let ends = !job.may_be_anywhere();
        self.begin_cancel(now, id, body::bounded_cancel_text(text), Written::NotYet { ends });
        if let Some(job) = self.jobs.get(id) {
            let mut progress = job.progress(Vec::new());
            if ends {
                progress.state = JobState::Cancelled;
            }
            self.store(ClientStoreOperation::Progress(progress), Some(ClientToken(id.clone())));
        }
        self.set_timer(id);
        true
    }

    /// It is written down that a job is cancelled, or cannot be.
    pub(super) fn cancel_written(&mut self, now: Instant, id: &JobId, outcome: Result<(), String>) {
        let Some(job) = self.jobs.get_mut(id) else { return };
        let Some(cancel) = &mut job.cancel else { return };
        let Written::NotYet { ends } = cancel.written else { return };
        cancel.written = match outcome {
            Ok(()) => Written::Down,
            Err(error) => Written::Failed(error),
        };
        (cancel.patience_ends, cancel.next) = (now + CANCEL_PATIENCE, Some(now));
        if let Written::Failed(error) = &cancel.written {
            let note = ClientNote::CancelNotStored { job: id.clone(), error: error.clone() };
            self.note(note);
        }
        if ends || self.is_confirmed(id) {
            self.end_cancelled(now, id);
        } else {
            self.tell_workers(now, id);
        }
    }

    /// Tells workers once that a job of another client is cancelled, and that client, where it is known and the broker is one of
    /// ours. Nothing comes back: they tell that client, too.
    pub fn cancel_elsewhere(
        &mut self,
        client: Option<Identity>,
        job: &JobId,
        service: ServiceName,
        target: Target,
        text: String,
    ) {
        if self.connected {
            let text = Some(body::bounded_cancel_text(text));
            let body = body::encode(&CancelBody { text, ends: client.is_some(), client, ..CancelBody::default() });
            self.send(ClientMessage { command: ClientCommand::Delete, service, target, job: job.clone(), body });
        }
    }

    /// A job that a process before this one cancelled.
    pub(super) fn restore_cancel(&mut self, now: Instant, id: &JobId, errors: Vec<String>) {
        let text = errors.into_iter().next().unwrap_or_else(|| "cancelled".to_owned());
        self.begin_cancel(now, id, text, Written::Down);
        if !self.end_if_confirmed(now, id) {
            self.tell_workers(now, id);
        }
    }

    fn begin_cancel(&mut self, now: Instant, id: &JobId, text: String, written: Written) {
        // Its POST must not leave any more.
        self.outputs.push_back(ClientOutput::Forget(id.clone()));
        let Some(job) = self.jobs.get_mut(id) else { return };
        self.cancelling += 1;
        job.state = JobState::Cancelling;
        (job.next_post, job.next_ask, job.around) = (None, None, None);
        job.answers.clear();
        job.close_all_questions();
        job.cancel = Some(Cancel {
            text,
            patience_ends: now + CANCEL_PATIENCE,
            told: false,
            row_has_ended: written == Written::NotYet { ends: true },
            next: (written == Written::Down).then_some(now),
            written,
            times: 0,
            handed: BTreeMap::new(),
        });
        // One that waits for a worker that is away holds up no other.
        if std::mem::take(&mut job.in_flight) {
            self.in_flight -= 1;
            self.post_waiting(now);
        }
    }

    /// Tells the workers that may have the job and have not confirmed its end.
    pub(super) fn tell_workers(&mut self, now: Instant, id: &JobId) {
        let (first, max) = (self.config.get_first, self.config.get_max);
        let Some(job) = self.jobs.get_mut(id) else { return };
        let target = match job.dispatched() {
            // Those that were to give it up may run it as well. Nobody waits for their word.
            Some(_) => Target::list(job.missing().into_iter().chain(job.turned_away.keys().cloned())),
            None => job.everyone(),
        };
        let Some(cancel) = job.cancel.as_mut().filter(|cancel| cancel.is_written()) else { return };
        if self.connected {
            cancel.times = (cancel.times + 1).min(16);
            cancel.next = Some(now + (first * (1 << (cancel.times - 1).min(8))).min(max));
            let body = CancelBody { text: Some(cancel.text.clone()), ends: true, ..CancelBody::default() };
            let service = job.request.service.clone();
            self.send(ClientMessage {
                command: ClientCommand::Delete,
                service,
                target,
                job: id.clone(),
                body: body::encode(&body),
            });
        }
        self.set_timer(id);
    }

    /// The broker handed something of a job on that is being cancelled.
    pub(super) fn cancel_handed_on(&mut self, now: Instant, id: &JobId, body: Dispatched) {
        let connection = self.connection;
        let Some(job) = self.jobs.get_mut(id) else { return };
        let whole = body.whole;
        let Some(holders) = body.holders else {
            // The POST's, which was on its way.
            if job.dispatched().is_none() && body.target == job.request.target.as_str() && !body.workers.is_empty() {
                let mut workers = body.workers;
                job.add_those_away(connection, &mut workers, &body.unreached);
                job.set_dispatched(Some(workers));
                self.progress(id);
            }
            return;
        };
        let Some(cancel) = &mut job.cancel else { return };
        for (_, handed) in cancel.handed.iter_mut().filter(|(worker, _)| !body.workers.contains(worker)) {
            *handed = (now, 0);
        }
        for worker in &body.workers {
            let (first, times) = cancel.handed.entry(worker.clone()).or_insert((now, 0));
            if *times == 0 {
                *first = now;
            }
            *times += 1;
        }
        let is_silent = |first: &Instant, times: &u32| *times >= CANCELS_MIN && *first + CANCEL_ANSWER_MAX <= now;
        let silent = cancel.handed.iter().filter(|(_, (first, times))| is_silent(first, times));
        let given_up: Vec<Identity> = silent.map(|(worker, _)| worker.clone()).collect();
        let only_these: BTreeSet<Identity> = holders.iter().cloned().collect();
        if job.dispatched().is_none() {
            if !holders.is_empty() {
                job.set_dispatched(Some(holders));
            } else if job.posted_on == Some(connection) || (whole && job.is_untouched()) {
                // The broker had the POST before this, the first or the only one, and nobody took the job.
                self.end_cancelled(now, id);
                return;
            } else {
                match &job.request.target {
                    // Whoever is away may have it: all are told again until the deadline.
                    Target::Any | Target::All => return,
                    Target::Text(_) => {
                        let names = job.named_workers();
                        job.set_dispatched(Some(names));
                    }
                }
            }
            self.progress(id);
        }
        let without = if whole { self.without(id, &only_these) } else { Vec::new() };
        for worker in without {
            self.cancel_confirmed(now, id, &worker, Lost::Cancelled);
        }
        for worker in given_up {
            self.cancel_confirmed(now, id, &worker, Lost::CancelUnanswered);
        }
        self.end_if_confirmed(now, id);
    }

    /// Workers that never got the job, as only these have it.
    fn without(&self, id: &JobId, holders: &BTreeSet<Identity>) -> Vec<Identity> {
        let Some(job) = self.jobs.get(id) else { return Vec::new() };
        let missing = job.missing().into_iter();
        missing.filter(|worker| !holders.contains(worker) && !job.started.contains(worker)).collect()
    }

    /// The broker has nobody to hand it to.
    pub(super) fn cancel_not_handed_on(&mut self, now: Instant, id: &JobId) {
        let Some(job) = self.jobs.get_mut(id) else { return };
        if let Some(cancel) = &mut job.cancel {
            cancel.handed.values_mut().for_each(|handed| *handed = (now, 0));
        }
        if job.dispatched().is_none() && job.posted_on == Some(self.connection) && job.is_untouched() {
            self.end_cancelled(now, id);
        } else {
            self.note(ClientNote::WorkerAway(id.clone()));
        }
    }

    /// A worker says that the job has ended there, or never was.
    pub(super) fn cancel_confirmed(&mut self, now: Instant, id: &JobId, worker: &Identity, lost: Lost) {
        let Some(job) = self.jobs.get_mut(id) else { return };
        if job.dispatched().is_some() && job.expects(worker) && !job.has_completed(worker) {
            job.lose(worker.clone(), lost);
        }
        self.end_if_confirmed(now, id);
    }

    /// Ends a cancelled job when nobody has it any more.
    pub(super) fn end_if_confirmed(&mut self, now: Instant, id: &JobId) -> bool {
        if !self.jobs.contains_key(id) {
            return true;
        }
        let done = self.is_confirmed(id);
        if done {
            self.end_cancelled(now, id);
        }
        done
    }

    fn is_confirmed(&self, id: &JobId) -> bool {
        self.jobs.get(id).is_some_and(|job| job.is_done())
    }

    /// Nobody has a cancelled job any more: it ends, once it is written down that it is cancelled.
    fn end_cancelled(&mut self, now: Instant, id: &JobId) {
        let Some(job) = self.jobs.get_mut(id) else { return };
        let text = job.cancel_text();
        if let Some(Cancel { written: Written::NotYet { ends }, .. }) = &mut job.cancel {
            *ends = true;
            return;
        }
        self.finish(now, id, JobState::Cancelled, vec![text]);
    }

    /// The deadline of a cancelled job has passed. Nobody is told any more, and of those that have not confirmed it is only known that.
    pub(super) fn cancel_expired(&mut self, now: Instant, id: &JobId) {
        let Some(job) = self.jobs.get_mut(id) else { return };
        let (text, missing) = (job.cancel_text(), job.missing());
        if let Some(cancel) = &mut job.cancel {
            cancel.handed.extend(missing.into_iter().map(|worker| (worker, (now, 0))));
        }
        self.finish(now, id, JobState::Cancelled, vec![text]);
    }

    /// The caller has waited long enough for workers to confirm.
    pub(super) fn cancel_patience_ended(&mut self, id: &JobId) {
        let Some(job) = self.jobs.get_mut(id) else { return };
        let missing = job.unconfirmed();
        let Some(cancel) = &mut job.cancel else { return };
        cancel.told = true;
        let errors = std::iter::once(cancel.text.clone()).chain(cancel.written.problem()).collect();
        let outcome = Outcome { state: JobState::Cancelled, errors, missing };
        self.outputs.push_back(ClientOutput::Update(id.clone(), JobUpdate::Finished(outcome)));
        self.set_timer(id);
    }
}

impl Written {
    /// What its caller should know.
    pub(super) fn problem(&self) -> Option<String> {
        match self {
            Self::NotYet { .. } | Self::Down => None,
            Self::Failed(error) => Some(format!(
                "that it is cancelled could not be written down: {error}; if this process ends before it is, the next client \
                 of this name goes on with the job: cancel it again then"
            )),
        }
    }
}

impl Cancel {
    /// Whether it was tried to write it down, after which everybody is told.
    pub(super) fn is_written(&self) -> bool {
        !matches!(self.written, Written::NotYet { .. })
    }
}

impl Job {
    /// Who cancelled it, when and why.
    pub(super) fn cancel_text(&self) -> String {
        self.cancel.as_ref().map_or_else(|| "cancelled".to_owned(), |cancel| cancel.text.clone())
    }

    /// Whether its caller was told of its end, although workers have not confirmed it.
    pub(super) fn end_was_told(&self) -> bool {
        self.cancel.as_ref().is_some_and(|cancel| cancel.told)
    }

    /// Workers that returned nothing when the job ended, and why.
    pub(super) fn missing_why(&self) -> Vec<(Identity, Lost)> {
        if self.cancel.is_some() {
            return self.unconfirmed();
        }
        let why = |worker: &Identity| match self.state {
            JobState::Stale if self.away.contains(worker) => Lost::Vanished,
            JobState::Stale => Lost::Expired,
            JobState::Cancelled => Lost::Cancelled,
            _ => Lost::Unknown,
        };
        let missing = self.missing().into_iter().map(|worker| (worker.clone(), why(&worker)));
        missing.chain(self.lost().clone()).collect()
    }

    /// Workers of one that is cancelled which have not confirmed that, for its row: its caller may have been told before some did.
    pub(super) fn unconfirmed_in_words(&self) -> Vec<String> {
        if self.cancel.is_none() {
            return Vec::new();
        }
        let unconfirmed = self.unconfirmed().into_iter().filter(|(_, lost)| !lost.is_over());
        unconfirmed.map(|(worker, lost)| lost.of_worker(&worker)).collect()
    }

    /// Workers that returned nothing, with what is known of the cancellation there.
    fn unconfirmed(&self) -> Vec<(Identity, Lost)> {
        let handed = self.cancel.as_ref().map(|cancel| &cancel.handed);
        let why = |worker: &Identity| {
            if handed.is_some_and(|handed| handed.contains_key(worker)) {
                Lost::CancelUnanswered
            } else {
                Lost::CancelUntold
            }
        };
        let missing = self.missing().into_iter().map(|worker| (worker.clone(), why(&worker)));
        missing.chain(self.lost().clone()).collect()
    }
}
