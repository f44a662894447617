//! What the broker's messages mean for a job.

use std::collections::BTreeMap;
use std::time::Instant;

use bytes::Bytes;
use serde_json::value::RawValue;

use super::asking::Around;
use super::job::{Job, JobState};
use super::lost::Lost;
use super::output::{ClientNote, ClientStoreOperation, JobUpdate};
use super::{Client, EXPECTED_AGAIN, RETURN_TIME};
use crate::body::{self, CANCELLED_WORD, Dispatched, Event, EventStatus, EventType, InputRequest, Refused, Waiting};
use crate::broker::EVERY_SERVICE;
use crate::frame::Status;
use crate::message::{DecodeError, Reply};
use crate::name::{Identity, JobId};
use crate::target::Target;
use crate::worker::{cancellation_of, is_taken_back};

/// How often a job is posted again for which a worker had no room, or that stopped.
const NO_ROOM_MAX: u32 = 8;

/// All that matters of a 201 or 300: recorded peers say more, but not all peers do.
#[derive(serde::Deserialize)]
struct Speaker {
    worker: Identity,
    #[serde(default)]
    fabric: Option<u32>,
}

impl Client {
    pub(super) fn response(&mut self, now: Instant, reply: Reply) -> Result<(), DecodeError> {
        let Reply { job: id, status, payload, .. } = reply;
        if self.is_question(&id) {
            return self.question_answered(now, &id, status, &payload);
        }
        if !self.is_answerable(&id) {
            if self.management.contains_key(&id) {
                // The answer to a management request comes twice; the other one counts, unless this one is a refusal
                // that no other follows.
                if status.is_error() {
                    self.management_answer(&id, Ok((status, payload)));
                }
            } else if status == Status::OK || status.is_error() {
                self.note(ClientNote::UnknownJob(id));
            }
            return Ok(());
        }
        match status {
            Status::DISPATCHED => {
                let body: Dispatched = body::decode("a dispatch", &payload)?;
                self.learn_run(body.run);
                if self.jobs.get(&id).is_some_and(|job| job.cancel.is_some()) {
                    self.cancel_handed_on(now, &id, body);
                    return Ok(());
                }
                self.dispatched(now, &id, body);
            }
            Status::ACCEPTED => {
                let body: Speaker = body::decode("an acceptance", &payload)?;
                self.accepted(now, &id, body.worker, body.fabric.is_some());
            }
            Status::PENDING => {
                let body: Speaker = body::decode("a job state", &payload)?;
                self.accepted(now, &id, body.worker, false);
            }
            Status::WAITING => {
                let body: Waiting = body::decode("a waiting state", &payload)?;
                self.settle(now, &id, &body.worker, false);
                match body.input_request {
                    Some(question) => self.question(&id, body.worker, question),
                    // The worker has forgotten the question with a restart; nobody can answer it, but the job is there.
                    None => self.waits(now, &id, body.worker),
                }
            }
            Status::OK => self.results(now, &id, &payload)?,
            status if status.is_error() => self.refusal(now, &id, status, &payload)?,
            status => return Err(DecodeError::Status(status.to_string())),
        }
        Ok(())
    }

    fn waits(&mut self, now: Instant, id: &JobId, worker: Identity) {
        self.accepted(now, id, worker.clone(), false);
        if let Some(job) = self.jobs.get_mut(id)
            && job.expects(&worker)
            && job.state == JobState::Started
        {
            job.state = JobState::Waiting;
            self.progress(id);
        }
    }

    /// Whether a broker that remembers a job for any worker has handed it to another one than it said before: the first refused it,
    /// and that word was lost.
    fn is_chosen_anew(&self, job: &Job, run: Option<u32>, target: &str, workers: &[Identity]) -> bool {
        let ([worker], Some([before])) = (workers, job.dispatched()) else { return false };
        worker != before
            && run.is_some()
            && run == self.broker_run
            && job.request.target == Target::Any
            && job.request.target.as_str() == target
            && job.cancel.is_none()
            && job.is_untouched()
            && self.is_remembered(job)
    }

