//! `norfab inventory`: the inventory, or a worker's merged data.

use std::time::Duration;

use norfab_protocol::ServiceName;
use norfab_protocol::broker::{INVENTORY_SERVICE, MANAGEMENT_SERVICE};
use serde_json::{Map, Value};

use super::Connected;
use crate::args::Global;
use crate::exit::{Code, Failure};
use crate::printer;
use crate::site::Site;

pub async fn run(global: &Global, worker: Option<&str>, remote: bool) -> Result<Code, Failure> {
    let site = Site::load_as(global, true)?;
    let value = if remote || !site.has_inventory() {
        from_broker(global, worker).await?
    } else {
        let inventory = site.inventory()?;
        match worker {
            None => inventory.masked(),
            Some(name) => inventory.worker(name).map_err(Failure::configuration)?.unwrap_or(Value::Null),
        }
    };
    if let (Some(worker), Value::Null) = (worker, &value) {
        return Err(Failure::configuration(format!(
            "nothing is known of worker '{worker}': add it or a pattern that matches it under 'workers' in inventory.yaml"
        )));
    }
    let value = norfab_inventory::masked_value(&value, false);
    if global.json {
        printer::json(&value);
    } else {
        printer::nested(&value, 0);
    }
    Ok(Code::Ok)
}

async fn from_broker(global: &Global, worker: Option<&str>) -> Result<Value, Failure> {
    let connected = Connected::new(global).await?;
    let mut kwargs = Map::new();
    let (service, task) = match worker {
        None => (MANAGEMENT_SERVICE, "show_broker_inventory"),
        Some(name) => {
            kwargs.insert("name".to_owned(), name.into());
            (INVENTORY_SERVICE, "get_inventory")
        }
    };
    let service = ServiceName::parse(service).expect("a name");
    let answer = connected.client.management(service, task, kwargs, Duration::from_secs(10)).await;
    connected.client.stop().await;
    let answer = answer.map_err(Failure::failed)?;
    if answer.status.code() != 200 {
        return Err(Failure::failed(answer.results["error"].as_str().unwrap_or("the broker did not answer")));
    }
    Ok(answer.results)
}
