//! The encrypted handshake (RFC 26) of both sides, and the cipher that it ends with.
//!
//! Each side has a lasting key pair and makes a transient one for the connection; the session is sealed with the transient
//! ones, so that who steals a lasting key cannot read what was recorded before. HELLO and WELCOME exchange the transient keys,
//! under the server's lasting one; INITIATE carries the client's lasting key and a vouch, made with it, for its transient one.

use bytes::{Buf, Bytes};

use super::Broken;
use super::command::{Properties, name, named};
use super::frame::{COMMAND, HEAD_BYTES_MAX, MORE, head_bytes, write_head};
use crate::keys::{KeyPair, PublicKey};
use crate::options::DealerKeys;
use crate::sodium::{self, KEY_BYTES, MAC_BYTES, Nonce, Shared};

/// The server keeps its state itself: the cookie is a random text that the client must bring back. Fixed by RFC 26.
const COOKIE_BYTES: usize = 96;
/// A nonce of 8 bytes that counts up, after a prefix of 16.
const SHORT_NONCE_BYTES: usize = 8;
/// A nonce of 16 random bytes, after a prefix of 8.
const LONG_NONCE_BYTES: usize = 16;
/// Zero bytes in HELLO, which make it as long as its answer, so that nobody can use a server to multiply traffic.
const HELLO_PADDING_BYTES: usize = 72;
/// HELLO seals this many zero bytes, to show that the client has a transient secret key and knows the server's public one.
const HELLO_SEALED_BYTES: usize = 64;
/// The nonce and the box with two keys.
const VOUCH_BYTES: usize = LONG_NONCE_BYTES + MAC_BYTES + 2 * KEY_BYTES;

/// What MESSAGE has before its content: name, nonce, code, flags.
pub(super) const MESSAGE_HEAD_BYTES: usize = 8 + SHORT_NONCE_BYTES + MAC_BYTES + 1;

/// The flags inside a MESSAGE are not those of frames: more frames follow, ...
const INNER_MORE: u8 = 1;
/// ... and a command. It has the bit that a frame has for its length.
const INNER_COMMAND: u8 = 2;

const CLIENT_MESSAGE: &[u8; 16] = b"CurveZMQMESSAGEC";
const SERVER_MESSAGE: &[u8; 16] = b"CurveZMQMESSAGES";

/// The longest body of a frame before the handshake is over. A client's properties are in it.
pub(super) const HANDSHAKE_BYTES_MAX: u64 = 4096;

/// Encrypts and decrypts the messages of one connection.
pub(super) struct Cipher {
    shared: Shared,
    send_prefix: &'static [u8; 16],
    receive_prefix: &'static [u8; 16],
    /// The last number used.
    sent: u64,
    /// The last number seen. What has no higher one was seen before.
    received: u64,
}

impl Cipher {
    /// Writes a frame with a MESSAGE: flags and content, sealed.
    pub(super) fn write(&mut self, flags: u8, content: &[u8], bytes: &mut Vec<u8>) {
        self.sent += 1;
        write_message(&self.shared, self.send_prefix, self.sent, flags, content, bytes);
    }

    /// The same for a large one, later or somewhere else. What is written afterwards must leave afterwards.
    pub(super) fn sealing(&mut self, flags: u8, content: Bytes) -> Sealing {
        self.sent += 1;
        Sealing { shared: self.shared.duplicate(), prefix: self.send_prefix, number: self.sent, flags, content }
    }

    /// The box in a MESSAGE, not opened yet.
    pub(super) fn unwrap(&mut self, body: &[u8]) -> Result<Sealed, Broken> {
        let rest = named("MESSAGE", body).ok_or(Broken::Malformed)?;
        let (number, sealed) = rest.split_first_chunk().ok_or(Broken::Malformed)?;
        if sealed.len() < MAC_BYTES + 1 {
            return Err(Broken::Malformed);
        }
        let counted = u64::from_be_bytes(*number);
        if counted <= self.received {
            return Err(Broken::Malformed);
        }
        self.received = counted;
        Ok(Sealed { nonce: short(self.receive_prefix, *number), start: body.len() - sealed.len() })
    }

    /// Flags and content of a MESSAGE that is still in the input.
    pub(super) fn open(&mut self, body: &[u8]) -> Result<(u8, Bytes), Broken> {
        let sealed = self.unwrap(body)?;
        let content = self.shared.open(&sealed.nonce, &body[sealed.start..]).ok_or(Broken::Box)?;
        Ok(with_flags(Bytes::from(content)))
    }

