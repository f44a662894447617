//! The owner loops of broker, worker and client, and their handles.
//!
//! Each of the three sockets has one owner: a thread that asks a machine of `norfab-protocol` what to do and does it.
//! Everyone else holds a handle, which puts commands into a bounded queue ([`queue`]) and gets an error when that stays
//! full. The owner sleeps until a message, a command, a confirmation of the store or the next deadline comes; it never
//! ticks, never waits for a disk or a task, and never queues to itself.
//!
//! Reading order: [`clock`], [`queue`], `outbox`, then [`broker`], [`worker`], [`client`].
#![warn(missing_docs)]

pub mod broker;
pub mod client;
pub mod clock;
mod inbox;
mod outbox;
pub mod process;
mod pruning;
pub mod queue;
pub mod status;
mod storing;
mod throttle;
mod turn;
pub mod worker;

pub use broker::{BrokerHandle, BrokerInformation, BrokerOptions};
pub use client::{ClientHandle, ClientOptions, JobHandle, JobReport, JobSpec};
pub use clock::SystemClock;
pub use queue::QueueError;
pub use status::{LinkState, Problem, Sources, TellProblem, tell_problem};
pub use worker::{WorkerHandle, WorkerOptions};

/// Why a role could not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The job database.
    #[error(transparent)]
    Store(#[from] norfab_jobs::StoreError),
    /// The link.
    #[error(transparent)]
    Link(#[from] norfab_transport::LinkError),
    /// The thread.
    #[error("cannot start the thread of {role}: {error}")]
    Thread {
        /// Of which role.
        role: String,
        /// Why.
        error: std::io::Error,
    },
}
