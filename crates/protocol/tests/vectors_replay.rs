//! Replays what clients and workers said in every recorded flow into our broker, and compares what it says, per peer and
//! in order, with what the Python broker said. Deliberate differences stand in one table with their reasons.

mod vectors;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::{Duration, Instant};

use bytes::Bytes;
use norfab_protocol::KeepaliveConfig;
use norfab_protocol::body::{Dispatched, Refused};
use norfab_protocol::broker::{Broker, BrokerConfig, BrokerOutput};
use norfab_protocol::frame::Command;
use serde_json::Value;
use vectors::{Flow, Message, Recording};

/// One reason for which our broker says something else, and every place where it does: flow, then peer, whose message it
/// is, and which. Reasons that begin with `recording:` are no differences of the brokers. The user's view of this table is `docs/differences.md`.
struct Difference {
    reason: &'static str,
    places: &'static [(&'static str, &'static str)],
}

const DIFFERENCES: &[Difference] = &[
    Difference {
        reason: "DISCONNECT has its command where all other messages have it, so that workers understand it",
        places: &[
            ("broker_shutdown_disconnect", "dummy-1 ours DISCONNECT"),
            ("broker_shutdown_disconnect", "dummy-1 theirs ? 0x03"),
            ("broker_shutdown_disconnect", "dummy-3 ours DISCONNECT"),
            ("broker_shutdown_disconnect", "dummy-3 theirs ? 0x03"),
            ("broker_shutdown_disconnect", "filesharing-worker-1 ours DISCONNECT"),
            ("broker_shutdown_disconnect", "filesharing-worker-1 theirs ? 0x03"),
            ("broker_shutdown_disconnect", "other-1 ours DISCONNECT"),
            ("broker_shutdown_disconnect", "other-1 theirs ? 0x03"),
            ("broker_restart_graceful", "dummy-1 theirs ? 0x03"),
        ],
    },
    Difference {
        reason: "a worker that is not registered is told so with DISCONNECT, and is back at once instead of after its hold time",
        places: &[
            ("broker_restart_graceful", "dummy-1 ours DISCONNECT"),
            ("broker_hang_holdtime_expiry", "dummy-1 ours DISCONNECT"),
            ("worker_keepalive_before_ready", "raw-worker ours DISCONNECT"),
            ("worker_response_before_ready", "raw-worker ours DISCONNECT"),
        ],
    },
    Difference {
        reason: "what a worker says reaches its client although the worker is not registered at the moment",
        places: &[("worker_response_before_ready", "raw-client ours RESPONSE 200")],
    },
    Difference {
        reason: "a worker that says anything is alive, though its beats are late",
        places: &[
            ("get_to_vanished_worker", "client-1 ours RESPONSE 202"),
            ("get_to_vanished_worker", "client-1 theirs RESPONSE 400"),
            ("get_to_vanished_worker", "dummy-2 ours GET"),
            ("partial_result_then_vanished_worker", "client-1 ours RESPONSE 202"),
            ("partial_result_then_vanished_worker", "client-1 theirs RESPONSE 202"),
            ("partial_result_then_vanished_worker", "dummy-2 ours GET"),
        ],
    },
    Difference {
        reason: "DELETE reaches the workers and is answered with 202: it cancels",
        places: &[
            ("client_delete_accepted_but_ignored", "dummy-1 ours DELETE"),
            ("client_delete_accepted_but_ignored", "raw-client ours RESPONSE 202"),
        ],
    },
    Difference {
        reason: "a malformed message of a worker is refused and counted, not relayed: it ends the socket thread of Python clients",
        places: &[
            ("client_gets_201_without_worker", "victim-client_gets_201_without_worker theirs RESPONSE 201"),
            ("client_gets_404_with_list_body", "victim-client_gets_404_with_list_body theirs RESPONSE 404"),
            ("client_gets_bad_json", "victim-client_gets_bad_json theirs RESPONSE 200"),
            ("client_gets_event_list_body", "victim-client_gets_event_list_body theirs EVENT 200"),
            ("client_gets_six_frames", "victim-client_gets_six_frames theirs RESPONSE 200"),
        ],
    },
    Difference {
        reason: "a body that is not a JSON object is refused with 400, not handed on: it ends a thread of Python workers",
        places: &[
            ("post_body_not_json_kills_post_thread", "dummy-3 theirs POST"),
            ("post_body_not_json_kills_post_thread", "raw-client ours RESPONSE 400"),
            ("post_body_not_json_kills_post_thread", "raw-client theirs RESPONSE 202"),
            ("input_put_from_other_client_json_list", "dummy-1 theirs PUT"),
            ("input_put_from_other_client_json_list", "raw-client ours RESPONSE 400"),
            ("input_put_from_other_client_not_json", "dummy-1 theirs PUT"),
            ("input_put_from_other_client_not_json", "raw-client ours RESPONSE 400"),
        ],
    },
    Difference {
        reason: "a job id is not empty: such a job could be asked about by nobody",
        places: &[
            ("get_uuid_empty", "raw-client theirs RESPONSE 200"),
            ("get_uuid_empty", "raw-client theirs RESPONSE 202"),
            ("post_uuid_empty", "raw-client theirs RESPONSE 201"),
            ("post_uuid_empty", "raw-client theirs RESPONSE 202"),
        ],
    },
    Difference {
        reason: "a refused command is answered with seven frames and its job id, so that the client can tell what was refused",
        places: &[
            ("unsupported_client_command", "raw-client ours RESPONSE 400"),
            ("unsupported_client_command", "raw-client theirs RESPONSE"),
            ("unsupported_client_command_binary_04", "raw-client ours RESPONSE 400"),
            ("unsupported_client_command_binary_04", "raw-client theirs RESPONSE"),
            ("unsupported_client_command_unknown_code", "raw-client ours RESPONSE 400"),
            ("unsupported_client_command_unknown_code", "raw-client theirs RESPONSE"),
        ],
    },
    Difference {
        reason: "a management request is always answered, twice as all of them are; refusals say why",
        places: &[
            ("mmi_command_to_worker_service", "raw-client ours MMI 400"),
            ("mmi_command_to_worker_service", "raw-client ours RESPONSE 400"),
            ("mmi_json_list_body", "raw-client ours MMI 400"),
            ("mmi_json_list_body", "raw-client ours RESPONSE 400"),
            ("mmi_unparsable_json", "raw-client ours MMI 400"),
            ("mmi_unparsable_json", "raw-client ours RESPONSE 400"),
            ("sid_unparsable_json", "raw-client ours MMI 400"),
            ("sid_unparsable_json", "raw-client ours RESPONSE 400"),
            ("mmi_to_worker_service", "client-1 ours MMI 400"),
            ("mmi_to_worker_service", "client-1 ours RESPONSE 400"),
            ("mmi_to_unknown_service", "client-1 ours MMI 400"),
            ("mmi_to_unknown_service", "client-1 ours RESPONSE 400"),
            ("sid_get_inventory_missing_file", "client-1 ours MMI 500"),
            ("sid_get_inventory_missing_file", "client-1 ours RESPONSE 500"),
            ("sid_get_inventory_no_name", "client-1 ours MMI 500"),
            ("sid_get_inventory_no_name", "client-1 ours RESPONSE 500"),
            ("mmi_to_unknown_service", "client-1 theirs RESPONSE 400"),
        ],
    },
    Difference {
        reason: "a worker whose name is not UTF-8 is refused and harms nobody: the others are listed and get their jobs",
        places: &[
            ("non_utf8_worker_identity", "client-1 ours MMI 200"),
            ("non_utf8_worker_identity", "client-1 ours RESPONSE 200"),
            ("non_utf8_worker_identity", "client-1 ours RESPONSE 400"),
        ],
    },
    Difference {
        reason: "recording: the machine hands every relay to its link, which reports and counts clients that are not there",
        places: &[("worker_response_to_unknown_client", "nobody ours RESPONSE 200")],
    },
    Difference {
        reason: "recording: lost the spaces of the target frame, which the 202 repeats as it came",
        places: &[
            ("post_target_json_list_with_int", "raw-client ours RESPONSE 202"),
            ("post_target_json_list_with_int", "raw-client theirs RESPONSE 202"),
        ],
    },
];

