//! `norfab demo`: a whole fabric at work, without any preparation.
//!
//! Broker, workers and client run in this process with CURVE on a free port, in a temporary folder. What is shown is what
//! the commands show, after the command that would show it.

use std::sync::Arc;
use std::time::{Duration, Instant};

use norfab_fabric::client::{ClientHandle, JobSpec};
use norfab_fabric::worker::WorkerHandle;
use norfab_protocol::body::{EventStatus, InputResponse};
use norfab_protocol::broker::MANAGEMENT_SERVICE;
use norfab_protocol::client::JobUpdate;
use norfab_protocol::target::Target;
use norfab_protocol::{ServiceName, TaskName};
use norfab_service::{BuiltinPolicy, EventDraft, NoInput, Question, Service, Task, TaskContext, TaskError, schemars};
use serde_json::{Map, Value, json};

use super::connected;
use crate::args::Global;
use crate::exit::{Code, Failure};
use crate::printer;
use crate::site::{BROKER_NAME, Site};

/// Where the demo's broker listens: a free port of this host.
const ENDPOINT: &str = "tcp://127.0.0.1:*";

/// The demo's devices: worker and what it looks after.
const WORKERS: [(&str, [&str; 2]); 3] =
    [("lab-1", ["core-1", "core-2"]), ("lab-2", ["edge-1", "edge-2"]), ("lab-3", ["leaf-1", "leaf-2"])];

pub async fn run(global: &Global) -> Result<Code, Failure> {
    let folder = tempfile::tempdir().map_err(Failure::failed)?;
    let inventory = folder.path().join("inventory.yaml");
    let shared = folder.path().join("files");
    std::fs::create_dir_all(&shared).map_err(Failure::failed)?;
    std::fs::write(shared.join("welcome.txt"), "This file came through the fabric.\n").map_err(Failure::failed)?;
    std::fs::write(&inventory, format!("broker:\n  endpoint: \"{ENDPOINT}\"\ntopology:\n  broker: true\n"))
        .map_err(Failure::failed)?;
    let own = Global {
        inventory: Some(inventory),
        base_dir: None,
        endpoint: None,
        broker_key: None,
        name: Some("demo".to_owned()),
        ..global.clone()
    };
    let mut site = Site::load(&own)?;
    let _logs = site.start_logs(&own, norfab_logs::Role::Broker, BROKER_NAME, true)?;

    let broker = site.start_broker()?;
    site = site.with_endpoint(broker.endpoint());
    let key = site.broker_keys()?.public.fingerprint();
    printer::line(&format!("broker listens at {} with CURVE, key fingerprint {key}", broker.endpoint()));
    let mut workers: Vec<WorkerHandle> = Vec::new();
    for (name, devices) in WORKERS {
        let data = json!({ "service": "lab", "devices": devices });
        workers.push(site.start_worker_with(name, &data, Arc::new(lab()?))?);
    }
    let data = json!({ "service": "filesharing", "base_dir": shared.display().to_string() });
    workers.push(site.start_worker("filesharing-worker-1", &data)?);
    let slot = site.client_slot()?;
    let client = site.start_client(&slot)?;
    let shown = async {
        connected(&client, broker.endpoint()).await?;
        registered(&client, workers.len()).await?;
        show(&client, folder.path()).await
    }
    .await;
    client.stop().await;
    let mut stopping = tokio::task::JoinSet::new();
    for worker in workers {
        stopping.spawn(worker.stop(Duration::from_secs(1)));
    }
    while stopping.join_next().await.is_some() {}
    broker.stop().await;
    shown?;
    printer::line("");
    printer::line(
        "That was the demo; nothing of it stays. Your own environment: norfab init DIR && cd DIR && norfab up",
    );
    Ok(Code::Ok)
}

