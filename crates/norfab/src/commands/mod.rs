//! The commands, one file each.

mod broker_key;
mod cancel;
mod complete;
mod completion;
mod demo;
mod files;
mod health;
mod init;
mod inventory;
mod jobs;
mod mmi;
mod run;
mod serve;
mod tasks;
mod workers;

use std::time::Duration;

use norfab_fabric::client::{ClientHandle, JobReport};
use norfab_fabric::{LinkState, Problem};
use norfab_protocol::broker::{INVENTORY_SERVICE, MANAGEMENT_SERVICE};
use norfab_protocol::client::JobState;
use norfab_protocol::{JobId, ServiceName};
use serde_json::{Map, Value};

use crate::args::{Args, Command, Global};
use crate::exit::{Code, Failure};
use crate::printer;
use crate::signals::Signals;
use crate::site::{ClientSlot, Site};

/// How long a command waits for its broker before it says that there is none. Longer than a handshake needs, shorter than
/// people wait.
const CONNECT_PATIENCE: Duration = Duration::from_secs(10);

/// Runs a command, tells what went wrong, and returns the exit code.
pub async fn dispatch(args: Args) -> Code {
    let Args { global, command } = args;
    let as_json = global.json;
    let done = match command {
        Command::Up => serve::up(&global).await,
        Command::Broker => serve::broker(&global).await,
        Command::Worker { names, service, wait_for_key } => {
            serve::workers(&global, &names, service.as_deref(), wait_for_key).await
        }
        Command::Run(words) => run::run(&global, words).await,
        Command::Demo => demo::run(&global).await,
        Command::Complete(words) => complete::run(words).await,
        command => until_signalled(once(&global, command)).await,
    };
    let code = done.unwrap_or_else(|failure| {
        if !failure.is_told() {
            printer::error(&failure.text);
        }
        if as_json {
            printer::failure(&failure);
        }
        failure.code
    });
    match printer::take_output_error() {
        Some(error) => {
            printer::error(&error);
            code.unless_ok(Code::Failed)
        }
        None => code,
    }
}

/// What ends by itself.
async fn once(global: &Global, command: Command) -> Result<Code, Failure> {
    match command {
        Command::Up
        | Command::Broker
        | Command::Worker { .. }
        | Command::Run(_)
        | Command::Demo
        | Command::Complete(_) => unreachable!("these look after signals themselves"),
        Command::Init { dir, force } => init::run(global, &dir, force),
        Command::Mmi { service, task, arguments, timeout } => {
            mmi::run(global, &service, &task, &arguments, timeout).await
        }
        Command::Files { command } => files::run(global, command).await,
        Command::Cancel(words) => cancel::run(global, words).await,
        Command::Jobs(words) => jobs::run(global, words).await,
        Command::Workers { service } => workers::run(global, service.as_deref()).await,
        Command::Health { services, timeout } => health::run(global, &services, timeout).await,
        Command::Tasks { service, task, worker, wait_for_workers } => {
            tasks::run(global, &service, task.as_deref(), &worker, wait_for_workers).await
        }
        Command::Inventory { worker, remote } => inventory::run(global, worker.as_deref(), remote).await,
        Command::Completion { shell } => completion::run(shell),
        Command::BrokerKey { create } => broker_key::run(global, create),
    }
}

/// A signal drops the command where it waits, so that what it made for the time being goes away: a half fetched file, a
/// temporary folder.
async fn until_signalled(command: impl Future<Output = Result<Code, Failure>>) -> Result<Code, Failure> {
    let mut signals = Signals::new()?;
    tokio::select! {
        done = command => done,
        code = signals.next() => Err(interrupted(code)),
    }
}

/// A signal ended a command. Whoever sent it knows; programs want to read it.
fn interrupted(code: Code) -> Failure {
    Failure::new(code, signalled(code)).told()
}

/// What a signal did to a command, in a word.
fn signalled(code: Code) -> &'static str {
    if code == Code::Terminated { "terminated" } else { "interrupted" }
}

