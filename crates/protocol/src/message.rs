//! Every message of NFP as a closed enum, one per direction, decoded with bounds.
//!
//! | direction | frames after the empty delimiter |
//! |---|---|
//! | client to broker | `NFPC01`, command, service, target, job, body |
//! | worker to broker | `NFPW01`, command, service; or command, client, empty, job, status, payload |
//! | broker to worker | `NFPB01`, command, service; or command, client, empty, job, body |
//! | broker to client | `NFPB01`, command, service, job, status, payload |

use bytes::Bytes;

use crate::frame::{
    BROKER_HEADER, CLIENT_HEADER, Command, FRAMES_MAX, Frames, PAYLOAD_BYTES_MAX, Status, WORKER_HEADER,
};
use crate::name::{Identity, JobId, NameError, ServiceName};
use crate::target::{Target, TargetError};

/// Why a message is refused. Each kind is counted by the broker under [`DecodeError::kind`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// Fewer frames than the message needs.
    #[error("message has {frames} frames, {needed} are needed")]
    TooFewFrames {
        /// Frames that came, with the delimiter.
        frames: usize,
        /// Frames that are needed.
        needed: usize,
    },
    /// More than [`FRAMES_MAX`] frames.
    #[error("message has more than {FRAMES_MAX} frames")]
    TooManyFrames,
    /// The first frame is not empty.
    #[error("message does not begin with an empty frame")]
    NoDelimiter,
    /// Not a header of this direction.
    #[error("unknown header {0:?}")]
    UnknownHeader(String),
    /// Not a command, or not one of this direction.
    #[error("unsupported command {0:?}")]
    UnsupportedCommand(String),
    /// A bad name.
    #[error(transparent)]
    Name(#[from] NameError),
    /// A bad target.
    #[error(transparent)]
    Target(#[from] TargetError),
    /// Not three digits.
    #[error("status {0:?} is not three digits")]
    Status(String),
    /// Longer than [`PAYLOAD_BYTES_MAX`].
    #[error("body has {bytes} bytes, at most {PAYLOAD_BYTES_MAX} are allowed")]
    PayloadTooLong {
        /// Its length.
        bytes: usize,
    },
    /// Not the JSON that belongs there.
    #[error("body is not {expected}: {error}")]
    Body {
        /// What belongs there.
        expected: &'static str,
        /// Where the text differs.
        error: String,
    },
}

impl DecodeError {
    /// A short word for counters and logs.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::TooFewFrames { .. } => "too_few_frames",
            Self::TooManyFrames => "too_many_frames",
            Self::NoDelimiter => "no_delimiter",
            Self::UnknownHeader(_) => "unknown_header",
            Self::UnsupportedCommand(_) => "unsupported_command",
            Self::Name(_) => "bad_name",
            Self::Target(_) => "bad_target",
            Self::Status(_) => "bad_status",
            Self::PayloadTooLong { .. } => "payload_too_long",
            Self::Body { .. } => "bad_body",
        }
    }
}

/// What a client sends. The commands share one layout; [`ClientCommand`] is the closed set.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClientMessage {
    /// What is asked.
    pub command: ClientCommand,
    /// Of which service.
    pub service: ServiceName,
    /// Of which of its workers.
    pub target: Target,
    /// About which job.
    pub job: JobId,
    /// One JSON document, not looked at here.
    pub body: Bytes,
}

/// What a client may ask.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ClientCommand {
    /// Accepted, without effect.
    Open,
    /// Accepted, without effect.
    Disconnect,
    /// Run a job.
    Post,
    /// Tell the state or result.
    Get,
    /// Cancel.
    Delete,
    /// Input or stream credit.
    Put,
    /// Ask the broker.
    Mmi,
}

impl ClientCommand {
    /// The command frame.
    pub const fn command(self) -> Command {
        match self {
            Self::Open => Command::Open,
            Self::Disconnect => Command::Disconnect,
            Self::Post => Command::Post,
            Self::Get => Command::Get,
            Self::Delete => Command::Delete,
            Self::Put => Command::Put,
            Self::Mmi => Command::Mmi,
        }
    }

    fn from_command(command: Command) -> Option<Self> {
        Some(match command {
            Command::Open => Self::Open,
            Command::Disconnect => Self::Disconnect,
            Command::Post => Self::Post,
            Command::Get => Self::Get,
            Command::Delete => Self::Delete,
            Command::Put => Self::Put,
            Command::Mmi => Self::Mmi,
            Command::Ready | Command::Keepalive | Command::Response | Command::Event | Command::Stream => return None,
        })
    }
}

