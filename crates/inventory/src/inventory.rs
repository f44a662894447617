//! An inventory: the file, its environment, and its sections as types.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde_json::{Map, Value};

use crate::broker::Broker;
use crate::dotenv;
use crate::error::{InventoryError, ValueProblem};
use crate::key_path::{KeyPath, Lines};
use crate::location::{Location, Source};
use crate::section::{Origin, Section};
use crate::template::Environment;
use crate::text_file;
use crate::topology::{Topology, TopologyWorker};
use crate::unknown_key::{misspelt_endpoint, unknown_keys};
use crate::warning::Warning;
use crate::worker_data::FILESHARING_WORKER;

/// The file of variables beside an inventory.
pub(crate) const DOTENV_FILE: &str = ".env";

/// The sections that NorFab knows, in the order in which it shows them.
pub(crate) const SECTIONS: [&str; 7] = ["broker", "workers", "topology", "logging", "client", "hooks", "plugins"];

/// What loading depends on beside the file.
#[derive(Debug, Clone)]
pub struct LoadOptions {
    /// The environment variables that templates see as `env`, before `.env` is added.
    pub env: Environment,
    /// Whether `.env` wins over variables that exist; NorFab's default.
    pub env_override: bool,
    /// What relative paths count from and where NorFab keeps its files; the folder of the inventory if `None`.
    pub base_dir: Option<PathBuf>,
}

impl Default for LoadOptions {
    fn default() -> Self {
        Self { env: Environment::new(), env_override: true, base_dir: None }
    }
}

/// A loaded and checked inventory. It never changes after loading, except that the built-in worker can be added.
#[derive(Debug, Clone)]
pub struct Inventory {
    /// The `broker` section.
    pub broker: Broker,
    /// The `topology` section.
    pub topology: Topology,
    /// What the authors of the inventory and of `.env` should know.
    pub warnings: Vec<Warning>,
    root: Map<String, Value>,
    base_dir: PathBuf,
    environment: Environment,
    source: Source,
    lines: Arc<Lines>,
    built_in_filesharing: bool,
}

impl Inventory {
    /// Loads an `inventory.yaml` with the `.env` beside it.
    ///
    /// # Errors
    ///
    /// Every [`InventoryError`] of reading, rendering, parsing and checking. Worker files are not read yet.
    pub fn load(path: &Path, options: &LoadOptions) -> Result<Self, InventoryError> {
        let file = absolute(path)?;
        let base_dir = match (&options.base_dir, file.parent()) {
            (Some(base_dir), _) => absolute(base_dir)?,
            (None, Some(folder)) => folder.to_path_buf(),
            (None, None) => return Err(InventoryError::NotAFile { file }),
        };
        // `.env` is read before the inventory, which may use its variables; but a wrong path should be told first.
        if !file.exists() {
            return Err(InventoryError::NoSuchFile { file: path.to_path_buf() });
        }
        // Named as the inventory was, so that a warning does not show a longer path than an error.
        let (environment, mut warnings) = with_dotenv(path.parent().unwrap_or(path), options)?;
        let loaded = text_file::load(path, &environment)?;
        warnings.extend(loaded.document.warnings);
        Self::checked(Parts {
            value: loaded.document.value,
            lines: loaded.document.lines,
            source: loaded.source,
            base_dir,
            environment,
            warnings,
        })
    }

    /// Takes an inventory that is data already. Its `.env` is looked for in the base folder, which is the current one
    /// unless the options say otherwise.
    ///
    /// # Errors
    ///
    /// As [`load`](Self::load); locations have no line.
    pub fn from_value(value: Value, options: &LoadOptions) -> Result<Self, InventoryError> {
        let base_dir = absolute(options.base_dir.as_deref().unwrap_or(Path::new(".")))?;
        let (environment, warnings) = with_dotenv(&base_dir, options)?;
        Self::checked(Parts {
            value,
            lines: Arc::new(Lines::default()),
            source: Source::of_file(Path::new("inventory")),
            base_dir,
            environment,
            warnings,
        })
    }

