//! A task: a name, a description of its input, and what runs.

use std::fmt;
use std::future::Future;
use std::marker::PhantomData;
use std::sync::Arc;

use norfab_protocol::{ResultStatus, TaskName, TaskResult};
use schemars::JsonSchema;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value, json};

use crate::BoxFuture;
use crate::arguments::{self, Signature};
use crate::context::TaskContext;
use crate::output::{TaskError, TaskOutput};
use crate::port::CancelReason;
use crate::schema;
use crate::supervision;

pub(crate) type Outcome = Result<TaskOutput, TaskError>;

/// Checks the arguments, then gives what is to run.
type Handler =
    dyn Fn(TaskContext, Vec<Value>, Map<String, Value>) -> Result<BoxFuture<'static, Outcome>, TaskError> + Send + Sync;

/// Where a function runs that blocks.
type Place = fn(Box<dyn FnOnce() -> Outcome + Send>) -> BoxFuture<'static, Result<Outcome, TaskError>>;

/// The input of a task that takes no arguments.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Deserialize, JsonSchema)]
pub struct NoInput {}

/// A task: a name, a description of its input, and what runs.
///
/// The input is a type of the author's own that `serde` reads and `schemars` describes. Arguments by position are matched
/// to its fields in declared order. Nothing runs before all arguments fit.
pub struct Task {
    name: TaskName,
    description: Option<String>,
    input_schema: Arc<Value>,
    output_schema: Option<Value>,
    fastapi: Value,
    mcp: Value,
    agent: Value,
    idempotent: bool,
    handler: Arc<Handler>,
}

impl Task {
    /// A task that is a future, for all that waits. It must not block its thread: see [`Self::blocking`].
    ///
    /// An empty description is none. Panics: the name is not a task name, which is an error of the program.
    pub fn new<Input, Run, Running, Output>(name: &str, description: &str, run: Run) -> Self
    where
        Input: DeserializeOwned + JsonSchema + Send + 'static,
        Run: Fn(TaskContext, Input) -> Running + Send + Sync + 'static,
        Running: Future<Output = Result<Output, TaskError>> + Send + 'static,
        Output: Into<TaskOutput> + 'static,
    {
        let typed = Typed::<Input>::new();
        Self::with_handler(name, description, Arc::clone(&typed.schema), move |context, args, kwargs| {
            let running = run(context, typed.read(args, kwargs)?);
            Ok(Box::pin(async move { running.await.map(Into::into) }))
        })
    }

    /// A task that blocks its thread, for computation, files and libraries that know no futures. It runs on a thread of its
    /// own, which nobody can stop: look at [`TaskContext::is_cancelled`] in loops.
    ///
    /// Panics: as [`Self::new`].
    pub fn blocking<Input, Run, Output>(name: &str, description: &str, run: Run) -> Self
    where
        Input: DeserializeOwned + JsonSchema + Send + 'static,
        Run: Fn(TaskContext, Input) -> Result<Output, TaskError> + Send + Sync + 'static,
        Output: Into<TaskOutput> + 'static,
    {
        Self::on_thread(name, description, run, |begin| Box::pin(supervision::on_blocking_thread(begin)))
    }

    /// As [`Self::blocking`], for much work that nobody waits for by the millisecond, as sending files: its thread gives way
    /// to all others of the machine that have something to do, so that jobs beside it are as fast as without it.
    ///
    /// Panics: as [`Self::new`].
    pub fn yielding<Input, Run, Output>(name: &str, description: &str, run: Run) -> Self
    where
        Input: DeserializeOwned + JsonSchema + Send + 'static,
        Run: Fn(TaskContext, Input) -> Result<Output, TaskError> + Send + Sync + 'static,
        Output: Into<TaskOutput> + 'static,
    {
        Self::on_thread(name, description, run, |begin| Box::pin(supervision::on_yielding_thread(begin)))
    }

