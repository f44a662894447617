//! The one place of this crate that reads a clock: how long connections, handshakes and pauses take. It never goes back.

use std::time::Instant;

/// The time now.
pub(crate) fn now() -> Instant {
    Instant::now()
}
