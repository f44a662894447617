//! Our client, driven by the calls of `python/client.py`.

use std::collections::{BTreeMap, HashMap};
use std::fmt::Debug;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use norfab_fabric::client::SubmitError;
use norfab_fabric::{ClientHandle, ClientOptions, JobHandle, JobReport, JobSpec, SystemClock};
use norfab_jobs::{ClientJobFilter, ClientStore, SqliteClientStore};
use norfab_protocol::body::InputResponse;
use norfab_protocol::client::{ClientConfig, JobUpdate};
use norfab_protocol::target::Target;
use norfab_protocol::{Identity, JobId, ServiceName, TaskName};
use serde_json::{Map, Value, json};
use tokio::task::{JoinError, JoinSet};
use tokio::time::{sleep, timeout};

use crate::Failure;
use crate::site::Site;

/// Submissions that are made at the same time.
const SUBMISSIONS_AT_ONCE: usize = 256;

/// A client and the jobs that a test submitted through it.
pub struct Calls {
    client: ClientHandle,
    database: PathBuf,
    jobs: HashMap<String, JobHandle>,
}

impl Calls {
    /// Starts the client.
    pub fn start(site: &Site, name: &str) -> Result<Self, Failure> {
        let database = site.files(&format!("client/{name}"))?.join(format!("{name}.db"));
        let client = ClientHandle::start(ClientOptions {
            identity: Identity::parse(name)?,
            config: ClientConfig::default(),
            link: Box::new(site.dealer(name)?),
            problem: norfab_fabric::tell_problem(),
            store: Box::new({
                let database = database.clone();
                move || {
                    let store = SqliteClientStore::open(&database, &SystemClock::stamp())?;
                    Ok(Box::new(store) as Box<dyn ClientStore>)
                }
            }),
        })?;
        Ok(Self { client, database, jobs: HashMap::new() })
    }

    /// Makes a call.
    pub async fn call(&mut self, call: &str, arguments: &Value) -> Result<Value, Failure> {
        match call {
            "run_job" => Ok(results(&self.client.run(spec(arguments)?).await?)),
            "submit_job" => self.submit(spec(arguments)?).await,
            "wait" => self.wait(text(arguments, "uuid")?).await,
            "run_many" => self.run_many(arguments).await,
            "submit_many" => self.submit_many(arguments).await,
            "submit_marked" => self.submit_marked(arguments).await,
            "states" => self.states(arguments),
            "wait_for_all" => self.wait_for_all(arguments).await,
            "run_one_by_one" => self.run_one_by_one(arguments).await,
            "job" => self.job(text(arguments, "uuid")?).await,
            "events" => self.events(arguments).await,
            "answer" => self.answer(arguments).await,
            "mmi" => self.mmi(arguments).await,
            "workers_seen" => Ok(self.workers_seen().await?.into()),
            "wait_for_workers" => self.wait_for_workers(arguments).await,
            other => Err(format!("our client has no call {other:?}").into()),
        }
    }

    /// Stops the client.
    pub async fn stop(self) {
        self.client.stop().await;
    }

    async fn submit(&mut self, spec: JobSpec) -> Result<Value, Failure> {
        let job = self.client.submit(spec).await?;
        let id = job.id().to_string();
        self.jobs.insert(id.clone(), job);
        Ok(id.into())
    }

    async fn wait(&mut self, id: &str) -> Result<Value, Failure> {
        let job = self.submitted(id)?;
        while job.next().await.is_some() {}
        Ok(results(&job.report()))
    }

    async fn run_many(&self, arguments: &Value) -> Result<Value, Failure> {
        let count = arguments["count"].as_u64().ok_or("no count")?;
        let start = Instant::now();
        // Side by side, as a caller with so many jobs would: one after the other each would wait for the disk.
        let mut jobs = Vec::new();
        for _ in 0..count {
            let (client, spec) = (self.client.clone(), spec(arguments)?);
            jobs.push(tokio::spawn(async move { client.run(spec).await }));
        }
        let mut states: BTreeMap<String, u64> = BTreeMap::new();
        for job in jobs {
            *states.entry(state_name(job.await??.state)).or_default() += 1;
        }
        Ok(json!({"seconds": start.elapsed().as_secs_f64(), "states": states}))
    }