/// Who is registered when a flow begins, where the flow itself does not show it.
const SETUP: &[(&str, &[(&str, &str)])] = &[
    ("job_name_from_other_service", &[("dummy-1", "dummy"), ("other-1", "other")]),
    ("known_worker_name_under_service_without_workers_400", &[("other-1", "other")]),
    ("known_worker_name_in_list_under_service_without_workers_400", &[("other-1", "other")]),
    ("mmi_show_workers_after_double_ready", &[("raw-worker", "rawsvc")]),
    ("post_while_broker_down", &[]),
    ("worker_keepalive_before_ready", &[]),
    ("worker_response_before_ready", &[]),
    ("worker_disconnect", &[("raw-worker", "rawsvc2")]),
];

/// Workers that are gone when a flow begins, so that they send no beats, but still registered.
const SILENT: &[(&str, &str)] =
    &[("get_to_vanished_worker", "dummy-2"), ("partial_result_then_vanished_worker", "dummy-2")];

/// Services of workers that no flow shows registering.
const SERVICES: &[(&str, &str)] = &[("evil", "evilsvc"), ("filesharing-worker-2", "filesharing"), ("dummy-3", "dummy")];

/// How long after its last dispatch the recorded broker may have forgotten a silent worker.
const FORGOTTEN_AFTER: f64 = 0.05;

