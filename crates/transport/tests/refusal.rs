//! What a dealer is told when it cannot connect, and what it takes to be let in.
#![allow(missing_docs)]

use std::io::{Read, Write};
use std::net::{TcpListener, ToSocketAddrs};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use bytes::Bytes;
use norfab_transport::{
    AddressAllowlist, Admission, Context, Dealer, DealerKeys, DealerLink, DealerOptions, KeyPair, LinkError,
    LinkOptions, LinkStatus, Mechanism, PeerHello, PublicKey, RefusedReason, Router, RouterLink, RouterOptions,
    SendError, Verdict, Waker,
};

const DEADLINE: Duration = Duration::from_secs(20);
/// Short, so that the tests of silent listeners are.
const HANDSHAKE: Duration = Duration::from_secs(2);

fn link() -> LinkOptions {
    LinkOptions { handshake_timeout: HANDSHAKE, connect_timeout: Duration::from_millis(500), ..LinkOptions::default() }
}

/// A router with an owner that does nothing with what it hears.
struct Owned {
    endpoint: String,
    waker: Waker,
    stop: Arc<AtomicBool>,
    owner: Option<JoinHandle<Router>>,
}

impl Owned {
    fn new(mut router: Router) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let (endpoint, waker, stopped) = (router.endpoint(), router.waker(), stop.clone());
        let owner = std::thread::spawn(move || {
            while !stopped.load(Ordering::Acquire) {
                router.wait(None).unwrap();
                while router.try_receive().unwrap().is_some() {}
            }
            router
        });
        Self { endpoint, waker, stop, owner: Some(owner) }
    }

    fn endpoint(&self) -> String {
        self.endpoint.clone()
    }

    /// The router, back from its owner.
    fn back(mut self) -> Router {
        self.stop()
    }

    fn stop(&mut self) -> Router {
        self.stop.store(true, Ordering::Release);
        self.waker.wake();
        self.owner.take().unwrap().join().unwrap()
    }
}

impl Drop for Owned {
    fn drop(&mut self) {
        if self.owner.is_some() {
            self.stop();
        }
    }
}

fn router(context: &Context, endpoint: &str, keys: Option<KeyPair>, admission: Option<Arc<dyn Admission>>) -> Owned {
    Owned::new(Router::bind(context, endpoint, RouterOptions { link: link(), keys, admission }).unwrap())
}

fn dealer(context: &Context, endpoint: &str, broker: Option<PublicKey>) -> Dealer {
    let keys = broker.map(|broker| DealerKeys { own: KeyPair::generate(), broker });
    Dealer::connect(context, endpoint, b"worker", DealerOptions { link: link(), keys }).unwrap()
}

fn status(dealer: &mut Dealer) -> LinkStatus {
    let until = Instant::now() + DEADLINE;
    loop {
        if let Some(status) = dealer.next_status() {
            return status;
        }
        let left = until.checked_duration_since(Instant::now()).expect("a status in time");
        dealer.wait(Some(left), false).unwrap();
    }
}

fn refused(endpoint: &str, broker: Option<&KeyPair>, reason: RefusedReason) -> LinkStatus {
    let fingerprint = broker.map(|broker| broker.public.fingerprint());
    LinkStatus::Refused { endpoint: endpoint.to_owned(), fingerprint, reason }
}

#[test]
fn wrong_broker_key_is_told_with_endpoint_and_fingerprint_in_time() {
    let context = Context::new();
    let router = router(&context, "tcp://127.0.0.1:0", Some(KeyPair::generate()), None);
    let expected = KeyPair::generate();
    let started = Instant::now();
    let mut dealer = dealer(&context, &router.endpoint(), Some(expected.public));
    assert_eq!(status(&mut dealer), refused(&router.endpoint(), Some(&expected), RefusedReason::WrongKey));
    assert!(started.elapsed() < HANDSHAKE, "{:?}", started.elapsed());
    assert_eq!(dealer.try_send(&[Bytes::from("x")]), Err(SendError::Full));
}

#[test]
fn plaintext_peer_of_an_encrypting_broker_is_told_so() {
    let context = Context::new();
    let router = router(&context, "tcp://127.0.0.1:0", Some(KeyPair::generate()), None);
    let mut dealer = dealer(&context, &router.endpoint(), None);
    assert_eq!(status(&mut dealer), refused(&router.endpoint(), None, RefusedReason::SecurityMismatch));
}

