//! The tasks that every worker has.

use std::str::FromStr;

use norfab_protocol::NameError;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Map, Value, json};

use crate::context::TaskContext;
use crate::output::{TaskError, TaskOutput};
use crate::task::{NoInput, Task};
use crate::view::{JobDetailsQuery, JobFilter, LOG_RECORDS_DEFAULT, LogFilter};

mod echo;
mod fetched_files;
pub(crate) mod shell;

pub use fetched_files::FETCHED_ENTRIES_MAX;
pub use shell::{SHELL_OUTPUT_BYTES_MAX, TERMINATION_GRACE};

/// Which built-in tasks a worker offers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct BuiltinPolicy {
    /// Whether clients may run shell commands on the worker's host: only where its inventory says so.
    pub shell: bool,
}

pub(crate) fn tasks(policy: BuiltinPolicy) -> Vec<Task> {
    let mut tasks = vec![
        echo::task(),
        fetched_files::task(),
        reading(Task::new(
            "list_tasks",
            "Lists the tasks of this service: their schemas, or with brief=true their names only.",
            list_tasks,
        )),
        reading(Task::new(
            "job_details",
            "Tells one job of this worker, with its result and its events unless told otherwise.",
            job_details,
        )),
        reading(Task::new("job_list", "Lists jobs of this worker, the newest first.", job_list)),
        reading(Task::new(
            "get_logs",
            "Gives the last records of this worker's log, by level, logger or time where asked for.",
            get_logs,
        )),
        reading(Task::new(
            "get_stats",
            "Tells what this worker has done and uses: process, messages, jobs.",
            async |context: TaskContext, NoInput {}| Ok(context.view().stats().await?),
        )),
        reading(Task::new(
            "get_worker_status",
            "Tells who this worker is, where its files are and how it is secured.",
            async |context: TaskContext, NoInput {}| Ok(context.view().status().await?),
        )),
        reading(Task::new(
            "get_watchdog_stats",
            "Tells how often this worker looked after itself, and what it saw.",
            async |context: TaskContext, NoInput {}| Ok(context.view().watchdog_stats().await?),
        )),
        reading(Task::new(
            "get_watchdog_configuration",
            "Tells how often this worker looks after itself, and what it does about memory.",
            async |context: TaskContext, NoInput {}| Ok(context.view().watchdog_configuration().await?),
        )),
        Task::new(
            "get_inventory",
            "Gives this worker's inventory, its secrets masked.",
            async |context: TaskContext, NoInput {}| Ok(norfab_secrets::masked(&context.inventory())),
        )
        .idempotent()
        .fastapi(json!({"methods": ["GET"]})),
        Task::new("get_version", "Tells the versions of this service and of what it is made of.", get_version)
            .idempotent()
            .fastapi(json!({"methods": ["GET"]})),
    ];
    if policy.shell {
        tasks.push(shell::task());
    }
    tasks
}

/// What only looks at the worker: shown to REST clients and MCP servers, not to agents.
fn reading(task: Task) -> Task {
    task.idempotent().fastapi(json!({"methods": ["GET"]})).agent(json!({"enabled": false}))
}

#[derive(Debug, Deserialize, JsonSchema)]
struct ListTasks {
    /// The task to tell; all of them without it.
    name: Option<String>,
    /// Whether to give names only.
    #[serde(default)]
    brief: bool,
}

async fn list_tasks(context: TaskContext, input: ListTasks) -> Result<TaskOutput, TaskError> {
    let service = context.catalogue();
    let tasks: Vec<&Task> = match &input.name {
        Some(name) => {
            let task = service.get(name).ok_or_else(|| service.unknown(name))?;
            vec![task]
        }
        None => service.tasks().map(AsRef::as_ref).collect(),
    };
    if input.brief {
        let names: Vec<&str> = tasks.iter().map(|task| task.name().as_str()).collect();
        return Ok(TaskOutput::new(names));
    }
    let schemas: Vec<Value> = tasks.iter().map(|task| task.describe()).collect();
    Ok(TaskOutput::new(schemas))
}

#[derive(Debug, Deserialize, JsonSchema)]
struct JobDetails {
    /// The job's id.
    uuid: String,
    /// Whether to give its result.
    #[serde(default = "yes")]
    result: bool,
    /// Whether to give its events.
    #[serde(default = "yes")]
    events: bool,
}

fn yes() -> bool {
    true
}

async fn job_details(context: TaskContext, input: JobDetails) -> Result<Value, TaskError> {
    let query = JobDetailsQuery { uuid: parse("uuid", &input.uuid)?, result: input.result, events: input.events };
    let details = context.view().job_details(query).await?;
    details
        .ok_or_else(|| TaskError::new(format!("worker '{}' has no job with the id {:?}", context.worker(), input.uuid)))
}

#[derive(Debug, Deserialize, JsonSchema)]
struct JobList {
    /// Whether to list jobs that have not ended.
    #[serde(default = "yes")]
    pending: bool,
    /// Whether to list jobs that have ended.
    #[serde(default = "yes")]
    completed: bool,
    /// Only jobs of this task.
    task: Option<String>,
    /// Only so many of the newest.
    last: Option<u64>,
    /// Only jobs of this client.
    client: Option<String>,
    /// Only the job with this id.
    uuid: Option<String>,
}

async fn job_list(context: TaskContext, input: JobList) -> Result<Vec<Value>, TaskError> {
    let filter = JobFilter {
        pending: input.pending,
        completed: input.completed,
        task: parse_some("task", input.task)?,
        last: input.last,
        client: parse_some("client", input.client)?,
        uuid: parse_some("uuid", input.uuid)?,
    };
    Ok(context.view().job_list(filter).await?)
}

#[derive(Debug, Deserialize, JsonSchema)]
struct GetLogs {
    /// So many of the newest records.
    #[serde(default = "log_records")]
    last: usize,
    /// Only records of this level.
    level: Option<String>,
    /// Only records of this logger.
    logger: Option<String>,
    /// Only records at or after this time.
    since: Option<String>,
    /// Only records at or before this time.
    until: Option<String>,
}

fn log_records() -> usize {
    LOG_RECORDS_DEFAULT
}

async fn get_logs(context: TaskContext, input: GetLogs) -> Result<Vec<Value>, TaskError> {
    let filter = LogFilter::new(Some(input.last), input.level, input.logger, input.since, input.until)?;
    Ok(context.view().logs(filter).await?)
}

async fn get_version(context: TaskContext, _: NoInput) -> Result<Value, TaskError> {
    let mut versions: Map<String, Value> = context.catalogue().versions().clone();
    if let Value::Object(of_worker) = context.view().version() {
        for (what, version) in of_worker {
            // The service knows its own version best.
            versions.entry(what).or_insert(version);
        }
    }
    Ok(Value::Object(versions))
}

fn parse<Name: FromStr<Err = NameError>>(argument: &str, text: &str) -> Result<Name, TaskError> {
    text.parse().map_err(|error| TaskError::new(format!("argument '{argument}': {error}")))
}

fn parse_some<Name: FromStr<Err = NameError>>(argument: &str, text: Option<String>) -> Result<Option<Name>, TaskError> {
    text.map(|text| parse(argument, &text)).transpose()
}
