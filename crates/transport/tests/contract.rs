//! What both kinds of links promise, run against every implementation: in memory, over TCP, encrypted, and over IPv6.
#![allow(missing_docs)]

use std::time::{Duration, Instant};

use bytes::Bytes;
use norfab_transport::memory::MemoryNetwork;
use norfab_transport::{
    Context, Dealer, DealerKeys, DealerLink, DealerOptions, KeyPair, LinkOptions, LinkStatus, Received, Router,
    RouterLink, RouterOptions, SendError,
};

/// No test waits longer than this for what must happen.
const DEADLINE: Duration = Duration::from_secs(20);
/// The capacity of queues where a test wants to fill them.
const SMALL_QUEUE: u32 = 10;

/// Makes links of one kind.
trait World {
    fn router(&self) -> Box<dyn RouterLink>;
    fn router_at(&self, endpoint: &str) -> Box<dyn RouterLink>;
    fn dealer(&self, endpoint: &str, name: &str) -> Box<dyn DealerLink>;
}

struct Memory(MemoryNetwork);

impl World for Memory {
    fn router(&self) -> Box<dyn RouterLink> {
        self.router_at("memory")
    }
    fn router_at(&self, endpoint: &str) -> Box<dyn RouterLink> {
        Box::new(self.0.router(endpoint).unwrap())
    }
    fn dealer(&self, endpoint: &str, name: &str) -> Box<dyn DealerLink> {
        Box::new(self.0.dealer(endpoint, name.as_bytes(), SMALL_QUEUE as usize).unwrap())
    }
}

struct Tcp {
    context: Context,
    endpoint: &'static str,
    keys: Option<KeyPair>,
}

impl Tcp {
    fn link() -> LinkOptions {
        LinkOptions { send_queue: SMALL_QUEUE, receive_queue: SMALL_QUEUE, ..LinkOptions::default() }
    }
}

impl World for Tcp {
    fn router(&self) -> Box<dyn RouterLink> {
        self.router_at(self.endpoint)
    }
    fn router_at(&self, endpoint: &str) -> Box<dyn RouterLink> {
        let options = RouterOptions { link: Self::link(), keys: self.keys.clone(), admission: None };
        let until = Instant::now() + DEADLINE;
        loop {
            // The port of a router that was just closed is free a moment later.
            match Router::bind(&self.context, endpoint, options.clone()) {
                Ok(router) => return Box::new(router),
                Err(error) => assert!(Instant::now() < until, "{error}"),
            }
            std::thread::yield_now();
        }
    }
    fn dealer(&self, endpoint: &str, name: &str) -> Box<dyn DealerLink> {
        let keys = self.keys.as_ref().map(|keys| DealerKeys { own: KeyPair::generate(), broker: keys.public });
        let options = DealerOptions { link: Self::link(), keys };
        Box::new(Dealer::connect(&self.context, endpoint, name.as_bytes(), options).unwrap())
    }
}

fn frames(parts: &[&str]) -> Vec<Bytes> {
    parts.iter().map(|part| Bytes::copy_from_slice(part.as_bytes())).collect()
}

fn receive_from_peer(router: &mut dyn RouterLink) -> Received {
    let until = Instant::now() + DEADLINE;
    loop {
        if let Some(message) = router.try_receive().unwrap() {
            return message;
        }
        let left = until.checked_duration_since(Instant::now()).expect("a message in time");
        router.wait(Some(left)).unwrap();
    }
}

fn receive(dealer: &mut dyn DealerLink) -> Received {
    let until = Instant::now() + DEADLINE;
    loop {
        if let Some(message) = dealer.try_receive().unwrap() {
            return message;
        }
        let left = until.checked_duration_since(Instant::now()).expect("a message in time");
        dealer.wait(Some(left), false).unwrap();
    }
}

