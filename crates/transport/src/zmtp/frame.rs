//! From bytes to frames: a flag byte, a length of one or eight bytes, the body.

use super::Broken;

/// More frames of this message follow.
pub(super) const MORE: u8 = 1;
/// The length has eight bytes.
pub(super) const LONG: u8 = 2;
/// A command of the protocol, no part of a message.
pub(super) const COMMAND: u8 = 4;

/// The longest head: flags and a length of eight bytes.
pub(super) const HEAD_BYTES_MAX: usize = 9;
/// The longest body whose length is written in one byte.
const SHORT_BYTES_MAX: usize = 255;

/// Room that is made for a body before more of it than that has come. A peer that claims a long one must send it to make us
/// keep it.
const FIRST_ROOM_BYTES: usize = 256 * 1024;

/// A frame as it came.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Frame<'input> {
    pub(super) flags: u8,
    pub(super) body: Body<'input>,
}

/// The body of a frame.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Body<'input> {
    /// It came in one piece.
    Whole(&'input [u8]),
    /// It came in several.
    Collected(Vec<u8>),
}

impl Body<'_> {
    pub(super) fn as_slice(&self) -> &[u8] {
        match self {
            Self::Whole(bytes) => bytes,
            Self::Collected(bytes) => bytes,
        }
    }
}

/// Reads frames off bytes that come in pieces of any length.
#[derive(Debug)]
pub(super) struct FrameReader {
    body_bytes_max: u64,
    /// The head of the frame that is being read, or its first bytes.
    head: [u8; HEAD_BYTES_MAX],
    head_bytes: usize,
    /// What came of the body so far. Empty while the head is not complete.
    collected: Vec<u8>,
}

impl FrameReader {
    pub(super) fn new(body_bytes_max: u64) -> Self {
        Self { body_bytes_max, head: [0; HEAD_BYTES_MAX], head_bytes: 0, collected: Vec::new() }
    }

    /// Allows other bodies from the next frame on.
    pub(super) fn set_body_bytes_max(&mut self, bytes: u64) {
        self.body_bytes_max = bytes;
    }

    /// Takes the next frame off the input; `None` if all of it was taken and more is needed.
    pub(super) fn next<'input>(&mut self, input: &mut &'input [u8]) -> Result<Option<Frame<'input>>, Broken> {
        let Some((flags, length)) = self.read_head(input)? else {
            return Ok(None);
        };
        let body = if self.collected.is_empty() && input.len() >= length {
            let (body, rest) = input.split_at(length);
            *input = rest;
            Body::Whole(body)
        } else {
            let missing = length - self.collected.len();
            let (piece, rest) = input.split_at(missing.min(input.len()));
            *input = rest;
            self.make_room(missing.max(piece.len()));
            self.collected.extend_from_slice(piece);
            if piece.len() < missing {
                return Ok(None);
            }
            Body::Collected(std::mem::take(&mut self.collected))
        };
        self.head_bytes = 0;
        Ok(Some(Frame { flags, body }))
    }

    /// Bytes that are missing of a long body, and where they go: they can be read there without a detour. `None` for all else.
    /// After they were put there, [`FrameReader::next`] with no input gives the frame.
    pub(super) fn rest_of_body(&mut self, least: usize) -> Option<(&mut Vec<u8>, usize)> {
        let (_, length) = self.head()?.ok()?;
        let missing = length - self.collected.len();
        // An empty one has not begun: its first bytes come with the head.
        if self.collected.is_empty() || missing < least {
            return None;
        }
        self.make_room(missing);
        let room = missing.min(self.collected.capacity() - self.collected.len());
        Some((&mut self.collected, room))
    }

    /// Makes room for at most `missing` bytes: as much as came so far, so that a body is copied twice at most, and no more
    /// than the whole body needs.
    fn make_room(&mut self, missing: usize) {
        if self.collected.len() == self.collected.capacity() {
            self.collected.reserve_exact(missing.min(self.collected.len().max(FIRST_ROOM_BYTES)));
        }
    }

    fn read_head(&mut self, input: &mut &[u8]) -> Result<Option<(u8, usize)>, Broken> {
        loop {
            if let Some(head) = self.head() {
                return head.map(Some);
            }
            let Some((&byte, rest)) = input.split_first() else {
                return Ok(None);
            };
            *input = rest;
            self.head[self.head_bytes] = byte;
            self.head_bytes += 1;
        }
    }

    /// Flags and length, once the head is complete.
    fn head(&self) -> Option<Result<(u8, usize), Broken>> {
        let [flags, lengths @ ..] = self.head;
        if self.head_bytes == 0 {
            return None;
        }
        let impossible = flags & !(MORE | LONG | COMMAND) != 0 || flags & (MORE | COMMAND) == MORE | COMMAND;
        if impossible {
            return Some(Err(Broken::Malformed));
        }
        let length = match (flags & LONG != 0, self.head_bytes) {
            (false, 2..) => u64::from(lengths[0]),
            (true, HEAD_BYTES_MAX) => u64::from_be_bytes(lengths),
            _ => return None,
        };
        if length > self.body_bytes_max {
            return Some(Err(Broken::TooLong));
        }
        Some(usize::try_from(length).map(|length| (flags, length)).map_err(|_| Broken::TooLong))
    }
}

