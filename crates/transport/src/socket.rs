//! A libzmq socket with one owner.
#![allow(unsafe_code)]

use std::ffi::{CString, c_int, c_void};
use std::os::fd::{BorrowedFd, RawFd};
use std::ptr::NonNull;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

use crate::context::{Context, errno, last_error};
use crate::error::LinkError;
use crate::ffi;
use crate::lent::Lent;
use crate::link::Received;
use crate::message::{FrameReader, send_copy, send_part};

/// No close may keep a process longer than this, whatever it was asked for.
const LINGER_MAX: Duration = Duration::from_secs(30);

/// A libzmq socket. It may be moved to another thread but not be shared: it is `Send` and not `Sync`, and every function
/// that touches the socket needs the one owner.
pub(crate) struct Socket {
    raw: NonNull<c_void>,
    fd: RawFd,
    // Dropped after the socket was closed: the context must outlive it.
    _context: Context,
}

// SAFETY: libzmq sockets may migrate between threads as long as a full fence lies between the uses, which every way of moving
// a value to another thread in Rust implies.
unsafe impl Send for Socket {}

impl Socket {
    /// Opens a socket. Unless told otherwise it drops what it has not sent when it is closed.
    pub(crate) fn open(context: &Context, kind: c_int) -> Result<Self, LinkError> {
        // SAFETY: the context is alive.
        let raw = unsafe { ffi::zmq_socket(context.raw(), kind) };
        let raw = NonNull::new(raw).ok_or_else(|| last_error("zmq_socket"))?;
        let mut socket = Self { raw, fd: -1, _context: context.clone() };
        socket.fd = socket.get_int(ffi::ZMQ_FD)?;
        socket.set_int(ffi::ZMQ_LINGER, 0)?;
        Ok(socket)
    }

    pub(crate) fn set_int(&self, option: c_int, value: c_int) -> Result<(), LinkError> {
        self.set(option, &value.to_ne_bytes())
    }

    pub(crate) fn set_i64(&self, option: c_int, value: i64) -> Result<(), LinkError> {
        self.set(option, &value.to_ne_bytes())
    }

    /// Sets an option to a time in milliseconds, rounded up.
    pub(crate) fn set_time(&self, option: c_int, value: Duration) -> Result<(), LinkError> {
        self.set_int(option, milliseconds(value))
    }

    pub(crate) fn set(&self, option: c_int, value: &[u8]) -> Result<(), LinkError> {
        // SAFETY: the socket is alive and the value is read before the call returns.
        let result = unsafe { ffi::zmq_setsockopt(self.raw.as_ptr(), option, value.as_ptr().cast(), value.len()) };
        if result == 0 { Ok(()) } else { Err(last_error("zmq_setsockopt")) }
    }

    fn get_int(&self, option: c_int) -> Result<c_int, LinkError> {
        let mut value: c_int = 0;
        loop {
            let mut len = size_of::<c_int>();
            // SAFETY: the socket is alive and all options read here are ints.
            let result = unsafe {
                ffi::zmq_getsockopt(self.raw.as_ptr(), option, (&raw mut value).cast::<c_void>(), &raw mut len)
            };
            if result == 0 {
                return Ok(value);
            }
            if errno() != rustix::io::Errno::INTR.raw_os_error() {
                return Err(last_error("zmq_getsockopt"));
            }
        }
    }

    /// What the socket is ready for: `ZMQ_POLLIN` and `ZMQ_POLLOUT`. Handles everything that the I/O thread has reported;
    /// whatever it reports afterwards makes [`Socket::fd`] readable.
    pub(crate) fn events(&self) -> Result<c_int, LinkError> {
        self.get_int(ffi::ZMQ_EVENTS)
    }

