//! `norfab run`: a job, its events, its questions and what workers return.

mod follow;
mod interrupts;
mod voice;

use std::time::Duration;

use norfab_fabric::client::{JobHandle, JobSpec, new_job_id};
use norfab_protocol::client::{JobState, JobUpdate};
use norfab_protocol::target::Target;
use norfab_protocol::{Identity, TaskName};
use serde_json::json;

use super::{
    Connected, answer_of, arguments, found_nobody, interrupted, job_failure, nobody_of, service_of, signalled,
};
use crate::args::{Events, Global, RunArgs};
use crate::exit::{Code, Failure};
use crate::printer;
use crate::signals::Signals;
use follow::Follower;
use interrupts::Interrupts;
use voice::Voice;

/// How long `--nowait` waits for the broker to say what it did with the job.
const DISPATCH_PATIENCE: Duration = Duration::from_secs(2);

/// How long the client has to store what came last and to say good-bye. A busy disk takes tenths of a second.
const STOP_PATIENCE: Duration = Duration::from_secs(10);

/// How long a client may take to open its database and to connect, however short the time-out of its job is: more than it waits
/// for its broker.
const START_PATIENCE: Duration = Duration::from_secs(20);

/// Who may be named with `--workers`.
const TARGETS: &str = "write any, all, or names with commas";

/// What to do about a name that the broker does not know.
const REGISTERED: &str = "'norfab workers' shows those that are registered";

/// So many `-q` that no log line is shown: they are no JSON.
const SILENT: u8 = 9;

pub async fn run(global: &Global, words: RunArgs) -> Result<Code, Failure> {
    let voice = Voice::new(words.events, global.quiet > 0);
    if words.events != Events::Json {
        return run_with(global, words, voice).await;
    }
    let silent = Global { quiet: SILENT, json_warnings: global.quiet == 0, ..global.clone() };
    let done = run_with(&silent, words, voice).await;
    let code = match done {
        Ok(code) => code,
        Err(failure) => {
            if !failure.is_told() {
                voice.error(&failure.text);
            }
            // For programs it is on standard output as well.
            return Err(failure.told());
        }
    };
    Ok(match printer::take_output_error() {
        Some(error) => {
            voice.error(&error);
            code.unless_ok(Code::Failed)
        }
        None => code,
    })
}

/// Why a job that could not be stored within its own time-out is not waited for.
fn not_stored() -> Failure {
    Failure::new(Code::TimedOut, "the job could not be stored in time and was not sent").hint(
        "the disk that holds __norfab__ takes nothing at the moment; 'norfab jobs' shows whether it was stored after all",
    )
}

/// Whom `--workers` means. Errors: nobody, or one word too many.
pub fn target_of(workers: &str) -> Result<Target, Failure> {
    if workers.split(',').all(|name| name.trim().is_empty()) {
        return Err(Failure::usage("--workers names nobody").hint(TARGETS));
    }
    let alone: Vec<&str> = workers.split(',').map(str::trim).filter(|name| ["any", "all"].contains(name)).collect();
    if let ([word, ..], true) = (&alone[..], workers.contains(',')) {
        let text = format!("--workers {workers}: '{word}' stands alone, it is not combined with names");
        return Err(Failure::usage(text).hint(TARGETS));
    }
    Ok(Target::from_words(workers))
}

async fn run_with(global: &Global, words: RunArgs, voice: Voice) -> Result<Code, Failure> {
    let target = target_of(&words.workers)?;
    // Known before it is submitted, for whoever sends a signal meanwhile.
    let id = new_job_id();
    let spec = JobSpec {
        id: Some(id.clone()),
        service: service_of(&words.service)?,
        task: TaskName::parse(&words.task).map_err(|error| {
            Failure::usage(error.to_string()).hint(format!("'norfab tasks {}' shows those there are", words.service))
        })?,
        target: target.clone(),
        kwargs: arguments(&words.arguments)?,
        args: Vec::new(),
        timeout: words.timeout,
        waits: words.wait_for_workers,
    };
    let answer = words.answer.as_deref().map(answer_of).transpose()?;
    if words.nowait && answer.is_some() {
        return Err(Failure::usage(
            "--answer does not go with --nowait, as nobody is here any more when the task asks",
        )
        .hint("'norfab jobs UUID --answer JSON' answers it then"));
    }
    let mut signals = Signals::new()?;
    // A disk that takes nothing must not hold the command longer than its job may take. The client opens its database where
    // it starts, so it does not start here.
    let of_client = global.clone();
    let started = tokio::spawn(async move { Connected::new(&of_client).await });
    let connected = tokio::select! {
        started = tokio::time::timeout(words.timeout.max(START_PATIENCE), started) => match started {
            Ok(started) => started.map_err(Failure::failed)??,
            Err(_) => return Err(not_stored()),
        },
        code = signals.next() => return Err(interrupted(code)),
    };
    let client = &connected.client;
    let interrupts = Interrupts::new(&words);
    let job = tokio::select! {
        submitted = tokio::time::timeout(words.timeout, client.submit(spec)) => match submitted {
            Ok(submitted) => submitted.map_err(Failure::failed)?,
            Err(_) => return Err(not_stored()),
        },
        code = signals.next() => {
            let text = format!("job {id} may be on its way already; 'norfab jobs {id}' shows it then");
            return Err(left(voice, code, &text));
        }
    };
    let done = async {
        if words.nowait {
            return nowait(global, &words, voice, &target, job).await;
        }
        let mut follower = Follower::new(voice, connected.site.clone(), global.verbose > 0, &words, target, answer);
        follower.follow(global, &words, client, job, &interrupts).await
    };
    let code = {
        let mut done = std::pin::pin!(done);
        loop {
            tokio::select! {
                code = &mut done => break code,
                code = signals.next() => {
                    if !interrupts.take(code) {
                        break Err(left(voice, code, &interrupts.left(&id)));
                    }
                }
            }
        }
    };
    if !ended(client.stop(), STOP_PATIENCE, signals.next()).await {
        voice.warning("the job database does not take what came last: 'norfab jobs' may show an older state");
    }
    code
}

