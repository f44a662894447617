//! `echo`: says what it was asked, after a while or with an error where wanted. The first job that anyone runs.

use std::sync::Arc;
use std::time::Duration;

use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Map, Value, json};
use tokio::time;

use crate::arguments;
use crate::context::TaskContext;
use crate::output::TaskError;
use crate::schema;
use crate::task::Task;

#[derive(Debug, Deserialize, JsonSchema)]
struct Echo {
    /// Seconds to wait before answering.
    sleep: Option<u64>,
    /// Fails: with this text, or with words of its own.
    raise_error: Option<RaiseError>,
    #[serde(flatten)]
    others: Map<String, Value>,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(untagged)]
enum RaiseError {
    Whether(bool),
    Text(String),
    Number(i64),
}

pub(super) fn task() -> Task {
    let schema = Arc::new(schema::input_schema::<Echo>());
    // Arguments by position are no options of echo: they come back like all else.
    Task::dynamic(
        "echo",
        "Gives back what it was called with, after sleep seconds, or fails where raise_error says so.",
        Value::clone(&schema),
        move |context, args, kwargs| echo(context, Arc::clone(&schema), args, kwargs),
    )
}

async fn echo(
    context: TaskContext,
    schema: Arc<Value>,
    args: Vec<Value>,
    kwargs: Map<String, Value>,
) -> Result<Value, TaskError> {
    let input: Echo = arguments::read(&schema, kwargs)?;
    if let Some(seconds) = input.sleep {
        let token = context.cancelled();
        tokio::select! {
            () = time::sleep(Duration::from_secs(seconds)) => {}
            () = token.cancelled() => return Err(TaskError::new(format!(
                "echo was ended before its {seconds} s of sleep were over: {}",
                reason(&context),
            ))),
        }
    }
    match input.raise_error {
        Some(RaiseError::Text(text)) if !text.is_empty() => return Err(TaskError::new(text)),
        Some(RaiseError::Number(number)) if number != 0 => {
            return Err(TaskError::new(number.to_string()));
        }
        Some(RaiseError::Whether(true)) => {
            return Err(TaskError::new("echo failed because it was asked to"));
        }
        Some(RaiseError::Text(_) | RaiseError::Number(_) | RaiseError::Whether(false)) | None => {}
    }
    Ok(json!({
        "juuid": context.job(),
        "client_address": context.client(),
        "timeout": context.timeout(),
        "task": context.task(),
        "args": args,
        "kwargs": input.others,
    }))
}

fn reason(context: &TaskContext) -> String {
    context.cancel_reason().map_or_else(|| "the job ends".to_owned(), |reason| reason.to_string())
}
