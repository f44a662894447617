//! `norfab mmi`: questions to the broker itself.

use std::time::Duration;

use norfab_protocol::broker::{INVENTORY_SERVICE, MANAGEMENT_SERVICE};
use serde_json::{Map, Value};

use super::{Connected, arguments, ask_broker};
use crate::args::Global;
use crate::exit::{Code, Failure};
use crate::printer;

pub async fn run(
    global: &Global,
    service: &str,
    task: &str,
    words: &[String],
    timeout: Duration,
) -> Result<Code, Failure> {
    let kwargs = arguments(words)?;
    check(service, task, &kwargs)?;
    let connected = Connected::new(global).await?;
    let answer = ask_broker(&connected.client, service, task, kwargs, timeout).await;
    connected.client.stop().await;
    let answer = answer.map_err(|failure| {
        if failure.text.contains("failed to target workers") {
            return Failure::new(failure.code, format!("the broker has no service '{service}': {SERVICES}"));
        }
        failure
    })?;
    // The broker says so with status 200, in a text, as the recorded ones do.
    if let Some(text) = answer.as_str().filter(|text| text.starts_with(UNSUPPORTED)) {
        return Err(Failure::failed(format!(
            "{}: {SUPPORTED}",
            text.replacen(UNSUPPORTED, "the broker has no task", 1)
        )));
    }
    printer::json(&answer);
    Ok(Code::Ok)
}

/// What the broker's tasks take. Brokers pass over what they do not know, so that nobody would learn of a typing error.
const TAKEN: [(&str, &str, &[&str]); 8] = [
    (MANAGEMENT_SERVICE, "show_workers", &["service", "status"]),
    (MANAGEMENT_SERVICE, "get_stats", &[]),
    (MANAGEMENT_SERVICE, "get_status", &[]),
    (MANAGEMENT_SERVICE, "show_broker", &[]),
    (MANAGEMENT_SERVICE, "show_broker_version", &[]),
    (MANAGEMENT_SERVICE, "show_broker_inventory", &[]),
    (MANAGEMENT_SERVICE, "get_logs", &["last", "level", "logger", "since", "until"]),
    (INVENTORY_SERVICE, "get_inventory", &["name"]),
];

/// Refuses arguments by the rules that tasks of workers have: none that is unknown, and no text for a number. What this program does not
/// know of is left to the broker.
fn check(service: &str, task: &str, kwargs: &Map<String, Value>) -> Result<(), Failure> {
    let known = TAKEN.iter().find(|(of, name, _)| *of == service && *name == task);
    let Some((_, _, taken)) = known else { return Ok(()) };
    for (name, value) in kwargs {
        if !taken.contains(&name.as_str()) {
            let taken = if taken.is_empty() { "none".to_owned() } else { taken.join(", ") };
            return Err(Failure::usage(format!("unknown argument '{name}': {task} takes {taken}")));
        }
        if let ("last", Value::String(text)) = (name.as_str(), value) {
            return Err(Failure::usage(format!(
                "argument 'last': expected a whole number, found the text {text:?}: write last:=20"
            )));
        }
    }
    Ok(())
}

/// What the broker serves itself.
const SERVICES: &str = "it has mmi.service.broker and sid.service.broker; 'norfab run' asks the services of workers";

/// How the broker's answer to a task begins that it does not have.
const UNSUPPORTED: &str = "Unsupported task";

/// What it has.
const SUPPORTED: &str = "it has show_workers, get_stats, get_status, show_broker, show_broker_version, \
                         show_broker_inventory and get_logs";