/// Writes the head of a frame.
pub(super) fn write_head(flags: u8, length: usize, bytes: &mut Vec<u8>) {
    match u8::try_from(length) {
        Ok(short) => bytes.extend_from_slice(&[flags, short]),
        Err(_) => {
            bytes.push(flags | LONG);
            bytes.extend_from_slice(&(length as u64).to_be_bytes());
        }
    }
}

/// How many bytes [`write_head`] writes.
pub(super) fn head_bytes(length: usize) -> usize {
    if length > SHORT_BYTES_MAX { HEAD_BYTES_MAX } else { 2 }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(flags: u8, body: &[u8]) -> Vec<u8> {
        let mut bytes = Vec::new();
        write_head(flags, body.len(), &mut bytes);
        assert_eq!(bytes.len(), head_bytes(body.len()));
        bytes.extend_from_slice(body);
        bytes
    }

    #[test]
    fn frames_are_the_same_in_pieces_of_any_length() {
        let bodies = [(0, 0), (MORE, 1), (COMMAND, 5), (0, 255), (MORE, 256), (0, 70_000), (0, 0)];
        let bodies = bodies.map(|(flags, length)| (flags, vec![length as u8; length]));
        let wire: Vec<u8> = bodies.iter().flat_map(|(flags, body)| written(*flags, body)).collect();
        for piece in [1, 2, 3, 10, 100, 1_000, wire.len()] {
            let mut reader = FrameReader::new(100_000);
            let mut frames = Vec::new();
            for mut input in wire.chunks(piece) {
                while let Some(frame) = reader.next(&mut input).unwrap() {
                    frames.push((frame.flags & !LONG, frame.body.as_slice().to_vec()));
                }
                assert!(input.is_empty());
            }
            assert_eq!(frames, bodies, "in pieces of {piece}");
        }
    }

    #[test]
    fn a_long_body_is_read_where_it_stays() {
        let body: Vec<u8> = (0..2_000_000_u32).map(|i| i as u8).collect();
        let wire = written(0, &body);
        let mut reader = FrameReader::new(3_000_000);
        let (mut first, mut rest) = wire.split_at(1_000);
        assert_eq!(reader.next(&mut first), Ok(None));
        while let Some((place, room)) = reader.rest_of_body(1) {
            assert!(room > 0 && place.capacity() <= 2 * place.len().max(FIRST_ROOM_BYTES));
            let (piece, later) = rest.split_at(room.min(77_777));
            place.extend_from_slice(piece);
            rest = later;
        }
        assert!(rest.is_empty());
        let frame = reader.next(&mut rest).unwrap().unwrap();
        assert!(frame.body.as_slice() == body);
        assert_eq!(reader.next(&mut rest), Ok(None));
        assert!(reader.rest_of_body(0).is_none());
    }

    #[test]
    fn heads_that_cannot_be_are_refused_at_once() {
        for (head, broken) in [
            (&[8][..], Broken::Malformed),
            (&[0x80], Broken::Malformed),
            (&[MORE | COMMAND], Broken::Malformed),
            (&[0, 101], Broken::TooLong),
            (&[LONG, 0, 0, 0, 0, 0, 0, 0, 101], Broken::TooLong),
            (&[LONG, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff], Broken::TooLong),
        ] {
            assert_eq!(FrameReader::new(100).next(&mut &head[..]), Err(broken), "{head:?}");
        }
    }
}
