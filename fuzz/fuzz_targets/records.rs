//! Messages of transfers of any bytes: what they say is in order, and never more than was announced.
#![no_main]

use bytes::Bytes;
use libfuzzer_sys::fuzz_target;
use norfab_files::{Arrival, Sink};

fuzz_target!(|messages: Vec<Vec<u8>>| {
    let mut sink = Sink::default();
    let (mut at, mut size) = (0, 0);
    for message in messages {
        let mut arrived = Vec::new();
        let taken = sink.take(Bytes::from(message), &mut arrived);
        for arrival in arrived {
            match arrival {
                Arrival::Began { offset, facts, .. } => (at, size) = (offset, facts.size),
                Arrival::Content { offset, bytes, .. } => {
                    assert_eq!(offset, at);
                    at += bytes.len() as u64;
                    assert!(at <= size);
                }
                Arrival::Whole { .. } => assert_eq!(at, size),
                Arrival::Failed { .. } => {}
            }
        }
        if taken.is_err() {
            return;
        }
    }
});
