//! The few functions of libsodium that CURVE needs, made safe.
#![allow(unsafe_code)]

use std::ffi::{c_int, c_void};
use std::sync::Once;

// The build script of libsodium-sys-stable compiles and links libsodium; naming the crate keeps it in the link.
use libsodium_sys as _;

/// Bytes of a key, public, secret or shared.
pub(crate) const KEY_BYTES: usize = 32;
/// Bytes of a nonce.
pub(crate) const NONCE_BYTES: usize = 24;
/// What a box is longer than its content.
pub(crate) const MAC_BYTES: usize = 16;

/// A nonce: never used twice with the same key.
pub(crate) type Nonce = [u8; NONCE_BYTES];

unsafe extern "C" {
    fn sodium_init() -> c_int;
    fn sodium_memzero(data: *mut c_void, len: usize);
    fn sodium_memcmp(one: *const c_void, other: *const c_void, len: usize) -> c_int;
    fn randombytes_buf(data: *mut c_void, len: usize);
    fn crypto_hash_sha256(digest: *mut u8, data: *const u8, len: u64) -> c_int;
    fn crypto_box_keypair(public: *mut u8, secret: *mut u8) -> c_int;
    fn crypto_scalarmult_base(public: *mut u8, secret: *const u8) -> c_int;
    fn crypto_box_beforenm(shared: *mut u8, public: *const u8, secret: *const u8) -> c_int;
    fn crypto_box_detached_afternm(
        sealed: *mut u8,
        mac: *mut u8,
        content: *const u8,
        len: u64,
        nonce: *const u8,
        shared: *const u8,
    ) -> c_int;
    fn crypto_box_open_detached_afternm(
        content: *mut u8,
        sealed: *const u8,
        mac: *const u8,
        len: u64,
        nonce: *const u8,
        shared: *const u8,
    ) -> c_int;
}

/// Lets libsodium find out what the processor can do; without it, it would use its slowest code.
fn init() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        // SAFETY: takes nothing. It may be called more than once, and `Once` keeps it on one thread.
        let result = unsafe { sodium_init() };
        assert!(result >= 0, "the system has random numbers");
    });
}

/// The SHA-256 of some bytes.
pub(crate) fn sha256(data: &[u8]) -> [u8; 32] {
    let mut digest = [0_u8; 32];
    // SAFETY: writes 32 bytes and reads as many as it is told.
    unsafe { crypto_hash_sha256(digest.as_mut_ptr(), data.as_ptr(), data.len() as u64) };
    digest
}

/// Random bytes from the system.
pub(crate) fn random<const COUNT: usize>() -> [u8; COUNT] {
    init();
    let mut bytes = [0_u8; COUNT];
    // SAFETY: writes as many bytes as it is told.
    unsafe { randombytes_buf(bytes.as_mut_ptr().cast(), COUNT) };
    bytes
}

/// Overwrites a secret; the compiler may not leave it out.
pub(crate) fn wipe(secret: &mut [u8]) {
    // SAFETY: writes as many bytes as it is told.
    unsafe { sodium_memzero(secret.as_mut_ptr().cast(), secret.len()) };
}

/// Whether two texts are the same, in a time that does not tell where they differ.
pub(crate) fn same(one: &[u8], other: &[u8]) -> bool {
    // SAFETY: both have the length that it is told.
    one.len() == other.len() && unsafe { sodium_memcmp(one.as_ptr().cast(), other.as_ptr().cast(), one.len()) } == 0
}

/// A new key pair: public, secret.
pub(crate) fn key_pair() -> ([u8; KEY_BYTES], Box<[u8; KEY_BYTES]>) {
    init();
    let mut public = [0_u8; KEY_BYTES];
    let mut secret = Box::new([0_u8; KEY_BYTES]);
    // SAFETY: writes 32 bytes to each.
    unsafe { crypto_box_keypair(public.as_mut_ptr(), secret.as_mut_ptr()) };
    (public, secret)
}

/// The public key that belongs to a secret one.
pub(crate) fn public_key(secret: &[u8; KEY_BYTES]) -> [u8; KEY_BYTES] {
    init();
    let mut public = [0_u8; KEY_BYTES];
    // SAFETY: reads 32 bytes and writes 32 bytes.
    unsafe { crypto_scalarmult_base(public.as_mut_ptr(), secret.as_ptr()) };
    public
}

/// What two parties share: each makes it of its own secret key and the public key of the other. Overwritten when it goes.
pub(crate) struct Shared(Box<[u8; KEY_BYTES]>);

