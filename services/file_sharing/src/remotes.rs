//! Git repositories in the shared folder.
//!
//! A remote is a branch of a repository and a place below the shared folder, its mount. To synchronize it is to ask the
//! repository which commit the branch is at, to fetch that commit without its history where it is new, and to put its files
//! into the mount in one step.
//!
//! Reading order: `definition` (what a remote is), `address` (where its repository is), `sync` (from one to the other),
//! `protocol` with `packet`, `http` and `ssh` (how servers are asked), `local` (repositories on this host), `repository`
//! (where objects are kept) with `weight` (what a pack would take), `checkout`, `mount` and `tree` (how they become files in their place), `tasks` and `auto_sync`
//! (who asks for it).

use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use norfab_service::Clock;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::runtime::Handle;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;
use tracing::{Span, warn};

mod address;
mod auto_sync;
mod checkout;
pub(crate) mod definition;
mod error;
mod halt;
mod http;
mod local;
mod mount;
mod packet;
mod protocol;
mod repository;
mod ssh;
mod sync;
pub(crate) mod tasks;
mod tree;
mod weight;

use crate::error::FileSharingError;
use definition::{Definition, GIT, KEYS, MountPath, RemoteInput};
use local::Trust;
use mount::Mounts;
use repository::Repository;

/// Most remotes of one worker.
pub const REMOTES_MAX: usize = 256;

/// What may stand in an entry.
const KNOWN: &str =
    "the keys name, mount, description, url, branch, type, username, password, auto_sync, sync_interval";

/// What git remotes need of the worker that has them.
pub struct RemotesHome {
    /// The name of the worker.
    pub worker: String,
    /// The folder of the worker, in which repositories are kept below `remotes`.
    pub folder: PathBuf,
    /// Where relative paths of repositories begin.
    pub local_base: PathBuf,
    /// The clock.
    pub clock: Arc<dyn Clock>,
    /// What runs periodic synchronizations, as long as the service lives. It needs timers.
    pub runtime: Handle,
    /// What log records of periodic synchronizations belong to.
    pub span: Span,
}

/// How the last synchronization went.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Status {
    Unsynchronized,
    Cloned,
    Unchanged,
    Failed,
}

impl Status {
    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::Unsynchronized => "unsynchronized",
            Self::Cloned => "cloned",
            Self::Unchanged => "unchanged",
            Self::Failed => "failed",
        }
    }
}

#[derive(Debug)]
struct State {
    status: Status,
    /// In UTC.
    last_sync_attempt: Option<String>,
    /// When it is to be synchronized by itself.
    due: Instant,
    /// Why it failed the last time.
    problem: Option<String>,
    /// When the checkout that was replaced is removed.
    old_until: Option<Instant>,
    deleted: bool,
}

/// One remote.
pub(crate) struct Remote {
    pub(crate) definition: Definition,
    /// Whoever synchronizes or deletes it has this.
    turn: Arc<tokio::sync::Mutex<()>>,
    state: Mutex<State>,
}

impl Remote {
    /// As clients see it.
    pub(crate) fn told(&self) -> Value {
        let definition = &self.definition;
        let state = self.state();
        json!({
            "name": definition.name,
            "url": definition.shown_url(),
            "type": definition.kind,
            "mount": definition.mount.to_string(),
            "description": definition.description,
            "branch": definition.branch,
            "username": definition.username(),
            "password": definition.password(),
            "auto_sync": definition.auto_sync,
            "sync_interval": definition.sync_interval_seconds,
            "last_sync_attempt": state.last_sync_attempt,
            "status": state.status.word(),
        })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // Nothing panics while the lock is held.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Why there is no further remote.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum AddError {
    /// Of this name.
    Name,
    /// In this place: the name of the one that is there.
    Mount(String),
    /// In the folder for uploads, or around it: what is uploaded would be lost with the next change.
    Uploads,
    /// There are [`REMOTES_MAX`].
    TooMany,
}

/// The remotes of one worker.
pub(crate) struct Remotes {
    worker: String,
    folder: PathBuf,
    local_base: PathBuf,
    trust: Trust,
    clock: Arc<dyn Clock>,
    pub(crate) mounts: Mounts,
    /// The folder for uploads.
    uploads: Option<MountPath>,
    remotes: Mutex<Vec<Arc<Remote>>>,
    /// There is another remote.
    changed: Arc<Notify>,
    /// The service is gone: nobody can ask for anything any more.
    pub(crate) over: CancellationToken,
}

impl Remotes {
    /// The remotes of an inventory, in a shared folder. What a process left that was killed is removed. Periodic
    /// synchronization begins. `trusted` is where repositories of other users of the host are read. Blocks for a moment.
    pub(crate) fn start(
        home: RemotesHome,
        base_dir: PathBuf,
        definitions: Vec<Definition>,
        uploads: Option<MountPath>,
        trusted: &[PathBuf],
    ) -> Arc<Self> {
        // The folder's name is fit for a folder.
        let name = home.folder.file_name().map_or_else(|| "worker".into(), |name| name.to_string_lossy().into_owned());
        let remotes = Arc::new(Self {
            worker: home.worker,
            folder: home.folder.join("remotes"),
            local_base: home.local_base,
            trust: Trust::listing(trusted),
            clock: home.clock,
            mounts: Mounts::new(base_dir, name),
            uploads,
            remotes: Mutex::default(),
            changed: Arc::default(),
            over: CancellationToken::new(),
        });
        for definition in definitions {
            // The inventory was checked.
            drop(remotes.add(definition));
        }
        if let Err(error) = remotes.mounts.clean() {
            warn!("worker {}: what is left of git remotes cannot be removed: {error}", remotes.worker);
        }
        home.runtime.spawn(auto_sync::run(Arc::downgrade(&remotes), home.span));
        remotes
    }

