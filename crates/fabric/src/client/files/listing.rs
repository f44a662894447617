//! What is in a folder that a worker shares, with all that is below: what a worker says of it, read as what a stranger says.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use norfab_files::{NoPath, RelativePath};
use norfab_protocol::target::Target;
use norfab_protocol::{Identity, TaskResult};
use serde::Deserialize;
use serde_json::json;

use super::super::ClientHandle;
use super::ask::Answers;
use super::cache::plain_path;
use super::names::compare_paths;
use super::waiting::Work;
use super::{FetchError, nobody_has};

/// Most entries of a folder that is synchronized: some hundred megabytes here.
pub const LISTED_MAX: usize = 1_000_000;

/// Most bytes of all their paths.
const LISTED_BYTES_MAX: usize = 256 << 20;

/// Characters of a path that are kept where nothing is written to it.
const REFUSED_SHOWN_MAX: usize = 200;

/// Files whose hashes are asked for at once. A worker reads them all for its answer.
const DETAILED_AT_ONCE: usize = 1000;

/// What every URL of a worker's file begins with.
const SCHEME: &str = "nf://";

/// What a worker has under a path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Listed {
    File(ListedFile),
    Folder,
    /// A link that is not followed.
    Link,
}

/// What is known of a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ListedFile {
    pub(super) size: u64,
    /// Workers of Python NorFab do not say.
    pub(super) modified: Option<i64>,
    pub(super) mode: Option<u32>,
    /// Where it was asked for.
    pub(super) md5: Option<String>,
}

/// A folder of a worker.
#[derive(Debug)]
pub(super) struct Listing {
    pub(super) worker: Identity,
    /// Others that have a folder there.
    pub(super) peers: Vec<Identity>,
    /// Others that may have a folder there, with other files in it.
    pub(super) rivals: Vec<Identity>,
    /// Whether the worker is one of Python NorFab.
    pub(super) is_python: bool,
    pub(super) entries: BTreeMap<RelativePath, Listed>,
    /// Paths to which nothing is written.
    pub(super) refused: Vec<(String, NoPath)>,
    /// Names that the worker left out.
    pub(super) left_out: u64,
    /// Bytes of all paths.
    bytes: usize,
}

#[derive(Deserialize)]
struct Page {
    entries: Vec<Entry>,
    #[serde(default)]
    next: Option<String>,
    #[serde(default)]
    unspeakable: u64,
    #[serde(default)]
    unreadable: u64,
}

#[derive(Deserialize)]
struct Entry {
    path: String,
    kind: String,
    #[serde(default)]
    size_bytes: Option<u64>,
    #[serde(default)]
    modified: Option<i64>,
    #[serde(default)]
    mode: Option<u32>,
}

#[derive(Deserialize)]
struct Details {
    md5hash: Option<String>,
    size_bytes: Option<u64>,
}

/// The URL of a path below the URL of a folder.
pub(super) fn url_below(folder: &str, path: &str) -> String {
    if folder.ends_with('/') { format!("{folder}{path}") } else { format!("{folder}/{path}") }
}

/// Who has a folder.
#[derive(Default)]
struct Having {
    ours: Vec<Identity>,
    /// Workers that do not know the question.
    others: Vec<Identity>,
    silent: Vec<Identity>,
    missed: Missed,
}

/// Why there is no list of a folder.
#[derive(Default)]
struct Missed {
    reasons: Vec<String>,
    timed_out: bool,
    /// Whether somebody did not answer who might have it.
    silent: bool,
}

impl Missed {
    fn why(reason: String) -> Self {
        Self { reasons: vec![reason], ..Self::default() }
    }

    fn add(&mut self, Self { reasons, timed_out, silent }: Self) {
        self.reasons.extend(reasons);
        self.timed_out |= timed_out;
        self.silent |= silent;
    }
}

impl From<&Answers> for Missed {
    fn from(answers: &Answers) -> Self {
        let (timed_out, silent) = (answers.timed_out, !answers.silent.is_empty());
        Self { reasons: vec![answers.reason()], timed_out, silent }
    }
}

