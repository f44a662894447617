//! What a run says while it runs: nothing, lines, or a fingerprint of the lines.

use std::fmt;
use std::time::Duration;

use norfab_protocol::frame::Frames;

/// Where the lines go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Trace {
    /// Nowhere; they are not even written.
    Off,
    /// To the terminal.
    Print,
    /// Into a number that two equal runs share.
    Fingerprint(u64),
}

impl Trace {
    /// Notes a line.
    pub fn line(&mut self, at: Duration, line: fmt::Arguments<'_>) {
        match self {
            Self::Off => {}
            Self::Print => println!("{:10.4} {line}", at.as_secs_f64()),
            Self::Fingerprint(sum) => {
                for byte in format!("{} {line}", at.as_nanos()).bytes() {
                    // FNV-1a: simple, and the same on every machine.
                    *sum = (*sum ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3);
                }
            }
        }
    }
}

/// Bytes of each frame that are shown.
const SHOWN_BYTES: usize = 160;

/// A message as a line.
pub struct Shown<'a>(pub &'a Frames);

impl fmt::Display for Shown<'_> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        for frame in self.0.iter().filter(|frame| !frame.is_empty()) {
            write!(formatter, " {}", frame[..frame.len().min(SHOWN_BYTES)].escape_ascii())?;
        }
        Ok(())
    }
}
