//! The sockets that a broker listens on, and what is set on every connection.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::io::Errno;
#[cfg(not(target_vendor = "apple"))]
use rustix::net::acceptfrom_with;
use rustix::net::{
    AddressFamily, SocketAddrAny, SocketAddrUnix, SocketFlags, SocketType, bind, connect, getsockname, listen,
    socket_with, sockopt,
};

use crate::endpoint::{Address, Endpoint};
use crate::error::LinkError;
use crate::options::{BACKLOG, LinkOptions};

/// TCP keepalive probes: after so much silence, ...
const KEEPALIVE_IDLE: Duration = Duration::from_secs(15);
/// ... so far apart, ...
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(5);
/// ... so many unanswered ones end a connection.
const KEEPALIVE_COUNT: u32 = 3;

/// How new sockets are: they do not block, and programs that are started do not inherit them.
#[cfg(not(target_vendor = "apple"))]
const FLAGS: SocketFlags = SocketFlags::NONBLOCK.union(SocketFlags::CLOEXEC);

/// There, sockets are made so afterwards.
#[cfg(target_vendor = "apple")]
const FLAGS: SocketFlags = SocketFlags::empty();

/// Makes a socket what [`FLAGS`] say, where the system does not do so when it makes one.
fn made(socket: OwnedFd) -> Result<OwnedFd, Errno> {
    #[cfg(target_vendor = "apple")]
    {
        rustix::io::ioctl_fionbio(&socket, true)?;
        rustix::io::fcntl_setfd(&socket, rustix::io::FdFlags::CLOEXEC)?;
        sockopt::set_socket_nosigpipe(&socket, true)?;
    }
    Ok(socket)
}

/// A new socket.
fn new_socket(family: AddressFamily) -> Result<OwnedFd, Errno> {
    made(socket_with(family, SocketType::STREAM, FLAGS, None)?)
}

/// Where a broker listens.
pub(crate) struct Listeners {
    pub(crate) sockets: Vec<OwnedFd>,
    /// The endpoint with the port that it got.
    pub(crate) endpoint: String,
    /// The file of a local socket, removed when it goes.
    path: Option<PathBuf>,
}

impl Drop for Listeners {
    fn drop(&mut self) {
        if let Some(path) = &self.path {
            // Somebody may have removed it.
            std::fs::remove_file(path).ok();
        }
    }
}

/// Listens at all addresses of an endpoint, on the same port, and tells where. One address is enough: `localhost` has an IPv6
/// address on hosts that have no IPv6.
pub(crate) fn listen_at(endpoint: &Endpoint) -> Result<Listeners, LinkError> {
    let mut port: Option<u16> = None;
    let mut unavailable = Errno::ADDRNOTAVAIL;
    let mut sockets = Vec::new();
    let mut path = None;
    for address in endpoint.listeners()? {
        let bound = match &address {
            Address::Path(text) => {
                path = file_of(text);
                listen_locally(text)
            }
            // Port 0 of the first address has become a real one, and the others should have the same.
            Address::Tcp(address) => {
                let mut address = *address;
                address.set_port(port.unwrap_or(address.port()));
                listen_on(address)
            }
            // One of IPv6 takes both families; some hosts have no IPv6.
            Address::Every(wanted) => match listen_on((Ipv6Addr::UNSPECIFIED, *wanted).into()) {
                Err(errno) if is_unavailable(errno) => listen_on((Ipv4Addr::UNSPECIFIED, *wanted).into()),
                other => other,
            },
        };
        match bound {
            Ok(socket) => {
                port = port.or_else(|| port_of(&socket)).or(Some(0));
                sockets.push(socket);
            }
            Err(errno) if is_unavailable(errno) => unavailable = errno,
            Err(errno) => return Err(bind_error(endpoint, errno)),
        }
    }
    match port {
        Some(port) => Ok(Listeners { sockets, endpoint: endpoint.with_port(port), path }),
        None => Err(bind_error(endpoint, unavailable)),
    }
}

/// Takes a connection that waits, and tells where it comes from: an address without port, or nothing for a local one.
pub(crate) fn accept(listener: &OwnedFd, options: &LinkOptions) -> Result<(OwnedFd, String), Errno> {
    #[cfg(not(target_vendor = "apple"))]
    let (socket, from) = acceptfrom_with(listener, FLAGS)?;
    #[cfg(target_vendor = "apple")]
    let (socket, from) = rustix::net::acceptfrom(listener)?;
    let socket = made(socket)?;
    let from = from.and_then(|from| SocketAddr::try_from(from).ok());
    let Some(from) = from else {
        return Ok((socket, String::new()));
    };
    tune(&socket, options);
    // A listener of both families sees IPv4 peers as ::ffff:192.0.2.1, which nobody would write into a rule.
    Ok((socket, from.ip().to_canonical().to_string()))
}