/// The lab of the recordings: registered in flows in which no worker takes part, so that a request that goes nowhere
/// goes nowhere for its own reason.
const LAB: &[(&str, &str)] = &[
    ("dummy-1", "dummy"),
    ("dummy-2", "dummy"),
    ("dummy-3", "dummy"),
    ("other-1", "other"),
    ("filesharing-worker-1", "filesharing"),
];

struct Replay<'a> {
    broker: Broker,
    start: Instant,
    recording: &'a Recording,
    alive: Vec<(String, String)>,
    next_beat: Instant,
    said: BTreeMap<String, Vec<Vec<Bytes>>>,
}

impl<'a> Replay<'a> {
    fn new(flow: &str, recording: &'a Recording, setup: &[(String, String)]) -> Self {
        let registered = Instant::now();
        let hold_time = KeepaliveConfig::default().hold_time();
        let start = registered + hold_time;
        // Beats are recorded in some flows only; in the others the workers are alive all the same.
        let beats =
            |worker: &str| recording.messages.iter().any(|message| message.from == worker && message.frames.len() == 4);
        let silent = |worker: &str| beats(worker) || SILENT.contains(&(flow, worker));
        let mut replay = Self {
            broker: Broker::new(BrokerConfig::default()),
            start,
            recording,
            alive: setup.iter().filter(|(worker, _)| !silent(worker)).cloned().collect(),
            next_beat: start,
            said: BTreeMap::new(),
        };
        for (worker, service) in setup {
            // A silent worker was heard one hold time before the recorded broker forgot it.
            let heard = match silent(worker) && !beats(worker) {
                true => recording
                    .messages
                    .iter()
                    .filter(|message| message.to == *worker)
                    .map(|message| registered + Duration::from_secs_f64(message.t + FORGOTTEN_AFTER))
                    .max(),
                false => None,
            };
            let ready = ["", "NFPW01", "0x01", service].map(|frame| Bytes::copy_from_slice(frame.as_bytes()));
            replay.broker.message(heard.unwrap_or(start), &Message::routing_id(worker), &ready);
        }
        replay.drain();
        replay
    }

    fn run(&mut self) {
        for message in &self.recording.messages {
            let at = self.start + Duration::from_secs_f64(message.t.max(0.0));
            self.advance(at);
            if message.from == "broker" {
                // The Python broker stops: so does ours, and a new one takes its place.
                if message.frames().get(3).is_some_and(|frame| frame == "0x03") {
                    self.broker.stop();
                    self.drain();
                    self.broker = Broker::new(BrokerConfig::default());
                }
            } else if message.delivered {
                self.broker.message(at, &Message::routing_id(&message.from), &message.frames());
                self.drain();
            }
        }
    }

    /// Lets the time pass: the workers beat, and the broker does what is due.
    fn advance(&mut self, at: Instant) {
        loop {
            let due = self.broker.next_deadline().filter(|due| *due <= at);
            if self.next_beat <= due.unwrap_or(at) {
                for (worker, service) in &self.alive {
                    let beat = ["", "NFPW01", "0x02", service].map(|frame| Bytes::copy_from_slice(frame.as_bytes()));
                    self.broker.message(self.next_beat, &Message::routing_id(worker), &beat);
                }
                self.next_beat += self.broker.config().keepalive.interval;
            } else if let Some(due) = due {
                self.broker.timeout(due);
            } else {
                return;
            }
            self.drain();
        }
    }

    fn drain(&mut self) {
        while let Some(output) = self.broker.poll_output() {
            match output {
                BrokerOutput::Send(outgoing) => {
                    self.said.entry(outgoing.to.to_string()).or_default().push(outgoing.frames);
                }
                BrokerOutput::Ask(ask) => {
                    let answer = self.recorded_answer().ok_or_else(|| "no such inventory".to_owned());
                    self.broker.answer(ask.id, answer);
                }
                BrokerOutput::Note(_) | BrokerOutput::Remember(_) | BrokerOutput::Withdraw(..) => {}
            }
        }
    }

