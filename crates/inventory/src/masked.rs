//! The inventory as it may be shown: secrets masked.

use norfab_secrets::masked;
use serde_json::{Map, Value};

use crate::inventory::{Inventory, SECTIONS};
use crate::worker_data::FILESHARING_WORKER;

/// The section of the broker.
const BROKER: &str = "broker";

/// The older name of the broker's public key in the broker section; no secret in spite of its words.
const BROKER_PUBLIC_KEY: &str = "shared_key";

/// A whole inventory with every secret masked as [`norfab_secrets`] has it. The broker's public key is shown under both of its
/// names.
pub fn masked_inventory(inventory: &Value) -> Value {
    let mut shown = masked(inventory);
    if let Some(key) = inventory.get(BROKER).and_then(|broker| broker.get(BROKER_PUBLIC_KEY)) {
        shown[BROKER][BROKER_PUBLIC_KEY] = key.clone();
    }
    shown
}

impl Inventory {
    /// The sections `broker`, `workers`, `topology`, `logging`, `client`, `hooks` and `plugins`, with the workers'
    /// entries as listed, not merged, and every secret masked: see [`masked_inventory`].
    pub fn masked(&self) -> Value {
        let mut shown = Map::new();
        for name in SECTIONS {
            let mut section = self.section(name);
            if self.has_builtin_filesharing() {
                self.add_built_in(name, &mut section);
            }
            shown.insert(name.to_owned(), section);
        }
        masked_inventory(&Value::Object(shown))
    }

    fn add_built_in(&self, name: &str, section: &mut Value) {
        let Value::Object(entries) = section else { return };
        match name {
            "workers" => {
                let listed = entries.entry(FILESHARING_WORKER).or_insert_with(|| Value::Array(Vec::new()));
                if let (Value::Array(listed), Some(built_in)) = (listed, self.built_in_filesharing()) {
                    listed.insert(0, built_in);
                }
            }
            "topology" => {
                let listed = entries.entry("workers").or_insert_with(|| Value::Array(Vec::new()));
                if let Value::Array(listed) = listed
                    && !listed.iter().any(|item| item == FILESHARING_WORKER || item.get(FILESHARING_WORKER).is_some())
                {
                    listed.insert(0, Value::from(FILESHARING_WORKER));
                }
            }
            _ => {}
        }
    }
}
