//! What the fabric is asked for while somebody types.

use std::collections::BTreeSet;
use std::time::Duration;

use clap::Parser;
use norfab_fabric::client::files::{Asking, EntryKind};
use norfab_fabric::client::{ClientHandle, JobSpec};
use norfab_protocol::broker::MANAGEMENT_SERVICE;
use norfab_protocol::target::Target;
use norfab_protocol::{ServiceName, TaskName};
use serde_json::{Map, Value};

use super::Candidate;
use crate::args::Args;
use crate::commands::{Connected, ask_broker, workers as table};

/// How long somebody who types may be kept waiting, from the start to the end.
const BOUND: Duration = Duration::from_secs(1);

/// How long others are waited for once a worker has answered.
const GRACE: Duration = Duration::from_millis(200);

/// What every URL of a file begins with.
const SCHEME: &str = "nf://";

/// The fabric that the words before mean.
pub struct Fabric<'a>(&'a [String]);

impl<'a> Fabric<'a> {
    /// `options`: those that say which.
    pub fn new(options: &'a [String]) -> Self {
        Self(options)
    }

    /// Asks it. `None`: nobody answered in time, or anything else is wrong.
    async fn ask<T>(&self, question: impl AsyncFnOnce(&ClientHandle) -> Option<T>) -> Option<T> {
        // As another command would be called; its own options are of no interest, and nothing is to be said.
        let words = ["norfab", "-qqq", "workers"].into_iter().chain(self.0.iter().map(String::as_str));
        let global = Args::try_parse_from(words).ok()?.global;
        let asking = async {
            let connected = Connected::to_ask(&global).await.ok()?;
            let answer = question(&connected.client).await;
            connected.client.stop().await;
            answer
        };
        tokio::time::timeout(BOUND, asking).await.ok()?
    }
}

/// URLs that a word may become. `others`: there are some already, so that the word may be where to.
pub async fn urls(fabric: &Fabric<'_>, current: &str, others: bool) -> Vec<Candidate> {
    let Some(path) = current.strip_prefix(SCHEME) else {
        let begins = SCHEME.starts_with(current) && !(others && current.is_empty());
        return if begins { vec![Candidate::begun(SCHEME)] } else { Vec::new() };
    };
    let folder = &current[..SCHEME.len() + path.rfind('/').map_or(0, |at| at + 1)];
    let asking = Asking { target: Target::All, timeout: BOUND, grace: GRACE };
    let listing = async |client: &ClientHandle| client.list_shared(folder, 1, false, &asking).await.ok();
    let Some(answered) = fabric.ask(listing).await else { return Vec::new() };
    let entries = answered.workers.into_values().filter_map(Result::ok).flatten();
    let candidates: BTreeSet<(String, bool)> = entries
        .map(|entry| match entry.kind {
            EntryKind::Directory => (format!("{folder}{}/", entry.path), false),
            // What it is shows when it is asked for.
            EntryKind::Link | EntryKind::Unknown => (format!("{folder}{}", entry.path), false),
            EntryKind::File | EntryKind::Missing => (format!("{folder}{}", entry.path), true),
        })
        .collect();
    candidates.into_iter().map(|(text, whole)| Candidate { text, whole }).collect()
}

/// Names of workers.
pub async fn workers(fabric: &Fabric<'_>) -> Vec<Candidate> {
    column(fabric, "name").await.into_iter().map(Candidate::whole).collect()
}

/// `any`, `all`, or names with commas between them.
pub async fn workers_with_commas(fabric: &Fabric<'_>, current: &str) -> Vec<Candidate> {
    let named = current.rfind(',').map_or("", |at| &current[..=at]);
    let words = if named.is_empty() { &["all", "any"][..] } else { &[] };
    let names = column(fabric, "name").await.into_iter().map(|name| Candidate::begun(format!("{named}{name}")));
    words.iter().map(|word| Candidate::whole(*word)).chain(names).collect()
}

/// Names of services.
pub async fn services(fabric: &Fabric<'_>) -> Vec<Candidate> {
    column(fabric, "service").await.into_iter().map(Candidate::whole).collect()
}

/// Names of the tasks of a service, as one of its workers tells them.
pub async fn tasks(fabric: &Fabric<'_>, service: &str) -> Vec<Candidate> {
    let Ok(service) = ServiceName::parse(service) else { return Vec::new() };
    let mut spec = JobSpec::new(service, TaskName::parse("list_tasks").expect("a name"));
    spec.timeout = BOUND;
    let question = async |client: &ClientHandle| client.run(spec).await.ok();
    let Some(report) = fabric.ask(question).await else { return Vec::new() };
    let tasks = report.results().into_values().find_map(|result| result.value());
    let tasks = tasks.as_ref().and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
    tasks.iter().filter_map(|task| task["name"].as_str().map(Candidate::whole)).collect()
}

/// What the broker tells of registered workers.
async fn column(fabric: &Fabric<'_>, column: &str) -> BTreeSet<String> {
    let question = async |client: &ClientHandle| {
        ask_broker(client, MANAGEMENT_SERVICE, "show_workers", Map::new(), BOUND).await.ok()
    };
    let rows: Vec<Value> = fabric.ask(question).await.and_then(|answer| table::rows(answer).ok()).unwrap_or_default();
    rows.iter().filter_map(|row| row[column].as_str().map(str::to_owned)).collect()
}
