//! `norfab tasks`: what a service can do.

use std::collections::BTreeSet;
use std::time::Duration;

use norfab_fabric::client::{ClientHandle, JobSpec};
use norfab_protocol::TaskName;
use norfab_protocol::broker::{EVERY_SERVICE, MANAGEMENT_SERVICE};
use norfab_protocol::target::Target;
use serde_json::{Map, Value, json};

use super::{ANSWER_PATIENCE, Connected, ask_broker, code_of, job_failure, pattern_hint, service_of, workers};
use crate::args::Global;
use crate::exit::{Code, Failure};
use crate::printer::{self, printable};

/// Services or workers that an error names; more are counted.
const NAMED_MAX: usize = 10;

/// Without `waits`, whoever is not registered now is not waited for.
pub async fn run(
    global: &Global,
    service: &str,
    task: Option<&str>,
    worker: &str,
    waits: bool,
) -> Result<Code, Failure> {
    let service_name = service_of(service)?;
    let mut spec = JobSpec::new(service_name, TaskName::parse("list_tasks").expect("a name"));
    spec.target = Target::from_words(worker);
    spec.timeout = Duration::from_secs(30);
    spec.waits = waits;
    if let Some(task) = task {
        spec.kwargs.insert("name".to_owned(), task.into());
    }
    let connected = Connected::new(global).await?;
    if !waits && let Err(failure) = registered(&connected.client, service, &spec.target).await {
        connected.client.stop().await;
        return Err(failure);
    }
    let report = connected.client.run(spec).await;
    connected.client.stop().await;
    let report = report.map_err(Failure::failed)?;
    let results = report.results();
    let Some(result) = results.values().next() else {
        return Err(job_failure(service, worker, &report));
    };
    if result.failed {
        return Err(Failure::new(code_of(&report).unless_ok(Code::Failed), result.errors.join("; ")));
    }
    let tasks = result.value().unwrap_or(Value::Null);
    if global.json {
        printer::json(&tasks);
        return Ok(Code::Ok);
    }
    let tasks = tasks.as_array().cloned().unwrap_or_default();
    match task {
        None => {
            let rows: Vec<Value> = tasks
                .iter()
                .map(|task| json!({ "task": task["name"], "description": first_line(&task["description"]) }))
                .collect();
            printer::table(&["task", "description"], &rows);
        }
        Some(_) => tasks.iter().for_each(one),
    }
    Ok(Code::Ok)
}

/// Errors: nobody is registered for the service, or not whom the target names.
async fn registered(client: &ClientHandle, service: &str, target: &Target) -> Result<(), Failure> {
    let listed = ask_broker(client, MANAGEMENT_SERVICE, "show_workers", Map::new(), ANSWER_PATIENCE).await?;
    let rows = workers::rows(listed)?;
    let of = |key: &str, row: &Value| row[key].as_str().unwrap_or_default().to_owned();
    let is_of_service = |row: &&Value| service == EVERY_SERVICE || row["service"] == service;
    let there: BTreeSet<String> = rows.iter().filter(is_of_service).map(|row| of("name", row)).collect();
    let waiting = "--wait-for-workers waits for who is to come";
    if there.is_empty() {
        let services: BTreeSet<String> = rows.iter().map(|row| of("service", row)).collect();
        let failure = Failure::failed(format!("service '{service}' has no worker that is registered"));
        return Err(if services.is_empty() {
            failure.hint(format!("nobody is registered, 'norfab workers' shows when somebody is; {waiting}"))
        } else {
            failure.hint(format!("services that have are {}, see 'norfab workers'; {waiting}", named(&services)))
        });
    }
    let missing = target.names().into_iter().flatten().find(|name| !there.contains(name));
    missing.map_or(Ok(()), |name| {
        let hint = format!("those that are registered are {}; {waiting}{}", named(&there), pattern_hint(&name));
        Err(Failure::failed(format!("service '{service}' has no worker {name} that is registered")).hint(hint))
    })
}

fn named(names: &BTreeSet<String>) -> String {
    let first: Vec<&str> = names.iter().take(NAMED_MAX).map(String::as_str).collect();
    match names.len() - first.len() {
        0 => first.join(", "),
        more => format!("{} and {more} more", first.join(", ")),
    }
}

fn first_line(text: &Value) -> String {
    text.as_str().unwrap_or_default().trim().lines().next().unwrap_or_default().to_owned()
}

fn one(task: &Value) {
    printer::line(&printable(task["name"].as_str().unwrap_or_default()));
    if let Some(text) = task["description"].as_str() {
        printer::line("");
        for line in text.trim().lines() {
            printer::line(&format!("  {}", printable(line.trim())));
        }
    }
    let schema = &task["inputSchema"];
    let required: Vec<&str> = schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    let rows: Vec<Value> = schema["properties"]
        .as_object()
        .into_iter()
        .flatten()
        .map(|(name, property)| {
            json!({
                "argument": name,
                "type": type_of(property),
                "required": if required.contains(&name.as_str()) { "yes" } else { "" },
                "default": property.get("default").filter(|default| !default.is_null()).map(Value::to_string).unwrap_or_default(),
                "description": first_line(&property["description"]),
            })
        })
        .collect();
    printer::line("");
    if rows.is_empty() {
        printer::line("  no arguments");
    } else {
        printer::table(&["argument", "type", "required", "default", "description"], &rows);
    }
}

/// The types that a value may have. That nothing may be given is told by what is required.
fn type_of(property: &Value) -> String {
    let mut names = types_of(property);
    names.retain(|name| *name != "null");
    if names.is_empty() { "any".to_owned() } else { names.join(" or ") }
}

fn types_of(property: &Value) -> Vec<&str> {
    match (&property["type"], &property["anyOf"]) {
        (Value::String(name), _) => vec![name],
        (Value::Array(names), _) => names.iter().filter_map(Value::as_str).collect(),
        (_, Value::Array(choices)) => choices.iter().flat_map(types_of).collect(),
        _ => vec!["any"],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn types_are_named_and_null_is_none() {
        assert_eq!(type_of(&json!({"type": "string"})), "string");
        assert_eq!(type_of(&json!({"type": ["integer", "null"]})), "integer");
        assert_eq!(type_of(&json!({"anyOf": [{"type": "array"}, {"type": ["string", "null"]}]})), "array or string");
        assert_eq!(type_of(&json!({"anyOf": [{"type": "integer"}, {"type": "null"}]})), "integer");
        assert_eq!(type_of(&json!({"$ref": "#/x"})), "any");
    }

    #[test]
    fn names_beyond_some_are_counted() {
        let names = |count: usize| named(&(0..count).map(|number| number.to_string()).collect());
        assert_eq!(names(2), "0, 1");
        assert!(names(NAMED_MAX + 3).ends_with(" and 3 more"), "{}", names(NAMED_MAX + 3));
    }
}
