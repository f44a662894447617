//! The two kinds of links, as traits: what an owner loop may do with its socket, whatever the engine beneath is.
//!
//! A link has one owner. The traits are `Send`, so that a link can be made on one thread and handed to the loop that owns
//! it; the types behind them are neither `Sync` nor `Clone`, so that there is no second owner:
//!
//! ```compile_fail,E0599
//! # use norfab_transport::RouterLink;
//! fn second_owner(link: Box<dyn RouterLink>) -> (Box<dyn RouterLink>, Box<dyn RouterLink>) {
//!     (link.clone(), link)
//! }
//! ```
//!
//! ```compile_fail,E0277
//! # use norfab_transport::Router;
//! fn shared_between_threads<T: Sync>() {}
//! shared_between_threads::<Router>();
//! ```
//!
//! ```compile_fail,E0277
//! # use norfab_transport::Dealer;
//! fn shared_between_threads<T: Sync>() {}
//! shared_between_threads::<Dealer>();
//! ```
//!
//! ```compile_fail,E0382
//! # use norfab_transport::DealerLink;
//! fn used_after_it_was_given_away(mut link: Box<dyn DealerLink>) {
//!     std::thread::spawn(move || link.try_receive());
//!     link.try_receive();
//! }
//! ```
//!
//! Moving a link to the thread of its owner does compile:
//!
//! ```
//! # use norfab_transport::{Dealer, DealerLink, Router, RouterLink, Waker};
//! fn moved_to_its_owner<T: Send>() {}
//! moved_to_its_owner::<Router>();
//! moved_to_its_owner::<Dealer>();
//! moved_to_its_owner::<Box<dyn RouterLink>>();
//! moved_to_its_owner::<Box<dyn DealerLink>>();
//! fn shared_between_threads<T: Send + Sync + Clone>() {}
//! shared_between_threads::<Waker>();
//! ```
//!
//! What is meant for other threads is the [`Waker`]: it interrupts [`RouterLink::wait`] and nothing else.

use std::time::Duration;

use bytes::Bytes;

use crate::error::{LinkError, SendError};
use crate::waker::Waker;

/// A message that came in.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Received {
    /// The routing id of the peer that sent it; empty on a dealer, which has one peer only.
    pub peer: Bytes,
    /// The frames after the routing id, in order.
    pub frames: Vec<Bytes>,
    /// The message had more than `frames_max` frames; the rest was read and thrown away.
    pub truncated: bool,
}

/// Why [`RouterLink::wait`] returned. All three may be false: then the time is over, a status waits in
/// [`DealerLink::next_status`], or it was a false alarm. An owner that looks at everything it owns after each wait is right.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Ready {
    /// `try_receive` is worth a try (it may still find nothing).
    pub readable: bool,
    /// A send that was refused as [`SendError::Full`] is worth another try. Only set by dealers, if `want_write` was asked
    /// for: a broker keeps nothing for peers that are full.
    pub writable: bool,
    /// A producer called [`Waker::wake`] since the last wait: look at the queues.
    pub woken: bool,
}

/// What happened to the connection of a dealer.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum LinkStatus {
    /// The handshake succeeded. Nothing is accepted by `try_send` before this was read from
    /// [`DealerLink::next_status`], so what the owner sends next is the first message on the new connection.
    Connected,
    /// The connection was lost; everything that came in on it was read before. The link tries to connect again by itself.
    Disconnected,
    /// The broker could not be reached at any of its addresses. The link goes on trying.
    Unreachable {
        /// The endpoint as configured.
        endpoint: String,
        /// What was tried and how it failed.
        reason: String,
    },
    /// Something listens there, and there was no handshake: it does not want us, says nothing, or is not what we expect. The link
    /// goes on trying.
    Refused {
        /// The endpoint as configured.
        endpoint: String,
        /// The fingerprint of the broker's key as we know it, with CURVE.
        fingerprint: Option<String>,
        /// What seems to be wrong.
        reason: RefusedReason,
    },
}

