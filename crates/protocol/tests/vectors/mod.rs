//! The recorded flows: what Python brokers, workers and clients said to each other, one flow a line of `vectors.jsonl`.
#![allow(dead_code, reason = "each test file uses its own part")]

use bytes::Bytes;
use serde::Deserialize;

/// A situation, recorded with one or two versions of the Python implementation.
#[derive(Debug, Deserialize)]
pub struct Flow {
    pub name: String,
    pub recordings: Vec<Recording>,
}

/// What one version did.
#[derive(Debug, Deserialize)]
pub struct Recording {
    pub version: String,
    pub messages: Vec<Message>,
}

/// One message as it passed the broker's side of the wire.
#[derive(Debug, Deserialize)]
pub struct Message {
    pub from: String,
    pub to: String,
    /// Seconds since the beginning of the flow.
    pub t: f64,
    /// `false`: it was sent but never arrived (the receiver was gone or frozen).
    #[serde(default = "yes")]
    pub delivered: bool,
    pub frames: Vec<Frame>,
}

fn yes() -> bool {
    true
}

/// A frame, whole or (when it was large) by its beginning, length and digest.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Frame {
    utf8: Option<String>,
    hex: Option<String>,
    utf8_prefix: Option<String>,
    hex_prefix: Option<String>,
    length: Option<usize>,
    sha256: Option<String>,
}

impl Frame {
    /// The bytes. A frame that was recorded by its beginning gets a stand-in of its length: text ends with the brace
    /// that large JSON ends with.
    pub fn bytes(&self) -> Bytes {
        if let Some(text) = &self.utf8 {
            return Bytes::from(text.clone());
        }
        if let Some(digits) = &self.hex {
            return Bytes::from(from_hex(digits));
        }
        let length = self.length.expect("a cut frame has its length");
        let (mut bytes, last) = match (&self.utf8_prefix, &self.hex_prefix) {
            (Some(text), _) => (text.clone().into_bytes(), b'}'),
            (None, Some(digits)) => (from_hex(digits), b'.'),
            (None, None) => panic!("a frame without content: {self:?}"),
        };
        bytes.resize(length - 1, b'.');
        bytes.push(last);
        Bytes::from(bytes)
    }

    /// Whether the recording has all bytes.
    pub fn is_whole(&self) -> bool {
        self.length.is_none()
    }
}

impl Message {
    /// The frames as a DEALER sees them.
    pub fn frames(&self) -> Vec<Bytes> {
        self.frames.iter().map(Frame::bytes).collect()
    }

    /// A name in a recording as the bytes of the routing id: one peer had a name that is no text.
    pub fn routing_id(name: &str) -> Vec<u8> {
        name.strip_prefix("\\xff\\xfe")
            .map_or_else(|| name.as_bytes().to_vec(), |rest| [&[0xff, 0xfe], rest.as_bytes()].concat())
    }
}

/// All flows.
pub fn flows() -> Vec<Flow> {
    include_str!("vectors.jsonl")
        .lines()
        .map(|line| serde_json::from_str(line).expect("a line of vectors.jsonl is one flow"))
        .collect()
}

fn from_hex(digits: &str) -> Vec<u8> {
    (0..digits.len() / 2)
        .map(|index| u8::from_str_radix(&digits[2 * index..2 * index + 2], 16).expect("two hexadecimal digits"))
        .collect()
}
