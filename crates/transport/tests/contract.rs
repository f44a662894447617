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
        LinkOptions { send_queue: SMALL_QUEUE, ..LinkOptions::default() }
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

/// A router and its dealers, each of which has its turn while another is waited for, as their owners would give it to them.
struct Rig {
    router: Option<Box<dyn RouterLink>>,
    dealers: Vec<Box<dyn DealerLink>>,
}

impl Rig {
    fn new(world: &dyn World) -> Self {
        Self { router: Some(world.router()), dealers: Vec::new() }
    }

    /// With dealers that are connected.
    fn with(world: &dyn World, names: &[&str]) -> Self {
        let mut rig = Self::new(world);
        for name in names {
            rig.connect(world, name);
        }
        rig
    }

    fn router(&mut self) -> &mut dyn RouterLink {
        self.router.as_deref_mut().unwrap()
    }

    fn dealer(&mut self, number: usize) -> &mut dyn DealerLink {
        &mut *self.dealers[number]
    }

    fn connect(&mut self, world: &dyn World, name: &str) -> usize {
        let endpoint = self.router().endpoint();
        self.dealers.push(world.dealer(&endpoint, name));
        let number = self.dealers.len() - 1;
        self.connected(number);
        number
    }

    /// Everybody has a turn.
    fn turn(&mut self) {
        if let Some(router) = &mut self.router {
            router.wait(Some(Duration::from_millis(1))).unwrap();
        }
        for dealer in &mut self.dealers {
            dealer.wait(Some(Duration::ZERO), false).unwrap();
        }
    }

    fn until<T>(&mut self, what: &str, mut look: impl FnMut(&mut Self) -> Option<T>) -> T {
        let until = Instant::now() + DEADLINE;
        loop {
            if let Some(found) = look(self) {
                return found;
            }
            assert!(Instant::now() < until, "{what} never came");
            self.turn();
        }
    }

    fn heard(&mut self) -> Received {
        self.until("a message for the router", |rig| rig.router().try_receive().unwrap())
    }

    fn told(&mut self, number: usize) -> Received {
        self.until("a message for a dealer", |rig| rig.dealer(number).try_receive().unwrap())
    }

    fn status(&mut self, number: usize) -> LinkStatus {
        self.until("a status", |rig| {
            assert_eq!(rig.dealer(number).try_receive().unwrap(), None);
            rig.dealer(number).next_status()
        })
    }

    fn connected(&mut self, number: usize) {
        while self.status(number) != LinkStatus::Connected {}
    }
}

fn messages_travel_whole_and_in_order(world: &dyn World) {
    let mut rig = Rig::with(world, &["worker-1"]);
    let hello = frames(&["", "NFPW01", "0x01", "service"]);
    rig.dealer(0).try_send(&hello).unwrap();
    rig.dealer(0).try_send(&frames(&["second"])).unwrap();
    assert_eq!(rig.heard(), Received { peer: Bytes::from("worker-1"), frames: hello, truncated: false });
    assert_eq!(rig.heard().frames, frames(&["second"]));
    assert_eq!(rig.router().try_receive().unwrap(), None);

    let answer = vec![Bytes::new(), Bytes::from_static(b"\x00\xff"), Bytes::new()];
    rig.router().try_send(b"worker-1", &answer).unwrap();
    rig.router().try_send(b"worker-1", &frames(&["x"])).unwrap();
    assert_eq!(rig.told(0), Received { peer: Bytes::new(), frames: answer, truncated: false });
    assert_eq!(rig.told(0).frames, frames(&["x"]));
    assert_eq!(rig.dealer(0).try_receive().unwrap(), None);
}

