//! Asking several workers the same, and what those say that answer soon.

use std::time::Instant;

use norfab_protocol::client::{JobState, JobUpdate};
use norfab_protocol::target::Target;
use norfab_protocol::{Identity, TaskResult};
use serde_json::Value;

use super::super::{ClientHandle, SubmitError};
use super::spec;
use super::waiting::{Waiting, Work};
use crate::clock::SystemClock;

/// What workers said.
#[derive(Debug, Default)]
pub(super) struct Answers {
    /// Those that answered, in that order.
    pub(super) said: Vec<(Identity, TaskResult)>,
    /// Those that did not.
    pub(super) silent: Vec<Identity>,
    /// What went wrong on the way.
    pub(super) errors: Vec<String>,
    /// Whether the time was over before somebody answered.
    pub(super) timed_out: bool,
}

impl Answers {
    /// Why nobody said what was wanted.
    pub(super) fn reason(&self) -> String {
        let failed = self.said.iter().filter(|(_, result)| result.failed).flat_map(|(_, result)| result.errors.clone());
        let silent = self.silent.iter().map(|worker| format!("worker {worker} has not answered"));
        let mut reasons: Vec<String> = failed.chain(self.errors.iter().cloned()).chain(silent).collect();
        reasons.dedup();
        reasons.join("; ")
    }
}

impl ClientHandle {
    /// Asks workers, and waits until all have answered that show that they have the question.
    pub(super) async fn ask(
        &self,
        task: &str,
        question: Value,
        target: Target,
        deadline: Instant,
    ) -> Result<Answers, SubmitError> {
        self.ask_until(task, question, target, deadline, Work::Shown, |_| false).await
    }

    /// As [`Self::ask`], one that may be at it for long.
    pub(super) async fn ask_at_length(
        &self,
        task: &str,
        question: Value,
        worker: &Identity,
        deadline: Instant,
    ) -> Result<Answers, SubmitError> {
        self.ask_until(task, question, Target::list([worker]), deadline, Work::Unseen, |_| false).await
    }

    /// As [`Self::ask`], and others are waited for no longer than a second once what has been said is enough.
    pub(super) async fn ask_until(
        &self,
        task: &str,
        question: Value,
        target: Target,
        deadline: Instant,
        work: Work,
        mut is_enough: impl FnMut(&TaskResult) -> bool + Send,
    ) -> Result<Answers, SubmitError> {
        let left = deadline.saturating_duration_since(SystemClock::now());
        let mut job = self.submit(spec(task, target, question, left)).await?;
        let (mut answers, mut waiting, mut has_ended) = (Answers::default(), Waiting::new(work), false);
        while let Some(update) = self.next_of(&mut job, &mut waiting).await {
            match update {
                JobUpdate::Result(worker, payload) => match serde_json::from_slice(&payload) {
                    Ok(result) => {
                        if is_enough(&result) {
                            waiting.is_enough();
                        }
                        answers.said.push((worker, result));
                    }
                    Err(error) => answers.errors.push(format!("worker {worker}: {error}")),
                },
                JobUpdate::Finished(outcome) => {
                    answers.timed_out = outcome.state == JobState::Stale;
                    answers.errors.extend(outcome.errors);
                    has_ended = true;
                }
                _ => {}
            }
        }
        if !has_ended {
            answers.silent = waiting.into_silent();
        }
        Ok(answers)
    }
}
