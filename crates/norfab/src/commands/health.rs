//! `norfab health`: whether workers take a job and answer it, which is more than that they exist.

use std::sync::Arc;
use std::time::Duration;

use norfab_fabric::SystemClock;
use norfab_fabric::client::{ClientHandle, JobSpec};
use norfab_protocol::broker::MANAGEMENT_SERVICE;
use norfab_protocol::client::{JobUpdate, Lost};
use norfab_protocol::target::Target;
use norfab_protocol::{Identity, ServiceName, TaskName, TaskResult};
use serde_json::{Map, Value, json};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use super::{ANSWER_PATIENCE, ask_broker, connected, workers};
use crate::args::Global;
use crate::exit::{Code, Failure};
use crate::printer;
use crate::site::Site;

/// The task that is the probe: every worker has it, ours and those of Python, and it does nothing.
const PROBE_TASK: &str = "echo";

/// Workers that are probed at once: each waits for its own time-out only.
const PROBED_AT_ONCE: usize = 512;

/// Seconds between two keepalives, and how many make the hold time, where the broker does not say so.
const BEAT_SECONDS: f64 = 2.5;
const HOLD_SECONDS: f64 = 15.0;

/// Beats that a worker may leave out before its keepalive is late.
const BEATS_LATE: f64 = 2.0;

/// What a worker did with a probe.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Health {
    /// It ran it.
    Answers,
    /// It took it, and did not get round to it in time.
    Busy,
    /// It said that it does not take it.
    Refuses,
    /// It said nothing.
    Silent,
}

impl Health {
    fn as_str(self) -> &'static str {
        match self {
            Self::Answers => "answers",
            Self::Busy => "takes jobs, does not get round to them",
            Self::Refuses => "answers, refuses jobs",
            Self::Silent => "registered, does not answer",
        }
    }

    /// What to do about it.
    fn hint(self) -> Option<&'static str> {
        match self {
            Self::Answers => None,
            Self::Busy => Some("a busy worker may do with more max_concurrent_jobs, or -t TIME to wait for it"),
            Self::Refuses => Some("why a worker refuses is told of each"),
            Self::Silent => {
                Some("of a worker that does not answer see its log and its process, and start it anew if it hangs")
            }
        }
    }

    /// For programs.
    fn word(self) -> &'static str {
        match self {
            Self::Answers => "answers",
            Self::Busy => "busy",
            Self::Refuses => "refuses",
            Self::Silent => "silent",
        }
    }
}

/// A worker as it was found.
struct Found {
    name: String,
    service: String,
    health: Health,
    /// From the submission of the probe to its result.
    taken: Option<Duration>,
    /// What is left of its hold time shows that beats are missing.
    late: bool,
    error: Option<String>,
}

pub async fn run(global: &Global, services: &[String], timeout: Duration) -> Result<Code, Failure> {
    let mut site = Site::load(global)?;
    let slot = site.client_slot()?;
    let _logs = site.start_logs(global, norfab_logs::Role::Client, &slot.name, false)?;
    // Probes are not kept: a check every minute must not fill anybody's list of jobs.
    let client = site.start_asking_client(&slot.name)?;
    let outcome = async {
        connected(&client, &site).await?;
        examine(&client, services, timeout).await
    };
    let outcome = outcome.await;
    client.stop().await;
    let (broker_taken, found, missing) = outcome?;
    let failure = unhealthy(&found, &missing);
    show(global, broker_taken, &found, &missing, failure.as_ref());
    Ok(failure.map_or(Code::Ok, |failure| failure.code))
}

/// What is not as it should be. `None`: all is well.
fn unhealthy(found: &[Found], missing: &[String]) -> Option<Failure> {
    let mut errors: Vec<String> = missing.iter().map(|service| format!("service '{service}' has no workers")).collect();
    if found.is_empty() && missing.is_empty() {
        errors.push("no worker is registered".to_owned());
    }
    let named = found.iter().filter(|one| one.health != Health::Answers);
    errors.extend(named.map(|one| format!("worker {}: {}", one.name, one.health.as_str())));
    let mut hints: Vec<&str> = Vec::new();
    if !missing.is_empty() {
        hints.push("'norfab workers' shows those of all services");
    }
    let is_found = |health: &Health| found.iter().any(|one| one.health == *health);
    hints.extend([Health::Silent, Health::Busy, Health::Refuses].into_iter().filter(is_found).filter_map(Health::hint));
    let failure = Failure::failed(errors.join("; "));
    match (errors.is_empty(), hints.is_empty()) {
        (true, _) => None,
        (false, true) => Some(failure),
        (false, false) => Some(failure.hint(hints.join("; "))),
    }
}

