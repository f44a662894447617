//! Who comes in: accepting connections, the time that a handshake may take, and the names of peers.

use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use bytes::Bytes;
use rustix::io::Errno;

use super::peers::Peer;
use super::{LISTENERS, Router};
use crate::clock;
use crate::connection::Connection;
use crate::listen::accept;
use crate::poller::Interest;
use crate::zmtp::{Engine, Limits, Role};

/// How long a handshake may take at least, however many others there are.
const HANDSHAKE_CHANCE: Duration = Duration::from_secs(2);

/// How long a peer that was turned away has to read so and go.
const DENIED_TIME: Duration = Duration::from_secs(2);

/// Connections that are accepted before messages have their turn again.
const ACCEPTS: usize = 64;

/// A listener that could not accept for want of descriptors or memory is left alone for so long.
const ACCEPT_PAUSE: Duration = Duration::from_millis(20);

/// Reads of a connection that loses its name: what it had said before is heard, if it is not very much.
const LAST_READS: usize = 64;

impl Router {
    pub(super) fn accept_all(&mut self, now: Instant) {
        for _ in 0..ACCEPTS {
            let mut came = false;
            for number in 0..self.listeners.sockets.len() {
                if self.shaking >= self.options.handshakes && !self.make_room(now) {
                    return;
                }
                match accept(&self.listeners.sockets[number], &self.options) {
                    Ok((socket, address)) => {
                        came = true;
                        self.add(socket, address, now);
                    }
                    Err(Errno::MFILE | Errno::NFILE | Errno::NOBUFS | Errno::NOMEM) => {
                        self.accepts_again = Some(now + ACCEPT_PAUSE);
                        return;
                    }
                    // Nobody is there any more, or never was.
                    Err(_) => {}
                }
            }
            if !came {
                return;
            }
        }
    }

    /// Ends the oldest handshake, if it had its chance.
    fn make_room(&mut self, now: Instant) -> bool {
        self.expire(now);
        let Some(&(until, key)) = self.handshakes.front() else {
            return self.shaking < self.options.handshakes;
        };
        let chance = until - self.options.handshake_timeout + HANDSHAKE_CHANCE.min(self.options.handshake_timeout);
        if self.shaking >= self.options.handshakes {
            if chance > now {
                self.accepts_again = Some(chance);
                return false;
            }
            self.handshakes.pop_front();
            if let Some(peer) = self.peers.take(key) {
                self.end(key, peer);
            }
        }
        true
    }

    fn add(&mut self, socket: OwnedFd, address: String, now: Instant) {
        let role = Role::Listener { keys: self.keys.clone() };
        let limits = Limits { bytes_max: self.options.frame_bytes_max, frames_max: self.options.frames_max };
        let connection = Connection::new(socket, Engine::new(role, limits));
        let key = self.peers.reserve();
        let interest = Interest { reads: true, writes: false };
        if self.poller.add(connection.fd(), key, interest).is_err() {
            // The system has no more room to watch it.
            self.peers.release(key);
            return;
        }
        let until = now + self.options.handshake_timeout;
        let peer = Peer {
            connection,
            address,
            name: None,
            interest,
            blocked: false,
            mute: false,
            dirty: false,
            ready: false,
            large_bytes: 0,
            shut: false,
            shaking: true,
            retired: false,
        };
        self.peers.put(key, Box::new(peer));
        self.handshakes.push_back((until, key));
        self.shaking += 1;
        // The greeting.
        self.flush(key);
    }

    /// A peer was turned away.
    pub(super) fn turn_away(&mut self, key: u64, peer: &mut Peer) {
        self.has_shaken(peer);
        self.denied.push_back((clock::now() + DENIED_TIME, key));
    }

    /// The handshake of a peer is over.
    fn has_shaken(&mut self, peer: &mut Peer) {
        self.shaking -= usize::from(std::mem::take(&mut peer.shaking));
    }

    /// Gives a peer its name. Whoever had it before loses it, and its connection.
    pub(super) fn open(&mut self, key: u64, peer: &mut Peer, identity: Bytes) {
        // Names that are made here are taken from nobody.
        let is_made = identity.first() == Some(&0) && self.names.contains_key(&identity);
        let name = if identity.is_empty() || is_made { self.make_name() } else { identity };
        self.has_shaken(peer);
        peer.name = Some(name.clone());
        if let Some(&older) = self.names.get(&name) {
            // What it had said before comes before what the newer one says.
            let mut reads = 0;
            while reads < LAST_READS && self.visit(older) {
                reads += 1;
            }
            if let Some(mut older_peer) = self.peers.take(older) {
                if older_peer.connection.engine.is_open() && !older_peer.connection.engine.reads() {
                    older_peer.retired = true;
                    self.peers.put(older, older_peer);
                } else {
                    self.end(older, older_peer);
                }
            }
        }
        self.names.insert(name, key);
    }

    /// A name for a peer that has none: a zero byte and a number, as ZeroMQ makes them.
    fn make_name(&mut self) -> Bytes {
        loop {
            let number = self.next_name;
            self.next_name = number.wrapping_add(1);
            let name = Bytes::from([&[0][..], &number.to_be_bytes()].concat());
            // Somebody may have claimed it.
            if !self.names.contains_key(&name) {
                return name;
            }
        }
    }

    /// Ends handshakes that took too long and peers that were turned away and do not go, and says when the next one would.
    pub(super) fn expire(&mut self, now: Instant) -> Option<Instant> {
        while self.denied.front().is_some_and(|(until, _)| *until <= now) {
            if let Some((_, key)) = self.denied.pop_front()
                && let Some(peer) = self.peers.take(key)
            {
                self.end(key, peer);
            }
        }
        let denied = self.denied.front().map(|(until, _)| *until);
        [self.expire_handshakes(now), denied].into_iter().flatten().min()
    }

    fn expire_handshakes(&mut self, now: Instant) -> Option<Instant> {
        while let Some(&(until, key)) = self.handshakes.front() {
            let is_over = self.peers.get(key).is_none_or(|peer| !peer.shaking);
            if !is_over && until > now {
                return Some(until);
            }
            self.handshakes.pop_front();
            if !is_over && let Some(peer) = self.peers.take(key) {
                self.end(key, peer);
            }
        }
        None
    }

    /// Watches the listeners, or stops to.
    pub(super) fn watch_listeners(&mut self, now: Instant) {
        if self.accepts_again.is_some_and(|again| again <= now) {
            self.accepts_again = None;
        }
        let wanted = self.accepts_again.is_none();
        if wanted != self.accepts {
            let interest = Interest { reads: wanted, writes: false };
            for (number, listener) in self.listeners.sockets.iter().enumerate() {
                // It is watched since the router listens, and changing that takes nothing of the system.
                self.poller.change(listener.as_fd(), LISTENERS + number as u64, interest).ok();
            }
            self.accepts = wanted;
        }
    }
}
