//! What the broker itself says to clients.

use std::time::Instant;

use super::memory::Posted;
use super::{Broker, BrokerOutput, Dispatch, EVERY_SERVICE, Outgoing, Purpose};
use crate::body::{self, CANCELLED_WORD, CancelBody, Dispatched, FABRIC_VERSION, Poster, Refused};
use crate::frame::Status;
use crate::message::{BrokerToClient, BrokerToWorker, ClientCommand, ClientMessage, Delivery, Reply};
use crate::name::{Identity, JobId, ServiceName};
use crate::target::Target;

impl Broker {
    pub(super) fn reply_refused(
        &mut self,
        peer: &Identity,
        service: ServiceName,
        job: JobId,
        target: String,
        error: String,
    ) {
        let body = Refused {
            workers: None,
            uuid: job.to_string(),
            target,
            status: "FAILED".to_owned(),
            service: service.to_string(),
            errors: vec![error.clone()],
            error: Some(error),
            retry: None,
            turn: None,
        };
        self.reply(peer, Reply { service, job, status: Status::REFUSED, payload: body::encode(&body) });
    }

    /// A job is cancelled as a whole: no POST of it is handed on any more, and its client is told where another one wants that.
    pub(super) fn remember_cancelled(&mut self, client: &Identity, request: &ClientMessage, cancel: &CancelBody) {
        if !cancel.ends {
            return;
        }
        let text = body::bounded_cancel_text(cancel.text.clone().unwrap_or_else(|| format!("cancelled by {client}")));
        let owner = cancel.client.as_ref().unwrap_or(client);
        self.cancelled.insert(owner, &request.job, text.clone());
        // Whoever is registered is a worker, and has no jobs of its own.
        if owner != client && !self.registry.contains(owner) {
            let (service, job) = (request.service.clone(), request.job.clone());
            self.tell_cancelled(&owner.clone(), service, job, &request.target, text);
        }
    }

    /// For a worker that takes a job which is cancelled as a whole.
    pub(super) fn withdrawal(&self, client: &Identity, job: &JobId) -> Option<BrokerToWorker> {
        let text = self.cancelled.get(client, job)?.clone();
        let body = body::encode(&CancelBody { text: Some(text), ends: true, ..CancelBody::default() });
        Some(BrokerToWorker::Delete(Delivery { client: client.clone(), job: job.clone(), body }))
    }

    /// Tells a client that its job is cancelled. One of Python takes it for a refusal.
    pub(super) fn tell_cancelled(
        &mut self,
        client: &Identity,
        service: ServiceName,
        job: JobId,
        target: &Target,
        text: String,
    ) {
        let body = Refused {
            workers: None,
            uuid: job.to_string(),
            target: echo(target.as_str().as_bytes()),
            status: CANCELLED_WORD.to_owned(),
            service: service.to_string(),
            errors: vec![text.clone()],
            error: Some(text),
            retry: None,
            turn: None,
        };
        self.reply(client, Reply { service, job, status: Status::REFUSED, payload: body::encode(&body) });
    }

    /// Nobody gets a request. `registered`: whom it is for is registered, and its connection is being made anew, or takes nothing.
    pub(super) fn refuse_target(
        &mut self,
        now: Instant,
        client: &Identity,
        request: ClientMessage,
        poster: Poster,
        registered: bool,
    ) {
        let ClientMessage { command, service, target, job, .. } = request;
        let asks = matches!(command, ClientCommand::Post | ClientCommand::Get);
        let expected = asks && (registered || self.is_expected(now, &service, &target));
        let retry = expected.then_some(true);
        let target = echo(target.as_str().as_bytes());
        // The wording is that of the recorded broker, Python byte literals included: people search their logs for it.
        let error = format!("NFPBroker - b'{service}' service failed to target workers 'b'{target}''");
        if command == ClientCommand::Mmi {
            self.reply_management(client, service, job, Status::REFUSED, &error_value(error));
            return;
        }
        let body = Refused {
            workers: None,
            uuid: job.to_string(),
            target,
            status: "FAILED".to_owned(),
            service: service.to_string(),
            errors: vec![error],
            error: None,
            retry,
            turn: poster.fabric.then_some(poster.turn),
        };
        self.reply(client, Reply { service, job, status: Status::REFUSED, payload: body::encode(&body) });
    }

