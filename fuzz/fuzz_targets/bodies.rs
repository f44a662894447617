//! JSON bodies of any bytes: read or refused, and what was read survives being written.
#![no_main]

use bytes::Bytes;
use libfuzzer_sys::fuzz_target;
use norfab_protocol::body::{
    self, Accepted, CancelBody, Dispatched, ManagementBody, PutBody, Refused, StateReply, Waiting,
};
use norfab_protocol::{Event, JobRequestBody, Target, TaskResult};
use serde::Serialize;
use serde::de::DeserializeOwned;

fn survives<Body: DeserializeOwned + Serialize>(data: &[u8]) {
    if let Ok(body) = body::decode::<Body>("a body", data) {
        let written = body::encode(&body);
        let again: Body = body::decode("a body", &written).expect("we can read what we wrote");
        // Numbers may be written shorter than they came, but from then on nothing changes any more.
        assert_eq!(body::encode(&again), written);
    }
}

fuzz_target!(|data: &[u8]| {
    survives::<JobRequestBody>(data);
    survives::<ManagementBody>(data);
    survives::<Dispatched>(data);
    survives::<Refused>(data);
    survives::<Accepted>(data);
    survives::<StateReply>(data);
    survives::<Waiting>(data);
    survives::<Event>(data);
    survives::<CancelBody>(data);
    survives::<TaskResult>(data);
    match body::decode_put(&Bytes::copy_from_slice(data)) {
        Ok(Some(PutBody::Input(input))) => drop(body::encode(&input)),
        Ok(Some(PutBody::Credit(credit))) => drop(body::encode(&credit)),
        Ok(Some(PutBody::Content(content))) => {
            assert_eq!([body::CONTENT_MARK, &content[..]].concat(), data);
            assert_eq!(body::check_put(data), Ok(()));
        }
        Ok(None) | Err(_) => {}
    }
    if let Ok(target) = Target::from_frame(data) {
        assert_eq!(Target::from_frame(&target.to_frame()), Ok(target.clone()));
        target.listed_names();
    }
    body::check_object(data).ok();
});
