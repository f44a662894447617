//! Starting a worker of this site.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use norfab_fabric::worker::{RESULT_BYTES_MAX, WORKER_QUEUE_MESSAGES, WorkerHandle, WorkerOptions};
use norfab_fabric::{LinkState, SystemClock};
use norfab_file_sharing::RemotesHome;
use norfab_jobs::{SqliteWorkerStore, sqlite::FILE_NAME};
use norfab_logs::Role;
use norfab_protocol::Identity;
use norfab_protocol::worker::WorkerConfig;
use norfab_service::Service;
use norfab_transport::{KeyFolder, certificate};
use serde_json::{Value, json};
use tokio::runtime::Handle;
use tokio::sync::watch;

use super::Site;
use super::client::no_name;
use super::folder_lock::{FolderLock, lock_folder};
use super::keys::A_WORKER;
use crate::exit::Failure;
use crate::services::{self, ServiceProblem, WrongSetting};

/// Which tasks have begun, beside the database.
const BEGUN_FILE: &str = "tasks-begun";

/// A running worker and the lock on its folder: two processes under one name would take each other's jobs.
pub struct SiteWorker {
    handle: WorkerHandle,
    _lock: FolderLock,
}

/// A worker that nobody else runs.
struct LockedWorker {
    identity: Identity,
    folder: PathBuf,
    lock: FolderLock,
}

impl SiteWorker {
    /// Its name.
    pub fn identity(&self) -> &Identity {
        self.handle.identity()
    }

    /// How it stands with its broker.
    pub fn state(&self) -> watch::Receiver<LinkState> {
        self.handle.state()
    }

    /// As [`WorkerHandle::ended`].
    pub fn ended(&self) -> impl Future<Output = ()> + Send + use<> {
        self.handle.ended()
    }

    /// As [`WorkerHandle::stop`].
    pub async fn stop(self, drain: Duration) {
        self.handle.stop(drain).await;
    }
}

impl Site {
    /// Starts a worker with its merged data. Errors: its name, its service, its folders, its keys.
    pub fn start_worker(&self, name: &str, data: &Value) -> Result<SiteWorker, Failure> {
        // The folder first: what the service keeps in it is nobody else's then.
        let locked = self.lock_worker(name)?;
        let remotes = || RemotesHome {
            worker: name.to_owned(),
            folder: locked.folder.clone(),
            local_base: self.directories.base_dir().to_owned(),
            clock: Arc::new(SystemClock),
            runtime: Handle::current(),
            span: norfab_logs::role_span(Role::Worker, name),
        };
        let service = services::build(data, self.directories.base_dir(), remotes).map_err(|problem| match problem {
            ServiceProblem::Setting(setting) => self.wrong(name, data, setting),
            problem => Failure::configuration(&problem).advised(problem.advice()).of(format!("worker {name}")),
        })?;
        self.run_worker(name, data, service, locked)
    }

    /// Starts a worker with a service that is at hand.
    pub fn start_worker_with(&self, name: &str, data: &Value, service: Arc<Service>) -> Result<SiteWorker, Failure> {
        let locked = self.lock_worker(name)?;
        self.run_worker(name, data, service, locked)
    }

    fn lock_worker(&self, name: &str) -> Result<LockedWorker, Failure> {
        let identity = Identity::parse(name).map_err(no_name)?;
        let (folder, lock) = self.take_worker(name)?;
        let lock = lock.ok_or_else(|| {
            Failure::configuration(format!("worker {name}: another process here runs it already"))
                .hint("stop that one, or give this one another name")
        })?;
        Ok(LockedWorker { identity, folder, lock })
    }

