//! What a client holds.

use super::job::{ADOPTED_MAX, Job, QUESTIONS_TOLD_MAX};
use super::posting::WAITING_SWEPT_MIN;
use super::{Client, RUNS_MAX, acquaintances};
use crate::size::Size;

impl Client {
    /// How much it holds between two inputs, and may hold. How many jobs is for its owner to say: see [`super::backlog`].
    pub fn sizes(&self) -> impl Iterator<Item = Size> + use<> {
        let jobs = self.jobs.len();
        let bytes = self.jobs.values().map(|job| job.request.body.len()).sum();
        let in_flight = self.jobs.values().filter(|job| job.in_flight).count();
        let cancelling = self.jobs.values().filter(|job| job.cancel.is_some()).count();
        [
            Size::new("timers of jobs", self.timers.len(), jobs),
            Size::new("jobs that wait to be posted", self.waiting.len(), 2 * jobs + WAITING_SWEPT_MIN + 1),
            Size::new("bytes of requests", self.held_bytes, bytes),
            Size::new("bytes of requests that are not counted", bytes, self.held_bytes),
            Size::new("jobs in flight", self.in_flight, in_flight),
            Size::new("jobs in flight that are not counted", in_flight, self.in_flight),
            Size::new("jobs that are being cancelled", self.cancelling, cancelling),
            Size::new("jobs that are being cancelled and not counted", cancelling, self.cancelling),
            Size::new("management requests", self.management.len(), self.config.management_max),
            Size::new("timers of management requests", self.management_timers.len(), self.management.len()),
            Size::new("processes of brokers", self.runs.len(), RUNS_MAX),
            Size::new("workers seen", self.acquaintances.len(), acquaintances::SEEN_MAX),
            self.asking.size(),
            self.asking.denied_size(),
            self.asking.known_size(jobs),
            Size::new("outputs", self.outputs.len(), 0),
        ]
        .into_iter()
        .chain(self.jobs.values().flat_map(|job| job.sizes()).collect::<Vec<_>>())
    }
}

impl Job {
    /// What it holds of workers and questions.
    fn sizes(&self) -> [Size; 6] {
        let workers = self.expected.len() + ADOPTED_MAX;
        let of_workers =
            [self.started.len(), self.completed.len(), self.lost.len(), self.away.len(), self.to_come.len()];
        let of_workers = of_workers.into_iter().chain([self.pushes.len(), self.posts_to.len(), self.announced.len()]);
        [
            Size::new("workers of one job", of_workers.max().unwrap_or(0), workers),
            Size::new("workers of one job that are missing", self.missing.len(), self.expected.len()),
            Size::new("workers that were turned away", self.turned_away.len(), ADOPTED_MAX),
            Size::new("workers that gave a job up", self.gave_up.len(), ADOPTED_MAX),
            Size::new("questions of one job", self.seen_questions.len(), QUESTIONS_TOLD_MAX),
            Size::new("answers of one job", self.answers.len(), QUESTIONS_TOLD_MAX),
        ]
    }
}
