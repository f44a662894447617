//! Roles over real links, as a user of the crate sees them.

mod backlog;
mod cancel;
mod connection;
mod decision;
mod failures;
mod full;
mod hooked;
mod many;
mod questions;
mod refill;
mod restart;
mod roles;
mod standing;
mod support;
mod unreadable;
mod waiting;
