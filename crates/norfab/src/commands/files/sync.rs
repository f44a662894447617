//! `norfab files sync`: makes a folder here like one that a worker shares.

use norfab_fabric::client::files::{SyncOptions, Synced};
use serde_json::{Value, json};

use super::super::Connected;
use super::super::run::target_of;
use super::failure;
use super::progress::Progress;
use crate::args::{Global, SyncArgs};
use crate::exit::{Code, Failure};
use crate::printer;

pub async fn run(global: &Global, words: SyncArgs) -> Result<Code, Failure> {
    let SyncArgs { url, target, workers, delete, dry_run, checksum, timeout } = words;
    if !url.starts_with("nf://") {
        return Err(Failure::usage(format!("'{url}' is no URL of a folder of a worker")).hint("write nf://FOLDER"));
    }
    let workers = target_of(&workers)?;
    // What it asks is of no interest when it has ended.
    let connected = Connected::to_ask(global).await?;
    let progress = Progress::of_folder(global, &url);
    let options = SyncOptions { workers, delete, dry_run, checksum, timeout };
    let synced = connected.client.sync(&url, &target, options, |now| progress.show(now)).await;
    connected.client.stop().await;
    drop(progress);
    let synced = synced.map_err(|error| failure(&error))?;
    if global.json {
        printer::json(&document(&url, &target.display().to_string(), &synced, dry_run));
    } else {
        tell(&target.display().to_string(), &synced, dry_run);
    }
    for failed in &synced.failed {
        // A path of a worker is any text.
        printer::error(&format!("{}: {}", printer::printable(&failed.path), printer::printable(&failed.reason)));
    }
    if let Some(why) = &synced.not_deleted {
        printer::error(&format!("nothing was removed: {why}"));
    }
    if global.quiet == 0 && synced.links + synced.left_out > 0 {
        let text = format!(
            "{} links are not followed, {} names or folders were left out by worker {}",
            synced.links, synced.left_out, synced.worker
        );
        printer::warning(&text);
    }
    Ok(match &synced {
        synced if synced.failed.iter().any(|failed| failed.timed_out) => Code::TimedOut,
        synced if !synced.failed.is_empty() || synced.not_deleted.is_some() => Code::Failed,
        _ => Code::Ok,
    })
}

fn document(url: &str, target: &str, synced: &Synced, dry_run: bool) -> Value {
    let failed: Vec<Value> =
        synced.failed.iter().map(|failed| json!({ "path": failed.path, "error": failed.reason })).collect();
    json!({
        "url": url,
        "target": target,
        "worker": synced.worker,
        "dry_run": dry_run,
        "files": synced.files,
        "unchanged": synced.unchanged,
        "fetched": synced.fetched,
        "bytes": synced.bytes,
        "had_bytes": synced.had,
        "deleted": synced.deleted,
        "not_deleted": synced.not_deleted,
        "failed": failed,
        "links": synced.links,
        "left_out": synced.left_out,
    })
}

fn tell(target: &str, synced: &Synced, dry_run: bool) {
    let (would, fetched, removed) = if dry_run { ("would be ", "fetch", "remove") } else { ("", "", "") };
    if dry_run {
        for path in &synced.fetched {
            printer::line(&format!("{fetched} {}", printer::printable(path)));
        }
        for path in &synced.deleted {
            printer::line(&format!("{removed} {}", printer::printable(path)));
        }
    }
    printer::line(&format!(
        "{target}: {} files of worker {}, {} {would}fetched ({} bytes), {} unchanged, {} {would}removed, {} failed",
        synced.files,
        synced.worker,
        synced.fetched.len(),
        synced.bytes,
        synced.unchanged,
        synced.deleted.len(),
        synced.failed.len()
    ));
}