#[test]
fn encrypting_peer_of_a_plaintext_broker_is_told_so() {
    let context = Context::new();
    let router = router(&context, "tcp://127.0.0.1:0", None, None);
    let expected = KeyPair::generate();
    let mut dealer = dealer(&context, &router.endpoint(), Some(expected.public));
    assert_eq!(status(&mut dealer), refused(&router.endpoint(), Some(&expected), RefusedReason::SecurityMismatch));
}

#[test]
fn dead_broker_is_unreachable_and_not_refusing() {
    let context = Context::new();
    let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let mut dealer = dealer(&context, &format!("tcp://{free}"), Some(KeyPair::generate().public));
    assert!(matches!(status(&mut dealer), LinkStatus::Unreachable { .. }));
}

#[test]
fn name_without_address_is_told_and_tried_again() {
    let context = Context::new();
    let mut dealer = dealer(&context, "tcp://no-such-host.invalid:5555", None);
    for _ in 0..2 {
        let LinkStatus::Unreachable { reason, .. } = status(&mut dealer) else { panic!("it has no address") };
        assert!(reason.contains("cannot resolve the name in tcp://no-such-host.invalid:5555"), "{reason}");
    }
}

#[test]
fn listener_that_says_nothing_is_told_within_the_handshake_time() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let endpoint = format!("tcp://{}", listener.local_addr().unwrap());
    let context = Context::new();
    let started = Instant::now();
    let expected = KeyPair::generate();
    let mut encrypted = dealer(&context, &endpoint, Some(expected.public));
    let mut plain = dealer(&context, &endpoint, None);
    let silent = RefusedReason::Silent { within: HANDSHAKE };
    assert_eq!(status(&mut encrypted), refused(&endpoint, Some(&expected), silent));
    assert_eq!(status(&mut plain), refused(&endpoint, None, silent));
    assert!(started.elapsed() >= HANDSHAKE);
    assert!(started.elapsed() < HANDSHAKE * 3, "{:?}", started.elapsed());
    assert_eq!(silent.to_string(), "it accepted the connection and did not answer within 2 s");
}

#[test]
fn listener_that_closes_in_the_middle_of_the_handshake_has_answered() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let endpoint = format!("tcp://{}", listener.local_addr().unwrap());
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            // As a broker greets that encrypts; what it is told then ends it.
            let mut greeting = [0; 64];
            greeting[0] = 0xff;
            (greeting[9], greeting[10]) = (0x7f, 3);
            greeting[12..17].copy_from_slice(b"CURVE");
            greeting[32] = 1;
            stream.write_all(&greeting).ok();
            let mut heard = [0; 64 + 202];
            stream.read_exact(&mut heard).ok();
        }
    });
    let context = Context::new();
    let expected = KeyPair::generate();
    let started = Instant::now();
    let mut encrypted = dealer(&context, &endpoint, Some(expected.public));
    assert_eq!(status(&mut encrypted), refused(&endpoint, Some(&expected), RefusedReason::WrongKey));
    assert!(started.elapsed() < HANDSHAKE, "{:?}", started.elapsed());
}

#[test]
fn listener_that_closes_at_once_has_not_refused_a_key() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let endpoint = format!("tcp://{}", listener.local_addr().unwrap());
    std::thread::spawn(move || listener.incoming().flatten().for_each(drop));
    let context = Context::new();
    let mut plain = dealer(&context, &endpoint, None);
    assert_eq!(status(&mut plain), refused(&endpoint, None, RefusedReason::NoHandshake));
}

#[test]
fn listener_of_another_protocol_is_told() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let endpoint = format!("tcp://{}", listener.local_addr().unwrap());
    std::thread::spawn(move || {
        let mut kept = Vec::new();
        for mut stream in listener.incoming().flatten() {
            // Never closed: it is on the dealer to notice.
            stream.write_all(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n").ok();
            kept.push(stream);
        }
    });
    let context = Context::new();
    let expected = KeyPair::generate();
    let mut encrypted = dealer(&context, &endpoint, Some(expected.public));
    assert_eq!(status(&mut encrypted), refused(&endpoint, Some(&expected), RefusedReason::OtherProtocol));
    let mut plain = dealer(&context, &endpoint, None);
    assert_eq!(status(&mut plain), refused(&endpoint, None, RefusedReason::OtherProtocol));
}

