//! What is typed behind `norfab files sync` and `rm-cache`.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args as ClapArgs;

use super::{bytes, duration};

/// A folder to synchronize.
#[derive(Debug, ClapArgs)]
pub struct SyncArgs {
    /// nf://FOLDER; nf:// is all that a worker shares
    pub url: String,
    /// The folder here; made if it is not there
    pub target: PathBuf,
    /// Which workers: any, all, or names with commas
    #[arg(short, long, default_value = "all")]
    pub workers: String,
    /// Remove files here that the worker does not have, but for those whose names begin with a dot
    #[arg(long)]
    pub delete: bool,
    /// Show what would be done, and do nothing
    #[arg(short = 'n', long)]
    pub dry_run: bool,
    /// Compare files of the same size and time by their hashes, too
    #[arg(short, long)]
    pub checksum: bool,
    /// How long all of it may take, such as 90s, 10m, 2h; a plain number is seconds
    #[arg(short, long, default_value = "1h", value_parser = duration, value_name = "TIME", allow_negative_numbers = true)]
    pub timeout: Duration,
}

/// What of the cache to remove.
#[derive(Debug, ClapArgs)]
pub struct RmCacheArgs {
    /// nf://PATH of a file or a folder; all unless given
    pub url: Option<String>,
    /// Remove only what is beyond so many bytes, such as 500M, the files first that were not used for the longest time
    #[arg(long, value_name = "BYTES", value_parser = bytes, conflicts_with = "url")]
    pub to: Option<u64>,
}
