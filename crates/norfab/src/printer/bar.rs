//! A bar at the bottom of the terminal, and what is written beside it.

use std::io::Write;
use std::sync::{Mutex, PoisonError};

use indicatif::ProgressBar;

/// The bar that stands there.
static BAR: Mutex<Option<ProgressBar>> = Mutex::new(None);

/// Says that a bar stands at the bottom of the terminal from now on, or none any more.
pub fn stand_below(bar: Option<ProgressBar>) {
    *BAR.lock().unwrap_or_else(PoisonError::into_inner) = bar;
}

/// Writes something to the terminal while the bar is away.
pub(super) fn beside<T>(write: impl FnOnce() -> T) -> T {
    // A copy: whoever ends the bar must not wait for a slow terminal.
    let bar = BAR.lock().unwrap_or_else(PoisonError::into_inner).clone();
    match bar {
        Some(bar) => bar.suspend(write),
        None => write(),
    }
}

/// Standard error for the log.
pub struct LogOutput;

impl Write for LogOutput {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.write_all(bytes).map(|()| bytes.len())
    }

    fn write_all(&mut self, bytes: &[u8]) -> std::io::Result<()> {
        beside(|| std::io::stderr().lock().write_all(bytes))
    }

    fn flush(&mut self) -> std::io::Result<()> {
        std::io::stderr().lock().flush()
    }
}
