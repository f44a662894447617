//! One attempt to connect: whether it succeeded, what its failure means, and how long to wait before the next.

use std::os::fd::OwnedFd;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags};
use rustix::io::Errno;
use rustix::net::{getpeername, getsockname, sockopt};

use crate::connection::End;
use crate::link::RefusedReason;
use crate::options::LinkOptions;
use crate::sleep::{has_news, sleep};
use crate::zmtp::Broken;

/// How an attempt to connect failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Failure {
    /// There was no connection.
    Unreachable,
    /// There was one, and the handshake failed.
    Refused(RefusedReason),
}

/// Whether a socket is connected now; `None` while it is not decided.
pub(super) fn connected(socket: &OwnedFd) -> Option<bool> {
    let mut descriptors = [PollFd::new(socket, PollFlags::OUT)];
    if sleep(&mut descriptors, Some(Duration::ZERO)).is_err() {
        return Some(false);
    }
    if !has_news(&descriptors[0]) {
        return None;
    }
    // A port that nobody listens on may have been given to this very socket, which is then connected with itself.
    let itself = || getsockname(socket).ok() == getpeername(socket).ok().flatten();
    Some(matches!(sockopt::socket_error(socket), Ok(Ok(()))) && !itself())
}

/// The pause after so many rounds that failed: it doubles up to a bound, and half of it is random.
pub(super) fn pause(first: Duration, longest: Duration, failed_rounds: u32) -> Duration {
    let doubled = first.saturating_mul(2_u32.saturating_pow(failed_rounds)).min(longest);
    doubled.mul_f64(0.5 + fastrand::f64() / 2.0)
}

/// What it means that a handshake was not over in time.
pub(super) fn silence(link: &LinkOptions) -> Failure {
    Failure::Refused(RefusedReason::Silent { within: link.handshake_timeout })
}

/// What the end of a connection in the middle of the handshake means.
pub(super) fn understand(end: End, encrypting: bool) -> RefusedReason {
    match end {
        // That is how a server answers to a box that it cannot open.
        End::Closed | End::Failed(Errno::PIPE | Errno::CONNRESET) if encrypting => RefusedReason::WrongKey,
        End::Closed | End::Failed(_) => RefusedReason::NoHandshake,
        End::Broken(Broken::Box) => RefusedReason::WrongKey,
        End::Broken(Broken::Mechanism) => RefusedReason::SecurityMismatch,
        End::Broken(Broken::Denied) => RefusedReason::NotAdmitted,
        End::Broken(Broken::OtherProtocol | Broken::Malformed | Broken::TooLong) => RefusedReason::OtherProtocol,
    }
}
