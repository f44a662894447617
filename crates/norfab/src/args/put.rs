//! `norfab files put`.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args as ClapArgs;

use super::duration;

/// What to upload, and where to.
#[derive(Debug, ClapArgs)]
pub struct PutArgs {
    /// The file
    pub path: PathBuf,
    /// nf://PATH below a worker's folder for uploads; its own name there where it ends with '/'
    pub url: String,
    /// To this worker; only needed where several take it
    #[arg(long, value_name = "NAME")]
    pub workers: Option<String>,
    /// Replace a file with other content, where the worker allows that, too
    #[arg(long)]
    pub overwrite: bool,
    /// How long it may take, such as 500ms, 90s, 10m, 2h; a plain number is seconds
    #[arg(short, long, default_value = "10m", value_parser = duration, value_name = "TIME", allow_negative_numbers = true)]
    pub timeout: Duration,
}
