//! `norfab jobs`: what this client asked for, and what became of it.

mod export;
mod import;
mod prune;

use std::collections::HashSet;
use std::path::Path;
use std::time::Duration;

use bytes::Bytes;
use norfab_fabric::SystemClock;
use norfab_jobs::sqlite::FILE_NAME;
use norfab_jobs::{ClientJob, ClientJobDetails, ClientJobFilter, ClientState, ClientStore, SqliteClientStore};
use norfab_protocol::body::{Event, InputResponse};
use norfab_protocol::client::JobUpdate;
use norfab_protocol::{Identity, JobId};
use serde_json::{Map, Value, json};

use super::{connected, found_nobody, nobody_of};
use crate::args::{Global, JobsArgs, JobsCommand};
use crate::exit::{Code, Failure};
use crate::printer;
use crate::prompt::Asked;
use crate::site::{ClientSlot, Site};

pub async fn run(global: &Global, words: JobsArgs) -> Result<Code, Failure> {
    if words.command.is_some() && (words.uuid.is_some() || words.offline || words.answer.is_some() || words.shows) {
        return Err(Failure::usage(
            "a job, --last, --wait, --offline and --answer do not go with 'prune', 'export' and 'import'",
        ));
    }
    let answer = words.answer.as_deref().map(super::answer_of).transpose()?;
    let mut site = Site::load_worked_in(global)?;
    let _logs = site.start_logs(global, norfab_logs::Role::Client, &site.client_name(), false)?;
    match words.command {
        None => {}
        Some(JobsCommand::Prune(words)) => return prune::run(global, &site, &words).await,
        Some(JobsCommand::Export { file, format, force }) => {
            return export::run(global, &site, file.as_deref(), format, force);
        }
        Some(JobsCommand::Import { files }) => return import::run(global, &site, files),
    }
    match &words.uuid {
        None => list(global, &site, &words).await,
        Some(uuid) => one(global, &site, super::job_of(uuid)?, &words, answer).await,
    }
}

pub(super) fn open(folder: &Path) -> Result<Option<SqliteClientStore>, Failure> {
    let path = folder.join(FILE_NAME);
    if !path.exists() {
        return Ok(None);
    }
    SqliteClientStore::open_beside(&path).map(Some).map_err(Failure::configuration)
}

/// As [`open`]; what cannot be read is told, and hides nothing else.
pub(super) fn readable(folder: &Path) -> Option<SqliteClientStore> {
    open(folder).unwrap_or_else(|failure| {
        printer::warning(&failure.text);
        None
    })
}

/// The jobs of one name that have not ended.
struct Unfinished {
    name: String,
    ids: Vec<JobId>,
    /// Whether a client of the name may ask. One that has jobs which were never sent would send them, and whoever lists jobs
    /// does not mean to start any.
    asks: bool,
}

/// What is stored of the newest jobs of all names, and which of them have not ended.
struct Listed {
    jobs: Vec<ClientJob>,
    unfinished: Vec<Unfinished>,
}

impl Listed {
    fn read(site: &Site, last: usize) -> Result<Self, Failure> {
        let folders = site.client_folders()?;
        let mut found: Vec<(usize, ClientJob)> = Vec::new();
        let mut unsent = HashSet::new();
        for (index, (_, folder)) in folders.iter().enumerate() {
            let Some(mut store) = readable(folder) else { continue };
            let filter = ClientJobFilter { last: Some(last), ..ClientJobFilter::default() };
            let jobs = store.list(&filter).map_err(Failure::configuration)?;
            found.extend(jobs.into_iter().map(|job| (index, job)));
            for state in [ClientState::New, ClientState::Submitting] {
                let filter = ClientJobFilter { last: Some(1), state: Some(state), ..ClientJobFilter::default() };
                if !store.list(&filter).map_err(Failure::configuration)?.is_empty() {
                    unsent.insert(index);
                }
            }
        }
        found.sort_by(|(_, one), (_, other)| other.submitted.total_cmp(&one.submitted));
        found.truncate(last);
        let mut unfinished = Vec::new();
        for (index, (name, _)) in folders.into_iter().enumerate() {
            let of_folder = found.iter().filter(|(of, job)| *of == index && !job.state.is_final());
            let ids: Vec<JobId> = of_folder.map(|(_, job)| job.id.clone()).collect();
            if !ids.is_empty() {
                unfinished.push(Unfinished { name, ids, asks: !unsent.contains(&index) });
            }
        }
        Ok(Self { jobs: found.into_iter().map(|(_, job)| job).collect(), unfinished })
    }
}