/// What a worker sends about a job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WorkerReply {
    /// For which client.
    pub client: Identity,
    /// About which job.
    pub job: JobId,
    /// Code.
    pub status: Status,
    /// JSON for responses and events, bytes for streams.
    pub payload: Bytes,
}

/// What a worker sends.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum WorkerMessage {
    /// Registers.
    Ready(ServiceName),
    /// Is alive.
    Keepalive(ServiceName),
    /// Leaves.
    Disconnect(ServiceName),
    /// Answers.
    Response(WorkerReply),
    /// Reports.
    Event(WorkerReply),
    /// Streams.
    Stream(WorkerReply),
}

/// What the broker hands to a worker for a client.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Delivery {
    /// Who asks.
    pub client: Identity,
    /// About which job.
    pub job: JobId,
    /// One JSON document, as the client sent it.
    pub body: Bytes,
}

/// What a worker receives.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum BrokerToWorker {
    /// Run a job.
    Post(Delivery),
    /// Tell the state or result.
    Get(Delivery),
    /// Input or stream credit.
    Put(Delivery),
    /// Cancel. Workers that do not know it ignore it.
    Delete(Delivery),
    /// The broker is alive.
    Keepalive(ServiceName),
    /// The broker does not know this worker: register again.
    Disconnect(ServiceName),
}

/// What the broker sends to a client about a job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reply {
    /// The service that the request named, or that the answering worker registered.
    pub service: ServiceName,
    /// About which job.
    pub job: JobId,
    /// Code.
    pub status: Status,
    /// JSON for responses, events and management replies, bytes for streams.
    pub payload: Bytes,
}

/// What a client receives.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum BrokerToClient {
    /// An answer.
    Response(Reply),
    /// News.
    Event(Reply),
    /// Bytes.
    Stream(Reply),
    /// A management reply.
    Mmi(Reply),
}

/// What reaches a broker.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ToBroker {
    /// From a client.
    Client(ClientMessage),
    /// From a worker.
    Worker(WorkerMessage),
}

fn shown(frame: &[u8]) -> String {
    String::from_utf8_lossy(&frame[..frame.len().min(32)]).into_owned()
}

/// Checks what all messages share and returns the command.
fn envelope(frames: &[Bytes], headers: &[&[u8]]) -> Result<(usize, Option<Command>), DecodeError> {
    if frames.len() > FRAMES_MAX {
        return Err(DecodeError::TooManyFrames);
    }
    if frames.len() < 3 {
        return Err(DecodeError::TooFewFrames { frames: frames.len(), needed: 3 });
    }
    if !frames[0].is_empty() {
        return Err(DecodeError::NoDelimiter);
    }
    let header = headers
        .iter()
        .position(|header| frames[1] == *header)
        .ok_or_else(|| DecodeError::UnknownHeader(shown(&frames[1])))?;
    Ok((header, Command::from_frame(&frames[2])))
}

fn need(frames: &[Bytes], needed: usize) -> Result<(), DecodeError> {
    if frames.len() < needed {
        return Err(DecodeError::TooFewFrames { frames: frames.len(), needed });
    }
    Ok(())
}

fn payload(frame: &Bytes) -> Result<Bytes, DecodeError> {
    if frame.len() > PAYLOAD_BYTES_MAX {
        return Err(DecodeError::PayloadTooLong { bytes: frame.len() });
    }
    Ok(frame.clone())
}

fn status(frame: &[u8]) -> Result<Status, DecodeError> {
    Status::from_frame(frame).ok_or_else(|| DecodeError::Status(shown(frame)))
}

impl ToBroker {
    /// Decodes what came to a ROUTER, without the routing id.
    pub fn decode(frames: &[Bytes]) -> Result<Self, DecodeError> {
        match envelope(frames, &[CLIENT_HEADER, WORKER_HEADER])? {
            (0, _) => ClientMessage::decode(frames).map(Self::Client),
            (_, _) => WorkerMessage::decode(frames).map(Self::Worker),
        }
    }
}

