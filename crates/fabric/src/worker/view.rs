//! What built-in tasks may see of their worker.

use std::path::PathBuf;
use std::sync::Arc;

use norfab_jobs::{WorkerJob, WorkerJobFilter, WorkerState, WorkerStore};
use norfab_protocol::body::JobRequestBody;
use norfab_protocol::{Identity, ServiceName};
use norfab_service::{BoxFuture, JobDetailsQuery, JobFilter, LogFilter, ViewError, WorkerView};
use serde_json::{Map, Value, json};
use tokio::sync::oneshot;

use super::run::WorkerCommand;
use crate::clock::SystemClock;
use crate::process;
use crate::queue::QueueSender;

/// Gives log records. It reads files, so it is called on a thread that may block.
pub type LogSource = Arc<dyn Fn(&LogFilter) -> Result<Vec<Value>, String> + Send + Sync>;

pub(super) struct View {
    pub(super) identity: Identity,
    pub(super) service: ServiceName,
    pub(super) commands: QueueSender<WorkerCommand>,
    pub(super) inventory: Arc<Value>,
    pub(super) status: Value,
    pub(super) fetched_files_dir: PathBuf,
    pub(super) logs: LogSource,
    pub(super) endpoint: String,
}

impl View {
    async fn query<Answer: Send + 'static>(
        &self,
        query: impl FnOnce(&mut (dyn WorkerStore + 'static)) -> Result<Answer, norfab_jobs::StoreError> + Send + 'static,
    ) -> Result<Answer, ViewError> {
        let (sender, answer) = oneshot::channel();
        let command = WorkerCommand::Query(Box::new(move |store| {
            let answer = match store {
                Ok(store) => query(store),
                Err(error) => Err(error.into()),
            };
            // Who asked may have gone.
            drop(sender.send(answer));
        }));
        self.commands.send(command).await.map_err(|error| ViewError(error.to_string()))?;
        let gone = || ViewError("the worker has stopped".to_owned());
        answer.await.map_err(|_| gone())?.map_err(|error| ViewError(error.to_string()))
    }

    async fn owner_statistics(&self) -> Result<Value, ViewError> {
        let (answer, received) = oneshot::channel();
        self.commands.send(WorkerCommand::Stats { answer }).await.map_err(|error| ViewError(error.to_string()))?;
        received.await.map_err(|_| ViewError("the worker has stopped".to_owned()))
    }

    fn row(&self, job: &WorkerJob) -> Value {
        let folded = match job.state {
            WorkerState::Pending | WorkerState::Started => "PENDING",
            WorkerState::WaitingClientInput => "WAITING_CLIENT_INPUT",
            WorkerState::Completed | WorkerState::Failed => "COMPLETED",
            WorkerState::Cancelled => "CANCELLED",
        };
        json!({
            "uuid": job.id,
            "client_address": job.client,
            "task": job.task,
            "status": folded,
            "received_timestamp": SystemClock::ctime_of(job.received),
            "started_timestamp": job.started.map(SystemClock::ctime_of),
            "completed_timestamp": job.finished.map(SystemClock::ctime_of),
            "worker": self.identity,
            "service": self.service,
        })
    }
}

impl WorkerView for View {
    fn job_details(&self, query: JobDetailsQuery) -> BoxFuture<'_, Result<Option<Value>, ViewError>> {
        Box::pin(async move {
            let JobDetailsQuery { uuid, result, events } = query;
            let Some(details) = self.query(move |store| store.job(&uuid)).await? else { return Ok(None) };
            let job = &details.job;
            let request: Option<JobRequestBody> = serde_json::from_slice(&job.body).ok();
            let result_data = details.payload.as_ref().filter(|_| result).map(|payload| {
                let value: Value = serde_json::from_slice(payload).unwrap_or(Value::Null);
                json!({ self.identity.as_str(): value })
            });
            let events: Vec<Value> = if events {
                details.events.iter().filter_map(|body| serde_json::from_slice(body).ok()).collect()
            } else {
                Vec::new()
            };
            Ok(Some(json!({
                "uuid": job.id,
                "status": job.state.as_str(),
                "received_timestamp": SystemClock::ctime_of(job.received),
                "started_timestamp": job.started.map(SystemClock::ctime_of),
                "completed_timestamp": job.finished.map(SystemClock::ctime_of),
                "client_address": job.client,
                "task": job.task,
                "args": request.as_ref().map(|request| request.args.clone()).unwrap_or_default(),
                "kwargs": request.map(|request| request.kwargs).unwrap_or_default(),
                "timeout": job.timeout,
                "attempts": job.attempts,
                "result_data": result_data,
                "job_events": events,
            })))
        })
    }

