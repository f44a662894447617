//! Text for people, on standard error.

use std::io::{IsTerminal, Write};
use std::sync::Arc;

use jiff::tz::TimeZone;

use crate::queue::Output;
use crate::record::Record;
use crate::role::Owner;

/// Where text for people goes, and whether it may be coloured.
pub struct Terminal {
    out: Box<dyn Write + Send>,
    colour: bool,
}

impl Terminal {
    /// Standard error; coloured if it is a terminal and the variable `NO_COLOR` is not set.
    pub fn stderr() -> Self {
        Self { out: Box::new(std::io::stderr()), colour: is_coloured() }
    }

    /// Another place.
    pub fn new(out: Box<dyn Write + Send>, colour: bool) -> Self {
        Self { out, colour }
    }
}

/// Whether text on standard error may be coloured: it is a terminal and the variable `NO_COLOR` is not set.
pub fn is_coloured() -> bool {
    std::io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty())
}

/// Writes records as text.
pub(crate) struct TerminalWriter {
    terminal: Terminal,
    zone: TimeZone,
    pending: String,
}

impl TerminalWriter {
    pub fn new(terminal: Terminal, zone: TimeZone) -> Self {
        Self { terminal, zone, pending: String::new() }
    }
}

impl Output for TerminalWriter {
    fn record(&mut self, record: &Record) {
        record.write_text(&self.zone, self.terminal.colour, &mut self.pending);
    }

    fn lost(&mut self, owner: &Arc<Owner>, count: u64) {
        let line = format!("({count} more lines of {} {:?} were not shown)\n", owner.role.noun(), owner.name);
        self.pending.push_str(&line);
    }

    fn flush(&mut self) {
        let text = std::mem::take(&mut self.pending);
        let out = &mut self.terminal.out;
        if out.write_all(text.as_bytes()).and_then(|()| out.flush()).is_err() {
            // A terminal that is gone: there is nobody left to tell.
        }
    }
}
