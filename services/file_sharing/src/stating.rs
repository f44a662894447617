//! The task that tells whether files are there, without reading them.

use std::sync::Arc;

use norfab_service::{Task, TaskContext, TaskError, TaskOutput};
use rustix::fs::Stat;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::details::URLS_MAX;
use crate::digest::FileKey;
use crate::error::Refusal;
use crate::share::Share;
use crate::sign::Sign;

#[derive(Debug, Deserialize, JsonSchema)]
struct Input {
    /// URLs of files or directories, nf://path.
    urls: Vec<String>,
}

/// What is at a URL.
#[derive(Debug, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Kind {
    File,
    Directory,
    /// Nothing, or nothing that is served.
    Missing,
}

#[derive(Debug, Serialize)]
struct Standing {
    url: String,
    kind: Kind,
    #[serde(skip_serializing_if = "Option::is_none")]
    size_bytes: Option<u64>,
    /// Seconds since 1970 of its last change.
    #[serde(skip_serializing_if = "Option::is_none")]
    modified: Option<i64>,
    /// Permissions.
    #[serde(skip_serializing_if = "Option::is_none")]
    mode: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
}

pub(crate) fn task(share: &Arc<Share>) -> Task {
    let share = Arc::clone(share);
    Task::blocking("stat_files", "Tells of shared files and directories what they are, without reading them.", {
        move |context, input| answer(&share, &context, input)
    })
}

fn answer(share: &Share, context: &TaskContext, Input { urls }: Input) -> Result<TaskOutput, TaskError> {
    if urls.len() > URLS_MAX {
        let found = urls.len();
        return Err(TaskError::new(format!(
            "argument 'urls': expected a list of at most {URLS_MAX}, found a list of {found}"
        )));
    }
    let sign = Sign::new(context, "looking at files");
    let mut standings = Vec::with_capacity(urls.len());
    for url in urls {
        if sign.is_cancelled() {
            return Err(Refusal::Ended { url }.into());
        }
        standings.push(standing(share, url));
    }
    Ok(TaskOutput::new(standings))
}

fn standing(share: &Share, url: String) -> Standing {
    let refusal = match share.file(&url) {
        Ok(file) => {
            let (size, modified, mode) = facts(&file.stat);
            let (size_bytes, modified, mode) = (Some(size), Some(modified), Some(mode));
            return Standing { url, kind: Kind::File, size_bytes, modified, mode, error: None };
        }
        Err(refusal) => refusal,
    };
    let kind = if matches!(refusal, Refusal::IsDirectory { .. }) { Kind::Directory } else { Kind::Missing };
    let error = matches!(kind, Kind::Missing).then(|| refusal.to_string());
    Standing { url, kind, size_bytes: None, modified: None, mode: None, error }
}

/// Size, seconds since 1970 of the last change, and permissions of a file.
pub(crate) fn facts(stat: &Stat) -> (u64, i64, u32) {
    let key = FileKey::of(stat);
    #[allow(clippy::useless_conversion, reason = "the types of these fields differ between systems")]
    (key.size, key.modified_seconds(), u32::from(stat.st_mode) & 0o777)
}
