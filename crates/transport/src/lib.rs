//! ZeroMQ links with CURVE, each owned by exactly one loop.
//!
//! This is the only crate that knows ZeroMQ, and the only one with `unsafe` code (`sodium`, `promptness`). An owner loop sees two traits,
//! [`RouterLink`] (the broker's end) and [`DealerLink`] (the end of a worker or client), and sleeps in their `wait` until a
//! message, a producer's [`Waker`] or its own deadline needs it: there is no polling tick.
//!
//! Reading order: `link` (what an owner may do), `options` (every bound and its reason), `waker`, `router` and `dealer`,
//! `memory` (the same without a network, for tests), `admission`, `keys` and `certificate`. `zmtp` is what goes over the wire;
//! `connection` joins it with a socket of the system, `listen`, `dial` and `endpoint` make those, `poller` and `sleep` wait for
//! them. `boxes`, `linger` and `dial` are what happens on other threads: large encryption, what a closed link still has to send,
//! and the resolver. `promptness` is what owners ask of the scheduler.

mod admission;
mod boxes;
pub mod certificate;
mod clock;
mod connection;
mod context;
mod dealer;
mod dial;
mod endpoint;
mod error;
#[cfg(feature = "fuzzing")]
pub mod fuzzing;
mod keys;
mod linger;
mod link;
mod listen;
pub mod memory;
pub mod options;
mod poller;
mod promptness;
mod router;
mod sleep;
mod sodium;
mod waker;
mod zmtp;

pub use admission::{AddressAllowlist, Admission, AllowAny, AllowlistError, Mechanism, PeerHello, Verdict};
pub use certificate::KeyFolder;
pub use context::{Context, raise_descriptor_limit};
pub use dealer::Dealer;
pub use endpoint::Endpoint;
pub use error::{KeyError, LinkError, SendError};
pub use keys::{KeyPair, PublicKey, SecretKey};
pub use link::{DealerLink, LinkStatus, Ready, Received, RefusedReason, RouterLink};
pub use options::{DealerKeys, DealerOptions, LinkOptions, RouterOptions};
pub use promptness::run_promptly;
pub use router::Router;
pub use waker::Waker;

/// What links speak: the protocol of ZeroMQ and its version.
pub const WIRE: &str = "ZMTP 3.1";
