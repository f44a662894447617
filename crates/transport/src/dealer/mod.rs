//! The socket of a worker or client: a DEALER that connects, and connects again.
//!
//! Names are looked up again for each round, all addresses of a name are tried, a refused handshake is told from a dead broker,
//! a denial does not end all further tries, and nothing gets into a new connection before its owner knows of it.

mod attempt;
mod watch;

use std::cell::Cell;
use std::collections::VecDeque;
use std::fmt;
use std::marker::PhantomData;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use bytes::Bytes;
use rustix::io::Errno;

use self::attempt::{Failure, connected, pause, silence, understand};
use crate::boxes::{Done, Tray, Work};
use crate::clock;
use crate::connection::{Connection, End, Flushed, Input};
use crate::context::Context;
use crate::dial::Dial;
use crate::endpoint::{Address, Endpoint};
use crate::error::{LinkError, SendError};
use crate::link::{DealerLink, LinkStatus, Ready, Received, RefusedReason};
use crate::listen::start_to_connect;
use crate::options::{DealerOptions, RECONNECT_LINGER};
use crate::waker::Waker;
use crate::zmtp::{Engine, Happening, Limits, Role, Room, large_bytes};

/// Routing ids have 1 to 255 bytes.
const ROUTING_ID_BYTES_MAX: usize = 255;

/// Shortest pause before the system is asked again for what it did not have.
const PAUSE_MIN: Duration = Duration::from_millis(10);

/// Statuses that nobody has read yet. Of those beyond the oldest go: the latest are the ones that matter.
const STATUSES_MAX: usize = 16;

/// Reads before the owner must wait, and what it had to say leaves.
const READS_BEFORE_WAIT: u32 = 16;

/// Room for what is read at once. A process may hold a thousand workers.
const SCRATCH_BYTES: usize = 32 * 1024;

/// A [`DealerLink`] over TCP or a local socket.
pub struct Dealer {
    /// Not `Sync`: a link has one owner.
    one_owner: PhantomData<Cell<()>>,
    context: Context,
    endpoint: Endpoint,
    routing_id: Bytes,
    options: DealerOptions,
    phase: Phase,
    /// Addresses of this round that were not tried yet.
    candidates: VecDeque<Address>,
    /// The most telling failure of this round.
    failure: Option<Failure>,
    /// Rounds that failed, and connections that did not last, since one that did.
    failed_rounds: u32,
    /// The last round ended in the middle of a handshake, which is what a wrong key looks like, and a broker that ends.
    doubted: bool,
    statuses: VecDeque<LinkStatus>,
    /// The owner has read that the current connection exists.
    announced: bool,
    waker: Waker,
    /// Where large boxes of the current connection come back.
    tray: Tray,
    /// Messages that came in.
    inbox: VecDeque<Received>,
    /// More may have come in since the last look.
    readable: bool,
    /// The system took no more; it says when it does.
    blocked: bool,
    /// The last message was not taken; its bytes, as [`large_bytes`] counts them.
    refused: Option<usize>,
    /// Nothing more can be said on the connection; what came in before is still read.
    mute: bool,
    /// Reads since the owner waited.
    reads: u32,
    scratch: Vec<u8>,
}

enum Phase {
    /// Waiting for the next round.
    Pausing { until: Instant },
    /// Waiting for addresses.
    Resolving(Dial),
    /// Waiting for a connection.
    Connecting { socket: OwnedFd, until: Instant },
    /// Waiting for the end of the handshake.
    Shaking { connection: Box<Connection>, until: Instant },
    /// There is a connection.
    Open(Box<Connection>),
    /// It has ended, and what came in on it is not read yet.
    Ended,
}