    fn run_worker(
        &self,
        name: &str,
        data: &Value,
        service: Arc<Service>,
        LockedWorker { identity, folder, lock }: LockedWorker,
    ) -> Result<SiteWorker, Failure> {
        let mut config = WorkerConfig::new(identity, service.name().clone());
        let number = |key, max| number(data, key, max).map_err(|wrong| self.wrong(name, data, wrong));
        if let Some(jobs) = number("max_concurrent_jobs", CONCURRENT_JOBS_MAX)? {
            config.max_concurrent_jobs = jobs;
        }
        let result_bytes_max = number("result_bytes_max", usize::MAX)?.unwrap_or(RESULT_BYTES_MAX);
        let retention = self.retention_of(name, data)?;
        let (link, problem) = self.dealer(A_WORKER, name, &folder)?;
        let path = folder.join(FILE_NAME);
        let begun_file = folder.join(BEGUN_FILE);
        let keys = KeyFolder::new(&folder);
        let secure = self.encrypted;
        let file = |path: std::path::PathBuf| secure.then(|| path.display().to_string());
        let status = json!({
            "directories": {
                "base_dir": self.directories.base_dir().display().to_string(),
                "worker_base_dir": folder.display().to_string(),
                "private_keys_dir": file(norfab_inventory::directories::private_keys(&folder)),
                "public_keys_dir": file(norfab_inventory::directories::public_keys(&folder)),
            },
            "security": {
                "worker_private_key_file": file(keys.secret_file(name)),
                "worker_public_key_file": file(keys.public_file(name)),
                "broker_public_key_file": file(keys.public_file(certificate::BROKER)),
                "zmq_auth": secure,
            },
        });
        let read_logs = self.log_reader(Role::Worker, Some(name.to_owned()));
        let fetched_files_dir =
            self.directories.fetched_files(&format!("{name}-NFPClient")).map_err(Failure::configuration)?;
        let handle = WorkerHandle::start(WorkerOptions {
            config,
            link: Box::new(link),
            store: Box::new(move || {
                let store = SqliteWorkerStore::open(&path, &SystemClock::stamp())?;
                Ok(Box::new(store.with_retention(retention)))
            }),
            service,
            inventory: Arc::new(data.clone()),
            runtime: Handle::current(),
            queue_messages: WORKER_QUEUE_MESSAGES,
            result_bytes_max,
            endpoint: self.endpoint()?.to_owned(),
            status,
            fetched_files_dir,
            logs: Arc::new(move |filter| Ok(read_logs(filter))),
            begun_file: Some(begun_file),
            problem,
        })
        .map_err(|error| Failure::configuration(format!("worker {name}: {error}")))?;
        Ok(SiteWorker { handle, _lock: lock })
    }
}

impl Site {
    /// The folders of workers that were started here, by name.
    pub fn worker_folders(&self) -> Result<Vec<(String, PathBuf)>, Failure> {
        let mut folders = Vec::new();
        for folder in folders_in(&self.directories.files().join("worker"))? {
            if let Some(name) = folder.file_name().and_then(|name| name.to_str()) {
                folders.push((name.to_owned(), folder.clone()));
            }
        }
        Ok(folders)
    }

    /// The folders of all clients and workers that were started here.
    pub fn role_folders(&self) -> Result<Vec<PathBuf>, Failure> {
        let of = |role: &str| folders_in(&self.directories.files().join(role));
        Ok(of("client")?.into_iter().chain(of("worker")?).collect())
    }

    /// The folder of a worker, and its lock unless another process has it.
    pub fn take_worker(&self, name: &str) -> Result<(PathBuf, Option<FolderLock>), Failure> {
        let folder = self.directories.worker(name).map_err(|error| Failure::inventory(&error))?;
        let lock = lock_folder(&folder).map_err(|error| {
            Failure::configuration(format!("worker {name}: cannot use {}: {error}", folder.display()))
        })?;
        Ok((folder, lock))
    }

    /// A setting of a worker that cannot be used, with its file and line where this host's inventory has it.
    pub(super) fn wrong(&self, worker: &str, data: &Value, wrong: WrongSetting) -> Failure {
        let WrongSetting { key, problem } = wrong;
        let place = self.inventory.as_ref().zip(data.get(key));
        let place = place.and_then(|(inventory, value)| inventory.worker_error_at(worker, key, value, &problem));
        Failure::configuration(match place {
            Some(error) => format!("worker {worker}: {error}"),
            None => format!("worker {worker}: {key}: {problem}"),
        })
    }
}

/// The folders in a folder, in the order of their names; none where it is missing.
fn folders_in(folder: &Path) -> Result<Vec<PathBuf>, Failure> {
    let failed = |error: std::io::Error| Failure::configuration(format!("cannot read {}: {error}", folder.display()));
    let entries = match folder.read_dir() {
        Ok(entries) => entries,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(failed(error)),
    };
    let mut folders = Vec::new();
    for entry in entries {
        let path = entry.map_err(failed)?.path();
        if path.is_dir() {
            folders.push(path);
        }
    }
    folders.sort();
    Ok(folders)
}

/// Most jobs that a worker may run at once: each may need a thread.
const CONCURRENT_JOBS_MAX: usize = 512;

fn number(data: &Value, key: &'static str, max: usize) -> Result<Option<usize>, WrongSetting> {
    match data.get(key) {
        None | Some(Value::Null) => Ok(None),
        Some(value) => {
            let number = value.as_u64().and_then(|number| usize::try_from(number).ok());
            let number = number.filter(|number| (1..=max).contains(number));
            let wrong =
                || WrongSetting { key, problem: format!("expected a whole number from 1 to {max}, found {value}") };
            number.map(Some).ok_or_else(wrong)
        }
    }
}
