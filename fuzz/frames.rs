//! Frames out of fuzzed bytes: each is its length in one byte, then so many bytes. A length beyond the end takes the rest.

use bytes::Bytes;

pub fn split(mut data: &[u8]) -> Vec<Bytes> {
    let mut frames = Vec::new();
    while let [length, rest @ ..] = data {
        let (frame, rest) = rest.split_at(usize::from(*length).min(rest.len()));
        frames.push(Bytes::copy_from_slice(frame));
        data = rest;
    }
    frames
}
