//! What workers share, as each of them tells it: one after the other may have other files under the same URL.
//!
//! Workers of ours tell sizes and times, page by page. Those of Python NorFab tell names, and of single files size and MD5.

mod details;

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use norfab_protocol::client::{JobState, JobUpdate};
use norfab_protocol::target::Target;
use norfab_protocol::{Identity, TaskResult};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::task::JoinSet;

use self::details::{DetailsOfMany, add_details};
use super::super::{ClientHandle, SubmitError};
use super::find::next_before;
use super::waiting::SILENT_MAX;
use super::{names, spec};
use crate::clock::SystemClock;

/// Most entries that one worker tells: some hundred megabytes here.
pub const ENTRIES_MAX: usize = 1_000_000;

/// URLs of one question, as many as a worker of ours answers at once.
pub const URLS_MAX: usize = 10_000;

/// Whom to ask.
#[derive(Debug, Clone)]
pub struct Asking {
    /// Which workers.
    pub target: Target,
    /// How long, in all.
    pub timeout: Duration,
    /// How long those are waited for that show no sign of life, once others have; see [`GRACE`](super::GRACE).
    pub grace: Duration,
}

/// Until when it is waited.
#[derive(Clone, Copy)]
struct Patience {
    deadline: Instant,
    grace: Duration,
}

impl Patience {
    fn of(asking: &Asking) -> Self {
        Self { deadline: SystemClock::now() + asking.timeout, grace: asking.grace }
    }
}

/// What is under a name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum EntryKind {
    /// A file.
    File,
    /// A directory.
    Directory,
    /// A link that is not followed, or leads to nothing that is served.
    Link,
    /// A worker of Python NorFab does not say.
    Unknown,
    /// Nothing.
    Missing,
}

impl EntryKind {
    fn of(word: &str) -> Self {
        match word {
            "file" => Self::File,
            "directory" => Self::Directory,
            "link" => Self::Link,
            "missing" => Self::Missing,
            _ => Self::Unknown,
        }
    }
}

/// What a worker tells of a name. What is `None` it does not tell.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SharedEntry {
    /// Below the directory that was asked for; or the URL that was asked for.
    pub path: String,
    /// What is there.
    pub kind: EntryKind,
    /// Bytes of a file.
    pub size_bytes: Option<u64>,
    /// Seconds since 1970 of its last change.
    pub modified: Option<i64>,
    /// Permissions.
    pub mode: Option<u32>,
    /// Hexadecimal.
    pub md5: Option<String>,
    /// Hexadecimal.
    pub sha256: Option<String>,
    /// Why there is nothing, or not all of it is known.
    pub error: Option<String>,
}

impl SharedEntry {
    pub(super) fn of_kind(path: impl Into<String>, kind: EntryKind) -> Self {
        let (size_bytes, modified, mode) = (None, None, None);
        Self { path: path.into(), kind, size_bytes, modified, mode, md5: None, sha256: None, error: None }
    }
}

/// What workers said.
#[derive(Debug)]
pub struct Answered<T> {
    /// Each that answered: what, or why not.
    pub workers: BTreeMap<Identity, Result<T, String>>,
    /// Who was asked and has not answered.
    pub silent: BTreeSet<Identity>,
    /// Whether the time was over before all had.
    pub timed_out: bool,
    /// Why nobody was asked.
    pub errors: Vec<String>,
}

#[derive(Deserialize)]
struct TellsEntry {
    #[serde(alias = "url")]
    path: String,
    kind: String,
    size_bytes: Option<u64>,
    modified: Option<i64>,
    mode: Option<u32>,
    error: Option<String>,
}

impl From<TellsEntry> for SharedEntry {
    fn from(told: TellsEntry) -> Self {
        let TellsEntry { path, kind, size_bytes, modified, mode, error } = told;
        let kind = EntryKind::of(&kind);
        Self { size_bytes, modified, mode, error, ..Self::of_kind(path, kind) }
    }
}

#[derive(Deserialize)]
struct Page {
    entries: Vec<TellsEntry>,
    next: Option<String>,
}

