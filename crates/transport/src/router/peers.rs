//! The peers of a router, each with a key by which the poller and the thread for large boxes know it.

use bytes::Bytes;

use crate::connection::Connection;
use crate::poller::Interest;

/// A peer.
pub(super) struct Peer {
    pub(super) connection: Connection,
    pub(super) address: String,
    /// Its routing id, once the handshake is over.
    pub(super) name: Option<Bytes>,
    /// What the poller knows.
    pub(super) interest: Interest,
    /// The system took no more; it says when it does.
    pub(super) blocked: bool,
    /// Nothing more can be said to it; what it said before is still read.
    pub(super) mute: bool,
    /// It is in `dirty`.
    pub(super) dirty: bool,
    /// It is in `ready`.
    pub(super) ready: bool,
    /// Bytes of large frames that wait, as counted in the sum of all.
    pub(super) large_bytes: usize,
    /// Everything was said, and the end of the other side is waited for.
    pub(super) shut: bool,
    /// It counts as one whose handshake is under way.
    pub(super) shaking: bool,
    /// Another has its name; it is there only for the box that is being opened.
    pub(super) retired: bool,
}

/// A place for a peer. The number of times that it was used is part of the key, so that news of one that has gone are not taken
/// for those of the next.
#[derive(Default)]
struct Place {
    uses: u32,
    peer: Option<Box<Peer>>,
}

/// All peers.
#[derive(Default)]
pub(super) struct Peers {
    places: Vec<Place>,
    free: Vec<u32>,
}

impl Peers {
    /// Makes the key of the next peer. Its place is empty.
    pub(super) fn reserve(&mut self) -> u64 {
        let index = self.free.pop().unwrap_or_else(|| {
            self.places.push(Place::default());
            u32::try_from(self.places.len() - 1).expect("fewer than descriptors")
        });
        let place = &mut self.places[index as usize];
        place.uses = place.uses.wrapping_add(1);
        u64::from(place.uses) << 32 | u64::from(index)
    }

    /// Gives a key back whose place is empty.
    pub(super) fn release(&mut self, key: u64) {
        self.free.push(split(key).0);
    }

    pub(super) fn get(&mut self, key: u64) -> Option<&mut Peer> {
        self.place(key)?.peer.as_deref_mut()
    }

    /// Takes a peer out of its place, to work with it and with the router.
    pub(super) fn take(&mut self, key: u64) -> Option<Box<Peer>> {
        self.place(key)?.peer.take()
    }

    pub(super) fn put(&mut self, key: u64, peer: Box<Peer>) {
        if let Some(place) = self.place(key) {
            place.peer = Some(peer);
        }
    }

    /// Takes all peers, with their keys.
    pub(super) fn take_all(&mut self) -> Vec<(u64, Box<Peer>)> {
        let places = (0_u32..).zip(&mut self.places);
        places
            .filter_map(|(index, place)| Some((u64::from(place.uses) << 32 | u64::from(index), place.peer.take()?)))
            .collect()
    }

    fn place(&mut self, key: u64) -> Option<&mut Place> {
        let (index, uses) = split(key);
        self.places.get_mut(index as usize).filter(|place| place.uses == uses)
    }
}

/// The place of a key, and which use of it is meant.
#[expect(clippy::cast_possible_truncation, reason = "each half is wanted alone")]
fn split(key: u64) -> (u32, u32) {
    (key as u32, (key >> 32) as u32)
}
