//! What waits to leave on a connection: messages, encoded as far ahead as is of use.

use std::collections::VecDeque;
use std::io::IoSlice;

use bytes::Bytes;

use super::LARGE_BOX_BYTES;
use super::curve::{Cipher, MESSAGE_HEAD_BYTES, Sealing};
use super::frame::{COMMAND, HEAD_BYTES_MAX, MORE, write_head};

/// A message of so many bytes is large: it counts for the bounds in bytes. A frame from this length on is not copied where it
/// need not be.
pub(crate) const LARGE_BYTES: usize = 8 * 1024;

/// So many bytes are encoded ahead of what the system takes; what is beyond stays as it was handed over. More than a system
/// call moves, so that encoding ahead keeps the connection busy.
const AHEAD_BYTES: usize = 256 * 1024;

/// Small frames are gathered up to this length, so that one system call sends many.
const CHUNK_BYTES: usize = 64 * 1024;

/// Pieces handed to the system in one call.
pub(crate) const SLICES_MAX: usize = 64;

/// What more a connection takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Room {
    /// Messages that may wait.
    pub(crate) messages: usize,
    /// Bytes of large messages that may wait. A single message is always taken where none wait.
    pub(crate) large_bytes: usize,
}

/// Encoded bytes.
enum Chunk {
    /// Ours, and still growing if it is the last one.
    Own(Vec<u8>),
    /// Those of a frame that goes as it is.
    Lent(Bytes),
    /// A large frame that is being sealed.
    Promised(Option<Sealing>),
}

struct Piece {
    chunk: Chunk,
    /// Messages that end in it.
    ends: usize,
    /// Bytes of the large messages that end in it.
    large_bytes: usize,
}

impl Piece {
    fn new(chunk: Chunk) -> Self {
        Self { chunk, ends: 0, large_bytes: 0 }
    }

    fn bytes(&self) -> &[u8] {
        match &self.chunk {
            Chunk::Own(bytes) => bytes,
            Chunk::Lent(bytes) => bytes,
            Chunk::Promised(_) => &[],
        }
    }
}

/// A message that is not encoded altogether.
struct Waiting {
    frames: Vec<Bytes>,
    /// How many of them are encoded.
    done: usize,
}

/// The queue of a connection towards its peer.
pub(super) struct Output {
    pieces: VecDeque<Piece>,
    /// Bytes of the first piece that have left.
    gone: usize,
    /// Bytes in `pieces` that have not.
    encoded: usize,
    /// The last piece is promised. There is one at most.
    promised: bool,
    /// Messages that are not encoded yet.
    waiting: VecDeque<Waiting>,
    /// Messages that have not left altogether.
    messages: usize,
    /// Bytes of large messages that have not left altogether.
    large_bytes: usize,
}

