//! The two kinds of links without a network: queues in memory, with the behaviour of the real ones.
//!
//! For tests of owner loops. A [`MemoryNetwork`] stands for the network: routers listen in it, dealers connect through it, and
//! it can cut connections and refuse handshakes. The contract tests of this crate run against both kinds.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use rustix::event::{PollFd, PollFlags};

use crate::error::{LinkError, SendError};
use crate::link::{DealerLink, LinkStatus, Ready, Received, RefusedReason, RouterLink, for_minor};
use crate::options::FRAMES_MAX;
use crate::sleep::sleep;
use crate::waker::Waker;

/// A network in memory. Clones are handles to the same one.
#[derive(Clone, Default)]
pub struct MemoryNetwork {
    wires: Arc<Mutex<Wires>>,
}

#[derive(Default)]
struct Wires {
    routers: BTreeMap<String, RouterEnd>,
    dealers: BTreeMap<u64, DealerEnd>,
    refused: BTreeMap<Bytes, RefusedReason>,
    last_id: u64,
}

struct RouterEnd {
    /// Messages with the connection that they came in on.
    inbox: VecDeque<(u64, Received)>,
    /// Who a name belongs to: the newest connection under it.
    peers: BTreeMap<Bytes, u64>,
    signal: Waker,
}

struct DealerEnd {
    name: Bytes,
    endpoint: String,
    capacity: usize,
    connected: bool,
    announced: bool,
    inbox: VecDeque<Received>,
    /// Messages of this connection that its router has not read yet.
    unread: usize,
    statuses: VecDeque<LinkStatus>,
    signal: Waker,
}

impl MemoryNetwork {
    /// An empty network.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Listens under an address, which is any text. Dealers that wait for it connect at once.
    ///
    /// # Errors
    /// [`LinkError::AddressInUse`] if a router listens there.
    pub fn router(&self, endpoint: &str) -> Result<MemoryRouter, LinkError> {
        let (waker, signal) = (Waker::new()?, Waker::new()?);
        let mut wires = self.lock();
        if wires.routers.contains_key(endpoint) {
            return Err(LinkError::AddressInUse { endpoint: endpoint.to_owned() });
        }
        let end = RouterEnd { inbox: VecDeque::new(), peers: BTreeMap::new(), signal: signal.clone() };
        wires.routers.insert(endpoint.to_owned(), end);
        let waiting: Vec<u64> =
            wires.dealers.iter().filter(|(_, dealer)| dealer.endpoint == endpoint).map(|(&id, _)| id).collect();
        for id in waiting {
            wires.connect(id);
        }
        drop(wires);
        Ok(MemoryRouter { network: self.clone(), endpoint: endpoint.to_owned(), waker, signal })
    }

    /// Connects to an address under a name. `capacity` is the number of messages that fit into the queue of each direction.
    ///
    /// # Errors
    /// If the name is one that ZeroMQ would refuse, or the system has no more descriptors.
    pub fn dealer(&self, endpoint: &str, name: &[u8], capacity: usize) -> Result<MemoryDealer, LinkError> {
        if name.is_empty() || name.len() > 255 || name[0] == 0 {
            return Err(LinkError::RoutingId { length: name.len() });
        }
        let (waker, signal) = (Waker::new()?, Waker::new()?);
        let mut wires = self.lock();
        let end = DealerEnd {
            name: Bytes::copy_from_slice(name),
            endpoint: endpoint.to_owned(),
            capacity,
            connected: false,
            announced: false,
            inbox: VecDeque::new(),
            unread: 0,
            statuses: VecDeque::new(),
            signal: signal.clone(),
        };
        let id = wires.add(end);
        drop(wires);
        Ok(MemoryDealer { network: self.clone(), id, waker, signal })
    }

    /// Cuts the connection of a peer; it does not come back before [`DealerLink::reconnect`] or a new router.
    pub fn cut(&self, name: &[u8]) {
        let mut wires = self.lock();
        for id in wires.named(name) {
            wires.disconnect(id);
        }
    }

    /// Cuts the connection of a peer and makes it again at once, as after a short outage.
    pub fn interrupt(&self, name: &[u8]) {
        self.cut(name);
        self.lock().connect_all(name);
    }

