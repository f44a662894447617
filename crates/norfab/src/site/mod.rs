//! A site: an inventory, its folders and keys on this host, and the roles made of them.

mod client;
mod folder_lock;
mod information;
mod keys;
mod refusals;
mod retention;
mod sources;
mod told;
mod worker;

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use norfab_fabric::TellProblem;
use norfab_fabric::broker::{BrokerHandle, BrokerOptions};
use norfab_inventory::{Directories, Inventory, InventoryError, KeyPath, LoadOptions, Topology, Warning, WarningKind};
use norfab_logs::{LogQuery, Role, read_logs};
use norfab_protocol::broker::BrokerConfig;
use norfab_service::LogFilter;
use norfab_transport::{
    AddressAllowlist, Context, Dealer, DealerKeys, DealerOptions, KeyFolder, Router, RouterOptions,
};
use serde_json::{Value, json};

use crate::args::{Global, Names};
use crate::exit::Failure;
use crate::printer;
use refusals::Refusals;
use told::Told;

pub use client::ClientSlot;
pub use keys::wait_for_kept_keys;
pub use worker::SiteWorker;

/// Name of the broker in logs and answers, as in Python NorFab.
pub const BROKER_NAME: &str = "NFPBroker";
/// Where the broker writes down which workers are registered, in its folder.
const WORKERS_FILE: &str = "workers.jsonl";

/// The inventory that is looked for when none is named.
const DEFAULT_INVENTORY: &str = "inventory.yaml";

/// What stands in place of the broker's key where nothing is encrypted.
const NO_KEY: &str = "none";

/// The variable of Python NorFab that names the inventory's folder.
const FOLDER_VARIABLE: &str = "NORFAB_INVENTORY_DIR";

/// How long the log has to write what waits before it is read.
const LOG_FLUSH: Duration = Duration::from_millis(200);

/// How this host takes part in a fabric.
#[derive(Clone)]
pub struct Site {
    inventory: Option<Arc<Inventory>>,
    directories: Directories,
    /// The inventory's file, as it was named.
    file: Option<PathBuf>,
    endpoint: Option<String>,
    /// Whether that was given, and is not the inventory's.
    endpoint_given: bool,
    /// The broker's public key as the command line has it.
    given_key: Option<String>,
    /// Whether the command line says that there is none.
    given_plain: bool,
    /// The broker's public key as the inventory has it.
    listed_key: Option<String>,
    encrypted: bool,
    warnings: Warnings,
    /// How the options were given.
    names: Names,
    /// The warnings about files of workers' data: several workers may share a file, and each may ask often.
    told: Arc<Told>,
    context: Context,
    logs: Option<norfab_logs::LogHandle>,
    name: Option<String>,
}

/// How warnings are told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Warnings {
    Text,
    Json,
    Hidden,
}

impl Warnings {
    fn of(global: &Global) -> Self {
        match global {
            Global { json_warnings: true, .. } => Self::Json,
            Global { quiet: 0, .. } => Self::Text,
            _ => Self::Hidden,
        }
    }

    fn tell(self, text: &str) {
        match self {
            Self::Text => printer::warning(text),
            Self::Json => printer::json_remark(&json!({ "level": "WARNING", "message": text })),
            Self::Hidden => {}
        }
    }
}

/// Who is told what YAML 1.2 would read differently.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Differences {
    /// Who starts a role or looks at the inventory: each value.
    Each,
    /// Who has something else in mind: how many there are.
    Counted,
}

/// What a command can do without an inventory, for those who have none.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Without {
    /// It reaches a broker that is named otherwise.
    Reaches,
    /// It is a broker and listens where it is told otherwise.
    Listens,
    /// Nothing that helps who has none.
    Nothing,
}

impl Without {
    fn hint(self) -> &'static str {
        match self {
            Self::Reaches => {
                "name one with -i FILE, make a new environment with 'norfab init DIR', or name the broker with --endpoint and \
                 --broker-key"
            }
            Self::Listens => {
                "name one with -i FILE, make a new environment with 'norfab init DIR', or say where to listen with --endpoint"
            }
            Self::Nothing => "name one with -i FILE, or make a new environment with 'norfab init DIR'",
        }
    }
}

impl Site {
    /// Loads what the command line names. Without an inventory file an endpoint must be given. Errors: nothing tells where
    /// the broker is, or the inventory is wrong.
    pub fn load(global: &Global) -> Result<Self, Failure> {
        Self::of_file(global, Self::inventory_file(global, Without::Reaches)?, |_| false, Differences::Counted)
    }