/// A client that is connected, and the lock on its name.
struct Connected {
    client: ClientHandle,
    site: Site,
    slot: ClientSlot,
    _logs: norfab_logs::LogGuard,
}

impl Connected {
    /// Starts a client and waits until its broker has let it in. Errors: no broker there, or it refuses.
    async fn new(global: &Global) -> Result<Self, Failure> {
        Self::at(Site::load(global)?, global).await
    }

    /// As [`Connected::new`], for questions: its jobs are kept nowhere.
    async fn to_ask(global: &Global) -> Result<Self, Failure> {
        let started =
            Self::started_with(Site::load(global)?, global, |site, slot| site.start_asking_client(&slot.name))?;
        if let Err(failure) = connected(&started.client, &started.site).await {
            started.client.stop().await;
            return Err(failure);
        }
        Ok(started)
    }

    /// As [`Connected::new`], where the inventory was loaded before.
    async fn at(site: Site, global: &Global) -> Result<Self, Failure> {
        let started = Self::started(site, global)?;
        if let Err(failure) = connected(&started.client, &started.site).await {
            started.client.stop().await;
            return Err(failure);
        }
        Ok(started)
    }

    /// A client that may not be connected yet.
    fn started(site: Site, global: &Global) -> Result<Self, Failure> {
        Self::started_with(site, global, Site::start_client)
    }

    fn started_with(
        mut site: Site,
        global: &Global,
        start: impl FnOnce(&Site, &ClientSlot) -> Result<ClientHandle, Failure>,
    ) -> Result<Self, Failure> {
        let slot = site.client_slot()?;
        let logs = site.start_logs(global, norfab_logs::Role::Client, &slot.name, false)?;
        let client = start(&site, &slot)?;
        Ok(Self { client, site, slot, _logs: logs })
    }

    /// Where files are kept that this client fetches.
    fn fetched_files(&self) -> Result<std::path::PathBuf, Failure> {
        self.site.fetched_files(&self.slot.name)
    }
}

/// Waits until a client is connected. Errors: what is wrong, as soon as it is known.
async fn connected(client: &ClientHandle, site: &Site) -> Result<(), Failure> {
    let endpoint = site.endpoint()?;
    let mut state = client.state();
    let settled = tokio::time::timeout(
        CONNECT_PATIENCE,
        state.wait_for(|state| {
            matches!(state, LinkState::Connected | LinkState::Refused { .. } | LinkState::Unreachable { .. })
        }),
    )
    .await;
    match settled {
        Ok(Ok(state)) => match site.problem(client.identity(), &state) {
            None => Ok(()),
            Some(Problem { text, hint: None }) => Err(Failure::new(Code::Unreachable, text)),
            Some(Problem { text, hint: Some(hint) }) => Err(Failure::new(Code::Unreachable, text).hint(hint)),
        },
        Ok(Err(_)) => Err(Failure::failed("the client has stopped")),
        Err(_) => Err(Failure::new(
            Code::Unreachable,
            format!("no broker answered at {endpoint} within {} s", CONNECT_PATIENCE.as_secs()),
        )
        .hint(format!("start it there, or correct {}", site.endpoint_source()))),
    }
}

/// Asks the broker itself. Errors: it does not answer in time, or refuses.
async fn ask_broker(
    client: &ClientHandle,
    service: &str,
    task: &str,
    kwargs: Map<String, Value>,
    timeout: Duration,
) -> Result<Value, Failure> {
    let service = ServiceName::parse(service).map_err(|error| Failure::usage(error.to_string()))?;
    let answer = client.management(service, task, kwargs, timeout).await.map_err(Failure::failed)?;
    match answer.status.code() {
        200 => Ok(answer.results),
        TIMED_OUT => {
            Err(Failure::new(Code::TimedOut, format!("the broker did not answer within {} s", timeout.as_secs_f64()))
                .hint("'norfab mmi --timeout TIME' asks with more patience"))
        }
        code => Err(match answer.results["error"].as_str() {
            Some(error) => {
                // What the task takes stands behind an argument that it does not know.
                let takes = error.find(&format!("{task} takes ")).map(|at| &error[at..]);
                Failure::failed(format!("the broker refused: {error}")).advised(takes)
            }
            None => Failure::failed(format!("the broker refused with status {code}: {}", answer.results)),
        }),
    }
}

