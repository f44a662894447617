//! The services that are built into this binary.

use std::path::Path;
use std::sync::Arc;

use norfab_file_sharing::{FileSharingError, RemotesHome};
use norfab_service::{BuiltinPolicy, Service};
use serde_json::Value;

/// Name of the file sharing service in inventories.
pub const FILE_SHARING: &str = "filesharing";

/// The services that [`build`] knows, as errors list them.
const BUILT_IN: [&str; 1] = [FILE_SHARING];

/// A value in a worker's data that cannot be used.
#[derive(Debug)]
pub struct WrongSetting {
    /// Its key.
    pub key: &'static str,
    /// What was expected and found.
    pub problem: String,
}

/// What to do about data that names no service.
const NAME_ADVICE: &str = "add 'service: NAME'";

/// What to do about a service that others have.
const PYTHON_ADVICE: &str = "start this worker with Python NorFab on any host, it connects to the same broker";

/// Why a worker has no service.
#[derive(Debug, thiserror::Error)]
pub enum ServiceProblem {
    /// Its data names none.
    #[error("its inventory data names no service: {NAME_ADVICE}")]
    NoName,
    /// Not one of ours.
    #[error("service '{0}' is not built into this program (it has: {built_in}): {PYTHON_ADVICE}", built_in = BUILT_IN.join(", "))]
    NotBuiltIn(String),
    /// A setting that all services share.
    #[error("{}: {}", .0.key, .0.problem)]
    Setting(WrongSetting),
    /// The file sharing says why.
    #[error(transparent)]
    FileSharing(#[from] norfab_file_sharing::FileSharingError),
}

impl ServiceProblem {
    /// What to do, with which the text ends. `None`: it does not end so.
    pub fn advice(&self) -> Option<&'static str> {
        match self {
            Self::NoName => Some(NAME_ADVICE),
            Self::NotBuiltIn(_) => Some(PYTHON_ADVICE),
            // Services say it themselves.
            _ => None,
        }
    }
}

impl From<WrongSetting> for ServiceProblem {
    fn from(wrong: WrongSetting) -> Self {
        Self::Setting(wrong)
    }
}

/// Makes the service that a worker's merged data asks for. `remotes`: what git remotes need of the worker, whose folder is ours.
pub fn build(
    data: &Value,
    base_dir: &Path,
    remotes: impl FnOnce() -> RemotesHome,
) -> Result<Arc<Service>, ServiceProblem> {
    let name = data.get("service").and_then(Value::as_str).ok_or(ServiceProblem::NoName)?;
    let service = match name {
        FILE_SHARING => {
            norfab_file_sharing::service_with_remotes(data, base_dir, remotes()).map_err(of_file_sharing)?
        }
        other => return Err(ServiceProblem::NotBuiltIn(other.to_owned())),
    };
    Ok(Arc::new(service.with_builtin_tasks(policy(data)?)))
}

/// What is wrong with the file sharing; what a key is to blame for names it.
fn of_file_sharing(error: FileSharingError) -> ServiceProblem {
    match error {
        FileSharingError::Key { key, expected, found } => {
            WrongSetting { key, problem: format!("expected {expected}, found {found}") }.into()
        }
        FileSharingError::Folder { .. } => WrongSetting { key: "base_dir", problem: error.to_string() }.into(),
        error => ServiceProblem::FileSharing(error),
    }
}

/// Which built-in tasks a worker's data allows: `run_shell_cmd: true` allows shell commands. Errors: it is neither true nor
/// false, which nobody should have to guess at.
pub fn policy(data: &Value) -> Result<BuiltinPolicy, WrongSetting> {
    let shell = match data.get(RUN_SHELL_CMD) {
        None | Some(Value::Null) => false,
        Some(Value::Bool(shell)) => *shell,
        Some(value) => {
            return Err(WrongSetting { key: RUN_SHELL_CMD, problem: format!("expected true or false, found {value}") });
        }
    };
    Ok(BuiltinPolicy { shell })
}

/// The key that allows shell commands.
const RUN_SHELL_CMD: &str = "run_shell_cmd";
