//! What peers say before and after the handshake, in pieces of any length.
#![no_main]

use std::sync::{Arc, LazyLock};

use libfuzzer_sys::fuzz_target;
use norfab_transport::{KeyPair, fuzzing::listen_to};

/// The start of what a peer says in the clear, so that not every input must find it.
const GREETING: &[u8] = b"\xff\0\0\0\0\0\0\0\x01\x7f\x03\x01NULL";
const GREETING_BYTES: usize = 64;
const READY: &[u8] = b"\x04\x29\x05READY\x0bSocket-Type\0\0\0\x06DEALER\x08Identity\0\0\0\0";

static KEYS: LazyLock<Arc<KeyPair>> = LazyLock::new(|| Arc::new(KeyPair::generate()));

fuzz_target!(|input: (u8, u8, &[u8])| {
    let (kind, piece, said) = input;
    let mut greeting = GREETING.to_vec();
    greeting.resize(GREETING_BYTES, 0);
    let (keys, prefix) = match kind % 4 {
        0 => (Some(Arc::clone(&KEYS)), Vec::new()),
        1 => (None, Vec::new()),
        2 => (None, greeting),
        _ => (None, [&greeting, READY].concat()),
    };
    listen_to(keys, &[&prefix, said].concat(), piece.into());
});
