//! One end of a connection: what comes in and what goes out, from the greeting to the last message.

use std::io::IoSlice;
use std::sync::Arc;

use bytes::Bytes;

use super::command::{self, Properties, SocketType, named};
use super::curve::{
    Cipher, Client, ClientStep, HANDSHAKE_BYTES_MAX, MESSAGE_HEAD_BYTES, Opening, Proven, Sealing, Server, ServerStep,
};
use super::frame::{Body, COMMAND, FrameReader, MORE, write_head};
use super::greeting::{GreetingReader, Mechanism, greeting};
use super::output::{Output, Room, large_bytes};
use super::{Broken, LARGE_BOX_BYTES};
use crate::keys::{KeyPair, PublicKey};
use crate::options::DealerKeys;

/// Which end of a connection this is.
pub(crate) enum Role {
    /// The one that listens, a ROUTER; with keys it is the server of CURVE.
    Listener { keys: Option<Arc<KeyPair>> },
    /// The one that connects, a DEALER.
    Connector { keys: Option<DealerKeys>, identity: Bytes },
}

/// What a peer may send.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Limits {
    /// Bytes in a frame, and in all frames of a message together.
    pub(crate) bytes_max: u64,
    /// Frames in a message; what is beyond is thrown away as it comes.
    pub(crate) frames_max: usize,
}

/// What came of the bytes that were received.
pub(crate) enum Happening {
    /// The peer asks to be let in, with the key that it has proven to have. Nothing more is read before [`Engine::admit`].
    Asks(Option<PublicKey>),
    /// The handshake is over; the peer's identity.
    Open(Bytes),
    /// A message.
    Message {
        frames: Vec<Bytes>,
        /// There were more frames.
        truncated: bool,
    },
    /// A large box. Nothing more is read before [`Engine::opened`].
    Large(Opening),
}

enum Stage {
    Greeting(GreetingReader),
    /// Waiting for READY in the clear.
    Null,
    CurveClient(Box<Client>),
    CurveServer(Box<Server>),
    /// Waiting for [`Engine::admit`].
    AskedPlain(Bytes),
    /// The same, with CURVE.
    AskedCurve(Bytes, Box<Proven>),
    Open,
    /// Waiting for [`Engine::opened`].
    OpensLarge,
    /// The peer was turned away; nothing that it says matters.
    Denied,
}

/// One end of a connection.
pub(crate) struct Engine {
    role: Role,
    limits: Limits,
    stage: Stage,
    reader: FrameReader,
    output: Output,
    cipher: Option<Cipher>,
    /// The message that is coming in.
    frames: Vec<Bytes>,
    message_bytes: u64,
    truncated: bool,
}

/// The number of frames after the routing id of the common messages of the fabric.
const FRAMES_USUAL: usize = 8;

impl Engine {
    pub(crate) fn new(role: Role, limits: Limits) -> Self {
        let mut output = Output::new();
        let (mechanism, as_server) = role.mechanism();
        output.raw(&greeting(mechanism, as_server));
        Self {
            role,
            limits,
            stage: Stage::Greeting(GreetingReader::new()),
            reader: FrameReader::new(HANDSHAKE_BYTES_MAX),
            output,
            cipher: None,
            frames: Vec::new(),
            message_bytes: 0,
            truncated: false,
        }
    }

    /// Whether the handshake is over.
    pub(crate) fn is_open(&self) -> bool {
        matches!(self.stage, Stage::Open | Stage::OpensLarge)
    }

    /// Whether the encrypted handshake has begun: what ends the connection now has to do with keys.
    pub(crate) fn is_encrypting(&self) -> bool {
        matches!(self.stage, Stage::CurveClient(_) | Stage::CurveServer(_))
    }

    /// Whether the peer was turned away.
    pub(crate) fn is_denied(&self) -> bool {
        matches!(self.stage, Stage::Denied)
    }

    /// Works off the input up to the next thing that happens; `None` when all of it was taken, or nothing is to be read now.
    pub(crate) fn receive(&mut self, input: &mut &[u8]) -> Result<Option<Happening>, Broken> {
        if let Stage::Greeting(reader) = &mut self.stage {
            let (mechanism, _) = self.role.mechanism();
            if !reader.read(input, mechanism)? {
                return Ok(None);
            }
            self.begin_handshake()?;
        }
        while self.reads() {
            if self.is_denied() {
                *input = &[];
                return Ok(None);
            }
            let Some(frame) = self.reader.next(input)? else {
                return Ok(None);
            };
            let happening = match self.stage {
                Stage::Open => self.take(frame.flags, frame.body)?,
                _ if frame.flags & COMMAND == 0 => return Err(Broken::Malformed),
                _ => self.handshake(frame.body.as_slice())?,
            };
            if happening.is_some() {
                return Ok(happening);
            }
        }
        Ok(None)
    }

