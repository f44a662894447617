//! What workers say: they come and go, and their answers pass on to clients.

use std::time::Instant;

use bytes::Bytes;

use super::missed::EventKind;
use super::registry::Registration;
use super::{Broker, BrokerNote, BrokerOutput, DISCONNECT_INTERVAL, Purpose};
use crate::body;
use crate::frame::{BROKER_HEADER, Command, Status};
use crate::message::{BrokerToWorker, DecodeError, WorkerMessage, WorkerReply};
use crate::name::{Identity, ServiceName};

impl Broker {
    pub(super) fn worker_message(&mut self, now: Instant, worker: Identity, message: WorkerMessage) {
        match message {
            WorkerMessage::Ready(service) => self.register(now, worker, service),
            WorkerMessage::Keepalive(service) => {
                if !self.registry.keepalive(now, &worker) {
                    self.stranger(now, worker, service);
                }
            }
            WorkerMessage::Disconnect(_) => {
                if self.left(now, &worker) {
                    self.note(BrokerNote::Left { worker });
                }
            }
            WorkerMessage::Response(reply) => self.relay(now, worker, Command::Response, reply),
            WorkerMessage::Event(reply) => self.relay(now, worker, Command::Event, reply),
            WorkerMessage::Stream(reply) => self.relay(now, worker, Command::Stream, reply),
        }
    }

    fn register(&mut self, now: Instant, worker: Identity, service: ServiceName) {
        if self.registry.counts().0 >= self.config.workers_max && !self.registry.contains(&worker) {
            self.count_refusal("registry_full");
            self.note(BrokerNote::RegistryFull { worker });
            return;
        }
        self.strangers.remove(&worker);
        self.departed.remove(&worker);
        let registration = self.registry.register(now, worker.clone(), service.clone());
        if registration != Registration::Again {
            // Before anything can be given to it.
            self.remember_worker(&worker, &service, false);
        }
        match registration {
            Registration::New => self.note(BrokerNote::Registered { worker, service }),
            Registration::Again => {}
            Registration::Moved { from } => self.note(BrokerNote::Moved { worker, from, to: service }),
        }
    }

    /// A worker that is not registered speaks: it is told to register, but not more than once a second.
    fn stranger(&mut self, now: Instant, worker: Identity, service: ServiceName) {
        if let Some(last) = self.strangers.get(&worker)
            && now.saturating_duration_since(*last) < DISCONNECT_INTERVAL
        {
            return;
        }
        if self.strangers.len() >= self.config.strangers_max {
            self.strangers.retain(|_, last| now.saturating_duration_since(*last) < DISCONNECT_INTERVAL);
            if self.strangers.len() >= self.config.strangers_max {
                return;
            }
        }
        self.strangers.insert(worker.clone(), now);
        self.counters.strangers += 1;
        let frames = BrokerToWorker::Disconnect(service).encode();
        self.send(worker.clone(), frames, Purpose::Disconnect);
        self.note(BrokerNote::Stranger { worker });
    }

    fn relay(&mut self, now: Instant, worker: Identity, command: Command, reply: WorkerReply) {
        let mut purpose = Purpose::Relay;
        let checked = match command {
            Command::Stream => Ok(()),
            Command::Event if reply.payload.len() <= body::CHECKED_BYTES_MAX => {
                EventKind::read(&reply.payload).map(|kind| {
                    if kind.is_progress() {
                        purpose = Purpose::Progress;
                    }
                })
            }
            Command::Response if reply.status == Status::ACCEPTED => check_accepted(&reply.payload),
            _ => body::check_relayed(&reply.payload),
        };
        if let Err(error) = checked {
            self.count_refusal(error.kind());
            self.note(BrokerNote::Refused { peer: worker.to_string(), error });
            return;
        }
        if command == Command::Event {
            self.counters.events += 1;
        }
        if command == Command::Response && reply.status == Status::REFUSED {
            // It did not take the job: a repeated POST may go to another.
            let turn = refused_turn(&reply.payload);
            if self.remembered.forget(&reply.client, &reply.job, &worker, turn) {
                self.undispatched.insert(&reply.client, &reply.job, ());
            }
        }
        let service = match self.registry.service_frame(&worker) {
            Some(service) => {
                self.registry.extend(now, &worker);
                self.registry.answered(&worker);
                service
            }
            None => {
                // What it has to say is for its client all the same: a large result on a slow line takes longer than the hold
                // time. Its service is not in the message; any valid name does, as neither workers nor clients look at it.
                let service = ServiceName::parse("unknown").expect("a valid name");
                let frame = Bytes::copy_from_slice(service.as_str().as_bytes());
                self.stranger(now, worker.clone(), service);
                frame
            }
        };
        if command == Command::Response && reply.status == Status::OK {
            self.outputs.push_back(BrokerOutput::Withdraw(reply.client.clone(), reply.job.clone()));
        }
        let job = Bytes::copy_from_slice(reply.job.as_str().as_bytes());
        let frames = |command: Command, status: Status, payload| {
            let header = Bytes::from_static(BROKER_HEADER);
            vec![Bytes::new(), header, command.to_frame(), service.clone(), job.clone(), status.to_frame(), payload]
        };
        if let Some(word) = self.missed.take(&reply.client, &reply.job) {
            // Before another event it needs room as that does: without it, neither leaves.
            let of_word = if purpose == Purpose::Progress { Purpose::Progress } else { Purpose::Missed };
            self.send(reply.client.clone(), frames(Command::Event, Status::OK, body::encode(&word)), of_word);
        }
        let takes = command == Command::Response && reply.status == Status::ACCEPTED;
        let withdrawn = if takes { self.withdrawal(&reply.client, &reply.job) } else { None };
        self.send(reply.client, frames(command, reply.status, reply.payload), purpose);
        if let Some(withdrawn) = withdrawn {
            // Who told of the cancellation may have known nothing of this worker.
            self.send(worker, withdrawn.encode(), Purpose::Dispatch);
        }
    }
}

/// Which turn of a job a worker refuses, where it is one that says so.
fn refused_turn(payload: &[u8]) -> Option<u32> {
    #[derive(serde::Deserialize)]
    struct Turn {
        #[serde(default)]
        turn: Option<serde_json::Value>,
    }
    if payload.len() > body::CHECKED_BYTES_MAX {
        return None;
    }
    let turn = serde_json::from_slice::<Turn>(payload).ok()?.turn?;
    turn.as_u64().and_then(|turn| u32::try_from(turn).ok())
}

/// A 201 without its worker ends the socket thread of Python clients, so it does not get past us.
fn check_accepted(payload: &[u8]) -> Result<(), DecodeError> {
    #[derive(serde::Deserialize)]
    struct Worker<'a> {
        #[serde(borrow)]
        #[allow(dead_code, reason = "only its presence matters")]
        worker: std::borrow::Cow<'a, str>,
    }
    if payload.len() > body::CHECKED_BYTES_MAX {
        let error = format!("it has {} bytes, at most {} are looked at", payload.len(), body::CHECKED_BYTES_MAX);
        return Err(DecodeError::Body { expected: "an acceptance", error });
    }
    body::check_relayed(payload)?;
    serde_json::from_slice::<Worker<'_>>(payload).map(|_| ()).map_err(|error| DecodeError::Body {
        expected: "an acceptance that names its worker",
        error: error.to_string(),
    })
}