impl ClientMessage {
    /// Decodes; frames after the seventh are ignored, as the recorded broker does.
    pub fn decode(frames: &[Bytes]) -> Result<Self, DecodeError> {
        let (_, command) = envelope(frames, &[CLIENT_HEADER])?;
        need(frames, 7)?;
        let command = command
            .and_then(ClientCommand::from_command)
            .ok_or_else(|| DecodeError::UnsupportedCommand(shown(&frames[2])))?;
        Ok(Self {
            command,
            service: ServiceName::from_frame(&frames[3])?,
            target: Target::from_frame(&frames[4])?,
            job: JobId::from_frame(&frames[5])?,
            body: payload(&frames[6])?,
        })
    }

    /// Encodes for a DEALER.
    pub fn encode(&self) -> Frames {
        vec![
            Bytes::new(),
            Bytes::from_static(CLIENT_HEADER),
            self.command.command().to_frame(),
            name_frame(self.service.as_str()),
            self.target.to_frame(),
            name_frame(self.job.as_str()),
            self.body.clone(),
        ]
    }
}

impl WorkerMessage {
    /// Decodes; trailing frames are ignored.
    pub fn decode(frames: &[Bytes]) -> Result<Self, DecodeError> {
        let (_, command) = envelope(frames, &[WORKER_HEADER])?;
        let service = || -> Result<ServiceName, DecodeError> {
            need(frames, 4)?;
            Ok(ServiceName::from_frame(&frames[3])?)
        };
        let reply = || -> Result<WorkerReply, DecodeError> {
            need(frames, 8)?;
            Ok(WorkerReply {
                client: Identity::from_frame(&frames[3])?,
                job: JobId::from_frame(&frames[5])?,
                status: status(&frames[6])?,
                payload: payload(&frames[7])?,
            })
        };
        Ok(match command {
            Some(Command::Ready) => Self::Ready(service()?),
            Some(Command::Keepalive) => Self::Keepalive(service()?),
            Some(Command::Disconnect) => Self::Disconnect(service()?),
            Some(Command::Response) => Self::Response(reply()?),
            Some(Command::Event) => Self::Event(reply()?),
            Some(Command::Stream) => Self::Stream(reply()?),
            Some(Command::Open | Command::Post | Command::Get | Command::Delete | Command::Put | Command::Mmi)
            | None => return Err(DecodeError::UnsupportedCommand(shown(&frames[2]))),
        })
    }

    /// Encodes for a DEALER.
    pub fn encode(&self) -> Frames {
        let (command, reply) = match self {
            Self::Ready(service) => return short(WORKER_HEADER, Command::Ready, service),
            Self::Keepalive(service) => return short(WORKER_HEADER, Command::Keepalive, service),
            Self::Disconnect(service) => return short(WORKER_HEADER, Command::Disconnect, service),
            Self::Response(reply) => (Command::Response, reply),
            Self::Event(reply) => (Command::Event, reply),
            Self::Stream(reply) => (Command::Stream, reply),
        };
        vec![
            Bytes::new(),
            Bytes::from_static(WORKER_HEADER),
            command.to_frame(),
            name_frame(reply.client.as_str()),
            Bytes::new(),
            name_frame(reply.job.as_str()),
            reply.status.to_frame(),
            reply.payload.clone(),
        ]
    }
}

impl BrokerToWorker {
    /// Decodes; a DISCONNECT is also taken in the order of the Python broker, with the service before the command.
    pub fn decode(frames: &[Bytes]) -> Result<Self, DecodeError> {
        let (_, command) = envelope(frames, &[BROKER_HEADER])?;
        let service = || -> Result<ServiceName, DecodeError> {
            need(frames, 4)?;
            Ok(ServiceName::from_frame(&frames[3])?)
        };
        let delivery = || -> Result<Delivery, DecodeError> {
            need(frames, 7)?;
            Ok(Delivery {
                client: Identity::from_frame(&frames[3])?,
                job: JobId::from_frame(&frames[5])?,
                body: payload(&frames[6])?,
            })
        };
        Ok(match command {
            Some(Command::Post) => Self::Post(delivery()?),
            Some(Command::Get) => Self::Get(delivery()?),
            Some(Command::Put) => Self::Put(delivery()?),
            Some(Command::Delete) => Self::Delete(delivery()?),
            Some(Command::Keepalive) => Self::Keepalive(service()?),
            Some(Command::Disconnect) => Self::Disconnect(service()?),
            None if frames.len() == 4 && Command::from_frame(&frames[3]) == Some(Command::Disconnect) => {
                Self::Disconnect(ServiceName::from_frame(&frames[2])?)
            }
            Some(
                Command::Open | Command::Ready | Command::Response | Command::Event | Command::Stream | Command::Mmi,
            )
            | None => return Err(DecodeError::UnsupportedCommand(shown(&frames[2]))),
        })
    }

