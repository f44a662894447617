//! The connection between one peer and the broker: in order within each direction, lost as a whole.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use norfab_protocol::frame::Frames;
use norfab_protocol::name::JobId;
use norfab_protocol::worker::Class;

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
    /// Until when nothing more arrives at the peer on this connection.
    stalled_until: Instant,
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
            stalled_until: now,
            said_goodbye: false,
            last_to_broker: now,
            last_to_peer: now,
            spoke: false,
        }
    }

    /// The connection is lost, with all that is in flight. What waits in the peer stays.
    pub fn drop_connection(&mut self) {
        self.up = false;
        self.beat = None;
        self.epoch += 1;
    }

    /// The peer's process is gone, with all that waited in it.
    pub fn forget(&mut self) {
        self.drop_connection();
        self.outbox.clear();
        self.first = None;
    }

    /// There is a connection.
    pub fn connect(&mut self) {
        self.up = true;
        self.spoke = false;
        self.said_goodbye = false;
        self.stalled_until = self.last_to_peer;
    }

    /// What is on its way to the peer stops until then.
    pub fn stall(&mut self, until: Instant) {
        self.stalled_until = self.stalled_until.max(until);
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
        self.last_to_broker = self.last_to_broker.max(now + delay);
        self.last_to_broker
    }

    /// When a message to the peer arrives that leaves now.
    pub fn arrival_at_peer(&mut self, now: Instant, delay: Duration) -> Instant {
        self.last_to_peer = self.last_to_peer.max(now + delay).max(self.stalled_until);
        self.last_to_peer
    }
}
