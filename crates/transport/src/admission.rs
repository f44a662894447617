//! Who may connect to a broker: libzmq asks before it completes a handshake (ZAP, RFC 27), and an [`Admission`] answers.

use std::fmt;
use std::net::IpAddr;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;

use bytes::Bytes;
use rustix::event::{PollFd, PollFlags};

use crate::context::{Context, error_text};
use crate::error::LinkError;
use crate::ffi;
use crate::keys::PublicKey;
use crate::message::FrameReader;
use crate::sleep::sleep;
use crate::socket::Socket;
use crate::waker::Waker;

/// Where libzmq looks for the one who decides; fixed by RFC 27.
const ZAP_ENDPOINT: &str = "inproc://zeromq.zap.01";
/// The name under which our routers ask; plain connections are only asked about when there is one.
pub(crate) const ZAP_DOMAIN: &str = "norfab";
/// A request has six frames and one for each credential; CURVE has one.
const ZAP_FRAMES_MAX: usize = 8;

/// A peer that wants to connect.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PeerHello {
    /// Its address without port; empty for local sockets.
    pub address: String,
    /// Its public key, with CURVE. The handshake has proven that it has the secret one.
    pub public_key: Option<PublicKey>,
    /// How it proves who it is.
    pub mechanism: Mechanism,
}

/// How a peer proves who it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mechanism {
    /// Not at all.
    Plain,
    /// With a CURVE key.
    Curve,
}

/// What an [`Admission`] says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// The peer may connect.
    Allow {
        /// Who it is, for the records; may be empty.
        user_id: String,
    },
    /// The peer is turned away.
    Deny {
        /// Why, for our log; the peer is not told.
        reason: String,
    },
}

/// Decides who may connect. Runs on a thread of its own, one peer at a time, so it should answer quickly; a panic in it
/// denies the one peer.
pub trait Admission: Send + Sync + fmt::Debug {
    /// Decides about one peer.
    fn admit(&self, hello: &PeerHello) -> Verdict;

    /// Told about each peer that was turned away, after it was counted. Does nothing unless overridden.
    fn denied(&self, hello: &PeerHello, reason: &str) {
        let (_, _) = (hello, reason);
    }
}

/// Admits everybody. With CURVE that is what the Python broker does: any key, as long as the peer knows the broker's.
#[derive(Debug, Clone, Copy, Default)]
pub struct AllowAny;

impl Admission for AllowAny {
    fn admit(&self, _hello: &PeerHello) -> Verdict {
        Verdict::Allow { user_id: String::new() }
    }
}

/// What [`AddressAllowlist`] calls for each peer that it turned away.
type DeniedCallback = dyn Fn(&PeerHello, &str) + Send + Sync;

/// Admits peers by their address: exact addresses, networks (`192.0.2.0/24`) and `*`. Local sockets have no address and
/// are admitted.
#[derive(Clone, Default)]
pub struct AddressAllowlist {
    networks: Vec<Network>,
    on_denied: Option<Arc<DeniedCallback>>,
}

/// An entry of an allowlist that is neither an address, nor a network, nor `*`.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("\"{entry}\" is neither an address, nor a network such as 192.0.2.0/24, nor *")]
pub struct AllowlistError {
    /// The entry.
    pub entry: String,
}

impl AddressAllowlist {
    /// A list from its entries.
    ///
    /// # Errors
    /// Names the first entry that cannot be understood.
    pub fn new<Entry: AsRef<str>>(entries: impl IntoIterator<Item = Entry>) -> Result<Self, AllowlistError> {
        let networks = entries.into_iter().map(|entry| entry.as_ref().parse()).collect::<Result<_, _>>()?;
        Ok(Self { networks, on_denied: None })
    }

    /// The same list, that also calls `callback` for each peer that it turned away.
    #[must_use]
    pub fn on_denied(mut self, callback: impl Fn(&PeerHello, &str) + Send + Sync + 'static) -> Self {
        self.on_denied = Some(Arc::new(callback));
        self
    }
}

