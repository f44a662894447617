//! The demo's service: devices that are simulated.

use norfab_protocol::ServiceName;
use norfab_protocol::body::EventStatus;
use norfab_service::{BuiltinPolicy, EventDraft, NoInput, Question, Service, Task, TaskContext, TaskError, schemars};
use serde_json::{Map, Value, json};

use crate::exit::Failure;

#[derive(serde::Deserialize, schemars::JsonSchema)]
struct Deploy {
    /// Configuration lines.
    lines: Vec<String>,
}

#[derive(serde::Deserialize, schemars::JsonSchema)]
struct Reload {
    /// Which device.
    device: String,
}

fn devices(context: &TaskContext) -> Vec<String> {
    let inventory = context.inventory();
    let devices = inventory["devices"].as_array().into_iter().flatten();
    devices.filter_map(|device| device.as_str().map(str::to_owned)).collect()
}

/// The service.
pub fn service() -> Result<Service, Failure> {
    let name = ServiceName::parse("lab").map_err(Failure::failed)?;
    Ok(Service::new(name)
        .task(Task::new(
            "show_version",
            "Shows the version of each device.",
            async |context: TaskContext, NoInput {}| {
                let versions: Map<String, Value> =
                    devices(&context).into_iter().map(|device| (device, json!("LabOS 4.2, uptime 3 weeks"))).collect();
                Ok(Value::Object(versions))
            },
        ))
        .task(Task::new(
            "deploy",
            "Configures each device after a person agreed.",
            async |context: TaskContext, input: Deploy| {
                let devices = devices(&context);
                let question = Question::new(format!("put {} line(s) on {}?", input.lines.len(), devices.join(", ")));
                let agreed = context.ask(question.default(json!(false)).timeout(60)).await?;
                if agreed != json!(true) {
                    return Err(TaskError::new("nobody agreed"));
                }
                let mut done = Map::new();
                for device in devices {
                    let draft = EventDraft::new("configured").resource(&*device).status(EventStatus::Completed);
                    context.event(draft).await?;
                    done.insert(device, json!(input.lines));
                }
                Ok(Value::Object(done))
            },
        ))
        .task(Task::new("reload", "Reloads one device.", async |context: TaskContext, input: Reload| {
            let devices = devices(&context);
            if !devices.contains(&input.device) {
                return Err(TaskError::new(format!(
                    "no device '{}' here: there are {}",
                    input.device,
                    devices.join(", ")
                )));
            }
            Ok(json!("reloaded"))
        }))
        .with_builtin_tasks(BuiltinPolicy::default()))
}
