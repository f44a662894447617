//! The life of a worker's job, from its POST to its result.

use std::collections::HashSet;
use std::time::Instant;

use bytes::Bytes;

use super::output::{
    Abandoned, Asked, Class, Ending, NewJob, Refusal, RestoredJob, StartJob, StoreFailure, WorkerNote, WorkerOutput,
    WorkerStoreOperation, WorkerToken,
};
use super::reply::{given_up, is_taken_back, marked, result_payload};
use super::{ActiveJob, FINISH_AGAIN, FINISHES_AGAIN, NOT_FOUND_WORD, Phase, START_AGAIN, UNSTORED_BYTES_MAX, Worker};
use crate::body::{
    self, Accepted, CancelBody, DEFAULT_JOB_TIMEOUT_SECONDS, FABRIC_VERSION, JobRequestBody, JobRequestHead, JobsAsked,
    StateReply, Waiting,
};
use crate::frame::Status;
use crate::message::{Delivery, WorkerMessage, WorkerReply};
use crate::name::{Identity, JobId, TaskName};

/// Requests up to this size are copied when they are kept.
const COPIED_BYTES_MAX: usize = 4 << 10;

impl Refusal {
    /// Of a job that no worker may take.
    fn for_good(reason: String) -> Self {
        Self { reason, retry: false, turn: None }
    }
}

impl ActiveJob {
    /// How it ends, and with which words: one that was cancelled ends as that.
    pub(super) fn end(&self, worker: &Identity, ending: Ending, reply: Bytes) -> (Ending, Bytes) {
        match &self.cancelled {
            Some(Abandoned::Cancelled { text: Some(text), back: false, .. }) => {
                (Ending::Cancelled, marked(worker, &reply, text))
            }
            // Its client may look for another worker then. What has begun anywhere is run by no other.
            Some(Abandoned::Cancelled { back: true, .. }) if self.phase != Phase::Running && self.attempts == 0 => {
                (Ending::Cancelled, given_up(worker, &reply))
            }
            Some(_) => (Ending::Cancelled, reply),
            None => (ending, reply),
        }
    }
}

impl Worker {
    /// What the store had when the process began, before the first message.
    pub fn restore(&mut self, now: Instant, restored: RestoredJob) {
        let RestoredJob { new, given_up, remaining, attempts, counted } = restored;
        let NewJob { job, client, task, asked_timeout, timeout, time_left: _, body } = new;
        self.now = now;
        self.bytes += body.len();
        let active = ActiveJob {
            client,
            task,
            body,
            timeout,
            deadline: asked_timeout.map(|_| now + remaining),
            phase: if given_up { Phase::Running } else { Phase::Queued },
            questions: Vec::new(),
            cancelled: None,
            abandoned: false,
            attempts,
            counted,
            // Its 201 left with the process before.
            fabric: false,
            turn: None,
            spoke: false,
        };
        self.jobs.insert(job.clone(), active);
        if given_up {
            self.running += 1;
            self.abandon(&job, Abandoned::Restarted);
        } else {
            self.queue.push_back(job);
            self.start_jobs(now);
        }
    }