    fn checked(mut parts: Parts) -> Result<Self, InventoryError> {
        let origin = Origin { source: &parts.source, lines: &parts.lines };
        let root_path = KeyPath::root();
        let mut root = match parts.value {
            Value::Object(root) if !root.is_empty() => root,
            Value::Null | Value::Object(_) => return Err(origin.error(&root_path, ValueProblem::EmptyInventory)),
            other => {
                return Err(origin.unexpected(&root_path, "a mapping of sections such as broker and workers", &other));
            }
        };
        // A section with nothing in it is as good as none. NorFab takes that too, but for the topology.
        for name in SECTIONS {
            if name != "topology" && root.get(name) == Some(&Value::Null) {
                root.insert(name.to_owned(), Value::Object(Map::new()));
            }
            Section::of(origin, &root, name)?;
        }
        if let Some(Value::Object(topology)) = root.get_mut("topology")
            && let Some(workers @ Value::Null) = topology.get_mut("workers")
        {
            *workers = Value::Array(Vec::new());
        }
        parts.warnings.extend(unknown_keys(origin, &root));
        let broker = Broker::read(Section::of(origin, &root, "broker")?.as_ref())?;
        let topology = Topology::read(Section::of(origin, &root, "topology")?.as_ref(), &mut parts.warnings)?;
        Ok(Self {
            broker,
            topology,
            warnings: parts.warnings,
            root,
            base_dir: parts.base_dir,
            environment: parts.environment,
            source: parts.source,
            lines: parts.lines,
            built_in_filesharing: false,
        })
    }

    /// Adds the worker that the process with the broker starts by itself: `filesharing-worker-1` with this inventory's
    /// folder. What the inventory says about that worker under its own name is merged over it, and the worker becomes
    /// the first of the topology unless it is listed there.
    #[must_use]
    pub fn with_builtin_filesharing(mut self) -> Self {
        self.built_in_filesharing = true;
        if !self.topology.workers.iter().any(|worker| worker.name == FILESHARING_WORKER) {
            self.topology
                .workers
                .insert(0, TopologyWorker { name: FILESHARING_WORKER.to_owned(), depends_on: Vec::new() });
        }
        self
    }

    /// Whether [`with_builtin_filesharing`](Self::with_builtin_filesharing) was called.
    pub fn has_builtin_filesharing(&self) -> bool {
        self.built_in_filesharing
    }

    /// The endpoint of the broker.
    ///
    /// # Errors
    ///
    /// The inventory has none.
    pub fn broker_endpoint(&self) -> Result<&str, InventoryError> {
        self.broker.endpoint.as_deref().ok_or_else(|| {
            let path = KeyPath::root().key("broker").key("endpoint");
            self.origin().error(
                &path,
                ValueProblem::Missing { example: "`endpoint: tcp://127.0.0.1:5555` to the broker section" },
            )
        })
    }

    /// The key of the broker section that was meant to be `endpoint`, and where it stands, if there is one.
    pub fn misspelt_endpoint(&self) -> Option<(Location, &str)> {
        let section = Section::of(self.origin(), &self.root, "broker").ok().flatten()?;
        let key = misspelt_endpoint(&section)?;
        Some((self.origin().location(&section.path.key(key)), key))
    }

    /// What relative paths count from, absolute.
    pub fn base_dir(&self) -> &Path {
        &self.base_dir
    }

    /// The variables that templates see: those of the options and of `.env`.
    pub fn environment(&self) -> &Environment {
        &self.environment
    }

    /// A section as it was loaded, such as `logging` or one that we do not know; empty if there is none.
    pub fn section(&self, name: &str) -> Value {
        self.root.get(name).cloned().unwrap_or_else(|| Value::Object(Map::new()))
    }

    /// The patterns of the `workers` section and what they list, unchecked, in the order of the file.
    pub fn workers(&self) -> impl Iterator<Item = (&str, &Value)> {
        let section = self.root.get("workers").and_then(Value::as_object);
        section.into_iter().flatten().map(|(pattern, listed)| (pattern.as_str(), listed))
    }

    /// An error about what stands at `path`, found by whoever uses the value; `problem` says what was expected and found.
    pub fn error_at(&self, path: &KeyPath, problem: impl Into<String>) -> InventoryError {
        self.origin().error(path, ValueProblem::Refused { problem: problem.into() })
    }

    pub(crate) fn origin(&self) -> Origin<'_> {
        Origin { source: &self.source, lines: &self.lines }
    }
}

/// What loading found before it is checked.
struct Parts {
    value: Value,
    lines: Arc<Lines>,
    source: Source,
    base_dir: PathBuf,
    environment: Environment,
    warnings: Vec<Warning>,
}

fn absolute(path: &Path) -> Result<PathBuf, InventoryError> {
    std::path::absolute(path)
        // `.` at the end would otherwise show in every path that is made from it.
        .map(|path| path.components().collect())
        .map_err(|source| InventoryError::Read { file: path.to_path_buf(), source })
}

/// The environment with the `.env` of `folder`, if it has one.
fn with_dotenv(folder: &Path, options: &LoadOptions) -> Result<(Environment, Vec<Warning>), InventoryError> {
    let file = folder.join(DOTENV_FILE);
    match text_file::read(&file) {
        Ok(text) => Ok(dotenv::merged(&text, &file, &options.env, options.env_override)),
        Err(InventoryError::NoSuchFile { .. } | InventoryError::NotAFile { .. }) => {
            Ok((options.env.clone(), Vec::new()))
        }
        Err(error) => Err(error),
    }
}
