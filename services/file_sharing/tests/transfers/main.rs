//! Transfers between our workers and clients, on ways that lose and change what is sent.

mod fetch;
mod lab;
mod upload;
mod upload_hostile;
