//! A site: an inventory, its folders and keys on this host, and the roles made of them.

mod client;
mod information;
mod worker;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use norfab_fabric::broker::{BrokerHandle, BrokerOptions};
use norfab_inventory::{Directories, Inventory, LoadOptions};
use norfab_protocol::broker::BrokerConfig;
use norfab_transport::{
    AddressAllowlist, Context, Dealer, DealerKeys, DealerOptions, KeyFolder, KeyPair, PublicKey, Router, RouterOptions,
};
use serde_json::Value;

use crate::args::Global;
use crate::exit::Failure;
pub use client::ClientSlot;

/// Name of the broker in logs and answers, as in Python NorFab.
pub const BROKER_NAME: &str = "NFPBroker";

/// The inventory that is looked for when none is named.
const DEFAULT_INVENTORY: &str = "inventory.yaml";

/// Name of the broker's key files.
const BROKER_KEY_NAME: &str = "broker";

/// How this host takes part in a fabric.
#[derive(Clone)]
pub struct Site {
    inventory: Option<Arc<Inventory>>,
    directories: Directories,
    endpoint: Option<String>,
    broker_key: Option<String>,
    encrypted: bool,
    context: Context,
    logs: Option<norfab_logs::LogHandle>,
    log_events: bool,
    name: Option<String>,
}

impl Site {
    /// Loads what the command line names. Without an inventory file an endpoint must be given. Errors: nothing tells where
    /// the broker is, or the inventory is wrong.
    pub fn load(global: &Global) -> Result<Self, Failure> {
        Self::load_as(global, false)
    }

    /// As [`Site::load`], for a process that starts the topology's broker: with the built-in file sharing.
    pub fn load_as(global: &Global, starts_broker: bool) -> Result<Self, Failure> {
        let inventory = match Self::inventory_file(global)? {
            None => None,
            Some(file) => {
                let options = LoadOptions { env: environment(), env_override: true, base_dir: global.base_dir.clone() };
                let mut inventory = Inventory::load(&file, &options).map_err(Failure::configuration)?;
                if global.quiet == 0 {
                    for warning in &inventory.warnings {
                        eprintln!("warning: {warning}");
                    }
                }
                if starts_broker {
                    inventory = inventory.with_builtin_filesharing();
                }
                Some(Arc::new(inventory))
            }
        };
        let base_dir = match (&inventory, &global.base_dir) {
            (Some(inventory), _) => inventory.base_dir().to_path_buf(),
            (None, Some(base_dir)) => base_dir.clone(),
            (None, None) => std::env::current_dir().map_err(Failure::configuration)?,
        };
        let of_inventory = inventory.as_ref().map(|inventory| &inventory.broker);
        let endpoint = global.endpoint.clone().or_else(|| of_inventory.and_then(|broker| broker.endpoint.clone()));
        let plain = global.broker_key.as_deref() == Some("none");
        let broker_key = global
            .broker_key
            .clone()
            .filter(|_| !plain)
            .or_else(|| of_inventory.and_then(|broker| broker.public_key.clone()));
        let encrypted = !plain && (global.broker_key.is_some() || of_inventory.is_none_or(|broker| broker.zmq_auth));
        Ok(Self {
            directories: Directories::new(&base_dir),
            inventory,
            endpoint,
            broker_key,
            encrypted,
            context: Context::new().map_err(Failure::failed)?,
            logs: None,
            log_events: false,
            name: global.name.clone(),
        })
    }

    fn inventory_file(global: &Global) -> Result<Option<PathBuf>, Failure> {
        if let Some(file) = &global.inventory {
            return Ok(Some(file.clone()));
        }
        // The variable of Python NorFab names the folder.
        if let Some(folder) = std::env::var_os("NORFAB_INVENTORY_DIR") {
            return Ok(Some(PathBuf::from(folder).join(DEFAULT_INVENTORY)));
        }
        let file = PathBuf::from(DEFAULT_INVENTORY);
        if file.exists() {
            return Ok(Some(file));
        }
        if global.endpoint.is_some() {
            return Ok(None);
        }
        Err(Failure::configuration(format!(
            "there is no {DEFAULT_INVENTORY} here: name one with -i FILE, make a new environment with 'norfab init DIR', or name \
             the broker with --endpoint and --broker-key"
        )))
    }

