//! `norfab up`, `norfab broker`, `norfab worker`: the long-running roles.

use std::collections::BTreeMap;
use std::time::Duration;

use norfab_fabric::broker::BrokerHandle;
use norfab_fabric::worker::WorkerHandle;
use norfab_fabric::{LinkState, client::ClientHandle};
use norfab_logs::Role;
use norfab_protocol::ServiceName;
use serde_json::{Map, Value, json};
use tokio::signal::unix::{SignalKind, signal};

use crate::args::Global;
use crate::exit::{Code, Failure};
use crate::printer;
use crate::site::{BROKER_NAME, Site};

/// How long running jobs have to end after SIGINT or SIGTERM; a second signal ends them at once.
const DRAIN: Duration = Duration::from_secs(10);

/// How long a broker may take to answer with a worker's inventory before it is asked again.
const INVENTORY_PATIENCE: Duration = Duration::from_secs(5);

/// `norfab up`.
pub async fn up(global: &Global) -> Result<Code, Failure> {
    let mut site = Site::load(global)?;
    let starts_broker = site.inventory()?.topology.starts_broker();
    if starts_broker {
        site = Site::load_as(&Global { quiet: global.quiet.max(1), ..global.clone() }, true)?;
    }
    let topology = site.inventory()?.topology.clone();
    if !starts_broker && topology.workers.is_empty() {
        return Err(Failure::configuration(
            "the topology in inventory.yaml has nothing to start: set topology.broker to true, or list topology.workers",
        ));
    }
    let _logs = site.start_logs(
        global,
        if starts_broker { Role::Broker } else { Role::Worker },
        default_name(starts_broker, &topology.workers),
        true,
    )?;
    let mut signals = Signals::new()?;
    let mut running = Running::default();
    if starts_broker {
        let broker = site.start_broker()?;
        site = site.with_endpoint(&connectable(broker.endpoint()));
        ready(global, "broker", BROKER_NAME, broker.endpoint());
        running.broker = Some(broker);
    }
    let mut failed = Vec::new();
    'groups: for group in topology.start_order() {
        let mut started = Vec::new();
        for name in group {
            match start_local(&site, &name) {
                Ok(worker) => started.push(worker),
                Err(failure) => {
                    eprintln!("error: {}", failure.text);
                    tracing::error!("{}", failure.text);
                    failed.push(name);
                }
            }
            if !topology.workers_start_interval.is_zero() && signals.within(topology.workers_start_interval).await {
                running.workers.extend(started);
                running.stop(&mut signals).await;
                return Ok(Code::Ok);
            }
        }
        for worker in started {
            // What depends on this group starts when it is up; one that does not come up holds nobody longer than its time.
            let connected = wait_connected(&worker, topology.workers_init_timeout);
            let connected = tokio::select! {
                connected = connected => connected,
                () = signals.next() => {
                    running.workers.push(worker);
                    break 'groups;
                }
            };
            if connected {
                ready(global, "worker", worker.identity().as_str(), site.endpoint()?);
            } else {
                let seconds = topology.workers_init_timeout.as_secs();
                eprintln!(
                    "error: worker {} did not reach its broker within {seconds} s; it goes on trying",
                    worker.identity()
                );
            }
            running.workers.push(worker);
        }
    }
    if running.is_empty() {
        return Err(Failure::configuration(format!("nothing could be started: {} failed", failed.join(", "))));
    }
    if !signals.came {
        signals.next().await;
    }
    running.stop(&mut signals).await;
    Ok(Code::Ok)
}

/// `norfab broker`.
pub async fn broker(global: &Global) -> Result<Code, Failure> {
    let mut site = Site::load_as(global, true)?;
    let _logs = site.start_logs(global, Role::Broker, BROKER_NAME, true)?;
    let mut signals = Signals::new()?;
    let broker = site.start_broker()?;
    ready(global, "broker", BROKER_NAME, broker.endpoint());
    signals.next().await;
    broker.stop().await;
    Ok(Code::Ok)
}

/// `norfab worker`.
pub async fn workers(global: &Global, names: &[String], service: Option<&str>) -> Result<Code, Failure> {
    let mut site = Site::load(global)?;
    let first = names.first().map_or("", String::as_str);
    let _logs = site.start_logs(global, Role::Worker, first, true)?;
    let mut signals = Signals::new()?;
    let mut data = tokio::select! {
        data = worker_data(&site, names, service) => data?,
        () = signals.next() => return Ok(Code::Interrupted),
    };
    let mut running = Running::default();
    let mut failed = Vec::new();
    for name in names {
        let started = match data.remove(name) {
            Some(Ok(data)) => site.start_worker(name, &data),
            Some(Err(problem)) => Err(Failure::configuration(format!("worker {name}: {problem}"))),
            None => Err(Failure::configuration(format!("worker {name}: named twice"))),
        };
        match started {
            Ok(worker) => running.workers.push(worker),
            Err(failure) => {
                eprintln!("error: {}", failure.text);
                tracing::error!("{}", failure.text);
                failed.push(name.as_str());
            }
        }
    }
    if running.is_empty() {
        return Err(Failure::configuration(format!("no worker could be started: {} failed", failed.join(", "))));
    }
    let endpoint = site.endpoint()?.to_owned();
    let all_ready = async {
        for worker in &running.workers {
            let mut state = worker.state();
            // An error says that the worker has ended, and its log says why.
            if state.wait_for(|state| *state == LinkState::Connected).await.is_ok() {
                ready(global, "worker", worker.identity().as_str(), &endpoint);
            }
        }
        std::future::pending::<()>().await;
    };
    tokio::select! {
        () = all_ready => {}
        () = signals.next() => {}
    }
    running.stop(&mut signals).await;
    Ok(Code::Ok)
}