    /// A few submissions at a time, as each waits for the disk.
    async fn submit_many(&self, arguments: &Value) -> Result<Value, Failure> {
        let count = arguments["count"].as_u64().ok_or("no count")?;
        let start = Instant::now();
        let mut submissions = JoinSet::new();
        for _ in 0..count {
            let (client, spec) = (self.client.clone(), spec(arguments)?);
            submissions.spawn(async move { client.submit(spec).await.map(|_| ()) });
            if submissions.len() == SUBMISSIONS_AT_ONCE {
                submissions.join_next().await.ok_or("a submission")???;
            }
        }
        while let Some(submitted) = submissions.join_next().await {
            submitted??;
        }
        Ok(start.elapsed().as_secs_f64().into())
    }

    /// Submits a job for each id, and gives the ids that were refused, with the reason.
    async fn submit_marked(&self, arguments: &Value) -> Result<Value, Failure> {
        let ids: Vec<String> = serde_json::from_value(arguments["ids"].clone())?;
        let mut refused = Map::new();
        let mut submissions = JoinSet::new();
        let mut take = |submitted: Result<(String, Result<(), SubmitError>), JoinError>| -> Result<(), Failure> {
            let (id, submitted) = submitted?;
            if let Err(error) = submitted {
                refused.insert(id, error.to_string().into());
            }
            Ok(())
        };
        for id in ids {
            let mut arguments = arguments.clone();
            arguments["ids"] = Value::Null;
            arguments["kwargs"] = json!({"mark": id, "path": arguments["path"], "seconds": arguments["seconds"]});
            arguments["workers"] = "any".into();
            arguments["uuid"] = id.as_str().into();
            let (client, spec) = (self.client.clone(), spec(&arguments)?);
            submissions.spawn(async move { (id, client.submit(spec).await.map(|_| ())) });
            if submissions.len() == SUBMISSIONS_AT_ONCE {
                take(submissions.join_next().await.ok_or("a submission")?)?;
            }
        }
        while let Some(submitted) = submissions.join_next().await {
            take(submitted)?;
        }
        Ok(refused.into())
    }

    /// All jobs by the database: id to state and first error, and whether a result says that it failed.
    fn states(&self, arguments: &Value) -> Result<Value, Failure> {
        let mut store = SqliteClientStore::open_beside(&self.database)?;
        let mut states = Map::new();
        for job in store.list(&ClientJobFilter::default())? {
            let mut failed = false;
            if arguments["results"] == true {
                let results = store.job(&job.id)?.map(|details| details.results).unwrap_or_default();
                let says_so = |payload: &[u8]| {
                    serde_json::from_slice(payload).is_ok_and(|result: Value| result["failed"] == true)
                };
                failed = results.iter().any(|(_, payload)| says_so(payload));
            }
            states.insert(job.id.to_string(), json!([job.state.to_string(), job.errors.first(), failed]));
        }
        Ok(states.into())
    }

    async fn wait_for_all(&self, arguments: &Value) -> Result<Value, Failure> {
        let end = Instant::now() + seconds(arguments, 60.0);
        while self.client.statistics().await?["unfinished_jobs"] != 0 && Instant::now() < end {
            sleep(Duration::from_millis(50)).await;
        }
        loop {
            let states = SqliteClientStore::open_beside(&self.database)?.statistics()?.jobs_by_state;
            // The client knows of an end a moment before its database does.
            if states.keys().all(|state| state.is_final()) || Instant::now() >= end {
                let states = states.into_iter().map(|(state, count)| (state.to_string(), count.into()));
                return Ok(Value::Object(states.collect()));
            }
            sleep(Duration::from_millis(50)).await;
        }
    }

    async fn run_one_by_one(&self, arguments: &Value) -> Result<Value, Failure> {
        let count = arguments["count"].as_u64().ok_or("no count")?;
        let mut taken = Vec::new();
        for _ in 0..count {
            let start = Instant::now();
            let report = self.client.run(spec(arguments)?).await?;
            taken.push(start.elapsed().as_secs_f64());
            if !report.succeeded() {
                return Err(format!("a job failed: {report:?}").into());
            }
        }
        Ok(taken.into())
    }

    async fn job(&self, id: &str) -> Result<Value, Failure> {
        let Some(details) = self.client.job(JobId::parse(id)?).await?? else { return Ok(Value::Null) };
        Ok(json!({"uuid": id, "status": state_name(details.job.state), "errors": details.job.errors}))
    }

