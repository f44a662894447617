//! `norfab files get`: a file comes from a worker.

use std::fs::File;
use std::io::{ErrorKind, IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use norfab_fabric::client::FetchError;
use serde_json::json;

use super::super::Connected;
use crate::args::Global;
use crate::exit::{Code, Failure};
use crate::printer;

pub async fn run(global: &Global, url: &str, dest: Option<PathBuf>, timeout: Duration) -> Result<Code, Failure> {
    let path = url.strip_prefix("nf://").ok_or_else(|| no_url(&FetchError::Url(url.to_owned())))?;
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
    let fetched = connected.client.fetch_file(url, &target, timeout, |bytes, size| progress.show(bytes, size)).await;
    connected.client.stop().await;
    progress.end();
    let fetched = fetched.map_err(|error| match &error {
        // The broker found nobody; its words name no way out.
        FetchError::NotFound { reason, .. } if reason.contains("failed to target workers") => {
            Failure::failed("no file sharing worker can be reached")
                .hint("'norfab worker filesharing-worker-1' starts one, 'norfab workers' shows who is there")
        }
        FetchError::NotFound { .. } => {
            Failure::failed(&error).hint("'norfab run filesharing list_files url=nf://' lists files and folders there")
        }
        FetchError::TimedOut { .. } => {
            Failure::new(Code::TimedOut, error.to_string()).hint("give it longer with --timeout")
        }
        FetchError::Url(_) => no_url(&error),
        FetchError::Write { .. } => Failure::configuration(&error).advised(Some("'-' is standard output")),
        _ => Failure::failed(&error),
    })?;
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

/// A text that is no file URL.
fn no_url(error: &FetchError) -> Failure {
    Failure::usage(error.to_string()).advised(Some("write nf://PATH"))
}

/// A folder, or what can only be meant as one.
fn is_folder(dest: &Path) -> bool {
    dest.is_dir() || dest.as_os_str().as_encoded_bytes().ends_with(b"/")
}

/// How far it is, on a terminal.
pub struct Progress<'a> {
    name: &'a str,
    wanted: bool,
    shown: Option<u64>,
}

impl<'a> Progress<'a> {
    pub fn new(global: &Global, name: &'a str) -> Self {
        Self { name, wanted: global.quiet == 0 && std::io::stderr().is_terminal(), shown: None }
    }

    pub fn show(&mut self, bytes: u64, size: u64) {
        let percent = (bytes * 100).checked_div(size).unwrap_or(100);
        if self.wanted && self.shown != Some(percent) {
            self.shown = Some(percent);
            printer::prompt(&format!("\r{}: {percent:3} % of {size} bytes", printer::printable(self.name)));
        }
    }

    pub fn end(&self) {
        if self.shown.is_some() {
            printer::remark("");
        }
    }
}
