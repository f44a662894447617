//! What reaches a client: any frames decode or are refused, and what was decoded survives.
#![no_main]

use bytes::Bytes;
use libfuzzer_sys::fuzz_target;
use norfab_protocol::message::BrokerToClient;

#[path = "../frames.rs"]
mod frames;

fuzz_target!(|data: &[u8]| {
    let frames: Vec<Bytes> = frames::split(data);
    if let Ok(message) = BrokerToClient::decode(&frames) {
        assert_eq!(BrokerToClient::decode(&message.encode()), Ok(message));
    }
});
