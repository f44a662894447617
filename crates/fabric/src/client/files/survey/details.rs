//! What `file_details` tells, and what workers of Python NorFab do not tell otherwise.

use std::collections::BTreeMap;

use norfab_protocol::Identity;
use norfab_protocol::target::Target;
use serde::Deserialize;
use serde_json::json;

use super::super::super::{ClientHandle, SubmitError};
use super::{EntryKind, Patience, SharedEntry, URLS_MAX, read};

/// What `file_details` tells.
#[derive(Debug, Default, Deserialize)]
struct Details {
    md5hash: Option<String>,
    size_bytes: Option<u64>,
    sha256: Option<String>,
    #[serde(default)]
    exists: bool,
}

/// A result in the answer of `file_details` for a list.
#[derive(Deserialize)]
pub(super) struct DetailsOfOne {
    result: Option<Details>,
    #[serde(default)]
    errors: Vec<String>,
}

pub(super) type DetailsOfMany = BTreeMap<String, DetailsOfOne>;

impl ClientHandle {
    /// `None`: it did not answer in time.
    pub(super) async fn stat_python(
        &self,
        worker: &Identity,
        urls: &[String],
        patience: Patience,
    ) -> Result<Option<Vec<SharedEntry>>, SubmitError> {
        let Some(details) = self.details_of_python(worker, urls, patience).await? else { return Ok(None) };
        let mut entries = Vec::with_capacity(urls.len());
        for url in urls {
            let mut entry = SharedEntry::of_kind(url, EntryKind::Missing);
            add_details(&mut entry, details.get(url));
            if entry.kind == EntryKind::Missing {
                // What is no file may be a directory.
                let target = Target::list([worker]);
                let question = json!({ "url": url });
                let told = self.ask_each("list_files", question, target, patience, read::<Vec<String>>).await?;
                if matches!(told.workers.get(worker), Some(Ok(_))) {
                    entry = SharedEntry::of_kind(url, EntryKind::Directory);
                }
            }
            entries.push(entry);
        }
        Ok(Some(entries))
    }

    pub(super) async fn sizes_of_python(
        &self,
        worker: &Identity,
        url: &str,
        entries: &mut [SharedEntry],
        patience: Patience,
    ) -> Result<(), SubmitError> {
        let folder = url.trim_end_matches('/');
        // Of the shared folder itself only the scheme is left.
        let folder = if folder == "nf:" { "nf://".to_owned() } else { format!("{folder}/") };
        let urls: Vec<String> = entries.iter().map(|entry| format!("{folder}{}", entry.path)).collect();
        for (entries, urls) in entries.chunks_mut(URLS_MAX).zip(urls.chunks(URLS_MAX)) {
            let Some(details) = self.details_of_python(worker, urls, patience).await? else { return Ok(()) };
            for (entry, url) in entries.iter_mut().zip(urls) {
                add_details(entry, details.get(url));
            }
        }
        Ok(())
    }

    /// 0.25 takes a list, 0.21 one URL. `None`: no answer in time.
    async fn details_of_python(
        &self,
        worker: &Identity,
        urls: &[String],
        patience: Patience,
    ) -> Result<Option<DetailsOfMany>, SubmitError> {
        let target = || Target::list([worker]);
        let question = json!({ "url": urls });
        let mut told = self.ask_each("file_details", question, target(), patience, read::<DetailsOfMany>).await?;
        match told.workers.remove(worker) {
            Some(Ok(details)) => return Ok(Some(details)),
            Some(Err(_)) => {}
            None => return Ok(None),
        }
        let mut all = DetailsOfMany::new();
        for url in urls {
            let question = json!({ "url": url });
            let mut told = self.ask_each("file_details", question, target(), patience, read::<Details>).await?;
            let one = match told.workers.remove(worker) {
                Some(Ok(details)) => DetailsOfOne { result: Some(details), errors: Vec::new() },
                Some(Err(error)) => DetailsOfOne { result: None, errors: vec![error] },
                None => return Ok(None),
            };
            all.insert(url.clone(), one);
        }
        Ok(Some(all))
    }
}

/// Puts what is told of a file to what is known of it.
pub(super) fn add_details(entry: &mut SharedEntry, details: Option<&DetailsOfOne>) {
    let Some(DetailsOfOne { result, errors }) = details else { return };
    match result {
        Some(Details { md5hash, size_bytes, sha256, exists: true }) => {
            entry.kind = EntryKind::File;
            entry.size_bytes = entry.size_bytes.or(*size_bytes);
            entry.md5.clone_from(md5hash);
            entry.sha256.clone_from(sha256);
        }
        // In a list of names it is no file: a directory, or a link to what is not served.
        _ if matches!(entry.kind, EntryKind::Unknown) => {}
        _ => entry.error = (!errors.is_empty()).then(|| errors.join("; ")),
    }
}
