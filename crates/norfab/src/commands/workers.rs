//! `norfab workers`: who is registered.

use std::time::Duration;

use norfab_protocol::ServiceName;
use norfab_protocol::broker::MANAGEMENT_SERVICE;
use serde_json::{Map, Value};

use super::Connected;
use crate::args::Global;
use crate::exit::{Code, Failure};
use crate::printer;

/// Columns of the table, as the broker names them.
const COLUMNS: [&str; 6] = ["name", "service", "status", "holdtime", "keepalives tx/rx", "alive (s)"];

pub async fn run(global: &Global, service: Option<&str>) -> Result<Code, Failure> {
    let connected = Connected::new(global).await?;
    let mut kwargs = Map::new();
    if let Some(service) = service {
        kwargs.insert("service".to_owned(), service.into());
    }
    let name = ServiceName::parse(MANAGEMENT_SERVICE).expect("a name");
    let answer = connected.client.management(name, "show_workers", kwargs, Duration::from_secs(10)).await;
    connected.client.stop().await;
    let answer = answer.map_err(Failure::failed)?;
    if answer.status.code() != 200 {
        return Err(Failure::new(Code::TimedOut, "the broker did not answer"));
    }
    let mut rows = match answer.results {
        Value::Array(rows) => rows,
        other => return Err(Failure::failed(format!("the broker answered {other}"))),
    };
    // The broker sends one empty row for nobody.
    rows.retain(|row| row["name"] != "");
    if global.json {
        printer::json(&Value::Array(rows));
    } else {
        printer::table(&COLUMNS, &rows);
    }
    Ok(Code::Ok)
}
