//! The broker's socket: a ROUTER that listens, and all its connections.

mod entrance;
mod peers;

use std::cell::Cell;
use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::marker::PhantomData;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use rustix::io::Errno;

use self::peers::{Peer, Peers};
use crate::admission::Door;
use crate::boxes::{Done, Tray, Work};
use crate::clock;
use crate::connection::{Connection, End, Flushed, Input};
use crate::context::Context;
use crate::endpoint::Endpoint;
use crate::error::{LinkError, SendError};
use crate::keys::KeyPair;
use crate::link::{Ready, Received, RouterLink, for_minor};
use crate::listen::{Listeners, listen_at};
use crate::options::{LinkOptions, RouterOptions};
use crate::poller::{Event, Interest, Poller};
use crate::waker::Waker;
use crate::zmtp::{Broken, Happening, Room, large_bytes};

/// Steps of handshakes before messages have their turn again: each costs some scalar multiplications, a tenth of a
/// millisecond, and two thousand peers that come at once should not be felt by those that are there.
const HANDSHAKE_STEPS: usize = 16;

/// Connections that are read, or messages that are taken, before what was answered to the first of them leaves.
const READS_BEFORE_FLUSH: usize = 32;
const MESSAGES_BEFORE_FLUSH: usize = 256;

/// Messages of one peer before others have their turn. What is read at once may hold many more.
const MESSAGES_AT_ONCE: usize = 512;

/// Room for what is read at once.
const SCRATCH_BYTES: usize = 128 * 1024;

/// The keys of what is no connection.
const WAKER: u64 = u64::MAX;
const LISTENERS: u64 = u64::MAX - 64;

/// A [`RouterLink`] over TCP or a local socket.
pub struct Router {
    /// Not `Sync`: a link has one owner.
    one_owner: PhantomData<Cell<()>>,
    context: Context,
    listeners: Listeners,
    keys: Option<Arc<KeyPair>>,
    door: Door,
    options: LinkOptions,
    poller: Poller,
    waker: Waker,
    tray: Tray,
    peers: Peers,
    names: HashMap<Bytes, u64>,
    /// The next name for peers without one.
    next_name: u32,
    /// Messages that came in.
    inbox: VecDeque<Received>,
    /// Connections on which something came in.
    ready: VecDeque<u64>,
    /// Connections for which something waits that the system was not asked to take.
    dirty: Vec<u64>,
    /// Connections in the order in which their handshakes must be over, or they be gone if they were turned away.
    handshakes: VecDeque<(Instant, u64)>,
    /// How many of them are under way.
    shaking: usize,
    /// Peers that were turned away, in the order in which they must be gone.
    denied: VecDeque<(Instant, u64)>,
    large_bytes: usize,
    /// Whether the poller watches the listeners, and when it shall again.
    accepts: bool,
    accepts_again: Option<Instant>,
    scratch: Vec<u8>,
    news: Vec<Event>,
    reads: usize,
    messages: usize,
    /// A producer woke the owner, who does not know it yet.
    woken: bool,
}

impl Router {
    /// Listens at an endpoint. A name may wait for the resolver.
    ///
    /// # Errors
    /// If the endpoint is malformed, does not resolve, or is in use; each says which.
    pub fn bind(context: &Context, endpoint: &str, options: RouterOptions) -> Result<Self, LinkError> {
        let endpoint: Endpoint = endpoint.parse()?;
        let listeners = listen_at(&endpoint)?;
        let waker = Waker::new()?;
        let mut poller = Poller::new()?;
        let reads = Interest { reads: true, writes: false };
        let watched = |result: Result<(), Errno>| {
            result.map_err(|errno| LinkError::Bind {
                endpoint: endpoint.to_string(),
                reason: std::io::Error::from(errno).to_string(),
            })
        };
        watched(poller.add(waker.sleeper(), WAKER, reads))?;
        for (number, listener) in listeners.sockets.iter().enumerate() {
            watched(poller.add(listener.as_fd(), LISTENERS + number as u64, reads))?;
        }
        Ok(Self {
            one_owner: PhantomData,
            context: context.clone(),
            listeners,
            keys: options.keys.map(Arc::new),
            door: Door::new(options.admission),
            options: options.link,
            poller,
            tray: Tray::new(waker.clone()),
            waker,
            peers: Peers::default(),
            names: HashMap::new(),
            next_name: fastrand::u32(..),
            inbox: VecDeque::new(),
            ready: VecDeque::new(),
            dirty: Vec::new(),
            handshakes: VecDeque::new(),
            shaking: 0,
            denied: VecDeque::new(),
            large_bytes: 0,
            accepts: true,
            accepts_again: None,
            scratch: Vec::with_capacity(SCRATCH_BYTES),
            news: Vec::new(),
            reads: 0,
            messages: 0,
            woken: false,
        })
    }

