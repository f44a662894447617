//! The task that tells size and hash of files.

use std::sync::Arc;

use norfab_service::{Task, TaskContext, TaskError, TaskOutput, TaskResult, on_blocking_thread};
use rustix::fd::OwnedFd;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use tokio::time;

use crate::digest::{self, FileKey, HashError, Hashes, SETTLE};
use crate::error::Refusal;
use crate::share::Share;

/// Most URLs that one `file_details` answers: an answer of some megabytes.
pub const URLS_MAX: usize = 10_000;

/// Files that are hashed at the same time. Each takes a core, and the rest of the worker needs some, too.
pub(crate) const HASHES_AT_ONCE: usize = 2;

/// Files from this size on are not hashed before what is read can be remembered, so that they are not read twice. To
/// read them takes longer than that.
const WORTH_WAITING_BYTES: u64 = 16 * 1024 * 1024;

#[derive(Debug, Deserialize, JsonSchema)]
struct Input {
    /// URL of a file, nf://path, or a list of them.
    url: Urls,
    /// Whether to tell the SHA-256, too.
    #[serde(default)]
    sha256: bool,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(untagged)]
enum Urls {
    One(String),
    Many(Vec<String>),
}

/// What is told of a file.
#[derive(Debug, Default, Serialize)]
struct FileDetails {
    md5hash: Option<String>,
    size_bytes: Option<u64>,
    exists: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    sha256: Option<String>,
}

pub(crate) fn task(share: &Arc<Share>) -> Task {
    let share = Arc::clone(share);
    Task::new("file_details", "Tells size and MD5 hash of one shared file or many.", move |context, input| {
        answer(Arc::clone(&share), context, input)
    })
}

async fn answer(share: Arc<Share>, context: TaskContext, input: Input) -> Result<TaskOutput, TaskError> {
    let sha256 = input.sha256;
    let urls = match input.url {
        Urls::One(url) => {
            let (details, refusal) = told(details(&share, &context, &url, sha256).await?);
            let output = TaskOutput::new(details);
            return Ok(match refusal {
                Some(refusal) => output.failed(refusal),
                None => output,
            });
        }
        Urls::Many(urls) => urls,
    };
    if urls.len() > URLS_MAX {
        return Err(TaskError::new(format!(
            "argument 'url': expected a list of at most {URLS_MAX}, found a list of {}",
            urls.len()
        )));
    }
    // A client of the protocol drops all answers of a worker whose result has failed: the errors of single files stand
    // beside them.
    let mut files = Map::new();
    let mut errors = Vec::new();
    for url in urls {
        let (details, refusal) = told(details(&share, &context, &url, sha256).await?);
        let mut entry = TaskResult { failed: refusal.is_some(), ..TaskResult::default() };
        entry.errors.extend(refusal.clone());
        errors.extend(refusal);
        let mut entry = serde_json::to_value(&entry)?;
        entry["result"] = json!(details);
        files.insert(url, entry);
    }
    Ok(errors.into_iter().fold(TaskOutput::new(Value::Object(files)), TaskOutput::error))
}

fn told(details: Result<FileDetails, Refusal>) -> (FileDetails, Option<String>) {
    match details {
        Ok(details) => (details, None),
        Err(refusal) => (FileDetails::default(), Some(refusal.to_string())),
    }
}

enum Look {
    Known(FileKey, Hashes),
    Unknown(FileKey, OwnedFd),
}

async fn details(
    share: &Arc<Share>,
    context: &TaskContext,
    url: &str,
    sha256: bool,
) -> Result<Result<FileDetails, Refusal>, TaskError> {
    let look = {
        let (share, url) = (Arc::clone(share), url.to_owned());
        on_blocking_thread(move || look(&share, &url, sha256)).await?
    };
    let (key, file) = match look {
        Ok(Look::Known(key, hashes)) => return Ok(Ok(complete(&key, &hashes))),
        Ok(Look::Unknown(key, file)) => (key, file),
        Err(refusal) => return Ok(Err(refusal)),
    };
    let turn = Arc::clone(&share.hash_turns).acquire_owned().await?;
    // Whoever had the turn before may have read the same file.
    if let Some(hashes) = share.digests.get(&key, sha256) {
        return Ok(Ok(complete(&key, &hashes)));
    }
    let since = share.digests.see(key, context.clock().now());
    let mut seen = context.clock().now();
    let unsettled = SETTLE.saturating_sub(seen.saturating_duration_since(since));
    if key.size >= WORTH_WAITING_BYTES && !unsettled.is_zero() {
        time::sleep(unsettled).await;
        seen = context.clock().now();
    }
    let hashed = {
        let context = context.clone();
        on_blocking_thread(move || {
            let hashed = digest::hash_file(&file, &key, sha256, || context.is_cancelled());
            // The turn is over when the reading is, even if nobody waits any more.
            drop(turn);
            hashed
        })
        .await?
    };
    let url = || url.to_owned();
    Ok(match hashed {
        Ok((hashes, same)) => {
            if same {
                share.digests.remember(&key, seen, hashes);
            }
            Ok(complete(&key, &hashes))
        }
        Err(HashError::Shrunk) => Err(Refusal::Shrunk { url: url() }),
        Err(HashError::Ended) => Err(Refusal::Ended { url: url() }),
        Err(HashError::Unreadable(errno)) => Err(Refusal::Unreadable { url: url(), errno }),
    })
}

fn look(share: &Share, url: &str, sha256: bool) -> Result<Look, Refusal> {
    let file = match share.file(url) {
        Ok(file) => file,
        // Clients ask this to learn whether there is such a file: what is no file is none.
        Err(Refusal::IsDirectory { url } | Refusal::Special { url }) => return Err(Refusal::NoFile { url }),
        Err(refusal) => return Err(refusal),
    };
    let key = FileKey::of(&file.stat);
    Ok(match share.digests.get(&key, sha256) {
        Some(hashes) => Look::Known(key, hashes),
        None => Look::Unknown(key, file.handle),
    })
}

fn complete(key: &FileKey, hashes: &Hashes) -> FileDetails {
    FileDetails {
        md5hash: Some(digest::hexadecimal(&hashes.md5)),
        size_bytes: Some(key.size),
        exists: true,
        sha256: hashes.sha256.map(|hash| hash.to_string()),
    }
}
