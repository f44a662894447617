//! ZeroMQ links with CURVE, each owned by exactly one loop.
//!
//! This is the only crate that names ZeroMQ, and the only one with `unsafe` code. An owner loop sees two traits,
//! [`RouterLink`] (the broker's end) and [`DealerLink`] (the end of a worker or client), and sleeps in their `wait` until a
//! message, a producer's [`Waker`] or its own deadline needs it: there is no polling tick.
//!
//! Reading order: `link` (what an owner may do), `options` (every bound and its reason), `waker`, `router` and `dealer`,
//! `memory` (the same without a network, for tests), `admission`, `keys` and `certificate`. `ffi`, `context`, `socket` and
//! `message` wrap libzmq; `endpoint`, `dial` and `monitor` serve the dealer's way to a connection.

mod admission;
pub mod certificate;
mod context;
mod dealer;
mod dial;
mod endpoint;
mod error;
mod ffi;
mod keys;
mod lent;
mod link;
pub mod memory;
mod message;
mod monitor;
pub mod options;
mod router;
mod sleep;
mod socket;
mod waker;

pub use admission::{AddressAllowlist, Admission, AllowAny, AllowlistError, Mechanism, PeerHello, Verdict};
pub use certificate::KeyFolder;
pub use context::{Context, has_curve, raise_descriptor_limit, zmq_version};
pub use dealer::Dealer;
pub use endpoint::Endpoint;
pub use error::{KeyError, LinkError, SendError};
pub use keys::{KeyPair, PublicKey, SecretKey};
pub use link::{DealerLink, LinkStatus, Ready, Received, RefusedReason, RouterLink};
pub use options::{DealerKeys, DealerOptions, LinkOptions, RouterOptions};
pub use router::Router;
pub use waker::Waker;