fn next_status(dealer: &mut dyn DealerLink) -> LinkStatus {
    let until = Instant::now() + DEADLINE;
    loop {
        if let Some(status) = dealer.next_status() {
            return status;
        }
        let left = until.checked_duration_since(Instant::now()).expect("a status in time");
        dealer.wait(Some(left), false).unwrap();
        assert_eq!(dealer.try_receive().unwrap(), None);
    }
}

fn connected(dealer: &mut dyn DealerLink) {
    while next_status(dealer) != LinkStatus::Connected {}
}

/// Sends until the router refuses in the expected way.
fn send_until(router: &mut dyn RouterLink, peer: &[u8], expected: &SendError, frame: &Bytes) -> usize {
    let until = Instant::now() + DEADLINE;
    let mut sent = 0;
    loop {
        match router.try_send(peer, std::slice::from_ref(frame)) {
            Ok(()) => sent += 1,
            Err(error) if error == *expected => return sent,
            Err(error) => panic!("expected {expected}, got {error}"),
        }
        assert!(Instant::now() < until, "never {expected}");
        router.wait(Some(Duration::ZERO)).unwrap();
    }
}

fn messages_travel_whole_and_in_order(world: &dyn World) {
    let mut router = world.router();
    let mut dealer = world.dealer(&router.endpoint(), "worker-1");
    connected(&mut *dealer);
    let hello = frames(&["", "NFPW01", "0x01", "service"]);
    dealer.try_send(&hello).unwrap();
    dealer.try_send(&frames(&["second"])).unwrap();
    assert_eq!(
        receive_from_peer(&mut *router),
        Received { peer: Bytes::from("worker-1"), frames: hello, truncated: false }
    );
    assert_eq!(receive_from_peer(&mut *router).frames, frames(&["second"]));
    assert_eq!(router.try_receive().unwrap(), None);

    let answer = vec![Bytes::new(), Bytes::from_static(b"\x00\xff"), Bytes::new()];
    router.try_send(b"worker-1", &answer).unwrap();
    router.try_send(b"worker-1", &frames(&["x"])).unwrap();
    assert_eq!(receive(&mut *dealer), Received { peer: Bytes::new(), frames: answer, truncated: false });
    assert_eq!(receive(&mut *dealer).frames, frames(&["x"]));
    assert_eq!(dealer.try_receive().unwrap(), None);
}

fn big_frames_travel_intact_both_ways(world: &dyn World) {
    let mut router = world.router();
    let mut dealer = world.dealer(&router.endpoint(), "big");
    connected(&mut *dealer);
    let big: Bytes =
        (0..10_000_000_u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8).collect::<Vec<_>>().into();
    for size in [8 * 1024 - 1, 8 * 1024, 8 * 1024 + 1, 1023, 1024, 1025, big.len()] {
        let message = vec![Bytes::from("head"), big.slice(..size), Bytes::from("tail"), big.slice(..size)];
        dealer.try_send(&message).unwrap();
        let received = receive_from_peer(&mut *router);
        assert!(received.frames == message, "size {size} towards the router");
        router.try_send(b"big", &received.frames).unwrap();
        assert!(receive(&mut *dealer).frames == message, "size {size} towards the dealer");
    }
}

fn unknown_peer_is_unroutable(world: &dyn World) {
    let mut router = world.router();
    assert_eq!(router.try_send(b"nobody", &frames(&["x"])), Err(SendError::Unroutable));
    assert!(matches!(router.try_send(b"nobody", &[]), Err(SendError::Failed(_))));
}

fn vanished_peer_becomes_unroutable(world: &dyn World) {
    let mut router = world.router();
    let mut dealer = world.dealer(&router.endpoint(), "leaver");
    connected(&mut *dealer);
    dealer.try_send(&frames(&["here"])).unwrap();
    receive_from_peer(&mut *router);
    router.try_send(b"leaver", &frames(&["x"])).unwrap();
    dealer.close(Duration::ZERO);
    let until = Instant::now() + DEADLINE;
    loop {
        match router.try_send(b"leaver", &frames(&["x"])) {
            Err(SendError::Unroutable) => break,
            Ok(()) | Err(SendError::Full) => {}
            Err(error) => panic!("{error}"),
        }
        assert!(Instant::now() < until);
        router.wait(Some(Duration::from_millis(1))).unwrap();
    }
}

