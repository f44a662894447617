//! What workers are told: their service and their settings.

use std::collections::BTreeMap;
use std::time::Duration;

use norfab_fabric::LinkState;
use norfab_fabric::client::ClientHandle;
use norfab_protocol::ServiceName;
use norfab_protocol::broker::INVENTORY_SERVICE;
use serde_json::{Map, Value, json};

use crate::exit::Failure;
use crate::site::Site;

/// How long a broker may take to answer with a worker's inventory before it is asked again.
const INVENTORY_PATIENCE: Duration = Duration::from_secs(5);

/// The data of each worker, or why it has none.
pub struct WorkerData(BTreeMap<String, Result<Value, Failure>>);

impl WorkerData {
    /// What this host's inventory says.
    pub fn of_this_host(site: &Site, names: &[String]) -> Self {
        Self(names.iter().map(|name| (name.clone(), local(site, name))).collect())
    }

    /// Their service only.
    pub fn of_service(service: &str, names: &[String]) -> Self {
        Self(names.iter().map(|name| (name.clone(), Ok(json!({ "service": service })))).collect())
    }

    /// The broker's where it knows them, else this host's, as Python workers do. Waits for the broker as long as it takes.
    /// Errors: no client can be started to ask with.
    pub async fn of_broker(site: &Site, names: &[String]) -> Result<Self, Failure> {
        let first = names.first().map_or("", String::as_str);
        let client = site.start_asking_client(&format!("{first}-NFPClient"))?;
        let mut all = BTreeMap::new();
        for name in names {
            let data = match ask(site, &client, name).await {
                Ok(Some(data)) => Ok(data),
                Ok(None) => match site.worker_data(name) {
                    Ok(Some(data)) => Ok(data),
                    Ok(None) => Err(unknown_to_broker(site, name)),
                    Err(error) => Err(Failure::inventory(&error)),
                },
                Err(error) => Err(Failure::configuration(error)),
            };
            all.insert(name.clone(), data);
        }
        client.stop().await;
        Ok(Self(all))
    }

    /// The data of one worker. Errors: it has none, or was taken before.
    pub fn take(&mut self, name: &str) -> Result<Value, Failure> {
        let twice = || Failure::configuration("it is named twice").hint("name each worker once");
        self.0.remove(name).unwrap_or_else(|| Err(twice()))
    }
}

fn local(site: &Site, name: &str) -> Result<Value, Failure> {
    site.worker_data(name).map_err(|error| Failure::inventory(&error))?.ok_or_else(|| {
        Failure::configuration("the inventory has no data for it")
            .hint(format!("add '{name}' or a pattern that matches it under 'workers'"))
    })
}

/// Says whose inventory has nothing. A broker reads its own when it starts.
fn unknown_to_broker(site: &Site, name: &str) -> Failure {
    let here = if site.has_inventory() { ", nor has the one here" } else { "" };
    Failure::configuration(format!("the broker's inventory has no data for it{here}")).hint(format!(
        "add '{name}' or a pattern that matches it under 'workers' there and restart the broker, which reads inventory.yaml when \
         it starts; or name a service with --service"
    ))
}

/// Asks the broker for a worker's merged data.
async fn ask(site: &Site, client: &ClientHandle, name: &str) -> Result<Option<Value>, String> {
    let service = ServiceName::parse(INVENTORY_SERVICE).expect("a name");
    let mut kwargs = Map::new();
    kwargs.insert("name".to_owned(), name.into());
    loop {
        wait_connected(site, client, name).await?;
        let answer = client.management(service.clone(), "get_inventory", kwargs.clone(), INVENTORY_PATIENCE).await;
        let answer = answer.map_err(|error| error.to_string())?;
        match answer.status.code() {
            200 if answer.results.is_null() => return Ok(None),
            200 => return Ok(Some(answer.results)),
            // Brokers in Python say nothing where the inventory has an error, so this looks like a broker that is away.
            408 => {
                tracing::warn!("the broker gives no inventory for worker {name}; asking again (see the broker's log)")
            }
            code => {
                let error = answer.results["error"].as_str().map_or(format!("status {code}"), str::to_owned);
                return Err(format!("the broker gives no inventory for it: {error}"));
            }
        }
    }
}

/// Waits for the broker, and says what it waits for whenever that changes.
async fn wait_connected(site: &Site, client: &ClientHandle, name: &str) -> Result<(), String> {
    let mut state = client.state();
    let mut told = None;
    loop {
        let (connected, problem) = {
            let now = state.borrow_and_update();
            (*now == LinkState::Connected, site.problem_of_asking(client.identity(), &now))
        };
        if connected {
            return Ok(());
        }
        if let Some(problem) = problem
            && told.as_ref() != Some(&problem)
        {
            tracing::warn!("worker {name} waits for its broker: {problem}");
            told = Some(problem);
        }
        state.changed().await.map_err(|_| "the client has stopped".to_owned())?;
    }
}
