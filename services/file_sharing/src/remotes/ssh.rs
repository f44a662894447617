//! The way to a server through the `ssh` program.

use std::env;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStderr, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process_group};

use super::error::{SyncError, told};
use super::halt::Halt;
use super::packet::NoPacket;
use super::protocol::Wire;

/// As git has it: a command for the shell that is used in place of `ssh`.
const COMMAND_VARIABLE: &str = "GIT_SSH_COMMAND";

/// Seconds in which a host must answer.
const CONNECT_SECONDS: u64 = 15;

/// Bytes of what the program complains about that are kept.
const COMPLAINT_BYTES_MAX: usize = 16 * 1024;

/// How long the program may take to complain after it has closed its output. It may have left another one behind that keeps the
/// pipe open, to share its connection.
const COMPLAINT_PATIENCE: Duration = Duration::from_secs(2);

pub(crate) struct SshWire {
    url: String,
    destination: String,
    port: Option<u16>,
    path: String,
    halt: Halt,
    running: Option<Running>,
    nothing: io::Empty,
}

struct Running {
    child: Arc<Mutex<Option<Child>>>,
    stdin: Option<ChildStdin>,
    stdout: BufReader<ChildStdout>,
    complaint: Arc<Mutex<Vec<u8>>>,
    /// Ends when the program has nothing more to complain about.
    complaining: Receiver<()>,
}

impl SshWire {
    pub(crate) fn new(url: String, destination: String, port: Option<u16>, path: String, halt: Halt) -> Self {
        Self { url, destination, port, path, halt, running: None, nothing: io::empty() }
    }

    fn command(&self) -> Command {
        let mut command = match env::var(COMMAND_VARIABLE) {
            Ok(own) if !own.trim().is_empty() => {
                let mut command = Command::new("/bin/sh");
                command.arg("-c").arg(format!("{own} \"$@\"")).arg("ssh");
                command
            }
            _ => Command::new("ssh"),
        };
        // Nobody is there to answer a question.
        command.args(["-o", "BatchMode=yes", "-o", &format!("ConnectTimeout={CONNECT_SECONDS}")]);
        command.args(["-o", "SendEnv=GIT_PROTOCOL"]).env("GIT_PROTOCOL", "version=2");
        if let Some(port) = self.port {
            command.arg("-p").arg(port.to_string());
        }
        // In quotes for the shell at the other end.
        let path = self.path.replace('\'', r"'\''");
        command.arg("--").arg(&self.destination).arg(format!("git-upload-pack '{path}'"));
        // A group of its own, so that it ends with what it has started.
        command.process_group(0).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    fn unreachable(&self, problem: impl Into<String>) -> SyncError {
        SyncError::Unreachable { url: self.url.clone(), problem: problem.into() }
    }

    /// Why the program ended, from what it said last.
    fn complaint(&mut self) -> SyncError {
        if self.halt.is_halted() {
            return SyncError::Halted;
        }
        let Some(mut running) = self.running.take() else {
            return self.unreachable("the ssh program does not run");
        };
        drop(running.stdin.take());
        // Both ends of this wait mean the same.
        running.complaining.recv_timeout(COMPLAINT_PATIENCE).ok();
        let complaint = String::from_utf8_lossy(&locked(&running.complaint)).into_owned();
        drop(running);
        if self.halt.is_halted() {
            return SyncError::Halted;
        }
        let lower = complaint.to_lowercase();
        let url = self.url.clone();
        let host = || self.destination.rsplit('@').next().unwrap_or_default().to_owned();
        if lower.contains("could not resolve hostname") {
            SyncError::NoHost { host: host() }
        } else if lower.contains("permission denied") {
            let username = self.destination.rsplit_once('@').map_or("the worker's user", |(user, _)| user).to_owned();
            SyncError::CredentialsRefused { url, username }
        } else if lower.contains("not appear to be a git repository") || lower.contains("repository not found") {
            SyncError::NoRepository { url }
        } else if complaint.trim().is_empty() {
            self.unreachable("the ssh program ended without a word")
        } else {
            self.unreachable(told(&complaint, None))
        }
    }
}

/// Ends the program and what it has started, and waits for its end, so that it does not stay as a zombie.
fn end(child: &Mutex<Option<Child>>) {
    // Nobody has waited for it, so its number is not given to another.
    let Some(mut child) = locked(child).take() else { return };
    if let Some(group) = Pid::from_raw(child.id().cast_signed()) {
        // It may have ended by itself.
        kill_process_group(group, Signal::KILL).ok();
    }
    child.kill().ok();
    child.wait().ok();
}

fn locked<Value>(mutex: &Mutex<Value>) -> MutexGuard<'_, Value> {
    // Nothing panics while one of these locks is held.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Keeps the beginning of what the program complains about, and reads all of it.
fn read_complaint(mut stderr: ChildStderr, complaint: &Mutex<Vec<u8>>, _open: &SyncSender<()>) {
    let mut buffer = [0; 1024];
    while let Ok(count @ 1..) = stderr.read(&mut buffer) {
        let mut complaint = locked(complaint);
        let room = COMPLAINT_BYTES_MAX - complaint.len();
        complaint.extend_from_slice(&buffer[..count.min(room)]);
    }
}

impl Wire for SshWire {
    fn greet(&mut self) -> Result<(), SyncError> {
        let mut child = self.command().spawn().map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => self.unreachable("the ssh program is not installed on the worker's host"),
            _ => self.unreachable(format!("the ssh program cannot be started: {error}")),
        })?;
        let (Some(stdin), Some(stdout), Some(stderr)) = (child.stdin.take(), child.stdout.take(), child.stderr.take())
        else {
            return Err(self.unreachable("the ssh program has no pipes"));
        };
        let child = Arc::new(Mutex::new(Some(child)));
        let ended = Arc::downgrade(&child);
        self.halt.on_halt(move || {
            if let Some(child) = ended.upgrade() {
                end(&child);
            }
        });
        let complaint = Arc::default();
        let (open, complaining) = sync_channel(1);
        let running = Running {
            child,
            stdin: Some(stdin),
            stdout: BufReader::new(stdout),
            complaint: Arc::clone(&complaint),
            complaining,
        };
        let read = move || read_complaint(stderr, &complaint, &open);
        let reading = thread::Builder::new().name("ssh-complaints".to_owned()).spawn(read);
        reading.map_err(SyncError::disk("start a thread"))?;
        self.running = Some(running);
        Ok(())
    }

    fn ask(&mut self, request: &[u8]) -> Result<(), SyncError> {
        let sent = match self.running.as_mut().and_then(|running| running.stdin.as_mut()) {
            Some(stdin) => stdin.write_all(request).and_then(|()| stdin.flush()),
            None => Err(io::ErrorKind::NotConnected.into()),
        };
        sent.map_err(|_| self.complaint())
    }

    fn reader(&mut self) -> &mut dyn BufRead {
        match &mut self.running {
            Some(running) => &mut running.stdout,
            None => &mut self.nothing,
        }
    }

    fn failed(&mut self, error: io::Error) -> SyncError {
        if error.kind() != io::ErrorKind::InvalidData || self.halt.is_halted() {
            return self.complaint();
        }
        // It says something else, and may go on with that.
        self.running = None;
        SyncError::Protocol { url: self.url.clone(), problem: NoPacket.to_string() }
    }

    fn url(&self) -> String {
        self.url.clone()
    }

    fn secret(&self) -> Option<String> {
        None
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        end(&self.child);
    }
}