    /// How many peers the admission rules have turned away.
    #[must_use]
    pub fn denials(&self) -> u64 {
        self.door.denials()
    }

    /// Ends a connection that was taken out of its place.
    fn end(&mut self, key: u64, peer: Box<Peer>) {
        self.shaking -= usize::from(peer.shaking);
        if let Some(name) = &peer.name
            && self.names.get(name) == Some(&key)
        {
            self.names.remove(name);
        }
        self.large_bytes -= peer.large_bytes;
        self.poller.forget(key);
        drop(peer);
        self.peers.release(key);
    }

    /// Reads what came on a connection and works it off. Whether there was something.
    fn visit(&mut self, key: u64) -> bool {
        let Some(mut peer) = self.peers.take(key) else {
            return false;
        };
        peer.ready = false;
        if peer.retired || !peer.connection.engine.reads() {
            // Its end may be there already, and must wait for the box that is being opened.
            self.peers.put(key, peer);
            return false;
        }
        let kept = peer.connection.take_kept();
        if !kept.is_empty() {
            let result = self.work(key, &mut peer, &kept);
            self.settle(key, peer, result);
            return true;
        }
        let mut scratch = std::mem::take(&mut self.scratch);
        // A visit within another one finds none.
        scratch.clear();
        scratch.reserve(SCRATCH_BYTES);
        let input = peer.connection.read(&mut scratch);
        let came = matches!(input, Ok(Input::Body | Input::Bytes));
        let result = match input {
            // Nothing can be said to it, and it has nothing to say.
            Ok(Input::Nothing) if peer.mute => Err(End::Closed),
            Ok(Input::Nothing) => Ok(()),
            Ok(Input::Body) => self.work(key, &mut peer, &[]),
            Ok(Input::Bytes) => self.work(key, &mut peer, &scratch),
            Err(end) => Err(end),
        };
        self.scratch = scratch;
        self.settle(key, peer, result);
        came
    }

    /// Puts a peer back to its place, or ends it.
    fn settle(&mut self, key: u64, mut peer: Box<Peer>, result: Result<(), End>) {
        if result.is_err() {
            self.end(key, peer);
            return;
        }
        if peer.connection.engine.has_output() && !peer.dirty && !peer.blocked && !peer.mute {
            peer.dirty = true;
            self.dirty.push(key);
        }
        if peer.mute && !peer.ready {
            // Until there is nothing more to read: the system may never tell the end of one that only does not hear.
            peer.ready = true;
            self.ready.push_back(key);
        }
        self.watch(key, &mut peer);
        self.peers.put(key, peer);
    }

    /// Tells the poller what is wanted of a connection now.
    fn watch(&mut self, key: u64, peer: &mut Peer) {
        let wanted = Interest { reads: peer.connection.engine.reads(), writes: peer.blocked };
        if wanted != peer.interest && self.poller.change(peer.connection.fd(), key, wanted).is_ok() {
            peer.interest = wanted;
        }
    }

    /// Works off input of a connection.
    fn work(&mut self, key: u64, peer: &mut Peer, mut input: &[u8]) -> Result<(), End> {
        let room = self.inbox.len() + MESSAGES_AT_ONCE;
        loop {
            if self.inbox.len() >= room && !input.is_empty() {
                // The rest when others had their turn.
                if !std::mem::replace(&mut peer.ready, true) {
                    self.ready.push_back(key);
                }
                break;
            }
            match peer.connection.engine.receive(&mut input)? {
                None => break,
                Some(Happening::Message { frames, truncated }) => {
                    let peer = peer.name.clone().unwrap_or_default();
                    self.inbox.push_back(Received { peer, frames, truncated });
                }
                Some(Happening::Asks(key_of_peer)) => {
                    let allowed = self.door.admits(&peer.address, key_of_peer);
                    match peer.connection.engine.admit(allowed) {
                        Some(identity) => self.open(key, peer, identity),
                        None => self.turn_away(key, peer),
                    }
                }
                Some(Happening::Open(identity)) => self.open(key, peer, identity),
                Some(Happening::Large(opening)) => {
                    self.context.boxes().submit(key, Work::Open(opening), &self.tray);
                }
            }
        }
        if !input.is_empty() {
            peer.connection.keep(input);
        }
        Ok(())
    }

