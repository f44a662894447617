//! What waits for a peer that does not read is bounded in bytes, too.

use std::time::{Duration, Instant};

use bytes::Bytes;
use norfab_transport::{
    Context, Dealer, DealerLink, DealerOptions, LinkOptions, LinkStatus, Router, RouterLink, RouterOptions, SendError,
};

const FRAME_BYTES: usize = 64 << 10;
const QUEUE_BYTES: usize = 4 << 20;
/// What the system holds of a connection that nobody reads, generously.
const SYSTEM_BYTES: usize = 64 << 20;
const PATIENCE: Duration = Duration::from_secs(20);

fn link() -> LinkOptions {
    LinkOptions { send_queue_bytes: QUEUE_BYTES, ..LinkOptions::default() }
}

fn router(context: &Context) -> Router {
    let options = RouterOptions { link: link(), ..RouterOptions::default() };
    Router::bind(context, "tcp://127.0.0.1:*", options).expect("a router")
}

/// A dealer that the router has heard of.
fn dealer(context: &Context, router: &mut Router, name: &'static [u8]) -> Dealer {
    let options = DealerOptions { link: link(), keys: None };
    let mut dealer = Dealer::connect(context, &router.endpoint(), name, options).expect("a dealer");
    let end = Instant::now() + PATIENCE;
    while dealer.next_status() != Some(LinkStatus::Connected) {
        assert!(Instant::now() < end, "no connection");
        router.wait(Some(Duration::from_millis(1))).expect("a link");
        dealer.wait(Some(Duration::from_millis(1)), false).expect("a link");
    }
    dealer.try_send(&[Bytes::from_static(name)]).expect("room");
    dealer.wait(Some(Duration::ZERO), false).expect("a link");
    while router.try_receive().expect("a link").is_none() {
        assert!(Instant::now() < end, "no message");
        router.wait(Some(Duration::from_millis(10))).expect("a link");
    }
    dealer
}

/// Sends large messages until no more are taken for a while.
fn fill<L>(link: &mut L, send: impl Fn(&mut L, &[Bytes]) -> Result<(), SendError>, turn: impl Fn(&mut L)) -> usize {
    let frame = Bytes::from(vec![0_u8; FRAME_BYTES]);
    let (mut sent, mut refused) = (0, 0);
    while refused < 20 {
        turn(link);
        match send(link, std::slice::from_ref(&frame)) {
            Ok(()) => (sent, refused) = (sent + FRAME_BYTES, 0),
            Err(SendError::Full) => {
                refused += 1;
                std::thread::sleep(Duration::from_millis(10));
            }
            Err(error) => panic!("{error}"),
        }
        assert!(sent <= QUEUE_BYTES + SYSTEM_BYTES, "{sent} bytes wait for one that does not read");
    }
    sent
}

#[test]
fn a_router_keeps_a_bounded_number_of_bytes_for_a_peer_and_goes_on_with_others() {
    let context = Context::new();
    let mut router = router(&context);
    let mut silent = dealer(&context, &mut router, b"silent");
    let _other = dealer(&context, &mut router, b"other");
    let turn = |router: &mut Router| assert!(router.wait(Some(Duration::ZERO)).is_ok());
    let sent = fill(&mut router, |router, frames| router.try_send(b"silent", frames), turn);
    assert_eq!(router.try_send(b"silent", &[Bytes::from_static(b"small")]), Ok(()), "small ones cost little");
    assert_eq!(router.try_send(b"other", &[Bytes::from(vec![0_u8; FRAME_BYTES])]), Ok(()), "it is not their fault");
    // It reads after all.
    let end = Instant::now() + PATIENCE;
    let mut received = 0;
    while received < sent {
        assert!(Instant::now() < end, "{received} of {sent} bytes");
        match silent.try_receive().expect("a link") {
            Some(message) => received += message.frames[0].len(),
            None => {
                router.wait(Some(Duration::ZERO)).expect("a link");
                silent.wait(Some(Duration::from_millis(1)), false).expect("a link");
            }
        }
    }
    let frame = Bytes::from(vec![0_u8; FRAME_BYTES]);
    while router.try_send(b"silent", std::slice::from_ref(&frame)).is_err() {
        assert!(Instant::now() < end, "no room again");
        router.wait(Some(Duration::from_millis(10))).expect("a link");
    }
}

#[test]
fn a_dealer_keeps_a_bounded_number_of_bytes_and_sleeps_until_there_is_room() {
    let context = Context::new();
    let mut router = router(&context);
    let mut dealer = dealer(&context, &mut router, b"d");
    let turn = |dealer: &mut Dealer| assert!(dealer.wait(Some(Duration::ZERO), false).is_ok());
    fill(&mut dealer, Dealer::try_send, turn);
    let began = Instant::now();
    let ready = dealer.wait(Some(Duration::from_millis(200)), true).expect("a link");
    assert!(!ready.writable && began.elapsed() >= Duration::from_millis(200), "it would not sleep: {ready:?}");
    let reader = std::thread::spawn(move || {
        let end = Instant::now() + PATIENCE;
        while Instant::now() < end {
            match router.try_receive().expect("a link") {
                // The first message that came after there was room.
                Some(message) if message.frames[0].len() == FRAME_BYTES + 1 => return true,
                Some(_) => {}
                None => drop(router.wait(Some(Duration::from_millis(10))).expect("a link")),
            }
        }
        false
    });
    let last = Bytes::from(vec![0_u8; FRAME_BYTES + 1]);
    let end = Instant::now() + PATIENCE;
    let mut waits = 0;
    while dealer.try_send(std::slice::from_ref(&last)).is_err() {
        assert!(Instant::now() < end, "no room again");
        dealer.wait(Some(PATIENCE), true).expect("a link");
        waits += 1;
    }
    assert!(waits < 1000, "{waits} waits");
    while !reader.is_finished() {
        dealer.wait(Some(Duration::from_millis(1)), false).expect("a link");
    }
    assert!(reader.join().expect("no panic"), "it arrives");
}
