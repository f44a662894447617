//! Git remotes as clients see them, with real repositories and servers.

mod disk;
mod hostile;
mod lab;
mod local;
mod periodic;
mod recorded;
mod server;
mod ssh;
mod web;
