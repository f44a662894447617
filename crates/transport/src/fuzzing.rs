//! The wire without a socket, for the fuzz target.

use std::sync::Arc;

use crate::boxes::{Done, Work};
use crate::keys::KeyPair;
use crate::zmtp::{Engine, Happening, Limits, Role};

/// What a peer may send here: little, so that bounds are met.
const LIMITS: Limits = Limits { bytes_max: 10_000, frames_max: 4 };

/// Lets the listening end of a connection read what a peer says, in pieces of some length, and forgets what it answers.
/// `keys`: it encrypts.
///
/// # Panics
/// If a bound is exceeded: that is what is looked for.
pub fn listen_to(keys: Option<Arc<KeyPair>>, said: &[u8], piece: usize) {
    let mut engine = Engine::new(Role::Listener { keys }, LIMITS);
    for mut input in said.chunks(piece.max(1)) {
        loop {
            let before = input.len();
            let happening = match engine.receive(&mut input) {
                Err(_) => return,
                Ok(None) => break,
                Ok(Some(Happening::Asks(_))) => {
                    assert!(engine.admit(true).is_some(), "nobody is turned away");
                    continue;
                }
                Ok(Some(Happening::Large(opening))) => {
                    let Done::Opened(opened) = Work::Open(opening).perform() else { return };
                    match engine.opened(opened) {
                        Err(_) => return,
                        Ok(happening) => happening,
                    }
                }
                Ok(happening) => happening,
            };
            if let Some(Happening::Message { frames, .. }) = happening {
                let bytes: usize = frames.iter().map(bytes::Bytes::len).sum();
                assert!((1..=LIMITS.frames_max).contains(&frames.len()) && bytes as u64 <= LIMITS.bytes_max);
            }
            assert!(input.len() < before, "no progress");
        }
        assert!(input.is_empty() || !engine.reads(), "input is left");
        let mut slices = Vec::new();
        engine.slices(&mut slices);
        let bytes = slices.iter().map(|slice| slice.len()).sum();
        drop(slices);
        engine.left(bytes);
        assert!(!engine.has_output(), "output is left");
    }
}