impl ClientHandle {
    /// All that is in a folder, from one of these workers that has it. Errors: as [`FetchError`].
    pub(super) async fn list_folder(
        &self,
        url: &str,
        workers: Target,
        deadline: Instant,
        timeout: Duration,
    ) -> Result<Listing, FetchError> {
        let Having { ours, others, silent, mut missed } = self.who_has_folder(url, workers, deadline).await?;
        let may_have: Vec<Identity> = ours.iter().chain(&others).chain(&silent).cloned().collect();
        let but = |workers: &[Identity], one: &Identity| workers.iter().filter(|it| *it != one).cloned().collect();
        for worker in &ours {
            match self.list_at(worker, url, deadline).await? {
                Ok(listing) => {
                    return Ok(Listing { peers: but(&ours, worker), rivals: but(&may_have, worker), ..listing });
                }
                Err(why) => missed.add(why),
            }
        }
        for worker in &others {
            match self.list_python(worker, url, deadline).await? {
                Ok(listing) => return Ok(Listing { rivals: but(&may_have, worker), ..listing }),
                Err(why) => missed.add(why),
            }
        }
        missed.reasons.retain(|reason| !reason.is_empty());
        missed.reasons.dedup();
        Err(nobody_has(url.to_owned(), timeout, missed.timed_out, missed.silent, missed.reasons.join("; ")))
    }

    async fn who_has_folder(&self, url: &str, workers: Target, deadline: Instant) -> Result<Having, FetchError> {
        #[derive(Deserialize)]
        struct Standing {
            kind: String,
            error: Option<String>,
        }
        let standing = |result: &TaskResult| match result.failed {
            true => None,
            false => serde_json::from_str::<Vec<Standing>>(result.result.get()).ok().and_then(|mut all| all.pop()),
        };
        let is_there = |result: &TaskResult| standing(result).is_some_and(|standing| standing.kind == "directory");
        let question = json!({ "urls": [url] });
        let answers = self.ask_until("stat_files", question, workers, deadline, Work::Shown, is_there).await?;
        let mut having = Having { missed: Missed::from(&answers), ..Having::default() };
        for (worker, result) in answers.said {
            match standing(&result) {
                Some(standing) if standing.kind == "directory" => having.ours.push(worker),
                Some(standing) if standing.kind == "file" => having.missed.reasons.push("it is a file".to_owned()),
                Some(standing) => having.missed.reasons.extend(standing.error),
                None => having.others.push(worker),
            }
        }
        having.silent = answers.silent;
        Ok(having)
    }

    /// Errors inside: why there is no list of it.
    async fn list_at(
        &self,
        worker: &Identity,
        url: &str,
        deadline: Instant,
    ) -> Result<Result<Listing, Missed>, FetchError> {
        let mut listing = Listing::new(worker.clone(), false);
        let mut after: Option<String> = None;
        loop {
            let mut question = json!({ "url": url, "recursive": true });
            if let Some(after) = &after {
                question["after"] = json!(after);
            }
            let answers = self.ask("list_entries", question, Target::list([worker]), deadline).await?;
            let Some((_, result)) = answers.said.first().filter(|(_, result)| !result.failed) else {
                return Ok(Err(Missed::from(&answers)));
            };
            let page: Page = match serde_json::from_str(result.result.get()) {
                Ok(page) => page,
                Err(error) => return Ok(Err(Missed::why(format!("worker {worker} gave no list of it: {error}")))),
            };
            let grows = |next: &String| after.as_ref().is_none_or(|after| compare_paths(after, next).is_lt());
            let goes_on = page.next.as_ref().is_some_and(grows) && !page.entries.is_empty();
            let is_last = page.next.is_none();
            after = page.next;
            listing.left_out = listing.left_out.saturating_add(page.unspeakable).saturating_add(page.unreadable);
            for Entry { path, kind, size_bytes, modified, mode } in page.entries {
                let listed = match (kind.as_str(), size_bytes) {
                    ("file", Some(size)) => Listed::File(ListedFile { size, modified, mode, md5: None }),
                    ("directory", _) => Listed::Folder,
                    _ => Listed::Link,
                };
                listing.add(path, listed);
            }
            if listing.is_too_long() {
                return Ok(Err(Missed::why(format!(
                    "worker {worker} tells more than {LISTED_MAX} entries, or longer ones than fit into memory"
                ))));
            }
            if is_last {
                return Ok(Ok(listing));
            }
            if !goes_on {
                return Ok(Err(Missed::why(format!("worker {worker} gave a list that does not go on"))));
            }
        }
    }

