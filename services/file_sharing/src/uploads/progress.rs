//! Whether an upload gets on: its client may say that it reads its file, but not for ever.

use std::time::{Duration, Instant};

/// How long an upload may bring less than [`PROGRESS_BYTES_MIN`].
pub const PROGRESS_TIME: Duration = Duration::from_secs(120);

/// Least bytes that it brings in that time: two messages. A client on a slower line would be taken for gone between them.
pub const PROGRESS_BYTES_MIN: u64 = 256 << 10;

/// How fast a client reads at least what the worker has already, to compare it.
const COMPARED_SECOND_BYTES: u64 = 8 << 20;

/// How far an upload has come since when.
pub(super) struct Progress {
    since: Instant,
    /// How long the client may take for less.
    time: Duration,
    brought: u64,
}

impl Progress {
    /// The client compares so many bytes before it sends some.
    pub(super) fn new(compared: u64, now: Instant) -> Self {
        let time = PROGRESS_TIME + Duration::from_secs(compared / COMPARED_SECOND_BYTES);
        Self { since: now, time, brought: 0 }
    }

    /// Something came, or only a sign of life. Whether it gets on; else how much came in how many seconds.
    pub(super) fn brought(&mut self, bytes: usize, now: Instant) -> Result<(), (u64, u64)> {
        self.brought = self.brought.saturating_add(bytes as u64);
        if now.saturating_duration_since(self.since) < self.time {
            return Ok(());
        }
        if self.brought < PROGRESS_BYTES_MIN {
            return Err((self.brought, self.time.as_secs()));
        }
        *self = Self { since: now, time: PROGRESS_TIME, brought: 0 };
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signs_alone_are_believed_for_as_long_as_reading_can_take_and_then_bytes_must_come() {
        let began = Instant::now();
        let at = |seconds| began + Duration::from_secs(seconds);
        let mut progress = Progress::new(80 << 20, began);
        assert_eq!(progress.brought(0, at(129)), Ok(()));
        assert_eq!(progress.brought(1, at(130)), Err((1, 130)));
        let mut progress = Progress::new(0, began);
        assert_eq!(progress.brought(256 << 10, at(1)), Ok(()));
        assert_eq!(progress.brought(0, at(120)), Ok(()), "it begins anew");
        assert_eq!(progress.brought(1000, at(239)), Ok(()));
        assert_eq!(progress.brought(0, at(240)), Err((1000, 120)));
    }
}
