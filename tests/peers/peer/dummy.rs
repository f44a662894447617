//! The dummy service: the tasks of `python/dummy_worker.py` with the same arguments and results.

use std::io::Write;
use std::path::PathBuf;
use std::time::Duration;

use norfab_service::schemars::{self, JsonSchema};
use norfab_service::{
    BuiltinPolicy, Bytes, EventDraft, EventStatus, NoInput, Question, Service, ServiceName, Severity, Task,
    TaskContext, TaskError, TaskOutput,
};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

/// The service under a name.
pub fn service(name: ServiceName) -> Service {
    Service::new(name)
        .task(Task::new("ok", "Return both arguments.", ok))
        .task(Task::new("slow", "Take some time.", slow))
        .task(Task::blocking("marked", "Write down where an execution begins and ends.", marked))
        .task(Task::new("fails", "Return a result that says it failed.", fails))
        .task(Task::new("raises", "End with an error.", raises))
        .task(Task::new("inventory_seen", "Return the worker's inventory.", inventory_seen))
        .task(Task::new("ask", "Ask the client and return its answer.", ask))
        .task(Task::new("progress", "Send events of every kind.", progress))
        .task(Task::new("stream_bytes", "Stream raw bytes.", stream_bytes))
        .task(Task::blocking("big", "Return a table of about `mb` megabytes.", big))
        .task(Task::blocking("text", "Return a text of about `mb` megabytes.", long_text))
        .with_builtin_tasks(BuiltinPolicy::default())
}

#[derive(Deserialize, JsonSchema)]
struct Ok {
    a: i64,
    #[serde(default = "bee")]
    b: String,
}

fn bee() -> String {
    "bee".to_owned()
}

async fn ok(_: TaskContext, input: Ok) -> Result<Value, TaskError> {
    Result::Ok(json!({"a": input.a, "b": input.b}))
}

#[derive(Deserialize, JsonSchema)]
struct Slow {
    seconds: f64,
}

async fn slow(_: TaskContext, input: Slow) -> Result<f64, TaskError> {
    tokio::time::sleep(Duration::from_secs_f64(input.seconds)).await;
    Result::Ok(input.seconds)
}

#[derive(Deserialize, JsonSchema)]
struct Marked {
    mark: String,
    path: PathBuf,
    seconds: f64,
}

fn marked(_: TaskContext, input: Marked) -> Result<bool, TaskError> {
    let Marked { mark, path, seconds } = input;
    let write = |what: &str| {
        let mut file = std::fs::File::options().create(true).append(true).open(&path)?;
        // In one write, so that lines of several processes do not mix.
        file.write_all(format!("{what} {mark}\n").as_bytes())
    };
    let failed = |error: std::io::Error| TaskError::new(error.to_string());
    write("begin").map_err(failed)?;
    std::thread::sleep(Duration::from_secs_f64(seconds));
    write("end").map_err(failed)?;
    Result::Ok(true)
}

async fn fails(_: TaskContext, _: NoInput) -> Result<TaskOutput, TaskError> {
    Result::Ok(TaskOutput::new("partial").failed("first error").error("second error").message("a message"))
}

#[derive(Deserialize, JsonSchema)]
struct Raises {
    #[serde(default = "boom")]
    text: String,
}

fn boom() -> String {
    "boom".to_owned()
}

async fn raises(_: TaskContext, input: Raises) -> Result<Value, TaskError> {
    Err(TaskError::new(input.text))
}

async fn inventory_seen(context: TaskContext, _: NoInput) -> Result<Value, TaskError> {
    Result::Ok((*context.inventory()).clone())
}

#[derive(Deserialize, JsonSchema)]
struct Ask {
    #[serde(default = "go_on")]
    question: String,
    #[serde(default = "no")]
    default: String,
    #[serde(default = "a_minute")]
    timeout: u64,
}

fn go_on() -> String {
    "go on?".to_owned()
}

fn no() -> String {
    "no".to_owned()
}

fn a_minute() -> u64 {
    60
}

async fn ask(context: TaskContext, input: Ask) -> Result<Value, TaskError> {
    let question = Question::new(input.question).default(input.default).timeout(input.timeout).metadata("kind", "text");
    Result::Ok(context.ask(question).await?)
}

async fn progress(context: TaskContext, _: NoInput) -> Result<bool, TaskError> {
    context.event("minimal").await?;
    let all_fields = EventDraft::new("all fields")
        .status(EventStatus::Scheduled)
        .resources(["res-1", "res-2"])
        .severity(Severity::Warning)
        .timestamp("my-own-timestamp")
        .extra("k", json!([1, {"z": null}]))
        .timeout(33);
    context.event(all_fields).await?;
    for (name, severity) in [
        ("INFO", Severity::Info),
        ("DEBUG", Severity::Debug),
        ("WARNING", Severity::Warning),
        ("CRITICAL", Severity::Critical),
        ("ERROR", Severity::Error),
    ] {
        context.event(EventDraft::new(format!("severity {name}")).severity(severity)).await?;
    }
    context.event("unicode \u{fc}\u{2192}\u{65e5}\u{672c}").await?;
    Result::Ok(true)
}

#[derive(Deserialize, JsonSchema)]
struct StreamBytes {
    #[serde(default = "three")]
    chunks: usize,
    #[serde(default = "a_thousand")]
    size: usize,
}

fn three() -> usize {
    3
}

fn a_thousand() -> usize {
    1000
}

async fn stream_bytes(context: TaskContext, input: StreamBytes) -> Result<Value, TaskError> {
    for number in 0..input.chunks {
        let chunk: Vec<u8> = (0..input.size).map(|position| ((number + position) % 256) as u8).collect();
        context.stream(Bytes::from(chunk)).await?;
    }
    Result::Ok(json!({"size": input.chunks * input.size}))
}

#[derive(Deserialize, JsonSchema)]
struct Big {
    mb: usize,
}

#[derive(Serialize)]
struct Row {
    interface: &'static str,
    state: &'static str,
    #[serde(rename = "in")]
    received: u32,
    out: u32,
    descr: &'static str,
    idx: usize,
}

fn big(_: TaskContext, input: Big) -> Result<TaskOutput, TaskError> {
    let row = |idx| Row {
        interface: "GigabitEthernet0/0/1",
        state: "up",
        received: 1_234_567,
        out: 7_654_321,
        descr: "xxxxxxxxxxxxxxxxxxxx",
        idx,
    };
    Result::Ok(TaskOutput::new((0..input.mb * 1_000_000 / 110).map(row).collect::<Vec<_>>()))
}

fn long_text(_: TaskContext, input: Big) -> Result<String, TaskError> {
    Result::Ok("interface up\n".repeat(input.mb * 1_000_000 / 14))
}
