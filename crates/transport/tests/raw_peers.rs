//! Peers that speak ZMTP 3.1 by hand, to say what no library would: the router lives and serves the others.
#![allow(missing_docs)]

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use bytes::Bytes;
use norfab_transport::{
    Context, Dealer, DealerLink, DealerOptions, LinkOptions, LinkStatus, Router, RouterLink, RouterOptions, SendError,
};

const DEADLINE: Duration = Duration::from_secs(20);
/// Bytes that it keeps for one peer.
const QUEUE_BYTES: usize = 4 << 20;
/// A peer that cannot send anything for so long has filled all queues on the way.
const STUCK: Duration = Duration::from_millis(300);

/// PING with no time to live and no context.
const PING: &[u8] = b"\x04\x07\x04PING\0\0";

/// A connection in the clear to a router, as that of a DEALER.
struct Peer {
    stream: TcpStream,
}

impl Peer {
    /// Shakes hands, with a router that has its turns meanwhile.
    fn connect(router: &mut Router, name: &[u8]) -> Self {
        let endpoint = router.endpoint();
        with_turns(router, || Self::connect_to(&endpoint, name))
    }

    fn connect_to(endpoint: &str, name: &[u8]) -> Self {
        let mut stream = TcpStream::connect(endpoint.trim_start_matches("tcp://")).unwrap();
        stream.set_read_timeout(Some(DEADLINE)).unwrap();
        stream.set_nodelay(true).unwrap();
        let mut greeting = b"\xff\0\0\0\0\0\0\0\x01\x7f\x03\x01NULL".to_vec();
        greeting.resize(64, 0);
        stream.write_all(&greeting).unwrap();
        stream.read_exact(&mut greeting).unwrap();
        let mut peer = Self { stream };
        let mut ready = b"\x05READY\x0bSocket-Type\0\0\0\x06DEALER\x08Identity\0\0\0".to_vec();
        ready.push(u8::try_from(name.len()).unwrap());
        ready.extend_from_slice(name);
        peer.command(&ready);
        assert!(peer.reads_command().starts_with(b"\x05READY"));
        peer
    }

    fn command(&mut self, body: &[u8]) {
        let length = u8::try_from(body.len()).unwrap();
        self.stream.write_all(&[&[4, length], body].concat()).unwrap();
    }

    fn say(&mut self, word: &str) {
        let length = u8::try_from(word.len()).unwrap();
        self.stream.write_all(&[&[0, length], word.as_bytes()].concat()).unwrap();
    }

    fn reads_command(&mut self) -> Vec<u8> {
        let mut head = [0; 2];
        self.stream.read_exact(&mut head).unwrap();
        assert_eq!(head[0], 4, "a short command");
        let mut body = vec![0; head[1].into()];
        self.stream.read_exact(&mut body).unwrap();
        body
    }

    /// Sends the same over and over until nothing more is taken.
    fn flood(&mut self, bytes: &[u8]) {
        self.stream.set_write_timeout(Some(STUCK)).unwrap();
        let until = Instant::now() + DEADLINE;
        let error = loop {
            assert!(Instant::now() < until, "the router takes everything");
            if let Err(error) = self.stream.write_all(bytes) {
                break error;
            }
        };
        assert!(matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut), "{error}");
    }

    /// Ends the connection at once, and throws away what is on its way.
    fn reset(self) {
        rustix::net::sockopt::set_socket_linger(&self.stream, Some(Duration::ZERO)).unwrap();
    }

    /// Whether the router ends the connection without another word.
    fn is_ended(&mut self) -> bool {
        let mut answer = [0; 64];
        match self.stream.read(&mut answer) {
            Ok(0) => true,
            Ok(count) => panic!("an answer: {:?}", &answer[..count]),
            Err(error) => error.kind() == ErrorKind::ConnectionReset,
        }
    }
}

/// Does something while the router has its turns and forgets what it hears.
fn with_turns<T: Send>(router: &mut Router, what: impl FnOnce() -> T + Send) -> T {
    std::thread::scope(|scope| {
        let waker = router.waker();
        let done = scope.spawn(move || {
            let done = what();
            waker.wake();
            done
        });
        while !done.is_finished() {
            while router.try_receive().unwrap().is_some() {}
            router.wait(Some(Duration::from_millis(10))).unwrap();
        }
        done.join().unwrap()
    })
}

fn router(context: &Context) -> Router {
    let link = LinkOptions { send_queue_bytes: QUEUE_BYTES, ..LinkOptions::default() };
    Router::bind(context, "tcp://127.0.0.1:0", RouterOptions { link, ..RouterOptions::default() }).unwrap()
}

