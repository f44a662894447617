//! Exit codes and the errors that lead to them.

use std::process::ExitCode;

/// How the process ends. The numbers are part of the interface: see docs/commands/README.md.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Code {
    /// All went well; no worker failed.
    Ok = 0,
    /// A worker failed, a job did not complete, a file was not there.
    Failed = 1,
    /// The command line is wrong. clap uses the same number.
    Usage = 2,
    /// The broker cannot be reached or refuses us.
    Unreachable = 3,
    /// Nobody answered in time.
    TimedOut = 4,
    /// The inventory, a key or a folder is wrong.
    Configuration = 5,
    /// Ctrl-C.
    Interrupted = 130,
    /// SIGTERM.
    Terminated = 143,
}

impl Code {
    /// This code, or `other` where all went well so far.
    pub fn unless_ok(self, other: Self) -> Self {
        if self == Self::Ok { other } else { self }
    }
}

impl From<Code> for ExitCode {
    fn from(code: Code) -> Self {
        Self::from(code as u8)
    }
}

/// Why a command ended early: what to say, and the code.
#[derive(Debug)]
pub struct Failure {
    /// The code.
    pub code: Code,
    /// One or more sentences with the values and what to do.
    pub text: String,
}

impl Failure {
    /// A failure with its code.
    pub fn new(code: Code, text: impl Into<String>) -> Self {
        Self { code, text: text.into() }
    }

    /// Something about the inventory, keys or folders.
    pub fn configuration(error: impl std::fmt::Display) -> Self {
        Self::new(Code::Configuration, error.to_string())
    }

    /// Something on the command line.
    pub fn usage(text: impl Into<String>) -> Self {
        Self::new(Code::Usage, text)
    }

    /// Something that went wrong on the way.
    pub fn failed(error: impl std::fmt::Display) -> Self {
        Self::new(Code::Failed, error.to_string())
    }
}
