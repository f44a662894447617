//! What comes out of a broker machine.

use std::collections::BTreeMap;
use std::time::Duration;

use super::management::ManagementAsk;
use crate::frame::Frames;
use crate::message::DecodeError;
use crate::name::{Identity, JobId, NameError, ServiceName};

/// Why a message goes out; decides what a failure means.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Purpose {
    /// A beat.
    Keepalive,
    /// Register again, or the broker stops.
    Disconnect,
    /// A client's request to a worker.
    Dispatch,
    /// A worker's message to a client.
    Relay,
    /// A worker's word on how a task goes on: it may be dropped, so it must leave room for what must not be.
    Progress,
    /// The word that such were dropped, before something that is not.
    Missed,
    /// The broker's own answer.
    Reply,
    /// The broker's word that a request went on to its workers. Nobody waits for it: it may wait a moment and leave with
    /// what the workers say, as long as it leaves first.
    Dispatched,
}

/// A message for one peer.
#[derive(Debug, Clone)]
pub struct Outgoing {
    /// Whom it is for.
    pub to: Identity,
    /// Frames after the routing id.
    pub frames: Frames,
    /// Why it goes out.
    pub purpose: Purpose,
    /// While it waits, the result of this job makes it pointless: see [`BrokerOutput::Withdraw`].
    pub until_result: Option<JobId>,
}

/// Why a message did not go out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Undelivered {
    /// The peer is not connected.
    Unroutable,
    /// The peer takes nothing at the moment.
    Full,
}

/// What the owner is to do.
#[derive(Debug)]
pub enum BrokerOutput {
    /// Send.
    Send(Outgoing),
    /// A result of this job for this client follows: [`Outgoing::until_result`].
    Withdraw(Identity, JobId),
    /// Write down what a broker after this one has to know of a worker: see [`super::Broker::restore`]. The last word on a
    /// worker counts.
    Remember(KnownWorker),
    /// Find out and [`super::Broker::answer`].
    Ask(ManagementAsk),
    /// Log.
    Note(BrokerNote),
}

/// What a broker after this one has to know of a worker.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KnownWorker {
    /// Who.
    pub worker: Identity,
    /// What it is registered for, or was.
    pub service: ServiceName,
    /// It is not registered any more, since now.
    pub gone: bool,
}

/// What brokers before this one wrote down of a worker.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RestoredWorker {
    /// Who.
    pub worker: Identity,
    /// What it was registered for.
    pub service: ServiceName,
    /// How long ago it was registered last. `None`: when the last broker ended.
    pub gone: Option<Duration>,
}

/// What happened, for logs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum BrokerNote {
    /// A worker is new.
    Registered {
        /// Who.
        worker: Identity,
        /// For what.
        service: ServiceName,
    },
    /// A worker has another service now.
    Moved {
        /// Who.
        worker: Identity,
        /// From where.
        from: ServiceName,
        /// To where.
        to: ServiceName,
    },
    /// A worker said good-bye.
    Left {
        /// Who.
        worker: Identity,
    },
    /// A worker was silent for its hold time.
    Expired {
        /// Who.
        worker: Identity,
    },
    /// A worker that is not registered was told to register.
    Stranger {
        /// Who.
        worker: Identity,
    },
    /// The registry is full.
    RegistryFull {
        /// Who was refused.
        worker: Identity,
    },
    /// A client speaks under the name of a registered worker, which is cut off by that until it connects again.
    NameTaken {
        /// Which name.
        worker: Identity,
    },
    /// A message was refused.
    Refused {
        /// From whom, readable.
        peer: String,
        /// Why.
        error: DecodeError,
    },
    /// A peer's name was refused.
    BadPeer {
        /// Why.
        error: NameError,
    },
    /// A message did not reach its peer.
    Undelivered {
        /// Whom it was for.
        to: Identity,
        /// What it was.
        purpose: Purpose,
        /// Why.
        reason: Undelivered,
    },
}

/// What was counted since the start.
#[derive(Debug, Clone, Default)]
pub struct BrokerCounters {
    /// Messages in.
    pub received: u64,
    /// Messages out, those that failed included.
    pub sent: u64,
    /// Events among those relayed.
    pub events: u64,
    /// Refused messages by [`DecodeError::kind`].
    pub refused: BTreeMap<&'static str, u64>,
    /// Messages for peers that were not connected.
    pub unroutable: u64,
    /// Messages for peers that took nothing.
    pub full: u64,
    /// Workers told to register again.
    pub strangers: u64,
}
