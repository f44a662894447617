//! CURVE keys: 32 bytes each, written as 40 characters of Z85.

use std::fmt;
use std::str::FromStr;

use crate::error::KeyError;
use crate::sodium::{self, KEY_BYTES};

/// Z85 writes four bytes as five characters.
const KEY_CHARACTERS: usize = 40;
/// How many bytes of the digest a fingerprint shows: 16 hexadecimal digits, short enough to compare by eye.
const FINGERPRINT_BYTES: usize = 8;

/// The public half of a key pair. Not a secret; written and parsed as Z85.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct PublicKey([u8; KEY_BYTES]);

impl PublicKey {
    /// A key from its 32 bytes.
    #[must_use]
    pub fn from_bytes(bytes: [u8; KEY_BYTES]) -> Self {
        Self(bytes)
    }

    /// The 32 bytes.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8; KEY_BYTES] {
        &self.0
    }

    /// The first 16 hexadecimal digits of the SHA-256 of the 32 bytes: what people compare and logs show.
    #[must_use]
    pub fn fingerprint(&self) -> String {
        sodium::sha256(&self.0)[..FINGERPRINT_BYTES].iter().map(|byte| format!("{byte:02x}")).collect()
    }
}

impl fmt::Display for PublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&z85(&self.0))
    }
}

impl fmt::Debug for PublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PublicKey({self})")
    }
}

impl FromStr for PublicKey {
    type Err = KeyError;

    fn from_str(text: &str) -> Result<Self, KeyError> {
        let bytes = from_z85(text).map_err(|reason| KeyError::Malformed { text: text.to_owned(), reason })?;
        Ok(Self(bytes))
    }
}

/// The secret half of a key pair. It cannot be printed, and its memory is overwritten when it goes.
#[derive(Clone, PartialEq, Eq)]
pub struct SecretKey(Box<[u8; KEY_BYTES]>);

impl SecretKey {
    /// A key from its Z85 text.
    ///
    /// # Errors
    /// [`KeyError::Malformed`]; the text is not repeated in it.
    pub fn parse(text: &str) -> Result<Self, KeyError> {
        let bytes = from_z85(text).map_err(|reason| KeyError::Malformed { text: "***".to_owned(), reason })?;
        Ok(Self(Box::new(bytes)))
    }

    /// The Z85 text, for writing it to a secret file. It is on the caller to let nobody see it.
    #[must_use]
    pub fn reveal(&self) -> String {
        z85(&self.0)
    }

    /// The public key that belongs to this one.
    #[must_use]
    pub fn public(&self) -> PublicKey {
        PublicKey(sodium::public_key(&self.0))
    }

    pub(crate) fn as_bytes(&self) -> &[u8; KEY_BYTES] {
        &self.0
    }
}

impl fmt::Debug for SecretKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SecretKey(***)")
    }
}

impl Drop for SecretKey {
    fn drop(&mut self) {
        sodium::wipe(&mut self.0[..]);
    }
}

/// A public key and the secret one that belongs to it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyPair {
    /// What others know us by.
    pub public: PublicKey,
    /// What only we know.
    pub secret: SecretKey,
}

impl KeyPair {
    /// A new pair from the system's random numbers.
    #[must_use]
    pub fn generate() -> Self {
        let (public, secret) = sodium::key_pair();
        Self { public: PublicKey(public), secret: SecretKey(secret) }
    }
}

/// The characters of Z85 (RFC 32), each at the place of its value.
const Z85: &[u8; 85] = b"0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#";

fn z85(bytes: &[u8; KEY_BYTES]) -> String {
    let mut text = String::with_capacity(KEY_CHARACTERS);
    for group in bytes.chunks_exact(4) {
        let value = group.iter().fold(0, |value: usize, byte| value << 8 | usize::from(*byte));
        for divisor in [85 * 85 * 85 * 85, 85 * 85 * 85, 85 * 85, 85, 1] {
            text.push(char::from(Z85[value / divisor % 85]));
        }
    }
    text
}

fn from_z85(text: &str) -> Result<[u8; KEY_BYTES], String> {
    if text.len() != KEY_CHARACTERS {
        return Err(format!("these are {} bytes", text.len()));
    }
    let value_of = |character: char| Z85.iter().position(|candidate| char::from(*candidate) == character);
    if let Some(character) = text.chars().find(|&character| value_of(character).is_none()) {
        return Err(format!("and {character:?} is not one of its characters"));
    }
    let mut bytes = [0_u8; KEY_BYTES];
    for (group, place) in text.as_bytes().chunks_exact(5).zip(bytes.chunks_exact_mut(4)) {
        let values = group.iter().filter_map(|&character| value_of(char::from(character)));
        let value = values.fold(0, |value: u64, digit| value * 85 + digit as u64);
        let value = u32::try_from(value).map_err(|_| "and a group of five is out of range".to_owned())?;
        place.copy_from_slice(&value.to_be_bytes());
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn key_survives_being_written_and_read() {
        let pair = KeyPair::generate();
        assert_eq!(pair.public.to_string().parse::<PublicKey>().unwrap(), pair.public);
        assert_eq!(SecretKey::parse(&pair.secret.reveal()).unwrap(), pair.secret);
        assert_eq!(pair.secret.public(), pair.public);
        assert_ne!(KeyPair::generate(), pair);
    }

    #[test]
    fn key_of_the_zmq_documentation_is_understood() {
        let text = "rq:rM>}U?@Lns47E1%kR.o@n%FcmmsL/@{H8]yf7";
        assert_eq!(text.parse::<PublicKey>().unwrap().to_string(), text);
    }

    #[test]
    fn what_is_no_key_is_refused_with_the_reason() {
        let error = "short".parse::<PublicKey>().unwrap_err().to_string();
        assert_eq!(error, "\"short\" is not a CURVE key: 40 characters of Z85 are needed, these are 5 bytes");
        let error = "rq:rM>}U?@Lns47E1%kR.o@n%FcmmsL/@{H8]y\"7".parse::<PublicKey>().unwrap_err().to_string();
        assert!(error.contains("'\"' is not one of its characters"), "{error}");
        let error = "########################################".parse::<PublicKey>().unwrap_err().to_string();
        assert!(error.contains("out of range"), "{error}");
    }

    #[test]
    fn secret_key_cannot_be_printed() {
        let pair = KeyPair::generate();
        let text = format!("{pair:?} {:?}", SecretKey::parse("no").unwrap_err());
        assert!(text.contains("***"), "{text}");
        assert!(!text.contains(&pair.secret.reveal()), "{text}");
    }

    #[test]
    fn fingerprint_is_the_start_of_the_sha_256() {
        // SHA-256 of 32 zero bytes.
        assert_eq!(PublicKey::from_bytes([0; 32]).fingerprint(), "66687aadf862bd77");
    }
}