async fn list(global: &Global, site: &Site, words: &JobsArgs) -> Result<Code, Failure> {
    let mut listed = Listed::read(site, words.last)?;
    let mut why = None;
    if !words.offline && site.endpoint().is_ok() && !listed.unfinished.is_empty() {
        why = settle_all(site, &listed.unfinished, words.wait).await?;
        listed = Listed::read(site, words.last)?;
    }
    let rows: Vec<Value> = listed.jobs.iter().map(row).collect();
    if global.json {
        printer::json(&Value::Array(rows));
    } else {
        printer::table(&["uuid", "service", "task", "status", "created", "completed", "workers"], &rows);
    }
    let unfinished: usize = listed.unfinished.iter().map(|one| one.ids.len()).sum();
    if unfinished > 0 && global.quiet == 0 {
        let jobs = if unfinished == 1 { "1 job has".to_owned() } else { format!("{unfinished} jobs have") };
        let why = why.map(|why| format!(" ({why})")).unwrap_or_default();
        printer::remark(&format!("{jobs} not ended as far as is known here{why}: 'norfab jobs UUID' asks for one"));
    }
    Ok(Code::Ok)
}

/// Lets the clients that have unfinished jobs ask for them, one client after the other, for so long in all. Those that another
/// process has are not asked: it writes down what becomes of its jobs. What comes back is why nobody could be asked.
async fn settle_all(site: &Site, unfinished: &[Unfinished], wait: Duration) -> Result<Option<String>, Failure> {
    let end = SystemClock::now() + wait;
    let asked: Vec<&Unfinished> = unfinished.iter().filter(|one| one.asks).collect();
    for (index, Unfinished { name, ids, .. }) in asked.iter().enumerate() {
        // A job that still runs under one name leaves time for the others.
        let left = end.saturating_duration_since(SystemClock::now()) / (asked.len() - index) as u32;
        let Some(slot) = site.take_slot(name)? else { continue };
        let client = match site.start_client(&slot) {
            Ok(client) => client,
            Err(failure) => return Ok(Some(failure.text)),
        };
        let done = async {
            let mut watched = Vec::new();
            for id in ids {
                watched.extend(client.watch(id.clone()).await.map_err(Failure::failed)?);
            }
            if let Err(failure) = connected(&client, site).await {
                return Ok(Some(failure.text));
            }
            for job in &mut watched {
                while job.next().await.is_some() {}
            }
            Ok(None)
        };
        let why = tokio::time::timeout(left, done).await;
        client.stop().await;
        match why {
            Ok(Ok(None)) | Err(_) => {}
            Ok(why) => return why,
        }
    }
    Ok(None)
}

fn row(job: &ClientJob) -> Value {
    json!({
        "uuid": job.id,
        "service": job.service,
        "task": job.task,
        "status": job.state.as_str(),
        "created": SystemClock::ctime_of(job.submitted),
        "completed": job.finished.map(SystemClock::ctime_of).unwrap_or_default(),
        "workers": format!("{}/{}", job.completed.len(), job.dispatched.len()),
    })
}

async fn one(
    global: &Global,
    site: &Site,
    id: JobId,
    words: &JobsArgs,
    answer: Option<Value>,
) -> Result<Code, Failure> {
    let wait = words.wait;
    for (name, folder) in site.client_folders()? {
        let Some(mut store) = readable(&folder) else { continue };
        let Some(mut details) = store.job(&id).map_err(Failure::configuration)? else { continue };
        if details.job.state.is_final() && answer.is_some() {
            printer::warning(&format!("job {id} has ended: nothing is asked any more, and --answer goes nowhere"));
        }
        let mut unasked = None;
        if !details.job.state.is_final() && !words.offline {
            drop(store);
            match site.take_slot(&name)? {
                Some(slot) => unasked = settle(site, &slot, &id, wait, answer.as_ref()).await?,
                None => watch(&folder, &id, wait).await?,
            }
            details = stored(&folder, &id)?.unwrap_or(details);
        }
        return Ok(show(global, &details, unasked, words.offline));
    }
    Err(Failure::failed(format!("job {id} is not known here")).hint("'norfab jobs' lists those that are"))
}

pub(super) fn stored(folder: &Path, id: &JobId) -> Result<Option<ClientJobDetails>, Failure> {
    let Some(mut store) = open(folder)? else { return Ok(None) };
    store.job(id).map_err(Failure::configuration)
}

/// Another process is at it: its database tells when it is done.
async fn watch(folder: &Path, id: &JobId, wait: Duration) -> Result<(), Failure> {
    let done = async {
        while stored(folder, id)?.is_some_and(|details| !details.job.state.is_final()) {
            tokio::time::sleep(WATCH_INTERVAL).await;
        }
        Ok(())
    };
    tokio::time::timeout(wait, done).await.unwrap_or(Ok(()))
}

/// How often the database of another process is looked at.
pub(super) const WATCH_INTERVAL: Duration = Duration::from_millis(200);