fn big_frames_travel_intact_both_ways(world: &dyn World) {
    let mut rig = Rig::with(world, &["big"]);
    let big: Bytes =
        (0..10_000_000_u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8).collect::<Vec<_>>().into();
    // Around the lengths at which something is done in another way.
    let (large, very_large) = (8 * 1024, 512 * 1024);
    let sizes = [1023, 1024, large - 1, large, large + 1, very_large - 1, very_large, very_large + 1, big.len()];
    for size in sizes {
        let message = vec![Bytes::from("head"), big.slice(..size), Bytes::from("tail"), big.slice(..size)];
        rig.dealer(0).try_send(&message).unwrap();
        let received = rig.heard();
        assert!(received.frames == message, "size {size} towards the router");
        rig.router().try_send(b"big", &received.frames).unwrap();
        assert!(rig.told(0).frames == message, "size {size} towards the dealer");
    }
    // Small ones that follow keep their place.
    rig.dealer(0).try_send(std::slice::from_ref(&big)).unwrap();
    rig.dealer(0).try_send(&frames(&["small"])).unwrap();
    rig.dealer(0).try_send(&[big.slice(1..), big.slice(..very_large)]).unwrap();
    rig.dealer(0).try_send(&frames(&["last"])).unwrap();
    assert!(rig.heard().frames == [big.clone()]);
    assert_eq!(rig.heard().frames, frames(&["small"]));
    assert!(rig.heard().frames == [big.slice(1..), big.slice(..very_large)]);
    assert_eq!(rig.heard().frames, frames(&["last"]));
}

fn unknown_peer_is_unroutable(world: &dyn World) {
    let mut router = world.router();
    assert_eq!(router.try_send(b"nobody", &frames(&["x"])), Err(SendError::Unroutable));
    assert!(matches!(router.try_send(b"nobody", &[]), Err(SendError::Failed(_))));
}

fn vanished_peer_becomes_unroutable(world: &dyn World) {
    let mut rig = Rig::with(world, &["leaver"]);
    rig.dealer(0).try_send(&frames(&["here"])).unwrap();
    rig.heard();
    rig.router().try_send(b"leaver", &frames(&["x"])).unwrap();
    rig.dealers.remove(0).close(Duration::ZERO);
    rig.until("the end of a peer", |rig| {
        assert_eq!(rig.router().try_receive().unwrap(), None);
        match rig.router().try_send(b"leaver", &frames(&["x"])) {
            Err(SendError::Unroutable) => Some(()),
            Ok(()) | Err(SendError::Full) => None,
            Err(error) => panic!("{error}"),
        }
    });
}

fn full_peer_is_told_and_has_room_again(world: &dyn World) {
    let mut rig = Rig::with(world, &["slow", "other"]);
    for number in [0, 1] {
        rig.dealer(number).try_send(&frames(&["here"])).unwrap();
        rig.heard();
    }
    // Beyond what the network holds on the way.
    let frame = Bytes::from(vec![1_u8; 1 << 20]);
    let mut sent = 0;
    let mut refused_since = None;
    // The slow one does not read: sooner or later nothing fits any more.
    rig.until("a full queue", |rig| {
        match rig.router().try_send(b"slow", std::slice::from_ref(&frame)) {
            Ok(()) => (sent, refused_since) = (sent + 1, None),
            Err(error) => {
                assert_eq!(error, SendError::Full);
                refused_since = Some(refused_since.unwrap_or_else(Instant::now));
            }
        }
        refused_since.filter(|since: &Instant| since.elapsed() > Duration::from_millis(200))
    });
    assert!(sent >= SMALL_QUEUE as usize);

    // It is full for a while, and the other one is not.
    rig.router().try_send(b"other", &frames(&["x"])).unwrap();
    assert_eq!(rig.told(1).frames, frames(&["x"]));

    // It reads again: everything arrives, and there is room.
    for _ in 0..sent {
        assert_eq!(rig.told(0).frames[0].len(), frame.len());
    }
    rig.until("room", |rig| rig.router().try_send(b"slow", &frames(&["last"])).ok());
    assert_eq!(rig.told(0).frames, frames(&["last"]));
}

