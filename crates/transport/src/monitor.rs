//! Watching one attempt to connect: libzmq reports what happens to a socket's connections on an `inproc` pair.
//!
//! The pair exists only until the handshake has succeeded or failed, so that a connected role has its one socket.

use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::io::Errno;

use crate::context::Context;
use crate::error::LinkError;
use crate::ffi;
use crate::link::RefusedReason;
use crate::message::FrameReader;
use crate::socket::Socket;

/// What decides about an attempt. All other events are steps on the way.
const EVENTS: i32 = ffi::ZMQ_EVENT_CONNECT_RETRIED
    | ffi::ZMQ_EVENT_CLOSED
    | ffi::ZMQ_EVENT_DISCONNECTED
    | ffi::ZMQ_EVENT_HANDSHAKE_FAILED_NO_DETAIL
    | ffi::ZMQ_EVENT_HANDSHAKE_FAILED_PROTOCOL
    | ffi::ZMQ_EVENT_HANDSHAKE_FAILED_AUTH
    | ffi::ZMQ_EVENT_HANDSHAKE_SUCCEEDED;

/// An event has two frames: number and value, and the endpoint.
const EVENT_FRAMES: usize = 2;

/// Names of monitors must be unique in a context.
static NEXT: AtomicU64 = AtomicU64::new(0);

/// How an attempt to connect ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// The handshake succeeded.
    Connected,
    /// There was no TCP connection.
    Unreachable,
    /// There was one, and the handshake failed.
    Refused(RefusedReason),
}

/// A socket that is watched while it connects.
pub(crate) struct Monitored {
    /// There until it is released.
    socket: Option<Socket>,
    reports: Socket,
    reader: FrameReader,
    encrypted: bool,
}

impl Monitored {
    /// Starts to watch a socket. `encrypted`: it uses CURVE, which decides how a closed connection is understood.
    pub(crate) fn new(context: &Context, socket: Socket, encrypted: bool) -> Result<Self, LinkError> {
        let endpoint = format!("inproc://norfab.monitor.{:x}.{}", context.id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let reports = Socket::open(context, ffi::ZMQ_PAIR)?;
        socket.monitor(Some(&endpoint), EVENTS)?;
        let monitored = Self { socket: Some(socket), reports, reader: FrameReader::new(), encrypted };
        monitored.reports.connect(&endpoint)?;
        Ok(monitored)
    }

    /// Starts to connect the socket that is watched.
    pub(crate) fn connect(&self, endpoint: &str) -> Result<(), LinkError> {
        self.socket.as_ref().map_or(Ok(()), |socket| socket.connect(endpoint))
    }

    /// Becomes readable when there are reports.
    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.reports.fd()
    }

    /// Reads the reports up to the one that decides, if it is there.
    pub(crate) fn outcome(&mut self) -> Result<Option<Outcome>, LinkError> {
        while let Some(report) = self.reports.receive(&mut self.reader, false, EVENT_FRAMES)? {
            let Some(&[event_low, event_high, a, b, c, d]) = report.frames.first().map(|frame| &frame[..]) else {
                continue;
            };
            let event = i32::from(u16::from_ne_bytes([event_low, event_high]));
            let value = u32::from_ne_bytes([a, b, c, d]);
            if let Some(outcome) = self.understand(event, value) {
                return Ok(Some(outcome));
            }
        }
        Ok(None)
    }

    /// Stops to watch and gives the socket back, unless it was given back before.
    pub(crate) fn release(&mut self) -> Option<Socket> {
        let socket = self.socket.take()?;
        // Before `reports` goes: otherwise the I/O thread would wait for somebody to read what it reports.
        // It only fails on a dead socket.
        drop(socket.monitor(None, 0));
        Some(socket)
    }

    fn understand(&self, event: i32, value: u32) -> Option<Outcome> {
        match event {
            ffi::ZMQ_EVENT_HANDSHAKE_SUCCEEDED => Some(Outcome::Connected),
            ffi::ZMQ_EVENT_CLOSED | ffi::ZMQ_EVENT_CONNECT_RETRIED => Some(Outcome::Unreachable),
            ffi::ZMQ_EVENT_HANDSHAKE_FAILED_AUTH => Some(Outcome::Refused(RefusedReason::NotAdmitted)),
            ffi::ZMQ_EVENT_HANDSHAKE_FAILED_PROTOCOL => Some(Outcome::Refused(match value {
                ffi::ZMQ_PROTOCOL_ERROR_ZMTP_MECHANISM_MISMATCH => RefusedReason::SecurityMismatch,
                ffi::ZMQ_PROTOCOL_ERROR_ZMTP_CRYPTOGRAPHIC => RefusedReason::WrongKey,
                _ => RefusedReason::OtherProtocol,
            })),
            // The value is the error number of the read that failed. "Closed by the other side" in the middle of a CURVE
            // handshake is how a server answers to a box that it cannot open.
            ffi::ZMQ_EVENT_HANDSHAKE_FAILED_NO_DETAIL => {
                let closed =
                    [Errno::PIPE, Errno::CONNRESET].iter().any(|errno| errno.raw_os_error().cast_unsigned() == value);
                Some(Outcome::Refused(if self.encrypted && closed {
                    RefusedReason::WrongKey
                } else {
                    RefusedReason::NoHandshake
                }))
            }
            // Every failed handshake ends with this one; it only gets here if no other event came before.
            ffi::ZMQ_EVENT_DISCONNECTED => Some(Outcome::Refused(RefusedReason::OtherProtocol)),
            _ => None,
        }
    }
}

impl Drop for Monitored {
    fn drop(&mut self) {
        drop(self.release());
    }
}