    /// Starts logging for a role. The guard writes what is left when it is dropped.
    pub fn start_logs(
        &mut self,
        global: &Global,
        role: norfab_logs::Role,
        name: &str,
        files: bool,
    ) -> Result<norfab_logs::LogGuard, Failure> {
        let section = self.inventory.as_ref().map_or(Value::Null, |inventory| inventory.section("logging"));
        let settings = norfab_logs::LogSettings::from_inventory(&section)
            .map_err(Failure::configuration)?
            .with_verbosity(global.verbose, global.quiet);
        self.log_events = settings.log_events;
        let guard = norfab_logs::init(norfab_logs::LogConfig {
            dir: files.then(|| self.directories.logs()),
            settings,
            role,
            name: name.to_owned(),
            terminal: Some(norfab_logs::Terminal::stderr()),
            wall_clock: norfab_fabric::SystemClock::wall,
        })
        .map_err(Failure::failed)?;
        self.logs = Some(guard.handle());
        Ok(guard)
    }

    /// The inventory. Errors: there is none.
    pub fn inventory(&self) -> Result<&Arc<Inventory>, Failure> {
        self.inventory.as_ref().ok_or_else(|| {
            Failure::configuration(
                "this needs an inventory: name one with -i FILE, or run in a folder with inventory.yaml",
            )
        })
    }

    /// Whether there is an inventory.
    pub fn has_inventory(&self) -> bool {
        self.inventory.is_some()
    }

    /// Where the broker is. Errors: nothing says so.
    pub fn endpoint(&self) -> Result<&str, Failure> {
        self.endpoint.as_deref().ok_or_else(|| {
            Failure::configuration(
                "nothing says where the broker is: set broker.endpoint in inventory.yaml, or give --endpoint",
            )
        })
    }

    /// Whether messages are encrypted.
    pub fn encrypted(&self) -> bool {
        self.encrypted
    }

    /// Uses another endpoint: the one that a broker of this process really has.
    pub fn with_endpoint(mut self, endpoint: &str) -> Self {
        self.endpoint = Some(endpoint.to_owned());
        self
    }

    /// The broker's keys on this host, made if they are not there.
    pub fn broker_keys(&self) -> Result<KeyPair, Failure> {
        KeyFolder::new(self.directories.broker()).load_or_create(BROKER_KEY_NAME).map_err(Failure::configuration)
    }

    /// Where the broker's key files are: private and public.
    pub fn broker_key_files(&self) -> (PathBuf, PathBuf) {
        let folder = KeyFolder::new(self.directories.broker());
        (folder.secret_file(BROKER_KEY_NAME), folder.public_file(BROKER_KEY_NAME))
    }

    /// Starts the broker. Errors: the endpoint is not given or in use, keys cannot be read.
    pub fn start_broker(&self) -> Result<BrokerHandle, Failure> {
        let keys = if self.encrypted { Some(self.broker_keys()?) } else { None };
        let admission = match &self.inventory {
            Some(inventory) if inventory.broker.ip_allowlist != ["*"] => {
                let list = AddressAllowlist::new(&inventory.broker.ip_allowlist).map_err(Failure::configuration)?;
                let list = list.on_denied(|peer, reason| tracing::warn!("refused {}: {reason}", peer.address));
                Some(Arc::new(list) as Arc<dyn norfab_transport::Admission>)
            }
            _ => None,
        };
        let options = RouterOptions { keys, admission, ..RouterOptions::default() };
        let link = Router::bind(&self.context, self.endpoint()?, options).map_err(Failure::configuration)?;
        let information = information::Information { site: self.clone() };
        BrokerHandle::start(BrokerOptions {
            name: BROKER_NAME.to_owned(),
            config: BrokerConfig { seed: seed(), ..BrokerConfig::default() },
            link: Box::new(link),
            information: Arc::new(information),
        })
        .map_err(Failure::failed)
    }

    /// Connects under a name, with the keys in its folder.
    fn dealer(&self, name: &str, folder: &Path) -> Result<Dealer, Failure> {
        let keys = if self.encrypted {
            let own = KeyFolder::new(folder);
            Some(DealerKeys {
                own: own.load_or_create(name).map_err(Failure::configuration)?,
                broker: self.broker_public_key(&own)?,
            })
        } else {
            None
        };
        let options = DealerOptions { keys, ..DealerOptions::default() };
        Dealer::connect(&self.context, self.endpoint()?, name.as_bytes(), options).map_err(Failure::configuration)
    }

    fn broker_public_key(&self, own: &KeyFolder) -> Result<PublicKey, Failure> {
        let broker = KeyFolder::new(self.directories.broker());
        own.broker_public_key(&broker, self.broker_key.as_deref()).map_err(Failure::configuration)
    }
}

/// A seed for choices that need not be secret.
fn seed() -> u64 {
    use std::hash::{BuildHasher, Hasher};
    std::hash::RandomState::new().build_hasher().finish()
}

/// The process's environment; variables that are not Unicode cannot be used in templates.
fn environment() -> BTreeMap<String, String> {
    std::env::vars_os().filter_map(|(key, value)| Some((key.into_string().ok()?, value.into_string().ok()?))).collect()
}
