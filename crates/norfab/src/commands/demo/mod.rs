//! `norfab demo`: a whole fabric at work, without any preparation.
//!
//! Broker, workers and client run in this process with CURVE on a free port, in a temporary folder. What is shown is what
//! the commands show, after the command that would show it.

mod lab;

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use norfab_fabric::SystemClock;
use norfab_fabric::client::{ClientHandle, JobSpec};
use norfab_protocol::body::{EventType, InputResponse};
use norfab_protocol::broker::MANAGEMENT_SERVICE;
use norfab_protocol::client::JobUpdate;
use norfab_protocol::target::Target;
use norfab_protocol::{ServiceName, TaskName};
use serde_json::{Map, Value, json};

use super::{ANSWER_PATIENCE, ask_broker, connected, workers};
use crate::args::Global;
use crate::exit::{Code, Failure};
use crate::printer::{self, Said};
use crate::signals::Signals;
use crate::site::{BROKER_NAME, Site};

/// Where the demo's broker listens: a free port of this host.
const ENDPOINT: &str = "tcp://127.0.0.1:*";

/// The demo's devices: worker and what it looks after.
const WORKERS: [(&str, [&str; 2]); 3] =
    [("lab-1", ["core-1", "core-2"]), ("lab-2", ["edge-1", "edge-2"]), ("lab-3", ["leaf-1", "leaf-2"])];

/// How long the workers have to register: seconds on a busy host, milliseconds otherwise.
const REGISTRATION_PATIENCE: Duration = Duration::from_secs(20);

/// How soon the broker is asked again who is there.
const REGISTRATION_RETRY: Duration = Duration::from_millis(20);

/// Jobs that are timed, one after the other.
const TIMED_JOBS: usize = 200;

