//! The broker's socket: a ROUTER that listens.

use std::collections::HashMap;
use std::ffi::c_int;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use rustix::event::{PollFd, PollFlags};
use rustix::io::Errno;

use crate::admission::{AdmissionThread, ZAP_DOMAIN};
use crate::context::{Context, error_text, last_error};
use crate::endpoint::Endpoint;
use crate::error::{LinkError, SendError};
use crate::ffi;
use crate::lent::{Lent, Total};
use crate::link::{Ready, Received, RouterLink};
use crate::message::{FrameReader, lent_bytes};
use crate::options::{BACKLOG, LinkOptions, RouterOptions};
use crate::sleep::{has_news, sleep};
use crate::socket::Socket;
use crate::waker::Waker;

/// Accounts of lent frames that are kept although they are empty.
const ACCOUNTS_KEPT: usize = 1024;

/// How libzmq writes "all addresses of this host".
const EVERY_ADDRESS: &str = "tcp://*";

/// TCP keepalive probes: after this many seconds of silence, ...
const KEEPALIVE_IDLE_SECONDS: c_int = 15;
/// ... this many seconds apart, ...
const KEEPALIVE_INTERVAL_SECONDS: c_int = 5;
/// ... so many unanswered ones end a connection.
const KEEPALIVE_COUNT: c_int = 3;

/// A [`RouterLink`] over libzmq.
pub struct Router {
    // Dropped before the admission thread: no new handshake may find nobody to ask.
    socket: Socket,
    admission: Option<AdmissionThread>,
    reader: FrameReader,
    waker: Waker,
    endpoint: String,
    frames_max: usize,
    /// Peers that were sent large frames.
    lent: HashMap<Box<[u8]>, Arc<Lent>>,
    lent_total: Arc<Total>,
    /// What small frames count for: nothing.
    lent_nothing: Arc<Lent>,
    queue_bytes: usize,
    /// Nothing was readable when last looked, and the socket was not used since: whatever came in announces itself.
    drained: bool,
}

impl Router {
    /// Listens at an endpoint. A name may wait for the resolver.
    ///
    /// # Errors
    /// If the endpoint is malformed, does not resolve, or is in use; each says which.
    pub fn bind(context: &Context, endpoint: &str, options: RouterOptions) -> Result<Self, LinkError> {
        let endpoint: Endpoint = endpoint.parse()?;
        let socket = Socket::open(context, ffi::ZMQ_ROUTER)?;
        configure(&socket, &options.link)?;
        // Without it, what is sent to a peer that is full or unknown vanishes silently.
        socket.set_int(ffi::ZMQ_ROUTER_MANDATORY, 1)?;
        // A peer that comes back under its name takes it over from its dead connection, which is closed (`build/patch.rs`).
        socket.set_int(ffi::ZMQ_ROUTER_HANDOVER, 1)?;
        socket.set_int(ffi::ZMQ_BACKLOG, c_int::try_from(BACKLOG).unwrap_or(c_int::MAX))?;
        if let Some(keys) = &options.keys {
            socket.set_int(ffi::ZMQ_CURVE_SERVER, 1)?;
            socket.set(ffi::ZMQ_CURVE_PUBLICKEY, keys.public.as_bytes())?;
            socket.set(ffi::ZMQ_CURVE_SECRETKEY, keys.secret.as_bytes())?;
        }
        let admission = match options.admission {
            Some(admission) => {
                socket.set(ffi::ZMQ_ZAP_DOMAIN, ZAP_DOMAIN.as_bytes())?;
                Some(AdmissionThread::start(context, admission)?)
            }
            None => None,
        };
        let actual = listen(&socket, &endpoint)?;
        let waker = Waker::new()?;
        let lent_total = Total::new(options.link.send_queue_bytes_total, waker.clone());
        Ok(Self {
            socket,
            admission,
            reader: FrameReader::new(),
            waker,
            endpoint: actual,
            frames_max: options.link.frames_max,
            lent: HashMap::new(),
            lent_nothing: Lent::new(options.link.send_queue_bytes, Arc::clone(&lent_total)),
            lent_total,
            queue_bytes: options.link.send_queue_bytes,
            drained: false,
        })
    }

