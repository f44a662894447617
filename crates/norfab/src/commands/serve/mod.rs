//! `norfab up`, `norfab broker`, `norfab worker`: the long-running roles.

mod running;
mod worker_data;

use norfab_inventory::TopologyWorker;
use norfab_logs::Role;
use serde_json::json;

use crate::args::Global;
use crate::exit::{Code, Failure};
use crate::printer;
use crate::signals::Signals;
use crate::site::{BROKER_NAME, Site, SiteWorker};
use running::Running;
use worker_data::WorkerData;

/// `norfab up`.
pub async fn up(global: &Global) -> Result<Code, Failure> {
    let mut site = Site::load_with(global, |topology| topology.starts_broker())?;
    let topology = site.inventory()?.topology.clone();
    let starts_broker = topology.starts_broker();
    if !starts_broker && topology.workers.is_empty() {
        return Err(Failure::configuration(
            "the topology in inventory.yaml has nothing to start: set topology.broker to true, or list topology.workers",
        ));
    }
    let (role, name) = log_owner(starts_broker, &topology.workers);
    let _logs = site.start_logs(global, role, name, true)?;
    let mut signals = Signals::new()?;
    let mut running = Running::default();
    if starts_broker {
        let broker = site.start_broker()?;
        site = site.with_endpoint(&connectable(broker.endpoint()));
        ready(global, "broker", BROKER_NAME, broker.endpoint());
        running.broker = Some(broker);
    }
    let started = tokio::select! {
        failed = start_groups(global, &site, &topology, &mut running) => Some(failed?),
        _ = signals.next() => None,
    };
    if let Some(failed) = started {
        if running.is_empty() {
            return Err(Failure::configuration(format!("nothing could be started: {} failed", failed.join(", "))));
        }
        signals.next().await;
    }
    running.stop(&mut signals).await;
    Ok(Code::Ok)
}

/// Starts the workers of a topology, group after group. One that cannot start does not take the others down: the log says
/// why, and its name comes back.
async fn start_groups(
    global: &Global,
    site: &Site,
    topology: &norfab_inventory::Topology,
    running: &mut Running,
) -> Result<Vec<String>, Failure> {
    let names: Vec<String> = topology.workers.iter().map(|worker| worker.name.clone()).collect();
    let mut data = if topology.starts_broker() {
        WorkerData::of_this_host(site, &names)
    } else {
        WorkerData::of_broker(site, &names).await?
    };
    let mut failed = Vec::new();
    for group in topology.start_order() {
        let first = running.workers.len();
        for name in group {
            match start(site, &mut data, &name) {
                Ok(worker) => running.workers.push(worker),
                Err(failure) => {
                    tracing::error!("{}", failure.text);
                    failed.push(name);
                }
            }
            if !topology.workers_start_interval.is_zero() {
                tokio::time::sleep(topology.workers_start_interval).await;
            }
        }
        // What depends on this group starts when it is up; one that does not come up holds nobody longer than its time.
        let endpoint = site.endpoint()?;
        let up = running::all_connected(&running.workers[first..], |name| ready(global, "worker", name, endpoint));
        if tokio::time::timeout(topology.workers_init_timeout, up).await.is_err() {
            let late = running::not_connected(&running.workers[first..]);
            tracing::error!(
                "not connected to the broker within topology.workers_init_timeout, {} s: {}; they go on trying",
                topology.workers_init_timeout.as_secs(),
                late.join(", ")
            );
        }
    }
    Ok(failed)
}

/// `norfab broker`.
pub async fn broker(global: &Global) -> Result<Code, Failure> {
    let mut site = Site::load_with(global, |_| true)?;
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
    let mut data = match service {
        Some(service) => WorkerData::of_service(service, names),
        None => tokio::select! {
            data = WorkerData::of_broker(&site, names) => data?,
            _ = signals.next() => return Ok(Code::Ok),
        },
    };
    let mut running = Running::default();
    let mut failed = Vec::new();
    for name in names {
        match start(&site, &mut data, name) {
            Ok(worker) => running.workers.push(worker),
            Err(failure) => {
                tracing::error!("{}", failure.text);
                failed.push(name.as_str());
            }
        }
    }
    if running.is_empty() {
        return Err(Failure::configuration(format!("no worker could be started: {} failed", failed.join(", "))));
    }
    let endpoint = site.endpoint()?;
    let up = async {
        running::all_connected(&running.workers, |name| ready(global, "worker", name, endpoint)).await;
        std::future::pending().await
    };
    tokio::select! {
        () = up => {}
        _ = signals.next() => {}
    }
    running.stop(&mut signals).await;
    Ok(Code::Ok)
}

fn start(site: &Site, data: &mut WorkerData, name: &str) -> Result<SiteWorker, Failure> {
    let data = data.take(name).map_err(|problem| Failure::configuration(format!("worker {name}: {problem}")))?;
    site.start_worker(name, &data)
}

/// Whose log this process writes where no role of it is speaking.
fn log_owner(starts_broker: bool, workers: &[TopologyWorker]) -> (Role, &str) {
    match workers.first() {
        Some(first) if !starts_broker => (Role::Worker, &first.name),
        _ => (Role::Broker, BROKER_NAME),
    }
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
