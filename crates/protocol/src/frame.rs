//! Headers, commands, status codes and bounds: what frames are made of.

use std::fmt;

use bytes::Bytes;

/// A message as it travels: on the DEALER side, beginning with the empty delimiter frame.
pub type Frames = Vec<Bytes>;

/// Most frames of a message on the DEALER side. The longest message has eight; the rest is room for the trailing frames
/// that the recorded peers ignore.
pub const FRAMES_MAX: usize = 16;

/// Longest body or payload in bytes: twice the largest result that a worker sends by default (64 MiB).
pub const PAYLOAD_BYTES_MAX: usize = 128 << 20;

/// First frame after the delimiter of a client's message.
pub const CLIENT_HEADER: &[u8] = b"NFPC01";
/// First frame after the delimiter of a worker's message.
pub const WORKER_HEADER: &[u8] = b"NFPW01";
/// First frame after the delimiter of the broker's message.
pub const BROKER_HEADER: &[u8] = b"NFPB01";

/// The command frame: four ASCII characters. The digits jump from `0x09` to `0x10`: it is not hexadecimal counting.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Command {
    /// Reserved; accepted from clients and without effect.
    Open,
    /// A worker registers its service.
    Ready,
    /// Sign of life, both ways between broker and worker.
    Keepalive,
    /// The sender takes the other off its list.
    Disconnect,
    /// A job to run.
    Post,
    /// An answer.
    Response,
    /// Ask for the state or result of a job.
    Get,
    /// Cancel a job.
    Delete,
    /// News of a running job.
    Event,
    /// Bytes of a running job.
    Stream,
    /// Input or stream credit for a running job.
    Put,
    /// Ask the broker itself.
    Mmi,
}

impl Command {
    /// All commands.
    pub const ALL: [Self; 12] = [
        Self::Open,
        Self::Ready,
        Self::Keepalive,
        Self::Disconnect,
        Self::Post,
        Self::Response,
        Self::Get,
        Self::Delete,
        Self::Event,
        Self::Stream,
        Self::Put,
        Self::Mmi,
    ];

    /// The frame's content.
    pub const fn code(self) -> &'static str {
        match self {
            Self::Open => "0x00",
            Self::Ready => "0x01",
            Self::Keepalive => "0x02",
            Self::Disconnect => "0x03",
            Self::Post => "0x04",
            Self::Response => "0x05",
            Self::Get => "0x06",
            Self::Delete => "0x07",
            Self::Event => "0x08",
            Self::Stream => "0x09",
            Self::Put => "0x10",
            Self::Mmi => "0x11",
        }
    }

    /// Reads the frame. `None`: not a command.
    pub fn from_frame(frame: &[u8]) -> Option<Self> {
        Self::ALL.into_iter().find(|command| command.code().as_bytes() == frame)
    }

    /// The frame.
    pub fn to_frame(self) -> Bytes {
        Bytes::from_static(self.code().as_bytes())
    }
}

/// The status frame: three ASCII digits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Status(u16);

impl Status {
    /// The job waits for its client's input.
    pub const WAITING: Self = Self(102);
    /// Finished, with results; also every event, stream chunk and management reply.
    pub const OK: Self = Self(200);
    /// The worker stored the job.
    pub const ACCEPTED: Self = Self(201);
    /// The broker handed the request on.
    pub const DISPATCHED: Self = Self(202);
    /// The job is queued or runs.
    pub const PENDING: Self = Self(300);
    /// Refused.
    pub const REFUSED: Self = Self(400);
    /// The worker does not know the job.
    pub const NOT_FOUND: Self = Self(404);
    /// The worker cannot say.
    pub const ERROR: Self = Self(500);

    /// Reads the frame. `None`: not three digits.
    pub fn from_frame(frame: &[u8]) -> Option<Self> {
        let [hundreds, tens, ones] = frame else {
            return None;
        };
        let digit = |byte: &u8| byte.is_ascii_digit().then(|| u16::from(byte - b'0'));
        Some(Self(digit(hundreds)? * 100 + digit(tens)? * 10 + digit(ones)?))
    }

    /// The number.
    pub const fn code(self) -> u16 {
        self.0
    }

    /// 4xx and 5xx.
    pub const fn is_error(self) -> bool {
        self.0 >= 400 && self.0 < 600
    }

    /// The frame.
    pub fn to_frame(self) -> Bytes {
        match self {
            Self::OK => Bytes::from_static(b"200"),
            Self::ACCEPTED => Bytes::from_static(b"201"),
            Self::DISPATCHED => Bytes::from_static(b"202"),
            Self::PENDING => Bytes::from_static(b"300"),
            other => Bytes::from(format!("{:03}", other.0)),
        }
    }
}

impl fmt::Display for Status {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{:03}", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_command_reads_back_and_a_real_byte_is_none() {
        for command in Command::ALL {
            assert_eq!(Command::from_frame(&command.to_frame()), Some(command));
        }
        assert_eq!(Command::from_frame(&[4]), None);
    }

    #[test]
    fn every_status_of_three_digits_reads_back() {
        for code in 0..1000u16 {
            let status = Status(code);
            assert_eq!(Status::from_frame(&status.to_frame()), Some(status));
        }
        assert_eq!(Status::from_frame(b"20"), None);
        assert_eq!(Status::from_frame(b"2x0"), None);
    }
}
