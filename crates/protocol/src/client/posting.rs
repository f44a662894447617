//! When a job is posted and asked about, and to whom.

use std::time::Instant;

use bytes::Bytes;

use super::job::{Job, JobState};
use super::{Client, RUNS_MAX};
use crate::frame::Frames;
use crate::message::{ClientCommand, ClientMessage};
use crate::name::{Identity, JobId, ServiceName};
use crate::target::Target;

/// Ids of jobs that wait to be posted below which nobody looks for those of jobs that have ended.
pub(super) const WAITING_SWEPT_MIN: usize = 1024;

impl Client {
    pub(super) fn post_waiting(&mut self, now: Instant) {
        if self.waiting.len() > 2 * self.jobs.len() + WAITING_SWEPT_MIN {
            // Those that ended while they waited leave their ids behind.
            let jobs = &self.jobs;
            self.waiting.retain(|id| jobs.get(id).is_some_and(|job| job.waits_for_post()));
        }
        while self.connected
            && self.in_flight < self.config.in_flight_max
            && let Some(id) = self.waiting.pop_front()
        {
            // One whose deadline has passed ends with the next look at the timers. One that ended while it waited may have
            // been followed by another with its id.
            let next = self.jobs.get_mut(&id).filter(|job| job.waits_for_post() && job.request.deadline > now);
            if let Some(job) = next {
                job.in_flight = true;
                self.in_flight += 1;
                self.post(now, &id);
            }
        }
    }

    /// Whether the broker knows to whom a POST of the job went.
    pub(super) fn is_remembered(&self, job: &Job) -> bool {
        let Some(run) = self.broker_run else { return false };
        let posted = job.remembered_on.and_then(|connection| self.runs.get(&connection));
        posted == Some(&run)
    }

    /// A broker of ours says which process it is.
    pub(super) fn learn_run(&mut self, run: Option<u32>) {
        if self.broker_run == run {
            return;
        }
        self.broker_run = run;
        if let Some(run) = run {
            self.runs.insert(self.connection, run);
            if self.runs.len() > RUNS_MAX {
                self.runs.pop_first();
            }
        }
    }

    /// Whether a job may be posted without a question who has it: that cannot make it run twice.
    fn is_safe_to_post(&self, job: &Job) -> bool {
        let is_safe = job.request.target != Target::Any || !job.may_be_taken() || job.nobody_has_it;
        // Of one that was turned away nobody but itself knows whether it runs the job.
        is_safe || (self.is_remembered(job) && job.turned_away.is_empty())
    }

    /// Posts a job whose time has come, or which has a turn after that. Those that are asked about are so together, without turns.
    pub(super) fn post_in_turn(&mut self, now: Instant, id: &JobId) {
        let Some(job) = self.jobs.get(id) else { return };
        let waits = !job.turn.is_zero() && self.is_safe_to_post(job);
        if let Some(job) = self.jobs.get_mut(id) {
            let turn = std::mem::take(&mut job.turn);
            if waits {
                job.next_post = Some(now + turn);
                self.set_timer(id);
                return;
            }
        }
        self.post(now, id);
    }

    /// Posts a job, or posts it again where that cannot make it run twice.
    pub(super) fn post(&mut self, now: Instant, id: &JobId) {
        let (again, max) = (self.config.post_again, self.config.get_max);
        let Some(job) = self.jobs.get(id) else {
            return;
        };
        let is_safe = self.is_safe_to_post(job);
        let connection = self.connection;
        let Some(job) = self.jobs.get_mut(id) else {
            return;
        };
        job.next_post = Some(now + (again * (1 << job.posts.min(5))).min(max));
        if !is_safe {
            // A broker that does not remember would choose again, and the job could run on two workers. So everyone is
            // asked who has it; only when all say that they do not is it posted again.
            self.doubt(now, id);
            return;
        }
        if !job.may_be_taken() || job.nobody_has_it {
            job.remembered_on = Some(connection);
        }
        job.nobody_has_it = false;
        job.around = None;
        job.posts += 1;
        let again = job.posts > 1 || job.may_be_posted;
        if !again {
            job.posted_on = Some(connection);
        }
        let message = job.post_to(now, job.request.target.clone(), again, job.turn_of_posts);
        let first = job.state == JobState::New;
        if first {
            job.state = JobState::Submitting;
        }
        // That it is posted is not written down: after a restart a new job and a posted one are treated alike.
        self.set_timer(id);
        self.silent_since.get_or_insert(now);
        self.send(message);
    }

    /// A POST of a job waited to leave when the connection was lost, and was thrown away: it counts as one that never was.
    pub fn has_not_left(&mut self, now: Instant, id: &JobId, post: &Frames) {
        let Some(job) = self.jobs.get_mut(id) else { return };
        if job.dispatched().is_some() {
            // For one worker of those that have the job: it gets the POST when it says again that it does not know the job.
            let target = post.get(4).map(|frame| Target::parse(&String::from_utf8_lossy(frame)));
            for name in target.and_then(|target| target.listed_names()).unwrap_or_default() {
                let times = Identity::parse(&name).ok().and_then(|worker| job.posts_to.get_mut(&worker));
                if let Some((_, at)) = times {
                    *at = now;
                }
            }
            return;
        }
        job.posts = job.posts.saturating_sub(1);
        if job.posts == 0 {
            (job.posted_on, job.remembered_on) = (None, None);
        }
    }

    /// Asks the workers that have not answered.
    pub(super) fn ask(&mut self, now: Instant, id: &JobId) {
        let (first, max) = (self.config.get_first, self.config.get_max);
        let Some(job) = self.jobs.get_mut(id) else {
            return;
        };
        let missing = job.missing();
        job.asked = (job.asked + 1).min(16);
        job.next_ask = Some(now + (first * (1 << job.asked.min(8))).min(max));
        let service = job.request.service.clone();
        self.set_timer(id);
        if !missing.is_empty() {
            self.silent_since.get_or_insert(now);
            self.send_get(service, Target::list(&missing), id);
        }
    }

    pub(super) fn send_get(&mut self, service: ServiceName, target: Target, id: &JobId) {
        self.send(ClientMessage {
            command: ClientCommand::Get,
            service,
            target,
            job: id.clone(),
            body: Bytes::from_static(b"{}"),
        });
    }
}
