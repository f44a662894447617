//! `norfab files get`: fetches a file.

use std::fs::File;
use std::io::{ErrorKind, IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use norfab_fabric::client::FetchError;
use norfab_fabric::client::files::FileCache;
use serde_json::json;

use super::super::Connected;
use super::{failure, no_url};
use crate::args::Global;
use crate::exit::{Code, Failure};
use crate::printer;

/// Fetches it to `dest`, or into the cache, with a bound on its bytes.
pub async fn run(
    global: &Global,
    url: &str,
    dest: Option<PathBuf>,
    cache: Option<u64>,
    timeout: Duration,
) -> Result<Code, Failure> {
    let path = url.strip_prefix("nf://").or_else(|| url.strip_prefix("git://"));
    let path = path.ok_or_else(|| no_url(&FetchError::Url(url.to_owned())))?;
    let name = path.rsplit(['/', '\\']).next().filter(|name| !matches!(*name, "" | "." | ".."));
    let name = name
        .ok_or_else(|| Failure::usage(format!("'{url}' names no file")).hint("write nf://PATH/TO/FILE"))?
        .to_owned();
    let to_stdout = dest.as_deref() == Some(Path::new("-"));
    if to_stdout && global.json {
        return Err(Failure::usage("--json and '-' both take standard output").hint("leave one of them out"));
    }
    let folder = if to_stdout { Some(tempfile::tempdir().map_err(Failure::failed)?) } else { None };
    let target = match (&folder, dest) {
        (Some(folder), _) => folder.path().join("file"),
        (None, Some(dest)) if is_folder(&dest) => dest.join(&name),
        (None, Some(dest)) => dest,
        (None, None) => PathBuf::from(&name),
    };
    let connected = Connected::new(global).await?;
    let mut progress = Progress::new(global, &name);
    let tell = |bytes, size| progress.show(bytes, size);
    let fetched = match cache {
        None => connected.client.fetch_file(url, &target, timeout, tell).await,
        Some(bytes_max) => {
            let cache = FileCache::new(connected.fetched_files()?, bytes_max);
            connected.client.fetch_cached(url, &cache, timeout, tell).await.map(|cached| cached.fetched)
        }
    };
    connected.client.stop().await;
    progress.end();
    let fetched = fetched.map_err(|error| failure(&error))?;
    if to_stdout {
        let mut file = File::open(&target).map_err(Failure::failed)?;
        let mut out = std::io::stdout().lock();
        match std::io::copy(&mut file, &mut out).and_then(|_| out.flush()) {
            // A reader that has seen enough (`| head`) is no error.
            Err(error) if error.kind() != ErrorKind::BrokenPipe => printer::keep_output_error(error),
            _ => {}
        }
        return Ok(Code::Ok);
    }
    if global.json {
        printer::json(&json!({
            "url": url,
            "path": fetched.path.display().to_string(),
            "size_bytes": fetched.bytes,
            "had_bytes": fetched.had,
            "sha256": fetched.sha256,
            "md5hash": fetched.md5,
            "worker": fetched.worker,
        }));
    } else {
        let from = match (fetched.worker, fetched.had) {
            (None, _) => "it was there already".to_owned(),
            (Some(worker), 0) => format!("from {worker}"),
            (Some(worker), had) => format!("from {worker}, {had} of them were there already"),
        };
        printer::line(&format!("{} ({} bytes, {from})", fetched.path.display(), fetched.bytes));
    }
    Ok(Code::Ok)
}

/// A folder, or what can only be meant as one.
fn is_folder(dest: &Path) -> bool {
    dest.is_dir() || dest.as_os_str().as_encoded_bytes().ends_with(b"/")
}

/// How far it is, on a terminal.
struct Progress<'a> {
    name: &'a str,
    wanted: bool,
    shown: Option<u64>,
}

impl<'a> Progress<'a> {
    fn new(global: &Global, name: &'a str) -> Self {
        Self { name, wanted: global.quiet == 0 && std::io::stderr().is_terminal(), shown: None }
    }

    fn show(&mut self, bytes: u64, size: u64) {
        let percent = (bytes * 100).checked_div(size).unwrap_or(100);
        if self.wanted && self.shown != Some(percent) {
            self.shown = Some(percent);
            printer::prompt(&format!("\r{}: {percent:3} % of {size} bytes", printer::printable(self.name)));
        }
    }

    fn end(&self) {
        if self.shown.is_some() {
            printer::remark("");
        }
    }
}
