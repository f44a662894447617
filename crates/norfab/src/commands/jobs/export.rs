//! `norfab jobs export`: all jobs of this client, with results and events.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;

use norfab_jobs::sqlite::FILE_NAME;
use norfab_jobs::{ClientJobDetails, ClientStore, SqliteClientStore};
use serde_json::{Map, Value, json};

use super::by_worker;
use crate::args::{ExportFormat, Global};
use crate::exit::{Code, Failure};
use crate::printer;
use crate::site::Site;

/// Writes job after job, so that memory does not grow with their number. A job or a database that cannot be read is told, keeps no
/// other back, and is exit code 1.
pub fn run(
    global: &Global,
    site: &Site,
    file: Option<&Path>,
    format: ExportFormat,
    force: bool,
) -> Result<Code, Failure> {
    let format = if global.json { ExportFormat::Json } else { format };
    let to_file = file.filter(|file| *file != Path::new("-"));
    let mut out = match to_file {
        Some(path) => Out::File(path, BufWriter::new(create(path, force)?)),
        None => Out::Standard,
    };
    let mut exported: u64 = 0;
    let mut code = Code::Ok;
    if format == ExportFormat::Json {
        out.write("[")?;
    }
    for (_, folder) in site.client_folders()? {
        let path = folder.join(FILE_NAME);
        if !path.exists() {
            continue;
        }
        let ids = SqliteClientStore::open_beside(&path).and_then(|mut store| Ok((store.ids()?, store)));
        let (ids, mut store) = match ids {
            Ok(found) => found,
            Err(error) => {
                code = Code::Failed;
                printer::error(&error.to_string());
                continue;
            }
        };
        for id in ids {
            match store.job(&id) {
                Ok(Some(details)) => {
                    let text = document(&details).to_string();
                    let comma = if format == ExportFormat::Json && exported > 0 { "," } else { "" };
                    out.write(&format!("{comma}{}", printer::plain_json(text)))?;
                    exported += 1;
                }
                // It was forgotten meanwhile.
                Ok(None) => {}
                Err(error) => {
                    code = Code::Failed;
                    printer::error(&format!("job {id}: {error}"));
                }
            }
        }
    }
    if format == ExportFormat::Json {
        out.write("]")?;
    }
    if let Out::File(path, mut file) = out {
        file.flush().map_err(|error| cannot_write(path, &error))?;
        if global.quiet == 0 {
            printer::remark(&format!("{exported} jobs are in {}", path.display()));
        }
    }
    Ok(code)
}

enum Out<'a> {
    File(&'a Path, BufWriter<File>),
    /// Errors are kept by the printer.
    Standard,
}

impl Out<'_> {
    fn write(&mut self, text: &str) -> Result<(), Failure> {
        match self {
            Self::File(path, file) => writeln!(file, "{text}").map_err(|error| cannot_write(path, &error)),
            Self::Standard => {
                printer::line(text);
                Ok(())
            }
        }
    }
}

/// A new file that only its owner may read: results may hold secrets of devices.
fn create(path: &Path, force: bool) -> Result<File, Failure> {
    let mut options = File::options();
    options.write(true).create(true).truncate(true).create_new(!force);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    options.open(path).map_err(|error| match error.kind() {
        std::io::ErrorKind::AlreadyExists => {
            Failure::configuration(format!("{} is there already: --force overwrites it", path.display()))
        }
        _ => cannot_write(path, &error),
    })
}

fn cannot_write(path: &Path, error: &std::io::Error) -> Failure {
    Failure::configuration(format!("cannot write {}: {error}", path.display()))
}

/// A job as one document. Secrets among its arguments are masked, as wherever they are shown.
fn document(details: &ClientJobDetails) -> Value {
    let ClientJobDetails { job, results, events } = details;
    let request: Value = serde_json::from_slice(&job.body).unwrap_or(Value::Null);
    let events: Vec<Value> = events.iter().filter_map(|body| serde_json::from_slice(body).ok()).collect();
    let results: Map<String, Value> = by_worker(results);
    json!({
        "uuid": job.id,
        "service": job.service,
        "task": job.task,
        "target": job.target,
        "args": norfab_secrets::masked(&request["args"]),
        "kwargs": norfab_secrets::masked(&request["kwargs"]),
        "timeout": job.timeout,
        "status": job.state.as_str(),
        "submitted": job.submitted,
        "deadline": job.deadline,
        "finished": job.finished,
        "workers_dispatched": job.dispatched,
        "workers_started": job.started,
        "workers_completed": job.completed,
        "errors": job.errors,
        "results": results,
        "events": events,
    })
}