/// Starts to connect. The socket is writable when that has succeeded or failed.
pub(crate) fn start_to_connect(address: &Address, options: &LinkOptions) -> Result<OwnedFd, Errno> {
    let connecting = |result: Result<(), Errno>| match result {
        Ok(()) | Err(Errno::INPROGRESS | Errno::INTR) => Ok(()),
        Err(errno) => Err(errno),
    };
    match address {
        Address::Path(text) => {
            let socket = new_socket(AddressFamily::UNIX)?;
            connecting(connect(&socket, &unix(text)?))?;
            Ok(socket)
        }
        Address::Tcp(address) => {
            let socket = new_socket(family(*address))?;
            tune(&socket, options);
            connecting(connect(&socket, address))?;
            Ok(socket)
        }
        Address::Every(_) => Err(Errno::INVAL),
    }
}

fn listen_on(address: SocketAddr) -> Result<OwnedFd, Errno> {
    let socket = new_socket(family(address))?;
    // The port of a broker that has just ended is not free to others for a while.
    sockopt::set_socket_reuseaddr(&socket, true)?;
    if address.is_ipv6() {
        sockopt::set_ipv6_v6only(&socket, !address.ip().is_unspecified())?;
    }
    bind(&socket, &address)?;
    listen(&socket, i32::try_from(BACKLOG).unwrap_or(i32::MAX))?;
    Ok(socket)
}

fn listen_locally(text: &str) -> Result<OwnedFd, Errno> {
    let address = unix(text)?;
    let socket = new_socket(AddressFamily::UNIX)?;
    let mut bound = bind(&socket, &address);
    if bound == Err(Errno::ADDRINUSE)
        && let Some(file) = file_of(text)
        && is_left_behind(&file, &address)
    {
        std::fs::remove_file(&file).ok();
        bound = bind(&socket, &address);
    }
    bound?;
    listen(&socket, i32::try_from(BACKLOG).unwrap_or(i32::MAX))?;
    Ok(socket)
}

/// Whether the file is a socket on which nobody listens any more.
fn is_left_behind(file: &Path, address: &SocketAddrUnix) -> bool {
    use std::os::unix::fs::FileTypeExt;
    let is_socket = std::fs::symlink_metadata(file).is_ok_and(|metadata| metadata.file_type().is_socket());
    let refused = || {
        let socket = new_socket(AddressFamily::UNIX)?;
        connect(&socket, address)
    };
    is_socket && refused() == Err(Errno::CONNREFUSED)
}

/// The file of a local socket; those whose name begins with `@` have none.
fn file_of(text: &str) -> Option<PathBuf> {
    if text.starts_with('@') { None } else { Some(PathBuf::from(text)) }
}

fn unix(text: &str) -> Result<SocketAddrUnix, Errno> {
    #[cfg(target_os = "linux")]
    if let Some(name) = text.strip_prefix('@') {
        return SocketAddrUnix::new_abstract_name(name.as_bytes());
    }
    SocketAddrUnix::new(text)
}

/// Sets what makes a connection prompt, and its end noticed. None of it can fail on a socket of TCP; if it did, the connection
/// would still work.
fn tune(socket: &OwnedFd, options: &LinkOptions) {
    sockopt::set_tcp_nodelay(socket, true).ok();
    sockopt::set_socket_keepalive(socket, true).ok();
    sockopt::set_tcp_keepidle(socket, KEEPALIVE_IDLE).ok();
    sockopt::set_tcp_keepintvl(socket, KEEPALIVE_INTERVAL).ok();
    sockopt::set_tcp_keepcnt(socket, KEEPALIVE_COUNT).ok();
    #[cfg(target_os = "linux")]
    sockopt::set_tcp_user_timeout(
        socket,
        u32::try_from(options.unacknowledged_timeout.as_millis()).unwrap_or(u32::MAX),
    )
    .ok();
    #[cfg(not(target_os = "linux"))]
    let _ = options;
}

fn family(address: SocketAddr) -> AddressFamily {
    if address.is_ipv6() { AddressFamily::INET6 } else { AddressFamily::INET }
}

fn port_of(socket: &OwnedFd) -> Option<u16> {
    let address: SocketAddrAny = getsockname(socket).ok()?;
    SocketAddr::try_from(address).ok().map(|address| address.port())
}

fn is_unavailable(errno: Errno) -> bool {
    matches!(errno, Errno::ADDRNOTAVAIL | Errno::NODEV | Errno::AFNOSUPPORT)
}

fn bind_error(endpoint: &Endpoint, errno: Errno) -> LinkError {
    let endpoint = endpoint.to_string();
    if errno == Errno::ADDRINUSE {
        LinkError::AddressInUse { endpoint }
    } else if is_unavailable(errno) {
        LinkError::AddressNotAvailable { endpoint }
    } else {
        LinkError::Bind { endpoint, reason: std::io::Error::from(errno).to_string() }
    }
}
