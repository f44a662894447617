//! Roles over real links, as a user of the crate sees them.

mod asked;
mod backlog;
mod cancel;
mod connection;
mod decision;
mod detour;
mod failures;
mod full;
mod hooked;
mod large;
mod many;
mod questions;
mod refill;
mod restart;
mod roles;
mod slow;
mod standing;
#[cfg(target_os = "linux")]
mod stopping;
mod storm;
mod support;
mod unreadable;
mod waiting;
