//! Which connection a router's peer speaks over, so that one whose name another has taken is ended.
//!
//! libzmq gives the name of a peer to the newest connection under it and lets go of the older one without closing it. Once the
//! older one says something more, libzmq reads nothing from it ever again, and keeps its descriptor for good, even when the
//! other end has gone: two workers of one name would use up all descriptors in some hours. So the older connection is broken
//! off as soon as the newer one speaks.

#![allow(unsafe_code)]

use std::collections::HashMap;
use std::net::SocketAddr;
use std::os::fd::{BorrowedFd, RawFd};

/// Peers that are remembered before all are forgotten; each is there again with its next message.
const PEERS_MAX: usize = 65_536;

#[derive(Debug, Clone, Copy)]
struct Connection {
    descriptor: RawFd,
    /// Of the other end: by it the connection is known, as descriptors are used again.
    address: Option<SocketAddr>,
}

/// The connection that each peer last spoke over.
#[derive(Debug, Default)]
pub(crate) struct Connections {
    of: HashMap<Box<[u8]>, Connection>,
}

impl Connections {
    /// A message of a peer came over a connection. One that it spoke over before, if that is still there, is broken off.
    pub(crate) fn heard(&mut self, peer: &[u8], descriptor: RawFd) {
        if let Some(known) = self.of.get_mut(peer) {
            if known.descriptor == descriptor {
                return;
            }
            let older = std::mem::replace(known, Connection { descriptor, address: address(descriptor) });
            if older.address.is_some() && address(older.descriptor) == older.address {
                break_off(older.descriptor);
            }
            return;
        }
        if self.of.len() >= PEERS_MAX {
            self.of.clear();
        }
        self.of.insert(peer.into(), Connection { descriptor, address: address(descriptor) });
    }
}

/// The address of the other end; `None` where there is no TCP connection (any more).
fn address(descriptor: RawFd) -> Option<SocketAddr> {
    // SAFETY: it is only asked for its other end, which is an error where it is closed or is no socket. Should it be another
    // socket by now, its address tells.
    let descriptor = unsafe { BorrowedFd::borrow_raw(descriptor) };
    rustix::net::getpeername(descriptor).ok().flatten().and_then(|address| SocketAddr::try_from(address).ok())
}

/// Breaks a connection off at once: what was already on its way is thrown away, because libzmq must not read it before it sees
/// the end.
fn break_off(descriptor: RawFd) {
    // SAFETY: a moment ago this was the connection that is meant, and it stays open until libzmq closes it. Should that happen
    // just now and another connection get its number at once, that one breaks off and is made again.
    let descriptor = unsafe { BorrowedFd::borrow_raw(descriptor) };
    if rustix::net::connect_unspec(descriptor).is_err() {
        // An error: it was not connected any more, which is what is wanted.
        rustix::net::shutdown(descriptor, rustix::net::Shutdown::Both).ok();
    }
}
