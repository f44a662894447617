//! `norfab tasks`: what a service can do.

use std::time::Duration;

use norfab_fabric::client::JobSpec;
use norfab_protocol::TaskName;
use norfab_protocol::target::Target;
use serde_json::{Value, json};

use super::{Connected, code_of, job_failure, service_of};
use crate::args::Global;
use crate::exit::{Code, Failure};
use crate::printer::{self, printable};

pub async fn run(global: &Global, service: &str, task: Option<&str>, worker: &str) -> Result<Code, Failure> {
    let service_name = service_of(service)?;
    let mut spec = JobSpec::new(service_name, TaskName::parse("list_tasks").expect("a name"));
    spec.target = Target::from_words(worker);
    spec.timeout = Duration::from_secs(30);
    if let Some(task) = task {
        spec.kwargs.insert("name".to_owned(), task.into());
    }
    let connected = Connected::new(global).await?;
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
}
