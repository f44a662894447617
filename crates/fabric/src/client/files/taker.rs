//! Who takes an upload.

use std::time::{Duration, Instant};

use norfab_protocol::target::Target;
use norfab_protocol::{Identity, TaskResult};
use serde::Deserialize;
use serde_json::json;

use super::super::ClientHandle;
use super::upload::UploadError;

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
        // All are waited for that are there, as any of them may take it, and a second for one that does not answer.
        let answers = self.ask("upload_terms", json!({ "url": url }), target, deadline).await?;
        let (mut takers, mut reasons): (Vec<Identity>, Vec<String>) = (Vec::new(), Vec::new());
        for (worker, result) in answers.said {
            match terms(&result) {
                Some(Terms { allowed: true, .. }) => takers.push(worker),
                Some(Terms { reason, .. }) => reasons.extend(reason),
                None => reasons.push(format!(
                    "worker {worker} takes no uploads: it is one of Python NorFab, or an older one, and does not know them"
                )),
            }
        }
        let silent = answers.silent.iter().map(|worker| format!("worker {worker} has not answered"));
        let silent: Vec<String> = silent.collect();
        if !takers.is_empty() && !silent.is_empty() {
            tracing::info!(
                "client {}: who takes '{url}' was decided without all: {}",
                self.identity(),
                silent.join("; ")
            );
        }
        if reasons.is_empty() {
            reasons = answers.errors;
        }
        let timed_out = answers.timed_out;
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
                reasons.extend(silent);
                Err(UploadError::NobodyTakes { url: url.to_owned(), reason: reasons.join("; ") })
            }
        }
    }
}

/// `None`: the worker does not know the question.
fn terms(result: &TaskResult) -> Option<Terms> {
    if result.failed { None } else { serde_json::from_str(result.result.get()).ok() }
}