pub async fn run(global: &Global) -> Result<Code, Failure> {
    let mut signals = Signals::new()?;
    let folder = tempfile::tempdir().map_err(Failure::failed)?;
    let inventory = folder.path().join("inventory.yaml");
    let shared = folder.path().join("files");
    std::fs::create_dir_all(&shared).map_err(Failure::failed)?;
    std::fs::write(shared.join("welcome.txt"), "This file came through the fabric.\n").map_err(Failure::failed)?;
    std::fs::write(&inventory, format!("broker:\n  endpoint: \"{ENDPOINT}\"\ntopology:\n  broker: true\n"))
        .map_err(Failure::failed)?;
    let own = Global {
        inventory: Some(inventory.into()),
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
    let mut stage = Stage::new(global.json);
    let fingerprint = site.broker_keys()?.public.fingerprint();
    stage.say(&format!("broker listens at {} with CURVE, key fingerprint {fingerprint}", broker.endpoint()));
    stage.keep("endpoint", broker.endpoint().into());
    stage.keep("fingerprint", fingerprint.into());
    let mut workers = Vec::new();
    for (name, devices) in WORKERS {
        let data = json!({ "service": "lab", "devices": devices });
        workers.push(site.start_worker_with(name, &data, Arc::new(lab::service()?))?);
    }
    let data = json!({ "service": "filesharing", "base_dir": shared.display().to_string() });
    workers.push(site.start_worker("filesharing-worker-1", &data)?);
    let slot = site.client_slot()?;
    let client = site.start_client(&slot)?;
    let shown = async {
        connected(&client, &site).await?;
        registered(&client, workers.len()).await?;
        show(&mut stage, &client, folder.path()).await
    };
    let code = tokio::select! {
        shown = shown => shown.map(|()| Code::Ok),
        code = signals.next() => Ok(code),
    };
    client.stop().await;
    let mut stopping = tokio::task::JoinSet::new();
    for worker in workers {
        stopping.spawn(worker.stop(Duration::from_secs(1)));
    }
    while stopping.join_next().await.is_some() {}
    broker.stop().await;
    if let Ok(Code::Ok) = code {
        stage.end();
    }
    code
}

/// Where the demo is shown: as text while it goes, or as one document at its end.
struct Stage {
    document: Option<Map<String, Value>>,
}

impl Stage {
    fn new(as_json: bool) -> Self {
        Self { document: as_json.then(Map::new) }
    }

    fn text(&self) -> bool {
        self.document.is_none()
    }

    fn say(&self, text: &str) {
        if self.text() {
            printer::line(text);
        }
    }

    /// A command that a user would type.
    fn command(&self, text: &str) {
        self.say("");
        self.say(&format!("$ norfab {text}"));
    }

    fn keep(&mut self, key: &str, value: Value) {
        if let Some(document) = &mut self.document {
            document.insert(key.to_owned(), value);
        }
    }

    fn keep_job(&mut self, job: Value) {
        if let Some(document) = &mut self.document
            && let Value::Array(jobs) = document.entry("jobs").or_insert_with(|| json!([]))
        {
            jobs.push(job);
        }
    }

    fn end(self) {
        self.say("");
        self.say(
            "That was the demo; nothing of it stays. Your own environment: norfab init DIR && cd DIR && norfab up",
        );
        if let Some(document) = self.document {
            printer::json(&Value::Object(document));
        }
    }
}

async fn registered(client: &ClientHandle, count: usize) -> Result<(), Failure> {
    let there = async {
        while show_workers(client).await?.len() < count {
            tokio::time::sleep(REGISTRATION_RETRY).await;
        }
        Ok(())
    };
    tokio::time::timeout(REGISTRATION_PATIENCE, there).await.unwrap_or_else(|_| {
        let seconds = REGISTRATION_PATIENCE.as_secs();
        Err(Failure::failed(format!("the demo's workers did not register within {seconds} s")))
    })
}

async fn show_workers(client: &ClientHandle) -> Result<Vec<Value>, Failure> {
    let answer = ask_broker(client, MANAGEMENT_SERVICE, "show_workers", Map::new(), ANSWER_PATIENCE).await?;
    workers::rows(answer)
}

async fn show(stage: &mut Stage, client: &ClientHandle, folder: &Path) -> Result<(), Failure> {
    stage.command("workers");
    let rows = show_workers(client).await?;
    if stage.text() {
        printer::table(&workers::COLUMNS, &rows);
    }
    stage.keep("workers", rows.into());

    stage.command("run lab show_version");
    job(stage, client, "show_version", Target::All, json!({}), None, true).await?;

    stage.command(
        "run lab deploy --workers lab-1,lab-2 lines:='[\"ntp server 192.0.2.1\"]'      (the tasks ask, we answer yes)",
    );
    let arguments = json!({ "lines": ["ntp server 192.0.2.1"] });
    job(stage, client, "deploy", Target::list(["lab-1", "lab-2"]), arguments, Some(json!(true)), true).await?;

    stage.command("run lab reload --workers lab-3 device=leaf-9                         (a device that is not there)");
    job(stage, client, "reload", Target::list(["lab-3"]), json!({ "device": "leaf-9" }), None, false).await?;

    stage.command(
        "run lab show_version --workers any x:=1                              (an argument that is not known)",
    );
    job(stage, client, "show_version", Target::Any, json!({ "x": 1 }), None, false).await?;

    stage.command("files get nf://welcome.txt -");
    let target = folder.join("fetched.txt");
    let fetched = client
        .fetch_file("nf://welcome.txt", &target, Duration::from_secs(20), |_, _| {})
        .await
        .map_err(Failure::failed)?;
    stage.say(std::fs::read_to_string(&target).map_err(Failure::failed)?.trim_end());
    stage.keep("file", json!({ "size_bytes": fetched.bytes, "md5hash": fetched.md5, "worker": fetched.worker }));

    stage.say("");
    stage.say("one after the other, each stored on disk by client and worker:");
    let mut times = Vec::new();
    for _ in 0..TIMED_JOBS {
        let began = SystemClock::now();
        let report = client.run(spec("show_version", Target::Any, json!({}))).await.map_err(Failure::failed)?;
        times.push(SystemClock::now().saturating_duration_since(began));
        if !report.succeeded() {
            return Err(Failure::failed(report.errors.join("; ")));
        }
    }
    times.sort();
    let half = times[TIMED_JOBS / 2].as_secs_f64() * 1000.0;
    stage.say(&format!("{TIMED_JOBS} jobs, half of them within {half:.2} ms"));
    stage.keep("timed_jobs", json!({ "count": TIMED_JOBS, "median_ms": half }));
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
    stage: &mut Stage,
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
            JobUpdate::Event(event, _) if stage.text() && event.event_type != EventType::ResultReady => {
                printer::remark(&printer::event_text(&event))
            }
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
    if stage.text() {
        for said in printer::results(&report) {
            match said {
                Said::Error(text) => printer::error(&text),
                Said::Warning(text) => printer::warning(&text),
                Said::Message(text) => printer::remark(&text),
            }
        }
    }
    stage.keep_job(printer::report_document("lab", task, &report));
    if report.succeeded() == succeeds {
        return Ok(());
    }
    let expected = if succeeds { "succeed" } else { "fail" };
    Err(Failure::failed(format!("the demo's job {task} did not {expected} as it should: {:?}", report.errors)))
}