    pub(super) fn post(&mut self, now: Instant, delivery: Delivery) {
        let Delivery { client, job, body } = delivery;
        if let Some(active) = self.jobs.get_mut(&job) {
            // Somebody else asks too, who may need the word that the job was taken.
            active.fabric &= active.client == client;
            return self.reply_taken(client, job);
        }
        if let Some(text) = self.withdrawn.get(&client, &job) {
            let refusal = Refusal::for_good(text.clone());
            self.refuse_unknown(client, job, refusal);
            return;
        }
        let head: JobRequestHead = match body::decode("a job request", &body) {
            Ok(head) => head,
            Err(error) => {
                self.refuse(client, job, Refusal::for_good(error.to_string()));
                return;
            }
        };
        let time_left = head.time_left();
        // Others post a job once.
        let turn = head.fabric.map(|_| head.turn);
        let refused = self.refused.get(&client, &job).copied();
        if refused.is_some_and(|refused| turn.is_some_and(|turn| turn <= refused)) {
            // The first POST of this turn came when there was no room. Of a job for any worker another one may have it by now, and its
            // client counts on: what is said here is read by who named this worker, or all.
            let reason = format!(
                "worker {} could not take the job when it came first, and takes no repetition of that: submit it anew",
                self.config.identity
            );
            self.refuse_unknown(client, job, Refusal { reason, retry: true, turn: refused });
            return;
        }
        if self.stopping {
            let reason = format!("worker {} is stopping", self.config.identity);
            let refusal = self.refusal_of_turn(&client, &job, reason, turn);
            self.refuse_unknown(client, job, refusal);
            return;
        }
        if self.jobs.len() >= self.config.jobs_max || self.bytes + body.len() > self.config.jobs_bytes_max {
            let reason = format!(
                "worker {} has {} unfinished jobs with {} bytes, it takes no more than {} with {}: try again later",
                self.config.identity,
                self.jobs.len(),
                self.bytes,
                self.config.jobs_max,
                self.config.jobs_bytes_max
            );
            let refusal = self.refusal_of_turn(&client, &job, reason, turn);
            self.refuse_unknown(client, job, refusal);
            return;
        }
        let JobRequestHead { task, timeout: asked_timeout, fabric, .. } = head;
        // A copy where it costs nothing: a short one may be cut from a block that it would keep in memory.
        let body = if body.len() <= COPIED_BYTES_MAX { Bytes::copy_from_slice(&body) } else { body };
        let timeout = asked_timeout.unwrap_or(DEFAULT_JOB_TIMEOUT_SECONDS);
        let active = ActiveJob {
            client: client.clone(),
            task: task.clone(),
            body: body.clone(),
            timeout,
            deadline: time_left.map(|left| now + left),
            phase: Phase::Storing,
            questions: Vec::new(),
            cancelled: None,
            abandoned: false,
            attempts: 0,
            counted: false,
            fabric: fabric.is_some(),
            turn,
            spoke: false,
        };
        self.bytes += body.len();
        self.jobs.insert(job.clone(), active);
        let new = NewJob { job: job.clone(), client, task, asked_timeout, timeout, time_left, body };
        self.store(WorkerStoreOperation::Insert(new), Some(WorkerToken::Insert(job.clone())));
        if self.running < self.config.max_concurrent_jobs && self.queue.is_empty() {
            // There is room: the store writes both down at once.
            self.running += 1;
            self.reserved.insert(job.clone());
            self.store(WorkerStoreOperation::Started(job.clone()), Some(WorkerToken::Start(job)));
        }
    }

    /// Refuses a job that cannot be taken now, unless it was taken before: the answer to its repeated POST is its state.
    fn refuse_unknown(&mut self, client: Identity, job: JobId, refusal: Refusal) {
        self.outputs.push_back(WorkerOutput::Load { job, client, asked: Asked::ToRun(refusal) });
    }

    /// Answers a POST of a job that this worker has given up, as another one had it. It is not taken any more: that is what its client
    /// counts on.
    pub(super) fn refuse_given_up(&mut self, client: Identity, job: JobId, turn: Option<u32>) {
        let reason = format!(
            "worker {} gave the job up when another one had it, and does not take it again: submit it anew",
            self.config.identity
        );
        self.refuse(client, job, Refusal { reason, retry: true, turn });
    }

    /// For a job that cannot be taken now. No other POST of its turn is taken either: the client looks for another worker.
    fn refusal_of_turn(&mut self, client: &Identity, job: &JobId, reason: String, turn: Option<u32>) -> Refusal {
        if let Some(turn) = turn {
            self.refused.replace(client, job, turn);
        }
        Refusal { reason, retry: true, turn }
    }

    /// The answer to a POST of a job that is here.
    pub(super) fn reply_taken(&mut self, client: Identity, job: JobId) {
        match self.jobs.get(&job).map(|active| &active.phase) {
            // The 201 of a job that is being stored comes when it is.
            None | Some(Phase::Storing) => {}
            Some(Phase::Unstored { .. }) => self.reply_active(client, &job),
            Some(_) => self.accept(client, job),
        }
    }

    pub(super) fn accept(&mut self, client: Identity, job: JobId) {
        let body = Accepted {
            worker: self.config.identity.clone(),
            uuid: job.clone(),
            status: "ACCEPTED".to_owned(),
            service: self.config.service.clone(),
            fabric: Some(FABRIC_VERSION),
        };
        let payload = body::encode(&body);
        let reply = WorkerReply { client, job: job.clone(), status: Status::ACCEPTED, payload };
        self.counters.sent += 1;
        self.outputs.push_back(WorkerOutput::Announce(job, WorkerMessage::Response(reply).encode()));
    }

