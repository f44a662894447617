//! `norfab mmi`: questions to the broker itself.

use std::time::Duration;

use norfab_protocol::ServiceName;

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
    // Before anybody is asked.
    ServiceName::parse(service).map_err(|error| Failure::usage(error.to_string()).hint(SERVICES))?;
    let kwargs = arguments(words)?;
    let connected = Connected::new(global).await?;
    let answer = ask_broker(&connected.client, service, task, kwargs, timeout).await;
    connected.client.stop().await;
    let answer = answer.map_err(|failure| {
        if failure.text.contains("failed to target workers") {
            return Failure::new(failure.code, format!("the broker has no service '{service}'")).hint(SERVICES);
        }
        failure
    })?;
    // The broker says so with status 200, in a text, as the recorded ones do.
    if let Some(text) = answer.as_str().filter(|text| text.starts_with(UNSUPPORTED)) {
        return Err(Failure::failed(text.replacen(UNSUPPORTED, "the broker has no task", 1)).hint(SUPPORTED));
    }
    printer::json(&answer);
    Ok(Code::Ok)
}

/// What the broker serves itself.
const SERVICES: &str = "it has mmi.service.broker and sid.service.broker; 'norfab run' asks the services of workers";

/// How the broker's answer to a task begins that it does not have.
const UNSUPPORTED: &str = "Unsupported task";

/// What it has.
const SUPPORTED: &str = "it has show_workers, get_stats, get_status, show_broker, show_broker_version, \
                         show_broker_inventory and get_logs";