    fn job_list(&self, filter: JobFilter) -> BoxFuture<'_, Result<Vec<Value>, ViewError>> {
        Box::pin(async move {
            let filter = WorkerJobFilter {
                pending: filter.pending,
                completed: filter.completed,
                task: filter.task,
                last: filter.last.map(|last| usize::try_from(last).unwrap_or(usize::MAX)),
                client: filter.client,
                uuid: filter.uuid,
            };
            let jobs = self.query(move |store| store.list(&filter)).await?;
            Ok(jobs.iter().map(|job| self.row(job)).collect())
        })
    }

    fn logs(&self, filter: LogFilter) -> BoxFuture<'_, Result<Vec<Value>, ViewError>> {
        let logs = Arc::clone(&self.logs);
        Box::pin(async move {
            let read = tokio::task::spawn_blocking(move || logs(&filter)).await;
            read.map_err(|error| ViewError(error.to_string()))?.map_err(ViewError)
        })
    }

    fn stats(&self) -> BoxFuture<'_, Result<Value, ViewError>> {
        Box::pin(async move {
            let owner = self.owner_statistics().await?;
            let statistics = self.query(|store| store.statistics()).await?;
            let by_status: Map<String, Value> = statistics
                .jobs_by_state
                .iter()
                .map(|(state, count)| (state.as_str().to_owned(), (*count).into()))
                .collect();
            let mut value = json!({
                "schema_version": "1.0",
                "collected_at": SystemClock::utc(),
                "name": self.identity,
                "role": "worker",
                "status": "active",
            });
            if let (Value::Object(value), Value::Object(owner)) = (&mut value, owner) {
                value.extend(owner);
                value.insert(
                    "jobs".into(),
                    json!({ "total_jobs": statistics.total_jobs(), "jobs_by_status": by_status }),
                );
                value.insert("watchdog_runs".into(), 0.into());
                value.insert("sid_inventory_status".into(), "loaded".into());
            }
            Ok(value)
        })
    }

    fn status(&self) -> BoxFuture<'_, Result<Value, ViewError>> {
        Box::pin(async move {
            let mut value = json!({
                "name": self.identity,
                "role": "worker",
                "service": self.service,
                "status": "active",
                "broker": self.endpoint,
            });
            if let (Value::Object(value), Value::Object(more)) = (&mut value, self.status.clone()) {
                value.extend(more);
            }
            Ok(value)
        })
    }

    fn watchdog_stats(&self) -> BoxFuture<'_, Result<Value, ViewError>> {
        Box::pin(async move {
            let owner = self.owner_statistics().await?;
            let seconds = owner["process"]["uptime_seconds"].as_u64().unwrap_or_default();
            Ok(json!({
                "watchdog_runs": 0,
                "timestamp": SystemClock::ctime(),
                "uptime": format!("{}:{:02}:{:02}", seconds / 3600, seconds / 60 % 60, seconds % 60),
                "uptime_seconds": seconds,
                "worker_ram_usage_mbyte": process::resident_megabytes(),
                "sid_inventory_status": "loaded",
            }))
        })
    }

    fn watchdog_configuration(&self) -> BoxFuture<'_, Result<Value, ViewError>> {
        let of_inventory = |key: &str, default: Value| self.inventory.get(key).cloned().unwrap_or(default);
        let value = json!({
            "watchdog_interval": of_inventory("watchdog_interval", 30.into()),
            "memory_threshold_mbyte": of_inventory("memory_threshold_mbyte", 1000.into()),
            "memory_threshold_action": of_inventory("memory_threshold_action", "log".into()),
        });
        Box::pin(async move { Ok(value) })
    }

    fn inventory(&self) -> Arc<Value> {
        Arc::clone(&self.inventory)
    }

    fn version(&self) -> Value {
        versions()
    }

    fn fetched_files_dir(&self) -> PathBuf {
        self.fetched_files_dir.clone()
    }
}

/// Versions of what every role is made of.
pub(crate) fn versions() -> Value {
    json!({
        "norfab": env!("CARGO_PKG_VERSION"),
        "implementation": "rust",
        "zeromq": norfab_transport::WIRE,
        "platform": format!("{}-{}", std::env::consts::OS, std::env::consts::ARCH),
    })
}