impl Dealer {
    /// Starts to connect to an endpoint under a name. Does not wait for anything: whether there is a broker is told by
    /// [`DealerLink::next_status`].
    ///
    /// # Errors
    /// If the endpoint or the name is malformed, or the system has no more descriptors.
    pub fn connect(
        context: &Context,
        endpoint: &str,
        routing_id: &[u8],
        options: DealerOptions,
    ) -> Result<Self, LinkError> {
        let endpoint: Endpoint = endpoint.parse()?;
        if routing_id.is_empty() || routing_id.len() > ROUTING_ID_BYTES_MAX || routing_id[0] == 0 {
            return Err(LinkError::RoutingId { length: routing_id.len() });
        }
        let waker = Waker::new()?;
        let now = clock::now();
        let mut dealer = Self {
            one_owner: PhantomData,
            context: context.clone(),
            endpoint,
            routing_id: Bytes::copy_from_slice(routing_id),
            options,
            phase: Phase::Pausing { until: now },
            candidates: VecDeque::new(),
            failure: None,
            failed_rounds: 0,
            doubted: false,
            statuses: VecDeque::new(),
            announced: false,
            tray: Tray::new(waker.clone()),
            waker,
            inbox: VecDeque::new(),
            readable: false,
            blocked: false,
            refused: None,
            mute: false,
            reads: 0,
            scratch: Vec::with_capacity(SCRATCH_BYTES),
        };
        dealer.advance(now);
        Ok(dealer)
    }

    /// Takes all steps that can be taken now.
    fn advance(&mut self, now: Instant) {
        loop {
            match &mut self.phase {
                Phase::Pausing { until } => {
                    if *until > now {
                        return;
                    }
                    self.dial(now);
                }
                Phase::Resolving(dial) => match dial.candidates() {
                    None => return,
                    Some(Ok(candidates)) => self.begin_round(candidates, now),
                    Some(Err(error)) => self.give_up_round(&error, now),
                },
                Phase::Connecting { socket, until } => match connected(socket) {
                    None if *until > now => return,
                    Some(true) => self.shake_hands(now),
                    None | Some(false) => self.fail(Failure::Unreachable, now),
                },
                Phase::Shaking { until, .. } => {
                    let until = *until;
                    let result = self.converse();
                    if matches!(self.phase, Phase::Open(_)) {
                        return;
                    }
                    match result {
                        Err(end) => {
                            let reason = understand(end, self.is_encrypting());
                            self.fail(Failure::Refused(reason), now);
                        }
                        Ok(()) if until <= now => self.fail(silence(&self.options.link), now),
                        Ok(()) => return,
                    }
                }
                Phase::Open(_) => return,
                Phase::Ended => {
                    if !self.inbox.is_empty() {
                        return;
                    }
                    self.lose(now);
                }
            }
        }
    }

    /// Looks up the addresses. A system that has no more threads may have some later.
    fn dial(&mut self, now: Instant) {
        if !self.endpoint.needs_resolver() {
            match self.endpoint.candidates() {
                Ok(candidates) => self.begin_round(candidates, now),
                Err(error) => self.give_up_round(&error, now),
            }
            return;
        }
        match Dial::start(&self.endpoint, self.waker.clone()) {
            Ok(dial) => self.phase = Phase::Resolving(dial),
            Err(error) => self.give_up_round(&error, now),
        }
    }

    fn begin_round(&mut self, candidates: Vec<Address>, now: Instant) {
        self.candidates = candidates.into();
        self.failure = None;
        self.next_candidate(now);
    }

    /// There was nothing to try.
    fn give_up_round(&mut self, reason: &dyn fmt::Display, now: Instant) {
        let endpoint = self.endpoint.to_string();
        self.report(LinkStatus::Unreachable { endpoint, reason: reason.to_string() });
        self.next_round(self.options.link.reconnect_delay_max, now);
    }

    fn fail(&mut self, failure: Failure, now: Instant) {
        // What came with the end of a handshake that failed after all was not said to us.
        self.inbox.clear();
        // "Refused" says more than "unreachable": at some address there was somebody.
        if !matches!(self.failure, Some(Failure::Refused(_))) {
            self.failure = Some(failure);
        }
        self.next_candidate(now);
    }

