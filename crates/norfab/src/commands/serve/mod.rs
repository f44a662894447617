//! `norfab up`, `norfab broker`, `norfab worker`: the long-running roles.

mod running;
mod worker_data;

use std::time::Duration;

use norfab_inventory::TopologyWorker;
use norfab_logs::Role;
use serde_json::{Value, json};

use crate::args::Global;
use crate::exit::{Code, Failure, FailureDocument};
use crate::printer;
use crate::signals::Signals;
use crate::site::{BROKER_NAME, Site, SiteWorker, Without};
use running::Running;
use worker_data::WorkerData;

/// `norfab up`.
pub async fn up(global: &Global) -> Result<Code, Failure> {
    let mut site = Site::load_with(global, Without::Nothing, |topology| topology.starts_broker())?;
    let topology = site.inventory()?.topology.clone();
    warn_of_unused_sections(&site)?;
    warn_of_broken_workers(&site)?;
    let starts_broker = topology.starts_broker();
    if !starts_broker && topology.workers.is_empty() {
        let text = format!("the topology in {} has nothing to start", site.inventory_name());
        return Err(Failure::configuration(text).hint("set topology.broker to true, or list topology.workers"));
    }
    let (role, name) = log_owner(starts_broker, &topology.workers);
    let _logs = site.start_logs(global, role, name, true)?;
    let mut signals = Signals::new()?;
    let mut running = Running::default();
    if starts_broker {
        let broker = site.start_broker()?;
        site = site.with_endpoint(broker.endpoint());
        ready(global, "broker", BROKER_NAME, broker.endpoint());
        running.broker = Some(broker);
    }
    let broker_ended = running.ended();
    let started = tokio::select! {
        failed = start_groups(global, &site, &topology, &mut running) => Some(failed?),
        role = broker_ended => return stop(running, &mut signals, Some(role)).await,
        _ = signals.next() => None,
    };
    let mut ended = None;
    if let Some(failed) = started {
        if running.is_empty() {
            return Err(Failure::configuration(format!("nothing could be started: {} failed", failed.join(", "))));
        }
        ended = until_signalled(&running, &mut signals).await;
    }
    stop(running, &mut signals, ended).await
}

/// Says that what an inventory asks for in these sections does not happen here.
fn warn_of_unused_sections(site: &Site) -> Result<(), Failure> {
    let inventory = site.inventory()?;
    let used = |name: &&str| match inventory.section(name) {
        Value::Object(entries) => !entries.is_empty(),
        Value::Array(items) => !items.is_empty(),
        other => !other.is_null(),
    };
    let sections: Vec<&str> = ["hooks", "plugins"].into_iter().filter(used).collect();
    if !sections.is_empty() {
        site.warn(&format!(
            "{} in the inventory: this program runs none; they are for Python workers and clients",
            sections.join(" and ")
        ));
    }
    Ok(())
}

/// Says what the broker would refuse later, when the worker elsewhere asks for its data. What is wrong with workers that start here is
/// an error of theirs.
fn warn_of_broken_workers(site: &Site) -> Result<(), Failure> {
    let inventory = site.inventory()?;
    let here = |pattern: &str| inventory.topology.workers.iter().any(|worker| worker.name == pattern);
    for error in inventory.broken_workers(|pattern| !here(pattern)) {
        site.warn(&error.to_string());
    }
    Ok(())
}

/// Waits for a signal, or for the end of a role that nobody has stopped: its name comes back. A process without it would look
/// healthy to whoever watches over it.
async fn until_signalled(running: &Running, signals: &mut Signals) -> Option<String> {
    tokio::select! {
        _ = signals.next() => None,
        role = running.ended() => Some(role),
    }
}

/// Stops what runs. Errors: a role had ended before.
async fn stop(running: Running, signals: &mut Signals, ended: Option<String>) -> Result<Code, Failure> {
    let ended = ended.map(|role| format!("{role} has ended without being stopped; its log says why"));
    if let Some(text) = &ended {
        told(text);
    }
    running.stop(signals).await;
    ended.map_or(Ok(Code::Ok), |text| Err(Failure::failed(text).told()))
}

