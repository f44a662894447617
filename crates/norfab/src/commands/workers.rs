//! `norfab workers`: who is registered.

use norfab_protocol::broker::{MANAGEMENT_SERVICE, UNANSWERED_KEY};
use serde_json::{Map, Value};

use super::{ANSWER_PATIENCE, Connected, ask_broker};
use crate::args::Global;
use crate::exit::{Code, Failure};
use crate::printer;

/// Columns of the table, as the broker names them.
pub const COLUMNS: [&str; 6] = ["name", "service", "status", "holdtime", "keepalives tx/rx", "alive (s)"];

pub async fn run(global: &Global, service: Option<&str>) -> Result<Code, Failure> {
    let connected = Connected::new(global).await?;
    let mut kwargs = Map::new();
    if let Some(service) = service {
        kwargs.insert("service".to_owned(), service.into());
    }
    let answer = ask_broker(&connected.client, MANAGEMENT_SERVICE, "show_workers", kwargs, ANSWER_PATIENCE).await;
    connected.client.stop().await;
    let rows = rows(answer?)?;
    if global.json {
        printer::json(&Value::Array(rows));
    } else if let (Some(service), []) = (service, &rows[..]) {
        printer::remark(&format!("service '{service}' has no workers: 'norfab workers' shows those of all services"));
    } else if rows.is_empty() {
        printer::remark("no worker is registered");
    } else {
        // Workers that do no work are rare, and a column of nothing says little.
        let silent = rows.iter().any(|row| row.get(UNANSWERED_KEY).is_some()).then_some(UNANSWERED_KEY);
        let columns: Vec<&str> = COLUMNS.into_iter().chain(silent).collect();
        printer::table(&columns, &rows);
    }
    Ok(Code::Ok)
}

/// The rows in the broker's answer to `show_workers`. Errors: it is something else.
pub fn rows(answer: Value) -> Result<Vec<Value>, Failure> {
    let Value::Array(mut rows) = answer else {
        return Err(Failure::failed(format!("the broker answered {answer}")));
    };
    // The broker sends one empty row for nobody.
    rows.retain(|row| row["name"] != "");
    Ok(rows)
}