    /// Encodes for a ROUTER, without the routing id.
    pub fn encode(&self) -> Frames {
        let (command, delivery) = match self {
            Self::Keepalive(service) => return short(BROKER_HEADER, Command::Keepalive, service),
            Self::Disconnect(service) => return short(BROKER_HEADER, Command::Disconnect, service),
            Self::Post(delivery) => (Command::Post, delivery),
            Self::Get(delivery) => (Command::Get, delivery),
            Self::Put(delivery) => (Command::Put, delivery),
            Self::Delete(delivery) => (Command::Delete, delivery),
        };
        vec![
            Bytes::new(),
            Bytes::from_static(BROKER_HEADER),
            command.to_frame(),
            name_frame(delivery.client.as_str()),
            Bytes::new(),
            name_frame(delivery.job.as_str()),
            delivery.body.clone(),
        ]
    }
}

impl BrokerToClient {
    /// Decodes; trailing frames are ignored.
    pub fn decode(frames: &[Bytes]) -> Result<Self, DecodeError> {
        let (_, command) = envelope(frames, &[BROKER_HEADER])?;
        need(frames, 7)?;
        let reply = || -> Result<Reply, DecodeError> {
            Ok(Reply {
                service: ServiceName::from_frame(&frames[3])?,
                job: JobId::from_frame(&frames[4])?,
                status: status(&frames[5])?,
                payload: payload(&frames[6])?,
            })
        };
        Ok(match command {
            Some(Command::Response) => Self::Response(reply()?),
            Some(Command::Event) => Self::Event(reply()?),
            Some(Command::Stream) => Self::Stream(reply()?),
            Some(Command::Mmi) => Self::Mmi(reply()?),
            Some(
                Command::Open
                | Command::Ready
                | Command::Keepalive
                | Command::Disconnect
                | Command::Post
                | Command::Get
                | Command::Delete
                | Command::Put,
            )
            | None => return Err(DecodeError::UnsupportedCommand(shown(&frames[2]))),
        })
    }

    /// Encodes for a ROUTER, without the routing id.
    pub fn encode(&self) -> Frames {
        let (command, reply) = match self {
            Self::Response(reply) => (Command::Response, reply),
            Self::Event(reply) => (Command::Event, reply),
            Self::Stream(reply) => (Command::Stream, reply),
            Self::Mmi(reply) => (Command::Mmi, reply),
        };
        vec![
            Bytes::new(),
            Bytes::from_static(BROKER_HEADER),
            command.to_frame(),
            name_frame(reply.service.as_str()),
            name_frame(reply.job.as_str()),
            reply.status.to_frame(),
            reply.payload.clone(),
        ]
    }
}

fn name_frame(name: &str) -> Bytes {
    Bytes::copy_from_slice(name.as_bytes())
}

fn short(header: &'static [u8], command: Command, service: &ServiceName) -> Frames {
    vec![Bytes::new(), Bytes::from_static(header), command.to_frame(), name_frame(service.as_str())]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frames(parts: &[&[u8]]) -> Frames {
        parts.iter().map(|part| Bytes::copy_from_slice(part)).collect()
    }

    #[test]
    fn a_ready_without_its_service_is_refused() {
        let error = ToBroker::decode(&frames(&[b"", b"NFPW01", b"0x01"])).expect_err("no service");
        assert_eq!(error, DecodeError::TooFewFrames { frames: 3, needed: 4 });
    }

    #[test]
    fn a_disconnect_in_the_order_of_the_python_broker_is_understood() {
        let message = BrokerToWorker::decode(&frames(&[b"", b"NFPB01", b"dummy", b"0x03"]));
        assert_eq!(message, Ok(BrokerToWorker::Disconnect(ServiceName::parse("dummy").expect("a name"))));
    }

    #[test]
    fn trailing_frames_are_ignored_up_to_the_bound() {
        let mut message = frames(&[b"", b"NFPC01", b"0x04", b"s", b"any", b"j", b"{}"]);
        message.resize(FRAMES_MAX, Bytes::new());
        assert!(ToBroker::decode(&message).is_ok());
        message.push(Bytes::new());
        assert_eq!(ToBroker::decode(&message), Err(DecodeError::TooManyFrames));
    }
}
