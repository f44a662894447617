//! Roles over real links, as a user of the crate sees them.

mod backlog;
mod cancel;
mod connection;
mod decision;
mod detour;
mod failures;
mod large;
mod questions;
mod refill;
mod restart;
mod roles;
mod storm;
mod support;
mod unreadable;
mod waiting;