impl Output {
    pub(super) fn new() -> Self {
        Self {
            pieces: VecDeque::new(),
            gone: 0,
            encoded: 0,
            promised: false,
            waiting: VecDeque::new(),
            messages: 0,
            large_bytes: 0,
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.encoded == 0 && !self.promised && self.waiting.is_empty()
    }

    pub(super) fn messages(&self) -> usize {
        self.messages
    }

    pub(super) fn large_bytes(&self) -> usize {
        self.large_bytes
    }

    /// Whether what is encoded is enough to keep the system busy for now, or nothing can be encoded now.
    pub(super) fn is_ahead(&self) -> bool {
        self.encoded >= AHEAD_BYTES || self.promised
    }

    /// A large frame that is to be sealed, once.
    pub(super) fn take_sealing(&mut self) -> Option<Sealing> {
        match self.pieces.back_mut() {
            Some(Piece { chunk: Chunk::Promised(sealing), .. }) => sealing.take(),
            _ => None,
        }
    }

    /// Whether there is one.
    pub(super) fn has_sealing(&self) -> bool {
        matches!(self.pieces.back(), Some(Piece { chunk: Chunk::Promised(Some(_)), .. }))
    }

    /// Whether one is being sealed somewhere.
    pub(super) fn waits_for_seal(&self) -> bool {
        self.promised && !self.has_sealing()
    }

    /// The large frame was sealed.
    pub(super) fn sealed(&mut self, bytes: Vec<u8>) {
        if let Some(piece) = self.pieces.back_mut()
            && matches!(piece.chunk, Chunk::Promised(_))
        {
            self.encoded += bytes.len();
            self.promised = false;
            piece.chunk = Chunk::Own(bytes);
        }
    }

    /// Bytes that go as they are: the handshake.
    pub(super) fn raw(&mut self, bytes: &[u8]) {
        self.tail().extend_from_slice(bytes);
        self.encoded += bytes.len();
    }

    /// A command, in the clear or not.
    pub(super) fn command(&mut self, body: &[u8], cipher: Option<&mut Cipher>) {
        self.frame(COMMAND, &Bytes::copy_from_slice(body), cipher);
    }

    /// Takes a message.
    pub(super) fn message(&mut self, frames: &[Bytes], cipher: Option<&mut Cipher>) {
        self.messages += 1;
        self.large_bytes += large_bytes(frames);
        let done = if self.waiting.is_empty() { self.encode(frames, 0, cipher) } else { 0 };
        if done < frames.len() {
            self.waiting.push_back(Waiting { frames: frames.to_vec(), done });
        }
    }

    /// What to hand to the system next.
    pub(super) fn slices<'output>(&'output mut self, cipher: Option<&mut Cipher>, slices: &mut Vec<IoSlice<'output>>) {
        let mut cipher = cipher;
        while !self.is_ahead()
            && let Some(mut message) = self.waiting.pop_front()
        {
            message.done = self.encode(&message.frames, message.done, cipher.as_deref_mut());
            if message.done < message.frames.len() {
                self.waiting.push_front(message);
            }
        }
        let mut gone = self.gone;
        let ready = |piece: &&Piece| !matches!(piece.chunk, Chunk::Promised(_));
        for piece in self.pieces.iter().take_while(ready).take(SLICES_MAX) {
            slices.push(IoSlice::new(&piece.bytes()[gone..]));
            gone = 0;
        }
    }

    /// The system has taken so many bytes.
    pub(super) fn left(&mut self, mut bytes: usize) {
        self.encoded -= bytes;
        while let Some(first) = self.pieces.front()
            && !matches!(first.chunk, Chunk::Promised(_))
        {
            let rest = first.bytes().len() - self.gone;
            if bytes < rest {
                self.gone += bytes;
                return;
            }
            bytes -= rest;
            self.gone = 0;
            self.messages -= first.ends;
            self.large_bytes -= first.large_bytes;
            self.pieces.pop_front();
        }
    }

    /// Encodes the frames of a message from one on, as far as is of use. Gives how many are encoded then.
    fn encode(&mut self, frames: &[Bytes], mut done: usize, mut cipher: Option<&mut Cipher>) -> usize {
        while done < frames.len() && !self.is_ahead() {
            let last = done + 1 == frames.len();
            self.frame(if last { 0 } else { MORE }, &frames[done], cipher.as_deref_mut());
            done += 1;
            if last && let Some(piece) = self.pieces.back_mut() {
                piece.ends += 1;
                piece.large_bytes += large_bytes(frames);
            }
        }
        done
    }