    fn dispatched(&mut self, now: Instant, id: &JobId, body: Dispatched) {
        let Dispatched { mut workers, target, unreached, absent, young, run, gone, .. } = body;
        let target = target.as_str();
        let (first, connection) = (self.config.get_first, self.connection);
        // Python brokers do not say that they are young.
        let long_connected = self.connected_since.is_none_or(|since| since + RETURN_TIME <= now);
        let is_chosen_anew = self.jobs.get(id).is_some_and(|job| self.is_chosen_anew(job, run, target, &workers));
        let Some(job) = self.jobs.get_mut(id) else {
            return;
        };
        // A 202 comes for every GET too, with the workers of that GET: only that for the POST says who has the job. One
        // for nobody says nothing.
        if job.dispatched().is_some() && !is_chosen_anew {
            job.note_absent(target, &workers);
            if run.is_some() && job.request.target.as_str() != target {
                let left = job.give_up_absent(target, &workers, &absent);
                self.gave_up_absent(now, id, left);
            }
            return;
        }
        if workers.is_empty() {
            if let Some(around) = &mut job.around {
                around.answered = true;
            }
            return;
        }
        let may_be_with_one_gone = job.may_be_with_one_gone(now, gone);
        if let Some(around) = &mut job.around
            && target == Target::All.as_str()
        {
            around.set_asked(workers.into_iter().collect());
            around.more_to_come = young || may_be_with_one_gone || (run.is_none() && !long_connected);
            self.nobody_has_it(now, id);
            return;
        }
        if !job.is_dispatch(target) {
            return;
        }
        job.add_those_away(connection, &mut workers, &unreached);
        // Who is expected is asked for until it is there, and gets the job then.
        // So is who is registered but was not reached: its connection is being made anew.
        let mut waited_for = Vec::new();
        let some_unreached = !unreached.is_empty();
        job.unreached.extend(unreached.iter().cloned());
        for worker in absent.into_iter().chain(unreached).chain(job.waited_for()) {
            if !workers.contains(&worker) && !job.has_completed(&worker) {
                job.away.insert(worker.clone());
                job.to_come.insert(worker.clone());
                waited_for.push(worker.to_string());
                workers.push(worker);
            }
        }
        if job.request.target == Target::Any {
            for worker in &workers {
                self.acquaintances.saw(now, &job.request.service, worker);
            }
        }
        job.refusal = None;
        job.turned_away.retain(|worker, _| !workers.contains(worker));
        job.nobody_has_it = false;
        job.set_dispatched(Some(workers.clone()));
        // A 404 is the worker's word from now on, not part of a round.
        job.around = None;
        job.next_post = None;
        job.next_ask = job.cancel.is_none().then_some(now + first);
        if matches!(job.state, JobState::New | JobState::Submitting) {
            job.state = JobState::Dispatched;
        }
        self.set_timer(id);
        if !waited_for.is_empty() {
            let names = waited_for.join(", ");
            let why = if some_unreached { "not registered or not reached" } else { "not registered" };
            self.update(id.clone(), JobUpdate::Waits(format!("{why} at the moment: {names}")));
        }
        self.update(id.clone(), JobUpdate::Dispatched(workers));
        if !self.complete_if_done(now, id) {
            self.progress(id);
        }
    }

    /// Fewer have the job than were waited for.
    fn gave_up_absent(&mut self, now: Instant, id: &JobId, left: Option<Vec<Identity>>) {
        let Some(left) = left else { return };
        self.update(id.clone(), JobUpdate::Dispatched(left));
        if !self.complete_if_done(now, id) {
            self.progress(id);
        }
    }

    /// A job for one worker, whose 202 was lost, is with the worker that speaks about it. `has_ended`: it has its result.
    fn settle(&mut self, now: Instant, id: &JobId, worker: &Identity, has_ended: bool) {
        let Some(job) = self.jobs.get_mut(id) else { return };
        if job.dispatched().is_some() {
            if !job.expects(worker) {
                self.adopt(now, id, worker, has_ended);
            }
            return;
        }
        if has_ended {
            // It was not told in time that another one has it. That one does not, and a result in hand is better than a second run.
            job.turned_away.remove(worker);
        }
        let names_one = match &job.request.target {
            // It was told that another one has it, and gives it up.
            Target::Any => !job.turned_away.contains_key(worker),
            Target::All => false,
            Target::Text(text) => text == worker.as_str(),
        };
        if names_one && job.request.service.as_str() != EVERY_SERVICE {
            let (target, service) = (job.request.target.as_str().to_owned(), job.request.service.clone());
            if let Some(job) = self.jobs.get_mut(id) {
                job.around = None;
                job.announced_nothing();
            }
            let body = Dispatched {
                workers: vec![worker.clone()],
                uuid: id.clone(),
                target,
                status: String::new(),
                service,
                fabric: None,
                run: None,
                young: false,
                gone: None,
                absent: Vec::new(),
                unreached: Vec::new(),
                holders: None,
                whole: false,
            };
            self.dispatched(now, id, body);
        }
    }

