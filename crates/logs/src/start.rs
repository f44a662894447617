//! Puts layer, queues and writers together, and ends them.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, sync_channel};
use std::thread;
use std::time::{Duration, SystemTime};

use jiff::tz::TimeZone;
use tracing_subscriber::layer::SubscriberExt;

use crate::file_writer::{FileWriter, FileWriterConfig};
use crate::layer::{LogLayer, Output};
use crate::queue::{self, Drain, QUEUE_RECORDS_MAX, Queue, queue};
use crate::role::{Owner, Role};
use crate::rotating_file::Rotation;
use crate::settings::LogSettings;
use crate::terminal::{Terminal, TerminalWriter};

/// How long the end of the process waits for the last records: a disk that hangs must not keep it alive.
pub const SHUTDOWN_WAIT: Duration = Duration::from_secs(2);

/// Stack of a writer thread: the work is shallow.
const STACK_BYTES: usize = 256 * 1024;

/// What logging is started with.
pub struct LogConfig {
    /// The folder of the log files; made when the first record is written. None: no files.
    pub dir: Option<PathBuf>,
    /// What is logged.
    pub settings: LogSettings,
    /// The role of events outside of every role's span.
    pub role: Role,
    /// The name of that role.
    pub name: String,
    /// Where text for people goes. None: nowhere.
    pub terminal: Option<Terminal>,
    /// The clock that people read.
    pub wall_clock: fn() -> SystemTime,
}

/// Why logging could not be started.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The system gives no thread.
    #[error("cannot start the thread {name}: {source}; raise the limit of threads of this user")]
    Thread {
        /// The thread.
        name: &'static str,
        /// What the system says.
        source: std::io::Error,
    },
    /// Logging runs already.
    #[error("logging was started already in this process; start it once, in main")]
    AlreadyStarted,
}

/// Starts logging for the whole process. Keep the guard until the end: it writes what is left.
///
/// # Errors
/// See [`StartError`]. A folder that cannot be written is none: it is told on the terminal, and tried again now and then.
pub fn init(config: LogConfig) -> Result<LogGuard, StartError> {
    let (layer, guard) = start(config)?;
    tracing::subscriber::set_global_default(tracing_subscriber::registry().with(layer))
        .map_err(|_| StartError::AlreadyStarted)?;
    Ok(guard)
}

/// Starts the writers and gives the layer, for who puts a subscriber together.
///
/// # Errors
/// The threads could not be started.
pub fn start(config: LogConfig) -> Result<(LogLayer, LogGuard), StartError> {
    let zone = TimeZone::system();
    let LogConfig { dir, settings, role, name, terminal, wall_clock } = config;
    let mut writers = Vec::new();
    let terminal = match terminal {
        None => None,
        Some(terminal) => {
            let (queue, drain) = queue(QUEUE_RECORDS_MAX);
            let output = TerminalWriter::new(terminal, zone.clone());
            writers.push(Writer::spawn("norfab-terminal", queue.clone(), drain, output)?);
            Some(Output { queue, level: settings.terminal_level })
        }
    };
    let files = match &dir {
        None => None,
        Some(dir) => {
            let (queue, drain) = queue(QUEUE_RECORDS_MAX);
            let output = FileWriter::new(FileWriterConfig {
                dir: dir.clone(),
                rotation: Rotation { bytes_max: settings.file_bytes_max, backups: settings.backups },
                zone,
                wall_clock,
                terminal: terminal.as_ref().map(|terminal| terminal.queue.clone()),
            });
            writers.push(Writer::spawn("norfab-log", queue.clone(), drain, output)?);
            Some(Output { queue, level: settings.file_level })
        }
    };
    // The files end first: their last complaint goes to the terminal.
    writers.reverse();
    let queues = writers.iter().map(|writer| writer.queue.clone()).collect();
    let default_owner = Arc::new(Owner::new(role, &name));
    let layer = LogLayer { files, terminal, default_owner, log_events: settings.log_events, wall_clock };
    Ok((layer, LogGuard { writers, handle: LogHandle { dir, queues } }))
}

/// Writes what is left when it is dropped, and waits for that at most [`SHUTDOWN_WAIT`] for each writer. A process that
/// calls `std::process::exit` drops it first.
#[must_use = "logging ends when this is dropped"]
pub struct LogGuard {
    writers: Vec<Writer>,
    handle: LogHandle,
}

impl LogGuard {
    /// A handle for who reads the log.
    pub fn handle(&self) -> LogHandle {
        self.handle.clone()
    }
}

impl Drop for LogGuard {
    fn drop(&mut self) {
        for writer in &self.writers {
            writer.queue.stop();
            if writer.done.recv_timeout(SHUTDOWN_WAIT).is_err() {
                // It ended, or it hangs on its disk or terminal, and the process must end all the same.
            }
        }
    }
}

/// What the readers of the log need of a running log.
#[derive(Clone)]
pub struct LogHandle {
    dir: Option<PathBuf>,
    queues: Vec<Queue>,
}

impl LogHandle {
    /// The folder of the log files, if there are any.
    pub fn dir(&self) -> Option<&Path> {
        self.dir.as_deref()
    }

    /// Waits until what was logged before is in the files and on the terminal, at most so long for each. False: it is not.
    pub fn flush(&self, wait: Duration) -> bool {
        self.queues.iter().all(|queue| queue.flush(wait))
    }

    /// Records that found a queue full since the start.
    pub fn lost_total(&self) -> u64 {
        self.queues.iter().map(Queue::lost_total).sum()
    }
}

struct Writer {
    queue: Queue,
    done: Receiver<()>,
}

impl Writer {
    fn spawn(
        name: &'static str,
        queue: Queue,
        drain: Drain,
        mut output: impl queue::Output + Send + 'static,
    ) -> Result<Self, StartError> {
        let (ended, done) = sync_channel(1);
        thread::Builder::new()
            .name(name.to_owned())
            .stack_size(STACK_BYTES)
            .spawn(move || {
                drain.run(&mut output);
                if ended.send(()).is_err() {
                    // Nobody waits any more.
                }
            })
            .map_err(|source| StartError::Thread { name, source })?;
        Ok(Self { queue, done })
    }
}