/// Lets the client that has an unfinished job ask for it, and answer what its workers ask. What comes back is why nobody could be
/// asked.
async fn settle(
    site: &Site,
    slot: &ClientSlot,
    id: &JobId,
    wait: Duration,
    answer: Option<&Value>,
) -> Result<Option<Failure>, Failure> {
    let client = site.start_client(slot)?;
    let done = async {
        // Before there is a connection: what a worker asks is told once, to whoever follows the job by then.
        let watched = client.watch(id.clone()).await.map_err(Failure::failed)?;
        if let Err(failure) = connected(&client, site).await {
            return Ok(Some(failure));
        }
        if let Some(mut job) = watched {
            while let Some(update) = job.next().await {
                let JobUpdate::Question(worker, question) = update else { continue };
                let asked = Asked { worker, question };
                let value = answer.and_then(|answer| asked.given(answer));
                match (answer, value) {
                    (_, Some(value)) => {
                        let Asked { worker, question } = asked;
                        let (input_id, metadata) = (question.id, json!({}));
                        let response = InputResponse { input_id, value: Some(value), cancel: false, metadata };
                        job.answer(Some(worker), response).await.map_err(Failure::failed)?;
                    }
                    (Some(answer), None) => printer::warning(&asked.not_answered_by(answer)),
                    (None, None) => printer::warning(&format!(
                        "worker {} asks '{}': 'norfab jobs {id} --answer JSON' answers it",
                        asked.worker,
                        printer::printable(&asked.question.question)
                    )),
                }
            }
        }
        Ok(None)
    };
    let settled = tokio::time::timeout(wait, done).await;
    client.stop().await;
    settled.unwrap_or(Ok(None))
}

/// What workers returned, by their names.
fn by_worker(results: &[(Identity, Bytes)]) -> Map<String, Value> {
    let parsed = |payload: &[u8]| serde_json::from_slice(payload).unwrap_or(Value::Null);
    results.iter().map(|(worker, payload)| (worker.to_string(), parsed(payload))).collect()
}

/// `unasked`: why nobody could be asked about a job that has not ended as far as is known here.
fn show(global: &Global, details: &ClientJobDetails, unasked: Option<Failure>, offline: bool) -> Code {
    let ClientJobDetails { job, results, events } = details;
    let mut value = row(job);
    let by_worker = by_worker(results);
    let failed = by_worker.values().any(|result| result["failed"] == true);
    let parsed: Vec<Value> = events.iter().filter_map(|body| serde_json::from_slice(body).ok()).collect();
    if let Value::Object(value) = &mut value {
        let request: Value = serde_json::from_slice(&job.body).unwrap_or(Value::Null);
        value.insert("target".into(), job.target.clone().into());
        value.insert("kwargs".into(), norfab_secrets::masked(&request["kwargs"]));
        value.insert("timeout".into(), job.timeout.into());
        value.insert("workers_dispatched".into(), json!(job.dispatched));
        value.insert("workers_completed".into(), json!(job.completed));
        value.insert("errors".into(), json!(job.errors));
        if global.json {
            value.insert("results".into(), Value::Object(by_worker.clone()));
            value.insert("events".into(), Value::Array(parsed));
        }
    }
    let failure = match unasked {
        Some(failure) if !job.state.is_final() => {
            let text = format!("job {} has not ended as far as is known here", job.id);
            Some(failure.of(text).with_code(Code::TimedOut))
        }
        _ => failure_of(job, failed, offline),
    };
    if global.json {
        if let Some(failure) = &failure {
            failure.put_into(&mut value);
        }
        printer::json(&value);
    } else {
        printer::nested(&value, 0);
        if !events.is_empty() {
            printer::line("events:");
            for event in events.iter().filter_map(|body| serde_json::from_slice::<Event>(body).ok()) {
                printer::line(&format!("  {}", printer::event_text(&event)));
            }
        }
        if !by_worker.is_empty() {
            printer::line("results:");
            printer::nested(&Value::Object(by_worker), 2);
        }
    }
    failure.map_or(Code::Ok, |failure| {
        printer::error(&failure.text);
        failure.code
    })
}

/// What is wrong with a job, if anything is. `failed`: a result of it is. `offline`: nobody was asked.
fn failure_of(job: &ClientJob, failed: bool, offline: bool) -> Option<Failure> {
    let id = &job.id;
    Some(match job.state {
        ClientState::Completed if !failed => return None,
        ClientState::Completed => Failure::failed(format!("job {id}: a worker failed")),
        state if !state.is_final() => {
            let hint = if offline { "without --offline it is asked about" } else { "--wait TIME waits for it longer" };
            Failure::new(Code::TimedOut, format!("job {id} has not ended")).hint(hint)
        }
        // At its deadline: the words of the wire name no way out.
        ClientState::Stale if job.dispatched.is_empty() && job.errors.iter().any(|error| found_nobody(error)) => {
            let names = serde_json::from_str::<Vec<String>>(&job.target).map(|names| names.join(","));
            let nobody = nobody_of(job.service.as_str(), names.as_ref().unwrap_or(&job.target));
            Failure::new(Code::TimedOut, format!("job {id} has ended as STALE: {nobody}, and none came in time"))
                .hint("'norfab workers' shows those that are registered")
        }
        state => {
            let code = if state == ClientState::Stale { Code::TimedOut } else { Code::Failed };
            let errors: String = job.errors.iter().map(|error| format!(": {error}")).collect();
            Failure::new(code, format!("job {id} has ended as {}{errors}", state.as_str()))
        }
    })
}
