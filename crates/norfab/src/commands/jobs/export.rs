//! `norfab jobs export`: all jobs of this client, with results and events.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

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
        Some(path) => Out::File(NewFile::begin(path, force)?),
        None => Out::Standard,
    };
    let mut exported: u64 = 0;
    // What is not in the list that is written.
    let mut problems = Vec::new();
    let mut unlisted = false;
    let folders = site.client_folders()?;
    if format == ExportFormat::Json {
        out.write("[")?;
    }
    for (_, folder) in folders {
        let path = folder.join(FILE_NAME);
        if !path.exists() {
            continue;
        }
        let ids = SqliteClientStore::open_beside(&path).and_then(|mut store| Ok((store.ids()?, store)));
        let (ids, mut store) = match ids {
            Ok(found) => found,
            Err(error) => {
                printer::error(&error.to_string());
                problems.push(error.to_string());
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
                    printer::error(&format!("job {id}: {error}"));
                    problems.push(format!("job {id}: {error}"));
                }
            }
        }
    }
    if let (true, Out::Standard) = (global.json, &out) {
        // There is one document on standard output, and it is a list.
        for problem in problems.drain(..) {
            unlisted = true;
            let comma = if exported > 0 { "," } else { "" };
            out.write(&format!("{comma}{}", printer::plain_json(json!({ "error": problem }).to_string())))?;
            exported += 1;
        }
    }
    if format == ExportFormat::Json {
        out.write("]")?;
    }
    if let Out::File(file) = out {
        let path = file.path;
        file.finish()?;
        if global.quiet == 0 {
            printer::remark(&format!("{exported} jobs are in {}", path.display()));
        }
    }
    match &problems[..] {
        [] if unlisted => Ok(Code::Failed),
        [] => Ok(Code::Ok),
        problems => Err(Failure::failed(problems.join("; ")).told()),
    }
}

enum Out<'a> {
    File(NewFile<'a>),
    /// Errors are kept by the printer.
    Standard,
}

impl Out<'_> {
    fn write(&mut self, text: &str) -> Result<(), Failure> {
        match self {
            Self::File(file) => writeln!(file.file, "{text}").map_err(|error| cannot_write(file.path, &error)),
            Self::Standard => {
                printer::line(text);
                Ok(())
            }
        }
    }
}

/// A file that only its owner may read, because results may hold secrets of devices. It takes the place of one that is there when it
/// is whole.
struct NewFile<'a> {
    /// As it was named.
    path: &'a Path,
    file: BufWriter<File>,
    /// Where it is until it is whole, and whose place it then takes.
    moves: Option<(PathBuf, PathBuf)>,
}

impl<'a> NewFile<'a> {
    fn begin(path: &'a Path, force: bool) -> Result<Self, Failure> {
        let error = |error: std::io::Error| match error.kind() {
            std::io::ErrorKind::AlreadyExists => {
                Failure::configuration(format!("{} is there already", path.display())).hint("--force overwrites it")
            }
            _ => cannot_write(path, &error),
        };
        // A link stays one.
        let there = if force { path.canonicalize().ok() } else { None };
        let Some(there) = there else {
            return Ok(Self { path, file: BufWriter::new(create(path).map_err(error)?), moves: None });
        };
        if !there.is_file() {
            // A pipe or a terminal keeps nothing.
            let file = File::options().write(true).open(&there).map_err(error)?;
            return Ok(Self { path, file: BufWriter::new(file), moves: None });
        }
        let mut beside = there.clone().into_os_string();
        beside.push(format!(".{}", std::process::id()));
        let beside = PathBuf::from(beside);
        let file = BufWriter::new(create(&beside).map_err(|error| cannot_write(&beside, &error))?);
        Ok(Self { path, file, moves: Some((beside, there)) })
    }

    fn finish(mut self) -> Result<(), Failure> {
        self.file.flush().map_err(|error| cannot_write(self.path, &error))?;
        if let Some((beside, there)) = &self.moves {
            std::fs::rename(beside, there).map_err(|error| cannot_write(self.path, &error))?;
        }
        self.moves = None;
        Ok(())
    }
}

impl Drop for NewFile<'_> {
    fn drop(&mut self) {
        if let Some((beside, _)) = &self.moves {
            // Part of an export is of no use; where it cannot be removed it stays.
            std::fs::remove_file(beside).ok();
        }
    }
}

fn create(path: &Path) -> std::io::Result<File> {
    let mut options = File::options();
    options.write(true).create_new(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    options.open(path)
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