    fn on_thread<Input, Run, Output>(name: &str, description: &str, run: Run, place: Place) -> Self
    where
        Input: DeserializeOwned + JsonSchema + Send + 'static,
        Run: Fn(TaskContext, Input) -> Result<Output, TaskError> + Send + Sync + 'static,
        Output: Into<TaskOutput> + 'static,
    {
        let typed = Typed::<Input>::new();
        let run = Arc::new(run);
        Self::with_handler(name, description, Arc::clone(&typed.schema), move |context, args, kwargs| {
            let input = typed.read(args, kwargs)?;
            let run = Arc::clone(&run);
            Ok(Box::pin(async move {
                // It may have waited for a thread until now.
                let begin = move || match supervision::refusal_to_begin(&context) {
                    Some(refusal) => Err(refusal),
                    None => run(context, input).map(Into::into),
                };
                place(Box::new(begin)).await?
            }))
        })
    }

    /// A task whose arguments are known only when it runs. The schema is for those who call it; the task checks.
    ///
    /// Panics: as [`Self::new`].
    pub fn dynamic<Run, Running, Output>(name: &str, description: &str, input_schema: Value, run: Run) -> Self
    where
        Run: Fn(TaskContext, Vec<Value>, Map<String, Value>) -> Running + Send + Sync + 'static,
        Running: Future<Output = Result<Output, TaskError>> + Send + 'static,
        Output: Into<TaskOutput> + 'static,
    {
        let schema = Arc::new(schema::shape_input(input_schema));
        Self::with_handler(name, description, schema, move |context, args, kwargs| {
            let running = run(context, args, kwargs);
            Ok(Box::pin(async move { running.await.map(Into::into) }))
        })
    }

    fn with_handler(
        name: &str,
        description: &str,
        input_schema: Arc<Value>,
        handler: impl Fn(TaskContext, Vec<Value>, Map<String, Value>) -> Result<BoxFuture<'static, Outcome>, TaskError>
        + Send
        + Sync
        + 'static,
    ) -> Self {
        let name = match TaskName::parse(name) {
            Ok(name) => name,
            Err(error) => panic!("a task needs a name: {error}"),
        };
        Self {
            name,
            description: Some(description.to_owned()).filter(|text| !text.is_empty()),
            input_schema,
            output_schema: None,
            fastapi: json!({"methods": ["POST"]}),
            mcp: json!({}),
            agent: json!({}),
            idempotent: false,
            handler: Arc::new(handler),
        }
    }

    /// Says that running the task twice does no more than once: a worker may run it again after a crash.
    pub fn idempotent(mut self) -> Self {
        self.idempotent = true;
        self
    }

    /// How the REST API shows it; `false` hides it. Default: `{"methods": ["POST"]}`.
    pub fn fastapi(mut self, fastapi: impl Into<Value>) -> Self {
        self.fastapi = fastapi.into();
        self
    }

    /// How MCP servers show it; `false` hides it. Default: `{}`.
    pub fn mcp(mut self, mcp: impl Into<Value>) -> Self {
        self.mcp = mcp.into();
        self
    }

    /// How agents see it; `false` hides it. Default: `{}`.
    pub fn agent(mut self, agent: impl Into<Value>) -> Self {
        self.agent = agent.into();
        self
    }

    /// The schema of its result, where the general one says too little.
    pub fn output_schema(mut self, schema: impl Into<Value>) -> Self {
        self.output_schema = Some(schema.into());
        self
    }

    /// Its name.
    pub fn name(&self) -> &TaskName {
        &self.name
    }

    /// What it does, for people.
    pub fn description(&self) -> Option<&str> {
        self.description.as_deref()
    }

    /// What it takes, as JSON schema.
    pub fn input_schema(&self) -> &Value {
        &self.input_schema
    }

    /// Whether it may run again after a crash.
    pub fn is_idempotent(&self) -> bool {
        self.idempotent
    }

    /// The element of list_tasks.
    pub fn describe(&self) -> Value {
        let output = self.output_schema.as_ref();
        json!({
            "name": self.name,
            "description": self.description,
            "inputSchema": *self.input_schema,
            "outputSchema": output.unwrap_or_else(|| schema::result_schema()),
            "fastapi": self.fastapi,
            "mcp": self.mcp,
            "agent": self.agent,
        })
    }

