//! `norfab files put`: a file goes to a worker.

use norfab_fabric::client::{Upload, UploadError};
use norfab_protocol::Identity;
use serde_json::json;

use super::super::Connected;
use super::progress::Progress;
use crate::args::{Global, PutArgs};
use crate::exit::{Code, Failure};
use crate::printer;

pub async fn run(global: &Global, words: PutArgs) -> Result<Code, Failure> {
    let PutArgs { path, mut url, workers, overwrite, timeout } = words;
    let wrong_url = |url: &str| Failure::usage(UploadError::Url(url.to_owned()).to_string());
    if !url.starts_with("nf://") {
        return Err(wrong_url(&url));
    }
    let name = path.file_name().and_then(|name| name.to_str()).map(str::to_owned);
    let name = name.ok_or_else(|| {
        Failure::usage(format!("'{}' names no file, or one whose name is no text", path.display()))
            .hint("write the path of a file, and the name that it gets behind nf://")
    })?;
    if url.ends_with('/') {
        // Workers take it for a slash.
        if name.contains('\\') {
            return Err(Failure::usage(format!(
                "'{}' has a backslash in its name, which would make a folder",
                path.display()
            ))
            .hint("write the name that it gets behind nf://"));
        }
        url.push_str(&name);
    }
    let worker = workers.map(|name| Identity::parse(&name)).transpose();
    let worker = worker.map_err(|error| Failure::usage(format!("--workers: {error}")))?;
    let connected = Connected::new(global).await?;
    let progress = Progress::new(global, 1);
    let mut told = progress.file(&name);
    let upload = Upload { path, url, worker, overwrite, timeout };
    let waits = |reason: &str| {
        if global.quiet == 0 {
            printer::remark(&format!("{reason}: this waits for that"));
        }
    };
    let uploaded = connected.client.send_file_in_turn(&upload, |bytes, size| told.show(bytes, size), waits).await;
    connected.client.stop().await;
    drop((told, progress));
    let uploaded = uploaded.map_err(|error| failure(&error))?;
    if global.json {
        printer::json(&json!({
            "url": uploaded.url,
            "path": upload.path.display().to_string(),
            "size_bytes": uploaded.bytes,
            "had_bytes": uploaded.had,
            "sha256": uploaded.sha256,
            "worker": uploaded.worker,
            "was_there": uploaded.was_there,
            "replaced": uploaded.replaced,
        }));
    } else {
        let worker = &uploaded.worker;
        let to = match (uploaded.was_there, uploaded.had) {
            (true, _) => format!("{worker} had it already"),
            (false, 0) => format!("to {worker}"),
            (false, had) => format!("to {worker}, {had} of them were there already"),
        };
        let replaced = if uploaded.replaced { ", in place of another file" } else { "" };
        printer::line(&format!("{} ({} bytes, {to}{replaced})", uploaded.url, uploaded.bytes));
    }
    Ok(Code::Ok)
}

fn failure(error: &UploadError) -> Failure {
    match error {
        // The broker found nobody; its words name no way out.
        UploadError::NobodyTakes { reason, .. } if reason.contains("failed to target workers") => {
            Failure::failed("no such file sharing worker can be reached")
                .hint("'norfab worker filesharing-worker-1' starts one, 'norfab workers' shows who is there")
        }
        UploadError::Several { .. } => Failure::failed(error).hint("--workers NAME"),
        UploadError::TimedOut { .. } => {
            Failure::new(Code::TimedOut, error.to_string()).hint("give it longer with --timeout; what came is kept")
        }
        UploadError::Url(_) => Failure::usage(error.to_string()),
        UploadError::Read { .. } => Failure::configuration(error),
        UploadError::NobodyTakes { .. }
        | UploadError::Changed { .. }
        | UploadError::Differs { .. }
        | UploadError::Refused { .. }
        | UploadError::Submit(_)
        | UploadError::Queue(_)
        | UploadError::Broken { .. } => Failure::failed(error),
    }
}