    async fn list_python(
        &self,
        worker: &Identity,
        url: &str,
        deadline: Instant,
    ) -> Result<Result<Listing, Missed>, FetchError> {
        let answers = self.ask_at_length("walk", json!({ "url": url }), worker, deadline).await?;
        let result = answers.said.first().filter(|(_, result)| !result.failed);
        let Some(urls) = result.and_then(|(_, result)| serde_json::from_str::<Vec<String>>(result.result.get()).ok())
        else {
            return Ok(Err(Missed::from(&answers)));
        };
        let mut listing = Listing::new(worker.clone(), true);
        let folder = plain_path(url.strip_prefix(SCHEME).unwrap_or_default());
        let below = urls.iter().filter_map(|of| {
            // 0.21 writes a slash too many.
            let path = of.strip_prefix(SCHEME)?.trim_start_matches('/').strip_prefix(&folder)?;
            Some(if folder.is_empty() { path } else { path.strip_prefix('/')? }.to_owned())
        });
        let below: Vec<String> = below.collect();
        listing.left_out += (urls.len() - below.len()) as u64;
        let details = self.details(worker, url, &below, deadline).await?;
        for path in below {
            match details.get(&path) {
                Some((size, md5)) => listing.add(
                    path,
                    Listed::File(ListedFile { size: *size, modified: None, mode: None, md5: Some(md5.clone()) }),
                ),
                None => listing.left_out += 1,
            }
        }
        if listing.is_too_long() {
            return Ok(Err(Missed::why(format!("worker {worker} tells more than {LISTED_MAX} files"))));
        }
        Ok(Ok(listing))
    }

    /// Sizes and MD5 of files below a folder: those that the worker tells.
    pub(super) async fn details(
        &self,
        worker: &Identity,
        url: &str,
        paths: &[String],
        deadline: Instant,
    ) -> Result<BTreeMap<String, (u64, String)>, FetchError> {
        let mut details = BTreeMap::new();
        for some in paths.chunks(DETAILED_AT_ONCE) {
            let urls: Vec<String> = some.iter().map(|path| url_below(url, path)).collect();
            let answers = self.ask_at_length("file_details", json!({ "url": urls }), worker, deadline).await?;
            let told = answers.said.first().filter(|(_, result)| !result.failed);
            let results: Option<BTreeMap<String, TaskResult>> =
                told.and_then(|(_, result)| serde_json::from_str(result.result.get()).ok());
            for (path, url) in some.iter().zip(&urls) {
                let detail = match &results {
                    Some(results) => results.get(url).and_then(detail),
                    // 0.21 answers for one at a time.
                    None if answers.timed_out || !answers.silent.is_empty() => None,
                    None => {
                        let question = json!({ "url": url });
                        let answers = self.ask_at_length("file_details", question, worker, deadline).await?;
                        answers.said.first().and_then(|(_, result)| detail(result))
                    }
                };
                details.extend(detail.map(|detail| (path.clone(), detail)));
            }
        }
        Ok(details)
    }
}

/// Size and MD5 of a file.
fn detail(result: &TaskResult) -> Option<(u64, String)> {
    let details = if result.failed { None } else { serde_json::from_str(result.result.get()).ok() };
    let Details { md5hash, size_bytes } = details?;
    Some((size_bytes?, md5hash?))
}

impl Listing {
    fn new(worker: Identity, is_python: bool) -> Self {
        Self {
            worker,
            peers: Vec::new(),
            rivals: Vec::new(),
            is_python,
            entries: BTreeMap::new(),
            refused: Vec::new(),
            left_out: 0,
            bytes: 0,
        }
    }

    fn add(&mut self, path: String, listed: Listed) {
        match RelativePath::parse(&path) {
            Ok(path) => {
                self.bytes += path.as_str().len();
                self.entries.entry(path).or_insert(listed);
            }
            Err(why) => {
                let shown: String = path.chars().take(REFUSED_SHOWN_MAX).collect();
                self.bytes += shown.len();
                self.refused.push((shown, why));
            }
        }
    }

    fn is_too_long(&self) -> bool {
        self.entries.len() + self.refused.len() > LISTED_MAX || self.bytes > LISTED_BYTES_MAX
    }

    /// Why something may be missing from it.
    pub(super) fn incomplete(&self) -> Option<String> {
        if self.is_python {
            return Some(
                "workers of Python NorFab leave out folders that they cannot read, and do not say so".to_owned(),
            );
        }
        let is_complete = self.refused.is_empty() && self.left_out == 0;
        (!is_complete).then(|| "not all that is there was told, so nobody knows what is not".to_owned())
    }

    /// All folders that are in it, also those that stand only on the way to files.
    pub(super) fn folders(&self) -> BTreeSet<&str> {
        let mut folders = BTreeSet::new();
        for (path, listed) in &self.entries {
            let mut way = if *listed == Listed::Folder { path.as_str() } else { path.split().0 };
            while !way.is_empty() && folders.insert(way) {
                way = way.rsplit_once('/').map_or("", |(above, _)| above);
            }
        }
        folders
    }
}