    pub(super) fn inserted(&mut self, now: Instant, job: JobId, outcome: Result<(), StoreFailure>) {
        let Some(active) = self.jobs.get_mut(&job) else {
            return;
        };
        if active.phase != Phase::Storing {
            return;
        }
        let (client, turn) = (active.client.clone(), active.turn);
        let reserved = self.reserved.remove(&job);
        match outcome {
            Ok(()) => {
                active.phase = if reserved { Phase::Starting } else { Phase::Queued };
                let cancelled = active.cancelled.clone();
                self.accept(client, job.clone());
                match cancelled {
                    Some(why) => self.abandon(&job, why),
                    None if reserved => {}
                    None => self.queue.push_back(job),
                }
                self.start_jobs(now);
            }
            Err(StoreFailure::Duplicate) => {
                self.forget(&job, reserved);
                self.start_jobs(now);
                self.outputs.push_back(WorkerOutput::Load { job, client, asked: Asked::Again(turn) });
            }
            Err(StoreFailure::Refused(error) | StoreFailure::Failed(error) | StoreFailure::GivenUp(error)) => {
                self.forget(&job, reserved);
                self.start_jobs(now);
                let reason = format!("worker {} cannot store the job: {error}", self.config.identity);
                let refusal = self.refusal_of_turn(&client, &job, reason, turn);
                self.refuse(client, job, refusal);
            }
        }
    }

    /// A job that was not stored leaves no trace.
    fn forget(&mut self, job: &JobId, reserved: bool) {
        if let Some(active) = self.jobs.remove(job) {
            self.bytes -= active.body.len();
        }
        if reserved {
            self.running -= 1;
        }
    }

    /// A result is stored, and sent then. One that cannot be stored is sent all the same: who waits for it has it, and who comes back
    /// for it is answered from memory until it is stored.
    pub(super) fn result_stored(&mut self, now: Instant, job: JobId, outcome: Result<(), StoreFailure>) {
        let Some(mut active) = self.jobs.remove(&job) else {
            return;
        };
        let (ending, reply, event) = match active.phase {
            Phase::Finishing { ending, reply, event } => (ending, reply, event),
            // It is stored now, or the store has no such job and never will.
            Phase::Unstored { reply, .. }
                if !matches!(outcome, Err(StoreFailure::Failed(_) | StoreFailure::GivenUp(_))) =>
            {
                self.unstored_bytes -= reply.len();
                return;
            }
            phase => {
                let is_given_up =
                    matches!(phase, Phase::Unstored { .. }) && matches!(outcome, Err(StoreFailure::GivenUp(_)));
                active.phase = phase;
                self.jobs.insert(job.clone(), active);
                if is_given_up {
                    self.give_up(now, job);
                }
                return;
            }
        };
        self.bytes -= active.body.len();
        let (mut keeps, mut is_given_up) = (false, false);
        // The next process would find it as one that waits to begin: nobody may count on that it does not before it is stored.
        let is_said = !matches!(outcome, Err(StoreFailure::Failed(_) | StoreFailure::GivenUp(_)))
            || !is_taken_back(&result_payload(&self.config.identity, &reply));
        if let Err(failure) = outcome {
            is_given_up = matches!(failure, StoreFailure::GivenUp(_));
            keeps = (is_given_up || matches!(failure, StoreFailure::Failed(_)))
                && self.unstored_bytes + reply.len() <= UNSTORED_BYTES_MAX;
            let error = match failure {
                StoreFailure::Duplicate => "already finished".to_owned(),
                StoreFailure::Refused(error) | StoreFailure::Failed(error) | StoreFailure::GivenUp(error) => error,
            };
            self.note(WorkerNote::ResultNotStored { job: job.clone(), error });
        }
        // The result that a client of ours gets unasked is all that the last event would announce.
        if active.fabric && !active.spoke {
            self.outputs.push_back(WorkerOutput::Withdraw(job.clone()));
        }
        if is_said {
            self.reply(active.client.clone(), job.clone(), Status::OK, reply.clone());
        }
        if !active.fabric {
            self.send_event(active.client.clone(), job.clone(), event, Class::Data);
        }
        if keeps {
            self.unstored_bytes += reply.len();
            (active.body, active.phase) = (Bytes::new(), Phase::Unstored { ending, reply });
            self.jobs.insert(job.clone(), active);
            if is_given_up {
                self.give_up(now, job);
            }
        }
        self.start_jobs(now);
    }

    /// The store does not go on trying to store the end of this job, so it is given to it again.
    fn give_up(&mut self, now: Instant, job: JobId) {
        self.given_up.push_back(job);
        self.finish_again_at.get_or_insert(now + FINISH_AGAIN);
    }