    /// Where the rest of a long body may be read to without a detour, if at least so much of it is missing, and how much.
    /// Afterwards [`Engine::receive`] without input goes on.
    pub(crate) fn rest_of_body(&mut self, least: usize) -> Option<(&mut Vec<u8>, usize)> {
        if self.is_open() { self.reader.rest_of_body(least) } else { None }
    }

    /// Whether input is read now.
    pub(crate) fn reads(&self) -> bool {
        !matches!(self.stage, Stage::AskedPlain(_) | Stage::AskedCurve(..) | Stage::OpensLarge)
    }

    /// Lets the peer in that asked, or turns it away. Gives its identity if it is in.
    pub(crate) fn admit(&mut self, allowed: bool) -> Option<Bytes> {
        let own = self.role.properties();
        match std::mem::replace(&mut self.stage, Stage::Denied) {
            _ if !allowed => {
                self.say(&command::denial());
                None
            }
            Stage::AskedPlain(identity) => {
                let mut ready = Vec::new();
                command::name("READY", &mut ready);
                own.write(&mut ready);
                self.say(&ready);
                self.open(None);
                Some(identity)
            }
            Stage::AskedCurve(identity, proven) => {
                let (ready, cipher) = proven.ready(&own);
                self.say(&ready);
                self.open(Some(cipher));
                Some(identity)
            }
            other => {
                self.stage = other;
                None
            }
        }
    }

    /// Goes on after a large box was opened.
    pub(crate) fn opened(&mut self, opened: Result<(u8, Bytes), Broken>) -> Result<Option<Happening>, Broken> {
        self.stage = Stage::Open;
        let (flags, content) = opened?;
        self.take_content(flags, content)
    }

    /// Takes a message to send, whole or not at all.
    pub(crate) fn send(&mut self, frames: &[Bytes], room: Room) -> bool {
        if !self.has_room(large_bytes(frames), room) {
            return false;
        }
        self.output.message(frames, self.cipher.as_mut());
        true
    }

    /// Whether a message would be taken that is large and has so many bytes, or is not and has 0.
    pub(crate) fn has_room(&self, large: usize, room: Room) -> bool {
        let waiting = self.output.large_bytes();
        let bytes_fit = large == 0 || waiting == 0 || waiting.saturating_add(large) <= room.large_bytes;
        bytes_fit && self.output.messages() < room.messages
    }

    /// Bytes of large messages that wait to leave.
    pub(crate) fn large_bytes(&self) -> usize {
        self.output.large_bytes()
    }

    /// Whether something waits to leave.
    pub(crate) fn has_output(&self) -> bool {
        !self.output.is_empty()
    }

    /// A large frame that is to be sealed somewhere, if there is one that nobody was asked for. Nothing behind it leaves before
    /// [`Engine::sealed`].
    pub(crate) fn take_sealing(&mut self) -> Option<Sealing> {
        self.output.take_sealing()
    }

    /// Whether there is one.
    pub(crate) fn has_sealing(&self) -> bool {
        self.output.has_sealing()
    }

    /// Whether one is being sealed somewhere.
    pub(crate) fn waits_for_seal(&self) -> bool {
        self.output.waits_for_seal()
    }

    /// Goes on after a large frame was sealed.
    pub(crate) fn sealed(&mut self, bytes: Vec<u8>) {
        self.output.sealed(bytes);
    }

    /// Whether so much waits to leave that it should be tried now.
    pub(crate) fn is_ahead(&self) -> bool {
        self.output.is_ahead()
    }

