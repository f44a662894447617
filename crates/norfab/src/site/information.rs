//! What the broker is asked and the site knows.

use norfab_fabric::BrokerInformation;
use norfab_logs::{LogQuery, read_logs};
use serde_json::{Map, Value, json};

use super::Site;
use super::worker::LOG_FLUSH;

/// Log records that are given where nobody says how many; as the recorded brokers do.
const LAST_DEFAULT: usize = 100;

pub(super) struct Information {
    pub(super) site: Site,
}

impl BrokerInformation for Information {
    fn worker_inventory(&self, name: &str) -> Result<Option<Value>, String> {
        match &self.site.inventory {
            Some(inventory) => {
                let data = inventory.worker_data(name).map_err(|error| error.to_string())?;
                for warning in data.iter().flat_map(|data| &data.warnings) {
                    let tell = |text: &str| tracing::warn!("inventory of worker {name}: {text}");
                    self.site.told.once(&warning.to_string(), tell);
                }
                Ok(data.map(|data| data.value))
            }
            None => Ok(None),
        }
    }

    fn inventory(&self) -> Result<Value, String> {
        Ok(self.site.inventory.as_ref().map_or_else(|| json!({}), |inventory| inventory.masked()))
    }

    fn logs(&self, kwargs: &Map<String, Value>) -> Result<Vec<Value>, String> {
        let text = |key: &str| kwargs.get(key).and_then(Value::as_str).map(str::to_owned);
        let last = match kwargs.get("last") {
            None | Some(Value::Null) => LAST_DEFAULT,
            Some(value) => {
                // On a command line `last=20` is a text.
                let number = value.as_u64().or_else(|| value.as_str()?.parse().ok());
                let number = number.ok_or_else(|| format!("argument last: expected a whole number, got {value}"))?;
                usize::try_from(number).unwrap_or(usize::MAX)
            }
        };
        if let Some(handle) = &self.site.logs {
            // What was logged a moment ago should be in the answer; if it takes longer, it is in the next.
            handle.flush(LOG_FLUSH);
        }
        let query = LogQuery {
            last,
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