    /// Hands what waits on a connection to the system.
    fn flush(&mut self, key: u64) {
        let Some(mut peer) = self.peers.take(key) else {
            return;
        };
        peer.dirty = false;
        let mut result = Ok(());
        loop {
            if let Some(sealing) = peer.connection.engine.take_sealing() {
                self.context.boxes().submit(key, Work::Seal(sealing), &self.tray);
            }
            match peer.connection.flush() {
                Ok(Flushed::Waits) if peer.connection.engine.has_sealing() => {}
                Ok(flushed) => {
                    peer.blocked = flushed == Flushed::Blocked;
                    break;
                }
                Err(end) => {
                    result = Err(end);
                    break;
                }
            }
        }
        if peer.connection.engine.is_denied() && !peer.connection.engine.has_output() && !peer.shut {
            // It closes in turn, or its time runs out.
            peer.shut = true;
            peer.connection.shut();
        }
        self.count_large_bytes(&mut peer);
        if result.is_err() {
            // What it had said before it went is still to be read; reading finds the end.
            (peer.blocked, peer.mute) = (false, true);
            if peer.name.is_some() && !peer.ready {
                peer.ready = true;
                self.ready.push_back(key);
            } else if peer.name.is_none() {
                self.end(key, peer);
                return;
            }
        }
        self.watch(key, &mut peer);
        self.peers.put(key, peer);
    }

    fn count_large_bytes(&mut self, peer: &mut Peer) {
        let now = peer.connection.engine.large_bytes();
        self.large_bytes = self.large_bytes - peer.large_bytes + now;
        peer.large_bytes = now;
    }

    fn flush_all(&mut self) {
        (self.reads, self.messages) = (0, 0);
        while let Some(key) = self.dirty.pop() {
            self.flush(key);
        }
    }

    /// Takes what was done with large boxes.
    fn collect(&mut self) {
        for (key, done) in self.tray.take() {
            let Some(mut peer) = self.peers.take(key) else {
                continue;
            };
            let result = match done {
                Done::Sealed(bytes) => {
                    peer.connection.engine.sealed(bytes);
                    Ok(())
                }
                Done::Opened(opened) => self.resume(key, &mut peer, opened),
            };
            if peer.retired {
                self.end(key, peer);
                continue;
            }
            self.settle(key, peer, result);
        }
    }

    fn resume(&mut self, key: u64, peer: &mut Peer, opened: Result<(u8, Bytes), Broken>) -> Result<(), End> {
        if let Some(Happening::Message { frames, truncated }) = peer.connection.engine.opened(opened)? {
            let name = peer.name.clone().unwrap_or_default();
            self.inbox.push_back(Received { peer: name, frames, truncated });
        }
        if peer.retired {
            return Ok(());
        }
        let kept = peer.connection.take_kept();
        self.work(key, peer, &kept)
    }

    /// Sleeps until there is news, at most so long, and takes it.
    fn look(&mut self, timeout: Option<Duration>) -> Result<Instant, LinkError> {
        let mut news = std::mem::take(&mut self.news);
        let slept = self.poller.wait(timeout, &mut news);
        self.news = news;
        slept?;
        let now = clock::now();
        self.take_news(now);
        Ok(now)
    }

    fn take_news(&mut self, now: Instant) {
        let mut steps = HANDSHAKE_STEPS;
        let mut news = std::mem::take(&mut self.news);
        for event in news.drain(..) {
            match event.key {
                WAKER => self.woken |= self.waker.take(),
                LISTENERS..WAKER => self.accept_all(now),
                key => self.take_news_of(key, event, &mut steps),
            }
        }
        self.news = news;
    }

    fn take_news_of(&mut self, key: u64, event: Event, steps: &mut usize) {
        let Some(peer) = self.peers.get(key) else {
            return;
        };
        let flushes = event.writable && peer.blocked;
        if event.readable && peer.name.is_none() {
            // Those that are left out are reported again.
            if *steps > 0 {
                *steps -= 1;
                self.visit(key);
            }
        } else if event.readable && !peer.ready {
            peer.ready = true;
            self.ready.push_back(key);
        }
        if flushes {
            self.flush(key);
        }
    }
}

