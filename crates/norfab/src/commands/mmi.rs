//! `norfab mmi`: questions to the broker itself.

use std::time::Duration;

use norfab_protocol::ServiceName;

use super::{Connected, arguments};
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
    let service = ServiceName::parse(service).map_err(|error| Failure::usage(error.to_string()))?;
    let kwargs = arguments(words)?;
    let connected = Connected::new(global).await?;
    let answer = connected.client.management(service, task, kwargs, timeout).await.map_err(Failure::failed);
    connected.client.stop().await;
    let answer = answer?;
    if answer.status.code() == 408 {
        return Err(Failure::new(
            Code::TimedOut,
            format!("the broker did not answer within {} s", timeout.as_secs_f64()),
        ));
    }
    printer::json(&answer.results);
    Ok(if answer.status.is_error() { Code::Failed } else { Code::Ok })
}
