//! Who has a file.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use norfab_protocol::client::{JobState, JobUpdate};
use norfab_protocol::target::Target;
use norfab_protocol::{Identity, TaskResult};
use serde::Deserialize;
use serde_json::{Value, json};

use super::super::{ClientHandle, JobHandle};
use super::waiting::{Waiting, Work};
use super::{FetchError, nobody_has, spec};
use crate::clock::SystemClock;

/// How long others are waited for once a worker has said that it does not have a file. One that is registered and does not answer costs
/// this long and no longer; where one has the file, nothing.
pub const GRACE: Duration = Duration::from_secs(1);

/// A worker that has a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Holder {
    pub(super) worker: Identity,
    /// Where it has it.
    pub(super) url: String,
    pub(super) size: u64,
    /// Of workers of Python NorFab only: they tell it without being asked.
    pub(super) md5: Option<String>,
}

/// What one worker says.
enum Said {
    Has(u64, Option<String>),
    HasNot(String),
    /// It does not know the question.
    Other,
}

/// What workers say of a URL.
#[derive(Default)]
struct Answers {
    reasons: Vec<String>,
    others: Vec<Identity>,
    silent: Vec<Identity>,
    timed_out: bool,
}

#[derive(Deserialize)]
struct Standing {
    kind: String,
    size_bytes: Option<u64>,
    error: Option<String>,
}

/// What a worker of Python NorFab tells of a file.
#[derive(Deserialize)]
struct Details {
    md5hash: Option<String>,
    size_bytes: Option<u64>,
    exists: bool,
}

fn stated(result: &TaskResult) -> Said {
    if result.failed {
        return Said::Other;
    }
    match serde_json::from_str::<Vec<Standing>>(result.result.get()).ok().and_then(|mut standings| standings.pop()) {
        Some(Standing { kind, size_bytes: Some(size), .. }) if kind == "file" => Said::Has(size, None),
        Some(Standing { kind, .. }) if kind == "directory" => Said::HasNot("it is a directory".to_owned()),
        Some(standing) => Said::HasNot(standing.error.unwrap_or_else(|| "the worker does not have it".to_owned())),
        None => Said::Other,
    }
}

fn detailed(result: &TaskResult) -> Said {
    if result.failed {
        return Said::HasNot(result.errors.join("; "));
    }
    match serde_json::from_str(result.result.get()) {
        Ok(Details { md5hash: Some(md5), size_bytes: Some(size), exists: true }) => Said::Has(size, Some(md5)),
        Ok(_) => Said::HasNot("the worker does not have it".to_owned()),
        Err(error) => Said::HasNot(error.to_string()),
    }
}

/// How it is asked who has a file.
struct How {
    task: &'static str,
    work: Work,
    read: fn(&TaskResult) -> Said,
}

/// Of workers of ours.
const STATED: How = How { task: "stat_files", work: Work::Shown, read: stated };

/// Of those of Python NorFab.
const DETAILED: How = How { task: "file_details", work: Work::Unseen, read: detailed };

impl ClientHandle {
    /// A worker among those of `target` that has the file, the first that says so; not one of `without`. Errors: as [`FetchError`].
    pub(super) async fn find(
        &self,
        url: &str,
        target: Target,
        deadline: Instant,
        timeout: Duration,
        without: &BTreeSet<Identity>,
    ) -> Result<Holder, FetchError> {
        let question = json!({ "urls": [url] });
        let mut answers = match self.ask_holders(url, &STATED, question, target, deadline, without).await? {
            Ok(holder) => return Ok(holder),
            Err(answers) => answers,
        };
        if !answers.others.is_empty() {
            let others = Target::list(std::mem::take(&mut answers.others));
            let question = json!({ "url": url });
            match self.ask_holders(url, &DETAILED, question, others, deadline, without).await? {
                Ok(holder) => return Ok(holder),
                Err(more) => {
                    answers.reasons.extend(more.reasons);
                    answers.silent.extend(more.silent);
                    answers.timed_out |= more.timed_out;
                }
            }
        }
        let silent = answers.silent.iter().map(|worker| format!("worker {worker} has not answered"));
        let mut reasons: Vec<String> = answers.reasons.into_iter().chain(silent).collect();
        reasons.dedup();
        let is_silent = !answers.silent.is_empty();
        Err(nobody_has(url.to_owned(), timeout, answers.timed_out, is_silent, reasons.join("; ")))
    }

    async fn ask_holders(
        &self,
        url: &str,
        how: &How,
        question: Value,
        target: Target,
        deadline: Instant,
        without: &BTreeSet<Identity>,
    ) -> Result<Result<Holder, Answers>, FetchError> {
        let left = deadline.saturating_duration_since(SystemClock::now());
        let mut job = self.submit(spec(how.task, target, question, left)).await?;
        let mut answers = Answers::default();
        let (mut waiting, mut has_ended) = (Waiting::new(how.work), false);
        while let Some(update) = self.next_of(&mut job, &mut waiting).await {
            match update {
                JobUpdate::Result(worker, payload) => {
                    let said = match serde_json::from_slice(&payload) {
                        Ok(result) => (how.read)(&result),
                        Err(error) => Said::HasNot(error.to_string()),
                    };
                    match said {
                        Said::Has(..) if without.contains(&worker) => {}
                        Said::Has(size, md5) => {
                            return Ok(Ok(Holder { worker, url: url.to_owned(), size, md5 }));
                        }
                        Said::HasNot(reason) => answers.reasons.push(reason),
                        Said::Other => answers.others.push(worker),
                    }
                }
                JobUpdate::Finished(outcome) => {
                    answers.timed_out = outcome.state == JobState::Stale;
                    answers.reasons.extend(outcome.errors);
                    has_ended = true;
                }
                _ => {}
            }
        }
        if !has_ended {
            answers.silent = waiting.into_silent();
        }
        Ok(Err(answers))
    }
}

/// The next news of a job. `None`: there is none any more, or none came in time.
pub(super) async fn next_before(job: &mut JobHandle, until: Option<Instant>) -> Option<JobUpdate> {
    match until {
        None => job.next().await,
        Some(until) => {
            tokio::time::timeout(until.saturating_duration_since(SystemClock::now()), job.next()).await.ok()?
        }
    }
}
