//! Questions to the broker itself. What the registry knows is answered here; the rest is asked of the owner.

use std::time::Instant;

use serde_json::{Map, Value, json};

use super::{Broker, BrokerNote, BrokerOutput, INVENTORY_SERVICE, Purpose, error_value};
use crate::body::{self, ManagementBody};
use crate::frame::Status;
use crate::message::{BrokerToClient, ClientMessage, Reply};
use crate::name::{Identity, JobId, ServiceName};

/// The key of a worker in `show_workers` that says for how many seconds it has left requests unanswered. Where it answers there is no
/// such key.
pub const UNANSWERED_KEY: &str = "unanswered (s)";

/// Names a question until it is answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct AskId(u64);

/// What the owner is asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AskKind {
    /// `get_stats`.
    Stats,
    /// `get_status`.
    Status,
    /// `show_broker`, as 0.21 clients ask.
    ShowBroker,
    /// `show_broker_version`.
    Version,
    /// `show_broker_inventory`, secrets masked.
    Inventory,
    /// `get_logs`.
    Logs,
    /// `get_inventory` of the inventory service: the merged data of one worker.
    WorkerInventory,
}

/// A question to the owner.
#[derive(Debug, Clone)]
pub struct ManagementAsk {
    /// For the answer.
    pub id: AskId,
    /// What.
    pub kind: AskKind,
    /// Its arguments.
    pub kwargs: Map<String, Value>,
}

/// Who knows the answer to a task.
enum Answerer {
    Registry,
    Owner(AskKind),
}

/// Who answers a task, and what it takes; `None` for a task that there is not.
fn known(of_inventory: bool, task: &str) -> Option<(Answerer, &'static [&'static str])> {
    Some(match (of_inventory, task) {
        (true, "get_inventory") => (Answerer::Owner(AskKind::WorkerInventory), &["name"]),
        (false, "show_workers") => (Answerer::Registry, &["service", "status"]),
        (false, "get_stats") => (Answerer::Owner(AskKind::Stats), &[]),
        (false, "get_status") => (Answerer::Owner(AskKind::Status), &[]),
        (false, "show_broker") => (Answerer::Owner(AskKind::ShowBroker), &[]),
        (false, "show_broker_version") => (Answerer::Owner(AskKind::Version), &[]),
        (false, "show_broker_inventory") => (Answerer::Owner(AskKind::Inventory), &[]),
        (false, "get_logs") => (Answerer::Owner(AskKind::Logs), &["last", "level", "logger", "since", "until"]),
        _ => return None,
    })
}

#[derive(Debug)]
pub(super) struct PendingAsk {
    client: Identity,
    service: ServiceName,
    job: JobId,
}

impl Broker {
    /// The owner's answer to a question. An error reaches the client as an error body.
    pub fn answer(&mut self, id: AskId, answer: Result<Value, String>) {
        let Some(PendingAsk { client, service, job }) = self.asks.remove(&id) else {
            return;
        };
        match answer {
            Ok(value) => self.reply_management(&client, service, job, Status::OK, &value),
            Err(error) => self.reply_management(&client, service, job, Status::ERROR, &error_value(error)),
        }
    }

    pub(super) fn management_request(&mut self, now: Instant, client: &Identity, request: &ClientMessage) {
        let (service, job) = (request.service.clone(), request.job.clone());
        let body: ManagementBody = match body::decode("a management request", &request.body) {
            Ok(body) => body,
            Err(error) => {
                self.count_refusal(error.kind());
                self.reply_management(client, service, job, Status::REFUSED, &error_value(error.to_string()));
                self.note(BrokerNote::Refused { peer: client.to_string(), error });
                return;
            }
        };
        let task = body.task.as_deref().unwrap_or("None");
        let Some((answerer, takes)) = known(service.as_str() == INVENTORY_SERVICE, task) else {
            let answer = Value::String(format!("Unsupported task '{task}'"));
            self.reply_management(client, service, job, Status::OK, &answer);
            return;
        };
        // Passed over, as other brokers do, nobody would learn of a typing error.
        if let Some(unknown) = body.kwargs.keys().find(|name| !takes.contains(&name.as_str())) {
            let takes = if takes.is_empty() { "no arguments".to_owned() } else { takes.join(", ") };
            let error = format!("unknown argument '{unknown}': {task} takes {takes}");
            self.reply_management(client, service, job, Status::REFUSED, &error_value(error));
            return;
        }
        let kind = match answerer {
            Answerer::Owner(kind) => kind,
            Answerer::Registry => {
                let workers = self.show_workers(now, &body.kwargs);
                self.reply_management(client, service, job, Status::OK, &workers);
                return;
            }
        };
        if self.asks.len() >= self.config.asks_max {
            let error = format!("broker has {} management requests open, try again", self.asks.len());
            self.reply_management(client, service, job, Status::ERROR, &error_value(error));
            return;
        }
        let id = AskId(self.next_ask);
        self.next_ask += 1;
        self.asks.insert(id, PendingAsk { client: client.clone(), service, job });
        self.outputs.push_back(BrokerOutput::Ask(ManagementAsk { id, kind, kwargs: body.kwargs }));
    }

    /// Two messages, as the recorded broker sends them: clients take the second.
    pub(super) fn reply_management(
        &mut self,
        client: &Identity,
        service: ServiceName,
        job: JobId,
        status: Status,
        answer: &Value,
    ) {
        let reply = Reply { service, job, status, payload: body::encode(answer) };
        self.send(client.clone(), BrokerToClient::Response(reply.clone()).encode(), Purpose::Reply);
        self.send(client.clone(), BrokerToClient::Mmi(reply).encode(), Purpose::Reply);
    }

    fn show_workers(&self, now: Instant, kwargs: &Map<String, Value>) -> Value {
        let text = |key: &str| kwargs.get(key).and_then(Value::as_str).unwrap_or("all");
        let (service, status) = (text("service"), text("status"));
        let rows: Vec<Value> = self
            .registry
            .views(now)
            .into_iter()
            .filter(|worker| service == "all" || worker.service.as_str() == service)
            .filter(|_| status != "dead")
            .map(|worker| {
                let mut row = json!({
                    "name": worker.name,
                    "service": worker.service,
                    "status": "alive",
                    "holdtime": format!("{:.1}", worker.hold_time_left.as_secs_f64()),
                    "keepalives tx/rx": format!("{} / {}", worker.keepalives_sent, worker.keepalives_received),
                    "alive (s)": worker.age.as_secs().to_string(),
                });
                if let Some(unanswered) = worker.unanswered {
                    row[UNANSWERED_KEY] = format!("{:.1}", unanswered.as_secs_f64()).into();
                }
                row
            })
            .collect();
        if rows.is_empty() {
            // The recorded broker answers with one empty row, so that tables keep their columns.
            return json!([{ "name": "", "service": "", "status": "" }]);
        }
        Value::Array(rows)
    }
}
