//! SHA-256 of content, and of its beginnings.

use std::fmt;
use std::str::FromStr;

use sha2::{Digest, Sha256};

/// The SHA-256 of some content.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct ContentHash(pub [u8; HASH_BYTES]);

/// Bytes of a [`ContentHash`].
pub const HASH_BYTES: usize = 32;

impl fmt::Display for ContentHash {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(formatter, "{byte:02x}"))
    }
}

impl fmt::Debug for ContentHash {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, formatter)
    }
}

/// A text is no hash.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("expected the 64 hexadecimal digits of a SHA-256, found '{}'", .0.chars().take(80).collect::<String>())]
pub struct NoHash(pub String);

impl FromStr for ContentHash {
    type Err = NoHash;

    fn from_str(text: &str) -> Result<Self, NoHash> {
        let no_hash = || NoHash(text.to_owned());
        if text.len() != 2 * HASH_BYTES || !text.is_ascii() {
            return Err(no_hash());
        }
        let mut hash = [0; HASH_BYTES];
        for (byte, digits) in hash.iter_mut().zip(text.as_bytes().chunks_exact(2)) {
            let digits = str::from_utf8(digits).map_err(|_| no_hash())?;
            // `from_str_radix` takes a sign, too.
            if digits.starts_with('+') {
                return Err(no_hash());
            }
            *byte = u8::from_str_radix(digits, 16).map_err(|_| no_hash())?;
        }
        Ok(Self(hash))
    }
}

/// The content of a file from its start up to some byte, as far as its hash goes.
#[derive(Debug, Clone, Default)]
pub struct Prefix {
    hash: Sha256,
    bytes: u64,
}

impl Prefix {
    /// More of the content.
    pub fn update(&mut self, bytes: &[u8]) {
        self.hash.update(bytes);
        self.bytes += bytes.len() as u64;
    }

    /// How long it is.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Its hash.
    pub fn hash(&self) -> ContentHash {
        ContentHash(self.hash.clone().finalize().into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hash_of_a_beginning_is_that_of_its_content() {
        let mut prefix = Prefix::default();
        let empty = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
        assert_eq!((prefix.hash().to_string().as_str(), prefix.bytes()), (empty, 0));
        prefix.update(b"ab");
        prefix.hash();
        prefix.update(b"c");
        let abc = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        assert_eq!((prefix.hash().to_string().as_str(), prefix.bytes()), (abc, 3));
    }

    #[test]
    fn a_hash_is_read_as_it_is_written_and_nothing_else_is_one() {
        let hash = Prefix::default().hash();
        assert_eq!(hash.to_string().parse(), Ok(hash));
        assert_eq!(hash.to_string().to_uppercase().parse(), Ok(hash));
        let text = hash.to_string();
        for wrong in ["", "e3", &text[1..], &format!("{text}0"), &text.replace('e', "g"), &text.replacen("e3", "+3", 1)]
        {
            assert!(wrong.parse::<ContentHash>().is_err(), "{wrong}");
        }
        assert!("ä".repeat(32).parse::<ContentHash>().is_err());
    }
}