/// Tells what becomes of a job that a signal leaves.
fn left(voice: Voice, code: Code, text: &str) -> Failure {
    voice.interrupted(code, text);
    let advice = text.split_once("; ").map(|(_, advice)| advice);
    Failure::new(code, format!("{}: {text}", signalled(code))).advised(advice).told()
}

/// Waits for the end of a client, but not longer than a while, nor beyond a second signal. `false`: it has not ended.
async fn ended(stop: impl Future<Output = ()>, patience: Duration, signal: impl Future<Output = Code>) -> bool {
    tokio::select! {
        () = stop => true,
        () = tokio::time::sleep(patience) => false,
        _ = signal => false,
    }
}

/// Leaves when the broker has said what it did with the job, so that the next process finds it on its way.
async fn nowait(
    global: &Global,
    words: &RunArgs,
    voice: Voice,
    target: &Target,
    mut job: JobHandle,
) -> Result<Code, Failure> {
    let id = job.id().clone();
    let sent = async {
        while let Some(update) = job.next().await {
            match update {
                JobUpdate::Dispatched(workers) => return Some(workers),
                JobUpdate::Finished(_) => return None,
                JobUpdate::Waits(whom) => voice.warning(&waits(&words.service, &words.workers, &whom)),
                _ => {}
            }
        }
        None
    };
    let dispatched = match tokio::time::timeout(DISPATCH_PATIENCE, sent).await {
        Ok(dispatched) => dispatched,
        Err(_) => {
            voice.warning(&format!("the broker has not answered yet; 'norfab jobs {id}' goes on with the job"));
            None
        }
    };
    let report = job.report();
    if report.state == JobState::Failed {
        return Err(job_failure(&words.service, &words.workers, &report));
    }
    let unreached = unreached(target, dispatched.as_deref(), &words.service);
    if global.json {
        let mut document = json!({ "uuid": id, "service": words.service, "task": words.task });
        if !unreached.is_empty() {
            Failure::failed(unreached.join("; ")).hint(REGISTERED).put_into(&mut document);
        }
        printer::json(&document);
    } else {
        printer::line(id.as_str());
    }
    unreached.iter().for_each(|error| voice.error(error));
    if !unreached.is_empty() {
        voice.information(&format!("hint: {REGISTERED}"));
    }
    Ok(if unreached.is_empty() { Code::Ok } else { Code::Failed })
}

/// What a job waits for, before it is known who has it.
fn waits(service: &str, workers: &str, whom: &str) -> String {
    let whom =
        if found_nobody(whom) { format!("{} at the moment", nobody_of(service, workers)) } else { whom.to_owned() };
    format!("{}: the job waits", printer::printable(&whom))
}

/// Workers that were named and not reached: the broker passes over names that it does not know.
fn unreached(target: &Target, dispatched: Option<&[Identity]>, service: &str) -> Vec<String> {
    let Some(dispatched) = dispatched else { return Vec::new() };
    let names = match target {
        Target::Any | Target::All => return Vec::new(),
        target => target.listed_names().unwrap_or_default(),
    };
    names
        .iter()
        .filter(|name| !dispatched.iter().any(|worker| worker.as_str() == **name))
        .map(|name| {
            let hint = super::pattern_hint(name);
            format!("worker {name} is not registered for service '{service}': the job did not go to it{hint}")
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use std::future::{pending, ready};

    use super::*;

    #[tokio::test]
    async fn a_client_that_does_not_end_holds_nobody_for_ever() {
        let long = Duration::from_secs(3600);
        assert!(ended(ready(()), long, pending()).await);
        assert!(!ended(pending(), Duration::from_millis(1), pending()).await);
        assert!(!ended(pending(), long, ready(Code::Interrupted)).await);
    }
}
