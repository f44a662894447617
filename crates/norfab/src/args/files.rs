//! What is typed behind `norfab files`.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args as ClapArgs;

use super::{bytes, duration};

/// Files to fetch.
#[derive(Debug, ClapArgs)]
pub struct GetArgs {
    /// nf://PATH or git://REMOTE/PATH, one or several; a last word that is no URL is where to: a file, a folder, '-' for standard output
    #[arg(required = true, value_name = "URL")]
    pub words: Vec<String>,
    /// The folder where to; made if it is not there. The current folder unless given
    #[arg(long, value_name = "DIR")]
    pub to: Option<PathBuf>,
    /// Keep them in this client's folder of fetched files, and use those that are there if they are the same
    #[arg(long, conflicts_with = "to")]
    pub cache: bool,
    /// Bytes that folder may have, such as 500M or 2G; the files that were not used for the longest time go
    #[arg(long, requires = "cache", value_name = "BYTES", value_parser = bytes, default_value_t = norfab_fabric::client::files::CACHE_BYTES_DEFAULT, hide_default_value = true)]
    pub cache_limit: u64,
    /// How long to wait, such as 500ms, 90s, 10m, 2h; a plain number is seconds
    #[arg(short, long, default_value = "10m", value_parser = duration, value_name = "TIME", allow_negative_numbers = true)]
    pub timeout: Duration,
}

/// Whom to ask.
#[derive(Debug, ClapArgs)]
pub struct AskedArgs {
    /// Which workers: any, all, or names with commas
    #[arg(short, long, default_value = "all", value_name = "any|all|A,B")]
    pub workers: String,
    /// How long to wait, such as 500ms, 90s, 10m, 2h; a plain number is seconds
    #[arg(short, long, default_value = "1m", value_parser = duration, value_name = "TIME", allow_negative_numbers = true)]
    pub timeout: Duration,
}

/// A directory to list.
#[derive(Debug, ClapArgs)]
pub struct LsArgs {
    /// nf://PATH of a directory or a file
    #[arg(default_value = "nf://")]
    pub url: String,
    /// Permissions, too, and from workers of Python NorFab the sizes: they read each file for it
    #[arg(short, long)]
    pub long: bool,
    /// Whom to ask.
    #[command(flatten)]
    pub asked: AskedArgs,
}

/// A tree to show.
#[derive(Debug, ClapArgs)]
pub struct TreeArgs {
    /// nf://PATH of a directory
    #[arg(default_value = "nf://")]
    pub url: String,
    /// Show so many levels
    #[arg(short, long, value_name = "COUNT", value_parser = clap::value_parser!(u32).range(1..))]
    pub depth: Option<u32>,
    /// Whom to ask.
    #[command(flatten)]
    pub asked: AskedArgs,
}

/// What to look at.
#[derive(Debug, ClapArgs)]
pub struct StatArgs {
    /// nf://PATH of files or directories
    #[arg(required = true, value_name = "URL")]
    pub urls: Vec<String>,
    /// Leave out the hashes: workers read each file for them
    #[arg(long)]
    pub no_hash: bool,
    /// Whom to ask.
    #[command(flatten)]
    pub asked: AskedArgs,
}

/// What completes words.
#[derive(Debug, ClapArgs)]
pub struct CompleteArgs {
    /// How the words are quoted, and how candidates are to be.
    #[arg(value_enum)]
    pub shell: super::Shell,
    /// The command line up to the word that is completed, which is the last.
    #[arg(last = true)]
    pub words: Vec<String>,
}
