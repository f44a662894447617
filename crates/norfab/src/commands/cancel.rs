//! `norfab cancel`: ends a job on its workers.

use std::path::{Path, PathBuf};

use norfab_fabric::client::{JobReport, WorkerReport};
use norfab_jobs::{ClientJob, ClientJobDetails, ClientState, ClientStore};
use norfab_protocol::JobId;
use norfab_protocol::client::{JobState, Lost};
use norfab_protocol::target::Target;
use serde_json::{Map, Value, json};

use super::jobs::{WATCH_INTERVAL, readable, stored};
use super::{Connected, connected};
use crate::args::{CancelArgs, Global};
use crate::exit::{Code, Failure};
use crate::printer;
use crate::site::{ClientSlot, Site};

/// Who cancels, for all who look at the job later: the user and the host.
pub(super) fn who() -> String {
    let user = ["USER", "LOGNAME"].iter().find_map(|name| std::env::var(name).ok().filter(|user| !user.is_empty()));
    let user = user.unwrap_or_else(|| format!("user {}", rustix::process::getuid().as_raw()));
    format!("{user}@{}", rustix::system::uname().nodename().to_string_lossy())
}

pub async fn run(global: &Global, words: CancelArgs) -> Result<Code, Failure> {
    let id = JobId::parse(&words.uuid).map_err(|error| Failure::usage(error.to_string()))?;
    let mut site = Site::load_worked_in(global)?;
    let (name, folder, details) = found(&site, &id)?;
    if details.job.state.is_final() {
        return Ok(tell(global, &details.job, &Map::new()));
    }
    let Some(slot) = site.take_slot(&name)? else {
        return elsewhere(global, site, &folder, details.job, &words).await;
    };
    let _logs = site.start_logs(global, norfab_logs::Role::Client, &name, false)?;
    let report = own(&site, &slot, &id, &words).await?;
    drop(slot);
    let job = stored(&folder, &id)?.map_or(details.job, |details| details.job);
    if let Some(report) = report.as_ref().filter(|report| report.state == JobState::Cancelled) {
        // Behind who cancelled it: that this could not be written down.
        for problem in report.errors.iter().skip(1) {
            printer::warning(&printer::printable(problem));
        }
    }
    Ok(tell(global, &job, &report.map(|report| standings(&report)).unwrap_or_default()))
}

fn found(site: &Site, id: &JobId) -> Result<(String, PathBuf, ClientJobDetails), Failure> {
    for (name, folder) in site.client_folders()? {
        let Some(mut store) = readable(&folder) else { continue };
        if let Some(details) = store.job(id).map_err(Failure::configuration)? {
            return Ok((name, folder, details));
        }
    }
    Err(Failure::failed(format!("job {id} is not known here: 'norfab jobs' lists those that are")))
}

/// Cancels a job of a client that does not run. It is written down before anybody is told: what cannot be told now is told
/// when a client of the name runs the next time.
async fn own(site: &Site, slot: &ClientSlot, id: &JobId, words: &CancelArgs) -> Result<Option<JobReport>, Failure> {
    // Whoever cancels a job does not mean to start others.
    let client = site.start_client_that_sends_no_jobs(slot)?;
    let done = async {
        let watched = client.watch(id.clone()).await.map_err(Failure::failed)?;
        client.cancel(id.clone(), &who(), words.reason.clone()).await.map_err(Failure::failed)?;
        if let Err(failure) = connected(&client, site).await {
            printer::warning(&failure.text);
            return Ok(None);
        }
        match watched {
            Some(job) => Ok(Some(job.wait().await)),
            None => Ok(None),
        }
    };
    let report = tokio::time::timeout(words.wait, done).await.unwrap_or(Ok(None));
    client.stop().await;
    report
}

/// Cancels a job that a running command waits for: its workers are told under another name, and tell that command.
async fn elsewhere(
    global: &Global,
    site: Site,
    folder: &Path,
    mut job: ClientJob,
    words: &CancelArgs,
) -> Result<Code, Failure> {
    let target = match (job.dispatched.as_slice(), Target::parse(&job.target)) {
        ([], Target::Any) => Target::All,
        ([], target) => target,
        (workers, _) => Target::list(workers),
    };
    let connected = Connected::at(site, global).await?;
    let (id, service, reason) = (job.id.clone(), job.service.clone(), words.reason.clone());
    connected.client.cancel_elsewhere(id, service, target, &who(), reason).await.map_err(Failure::failed)?;
    let ended = async {
        loop {
            if let Some(details) = stored(folder, &job.id)? {
                job = details.job;
            }
            if job.state.is_final() {
                return Ok(());
            }
            tokio::time::sleep(WATCH_INTERVAL).await;
        }
    };
    tokio::time::timeout(words.wait, ended).await.unwrap_or(Ok(()))?;
    connected.client.stop().await;
    Ok(tell(global, &job, &Map::new()))
}

/// How it stands with the cancellation on each worker.
fn standings(report: &JobReport) -> Map<String, Value> {
    let standing = |one: &WorkerReport| match one {
        WorkerReport::Returned(_) => CONFIRMED.to_owned(),
        WorkerReport::Missing(Lost::Cancelled) => CONFIRMED.to_owned(),
        WorkerReport::Missing(lost) => lost.to_string(),
    };
    report.workers.iter().map(|(worker, one)| (worker.to_string(), standing(one).into())).collect()
}

/// The standing of a worker on which nothing of the job runs any more.
const CONFIRMED: &str = "ended";

fn tell(global: &Global, job: &ClientJob, workers: &Map<String, Value>) -> Code {
    let missing: Vec<_> = workers.iter().filter(|(_, standing)| *standing != CONFIRMED).collect();
    if global.json {
        printer::json(&json!({
            "uuid": job.id,
            "service": job.service,
            "task": job.task,
            "status": job.state.as_str(),
            "errors": job.errors,
            "workers": workers,
        }));
    }
    let text = job.errors.first().map(|text| printer::printable(text).into_owned()).unwrap_or_default();
    match job.state {
        ClientState::Cancelled if missing.is_empty() => {
            if !global.json {
                printer::line(&format!("job {}: {text}", job.id));
            }
            return Code::Ok;
        }
        ClientState::Cancelled | ClientState::Cancelling => {
            if !global.json {
                printer::line(&format!("job {}: {text}", job.id));
            }
            for (worker, standing) in &missing {
                printer::warning(&format!("worker {worker}: {}", printer::plain(standing)));
            }
            if missing.is_empty() {
                printer::warning(&format!(
                    "not every worker has confirmed it: 'norfab cancel {}' tells them again, as does every command of this \
                     client's name while it runs",
                    job.id
                ));
            }
            return Code::TimedOut;
        }
        state if state.is_final() => {
            printer::error(&format!("job {} has ended already: {state}", job.id));
        }
        _ => {
            printer::error(&format!(
                "job {} has not ended: another command waits for it, and its workers have not confirmed the cancellation; \
                 Ctrl-C in that command cancels it, too",
                job.id
            ));
            return Code::TimedOut;
        }
    }
    Code::Failed
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whoever_cancels_is_named() {
        let (user, host) = who().rsplit_once('@').map(|(user, host)| (user.to_owned(), host.to_owned())).expect("both");
        assert!(!user.is_empty() && !host.is_empty());
    }
}
