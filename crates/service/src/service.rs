//! A service: its name, its version and its tasks.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use norfab_protocol::{ServiceName, TaskName, TaskResult};
use serde_json::{Map, Value};

use crate::builtin::{self, BuiltinPolicy};
use crate::context::TaskContext;
use crate::output::TaskError;
use crate::task::{self, Task};

/// A service: its name, its version and its tasks. Immutable once a worker runs it, and shared by all its jobs.
pub struct Service {
    name: ServiceName,
    version: Map<String, Value>,
    tasks: BTreeMap<TaskName, Arc<Task>>,
}

impl Service {
    /// A service without tasks.
    pub fn new(name: ServiceName) -> Self {
        Self { name, version: Map::new(), tasks: BTreeMap::new() }
    }

    /// Adds a task. One of the same name is replaced.
    pub fn task(mut self, task: Task) -> Self {
        self.tasks.insert(task.name().clone(), Arc::new(task));
        self
    }

    /// Says the version of something that the service is made of: what `get_version` tells.
    pub fn version(mut self, what: impl Into<String>, version: impl Into<String>) -> Self {
        self.version.insert(what.into(), Value::String(version.into()));
        self
    }

    /// Adds the tasks that every worker has. A task of the service with the same name stays, whether it was added before
    /// or is added later.
    pub fn with_builtin_tasks(mut self, policy: BuiltinPolicy) -> Self {
        for task in builtin::tasks(policy) {
            self.tasks.entry(task.name().clone()).or_insert_with(|| Arc::new(task));
        }
        self
    }

    /// The name under which workers register.
    pub fn name(&self) -> &ServiceName {
        &self.name
    }

    /// What is known of versions.
    pub fn versions(&self) -> &Map<String, Value> {
        &self.version
    }

    /// All tasks, sorted by name.
    pub fn tasks(&self) -> impl ExactSizeIterator<Item = &Arc<Task>> {
        self.tasks.values()
    }

    /// The task of this name.
    pub fn get(&self, name: &str) -> Option<&Arc<Task>> {
        self.tasks.get(name)
    }

    /// Runs the task that the context names, as [`Task::run`] does. A task that does not exist gives a failed result.
    pub async fn run(&self, context: TaskContext, args: Vec<Value>, kwargs: Map<String, Value>) -> TaskResult {
        if let Some(task) = self.get(context.task().as_str()) {
            return task.run(context, args, kwargs).await;
        }
        let now = Some(context.clock().ctime());
        let error = self.unknown(context.task().as_str());
        task::finish(&context, Err(error), now, false)
    }

    /// The error for a task that does not exist.
    pub(crate) fn unknown(&self, name: &str) -> TaskError {
        let names: Vec<&str> = self.tasks.keys().map(TaskName::as_str).collect();
        // It is documented, but most workers do not have it.
        let hint = if name == builtin::shell::NAME {
            "; a worker has this one where its inventory says run_shell_cmd: true"
        } else {
            ""
        };
        let names = names.join(", ");
        TaskError::new(format!("service '{}' has no task {name:?}: its tasks are {names}{hint}", self.name))
    }
}

impl fmt::Debug for Service {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("Service")
            .field("name", &self.name)
            .field("tasks", &self.tasks.keys())
            .finish_non_exhaustive()
    }
}
