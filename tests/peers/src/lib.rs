//! Real Python NorFab peers against ours.
//!
//! The tests start stock brokers, workers and clients of Python NorFab as processes of their own, put them and our
//! binary on one fabric in every mixture, and look at what each side sees. Nothing here imitates a peer.
//!
//! Reading order:
//!
//! 1. [`Site`]: a folder with an `inventory.yaml` and the endpoint of one broker; both worlds read the same file.
//! 2. [`Side`]: who plays a role, which Python release or ours; [`fabrics`] lists the combinations to go through.
//! 3. [`Peer`]: a running process with its deadline-bound waits, killed when it is dropped.
//! 4. [`Client`] and [`Dealer`]: a client of either side, and bare sockets for frames that no client would send.
//! 5. [`Devices`]: simulated network devices for the `nornir` service.
//!
//! Everything panics where a test should fail, with what the peer printed. The Python environments are made by
//! `cargo xtask peers`.

mod client;
mod dealer;
mod devices;
mod environment;
mod peer;
mod port;
mod side;
mod site;

pub use client::{Client, Job};
pub use dealer::Dealer;
pub use devices::Devices;
pub use environment::{Environment, norfab, ours, source};
pub use peer::{Peer, WAIT_LONG};
pub use port::ReservedPort;
pub use side::{Release, Security, Side, fabrics};
pub use site::Site;