impl Admission for AddressAllowlist {
    fn admit(&self, hello: &PeerHello) -> Verdict {
        let allowed = hello.address.is_empty()
            || hello
                .address
                .parse::<IpAddr>()
                .is_ok_and(|address| self.networks.iter().any(|network| network.contains(address.to_canonical())))
            || self.networks.contains(&Network::Any);
        if allowed {
            Verdict::Allow { user_id: String::new() }
        } else {
            Verdict::Deny { reason: format!("the address {} is not on the allowlist", hello.address) }
        }
    }

    fn denied(&self, hello: &PeerHello, reason: &str) {
        if let Some(callback) = &self.on_denied {
            callback(hello, reason);
        }
    }
}

impl fmt::Debug for AddressAllowlist {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AddressAllowlist").field("networks", &self.networks).finish_non_exhaustive()
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Network {
    Any,
    Prefix { bits: u128, length: u8, width: u8 },
}

impl Network {
    fn contains(self, address: IpAddr) -> bool {
        match self {
            Self::Any => true,
            Self::Prefix { bits, length, width } => {
                let (address, address_width) = address_bits(address);
                let ignored = u32::from(width - length);
                address_width == width && address.checked_shr(ignored) == bits.checked_shr(ignored)
            }
        }
    }
}

impl FromStr for Network {
    type Err = AllowlistError;

    fn from_str(text: &str) -> Result<Self, AllowlistError> {
        let malformed = || AllowlistError { entry: text.to_owned() };
        let text = text.trim();
        if text == "*" {
            return Ok(Self::Any);
        }
        let (address, length) = text.split_once('/').map_or((text, None), |(address, length)| (address, Some(length)));
        let address: IpAddr = address.parse().map_err(|_| malformed())?;
        let (bits, width) = address_bits(address);
        let length = length.map_or(Ok(width), str::parse::<u8>).map_err(|_| malformed())?;
        if length > width { Err(malformed()) } else { Ok(Self::Prefix { bits, length, width }) }
    }
}

fn address_bits(address: IpAddr) -> (u128, u8) {
    match address {
        IpAddr::V4(address) => (u128::from(address.to_bits()), 32),
        IpAddr::V6(address) => (address.to_bits(), 128),
    }
}

/// The thread that answers libzmq. One per context; ends when it is dropped.
pub(crate) struct AdmissionThread {
    thread: Option<JoinHandle<()>>,
    stop: Arc<AtomicBool>,
    waker: Waker,
    denials: Arc<AtomicU64>,
}

impl AdmissionThread {
    /// Starts to answer, before the first listener of the context is opened.
    pub(crate) fn start(context: &Context, admission: Arc<dyn Admission>) -> Result<Self, LinkError> {
        let socket = Socket::open(context, ffi::ZMQ_REP)?;
        socket.bind(ZAP_ENDPOINT).map_err(|errno| {
            let reason = if errno == rustix::io::Errno::ADDRINUSE.raw_os_error() {
                "another router of this context has admission rules already; give each router its own context"
                    .to_owned()
            } else {
                error_text(errno)
            };
            LinkError::Bind { endpoint: ZAP_ENDPOINT.to_owned(), reason }
        })?;
        let waker = Waker::new()?;
        let stop = Arc::new(AtomicBool::new(false));
        let denials = Arc::new(AtomicU64::new(0));
        let mut clerk = Clerk { socket, admission, denials: denials.clone() };
        let (its_waker, its_stop) = (waker.clone(), stop.clone());
        let thread = std::thread::Builder::new()
            .name("norfab-admission".to_owned())
            .spawn(move || {
                while !its_stop.load(Ordering::Acquire) {
                    // A failure means that the context is gone; nobody can ask any more.
                    if clerk.answer_all().is_err() || clerk.sleep(&its_waker).is_err() {
                        return;
                    }
                }
            })
            .map_err(|error| LinkError::Io { what: "cannot start the admission thread", reason: error.to_string() })?;
        Ok(Self { thread: Some(thread), stop, waker, denials })
    }