    /// What the Python broker's owner knew. Flows have one management question each.
    fn recorded_answer(&self) -> Option<Value> {
        let reply = self.recording.messages.iter().find(|message| {
            message.from == "broker" && message.frames().get(2).is_some_and(|command| command == "0x11")
        })?;
        serde_json::from_slice(&reply.frames()[6]).ok()
    }
}

/// A message without what may differ from run to run.
fn comparable(frames: &[Bytes]) -> Vec<Bytes> {
    let mut frames = frames.to_vec();
    let is = |index: usize, text: &str| frames.get(index).is_some_and(|frame: &Bytes| frame == text);
    if is(2, "0x05") && is(5, "202") {
        if let Ok(mut body) = serde_json::from_slice::<Dispatched>(&frames[6]) {
            body.workers.sort();
            (body.fabric, body.run, body.young) = (None, None, false);
            body.absent.clear();
            frames[6] = serde_json::to_vec(&body).expect("plain data").into();
        }
    } else if is(2, "0x05") && is(5, "400") {
        if let Ok(mut body) = serde_json::from_slice::<Refused>(&frames[6]) {
            body.retry = None;
            frames[6] = serde_json::to_vec(&body).expect("plain data").into();
        }
    } else if is(3, "mmi.service.broker")
        && let Ok(Value::Array(mut rows)) = serde_json::from_slice(&frames[6])
    {
        // The rows of show_workers: times and counters are those of the recording.
        for row in &mut rows {
            if let Value::Object(row) = row {
                row.retain(|key, _| matches!(key.as_str(), "name" | "service" | "status"));
            }
        }
        rows.sort_by_key(Value::to_string);
        frames[6] = Value::Array(rows).to_string().into();
    }
    frames
}

/// Command and status of a message for a table: `RESPONSE 202`.
fn summary(frames: &[Bytes]) -> String {
    let frame = |index: usize| frames.get(index).map(|frame| String::from_utf8_lossy(frame)).unwrap_or_default();
    match Command::from_frame(frame(2).as_bytes()) {
        Some(command @ (Command::Response | Command::Event | Command::Stream | Command::Mmi)) => {
            format!("{command:?} {}", frame(5)).trim_end().to_uppercase()
        }
        Some(command) => format!("{command:?}").to_uppercase(),
        None => format!("? {}", frame(3)),
    }
}

/// What is only in one of two lists, by their longest common subsequence.
fn only(ours: &[Vec<Bytes>], theirs: &[Vec<Bytes>]) -> (Vec<usize>, Vec<usize>) {
    let (rows, columns) = (ours.len(), theirs.len());
    let mut length = vec![vec![0usize; columns + 1]; rows + 1];
    for row in (0..rows).rev() {
        for column in (0..columns).rev() {
            length[row][column] = if ours[row] == theirs[column] {
                length[row + 1][column + 1] + 1
            } else {
                length[row + 1][column].max(length[row][column + 1])
            };
        }
    }
    let (mut row, mut column) = (0, 0);
    let (mut only_ours, mut only_theirs) = (Vec::new(), Vec::new());
    while row < rows || column < columns {
        if row < rows && column < columns && ours[row] == theirs[column] {
            row += 1;
            column += 1;
        } else if column == columns || (row < rows && length[row + 1][column] >= length[row][column + 1]) {
            only_ours.push(row);
            row += 1;
        } else {
            only_theirs.push(column);
            column += 1;
        }
    }
    (only_ours, only_theirs)
}

/// The services of all workers that any flow has.
fn services(flows: &[Flow]) -> HashMap<String, String> {
    let mut services: HashMap<String, String> = owned(SERVICES).into_iter().collect();
    for message in flows.iter().flat_map(|flow| &flow.recordings).flat_map(|recording| &recording.messages) {
        let frames = message.frames();
        if frames.len() == 4 && frames[1] == "NFPW01" && (frames[2] == "0x01" || frames[2] == "0x02") {
            let service = String::from_utf8_lossy(&frames[3]).into_owned();
            services.entry(message.from.clone()).or_insert(service);
        }
    }
    services
}

