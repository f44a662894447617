//! SIGINT and SIGTERM.

use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::exit::{Code, Failure};

/// The signals that ask a process to end. While this exists they do not end it by themselves.
pub struct Signals {
    interrupt: Signal,
    terminate: Signal,
}

impl Signals {
    /// Takes the signals over. Errors: the system gives none.
    pub fn new() -> Result<Self, Failure> {
        let of = |kind| signal(kind).map_err(|error| Failure::failed(format!("cannot listen for signals: {error}")));
        Ok(Self { interrupt: of(SignalKind::interrupt())?, terminate: of(SignalKind::terminate())? })
    }

    /// Waits for the next one and tells the exit code that shells know for it.
    pub async fn next(&mut self) -> Code {
        tokio::select! {
            _ = self.interrupt.recv() => Code::Interrupted,
            _ = self.terminate.recv() => Code::Terminated,
        }
    }
}
