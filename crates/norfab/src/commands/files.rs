//! `norfab files`: files that workers share.

use std::io::{IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use norfab_fabric::client::FetchError;
use serde_json::json;

use super::Connected;
use crate::args::{FilesCommand, Global};
use crate::exit::{Code, Failure};
use crate::printer;

pub async fn run(global: &Global, command: FilesCommand) -> Result<Code, Failure> {
    match command {
        FilesCommand::Get { url, dest, timeout } => get(global, &url, dest, timeout).await,
    }
}

async fn get(global: &Global, url: &str, dest: Option<PathBuf>, timeout: Duration) -> Result<Code, Failure> {
    let name = url.rsplit('/').next().filter(|name| !name.is_empty()).map(str::to_owned);
    let name = name.ok_or_else(|| Failure::usage(format!("'{url}' names no file: write nf://PATH/TO/FILE")))?;
    let to_stdout = dest.as_deref() == Some(Path::new("-"));
    let folder = tempfile::tempdir().map_err(Failure::failed)?;
    let target = match dest {
        _ if to_stdout => folder.path().join("file"),
        Some(dest) if dest.is_dir() => dest.join(&name),
        Some(dest) => dest,
        None => PathBuf::from(&name),
    };
    let connected = Connected::new(global).await?;
    let bar = !global.json && global.quiet == 0 && !to_stdout && std::io::stderr().is_terminal();
    let mut shown = u64::MAX;
    let fetched = connected
        .client
        .fetch_file(url, &target, timeout, |bytes, size| {
            let percent = (bytes * 100).checked_div(size).unwrap_or(100);
            if bar && percent != shown {
                shown = percent;
                eprint!("\r{name}: {percent:3} % of {size} bytes");
            }
        })
        .await;
    connected.client.stop().await;
    if bar && shown != u64::MAX {
        eprintln!();
    }
    let fetched = fetched.map_err(|error| match &error {
        FetchError::Url(_) => Failure::usage(error.to_string()),
        _ => Failure::failed(&error),
    })?;
    if to_stdout {
        let content = std::fs::read(&target).map_err(Failure::failed)?;
        std::io::stdout().write_all(&content).map_err(Failure::failed)?;
    } else if global.json {
        printer::json(&json!({
            "url": url,
            "path": fetched.path.display().to_string(),
            "size_bytes": fetched.bytes,
            "md5hash": fetched.md5,
            "worker": fetched.worker,
        }));
    } else {
        let from = fetched.worker.map_or("it was there already".to_owned(), |worker| format!("from {worker}"));
        printer::line(&format!("{} ({} bytes, {from})", fetched.path.display(), fetched.bytes));
    }
    Ok(Code::Ok)
}
