//! What only the inside of a router shows.

use super::*;
use crate::zmtp::LARGE_BOX_BYTES;
use crate::{Dealer, DealerKeys, DealerLink, DealerOptions, KeyPair, LinkStatus};

const PATIENCE: Duration = Duration::from_secs(20);

/// An encrypting router in a context of its own, whose boxes can be held.
struct Rig {
    context: Context,
    /// Of all dealers.
    others: Context,
    keys: KeyPair,
    router: Router,
    dealers: Vec<Dealer>,
    heard: Vec<Received>,
}

impl Rig {
    fn new() -> Self {
        let (context, keys) = (Context::new(), KeyPair::generate());
        let options = RouterOptions { keys: Some(keys.clone()), ..RouterOptions::default() };
        let router = Router::bind(&context, "tcp://127.0.0.1:*", options).expect("a router");
        Self { context, others: Context::new(), keys, router, dealers: Vec::new(), heard: Vec::new() }
    }

    /// Everybody has a turn until a condition holds.
    fn until(&mut self, what: &str, mut holds: impl FnMut(&mut Self) -> bool) {
        let end = clock::now() + PATIENCE;
        while !holds(self) {
            assert!(clock::now() < end, "never: {what}");
            self.router.wait(Some(Duration::from_millis(1))).expect("a link");
            while let Some(received) = self.router.try_receive().expect("a link") {
                self.heard.push(received);
            }
            for dealer in &mut self.dealers {
                dealer.wait(Some(Duration::ZERO), false).expect("a link");
            }
        }
    }

    /// Connects another dealer, and gives its number.
    fn connect(&mut self, name: &[u8]) -> usize {
        let keys = Some(DealerKeys { own: KeyPair::generate(), broker: self.keys.public });
        let options = DealerOptions { keys, ..DealerOptions::default() };
        let endpoint = self.router.endpoint();
        self.dealers.push(Dealer::connect(&self.others, &endpoint, name, options).expect("a dealer"));
        let number = self.dealers.len() - 1;
        self.until("a connection", |rig| {
            rig.dealers[number].try_receive().expect("a link");
            rig.dealers[number].next_status() == Some(LinkStatus::Connected)
        });
        number
    }

    fn key_of(&self, name: &'static str) -> u64 {
        self.router.names[&Bytes::from(name)]
    }
}

#[test]
fn a_peer_that_lost_its_name_is_kept_until_its_last_box_is_opened_and_heard() {
    let mut rig = Rig::new();
    let older = rig.connect(b"twin");
    let older_key = rig.key_of("twin");
    let large = Bytes::from(vec![7; 2 * LARGE_BOX_BYTES]);
    rig.context.boxes().hold(true);
    rig.dealers[older].try_send(std::slice::from_ref(&large)).expect("room");
    rig.until("a box that is being opened", |rig| {
        !rig.router.peers.get(older_key).expect("the older one").connection.engine.reads()
    });
    let newer = rig.connect(b"twin");
    assert_ne!(rig.key_of("twin"), older_key, "the newer one has the name");
    assert!(rig.router.peers.get(older_key).expect("it is kept").retired);
    assert!(rig.heard.is_empty());

    rig.context.boxes().hold(false);
    rig.until("its last words", |rig| !rig.heard.is_empty());
    assert!(rig.heard[0].peer == "twin" && rig.heard[0].frames == [large]);
    assert!(rig.router.peers.get(older_key).is_none(), "nobody waits for it any more");
    // Its end takes nothing of the newer one.
    rig.router.try_send(b"twin", &[Bytes::from("for the newer")]).expect("it is known");
    rig.until("a word for the newer one", |rig| {
        let received = rig.dealers[newer].try_receive().expect("a link");
        received.is_some_and(|received| received.frames == ["for the newer"])
    });
    assert_eq!(rig.heard.len(), 1);
}

#[test]
fn the_room_for_what_is_read_at_once_stays_as_large_as_it_was() {
    let mut rig = Rig::new();
    let first = rig.connect(b"one");
    let small: Vec<Bytes> = vec![Bytes::from(vec![1; 1000]); 4];
    for _ in 0..20 {
        for _ in 0..200 {
            rig.dealers[first].try_send(&small).expect("room");
        }
        let heard = rig.heard.len();
        rig.until("all of it", |rig| rig.heard.len() == heard + 200);
        assert_eq!(rig.router.scratch.capacity(), SCRATCH_BYTES);
    }
    // One that takes a name over is served in the middle of another's visit.
    for _ in 0..5 {
        rig.connect(b"one");
        assert_eq!(rig.router.scratch.capacity(), SCRATCH_BYTES);
    }
}