/// How long the broker took, the workers as they were found, and the services that have none.
async fn examine(
    client: &ClientHandle,
    services: &[String],
    timeout: Duration,
) -> Result<(Duration, Vec<Found>, Vec<String>), Failure> {
    let asked = SystemClock::now();
    let listed = ask_broker(client, MANAGEMENT_SERVICE, "show_workers", Map::new(), ANSWER_PATIENCE).await?;
    let broker_taken = SystemClock::now().saturating_duration_since(asked);
    let (beat, hold) = keepalives(client).await;
    let mut rows = workers::rows(listed)?;
    rows.retain(|row| services.is_empty() || services.iter().any(|service| row["service"] == service.as_str()));
    let has = |service: &String| rows.iter().any(|row| row["service"] == service.as_str());
    let missing: Vec<String> = services.iter().filter(|service| !has(service)).cloned().collect();
    let places = Arc::new(Semaphore::new(PROBED_AT_ONCE));
    let mut probes = JoinSet::new();
    for row in rows {
        let text = |key: &str| row[key].as_str().unwrap_or_default().to_owned();
        let (name, service) = (text("name"), text("service"));
        let left = row["holdtime"].as_str().and_then(|left| left.parse::<f64>().ok());
        let late = left.is_some_and(|left| left < hold - BEATS_LATE * beat);
        let (client, places) = (client.clone(), Arc::clone(&places));
        probes.spawn(async move {
            // Nobody closes the semaphore.
            let _place = places.acquire().await;
            let probed = probe(&client, &name, &service, timeout).await;
            let (health, taken, error) = match probed {
                Ok((health, taken, error)) => (health, taken, error),
                Err(error) => (Health::Silent, None, Some(error)),
            };
            Found { name, service, health, taken, late, error }
        });
    }
    let mut found = Vec::new();
    while let Some(probed) = probes.join_next().await {
        found.push(probed.map_err(Failure::failed)?);
    }
    found.sort_by(|one, other| (&one.service, &one.name).cmp(&(&other.service, &other.name)));
    Ok((broker_taken, found, missing))
}

/// Seconds of a beat and of the hold time. Brokers that do not say so have those of all recorded releases.
async fn keepalives(client: &ClientHandle) -> (f64, f64) {
    let asked = ask_broker(client, MANAGEMENT_SERVICE, "get_stats", Map::new(), ANSWER_PATIENCE).await;
    let stats = asked.unwrap_or_default();
    let beat = stats["keepalive_interval_ms"].as_f64().map(|milliseconds| milliseconds / 1000.0);
    match (beat, stats["keepalive_multiplier"].as_f64()) {
        (Some(beat), Some(multiplier)) => (beat, beat * multiplier),
        _ => (BEAT_SECONDS, HOLD_SECONDS),
    }
}

async fn probe(
    client: &ClientHandle,
    name: &str,
    service: &str,
    timeout: Duration,
) -> Result<(Health, Option<Duration>, Option<String>), String> {
    let service = ServiceName::parse(service).map_err(|error| error.to_string())?;
    let worker = Identity::parse(name).map_err(|error| error.to_string())?;
    let mut spec = JobSpec::new(service, TaskName::parse(PROBE_TASK).map_err(|error| error.to_string())?);
    spec.target = Target::list([&worker]);
    spec.timeout = timeout;
    let asked = SystemClock::now();
    let mut job = client.submit(spec).await.map_err(|error| error.to_string())?;
    let mut health = Health::Silent;
    let mut error = None;
    while let Some(update) = job.next().await {
        match update {
            JobUpdate::Accepted(_) | JobUpdate::Event(..) => health = Health::Busy,
            JobUpdate::Result(_, payload) => {
                // That the probe failed shows all the same that the worker runs what it takes.
                let result: Option<TaskResult> = serde_json::from_slice(&payload).ok();
                let error = result.filter(|result| result.failed).and_then(|result| result.errors.into_iter().next());
                let taken = SystemClock::now().saturating_duration_since(asked);
                return Ok((Health::Answers, Some(taken), error));
            }
            JobUpdate::Finished(outcome) => {
                if outcome.missing.iter().any(|(_, lost)| matches!(lost, Lost::Refused(_))) {
                    health = Health::Refuses;
                }
                error = outcome.missing.first().map(|(_, lost)| lost.to_string()).or(outcome.errors.into_iter().next());
            }
            _ => {}
        }
    }
    Ok((health, None, error))
}

fn show(global: &Global, broker_taken: Duration, found: &[Found], missing: &[String], failure: Option<&Failure>) {
    let milliseconds = |taken: Duration| (taken.as_secs_f64() * 10_000.0).round() / 10.0;
    if global.json {
        let workers: Vec<Value> = found
            .iter()
            .map(|one| {
                json!({
                    "name": one.name,
                    "service": one.service,
                    "health": one.health.word(),
                    "milliseconds": one.taken.map(milliseconds),
                    "keepalive_late": one.late,
                    "error": one.error,
                })
            })
            .collect();
        let mut document = json!({
            "healthy": failure.is_none(),
            "broker": { "milliseconds": milliseconds(broker_taken) },
            "workers": workers,
            "services_without_workers": missing,
        });
        if let Some(failure) = failure {
            failure.put_into(&mut document);
        }
        printer::json(&document);
    }
    let rows: Vec<Value> = found
        .iter()
        .map(|one| {
            json!({
                "name": one.name,
                "service": one.service,
                "health": one.health.as_str(),
                "ms": one.taken.map(milliseconds),
                "keepalive": if one.late { "late" } else { "" },
            })
        })
        .collect();
    if !global.json && !rows.is_empty() {
        printer::table(&["name", "service", "health", "ms", "keepalive"], &rows);
    }
    if let Some(failure) = failure {
        printer::error(&failure.text);
    }
    for one in found {
        if let Some(error) = &one.error {
            printer::warning(&format!("worker {}: {error}", one.name));
        }
    }
}
