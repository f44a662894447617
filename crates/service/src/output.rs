//! What a task returns.

use std::error::Error;
use std::fmt;

use norfab_protocol::{ResultStatus, TaskResult};
use serde::Serialize;
use serde_json::{Map, Value};

/// What a task returns when it ran, well or badly: a value and what belongs to it. The rest of the result (names, times,
/// the job's id) is filled in by [`crate::Task::run`].
#[derive(Debug, Clone, Default)]
pub struct TaskOutput {
    pub(crate) result: TaskResult,
    /// Why the value could not be written as JSON.
    pub(crate) unwritable: Option<String>,
}

impl TaskOutput {
    /// A value: anything that can be written as JSON. What cannot (a map whose keys are no texts, say) gives a failed
    /// result that says so and keeps all else.
    pub fn new(value: impl Serialize) -> Self {
        match serde_json::value::to_raw_value(&value) {
            Ok(raw) => Self::from(TaskResult { result: raw, ..TaskResult::default() }),
            Err(error) => Self { result: TaskResult::default(), unwritable: Some(error.to_string()) },
        }
    }

    /// Says that the task failed, and why, and keeps the value.
    pub fn failed(mut self, error: impl Into<String>) -> Self {
        self.result.failed = true;
        self.result.errors.push(error.into());
        self
    }

    /// One more error, which does not make the task failed.
    pub fn error(mut self, error: impl Into<String>) -> Self {
        self.result.errors.push(error.into());
        self
    }

    /// One more remark.
    pub fn message(mut self, message: impl Into<String>) -> Self {
        self.result.messages.push(message.into());
        self
    }

    /// One more thing that the task worked on.
    pub fn resource(mut self, resource: impl Into<String>) -> Self {
        self.result.resources.push(resource.into());
        self
    }

    /// One more thing on which it failed.
    pub fn resource_failed(mut self, resource: impl Into<String>) -> Self {
        self.result.resources_failed.push(resource.into());
        self
    }

    /// How it ended. Without this: completed, or failed where it failed.
    pub fn status(mut self, status: ResultStatus) -> Self {
        self.result.status = Some(status);
        self
    }

    /// What changed, as an object or a text.
    pub fn diff(mut self, diff: impl Into<Value>) -> Self {
        self.result.diff = Some(diff.into());
        self
    }

    /// Whether nothing was to be changed.
    pub fn dry_run(mut self, dry_run: bool) -> Self {
        self.result.dry_run = dry_run;
        self
    }

    /// Another name than `worker:task`.
    pub fn task(mut self, task: impl Into<String>) -> Self {
        self.result.task = Some(task.into());
        self
    }
}

impl From<TaskResult> for TaskOutput {
    fn from(result: TaskResult) -> Self {
        Self { result, unwritable: None }
    }
}

macro_rules! from_json {
    ($($type:ty),+) => {
        $(impl From<$type> for TaskOutput {
            fn from(value: $type) -> Self {
                Self::new(value)
            }
        })+
    };
}

from_json!(
    (),
    bool,
    i64,
    u64,
    f64,
    &str,
    String,
    Value,
    Map<String, Value>,
    Vec<Value>,
    Vec<String>
);

/// Why a task has no result. Everything that is an error becomes one with `?`, its causes included in the text.
///
/// ```
/// use norfab_service::TaskError;
/// fn lines(path: &str) -> Result<usize, TaskError> {
///     let text = std::fs::read_to_string(path)?;
///     if text.is_empty() {
///         return Err(TaskError::new(format!("{path} is empty")));
///     }
///     Ok(text.lines().count())
/// }
/// # assert!(lines("/does/not/exist").is_err());
/// ```
pub struct TaskError {
    pub(crate) text: String,
    pub(crate) status: Option<ResultStatus>,
}

impl TaskError {
    /// An error with a text for people: lower case, with the values and what to do.
    pub fn new(text: impl Into<String>) -> Self {
        Self { text: text.into(), status: None }
    }

    /// Another status than `error`.
    pub fn status(mut self, status: ResultStatus) -> Self {
        self.status = Some(status);
        self
    }
}

/// `TaskError` is no error itself, so that every error can become one.
impl<E: Error + Send + Sync + 'static> From<E> for TaskError {
    fn from(error: E) -> Self {
        let mut text = error.to_string();
        let mut cause = error.source();
        while let Some(error) = cause {
            let further = error.to_string();
            // Many errors tell their cause themselves.
            if !text.contains(&further) {
                text.push_str(": ");
                text.push_str(&further);
            }
            cause = error.source();
        }
        Self::new(text)
    }
}

impl fmt::Display for TaskError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.text)
    }
}

impl fmt::Debug for TaskError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.text, formatter)
    }
}
