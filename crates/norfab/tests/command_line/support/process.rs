//! A process of the binary.

use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Command};
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Instant;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use super::{LOOK_INTERVAL, PATIENCE};

/// Lines that wait for the test; more than any command prints.
const LINES_MAX: usize = 100_000;

/// How a process ended.
#[derive(Debug)]
pub struct Ended {
    /// The exit code; `None`: a signal ended it.
    pub code: Option<i32>,
    pub stdout: String,
    pub stderr: String,
}

impl Ended {
    /// What it printed, as a document.
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.stdout).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }
}

/// A running process, killed when it is dropped.
pub struct Role {
    child: Child,
    lines: Receiver<String>,
    stdout: Arc<Mutex<Vec<u8>>>,
    stderr: Arc<Mutex<Vec<u8>>>,
    readers: Vec<JoinHandle<()>>,
}

impl Role {
    pub fn spawn(mut command: Command) -> Self {
        let mut child = command.spawn().expect("the binary starts");
        let (sender, lines) = sync_channel(LINES_MAX);
        let stdout = Arc::new(Mutex::new(Vec::new()));
        let stderr = Arc::new(Mutex::new(Vec::new()));
        let mut readers = Vec::new();
        if let Some(pipe) = child.stdout.take() {
            let all = Arc::clone(&stdout);
            readers.push(std::thread::spawn(move || {
                let mut pipe = BufReader::new(pipe);
                let mut line = Vec::new();
                while pipe.read_until(b'\n', &mut line).is_ok_and(|read| read > 0) {
                    all.lock().expect("no panic").extend_from_slice(&line);
                    // The test may have ended.
                    sender.send(String::from_utf8_lossy(&line).trim_end().to_owned()).ok();
                    line.clear();
                }
            }));
        }
        if let Some(mut pipe) = child.stderr.take() {
            let all = Arc::clone(&stderr);
            readers.push(std::thread::spawn(move || {
                let mut chunk = [0; 4096];
                while let Ok(read @ 1..) = pipe.read(&mut chunk) {
                    all.lock().expect("no panic").extend_from_slice(&chunk[..read]);
                }
            }));
        }
        Self { child, lines, stdout, stderr, readers }
    }

    /// Waits for the line `ready: WHO ...`.
    pub fn ready(&self, who: &str) -> String {
        self.line(|line| line.starts_with(&format!("ready: {who} ")))
    }

    /// Waits for a line on standard output.
    pub fn line(&self, wanted: impl Fn(&str) -> bool) -> String {
        let end = Instant::now() + PATIENCE;
        loop {
            match self.lines.recv_timeout(end.saturating_duration_since(Instant::now())) {
                Ok(line) if wanted(&line) => return line,
                Ok(_) => {}
                Err(RecvTimeoutError::Timeout) => panic!("no such line within {PATIENCE:?}: {}", self.told()),
                Err(RecvTimeoutError::Disconnected) => panic!("it ended without such a line: {}", self.told()),
            }
        }
    }

    /// Waits until standard error has a text.
    pub fn told_on_stderr(&self, text: &str) {
        super::eventually(&format!("{text:?} on standard error"), || self.stderr().contains(text));
    }

    pub fn stderr(&self) -> String {
        String::from_utf8_lossy(&self.stderr.lock().expect("no panic")).into_owned()
    }

    fn stdout(&self) -> String {
        String::from_utf8_lossy(&self.stdout.lock().expect("no panic")).into_owned()
    }

    fn told(&self) -> String {
        format!("standard output {:?}, standard error {:?}", self.stdout(), self.stderr())
    }

    pub fn signal(&self, signal: Signal) {
        let pid = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw).expect("a process");
        kill_process(pid, signal).expect("it runs");
    }

    /// Sends a signal and waits for the end.
    pub fn stop(self, signal: Signal) -> Ended {
        self.signal(signal);
        self.end()
    }

    /// Waits for the end.
    pub fn end(self) -> Ended {
        let (ended, _) = self.end_with_bytes();
        ended
    }

    /// As [`Role::end`], with standard output as it came.
    pub fn end_with_bytes(mut self) -> (Ended, Vec<u8>) {
        let end = Instant::now() + PATIENCE;
        let status = loop {
            if let Some(status) = self.child.try_wait().expect("a child") {
                break status;
            }
            assert!(Instant::now() < end, "it did not end within {PATIENCE:?}: {}", self.told());
            std::thread::sleep(LOOK_INTERVAL);
        };
        for reader in std::mem::take(&mut self.readers) {
            reader.join().expect("no panic");
        }
        let ended = Ended { code: status.code(), stdout: self.stdout(), stderr: self.stderr() };
        let bytes = std::mem::take(&mut *self.stdout.lock().expect("no panic"));
        (ended, bytes)
    }
}

impl Drop for Role {
    fn drop(&mut self) {
        // It may have ended.
        self.child.kill().ok();
        self.child.wait().ok();
    }
}