impl Shared {
    /// `None` for a public key that would make the secret one guessable.
    pub(crate) fn new(public: &[u8; KEY_BYTES], secret: &[u8; KEY_BYTES]) -> Option<Self> {
        init();
        let mut shared = Self(Box::new([0_u8; KEY_BYTES]));
        // SAFETY: reads 32 bytes of each key and writes 32 bytes.
        let result = unsafe { crypto_box_beforenm(shared.0.as_mut_ptr(), public.as_ptr(), secret.as_ptr()) };
        (result == 0).then_some(shared)
    }

    /// The same key once more, for a thread that seals or opens something large.
    pub(crate) fn duplicate(&self) -> Self {
        Self(self.0.clone())
    }

    /// Encrypts bytes where they are, and gives the code by which the other side knows that they are ours.
    pub(crate) fn seal(&self, nonce: &Nonce, content: &mut [u8]) -> [u8; MAC_BYTES] {
        let mut mac = [0_u8; MAC_BYTES];
        let bytes = content.as_mut_ptr();
        // SAFETY: the bytes are read and overwritten in place, which the function allows; it reads and writes as many as it is
        // told, 16 to `mac`, and reads 24 and 32 of the last two.
        unsafe {
            crypto_box_detached_afternm(
                bytes,
                mac.as_mut_ptr(),
                bytes,
                content.len() as u64,
                nonce.as_ptr(),
                self.0.as_ptr(),
            )
        };
        mac
    }

    /// Decrypts a box (code and content) to a place of its own; `None` if the other side did not make it.
    pub(crate) fn open(&self, nonce: &Nonce, sealed: &[u8]) -> Option<Vec<u8>> {
        let (mac, sealed) = sealed.split_at_checked(MAC_BYTES)?;
        let mut content = Vec::with_capacity(sealed.len());
        // SAFETY: writes as many bytes as it reads, for which there is room, reads 16 of `mac` and 24 and 32 of the last two.
        let result = unsafe {
            crypto_box_open_detached_afternm(
                content.as_mut_ptr(),
                sealed.as_ptr(),
                mac.as_ptr(),
                sealed.len() as u64,
                nonce.as_ptr(),
                self.0.as_ptr(),
            )
        };
        if result != 0 {
            return None;
        }
        // SAFETY: all of these bytes were written.
        unsafe { content.set_len(sealed.len()) };
        Some(content)
    }

    /// Decrypts a box (code and content) where it is; the content begins [`MAC_BYTES`] later. `false` if the other side did
    /// not make it; then the bytes are as they were.
    pub(crate) fn open_in_place(&self, nonce: &Nonce, sealed: &mut [u8]) -> bool {
        let Some((mac, sealed)) = sealed.split_at_mut_checked(MAC_BYTES) else {
            return false;
        };
        let bytes = sealed.as_mut_ptr();
        // SAFETY: as above; in place, which the function allows.
        let result = unsafe {
            crypto_box_open_detached_afternm(
                bytes,
                bytes,
                mac.as_ptr(),
                sealed.len() as u64,
                nonce.as_ptr(),
                self.0.as_ptr(),
            )
        };
        result == 0
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        wipe(&mut self.0[..]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_one_seals_the_other_opens_and_nobody_may_change_it() {
        let ((one, one_secret), (other, other_secret)) = (key_pair(), key_pair());
        assert_eq!(public_key(&one_secret), one);
        let sender = Shared::new(&other, &one_secret).unwrap();
        let receiver = Shared::new(&one, &other_secret).unwrap();
        let nonce = random();
        for content in [&b""[..], b"x", &[7; 1000]] {
            let mut sealed = [&[0; MAC_BYTES], content].concat();
            let mac = sender.seal(&nonce, &mut sealed[MAC_BYTES..]);
            sealed[..MAC_BYTES].copy_from_slice(&mac);
            assert_eq!(receiver.open(&nonce, &sealed).unwrap(), content);
            let mut in_place = sealed.clone();
            assert!(receiver.open_in_place(&nonce, &mut in_place));
            assert_eq!(&in_place[MAC_BYTES..], content);
            for changed in 0..sealed.len() {
                let mut forged = sealed.clone();
                forged[changed] ^= 1;
                assert_eq!(receiver.open(&nonce, &forged), None);
                assert!(!receiver.open_in_place(&nonce, &mut forged));
            }
            assert_eq!(receiver.open(&random(), &sealed), None);
        }
        assert_eq!(receiver.open(&nonce, &[0; MAC_BYTES - 1]), None);
        assert!(!receiver.open_in_place(&nonce, &mut [0; MAC_BYTES - 1]));
    }

    #[test]
    fn a_key_that_would_make_secrets_guessable_is_refused() {
        assert!(Shared::new(&[0; KEY_BYTES], &key_pair().1).is_none());
    }

    #[test]
    fn texts_are_the_same_only_if_they_are() {
        assert!(same(b"one", b"one") && !same(b"one", b"two") && !same(b"one", b"ones"));
    }
}