    /// Ends that the store gave up are given to it again.
    pub(super) fn finish_again(&mut self, now: Instant) {
        if self.finish_again_at.is_none_or(|at| now < at) {
            return;
        }
        self.give_again(FINISHES_AGAIN);
        self.finish_again_at = (!self.given_up.is_empty()).then_some(now + FINISH_AGAIN);
    }

    /// Gives so many of the ends that the store gave up to it again.
    pub(super) fn give_again(&mut self, most: usize) {
        for _ in 0..most {
            let Some(job) = self.given_up.pop_front() else { return };
            let Some(ActiveJob { phase: Phase::Unstored { ending, reply }, .. }) = self.jobs.get(&job) else {
                continue;
            };
            let (ending, payload) = (*ending, result_payload(&self.config.identity, reply));
            let operation = WorkerStoreOperation::Finish { job: job.clone(), ending, payload };
            self.store(operation, Some(WorkerToken::Finish(job)));
        }
    }

    pub(super) fn get(&mut self, delivery: Delivery) {
        let Delivery { client, job, body } = delivery;
        if let Some(JobsAsked { jobs, .. }) = JobsAsked::read(&body) {
            self.outputs.push_back(WorkerOutput::LookUp { jobs, question: job, client });
        } else if self.jobs.contains_key(&job) {
            self.reply_active(client, &job);
        } else {
            self.outputs.push_back(WorkerOutput::Load { job, client, asked: Asked::State });
        }
    }

    /// The answer to [`WorkerOutput::LookUp`]: those that are stored. The client is told which of them this worker knows. What became
    /// of each it asks by itself: a thousand results at once would be more than there is memory for.
    pub fn looked_up(&mut self, question: JobId, client: Identity, jobs: Vec<JobId>, stored: &HashSet<JobId>) {
        let is_known = |job: &JobId| self.jobs.contains_key(job) || stored.contains(job);
        let known: Vec<JobId> = jobs.into_iter().filter(is_known).collect();
        let body = StateReply { known: Some(known), ..self.state_reply(question.clone(), NOT_FOUND_WORD) };
        self.reply(client, question, Status::NOT_FOUND, body::encode(&body));
    }

    pub(super) fn reply_active(&mut self, client: Identity, job: &JobId) {
        let Some(active) = self.jobs.get(job) else {
            return;
        };
        match &active.phase {
            // It may still be refused, and whoever was told of a state would take that for the end of the job. The 201 comes
            // when it is stored.
            Phase::Storing => {}
            Phase::Queued => {
                self.reply_state(client, job.clone(), Status::PENDING, "PENDING");
            }
            Phase::Running if !active.questions.is_empty() => {
                let body = Waiting {
                    worker: self.config.identity.clone(),
                    uuid: job.clone(),
                    service: self.config.service.clone(),
                    status: "WAITING_CLIENT_INPUT".to_owned(),
                    input_request: active.questions.first().cloned(),
                };
                self.reply(client, job.clone(), Status::WAITING, body::encode(&body));
            }
            Phase::Starting | Phase::Running | Phase::Finishing { .. } => {
                self.reply_state(client, job.clone(), Status::PENDING, "STARTED");
            }
            Phase::Unstored { reply, .. } if is_taken_back(&result_payload(&self.config.identity, reply)) => {
                self.reply_state(client, job.clone(), Status::PENDING, "PENDING");
            }
            Phase::Unstored { reply, .. } => {
                let reply = reply.clone();
                self.reply(client, job.clone(), Status::OK, reply);
            }
        }
    }

    pub(super) fn put(&mut self, delivery: &Delivery) {
        let active = self.jobs.get(&delivery.job).filter(|active| active.phase == Phase::Running);
        let is_own = active.is_some_and(|active| active.client == delivery.client);
        match body::decode_put(&delivery.body) {
            // A question may be answered from elsewhere; content and credits of others would be taken for the client's own.
            Ok(Some(put)) if is_own || (active.is_some() && matches!(put, body::PutBody::Input(_))) => {
                self.outputs.push_back(WorkerOutput::Deliver { job: delivery.job.clone(), put });
            }
            Ok(_) => self.counters.puts_ignored += 1,
            Err(error) => {
                self.counters.refused += 1;
                self.note(WorkerNote::Refused(error));
            }
        }
    }