/// The inode of the router's end of a connection.
#[cfg(target_os = "linux")]
fn inode_of_other_end(peer: &Peer) -> String {
    let table = std::fs::read_to_string("/proc/net/tcp").unwrap();
    let port = |address: std::io::Result<std::net::SocketAddr>| format!(":{:04X}", address.unwrap().port());
    let (own, router) = (port(peer.stream.local_addr()), port(peer.stream.peer_addr()));
    let rows = table.lines().map(|row| row.split_whitespace().collect::<Vec<_>>());
    let row = rows.into_iter().find(|fields| fields[1].ends_with(&router) && fields[2].ends_with(&own));
    row.expect("the router's end")[9].to_owned()
}

/// Whether this process has a descriptor of a socket.
#[cfg(target_os = "linux")]
fn is_open(inode: &str) -> bool {
    let name = format!("socket:[{inode}]");
    let descriptors = std::fs::read_dir("/proc/self/fd").unwrap().flatten();
    descriptors.into_iter().any(|entry| std::fs::read_link(entry.path()).is_ok_and(|link| link.as_os_str() == &*name))
}

/// Reads until somebody has said a word; how many messages came before.
fn hear(router: &mut Router, word: &str) -> usize {
    let until = Instant::now() + DEADLINE;
    let mut others = 0;
    loop {
        match router.try_receive().unwrap() {
            Some(received) if received.frames == [Bytes::from(word.to_owned())] => return others,
            Some(_) => others += 1,
            None => {
                let left = until.checked_duration_since(Instant::now()).expect("the word in time");
                router.wait(Some(left)).unwrap();
            }
        }
    }
}

#[test]
fn a_peer_that_breaks_off_behind_a_full_queue_of_messages_and_pings_ends_nothing() {
    let context = Context::new();
    let mut router = router(&context);
    let mut flood = b"\0\x01a".repeat(9);
    flood.extend_from_slice(PING);
    let flood = flood.repeat(1_000);
    for _ in 0..3 {
        let mut attacker = Peer::connect(&mut router, b"attacker");
        attacker.flood(&flood);
        attacker.reset();
        let mut other = Peer::connect(&mut router, b"other");
        other.say("here");
        hear(&mut router, "here");
    }
}

#[test]
fn a_command_that_is_too_short_ends_its_connection_and_is_not_answered() {
    let context = Context::new();
    let mut router = router(&context);
    let mut other = Peer::connect(&mut router, b"other");
    for body in [&b""[..], b"\x04PIN", b"\x04PING", b"\x04PING\0"] {
        let mut short = Peer::connect(&mut router, b"short");
        short.command(body);
        assert!(with_turns(&mut router, || short.is_ended()), "{body:?}");
        other.say("here");
        hear(&mut router, "here");
    }
}

#[test]
fn a_ping_is_answered_with_its_context() {
    let context = Context::new();
    let mut router = router(&context);
    let mut peer = Peer::connect(&mut router, b"peer");
    peer.command(b"\x04PING\0\0");
    assert_eq!(with_turns(&mut router, || peer.reads_command()), b"\x04PONG");
    peer.command(b"\x04PING\0\0where");
    assert_eq!(with_turns(&mut router, || peer.reads_command()), b"\x04PONGwhere");
    peer.say("here");
    hear(&mut router, "here");
}

#[test]
fn a_peer_that_claims_a_name_that_is_made_for_others_ends_nothing() {
    let context = Context::new();
    let mut router = router(&context);
    let mut name_of = |name: &[u8]| {
        let mut peer = Peer::connect(&mut router, name);
        peer.say("here");
        let until = Instant::now() + DEADLINE;
        loop {
            match router.try_receive().unwrap() {
                Some(received) => return (peer, received.peer),
                None => {
                    let left = until.checked_duration_since(Instant::now()).expect("its word in time");
                    router.wait(Some(left)).unwrap();
                }
            }
        }
    };
    let (_first, made) = name_of(b"");
    let number = u32::from_be_bytes(made[1..].try_into().unwrap());
    let next = |count: u32| [&[0][..], &number.wrapping_add(count).to_be_bytes()].concat();
    // It is given the name that it claims, but as any other, and the next one has the next.
    let (_claimer, given) = name_of(&next(1));
    assert_eq!(given, next(1));
    let (_next, made) = name_of(b"");
    assert_eq!(made, next(2));
    // One that is made for another is not taken from it.
    let (_thief, given) = name_of(&next(2));
    assert_eq!(given, next(3));
    let (_named, name) = name_of(b"name");
    assert_eq!(name, "name");
}