    /// How many peers were turned away.
    pub(crate) fn denials(&self) -> u64 {
        self.denials.load(Ordering::Relaxed)
    }
}

impl Drop for AdmissionThread {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        self.waker.wake();
        if let Some(thread) = self.thread.take() {
            // The thread catches panics of the rules; one of its own has been printed, and there is nothing left to save.
            drop(thread.join());
        }
    }
}

struct Clerk {
    socket: Socket,
    admission: Arc<dyn Admission>,
    denials: Arc<AtomicU64>,
}

impl Clerk {
    fn answer_all(&mut self) -> Result<(), LinkError> {
        let mut reader = FrameReader::new();
        while let Some(request) = self.socket.receive(&mut reader, false, ZAP_FRAMES_MAX)? {
            let (status, text, user_id) = self.answer(&request.frames);
            let id = request.frames.get(1).cloned().unwrap_or_default();
            for (part, more) in [
                (&b"1.0"[..], true),
                (&id[..], true),
                (status.as_bytes(), true),
                (text.as_bytes(), true),
                (user_id.as_bytes(), true),
                (b"", false),
            ] {
                // The one who asked may be gone meanwhile; the next request tells whether the socket still works.
                if self.socket.send_copy(part, more).is_err() {
                    break;
                }
            }
        }
        Ok(())
    }

    fn answer(&self, frames: &[Bytes]) -> (&'static str, &'static str, String) {
        let Some(hello) = hello(frames) else {
            return ("500", "malformed request", String::new());
        };
        let admission = &self.admission;
        let verdict = catch_unwind(AssertUnwindSafe(|| admission.admit(&hello)))
            .unwrap_or_else(|_| Verdict::Deny { reason: "the admission rules panicked".to_owned() });
        match verdict {
            Verdict::Allow { user_id } => ("200", "", user_id),
            Verdict::Deny { reason } => {
                self.denials.fetch_add(1, Ordering::Relaxed);
                // A panic in a log function must not let anybody in, nor end the thread.
                drop(catch_unwind(AssertUnwindSafe(|| admission.denied(&hello, &reason))));
                ("400", "not admitted", String::new())
            }
        }
    }

    fn sleep(&self, waker: &Waker) -> Result<(), LinkError> {
        let sleeper = waker.sleeper();
        let socket = self.socket.fd();
        sleep(&mut [PollFd::new(&sleeper, PollFlags::IN), PollFd::new(&socket, PollFlags::IN)], None)
    }
}

