//! Files of git remotes: a worker that knows the remote synchronizes it and says where it serves the file.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use norfab_protocol::Identity;
use norfab_protocol::TaskResult;
use norfab_protocol::target::Target;
use serde_json::value::RawValue;
use serde_json::{Value, json};

use super::super::ClientHandle;
use super::waiting::Work;
use super::{FetchError, SERVICE, nobody_has};
use crate::clock::SystemClock;

/// URLs in one question, as many as a worker takes.
const URLS_MAX: usize = 10_000;

/// How long a worker may take to synchronize a remote that another one knows, too.
const RESOLVED_MAX: Duration = Duration::from_secs(60);

const SCHEME: &str = "git://";

/// Whether a URL is of a file of a git remote.
pub(super) fn is_git(url: &str) -> bool {
    url.starts_with(SCHEME)
}

/// Where a file of a remote is: its URL, and which worker serves it so.
pub(super) type Resolved = (String, Identity);

impl ClientHandle {
    /// Where a file of a git remote is, at none of the workers `without`. Errors: as [`FetchError`].
    pub(super) async fn resolve_git(
        &self,
        url: &str,
        deadline: Instant,
        timeout: Duration,
        without: &BTreeSet<Identity>,
    ) -> Result<Resolved, FetchError> {
        let mut resolved = self.resolve_many(&[url.to_owned()], deadline, timeout, without).await?;
        resolved.pop().unwrap_or_else(|| Err(FetchError::Url(url.to_owned())))
    }

    /// Where files of git remotes are, each, in their order. Each remote is synchronized once by one worker that knows it, or by another
    /// one where that fails; not by one of `without`.
    pub(super) async fn resolve_many(
        &self,
        urls: &[String],
        deadline: Instant,
        timeout: Duration,
        without: &BTreeSet<Identity>,
    ) -> Result<Vec<Result<Resolved, FetchError>>, FetchError> {
        let mut remotes: BTreeMap<&str, Vec<usize>> = BTreeMap::new();
        let mut resolved: Vec<Option<Result<Resolved, FetchError>>> = Vec::new();
        for (index, url) in urls.iter().enumerate() {
            let named = url.strip_prefix(SCHEME).and_then(|rest| rest.split_once('/'));
            let remote = named.map(|(remote, _)| remote).filter(|remote| !remote.is_empty());
            if let Some(remote) = remote {
                remotes.entry(remote).or_default().push(index);
            }
            resolved.push(remote.is_none().then(|| Err(FetchError::Url(url.clone()))));
        }
        for (remote, mut indices) in remotes {
            let knows = |result: &TaskResult| !result.failed && is_list_of_some(&result.result);
            let question = json!({ "name": remote });
            let known = self.ask_until("get_remotes", question, Target::All, deadline, Work::Shown, knows).await?;
            let mut reasons = Vec::new();
            let (mut timed_out, mut silent) = (known.timed_out, !known.silent.is_empty());
            let knowing: Vec<&Identity> = known
                .said
                .iter()
                .filter(|(worker, result)| knows(result) && !without.contains(worker))
                .map(|(worker, _)| worker)
                .collect();
            for (at, worker) in knowing.iter().enumerate() {
                // Fetching a repository may take long; where another worker knows it, not as long as there is time.
                let is_last = at + 1 == knowing.len();
                let until = if is_last { deadline } else { deadline.min(SystemClock::now() + RESOLVED_MAX) };
                let asking = self.resolve_at(worker, urls, &mut indices, &mut resolved, &mut reasons, until).await?;
                timed_out |= asking.0;
                silent |= asking.1;
                if indices.is_empty() {
                    break;
                }
            }
            if reasons.is_empty() {
                reasons.push(known.reason());
                reasons.push(format!("no worker of '{SERVICE}' has a remote '{remote}'"));
            }
            reasons.retain(|reason| !reason.is_empty());
            reasons.dedup();
            for index in indices {
                let (url, reason) = (urls[index].clone(), reasons.join("; "));
                resolved[index] = Some(Err(nobody_has(url, timeout, timed_out, silent, reason)));
            }
        }
        let missing = |url: &String| Err(FetchError::Url(url.clone()));
        Ok(resolved.into_iter().zip(urls).map(|(one, url)| one.unwrap_or_else(|| missing(url))).collect())
    }

    /// Asks one worker. Those that it does not know stay in `indices`. Whether its time was over, and whether it was silent.
    async fn resolve_at(
        &self,
        worker: &Identity,
        urls: &[String],
        indices: &mut Vec<usize>,
        resolved: &mut [Option<Result<Resolved, FetchError>>],
        reasons: &mut Vec<String>,
        deadline: Instant,
    ) -> Result<(bool, bool), FetchError> {
        let (mut left, mut timed_out, mut silent) = (Vec::new(), false, false);
        for some in indices.chunks(URLS_MAX) {
            let asked: Vec<&String> = some.iter().map(|index| &urls[*index]).collect();
            let answer = self.ask_at_length("resolve_git_url", json!({ "url": asked }), worker, deadline).await?;
            timed_out |= answer.timed_out;
            silent |= !answer.silent.is_empty();
            let results = answer.said.first().filter(|(_, result)| !result.failed);
            let results: BTreeMap<String, TaskResult> =
                results.and_then(|(_, result)| serde_json::from_str(result.result.get()).ok()).unwrap_or_default();
            if results.is_empty() {
                reasons.push(answer.reason());
            }
            for index in some {
                let result = results.get(&urls[*index]);
                match result.and_then(|result| serde_json::from_str::<String>(result.result.get()).ok()) {
                    Some(served) if served.starts_with("nf://") => {
                        resolved[*index] = Some(Ok((served, worker.clone())));
                    }
                    _ => {
                        reasons.extend(result.into_iter().flat_map(|result| result.errors.clone()));
                        left.push(*index);
                    }
                }
            }
        }
        *indices = left;
        Ok((timed_out, silent))
    }
}

fn is_list_of_some(result: &RawValue) -> bool {
    serde_json::from_str::<Vec<Value>>(result.get()).is_ok_and(|remotes| !remotes.is_empty())
}
