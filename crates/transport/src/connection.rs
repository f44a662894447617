//! A connection: the socket of the system and the engine that speaks over it. Nothing here waits.

use std::io::IoSlice;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::buffer::spare_capacity;
use rustix::io::Errno;
use rustix::net::{SendAncillaryBuffer, SendFlags, sendmsg};

use crate::zmtp::{Broken, Engine, SLICES_MAX};

/// At most so much is written, or read of one long frame, before others have their turn.
const TURN_BYTES: usize = 1024 * 1024;

/// A peer that has gone is an error, no signal.
#[cfg(not(target_vendor = "apple"))]
const FLAGS: SendFlags = SendFlags::NOSIGNAL;

/// There, the socket is made so.
#[cfg(target_vendor = "apple")]
const FLAGS: SendFlags = SendFlags::empty();

/// From so many missing bytes on, a frame is read to where it stays.
const DIRECT_BYTES: usize = 32 * 1024;

/// Why a connection ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum End {
    /// The other side closed it.
    Closed,
    /// The system ended it.
    Failed(Errno),
    /// What came cannot be.
    Broken(Broken),
}

impl From<Broken> for End {
    fn from(broken: Broken) -> Self {
        Self::Broken(broken)
    }
}

/// What a flush came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Flushed {
    /// Everything has left.
    All,
    /// The system takes no more now.
    Blocked,
    /// What is next is being sealed.
    Waits,
}

/// What a read came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Input {
    /// Nothing is there now.
    Nothing,
    /// Bytes, where the caller wanted them.
    Bytes,
    /// A part of a long frame, where it stays. The engine goes on with no input.
    Body,
}

/// A connected socket with its engine.
pub(crate) struct Connection {
    socket: OwnedFd,
    pub(crate) engine: Engine,
    /// Input that the engine did not want yet.
    unread: Vec<u8>,
}

impl Connection {
    /// The socket must not block.
    pub(crate) fn new(socket: OwnedFd, engine: Engine) -> Self {
        Self { socket, engine, unread: Vec::new() }
    }

    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// Hands what waits to the system, as much as it takes.
    pub(crate) fn flush(&mut self) -> Result<Flushed, End> {
        let mut turn = TURN_BYTES;
        loop {
            if !self.engine.has_output() {
                return Ok(Flushed::All);
            }
            let mut slices = Vec::with_capacity(SLICES_MAX.min(4));
            self.engine.slices(&mut slices);
            let Some(first) = slices.first() else {
                return Ok(Flushed::Waits);
            };
            let all: usize = slices.iter().map(|slice| slice.len()).sum();
            let sent = if slices.len() == 1 {
                rustix::net::send(&self.socket, first, FLAGS)
            } else {
                send_all(&self.socket, &slices)
            };
            match sent {
                Ok(sent) => {
                    self.engine.left(sent);
                    turn = turn.saturating_sub(sent);
                    if sent < all || turn == 0 && self.engine.has_output() {
                        return Ok(Flushed::Blocked);
                    }
                }
                Err(Errno::AGAIN) => return Ok(Flushed::Blocked),
                Err(Errno::INTR) => {}
                Err(errno) => return Err(End::Failed(errno)),
            }
        }
    }

    /// Reads what is there, at most as much as fits into `scratch`, which is emptied before.
    pub(crate) fn read(&mut self, scratch: &mut Vec<u8>) -> Result<Input, End> {
        scratch.clear();
        let mut read = 0;
        while read < TURN_BYTES
            && let Some((place, room)) = self.engine.rest_of_body(DIRECT_BYTES)
        {
            match read_exactly_into(&self.socket, place, room) {
                Ok(0) => return Err(End::Closed),
                Ok(bytes) => read += bytes,
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) if read > 0 => return Ok(Input::Body),
                Err(Errno::AGAIN) => return Ok(Input::Nothing),
                Err(errno) => return Err(End::Failed(errno)),
            }
        }
        if read > 0 {
            return Ok(Input::Body);
        }
        loop {
            match rustix::io::read(&self.socket, spare_capacity(scratch)) {
                Ok(0) => return Err(End::Closed),
                Ok(_) => return Ok(Input::Bytes),
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return Ok(Input::Nothing),
                Err(errno) => return Err(End::Failed(errno)),
            }
        }
    }

    /// Keeps input that the engine did not want yet.
    pub(crate) fn keep(&mut self, input: &[u8]) {
        self.unread.extend_from_slice(input);
    }

    /// The input that was kept.
    pub(crate) fn take_kept(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.unread)
    }

    /// Says that nothing more comes from this side.
    pub(crate) fn shut(&self) {
        // It fails where the other side has gone already.
        rustix::net::shutdown(&self.socket, rustix::net::Shutdown::Write).ok();
    }
}

fn send_all(socket: &OwnedFd, slices: &[IoSlice<'_>]) -> Result<usize, Errno> {
    sendmsg(socket, slices, &mut SendAncillaryBuffer::default(), FLAGS)
}

/// Reads at most `room` bytes to the end of a list that has the capacity for them.
fn read_exactly_into(socket: &OwnedFd, place: &mut Vec<u8>, room: usize) -> Result<usize, Errno> {
    if place.capacity() - place.len() == room {
        return rustix::io::read(socket, spare_capacity(place));
    }
    // The allocator gave more than was asked for, and what lies behind the frame must not be read to there.
    let before = place.len();
    place.resize(before + room, 0);
    let read = rustix::io::read(socket, &mut place[before..]);
    place.truncate(before + *read.as_ref().unwrap_or(&0));
    read
}
