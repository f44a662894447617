//! Roles over real links, as a user of the crate sees them.

mod decision;
mod roles;
mod support;
