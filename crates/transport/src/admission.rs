//! Who may connect to a broker: before a handshake is completed an [`Admission`] is asked, with what ZAP (RFC 27) would be told.

use std::fmt;
use std::net::IpAddr;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::str::FromStr;
use std::sync::Arc;

use crate::keys::PublicKey;

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

/// Decides who may connect. It is asked by the owner of the router, between messages, so it must answer at once, from memory;
/// a panic in it denies the one peer.
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

/// Asks the rules, and counts whom they turned away.
#[derive(Debug)]
pub(crate) struct Door {
    admission: Option<Arc<dyn Admission>>,
    denials: u64,
}

impl Door {
    pub(crate) fn new(admission: Option<Arc<dyn Admission>>) -> Self {
        Self { admission, denials: 0 }
    }

    /// How many peers were turned away.
    pub(crate) fn denials(&self) -> u64 {
        self.denials
    }

    /// Whether a peer may come in.
    pub(crate) fn admits(&mut self, address: &str, public_key: Option<PublicKey>) -> bool {
        let Some(admission) = &self.admission else {
            return true;
        };
        let mechanism = if public_key.is_some() { Mechanism::Curve } else { Mechanism::Plain };
        let hello = PeerHello { address: address.to_owned(), public_key, mechanism };
        let verdict = catch_unwind(AssertUnwindSafe(|| admission.admit(&hello)))
            .unwrap_or_else(|_| Verdict::Deny { reason: "the admission rules panicked".to_owned() });
        match verdict {
            Verdict::Allow { .. } => true,
            Verdict::Deny { reason } => {
                self.denials += 1;
                // A panic in a log function must not let anybody in, nor end the owner.
                drop(catch_unwind(AssertUnwindSafe(|| admission.denied(&hello, &reason))));
                false
            }
        }
    }
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

    /// Panics about the first peer, denies the second and admits the others.
    #[derive(Debug, Default)]
    struct Moody(std::sync::atomic::AtomicUsize);

    impl Admission for Moody {
        fn admit(&self, _: &PeerHello) -> Verdict {
            match self.0.fetch_add(1, std::sync::atomic::Ordering::Relaxed) {
                0 => panic!("the first peer breaks the rules"),
                1 => Verdict::Deny { reason: "the second".to_owned() },
                _ => Verdict::Allow { user_id: String::new() },
            }
        }
        fn denied(&self, _: &PeerHello, reason: &str) {
            assert!(reason != "the second", "so does the log");
        }
    }

    #[test]
    fn rules_that_panic_turn_one_peer_away_and_are_asked_about_the_next() {
        let mut door = Door::new(Some(Arc::new(Moody::default())));
        assert_eq!([(); 3].map(|()| door.admits("127.0.0.1", None)), [false, false, true]);
        assert_eq!(door.denials(), 2);
        assert!(Door::new(None).admits("", None));
    }
}