    /// The same for one that was collected, which is decrypted where it is.
    pub(super) fn open_collected(&mut self, body: Vec<u8>) -> Result<Opening, Broken> {
        let sealed = self.unwrap(&body)?;
        Ok(Opening { shared: self.shared.duplicate(), sealed, body })
    }
}

fn write_message(shared: &Shared, prefix: &[u8; 16], number: u64, flags: u8, content: &[u8], bytes: &mut Vec<u8>) {
    let length = MESSAGE_HEAD_BYTES + content.len();
    bytes.reserve(head_bytes(length) + length);
    write_head(0, length, bytes);
    name("MESSAGE", bytes);
    let number = number.to_be_bytes();
    bytes.extend_from_slice(&number);
    let box_start = bytes.len();
    bytes.extend_from_slice(&[0; MAC_BYTES]);
    let (more, command) = (flags & MORE != 0, flags & COMMAND != 0);
    bytes.push(if more { INNER_MORE } else { 0 } | if command { INNER_COMMAND } else { 0 });
    bytes.extend_from_slice(content);
    let (mac, sealed) = bytes[box_start..].split_at_mut(MAC_BYTES);
    mac.copy_from_slice(&shared.seal(&short(prefix, number), sealed));
}

/// A large frame, with all that is needed to seal it somewhere else.
pub(crate) struct Sealing {
    shared: Shared,
    prefix: &'static [u8; 16],
    number: u64,
    flags: u8,
    content: Bytes,
}

impl Sealing {
    /// The frame as it leaves.
    pub(crate) fn seal(self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(HEAD_BYTES_MAX + MESSAGE_HEAD_BYTES + self.content.len());
        write_message(&self.shared, self.prefix, self.number, self.flags, &self.content, &mut bytes);
        bytes
    }
}

/// Where a box is, and its nonce.
pub(super) struct Sealed {
    nonce: Nonce,
    start: usize,
}

/// A large box, with all that is needed to open it somewhere else.
pub(crate) struct Opening {
    shared: Shared,
    sealed: Sealed,
    body: Vec<u8>,
}

impl Opening {
    /// Flags and content.
    pub(crate) fn open(mut self) -> Result<(u8, Bytes), Broken> {
        if !self.shared.open_in_place(&self.sealed.nonce, &mut self.body[self.sealed.start..]) {
            return Err(Broken::Box);
        }
        let mut content = Bytes::from(self.body);
        content.advance(self.sealed.start + MAC_BYTES);
        Ok(with_flags(content))
    }
}

/// The content of a MESSAGE, which has at least its flags, and what these are for a frame.
fn with_flags(mut content: Bytes) -> (u8, Bytes) {
    let (more, command) = (content[0] & INNER_MORE != 0, content[0] & INNER_COMMAND != 0);
    content.advance(1);
    (if more { MORE } else { 0 } | if command { COMMAND } else { 0 }, content)
}

/// The client's side.
pub(super) struct Client {
    keys: DealerKeys,
    public: [u8; KEY_BYTES],
    secret: Box<[u8; KEY_BYTES]>,
    /// The session, once WELCOME was read.
    session: Option<Shared>,
}

/// What the client says, or what it ends with.
pub(super) enum ClientStep {
    Say(Vec<u8>),
    Done(Cipher, Vec<u8>),
}

impl Client {
    pub(super) fn new(keys: DealerKeys) -> Self {
        let (public, secret) = sodium::key_pair();
        Self { keys, public, secret, session: None }
    }

    /// The first command.
    pub(super) fn hello(&self) -> Result<Vec<u8>, Broken> {
        let mut bytes = Vec::with_capacity(200);
        name("HELLO", &mut bytes);
        bytes.extend_from_slice(&[1, 0]);
        bytes.extend_from_slice(&[0; HELLO_PADDING_BYTES]);
        bytes.extend_from_slice(&self.public);
        let number = 1_u64.to_be_bytes();
        bytes.extend_from_slice(&number);
        let shared = Shared::new(self.keys.broker.as_bytes(), &self.secret).ok_or(Broken::Box)?;
        write_box(&shared, &short(b"CurveZMQHELLO---", number), &[0; HELLO_SEALED_BYTES], &mut bytes);
        Ok(bytes)
    }

