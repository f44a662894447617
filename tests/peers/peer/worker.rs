//! Our worker on a site, with the tasks of the dummy service.

use std::sync::Arc;
use std::time::Duration;

use norfab_fabric::worker::{RESULT_BYTES_MAX, WORKER_QUEUE_MESSAGES};
use norfab_fabric::{SystemClock, WorkerHandle, WorkerOptions};
use norfab_jobs::{SqliteWorkerStore, WorkerStore};
use norfab_protocol::worker::WorkerConfig;
use norfab_protocol::{Identity, ServiceName};
use serde_json::{Value, json};
use tokio::runtime::Handle;

use crate::site::Site;
use crate::{Failure, dummy};

/// How long running jobs may go on when the worker is asked to stop.
pub const DRAIN: Duration = Duration::from_secs(10);

/// Starts a worker for the service that its inventory names.
pub fn start(site: &Site, name: &str, runtime: &Handle) -> Result<WorkerHandle, Failure> {
    let inventory = site.worker(name).ok_or_else(|| format!("the inventory has no worker {name:?}"))?;
    let service = ServiceName::parse(inventory["service"].as_str().unwrap_or("dummy"))?;
    let mut config = WorkerConfig::new(Identity::parse(name)?, service.clone());
    if let Some(jobs) = inventory["max_concurrent_jobs"].as_u64() {
        config.max_concurrent_jobs = usize::try_from(jobs)?;
    }
    let folder = site.files(&format!("worker/{name}"))?;
    let database = folder.join(format!("{name}.db"));
    Ok(WorkerHandle::start(WorkerOptions {
        config,
        link: Box::new(site.dealer(name)?),
        store: Box::new(move || {
            let store = SqliteWorkerStore::open(&database, &SystemClock::stamp())?;
            Ok(Box::new(store) as Box<dyn WorkerStore>)
        }),
        service: Arc::new(dummy::service(service)),
        inventory: Arc::new(inventory),
        runtime: runtime.clone(),
        queue_messages: WORKER_QUEUE_MESSAGES,
        result_bytes_max: RESULT_BYTES_MAX,
        endpoint: site.endpoint().to_owned(),
        status: json!({"directories": {}, "security": {}}),
        fetched_files_dir: folder.join("fetchedfiles"),
        logs: Arc::new(|_| Ok(Vec::<Value>::new())),
        begun_file: Some(folder.join("tasks-begun")),
        problem: norfab_fabric::tell_problem(),
    })?)
}
