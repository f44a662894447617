//! Development only: seeded simulation of the three machines on a virtual clock.
//!
//! One seed is one run of a small fabric: clients, one broker, workers, the wires between them and the stores behind
//! them. Messages are delayed, connections are lost with all that is in flight, every role crashes and comes back,
//! workers freeze. The machines are the real ones of the protocol crate; everything around them is decided by the seed,
//! so that a run that fails fails again.
//!
//! Reading order: [`scenario`] (what a seed means), [`agenda`] (the virtual clock), [`wire`], [`store`], the three nodes
//! [`client`] (with its [`backlog`]), [`broker`], [`worker`], [`world`] (puts them together), [`watch`] (what must hold after every step), [`plant`] (errors that show that it does find some).

pub mod agenda;
pub mod backlog;
pub mod broker;
pub mod client;
pub mod plant;
pub mod scenario;
pub mod store;
pub mod trace;
pub mod watch;
pub mod wire;
pub mod worker;
pub mod world;

pub use plant::Plant;
pub use scenario::Scenario;
pub use world::{Summary, run, run_with};
