//! What the broker is asked and the site knows.

use norfab_fabric::BrokerInformation;
use norfab_logs::Role;
use norfab_service::LogFilter;
use serde_json::{Map, Value, json};

use super::Site;

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
        let text = |key: &str| match kwargs.get(key) {
            None | Some(Value::Null) => Ok(None),
            Some(Value::String(text)) => Ok(Some(text.clone())),
            Some(value) => Err(format!("argument '{key}': expected a text, found {value}")),
        };
        let last = match kwargs.get("last") {
            None | Some(Value::Null) => None,
            Some(value) => {
                // On a command line `last=20` is a text.
                let number = value.as_u64().or_else(|| value.as_str()?.parse().ok());
                let number =
                    number.ok_or_else(|| format!("argument 'last': expected a whole number, found {value}"))?;
                Some(usize::try_from(number).unwrap_or(usize::MAX))
            }
        };
        let filter = LogFilter::new(last, text("level")?, text("logger")?, text("since")?, text("until")?)
            .map_err(|error| error.to_string())?;
        Ok(self.site.log_reader(Role::Broker, None)(&filter))
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