    /// Tries the next address of this round, or starts the next round after a pause.
    fn next_candidate(&mut self, now: Instant) {
        let link = &self.options.link;
        while let Some(candidate) = self.candidates.pop_front() {
            match start_to_connect(&candidate, link) {
                Ok(socket) => {
                    self.phase = Phase::Connecting { socket, until: now + link.connect_timeout };
                    return;
                }
                // The process has no more descriptors, or the system no memory; they may have some later.
                Err(errno @ (Errno::MFILE | Errno::NFILE | Errno::NOBUFS | Errno::NOMEM)) => {
                    self.give_up_round(&std::io::Error::from(errno), now);
                    return;
                }
                Err(_) => self.failure = self.failure.or(Some(Failure::Unreachable)),
            }
        }
        let failure = self.failure.take();
        let doubtful = failure == Some(Failure::Refused(RefusedReason::WrongKey));
        if doubtful && !std::mem::replace(&mut self.doubted, doubtful) {
            // Once is no reason to tell people that their key is wrong.
            self.next_round(self.options.link.reconnect_delay_first, now);
            return;
        }
        self.doubted = doubtful;
        let endpoint = self.endpoint.to_string();
        let (status, longest_pause) = match failure {
            Some(Failure::Refused(reason)) => {
                let fingerprint = self.options.keys.as_ref().map(|keys| keys.broker.fingerprint());
                (LinkStatus::Refused { endpoint, fingerprint, reason }, link.refused_delay_max)
            }
            _ => {
                let reason = "nothing listens there, or a firewall is in between".to_owned();
                (LinkStatus::Unreachable { endpoint, reason }, link.reconnect_delay_max)
            }
        };
        self.report(status);
        self.next_round(longest_pause, now);
    }

    /// There is a connection: the handshake begins.
    fn shake_hands(&mut self, now: Instant) {
        let role = Role::Connector { keys: self.options.keys.clone(), identity: self.routing_id.clone() };
        let link = &self.options.link;
        let limits = Limits { bytes_max: link.frame_bytes_max, frames_max: link.frames_max };
        let until = now + link.handshake_timeout;
        if let Phase::Connecting { socket, .. } = std::mem::replace(&mut self.phase, Phase::Ended) {
            let connection = Box::new(Connection::new(socket, Engine::new(role, limits)));
            self.phase = Phase::Shaking { connection, until };
            self.blocked = false;
            self.mute = false;
            self.tray = Tray::new(self.waker.clone());
        }
    }

    /// Says and hears what can be said and heard now. Messages go to the inbox.
    fn converse(&mut self) -> Result<(), End> {
        self.flush()?;
        self.read()?;
        // Answers of the handshake, its last word among them.
        self.flush()
    }

    fn connection(&mut self) -> Option<&mut Connection> {
        match &mut self.phase {
            Phase::Shaking { connection, .. } | Phase::Open(connection) => Some(connection),
            _ => None,
        }
    }

    /// Reads once and works it off.
    fn read(&mut self) -> Result<(), End> {
        let mut scratch = std::mem::take(&mut self.scratch);
        let result = self.read_into(&mut scratch);
        self.scratch = scratch;
        result
    }

    fn read_into(&mut self, scratch: &mut Vec<u8>) -> Result<(), End> {
        self.readable = false;
        let Some(connection) = self.connection().filter(|connection| connection.engine.reads()) else {
            return Ok(());
        };
        match connection.read(scratch)? {
            // Nothing can be said, and nothing is said.
            Input::Nothing if self.mute => Err(End::Closed),
            Input::Nothing => Ok(()),
            Input::Body => {
                self.readable = true;
                self.work(&[])
            }
            Input::Bytes => {
                // What filled the room was perhaps not all. One that only does not hear has no end that the system would tell.
                self.readable = scratch.len() == scratch.capacity() || self.mute;
                self.work(scratch)
            }
        }
    }

    fn work(&mut self, mut input: &[u8]) -> Result<(), End> {
        let mut opens = false;
        while let Some(connection) = self.connection() {
            match connection.engine.receive(&mut input)? {
                None => break,
                Some(Happening::Message { frames, truncated }) => {
                    self.inbox.push_back(Received { peer: Bytes::new(), frames, truncated });
                }
                Some(Happening::Open(_)) => opens = true,
                // A connector is not asked.
                Some(Happening::Asks(_)) => {
                    connection.engine.admit(false);
                }
                Some(Happening::Large(opening)) => self.context.boxes().submit(0, Work::Open(opening), &self.tray),
            }
        }
        if !input.is_empty()
            && let Some(connection) = self.connection()
        {
            connection.keep(input);
        }
        if opens {
            self.arrive();
        }
        Ok(())
    }

