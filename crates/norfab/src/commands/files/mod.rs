//! `norfab files`: files that workers share, one file for each of its commands.

mod cache;
mod get;
mod sync;

use norfab_fabric::client::FetchError;

use crate::args::{FilesCommand, Global};
use crate::exit::{Code, Failure};

pub async fn run(global: &Global, command: FilesCommand) -> Result<Code, Failure> {
    match command {
        FilesCommand::Get { url, dest, cache, cache_limit, timeout } => {
            get::run(global, &url, dest, cache.then_some(cache_limit), timeout).await
        }
        FilesCommand::Sync(words) => sync::run(global, words).await,
        FilesCommand::Cache => cache::show(global),
        FilesCommand::RmCache(words) => cache::remove(global, &words),
        FilesCommand::List { url } => Err(Failure::usage("files are listed by their service")
            .hint(format!("norfab run filesharing list_files url={url} (or 'walk', for folders in it as well)"))),
    }
}

/// Why a file or a folder did not come, and what to do.
fn failure(error: &FetchError) -> Failure {
    match error {
        // The broker found nobody; its words name no way out.
        FetchError::NotFound { reason, .. } if reason.contains("failed to target workers") => {
            Failure::failed("no file sharing worker can be reached")
                .hint("'norfab worker filesharing-worker-1' starts one, 'norfab workers' shows who is there")
        }
        FetchError::NotFound { url, .. } if url.starts_with("git://") => {
            Failure::failed(error).hint("'norfab run filesharing get_remotes' shows which remotes there are")
        }
        FetchError::NotFound { .. } => {
            Failure::failed(error).hint("'norfab run filesharing list_files url=nf://' lists files and folders there")
        }
        FetchError::TimedOut { .. } => {
            Failure::new(Code::TimedOut, error.to_string()).hint("give it longer with --timeout")
        }
        FetchError::Url(_) => no_url(error),
        FetchError::Write { .. } => Failure::configuration(error).advised(Some("'-' is standard output")),
        _ => Failure::failed(error),
    }
}

/// A text that is no file URL.
fn no_url(error: &FetchError) -> Failure {
    Failure::usage(error.to_string()).advised(Some("write nf://PATH or git://REMOTE/PATH"))
}