fn full_peer_is_told_and_has_room_again(world: &dyn World) {
    let mut router = world.router();
    let mut slow = world.dealer(&router.endpoint(), "slow");
    let mut other = world.dealer(&router.endpoint(), "other");
    connected(&mut *slow);
    connected(&mut *other);
    slow.try_send(&frames(&["here"])).unwrap();
    other.try_send(&frames(&["here"])).unwrap();
    receive_from_peer(&mut *router);
    receive_from_peer(&mut *router);

    // Beyond what the network holds on the way.
    let frame = Bytes::from(vec![1_u8; 1 << 20]);
    let started = Instant::now();
    let sent = send_until(&mut *router, b"slow", &SendError::Full, &frame);
    assert!(sent >= SMALL_QUEUE as usize);
    assert!(started.elapsed() < DEADLINE);

    // It is full for a while, and the other one is not.
    router.try_send(b"other", &frames(&["x"])).unwrap();
    assert_eq!(receive(&mut *other).frames, frames(&["x"]));

    // It reads again: everything arrives, and there is room.
    for _ in 0..sent {
        assert_eq!(receive(&mut *slow).frames[0].len(), frame.len());
    }
    let until = Instant::now() + DEADLINE;
    while router.try_send(b"slow", &frames(&["last"])) == Err(SendError::Full) {
        assert!(Instant::now() < until);
        router.wait(Some(Duration::from_millis(10))).unwrap();
    }
    assert_eq!(receive(&mut *slow).frames, frames(&["last"]));
}

fn full_dealer_is_told_and_waited_for(world: &dyn World) {
    let mut router = world.router();
    let mut dealer = world.dealer(&router.endpoint(), "eager");
    connected(&mut *dealer);
    let frame = Bytes::from(vec![1_u8; 1 << 20]);
    let until = Instant::now() + DEADLINE;
    let mut sent = 0;
    let mut refused_since = None;
    // The router does not read: sooner or later nothing fits any more.
    while refused_since.is_none_or(|since: Instant| since.elapsed() < Duration::from_millis(200)) {
        match dealer.try_send(std::slice::from_ref(&frame)) {
            Ok(()) => (sent, refused_since) = (sent + 1, None),
            Err(SendError::Full) => refused_since = Some(refused_since.unwrap_or_else(Instant::now)),
            Err(error) => panic!("{error}"),
        }
        assert!(Instant::now() < until);
        dealer.wait(Some(Duration::from_millis(20)), true).unwrap();
    }
    for _ in 0..sent {
        receive_from_peer(&mut *router);
    }
    while !dealer.wait(Some(Duration::from_secs(1)), true).unwrap().writable {
        assert!(Instant::now() < until);
    }
    dealer.try_send(&frames(&["last"])).unwrap();
    assert_eq!(receive_from_peer(&mut *router).frames, frames(&["last"]));
}

fn newer_connection_takes_the_name_over(world: &dyn World) {
    let mut router = world.router();
    let mut older = world.dealer(&router.endpoint(), "twin");
    connected(&mut *older);
    older.try_send(&frames(&["older"])).unwrap();
    assert_eq!(receive_from_peer(&mut *router).frames, frames(&["older"]));
    let mut newer = world.dealer(&router.endpoint(), "twin");
    connected(&mut *newer);
    newer.try_send(&frames(&["newer"])).unwrap();
    assert_eq!(receive_from_peer(&mut *router).frames, frames(&["newer"]));
    router.try_send(b"twin", &frames(&["for the newer"])).unwrap();
    assert_eq!(receive(&mut *newer).frames, frames(&["for the newer"]));
    assert_eq!(older.try_receive().unwrap(), None);
}