/// Tells an error at once, whatever the log shows, and puts it into the log's file.
fn told(text: &str) {
    printer::error(text);
    tracing::error!(told = true, "{text}");
}

/// Starts the workers of a topology, group after group. One that cannot start does not take the others down: why is told, and
/// its name comes back.
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
    let mut failed: Vec<String> = Vec::new();
    for group in topology.start_order() {
        let first = running.workers.len();
        let mut connected = Vec::new();
        for name in group {
            let needed = topology.workers.iter().filter(|worker| worker.name == name);
            let without: Vec<&str> = needed
                .flat_map(|worker| &worker.depends_on)
                .filter(|needed| failed.contains(needed))
                .map(String::as_str)
                .collect();
            if !without.is_empty() {
                let text = format!("worker {name} starts without {}, which could not start", without.join(", "));
                // At once, behind the reason: what the log shows may come later.
                site.warn(&text);
                tracing::warn!(told = true, "{text}");
            }
            match start(site, &mut data, &name) {
                Ok(worker) => {
                    connected.push(running::when_connected(&worker, telling(global, site.endpoint()?)));
                    running.workers.push(worker);
                }
                Err(failure) => {
                    not_started(global, &name, &failure);
                    failed.push(name);
                }
            }
            if !topology.workers_start_interval.is_zero() {
                tokio::time::sleep(topology.workers_start_interval).await;
            }
        }
        // What depends on this group starts when it is up; one that does not come up holds nobody longer than its time, and is
        // told when it does.
        let up = running::all(connected);
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
    let mut site = Site::load_with(global, Without::Listens, |_| true)?;
    if site.has_inventory() {
        warn_of_unused_sections(&site)?;
        warn_of_broken_workers(&site)?;
    }
    let _logs = site.start_logs(global, Role::Broker, BROKER_NAME, true)?;
    let mut signals = Signals::new()?;
    let broker = site.start_broker()?;
    ready(global, "broker", BROKER_NAME, broker.endpoint());
    let running = Running { broker: Some(broker), workers: Vec::new() };
    let ended = until_signalled(&running, &mut signals).await;
    stop(running, &mut signals, ended).await
}

/// How often it is looked whether the broker's key is there: it is waited for only once in the life of a folder.
const KEY_INTERVAL: Duration = Duration::from_millis(100);

/// Waits for the key of the broker that belongs to this inventory and has not run yet: services of one host are started in any
/// order. Errors: it is not there in time.
async fn wait_for_key(site: &Site, names: &[String], patience: Duration) -> Result<(), Failure> {
    let missing = || names.iter().find_map(|name| site.broker_key_to_come(name));
    let Some(first) = missing() else { return Ok(()) };
    let text = format!("waiting up to {} s (--wait-for-key) for the broker's first start", patience.as_secs_f64());
    printer::warning(&format!("{text}: {}", first.text));
    let there = async {
        while missing().is_some() {
            tokio::time::sleep(KEY_INTERVAL).await;
        }
    };
    tokio::time::timeout(patience, there).await.map_err(|_| missing().unwrap_or(first))
}

/// `norfab worker`.
pub async fn workers(
    global: &Global,
    names: &[String],
    service: Option<&str>,
    key_patience: Duration,
) -> Result<Code, Failure> {
    let mut site = Site::load_with(global, Without::Reaches, |_| false)?;
    let first = names.first().map_or("", String::as_str);
    let _logs = site.start_logs(global, Role::Worker, first, true)?;
    let mut signals = Signals::new()?;
    tokio::select! {
        there = wait_for_key(&site, names, key_patience) => there?,
        _ = signals.next() => return Ok(Code::Ok),
    }
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
            Ok(worker) => {
                // It goes on without us.
                drop(running::when_connected(&worker, telling(global, site.endpoint()?)));
                running.workers.push(worker);
            }
            Err(failure) => failed.push((name, failure)),
        }
    }
    if running.is_empty() {
        for (_, failure) in &failed {
            // The end of the command says them all, and the log's file has them too.
            tracing::error!(told = true, "{}", failure.text);
        }
        let none = "no worker could be started";
        return Err(match (failed.len(), failed.pop()) {
            (1, Some((_, failure))) => failure.of(none),
            (_, last) => {
                let texts: Vec<String> = failed.into_iter().chain(last).map(|(_, failure)| failure.text).collect();
                Failure::configuration(format!("{none}: {}", texts.join("; ")))
            }
        });
    }
    for (name, failure) in &failed {
        not_started(global, name, failure);
    }
    let ended = until_signalled(&running, &mut signals).await;
    stop(running, &mut signals, ended).await
}

