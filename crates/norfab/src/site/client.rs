//! Starting a client of this site.

use std::path::PathBuf;

use norfab_fabric::client::{ClientHandle, ClientOptions};
use norfab_jobs::{MemoryClientStore, SqliteClientStore, sqlite::FILE_NAME};
use norfab_protocol::Identity;
use norfab_protocol::client::ClientConfig;
use norfab_protocol::name::NameError;

use super::Site;
use super::folder_lock::{Awaiting, FolderLock, await_folder, is_awaited, is_locked, lock_folder};
use super::keys::A_WORKER;
use crate::exit::Failure;

/// Most commands that run at once under one name: each has a name and a job database of its own.
const SLOTS_MAX: usize = 64;

/// A name for this process and the folder that goes with it. Two processes under one name would take each other's answers,
/// so the folder is locked while the process lives, and the next process takes the next name.
pub struct ClientSlot {
    /// The client's name.
    pub name: String,
    /// Its folder.
    pub folder: PathBuf,
    /// Holds the lock.
    _lock: FolderLock,
}

impl ClientSlot {
    /// Whether another process waits for it: see [`Site::await_slot`].
    pub fn is_awaited(&self) -> bool {
        is_awaited(&self.folder)
    }
}

impl Site {
    /// The name of clients here unless one is given: it names the host and the base folder, so that the shells of two people
    /// do not meet.
    pub fn client_name(&self) -> String {
        if let Some(name) = &self.name {
            return name.clone();
        }
        let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
        let mut hash: u64 = 0xcbf2_9ce4_8422_2325;
        for byte in self.directories.base_dir().as_os_str().as_encoded_bytes() {
            // FNV-1a: the name must be the same tomorrow, which the standard hasher does not promise.
            hash = (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3);
        }
        format!("norfab-{host}-{:06x}", hash & 0xff_ffff)
    }

    /// The folders of this client's names that exist, the first one first.
    pub fn client_folders(&self) -> Result<Vec<(String, PathBuf)>, Failure> {
        let mut folders = Vec::new();
        for slot in 1..=SLOTS_MAX {
            let name = slot_name(&self.client_name(), slot);
            let folder = self.client_folder(&name)?;
            if folder.is_dir() {
                folders.push((name, folder));
            }
        }
        Ok(folders)
    }

    /// The folder of a client's name.
    pub fn client_folder(&self, name: &str) -> Result<PathBuf, Failure> {
        self.directories.client(name).map_err(|error| self.of_name(Failure::inventory(&error)))
    }

    /// Where a client keeps files that it fetches.
    pub fn fetched_files(&self, name: &str) -> Result<PathBuf, Failure> {
        self.directories.fetched_files(name).map_err(|error| self.of_name(Failure::inventory(&error)))
    }

    /// Takes the first free name. A name that was given is taken or it is an error. Errors: all are in use.
    pub fn client_slot(&self) -> Result<ClientSlot, Failure> {
        let slots = if self.name.is_some() { 1 } else { SLOTS_MAX };
        for slot in 1..=slots {
            let name = slot_name(&self.client_name(), slot);
            if let Some(taken) = self.take_slot(&name)? {
                return Ok(taken);
            }
        }
        let name = self.client_name();
        Err(Failure::configuration(format!("client name '{name}' is in use by another process here"))
            .hint(format!("wait for it, or give another {}", self.names.name)))
    }

    /// Takes a certain name. `None`: another process has it.
    pub fn take_slot(&self, name: &str) -> Result<Option<ClientSlot>, Failure> {
        let folder = self.client_folder(name)?;
        let lock = lock_folder(&folder).map_err(|error| {
            Failure::configuration(format!("client {name}: cannot use {}: {error}", folder.display()))
        })?;
        Ok(lock.map(|lock| ClientSlot { name: name.to_owned(), folder, _lock: lock }))
    }

    /// Tells whoever has a name that this process waits for it, until what comes back is dropped. `None`: that cannot be said.
    pub fn await_slot(&self, name: &str) -> Option<Awaiting> {
        await_folder(&self.client_folder(name).ok()?).ok()
    }

    /// Starts a client under a name that was taken. It goes on with the jobs of the name that have not ended.
    pub fn start_client(&self, slot: &ClientSlot) -> Result<ClientHandle, Failure> {
        self.start_client_with(slot, ClientConfig::default())
    }

    /// As [`Site::start_client`], but jobs that were not sent yet stay where they are.
    pub fn start_client_that_sends_no_jobs(&self, slot: &ClientSlot) -> Result<ClientHandle, Failure> {
        self.start_client_with(slot, ClientConfig { in_flight_max: 0, ..ClientConfig::default() })
    }

    fn start_client_with(&self, slot: &ClientSlot, config: ClientConfig) -> Result<ClientHandle, Failure> {
        self.refuse_name_of_worker(&slot.name)?;
        let path = slot.folder.join(FILE_NAME);
        let retention = self.retention()?;
        let identity = Identity::parse(&slot.name).map_err(|error| self.of_name(no_name(error)))?;
        let (link, problem) = self.dealer("this client", &slot.name, &slot.folder)?;
        ClientHandle::start(ClientOptions {
            identity,
            config,
            link: Box::new(link),
            problem,
            store: Box::new(move || {
                let store = SqliteClientStore::open(&path, &norfab_fabric::SystemClock::stamp())?;
                Ok(Box::new(store.with_retention(retention)))
            }),
        })
        .map_err(Failure::configuration)
    }

    /// The broker knows one peer of a name: a client with that of a worker would cut its connection, and take its jobs. Errors: a
    /// worker of this base folder has the name and runs.
    fn refuse_name_of_worker(&self, name: &str) -> Result<(), Failure> {
        // What is no name of a folder, or cannot be looked at, is told by those who use it.
        let runs = self.directories.worker(name).is_ok_and(|folder| is_locked(&folder).unwrap_or(false));
        if !runs {
            return Ok(());
        }
        Err(Failure::configuration(format!("client name '{name}' is the name of a worker that runs here"))
            .hint(format!("give another {}", self.names.name)))
    }

    /// Starts a client that only asks the broker, for a worker: its jobs are kept nowhere.
    pub fn start_asking_client(&self, name: &str) -> Result<ClientHandle, Failure> {
        self.refuse_name_of_worker(name)?;
        let folder = self.directories.client(name).map_err(|error| Failure::inventory(&error))?;
        let identity = Identity::parse(name).map_err(no_name)?;
        let (link, problem) = self.dealer(A_WORKER, name, &folder)?;
        ClientHandle::start(ClientOptions {
            identity,
            config: ClientConfig::default(),
            link: Box::new(link),
            problem,
            store: Box::new(|| Ok(Box::new(MemoryClientStore::default()))),
        })
        .map_err(Failure::configuration)
    }
}

/// A name that no client or worker can have.
pub(super) fn no_name(error: NameError) -> Failure {
    Failure::configuration(error).hint("use letters, digits and dashes")
}

fn slot_name(name: &str, slot: usize) -> String {
    if slot == 1 { name.to_owned() } else { format!("{name}-{slot}") }
}
