//! What is in a folder that a worker shares, with all that is below: what a worker says of it, read as what a stranger says.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use norfab_files::{NoPath, RelativePath};
use norfab_protocol::target::Target;
use norfab_protocol::{Identity, TaskResult};
use serde::Deserialize;
use serde_json::json;

use super::super::ClientHandle;
use super::FetchError;
use super::cache::plain_path;

/// Most entries of a folder that is synchronized: some hundred megabytes here.
pub const LISTED_MAX: usize = 1_000_000;

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
    /// Whether the worker is one of Python NorFab.
    pub(super) is_python: bool,
    pub(super) entries: BTreeMap<RelativePath, Listed>,
    /// Paths to which nothing is written.
    pub(super) refused: Vec<(String, NoPath)>,
    /// Names that the worker left out.
    pub(super) left_out: u64,
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
    reason: String,
    timed_out: bool,
}

impl ClientHandle {
    /// All that is in a folder, from one worker that has it. Errors: as [`FetchError`].
    pub(super) async fn list_folder(
        &self,
        url: &str,
        deadline: Instant,
        timeout: Duration,
    ) -> Result<Listing, FetchError> {
        let Having { ours, others, mut reason, mut timed_out } = self.who_has_folder(url, deadline).await?;
        for worker in &ours {
            match self.list_at(worker, url, deadline).await? {
                Ok(listing) => {
                    let peers = ours.iter().filter(|peer| *peer != worker).cloned().collect();
                    return Ok(Listing { peers, ..listing });
                }
                Err((why, late)) => (reason, timed_out) = (why, late),
            }
        }
        for worker in others {
            match self.list_python(&worker, url, deadline).await? {
                Ok(listing) => return Ok(listing),
                Err((why, late)) => (reason, timed_out) = (why, timed_out || late),
            }
        }
        let url = url.to_owned();
        Err(match timed_out {
            true => FetchError::TimedOut { url, timeout, reason },
            false => FetchError::NotFound { url, reason },
        })
    }

    async fn who_has_folder(&self, url: &str, deadline: Instant) -> Result<Having, FetchError> {
        #[derive(Deserialize)]
        struct Standing {
            kind: String,
            error: Option<String>,
        }
        let answers = self.ask("stat_files", json!({ "urls": [url] }), Target::All, deadline).await?;
        let mut having = Having { reason: answers.reason(), timed_out: answers.timed_out, ..Having::default() };
        for (worker, result) in answers.said {
            let standing = match result.failed {
                true => None,
                false => serde_json::from_str::<Vec<Standing>>(result.result.get()).ok().and_then(|mut all| all.pop()),
            };
            match standing {
                Some(standing) if standing.kind == "directory" => having.ours.push(worker),
                Some(standing) if standing.kind == "file" => having.reason = "it is a file".to_owned(),
                Some(standing) => having.reason = standing.error.unwrap_or(having.reason),
                None => having.others.push(worker),
            }
        }
        Ok(having)
    }

    /// Errors inside: why there is no list of it, and whether time was over.
    async fn list_at(
        &self,
        worker: &Identity,
        url: &str,
        deadline: Instant,
    ) -> Result<Result<Listing, (String, bool)>, FetchError> {
        let mut listing = Listing::new(worker.clone(), false);
        let mut after: Option<String> = None;
        loop {
            let mut question = json!({ "url": url, "recursive": true });
            if let Some(after) = &after {
                question["after"] = json!(after);
            }
            let answers = self.ask("list_entries", question, Target::list([worker]), deadline).await?;
            let Some((_, result)) = answers.said.first().filter(|(_, result)| !result.failed) else {
                return Ok(Err((answers.reason(), answers.timed_out)));
            };
            let page: Page = match serde_json::from_str(result.result.get()) {
                Ok(page) => page,
                Err(error) => return Ok(Err((format!("worker {worker} gave no list of it: {error}"), false))),
            };
            let goes_on = page.next.is_some() && page.next != after && !page.entries.is_empty();
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
                return Ok(Err((format!("worker {worker} tells more than {LISTED_MAX} entries"), false)));
            }
            if is_last {
                return Ok(Ok(listing));
            }
            if !goes_on {
                return Ok(Err((format!("worker {worker} gave a list that does not go on"), false)));
            }
        }
    }

    async fn list_python(
        &self,
        worker: &Identity,
        url: &str,
        deadline: Instant,
    ) -> Result<Result<Listing, (String, bool)>, FetchError> {
        let answers = self.ask("walk", json!({ "url": url }), Target::list([worker]), deadline).await?;
        let result = answers.said.first().filter(|(_, result)| !result.failed);
        let Some(urls) = result.and_then(|(_, result)| serde_json::from_str::<Vec<String>>(result.result.get()).ok())
        else {
            return Ok(Err((answers.reason(), answers.timed_out)));
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
            return Ok(Err((format!("worker {worker} tells more than {LISTED_MAX} files"), false)));
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
            let answers = self.ask("file_details", json!({ "url": urls }), Target::list([worker]), deadline).await?;
            let told = answers.said.first().filter(|(_, result)| !result.failed);
            let results: Option<BTreeMap<String, TaskResult>> =
                told.and_then(|(_, result)| serde_json::from_str(result.result.get()).ok());
            for (path, url) in some.iter().zip(&urls) {
                let detail = match &results {
                    Some(results) => results.get(url).and_then(detail),
                    // 0.21 answers for one at a time.
                    None if answers.timed_out => None,
                    None => {
                        let target = Target::list([worker]);
                        let answers = self.ask("file_details", json!({ "url": url }), target, deadline).await?;
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
        Self { worker, peers: Vec::new(), is_python, entries: BTreeMap::new(), refused: Vec::new(), left_out: 0 }
    }

    fn add(&mut self, path: String, listed: Listed) {
        match RelativePath::parse(&path) {
            Ok(path) => {
                self.entries.entry(path).or_insert(listed);
            }
            Err(why) => self.refused.push((path, why)),
        }
    }

    fn is_too_long(&self) -> bool {
        self.entries.len() + self.refused.len() > LISTED_MAX
    }

    /// Whether nothing is missing from it.
    pub(super) fn is_complete(&self) -> bool {
        self.refused.is_empty() && self.left_out == 0
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