#[test]
fn broker_on_either_family_is_reached_by_its_name() {
    let families: Vec<String> =
        ("localhost", 0).to_socket_addrs().unwrap().map(|address| format!("tcp://{address}")).collect();
    assert!(!families.is_empty());
    for endpoint in families {
        let context = Context::new();
        let router = router(&context, &endpoint, None, None);
        let port = router.endpoint().rsplit_once(':').unwrap().1.to_owned();
        let mut dealer = dealer(&context, &format!("tcp://localhost:{port}"), None);
        assert_eq!(status(&mut dealer), LinkStatus::Connected, "{endpoint}");
    }
}

#[test]
fn port_in_use_and_foreign_address_are_told_with_the_endpoint() {
    let context = Context::new();
    let first = router(&context, "tcp://127.0.0.1:0", None, None);
    let endpoint = first.endpoint();
    let error = Router::bind(&context, &endpoint, RouterOptions::default()).unwrap_err();
    assert_eq!(error, LinkError::AddressInUse { endpoint: endpoint.clone() });
    assert!(error.to_string().contains(&endpoint));
    let foreign = "tcp://192.0.2.1:5555".to_owned();
    let error = Router::bind(&context, &foreign, RouterOptions::default()).unwrap_err();
    assert_eq!(error, LinkError::AddressNotAvailable { endpoint: foreign });
    let error = Router::bind(&context, "tcp://localhost", RouterOptions::default()).unwrap_err();
    assert!(matches!(error, LinkError::MalformedEndpoint { .. }));
    let error = Dealer::connect(&context, &endpoint, b"", DealerOptions::default()).unwrap_err();
    assert_eq!(error, LinkError::RoutingId { length: 0 });
    let error = Dealer::connect(&context, &endpoint, &[b'x'; 256], DealerOptions::default()).unwrap_err();
    assert_eq!(error, LinkError::RoutingId { length: 256 });
}

/// Admits nobody until told to, and remembers who asked.
#[derive(Debug, Default)]
struct Door {
    open: AtomicBool,
    seen: Mutex<Vec<PeerHello>>,
    denied: Mutex<Vec<String>>,
}

impl Admission for Door {
    fn admit(&self, hello: &PeerHello) -> Verdict {
        self.seen.lock().unwrap().push(hello.clone());
        if self.open.load(Ordering::Acquire) {
            Verdict::Allow { user_id: "somebody".to_owned() }
        } else {
            Verdict::Deny { reason: "closed".to_owned() }
        }
    }
    fn denied(&self, _hello: &PeerHello, reason: &str) {
        self.denied.lock().unwrap().push(reason.to_owned());
    }
}

#[test]
fn peer_that_was_denied_comes_in_once_it_is_admitted() {
    for keys in [None, Some(KeyPair::generate())] {
        let context = Context::new();
        let door = Arc::new(Door::default());
        let router = router(&context, "tcp://127.0.0.1:0", keys.clone(), Some(door.clone()));
        let own = KeyPair::generate();
        let dealer_keys = keys.as_ref().map(|keys| DealerKeys { own: own.clone(), broker: keys.public });
        let options = DealerOptions { link: link(), keys: dealer_keys };
        let mut dealer = Dealer::connect(&context, &router.endpoint(), b"worker", options).unwrap();
        assert_eq!(status(&mut dealer), refused(&router.endpoint(), keys.as_ref(), RefusedReason::NotAdmitted));
        assert_eq!(door.denied.lock().unwrap()[0], "closed");
        door.open.store(true, Ordering::Release);
        while status(&mut dealer) != LinkStatus::Connected {}
        let mut router = router.back();
        assert!(router.denials() >= 1);
        dealer.try_send(&[Bytes::from("in")]).unwrap();
        dealer.wait(Some(Duration::ZERO), false).unwrap();
        let until = Instant::now() + DEADLINE;
        let message = loop {
            if let Some(message) = router.try_receive().unwrap() {
                break message;
            }
            router.wait(Some(until.checked_duration_since(Instant::now()).unwrap())).unwrap();
        };
        assert_eq!(message.frames, [Bytes::from("in")]);
        let expected = PeerHello {
            address: "127.0.0.1".to_owned(),
            public_key: keys.as_ref().map(|_| own.public),
            mechanism: if keys.is_some() { Mechanism::Curve } else { Mechanism::Plain },
        };
        assert_eq!(door.seen.lock().unwrap()[0], expected);
    }
}