    /// As [`Site::load`], for what is about this host and the inventory on it. Where a broker has run, none is needed.
    pub fn load_own(global: &Global) -> Result<Self, Failure> {
        let base_dir = given(global.base_dir.as_ref()).map_or_else(|| PathBuf::from("."), PathBuf::from);
        let file = match Self::inventory_file(global, Without::Nothing) {
            Err(_) if Directories::new(&base_dir).broker().is_dir() => None,
            file => file?,
        };
        Self::of_file(global, file, |_| false, Differences::Counted)
    }

    /// As [`Site::load`], for what may do without a broker: a folder that was worked in needs neither inventory nor endpoint.
    pub fn load_worked_in(global: &Global) -> Result<Self, Failure> {
        let base_dir = given(global.base_dir.as_ref()).map_or_else(|| PathBuf::from("."), PathBuf::from);
        match Self::inventory_file(global, Without::Reaches) {
            Err(_) if Directories::new(&base_dir).files().is_dir() => {
                Self::of_file(global, None, |_| false, Differences::Counted)
            }
            file => Self::of_file(global, file?, |_| false, Differences::Counted),
        }
    }

    /// As [`Site::load`], for those who start a role or look at the inventory; where `file_sharing` says so, it has the built-in
    /// file sharing.
    pub fn load_with(
        global: &Global,
        without: Without,
        file_sharing: impl FnOnce(&Topology) -> bool,
    ) -> Result<Self, Failure> {
        Self::of_file(global, Self::inventory_file(global, without)?, file_sharing, Differences::Each)
    }

    fn of_file(
        global: &Global,
        file: Option<PathBuf>,
        file_sharing: impl FnOnce(&Topology) -> bool,
        differences: Differences,
    ) -> Result<Self, Failure> {
        let warnings = Warnings::of(global);
        let base_dir = given(global.base_dir.as_ref()).map(PathBuf::from);
        let inventory = match &file {
            None => None,
            Some(file) => {
                let options = LoadOptions { env: environment(), env_override: true, base_dir: base_dir.clone() };
                let mut inventory =
                    Inventory::load(file, &options).map_err(|error| sources::not_loaded(global, &error))?;
                for text in told_of(&inventory.warnings, differences) {
                    warnings.tell(&text);
                }
                if file_sharing(&inventory.topology) {
                    inventory = inventory.with_builtin_filesharing();
                }
                Some(Arc::new(inventory))
            }
        };
        let base_dir = match &inventory {
            Some(inventory) => inventory.base_dir().to_path_buf(),
            None => base_dir.unwrap_or_else(|| PathBuf::from(".")),
        };
        let base_dir = std::path::absolute(base_dir).map_err(Failure::configuration)?;
        if base_dir.exists() && !base_dir.is_dir() {
            let text = format!("{} is no folder, and keys, jobs and logs go below it", base_dir.display());
            return Err(Failure::configuration(text).hint(format!("correct {}", global.names.base_dir)));
        }
        let of_inventory = inventory.as_ref().map(|inventory| &inventory.broker);
        let given_key = given(global.broker_key.as_ref());
        let plain = given_key.as_deref() == Some(NO_KEY);
        let encrypted = !plain && (given_key.is_some() || of_inventory.is_none_or(|broker| broker.zmq_auth));
        let given_endpoint = given(global.endpoint.as_ref());
        Ok(Self {
            directories: Directories::new(&base_dir),
            file,
            endpoint_given: given_endpoint.is_some(),
            endpoint: given_endpoint.or_else(|| of_inventory.and_then(|broker| broker.endpoint.clone())),
            given_key: given_key.filter(|_| !plain),
            given_plain: plain,
            listed_key: of_inventory.and_then(|broker| broker.public_key.clone()),
            inventory,
            encrypted,
            warnings,
            names: global.names,
            told: Arc::default(),
            context: Context::new(),
            logs: None,
            name: given(global.name.as_ref()),
        })
    }

    fn inventory_file(global: &Global, without: Without) -> Result<Option<PathBuf>, Failure> {
        if let Some(file) = given(global.inventory.as_ref()).map(PathBuf::from) {
            return Ok(Some(if file.is_dir() { file.join(DEFAULT_INVENTORY) } else { file }));
        }
        if let Some(folder) = folder_of_python() {
            return Ok(Some(PathBuf::from(folder).join(DEFAULT_INVENTORY)));
        }
        let file = PathBuf::from(DEFAULT_INVENTORY);
        if file.exists() {
            return Ok(Some(file));
        }
        if given(global.endpoint.as_ref()).is_some() {
            return Ok(None);
        }
        Err(Failure::configuration(format!("there is no {DEFAULT_INVENTORY} here")).hint(without.hint()))
    }

