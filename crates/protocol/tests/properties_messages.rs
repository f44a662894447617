//! Decoders take any bytes without a panic, and valid messages survive being encoded and decoded.

use bytes::Bytes;
use norfab_protocol::body;
use norfab_protocol::frame::{FRAMES_MAX, Status};
use norfab_protocol::message::{
    BrokerToClient, BrokerToWorker, ClientCommand, ClientMessage, Delivery, Reply, ToBroker, WorkerMessage, WorkerReply,
};
use norfab_protocol::name::{Identity, JobId, ServiceName};
use norfab_protocol::{Event, Target};
use proptest::collection::vec;
use proptest::prelude::*;

/// Frames that look like something: each is a header, a command, a status, a name, or any bytes.
fn frame() -> impl Strategy<Value = Bytes> {
    let words =
        ["", "NFPC01", "NFPW01", "NFPB01", "0x01", "0x02", "0x03", "0x04", "0x05", "0x06", "0x08", "0x10", "200"];
    prop_oneof![
        3 => proptest::sample::select(words.to_vec()).prop_map(|word| Bytes::from_static(word.as_bytes())),
        1 => vec(any::<u8>(), 0..64).prop_map(Bytes::from),
    ]
}

fn name() -> impl Strategy<Value = String> {
    "[^\\p{Cc}]{1,40}".prop_filter("a name has at most 255 bytes", |name| name.len() <= 255)
}

fn job() -> impl Strategy<Value = JobId> {
    name().prop_map(|name| JobId::parse(&name).expect("a name"))
}

fn service() -> impl Strategy<Value = ServiceName> {
    name().prop_map(|name| ServiceName::parse(&name).expect("a name"))
}

fn identity() -> impl Strategy<Value = Identity> {
    name().prop_map(|name| Identity::parse(&name).expect("a name"))
}

fn target() -> impl Strategy<Value = Target> {
    prop_oneof![
        Just(Target::Any),
        Just(Target::All),
        any::<String>().prop_map(|text| Target::parse(&text)),
        vec(name(), 0..5).prop_map(Target::list),
    ]
}

fn payload() -> impl Strategy<Value = Bytes> {
    vec(any::<u8>(), 0..200).prop_map(Bytes::from)
}

fn status() -> impl Strategy<Value = Status> {
    (0u16..1000).prop_map(|code| Status::from_frame(format!("{code:03}").as_bytes()).expect("three digits"))
}

fn client_message() -> impl Strategy<Value = ClientMessage> {
    let commands = vec![
        ClientCommand::Open,
        ClientCommand::Disconnect,
        ClientCommand::Post,
        ClientCommand::Get,
        ClientCommand::Delete,
        ClientCommand::Put,
        ClientCommand::Mmi,
    ];
    (proptest::sample::select(commands), service(), target(), job(), payload())
        .prop_map(|(command, service, target, job, body)| ClientMessage { command, service, target, job, body })
}

fn worker_message() -> impl Strategy<Value = WorkerMessage> {
    let reply = || {
        (identity(), job(), status(), payload()).prop_map(|(client, job, status, payload)| WorkerReply {
            client,
            job,
            status,
            payload,
        })
    };
    prop_oneof![
        service().prop_map(WorkerMessage::Ready),
        service().prop_map(WorkerMessage::Keepalive),
        service().prop_map(WorkerMessage::Disconnect),
        reply().prop_map(WorkerMessage::Response),
        reply().prop_map(WorkerMessage::Event),
        reply().prop_map(WorkerMessage::Stream),
    ]
}

fn to_worker() -> impl Strategy<Value = BrokerToWorker> {
    let delivery = || (identity(), job(), payload()).prop_map(|(client, job, body)| Delivery { client, job, body });
    prop_oneof![
        delivery().prop_map(BrokerToWorker::Post),
        delivery().prop_map(BrokerToWorker::Get),
        delivery().prop_map(BrokerToWorker::Put),
        delivery().prop_map(BrokerToWorker::Delete),
        service().prop_map(BrokerToWorker::Keepalive),
        service().prop_map(BrokerToWorker::Disconnect),
    ]
}

fn to_client() -> impl Strategy<Value = BrokerToClient> {
    let reply = || {
        (service(), job(), status(), payload()).prop_map(|(service, job, status, payload)| Reply {
            service,
            job,
            status,
            payload,
        })
    };
    prop_oneof![
        reply().prop_map(BrokerToClient::Response),
        reply().prop_map(BrokerToClient::Event),
        reply().prop_map(BrokerToClient::Stream),
        reply().prop_map(BrokerToClient::Mmi),
    ]
}

proptest! {
    #[test]
    fn decoders_take_any_frames_and_what_they_took_survives(frames in vec(frame(), 0..FRAMES_MAX + 2)) {
        if let Ok(message) = ToBroker::decode(&frames) {
            let again = match &message {
                ToBroker::Client(message) => message.encode(),
                ToBroker::Worker(message) => message.encode(),
            };
            prop_assert_eq!(ToBroker::decode(&again), Ok(message));
        }
        if let Ok(message) = BrokerToWorker::decode(&frames) {
            prop_assert_eq!(BrokerToWorker::decode(&message.encode()), Ok(message));
        }
        if let Ok(message) = BrokerToClient::decode(&frames) {
            prop_assert_eq!(BrokerToClient::decode(&message.encode()), Ok(message));
        }
    }

    #[test]
    fn messages_to_the_broker_survive(client in client_message(), worker in worker_message()) {
        prop_assert_eq!(ToBroker::decode(&client.encode()), Ok(ToBroker::Client(client)));
        prop_assert_eq!(ToBroker::decode(&worker.encode()), Ok(ToBroker::Worker(worker)));
    }

    #[test]
    fn messages_to_workers_and_clients_survive(worker in to_worker(), client in to_client()) {
        prop_assert_eq!(BrokerToWorker::decode(&worker.encode()), Ok(worker));
        prop_assert_eq!(BrokerToClient::decode(&client.encode()), Ok(client));
    }

    #[test]
    fn body_readers_take_any_bytes(bytes in vec(any::<u8>(), 0..300), text in "[\\[\\]{}:,\"a-z0-9_ ]{0,80}") {
        for bytes in [&bytes[..], text.as_bytes()] {
            // Only that they return matters.
            body::decode_put(&Bytes::copy_from_slice(bytes)).ok();
            body::check_put(bytes).ok();
            body::decode::<Event>("an event", bytes).ok();
            body::decode::<body::JobRequestBody>("a job request", bytes).ok();
            body::decode::<body::Dispatched>("a dispatch", bytes).ok();
            body::check_object(bytes).ok();
        }
    }

    #[test]
    fn names_survive_their_frame_and_their_json(name in name()) {
        let job = JobId::parse(&name).expect("a name");
        prop_assert_eq!(JobId::from_frame(name.as_bytes()), Ok(job));
        let identity = Identity::parse(&name).expect("a name");
        let json = serde_json::to_string(&identity).expect("a text");
        prop_assert_eq!(serde_json::from_str::<Identity>(&json).expect("a name"), identity);
    }

    #[test]
    fn targets_survive_their_frame(target in target(), names in vec(name(), 0..5)) {
        prop_assert_eq!(Target::from_frame(&target.to_frame()), Ok(target));
        prop_assert_eq!(Target::list(&names).listed_names(), Some(names));
    }
}
