//! Every recorded message is decoded by the enum of its direction and encoded again to the same frames; JSON bodies of
//! known kinds are decoded to their types and written again to the same bytes. What does not is listed in one table.

mod vectors;

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use norfab_protocol::body::{
    self, Accepted, Dispatched, JobRequestBody, ManagementBody, PutBody, Refused, StateReply, Waiting,
};
use norfab_protocol::broker::{INVENTORY_SERVICE, MANAGEMENT_SERVICE};
use norfab_protocol::frame::Status;
use norfab_protocol::message::{
    BrokerToClient, BrokerToWorker, ClientCommand, ClientMessage, DecodeError, ToBroker, WorkerMessage,
};
use norfab_protocol::{Event, TaskResult};
use serde::Serialize;
use serde::de::DeserializeOwned;

/// How a message may differ.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Exception {
    /// The message is refused, with this kind of error.
    Refused(&'static str),
    /// Frames after the last one that has a meaning are not encoded again.
    TrailingFrames,
    /// The DISCONNECT of the Python broker has its service before its command; ours has it behind.
    DisconnectOrder,
    /// The body is not of the type that its message should have.
    Body,
    /// The body is read, and written with other bytes.
    Rewritten,
}

/// Flow, how its message differs, and why that is right.
const EXCEPTIONS: &[(&str, Exception, &str)] = &[
    ("malformed_one_frame", Exception::Refused("too_few_frames"), "a message has at least three frames"),
    ("malformed_two_frames", Exception::Refused("too_few_frames"), "a message has at least three frames"),
    ("fake_two_frames", Exception::Refused("too_few_frames"), "a message has at least three frames"),
    ("malformed_client_short", Exception::Refused("too_few_frames"), "a request has seven frames"),
    ("malformed_ready_kills_broker", Exception::Refused("too_few_frames"), "a READY names its service"),
    ("worker_malformed_response_short", Exception::Refused("too_few_frames"), "a response has eight frames"),
    ("worker_response_short_payload", Exception::Refused("too_few_frames"), "a response has eight frames"),
    (
        "client_gets_six_frames",
        Exception::Refused("too_few_frames"),
        "a response has eight frames at the worker, seven at the client",
    ),
    ("fake_get_short", Exception::Refused("too_few_frames"), "a delivery has seven frames"),
    ("fake_post_short", Exception::Refused("too_few_frames"), "a delivery has seven frames"),
    ("fake_put_short", Exception::Refused("too_few_frames"), "a delivery has seven frames"),
    (
        "unsupported_client_command",
        Exception::Refused("too_few_frames"),
        "the Python broker's reply has five frames and no job id; no client can use it",
    ),
    (
        "unsupported_client_command_unknown_code",
        Exception::Refused("too_few_frames"),
        "the Python broker's reply has five frames and no job id; no client can use it",
    ),
    (
        "unsupported_client_command_binary_04",
        Exception::Refused("too_few_frames"),
        "the Python broker's reply has five frames and no job id; no client can use it",
    ),
    ("malformed_no_empty_delimiter", Exception::Refused("no_delimiter"), "a message begins with an empty frame"),
    ("unknown_header", Exception::Refused("unknown_header"), "neither a client's nor a worker's header"),
    ("broker_header_from_peer", Exception::Refused("unknown_header"), "only a broker has the broker's header"),
    (
        "fake_header_not_checked",
        Exception::Refused("unknown_header"),
        "the Python worker does not look at the header; ours does",
    ),
    ("unsupported_client_command", Exception::Refused("unsupported_command"), "no command of clients"),
    ("unsupported_client_command_unknown_code", Exception::Refused("unsupported_command"), "no command"),
    (
        "unsupported_client_command_binary_04",
        Exception::Refused("unsupported_command"),
        "commands are texts, not bytes",
    ),
    ("fake_unknown_command", Exception::Refused("unsupported_command"), "no command"),
    ("worker_mmi_command", Exception::Refused("unsupported_command"), "no command of workers"),
    (
        "post_uuid_empty",
        Exception::Refused("bad_name"),
        "a job needs an id to be asked about; the Python worker runs it and can report nothing",
    ),
    ("get_uuid_empty", Exception::Refused("bad_name"), "a job needs an id"),
    ("post_uuid_not_utf8", Exception::Refused("bad_name"), "ids are texts"),
    ("client_gets_non_utf8_uuid", Exception::Refused("bad_name"), "ids are texts"),
    ("fake_get_client_name_not_utf8", Exception::Refused("bad_name"), "names are texts"),
    ("extra_trailing_frame", Exception::TrailingFrames, "frames behind the seventh have no meaning"),
    (
        "broker_restart_graceful",
        Exception::DisconnectOrder,
        "the Python broker's order, which its own workers do not understand",
    ),
    (
        "broker_shutdown_disconnect",
        Exception::DisconnectOrder,
        "the Python broker's order, which its own workers do not understand",
    ),
    (
        "fake_disconnect_service_before_command",
        Exception::DisconnectOrder,
        "the Python broker's order, which its own workers do not understand",
    ),
    ("client_gets_201_without_worker", Exception::Body, "hostile: an acceptance by nobody"),
    ("client_gets_404_with_list_body", Exception::Body, "hostile: a list"),
    ("client_gets_bad_json", Exception::Body, "hostile: no JSON"),
    ("client_gets_event_list_body", Exception::Body, "hostile: a list"),
    ("input_put_from_other_client_json_list", Exception::Body, "an answer is an object"),
    ("input_put_from_other_client_not_json", Exception::Body, "an answer is JSON"),
    ("mmi_json_list_body", Exception::Body, "a management request is an object"),
    ("mmi_unparsable_json", Exception::Body, "no JSON"),
    ("sid_unparsable_json", Exception::Body, "no JSON"),
    ("post_args_not_list", Exception::Body, "positional arguments are a list"),
    ("post_body_no_task", Exception::Body, "a job request names its task"),
    ("post_body_not_json_kills_post_thread", Exception::Body, "no JSON"),
    ("raw_worker_full_job", Exception::Body, "a hand-made worker whose acceptance names only the worker"),
    ("fake_post_after_short", Exception::Rewritten, "hand-made: args before kwargs"),
    ("fake_post_after_two_frames", Exception::Rewritten, "hand-made: args before kwargs"),
    ("fake_post_minimal_body", Exception::Rewritten, "hand-made: args before kwargs"),
    ("known_worker_name_in_list_under_service_without_workers_400", Exception::Rewritten, "hand-made: no args"),
    ("known_worker_name_under_service_without_workers_400", Exception::Rewritten, "hand-made: no args"),
    ("service_all_unknown_name_400", Exception::Rewritten, "hand-made: no args"),
    ("two_clients_same_identity", Exception::Rewritten, "hand-made: no args, no kwargs"),
    ("input_put_from_other_client_valid", Exception::Rewritten, "hand-made: keys that have a default are missing"),
    (
        "input_response_default_missing_value_key",
        Exception::Rewritten,
        "hand-made: keys that have a default are missing",
    ),
    ("put_unknown_job", Exception::Rewritten, "hand-made: keys that have a default are missing"),
    (
        "job_to_mmi_service",
        Exception::Rewritten,
        "a job sent to the management service: its time-out means nothing there",
    ),
];

