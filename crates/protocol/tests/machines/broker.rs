//! Operations on the broker.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use arbitrary::Arbitrary;
use bytes::Bytes;
use norfab_protocol::broker::{AskId, Broker, BrokerConfig, BrokerOutput, Outgoing, Purpose, Undelivered};
use norfab_protocol::frame::Command;
use norfab_protocol::message::{BrokerToClient, BrokerToWorker};

use super::{Body, CLIENTS, JOBS, SERVICES, TARGETS, WORKERS, frames, pick};

#[derive(Debug, Clone, Arbitrary)]
pub enum BrokerOperation {
    Ready { worker: u8, service: u8 },
    Keepalive { worker: u8, service: u8 },
    Leave { worker: u8 },
    Request { client: u8, command: u8, service: u8, target: u8, job: u8, body: Body },
    Reply { worker: u8, command: u8, client: u8, job: u8, status: u16, body: Body },
    Raw { peer: Vec<u8>, frames: Vec<Vec<u8>> },
    Pass { milliseconds: u16 },
    Answer { right: bool },
    Reachable { peer: u8, reachable: bool },
    Stop,
}

const COMMANDS: &[&str] = &["0x04", "0x06", "0x10", "0x07", "0x11", "0x00", "0x03", "0x05", "0x99"];
const REPLIES: &[&str] = &["0x05", "0x08", "0x09"];

struct Run {
    broker: Broker,
    now: Instant,
    /// Registered workers with their service and the end of their hold time, as simple as it gets.
    registered: BTreeMap<String, (String, Instant)>,
    unreachable: BTreeSet<String>,
    asked: Vec<AskId>,
    /// Jobs that went to someone before, by client.
    posted: BTreeSet<(String, String)>,
    stopped: bool,
}

/// Runs operations one after the other and checks the broker after each. Panics where something does not hold.
pub fn run(operations: &[BrokerOperation]) {
    let config = BrokerConfig {
        workers_max: 3,
        remembered_jobs_max: 2,
        asks_max: 2,
        strangers_max: 2,
        ..BrokerConfig::default()
    };
    let mut run = Run {
        broker: Broker::new(config),
        now: Instant::now(),
        registered: BTreeMap::new(),
        unreachable: BTreeSet::new(),
        asked: Vec::new(),
        posted: BTreeSet::new(),
        stopped: false,
    };
    for operation in operations {
        run.operate(operation);
        run.check_registry();
    }
}

