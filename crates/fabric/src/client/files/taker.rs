//! Who takes an upload.

use std::time::{Duration, Instant};

use norfab_protocol::client::{JobState, JobUpdate};
use norfab_protocol::target::Target;
use norfab_protocol::{Identity, TaskResult};
use serde::Deserialize;
use serde_json::json;

use super::super::ClientHandle;
use super::find::{GRACE, next_before};
use super::spec;
use super::upload::UploadError;
use crate::clock::SystemClock;

/// What a worker allows.
#[derive(Deserialize)]
struct Terms {
    allowed: bool,
    reason: Option<String>,
}

impl ClientHandle {
    /// The one worker that takes a file under a URL: the one that is named, or the only one that says so. Errors: nobody takes it, or
    /// several do.
    pub(super) async fn taker(
        &self,
        url: &str,
        worker: Option<&Identity>,
        deadline: Instant,
        timeout: Duration,
    ) -> Result<Identity, UploadError> {
        let target = worker.map_or(Target::All, |worker| Target::list([worker]));
        let left = deadline.saturating_duration_since(SystemClock::now());
        let mut job = self.submit(spec("upload_terms", target, json!({ "url": url }), left)).await?;
        let (mut takers, mut reasons): (Vec<Identity>, Vec<String>) = (Vec::new(), Vec::new());
        let (mut until, mut timed_out) = (None, false);
        while let Some(update) = next_before(&mut job, until).await {
            match update {
                JobUpdate::Result(worker, payload) => {
                    match terms(&payload) {
                        Some(Terms { allowed: true, .. }) => takers.push(worker),
                        Some(Terms { reason, .. }) => reasons.extend(reason),
                        None => reasons.push(format!(
                            "worker {worker} takes no uploads: it is one of Python NorFab, or an older one, and does not know them"
                        )),
                    }
                    // Another one may be silent for ever.
                    until.get_or_insert(SystemClock::now() + GRACE);
                }
                JobUpdate::Finished(outcome) => {
                    timed_out = outcome.state == JobState::Stale;
                    if !outcome.errors.is_empty() && reasons.is_empty() {
                        reasons = outcome.errors;
                    }
                }
                _ => {}
            }
        }
        takers.sort();
        match (takers.pop(), takers.is_empty()) {
            (Some(worker), true) => Ok(worker),
            (Some(worker), false) => {
                takers.push(worker);
                let workers = takers.iter().map(Identity::as_str).collect::<Vec<_>>().join(", ");
                Err(UploadError::Several { url: url.to_owned(), workers })
            }
            (None, _) if timed_out => {
                let reason = "no worker has answered".to_owned();
                Err(UploadError::TimedOut { url: url.to_owned(), timeout, reason })
            }
            (None, _) => {
                reasons.sort();
                reasons.dedup();
                Err(UploadError::NobodyTakes { url: url.to_owned(), reason: reasons.join("; ") })
            }
        }
    }
}

/// `None`: the worker does not know the question.
fn terms(payload: &[u8]) -> Option<Terms> {
    let result: TaskResult = serde_json::from_slice(payload).ok()?;
    if result.failed { None } else { serde_json::from_str(result.result.get()).ok() }
}