    /// Checks the arguments and runs the task to its end, its deadline, or its cancellation, whichever comes first. Never
    /// panics: a panic of the task is a failed result. Needs a tokio runtime with timers and I/O. The events that a job has
    /// begun and that its result is stored are the worker's to send.
    ///
    /// A task that returns is completed, however long it ran. One that fails has the status `error`, or `timeout` where it ran
    /// longer than its client waits; one that was cancelled, `failed`.
    ///
    /// A job that is cancelled or whose deadline has passed before this is called, or whose worker stops, fails without beginning.
    /// When a job that runs is to end early, the task learns it through its context and has [`crate::CANCEL_GRACE`] to return
    /// what it has; then it is dropped (a blocking task: left alone on its thread).
    pub async fn run(&self, context: TaskContext, args: Vec<Value>, kwargs: Map<String, Value>) -> TaskResult {
        if let Some(refusal) = supervision::refusal_to_begin(&context) {
            return finish(&context, Err(refusal), None, false);
        }
        let started = Some(context.clock().ctime());
        let began = context.clock().now();
        let handler = Arc::clone(&self.handler);
        let given = context.clone();
        let work = async move {
            let running = handler(given, args, kwargs)?;
            running.await
        };
        let outcome = supervision::supervise(&context, Box::pin(work)).await;
        let ran = context.clock().now().saturating_duration_since(began);
        let over_time = ran.as_secs() >= context.timeout();
        finish(&context, outcome, started, over_time)
    }
}

impl fmt::Debug for Task {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Task").field("name", &self.name).finish_non_exhaustive()
    }
}

/// Completes what a task returned to a result. `started`: when it began, if it did.
pub(crate) fn finish(context: &TaskContext, outcome: Outcome, started: Option<String>, over_time: bool) -> TaskResult {
    let mut result = match outcome {
        Ok(output) => finish_output(output),
        Err(error) => {
            let status = error.status.unwrap_or(match context.cancel_reason() {
                Some(CancelReason::Deadline) => ResultStatus::Timeout,
                Some(CancelReason::Requested(_)) => ResultStatus::Failed,
                Some(CancelReason::WorkerStops) | None if over_time => ResultStatus::Timeout,
                Some(CancelReason::WorkerStops) | None => ResultStatus::Error,
            });
            TaskResult::failed(status, error.text)
        }
    };
    result.task.get_or_insert_with(|| format!("{}:{}", context.worker(), context.task()));
    result.juuid = Some(context.job().to_string());
    result.service = Some(context.service().to_string());
    result.task_started = started;
    result.task_completed = Some(context.clock().ctime());
    result
}

/// How arguments become a typed input, and its schema.
struct Typed<Input> {
    schema: Arc<Value>,
    signature: Signature,
    input: PhantomData<fn() -> Input>,
}

impl<Input: DeserializeOwned + JsonSchema> Typed<Input> {
    fn new() -> Self {
        let schema = Arc::new(schema::input_schema::<Input>());
        Self { signature: Signature::new(&schema), schema, input: PhantomData }
    }

    fn read(&self, args: Vec<Value>, kwargs: Map<String, Value>) -> Result<Input, TaskError> {
        Ok(arguments::read(&self.schema, self.signature.bind(args, kwargs)?)?)
    }
}

fn finish_output(output: TaskOutput) -> TaskResult {
    let TaskOutput { mut result, unwritable } = output;
    let status = result.status.unwrap_or(if result.failed { ResultStatus::Failed } else { ResultStatus::Completed });
    result.status = Some(status);
    if let Some(problem) = unwritable {
        // What the task did stands; only its value is lost.
        let ended = json!(status);
        result.messages.push(format!("the task ended with status {ended} before its result could not be written"));
        result.errors.push(format!("the result cannot be written as JSON: {problem}"));
        result.failed = true;
        result.status = Some(ResultStatus::Error);
    }
    result
}