impl Run {
    fn operate(&mut self, operation: &BrokerOperation) {
        let hold_time = self.broker.config().keepalive.hold_time();
        match operation {
            BrokerOperation::Ready { worker, service } => {
                let (worker, service) = (pick(WORKERS, *worker), pick(SERVICES, *service));
                self.message(worker.as_bytes(), &frames(&[b"", b"NFPW01", b"0x01", service.as_bytes()]));
                let room = self.registered.len() < self.broker.config().workers_max;
                if !self.stopped && !service.is_empty() && (room || self.registered.contains_key(worker)) {
                    self.registered.insert(worker.to_owned(), (service.to_owned(), self.now + hold_time));
                }
                assert_eq!(self.drain(), [], "a READY is not answered");
            }
            BrokerOperation::Keepalive { worker, service } => {
                let (worker, service) = (pick(WORKERS, *worker), pick(SERVICES, *service));
                self.message(worker.as_bytes(), &frames(&[b"", b"NFPW01", b"0x02", service.as_bytes()]));
                if let Some((_, hold_until)) = self.registered.get_mut(worker)
                    && !service.is_empty()
                {
                    *hold_until = self.now + hold_time;
                }
                let sent = self.drain();
                assert!(sent.iter().all(|sent| sent.to.as_str() == worker && sent.purpose == Purpose::Disconnect));
                assert!(sent.len() <= 1 && (sent.is_empty() || !self.registered.contains_key(worker)));
            }
            BrokerOperation::Leave { worker } => {
                let worker = pick(WORKERS, *worker);
                self.message(worker.as_bytes(), &frames(&[b"", b"NFPW01", b"0x03", b"s0"]));
                self.registered.remove(worker);
                assert_eq!(self.drain(), [], "a good-bye is not answered");
            }
            BrokerOperation::Request { client, command, service, target, job, body } => {
                let (client, service, command) =
                    (pick(CLIENTS, *client), pick(SERVICES, *service), pick(COMMANDS, *command));
                let (target, job) = (pick(TARGETS, *target), pick(JOBS, *job));
                self.message(
                    client.as_bytes(),
                    &[
                        Bytes::new(),
                        Bytes::from_static(b"NFPC01"),
                        Bytes::copy_from_slice(command.as_bytes()),
                        Bytes::copy_from_slice(service.as_bytes()),
                        Bytes::copy_from_slice(target.as_bytes()),
                        Bytes::copy_from_slice(job.as_bytes()),
                        body.bytes(),
                    ],
                );
                let sent = self.drain();
                self.check_request(client, command, service, job, target, &sent);
            }
            BrokerOperation::Reply { worker, command, client, job, status, body } => {
                let (worker, client) = (pick(WORKERS, *worker), pick(CLIENTS, *client));
                let status = format!("{status:03}");
                let mut message = frames(&[b"", b"NFPW01", pick(REPLIES, *command).as_bytes(), client.as_bytes(), b""]);
                message.extend(frames(&[pick(JOBS, *job).as_bytes(), status.as_bytes()]));
                message.push(body.bytes());
                self.message(worker.as_bytes(), &message);
                let sent = self.drain();
                let registered = self.registered.contains_key(worker);
                let strange = usize::from(!registered);
                assert!(sent.len() <= 1 + strange, "at most one relay: {sent:?}");
                if let Some((relay, told)) = sent.split_last() {
                    assert!(matches!(relay.purpose, Purpose::Relay | Purpose::Progress));
                    assert_eq!(relay.to.as_str(), client);
                    assert!(told.iter().all(|sent| sent.purpose == Purpose::Disconnect && sent.to == worker));
                    if let Some((_, hold_until)) = self.registered.get_mut(worker) {
                        *hold_until = self.now + hold_time;
                    }
                }
            }
            BrokerOperation::Raw { peer, frames } => {
                let message: Vec<Bytes> = frames.iter().map(|frame| Bytes::copy_from_slice(frame)).collect();
                self.message(peer, &message);
                let sent = self.drain();
                assert!(sent.len() <= 2 + self.registered.len(), "{sent:?}");
                // Whatever it was, it may have registered someone: let the model learn it.
                self.learn();
            }
            BrokerOperation::Pass { milliseconds } => {
                self.now += Duration::from_millis(u64::from(*milliseconds));
                self.broker.timeout(self.now);
                let now = self.now;
                self.registered.retain(|_, (_, hold_until)| *hold_until > now);
                let sent = self.drain();
                assert!(sent.len() <= self.registered.len(), "at most one beat for each: {sent:?}");
                assert!(sent.iter().all(|sent| self.registered.contains_key(sent.to.as_str())));
                assert!(self.broker.next_deadline().is_none_or(|at| at > now), "all that was due is done");
            }
            BrokerOperation::Answer { right } => {
                if let Some(id) = self.asked.pop() {
                    self.broker.answer(id, if *right { Ok(1.into()) } else { Err("no".to_owned()) });
                    assert_eq!(self.drain().len(), 2, "a management reply goes out twice");
                    self.broker.answer(id, Ok(2.into()));
                    assert_eq!(self.drain().len(), 0, "but only once");
                }
            }
            BrokerOperation::Reachable { peer, reachable } => {
                let peer = pick(WORKERS, *peer).to_owned();
                if *reachable {
                    self.unreachable.remove(&peer);
                } else {
                    self.unreachable.insert(peer);
                }
            }
            BrokerOperation::Stop => {
                self.broker.stop();
                assert_eq!(self.drain().len(), self.registered.len(), "every worker is told");
                self.registered.clear();
                self.stopped = true;
            }
        }
    }

    fn message(&mut self, peer: &[u8], frames: &[Bytes]) {
        self.broker.message(self.now, peer, frames);
    }

    /// Takes all outputs; sends to unreachable peers fail. Returns those that did not.
    fn drain(&mut self) -> Vec<Sent> {
        let mut sent = Vec::new();
        let mut outputs = 0;
        while let Some(output) = self.broker.poll_output() {
            outputs += 1;
            assert!(outputs < 64, "one input has few outputs");
            match output {
                BrokerOutput::Send(outgoing) => {
                    let Outgoing { to, frames, purpose, .. } = &outgoing;
                    let purpose = *purpose;
                    match purpose {
                        Purpose::Keepalive | Purpose::Disconnect | Purpose::Dispatch => {
                            BrokerToWorker::decode(frames).expect("workers can read what we send");
                        }
                        Purpose::Relay | Purpose::Progress | Purpose::Missed | Purpose::Reply | Purpose::Dispatched => {
                            BrokerToClient::decode(frames).expect("clients can read what we send");
                        }
                    }
                    if purpose == Purpose::Dispatch && self.unreachable.contains(to.as_str()) {
                        self.broker.undeliverable(&outgoing, Undelivered::Unroutable);
                        continue;
                    }
                    sent.push(Sent {
                        to: to.to_string(),
                        purpose,
                        status: frames.get(5).cloned(),
                        command: frames[2].clone(),
                    });
                }
                BrokerOutput::Ask(ask) => self.asked.push(ask.id),
                BrokerOutput::Note(_) | BrokerOutput::Remember(_) | BrokerOutput::Withdraw(..) => {}
            }
        }
        sent
    }