    /// What to do about a command of the server.
    pub(super) fn step(&mut self, body: &[u8], own: &Properties) -> Result<ClientStep, Broken> {
        if named("ERROR", body).is_some() {
            return Err(Broken::Denied);
        }
        match &self.session {
            None => self.initiate(named("WELCOME", body).ok_or(Broken::Malformed)?, own),
            Some(session) => {
                let ready = named("READY", body).ok_or(Broken::Malformed)?;
                let (number, sealed) = ready.split_first_chunk().ok_or(Broken::Malformed)?;
                let properties = session.open(&short(b"CurveZMQREADY---", *number), sealed).ok_or(Broken::Box)?;
                let cipher = Cipher {
                    shared: session.duplicate(),
                    send_prefix: CLIENT_MESSAGE,
                    receive_prefix: SERVER_MESSAGE,
                    // HELLO was the first, INITIATE the second.
                    sent: 2,
                    received: u64::from_be_bytes(*number),
                };
                Ok(ClientStep::Done(cipher, properties))
            }
        }
    }

    fn initiate(&mut self, welcome: &[u8], own: &Properties) -> Result<ClientStep, Broken> {
        let (random, sealed) = welcome.split_first_chunk::<LONG_NONCE_BYTES>().ok_or(Broken::Malformed)?;
        let shared = Shared::new(self.keys.broker.as_bytes(), &self.secret).ok_or(Broken::Box)?;
        let content = shared.open(&long(b"WELCOME-", random), sealed).ok_or(Broken::Box)?;
        let (server_transient, cookie) = content.split_first_chunk::<KEY_BYTES>().ok_or(Broken::Malformed)?;
        if cookie.len() != COOKIE_BYTES {
            return Err(Broken::Malformed);
        }
        let session = Shared::new(server_transient, &self.secret).ok_or(Broken::Box)?;

        let mut content = Vec::with_capacity(KEY_BYTES + VOUCH_BYTES + 64);
        content.extend_from_slice(self.keys.own.public.as_bytes());
        let random = sodium::random::<LONG_NONCE_BYTES>();
        content.extend_from_slice(&random);
        let vouching = Shared::new(server_transient, self.keys.own.secret.as_bytes()).ok_or(Broken::Box)?;
        let vouch = [&self.public[..], self.keys.broker.as_bytes()].concat();
        write_box(&vouching, &long(b"VOUCH---", &random), &vouch, &mut content);
        own.write(&mut content);

        let mut bytes = Vec::with_capacity(320);
        name("INITIATE", &mut bytes);
        bytes.extend_from_slice(cookie);
        let number = 2_u64.to_be_bytes();
        bytes.extend_from_slice(&number);
        write_box(&session, &short(b"CurveZMQINITIATE", number), &content, &mut bytes);
        self.session = Some(session);
        Ok(ClientStep::Say(bytes))
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        sodium::wipe(&mut self.secret[..]);
    }
}

/// The server's side.
pub(super) struct Server {
    keys: std::sync::Arc<KeyPair>,
    welcomed: Option<Welcomed>,
}

/// What the server knows after WELCOME.
struct Welcomed {
    client_transient: [u8; KEY_BYTES],
    secret: Box<[u8; KEY_BYTES]>,
    cookie: [u8; COOKIE_BYTES],
}

impl Drop for Welcomed {
    fn drop(&mut self) {
        sodium::wipe(&mut self.secret[..]);
    }
}

/// What the server says, or whom it has before it.
pub(super) enum ServerStep {
    Say(Vec<u8>),
    /// The client has proven who it is. It waits for READY, or ERROR.
    Proven(Box<Proven>),
}

/// A client that has proven who it is.
pub(super) struct Proven {
    pub(super) key: PublicKey,
    pub(super) properties: Vec<u8>,
    session: Shared,
    received: u64,
}

impl Proven {
    /// The last command of the handshake, and the cipher.
    pub(super) fn ready(self, own: &Properties) -> (Vec<u8>, Cipher) {
        let mut bytes = Vec::new();
        name("READY", &mut bytes);
        let number = 1_u64.to_be_bytes();
        bytes.extend_from_slice(&number);
        let mut content = Vec::new();
        own.write(&mut content);
        write_box(&self.session, &short(b"CurveZMQREADY---", number), &content, &mut bytes);
        let cipher = Cipher {
            shared: self.session,
            send_prefix: SERVER_MESSAGE,
            receive_prefix: CLIENT_MESSAGE,
            sent: 1,
            received: self.received,
        };
        (bytes, cipher)
    }
}

impl Server {
    pub(super) fn new(keys: std::sync::Arc<KeyPair>) -> Self {
        Self { keys, welcomed: None }
    }