    /// All workers that were asked say that they do not have the job: it never started anywhere.
    pub(super) fn nobody_has_it(&mut self, now: Instant, id: &JobId) {
        let Some(job) = self.jobs.get_mut(id) else { return };
        let Some(asked) = job.around.as_ref().and_then(Around::denied_by_all) else { return };
        // Who is away may have it. What is not known then is asked again.
        if job.dispatched().is_none()
            && job.started.is_empty()
            && job.turned_away.keys().all(|worker| asked.contains(worker))
            && self.acquaintances.are_all_in(now, &job.request.service, asked)
        {
            job.turned_away.clear();
            job.nobody_has_it = true;
            self.post(now, id);
        }
    }

    fn accepted(&mut self, now: Instant, id: &JobId, worker: Identity, pushes: bool) {
        self.settle(now, id, &worker, false);
        let Some(job) = self.jobs.get_mut(id) else {
            return;
        };
        if !job.expects(&worker) {
            self.note(ClientNote::UnexpectedWorker(id.clone(), worker.to_string()));
            return;
        }
        if pushes {
            job.pushes.insert(worker.clone());
        }
        job.away.remove(&worker);
        job.to_come.remove(&worker);
        let new = job.started.insert(worker.clone());
        let changed = !matches!(job.state, JobState::Started | JobState::Waiting | JobState::Cancelling);
        if changed {
            job.state = JobState::Started;
        }
        if changed || (new && job.is_worth_a_row()) {
            self.progress(id);
        }
        if new {
            self.update(id.clone(), JobUpdate::Accepted(worker));
        }
    }

    fn question(&mut self, id: &JobId, worker: Identity, question: InputRequest) {
        let Some(job) = self.jobs.get_mut(id) else {
            return;
        };
        if job.cancel.is_some() {
            // Nobody will answer it: it ends with the task.
            return;
        }
        if !job.expects(&worker) {
            self.note(ClientNote::UnexpectedWorker(id.clone(), worker.to_string()));
            return;
        }
        if !job.ask_once(&worker, &question) {
            // It is known, and still open there: an answer that was given did not arrive.
            if let Some((worker, body)) = job.answers.get(&question.id).cloned() {
                self.put(id, worker.as_ref(), body);
            }
            return;
        }
        job.state = JobState::Waiting;
        self.progress(id);
        self.update(id.clone(), JobUpdate::Question(worker, question));
    }

    fn results(&mut self, now: Instant, id: &JobId, payload: &Bytes) -> Result<(), DecodeError> {
        let results: BTreeMap<String, &RawValue> = {
            let text = std::str::from_utf8(payload)
                .map_err(|error| DecodeError::Body { expected: "results by worker", error: error.to_string() })?;
            serde_json::from_str(text)
                .map_err(|error| DecodeError::Body { expected: "results by worker", error: error.to_string() })?
        };
        let mut news = false;
        for (name, result) in results {
            let worker = Identity::parse(&name)?;
            if is_taken_back(result.get().as_bytes()) {
                self.gave_up(now, id, &worker);
                continue;
            }
            self.settle(now, id, &worker, true);
            let Some(job) = self.jobs.get_mut(id) else {
                return Ok(());
            };
            if !job.expects(&worker) {
                self.note(ClientNote::UnexpectedWorker(id.clone(), worker.to_string()));
                continue;
            }
            if !job.complete(&worker) {
                continue;
            }
            // The event that says so may have been missed.
            news |= job.is_cancelled_elsewhere(cancellation_of(result.get().as_bytes()));
            job.close_questions(&worker);
            // A slice of the message: the text lies in it.
            let payload = payload.slice_ref(result.get().as_bytes());
            self.store(
                ClientStoreOperation::Result { job: id.clone(), worker: worker.clone(), payload: payload.clone() },
                None,
            );
            self.update(id.clone(), JobUpdate::Result(worker, payload));
        }
        if !self.complete_if_done(now, id) {
            let changed = self.jobs.get_mut(id).is_some_and(|job| job.settle_waiting() || job.is_worth_a_row());
            let changed = changed || news;
            if changed {
                self.progress(id);
            }
        }
        Ok(())
    }

