//! What a worker holds.

use super::{ActiveJob, Phase, QUESTIONS_MAX, UNSTORED_BYTES_MAX, Worker};
use crate::size::Size;

impl Worker {
    /// How much it holds between two inputs, and may hold.
    pub fn sizes(&self) -> impl Iterator<Item = Size> + use<> {
        let jobs = self.jobs.len();
        let bytes: usize = self.jobs.values().map(|job| job.body.len()).sum();
        let of_phase = |phase: &dyn Fn(&Phase) -> bool| self.jobs.values().filter(|job| phase(&job.phase)).count();
        let running = of_phase(&|phase| matches!(phase, Phase::Starting | Phase::Running)) + self.reserved.len();
        let unstored = |job: &ActiveJob| match &job.phase {
            Phase::Unstored { reply, .. } => reply.len(),
            _ => 0,
        };
        let unstored: usize = self.jobs.values().map(unstored).sum();
        let questions = self.jobs.values().map(|job| job.questions.len()).max().unwrap_or(0);
        [
            Size::new("jobs", jobs, self.config.jobs_max),
            Size::new("bytes of requests", self.bytes, bytes.min(self.config.jobs_bytes_max)),
            Size::new("bytes of requests that are not counted", bytes, self.bytes),
            Size::new("jobs that wait to run", self.queue.len(), of_phase(&|phase| *phase == Phase::Queued)),
            Size::new(
                "places kept for jobs that are stored",
                self.reserved.len(),
                of_phase(&|phase| *phase == Phase::Storing),
            ),
            Size::new("jobs that run", self.running, running.min(self.config.max_concurrent_jobs)),
            Size::new("jobs that run and are not counted", running, self.running),
            Size::new("bytes of results that are not stored", self.unstored_bytes, unstored.min(UNSTORED_BYTES_MAX)),
            Size::new("bytes of results that are not stored or counted", unstored, self.unstored_bytes),
            Size::new("questions of one job", questions, QUESTIONS_MAX),
            self.withdrawn.size("jobs that were cancelled before they came"),
            self.refused.size("jobs that were refused"),
            Size::new(
                "ends of jobs that the store gave up",
                self.given_up.len(),
                of_phase(&|phase| matches!(phase, Phase::Unstored { .. })),
            ),
            Size::new("outputs", self.outputs.len(), 0),
        ]
        .into_iter()
    }
}