    /// What to do about a command of the client.
    pub(super) fn step(&mut self, body: &[u8]) -> Result<ServerStep, Broken> {
        match self.welcomed.take() {
            None => self.welcome(named("HELLO", body).ok_or(Broken::Malformed)?),
            Some(welcomed) => self.prove(named("INITIATE", body).ok_or(Broken::Malformed)?, &welcomed),
        }
    }

    fn welcome(&mut self, hello: &[u8]) -> Result<ServerStep, Broken> {
        let (version, rest) = hello.split_first_chunk::<2>().ok_or(Broken::Malformed)?;
        let (_padding, rest) = rest.split_first_chunk::<HELLO_PADDING_BYTES>().ok_or(Broken::Malformed)?;
        let (client_transient, rest) = rest.split_first_chunk::<KEY_BYTES>().ok_or(Broken::Malformed)?;
        let (number, sealed) = rest.split_first_chunk().ok_or(Broken::Malformed)?;
        if *version != [1, 0] || sealed.len() != MAC_BYTES + HELLO_SEALED_BYTES {
            return Err(Broken::Malformed);
        }
        let shared = Shared::new(client_transient, self.keys.secret.as_bytes()).ok_or(Broken::Box)?;
        let zeros = shared.open(&short(b"CurveZMQHELLO---", *number), sealed).ok_or(Broken::Box)?;
        if zeros.iter().any(|byte| *byte != 0) {
            return Err(Broken::Malformed);
        }
        let (public, secret) = sodium::key_pair();
        let cookie = sodium::random();
        let mut bytes = Vec::with_capacity(168);
        name("WELCOME", &mut bytes);
        let random = sodium::random::<LONG_NONCE_BYTES>();
        bytes.extend_from_slice(&random);
        write_box(&shared, &long(b"WELCOME-", &random), &[&public[..], &cookie].concat(), &mut bytes);
        self.welcomed = Some(Welcomed { client_transient: *client_transient, secret, cookie });
        Ok(ServerStep::Say(bytes))
    }

    fn prove(&self, initiate: &[u8], welcomed: &Welcomed) -> Result<ServerStep, Broken> {
        let (cookie, rest) = initiate.split_first_chunk::<COOKIE_BYTES>().ok_or(Broken::Malformed)?;
        let (number, sealed) = rest.split_first_chunk().ok_or(Broken::Malformed)?;
        if !sodium::same(cookie, &welcomed.cookie) {
            return Err(Broken::Malformed);
        }
        let session = Shared::new(&welcomed.client_transient, &welcomed.secret).ok_or(Broken::Box)?;
        let content = session.open(&short(b"CurveZMQINITIATE", *number), sealed).ok_or(Broken::Box)?;
        let (key, rest) = content.split_first_chunk::<KEY_BYTES>().ok_or(Broken::Malformed)?;
        let (vouch, properties) = rest.split_first_chunk::<VOUCH_BYTES>().ok_or(Broken::Malformed)?;
        let (random, vouch) = vouch.split_first_chunk::<LONG_NONCE_BYTES>().ok_or(Broken::Malformed)?;
        let vouching = Shared::new(key, &welcomed.secret).ok_or(Broken::Box)?;
        let vouched = vouching.open(&long(b"VOUCH---", random), vouch).ok_or(Broken::Box)?;
        // The transient key is that of this client, and it meant this server.
        let expected = [&welcomed.client_transient[..], self.keys.public.as_bytes()].concat();
        if !sodium::same(&vouched, &expected) {
            return Err(Broken::Box);
        }
        Ok(ServerStep::Proven(Box::new(Proven {
            key: PublicKey::from_bytes(*key),
            properties: properties.to_vec(),
            session,
            received: u64::from_be_bytes(*number),
        })))
    }
}

fn write_box(shared: &Shared, nonce: &Nonce, content: &[u8], bytes: &mut Vec<u8>) {
    let start = bytes.len();
    bytes.extend_from_slice(&[0; MAC_BYTES]);
    bytes.extend_from_slice(content);
    let (mac, sealed) = bytes[start..].split_at_mut(MAC_BYTES);
    mac.copy_from_slice(&shared.seal(nonce, sealed));
}

fn short(prefix: &[u8; 16], number: [u8; SHORT_NONCE_BYTES]) -> Nonce {
    let mut nonce = [0; 24];
    nonce[..16].copy_from_slice(prefix);
    nonce[16..].copy_from_slice(&number);
    nonce
}

fn long(prefix: &[u8; 8], random: &[u8; LONG_NONCE_BYTES]) -> Nonce {
    let mut nonce = [0; 24];
    nonce[..8].copy_from_slice(prefix);
    nonce[8..].copy_from_slice(random);
    nonce
}