async fn registered(client: &ClientHandle, count: usize) -> Result<(), Failure> {
    let until = tokio::time::Instant::now() + Duration::from_secs(20);
    loop {
        if show_workers(client).await?.len() >= count {
            return Ok(());
        }
        if tokio::time::Instant::now() > until {
            return Err(Failure::failed("the demo's workers did not register within 20 s"));
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

async fn show_workers(client: &ClientHandle) -> Result<Vec<Value>, Failure> {
    let service = ServiceName::parse(MANAGEMENT_SERVICE).expect("a name");
    let answer = client
        .management(service, "show_workers", Map::new(), Duration::from_secs(5))
        .await
        .map_err(Failure::failed)?;
    let mut rows = answer.results.as_array().cloned().unwrap_or_default();
    rows.retain(|row| row["name"] != "");
    Ok(rows)
}

fn command(text: &str) {
    printer::line("");
    printer::line(&format!("$ norfab {text}"));
}

async fn show(client: &ClientHandle, folder: &std::path::Path) -> Result<(), Failure> {
    command("workers");
    let columns = ["name", "service", "status", "holdtime", "keepalives tx/rx", "alive (s)"];
    printer::table(&columns, &show_workers(client).await?);

    command("run lab show_version");
    job(client, "show_version", Target::All, json!({}), None, true).await?;

    command(
        "run lab deploy --workers lab-1,lab-2 lines:='[\"ntp server 192.0.2.1\"]'      (the tasks ask, we answer yes)",
    );
    let arguments = json!({ "lines": ["ntp server 192.0.2.1"] });
    job(client, "deploy", Target::list(["lab-1", "lab-2"]), arguments, Some(json!(true)), true).await?;

    command("run lab reload --workers lab-3 device=leaf-9                         (a device that is not there)");
    job(client, "reload", Target::list(["lab-3"]), json!({ "device": "leaf-9" }), None, false).await?;

    command("run lab show_version --workers any x:=1                              (an argument that is not known)");
    job(client, "show_version", Target::Any, json!({ "x": 1 }), None, false).await?;

    command("files get nf://welcome.txt -");
    let target = folder.join("fetched.txt");
    client
        .fetch_file("nf://welcome.txt", &target, Duration::from_secs(20), |_, _| {})
        .await
        .map_err(Failure::failed)?;
    printer::line(std::fs::read_to_string(&target).map_err(Failure::failed)?.trim_end());

    printer::line("");
    printer::line("one after the other, each stored on disk by client and worker:");
    let mut times = Vec::new();
    for _ in 0..200 {
        let began = Instant::now();
        let report = client.run(spec("show_version", Target::Any, json!({}))).await.map_err(Failure::failed)?;
        times.push(began.elapsed());
        if !report.succeeded() {
            return Err(Failure::failed(report.errors.join("; ")));
        }
    }
    times.sort();
    printer::line(&format!("200 jobs, half of them within {:.2} ms", times[100].as_secs_f64() * 1000.0));
    Ok(())
}

fn spec(task: &str, target: Target, arguments: Value) -> JobSpec {
    let mut spec = JobSpec::new(ServiceName::parse("lab").expect("a name"), TaskName::parse(task).expect("a name"));
    spec.target = target;
    spec.kwargs = arguments.as_object().cloned().unwrap_or_default();
    spec.timeout = Duration::from_secs(30);
    spec
}

/// Runs a job as `norfab run` does.
async fn job(
    client: &ClientHandle,
    task: &str,
    target: Target,
    arguments: Value,
    answer: Option<Value>,
    succeeds: bool,
) -> Result<(), Failure> {
    let mut job = client.submit(spec(task, target, arguments)).await.map_err(Failure::failed)?;
    while let Some(update) = job.next().await {
        match update {
            JobUpdate::Event(event, _) => printer::event(&event),
            JobUpdate::Question(worker, question) => {
                let response = InputResponse {
                    input_id: question.id,
                    value: answer.clone(),
                    cancel: answer.is_none(),
                    metadata: json!({}),
                };
                job.answer(Some(worker), response).await.map_err(Failure::failed)?;
            }
            _ => {}
        }
    }
    let report = job.report();
    printer::report(false, "lab", task, &report);
    if report.succeeded() == succeeds {
        return Ok(());
    }
    let expected = if succeeds { "succeed" } else { "fail" };
    Err(Failure::failed(format!("the demo's job {task} did not {expected} as it should: {:?}", report.errors)))
}

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

/// A service with simulated devices.
fn lab() -> Result<Service, Failure> {
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