/// Who was registered when a recording began: workers that speak, or are spoken to, before they say READY.
fn implied(recording: &Recording, services: &HashMap<String, String>) -> Vec<(String, String)> {
    let mut registered = Vec::new();
    let mut seen = BTreeSet::new();
    for message in &recording.messages {
        let frames = message.frames();
        let command = frames.get(2).map(|frame| frame.to_vec()).unwrap_or_default();
        let is_worker = frames.get(1).is_some_and(|header| header == "NFPW01");
        let for_worker = message.from == "broker"
            && (matches!(&command[..], b"0x02" | b"0x03" | b"0x04" | b"0x06" | b"0x10")
                || frames.get(3).is_some_and(|frame| frame == "0x03"));
        let worker = match (is_worker, for_worker) {
            (true, _) => &message.from,
            (_, true) => &message.to,
            (false, false) => continue,
        };
        if seen.insert(worker.clone()) && command != b"0x01" {
            let service = services.get(worker).cloned().unwrap_or_else(|| "unknown".to_owned());
            registered.push((worker.clone(), service));
        }
    }
    if seen.is_empty() {
        return owned(LAB);
    }
    registered
}

fn owned(workers: &[(&str, &str)]) -> Vec<(String, String)> {
    workers.iter().map(|(worker, service)| ((*worker).to_owned(), (*service).to_owned())).collect()
}

#[test]
fn our_broker_says_what_the_recorded_broker_said_but_for_the_differences_in_the_table() {
    let flows = vectors::flows();
    let services = services(&flows);
    let (mut replayed, mut compared) = (0, 0);
    let mut found: BTreeMap<(String, String), Vec<String>> = BTreeMap::new();
    for flow in &flows {
        if flow.name.starts_with("fake_") {
            // A script in place of the broker: there is nothing to compare with.
            continue;
        }
        for recording in &flow.recordings {
            replayed += 1;
            let setup = match SETUP.iter().find(|(name, _)| *name == flow.name) {
                Some((_, workers)) => owned(workers),
                None => implied(recording, &services),
            };
            let mut replay = Replay::new(&flow.name, recording, &setup);
            replay.run();
            let mut theirs: BTreeMap<String, Vec<Vec<Bytes>>> = BTreeMap::new();
            for message in recording.messages.iter().filter(|message| message.from == "broker") {
                theirs.entry(message.to.clone()).or_default().push(message.frames());
            }
            let peers: BTreeSet<&String> = theirs.keys().chain(replay.said.keys()).collect();
            for peer in peers {
                let said = |side: &BTreeMap<String, Vec<Vec<Bytes>>>| -> Vec<Vec<Bytes>> {
                    let messages = side.get(peer).into_iter().flatten();
                    messages.filter(|frames| frames[2] != "0x02").map(|frames| comparable(frames)).collect()
                };
                let (ours, theirs) = (said(&replay.said), said(&theirs));
                compared += theirs.len();
                let (only_ours, only_theirs) = only(&ours, &theirs);
                let mut note = |side: &str, frames: &[Bytes]| {
                    let detail = format!("{} {peer} {side} {}: {frames:?}", recording.version, summary(frames));
                    let key = (flow.name.clone(), format!("{peer} {side} {}", summary(frames)));
                    found.entry(key).or_default().push(detail.chars().take(500).collect());
                };
                only_ours.iter().for_each(|index| note("ours", &ours[*index]));
                only_theirs.iter().for_each(|index| note("theirs", &theirs[*index]));
            }
        }
    }
    let mut allowed = BTreeSet::new();
    for (flow, what) in DIFFERENCES.iter().flat_map(|difference| difference.places) {
        assert!(allowed.insert(((*flow).to_owned(), (*what).to_owned())), "{flow} {what} stands in the table twice");
    }
    let unexplained: Vec<String> = found
        .iter()
        .filter(|(key, _)| !allowed.contains(key))
        .map(|((flow, what), details)| format!("{flow} | {what} | x{}\n      {}", details.len(), details[0]))
        .collect();
    assert!(unexplained.is_empty(), "{} not in the table:\n{}", unexplained.len(), unexplained.join("\n"));
    let unused: Vec<_> = allowed.iter().filter(|key| !found.contains_key(*key)).collect();
    assert!(unused.is_empty(), "rows of the table that nothing needs: {unused:?}");
    println!("{} flows, {replayed} recordings, {compared} messages compared; differences:", flows.len());
    for Difference { reason, places } in DIFFERENCES {
        let messages: usize = places
            .iter()
            .filter_map(|(flow, what)| found.get(&((*flow).to_owned(), (*what).to_owned())))
            .map(Vec::len)
            .sum();
        println!("{messages:5} {reason}");
    }
}
