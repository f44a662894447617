//! A folder with an inventory, and the roles that are started from it.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::Arc;
use std::sync::mpsc::sync_channel;
use std::thread;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Map, Value, json};
use tempfile::TempDir;

use crate::{Client, Dealer, Environment, Peer, ReservedPort, Security, Side, WAIT_LONG, norfab, ours};

/// Services that the binary ships.
const SHIPPED: &[&str] = &["filesharing"];

/// One host of a fabric: a base directory with `inventory.yaml`, read by Python peers and by ours alike.
///
/// The folder goes away with the last peer's site; the port stays reserved as long as one site of the fabric lives.
#[derive(Debug)]
pub struct Site {
    folder: TempDir,
    port: Arc<ReservedPort>,
    security: Security,
    broker_key: Option<String>,
    host: &'static str,
    namespace: Option<String>,
    variables: Vec<(&'static str, PathBuf)>,
    workers: Map<String, Value>,
    extra: Map<String, Value>,
}

impl Site {
    /// A site for a broker of its own, without workers yet.
    ///
    /// # Panics
    ///
    /// When the system gives no folder or port.
    #[must_use]
    pub fn new(security: Security) -> Self {
        Self::at(Arc::new(ReservedPort::new()), security, None)
    }

    /// Another host of the same fabric: the same endpoint, its own folder. It knows the broker's public key from the
    /// inventory alone, as there is no broker's folder to copy it from.
    #[must_use]
    pub fn elsewhere(&self, broker_key: Option<&str>) -> Self {
        let mut site = Self::at(Arc::clone(&self.port), self.security, broker_key.map(str::to_owned));
        site.host = self.host;
        site.workers.clone_from(&self.workers);
        site.write();
        site
    }

    /// Has the endpoint at another address of this machine.
    #[must_use]
    pub fn at_host(mut self, host: &'static str) -> Self {
        self.host = host;
        self.write();
        self
    }

    /// Has workers run in a network namespace of this machine, for the fault of a network that is cut.
    #[must_use]
    pub fn with_workers_in(mut self, namespace: &str) -> Self {
        self.namespace = Some(namespace.to_owned());
        self
    }

    /// Sets environment variables of all parts that are started here, to paths.
    #[must_use]
    pub fn with_variables(mut self, variables: impl IntoIterator<Item = (&'static str, PathBuf)>) -> Self {
        self.variables.extend(variables);
        self
    }

    /// A command for a part of this site.
    fn command(&self, mut command: Command) -> Command {
        command.envs(self.variables.iter().map(|(name, path)| (name, path)));
        command
    }

    /// A command for a worker, in the namespace of workers if there is one.
    fn worker_command(&self, command: Command) -> Command {
        let command = self.command(command);
        let Some(namespace) = &self.namespace else { return command };
        let mut inside = Command::new("ip");
        inside.args(["netns", "exec", namespace]).arg(command.get_program()).args(command.get_args());
        for (name, value) in command.get_envs() {
            match value {
                Some(value) => inside.env(name, value),
                None => inside.env_remove(name),
            };
        }
        inside
    }

    /// Adds a worker with the items of its inventory: objects, or paths below the folder.
    #[must_use]
    pub fn with_worker(mut self, name: &str, items: Value) -> Self {
        let items = if items.is_array() { items } else { json!([items]) };
        self.workers.insert(name.to_owned(), items);
        self.write();
        self
    }

    /// Adds a worker of `service` that needs nothing else.
    #[must_use]
    pub fn with_service(self, name: &str, service: &str) -> Self {
        self.with_worker(name, json!({"service": service}))
    }

    /// Sets a key of `inventory.yaml` besides `broker`, `workers` and `topology`.
    #[must_use]
    pub fn with_key(mut self, key: &str, value: Value) -> Self {
        self.extra.insert(key.to_owned(), value);
        self.write();
        self
    }

    /// The endpoint of the broker.
    #[must_use]
    pub fn endpoint(&self) -> String {
        format!("tcp://{}:{}", self.host, self.port.number())
    }

    /// How the broker's socket is secured.
    #[must_use]
    pub fn security(&self) -> Security {
        self.security
    }

    /// The base directory.
    #[must_use]
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// The inventory file.
    #[must_use]
    pub fn inventory(&self) -> PathBuf {
        self.folder().join("inventory.yaml")
    }

    /// The public key of the broker that was started here, as its certificate file has it; nothing without CURVE.
    ///
    /// # Panics
    ///
    /// When the file is missing or has no key.
    #[must_use]
    pub fn broker_key(&self) -> Option<String> {
        if self.security == Security::Plain {
            return None;
        }
        let file = self.folder().join("__norfab__/files/broker/public_keys/broker.key");
        let text = fs::read_to_string(&file).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
        let key = text.lines().find_map(|line| line.trim().strip_prefix("public-key = \""));
        let key = key.and_then(|key| key.strip_suffix('"'));
        Some(key.unwrap_or_else(|| panic!("{}: no key in {text:?}", file.display())).to_owned())
    }

    /// Starts the broker and waits until it serves.
    ///
    /// # Panics
    ///
    /// When it does not come up.
    #[must_use]
    pub fn start_broker(&self, side: Side) -> Peer {
        match side {
            Side::Python(release) => {
                let mut command = release.environment().script("python/broker.py");
                command.arg(self.inventory());
                Peer::start_driven("broker", self.command(command))
            }
            Side::Ours => {
                let mut command = norfab();
                command.arg("broker").arg("-i").arg(self.inventory());
                Peer::start_binary("broker", self.command(command))
            }
        }
    }

    /// Starts a worker of the inventory. That it is ready does not yet mean that the broker knows it: see
    /// [`Client::wait_for_workers`].
    ///
    /// # Panics
    ///
    /// When it does not come up.
    #[must_use]
    pub fn start_worker(&self, side: Side, name: &str) -> Peer {
        match side {
            Side::Python(release) => self.start_python_worker(release.environment(), name),
            Side::Ours => self.start_our_workers(&[name.to_owned()]),
        }
    }

    /// Starts several workers at once the way the side does it: Python forks a process for each from one parent, ours
    /// holds all of them in one.
    ///
    /// # Panics
    ///
    /// When they do not come up.
    #[must_use]
    pub fn start_workers(&self, side: Side, names: &[String]) -> Peer {
        match side {
            Side::Python(release) => {
                let mut command = release.environment().script("python/fleet.py");
                command.arg(self.inventory()).args(names);
                Peer::start_driven("fleet", self.worker_command(command))
            }
            Side::Ours => self.start_our_workers(names),
        }
    }

    /// Starts workers of ours: with the binary those of services that it ships, with the program of this package those
    /// of the dummy service.
    fn start_our_workers(&self, names: &[String]) -> Peer {
        let service = &self.workers[&names[0]][0]["service"];
        if SHIPPED.iter().any(|shipped| service == shipped) {
            let mut command = norfab();
            command.arg("worker").args(names).arg("-i").arg(self.inventory());
            return Peer::start_binary(&names[0], self.worker_command(command));
        }
        let mut command = ours("worker");
        command.arg(self.inventory()).args(names);
        Peer::start_driven(&names[0], self.worker_command(command))
    }

    /// Runs a command of our binary to its end, as a user of this site would.
    ///
    /// # Panics
    ///
    /// When it has not ended within [`WAIT_LONG`].
    #[must_use]
    pub fn run_norfab<'a>(&self, words: impl IntoIterator<Item = &'a str>) -> Output {
        let mut command = norfab();
        command.args(words).arg("-i").arg(self.inventory());
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let child = command.spawn().expect("the binary starts");
        let process = Pid::from_child(&child);
        let (sender, done) = sync_channel(1);
        thread::spawn(move || {
            // Nobody receives it if the time is over.
            drop(sender.send(child.wait_with_output()));
        });
        match done.recv_timeout(WAIT_LONG) {
            Ok(output) => output.expect("the output can be read"),
            Err(_) => {
                kill_process(process, Signal::KILL).expect("the process is ours");
                panic!("{command:?} does not end");
            }
        }
    }