    /// Becomes readable when the I/O thread has something to report, and stays so until the socket is used. That the I/O
    /// thread has nothing *new* to report does not mean that there is nothing to read: see [`Socket::events`].
    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        // SAFETY: libzmq keeps the descriptor open as long as the socket lives, which outlives the borrow.
        unsafe { BorrowedFd::borrow_raw(self.fd) }
    }

    /// Listens on an endpoint in libzmq's notation; the error number if that fails.
    pub(crate) fn bind(&self, endpoint: &str) -> Result<(), c_int> {
        let endpoint = CString::new(endpoint).map_err(|_| rustix::io::Errno::INVAL.raw_os_error())?;
        // SAFETY: the socket is alive.
        if unsafe { ffi::zmq_bind(self.raw.as_ptr(), endpoint.as_ptr()) } == 0 { Ok(()) } else { Err(errno()) }
    }

    /// Starts to connect to an endpoint in libzmq's notation.
    pub(crate) fn connect(&self, endpoint: &str) -> Result<(), LinkError> {
        let endpoint = CString::new(endpoint).map_err(|_| LinkError::MalformedEndpoint {
            endpoint: endpoint.escape_debug().to_string(),
            reason: "it contains a zero byte",
        })?;
        // SAFETY: the socket is alive.
        let result = unsafe { ffi::zmq_connect(self.raw.as_ptr(), endpoint.as_ptr()) };
        if result == 0 { Ok(()) } else { Err(last_error("zmq_connect")) }
    }

    /// Where the socket listens since the last [`Socket::bind`].
    pub(crate) fn last_endpoint(&self) -> Result<String, LinkError> {
        let mut text = [0_u8; 256];
        let mut len = text.len();
        // SAFETY: the socket is alive; libzmq writes at most `len` bytes.
        let result = unsafe {
            ffi::zmq_getsockopt(
                self.raw.as_ptr(),
                ffi::ZMQ_LAST_ENDPOINT,
                text.as_mut_ptr().cast::<c_void>(),
                &raw mut len,
            )
        };
        if result != 0 {
            return Err(last_error("zmq_getsockopt"));
        }
        Ok(String::from_utf8_lossy(&text[..len.saturating_sub(1)]).into_owned())
    }

    /// Reports what happens to this socket's connections at an `inproc` endpoint, or stops to.
    pub(crate) fn monitor(&self, endpoint: Option<&str>, events: c_int) -> Result<(), LinkError> {
        let endpoint = endpoint.map(|endpoint| CString::new(endpoint).expect("made by this crate, without zero bytes"));
        let text = endpoint.as_ref().map_or(std::ptr::null(), |endpoint| endpoint.as_ptr());
        // SAFETY: the socket is alive; null stops the reports.
        let result = unsafe { ffi::zmq_socket_monitor(self.raw.as_ptr(), text, events) };
        if result == 0 { Ok(()) } else { Err(last_error("zmq_socket_monitor")) }
    }

    /// Sends one part, copied.
    pub(crate) fn send_copy(&mut self, bytes: &[u8], more: bool) -> Result<(), c_int> {
        // SAFETY: the socket is alive, and nobody else uses it while it is borrowed mutably.
        unsafe { send_copy(self.raw.as_ptr(), bytes, more) }
    }

    /// Sends one part; a large one without copying it.
    pub(crate) fn send_part(&mut self, frame: &Bytes, more: bool, lent: &Arc<Lent>) -> Result<(), c_int> {
        // SAFETY: the socket is alive, and nobody else uses it while it is borrowed mutably.
        unsafe { send_part(self.raw.as_ptr(), frame, more, lent) }
    }

    /// Receives one message, if there is one. `with_peer`: its first part is the peer's routing id.
    pub(crate) fn receive(
        &mut self,
        reader: &mut FrameReader,
        with_peer: bool,
        frames_max: usize,
    ) -> Result<Option<Received>, LinkError> {
        if !self.receive_part(reader)? {
            return Ok(None);
        }
        let mut message = Received::default();
        let mut more = reader.more();
        if with_peer {
            message.peer = reader.frame();
            if !more || !self.receive_part(reader)? {
                return Ok(Some(message));
            }
            more = reader.more();
        }
        // What a job message has, so that the list does not grow step by step.
        message.frames.reserve_exact(if more { FRAMES_USUAL } else { 1 });
        loop {
            if message.frames.len() < frames_max {
                message.frames.push(reader.frame());
            } else {
                message.truncated = true;
            }
            // The parts of one message arrive together, so the next one is there; if it were not, the message ends here.
            if !more || !self.receive_part(reader)? {
                return Ok(Some(message));
            }
            more = reader.more();
        }
    }

    /// Closes the socket and gives what it has not sent yet some time to leave.
    pub(crate) fn close(self, linger: Duration) {
        // The only ways for this to fail are a wrong value and a dead socket, and neither is possible here.
        self.set_time(ffi::ZMQ_LINGER, linger.min(LINGER_MAX)).ok();
        drop(self);
    }

    fn receive_part(&mut self, reader: &mut FrameReader) -> Result<bool, LinkError> {
        // SAFETY: the socket is alive, and nobody else uses it while it is borrowed mutably.
        match unsafe { reader.receive(self.raw.as_ptr()) } {
            Ok(()) => Ok(true),
            Err(errno) if errno == rustix::io::Errno::AGAIN.raw_os_error() => Ok(false),
            Err(_) => Err(last_error("zmq_msg_recv")),
        }
    }
}

/// The number of frames after the routing id of the common messages of the fabric.
const FRAMES_USUAL: usize = 8;

impl Drop for Socket {
    fn drop(&mut self) {
        // SAFETY: the socket is alive and not used afterwards. The call does not wait: the I/O thread does the rest.
        unsafe { ffi::zmq_close(self.raw.as_ptr()) };
    }
}

/// A time as libzmq takes it: whole milliseconds, rounded up, so that nothing comes too early.
fn milliseconds(time: Duration) -> c_int {
    c_int::try_from(time.as_nanos().div_ceil(1_000_000)).unwrap_or(c_int::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_rounded_up_to_milliseconds() {
        assert_eq!(milliseconds(Duration::ZERO), 0);
        assert_eq!(milliseconds(Duration::from_nanos(1)), 1);
        assert_eq!(milliseconds(Duration::from_millis(2)), 2);
        assert_eq!(milliseconds(Duration::from_micros(2001)), 3);
        assert_eq!(milliseconds(Duration::MAX), c_int::MAX);
    }
}
