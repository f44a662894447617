//! Workers that have a job which is with others, and those that gave it up.
//!
//! A job for `any` may be at a worker of which nobody knew, and another one has it by then. The first is told to give it up. Whether it
//! does is not known before it says so: until then it may run the job, so nobody else gets it anew, should the other one not have it.

use std::time::{Duration, Instant};

use super::Client;
use super::job::{ADOPTED_MAX, Job};
use super::lost::Lost;
use super::output::JobUpdate;
use crate::body::{self, CancelBody};
use crate::broker::EVERY_SERVICE;
use crate::message::{ClientCommand, ClientMessage};
use crate::name::{Identity, JobId};
use crate::target::Target;

/// How soon a worker is told again that goes on with a job which is with another one: the first word may have been lost.
const TOLD_AGAIN: Duration = Duration::from_secs(1);

impl Client {
    /// A worker has the job that the broker did not name: one that was restarted knew only some when the POST was repeated.
    pub(super) fn adopt(&mut self, now: Instant, id: &JobId, worker: &Identity, has_ended: bool) {
        let Some(job) = self.jobs.get_mut(id) else { return };
        let is_meant = match &job.request.target {
            Target::Any => job.request.service.as_str() == EVERY_SERVICE,
            Target::All => true,
            target => target.names().is_some_and(|names| names.iter().any(|name| name == worker.as_str())),
        };
        if is_meant {
            if let Some(workers) = job.adopt(worker) {
                self.update(id.clone(), JobUpdate::Dispatched(workers));
                self.progress(id);
            }
        } else if job.request.target == Target::Any && job.turn_away(now, worker, has_ended) {
            // Where it only waits there, it does not start.
            let body = match job.cancel.as_ref().filter(|cancel| cancel.is_written()) {
                Some(cancel) => CancelBody { text: Some(cancel.text.clone()), ends: true, ..CancelBody::default() },
                None => {
                    let text = format!("cancelled by the fabric: job {id} for any worker is with another one");
                    CancelBody { text: Some(text), back: true, ..CancelBody::default() }
                }
            };
            let (service, target, job) = (job.request.service.clone(), Target::list([worker]), id.clone());
            let body = body::encode(&body);
            self.send(ClientMessage { command: ClientCommand::Delete, service, target, job, body });
        }
    }

    /// A worker says that it has given the job up: nothing of it has run there, and nothing will.
    pub(super) fn gave_up(&mut self, now: Instant, id: &JobId, worker: &Identity) {
        let (again, max) = (self.config.post_again, self.config.get_max);
        let Some(job) = self.jobs.get_mut(id) else { return };
        job.turned_away.remove(worker);
        if job.gave_up.len() < ADOPTED_MAX {
            job.gave_up.insert(worker.clone());
        }
        if job.cancel.is_some() {
            self.cancel_confirmed(now, id, worker, Lost::Cancelled);
        } else if job.dispatched().is_none() {
            // It has that in common with one that does not know the job. Whether others have it is not known.
            if let Some(around) = &mut job.around {
                around.deny(worker.clone());
                self.nobody_has_it(now, id);
            }
        } else if job.expects(worker) && !job.has_completed(worker) {
            job.started.remove(worker);
            if !job.moves() {
                job.lose(worker.clone(), Lost::Cancelled);
                self.complete_if_done(now, id);
            } else if job.may_post_to(worker, now, again, max) {
                // A broker that remembers where the job went is told by the worker that it does not take it.
                job.is_with_nobody_known();
                job.turn_of_posts = job.turn_of_posts.saturating_add(1);
                self.post(now, id);
                self.progress(id);
            }
        }
    }
}

impl Job {
    /// This worker must not have the job. Whether it is to be told: for the first time, or again as it goes on.
    fn turn_away(&mut self, now: Instant, worker: &Identity, has_ended: bool) -> bool {
        if let Some(told) = self.turned_away.get_mut(worker) {
            let is_due = !has_ended && *told + TOLD_AGAIN <= now;
            if is_due {
                *told = now;
            }
            return is_due;
        }
        self.turned_away.len() < ADOPTED_MAX && self.turned_away.insert(worker.clone(), now).is_none()
    }
}
