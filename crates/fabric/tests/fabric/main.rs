//! Roles over real links, as a user of the crate sees them.

mod backlog;
mod cancel;
mod connection;
mod decision;
mod failures;
mod full;
mod questions;
mod refill;
mod restart;
mod roles;
mod support;
mod unreadable;
mod waiting;
