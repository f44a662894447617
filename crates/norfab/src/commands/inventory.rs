//! `norfab inventory`: the inventory, or a worker's merged data.

use norfab_protocol::broker::{INVENTORY_SERVICE, MANAGEMENT_SERVICE};
use norfab_secrets::masked;
use serde_json::{Map, Value};

use super::{ANSWER_PATIENCE, Connected, ask_broker};
use crate::args::Global;
use crate::exit::{Code, Failure};
use crate::printer;
use crate::site::{Site, Without};

pub async fn run(global: &Global, worker: Option<&str>, remote: bool) -> Result<Code, Failure> {
    let site = Site::load_with(global, Without::Reaches, |topology| topology.starts_broker())?;
    let of_broker = remote || !site.has_inventory();
    let file = if of_broker { "the inventory of the broker's host".to_owned() } else { site.inventory_name() };
    let whose = format!("add it or a pattern that matches it under 'workers' in {file}");
    let value = if of_broker {
        from_broker(site, global, worker).await?
    } else {
        match worker {
            None => site.inventory()?.masked(),
            Some(name) => {
                masked(&site.worker_data(name).map_err(|error| Failure::inventory(&error))?.unwrap_or(Value::Null))
            }
        }
    };
    if let (Some(worker), Value::Null) = (worker, &value) {
        return Err(Failure::configuration(format!("nothing is known of worker '{worker}'")).hint(whose));
    }
    if global.json {
        printer::json(&value);
    } else {
        printer::nested(&value, 0);
    }
    Ok(Code::Ok)
}

async fn from_broker(site: Site, global: &Global, worker: Option<&str>) -> Result<Value, Failure> {
    let connected = Connected::at(site, global).await?;
    let mut kwargs = Map::new();
    let (service, task) = match worker {
        None => (MANAGEMENT_SERVICE, "show_broker_inventory"),
        Some(name) => {
            kwargs.insert("name".to_owned(), name.into());
            (INVENTORY_SERVICE, "get_inventory")
        }
    };
    let answer = ask_broker(&connected.client, service, task, kwargs, ANSWER_PATIENCE).await;
    connected.client.stop().await;
    // Brokers in Python do not mask theirs, and nobody masks a worker's data.
    answer.map(|value| if worker.is_some() { masked(&value) } else { norfab_inventory::masked_inventory(&value) })
}
