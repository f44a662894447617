//! `norfab files ls`: what is in a directory.

use norfab_fabric::SystemClock;
use norfab_fabric::client::ClientHandle;
use norfab_fabric::client::files::{Answered, Asking, EntryKind, SharedEntry};
use serde_json::{Value, json};

use super::union::{Variant, put_asked, union};
use super::{asking, checked, warn_of_others, with_something};
use crate::args::{Global, LsArgs};
use crate::commands::Connected;
use crate::exit::{Code, Failure};
use crate::printer::{self, printable};

pub async fn run(global: &Global, words: LsArgs) -> Result<Code, Failure> {
    let url = checked(&words.url)?;
    let asking = asking(&words.asked)?;
    let connected = Connected::to_ask(global).await?;
    let answered = told(&connected.client, url, words.long, &asking).await;
    connected.client.stop().await;
    let answered = answered?;
    let having = with_something(&answered, &words.asked, url)?;
    let variants = union(&having);
    if global.json {
        let mut document = json!({ "url": url });
        document["entries"] = variants.iter().map(Variant::document).collect::<Vec<Value>>().into();
        put_asked(&mut document, &answered);
        printer::json(&document);
    } else {
        warn_of_others(global, &answered);
        show(&variants, words.long, having.len());
    }
    Ok(Code::Ok)
}

/// Whether somebody answered, and nobody with a directory.
fn having_nothing<T>(answered: &Answered<T>) -> bool {
    !answered.workers.is_empty() && answered.workers.values().all(Result::is_err)
}

/// What is in a directory; of a file, itself.
async fn told(
    client: &ClientHandle,
    url: &str,
    long: bool,
    asking: &Asking,
) -> Result<Answered<Vec<SharedEntry>>, Failure> {
    let mut answered = client.list_shared(url, 1, long, asking).await.map_err(Failure::failed)?;
    if !having_nothing(&answered) {
        return Ok(answered);
    }
    let urls = [url.to_owned()];
    let files = client.stat_shared(&urls, false, asking).await.map_err(Failure::failed)?;
    for (worker, entries) in files.workers {
        let entry = entries.ok().and_then(|mut entries| entries.pop());
        if let Some(mut entry) = entry.filter(|entry| entry.kind == EntryKind::File) {
            entry.path = url.rsplit(['/', '\\']).next().unwrap_or(url).to_owned();
            answered.workers.insert(worker, Ok(vec![entry]));
        }
    }
    Ok(answered)
}

fn show(variants: &[Variant], long: bool, workers: usize) {
    let size = |variant: &Variant| variant.entry.size_bytes.map_or_else(|| "-".to_owned(), |size| size.to_string());
    let width = variants.iter().map(|variant| size(variant).len()).max().unwrap_or(1);
    printer::lines(variants.iter().map(|variant| {
        let entry = &variant.entry;
        let mode = if long { format!("{} ", permissions(entry)) } else { String::new() };
        let time = entry.modified.map(SystemClock::local_of).unwrap_or_else(|| "-".to_owned());
        format!("{mode}{time:19} {:>width$} {}{}", size(variant), name(entry), whose(variant, workers))
    }));
}

/// A name with what it is: `folder/`, `link@`.
pub(super) fn name(entry: &SharedEntry) -> String {
    let name = entry.path.rsplit('/').next().unwrap_or_default();
    format!("{}{}", printable(name), mark(entry.kind))
}

fn mark(kind: EntryKind) -> &'static str {
    match kind {
        EntryKind::Directory => "/",
        EntryKind::Link => "@",
        EntryKind::File | EntryKind::Unknown | EntryKind::Missing => "",
    }
}

/// Who has it, where not all do that answered.
pub(super) fn whose(variant: &Variant, workers: usize) -> String {
    if variant.workers.len() >= workers {
        return String::new();
    }
    format!("  [{}]", printer::names(&variant.workers))
}

/// `drwxr-xr-x`, with dashes for what is not known.
pub(super) fn permissions(entry: &SharedEntry) -> String {
    let mut text = String::from(match entry.kind {
        EntryKind::Directory => "d",
        EntryKind::Link => "l",
        EntryKind::File => "-",
        EntryKind::Unknown | EntryKind::Missing => "?",
    });
    let Some(mode) = entry.mode else { return text + "?????????" };
    for (bit, letter) in (0..9).rev().zip("rwxrwxrwx".chars()) {
        text.push(if mode & (1 << bit) == 0 { '-' } else { letter });
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn permissions_are_written_as_everywhere() {
        let of = |kind, mode| {
            let (size_bytes, modified, md5, sha256, error) = (None, None, None, None, None);
            permissions(&SharedEntry { path: String::new(), kind, size_bytes, modified, mode, md5, sha256, error })
        };
        assert_eq!(of(EntryKind::Directory, Some(0o755)), "drwxr-xr-x");
        assert_eq!(of(EntryKind::File, Some(0o640)), "-rw-r-----");
        assert_eq!(of(EntryKind::Unknown, None), "??????????");
    }
}
