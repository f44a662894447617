//! Bare sockets for frames that no client or worker would send.

use serde_json::{Value, json};

use crate::Peer;

/// A process with any number of DEALER sockets, each under a name that the test chooses.
///
/// A frame is a JSON string, sent as UTF-8, or `{"hex": "00ff"}` for other bytes.
#[derive(Debug)]
pub struct Dealer {
    peer: Peer,
    endpoint: String,
    broker_key: Option<String>,
}

impl Dealer {
    pub(crate) fn new(peer: Peer, endpoint: String, broker_key: Option<String>) -> Self {
        Self { peer, endpoint, broker_key }
    }

    /// Connects a socket with the routing id `identity`, a frame.
    pub fn connect(&mut self, socket: &str, identity: impl Into<Value>) {
        self.peer.call(
            "connect",
            json!({
                "socket": socket,
                "endpoint": self.endpoint,
                "identity": identity.into(),
                "server_key": self.broker_key,
            }),
        );
    }

    /// Sends one message; `frames` is a list.
    ///
    /// # Panics
    ///
    /// When the socket does not take it: see [`Dealer::offer`].
    pub fn send(&mut self, socket: &str, frames: Value) {
        assert!(self.offer(socket, frames), "{socket} takes no message: the broker has refused its handshake");
    }

    /// Sends one message if the socket takes it, and says whether it did.
    ///
    /// libzmq drops the way to a broker that refuses the handshake. What is handed over before that is taken and lost;
    /// what comes after is not taken at all. Which of the two it is depends on how fast the broker is.
    pub fn offer(&mut self, socket: &str, frames: Value) -> bool {
        self.peer.call("send", json!({"socket": socket, "frames": frames})) == true
    }

    /// The frames of the next message, or nothing when none comes within `seconds`.
    pub fn receive(&mut self, socket: &str, seconds: f64) -> Option<Vec<Value>> {
        match self.peer.call("receive", json!({"socket": socket, "timeout": seconds})) {
            Value::Array(frames) => Some(frames),
            _ => None,
        }
    }

    /// Connects `count` sockets at once, each with one message, and gives how many of them were answered.
    pub fn crowd(&mut self, count: u32, frames: Value) -> u64 {
        let answered = self.peer.call(
            "crowd",
            json!({
                "count": count,
                "endpoint": self.endpoint,
                "frames": frames,
                "server_key": self.broker_key,
                "timeout": 60,
            }),
        );
        answered.as_u64().expect("a number")
    }

    /// Opens a socket that sends ZeroMQ's heartbeats and gives how often it was cut off within so many of their time-outs.
    pub fn cut_off_with_heartbeats(&mut self, timeouts: u32) -> u64 {
        let cut_off = self
            .peer
            .call("beats", json!({"endpoint": self.endpoint, "count": timeouts, "server_key": self.broker_key}));
        cut_off.as_u64().expect("a number")
    }

    /// Closes a socket.
    pub fn close(&mut self, socket: &str) {
        self.peer.call("close", json!({"socket": socket}));
    }
}