    fn frame(&mut self, flags: u8, content: &Bytes, cipher: Option<&mut Cipher>) {
        let large = content.len() >= LARGE_BYTES;
        match cipher {
            Some(cipher) if content.len() >= LARGE_BOX_BYTES => {
                self.promised = true;
                self.pieces.push_back(Piece::new(Chunk::Promised(Some(cipher.sealing(flags, content.clone())))));
            }
            Some(cipher) if large => {
                let mut bytes = Vec::with_capacity(HEAD_BYTES_MAX + MESSAGE_HEAD_BYTES + content.len());
                cipher.write(flags, content, &mut bytes);
                self.encoded += bytes.len();
                self.pieces.push_back(Piece::new(Chunk::Own(bytes)));
            }
            Some(cipher) => {
                let tail = self.tail();
                let before = tail.len();
                cipher.write(flags, content, tail);
                self.encoded += tail.len() - before;
            }
            None => {
                let tail = self.tail();
                let before = tail.len();
                write_head(flags, content.len(), tail);
                if !large {
                    tail.extend_from_slice(content);
                }
                self.encoded += tail.len() - before;
                if large {
                    self.encoded += content.len();
                    self.pieces.push_back(Piece::new(Chunk::Lent(content.clone())));
                }
            }
        }
    }

    /// Where the next small frame goes.
    fn tail(&mut self) -> &mut Vec<u8> {
        let fits = |piece: &Piece| matches!(&piece.chunk, Chunk::Own(bytes) if bytes.len() < CHUNK_BYTES);
        if !self.pieces.back().is_some_and(fits) {
            self.pieces.push_back(Piece::new(Chunk::Own(Vec::new())));
        }
        match self.pieces.back_mut() {
            Some(Piece { chunk: Chunk::Own(bytes), .. }) => bytes,
            _ => unreachable!("it was pushed above"),
        }
    }
}

/// Bytes of a message that is large; 0 for all others.
pub(crate) fn large_bytes(frames: &[Bytes]) -> usize {
    let bytes = frames.iter().map(Bytes::len).sum();
    if bytes >= LARGE_BYTES { bytes } else { 0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn drain(output: &mut Output, at_once: usize) -> Vec<u8> {
        let mut all = Vec::new();
        while !output.is_empty() {
            let mut slices = Vec::new();
            output.slices(None, &mut slices);
            let bytes: Vec<u8> = slices.iter().flat_map(|slice| slice.iter().copied()).take(at_once).collect();
            assert!(!bytes.is_empty());
            output.left(bytes.len());
            all.extend(bytes);
        }
        all
    }

    #[test]
    fn messages_leave_whole_and_in_order_however_little_is_taken_at_once() {
        let sizes = [0, 1, 255, 256, LARGE_BYTES - 1, LARGE_BYTES, 300_000, 0, 70_000, 5];
        let mut expected = Vec::new();
        for (number, size) in sizes.iter().enumerate() {
            for (flags, length) in [(MORE, *size), (0, 3)] {
                write_head(flags, length, &mut expected);
                expected.extend(std::iter::repeat_n(number as u8, length));
            }
        }
        for at_once in [1_000, 65_536, 1_000_000] {
            let mut output = Output::new();
            for (number, size) in sizes.iter().enumerate() {
                let bytes = Bytes::from(vec![number as u8; *size.max(&3)]);
                output.message(&[bytes.slice(..*size), bytes.slice(..3)], None);
            }
            assert_eq!(output.messages(), sizes.len());
            assert_eq!(output.large_bytes(), LARGE_BYTES - 1 + LARGE_BYTES + 300_000 + 70_000 + 4 * 3);
            assert!(drain(&mut output, at_once) == expected, "{at_once} bytes at once");
            assert_eq!((output.messages(), output.large_bytes(), output.pieces.len()), (0, 0, 0));
        }
    }

    #[test]
    fn no_more_is_encoded_ahead_than_is_of_use() {
        let mut output = Output::new();
        let frame = Bytes::from(vec![0; 100_000]);
        for _ in 0..50 {
            output.message(std::slice::from_ref(&frame), None);
        }
        assert!(output.encoded < AHEAD_BYTES + 2 * frame.len());
        assert_eq!((output.messages(), output.large_bytes()), (50, 50 * frame.len()));
        drain(&mut output, 1_000);
        assert_eq!((output.messages(), output.large_bytes()), (0, 0));
    }
}