    /// Refuses the next handshakes of a peer for this reason, or none any more: then it connects. Existing connections stay.
    pub fn refuse(&self, name: &[u8], reason: Option<RefusedReason>) {
        let mut wires = self.lock();
        let name = Bytes::copy_from_slice(name);
        match reason {
            Some(reason) => drop(wires.refused.insert(name, reason)),
            None => {
                wires.refused.remove(&name);
                wires.connect_all(&name);
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, Wires> {
        // A test that panicked with the lock held must not hide its message behind a second panic.
        self.wires.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for MemoryNetwork {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryNetwork").finish_non_exhaustive()
    }
}

impl Wires {
    fn add(&mut self, end: DealerEnd) -> u64 {
        self.last_id += 1;
        let id = self.last_id;
        self.dealers.insert(id, end);
        self.connect(id);
        id
    }

    fn named(&self, name: &[u8]) -> Vec<u64> {
        self.dealers.iter().filter(|(_, dealer)| dealer.name == name).map(|(&id, _)| id).collect()
    }

    fn connect_all(&mut self, name: &[u8]) {
        for id in self.named(name) {
            self.connect(id);
        }
    }

    fn connect(&mut self, id: u64) {
        let Some(dealer) = self.dealers.get_mut(&id) else { return };
        if dealer.connected {
            return;
        }
        let endpoint = dealer.endpoint.clone();
        let status = match (self.routers.get_mut(&endpoint), self.refused.get(&dealer.name)) {
            (None, _) => LinkStatus::Unreachable { endpoint, reason: "nothing listens there".to_owned() },
            (Some(_), Some(&reason)) => LinkStatus::Refused { endpoint, fingerprint: None, reason },
            (Some(router), None) => {
                dealer.connected = true;
                dealer.announced = false;
                dealer.unread = 0;
                // The newer connection takes the name over; the older one is cut off without being told.
                router.peers.insert(dealer.name.clone(), id);
                LinkStatus::Connected
            }
        };
        dealer.statuses.push_back(status);
        dealer.signal.wake();
    }

    fn disconnect(&mut self, id: u64) {
        let Some(dealer) = self.dealers.get_mut(&id) else { return };
        if !dealer.connected {
            return;
        }
        dealer.connected = false;
        dealer.announced = false;
        match dealer.statuses.iter().position(|status| *status == LinkStatus::Connected) {
            Some(unread) => drop(dealer.statuses.remove(unread)),
            None => dealer.statuses.push_back(LinkStatus::Disconnected),
        }
        dealer.signal.wake();
        let (name, endpoint) = (dealer.name.clone(), dealer.endpoint.clone());
        self.forget(&endpoint, &name, id);
    }

    fn forget(&mut self, endpoint: &str, name: &Bytes, id: u64) {
        if let Some(router) = self.routers.get_mut(endpoint)
            && router.peers.get(name) == Some(&id)
        {
            router.peers.remove(name);
        }
    }
}

/// A [`RouterLink`] in memory.
pub struct MemoryRouter {
    network: MemoryNetwork,
    endpoint: String,
    waker: Waker,
    signal: Waker,
}

impl MemoryRouter {
    fn send_within(
        &mut self,
        peer: &[u8],
        frames: &[Bytes],
        bound: impl FnOnce(usize) -> usize,
    ) -> Result<(), SendError> {
        if frames.is_empty() {
            return Err(SendError::Failed(LinkError::EmptyMessage));
        }
        let mut wires = self.network.lock();
        let wires = &mut *wires;
        let router = wires.routers.get_mut(&self.endpoint).ok_or(SendError::Closed)?;
        let id = router.peers.get(peer).ok_or(SendError::Unroutable)?;
        let dealer = wires.dealers.get_mut(id).ok_or(SendError::Unroutable)?;
        if dealer.inbox.len() >= bound(dealer.capacity) {
            return Err(SendError::Full);
        }
        dealer.inbox.push_back(received(Bytes::new(), frames));
        dealer.signal.wake();
        Ok(())
    }
}

impl RouterLink for MemoryRouter {
    fn try_send(&mut self, peer: &[u8], frames: &[Bytes]) -> Result<(), SendError> {
        self.send_within(peer, frames, |capacity| capacity)
    }

    fn try_send_minor(&mut self, peer: &[u8], frames: &[Bytes]) -> Result<(), SendError> {
        self.send_within(peer, frames, for_minor)
    }

    fn try_receive(&mut self) -> Result<Option<Received>, LinkError> {
        let mut wires = self.network.lock();
        let wires = &mut *wires;
        let Some((id, message)) = wires.routers.get_mut(&self.endpoint).and_then(|router| router.inbox.pop_front())
        else {
            return Ok(None);
        };
        if let Some(dealer) = wires.dealers.get_mut(&id) {
            dealer.unread = dealer.unread.saturating_sub(1);
            dealer.signal.wake();
        }
        Ok(Some(message))
    }

    fn wait(&mut self, timeout: Option<Duration>) -> Result<Ready, LinkError> {
        let network = self.network.clone();
        let look = || {
            let wires = network.lock();
            let readable = wires.routers.get(&self.endpoint).is_some_and(|router| !router.inbox.is_empty());
            Ready { readable, ..Ready::default() }
        };
        wait(&self.waker, &self.signal, timeout, || (look(), false))
    }

    fn waker(&self) -> Waker {
        self.waker.clone()
    }

    fn endpoint(&self) -> String {
        self.endpoint.clone()
    }

    fn close(self: Box<Self>, _linger: Duration) {
        drop(self);
    }
}

impl Drop for MemoryRouter {
    fn drop(&mut self) {
        let mut wires = self.network.lock();
        let peers = wires.routers.remove(&self.endpoint).map(|router| router.peers).unwrap_or_default();
        for id in peers.into_values() {
            wires.disconnect(id);
        }
    }
}

impl fmt::Debug for MemoryRouter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryRouter").field("endpoint", &self.endpoint).finish_non_exhaustive()
    }
}

/// A [`DealerLink`] in memory.
pub struct MemoryDealer {
    network: MemoryNetwork,
    id: u64,
    waker: Waker,
    signal: Waker,
}

impl DealerLink for MemoryDealer {
    fn try_send(&mut self, frames: &[Bytes]) -> Result<(), SendError> {
        if frames.is_empty() {
            return Err(SendError::Failed(LinkError::EmptyMessage));
        }
        let mut wires = self.network.lock();
        let wires = &mut *wires;
        let dealer = wires.dealers.get_mut(&self.id).ok_or(SendError::Closed)?;
        if !dealer.connected || !dealer.announced || dealer.unread >= dealer.capacity {
            return Err(SendError::Full);
        }
        let router = wires.routers.get_mut(&dealer.endpoint).ok_or(SendError::Full)?;
        dealer.unread += 1;
        if router.peers.get(&dealer.name) == Some(&self.id) {
            router.inbox.push_back((self.id, received(dealer.name.clone(), frames)));
            router.signal.wake();
        }
        Ok(())
    }

    fn try_receive(&mut self) -> Result<Option<Received>, LinkError> {
        let mut wires = self.network.lock();
        let Some(dealer) = wires.dealers.get_mut(&self.id) else { return Ok(None) };
        Ok(dealer.inbox.pop_front())
    }

    fn wait(&mut self, timeout: Option<Duration>, want_write: bool) -> Result<Ready, LinkError> {
        let network = self.network.clone();
        wait(&self.waker, &self.signal, timeout, || {
            let wires = network.lock();
            let Some(dealer) = wires.dealers.get(&self.id) else { return (Ready::default(), false) };
            let room = dealer.connected && dealer.announced && dealer.unread < dealer.capacity;
            let ready = Ready { readable: !dealer.inbox.is_empty(), writable: want_write && room, woken: false };
            (ready, !dealer.statuses.is_empty())
        })
    }

    fn waker(&self) -> Waker {
        self.waker.clone()
    }

    fn reconnect(&mut self) -> Result<(), LinkError> {
        let mut wires = self.network.lock();
        // A new connection is a new end under the same name; what is on its way to the old one is lost, as with sockets.
        wires.disconnect(self.id);
        let Some(mut end) = wires.dealers.remove(&self.id) else { return Ok(()) };
        end.inbox.clear();
        end.statuses.retain(|status| !matches!(status, LinkStatus::Connected | LinkStatus::Disconnected));
        self.id = wires.add(end);
        Ok(())
    }

    fn next_status(&mut self) -> Option<LinkStatus> {
        let mut wires = self.network.lock();
        let dealer = wires.dealers.get_mut(&self.id)?;
        // What came in before the connection was lost is read first.
        if dealer.statuses.front() == Some(&LinkStatus::Disconnected) && !dealer.inbox.is_empty() {
            return None;
        }
        let status = dealer.statuses.pop_front();
        if status == Some(LinkStatus::Connected) {
            dealer.announced = true;
        }
        status
    }

    fn close(self: Box<Self>, _linger: Duration) {
        drop(self);
    }
}

impl Drop for MemoryDealer {
    fn drop(&mut self) {
        let mut wires = self.network.lock();
        wires.disconnect(self.id);
        wires.dealers.remove(&self.id);
    }
}

impl fmt::Debug for MemoryDealer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryDealer").finish_non_exhaustive()
    }
}

fn received(peer: Bytes, frames: &[Bytes]) -> Received {
    let kept = frames.len().min(FRAMES_MAX);
    Received { peer, frames: frames[..kept].to_vec(), truncated: kept < frames.len() }
}

/// Sleeps until `look` finds something, or a wake-up comes, or the time is over.
fn wait(
    waker: &Waker,
    signal: &Waker,
    timeout: Option<Duration>,
    look: impl Fn() -> (Ready, bool),
) -> Result<Ready, LinkError> {
    signal.take_if_armed();
    let (mut ready, has_status) = look();
    if ready == Ready::default() && !has_status {
        let (sleeper, signalled) = (waker.sleeper(), signal.sleeper());
        let mut descriptors = [PollFd::new(&sleeper, PollFlags::IN), PollFd::new(&signalled, PollFlags::IN)];
        sleep(&mut descriptors, timeout)?;
        signal.take();
        (ready, _) = look();
    }
    ready.woken = waker.take();
    Ok(ready)
}
