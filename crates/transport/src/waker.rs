//! Waking an owner loop from other threads.

use std::fmt;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::error::LinkError;

/// Interrupts the `wait` of one link. Cheap to clone; any thread may use it.
///
/// A producer pushes to its queue **first** and wakes then. Many wakes before the owner gets to run cost one system call
/// together: only the one that finds the flag unset writes to the eventfd. The owner empties the eventfd, clears the flag and
/// looks at its queues, in this order. Were the flag cleared before, a wake in between would write to an eventfd that is then
/// emptied, and every later wake would think that the owner knows.
#[derive(Clone)]
pub struct Waker {
    inner: Arc<Inner>,
}

struct Inner {
    /// A wake was announced that the owner has not seen yet.
    armed: AtomicBool,
    /// What the owner polls.
    sleeper: OwnedFd,
    /// What a producer writes to; the same object on Linux.
    #[cfg(not(target_os = "linux"))]
    bell: OwnedFd,
}

impl Waker {
    /// Makes a wake-up for one owner.
    #[cfg(target_os = "linux")]
    pub(crate) fn new() -> Result<Self, LinkError> {
        use rustix::event::{EventfdFlags, eventfd};
        let sleeper =
            eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).map_err(|error| failed(error.into()))?;
        Ok(Self { inner: Arc::new(Inner { armed: AtomicBool::new(false), sleeper }) })
    }

    /// Makes a wake-up for one owner.
    #[cfg(not(target_os = "linux"))]
    pub(crate) fn new() -> Result<Self, LinkError> {
        let (sleeper, bell) = std::os::unix::net::UnixStream::pair().map_err(failed)?;
        sleeper.set_nonblocking(true).map_err(failed)?;
        bell.set_nonblocking(true).map_err(failed)?;
        Ok(Self {
            inner: Arc::new(Inner { armed: AtomicBool::new(false), sleeper: sleeper.into(), bell: bell.into() }),
        })
    }

    /// Makes the owner's current or next `wait` return with `woken`. Never blocks.
    pub fn wake(&self) {
        // AcqRel: the push that came before this must be visible to the owner that clears the flag, and a flag that is found
        // set must mean an owner that has not cleared it yet.
        if !self.inner.armed.swap(true, Ordering::AcqRel) {
            self.ring();
        }
    }

    /// Takes the announced wake-up, if there is one, without a system call if there is none. For an owner that does not sleep.
    pub(crate) fn take_if_armed(&self) -> bool {
        self.inner.armed.load(Ordering::Acquire) && self.take()
    }

    /// Takes the announced wake-up, if there is one. For the owner, once `sleeper` is readable.
    pub(crate) fn take(&self) -> bool {
        // An eventfd gives its count in 8 bytes; the other kind holds one byte, as at most one bell rings per arming.
        let mut count = [0_u8; 8];
        // Nothing to read is as good as something: the flag decides.
        rustix::io::read(&self.inner.sleeper, &mut count).ok();
        self.inner.armed.swap(false, Ordering::AcqRel)
    }

    /// What to poll for reading.
    pub(crate) fn sleeper(&self) -> BorrowedFd<'_> {
        self.inner.sleeper.as_fd()
    }

    #[cfg(target_os = "linux")]
    fn ring(&self) {
        // Fails only when the count would overflow; then the owner is woken anyway.
        rustix::io::write(&self.inner.sleeper, &1_u64.to_ne_bytes()).ok();
    }

    #[cfg(not(target_os = "linux"))]
    fn ring(&self) {
        // Fails only when the buffer is full; then the owner is woken anyway.
        rustix::io::write(&self.inner.bell, &[1]).ok();
    }
}

impl fmt::Debug for Waker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Waker").field("armed", &self.inner.armed.load(Ordering::Relaxed)).finish()
    }
}

fn failed(error: std::io::Error) -> LinkError {
    LinkError::Io { what: "cannot create a wake-up descriptor", reason: error.to_string() }
}
