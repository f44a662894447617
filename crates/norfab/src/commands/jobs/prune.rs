//! `norfab jobs prune`: forgets finished jobs.

use std::path::Path;
use std::time::Duration;

use norfab_fabric::SystemClock;
use norfab_jobs::sqlite::{FILE_NAME, Schema, SqliteStore};
use norfab_jobs::{Pruned, Retention, Store, StoreError};
use serde_json::{Value, json};

use crate::args::{Global, PruneArgs};
use crate::exit::{Code, Failure};
use crate::printer;
use crate::site::Site;

/// How long the owner of a database has to bring into it what it noted: one that is idle does so after a tenth of a second, one on a
/// full disk not at all.
const OWNER_PATIENCE: Duration = Duration::from_secs(2);

/// How often it is looked whether it has.
const OWNER_INTERVAL: Duration = Duration::from_millis(20);

/// Prunes the databases of this client's names, and of workers where that is asked for. One that cannot be pruned keeps no other
/// back, and is exit code 1.
pub async fn run(global: &Global, site: &Site, words: &PruneArgs) -> Result<Code, Failure> {
    let general = site.retention()?;
    let retention = Retention {
        age_max: words.older_than.unwrap_or(general.age_max),
        jobs_max: words.keep.unwrap_or(general.jobs_max),
        bytes_max: words.max_bytes.unwrap_or(general.bytes_max),
    };
    let mut rows = Vec::new();
    let mut code = Code::Ok;
    let clients = site.client_folders()?.into_iter().map(|(name, folder)| ("client", name, folder));
    let workers = if words.workers { site.worker_folders()? } else { Vec::new() };
    for (role, name, folder) in clients.chain(workers.into_iter().map(|(name, folder)| ("worker", name, folder))) {
        let path = folder.join(FILE_NAME);
        if !path.exists() {
            continue;
        }
        let pruned = match role {
            "client" => prune::<norfab_jobs::sqlite::ClientJobs>(&path, &retention, words.dry_run).await,
            _ => prune::<norfab_jobs::sqlite::WorkerJobs>(&path, &retention, words.dry_run).await,
        };
        let (went, error) = match pruned {
            Ok((went, left, error)) => (Some((went, left)), error),
            Err(error) => (None, Some(error)),
        };
        let mut row = json!({ "name": name, "role": role });
        if let Some((Pruned { jobs, bytes, .. }, left)) = went {
            row = json!({
                "name": name, "role": role, "jobs": jobs, "bytes": bytes, "left": left, "dry_run": words.dry_run,
            });
        }
        if let Some(error) = error {
            let failure = Failure::failed(&error).advised(error.advice());
            code = failure.code;
            printer::error(&failure.text);
            failure.put_into(&mut row);
        }
        if went.is_some() || global.json {
            rows.push(row);
        }
    }
    if global.json {
        printer::json(&Value::Array(rows));
        return Ok(code);
    }
    printer::table(&["name", "role", "jobs", "bytes", "left"], &rows);
    if words.dry_run && !rows.is_empty() && global.quiet == 0 {
        printer::remark("nothing was changed: 'jobs' and 'bytes' are what would go");
    }
    Ok(code)
}

/// What went, or would, how many jobs are left, and what kept the rest of it from going. An error: nothing went.
async fn prune<S: Schema>(
    path: &Path,
    retention: &Retention,
    dry_run: bool,
) -> Result<(Pruned, u64, Option<StoreError>), StoreError> {
    // Beside its owner, which may be at work.
    let mut store = SqliteStore::<S>::open_beside(path)?;
    // What has ended a moment ago is not there yet. Where it does not come in time, the next prune has it.
    if let Some(last) = store.noted_by_owner()? {
        let there = async {
            while !store.has_noted(last)? {
                tokio::time::sleep(OWNER_INTERVAL).await;
            }
            Ok::<(), StoreError>(())
        };
        tokio::time::timeout(OWNER_PATIENCE, there).await.unwrap_or(Ok(()))?;
    }
    let now = SystemClock::unix();
    let before = store.ids()?.len() as u64;
    let mut all = Pruned::default();
    let mut ended = None;
    if dry_run {
        all = store.plan(retention, now)?;
    } else {
        loop {
            let step = match store.prune(retention, now) {
                Ok(step) => step,
                Err(error) if all.jobs == 0 => return Err(error),
                Err(error) => {
                    ended = Some(error);
                    break;
                }
            };
            all.jobs += step.jobs;
            all.bytes += step.bytes;
            // The next step, or the end below, says what is wrong.
            drop(store.tidy());
            if !step.more {
                break;
            }
        }
        match store.give_back() {
            // Where there is no space for it, it is done when there is.
            Ok(()) | Err(StoreError::DiskFull { .. }) => {}
            Err(error) => ended = ended.or(Some(error)),
        }
    }
    Ok((all, before.saturating_sub(all.jobs), ended))
}
