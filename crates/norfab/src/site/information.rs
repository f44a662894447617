//! What the broker is asked and the site knows.

use norfab_fabric::BrokerInformation;
use norfab_logs::{LogQuery, read_logs};
use serde_json::{Map, Value, json};

use super::Site;

pub(super) struct Information {
    pub(super) site: Site,
}

impl BrokerInformation for Information {
    fn worker_inventory(&self, name: &str) -> Result<Option<Value>, String> {
        match &self.site.inventory {
            Some(inventory) => inventory.worker(name).map_err(|error| error.to_string()),
            None => Ok(None),
        }
    }

    fn inventory(&self) -> Result<Value, String> {
        Ok(self.site.inventory.as_ref().map_or_else(|| json!({}), |inventory| inventory.masked()))
    }

    fn logs(&self, kwargs: &Map<String, Value>) -> Result<Vec<Value>, String> {
        let text = |key: &str| kwargs.get(key).and_then(Value::as_str).map(str::to_owned);
        let query = LogQuery {
            last: kwargs
                .get("last")
                .and_then(Value::as_u64)
                .map_or(100, |last| usize::try_from(last).unwrap_or(usize::MAX)),
            level: text("level"),
            logger: text("logger"),
            since: text("since"),
            until: text("until"),
            role: Some(norfab_logs::Role::Broker),
            name: None,
        };
        Ok(read_logs(&self.site.directories.logs(), &query))
    }

    fn status(&self) -> Value {
        let site = &self.site;
        let (private, public) = site.broker_key_files();
        let secure = site.encrypted;
        let parent = |file: &std::path::Path| file.parent().map(|folder| folder.display().to_string());
        let allowlist = site
            .inventory
            .as_ref()
            .map_or_else(|| vec!["*".to_owned()], |inventory| inventory.broker.ip_allowlist.clone());
        json!({
            "directories": {
                "base_dir": site.directories.base_dir().display().to_string(),
                "broker_base_dir": site.directories.broker().display().to_string(),
                "private_keys_dir": secure.then(|| parent(&private)).flatten(),
                "public_keys_dir": secure.then(|| parent(&public)).flatten(),
            },
            "security": {
                "broker_private_key_file": secure.then(|| private.display().to_string()),
                "broker_public_key_file": secure.then(|| public.display().to_string()),
                "zmq_auth": secure,
                "ip_allowlist": allowlist,
            },
        })
    }
}