    pub(super) fn delete(&mut self, delivery: Delivery) {
        let Delivery { client, job, body } = delivery;
        let cancel: CancelBody = body::decode("a cancellation", &body).unwrap_or_default();
        let CancelBody { reason, text, ends, back, client: owner } = cancel;
        let text = text.map(body::bounded_cancel_text);
        let Some(active) = self.jobs.get_mut(&job) else {
            if ends {
                let text = text.unwrap_or_else(|| format!("cancelled by {client}"));
                self.withdrawn.insert(owner.as_ref().unwrap_or(&client), &job, text);
            }
            // Its result, or that it is not known here: either tells the client that nothing runs.
            self.outputs.push_back(WorkerOutput::Load { job, client, asked: Asked::ToCancel });
            return;
        };
        if matches!(active.phase, Phase::Unstored { .. }) {
            return self.reply_active(client, &job);
        }
        match &mut active.cancelled {
            // Somebody cancels what is being taken back, and is told instead of the fabric.
            Some(Abandoned::Cancelled { back: true, .. }) if !back => {}
            Some(_) => return,
            None => {}
        }
        let why = Abandoned::Cancelled { by: client, reason: reason.map(body::bounded_cancel_text), text, back };
        match active.phase {
            Phase::Running => {
                active.cancelled = Some(why.clone());
                let task = active.task.clone();
                self.outputs.push_back(WorkerOutput::Cancel { job, task, why });
            }
            Phase::Starting | Phase::Queued => {
                active.cancelled = Some(why.clone());
                self.abandon(&job, why);
            }
            Phase::Storing => active.cancelled = Some(why),
            // Its result is on its way.
            Phase::Finishing { .. } | Phase::Unstored { .. } => {}
        }
    }

    /// Of a job that runs and was cancelled: what was asked, and who cancelled it.
    pub fn cancelled(&self, job: &JobId) -> Option<(TaskName, Abandoned)> {
        let active = self.jobs.get(job).filter(|active| active.phase == Phase::Running)?;
        Some((active.task.clone(), active.cancelled.clone()?))
    }

    pub(super) fn abandon(&mut self, job: &JobId, why: Abandoned) {
        let Some(active) = self.jobs.get_mut(job) else {
            return;
        };
        if std::mem::replace(&mut active.abandoned, true) {
            return;
        }
        let task = active.task.clone();
        self.outputs.push_back(WorkerOutput::Abandon { job: job.clone(), task, why });
    }

    pub(super) fn start_jobs(&mut self, now: Instant) {
        if self.start_again_at.is_some_and(|at| now < at) {
            return;
        }
        self.start_again_at = None;
        while self.running < self.config.max_concurrent_jobs && !self.stopping {
            let Some(job) = self.queue.pop_front() else {
                return;
            };
            let Some(active) = self.jobs.get_mut(&job) else {
                continue;
            };
            if active.phase != Phase::Queued || active.abandoned {
                continue;
            }
            if active.deadline.is_some_and(|deadline| deadline <= now) {
                self.abandon(&job, Abandoned::Expired);
                continue;
            }
            active.phase = Phase::Starting;
            self.running += 1;
            let id = job.clone();
            let operation =
                if active.counted { WorkerStoreOperation::StartedAnew(id) } else { WorkerStoreOperation::Started(id) };
            self.store(operation, Some(WorkerToken::Start(job)));
        }
    }

    /// A job is written down as started: it starts. One that could not be written down waits, as all behind it: the next process
    /// would find it as one that has not run, and run it again. One that the store does not have is found by nobody, and starts.
    pub(super) fn start(&mut self, now: Instant, job: JobId, outcome: Result<(), StoreFailure>) {
        let Some(active) = self.jobs.get_mut(&job) else {
            return;
        };
        if active.phase != Phase::Starting || active.abandoned {
            return;
        }
        if let Err(StoreFailure::Failed(error) | StoreFailure::GivenUp(error)) = outcome {
            active.phase = Phase::Queued;
            self.running -= 1;
            if !self.stopping {
                self.queue.push_front(job.clone());
                self.start_again_at = Some(now + START_AGAIN);
            }
            self.note(WorkerNote::StartNotStored { job, error });
            return;
        }
        if active.deadline.is_some_and(|deadline| deadline <= now) {
            self.abandon(&job, Abandoned::Expired);
            return;
        }
        let request: JobRequestBody = match body::decode("a job request", &active.body) {
            Ok(request) => request,
            // What its head did not show: half of a surrogate pair in an argument, or nesting without end.
            Err(error) => {
                self.abandon(&job, Abandoned::Unreadable(error.to_string()));
                return;
            }
        };
        active.phase = Phase::Running;
        let start = StartJob {
            job: job.clone(),
            client: active.client.clone(),
            request,
            timeout: active.timeout,
            attempt: active.attempts.saturating_add(1),
            deadline: active.deadline,
        };
        self.outputs.push_back(WorkerOutput::Start(start));
    }
}