/// Reads a request: version, request id, domain, address, routing id, mechanism, credentials.
fn hello(frames: &[Bytes]) -> Option<PeerHello> {
    let [version, _id, _domain, address, _routing_id, mechanism, credentials @ ..] = frames else {
        return None;
    };
    if &version[..] != b"1.0" {
        return None;
    }
    let (mechanism, public_key) = match (&mechanism[..], credentials) {
        (b"NULL", []) => (Mechanism::Plain, None),
        (b"CURVE", [key]) => (Mechanism::Curve, Some(PublicKey::from_bytes(key[..].try_into().ok()?))),
        _ => return None,
    };
    let mut address = String::from_utf8(address.to_vec()).ok()?;
    // A listener of both families sees IPv4 peers as ::ffff:192.0.2.1, which nobody would write into a rule.
    if let Ok(known) = address.parse::<IpAddr>() {
        address = known.to_canonical().to_string();
    }
    Some(PeerHello { address, public_key, mechanism })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn from(address: &str) -> PeerHello {
        PeerHello { address: address.to_owned(), public_key: None, mechanism: Mechanism::Plain }
    }

    fn allows(entries: &[&str], address: &str) -> bool {
        let list = AddressAllowlist::new(entries).unwrap();
        matches!(list.admit(&from(address)), Verdict::Allow { .. })
    }

    #[test]
    fn allowlist_knows_addresses_networks_and_star() {
        assert!(allows(&["127.0.0.1"], "127.0.0.1"));
        assert!(allows(&["127.0.0.1"], "::ffff:127.0.0.1"));
        assert!(!allows(&["127.0.0.1"], "127.0.0.2"));
        assert!(allows(&["192.0.2.0/24"], "192.0.2.77"));
        assert!(!allows(&["192.0.2.0/24"], "192.0.3.1"));
        assert!(allows(&["0.0.0.0/0"], "203.0.113.9"));
        assert!(!allows(&["0.0.0.0/0"], "2001:db8::1"));
        assert!(allows(&["2001:db8::/32", "::1"], "2001:db8:1::1"));
        assert!(allows(&["::/0"], "2001:db8:1::1"));
        assert!(!allows(&["2001:db8::/32"], "2001:db9::1"));
        assert!(allows(&["*"], "anything"));
        assert!(!allows(&["::/0"], "anything"));
        assert!(!allows(&[], "127.0.0.1"));
        assert!(allows(&[], ""));
    }

    #[test]
    fn malformed_entry_of_an_allowlist_is_named() {
        for entry in ["localhost", "192.0.2.0/33", "192.0.2.0/", "192.0.2.0/24/1", "/8", "::1/129", ""] {
            let error = AddressAllowlist::new(["::1", entry]).unwrap_err();
            assert_eq!(error.entry, entry);
        }
    }

    #[test]
    fn malformed_requests_are_no_hello() {
        let frames = |parts: &[&'static [u8]]| parts.iter().map(|part| Bytes::from_static(part)).collect::<Vec<_>>();
        assert!(hello(&frames(&[b"1.0", b"1", b"d", b"::1", b"", b"NULL"])).is_some());
        assert!(hello(&frames(&[b"1.0", b"1", b"d", b"::1", b"", b"CURVE", &[1; 32]])).is_some());
        for parts in [
            &[] as &[&'static [u8]],
            &[b"1.0"],
            &[b"1.0", b"1", b"d", b"::1", b""],
            &[b"2.0", b"1", b"d", b"::1", b"", b"NULL"],
            &[b"1.0", b"1", b"d", b"\xff", b"", b"NULL"],
            &[b"1.0", b"1", b"d", b"::1", b"", b"NULL", b"x"],
            &[b"1.0", b"1", b"d", b"::1", b"", b"CURVE"],
            &[b"1.0", b"1", b"d", b"::1", b"", b"CURVE", b"short"],
            &[b"1.0", b"1", b"d", b"::1", b"", b"PLAIN", b"user", b"password"],
        ] {
            assert_eq!(hello(&frames(parts)), None);
        }
    }

    #[test]
    fn malformed_requests_are_answered_and_do_not_end_the_thread() {
        let context = Context::new().unwrap();
        let thread = AdmissionThread::start(&context, Arc::new(AllowAny)).unwrap();
        let mut libzmq = Socket::open(&context, ffi::ZMQ_DEALER).unwrap();
        libzmq.connect(ZAP_ENDPOINT).unwrap();
        let mut reader = FrameReader::new();
        let mut ask = |request: &[&[u8]]| {
            libzmq.send_copy(b"", true).unwrap();
            for (number, part) in request.iter().enumerate() {
                libzmq.send_copy(part, number + 1 < request.len()).unwrap();
            }
            loop {
                if let Some(answer) = libzmq.receive(&mut reader, false, ZAP_FRAMES_MAX).unwrap() {
                    return answer.frames[3].clone();
                }
                sleep(&mut [PollFd::new(&libzmq.fd(), PollFlags::IN)], None).unwrap();
            }
        };
        assert_eq!(ask(&[b""]), "500");
        assert_eq!(ask(&[&b"\xff"[..]; 3]), "500");
        assert_eq!(ask(&[&[0xff_u8; 10_000][..]; 40]), "500");
        assert_eq!(ask(&[b"1.0", b"7", b"norfab", b"::1", b"", b"CURVE", b"short"]), "500");
        assert_eq!(ask(&[b"1.0", b"7", b"norfab", b"::1", b"", b"NULL"]), "200");
        assert_eq!(thread.denials(), 0);
    }
}