    /// A worker's merged data in this host's inventory; warnings about its files are told. Errors: a file of it cannot be
    /// read.
    pub fn worker_data(&self, name: &str) -> Result<Option<Value>, InventoryError> {
        let Some(inventory) = &self.inventory else { return Ok(None) };
        let data = inventory.worker_data(name)?;
        for warning in data.iter().flat_map(|data| &data.warnings) {
            self.told.once(&warning.to_string(), |text| self.warn(text));
        }
        Ok(data.map(|data| data.value))
    }

    /// Tells what may be wrong, unless `-q` was given.
    pub fn warn(&self, text: &str) {
        self.warnings.tell(text);
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
            .map_err(|error| match &self.inventory {
                Some(inventory) => {
                    let path = error.key().split('.').fold(KeyPath::root().key("logging"), |path, key| path.key(key));
                    Failure::configuration(inventory.error_at(&path, error.problem()))
                }
                None => Failure::configuration(error),
            })?
            .with_verbosity(global.verbose, global.quiet);
        let guard = norfab_logs::init(norfab_logs::LogConfig {
            dir: files.then(|| self.directories.logs()),
            settings,
            role,
            name: name.to_owned(),
            terminal: Some(norfab_logs::Terminal::new(Box::new(printer::LogOutput), norfab_logs::is_coloured())),
            wall_clock: norfab_fabric::SystemClock::wall,
        })
        .map_err(Failure::failed)?;
        self.logs = Some(guard.handle());
        Ok(guard)
    }

    /// Reads the logs of a role here. It reads files: for a thread that may block.
    fn log_reader(&self, role: Role, name: Option<String>) -> impl Fn(&LogFilter) -> Vec<Value> + Send + Sync + use<> {
        let (folder, handle) = (self.directories.logs(), self.logs.clone());
        move |filter| {
            if let Some(handle) = &handle {
                // What was logged a moment ago should be in the answer; if it takes longer, it is in the next.
                handle.flush(LOG_FLUSH);
            }
            let LogFilter { last, level, logger, since, until } = filter.clone();
            read_logs(&folder, &LogQuery { last, level, logger, since, until, role: Some(role), name: name.clone() })
        }
    }

    /// The inventory. Errors: there is none.
    pub fn inventory(&self) -> Result<&Arc<Inventory>, Failure> {
        self.inventory.as_ref().ok_or_else(|| {
            Failure::configuration(format!("this needs an inventory, and there is no {DEFAULT_INVENTORY} here"))
                .hint(Without::Nothing.hint())
        })
    }

    /// Whether there is an inventory.
    pub fn has_inventory(&self) -> bool {
        self.inventory.is_some()
    }

