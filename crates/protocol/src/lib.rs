//! The NFP protocol as pure data and state machines: no I/O, no clock, no threads.
//!
//! Reading order: [`name`] (what travels in frames, built only by parsing), [`target`], [`frame`] (commands,
//! headers, bounds), [`message`] (one closed enum per direction), [`body`] and [`result`] (the JSON documents),
//! [`keepalive`], then the three machines: [`broker`], [`worker`], [`client`].
//!
//! A machine takes one input together with the current time, then its outputs are drained in order. The order is
//! meaning: what is to be stored comes before what tells a peer about it.
#![warn(missing_docs)]

pub mod body;
pub mod broker;
pub mod client;
pub mod frame;
pub mod keepalive;
pub mod message;
pub mod name;
mod recent;
pub mod result;
pub mod size;
pub mod target;
pub mod timer;
pub mod worker;

pub use body::{Event, EventType, JobRequestBody, Severity};
pub use keepalive::{Keepalive, KeepaliveConfig};
pub use name::{Identity, JobId, NameError, ServiceName, TaskName};
pub use result::{ResultStatus, ResultView, TaskResult};
pub use target::Target;