    /// All workers of a dispatch were tried: tell the client.
    pub(super) fn conclude(&mut self, dispatch: Dispatch) {
        let Dispatch { at, client, request, poster, mut reached, tried, unreached, repeated, holders, whole, .. } =
            dispatch;
        if reached.is_empty() {
            match request.command {
                // A question about a job whose worker is away for a moment is no verdict on the job, and clients take every
                // refusal for one.
                ClientCommand::Get => reached = tried,
                // Whom it did not reach is told again by its client.
                ClientCommand::Delete => {}
                ClientCommand::Put => return,
                ClientCommand::Post | ClientCommand::Open | ClientCommand::Disconnect | ClientCommand::Mmi => {
                    if poster.first {
                        self.undispatched.insert(&client, &request.job, ());
                    }
                    self.refuse_target(at, &client, request, poster, !tried.is_empty());
                    return;
                }
            }
        }
        match request.command {
            ClientCommand::Post => {
                let first = self.undispatched.remove(&client, &request.job) || poster.first;
                let moves = request.target == Target::Any && request.service.as_str() != EVERY_SERVICE;
                let posted = Posted { first, moves, turn: poster.turn };
                self.remembered.insert(&client, &request.job, &reached, posted);
            }
            ClientCommand::Get | ClientCommand::Delete => {}
            ClientCommand::Put | ClientCommand::Open | ClientCommand::Disconnect | ClientCommand::Mmi => return,
        }
        // Of a repeated POST the client knows already who has the job.
        let tells_unreached = request.command == ClientCommand::Post && !repeated;
        let cancels = request.command == ClientCommand::Delete;
        let holders = cancels.then_some(holders);
        let tells_absent = tells_unreached || request.command == ClientCommand::Get;
        let mut absent = if tells_absent { self.absent(at, &request.target) } else { Vec::new() };
        if request.command == ClientCommand::Get {
            // Registered, and most likely about to be back, or to be found gone.
            absent.extend(unreached.iter().cloned());
        }
        let asks_all = request.command == ClientCommand::Get && request.target == Target::All;
        let body = Dispatched {
            gone: asks_all.then(|| self.gone(at, &request.service, !unreached.is_empty())).flatten(),
            run: Some(self.config.seed as u32),
            young: self.is_young(at),
            absent,
            workers: reached,
            unreached: if tells_unreached { unreached } else { Vec::new() },
            holders,
            whole: cancels && whole,
            uuid: request.job.clone(),
            target: request.target.as_str().to_owned(),
            status: "DISPATCHED".to_owned(),
            service: request.service.clone(),
            fabric: Some(FABRIC_VERSION),
        };
        // Where it is clear who has the job once it speaks.
        let one = request.service.as_str() != EVERY_SERVICE
            && match &request.target {
                Target::Any => true,
                Target::All => false,
                Target::Text(text) => matches!(body.workers.as_slice(), [worker] if worker.as_str() == text),
            };
        let until_result = (poster.fabric && one).then(|| request.job.clone());
        let reply = Reply {
            service: request.service,
            job: request.job,
            status: Status::DISPATCHED,
            payload: body::encode(&body),
        };
        self.counters.sent += 1;
        self.outputs.push_back(BrokerOutput::Send(Outgoing {
            to: client,
            frames: BrokerToClient::Response(reply).encode(),
            purpose: Purpose::Dispatched,
            until_result,
        }));
    }
}

/// What a refusal repeats of the target that it refuses, for people.
const ECHO_BYTES_MAX: usize = 512;

/// A target for a refusal: a client that sends a large one gets no large answer.
pub(super) fn echo(target: &[u8]) -> String {
    if target.len() <= ECHO_BYTES_MAX {
        return String::from_utf8_lossy(target).into_owned();
    }
    // A character that is cut in two must not look like one that was wrong.
    let text = String::from_utf8_lossy(&target[..ECHO_BYTES_MAX]);
    format!("{}... ({} bytes)", text.trim_end_matches(char::REPLACEMENT_CHARACTER), target.len())
}

pub(super) fn error_value(error: String) -> serde_json::Value {
    serde_json::json!({ "status": "FAILED", "error": error.clone(), "errors": [error] })
}