/// The status that the client gives a request to the broker that nobody answered.
const TIMED_OUT: u16 = 408;

/// How long the broker may take to answer where nobody says otherwise.
const ANSWER_PATIENCE: Duration = Duration::from_secs(10);

/// Where the broker found nobody for a job it says so in the words of the wire, which name no way out: this does.
fn nobody(code: Code, service: &str, workers: &str, report: &JobReport) -> Option<Failure> {
    // At the deadline of a job that waited, the last refusal stands behind the time-out: no worker ever had it.
    if matches!(report.state, JobState::Failed | JobState::Stale)
        && report.workers.is_empty()
        && report.errors.iter().any(|error| found_nobody(error))
    {
        let late = if report.state == JobState::Stale { ", and none came in time" } else { "" };
        let text = format!("{}{late}", nobody_of(service, workers));
        let hint = pattern_hint(workers);
        return Some(Failure::new(code, text).hint(format!("'norfab workers' shows those that are registered{hint}")));
    }
    None
}

/// Whether the broker says that it found nobody for a job, in the words of the wire.
fn found_nobody(error: &str) -> bool {
    error.contains("failed to target workers")
}

/// The same for people, with those that were asked for.
fn nobody_of(service: &str, workers: &str) -> String {
    match workers {
        "all" | "any" => format!("service '{service}' has no worker that can be reached"),
        names if names.contains(',') => {
            format!("service '{service}' has none of the workers {names} that can be reached")
        }
        names => format!("service '{service}' has no worker {names} that can be reached"),
    }
}

/// Why a job did not complete, for people.
fn job_errors(service: &str, workers: &str, report: &JobReport) -> Vec<String> {
    nobody(code_of(report), service, workers, report)
        .map_or_else(|| report.errors.clone(), |failure| vec![failure.text])
}

/// The same as the failure of a command.
fn job_failure(service: &str, workers: &str, report: &JobReport) -> Failure {
    let code = code_of(report).unless_ok(Code::Failed);
    nobody(code, service, workers, report).unwrap_or_else(|| Failure::new(code, report.errors.join("; ")))
}

/// What to say of names with the characters of patterns, which the inventory has and targets have not.
fn pattern_hint(names: &str) -> &'static str {
    if names.contains(['*', '?']) { "; names stand as they are, * and ? have no meaning in them" } else { "" }
}

/// What to write where a worker refused an argument because it came as a text: `key=1` is one.
fn typing_hint(words: &[String], errors: &[String]) -> Option<String> {
    words.iter().find_map(|word| {
        let (key, text) = word.split_once('=')?;
        // `key:=` is JSON already, and what is no JSON would not be more.
        let value = serde_json::from_str::<Value>(text).ok().filter(|_| !key.ends_with(':'))?;
        let kind = match value {
            Value::Null => "null",
            Value::Bool(_) => "true or false",
            Value::Number(_) => "a number",
            Value::String(_) => "a text without its quotes",
            Value::Array(_) => "a list",
            Value::Object(_) => "an object",
        };
        let refused = format!("argument '{key}': expected ");
        let wants_other = |error: &String| {
            let after = error.split_once(refused.as_str()).map(|(_, after)| after);
            after.is_some_and(|after| !after.starts_with("a string") && !after.starts_with("a text"))
        };
        errors.iter().any(wants_other).then(|| format!("{key}={text} is a text: write {key}:={text} for {kind}"))
    })
}