/// Panics on the first peer and admits the others.
#[derive(Debug, Default)]
struct Fragile(AtomicBool);

impl Admission for Fragile {
    fn admit(&self, _hello: &PeerHello) -> Verdict {
        assert!(self.0.swap(true, Ordering::AcqRel), "the first peer breaks the rules");
        Verdict::Allow { user_id: String::new() }
    }
}

#[test]
fn panic_in_the_rules_denies_one_peer_and_no_other() {
    let context = Context::new();
    let router = router(&context, "tcp://127.0.0.1:0", None, Some(Arc::new(Fragile::default())));
    let mut dealer = dealer(&context, &router.endpoint(), None);
    // Printing the panic may take longer than a handshake on a busy machine.
    assert!(matches!(status(&mut dealer), LinkStatus::Refused { .. }));
    while status(&mut dealer) != LinkStatus::Connected {}
    assert_eq!(router.back().denials(), 1);
}

#[test]
fn allowlist_works_with_and_without_encryption_and_logs_denials() {
    for keys in [None, Some(KeyPair::generate())] {
        let context = Context::new();
        let log = Arc::new(Mutex::new(Vec::new()));
        let its_log = log.clone();
        let list = AddressAllowlist::new(["192.0.2.0/24"])
            .unwrap()
            .on_denied(move |hello, reason| its_log.lock().unwrap().push(format!("{}: {reason}", hello.address)));
        let router = router(&context, "tcp://*:0", keys.clone(), Some(Arc::new(list)));
        let mut dealer = dealer(&context, &router.endpoint(), keys.as_ref().map(|keys| keys.public));
        assert_eq!(status(&mut dealer), refused(&router.endpoint(), keys.as_ref(), RefusedReason::NotAdmitted));
        assert!(log.lock().unwrap()[0].contains("is not on the allowlist"));

        let list = AddressAllowlist::new(["127.0.0.0/8", "::1"]).unwrap();
        let router = self::router(&context, "tcp://*:0", keys.clone(), Some(Arc::new(list)));
        let options = DealerOptions {
            link: link(),
            keys: keys.as_ref().map(|keys| DealerKeys { own: KeyPair::generate(), broker: keys.public }),
        };
        let mut dealer = Dealer::connect(&context, &router.endpoint(), b"worker", options).unwrap();
        assert_eq!(status(&mut dealer), LinkStatus::Connected);
    }
}

/// How many connections this process has or had at a port, as long as somebody holds their descriptors.
#[cfg(target_os = "linux")]
fn sockets_at(port: u16) -> usize {
    let table = std::fs::read_to_string("/proc/net/tcp").unwrap();
    let port = format!(":{port:04X}");
    // Listening, or closed and only remembered by the system.
    let counts = |state: &str| !matches!(state, "0A" | "06" | "04" | "05");
    table
        .lines()
        .skip(1)
        .map(|row| row.split_whitespace().collect::<Vec<_>>())
        .filter(|fields| fields[1].ends_with(&port) && counts(fields[3]))
        .count()
}