impl Router {
    fn send_within(&mut self, peer: &[u8], frames: &[Bytes], mut room: Room) -> Result<(), SendError> {
        if frames.is_empty() {
            return Err(SendError::Failed(LinkError::EmptyMessage));
        }
        let key = *self.names.get(peer).ok_or(SendError::Unroutable)?;
        let large = large_bytes(frames);
        let all_large = self.large_bytes;
        if large > 0 && all_large.saturating_add(large) > self.options.send_queue_bytes_total {
            // A single message is taken where nothing waits.
            room.large_bytes = 0;
        }
        let peer = self.peers.get(key).ok_or(SendError::Unroutable)?;
        if !peer.connection.engine.send(frames, room) {
            return Err(SendError::Full);
        }
        let stuck = peer.blocked || peer.mute;
        let flushes = peer.connection.engine.is_ahead() && !stuck;
        let marks = !flushes && !stuck && !std::mem::replace(&mut peer.dirty, true);
        let now = peer.connection.engine.large_bytes();
        let before = std::mem::replace(&mut peer.large_bytes, now);
        self.large_bytes = all_large - before + now;
        if flushes {
            self.flush(key);
        } else if marks {
            self.dirty.push(key);
        }
        Ok(())
    }

    fn room(&self) -> Room {
        Room { messages: self.options.send_queue as usize, large_bytes: self.options.send_queue_bytes }
    }
}

impl RouterLink for Router {
    fn try_send(&mut self, peer: &[u8], frames: &[Bytes]) -> Result<(), SendError> {
        self.send_within(peer, frames, self.room())
    }

    fn try_send_minor(&mut self, peer: &[u8], frames: &[Bytes]) -> Result<(), SendError> {
        let Room { messages, large_bytes } = self.room();
        let room = Room { messages: for_minor(messages), large_bytes: for_minor(large_bytes) };
        self.send_within(peer, frames, room)
    }

    fn try_receive(&mut self) -> Result<Option<Received>, LinkError> {
        loop {
            if let Some(message) = self.inbox.pop_front() {
                self.messages += 1;
                if self.messages > MESSAGES_BEFORE_FLUSH {
                    self.flush_all();
                    // Others may have something to say meanwhile.
                    self.look(Some(Duration::ZERO))?;
                }
                return Ok(Some(message));
            }
            let Some(key) = self.ready.pop_front() else {
                return Ok(None);
            };
            self.reads += 1;
            if self.reads > READS_BEFORE_FLUSH {
                self.flush_all();
            }
            self.visit(key);
        }
    }

    fn wait(&mut self, timeout: Option<Duration>) -> Result<Ready, LinkError> {
        let began = clock::now();
        let until = timeout.and_then(|timeout| began.checked_add(timeout));
        let mut now = began;
        let mut looked = false;
        loop {
            self.collect();
            self.flush_all();
            let mut ready = Ready { readable: !self.inbox.is_empty() || !self.ready.is_empty(), ..Ready::default() };
            // One look at the network even if there is something to read, so that an owner that is slow to read keeps nobody out.
            let over = ready.readable || until.is_some_and(|until| until <= now);
            if looked && over || self.woken {
                ready.woken = std::mem::take(&mut self.woken) | self.waker.take_if_armed();
                return Ok(ready);
            }
            let expires = self.expire(now);
            self.watch_listeners(now);
            let at_once = ready.readable.then_some(now);
            let next = [at_once, until, expires, self.accepts_again].into_iter().flatten().min();
            let sleep = next.map(|next| next.saturating_duration_since(now));
            now = self.look(sleep)?;
            looked = true;
        }
    }

    fn waker(&self) -> Waker {
        self.waker.clone()
    }

    fn endpoint(&self) -> String {
        self.listeners.endpoint.clone()
    }

    fn close(mut self: Box<Self>, linger: Duration) {
        self.flush_all();
        let named = self.peers.take_all().into_iter().filter(|(_, peer)| peer.name.is_some());
        let leaving: Vec<(u64, Connection)> = named.map(|(key, peer)| (key, peer.connection)).collect();
        for (key, _) in &leaving {
            self.poller.forget(*key);
        }
        self.context.see_off(leaving, self.tray.clone(), linger);
    }
}

impl fmt::Debug for Router {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Router").field("endpoint", &self.listeners.endpoint).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
