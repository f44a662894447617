//! How links behave: every bound and time-out, with its reason.

use std::sync::Arc;
use std::time::Duration;

use crate::admission::Admission;
use crate::keys::{KeyPair, PublicKey};

/// Messages that wait for one peer before sends to it are [`Full`](crate::SendError::Full). A worker that answers 2,000 jobs
/// in flight with an event or two each fits; a peer that stopped reading holds at most this many.
pub const QUEUE_MESSAGES: u32 = 10_000;

/// Bytes of large messages, those of 8 KiB and more, that wait for one peer before sends of more are [`Full`](crate::SendError::Full); a single message is
/// always taken where nothing waits. 10,000 results are more than any memory has. What the
/// broker could not hand to a client is asked for again.
pub const QUEUE_BYTES: usize = 256 << 20;

/// The same for all peers of one socket, but for the first message to a peer for which nothing waits. Peers that read
/// nothing are disconnected after [`UNACKNOWLEDGED_TIMEOUT`].
pub const QUEUE_BYTES_TOTAL: usize = 1 << 30;

/// Bytes in one frame, and in all frames of one message together. Results of 10 MB are normal; this leaves room and keeps one peer from asking for all memory.
pub const FRAME_BYTES_MAX: u64 = 256 * 1024 * 1024;

/// Frames in one message after the routing id. The longest message of the protocol has eight.
///
/// What is beyond it is thrown away as it comes.
pub const FRAMES_MAX: usize = 16;

/// From the TCP connection to the end of the handshake. One is done in milliseconds; 2,000 at once need some seconds on a busy
/// host, and one that is given up half-way was work for nothing.
pub const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(15);

/// Connections to a router that have not finished their handshake. While there are so many, the oldest makes room for the next one
/// if it had two seconds; else the next one waits in the system.
pub const HANDSHAKES: usize = 4096;

/// From the first packet to the TCP connection, for each address that a name has.
pub const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// How long data may stay without a TCP acknowledgement. Catches a flow that a firewall forgot while something is sent, and a
/// peer that reads nothing for so long although it is sent something. A flow on which nothing is sent is probed by TCP itself,
/// and is found dead 30 s after its last byte.
///
/// The heartbeats of ZeroMQ are not sent: where a peer's library has stopped to read because its program is busy, the answer
/// waits behind the messages, and a line would be cut that is only busy. A peer that is frozen, or gone behind a proxy, is found
/// out above this: by the keepalives of workers, and by clients whose requests have no answer. Peers may send heartbeats all the
/// same, and are answered.
pub const UNACKNOWLEDGED_TIMEOUT: Duration = Duration::from_secs(30);

/// The first pause before connecting again. Half of each pause is random, so that a thousand peers do not come back as one.
pub const RECONNECT_DELAY_FIRST: Duration = Duration::from_millis(100);

/// The longest pause while the broker cannot be reached: after a restart everybody is back about a second later.
pub const RECONNECT_DELAY_MAX: Duration = Duration::from_secs(1);

/// The longest pause while the broker refuses us. That is a matter of configuration, and each try costs it a handshake.
pub const REFUSED_DELAY_MAX: Duration = Duration::from_secs(5);

/// What was handed over before [`reconnect`](crate::DealerLink::reconnect) has this long to leave on the old connection.
pub const RECONNECT_LINGER: Duration = Duration::from_secs(1);

/// Connections that may wait to be accepted: more than 2,000 that come at once. The system may allow fewer (`somaxconn`).
pub const BACKLOG: u32 = 4096;

/// The bounds and time-outs that both kinds of links share. The defaults are the constants of this module.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LinkOptions {
    /// Messages that wait to be sent, per peer.
    pub send_queue: u32,
    /// Bytes of large messages that wait to be sent, per peer.
    pub send_queue_bytes: usize,
    /// Bytes of large messages that wait to be sent, for all peers.
    pub send_queue_bytes_total: usize,
    /// Bytes in one frame, and in all frames of one message; a peer that exceeds it is disconnected.
    pub frame_bytes_max: u64,
    /// Frames in one message after the routing id; the rest is cut off.
    pub frames_max: usize,
    /// Time for a handshake.
    pub handshake_timeout: Duration,
    /// Handshakes under way, of a router.
    pub handshakes: usize,
    /// Time for a TCP connection, per address.
    pub connect_timeout: Duration,
    /// Time that sent data may stay without acknowledgement.
    pub unacknowledged_timeout: Duration,
    /// The first pause before connecting again.
    pub reconnect_delay_first: Duration,
    /// The longest pause while the broker cannot be reached.
    pub reconnect_delay_max: Duration,
    /// The longest pause while the broker refuses us.
    pub refused_delay_max: Duration,
}

impl Default for LinkOptions {
    fn default() -> Self {
        Self {
            send_queue: QUEUE_MESSAGES,
            send_queue_bytes: QUEUE_BYTES,
            send_queue_bytes_total: QUEUE_BYTES_TOTAL,
            frame_bytes_max: FRAME_BYTES_MAX,
            frames_max: FRAMES_MAX,
            handshake_timeout: HANDSHAKE_TIMEOUT,
            handshakes: HANDSHAKES,
            connect_timeout: CONNECT_TIMEOUT,
            unacknowledged_timeout: UNACKNOWLEDGED_TIMEOUT,
            reconnect_delay_first: RECONNECT_DELAY_FIRST,
            reconnect_delay_max: RECONNECT_DELAY_MAX,
            refused_delay_max: REFUSED_DELAY_MAX,
        }
    }
}

/// How a router listens.
#[derive(Debug, Clone, Default)]
pub struct RouterOptions {
    /// Bounds and time-outs.
    pub link: LinkOptions,
    /// The broker's keys: with them every peer must encrypt, without them none may.
    pub keys: Option<KeyPair>,
    /// Who may connect; `None` admits everybody.
    pub admission: Option<Arc<dyn Admission>>,
}

/// What a dealer needs to encrypt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DealerKeys {
    /// Its own pair.
    pub own: KeyPair,
    /// The key that the broker must prove to have.
    pub broker: PublicKey,
}

/// How a dealer connects.
#[derive(Debug, Clone, Default)]
pub struct DealerOptions {
    /// Bounds and time-outs.
    pub link: LinkOptions,
    /// Keys, to encrypt; `None` speaks in the clear.
    pub keys: Option<DealerKeys>,
}
