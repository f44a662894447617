//! A running process that a test talks to.

use std::collections::VecDeque;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process, kill_process_group};
use serde_json::{Value, json};

/// How long a test waits for what should be there in a second: Python starts slowly on a busy machine.
pub const WAIT_LONG: Duration = Duration::from_secs(90);

/// Lines of standard error that are kept for the text of a failure.
const LOG_LINES_MAX: usize = 200;

/// Lines of standard output that may wait for the test; a peer that writes more is slowed down.
const LINES_MAX: usize = 1024;

/// A peer of either side, in a process of its own that is killed when this is dropped.
#[derive(Debug)]
pub struct Peer {
    name: String,
    child: Child,
    input: Option<ChildStdin>,
    lines: Receiver<String>,
    log: Arc<Mutex<VecDeque<String>>>,
    ready: Value,
}

impl Peer {
    /// Starts a peer that is driven by lines of JSON and waits for its line `{"ready": ...}`.
    ///
    /// # Panics
    ///
    /// When it cannot be started, ends, or is not ready within [`WAIT_LONG`].
    #[must_use]
    pub fn start_driven(name: &str, command: Command) -> Self {
        let mut peer = Self::spawn(name, command, Stdio::piped());
        let line = peer.json();
        assert!(line.get("ready").is_some(), "{name} said {line} instead of being ready\n{}", peer.log());
        peer.ready = line;
        peer
    }

    /// Starts our binary in a long-running role and waits for its line `ready: ROLE NAME ENDPOINT`.
    ///
    /// # Panics
    ///
    /// When it cannot be started, ends, or is not ready within [`WAIT_LONG`].
    #[must_use]
    pub fn start_binary(name: &str, command: Command) -> Self {
        let mut peer = Self::spawn(name, command, Stdio::null());
        loop {
            let line = peer.line();
            let Some(words) = line.strip_prefix("ready: ") else {
                continue;
            };
            let words: Vec<&str> = words.split_whitespace().collect();
            let [role, who, endpoint] = words[..] else { panic!("{name}: not a ready line: {line:?}") };
            peer.ready = json!({"ready": role, "name": who, "endpoint": endpoint});
            return peer;
        }
    }

    /// What the peer said when it was ready.
    #[must_use]
    pub fn ready(&self) -> &Value {
        &self.ready
    }

    /// The id of the process.
    #[must_use]
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Makes a call of a driven peer; `arguments` is an object. What it answers, or the text of its exception.
    ///
    /// # Errors
    ///
    /// The exception that the call raised in the peer.
    ///
    /// # Panics
    ///
    /// When the peer ends or does not answer within [`WAIT_LONG`] on top of a `timeout` in the arguments.
    pub fn try_call(&mut self, call: &str, mut arguments: Value) -> Result<Value, String> {
        let patience = WAIT_LONG + Duration::from_secs_f64(arguments["timeout"].as_f64().unwrap_or_default());
        arguments["call"] = call.into();
        self.write(&arguments);
        let line = self.line_within(patience);
        let mut answer: Value = self.parse(&line);
        match answer.get_mut("error") {
            Some(Value::String(error)) => Err(std::mem::take(error)),
            _ => Ok(answer["result"].take()),
        }
    }

    /// As [`Peer::try_call`], for a call that must not fail.
    ///
    /// # Panics
    ///
    /// When the call raised an exception too.
    pub fn call(&mut self, call: &str, arguments: Value) -> Value {
        let name = self.name.clone();
        self.try_call(call, arguments).unwrap_or_else(|error| panic!("{name}: {call} failed: {error}\n{}", self.log()))
    }

    /// Kills the process at once, as a crash would.
    pub fn kill(&mut self) {
        // Those that it has forked too: a fleet of stock workers is a process for each. A group that has ended already is
        // what we want.
        kill_process_group(Pid::from_child(&self.child), Signal::KILL).ok();
        drop(self.child.wait());
    }

