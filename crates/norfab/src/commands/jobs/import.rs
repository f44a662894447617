//! `norfab jobs import`: jobs from databases that Python NorFab left.

use std::path::{Path, PathBuf};

use norfab_fabric::SystemClock;
use norfab_jobs::python::{Imported, Owner, PythonJobs, Times};
use norfab_jobs::sqlite::{FILE_NAME, Schema, SqliteStore};
use norfab_jobs::{ClientStore, SqliteClientStore, SqliteWorkerStore, WorkerStore};
use serde_json::{Value, json};

use crate::args::Global;
use crate::exit::{Code, Failure};
use crate::printer;
use crate::site::Site;

/// Reads each file. A client's jobs go to this client, those of a worker to the worker of the same name here. A row or a file that
/// cannot be read keeps no other back, and is exit code 1.
pub fn run(global: &Global, site: &Site, files: Vec<PathBuf>) -> Result<Code, Failure> {
    let files = if files.is_empty() { found(site)? } else { files };
    if files.is_empty() {
        printer::remark("there is no job database of Python NorFab below this base folder: name its file");
    }
    let retention = site.retention()?;
    let now = SystemClock::unix();
    let (mut rows, mut failed) = (Vec::new(), Vec::new());
    let mut code = Code::Ok;
    let mut forgotten_soon = false;
    for file in &files {
        match import(site, file) {
            Ok((owner, name, imported)) => {
                for problem in &imported.problems {
                    printer::warning(&format!("{}: {problem}", file.display()));
                }
                if imported.unreadable > 0 {
                    code = Code::Failed;
                }
                forgotten_soon |=
                    imported.oldest_end.is_some_and(|oldest| now - oldest > retention.age_max.as_secs_f64());
                rows.push(json!({
                    "file": file.display().to_string(),
                    "role": if owner == Owner::Client { "client" } else { "worker" },
                    "name": name,
                    "imported": imported.jobs,
                    "events": imported.events,
                    "known": imported.known,
                    "unfinished": imported.unfinished,
                    "unreadable": imported.unreadable,
                }));
            }
            Err(failure) => {
                code = Code::Failed;
                printer::error(&failure.text);
                let mut row = json!({ "file": file.display().to_string() });
                failure.put_into(&mut row);
                failed.push(row);
            }
        }
    }
    if forgotten_soon && global.quiet == 0 {
        printer::warning(&format!(
            "some of these jobs ended more than {} days ago and will be forgotten: a larger jobs.retention_days in {} keeps \
             them",
            retention.age_max.as_secs() / 86_400,
            site.inventory_name()
        ));
    }
    if global.json {
        rows.append(&mut failed);
        printer::json(&Value::Array(rows));
    } else if !rows.is_empty() {
        printer::table(&["file", "role", "name", "imported", "events", "known", "unfinished", "unreadable"], &rows);
    }
    Ok(code)
}

/// Whose jobs they are now, and what became of the rows.
fn import(site: &Site, file: &Path) -> Result<(Owner, String, Imported), Failure> {
    let python = PythonJobs::open(file).map_err(|error| {
        Failure::failed(error).advised(Some("name the NAME.db of a client or worker below __norfab__/files"))
    })?;
    let times = Times { now: SystemClock::unix(), read: &SystemClock::unix_of_local };
    let imported = match python.owner() {
        Owner::Client => {
            let name = site.client_name();
            let slot = site.take_slot(&name)?;
            let folder = site.client_folder(&name)?;
            let mut store: SqliteClientStore = open(&folder, slot.is_some())?;
            (name, python.import_client(&mut store as &mut dyn ClientStore, &times))
        }
        Owner::Worker => {
            let name = file.file_stem().unwrap_or_default().to_string_lossy().into_owned();
            let (folder, lock) = site.take_worker(&name)?;
            let mut store: SqliteWorkerStore = open(&folder, lock.is_some())?;
            (name, python.import_worker(&mut store as &mut dyn WorkerStore, &times))
        }
    };
    let (name, imported) = imported;
    Ok((python.owner(), name, imported.map_err(Failure::failed)?))
}

/// The database in a folder; where another process has the folder, beside it.
fn open<S: Schema>(folder: &Path, is_ours: bool) -> Result<SqliteStore<S>, Failure> {
    let path = folder.join(FILE_NAME);
    let opened =
        if is_ours { SqliteStore::open(&path, &SystemClock::stamp()) } else { SqliteStore::open_beside(&path) };
    opened.map_err(Failure::configuration)
}

/// The databases of Python peers below this base folder: `NAME/NAME.db`.
fn found(site: &Site) -> Result<Vec<PathBuf>, Failure> {
    let mut files = Vec::new();
    for folder in site.role_folders()? {
        let Some(name) = folder.file_name().and_then(|name| name.to_str()) else { continue };
        let file = folder.join(format!("{name}.db"));
        if file.is_file() {
            files.push(file);
        }
    }
    files.sort();
    Ok(files)
}
