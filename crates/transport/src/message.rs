//! Frames on their way into and out of libzmq, with as few copies and allocations as possible.
#![allow(unsafe_code)]

use std::ffi::{c_int, c_void};
use std::mem::MaybeUninit;
use std::sync::Arc;

use bytes::{Bytes, BytesMut};

use crate::context::errno;
use crate::ffi;
use crate::lent::Lent;

/// Frames of at least this size travel without being copied: lending a buffer costs two allocations and a call back, which is
/// more than copying a few kilobytes.
pub(crate) const LENT_BYTES_MIN: usize = 8 * 1024;

/// Small frames are cut from blocks of this size, so that a message of eight short frames does not cost eight allocations.
/// A frame that is kept for long keeps its whole block: that is why the block is small.
const BLOCK_BYTES: usize = 4 * 1024;

/// Frames above this size get an allocation of their own, so that little of a block is wasted at its end.
const BLOCK_FRAME_MAX: usize = 1024;

/// A message part that belongs to libzmq.
pub(crate) struct Message {
    raw: ffi::zmq_msg_t,
}

// SAFETY: the content of a message part is either within it or reference-counted with atomics; libzmq hands parts from
// thread to thread itself.
unsafe impl Send for Message {}

impl Message {
    /// An empty part.
    pub(crate) fn new() -> Self {
        let mut raw = MaybeUninit::<ffi::zmq_msg_t>::uninit();
        // SAFETY: initialises all that libzmq reads later, and cannot fail for an empty part.
        unsafe {
            ffi::zmq_msg_init(raw.as_mut_ptr());
            Self { raw: raw.assume_init() }
        }
    }

    /// A part that lends the memory of `frame` to libzmq until it was sent.
    fn lent(frame: Bytes, lent: Arc<Lent>) -> Result<Self, c_int> {
        let data = frame.as_ptr().cast_mut().cast::<c_void>();
        let len = frame.len();
        lent.add(len);
        let hint = Box::into_raw(Box::new(Loan { frame, lent })).cast::<c_void>();
        let mut raw = MaybeUninit::<ffi::zmq_msg_t>::uninit();
        // SAFETY: the memory stays where it is and unchanged until `release` drops the handle in `hint`, which happens once,
        // when libzmq has let go of it. libzmq does not write into it: with CURVE it encrypts into a new buffer.
        unsafe {
            if ffi::zmq_msg_init_data(raw.as_mut_ptr(), data, len, Some(release), hint) != 0 {
                let errno = errno();
                drop(Box::from_raw(hint.cast::<Loan>()));
                return Err(errno);
            }
            Ok(Self { raw: raw.assume_init() })
        }
    }

    /// Takes the next part from a socket. `raw_socket` must be a socket that the calling thread owns.
    ///
    /// # Safety
    /// `raw_socket` is a live socket that no other thread uses at the same time.
    pub(crate) unsafe fn receive(&mut self, raw_socket: *mut c_void) -> Result<(), c_int> {
        loop {
            // SAFETY: the part is initialised; what it held is released by libzmq.
            if unsafe { ffi::zmq_msg_recv(&raw mut self.raw, raw_socket, ffi::ZMQ_DONTWAIT) } >= 0 {
                return Ok(());
            }
            let errno = errno();
            if errno != rustix::io::Errno::INTR.raw_os_error() {
                return Err(errno);
            }
        }
    }

    /// Whether another part of the same message follows.
    pub(crate) fn more(&self) -> bool {
        // SAFETY: the part is initialised.
        unsafe { ffi::zmq_msg_more(&raw const self.raw) == 1 }
    }

    /// What is in it.
    pub(crate) fn bytes(&self) -> &[u8] {
        let raw = (&raw const self.raw).cast_mut();
        // SAFETY: the part is initialised; data and size describe memory that lives as long as the part does and that is not
        // changed meanwhile. zmq_msg_data does not write, it only lacks the const.
        unsafe {
            let len = ffi::zmq_msg_size(raw);
            if len == 0 {
                return &[];
            }
            std::slice::from_raw_parts(ffi::zmq_msg_data(raw).cast::<u8>(), len)
        }
    }
}

impl AsRef<[u8]> for Message {
    fn as_ref(&self) -> &[u8] {
        self.bytes()
    }
}

impl Drop for Message {
    fn drop(&mut self) {
        // SAFETY: the part is initialised and not used any more.
        unsafe { ffi::zmq_msg_close(&raw mut self.raw) };
    }
}

/// A frame that libzmq has for a while.
struct Loan {
    frame: Bytes,
    lent: Arc<Lent>,
}

impl Drop for Loan {
    fn drop(&mut self) {
        self.lent.take(self.frame.len());
    }
}

