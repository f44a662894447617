//! What reaches a broker: any frames decode or are refused, and what was decoded survives.
#![no_main]

use bytes::Bytes;
use libfuzzer_sys::fuzz_target;
use norfab_protocol::message::ToBroker;

#[path = "../frames.rs"]
mod frames;

fuzz_target!(|data: &[u8]| {
    let frames: Vec<Bytes> = frames::split(data);
    if let Ok(message) = ToBroker::decode(&frames) {
        let again = match &message {
            ToBroker::Client(message) => message.encode(),
            ToBroker::Worker(message) => message.encode(),
        };
        assert_eq!(ToBroker::decode(&again), Ok(message));
    }
});
