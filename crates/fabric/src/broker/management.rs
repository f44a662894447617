//! Answers that need files, given on a thread of their own.

use norfab_protocol::broker::{AskId, AskKind};
use serde_json::{Map, Value};

use super::BrokerInformation;

pub(super) struct Question {
    pub(super) id: AskId,
    pub(super) kind: AskKind,
    pub(super) kwargs: Map<String, Value>,
}

pub(super) struct Answer {
    pub(super) id: AskId,
    pub(super) answer: Result<Value, String>,
}

pub(super) fn answer(information: &dyn BrokerInformation, question: Question) -> Result<Value, String> {
    match question.kind {
        AskKind::Inventory => information.inventory(),
        AskKind::Logs => information.logs(&question.kwargs).map(Value::Array),
        AskKind::WorkerInventory => {
            let name = question.kwargs.get("name").and_then(Value::as_str);
            let name = name.ok_or("get_inventory needs the argument 'name', a text")?;
            Ok(information.worker_inventory(name)?.unwrap_or(Value::Null))
        }
        AskKind::Stats | AskKind::Status | AskKind::ShowBroker | AskKind::Version => {
            unreachable!("the owner answers these itself")
        }
    }
}