fn default_name(starts_broker: bool, workers: &[norfab_inventory::TopologyWorker]) -> &str {
    match workers.first() {
        Some(first) if !starts_broker => &first.name,
        _ => BROKER_NAME,
    }
}

/// Starts a worker with the data of this host's inventory.
fn start_local(site: &Site, name: &str) -> Result<WorkerHandle, Failure> {
    let data = site
        .inventory()?
        .worker(name)
        .map_err(|error| Failure::configuration(format!("worker {name}: {error}")))?
        .ok_or_else(|| Failure::configuration(format!("worker {name}: {}", nothing_known(name))))?;
    site.start_worker(name, &data)
}

fn nothing_known(name: &str) -> String {
    format!("the inventory has no data for it: add '{name}' or a pattern that matches it under 'workers'")
}

/// The data of workers: the broker's where it knows them, else this host's, as Python workers do.
async fn worker_data(
    site: &Site,
    names: &[String],
    service: Option<&str>,
) -> Result<BTreeMap<String, Result<Value, String>>, Failure> {
    let mut all = BTreeMap::new();
    if let Some(service) = service {
        all.extend(names.iter().map(|name| (name.clone(), Ok(json!({ "service": service })))));
        return Ok(all);
    }
    let first = names.first().map_or("", String::as_str);
    let client = site.start_asking_client(&format!("{first}-NFPClient"))?;
    for name in names {
        let of_broker = ask_inventory(&client, name).await;
        let data = match of_broker {
            Ok(Some(data)) => Ok(data),
            Ok(None) if site.has_inventory() => match site.inventory()?.worker(name) {
                Ok(Some(data)) => Ok(data),
                Ok(None) => Err(nothing_known(name)),
                Err(error) => Err(error.to_string()),
            },
            Ok(None) => {
                Err(format!("the broker's inventory has no data for it: add '{name}' there, or give --service"))
            }
            Err(error) => Err(error),
        };
        all.insert(name.clone(), data);
    }
    client.stop().await;
    Ok(all)
}

/// Asks the broker for a worker's merged data, as long as it takes until there is a broker.
async fn ask_inventory(client: &ClientHandle, name: &str) -> Result<Option<Value>, String> {
    let service = ServiceName::parse(norfab_protocol::broker::INVENTORY_SERVICE).expect("a name");
    let mut kwargs = Map::new();
    kwargs.insert("name".to_owned(), name.into());
    loop {
        let mut state = client.state();
        state
            .wait_for(|state| *state == LinkState::Connected)
            .await
            .map_err(|_| "the client has stopped".to_owned())?;
        let answer = client.management(service.clone(), "get_inventory", kwargs.clone(), INVENTORY_PATIENCE).await;
        let answer = answer.map_err(|error| error.to_string())?;
        match answer.status.code() {
            200 if answer.results.is_null() => return Ok(None),
            200 => return Ok(Some(answer.results)),
            // Brokers in Python say nothing where the inventory has an error, so this looks like a broker that is away.
            408 => {
                tracing::warn!("the broker gives no inventory for worker {name}; asking again (see the broker's log)")
            }
            _ => return Err(answer.results["error"].as_str().unwrap_or("the broker refused").to_owned()),
        }
    }
}

async fn wait_connected(worker: &WorkerHandle, patience: Duration) -> bool {
    let mut state = worker.state();
    let connected = state.wait_for(|state| *state == LinkState::Connected);
    matches!(tokio::time::timeout(patience, connected).await, Ok(Ok(_)))
}

/// One line that scripts wait for.
fn ready(global: &Global, role: &str, name: &str, endpoint: &str) {
    if global.json {
        printer::json_line(&json!({ "ready": role, "name": name, "endpoint": endpoint }));
    } else {
        printer::line(&format!("ready: {role} {name} {endpoint}"));
    }
}

/// Where this host reaches a broker that listens on all of its addresses.
fn connectable(endpoint: &str) -> String {
    endpoint.replacen("//0.0.0.0:", "//127.0.0.1:", 1).replacen("//[::]:", "//localhost:", 1).replacen(
        "//*:",
        "//localhost:",
        1,
    )
}

#[derive(Default)]
struct Running {
    broker: Option<BrokerHandle>,
    workers: Vec<WorkerHandle>,
}

impl Running {
    fn is_empty(&self) -> bool {
        self.broker.is_none() && self.workers.is_empty()
    }

    /// Workers first, so that their last results find the broker. A second signal does not wait for jobs.
    async fn stop(self, signals: &mut Signals) {
        let mut stopping = tokio::task::JoinSet::new();
        for worker in self.workers {
            stopping.spawn(worker.stop(DRAIN));
        }
        let stopped = async { while stopping.join_next().await.is_some() {} };
        tokio::select! {
            () = stopped => {}
            () = signals.next() => eprintln!("stopping without waiting for running jobs"),
        }
        if let Some(broker) = self.broker {
            broker.stop().await;
        }
    }
}

struct Signals {
    interrupt: tokio::signal::unix::Signal,
    terminate: tokio::signal::unix::Signal,
    came: bool,
}

impl Signals {
    fn new() -> Result<Self, Failure> {
        Ok(Self {
            interrupt: signal(SignalKind::interrupt()).map_err(Failure::failed)?,
            terminate: signal(SignalKind::terminate()).map_err(Failure::failed)?,
            came: false,
        })
    }

    async fn next(&mut self) {
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
        }
        self.came = true;
    }

    /// Waits; `true`: a signal came first.
    async fn within(&mut self, time: Duration) -> bool {
        tokio::time::timeout(time, self.next()).await.is_ok()
    }
}