impl ClientHandle {
    /// What is in a directory, down to `levels`: 1 is what is in the directory itself. Entries are in the order of their names,
    /// those of a directory behind it. `sizes`: workers of Python NorFab are asked for the size of each file of one level, which
    /// they have to read for it. Errors: the job is not taken.
    pub async fn list_shared(
        &self,
        url: &str,
        levels: usize,
        sizes: bool,
        asking: &Asking,
    ) -> Result<Answered<Vec<SharedEntry>>, SubmitError> {
        let patience = Patience::of(asking);
        let question = json!({ "url": url, "recursive": levels > 1, "depth": levels });
        let first =
            self.ask_each("list_entries", question.clone(), asking.target.clone(), patience, read::<Page>).await?;
        let Answered { workers, silent, timed_out, errors } = first;
        let mut answered = Answered { workers: BTreeMap::new(), silent, timed_out, errors };
        let mut paging = JoinSet::new();
        let mut others = Vec::new();
        for (worker, page) in workers {
            match page {
                Ok(page) => {
                    let (client, question) = (self.clone(), question.clone());
                    paging.spawn(async move {
                        let entries = client.pages(&worker, question, page, patience).await;
                        (worker, entries)
                    });
                }
                Err(error) if is_final(&error) => {
                    answered.workers.insert(worker, Err(error));
                }
                Err(_) => others.push(worker),
            }
        }
        while let Some(paged) = paging.join_next().await {
            match paged {
                Ok((worker, entries)) => match entries? {
                    Some(entries) => {
                        answered.workers.insert(worker, entries);
                    }
                    None => {
                        answered.timed_out = true;
                        answered.silent.insert(worker);
                    }
                },
                Err(error) => std::panic::resume_unwind(error.into_panic()),
            }
        }
        if !others.is_empty() {
            let task = if levels > 1 { "walk" } else { "list_files" };
            let target = Target::list(others);
            let told = self.ask_each(task, json!({ "url": url }), target, patience, read::<Vec<String>>).await?;
            answered.silent.extend(told.silent);
            answered.timed_out |= told.timed_out;
            for (worker, names) in told.workers {
                let entries = match names {
                    Ok(urls) if levels > 1 => Ok(names::of_walk(url, &urls, levels)),
                    Ok(names) => {
                        let mut entries = names::of_list(names);
                        if sizes {
                            self.sizes_of_python(&worker, url, &mut entries, patience).await?;
                        }
                        Ok(entries)
                    }
                    Err(error) => Err(error),
                };
                answered.workers.insert(worker, entries);
            }
        }
        Ok(answered)
    }

    /// What is at each of these URLs, in their order, with its hashes if they are wanted. At most [`URLS_MAX`] are looked at. Errors:
    /// the job is not taken.
    pub async fn stat_shared(
        &self,
        urls: &[String],
        hashes: bool,
        asking: &Asking,
    ) -> Result<Answered<Vec<SharedEntry>>, SubmitError> {
        let urls = &urls[..urls.len().min(URLS_MAX)];
        let patience = Patience::of(asking);
        let question = json!({ "urls": urls });
        let told =
            self.ask_each("stat_files", question, asking.target.clone(), patience, read::<Vec<TellsEntry>>).await?;
        let Answered { workers, silent, timed_out, errors } = told;
        let mut answered = Answered { workers: BTreeMap::new(), silent, timed_out, errors };
        let mut others = Vec::new();
        let mut with_files: BTreeSet<String> = BTreeSet::new();
        for (worker, standings) in workers {
            let Ok(standings) = standings else {
                others.push(worker);
                continue;
            };
            let entries: Vec<SharedEntry> = standings.into_iter().map(SharedEntry::from).collect();
            let files = entries.iter().filter(|entry| entry.kind == EntryKind::File);
            with_files.extend(files.map(|entry| entry.path.clone()));
            answered.workers.insert(worker, Ok(entries));
        }
        if hashes && !with_files.is_empty() {
            let target = Target::list(answered.workers.keys());
            let question = json!({ "url": with_files, "sha256": true });
            let told = self.ask_each("file_details", question, target, patience, read::<DetailsOfMany>).await?;
            for (worker, entries) in &mut answered.workers {
                let details = told.workers.get(worker);
                for entry in entries.iter_mut().flatten().filter(|entry| entry.kind == EntryKind::File) {
                    match details {
                        Some(Ok(details)) => add_details(entry, details.get(&entry.path)),
                        Some(Err(error)) => entry.error = Some(error.clone()),
                        None => entry.error = Some("its hash did not come in time".to_owned()),
                    }
                }
            }
        }
        for worker in others {
            let entries = self.stat_python(&worker, urls, patience).await?;
            match entries {
                Some(entries) => {
                    answered.workers.insert(worker, Ok(entries));
                }
                None => {
                    answered.timed_out = true;
                    answered.silent.insert(worker);
                }
            }
        }
        Ok(answered)
    }

