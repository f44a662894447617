//! Our broker on a site.

use std::sync::Arc;

use norfab_fabric::{BrokerHandle, BrokerInformation, BrokerOptions};
use norfab_protocol::broker::BrokerConfig;
use norfab_transport::{Context, Router, RouterOptions};
use serde_json::{Map, Value, json};

use crate::Failure;
use crate::site::Site;

/// Starts the broker.
pub fn start(site: &Site) -> Result<BrokerHandle, Failure> {
    let options = RouterOptions { keys: site.broker_keys()?, ..RouterOptions::default() };
    let link = Router::bind(&Context::new()?, site.endpoint(), options)?;
    let workers = site.inventory()["workers"].as_object().into_iter().flat_map(|workers| workers.keys());
    let workers = workers.filter_map(|name| Some((name.clone(), site.worker(name)?))).collect();
    let information = Information { inventory: site.inventory().clone(), workers };
    Ok(BrokerHandle::start(BrokerOptions {
        name: "NFPBroker".to_owned(),
        config: BrokerConfig::default(),
        link: Box::new(link),
        information: Arc::new(information),
    })?)
}

struct Information {
    inventory: Value,
    workers: Map<String, Value>,
}

impl BrokerInformation for Information {
    fn worker_inventory(&self, name: &str) -> Result<Option<Value>, String> {
        Ok(self.workers.get(name).cloned())
    }

    fn inventory(&self) -> Result<Value, String> {
        Ok(self.inventory.clone())
    }

    fn logs(&self, _: &Map<String, Value>) -> Result<Vec<Value>, String> {
        Ok(Vec::new())
    }

    fn status(&self) -> Value {
        json!({"directories": {}, "security": {}})
    }
}