    /// Asks the process to stop, a driven peer by the end of its input and a binary by SIGTERM, and waits for its end.
    ///
    /// # Panics
    ///
    /// When it has not ended within [`WAIT_LONG`].
    pub fn stop(&mut self) -> ExitStatus {
        if self.input.take().is_none() {
            self.signal(Signal::TERM);
        }
        let deadline = Instant::now() + WAIT_LONG;
        loop {
            if let Some(status) = self.child.try_wait().expect("the child is ours to wait for") {
                return status;
            }
            assert!(Instant::now() < deadline, "{} does not stop\n{}", self.name, self.log());
            // Waiting for a child with a deadline has no call of its own in the standard library.
            thread::sleep(Duration::from_millis(5));
        }
    }

    /// Freezes the process: it stays connected and says nothing.
    pub fn freeze(&self) {
        self.signal(Signal::STOP);
    }

    /// Lets a frozen process go on.
    pub fn thaw(&self) {
        self.signal(Signal::CONT);
    }

    /// The last lines of standard error.
    #[must_use]
    pub fn log(&self) -> String {
        let lines = self.log.lock().expect("no reader panics");
        lines.iter().map(|line| format!("  {} | {line}\n", self.name)).collect()
    }

    fn spawn(name: &str, mut command: Command, input: Stdio) -> Self {
        command.stdin(input).stdout(Stdio::piped()).stderr(Stdio::piped()).process_group(0);
        let mut child = command.spawn().unwrap_or_else(|error| panic!("{name}: cannot start {command:?}: {error}"));
        let log = Arc::new(Mutex::new(VecDeque::new()));
        let (sender, lines) = sync_channel(LINES_MAX);
        let output = child.stdout.take().expect("stdout is piped");
        thread::spawn(move || read_lines(output, &sender));
        let errors = child.stderr.take().expect("stderr is piped");
        let kept = Arc::clone(&log);
        thread::spawn(move || keep_lines(errors, &kept));
        let input = child.stdin.take();
        Self { name: name.to_owned(), child, input, lines, log, ready: Value::Null }
    }

    fn write(&mut self, value: &Value) {
        let input = self.input.as_mut().expect("only driven peers that were not stopped take calls");
        let written = writeln!(input, "{value}").and_then(|()| input.flush());
        if let Err(error) = written {
            panic!("{} is gone: {error}\n{}", self.name, self.log());
        }
    }

    fn json(&mut self) -> Value {
        let line = self.line();
        self.parse(&line)
    }

    fn parse(&self, line: &str) -> Value {
        serde_json::from_str(line).unwrap_or_else(|error| panic!("{}: {error} in {line:?}\n{}", self.name, self.log()))
    }

    fn line(&mut self) -> String {
        self.line_within(WAIT_LONG)
    }

    fn line_within(&mut self, patience: Duration) -> String {
        match self.lines.recv_timeout(patience) {
            Ok(line) => line,
            Err(RecvTimeoutError::Timeout) => panic!("{} says nothing for {patience:?}\n{}", self.name, self.log()),
            Err(RecvTimeoutError::Disconnected) => {
                let status = self.child.wait();
                panic!("{} ended: {status:?}\n{}", self.name, self.log())
            }
        }
    }

    fn signal(&self, signal: Signal) {
        let pid = Pid::from_child(&self.child);
        kill_process(pid, signal).unwrap_or_else(|error| panic!("cannot signal {}: {error}", self.name));
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        self.kill();
    }
}

fn read_lines(output: impl Read, sender: &SyncSender<String>) {
    for line in BufReader::new(output).lines() {
        let Ok(line) = line else { return };
        if sender.send(line).is_err() {
            return;
        }
    }
}

fn keep_lines(errors: impl Read, log: &Mutex<VecDeque<String>>) {
    for line in BufReader::new(errors).lines() {
        let Ok(line) = line else { return };
        let mut lines = log.lock().expect("no reader panics");
        if lines.len() == LOG_LINES_MAX {
            lines.pop_front();
        }
        lines.push_back(line);
    }
}
