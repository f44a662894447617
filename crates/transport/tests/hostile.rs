//! Peers that mean harm, or come all at once: the router lives and serves the others.
#![allow(missing_docs)]

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use norfab_transport::{
    AllowAny, Context, Dealer, DealerKeys, DealerLink, DealerOptions, KeyPair, LinkOptions, LinkStatus, Router,
    RouterLink, RouterOptions, Waker, raise_descriptor_limit,
};

const DEADLINE: Duration = Duration::from_secs(60);
/// Connects at once.
const CROWD: u64 = 2_000;
/// Descriptors of one dealer and its connection while it connects, on both sides.
const DESCRIPTORS_EACH: u64 = 6;

/// A router on its own thread that sends everything back.
struct Echo {
    endpoint: String,
    keys: KeyPair,
    waker: Waker,
    stop: Arc<AtomicBool>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Echo {
    fn start(link: LinkOptions) -> Self {
        let keys = KeyPair::generate();
        let options = RouterOptions { link, keys: Some(keys.clone()), admission: Some(Arc::new(AllowAny)) };
        let mut router = Router::bind(&Context::new(), "tcp://127.0.0.1:0", options).unwrap();
        let stop = Arc::new(AtomicBool::new(false));
        let (endpoint, waker, stopped) = (router.endpoint(), router.waker(), stop.clone());
        let thread = std::thread::spawn(move || {
            while !stopped.load(Ordering::Acquire) {
                while let Some(message) = router.try_receive().unwrap() {
                    router.try_send(&message.peer, &message.frames).ok();
                }
                router.wait(None).unwrap();
            }
        });
        Self { endpoint, keys, waker, stop, thread: Some(thread) }
    }

    fn address(&self) -> &str {
        self.endpoint.trim_start_matches("tcp://")
    }

    fn dealer(&self, context: &Context, name: &str) -> Dealer {
        let keys = Some(DealerKeys { own: KeyPair::generate(), broker: self.keys.public });
        let options = DealerOptions { keys, ..DealerOptions::default() };
        Dealer::connect(context, &self.endpoint, name.as_bytes(), options).unwrap()
    }
}

impl Drop for Echo {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        self.waker.wake();
        let result = self.thread.take().unwrap().join();
        assert!(result.is_ok() || std::thread::panicking(), "the router's owner died");
    }
}

fn connect(dealer: &mut Dealer) {
    let until = Instant::now() + DEADLINE;
    while dealer.next_status() != Some(LinkStatus::Connected) {
        dealer.wait(Some(until.checked_duration_since(Instant::now()).expect("in time")), false).unwrap();
    }
}

fn serves(dealer: &mut Dealer) {
    let until = Instant::now() + DEADLINE;
    let message = [Bytes::from("are you"), Bytes::from("there?")];
    dealer.try_send(&message).unwrap();
    loop {
        if let Some(answer) = dealer.try_receive().unwrap() {
            assert_eq!(answer.frames, message);
            return;
        }
        assert_eq!(dealer.next_status(), None);
        dealer.wait(Some(until.checked_duration_since(Instant::now()).expect("in time")), false).unwrap();
    }
}

/// A greeting of ZMTP 3.1 with a mechanism.
fn greeting(mechanism: &[u8]) -> Vec<u8> {
    let mut greeting = vec![0xff, 0, 0, 0, 0, 0, 0, 0, 1, 0x7f, 3, 1];
    greeting.extend_from_slice(mechanism);
    greeting.resize(64, 0);
    greeting
}