    /// What to hand to the system next.
    pub(crate) fn slices<'engine>(&'engine mut self, slices: &mut Vec<IoSlice<'engine>>) {
        self.output.slices(self.cipher.as_mut(), slices);
    }

    /// The system has taken so many bytes.
    pub(crate) fn left(&mut self, bytes: usize) {
        self.output.left(bytes);
    }

    fn begin_handshake(&mut self) -> Result<(), Broken> {
        self.stage = match &self.role {
            Role::Listener { keys: None } => Stage::Null,
            Role::Listener { keys: Some(keys) } => Stage::CurveServer(Box::new(Server::new(Arc::clone(keys)))),
            Role::Connector { keys: None, .. } => {
                let mut ready = Vec::new();
                command::name("READY", &mut ready);
                self.role.properties().write(&mut ready);
                self.say(&ready);
                Stage::Null
            }
            Role::Connector { keys: Some(keys), .. } => {
                let client = Box::new(Client::new(keys.clone()));
                self.say(&client.hello()?);
                Stage::CurveClient(client)
            }
        };
        Ok(())
    }

    /// A command of the handshake.
    fn handshake(&mut self, body: &[u8]) -> Result<Option<Happening>, Broken> {
        let own = self.role.properties();
        match &mut self.stage {
            Stage::Null => {
                if named("ERROR", body).is_some() {
                    return Err(Broken::Denied);
                }
                let properties = named("READY", body).ok_or(Broken::Malformed)?;
                let identity = own.read_identity(properties)?;
                if matches!(self.role, Role::Listener { .. }) {
                    self.stage = Stage::AskedPlain(identity);
                    return Ok(Some(Happening::Asks(None)));
                }
                self.open(None);
                Ok(Some(Happening::Open(identity)))
            }
            Stage::CurveClient(client) => match client.step(body, &own)? {
                ClientStep::Say(bytes) => {
                    self.say(&bytes);
                    Ok(None)
                }
                ClientStep::Done(cipher, properties) => {
                    let identity = own.read_identity(&properties)?;
                    self.open(Some(cipher));
                    Ok(Some(Happening::Open(identity)))
                }
            },
            Stage::CurveServer(server) => match server.step(body)? {
                ServerStep::Say(bytes) => {
                    self.say(&bytes);
                    Ok(None)
                }
                ServerStep::Proven(proven) => {
                    let identity = own.read_identity(&proven.properties)?;
                    let key = proven.key;
                    self.stage = Stage::AskedCurve(identity, proven);
                    Ok(Some(Happening::Asks(Some(key))))
                }
            },
            _ => Err(Broken::Malformed),
        }
    }

    fn open(&mut self, cipher: Option<Cipher>) {
        let head = if cipher.is_some() { MESSAGE_HEAD_BYTES as u64 } else { 0 };
        self.reader.set_body_bytes_max(self.limits.bytes_max.saturating_add(head));
        self.cipher = cipher;
        self.stage = Stage::Open;
    }

    /// A command of the handshake, in the clear.
    fn say(&mut self, body: &[u8]) {
        let mut bytes = Vec::new();
        write_head(COMMAND, body.len(), &mut bytes);
        bytes.extend_from_slice(body);
        self.output.raw(&bytes);
    }

    /// A frame after the handshake.
    fn take(&mut self, flags: u8, body: Body<'_>) -> Result<Option<Happening>, Broken> {
        let (flags, content) = match (&mut self.cipher, body) {
            (None, Body::Whole(bytes)) => (flags, Bytes::copy_from_slice(bytes)),
            (None, Body::Collected(bytes)) => (flags, Bytes::from(bytes)),
            (Some(cipher), Body::Whole(bytes)) => cipher.open(bytes)?,
            (Some(cipher), Body::Collected(bytes)) => {
                let large = bytes.len() >= LARGE_BOX_BYTES;
                let opening = cipher.open_collected(bytes)?;
                if large {
                    self.stage = Stage::OpensLarge;
                    return Ok(Some(Happening::Large(opening)));
                }
                opening.open()?
            }
        };
        self.take_content(flags, content)
    }

    fn take_content(&mut self, flags: u8, content: Bytes) -> Result<Option<Happening>, Broken> {
        if flags & COMMAND != 0 {
            let answer = command::answer(&content)?;
            // A peer that asks and asks and reads no answers gets no more of them.
            if let Some(answer) = answer
                && !self.output.is_ahead()
            {
                self.output.command(&answer, self.cipher.as_mut());
            }
            return Ok(None);
        }
        if self.frames.len() < self.limits.frames_max {
            self.message_bytes += content.len() as u64;
            if self.message_bytes > self.limits.bytes_max {
                return Err(Broken::TooLong);
            }
            if self.frames.is_empty() {
                // What a job message has, so that the list does not grow step by step.
                self.frames.reserve_exact(if flags & MORE != 0 { FRAMES_USUAL } else { 1 });
            }
            self.frames.push(content);
        } else {
            self.truncated = true;
        }
        if flags & MORE != 0 {
            return Ok(None);
        }
        self.message_bytes = 0;
        let truncated = std::mem::take(&mut self.truncated);
        Ok(Some(Happening::Message { frames: std::mem::take(&mut self.frames), truncated }))
    }
}

impl Role {
    fn mechanism(&self) -> (Mechanism, bool) {
        match self {
            Self::Listener { keys: None } | Self::Connector { keys: None, .. } => (Mechanism::Null, false),
            Self::Listener { keys: Some(_) } => (Mechanism::Curve, true),
            Self::Connector { keys: Some(_), .. } => (Mechanism::Curve, false),
        }
    }

    fn properties(&self) -> Properties {
        match self {
            Self::Listener { .. } => Properties { socket_type: SocketType::Router, identity: Bytes::new() },
            Self::Connector { identity, .. } => {
                Properties { socket_type: SocketType::Dealer, identity: identity.clone() }
            }
        }
    }
}

#[cfg(test)]
mod tests;
