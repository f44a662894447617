//! Asking several workers the same, and what those say that answer soon.

use std::collections::BTreeSet;
use std::time::Instant;

use norfab_protocol::client::{JobState, JobUpdate};
use norfab_protocol::target::Target;
use norfab_protocol::{Identity, TaskResult};
use serde_json::Value;

use super::super::{ClientHandle, SubmitError};
use super::find::{GRACE, next_before};
use super::spec;
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
    /// Asks workers, and waits until all have answered, or a second behind the first of them.
    pub(super) async fn ask(
        &self,
        task: &str,
        question: Value,
        target: Target,
        deadline: Instant,
    ) -> Result<Answers, SubmitError> {
        let left = deadline.saturating_duration_since(SystemClock::now());
        let mut job = self.submit(spec(task, target, question, left)).await?;
        let (mut answers, mut asked, mut until) = (Answers::default(), BTreeSet::new(), None);
        while let Some(update) = next_before(&mut job, until).await {
            match update {
                JobUpdate::Dispatched(workers) => asked.extend(workers),
                JobUpdate::Result(worker, payload) => {
                    asked.remove(&worker);
                    match serde_json::from_slice(&payload) {
                        Ok(result) => answers.said.push((worker, result)),
                        Err(error) => answers.errors.push(format!("worker {worker}: {error}")),
                    }
                    until.get_or_insert(SystemClock::now() + GRACE);
                }
                JobUpdate::Finished(outcome) => {
                    answers.timed_out = outcome.state == JobState::Stale;
                    answers.errors.extend(outcome.errors);
                    asked.clear();
                }
                _ => {}
            }
        }
        answers.silent = asked.into_iter().collect();
        Ok(answers)
    }
}
