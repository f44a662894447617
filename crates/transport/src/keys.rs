//! CURVE keys: 32 bytes each, written as 40 characters of Z85.
#![allow(unsafe_code)]

use std::ffi::{CString, c_char};
use std::fmt;
use std::str::FromStr;

use crate::error::KeyError;
use crate::ffi;

/// A key has 32 bytes.
const KEY_BYTES: usize = 32;
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
        let mut digest = [0_u8; 32];
        // SAFETY: libsodium writes 32 bytes and reads as many as it is told.
        unsafe { ffi::crypto_hash_sha256(digest.as_mut_ptr(), self.0.as_ptr(), KEY_BYTES as u64) };
        digest[..FINGERPRINT_BYTES].iter().map(|byte| format!("{byte:02x}")).collect()
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
        z85(&self.0[..])
    }

    /// The public key that belongs to this one.
    #[must_use]
    pub fn public(&self) -> PublicKey {
        let secret = CString::new(self.reveal()).expect("Z85 has no zero bytes");
        let mut public: [c_char; KEY_CHARACTERS + 1] = [0; KEY_CHARACTERS + 1];
        // SAFETY: reads a C string of 40 characters, writes one of 40 and its end.
        unsafe { ffi::zmq_curve_public(public.as_mut_ptr(), secret.as_ptr()) };
        PublicKey(from_z85_buffer(&public))
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
        // SAFETY: overwrites the 32 bytes of the box, which is freed afterwards.
        unsafe { ffi::sodium_memzero(self.0.as_mut_ptr().cast(), KEY_BYTES) };
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
        let mut public: [c_char; KEY_CHARACTERS + 1] = [0; KEY_CHARACTERS + 1];
        let mut secret: [c_char; KEY_CHARACTERS + 1] = [0; KEY_CHARACTERS + 1];
        // SAFETY: writes two C strings of 40 characters. It only fails when libzmq lacks CURVE, which the build rules out.
        let result = unsafe { ffi::zmq_curve_keypair(public.as_mut_ptr(), secret.as_mut_ptr()) };
        assert_eq!(result, 0, "libzmq is built with CURVE");
        let pair =
            Self { public: PublicKey(from_z85_buffer(&public)), secret: SecretKey(Box::new(from_z85_buffer(&secret))) };
        // SAFETY: overwrites the local text of the secret key.
        unsafe { ffi::sodium_memzero(secret.as_mut_ptr().cast(), secret.len()) };
        pair
    }
}

fn z85(bytes: &[u8]) -> String {
    let mut text: [c_char; KEY_CHARACTERS + 1] = [0; KEY_CHARACTERS + 1];
    assert_eq!(bytes.len(), KEY_BYTES, "only keys are written here");
    // SAFETY: reads 32 bytes, writes 40 characters and the end.
    unsafe { ffi::zmq_z85_encode(text.as_mut_ptr(), bytes.as_ptr(), bytes.len()) };
    text[..KEY_CHARACTERS].iter().map(|character| char::from(character.cast_unsigned())).collect()
}

fn from_z85(text: &str) -> Result<[u8; KEY_BYTES], String> {
    if text.len() != KEY_CHARACTERS {
        return Err(format!("these are {} bytes", text.len()));
    }
    if let Some(character) = text.chars().find(|&character| !is_z85(character)) {
        return Err(format!("and {character:?} is not one of its characters"));
    }
    let text = CString::new(text).expect("all characters were checked");
    let mut bytes = [0_u8; KEY_BYTES];
    // SAFETY: reads a C string of 40 characters, writes 32 bytes.
    let result = unsafe { ffi::zmq_z85_decode(bytes.as_mut_ptr(), text.as_ptr()) };
    if result.is_null() { Err("and a group of five is out of range".to_owned()) } else { Ok(bytes) }
}

fn from_z85_buffer(text: &[c_char; KEY_CHARACTERS + 1]) -> [u8; KEY_BYTES] {
    let mut bytes = [0_u8; KEY_BYTES];
    // SAFETY: the text was written by libzmq, with its end.
    unsafe { ffi::zmq_z85_decode(bytes.as_mut_ptr(), text.as_ptr()) };
    bytes
}

fn is_z85(character: char) -> bool {
    character.is_ascii_alphanumeric() || ".-:+=^!/*?&<>()[]{}@%$#".contains(character)
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
