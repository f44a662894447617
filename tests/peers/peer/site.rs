//! The inventory that a test wrote, and the broker's keys below its folder.

use std::fs;
use std::path::{Path, PathBuf};

use norfab_transport::{Context, Dealer, DealerKeys, DealerOptions, KeyPair, PublicKey};
use serde_json::{Map, Value};

use crate::Failure;

/// A base directory with its inventory. Tests write it as JSON.
pub struct Site {
    folder: PathBuf,
    inventory: Value,
}

impl Site {
    /// Reads the inventory.
    pub fn load(path: &str) -> Result<Self, Failure> {
        let folder = Path::new(path).parent().ok_or("an inventory lies in a folder")?.to_path_buf();
        Ok(Self { folder, inventory: serde_json::from_str(&fs::read_to_string(path)?)? })
    }

    /// The broker's endpoint.
    pub fn endpoint(&self) -> &str {
        self.inventory["broker"]["endpoint"].as_str().expect("a test gives the endpoint")
    }

    /// The merged items of a worker, as far as tests use them: later keys win.
    pub fn worker(&self, name: &str) -> Option<Value> {
        let items = self.inventory["workers"][name].as_array()?;
        let merged: Map<String, Value> =
            items.iter().filter_map(Value::as_object).flat_map(|item| item.clone()).collect();
        Some(merged.into())
    }

    /// A folder below the folder of this site's files, made if it is missing.
    pub fn files(&self, below: &str) -> Result<PathBuf, Failure> {
        let folder = self.folder.join("__norfab__/files").join(below);
        fs::create_dir_all(&folder)?;
        Ok(folder)
    }

    /// A dealer of this name to the broker, with keys of its own where the broker has some.
    pub fn dealer(&self, name: &str) -> Result<Dealer, Failure> {
        let keys = self.broker_key()?.map(|broker| DealerKeys { own: KeyPair::generate(), broker });
        let options = DealerOptions { keys, ..DealerOptions::default() };
        Ok(Dealer::connect(&Context::new(), self.endpoint(), name.as_bytes(), options)?)
    }

    fn broker_key(&self) -> Result<Option<PublicKey>, Failure> {
        if !self.encrypts() {
            return Ok(None);
        }
        if let Some(shared) = self.inventory["broker"]["shared_key"].as_str() {
            return Ok(Some(shared.parse()?));
        }
        let file = self.files("broker/public_keys")?.join("broker.key");
        Ok(Some(value(&fs::read_to_string(file)?, "public-key")?.parse()?))
    }

    fn encrypts(&self) -> bool {
        self.inventory["broker"]["zmq_auth"] != false
    }
}

/// A value of a certificate file.
fn value(text: &str, key: &str) -> Result<String, Failure> {
    let start = format!("{key} = \"");
    let found = text.lines().find_map(|line| line.trim().strip_prefix(&start)?.strip_suffix('"'));
    Ok(found.ok_or_else(|| format!("the certificate has no {key}"))?.to_owned())
}
