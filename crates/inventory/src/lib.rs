//! inventory.yaml: templates, merging, topology, checked types.
//!
//! A file is read ([`Inventory::load`]), rendered as a Jinja2 template with the environment and the `.env` beside it
//! ([`template`], [`dotenv`]), parsed as YAML 1.1 the way PyYAML does ([`yaml`]), and its sections are checked. The data
//! of a worker is put together only when it is asked for ([`Inventory::worker`]), from files that are read anew each
//! time. What an author should know without being stopped are [`Warning`]s.
//!
//! Reading order: `inventory`, `topology` and `broker` (what is checked), `worker_data` and `merge` (what a worker
//! gets), `template`, `dotenv` and `yaml` (how a file becomes data), `masked` (what may be shown), `directories` and
//! `sample` (what lies around an inventory).
//!
//! Nothing here reads the process's environment or changes it: variables come in as a map.

mod broker;
pub mod directories;
pub mod dotenv;
mod error;
mod inventory;
mod key_path;
mod location;
mod masked;
mod merge;
pub mod pattern;
mod sample;
mod section;
pub mod template;
mod text_file;
mod topology;
mod unknown_key;
mod warning;
mod worker_data;
pub mod yaml;

pub use broker::Broker;
pub use directories::Directories;
pub use error::{InventoryError, ValueProblem, YamlProblem};
pub use inventory::{Inventory, LoadOptions};
pub use key_path::{KeyPath, Lines};
pub use location::{Location, Source};
pub use masked::masked_inventory;
pub use merge::merge_into;
pub use sample::create_environment;
pub use template::Environment;
pub use topology::{Topology, TopologyWorker, WORKERS_INIT_TIMEOUT};
pub use warning::{Warning, WarningKind};
pub use worker_data::{BROKEN_MAX, FILESHARING_WORKER, WorkerData};