/// Why a handshake failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RefusedReason {
    /// The other side closed the connection in the middle of the CURVE handshake. That is what a broker does that has another
    /// key than the one we expect.
    #[error(
        "the other side broke off the encrypted handshake: most often the broker has another key than the one expected"
    )]
    WrongKey,
    /// One side encrypts and the other does not.
    #[error("one side encrypts and the other does not")]
    SecurityMismatch,
    /// The broker's admission rules say no.
    #[error("the broker's admission rules refuse this peer")]
    NotAdmitted,
    /// It accepted the connection and closed it before any of that could be found out.
    #[error("the other side accepted the connection and closed it before the handshake was complete")]
    NoHandshake,
    /// It accepted the connection, and the handshake was not over in time. Nothing is known of its key: a process that hangs accepts
    /// connections as well, as its system does that for it.
    #[error("it accepted the connection and did not answer within {} s", .within.as_secs_f64())]
    Silent {
        /// The time that a handshake has.
        within: Duration,
    },
    /// It speaks, but not our protocol.
    #[error("the other side does not speak the protocol of the fabric")]
    OtherProtocol,
}

/// What of a queue may be taken by what may be dropped.
pub(crate) const fn for_minor(queue: usize) -> usize {
    queue - queue / 4
}

/// One socket with many peers: the broker's end.
pub trait RouterLink: Send {
    /// Hands a message to a peer's queue, whole or not at all, without waiting.
    ///
    /// # Errors
    /// [`SendError::Unroutable`] if no peer of this name is connected, [`SendError::Full`] if its queue is full.
    fn try_send(&mut self, peer: &[u8], frames: &[Bytes]) -> Result<(), SendError>;

    /// As [`RouterLink::try_send`], for what may be dropped: it is refused when three quarters of the peer's queue are taken, so
    /// that the rest is free for what may not be.
    ///
    /// # Errors
    /// As [`RouterLink::try_send`].
    fn try_send_minor(&mut self, peer: &[u8], frames: &[Bytes]) -> Result<(), SendError> {
        self.try_send(peer, frames)
    }

    /// Takes the next message that came in, if there is one. Never waits. Call it until it says `None` (or a bound of the
    /// caller's is reached): that is cheaper than a `wait` per message.
    ///
    /// # Errors
    /// Only if the link itself is broken; nothing that a peer sends causes one.
    fn try_receive(&mut self) -> Result<Option<Received>, LinkError>;

    /// Sleeps until a message may have come in, a producer woke the owner, or the time is over (`None`: no limit).
    ///
    /// # Errors
    /// Only if the link itself is broken.
    fn wait(&mut self, timeout: Option<Duration>) -> Result<Ready, LinkError>;

    /// The handle by which other threads interrupt `wait`.
    fn waker(&self) -> Waker;

    /// Where it listens, with the real port if port 0 was asked for.
    fn endpoint(&self) -> String;

    /// Closes the link. What was handed to it has at most `linger` to leave; the call itself does not wait.
    fn close(self: Box<Self>, linger: Duration);
}

/// One socket with one peer, the broker: the end of a worker or client.
pub trait DealerLink: Send {
    /// Hands a message to the connection, whole or not at all, without waiting.
    ///
    /// # Errors
    /// [`SendError::Full`] if its queue is full, while not connected, and until [`LinkStatus::Connected`] was read from
    /// [`DealerLink::next_status`].
    fn try_send(&mut self, frames: &[Bytes]) -> Result<(), SendError>;

    /// Takes the next message that came in, if there is one. Never waits. `peer` is empty.
    ///
    /// # Errors
    /// Only if the link itself is broken; nothing that the broker sends causes one.
    fn try_receive(&mut self) -> Result<Option<Received>, LinkError>;

    /// As [`RouterLink::wait`], and, with `want_write`, until a message can be sent. Returns at once while a status waits in
    /// [`DealerLink::next_status`].
    ///
    /// # Errors
    /// Only if the link itself is broken.
    fn wait(&mut self, timeout: Option<Duration>, want_write: bool) -> Result<Ready, LinkError>;

    /// The handle by which other threads interrupt `wait`.
    fn waker(&self) -> Waker;

    /// The connection that was reported as lost had lasted for a while, so that the next try need not be put off. Connections
    /// that are lost soon after they were made are made anew ever later, up to some seconds.
    fn lasted(&mut self) {}

    /// Drops the connection and makes a new one under the same name, at once. What was handed over already has a short time
    /// to leave on the old one. Says `Connected` again when it is there, without `Disconnected` before.
    ///
    /// # Errors
    /// Only if the link itself is broken.
    fn reconnect(&mut self) -> Result<(), LinkError>;

    /// The next thing that happened to the connection. Read it until `None` after each `wait`.
    fn next_status(&mut self) -> Option<LinkStatus>;

    /// Closes the link. What was handed to it has at most `linger` to leave; the call itself does not wait.
    fn close(self: Box<Self>, linger: Duration);
}