fn start(site: &Site, data: &mut WorkerData, name: &str) -> Result<SiteWorker, Failure> {
    let data = data.take(name).map_err(|failure| failure.of(format!("worker {name}")))?;
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

/// Says why a worker cannot start, where others do.
fn not_started(global: &Global, name: &str, failure: &Failure) {
    told(&failure.text);
    if global.json {
        let FailureDocument { error, hint, .. } = failure.document();
        printer::json_line(&json!({ "failed": "worker", "name": name, "error": error, "hint": hint }));
    }
}

/// Tells later that a worker is ready.
fn telling(global: &Global, endpoint: &str) -> impl FnOnce(&str) + Send + 'static {
    let (global, endpoint) = (global.clone(), endpoint.to_owned());
    move |name| ready(&global, "worker", name, &endpoint)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use bytes::Bytes;
    use norfab_fabric::broker::{BrokerHandle, BrokerInformation, BrokerOptions};
    use norfab_protocol::broker::BrokerConfig;
    use norfab_transport::memory::{MemoryNetwork, MemoryRouter};
    use norfab_transport::{LinkError, Ready, Received, RouterLink, SendError, Waker};
    use serde_json::Map;

    use super::*;

    /// A link that breaks as soon as its owner has nothing else to do.
    struct Breaking(MemoryRouter);

    impl RouterLink for Breaking {
        fn try_send(&mut self, peer: &[u8], frames: &[Bytes]) -> Result<(), SendError> {
            self.0.try_send(peer, frames)
        }
        fn try_receive(&mut self) -> Result<Option<Received>, LinkError> {
            self.0.try_receive()
        }
        fn wait(&mut self, _: Option<Duration>) -> Result<Ready, LinkError> {
            Err(LinkError::EmptyMessage)
        }
        fn waker(&self) -> Waker {
            self.0.waker()
        }
        fn endpoint(&self) -> String {
            self.0.endpoint()
        }
        fn close(self: Box<Self>, linger: Duration) {
            Box::new(self.0).close(linger);
        }
    }

    struct Nothing;

    impl BrokerInformation for Nothing {
        fn worker_inventory(&self, _: &str) -> Result<Option<Value>, String> {
            Ok(None)
        }
        fn inventory(&self) -> Result<Value, String> {
            Ok(Value::Null)
        }
        fn logs(&self, _: &Map<String, Value>) -> Result<Vec<Value>, String> {
            Ok(Vec::new())
        }
        fn status(&self) -> Value {
            Value::Null
        }
    }

    #[tokio::test]
    async fn a_process_does_not_outlive_the_role_that_it_runs() {
        let link = Breaking(MemoryNetwork::new().router("memory").expect("free"));
        let broker = BrokerHandle::start(BrokerOptions {
            name: BROKER_NAME.to_owned(),
            config: BrokerConfig::default(),
            link: Box::new(link),
            information: Arc::new(Nothing),
            workers_file: None,
        })
        .expect("a thread");
        let mut signals = Signals::new().expect("signals");
        let running = Running { broker: Some(broker), workers: Vec::new() };
        let ended = until_signalled(&running, &mut signals).await;
        assert_eq!(ended.as_deref(), Some("the broker"));
        let failure = stop(running, &mut signals, ended).await.expect_err("it should not have ended");
        assert_eq!((failure.code, failure.is_told()), (Code::Failed, true));
    }
}
