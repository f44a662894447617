//! Questions of workers, and the answers to them.

use std::collections::BTreeSet;

use bytes::Bytes;

use super::Client;
use super::job::{Job, JobState, QUESTIONS_TOLD_MAX};
use crate::body::{self, InputRequest, InputResponse, StreamCredit};
use crate::message::{ClientCommand, ClientMessage};
use crate::name::{Identity, JobId};
use crate::target::Target;

impl Client {
    /// Answers a question of a job: to one worker, or to all that have the job (those that did not ask ignore it).
    /// It is repeated where it may have been lost, until the worker says that it came. That of a job that is cancelled goes nowhere:
    /// it would be there before the cancellation, and the task would go on.
    pub fn answer(&mut self, id: &JobId, worker: Option<&Identity>, response: &InputResponse) {
        let body = body::encode(response);
        if let Some(job) = self.jobs.get_mut(id) {
            if job.cancel.is_some() {
                return;
            }
            job.answers.insert(response.input_id.clone(), (worker.cloned(), body.clone()));
        }
        // Without a connection it is given when there is one again.
        if self.connected {
            self.put(id, worker, body);
        }
    }

    /// Tells a job that the chunk at an offset may come.
    pub fn credit(&mut self, job: &JobId, worker: Option<&Identity>, offset: u64) {
        self.put(job, worker, body::encode(&StreamCredit { offset }));
    }

    /// Sends content to the task of a job: `body` begins with [`body::CONTENT_MARK`]. It is not repeated, and a job that has ended or is
    /// cancelled gets none.
    pub fn content(&mut self, job: &JobId, worker: &Identity, body: Bytes) {
        if self.jobs.get(job).is_some_and(|job| job.cancel.is_none()) {
            self.put(job, Some(worker), body);
        }
    }

    /// The questions of an unfinished job that wait for an answer, with who asks.
    pub fn open_questions(&self, job: &JobId) -> &[(Identity, InputRequest)] {
        self.jobs.get(job).map_or(&[], |job| job.open_questions())
    }

    pub(super) fn put(&mut self, id: &JobId, worker: Option<&Identity>, body: Bytes) {
        let Some(job) = self.jobs.get(id) else { return };
        let target = worker.map_or_else(|| job.everyone(), |worker| Target::list([worker]));
        let service = job.request.service.clone();
        self.send(ClientMessage { command: ClientCommand::Put, service, target, job: id.clone(), body });
    }

    pub(super) fn resend_answers(&mut self) {
        let waiting: BTreeSet<JobId> =
            self.jobs.iter().filter(|(_, job)| job.resend_answers).map(|(id, _)| id.clone()).collect();
        for id in waiting {
            let Some(job) = self.jobs.get_mut(&id) else { continue };
            job.resend_answers = false;
            let answers: Vec<(Option<Identity>, Bytes)> = job.answers.values().cloned().collect();
            for (worker, body) in answers {
                self.put(&id, worker.as_ref(), body);
            }
        }
    }
}

impl Job {
    /// Notes a question. `false`: it is known already, from its event or an earlier 102.
    pub(super) fn ask_once(&mut self, worker: &Identity, question: &InputRequest) -> bool {
        let key = (worker.clone(), question.id.clone());
        if self.seen_questions.len() >= QUESTIONS_TOLD_MAX || !self.seen_questions.insert(key) {
            return false;
        }
        self.open_questions.push((worker.clone(), question.clone()));
        true
    }

    /// Questions that wait for an answer.
    pub(super) fn open_questions(&self) -> &[(Identity, InputRequest)] {
        &self.open_questions
    }

    pub(super) fn close_question(&mut self, worker: &Identity, question: &str) {
        self.open_questions.retain(|(asker, open)| asker != worker || open.id != question);
    }

    pub(super) fn close_all_questions(&mut self) {
        self.open_questions.clear();
    }

    pub(super) fn close_questions(&mut self, worker: &Identity) {
        self.open_questions.retain(|(asker, _)| asker != worker);
    }

    /// Leaves the waiting state when no question is open. `true`: it did.
    pub(super) fn settle_waiting(&mut self) -> bool {
        if self.state == JobState::Waiting && self.open_questions.is_empty() {
            self.state = JobState::Started;
            return true;
        }
        false
    }
}
