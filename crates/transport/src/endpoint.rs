//! Where a broker listens: endpoints as people write them.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, ToSocketAddrs};
use std::str::FromStr;

use crate::error::LinkError;

/// A name with more addresses than this is a mistake; the rest is ignored.
const ADDRESSES_MAX: usize = 16;

/// The longest path that a Unix socket takes.
const PATH_BYTES_MAX: usize = 107;

/// An endpoint: `tcp://HOST:PORT` with a name, an address, `[IPV6]` or `*` as host, or `ipc://PATH`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Endpoint {
    text: String,
    kind: Kind,
}

/// One place to connect to or to listen at, as the system has it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Address {
    /// An address and a port.
    Tcp(SocketAddr),
    /// A port on all addresses of this host.
    Every(u16),
    /// A local socket: the path of its file, or `@` and a name without a file.
    Path(String),
}

/// How the endpoint of a local socket begins.
const IPC: &str = "ipc://";

#[derive(Debug, Clone, PartialEq, Eq)]
enum Kind {
    Any { port: u16 },
    Address(SocketAddr),
    Name { host: String, port: u16 },
    Path,
}

impl Endpoint {
    /// The text as it was written.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// Whether it stands for all addresses of a host: `*`, `0.0.0.0` or `[::]`. Whoever listens means that; whoever connects
    /// reaches its own host.
    #[must_use]
    pub fn is_any_address(&self) -> bool {
        match &self.kind {
            Kind::Any { .. } => true,
            Kind::Address(address) => address.ip().is_unspecified(),
            Kind::Name { .. } | Kind::Path => false,
        }
    }

    /// Whether finding the addresses needs the resolver, which may take seconds.
    pub(crate) fn needs_resolver(&self) -> bool {
        matches!(self.kind, Kind::Name { .. })
    }

    /// Where to connect to, one after the other. May wait for the resolver.
    pub(crate) fn candidates(&self) -> Result<Vec<Address>, LinkError> {
        Ok(match &self.kind {
            Kind::Path => vec![Address::Path(self.text[IPC.len()..].to_owned())],
            Kind::Any { port } => loopback(*port),
            Kind::Address(address) if address.ip() == IpAddr::V6(Ipv6Addr::UNSPECIFIED) => loopback(address.port()),
            Kind::Address(address) if address.ip() == IpAddr::V4(Ipv4Addr::UNSPECIFIED) => {
                vec![Address::Tcp((Ipv4Addr::LOCALHOST, address.port()).into())]
            }
            Kind::Address(address) => vec![Address::Tcp(*address)],
            Kind::Name { host, port } => self.resolve(host, *port)?,
        })
    }

    /// Where to listen, everywhere. May wait for the resolver.
    pub(crate) fn listeners(&self) -> Result<Vec<Address>, LinkError> {
        match &self.kind {
            Kind::Any { port } => Ok(vec![Address::Every(*port)]),
            Kind::Address(address) => Ok(vec![Address::Tcp(*address)]),
            Kind::Path | Kind::Name { .. } => self.candidates(),
        }
    }

    /// The same endpoint with another port, for telling where a listener on port 0 ended up.
    pub(crate) fn with_port(&self, port: u16) -> String {
        match &self.kind {
            Kind::Any { .. } => format!("tcp://*:{port}"),
            Kind::Address(address) => format!("tcp://{}", SocketAddr::new(address.ip(), port)),
            Kind::Name { host, .. } => format!("tcp://{host}:{port}"),
            Kind::Path => self.text.clone(),
        }
    }

    fn resolve(&self, host: &str, port: u16) -> Result<Vec<Address>, LinkError> {
        let unresolvable = |reason: String| LinkError::Unresolvable { endpoint: self.text.clone(), reason };
        let addresses = (host, port).to_socket_addrs().map_err(|error| unresolvable(error.to_string()))?;
        let mut candidates: Vec<Address> = Vec::new();
        for address in addresses {
            let candidate = Address::Tcp(address);
            if candidates.len() < ADDRESSES_MAX && !candidates.contains(&candidate) {
                candidates.push(candidate);
            }
        }
        if candidates.is_empty() { Err(unresolvable("it has no address".to_owned())) } else { Ok(candidates) }
    }
}

