//! The roles on our crates in the shape of the Python peers: `norfab-peer ROLE INVENTORY NAME...`, driven by lines of
//! JSON on standard input and output.
//!
//! The binary `norfab` plays the broker, and workers of the services that we ship. The tests also need a worker with a task for each thing that a job can do, the same tasks as `python/dummy_worker.py`, and a client
//! that takes calls, the same calls as `python/client.py`.

mod client;
mod dummy;
mod lines;
mod site;
mod worker;

use std::env;
use std::process::ExitCode;

use serde_json::json;
use tokio::runtime::Runtime;

use crate::site::Site;

/// What went wrong, for the failure text of a test.
type Failure = Box<dyn std::error::Error + Send + Sync>;

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("error: {failure}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<(), Failure> {
    let words: Vec<String> = env::args().skip(1).collect();
    let [role, inventory, names @ ..] = &words[..] else {
        return Err("usage: norfab-peer worker|client INVENTORY NAME...".into());
    };
    let site = Site::load(inventory)?;
    let runtime = Runtime::new()?;
    match (role.as_str(), names) {
        ("worker", [first, ..]) => {
            let workers = names.iter().map(|name| worker::start(&site, name, runtime.handle()));
            let workers = workers.collect::<Result<Vec<_>, _>>()?;
            lines::say(&json!({"ready": role, "name": first, "endpoint": site.endpoint()}));
            lines::wait_for_stop();
            for worker in workers {
                runtime.block_on(worker.stop(worker::DRAIN));
            }
        }
        ("client", [name]) => {
            let mut calls = client::Calls::start(&site, name)?;
            lines::say(&json!({"ready": role, "name": name, "endpoint": site.endpoint()}));
            lines::serve(|call, arguments| runtime.block_on(calls.call(call, arguments)));
            runtime.block_on(calls.stop());
        }
        _ => return Err(format!("no such role with {} names: {role:?}", names.len()).into()),
    }
    Ok(())
}