    fn arrive(&mut self) {
        if let Phase::Shaking { connection, .. } = std::mem::replace(&mut self.phase, Phase::Ended) {
            self.phase = Phase::Open(connection);
            self.candidates.clear();
            self.failure = None;
            self.doubted = false;
            self.refused = None;
            self.report(LinkStatus::Connected);
        }
    }

    /// Hands what waits to the system. Where that fails, what the other side said before it went is still to be read, and the
    /// end of the connection is found behind it.
    fn flush(&mut self) -> Result<(), End> {
        if self.mute {
            return Ok(());
        }
        let flushed = self.try_flush();
        if flushed.is_err() && matches!(self.phase, Phase::Open(_)) {
            (self.mute, self.blocked, self.readable) = (true, false, true);
            return Ok(());
        }
        flushed
    }

    fn try_flush(&mut self) -> Result<(), End> {
        loop {
            let (Phase::Shaking { connection, .. } | Phase::Open(connection)) = &mut self.phase else {
                return Ok(());
            };
            if let Some(sealing) = connection.engine.take_sealing() {
                self.context.boxes().submit(0, Work::Seal(sealing), &self.tray);
            }
            match connection.flush()? {
                Flushed::Waits if connection.engine.has_sealing() => {}
                flushed => {
                    self.blocked = flushed == Flushed::Blocked;
                    return Ok(());
                }
            }
        }
    }

    /// Takes what was done with large boxes.
    fn collect(&mut self) -> Result<(), End> {
        for (_, done) in self.tray.take() {
            let Some(connection) = self.connection() else {
                return Ok(());
            };
            match done {
                Done::Sealed(bytes) => connection.engine.sealed(bytes),
                Done::Opened(opened) => {
                    // More may have come meanwhile.
                    let happening = connection.engine.opened(opened)?;
                    let kept = connection.take_kept();
                    if let Some(Happening::Message { frames, truncated }) = happening {
                        self.inbox.push_back(Received { peer: Bytes::new(), frames, truncated });
                    }
                    self.readable = true;
                    self.work(&kept)?;
                }
            }
        }
        Ok(())
    }

    /// Does what can be done with an open connection, and notices its end.
    fn with_open(&mut self, what: impl FnOnce(&mut Self) -> Result<(), End>) {
        if matches!(self.phase, Phase::Open(_)) && what(self).is_err() {
            self.phase = Phase::Ended;
            self.readable = false;
            self.announced = false;
        }
    }

    /// The connection is gone, and everything that came in on it was read.
    fn lose(&mut self, now: Instant) {
        self.announced = false;
        // A connection that the owner has not heard of need not be reported as lost.
        match self.statuses.iter().position(|status| *status == LinkStatus::Connected) {
            Some(unread) => drop(self.statuses.remove(unread)),
            None => self.report(LinkStatus::Disconnected),
        }
        // Unless the owner says that it lasted: two peers of one name would take it from each other for ever.
        self.next_round(self.options.link.refused_delay_max, now);
    }

    fn next_round(&mut self, longest_pause: Duration, now: Instant) {
        let pause = pause(self.options.link.reconnect_delay_first, longest_pause, self.failed_rounds);
        self.failed_rounds = self.failed_rounds.saturating_add(1);
        self.phase = Phase::Pausing { until: now + pause.max(PAUSE_MIN.min(longest_pause)) };
    }

    fn report(&mut self, status: LinkStatus) {
        if self.statuses.back() == Some(&status) {
            return;
        }
        if self.statuses.len() == STATUSES_MAX {
            self.statuses.pop_front();
        }
        self.statuses.push_back(status);
    }

    fn is_encrypting(&self) -> bool {
        matches!(&self.phase, Phase::Shaking { connection, .. } if connection.engine.is_encrypting())
    }

    fn room(&self) -> Room {
        let link = &self.options.link;
        Room { messages: link.send_queue as usize, large_bytes: link.send_queue_bytes.min(link.send_queue_bytes_total) }
    }

