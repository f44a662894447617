//! The wire of ZeroMQ, ZMTP 3.1 (RFC 37) with its mechanisms NULL and CURVE (RFC 26), as state machines: bytes in, bytes and
//! messages out, without sockets, threads or clocks.
//!
//! Reading order: `frame` (bytes to frames), `greeting`, `command` (what is said before and beside messages), `curve` (the
//! encrypted handshake and the cipher), `output` (messages to bytes), `engine` (one end of a connection).

mod command;
mod curve;
mod engine;
mod frame;
mod greeting;
mod output;

pub(crate) use curve::{Opening, Sealing};
pub(crate) use engine::{Engine, Happening, Limits, Role};
pub(crate) use output::{Room, SLICES_MAX, large_bytes};

/// A box from this length on is not sealed or opened in passing, but beside its loop: at half a nanosecond a byte it keeps everybody else of
/// the same loop waiting. A file in pieces takes half of a processor, and threads that wake wait for a loop that does that itself: the
/// slowest job of a hundred took 10 ms beside a transfer with boxes of up to 512 KiB in passing, and 6.5 ms so.
pub(crate) const LARGE_BOX_BYTES: usize = 64 * 1024;

/// Why a connection cannot go on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Broken {
    /// What came is not ZMTP 3.
    OtherProtocol,
    /// One side encrypts and the other does not.
    Mechanism,
    /// A box could not be opened: the other side has another key than the one expected, or somebody changed it on the way.
    Box,
    /// The other side said that it does not want us.
    Denied,
    /// A frame or a message is longer than allowed.
    TooLong,
    /// ZMTP 3, but against its rules.
    Malformed,
}