    fn refusal(&mut self, now: Instant, id: &JobId, status: Status, payload: &[u8]) -> Result<(), DecodeError> {
        #[derive(serde::Deserialize)]
        struct Whose {
            worker: Option<Identity>,
        }
        let Whose { worker } = body::decode("a refusal", payload)?;
        let broker_run = self.broker_run;
        let Some(job) = self.jobs.get_mut(id) else {
            return Ok(());
        };
        let Some(worker) = worker else {
            // The broker's own. For the POST it is the verdict; for a question about a job that is under way it says
            // only that the worker is away at the moment.
            let body: Refused = body::decode("a refusal", payload)?;
            if job.cancel.is_some() {
                // That of a POST is late: another one may have gone on since. That somebody else cancelled the job, too, says nothing
                // of who is there.
                if body.turn.is_none() && body.status != CANCELLED_WORD {
                    self.cancel_not_handed_on(now, id);
                }
                return Ok(());
            }
            if body.status == CANCELLED_WORD {
                // Somebody else wants that, or did before this POST came to the broker.
                let text = body.error.unwrap_or_else(|| "cancelled".to_owned());
                self.cancel(now, id, text);
                return Ok(());
            }
            // So it does where the POST was repeated, or a worker has shown that it has the job: the broker was restarted
            // and its workers are not back yet.
            let errors = if body.errors.is_empty() { vec![body.status.clone()] } else { body.errors.clone() };
            let went_before = job.posts > job.refusals + 1 || job.may_be_posted;
            if job.dispatched().is_some() || went_before || job.around.is_some() || !job.is_untouched() {
                job.note_all_absent();
                if body.retry.is_none()
                    && broker_run.is_some()
                    && let Some(left) = job.give_up_absent(&body.target, &[], &[])
                {
                    self.gave_up_absent(now, id, Some(left));
                    return Ok(());
                }
                if let Some(around) = &mut job.around {
                    around.answered = true;
                }
                if job.dispatched().is_none() {
                    job.refusal = Some(errors.join("; "));
                }
                self.note(ClientNote::WorkerAway(id.clone()));
                return Ok(());
            }
            if body.retry == Some(true) || job.request.waits {
                if job.refusals >= job.posts || body.turn.is_some_and(|turn| turn < job.turn_of_posts) {
                    // Said twice: each POST is refused once, or a later one would count as refused.
                    return Ok(());
                }
                job.refusals += 1;
                job.turn_of_posts = job.turn_of_posts.saturating_add(1);
                let tells = job.refusal.is_none();
                let error = errors.join("; ");
                job.refusal = Some(error.clone());
                let again = EXPECTED_AGAIN * (1 << (job.refusals - 1).min(3));
                job.next_post = Some(now + again);
                self.set_timer(id);
                if tells {
                    self.update(id.clone(), JobUpdate::Waits(error));
                }
                return Ok(());
            }
            self.finish(now, id, JobState::Failed, errors);
            return Ok(());
        };
        if status == Status::NOT_FOUND {
            job.turned_away.remove(&worker);
        }
        if !job.expects(&worker) || job.has_completed(&worker) {
            return Ok(());
        }
        let body: body::StateReply = body::decode("a refusal", payload)?;
        if body.turn.is_some_and(|turn| turn < job.turn_for(&worker)) {
            // Of a POST before the one that it may have now: the job has moved on since, and may be back here. If it is not, the
            // worker says so.
            if job.next_ask.is_some() && !job.started.contains(&worker) {
                job.next_ask = Some(now);
                self.set_timer(id);
            }
            return Ok(());
        }
        if job.cancel.is_some() {
            // It never had the job, or did not take it. That a question did not find it says nothing: a POST may have come after.
            if status != Status::NOT_FOUND || body.status == CANCELLED_WORD {
                self.cancel_confirmed(now, id, &worker, Lost::Cancelled);
            }
            return Ok(());
        }
        if let Some(around) = &mut job.around
            && status == Status::NOT_FOUND
        {
            around.deny(worker);
            self.nobody_has_it(now, id);
            return Ok(());
        }
        if job.dispatched().is_none() && status == Status::NOT_FOUND {
            // The late answer to a question of a round that has ended. Whether it was before the POST is not known.
            return Ok(());
        }
        let posted = job.posts > 0 || job.dispatched().is_some();
        if posted && job.request.deadline > now && !job.started.contains(&worker) {
            // The worker never stored it, so it never ran there. That is no verdict, however often it is said: on a busy day
            // these are answers to questions that left before the last POST.
            if status == Status::NOT_FOUND {
                job.to_come.remove(&worker);
                if job.dispatched().is_some() && !job.missing.contains(&worker) {
                    // What became of it there is told already: it refused the job, and this is its word on a question behind that.
                    return Ok(());
                }
                if !job.may_post_to(&worker, now, self.config.post_again, self.config.get_max) {
                    return Ok(());
                }
                if job.moves() {
                    // It may have refused it and another one may have it by now, of which we or the process before did not hear. The
                    // broker knows, or everyone is asked.
                    job.is_with_nobody_known();
                    job.turn_of_posts = job.turn_of_posts.saturating_add(1);
                    self.post(now, id);
                    self.progress(id);
                } else {
                    // In a turn of its own: it may have refused the POST before, and that word was lost.
                    let turn = job.turn_for(&worker);
                    let message = job.post_to(now, Target::list([&worker]), true, turn);
                    self.send(message);
                }
                return Ok(());
            }
            let again = job.no_room;
            if body.retry == Some(true) && job.moves() && again < NO_ROOM_MAX {
                // It stops, or has too much to do: another one may be free.
                job.no_room += 1;
                job.turn_of_posts = body.turn.unwrap_or(job.turn_of_posts).saturating_add(1);
                job.is_with_nobody_known();
                job.nobody_has_it = job.turned_away.is_empty();
                job.next_post = Some(now + self.config.post_again / 10 * (again + 1));
                self.set_timer(id);
                self.progress(id);
                return Ok(());
            }
        }
        let lost = match (status, body.error) {
            (Status::NOT_FOUND, _) => Lost::Forgotten,
            (_, Some(error)) => Lost::Refused(error),
            (_, None) => Lost::Refused(body.status),
        };
        job.lose(worker, lost);
        self.complete_if_done(now, id);
        Ok(())
    }