/// A listener on all addresses of this host is reached on its own addresses.
fn loopback(port: u16) -> Vec<Address> {
    vec![Address::Tcp((Ipv6Addr::LOCALHOST, port).into()), Address::Tcp((Ipv4Addr::LOCALHOST, port).into())]
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl FromStr for Endpoint {
    type Err = LinkError;

    fn from_str(text: &str) -> Result<Self, LinkError> {
        let malformed = |reason| LinkError::MalformedEndpoint { endpoint: text.escape_debug().to_string(), reason };
        let kind = if let Some(path) = text.strip_prefix(IPC) {
            if path.is_empty() || path.contains('\0') {
                return Err(malformed("the path is missing"));
            }
            if path.len() > PATH_BYTES_MAX {
                return Err(malformed("the path is longer than 107 bytes"));
            }
            Kind::Path
        } else if let Some(rest) = text.strip_prefix("tcp://") {
            parse_tcp(rest).map_err(malformed)?
        } else {
            return Err(malformed("it starts neither with tcp:// nor with ipc://"));
        };
        Ok(Self { text: text.to_owned(), kind })
    }
}

fn parse_tcp(rest: &str) -> Result<Kind, &'static str> {
    if let Ok(address) = rest.parse::<SocketAddr>() {
        return Ok(Kind::Address(address));
    }
    let (host, port) = rest.rsplit_once(':').ok_or("the port is missing")?;
    let port =
        if port == "*" { 0 } else { port.parse::<u16>().map_err(|_| "the port is not a number from 0 to 65535")? };
    if host == "*" {
        return Ok(Kind::Any { port });
    }
    if let Ok(address) = host.parse::<Ipv4Addr>() {
        return Ok(Kind::Address(SocketAddr::new(IpAddr::V4(address), port)));
    }
    if let Some(inner) = host.strip_prefix('[').and_then(|inner| inner.strip_suffix(']')) {
        let address = inner.parse::<Ipv6Addr>().map_err(|_| "the brackets do not hold an IPv6 address")?;
        return Ok(Kind::Address(SocketAddr::new(IpAddr::V6(address), port)));
    }
    if host.is_empty() {
        return Err("the host is missing");
    }
    if host.contains(':') {
        return Err("an IPv6 address needs brackets");
    }
    let fits = |character: char| character.is_alphanumeric() || "-._".contains(character);
    if host.len() > 253 || !host.chars().all(fits) {
        return Err("the host is neither a name nor an address");
    }
    Ok(Kind::Name { host: host.to_owned(), port })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Endpoint {
        text.parse().unwrap_or_else(|error| panic!("{text}: {error}"))
    }

    #[test]
    fn endpoints_as_people_write_them_are_understood() {
        let tcp = |text: &str| Address::Tcp(text.parse().unwrap());
        assert_eq!(parse("tcp://127.0.0.1:5555").candidates().unwrap(), [tcp("127.0.0.1:5555")]);
        assert_eq!(parse("tcp://[::1]:5555").candidates().unwrap(), [tcp("[::1]:5555")]);
        assert_eq!(parse("tcp://*:5555").listeners().unwrap(), [Address::Every(5555)]);
        assert_eq!(parse("tcp://*:*").listeners().unwrap(), [Address::Every(0)]);
        let path = parse("ipc:///run/norfab.sock").candidates().unwrap();
        assert_eq!(path, [Address::Path("/run/norfab.sock".to_owned())]);
        assert!(parse("tcp://broker-1.example.net:5555").needs_resolver());
    }

    #[test]
    fn listener_on_all_addresses_is_reached_on_loopback() {
        let tcp = |text: &str| Address::Tcp(text.parse().unwrap());
        assert_eq!(parse("tcp://0.0.0.0:1").candidates().unwrap(), [tcp("127.0.0.1:1")]);
        assert_eq!(parse("tcp://*:1").candidates().unwrap(), [tcp("[::1]:1"), tcp("127.0.0.1:1")]);
        assert_eq!(parse("tcp://[::]:1").candidates().unwrap(), [tcp("[::1]:1"), tcp("127.0.0.1:1")]);
    }

    #[test]
    fn port_is_replaced_in_every_form() {
        for (text, expected) in [
            ("tcp://*:0", "tcp://*:7"),
            ("tcp://127.0.0.1:0", "tcp://127.0.0.1:7"),
            ("tcp://[::1]:0", "tcp://[::1]:7"),
            ("tcp://localhost:0", "tcp://localhost:7"),
        ] {
            assert_eq!(parse(text).with_port(7), expected);
        }
    }

    #[test]
    fn malformed_endpoints_are_refused_with_the_reason() {
        for (text, reason) in [
            ("", "starts neither"),
            ("127.0.0.1:5555", "starts neither"),
            ("udp://127.0.0.1:5555", "starts neither"),
            ("tcp://", "the port is missing"),
            ("tcp://localhost", "the port is missing"),
            ("tcp://localhost:", "not a number"),
            ("tcp://localhost:70000", "not a number"),
            ("tcp://:5555", "the host is missing"),
            ("tcp://::1:5555", "needs brackets"),
            ("tcp://[::x]:5555", "do not hold an IPv6 address"),
            ("tcp://a b:5555", "neither a name nor an address"),
            ("tcp://a;b:5555", "neither a name nor an address"),
            ("ipc://", "the path is missing"),
        ] {
            let error = text.parse::<Endpoint>().unwrap_err().to_string();
            assert!(error.contains(reason), "{text}: {error}");
        }
    }

    #[test]
    fn unresolvable_name_is_named_in_the_error() {
        let error = parse("tcp://no-such-host.invalid:5555").candidates().unwrap_err().to_string();
        assert!(error.starts_with("cannot resolve the name in tcp://no-such-host.invalid:5555: "), "{error}");
    }
}