fn what_may_be_dropped_leaves_room_for_what_may_not(world: &dyn World) {
    let mut rig = Rig::with(world, &["slow"]);
    rig.dealer(0).try_send(&frames(&["here"])).unwrap();
    rig.heard();
    let frame = Bytes::from(vec![1_u8; 1 << 20]);
    let mut refused_since = None;
    rig.until("no room for what may be dropped", |rig| {
        match rig.router().try_send_minor(b"slow", std::slice::from_ref(&frame)) {
            Ok(()) => refused_since = None,
            Err(error) => {
                assert_eq!(error, SendError::Full);
                refused_since = Some(refused_since.unwrap_or_else(Instant::now));
            }
        }
        refused_since.filter(|since: &Instant| since.elapsed() > Duration::from_millis(200))
    });
    for _ in 0..SMALL_QUEUE / 4 {
        rig.router().try_send(b"slow", &frames(&["x"])).unwrap();
        assert_eq!(rig.router().try_send_minor(b"slow", &frames(&["y"])), Err(SendError::Full));
    }
}

fn full_dealer_is_told_and_waited_for(world: &dyn World) {
    let mut rig = Rig::with(world, &["eager"]);
    let frame = Bytes::from(vec![1_u8; 1 << 20]);
    let mut sent = 0;
    let mut refused_since = None;
    // The router does not read: sooner or later nothing fits any more.
    rig.until("a full queue", |rig| {
        match rig.dealer(0).try_send(std::slice::from_ref(&frame)) {
            Ok(()) => (sent, refused_since) = (sent + 1, None),
            Err(error) => {
                assert_eq!(error, SendError::Full);
                refused_since = Some(refused_since.unwrap_or_else(Instant::now));
            }
        }
        refused_since.filter(|since: &Instant| since.elapsed() > Duration::from_millis(200))
    });
    assert!(!rig.dealer(0).wait(Some(Duration::ZERO), true).unwrap().writable);
    for _ in 0..sent {
        rig.heard();
    }
    rig.until("room", |rig| rig.dealer(0).wait(Some(Duration::ZERO), true).unwrap().writable.then_some(()));
    rig.dealer(0).try_send(&frames(&["last"])).unwrap();
    assert_eq!(rig.heard().frames, frames(&["last"]));
}

fn newer_connection_takes_the_name_over(world: &dyn World) {
    let mut rig = Rig::with(world, &["twin"]);
    rig.dealer(0).try_send(&frames(&["older"])).unwrap();
    assert_eq!(rig.heard().frames, frames(&["older"]));
    let newer = rig.connect(world, "twin");
    rig.dealer(newer).try_send(&frames(&["newer"])).unwrap();
    assert_eq!(rig.heard().frames, frames(&["newer"]));
    rig.router().try_send(b"twin", &frames(&["for the newer"])).unwrap();
    assert_eq!(rig.told(newer).frames, frames(&["for the newer"]));
    assert_eq!(rig.dealer(0).try_receive().unwrap(), None);
}

fn nothing_is_accepted_before_the_owner_knows_of_the_connection(world: &dyn World) {
    let mut rig = Rig::new(world);
    let endpoint = rig.router().endpoint();
    rig.dealers.push(world.dealer(&endpoint, "polite"));
    rig.until("a connection", |rig| {
        assert_eq!(rig.dealer(0).try_send(&frames(&["too early"])), Err(SendError::Full));
        assert!(!rig.dealer(0).wait(Some(Duration::ZERO), true).unwrap().writable);
        (rig.dealer(0).next_status() == Some(LinkStatus::Connected)).then_some(())
    });
    rig.dealer(0).try_send(&frames(&["first"])).unwrap();
    assert_eq!(rig.heard().frames, frames(&["first"]));
}

fn reconnect_makes_a_new_connection_under_the_same_name(world: &dyn World) {
    let mut rig = Rig::with(world, &["again"]);
    rig.dealer(0).try_send(&frames(&["one"])).unwrap();
    assert_eq!(rig.heard().frames, frames(&["one"]));
    rig.dealer(0).reconnect().unwrap();
    assert_eq!(rig.dealer(0).try_send(&frames(&["too early"])), Err(SendError::Full));
    assert_eq!(rig.status(0), LinkStatus::Connected);
    rig.dealer(0).try_send(&frames(&["two"])).unwrap();
    assert_eq!(rig.heard().frames, frames(&["two"]));
    rig.router().try_send(b"again", &frames(&["three"])).unwrap();
    assert_eq!(rig.told(0).frames, frames(&["three"]));
}