fn nothing_is_accepted_before_the_owner_knows_of_the_connection(world: &dyn World) {
    let mut router = world.router();
    let mut dealer = world.dealer(&router.endpoint(), "polite");
    let until = Instant::now() + DEADLINE;
    loop {
        assert_eq!(dealer.try_send(&frames(&["too early"])), Err(SendError::Full));
        let ready = dealer.wait(Some(Duration::from_secs(1)), true).unwrap();
        assert!(!ready.writable);
        if dealer.next_status() == Some(LinkStatus::Connected) {
            break;
        }
        assert!(Instant::now() < until);
    }
    dealer.try_send(&frames(&["first"])).unwrap();
    assert_eq!(receive_from_peer(&mut *router).frames, frames(&["first"]));
}

fn reconnect_makes_a_new_connection_under_the_same_name(world: &dyn World) {
    let mut router = world.router();
    let mut dealer = world.dealer(&router.endpoint(), "again");
    connected(&mut *dealer);
    dealer.try_send(&frames(&["one"])).unwrap();
    assert_eq!(receive_from_peer(&mut *router).frames, frames(&["one"]));
    dealer.reconnect().unwrap();
    assert_eq!(dealer.try_send(&frames(&["too early"])), Err(SendError::Full));
    assert_eq!(next_status(&mut *dealer), LinkStatus::Connected);
    dealer.try_send(&frames(&["two"])).unwrap();
    assert_eq!(receive_from_peer(&mut *router).frames, frames(&["two"]));
    router.try_send(b"again", &frames(&["three"])).unwrap();
    assert_eq!(receive(&mut *dealer).frames, frames(&["three"]));
}

fn dealer_is_back_after_the_router_was_away(world: &dyn World) {
    let mut router = world.router();
    let endpoint = router.endpoint();
    let mut dealer = world.dealer(&endpoint, "loyal");
    connected(&mut *dealer);
    dealer.try_send(&frames(&["one"])).unwrap();
    receive_from_peer(&mut *router);
    // What the router handed over before it closed is read before the loss of the connection.
    router.try_send(b"loyal", &frames(&["goodbye"])).unwrap();
    router.close(Duration::from_secs(1));
    assert_eq!(receive(&mut *dealer).frames, frames(&["goodbye"]));
    assert_eq!(next_status(&mut *dealer), LinkStatus::Disconnected);
    assert_eq!(dealer.try_send(&frames(&["kept by the owner"])), Err(SendError::Full));
    let mut router = world.router_at(&endpoint);
    connected(&mut *dealer);
    dealer.try_send(&frames(&["ready"])).unwrap();
    assert_eq!(receive_from_peer(&mut *router).frames, frames(&["ready"]));
}

fn what_was_handed_over_leaves_before_a_close(world: &dyn World) {
    let mut router = world.router();
    let mut dealer = world.dealer(&router.endpoint(), "done");
    connected(&mut *dealer);
    let big = Bytes::from(vec![9_u8; 10_000_000]);
    dealer.try_send(&[Bytes::from("result"), big.clone()]).unwrap();
    dealer.try_send(&frames(&["disconnect"])).unwrap();
    dealer.close(Duration::from_secs(10));
    assert_eq!(receive_from_peer(&mut *router).frames[1], big);
    assert_eq!(receive_from_peer(&mut *router).frames, frames(&["disconnect"]));
}

fn frames_beyond_the_bound_are_cut_off_and_told(world: &dyn World) {
    let mut router = world.router();
    let mut dealer = world.dealer(&router.endpoint(), "long");
    connected(&mut *dealer);
    let many: Vec<Bytes> = (0..100).map(|i| Bytes::from(format!("frame {i}"))).collect();
    dealer.try_send(&many[..16]).unwrap();
    dealer.try_send(&many[..17]).unwrap();
    dealer.try_send(&many).unwrap();
    dealer.try_send(&frames(&["next"])).unwrap();
    for (truncated, count) in [(false, 16), (true, 16), (true, 16)] {
        let received = receive_from_peer(&mut *router);
        assert_eq!((received.truncated, &received.frames[..]), (truncated, &many[..count]));
    }
    assert_eq!(receive_from_peer(&mut *router).frames, frames(&["next"]));
}

