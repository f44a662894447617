//! `norfab files`: files that workers share, one file for each of its commands.

mod cache;
mod get;
mod ls;
mod progress;
mod put;
mod stat;
mod sync;
mod tree;
mod union;

use std::collections::BTreeMap;

use norfab_fabric::client::FetchError;
use norfab_fabric::client::files::{Answered, Asking, GRACE};
use norfab_protocol::Identity;

use super::run::target_of;
use super::{found_nobody, nobody_of, pattern_hint};
use crate::args::{AskedArgs, FilesCommand, Global};
use crate::exit::{Code, Failure};
use crate::printer;

/// The service that shares files.
const SERVICE: &str = "filesharing";

pub async fn run(global: &Global, command: FilesCommand) -> Result<Code, Failure> {
    match command {
        FilesCommand::Get(words) => get::run(global, words).await,
        FilesCommand::Ls(words) => ls::run(global, words).await,
        FilesCommand::Tree(words) => tree::run(global, words).await,
        FilesCommand::Stat(words) => stat::run(global, words).await,
        FilesCommand::Put(words) => put::run(global, words).await,
        FilesCommand::Sync(words) => sync::run(global, words).await,
        FilesCommand::Cache => cache::show(global),
        FilesCommand::RmCache(words) => cache::remove(global, &words),
    }
}

/// What every URL of a file begins with.
const SCHEME: &str = "nf://";

/// Errors: it is no URL of a file.
fn checked(url: &str) -> Result<&str, Failure> {
    match url.strip_prefix(SCHEME) {
        Some(_) => Ok(url),
        None => Err(Failure::usage(format!("'{url}' is no file URL")).hint("write nf://PATH")),
    }
}

/// Errors: nobody is meant.
fn asking(words: &AskedArgs) -> Result<Asking, Failure> {
    Ok(Asking { target: target_of(&words.workers)?, timeout: words.timeout, grace: GRACE })
}

/// Where a file is not.
const WHAT_THERE_IS: &str = "'norfab files ls nf://' lists files and folders there";

/// Nobody takes questions about files.
fn no_worker() -> Failure {
    Failure::failed("no file sharing worker can be reached")
        .hint("'norfab worker filesharing-worker-1' starts one, 'norfab workers' shows who is there")
}

/// Who answered with something. Errors: nobody did, and why.
fn with_something<'a, T>(
    answered: &'a Answered<T>,
    words: &AskedArgs,
    url: &str,
) -> Result<Vec<(Identity, &'a T)>, Failure> {
    let having: Vec<(Identity, &'a T)> =
        answered.workers.iter().filter_map(|(worker, said)| Some((worker.clone(), said.as_ref().ok()?))).collect();
    if !having.is_empty() {
        return Ok(having);
    }
    let mut errors: Vec<&str> =
        answered.workers.values().filter_map(|said| said.as_ref().err().map(String::as_str)).collect();
    errors.sort_unstable();
    errors.dedup();
    if answered.errors.iter().any(|error| found_nobody(error)) {
        let hint = pattern_hint(&words.workers);
        return Err(match words.workers.as_str() {
            "all" | "any" => no_worker(),
            names => Failure::failed(nobody_of(SERVICE, names))
                .hint(format!("'norfab workers' shows those that are registered{hint}")),
        });
    }
    if answered.timed_out || errors.is_empty() && !answered.silent.is_empty() {
        if !answered.timed_out {
            let silent: Vec<Identity> = answered.silent.iter().cloned().collect();
            let text = format!("no worker told of '{url}': no answer from {}", named(&silent));
            return Err(Failure::new(Code::TimedOut, text).hint("'norfab workers' shows who is there"));
        }
        let text = format!("no worker told of '{url}' within {} s", words.timeout.as_secs_f64());
        return Err(Failure::new(Code::TimedOut, text).hint("give it longer with --timeout"));
    }
    if errors.is_empty() {
        return Err(Failure::failed(answered.errors.join("; ")));
    }
    let silent: Vec<Identity> = answered.silent.iter().cloned().collect();
    let silent = if silent.is_empty() { String::new() } else { format!("; no answer from {}", named(&silent)) };
    let failure = Failure::failed(format!("no file sharing worker has '{url}': {}{silent}", errors.join("; ")));
    Err(failure.hint(WHAT_THERE_IS))
}

/// Says of which workers nothing is shown.
fn warn_of_others<T>(global: &Global, answered: &Answered<T>) {
    if global.quiet > 0 {
        return;
    }
    let silent: Vec<Identity> = answered.silent.iter().cloned().collect();
    if !silent.is_empty() {
        printer::warning(&format!("no answer from {}: what is there is not shown", named(&silent)));
    }
    let mut failed: BTreeMap<&str, Vec<Identity>> = BTreeMap::new();
    for (worker, said) in &answered.workers {
        if let Err(error) = said {
            failed.entry(error).or_default().push(worker.clone());
        }
    }
    for (error, workers) in failed {
        printer::warning(&format!("{}: {error}", named(&workers)));
    }
}

fn named(workers: &[Identity]) -> String {
    format!("{} {}", if workers.len() == 1 { "worker" } else { "workers" }, printer::names(workers))
}

/// Why a file or a folder did not come, and what to do.
fn failure(error: &FetchError) -> Failure {
    match error {
        // The broker found nobody; its words name no way out.
        FetchError::NotFound { reason, .. } if found_nobody(reason) => no_worker(),
        FetchError::NotFound { url, .. } if url.starts_with("git://") => {
            Failure::failed(error).hint("'norfab run filesharing get_remotes' shows which remotes there are")
        }
        FetchError::NotFound { .. } => Failure::failed(error).hint(WHAT_THERE_IS),
        FetchError::TimedOut { .. } => {
            Failure::new(Code::TimedOut, error.to_string()).hint("give it longer with --timeout")
        }
        FetchError::Silent { .. } => Failure::new(Code::TimedOut, error.to_string())
            .hint("'norfab workers' shows who is there, and who leaves requests unanswered"),
        FetchError::Url(_) => no_url(error),
        FetchError::Write { .. } => Failure::configuration(error).advised(Some("'-' is standard output")),
        _ => Failure::failed(error),
    }
}

/// A text that is no file URL.
fn no_url(error: &FetchError) -> Failure {
    Failure::usage(error.to_string()).advised(Some("write nf://PATH or git://REMOTE/PATH"))
}