    async fn events(&mut self, arguments: &Value) -> Result<Value, Failure> {
        let until = arguments["until"].as_str();
        let patience = seconds(arguments, 10.0);
        let job = self.submitted(text(arguments, "uuid")?)?;
        let mut taken: Vec<Value> = Vec::new();
        while let Ok(Some(update)) = timeout(patience, job.next()).await {
            let JobUpdate::Event(_, body) = update else { continue };
            let event: Value = serde_json::from_slice(&body)?;
            let last = until.is_some_and(|until| event["event_type"] == until || event["message"] == until);
            taken.push(event);
            if last {
                break;
            }
        }
        Ok(taken.into())
    }

    async fn answer(&mut self, arguments: &Value) -> Result<Value, Failure> {
        let response = InputResponse {
            input_id: text(arguments, "input_id")?.to_owned(),
            value: Some(arguments["value"].clone()),
            cancel: arguments["cancel"] == true,
            metadata: json!({}),
        };
        let worker = arguments["worker"].as_str().map(Identity::parse).transpose()?;
        self.submitted(text(arguments, "uuid")?)?.answer(worker, response).await?;
        Ok(Value::Null)
    }

    async fn mmi(&self, arguments: &Value) -> Result<Value, Failure> {
        let service = ServiceName::parse(text(arguments, "service")?)?;
        let kwargs = arguments["kwargs"].as_object().cloned().unwrap_or_default();
        let patience = seconds(arguments, 10.0);
        let answer = self.client.management(service, text(arguments, "task")?, kwargs, patience).await?;
        Ok(json!({"status": answer.status.to_string(), "results": answer.results, "errors": []}))
    }

    async fn workers_seen(&self) -> Result<Vec<String>, Failure> {
        let broker = ServiceName::parse("mmi.service.broker")?;
        let listed = self.client.management(broker, "show_workers", Map::new(), Duration::from_secs(5)).await?;
        let workers = listed.results.as_array().cloned().unwrap_or_default();
        let names = workers.iter().filter_map(|worker| worker["name"].as_str()).filter(|name| !name.is_empty());
        let mut names: Vec<String> = names.map(str::to_owned).collect();
        names.sort();
        Ok(names)
    }

    async fn wait_for_workers(&self, arguments: &Value) -> Result<Value, Failure> {
        let wanted: Vec<String> = serde_json::from_value(arguments["names"].clone())?;
        let end = Instant::now() + seconds(arguments, 60.0);
        loop {
            let seen = self.workers_seen().await?;
            if wanted.iter().all(|name| seen.contains(name)) {
                return Ok(seen.into());
            }
            if Instant::now() >= end {
                return Err(format!("the broker lists {seen:?}, not all of {wanted:?}").into());
            }
            sleep(Duration::from_millis(20)).await;
        }
    }

    fn submitted(&mut self, id: &str) -> Result<&mut JobHandle, Failure> {
        self.jobs.get_mut(id).ok_or_else(|| format!("no job {id} was submitted").into())
    }
}

/// The name of a state as Python's database has it.
fn state_name(state: impl Debug) -> String {
    format!("{state:?}").to_uppercase()
}

/// The results by worker. What a Python client would not have, a worker that returned nothing, is there too.
fn results(report: &JobReport) -> Value {
    serde_json::to_value(report.results()).expect("results are JSON")
}

fn spec(arguments: &Value) -> Result<JobSpec, Failure> {
    let service = ServiceName::parse(text(arguments, "service")?)?;
    let mut spec = JobSpec::new(service, TaskName::parse(text(arguments, "task")?)?);
    spec.target = match &arguments["workers"] {
        Value::String(target) => Target::parse(target),
        Value::Array(names) => Target::list(names.iter().filter_map(Value::as_str)),
        _ => Target::All,
    };
    spec.kwargs = arguments["kwargs"].as_object().cloned().unwrap_or_default();
    spec.args = arguments["args"].as_array().cloned().unwrap_or_default();
    spec.timeout = seconds(arguments, 60.0);
    if let Some(id) = arguments["uuid"].as_str() {
        spec.id = Some(JobId::parse(id)?);
    }
    Ok(spec)
}

fn text<'a>(arguments: &'a Value, name: &str) -> Result<&'a str, Failure> {
    arguments[name].as_str().ok_or_else(|| format!("no {name}").into())
}

fn seconds(arguments: &Value, default: f64) -> Duration {
    Duration::from_secs_f64(arguments["timeout"].as_f64().unwrap_or(default))
}
