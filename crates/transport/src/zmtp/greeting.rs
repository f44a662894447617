//! The first 64 bytes of each side: that it speaks ZMTP 3, with which mechanism, and who is the server of CURVE.

use super::Broken;

/// A greeting has this length.
const GREETING_BYTES: usize = 64;
/// Where the major version is.
const VERSION: usize = 10;
/// Where the name of the mechanism is.
const MECHANISM: std::ops::Range<usize> = 12..32;
/// Where it says whether the sender is the server.
const AS_SERVER: usize = 32;

/// How the two sides prove who they are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Mechanism {
    Null,
    Curve,
}

/// Our greeting.
pub(super) fn greeting(mechanism: Mechanism, as_server: bool) -> [u8; GREETING_BYTES] {
    let mut bytes = [0; GREETING_BYTES];
    // The signature, in which old versions see a frame of one byte, and the version.
    bytes[0] = 0xff;
    bytes[8] = 1;
    bytes[9] = 0x7f;
    bytes[VERSION] = 3;
    bytes[VERSION + 1] = 1;
    let name: &[u8] = match mechanism {
        Mechanism::Null => b"NULL",
        Mechanism::Curve => b"CURVE",
    };
    bytes[MECHANISM][..name.len()].copy_from_slice(name);
    bytes[AS_SERVER] = u8::from(as_server);
    bytes
}

/// Reads the greeting of the other side.
#[derive(Debug)]
pub(super) struct GreetingReader {
    bytes: [u8; GREETING_BYTES],
    count: usize,
}

impl GreetingReader {
    pub(super) fn new() -> Self {
        Self { bytes: [0; GREETING_BYTES], count: 0 }
    }

    /// Takes bytes off the input; true once the greeting is complete and as we want it.
    pub(super) fn read(&mut self, input: &mut &[u8], mechanism: Mechanism) -> Result<bool, Broken> {
        let (piece, rest) = input.split_at(input.len().min(GREETING_BYTES - self.count));
        *input = rest;
        self.bytes[self.count..][..piece.len()].copy_from_slice(piece);
        self.count += piece.len();
        let came = &self.bytes[..self.count];
        // As early as can be: what speaks something else may wait for us.
        let other = came.first().is_some_and(|byte| *byte != 0xff)
            || came.get(9).is_some_and(|byte| byte & 1 == 0)
            || came.get(VERSION).is_some_and(|version| *version < 3);
        if other {
            return Err(Broken::OtherProtocol);
        }
        if self.count < GREETING_BYTES {
            return Ok(false);
        }
        let name = &self.bytes[MECHANISM];
        let is = |text: &[u8]| name.starts_with(text) && name[text.len()..].iter().all(|byte| *byte == 0);
        let wanted = match mechanism {
            Mechanism::Null => is(b"NULL"),
            // Whether it says that it is the server is no matter: libzmq never does, and two clients, or two servers, find out
            // with their first command.
            Mechanism::Curve => is(b"CURVE"),
        };
        if wanted { Ok(true) } else { Err(Broken::Mechanism) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(bytes: &[u8], mechanism: Mechanism) -> Result<bool, Broken> {
        let mut reader = GreetingReader::new();
        for mut piece in bytes.chunks(7) {
            if reader.read(&mut piece, mechanism)? {
                assert!(piece.is_empty() || bytes.len() > GREETING_BYTES);
                return Ok(true);
            }
        }
        Ok(false)
    }

    #[test]
    fn the_two_sides_understand_each_other() {
        for mechanism in [Mechanism::Null, Mechanism::Curve] {
            // A server of libzmq does not say that it is one.
            for as_server in [true, false] {
                assert_eq!(read(&greeting(mechanism, as_server), mechanism), Ok(true));
            }
            assert_eq!(read(&greeting(mechanism, false)[..63], mechanism), Ok(false));
        }
    }

    #[test]
    fn what_is_no_greeting_for_us_is_refused() {
        assert_eq!(read(&greeting(Mechanism::Null, false), Mechanism::Curve), Err(Broken::Mechanism));
        assert_eq!(read(&greeting(Mechanism::Curve, true), Mechanism::Null), Err(Broken::Mechanism));
        assert_eq!(read(b"HTTP/1.1 400", Mechanism::Null), Err(Broken::OtherProtocol));
        // ZMTP 2.
        assert_eq!(read(b"\xff\0\0\0\0\0\0\0\x01\x7f\x01\x05", Mechanism::Null), Err(Broken::OtherProtocol));
        assert_eq!(read(&[0xff; 9], Mechanism::Null), Ok(false));
        assert_eq!(read(&[0xfe; 1], Mechanism::Null), Err(Broken::OtherProtocol));
    }
}