fn what_was_said_before_a_reconnect_comes_before_what_is_said_after_it(world: &dyn World) {
    let mut rig = Rig::with(world, &["again"]);
    for round in 0..20 {
        let (before, after) = (format!("before {round}"), format!("after {round}"));
        rig.dealer(0).try_send(&frames(&[&before])).unwrap();
        // It leaves, and is not read yet.
        rig.dealer(0).wait(Some(Duration::ZERO), false).unwrap();
        rig.dealer(0).reconnect().unwrap();
        rig.connected(0);
        rig.dealer(0).try_send(&frames(&[&after])).unwrap();
        assert_eq!(rig.heard().frames, frames(&[&before]));
        assert_eq!(rig.heard().frames, frames(&[&after]));
    }
}

fn dealer_is_back_after_the_router_was_away(world: &dyn World) {
    let mut rig = Rig::with(world, &["loyal"]);
    let endpoint = rig.router().endpoint();
    rig.dealer(0).try_send(&frames(&["one"])).unwrap();
    rig.heard();
    // What the router handed over before it closed is read before the loss of the connection.
    rig.router().try_send(b"loyal", &frames(&["goodbye"])).unwrap();
    rig.router.take().unwrap().close(Duration::from_secs(1));
    assert_eq!(rig.told(0).frames, frames(&["goodbye"]));
    assert_eq!(rig.status(0), LinkStatus::Disconnected);
    assert_eq!(rig.dealer(0).try_send(&frames(&["kept by the owner"])), Err(SendError::Full));
    rig.router = Some(world.router_at(&endpoint));
    rig.connected(0);
    rig.dealer(0).try_send(&frames(&["ready"])).unwrap();
    assert_eq!(rig.heard().frames, frames(&["ready"]));
}

fn what_was_handed_over_leaves_before_a_close(world: &dyn World) {
    let mut rig = Rig::with(world, &["done"]);
    let big = Bytes::from(vec![9_u8; 10_000_000]);
    rig.dealer(0).try_send(&[Bytes::from("result"), big.clone()]).unwrap();
    rig.dealer(0).try_send(&frames(&["disconnect"])).unwrap();
    rig.dealers.remove(0).close(Duration::from_secs(10));
    assert!(rig.heard().frames[1] == big);
    assert_eq!(rig.heard().frames, frames(&["disconnect"]));
}

fn frames_beyond_the_bound_are_cut_off_and_told(world: &dyn World) {
    let mut rig = Rig::with(world, &["long"]);
    let many: Vec<Bytes> = (0..100).map(|i| Bytes::from(format!("frame {i}"))).collect();
    rig.dealer(0).try_send(&many[..16]).unwrap();
    rig.dealer(0).try_send(&many[..17]).unwrap();
    rig.dealer(0).try_send(&many).unwrap();
    rig.dealer(0).try_send(&frames(&["next"])).unwrap();
    for (truncated, count) in [(false, 16), (true, 16), (true, 16)] {
        let received = rig.heard();
        assert_eq!((received.truncated, &received.frames[..]), (truncated, &many[..count]));
    }
    assert_eq!(rig.heard().frames, frames(&["next"]));
}

fn waker_ends_the_wait_of_another_thread(world: &dyn World) {
    let mut rig = Rig::with(world, &["sleeper"]);
    let (mut router, mut dealer) = (rig.router.take().unwrap(), rig.dealers.remove(0));
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
    let mut rig = Rig::with(world, &["patient"]);
    let (mut router, mut dealer) = (rig.router.take().unwrap(), rig.dealers.remove(0));
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
            what_may_be_dropped_leaves_room_for_what_may_not,
            full_dealer_is_told_and_waited_for,
            newer_connection_takes_the_name_over,
            nothing_is_accepted_before_the_owner_knows_of_the_connection,
            reconnect_makes_a_new_connection_under_the_same_name,
            what_was_said_before_a_reconnect_comes_before_what_is_said_after_it,
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
    Tcp { context: Context::new(), endpoint, keys: encrypted.then(KeyPair::generate) }
}