#[cfg(target_os = "linux")]
#[test]
fn peers_that_take_the_names_of_others_end_their_connections_and_leave_nothing() {
    let context = Context::new();
    let mut router = router(&context, "tcp://127.0.0.1:0", None, None).back();
    let endpoint = router.endpoint().to_owned();
    let port: u16 = endpoint.rsplit_once(':').unwrap().1.parse().unwrap();
    let connect = |router: &mut Router| {
        let options = DealerOptions { link: link(), keys: None };
        let mut dealer = Dealer::connect(&context, &endpoint, b"worker", options).unwrap();
        let until = Instant::now() + DEADLINE;
        while dealer.next_status() != Some(LinkStatus::Connected) {
            assert!(Instant::now() < until);
            router.wait(Some(Duration::from_millis(1))).unwrap();
            dealer.wait(Some(Duration::from_millis(1)), false).unwrap();
        }
        dealer
    };
    let say = |dealer: &mut Dealer, word: &'static str| {
        dealer.try_send(&[Bytes::from(word)]).ok();
        dealer.wait(Some(Duration::ZERO), false).unwrap();
    };
    let hear = |router: &mut Router, word: &'static str| {
        let until = Instant::now() + DEADLINE;
        loop {
            match router.try_receive().unwrap() {
                Some(received) if received.frames == [Bytes::from(word)] => return,
                Some(_) => {}
                None => drop(router.wait(Some(until.checked_duration_since(Instant::now()).unwrap())).unwrap()),
            }
        }
    };
    let lose = |router: &mut Router, dealer: &mut Dealer| {
        let until = Instant::now() + DEADLINE;
        while dealer.next_status() != Some(LinkStatus::Disconnected) {
            assert!(Instant::now() < until, "it is still connected");
            router.try_receive().unwrap();
            router.wait(Some(Duration::ZERO)).unwrap();
            dealer.wait(Some(Duration::from_millis(10)), false).unwrap();
            assert_eq!(dealer.try_receive().unwrap(), None);
        }
    };
    let none_are_left = |router: &mut Router| {
        let until = Instant::now() + DEADLINE;
        while sockets_at(port) > 0 {
            assert!(Instant::now() < until, "{} connections are left", sockets_at(port));
            router.wait(Some(Duration::from_millis(1))).unwrap();
            router.try_receive().unwrap();
        }
    };
    for round in 0..20 {
        // One that comes back gets the number of its descriptor again.
        let mut first = connect(&mut router);
        say(&mut first, "once");
        hear(&mut router, "once");
        Box::new(first).close(Duration::ZERO);
        none_are_left(&mut router);
        let mut first = connect(&mut router);
        say(&mut first, "first");
        hear(&mut router, "first");
        let mut second = connect(&mut router);
        say(&mut second, "second");
        if round % 2 == 0 {
            // What the first says now goes nowhere.
            say(&mut first, "more");
        }
        hear(&mut router, "second");
        lose(&mut router, &mut first);
        Box::new(first).close(Duration::ZERO);
        router.try_send(b"worker", &[Bytes::from("x")]).unwrap();
        router.wait(Some(Duration::ZERO)).unwrap();
        let until = Instant::now() + DEADLINE;
        while second.try_receive().unwrap().is_none() {
            second.wait(Some(until.checked_duration_since(Instant::now()).unwrap()), false).unwrap();
        }
        Box::new(second).close(Duration::ZERO);
        none_are_left(&mut router);
    }
}

/// For each end of the connections to a port, the seconds until the kernel probes whether the other end lives. The timer of an
/// end that has none is another.
#[cfg(target_os = "linux")]
fn seconds_until_probed(port: u16) -> Vec<f64> {
    let table = std::fs::read_to_string("/proc/net/tcp").unwrap();
    let port = format!(":{port:04X}");
    let rows = table.lines().skip(1).map(|row| row.split_whitespace().collect::<Vec<_>>());
    rows.filter(|fields| fields[3] == "01" && (fields[1].ends_with(&port) || fields[2].ends_with(&port)))
        .filter_map(|fields| fields[5].strip_prefix("02:").map(|time| u32::from_str_radix(time, 16).unwrap()))
        .map(|hundredths| f64::from(hundredths) / 100.0)
        .collect()
}

#[cfg(target_os = "linux")]
#[test]
fn the_system_probes_both_ends_of_an_idle_connection() {
    let context = Context::new();
    let router = router(&context, "tcp://127.0.0.1:0", None, None);
    let port: u16 = router.endpoint().rsplit_once(':').unwrap().1.parse().unwrap();
    let options = DealerOptions { link: link(), keys: None };
    let mut dealer = Dealer::connect(&context, &router.endpoint(), b"worker", options).unwrap();
    assert_eq!(status(&mut dealer), LinkStatus::Connected);
    let until = Instant::now() + DEADLINE;
    let probed = loop {
        let probed = seconds_until_probed(port);
        if probed.len() == 2 {
            break probed;
        }
        assert!(Instant::now() < until, "{probed:?}");
        dealer.wait(Some(Duration::from_millis(20)), false).unwrap();
    };
    assert!(probed.iter().all(|seconds| (1.0..=15.0).contains(seconds)), "{probed:?}");
}