    /// Where the broker is. Errors: nothing says so.
    pub fn endpoint(&self) -> Result<&str, Failure> {
        self.endpoint.as_deref().ok_or_else(|| {
            if let Some(inventory) = &self.inventory
                && matches!(inventory.section("broker").get("endpoint"), Some(Value::Null | Value::String(_)))
            {
                let path = KeyPath::root().key("broker").key("endpoint");
                return Failure::configuration(inventory.error_at(&path, "it is empty"))
                    .hint("write tcp://HOST:PORT, and where it is a template, set the variables that it names");
            }
            let misspelt = self.inventory.as_ref().and_then(|inventory| inventory.misspelt_endpoint());
            Failure::configuration("nothing says where the broker is").hint(match misspelt {
                Some((location, key)) => format!("{location} has broker.{key}, which is no known key: write endpoint"),
                None => format!("set broker.endpoint in {}, or give --endpoint", self.inventory_name()),
            })
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

    /// Whether the inventory says that the broker runs here.
    pub fn starts_broker(&self) -> bool {
        self.inventory.as_ref().is_some_and(|inventory| inventory.topology.starts_broker())
    }

    /// Starts the broker. Errors: the endpoint is not given or in use, keys cannot be read. A broker that cannot start makes no keys:
    /// they would come before the key in the inventory.
    pub fn start_broker(&self) -> Result<BrokerHandle, Failure> {
        let endpoint = self.endpoint()?;
        self.check_given_key()?;
        let admission = match &self.inventory {
            Some(inventory) if inventory.broker.ip_allowlist != ["*"] => {
                let entries = &inventory.broker.ip_allowlist;
                let list = AddressAllowlist::new(entries).map_err(|error| {
                    let path = KeyPath::root().key("broker").key("ip_allowlist");
                    let index = entries.iter().position(|entry| *entry == error.entry);
                    let path = index.map_or(path.clone(), |index| path.item(index));
                    Failure::configuration(inventory.error_at(&path, error.to_string()))
                })?;
                let refusals = Refusals::default();
                let list = list.on_denied(move |peer, reason| refusals.tell(&peer.address, reason));
                Some(Arc::new(list) as Arc<dyn norfab_transport::Admission>)
            }
            _ => None,
        };
        let keys = if self.encrypted {
            self.check_before_first_keys(endpoint)?;
            Some(self.broker_keys()?)
        } else {
            None
        };
        let options = RouterOptions { keys, admission, ..RouterOptions::default() };
        let link = Router::bind(&self.context, endpoint, options).map_err(|error| self.of_endpoint(error))?;
        let information = information::Information { site: self.clone() };
        BrokerHandle::start(BrokerOptions {
            name: BROKER_NAME.to_owned(),
            config: BrokerConfig { seed: seed(), ..BrokerConfig::default() },
            link: Box::new(link),
            information: Arc::new(information),
            workers_file: Some(self.directories.broker().join(WORKERS_FILE)),
        })
        .map_err(Failure::failed)
    }

    /// Connects under a name, with the keys in its folder, and tells what the log says of the link.
    fn dealer(&self, role: &str, name: &str, folder: &Path) -> Result<(Dealer, TellProblem), Failure> {
        let endpoint = self.endpoint()?;
        let keys = if self.encrypted {
            let own = KeyFolder::new(folder);
            Some(DealerKeys {
                own: own.load_or_create(name).map_err(keys::unusable)?,
                broker: self.broker_public_key(&own)?,
            })
        } else {
            None
        };
        let problem = self.tell_problem(role, folder, keys.as_ref().map(|keys| keys.broker));
        let options = DealerOptions { keys, ..DealerOptions::default() };
        if endpoint.ends_with(":*") || endpoint.ends_with(":0") {
            let text = format!("the broker at {endpoint} takes whatever port is free");
            return Err(Failure::configuration(text).hint(self.port_wanted()));
        }
        let link = Dealer::connect(&self.context, endpoint, name.as_bytes(), options);
        Ok((link.map_err(|error| self.of_endpoint(error))?, problem))
    }
}

/// The warnings about an inventory as they are told.
fn told_of(warnings: &[Warning], differences: Differences) -> Vec<String> {
    let differs = |warning: &&Warning| {
        matches!(warning.kind, WarningKind::Yaml12Differs { .. } | WarningKind::SecretYaml12Differs)
    };
    let first = warnings.iter().find(differs);
    let (Differences::Counted, Some(first)) = (differences, first) else {
        return warnings.iter().map(Warning::to_string).collect();
    };
    let others = warnings.iter().filter(|warning| !differs(warning) && warning.kind != WarningKind::More);
    let values = match warnings.iter().filter(differs).count() {
        1 => "1 value".to_owned(),
        count => format!("{count} values"),
    };
    let file = first.location.file.display();
    let summary = format!("{values} in {file} would read differently in YAML 1.2: 'norfab inventory' tells which");
    others.map(Warning::to_string).chain([summary]).collect()
}

/// The folder that the variable of Python NorFab names.
fn folder_of_python() -> Option<std::ffi::OsString> {
    std::env::var_os(FOLDER_VARIABLE).filter(|folder| !folder.is_empty())
}

/// What was given. A variable that is set to nothing is none.
fn given<Text: AsRef<OsStr> + Clone>(text: Option<&Text>) -> Option<Text> {
    text.filter(|text| !text.as_ref().is_empty()).cloned()
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

#[cfg(test)]
mod tests {
    use norfab_service::view::{LOG_LEVELS, LOG_RECORDS_DEFAULT, LOG_RECORDS_MAX};

    #[test]
    fn services_and_logs_mean_the_same_by_a_level_and_give_as_many_records() {
        assert_eq!(norfab_logs::Level::ALL.map(|level| level.as_str()), LOG_LEVELS);
        assert_eq!(
            (norfab_logs::read::LAST_DEFAULT, norfab_logs::read::LAST_MAX),
            (LOG_RECORDS_DEFAULT, LOG_RECORDS_MAX)
        );
    }
}
