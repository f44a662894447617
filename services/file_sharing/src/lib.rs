//! The filesharing service: listing, details and streaming of the files below one folder.
//!
//! [`service`] makes it from a worker's inventory. Every access goes through one handle of the shared folder, name by
//! name, so that no URL and no link leads out of it, whatever happens to the tree in the meantime.
//!
//! Reading order: [`inventory`] (which folder), `url` (what a client asks for), `hidden` (what is never served), `folder`
//! (opening below the handle), `listing`, `details` with `digest`, and `fetch` (the tasks); then `remotes` (git repositories
//! in the shared folder) and [`uploads`].
#![warn(missing_docs)]

use std::path::{self, Path, PathBuf};
use std::sync::Arc;

use norfab_service::{NoInput, Service, Task, TaskContext};
use serde_json::{Value, json};

mod details;
mod digest;
mod entries;
mod error;
#[cfg(test)]
mod faults;
mod fetch;
mod folder;
mod hidden;
pub mod inventory;
mod listing;
mod remotes;
mod sending;
mod share;
mod sign;
mod stating;
pub mod uploads;
mod url;

pub use details::URLS_MAX;
pub use entries::{DIRECTORY_ENTRIES_MAX, PAGE_ENTRIES_MAX};
pub use error::FileSharingError;
pub use fetch::{CHUNK_BYTES_DEFAULT, CHUNK_BYTES_MAX, CHUNK_TIMEOUT_SECONDS_DEFAULT, CHUNK_TIMEOUT_SECONDS_MAX};
pub use listing::{LIST_ENTRIES_MAX, WALK_DEPTH_MAX, WALK_ENTRIES_MAX};
pub use remotes::definition::{SYNC_INTERVAL_SECONDS_MAX, SYNC_INTERVAL_SECONDS_MIN};
pub use remotes::tasks::GIT_URLS_MAX;
pub use remotes::{REMOTES_MAX, RemotesHome};
pub use sending::{FILES_AT_ONCE_MAX, PATIENCE_SECONDS_DEFAULT, PATIENCE_SECONDS_MAX};
pub use url::URL_BYTES_MAX;

use hidden::Hidden;
use inventory::Settings;
use remotes::Remotes;
use share::Share;
use uploads::Uploads;
use uploads::settings::UploadSettings;

/// The service as the inventory of a worker describes it: see [`inventory`]. A relative `base_dir` is below
/// `default_base_dir`, which is shared itself where the inventory names no folder. The folder is created if it is missing.
///
/// The tasks that every worker has, `get_inventory` and `get_version` among them, are added by the worker.
///
/// Errors: a key of the inventory has a value that cannot be, or the folder cannot be made or read.
///
/// Without git remotes: an inventory that has some is refused. With them, see [`service_with_remotes`].
pub fn service(inventory: &Value, default_base_dir: &Path) -> Result<Service, FileSharingError> {
    let settings = Settings::read(inventory, default_base_dir)?;
    if !settings.remotes.is_empty() {
        return Err(FileSharingError::Remotes);
    }
    Ok(shared(settings)?.0)
}

/// As [`service`], with git remotes: those of the inventory, and those that clients add. They are synchronized periodically as
/// long as the service lives.
///
/// Errors: as [`service`], or a remote cannot be as the inventory says.
pub fn service_with_remotes(
    inventory: &Value,
    default_base_dir: &Path,
    home: RemotesHome,
) -> Result<Service, FileSharingError> {
    let settings = Settings::read(inventory, default_base_dir)?;
    let (definitions, trusted) = (settings.remotes.clone(), settings.trusted_repositories.clone());
    let uploads = settings.uploads.as_ref().and_then(UploadSettings::mount);
    let (service, share, base_dir) = shared(settings)?;
    let told = definitions.iter().map(|definition| definition.of_inventory()).collect();
    let remotes = Remotes::start(home, base_dir, definitions, uploads, &trusted);
    Ok(remotes::tasks::all(&remotes, &share, told).into_iter().fold(service, Service::task))
}

fn shared(settings: Settings) -> Result<(Service, Arc<Share>, PathBuf), FileSharingError> {
    settings.prepare()?;
    // The folder stays the same if the process goes elsewhere.
    let base_dir = path::absolute(&settings.base_dir)
        .map_err(|source| FileSharingError::Folder { path: settings.base_dir.clone(), source })?;
    let hidden = Hidden::but(settings.dotfiles);
    let uploads = Uploads::new(base_dir.clone(), hidden.clone(), settings.uploads, settings.jobs_max);
    let share = Arc::new(Share::hiding(base_dir.clone(), hidden));
    let service = Service::new(settings.service)
        .version("norfab-file-sharing", env!("CARGO_PKG_VERSION"))
        .version("platform", std::env::consts::OS)
        // Keys that clients of the Python service look for: neither is part of this one.
        .version("python", "")
        .version("gitpython", "")
        .task(presented(listing::list_task(&share), "List Files"))
        .task(presented(listing::walk_task(&share), "Walk Files"))
        .task(presented(details::task(&share), "Get File Details"))
        .task(presented(fetch::task(&share), "Fetch File"))
        .task(presented(entries::task(&share), "List Entries"))
        .task(presented(sending::task(&share), "Send Files"))
        .task(presented(stating::task(&share), "Stat Files"))
        .task(presented(status_task(), "Get Status"))
        .task(presented(uploads::terms_task(&uploads), "Upload Terms"))
        .task(uploads::taking_task(&uploads));
    Ok((service, share, base_dir))
}

fn status_task() -> Task {
    Task::new("get_status", "Tells that the service runs.", async |_: TaskContext, _: NoInput| Ok("OK"))
}

/// Each of these tasks only reads: REST clients may GET it, and agents have better ways to files.
fn presented(task: Task, title: &str) -> Task {
    task.idempotent().fastapi(json!({"methods": ["GET"]})).agent(json!({"enabled": false})).mcp(json!({
        "annotations": {
            "title": title,
            "readOnlyHint": true,
            "destructiveHint": false,
            "idempotentHint": true,
            "openWorldHint": false,
        }
    }))
}