/// What was found.
#[derive(Default)]
struct Report {
    messages: usize,
    bodies: BTreeMap<&'static str, usize>,
    found: BTreeMap<(String, Exception), String>,
}

impl Report {
    fn except(&mut self, flow: &str, exception: Exception, detail: String) {
        self.found.entry((flow.to_owned(), exception)).or_insert(detail);
    }

    fn body<Body: DeserializeOwned + Serialize>(&mut self, flow: &str, kind: &'static str, bytes: &[u8]) {
        *self.bodies.entry(kind).or_default() += 1;
        match body::decode::<Body>(kind, bytes) {
            Ok(body) => self.rewritten(flow, bytes, &body::encode(&body)),
            Err(error) => self.except(flow, Exception::Body, error.to_string()),
        }
    }

    fn rewritten(&mut self, flow: &str, before: &[u8], after: &[u8]) {
        if before != after {
            let text = |bytes| String::from_utf8_lossy(bytes).chars().take(600).collect::<String>();
            self.except(flow, Exception::Rewritten, format!("{}\n  became {}", text(before), text(after)));
        }
    }

    fn request(&mut self, flow: &str, command: ClientCommand, bytes: &[u8]) {
        match command {
            ClientCommand::Post => self.body::<JobRequestBody>(flow, "POST", bytes),
            ClientCommand::Put => {
                *self.bodies.entry("PUT").or_default() += 1;
                match body::decode_put(&Bytes::copy_from_slice(bytes)) {
                    Ok(Some(PutBody::Input(input))) => self.rewritten(flow, bytes, &body::encode(&input)),
                    Ok(Some(PutBody::Credit(credit))) => self.rewritten(flow, bytes, &body::encode(&credit)),
                    Ok(Some(PutBody::Content(_))) => panic!("{flow}: no recorded client sends content"),
                    Ok(None) => {}
                    Err(error) => self.except(flow, Exception::Body, error.to_string()),
                }
            }
            ClientCommand::Mmi => self.body::<ManagementBody>(flow, "MMI", bytes),
            // The body of these is not looked at by anyone.
            ClientCommand::Get | ClientCommand::Delete | ClientCommand::Open | ClientCommand::Disconnect => {}
        }
    }

    fn response(&mut self, flow: &str, status: Status, bytes: &[u8]) {
        match status {
            Status::DISPATCHED => self.body::<Dispatched>(flow, "202", bytes),
            Status::REFUSED => self.body::<Refused>(flow, "400", bytes),
            Status::ACCEPTED => self.body::<Accepted>(flow, "201", bytes),
            Status::PENDING => self.body::<StateReply>(flow, "300", bytes),
            Status::WAITING => self.body::<Waiting>(flow, "102", bytes),
            Status::OK => self.body::<BTreeMap<String, TaskResult>>(flow, "200", bytes),
            Status::NOT_FOUND => self.body::<StateReply>(flow, "404", bytes),
            Status::ERROR => self.body::<StateReply>(flow, "500", bytes),
            other => panic!("{flow}: status {other}"),
        }
    }

