//! What can go wrong with a link, in words that tell what to do.

use std::path::PathBuf;

use thiserror::Error;

/// What to do about an endpoint that is none.
const ENDPOINT_ADVICE: &str = "write tcp://HOST:PORT, tcp://[IPV6]:PORT, tcp://*:PORT or ipc://PATH";

/// What to do where somebody else listens.
const IN_USE_ADVICE: &str = "stop it or choose another port";

/// What to do about an address of another host.
const ADDRESS_ADVICE: &str = "use one of its own addresses or *";

/// What to do about a name without an address.
const NAME_ADVICE: &str = "check the spelling or write the address";

/// A failure of a link or of the context behind it.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum LinkError {
    /// The text is not an endpoint that this crate understands.
    #[error("malformed endpoint \"{endpoint}\": {reason}; {ENDPOINT_ADVICE}")]
    MalformedEndpoint {
        /// The text as given.
        endpoint: String,
        /// What is wrong with it.
        reason: &'static str,
    },
    /// Another process (or another link of this one) listens there already.
    #[error("cannot listen on {endpoint}: the address is in use by another process; {IN_USE_ADVICE}")]
    AddressInUse {
        /// The endpoint as given.
        endpoint: String,
    },
    /// The address belongs to no interface of this host.
    #[error("cannot listen on {endpoint}: the address belongs to no interface of this host; {ADDRESS_ADVICE}")]
    AddressNotAvailable {
        /// The endpoint as given.
        endpoint: String,
    },
    /// The name has no address.
    #[error("cannot resolve the name in {endpoint}: {reason}; {NAME_ADVICE}")]
    Unresolvable {
        /// The endpoint as given.
        endpoint: String,
        /// What the resolver said.
        reason: String,
    },
    /// Listening failed for another reason.
    #[error("cannot listen on {endpoint}: {reason}")]
    Bind {
        /// The endpoint as given.
        endpoint: String,
        /// What the system said.
        reason: String,
    },
    /// A peer name that ZeroMQ cannot carry: it takes 1 to 255 bytes, and none that starts with a zero byte.
    #[error("a routing id of {length} bytes is not possible: 1 to 255 bytes, the first of them not zero")]
    RoutingId {
        /// Its length in bytes.
        length: usize,
    },
    /// A message of no frames cannot be sent.
    #[error("a message needs at least one frame")]
    EmptyMessage,
    /// A call of the system failed in a way that none of the above covers.
    #[error("{call} failed: {reason} (errno {errno})")]
    System {
        /// The call that failed.
        call: &'static str,
        /// Its error number.
        errno: i32,
        /// The same in words.
        reason: String,
    },
    /// The operating system refused something else.
    #[error("{what}: {reason}")]
    Io {
        /// What was tried.
        what: &'static str,
        /// What the system said.
        reason: String,
    },
}

impl LinkError {
    /// What to do, with which the text ends. `None`: it does not end so.
    pub fn advice(&self) -> Option<&'static str> {
        match self {
            Self::MalformedEndpoint { .. } => Some(ENDPOINT_ADVICE),
            Self::AddressInUse { .. } => Some(IN_USE_ADVICE),
            Self::AddressNotAvailable { .. } => Some(ADDRESS_ADVICE),
            Self::Unresolvable { .. } => Some(NAME_ADVICE),
            _ => None,
        }
    }
}

/// Why a message was not taken by a link. The message is then as it was: nothing of it has left.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum SendError {
    /// A router knows no peer of this name now.
    #[error("no peer of this name is connected")]
    Unroutable,
    /// The peer's queue is full, or a dealer is not connected. A dealer waits for `writable` and tries again.
    #[error("the peer's queue is full or its connection is down")]
    Full,
    /// The link was closed.
    #[error("the link is closed")]
    Closed,
    /// The link failed.
    #[error(transparent)]
    Failed(#[from] LinkError),
}

/// A failure with keys and certificate files.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum KeyError {
    /// The text is not a key.
    #[error("\"{text}\" is not a CURVE key: 40 characters of Z85 are needed, {reason}")]
    Malformed {
        /// The text for a public key; never the text of a secret one.
        text: String,
        /// What is wrong with it.
        reason: String,
    },
    /// A line of a certificate file cannot be understood.
    #[error("{}:{line}: {reason}", path.display())]
    Certificate {
        /// The file.
        path: PathBuf,
        /// The line, from 1.
        line: usize,
        /// What is wrong with it.
        reason: String,
    },
    /// A certificate file lacks a key.
    #[error("{}: no {missing} in this certificate file", path.display())]
    Missing {
        /// The file.
        path: PathBuf,
        /// `public-key` or `secret-key`.
        missing: &'static str,
    },
    /// The two keys of a secret certificate file do not belong together.
    #[error("{}: the public key does not belong to the secret key; restore the file or remove it to make a new pair", path.display())]
    Mismatch {
        /// The file.
        path: PathBuf,
    },
    /// A file or folder could not be read or written.
    #[error("{}: cannot {action}: {source}", path.display())]
    File {
        /// The file or folder.
        path: PathBuf,
        /// `read`, `write`, `create`, ...
        action: &'static str,
        /// What the system said.
        source: std::io::Error,
    },
    /// Neither a co-located broker's folder nor the inventory gave the broker's public key.
    #[error(
        "the broker's public key is not known: {} does not exist and the inventory names none; \
         set broker.curve_public_key (or broker.shared_key) to what `norfab broker-key` prints on the broker's host",
        path.display()
    )]
    BrokerKeyUnknown {
        /// Where a co-located broker would have put it.
        path: PathBuf,
    },
}