fn waker_ends_the_wait_of_another_thread(world: &dyn World) {
    let mut router = world.router();
    let mut dealer = world.dealer(&router.endpoint(), "sleeper");
    connected(&mut *dealer);
    for _ in 0..100 {
        let (router_waker, dealer_waker) = (router.waker(), dealer.waker());
        let producer = std::thread::spawn(move || {
            router_waker.wake();
            dealer_waker.wake();
        });
        let until = Instant::now() + DEADLINE;
        while !router.wait(Some(DEADLINE)).unwrap().woken {
            assert!(Instant::now() < until);
        }
        while !dealer.wait(Some(DEADLINE), false).unwrap().woken {
            assert!(Instant::now() < until);
        }
        producer.join().unwrap();
    }
    assert!(!router.wait(Some(Duration::ZERO)).unwrap().woken);
    assert!(!dealer.wait(Some(Duration::ZERO), false).unwrap().woken);
}

fn wait_ends_when_its_time_is_over_and_not_before(world: &dyn World) {
    let mut router = world.router();
    let mut dealer = world.dealer(&router.endpoint(), "patient");
    connected(&mut *dealer);
    // The connection itself is news for the router.
    while router.try_receive().unwrap().is_some() {}
    let pause = Duration::from_micros(20_500);
    let until = Instant::now() + DEADLINE;
    loop {
        let started = Instant::now();
        let ready = router.wait(Some(pause)).unwrap();
        if !ready.readable {
            assert!(started.elapsed() >= pause);
            break;
        }
        assert_eq!(router.try_receive().unwrap(), None);
        assert!(Instant::now() < until);
    }
    loop {
        assert_eq!(dealer.try_receive().unwrap(), None);
        let started = Instant::now();
        // The thread that looked up a name may wake it once more.
        if !dealer.wait(Some(pause), false).unwrap().woken {
            assert!(started.elapsed() >= pause);
            break;
        }
        assert!(Instant::now() < until);
    }
}

macro_rules! contract {
    ($module:ident, $world:expr, [$($promise:ident),* $(,)?]) => {
        mod $module {
            $(#[test] fn $promise() { super::$promise(&$world); })*
        }
    };
    ($module:ident, $world:expr) => {
        contract!($module, $world, [
            messages_travel_whole_and_in_order,
            big_frames_travel_intact_both_ways,
            unknown_peer_is_unroutable,
            vanished_peer_becomes_unroutable,
            full_peer_is_told_and_has_room_again,
            full_dealer_is_told_and_waited_for,
            newer_connection_takes_the_name_over,
            nothing_is_accepted_before_the_owner_knows_of_the_connection,
            reconnect_makes_a_new_connection_under_the_same_name,
            dealer_is_back_after_the_router_was_away,
            what_was_handed_over_leaves_before_a_close,
            frames_beyond_the_bound_are_cut_off_and_told,
            waker_ends_the_wait_of_another_thread,
            wait_ends_when_its_time_is_over_and_not_before,
        ]);
    };
}

contract!(memory, super::Memory(norfab_transport::memory::MemoryNetwork::new()));
contract!(plain, super::tcp("tcp://127.0.0.1:0", false));
contract!(curve, super::tcp("tcp://127.0.0.1:0", true));
contract!(ipv6, super::tcp("tcp://[::1]:0", false));
contract!(every_address, super::tcp("tcp://*:0", true));
contract!(name, super::tcp("tcp://localhost:0", false));

fn tcp(endpoint: &'static str, encrypted: bool) -> Tcp {
    Tcp { context: Context::new().unwrap(), endpoint, keys: encrypted.then(KeyPair::generate) }
}
