//! Commands: a name and what it needs. READY carries what a side tells of itself, ERROR why it does not want the other.

use bytes::Bytes;

use super::Broken;

/// Identities have at most 255 bytes.
const IDENTITY_BYTES_MAX: usize = 255;

/// The context of a PING has at most 16 bytes, and its answer repeats it.
const PING_CONTEXT_BYTES_MAX: usize = 16;

/// The names of the properties that matter here. They are compared without regard to case (RFC 37).
const SOCKET_TYPE: &str = "Socket-Type";
const IDENTITY: &str = "Identity";

/// The two types of sockets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SocketType {
    Router,
    Dealer,
}

impl SocketType {
    fn name(self) -> &'static str {
        match self {
            Self::Router => "ROUTER",
            Self::Dealer => "DEALER",
        }
    }

    /// Whether it may be connected to a socket of another type (RFC 28).
    fn speaks_with(self, other: &[u8]) -> bool {
        match self {
            Self::Router => [&b"ROUTER"[..], b"DEALER", b"REQ"].contains(&other),
            Self::Dealer => [&b"ROUTER"[..], b"DEALER", b"REP"].contains(&other),
        }
    }
}

/// What a side tells of itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Properties {
    pub(super) socket_type: SocketType,
    pub(super) identity: Bytes,
}

impl Properties {
    pub(super) fn write(&self, bytes: &mut Vec<u8>) {
        let mut property = |name: &str, value: &[u8]| {
            bytes.push(u8::try_from(name.len()).expect("names of this file are short"));
            bytes.extend_from_slice(name.as_bytes());
            bytes.extend_from_slice(&u32::try_from(value.len()).expect("values are short").to_be_bytes());
            bytes.extend_from_slice(value);
        };
        property(SOCKET_TYPE, self.socket_type.name().as_bytes());
        property(IDENTITY, &self.identity);
    }

    /// Reads what the other side tells, and gives its identity.
    pub(super) fn read_identity(&self, mut bytes: &[u8]) -> Result<Bytes, Broken> {
        let mut identity = Bytes::new();
        let mut fits = false;
        while let Some((&length, rest)) = bytes.split_first() {
            let (name, rest) = rest.split_at_checked(length.into()).ok_or(Broken::Malformed)?;
            let (length, rest) = rest.split_first_chunk().ok_or(Broken::Malformed)?;
            let length = usize::try_from(u32::from_be_bytes(*length)).map_err(|_| Broken::Malformed)?;
            let (value, rest) = rest.split_at_checked(length).ok_or(Broken::Malformed)?;
            bytes = rest;
            if name.eq_ignore_ascii_case(SOCKET_TYPE.as_bytes()) {
                if !self.socket_type.speaks_with(value) {
                    return Err(Broken::OtherProtocol);
                }
                fits = true;
            } else if name.eq_ignore_ascii_case(IDENTITY.as_bytes()) {
                if value.len() > IDENTITY_BYTES_MAX {
                    return Err(Broken::Malformed);
                }
                identity = Bytes::copy_from_slice(value);
            }
        }
        if fits { Ok(identity) } else { Err(Broken::Malformed) }
    }
}

/// What begins with this name, without it.
pub(super) fn named<'body>(name: &str, body: &'body [u8]) -> Option<&'body [u8]> {
    let (&length, rest) = body.split_first()?;
    let (found, rest) = rest.split_at_checked(length.into())?;
    (found == name.as_bytes()).then_some(rest)
}

/// A name as commands begin with it.
pub(super) fn name(name: &str, bytes: &mut Vec<u8>) {
    bytes.push(u8::try_from(name.len()).expect("names of commands are short"));
    bytes.extend_from_slice(name.as_bytes());
}

/// The command that turns a peer away, with the status that ZAP (RFC 27) has for it.
pub(super) fn denial() -> Vec<u8> {
    let mut bytes = Vec::new();
    name("ERROR", &mut bytes);
    name("400", &mut bytes);
    bytes
}

/// What a well-formed command wants of us, between messages: the answer to a PING. All others are for other types of sockets.
pub(super) fn answer(body: &[u8]) -> Result<Option<Vec<u8>>, Broken> {
    if let Some(ping) = named("PING", body) {
        let (_time_to_live, context) = ping.split_first_chunk::<2>().ok_or(Broken::Malformed)?;
        let mut pong = Vec::new();
        name("PONG", &mut pong);
        pong.extend_from_slice(&context[..context.len().min(PING_CONTEXT_BYTES_MAX)]);
        return Ok(Some(pong));
    }
    let (&length, rest) = body.split_first().ok_or(Broken::Malformed)?;
    if length == 0 || rest.len() < length.into() { Err(Broken::Malformed) } else { Ok(None) }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DEALER: Properties =
        Properties { socket_type: SocketType::Dealer, identity: Bytes::from_static(b"worker-1") };
    const ROUTER: Properties = Properties { socket_type: SocketType::Router, identity: Bytes::new() };

    #[test]
    fn what_one_side_tells_the_other_reads() {
        let mut bytes = Vec::new();
        DEALER.write(&mut bytes);
        assert_eq!(bytes, b"\x0bSocket-Type\0\0\0\x06DEALER\x08Identity\0\0\0\x08worker-1");
        assert_eq!(ROUTER.read_identity(&bytes).unwrap(), "worker-1");
        assert_eq!(DEALER.read_identity(b"\x0bsocket-type\0\0\0\x06ROUTER\x01x\0\0\0\x01y").unwrap(), "");
    }

    #[test]
    fn what_is_no_list_of_properties_is_refused() {
        let mut bytes = Vec::new();
        DEALER.write(&mut bytes);
        for end in 0..bytes.len() {
            // A list may end after its first property.
            assert_eq!(ROUTER.read_identity(&bytes[..end]).is_ok(), end == 22, "{end}");
        }
        let publisher = b"\x0bSocket-Type\0\0\0\x03PUB";
        assert_eq!(ROUTER.read_identity(publisher), Err(Broken::OtherProtocol));
        let long = [&b"\x0bSocket-Type\0\0\0\x06DEALER\x08Identity\0\0\x01\0"[..], &[b'x'; 256]].concat();
        assert_eq!(ROUTER.read_identity(&long), Err(Broken::Malformed));
    }

    #[test]
    fn a_ping_is_answered_and_other_commands_are_ignored() {
        assert_eq!(answer(b"\x04PING\0\0").unwrap().unwrap(), b"\x04PONG");
        assert_eq!(answer(b"\x04PING\0\x01here").unwrap().unwrap(), b"\x04PONGhere");
        assert_eq!(answer(b"\x04PONG"), Ok(None));
        assert_eq!(answer(b"\x09SUBSCRIBEtopic"), Ok(None));
        for malformed in [&b""[..], b"\0", b"\x04PIN", b"\x04PING", b"\x04PING\0"] {
            assert_eq!(answer(malformed), Err(Broken::Malformed), "{malformed:?}");
        }
    }
}
