//! The commands, one file each.

mod broker_key;
mod demo;
mod files;
mod init;
mod inventory;
mod jobs;
mod mmi;
mod run;
mod serve;
mod tasks;
mod workers;

use std::time::Duration;

use norfab_fabric::LinkState;
use norfab_fabric::client::ClientHandle;
use serde_json::{Map, Value};

use crate::args::{Args, Command};
use crate::exit::{Code, Failure};
use crate::site::{ClientSlot, Site};

/// How long a command waits for its broker before it says that there is none. Longer than a handshake needs, shorter than
/// people wait.
const CONNECT_PATIENCE: Duration = Duration::from_secs(10);

/// Runs a command, tells what went wrong, and returns the exit code.
pub async fn dispatch(args: Args) -> Code {
    let Args { global, command } = args;
    let done = match command {
        Command::Init { dir, force } => init::run(&global, &dir, force),
        Command::Up => serve::up(&global).await,
        Command::Broker => serve::broker(&global).await,
        Command::Worker { names, service } => serve::workers(&global, &names, service.as_deref()).await,
        Command::Run(arguments) => run::run(&global, arguments).await,
        Command::Mmi { service, task, arguments, timeout } => {
            mmi::run(&global, &service, &task, &arguments, timeout).await
        }
        Command::Files { command } => files::run(&global, command).await,
        Command::Jobs { uuid, last, wait } => jobs::run(&global, uuid.as_deref(), last, wait).await,
        Command::Workers { service } => workers::run(&global, service.as_deref()).await,
        Command::Tasks { service, task, worker } => tasks::run(&global, &service, task.as_deref(), &worker).await,
        Command::Inventory { worker, remote } => inventory::run(&global, worker.as_deref(), remote).await,
        Command::BrokerKey => broker_key::run(&global),
        Command::Demo => demo::run(&global).await,
    };
    match done {
        Ok(code) => code,
        Err(Failure { code, text }) => {
            eprintln!("error: {text}");
            code
        }
    }
}

/// A client that is connected, and the lock on its name.
struct Connected {
    client: ClientHandle,
    _slot: ClientSlot,
    _logs: norfab_logs::LogGuard,
}

impl Connected {
    /// Starts a client and waits until its broker has let it in. Errors: no broker there, or it refuses.
    async fn new(global: &crate::args::Global) -> Result<Self, Failure> {
        let mut site = Site::load(global)?;
        let slot = site.client_slot()?;
        let logs = site.start_logs(global, norfab_logs::Role::Client, &slot.name, false)?;
        let client = site.start_client(&slot)?;
        let endpoint = site.endpoint()?.to_owned();
        if let Err(failure) = connected(&client, &endpoint).await {
            client.stop().await;
            return Err(failure);
        }
        Ok(Self { client, _slot: slot, _logs: logs })
    }
}

/// Waits until a client is connected. Errors: what is wrong, as soon as it is known.
async fn connected(client: &ClientHandle, endpoint: &str) -> Result<(), Failure> {
    let mut state = client.state();
    let settled = tokio::time::timeout(
        CONNECT_PATIENCE,
        state.wait_for(|state| {
            matches!(state, LinkState::Connected | LinkState::Refused { .. } | LinkState::Unreachable { .. })
        }),
    )
    .await;
    match settled {
        Ok(Ok(state)) => match state.problem() {
            None => Ok(()),
            Some(problem) => Err(Failure::new(Code::Unreachable, problem)),
        },
        Ok(Err(_)) => Err(Failure::failed("the client has stopped")),
        Err(_) => Err(Failure::new(
            Code::Unreachable,
            format!("no broker answered at {endpoint} within {} s: is it running there?", CONNECT_PATIENCE.as_secs()),
        )),
    }
}

/// Reads `key=text` and `key:=JSON`. Errors: neither, or not JSON; the argument is named.
fn arguments(words: &[String]) -> Result<Map<String, Value>, Failure> {
    let mut arguments = Map::new();
    for word in words {
        let (key, value) = match (word.find(":="), word.find('=')) {
            (Some(at), Some(equals)) if at < equals => {
                let text = &word[at + 2..];
                let value = serde_json::from_str(text).map_err(|error| {
                    Failure::usage(format!("argument '{word}': the part after := is not JSON: {error}"))
                })?;
                (&word[..at], value)
            }
            (_, Some(equals)) => (&word[..equals], Value::String(word[equals + 1..].to_owned())),
            (_, None) => {
                return Err(Failure::usage(format!("argument '{word}': write key=text or key:=JSON")));
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
        assert!(read(&["=x"]).is_err());
        assert!(read(&["a=1", "a=2"]).is_err_and(|text| text.contains("twice")));
    }
}