    fn check_request(&mut self, client: &str, command: &str, service: &str, job: &str, target: &str, sent: &[Sent]) {
        let dispatched: Vec<&str> =
            sent.iter().filter(|sent| sent.purpose == Purpose::Dispatch).map(|sent| sent.to.as_str()).collect();
        let unique: BTreeSet<&str> = dispatched.iter().copied().collect();
        assert_eq!(unique.len(), dispatched.len(), "no worker gets one request twice");
        assert!(unique.iter().all(|worker| self.registered.contains_key(*worker)), "only the registered get requests");
        let before = command == "0x04" && self.posted.contains(&(client.to_owned(), job.to_owned()));
        let cancels = command == "0x07";
        assert!(target != "any" || service == "all" || before || cancels || dispatched.len() <= 1, "any is one");
        let replies: Vec<&Sent> =
            sent.iter().filter(|sent| matches!(sent.purpose, Purpose::Reply | Purpose::Dispatched)).collect();
        assert!(replies.iter().all(|reply| reply.to == client), "the answer is for who asked");
        assert_eq!(dispatched.len() + replies.len(), sent.len());
        if self.stopped || job.is_empty() || service.is_empty() {
            assert!(sent.is_empty(), "{sent:?}");
            return;
        }
        let management = service.ends_with(".service.broker");
        match Command::from_frame(command.as_bytes()) {
            Some(Command::Get) if !management => {
                // Whether its worker could be reached or is away for a moment.
                assert_eq!(replies.len(), 1, "202 or 400");
                let status = replies[0].status.as_ref().expect("a status");
                assert!(dispatched.is_empty() || status == "202", "202 where it went to someone");
            }
            Some(Command::Delete) if !management => {
                assert_eq!(replies.len(), 1, "202 or 400");
                assert!(dispatched.is_empty() || replies[0].status.as_ref().is_some_and(|status| status == "202"));
            }
            Some(Command::Post) if !management => {
                assert_eq!(replies.len(), 1, "202 or 400");
                let status = replies[0].status.as_ref().expect("a status");
                assert!(dispatched.is_empty() || status == "202", "202 where it went to someone");
                assert!(!dispatched.is_empty() || status == "400" || before, "400 where it never did");
                if status == "202" {
                    self.posted.insert((client.to_owned(), job.to_owned()));
                }
            }
            Some(Command::Put) if !management => {
                assert!(replies.is_empty() || dispatched.is_empty(), "400 or nothing");
            }
            Some(Command::Open | Command::Disconnect) if !management => assert!(dispatched.is_empty()),
            Some(Command::Mmi) if !management => assert_eq!(replies.len(), 2),
            Some(Command::Response) | None => assert_eq!(replies.len(), 1, "an unknown command is refused"),
            _ => assert!(replies.len() == 2 || replies.is_empty() && !self.asked.is_empty(), "answered, or asked"),
        }
    }

    fn learn(&mut self) {
        let views = self.broker.workers(self.now);
        self.registered = views
            .into_iter()
            .map(|view| (view.name.to_string(), (view.service.to_string(), self.now + view.hold_time_left)))
            .collect();
    }

    fn check_registry(&self) {
        let views = self.broker.workers(self.now);
        let services: BTreeSet<&str> = views.iter().map(|view| view.service.as_str()).collect();
        assert_eq!(self.broker.counts(), (views.len(), services.len()));
        let seen: BTreeMap<&str, (&str, Instant)> = views
            .iter()
            .map(|view| (view.name.as_str(), (view.service.as_str(), self.now + view.hold_time_left)))
            .collect();
        let model: BTreeMap<&str, (&str, Instant)> = self
            .registered
            .iter()
            .map(|(worker, (service, hold_until))| (worker.as_str(), (service.as_str(), *hold_until)))
            .collect();
        assert_eq!(seen, model);
    }
}

#[derive(Debug, PartialEq)]
struct Sent {
    to: String,
    purpose: Purpose,
    status: Option<Bytes>,
    command: Bytes,
}
