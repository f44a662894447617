//! Transfers between our workers and clients, on ways that lose and change what is sent.

mod cache;
mod deleting;
mod fetch;
mod git;
mod hostile;
mod lab;
mod many;
mod silent;
mod sync;
mod upload;
mod upload_hostile;
mod upload_liar;
mod workers;
