//! `norfab files stat`: what is at URLs, and who has it.

use std::collections::BTreeMap;

use norfab_fabric::SystemClock;
use norfab_fabric::client::files::{EntryKind, SharedEntry, URLS_MAX};
use norfab_protocol::Identity;
use serde_json::{Value, json};

use super::ls::permissions;
use super::union::{Variant, kind_word, names, put_asked, union};
use super::{asking, checked, warn_of_others, with_something};
use crate::args::{Global, StatArgs};
use crate::commands::Connected;
use crate::exit::{Code, Failure};
use crate::printer::{self, printable};

/// What is known of a URL.
struct Standing<'a> {
    url: &'a str,
    copies: Vec<Variant>,
    /// Who has nothing there, and why.
    missing: BTreeMap<Identity, String>,
}

impl Standing<'_> {
    /// Whether workers have something else under the URL.
    fn differs(&self) -> bool {
        self.copies.len() > 1
    }

    fn document(&self) -> Value {
        let copy = |variant: &Variant| {
            let SharedEntry { kind, size_bytes, modified, mode, md5, sha256, error, .. } = &variant.entry;
            let mut copy = json!({
                "kind": kind_word(*kind),
                "size_bytes": size_bytes,
                "modified": modified,
                "mode": mode,
                "md5hash": md5,
                "sha256": sha256,
                "workers": names(&variant.workers),
            });
            if let Some(error) = error {
                copy["error"] = error.as_str().into();
            }
            copy
        };
        let missing: Vec<&str> = self.missing.keys().map(Identity::as_str).collect();
        let copies: Vec<Value> = self.copies.iter().map(copy).collect();
        json!({ "url": self.url, "exists": !copies.is_empty(), "differs": self.differs(), "copies": copies, "missing_on": missing })
    }
}

pub async fn run(global: &Global, words: StatArgs) -> Result<Code, Failure> {
    for url in &words.urls {
        checked(url)?;
    }
    if words.urls.len() > URLS_MAX {
        return Err(Failure::usage(format!("{} URLs are more than {URLS_MAX}", words.urls.len())).hint("ask for fewer"));
    }
    let mut urls = Vec::with_capacity(words.urls.len());
    for url in words.urls {
        if !urls.contains(&url) {
            urls.push(url);
        }
    }
    let asking = asking(&words.asked)?;
    let connected = Connected::to_ask(global).await?;
    let answered = connected.client.stat_shared(&urls, !words.no_hash, &asking).await;
    connected.client.stop().await;
    let answered = answered.map_err(Failure::failed)?;
    let told = with_something(&answered, &words.asked, &urls.join(" "))?;
    let standings: Vec<Standing<'_>> = urls.iter().enumerate().map(|(at, url)| standing(at, url, &told)).collect();
    let gone: Vec<String> = standings.iter().filter(|standing| standing.copies.is_empty()).map(why).collect();
    let failure = (!gone.is_empty()).then(|| Failure::failed(gone.join("; ")));
    if global.json {
        let documents: Vec<Value> = standings.iter().map(Standing::document).collect();
        let mut document = json!({ "files": documents });
        put_asked(&mut document, &answered);
        if let Some(failure) = &failure {
            failure.put_into(&mut document);
        }
        printer::json(&document);
    } else {
        warn_of_others(global, &answered);
        let shown = standings.iter().filter(|standing| !standing.copies.is_empty());
        printer::lines(shown.enumerate().flat_map(|(at, standing)| lines(at > 0, standing)));
    }
    for error in gone {
        printer::error(&error);
    }
    Ok(failure.map_or(Code::Ok, |failure| failure.code))
}

fn standing<'a>(at: usize, url: &'a str, told: &[(Identity, &Vec<SharedEntry>)]) -> Standing<'a> {
    let mut missing = BTreeMap::new();
    let mut having = Vec::new();
    for (worker, entries) in told {
        match entries.get(at) {
            Some(entry) if entry.kind != EntryKind::Missing => having.push((worker.clone(), vec![entry.clone()])),
            entry => {
                let why = entry.and_then(|entry| entry.error.clone());
                missing.insert(worker.clone(), why.unwrap_or_else(|| format!("'{url}' is not there")));
            }
        }
    }
    let having: Vec<(Identity, &Vec<SharedEntry>)> =
        having.iter().map(|(worker, entries)| (worker.clone(), entries)).collect();
    Standing { url, copies: union(&having), missing }
}

/// Why nobody has it.
fn why(standing: &Standing<'_>) -> String {
    let mut reasons: Vec<&str> = standing.missing.values().map(String::as_str).collect();
    reasons.sort_unstable();
    reasons.dedup();
    format!("no file sharing worker has '{}': {}", standing.url, reasons.join("; "))
}

/// For people.
fn lines(another: bool, standing: &Standing<'_>) -> Vec<String> {
    let mut lines = Vec::new();
    if another {
        lines.push(String::new());
    }
    let differs = if standing.differs() { "  (workers differ)" } else { "" };
    lines.push(format!("{}{differs}", printable(standing.url)));
    for (number, copy) in standing.copies.iter().enumerate() {
        if number > 0 {
            lines.push(String::new());
        }
        let entry = &copy.entry;
        let mut row = |name: &str, value: Option<String>| {
            lines.extend(value.map(|value| format!("  {name:9} {}", printable(&value))));
        };
        row("kind", kind_word(entry.kind).map(str::to_owned));
        row("size", entry.size_bytes.map(|size| format!("{size} bytes")));
        row("modified", entry.modified.map(SystemClock::local_of));
        row("mode", entry.mode.map(|mode| format!("{mode:04o} {}", permissions(entry))));
        row("md5", entry.md5.clone());
        row("sha256", entry.sha256.clone());
        row("error", entry.error.clone());
        row("workers", Some(printer::names(&copy.workers)));
    }
    if !standing.missing.is_empty() {
        let missing: Vec<Identity> = standing.missing.keys().cloned().collect();
        lines.push(format!("  {:9} {}", "not on", printer::names(&missing)));
    }
    lines
}