    pub(super) fn event(&mut self, now: Instant, reply: Reply) -> Result<(), DecodeError> {
        let Reply { job: id, payload, .. } = reply;
        if !self.is_answerable(&id) {
            // The last event of a job whose result came first.
            return Ok(());
        }
        let event: Event = body::decode("an event", &payload)?;
        let worker = event.worker.clone();
        self.settle(now, &id, &worker, false);
        let Some(job) = self.jobs.get(&id) else { return Ok(()) };
        if !job.expects(&worker) {
            self.note(ClientNote::UnexpectedWorker(id, worker.to_string()));
            return Ok(());
        }
        self.store(ClientStoreOperation::Event { job: id.clone(), body: payload.clone() }, None);
        let question = event.input_request();
        let answered = event.input_response_id().map(str::to_owned);
        let cancelled = event.cancellation().map(str::to_owned);
        let ready = event.event_type == EventType::ResultReady
            || (event.event_type == EventType::Progress
                && event.status == EventStatus::Completed
                && event.message == "completed");
        self.update(id.clone(), JobUpdate::Event(Box::new(event), payload));
        if let Some(question) = question {
            self.question(&id, worker, question);
            return Ok(());
        }
        let Some(job) = self.jobs.get_mut(&id) else {
            return Ok(());
        };
        if job.is_cancelled_elsewhere(cancelled) {
            self.progress(&id);
        }
        let Some(job) = self.jobs.get_mut(&id) else { return Ok(()) };
        if let Some(answered) = answered {
            job.close_question(&worker, &answered);
            job.answers.remove(&answered);
            if job.settle_waiting() {
                self.progress(&id);
            }
            return Ok(());
        }
        // Also of one that is cancelled: workers of Python NorFab do not know that, and what ended there is confirmed by its result.
        if ready && job.expects(&worker) && !job.has_completed(&worker) {
            if job.pushes.contains(&worker) {
                return Ok(());
            }
            // At most one GET for each announcement: a task may say "completed" as often as it likes, but only once per
            // interval does that make us ask.
            let service = job.request.service.clone();
            if job.may_ask_now(now, &worker) {
                self.send_get(service, Target::list([&worker]), &id);
            }
        }
        Ok(())
    }
}