/// How many bytes of a message are lent.
pub(crate) fn lent_bytes(frames: &[Bytes]) -> usize {
    frames.iter().map(Bytes::len).filter(|len| *len >= LENT_BYTES_MIN).sum()
}

/// Lets go of a frame that was lent. Runs on whatever thread libzmq is done with it.
unsafe extern "C" fn release(_data: *mut c_void, hint: *mut c_void) {
    // SAFETY: `hint` comes from `Message::lent` and is given back exactly once.
    drop(unsafe { Box::from_raw(hint.cast::<Loan>()) });
}

/// Sends one part without waiting. A large one is lent.
///
/// # Safety
/// `raw_socket` is a live socket that no other thread uses at the same time.
pub(crate) unsafe fn send_part(
    raw_socket: *mut c_void,
    frame: &Bytes,
    more: bool,
    lent: &Arc<Lent>,
) -> Result<(), c_int> {
    if frame.len() < LENT_BYTES_MIN {
        // SAFETY: passed on from the caller.
        return unsafe { send_copy(raw_socket, frame, more) };
    }
    let flags = ffi::ZMQ_DONTWAIT | if more { ffi::ZMQ_SNDMORE } else { 0 };
    let mut part = Message::lent(frame.clone(), Arc::clone(lent))?;
    loop {
        // SAFETY: the part is initialised; on success libzmq takes its content and leaves an empty part.
        if unsafe { ffi::zmq_msg_send(&raw mut part.raw, raw_socket, flags) } >= 0 {
            return Ok(());
        }
        let errno = errno();
        if errno != rustix::io::Errno::INTR.raw_os_error() {
            return Err(errno);
        }
    }
}

/// Sends a copy of some bytes as one part without waiting.
///
/// # Safety
/// `raw_socket` is a live socket that no other thread uses at the same time.
pub(crate) unsafe fn send_copy(raw_socket: *mut c_void, bytes: &[u8], more: bool) -> Result<(), c_int> {
    let flags = ffi::ZMQ_DONTWAIT | if more { ffi::ZMQ_SNDMORE } else { 0 };
    loop {
        // SAFETY: the bytes are read before the call returns.
        if unsafe { ffi::zmq_send(raw_socket, bytes.as_ptr().cast(), bytes.len(), flags) } >= 0 {
            return Ok(());
        }
        let errno = errno();
        if errno != rustix::io::Errno::INTR.raw_os_error() {
            return Err(errno);
        }
    }
}

/// Turns received parts into frames.
pub(crate) struct FrameReader {
    part: Message,
    block: BytesMut,
}

impl FrameReader {
    pub(crate) fn new() -> Self {
        Self { part: Message::new(), block: BytesMut::new() }
    }

    /// Takes the next part; it stays in the reader until `frame` or the next call.
    ///
    /// # Safety
    /// As for [`Message::receive`].
    pub(crate) unsafe fn receive(&mut self, raw_socket: *mut c_void) -> Result<(), c_int> {
        // SAFETY: passed on from the caller.
        unsafe { self.part.receive(raw_socket) }
    }

    /// Whether another part follows the current one.
    pub(crate) fn more(&self) -> bool {
        self.part.more()
    }

    /// The current part as a frame.
    pub(crate) fn frame(&mut self) -> Bytes {
        let bytes = self.part.bytes();
        match bytes.len() {
            0 => Bytes::new(),
            1..=BLOCK_FRAME_MAX => {
                if self.block.capacity() - self.block.len() < bytes.len() {
                    self.block = BytesMut::with_capacity(BLOCK_BYTES);
                }
                self.block.extend_from_slice(bytes);
                self.block.split().freeze()
            }
            len if len < LENT_BYTES_MIN => Bytes::copy_from_slice(bytes),
            _ => Bytes::from_owner(std::mem::replace(&mut self.part, Message::new())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lent::Total;
    use crate::waker::Waker;

    #[test]
    fn lent_frame_is_given_back_when_the_part_is_dropped() {
        let frame = Bytes::from(vec![7_u8; LENT_BYTES_MIN]);
        let lent = Lent::new(usize::MAX, Total::new(usize::MAX, Waker::new().unwrap()));
        let part = Message::lent(frame.clone(), Arc::clone(&lent)).unwrap();
        assert!(!lent.is_empty());
        assert_eq!(part.bytes(), &frame[..]);
        assert!(!frame.is_unique());
        drop(part);
        assert!(frame.is_unique() && lent.is_empty());
    }

    #[test]
    fn empty_part_has_no_bytes() {
        assert!(Message::new().bytes().is_empty());
    }
}
