//! `norfab files`: files that workers share, one file for each of its commands.

mod get;
mod put;

use crate::args::{FilesCommand, Global};
use crate::exit::{Code, Failure};

pub async fn run(global: &Global, command: FilesCommand) -> Result<Code, Failure> {
    match command {
        FilesCommand::Get { url, dest, timeout } => get::run(global, &url, dest, timeout).await,
        FilesCommand::Put(words) => put::run(global, words).await,
        FilesCommand::List { url } => Err(Failure::usage("files are listed by their service")
            .hint(format!("norfab run filesharing list_files url={url} (or 'walk', for folders in it as well)"))),
    }
}