    /// How many peers the admission rules have turned away.
    #[must_use]
    pub fn denials(&self) -> u64 {
        self.admission.as_ref().map_or(0, AdmissionThread::denials)
    }

    /// The account of a peer that is sent large frames.
    fn lent_to(&mut self, peer: &[u8]) -> Arc<Lent> {
        if let Some(lent) = self.lent.get(peer) {
            return Arc::clone(lent);
        }
        if self.lent.len() >= self.lent.capacity().max(ACCOUNTS_KEPT) {
            self.lent.retain(|_, lent| !lent.is_empty());
        }
        let lent = Lent::new(self.queue_bytes, Arc::clone(&self.lent_total));
        self.lent.insert(peer.into(), Arc::clone(&lent));
        lent
    }
}

impl RouterLink for Router {
    fn try_send(&mut self, peer: &[u8], frames: &[Bytes]) -> Result<(), SendError> {
        let [first @ .., last] = frames else {
            return Err(SendError::Failed(LinkError::EmptyMessage));
        };
        let lent = match lent_bytes(frames) {
            0 => None,
            large => {
                let lent = self.lent_to(peer);
                if !lent.has_room(large) {
                    return Err(SendError::Full);
                }
                Some(lent)
            }
        };
        let lent = lent.as_ref().unwrap_or(&self.lent_nothing);
        // Sending handles reports of the I/O thread on the way, which may make the socket readable without a sign.
        self.drained = false;
        match self.socket.send_copy(peer, true) {
            Ok(()) => {}
            Err(errno) if errno == Errno::HOSTUNREACH.raw_os_error() => return Err(SendError::Unroutable),
            Err(errno) if errno == Errno::AGAIN.raw_os_error() => return Err(SendError::Full),
            Err(_) => return Err(SendError::Failed(last_error("zmq_send"))),
        }
        // The peer's queue has taken the message; if the connection ends meanwhile, libzmq drops all of it.
        for frame in first {
            self.socket.send_part(frame, true, lent).map_err(|_| SendError::Failed(last_error("zmq_msg_send")))?;
        }
        self.socket.send_part(last, false, lent).map_err(|_| SendError::Failed(last_error("zmq_msg_send")))
    }

    fn try_receive(&mut self) -> Result<Option<Received>, LinkError> {
        let received = self.socket.receive(&mut self.reader, true, self.frames_max)?;
        self.drained = received.is_none();
        Ok(received)
    }

    fn wait(&mut self, timeout: Option<Duration>) -> Result<Ready, LinkError> {
        let mut ready = Ready::default();
        if !self.drained {
            ready.readable = self.socket.events()? & ffi::ZMQ_POLLIN != 0;
            self.drained = !ready.readable;
            if ready.readable {
                ready.woken = self.waker.take_if_armed();
                return Ok(ready);
            }
        }
        let sleeper = self.waker.sleeper();
        let socket = self.socket.fd();
        let mut descriptors = [PollFd::new(&sleeper, PollFlags::IN), PollFd::new(&socket, PollFlags::IN)];
        sleep(&mut descriptors, timeout)?;
        let [woken, reported] = descriptors.map(|descriptor| has_news(&descriptor));
        ready.readable = reported;
        ready.woken = woken && self.waker.take();
        Ok(ready)
    }

    fn waker(&self) -> Waker {
        self.waker.clone()
    }

    fn endpoint(&self) -> String {
        self.endpoint.clone()
    }

    fn close(self: Box<Self>, linger: Duration) {
        self.socket.close(linger);
        drop(self.admission);
    }
}

impl fmt::Debug for Router {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Router").field("endpoint", &self.endpoint).finish_non_exhaustive()
    }
}

