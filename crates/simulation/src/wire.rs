//! The connection between one peer and the broker: in order within each direction, lost as a whole.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use norfab_protocol::frame::Frames;
use norfab_protocol::name::JobId;
use norfab_protocol::worker::Class;

use crate::scenario::Direction;

/// Most messages that wait for a connection: what the bounded queue of an owner and its socket hold.
const OUTBOX_MAX: usize = 10_000;

/// One peer's connection.
#[derive(Debug)]
pub struct Wire {
    /// Counts the connections: what was sent on an earlier one is lost.
    pub epoch: u64,
    /// Whether there is one.
    pub up: bool,
    /// Messages of the peer that wait for it.
    outbox: VecDeque<(Frames, Option<JobId>)>,
    /// READY goes before them.
    first: Option<Frames>,
    /// The latest beat, between the two: as an owner's queue has it.
    beat: Option<Frames>,
    /// Until when nothing more arrives at the peer on this connection, and nothing of the peer at the broker.
    to_peer_from: Instant,
    to_broker_from: Instant,
    /// Before this there is no connection: the network is cut.
    pub cut_until: Instant,
    /// A connection that the peer has lost, and of which the broker still gets what the peer had said on it.
    late: Option<u64>,
    /// The peer said good-bye on this connection.
    pub said_goodbye: bool,
    last_to_broker: Instant,
    last_to_peer: Instant,
    /// Whether anything was sent on this connection by the peer.
    pub spoke: bool,
}

impl Wire {
    /// A peer that is not connected.
    pub fn new(now: Instant) -> Self {
        Self {
            epoch: 0,
            up: false,
            outbox: VecDeque::new(),
            first: None,
            beat: None,
            to_peer_from: now,
            to_broker_from: now,
            cut_until: now,
            late: None,
            said_goodbye: false,
            last_to_broker: now,
            last_to_peer: now,
            spoke: false,
        }
    }

    /// The connection is lost, with all that is in flight to the peer. What waits in the peer stays. What is in flight to the
    /// broker is lost or comes `late` until the next connection is made.
    pub fn drop_connection(&mut self, late: bool) {
        self.late = late.then_some(self.epoch);
        self.up = false;
        self.beat = None;
        self.epoch += 1;
    }

    /// The peer's process is gone, with all that waited in it.
    pub fn forget(&mut self, late: bool) {
        self.drop_connection(late);
        self.outbox.clear();
        self.first = None;
    }

    /// There is a connection.
    pub fn connect(&mut self, now: Instant) {
        self.up = true;
        // What had come of the last one was read then, and it is closed.
        self.late = None;
        self.spoke = false;
        self.said_goodbye = false;
        (self.to_peer_from, self.to_broker_from) = (self.last_to_peer, now);
        self.last_to_broker = now;
    }

    /// Whether a message that the peer sent on this connection arrives at the broker.
    pub fn arrives(&self, epoch: u64) -> bool {
        self.epoch == epoch || self.late == Some(epoch)
    }

    /// What is on its way stops until then.
    pub fn stall(&mut self, direction: Direction, until: Instant) {
        if direction != Direction::ToBroker {
            self.to_peer_from = self.to_peer_from.max(until);
        }
        if direction != Direction::ToPeer {
            self.to_broker_from = self.to_broker_from.max(until);
        }
    }

    /// The peer sends. What cannot leave yet waits, but for beats. With a job: until that is forgotten.
    pub fn send(&mut self, frames: Frames, class: Class, job: Option<JobId>) {
        match class {
            Class::First => self.first = Some(frames),
            Class::Beat if !self.up => {}
            Class::Beat => self.beat = Some(frames),
            Class::Data | Class::Unhurried => {
                assert!(self.outbox.len() < OUTBOX_MAX, "a queue without a bound");
                self.outbox.push_back((frames, job));
            }
        }
    }

    /// What waits about a job is thrown away.
    pub fn forget_job(&mut self, job: &JobId) {
        self.outbox.retain(|(_, about)| about.as_ref() != Some(job));
    }

    /// How many messages wait for a connection.
    pub fn waiting(&self) -> usize {
        self.outbox.len()
    }

    /// The next message of the peer that leaves now.
    pub fn next_to_send(&mut self) -> Option<Frames> {
        if !self.up {
            return None;
        }
        self.first.take().or_else(|| self.beat.take()).or_else(|| self.outbox.pop_front().map(|(frames, _)| frames))
    }

    /// The peer is about to drop the connection: its last word leaves on it or never.
    pub fn last_word(&mut self) -> Option<Frames> {
        let word = self.beat.take();
        if self.up { word } else { None }
    }

    /// When a message to the broker arrives that leaves now: never before one that left earlier.
    pub fn arrival_at_broker(&mut self, now: Instant, delay: Duration) -> Instant {
        self.last_to_broker = self.last_to_broker.max(now + delay).max(self.to_broker_from);
        self.last_to_broker
    }

    /// When a message to the peer arrives that leaves now.
    pub fn arrival_at_peer(&mut self, now: Instant, delay: Duration) -> Instant {
        self.last_to_peer = self.last_to_peer.max(now + delay).max(self.to_peer_from);
        self.last_to_peer
    }
}