    pub(crate) fn add(&self, definition: Definition) -> Result<(), AddError> {
        let mut remotes = self.remotes();
        if remotes.iter().any(|remote| remote.definition.name == definition.name) {
            return Err(AddError::Name);
        }
        if let Some(other) = remotes.iter().find(|remote| remote.definition.mount.collides(&definition.mount)) {
            return Err(AddError::Mount(other.definition.name.clone()));
        }
        if self.uploads.as_ref().is_some_and(|uploads| uploads.collides(&definition.mount)) {
            return Err(AddError::Uploads);
        }
        if remotes.len() >= REMOTES_MAX {
            return Err(AddError::TooMany);
        }
        let state = State {
            status: Status::Unsynchronized,
            last_sync_attempt: None,
            due: self.clock.now() + auto_sync::FIRST_AFTER,
            problem: None,
            old_until: None,
            deleted: false,
        };
        remotes.push(Arc::new(Remote { definition, turn: Arc::default(), state: Mutex::new(state) }));
        drop(remotes);
        self.changed.notify_one();
        Ok(())
    }

    pub(crate) fn get(&self, name: &str) -> Option<Arc<Remote>> {
        self.remotes().iter().find(|remote| remote.definition.name == name).cloned()
    }

    pub(crate) fn all(&self) -> Vec<Arc<Remote>> {
        self.remotes().clone()
    }

    /// Forgets a remote. Whoever waits for its turn learns that it is deleted.
    fn forget(&self, remote: &Remote) {
        remote.state().deleted = true;
        self.remotes().retain(|other| other.definition.name != remote.definition.name);
    }

    fn repository(&self, name: &str) -> Repository {
        Repository::new(self.folder.join(name).join("repository"))
    }

    fn remotes(&self) -> MutexGuard<'_, Vec<Arc<Remote>>> {
        // Nothing panics while the lock is held.
        self.remotes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Reads the remotes of an inventory. Errors: one cannot be as it is said to be, two do not fit together, or there are more than
/// [`REMOTES_MAX`].
pub(crate) fn read(entries: &[Value]) -> Result<Vec<Definition>, FileSharingError> {
    let wrong = |expected, found| FileSharingError::Key { key: "remotes", expected, found };
    let mut definitions: Vec<Definition> = Vec::new();
    for (index, entry) in entries.iter().enumerate() {
        let at = index + 1;
        let Some(members) = entry.as_object() else {
            return Err(wrong("an object for each remote", format!("something else in place {at}")));
        };
        if let Some(unknown) = members.keys().find(|key| !KEYS.contains(&key.as_str())) {
            return Err(wrong(KNOWN, format!("{unknown:?} in place {at}")));
        }
        // The text of the reader may repeat a value, which is not for a secret.
        if members.get("password").is_some_and(|password| !password.is_string() && !password.is_null()) {
            return Err(wrong("a password that is a text: put it into quotes", format!("another in place {at}")));
        }
        let input = RemoteInput::deserialize(entry)
            .map_err(|error| wrong("a remote with name, url and branch", format!("in place {at}: {error}")))?;
        let kind = input.kind.clone();
        let definition = Definition::check(input)
            .map_err(|error| wrong("a remote that can be", format!("in place {at}: {error}")))?;
        if kind != GIT {
            return Err(wrong("remotes of type git", format!("{kind:?} in place {at}")));
        }
        if let Some(other) = definitions.iter().find(|other| other.name == definition.name) {
            return Err(wrong("remotes of different names", format!("'{}' twice", other.name)));
        }
        if let Some(other) = definitions.iter().find(|other| other.mount.collides(&definition.mount)) {
            let found = format!("'{}' and '{}'", other.mount.text(), definition.mount.text());
            return Err(wrong("remotes whose mounts are not in one another", found));
        }
        definitions.push(definition);
    }
    if definitions.len() > REMOTES_MAX {
        return Err(wrong("at most 256 remotes", definitions.len().to_string()));
    }
    Ok(definitions)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(entries: Value) -> String {
        read(entries.as_array().expect("a list")).expect_err("refused").to_string()
    }

    #[test]
    fn remotes_of_an_inventory_are_strict() {
        let remote = |name: &str, mount: &str| json!({"name": name, "mount": mount, "url": "u", "branch": "main"});
        let read_names = |entries: Value| {
            let definitions = read(entries.as_array().expect("a list")).expect("read");
            definitions.into_iter().map(|definition| definition.name).collect::<Vec<_>>()
        };
        assert_eq!(read_names(json!([remote("a", "x/a"), remote("b", "x/b")])), ["a", "b"]);
        let twice = "inventory key 'remotes': expected remotes of different names, found 'a' twice";
        assert_eq!(refused(json!([remote("a", "x"), remote("a", "y")])), twice);
        assert!(refused(json!([remote("a", "x"), remote("b", "x/y")])).contains("found 'x' and 'x/y'"));
        assert!(refused(json!(["a"])).contains("something else in place 1"));
        assert!(
            refused(json!([{"name": "a", "url": "u"}])).ends_with("branch: Remote branch is required for git remotes")
        );
        let misspelt = json!([{"name": "a", "url": "u", "branch": "main", "autosync": true}]);
        assert!(refused(misspelt).contains("\"autosync\" in place 1"));
        let other = json!([{"name": "a", "url": "u", "branch": "main", "type": "svn"}]);
        assert!(refused(other).contains("\"svn\" in place 1"));
        let number = json!([{"name": "a", "url": "u", "branch": "main", "username": "u", "password": 12345}]);
        assert!(!refused(number).contains("12345"));
    }
}