/// The exit code of a job that ended.
fn code_of(report: &JobReport) -> Code {
    match report.state {
        JobState::Completed if report.succeeded() => Code::Ok,
        JobState::Stale => Code::TimedOut,
        _ => Code::Failed,
    }
}

/// Reads an answer that was given beforehand. Errors: it is not JSON.
fn answer_of(text: &str) -> Result<Value, Failure> {
    serde_json::from_str(text).map_err(|error| {
        let failure = Failure::usage(format!("--answer is not JSON: {error}"));
        match text.trim().to_lowercase().as_str() {
            "y" | "yes" => failure.hint("--answer true says yes"),
            "n" | "no" => failure.hint("--answer false says no"),
            _ => failure.hint("yes is true, no is false, and a text needs quotes, '\"text\"'"),
        }
    })
}

/// Reads `key=text` and `key:=JSON`. Errors: neither, or not JSON; the argument is named.
fn arguments(words: &[String]) -> Result<Map<String, Value>, Failure> {
    let mut arguments = Map::new();
    for word in words {
        let (key, value) = match (word.find(":="), word.find('=')) {
            (Some(at), Some(equals)) if at < equals => {
                let text = &word[at + 2..];
                let key = &word[..at];
                let value = serde_json::from_str(text).map_err(|error| {
                    // What begins like this was meant to be JSON.
                    let meant = text.starts_with(['{', '[', '"']);
                    let wrong = format!("argument '{word}': the part after := is not JSON");
                    if meant {
                        return Failure::usage(format!("{wrong}: {error}"));
                    }
                    Failure::usage(wrong).hint(format!("if it is a text, write {key}={text}"))
                })?;
                (key, value)
            }
            (_, Some(equals)) => (&word[..equals], Value::String(word[equals + 1..].to_owned())),
            (_, None) => {
                return Err(Failure::usage(format!("argument '{word}'")).hint("write key=text or key:=JSON"));
            }
        };
        if key.is_empty() {
            return Err(Failure::usage(format!("argument '{word}' has no key before its sign")));
        }
        if arguments.insert(key.to_owned(), value).is_some() {
            return Err(Failure::usage(format!("argument '{key}' is given twice")));
        }
    }
    Ok(arguments)
}

/// A service that takes jobs. Errors: it is no name, or the broker itself, which answers questions and takes no jobs.
fn service_of(text: &str) -> Result<ServiceName, Failure> {
    if [MANAGEMENT_SERVICE, INVENTORY_SERVICE].contains(&text) {
        let failure = Failure::usage(format!("'{text}' is the broker itself, which takes no jobs"));
        return Err(failure.hint(format!("'norfab mmi {text} TASK' asks it")));
    }
    ServiceName::parse(text)
        .map_err(|error| Failure::usage(error.to_string()).hint("'norfab workers' shows the services there are"))
}

/// The id of a job that is known here. Errors: it is none.
fn job_of(text: &str) -> Result<JobId, Failure> {
    JobId::parse(text)
        .map_err(|error| Failure::usage(error.to_string()).hint("'norfab jobs' lists those that are known"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn read(words: &[&str]) -> Result<Value, String> {
        let words: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
        arguments(&words).map(Value::Object).map_err(|failure| failure.text)
    }

    #[test]
    fn arguments_are_texts_or_json() {
        assert_eq!(
            read(&["a=1", "b:=1", "c:=[\"x=y\"]", "d=x:=y", "e="]),
            Ok(json!({"a": "1", "b": 1, "c": ["x=y"], "d": "x:=y", "e": ""}))
        );
        assert!(read(&["a"]).is_err_and(|text| text.contains("'a'")));
        assert!(read(&["a:={nope"]).is_err_and(|text| text.contains("not JSON")));
        assert!(read(&["url:=nf://a"]).is_err_and(|text| text.ends_with("if it is a text, write url=nf://a")));
        assert!(read(&["=x"]).is_err());
        assert!(read(&["a=1", "a=2"]).is_err_and(|text| text.contains("twice")));
    }
}