    /// Decodes one message and returns it encoded again; looks at its body if the recording has all of it.
    fn message(&mut self, flow: &str, message: &vectors::Message, frames: &[Bytes]) -> Result<Vec<Bytes>, DecodeError> {
        let whole = message.frames.iter().all(vectors::Frame::is_whole);
        if message.to == "broker" {
            return Ok(match ToBroker::decode(frames)? {
                ToBroker::Client(message) => {
                    if whole {
                        self.client_body(flow, &message);
                    }
                    message.encode()
                }
                ToBroker::Worker(message) => {
                    match &message {
                        WorkerMessage::Response(reply) if whole => self.response(flow, reply.status, &reply.payload),
                        WorkerMessage::Event(reply) if whole => self.body::<Event>(flow, "EVENT", &reply.payload),
                        _ => {}
                    }
                    message.encode()
                }
            });
        }
        // A worker's embedded client and the worker share the broker's header: the layout tells them apart.
        if is_for_worker(frames) {
            let message = BrokerToWorker::decode(frames)?;
            match &message {
                BrokerToWorker::Post(delivery) => self.request(flow, ClientCommand::Post, &delivery.body),
                BrokerToWorker::Put(delivery) => self.request(flow, ClientCommand::Put, &delivery.body),
                BrokerToWorker::Get(_)
                | BrokerToWorker::Delete(_)
                | BrokerToWorker::Keepalive(_)
                | BrokerToWorker::Disconnect(_) => {}
            }
            return Ok(message.encode());
        }
        let message = BrokerToClient::decode(frames)?;
        match &message {
            BrokerToClient::Response(reply) if whole && !is_management(reply.service.as_str()) => {
                self.response(flow, reply.status, &reply.payload);
            }
            BrokerToClient::Event(reply) if whole => self.body::<Event>(flow, "EVENT", &reply.payload),
            BrokerToClient::Mmi(reply) if whole => {
                *self.bodies.entry("management reply").or_default() += 1;
                let value: serde_json::Value =
                    serde_json::from_slice(&reply.payload).expect("management replies are JSON");
                self.rewritten(flow, &reply.payload, &body::encode(&value));
            }
            BrokerToClient::Response(_)
            | BrokerToClient::Event(_)
            | BrokerToClient::Stream(_)
            | BrokerToClient::Mmi(_) => {}
        }
        Ok(message.encode())
    }

    fn client_body(&mut self, flow: &str, message: &ClientMessage) {
        // The management services answer whatever the command is.
        let command = if is_management(message.service.as_str()) { ClientCommand::Mmi } else { message.command };
        self.request(flow, command, &message.body);
    }
}

fn is_management(service: &str) -> bool {
    matches!(service, MANAGEMENT_SERVICE | INVENTORY_SERVICE)
}

fn is_for_worker(frames: &[Bytes]) -> bool {
    let command = frames.get(2).map(|frame| &frame[..]).unwrap_or_default();
    !matches!(command, b"0x05" | b"0x08" | b"0x09" | b"0x11")
}

#[test]
fn every_recorded_message_is_decoded_and_encoded_again_to_the_same_frames() {
    let mut report = Report::default();
    for flow in vectors::flows() {
        for message in flow.recordings.iter().flat_map(|recording| &recording.messages) {
            report.messages += 1;
            let frames = message.frames();
            match report.message(&flow.name, message, &frames) {
                Err(error) => {
                    report.except(&flow.name, Exception::Refused(error.kind()), format!("{error}: {frames:?}"));
                }
                Ok(again) if again == frames => {}
                Ok(again) if frames.starts_with(&again) => {
                    report.except(&flow.name, Exception::TrailingFrames, format!("{frames:?}"));
                }
                Ok(again) if again.len() == 4 && again[2] == frames[3] && again[3] == frames[2] => {
                    report.except(&flow.name, Exception::DisconnectOrder, format!("{frames:?}"));
                }
                Ok(again) => panic!("{}: {frames:?}\n became {again:?}", flow.name),
            }
        }
    }
    let allowed: BTreeSet<(String, Exception)> =
        EXCEPTIONS.iter().map(|(flow, exception, _)| ((*flow).to_owned(), *exception)).collect();
    assert_eq!(allowed.len(), EXCEPTIONS.len(), "each row of the table stands for something else");
    let unexplained: Vec<String> = report
        .found
        .iter()
        .filter(|(key, _)| !allowed.contains(key))
        .map(|((flow, exception), detail)| format!("{flow} {exception:?}: {detail}"))
        .collect();
    assert!(unexplained.is_empty(), "{} not in the table:\n{}", unexplained.len(), unexplained.join("\n"));
    let unused: Vec<_> = allowed.iter().filter(|key| !report.found.contains_key(*key)).collect();
    assert!(unused.is_empty(), "rows of the table that nothing needs: {unused:?}");
    println!("{} messages, bodies {:?}, {} exceptions", report.messages, report.bodies, EXCEPTIONS.len());
}