#[test]
fn garbage_and_plaintext_at_an_encrypting_port_harm_nobody() {
    let echo = Echo::start(LinkOptions::default());
    let context = Context::new();
    let mut good = echo.dealer(&context, "good");
    connect(&mut good);

    let mut random = fastrand::Rng::with_seed(7);
    let mut attacks: Vec<Vec<u8>> = vec![
        Vec::new(),
        vec![0xff],
        vec![0xff; 10_000],
        vec![0; 10_000],
        b"GET / HTTP/1.1\r\nHost: broker\r\n\r\n".to_vec(),
        greeting(b"NULL"),
        greeting(b"PLAIN"),
        greeting(b"CURVE"),
        greeting(b"CURVE")[..40].to_vec(),
        // A command that claims to be longer than memory.
        [greeting(b"CURVE"), vec![6, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff]].concat(),
        // A ready message of the plain mechanism, and a message, in the clear.
        [greeting(b"NULL"), b"\x04\x19\x05READY\x0bSocket-Type\0\0\0\x06DEALER\0\x05hello".to_vec()].concat(),
        [greeting(b"CURVE"), b"\0\x05hello".to_vec()].concat(),
        [greeting(b"CURVE"), [&b"\x04\xc8\x05HELLO"[..], &[1; 194]].concat()].concat(),
        [greeting(b"CURVE"), [&b"\x04\xc8\x08INITIATE"[..], &[1; 191]].concat()].concat(),
        [greeting(b"CURVE"), b"\x04\x07\x07MESSAGE".to_vec()].concat(),
        [greeting(b"CURVE"), b"\x04\x00".to_vec()].concat(),
    ];
    for _ in 0..100 {
        let mut bytes = greeting(b"CURVE");
        let kept = random.usize(..bytes.len());
        bytes.truncate(kept);
        let count = random.usize(..2_000);
        bytes.extend(std::iter::repeat_with(|| random.u8(..)).take(count));
        attacks.push(bytes);
    }
    let mut open = Vec::new();
    for (number, attack) in attacks.iter().enumerate() {
        let mut stream = TcpStream::connect(echo.address()).unwrap();
        // The router may close it before all was written.
        stream.write_all(attack).ok();
        // Some go, some stay and say nothing more.
        if number % 2 == 0 {
            open.push(stream);
        }
        if number % 10 == 0 {
            serves(&mut good);
        }
    }
    // A plaintext peer gets no answer but the greeting.
    let mut plain = TcpStream::connect(echo.address()).unwrap();
    plain.set_read_timeout(Some(DEADLINE)).unwrap();
    plain.write_all(&greeting(b"NULL")).unwrap();
    let mut answer = Vec::new();
    let closed = plain.read_to_end(&mut answer);
    assert!(closed.is_ok() || closed.is_err_and(|error| error.kind() == ErrorKind::ConnectionReset));
    assert!(answer.len() <= 64, "{} bytes for a plaintext peer", answer.len());

    serves(&mut good);
    let mut late = echo.dealer(&context, "late");
    connect(&mut late);
    serves(&mut late);
}

#[test]
fn two_thousand_connects_at_once_are_all_served() {
    let allowed = raise_descriptor_limit().saturating_sub(200) / DESCRIPTORS_EACH;
    let crowd = CROWD.min(allowed);
    let echo = Echo::start(LinkOptions::default());
    let context = Context::new();
    let mut first = echo.dealer(&context, "first");
    connect(&mut first);
    let started = Instant::now();
    let mut dealers: Vec<Dealer> =
        (0..crowd).map(|number| echo.dealer(&context, &format!("worker-{number}"))).collect();
    serves(&mut first);
    // All of them take their steps while the first of those that are left is waited for, as their owners would.
    let mut left: Vec<&mut Dealer> = dealers.iter_mut().collect();
    while let Some(next) = left.first_mut() {
        assert!(started.elapsed() < DEADLINE, "{} of {crowd} are not connected", left.len());
        next.wait(Some(Duration::from_millis(50)), false).unwrap();
        left.retain_mut(|dealer| {
            dealer.wait(Some(Duration::ZERO), false).unwrap();
            dealer.next_status() != Some(LinkStatus::Connected)
        });
    }
    println!("{crowd} encrypted connections in {:?}", started.elapsed());
    for dealer in &mut dealers {
        dealer.try_send(&[Bytes::from("hello")]).unwrap();
    }
    let until = Instant::now() + DEADLINE;
    for dealer in &mut dealers {
        while dealer.try_receive().unwrap().is_none() {
            dealer.wait(Some(until.checked_duration_since(Instant::now()).expect("in time")), false).unwrap();
        }
    }
    serves(&mut first);
}

#[test]
fn frame_beyond_the_bound_costs_its_sender_the_connection_and_nobody_else() {
    let echo = Echo::start(LinkOptions { frame_bytes_max: 1_000, ..LinkOptions::default() });
    let context = Context::new();
    let mut good = echo.dealer(&context, "good");
    let mut greedy = echo.dealer(&context, "greedy");
    connect(&mut good);
    connect(&mut greedy);
    greedy.try_send(&[Bytes::from(vec![0; 100_000])]).unwrap();
    let until = Instant::now() + DEADLINE;
    while greedy.next_status() != Some(LinkStatus::Disconnected) {
        assert_eq!(greedy.try_receive().unwrap(), None);
        greedy.wait(Some(until.checked_duration_since(Instant::now()).expect("in time")), false).unwrap();
    }
    serves(&mut good);
    connect(&mut greedy);
    serves(&mut greedy);
}
