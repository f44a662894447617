//! The libzmq context: its I/O thread and everything that hangs on it.
#![allow(unsafe_code)]

use std::ffi::{CStr, c_int, c_void};
use std::fmt;
use std::ptr::NonNull;
use std::sync::Arc;

use crate::error::LinkError;
use crate::ffi;

/// One I/O thread moves about a gigabyte a second in the clear and a third of that encrypted, which is more than one owner
/// loop can use.
const IO_THREADS: c_int = 1;

/// Enough for a process with thousands of workers: each has one socket, and three for the moment in which it connects.
const SOCKETS_MAX: c_int = 16_384;

/// A libzmq context. One per process is usual; clones are handles to the same one.
///
/// Links keep their context alive. When the last handle goes, the context ends, and that waits for what closed links still
/// have to send, bounded by the linger they were closed with. So a process that wants its last messages to leave drops its
/// last handle before it exits.
#[derive(Clone)]
pub struct Context {
    inner: Arc<Inner>,
}

struct Inner {
    raw: NonNull<c_void>,
}

// SAFETY: libzmq's contexts are made for use from any thread.
unsafe impl Send for Inner {}
// SAFETY: as above; all functions that take a context lock it themselves.
unsafe impl Sync for Inner {}

impl Context {
    /// Starts a context with its own I/O thread.
    ///
    /// # Errors
    /// If the system has no more descriptors or memory.
    pub fn new() -> Result<Self, LinkError> {
        // SAFETY: takes nothing, gives null or a context.
        let raw = unsafe { ffi::zmq_ctx_new() };
        let raw = NonNull::new(raw).ok_or_else(|| last_error("zmq_ctx_new"))?;
        let context = Self { inner: Arc::new(Inner { raw }) };
        for (option, value) in [(ffi::ZMQ_IO_THREADS, IO_THREADS), (ffi::ZMQ_MAX_SOCKETS, SOCKETS_MAX)] {
            // SAFETY: the context is alive, both options take an int.
            if unsafe { ffi::zmq_ctx_set(context.raw(), option, value) } != 0 {
                return Err(last_error("zmq_ctx_set"));
            }
        }
        Ok(context)
    }

    pub(crate) fn raw(&self) -> *mut c_void {
        self.inner.raw.as_ptr()
    }

    /// The address of the context: tells two contexts apart in names that must be unique in the process.
    pub(crate) fn id(&self) -> usize {
        self.inner.raw.as_ptr() as usize
    }
}

impl fmt::Debug for Context {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Context").finish_non_exhaustive()
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        // SAFETY: every socket holds a handle to its context, so none is left, and nobody else can use the pointer.
        while unsafe { ffi::zmq_ctx_term(self.raw.as_ptr()) } != 0 {
            // A signal interrupts the wait; anything else means that the context is not there.
            if errno() != rustix::io::Errno::INTR.raw_os_error() {
                break;
            }
        }
    }
}

/// The error number of the last call into libzmq on this thread.
pub(crate) fn errno() -> c_int {
    // SAFETY: reads a thread-local.
    unsafe { ffi::zmq_errno() }
}

/// The error of the last call into libzmq on this thread.
pub(crate) fn last_error(call: &'static str) -> LinkError {
    let errno = errno();
    LinkError::System { call, errno, reason: error_text(errno) }
}

/// An error number in words.
pub(crate) fn error_text(errno: c_int) -> String {
    // SAFETY: gives a static text for any number.
    unsafe { CStr::from_ptr(ffi::zmq_strerror(errno)) }.to_string_lossy().into_owned()
}

/// Allows this process as many descriptors as the system lets it have, and tells how many those are. Each connection of a
/// broker needs one, and the usual limit of 1024 is less than a large network has workers.
#[must_use]
pub fn raise_descriptor_limit() -> u64 {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    // It is allowed to everybody; where it fails all the same, the old limit stays.
    setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum }).ok();
    getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX)
}

/// Whether libzmq was built with CURVE.
#[must_use]
pub fn has_curve() -> bool {
    // SAFETY: takes a C string.
    unsafe { ffi::zmq_has(c"curve".as_ptr()) == 1 }
}

/// The version of libzmq, such as `4.3.5`.
#[must_use]
pub fn zmq_version() -> String {
    let (mut major, mut minor, mut patch) = (0, 0, 0);
    // SAFETY: writes three ints.
    unsafe { ffi::zmq_version(&raw mut major, &raw mut minor, &raw mut patch) };
    format!("{major}.{minor}.{patch}")
}
