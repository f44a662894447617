//! Standard output carries data, standard error everything else.

use std::io::Write;

use comfy_table::{ContentArrangement, Table, presets};
use norfab_fabric::client::JobReport;
use norfab_protocol::body::{Event, Resource};
use norfab_protocol::client::JobState;
use norfab_protocol::{Identity, TaskResult};
use serde_json::{Map, Value, json};

/// One line of output. A reader that has gone away (`| head`) is no error.
pub fn line(text: &str) {
    writeln!(std::io::stdout().lock(), "{text}").ok();
}

/// A document.
pub fn json(value: &Value) {
    let text = serde_json::to_string_pretty(value).expect("values with text keys can be written");
    line(&text);
}

/// A document on one line.
pub fn json_line(value: &Value) {
    line(&value.to_string());
}

/// Rows with these columns. No rows: a remark on standard error, so that scripts read nothing.
pub fn table(columns: &[&str], rows: &[Value]) {
    if rows.is_empty() {
        eprintln!("nothing to show");
        return;
    }
    let mut table = Table::new();
    table.load_style(presets::NOTHING).set_content_arrangement(ContentArrangement::Disabled);
    table.set_header(columns.iter().map(|column| column.to_uppercase()));
    for row in rows {
        table.add_row(columns.iter().map(|column| plain(&row[*column])));
    }
    for text in table.to_string().lines() {
        line(text.trim_end());
    }
}

fn plain(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Null => String::new(),
        other => other.to_string(),
    }
}

/// Nested data for people: keys, indented, texts of several lines as they are.
pub fn nested(value: &Value, indent: usize) {
    let pad = " ".repeat(indent);
    match value {
        Value::Object(map) if map.is_empty() => line(&format!("{pad}{{}}")),
        Value::Array(list) if list.is_empty() => line(&format!("{pad}[]")),
        Value::Object(map) => {
            for (key, value) in map {
                entry(&format!("{pad}{key}:"), value, indent);
            }
        }
        Value::Array(list) => {
            for value in list {
                entry(&format!("{pad}-"), value, indent);
            }
        }
        Value::String(text) => text.lines().for_each(|text| line(&format!("{pad}{text}"))),
        other => line(&format!("{pad}{other}")),
    }
}

fn entry(head: &str, value: &Value, indent: usize) {
    match value {
        Value::Object(map) if map.is_empty() => line(&format!("{head} {{}}")),
        Value::Array(list) if list.is_empty() => line(&format!("{head} []")),
        Value::Object(_) | Value::Array(_) => {
            line(head);
            nested(value, indent + 2);
        }
        Value::String(text) if text.contains('\n') => {
            line(head);
            nested(value, indent + 2);
        }
        Value::String(text) => line(format!("{head} {text}").trim_end()),
        Value::Null => line(&format!("{head} null")),
        other => line(&format!("{head} {other}")),
    }
}

/// An event for people, on standard error.
pub fn event(event: &Event) {
    eprintln!("{}", event_text(event));
}

/// An event for programs, on standard error.
pub fn event_line(body: &[u8]) {
    eprintln!("{}", String::from_utf8_lossy(body));
}

/// An event as a line: time, severity, worker, state, task, what it is about, message.
pub fn event_text(event: &Event) -> String {
    let time = event.timestamp.rsplit(' ').next().unwrap_or_default();
    let status = serde_json::to_value(event.status).map(|status| plain(&status)).unwrap_or_default();
    let resource = match &event.resource {
        Resource::One(one) => format!(" [{one}]"),
        Resource::Many(many) if many.is_empty() => String::new(),
        Resource::Many(many) => format!(" [{}]", many.join(", ")),
    };
    format!(
        "{time} {:8} {:16} {status} {}.{}{resource} {}",
        event.severity, event.worker, event.service, event.task, event.message
    )
}

/// Names with commas.
pub fn names(names: &[Identity]) -> String {
    names.iter().map(Identity::as_str).collect::<Vec<_>>().join(", ")
}

/// What a job returned: data on standard output, what went wrong on standard error.
pub fn report(as_json: bool, service: &str, task: &str, report: &JobReport) {
    let results = report.results();
    if as_json {
        let results: Map<String, Value> = results
            .iter()
            .map(|(worker, result)| (worker.to_string(), serde_json::to_value(result).unwrap_or(Value::Null)))
            .collect();
        json(&json!({
            "uuid": report.id,
            "service": service,
            "task": task,
            "status": state(report.state),
            "errors": report.errors,
            "results": results,
        }));
        return;
    }
    for (worker, result) in &results {
        one_result(worker, result);
    }
    if report.state != JobState::Completed {
        for error in &report.errors {
            eprintln!("error: {error}");
        }
    }
}

fn one_result(worker: &Identity, result: &TaskResult) {
    line(&format!("{worker}:"));
    let value = result.value().unwrap_or(Value::Null);
    match &value {
        Value::Null if result.failed => {}
        value => nested(value, 2),
    }
    for message in &result.messages {
        eprintln!("{worker}: {message}");
    }
    if result.failed {
        let errors = if result.errors.is_empty() { "it gives no reason".to_owned() } else { result.errors.join("\n") };
        eprintln!("error: worker {worker} failed: {errors}");
    }
}

/// A job's state in the words of the recorded clients.
pub fn state(state: JobState) -> &'static str {
    match state {
        JobState::New => "NEW",
        JobState::Submitting => "SUBMITTING",
        JobState::Dispatched => "DISPATCHED",
        JobState::Started => "STARTED",
        JobState::Waiting => "WAITING_CLIENT_INPUT",
        JobState::Completed => "COMPLETED",
        JobState::Failed => "FAILED",
        JobState::Stale => "STALE",
        JobState::Cancelled => "CANCELLED",
    }
}
