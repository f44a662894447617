//! `run_shell_cmd`: runs a command on the worker's host, only where the worker's policy allows it.

use std::future;
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process_group};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::json;
use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::process::{Child, ChildStderr, ChildStdout, Command};
use tokio::time;

use crate::context::TaskContext;
use crate::output::{TaskError, TaskOutput};
use crate::port::CancelReason;
use crate::task::Task;

/// The name of the task.
pub(crate) const NAME: &str = "run_shell_cmd";

/// Most bytes that are kept of each of a command's outputs; the rest is read and counted, so that the command does not
/// hang. Far below what a result may have.
pub const SHELL_OUTPUT_BYTES_MAX: usize = 8 << 20;

/// How long a command that is to end may take to do so by itself, and its outputs to be read to their end after that.
/// Twice this is less than [`crate::CANCEL_GRACE`].
pub const TERMINATION_GRACE: Duration = Duration::from_secs(1);

/// Bytes read at once.
const READ_BYTES: usize = 16 << 10;

#[derive(Debug, Deserialize, JsonSchema)]
struct RunShellCmd {
    /// The command, for the shell.
    command: String,
    /// Seconds after which it is killed.
    timeout: Option<u64>,
}

pub(super) fn task() -> Task {
    Task::new(
        NAME,
        "Runs a shell command on the worker's host and gives what it wrote and its exit code.",
        run_shell_cmd,
    )
    .mcp(false)
    .agent(json!({"enabled": false}))
}

/// How the command ended.
enum Ended {
    Exited(ExitStatus),
    TimedOut,
    Cancelled(CancelReason),
}

async fn run_shell_cmd(context: TaskContext, input: RunShellCmd) -> Result<TaskOutput, TaskError> {
    let mut running = Running::start(&input.command)?;
    let token = context.cancelled();
    let limit = async {
        match input.timeout {
            Some(seconds) => time::sleep(Duration::from_secs(seconds)).await,
            None => future::pending().await,
        }
    };
    let ended = tokio::select! {
        biased;
        status = running.finish() => Ended::Exited(status?),
        () = token.cancelled() => {
            Ended::Cancelled(context.cancel_reason().unwrap_or(CancelReason::WorkerStops))
        }
        () = limit => Ended::TimedOut,
    };
    if !matches!(ended, Ended::Exited(_)) {
        running.end().await;
    }
    Ok(running.output(&input, &ended))
}

/// A command in a process group of its own. Dropped before its end, the whole group is killed.
struct Running {
    child: Child,
    stdout: Option<ChildStdout>,
    stderr: Option<ChildStderr>,
    written: Kept,
    complained: Kept,
    /// The group, as long as its leader has not been waited for: until then no other group can have its number.
    group: Option<Pid>,
}

impl Running {
    fn start(command: &str) -> Result<Self, TaskError> {
        let mut child = Command::new("/bin/sh")
            .arg("-c")
            .arg(command)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .process_group(0)
            .spawn()
            .map_err(|error| TaskError::new(format!("cannot start the shell /bin/sh: {error}")))?;
        let leader = child.id().and_then(|id| i32::try_from(id).ok());
        Ok(Self {
            stdout: child.stdout.take(),
            stderr: child.stderr.take(),
            child,
            written: Kept::default(),
            complained: Kept::default(),
            group: leader.and_then(Pid::from_raw),
        })
    }

    /// Reads both outputs to their end, then waits for the exit. May be dropped and called again.
    async fn finish(&mut self) -> Result<ExitStatus, TaskError> {
        self.read().await?;
        let status = self.child.wait().await?;
        self.group = None;
        Ok(status)
    }

    async fn read(&mut self) -> Result<(), TaskError> {
        let (written, complained) =
            tokio::join!(self.written.read_all(&mut self.stdout), self.complained.read_all(&mut self.stderr),);
        written.and(complained).map_err(|error| TaskError::new(format!("cannot read what the command wrote: {error}")))
    }

    /// Ends the group, politely first, and reads what is left of its outputs. What fails here is not worth more than what
    /// was read before.
    async fn end(&mut self) {
        self.signal(Signal::TERM);
        drop(time::timeout(TERMINATION_GRACE, self.read()).await);
        // Before its leader is waited for, so that those who did not hear the first signal hear this one.
        self.signal(Signal::KILL);
        // A process that left the group may hold the outputs open for ever.
        drop(time::timeout(TERMINATION_GRACE, self.finish()).await);
    }

    fn signal(&self, signal: Signal) {
        let Some(group) = self.group else { return };
        // The only error is that the group has ended already.
        kill_process_group(group, signal).ok();
    }

    fn output(self, input: &RunShellCmd, ended: &Ended) -> TaskOutput {
        let stderr = self.complained.text();
        let returncode = match ended {
            Ended::Exited(status) => code_of(*status),
            Ended::TimedOut | Ended::Cancelled(_) => None,
        };
        let timed_out = matches!(ended, Ended::TimedOut | Ended::Cancelled(CancelReason::Deadline));
        let mut output = TaskOutput::new(json!({
            "command": input.command,
            "stdout": self.written.text(),
            "stderr": stderr,
            "returncode": returncode,
            "timeout": input.timeout,
            "timed_out": timed_out,
        }));
        for (name, kept) in [("stdout", &self.written), ("stderr", &self.complained)] {
            if kept.cut > 0 {
                output = output.message(format!(
                    "{name} was cut: {SHELL_OUTPUT_BYTES_MAX} bytes were kept, {} more were dropped",
                    kept.cut
                ));
            }
        }
        match (ended, returncode) {
            (Ended::Exited(_), Some(0)) => output,
            (Ended::Exited(_), _) if !stderr.is_empty() => output.failed(stderr),
            (Ended::Exited(status), _) => output.failed(format!("the command ended with {status}")),
            (Ended::TimedOut, _) => {
                output.failed(format!("Command timed out after {} seconds", input.timeout.unwrap_or_default()))
            }
            (Ended::Cancelled(CancelReason::Deadline), _) => output
                .failed("the command was killed at the job's deadline")
                .status(norfab_protocol::ResultStatus::Timeout),
            (Ended::Cancelled(reason), _) => output.failed(format!("the command was killed: {reason}")),
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.signal(Signal::KILL);
    }
}

/// The exit code; minus the signal's number where a signal ended the command.
fn code_of(status: ExitStatus) -> Option<i32> {
    use std::os::unix::process::ExitStatusExt;
    status.code().or_else(|| status.signal().map(|signal| -signal))
}

/// The beginning of an output, and how much more there was.
#[derive(Default)]
struct Kept {
    bytes: Vec<u8>,
    cut: u64,
}

impl Kept {
    /// Reads to the end, then lets go of the pipe. Dropping it half way loses nothing.
    async fn read_all<Pipe: AsyncRead + Unpin>(&mut self, pipe: &mut Option<Pipe>) -> std::io::Result<()> {
        let mut buffer = vec![0; READ_BYTES];
        while let Some(open) = pipe {
            let read = open.read(&mut buffer).await?;
            if read == 0 {
                *pipe = None;
            }
            let room = SHELL_OUTPUT_BYTES_MAX - self.bytes.len();
            let (kept, cut) = buffer[..read].split_at(read.min(room));
            self.bytes.extend_from_slice(kept);
            self.cut += cut.len() as u64;
        }
        Ok(())
    }

    /// As text; what is not UTF-8 is replaced.
    fn text(&self) -> String {
        String::from_utf8_lossy(&self.bytes).into_owned()
    }
}
