//! Roles over real links, as a user of the crate sees them.

mod backlog;
mod connection;
mod decision;
mod failures;
mod roles;
mod support;
mod unreadable;