#[cfg(target_os = "linux")]
#[test]
fn a_peer_that_reads_nothing_and_has_lost_its_name_is_forgotten() {
    let context = Context::new();
    let mut router = router(&context);
    let mut older = Peer::connect(&mut router, b"twin");
    older.say("older");
    hear(&mut router, "older");
    let inode = inode_of_other_end(&older);
    assert!(is_open(&inode));
    // More waits for it than the system holds, so that the end of what is for it never comes.
    let frame = Bytes::from(vec![0; 1 << 20]);
    let mut full_since = None;
    let until = Instant::now() + DEADLINE;
    while full_since.is_none_or(|since: Instant| since.elapsed() < STUCK) {
        assert!(Instant::now() < until, "the router's queue has no end");
        match router.try_send(b"twin", std::slice::from_ref(&frame)) {
            Ok(()) => full_since = None,
            Err(error) => {
                assert_eq!(error, SendError::Full);
                full_since.get_or_insert_with(Instant::now);
                router.wait(Some(Duration::from_millis(10))).unwrap();
            }
        }
    }
    let mut newer = Peer::connect(&mut router, b"twin");
    newer.say("newer");
    hear(&mut router, "newer");
    assert!(!is_open(&inode), "its descriptor is kept");
    newer.say("here");
    hear(&mut router, "here");
}

#[test]
fn a_peer_that_floods_does_not_keep_others_waiting() {
    let context = Context::new();
    let mut router = router(&context);
    let mut other = Peer::connect(&mut router, b"other");
    let mut flooding = Peer::connect(&mut router, b"flooding");
    flooding.flood(&b"\0\x01a".repeat(10_000));
    other.say("here");
    let before = hear(&mut router, "here");
    assert!(before <= 2_000, "{before} messages of the flood came before");
    other.say("again");
    let before = hear(&mut router, "again");
    assert!(before <= 2_000, "{before} messages of the flood came before");
}

#[test]
fn silent_peers_keep_nobody_out() {
    const SILENT: usize = 8;
    let context = Context::new();
    let link = LinkOptions { handshakes: SILENT, handshake_timeout: 10 * DEADLINE, ..LinkOptions::default() };
    let options = RouterOptions { link, ..RouterOptions::default() };
    let mut router = Router::bind(&context, "tcp://127.0.0.1:0", options).unwrap();
    let endpoint = router.endpoint();
    let silent: Vec<TcpStream> =
        (0..SILENT).map(|_| TcpStream::connect(endpoint.trim_start_matches("tcp://")).unwrap()).collect();
    let mut peer = Peer::connect(&mut router, b"peer");
    peer.say("here");
    hear(&mut router, "here");
    drop(silent);
}

/// A listener that shakes hands by hand, as the ROUTER of a broker.
fn shakes_hands_as_router(listener: &std::net::TcpListener) -> Peer {
    let (mut stream, _) = listener.accept().unwrap();
    stream.set_read_timeout(Some(DEADLINE)).unwrap();
    let mut greeting = b"\xff\0\0\0\0\0\0\0\x01\x7f\x03\x01NULL".to_vec();
    greeting.resize(64, 0);
    stream.write_all(&greeting).unwrap();
    stream.read_exact(&mut greeting).unwrap();
    let mut peer = Peer { stream };
    peer.command(b"\x05READY\x0bSocket-Type\0\0\0\x06ROUTER");
    assert!(peer.reads_command().starts_with(b"\x05READY"));
    peer
}

#[test]
fn last_words_of_a_broker_are_heard_by_one_who_cannot_answer_any_more() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let endpoint = format!("tcp://{}", listener.local_addr().unwrap());
    let context = Context::new();
    let mut dealer = Dealer::connect(&context, &endpoint, b"worker", DealerOptions::default()).unwrap();
    let broker = std::thread::spawn(move || shakes_hands_as_router(&listener));
    let until = Instant::now() + DEADLINE;
    while dealer.next_status() != Some(LinkStatus::Connected) {
        assert!(Instant::now() < until);
        dealer.wait(Some(Duration::from_millis(10)), false).unwrap();
    }
    let mut broker = broker.join().unwrap();
    broker.say("last words");
    // What is thrown away on its way was never said to anybody.
    while !dealer.wait(Some(Duration::from_millis(10)), false).unwrap().readable {
        assert!(Instant::now() < until);
    }
    broker.reset();
    let mut heard = Vec::new();
    loop {
        // Before anything is read, so that the failure to speak is noticed first.
        dealer.try_send(&[Bytes::from("an answer")]).ok();
        dealer.wait(Some(Duration::from_millis(10)), false).unwrap();
        while let Some(received) = dealer.try_receive().unwrap() {
            heard.extend(received.frames);
        }
        if dealer.next_status() == Some(LinkStatus::Disconnected) {
            break;
        }
        assert!(Instant::now() < until);
    }
    assert_eq!(heard, ["last words"]);
}