    /// Whether a message is worth another try.
    fn is_writable(&self) -> bool {
        let Phase::Open(connection) = &self.phase else {
            return false;
        };
        let Room { messages, large_bytes } = self.room();
        // Half of the room, so that a large message is not tried for each small one that leaves.
        let half = Room { messages: messages.div_ceil(2), large_bytes: large_bytes / 2 };
        let has_room =
            |refused| connection.engine.has_room(refused, self.room()) && connection.engine.has_room(1, half);
        self.announced && self.refused.is_none_or(has_room)
    }
}

impl DealerLink for Dealer {
    fn try_send(&mut self, frames: &[Bytes]) -> Result<(), SendError> {
        let room = self.room();
        let Phase::Open(connection) = &mut self.phase else {
            return Err(SendError::Full);
        };
        if !self.announced {
            return Err(SendError::Full);
        }
        if frames.is_empty() {
            return Err(SendError::Failed(LinkError::EmptyMessage));
        }
        let taken = connection.engine.send(frames, room);
        self.refused = (!taken).then(|| large_bytes(frames));
        if !taken {
            return Err(SendError::Full);
        }
        if connection.engine.is_ahead() && !self.blocked {
            self.with_open(Self::flush);
        }
        Ok(())
    }

    fn try_receive(&mut self) -> Result<Option<Received>, LinkError> {
        if self.inbox.is_empty() && self.readable && self.reads < READS_BEFORE_WAIT {
            self.reads += 1;
            self.with_open(Self::read);
        }
        if self.inbox.is_empty() {
            self.advance(clock::now());
        }
        Ok(self.inbox.pop_front())
    }

    fn wait(&mut self, timeout: Option<Duration>, want_write: bool) -> Result<Ready, LinkError> {
        let mut now = clock::now();
        let until = timeout.and_then(|timeout| now.checked_add(timeout));
        let (mut looked, mut woken) = (false, false);
        self.reads = 0;
        loop {
            self.with_open(Self::collect);
            if !self.blocked {
                self.with_open(Self::flush);
            }
            self.advance(now);
            let ready = Ready {
                readable: self.readable || !self.inbox.is_empty(),
                writable: want_write && self.is_writable(),
                woken,
            };
            let has_news = ready.readable || ready.writable || woken || !self.statuses.is_empty();
            // One look at the network even if there are news, so that what an owner does not read does not keep what it says.
            if looked && (has_news || until.is_some_and(|until| until <= now)) {
                let woken = woken || self.waker.take_if_armed();
                return Ok(Ready { woken, ..ready });
            }
            woken = self.sleep(if has_news { Some(now) } else { until }, now)?;
            now = clock::now();
            looked = true;
        }
    }

    fn waker(&self) -> Waker {
        self.waker.clone()
    }

    fn lasted(&mut self) {
        if std::mem::take(&mut self.failed_rounds) > 1
            && let Phase::Pausing { .. } = self.phase
        {
            self.next_round(self.options.link.reconnect_delay_max, clock::now());
        }
    }

    fn reconnect(&mut self) -> Result<(), LinkError> {
        self.announced = false;
        self.statuses.retain(|status| !matches!(status, LinkStatus::Connected | LinkStatus::Disconnected));
        self.failed_rounds = 0;
        let now = clock::now();
        self.with_open(Self::flush);
        self.inbox.clear();
        self.readable = false;
        match &mut self.phase {
            Phase::Resolving(_) => {}
            phase => {
                if let Phase::Open(connection) = std::mem::replace(phase, Phase::Pausing { until: now }) {
                    self.context.see_off(vec![(0, *connection)], self.tray.clone(), RECONNECT_LINGER);
                }
            }
        }
        self.advance(now);
        Ok(())
    }

    fn next_status(&mut self) -> Option<LinkStatus> {
        let status = self.statuses.pop_front();
        if status == Some(LinkStatus::Connected) {
            self.announced = true;
        }
        status
    }

    fn close(mut self: Box<Self>, linger: Duration) {
        self.with_open(Self::flush);
        let phase = std::mem::replace(&mut self.phase, Phase::Ended);
        if let Phase::Open(connection) = phase {
            self.context.see_off(vec![(0, *connection)], self.tray.clone(), linger);
        }
    }
}

impl fmt::Debug for Dealer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Dealer").field("endpoint", &self.endpoint.as_str()).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
