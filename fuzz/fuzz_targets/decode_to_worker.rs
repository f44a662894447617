//! What reaches a worker: any frames decode or are refused, and what was decoded survives.
#![no_main]

use bytes::Bytes;
use libfuzzer_sys::fuzz_target;
use norfab_protocol::message::BrokerToWorker;

#[path = "../frames.rs"]
mod frames;

fuzz_target!(|data: &[u8]| {
    let frames: Vec<Bytes> = frames::split(data);
    if let Ok(message) = BrokerToWorker::decode(&frames) {
        assert_eq!(BrokerToWorker::decode(&message.encode()), Ok(message));
    }
});
