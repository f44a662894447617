//! How files travel between our workers and clients.
//!
//! A transfer is a stream of [`record`]s: where a file begins, its bytes with the hash of everything up to their end, and which
//! of them are the last. The hash after each piece is that of the content so far, so that one pass over a file says for every
//! piece whether it is right, and at the end for the whole. Whoever has a beginning of a file, from a transfer that was
//! interrupted or from an older version of it, says how long it is and its hash, and gets the rest.
//!
//! Reading order: [`hash`], [`record`], [`source`] (the sending side), [`sink`] (the receiving side), [`part`] (files that are not
//! whole yet), [`path`] and [`tree`] (many files below one folder).
#![warn(missing_docs)]

pub mod hash;
pub mod names;
pub mod part;
pub mod path;
pub mod record;
pub mod sink;
pub mod source;
pub mod tree;

pub use hash::{ContentHash, Prefix};
pub use part::Part;
pub use path::{NoPath, RelativePath};
pub use sink::{Arrival, Sink, SinkError};
pub use source::{Source, SourceError};
pub use tree::Tree;

/// Bytes of a file in one message, about: small enough that jobs' messages pass between two of them, large enough that the cost of a
/// message is small beside them.
pub const MESSAGE_BYTES: usize = 128 << 10;

/// Bytes of a transfer that may be on their way, where the receiver does not say: four round trips' worth on a fast line, and little
/// memory in each process on the way.
pub const WINDOW_BYTES: u64 = 4 << 20;

/// Most bytes that a receiver may ask to be on their way.
pub const WINDOW_BYTES_MAX: u64 = 64 << 20;