/// Applies what both kinds of sockets have in common.
pub(crate) fn configure(socket: &Socket, options: &LinkOptions) -> Result<(), LinkError> {
    let count = |value: u32| c_int::try_from(value).unwrap_or(c_int::MAX);
    socket.set_int(ffi::ZMQ_SNDHWM, count(options.send_queue))?;
    socket.set_int(ffi::ZMQ_RCVHWM, count(options.receive_queue))?;
    socket.set_i64(ffi::ZMQ_MAXMSGSIZE, i64::try_from(options.frame_bytes_max).unwrap_or(i64::MAX))?;
    socket.set_time(ffi::ZMQ_HANDSHAKE_IVL, options.handshake_timeout)?;
    socket.set_time(ffi::ZMQ_TCP_MAXRT, options.unacknowledged_timeout)?;
    socket.set_int(ffi::ZMQ_TCP_KEEPALIVE, 1)?;
    socket.set_int(ffi::ZMQ_TCP_KEEPALIVE_IDLE, KEEPALIVE_IDLE_SECONDS)?;
    socket.set_int(ffi::ZMQ_TCP_KEEPALIVE_INTVL, KEEPALIVE_INTERVAL_SECONDS)?;
    socket.set_int(ffi::ZMQ_TCP_KEEPALIVE_CNT, KEEPALIVE_COUNT)
}

/// Listens at all addresses of an endpoint, on the same port, and tells where. One address is enough: `localhost` has an IPv6
/// address on hosts that have no IPv6.
fn listen(socket: &Socket, endpoint: &Endpoint) -> Result<String, LinkError> {
    let mut port: Option<u16> = None;
    let mut unavailable = Errno::ADDRNOTAVAIL.raw_os_error();
    for listener in endpoint.listeners()? {
        // Port 0 of the first address has become a real one, and the others should have the same.
        let listener = match (port, listener.rsplit_once(':')) {
            (Some(port), Some((host, _))) => format!("{host}:{port}"),
            _ => listener,
        };
        socket.set_int(ffi::ZMQ_IPV6, c_int::from(wants_ipv6(&listener)))?;
        let mut bound = socket.bind(&listener);
        if listener.starts_with(EVERY_ADDRESS) && bound.is_err_and(is_unavailable) {
            // A host without IPv6.
            socket.set_int(ffi::ZMQ_IPV6, 0)?;
            bound = socket.bind(&listener);
        }
        match bound {
            Ok(()) if port.is_none() => {
                let last = socket.last_endpoint()?;
                port = Some(last.rsplit_once(':').and_then(|(_, port)| port.parse().ok()).unwrap_or(0));
            }
            Ok(()) => {}
            Err(errno) if is_unavailable(errno) => unavailable = errno,
            Err(errno) => return Err(bind_error(endpoint, errno)),
        }
    }
    port.map(|port| endpoint.with_port(port)).ok_or_else(|| bind_error(endpoint, unavailable))
}

/// Whether a socket must be of the IPv6 family for an endpoint in libzmq's notation. One of IPv6 would serve IPv4 addresses
/// too, where the host has IPv6.
pub(crate) fn wants_ipv6(endpoint: &str) -> bool {
    endpoint.starts_with("tcp://[") || endpoint.starts_with(EVERY_ADDRESS)
}

fn is_unavailable(errno: c_int) -> bool {
    [Errno::ADDRNOTAVAIL, Errno::NODEV, Errno::AFNOSUPPORT].iter().any(|kind| kind.raw_os_error() == errno)
}

fn bind_error(endpoint: &Endpoint, errno: c_int) -> LinkError {
    let endpoint = endpoint.to_string();
    if errno == Errno::ADDRINUSE.raw_os_error() {
        LinkError::AddressInUse { endpoint }
    } else if is_unavailable(errno) {
        LinkError::AddressNotAvailable { endpoint }
    } else {
        LinkError::Bind { endpoint, reason: error_text(errno) }
    }
}