    /// The pages behind the first one. `None`: not all of them came in time.
    async fn pages(
        &self,
        worker: &Identity,
        mut question: Value,
        first: Page,
        patience: Patience,
    ) -> Result<Option<Result<Vec<SharedEntry>, String>>, SubmitError> {
        let mut entries: Vec<SharedEntry> = first.entries.into_iter().map(SharedEntry::from).collect();
        let mut next = first.next;
        while let Some(after) = next {
            if entries.len() >= ENTRIES_MAX {
                return Ok(Some(Err(format!(
                    "it has more than {ENTRIES_MAX} entries: ask for its folders one by one"
                ))));
            }
            question["after"] = after.as_str().into();
            let target = Target::list([worker]);
            let mut told = self.ask_each("list_entries", question.clone(), target, patience, read::<Page>).await?;
            match told.workers.remove(worker) {
                Some(Ok(page)) if page.entries.is_empty() && page.next.is_some() => {
                    return Ok(Some(Err("it says that there is more and does not tell it".to_owned())));
                }
                Some(Ok(page)) => {
                    entries.extend(page.entries.into_iter().map(SharedEntry::from));
                    next = page.next;
                }
                Some(Err(error)) => return Ok(Some(Err(error))),
                None => return Ok(None),
            }
        }
        Ok(Some(Ok(entries)))
    }

    /// Asks workers, and waits for those that show that they are there. One that does not costs the grace beside others that do.
    async fn ask_each<T>(
        &self,
        task: &str,
        question: Value,
        target: Target,
        patience: Patience,
        read: fn(&TaskResult) -> Result<T, String>,
    ) -> Result<Answered<T>, SubmitError> {
        let left = patience.deadline.saturating_duration_since(SystemClock::now());
        let mut answered =
            Answered { workers: BTreeMap::new(), silent: BTreeSet::new(), timed_out: false, errors: Vec::new() };
        if left.is_zero() {
            answered.timed_out = true;
            return Ok(answered);
        }
        let mut job = self.submit(spec(task, target, question, left)).await?;
        let mut asked: BTreeSet<Identity> = BTreeSet::new();
        let mut at_work: BTreeSet<Identity> = BTreeSet::new();
        let (mut first_sign, mut dispatched) = (None, None);
        loop {
            let all_at_work = asked.iter().all(|worker| at_work.contains(worker));
            let until = match first_sign {
                Some(sign) => Some(sign + patience.grace).filter(|_| !all_at_work),
                // Nobody shows anything.
                None => dispatched.map(|dispatched: Instant| dispatched + SILENT_MAX),
            };
            let Some(update) = next_before(&mut job, until).await else {
                let late: Vec<Identity> = asked.difference(&at_work).cloned().collect();
                let nobody_else = late.len() == asked.len();
                asked.retain(|worker| at_work.contains(worker));
                answered.silent.extend(late);
                if nobody_else {
                    return Ok(answered);
                }
                continue;
            };
            match update {
                JobUpdate::Dispatched(workers) => {
                    asked.extend(workers);
                    dispatched.get_or_insert_with(SystemClock::now);
                }
                JobUpdate::Accepted(worker) => {
                    at_work.insert(worker);
                    first_sign.get_or_insert_with(SystemClock::now);
                }
                JobUpdate::Result(worker, payload) => {
                    asked.remove(&worker);
                    answered.silent.remove(&worker);
                    let said = match serde_json::from_slice(&payload) {
                        Ok(result) => read(&result),
                        Err(error) => Err(error.to_string()),
                    };
                    answered.workers.insert(worker, said);
                    first_sign.get_or_insert_with(SystemClock::now);
                    if asked.is_empty() && !answered.silent.is_empty() {
                        return Ok(answered);
                    }
                }
                JobUpdate::Finished(outcome) => {
                    answered.timed_out = outcome.state == JobState::Stale;
                    answered.errors = outcome.errors;
                    for (worker, lost) in outcome.missing {
                        if answered.timed_out {
                            answered.silent.insert(worker);
                        } else {
                            answered.workers.entry(worker).or_insert_with(|| Err(lost.to_string()));
                        }
                    }
                    return Ok(answered);
                }
                _ => {}
            }
        }
    }
}

/// Errors: the task failed, or its result is something else.
fn read<T: for<'de> Deserialize<'de>>(result: &TaskResult) -> Result<T, String> {
    if result.failed {
        return Err(result.errors.join("; "));
    }
    serde_json::from_str(result.result.get()).map_err(|error| error.to_string())
}

/// Whether workers of both kinds say so of a URL: there is nothing else to ask.
fn is_final(error: &str) -> bool {
    error == "Directory Not Found" || error.ends_with("invalid URL path") || error.ends_with("invalid URL format")
}