    /// Starts a Python worker in an environment that has what its service needs.
    ///
    /// # Panics
    ///
    /// When it does not come up.
    #[must_use]
    pub fn start_python_worker(&self, environment: Environment, name: &str) -> Peer {
        let mut command = environment.script("python/worker.py");
        command.arg(self.inventory()).arg(name);
        Peer::start_driven(name, self.worker_command(command))
    }

    /// Starts a client.
    ///
    /// # Panics
    ///
    /// When it does not come up.
    #[must_use]
    pub fn start_client(&self, side: Side, name: &str) -> Client {
        let mut command = match side {
            Side::Python(release) => release.environment().script("python/client.py"),
            Side::Ours => ours("client"),
        };
        command.arg(self.inventory()).arg(name);
        Client::new(Peer::start_driven(name, self.command(command)))
    }

    /// A process for bare DEALER sockets to this site's broker. They use CURVE if `broker_key` is given.
    ///
    /// # Panics
    ///
    /// When it does not come up.
    #[must_use]
    pub fn start_dealer(&self, broker_key: Option<&str>) -> Dealer {
        let command = Environment::NorFab0250.script("python/dealer.py");
        Dealer::new(Peer::start_driven("dealer", command), self.endpoint(), broker_key.map(str::to_owned))
    }

    fn at(port: Arc<ReservedPort>, security: Security, broker_key: Option<String>) -> Self {
        let folder = tempfile::Builder::new().prefix("norfab-peers-").tempdir().expect("a temporary folder");
        let site = Self {
            folder,
            port,
            security,
            broker_key,
            host: "127.0.0.1",
            namespace: None,
            variables: Vec::new(),
            workers: Map::new(),
            extra: Map::new(),
        };
        site.write();
        site
    }

    /// Writes the inventory. JSON is YAML too.
    fn write(&self) {
        let mut broker = json!({"endpoint": self.endpoint(), "zmq_auth": self.security == Security::Curve});
        if let Some(key) = &self.broker_key {
            broker["shared_key"] = key.as_str().into();
        }
        let mut inventory = Map::new();
        inventory.insert("broker".to_owned(), broker);
        inventory.insert("workers".to_owned(), self.workers.clone().into());
        let names: Vec<&String> = self.workers.keys().collect();
        inventory.insert("topology".to_owned(), json!({"broker": true, "workers": names}));
        inventory.extend(self.extra.clone());
        let mut text = serde_json::to_string_pretty(&inventory).expect("a JSON value can be written");
        if let Some(key) = &self.broker_key {
            // Inventories are templates, and a key may hold what begins an expression.
            text = text.replace(key, &key.replace('{', "\\u007b"));
        }
        fs::write(self.inventory(), text).expect("the folder is ours");
    }
}
