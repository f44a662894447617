//! A folder with an inventory, commands that run in it, and roles that live in it.

mod asking;
mod process;
mod redacted;
mod terminal;

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use serde_json::Value;

pub use asking::AskingWorker;
pub use process::{Ended, Role};
pub use redacted::redacted;
pub use terminal::OnTerminal;

/// Longest that a test waits for anything. Commands take milliseconds; a machine that builds at the same time does not.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// How often a condition is looked at.
const LOOK_INTERVAL: Duration = Duration::from_millis(10);

/// A fabric with one worker that allows shell commands.
pub const FABRIC: &str = r#"
broker:
  endpoint: "tcp://127.0.0.1:*"
topology:
  broker: true
workers:
  filesharing-worker-1:
    - base_dir: shared
      run_shell_cmd: true
"#;

/// A folder of its own, and where its broker is.
pub struct Lab {
    folder: tempfile::TempDir,
    endpoint: Mutex<Option<String>>,
}

impl Lab {
    /// An empty folder.
    pub fn empty() -> Self {
        Self { folder: tempfile::tempdir().expect("a folder"), endpoint: Mutex::new(None) }
    }

    /// A folder with this `inventory.yaml`.
    pub fn new(inventory: &str) -> Self {
        let lab = Self::empty();
        lab.write("inventory.yaml", inventory);
        std::fs::create_dir_all(lab.path("shared")).expect("a folder");
        lab
    }

    /// [`FABRIC`], up and registered.
    pub fn up() -> (Self, Role) {
        let lab = Self::new(FABRIC);
        let role = lab.start(&["up"]);
        role.ready("worker filesharing-worker-1");
        lab.registered(&["filesharing-worker-1"]);
        (lab, role)
    }

    /// Where a name in the folder is.
    pub fn path(&self, name: impl AsRef<Path>) -> PathBuf {
        self.folder.path().join(name)
    }

    pub fn write(&self, name: &str, content: impl AsRef<[u8]>) {
        let path = self.path(name);
        std::fs::create_dir_all(path.parent().expect("a folder")).expect("a folder");
        std::fs::write(path, content).expect("written");
    }

    pub fn read(&self, name: &str) -> String {
        std::fs::read_to_string(self.path(name)).expect("it is there")
    }

    /// The names in a folder, in their order.
    pub fn names(&self, folder: &str) -> Vec<String> {
        let entries = std::fs::read_dir(self.path(folder)).expect("a folder");
        let mut names: Vec<String> =
            entries.map(|entry| entry.expect("an entry").file_name().to_string_lossy().into_owned()).collect();
        names.sort();
        names
    }

    /// The broker's endpoint, once a role has told it.
    pub fn endpoint(&self) -> String {
        self.endpoint.lock().expect("no panic").clone().expect("a broker was started")
    }

    /// A command in this folder, with the broker that was started here.
    pub fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_norfab"));
        command.args(arguments).current_dir(self.folder.path());
        for (name, _) in std::env::vars_os() {
            if name.to_string_lossy().starts_with("NORFAB_") {
                command.env_remove(name);
            }
        }
        if let Some(endpoint) = &*self.endpoint.lock().expect("no panic") {
            command.env("NORFAB_ENDPOINT", endpoint);
        }
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    /// Runs a command to its end.
    pub fn run(&self, arguments: &[&str]) -> Ended {
        Role::spawn(self.command(arguments)).end()
    }

    /// Runs a command that must succeed, and reads the document that it prints.
    pub fn json(&self, arguments: &[&str]) -> Value {
        let ended = self.run(arguments);
        assert_eq!(ended.code, Some(0), "{arguments:?}: {ended:?}");
        ended.json()
    }

    /// Starts a command that goes on.
    pub fn spawn(&self, arguments: &[&str]) -> Role {
        Role::spawn(self.command(arguments))
    }

    /// Starts a broker, alone or with workers, waits until it serves and notes its endpoint.
    pub fn start(&self, arguments: &[&str]) -> Role {
        let role = self.spawn(arguments);
        let line = role.ready("broker NFPBroker");
        let endpoint = line.rsplit(' ').next().expect("words").to_owned();
        *self.endpoint.lock().expect("no panic") = Some(endpoint);
        role
    }

    /// Waits until the broker knows these workers and no others.
    pub fn registered(&self, names: &[&str]) {
        eventually(&format!("{names:?} are registered"), || {
            let rows = self.json(&["workers", "--json"]);
            let mut found: Vec<&str> =
                rows.as_array().expect("rows").iter().filter_map(|row| row["name"].as_str()).collect();
            found.sort_unstable();
            found == names
        });
    }

    /// Replaces what differs from run to run.
    pub fn redacted(&self, text: &str) -> String {
        let text = text.replace(&self.folder.path().display().to_string(), "[folder]");
        let text = match &*self.endpoint.lock().expect("no panic") {
            Some(endpoint) => text.replace(endpoint, "[endpoint]"),
            None => text,
        };
        redacted(&text)
    }
}

/// Waits for a condition.
pub fn eventually(what: &str, mut condition: impl FnMut() -> bool) {
    let end = Instant::now() + PATIENCE;
    while !condition() {
        assert!(Instant::now() < end, "not within {PATIENCE:?}: {what}");
        std::thread::sleep(LOOK_INTERVAL);
    }
}

/// A shell command that says that it runs, by a file, and ends when that file goes.
pub fn held_by(marker: &Path) -> String {
    let marker = marker.display();
    format!("command=touch '{marker}'; while test -e '{marker}'; do sleep 0.05; done; echo released")
}
