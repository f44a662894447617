//! What only the inside of a dealer shows.

use super::*;

#[test]
fn pauses_double_up_to_their_bound_and_are_half_random() {
    let (first, longest) = (Duration::from_millis(100), Duration::from_secs(1));
    for (failed_rounds, expected) in [(0, 100), (1, 200), (3, 800), (4, 1000), (1000, 1000)] {
        for _ in 0..100 {
            let pause = pause(first, longest, failed_rounds);
            let expected = Duration::from_millis(expected);
            assert!(pause >= expected / 2 && pause <= expected, "{failed_rounds}: {pause:?}");
        }
    }
}

#[test]
fn a_link_goes_on_when_the_system_has_no_more_threads_and_connects_when_it_has() {
    use crate::options::RouterOptions;
    use crate::router::Router;
    use crate::{LinkOptions, RouterLink};

    let context = Context::new();
    let link = LinkOptions { reconnect_delay_first: Duration::from_millis(5), ..LinkOptions::default() };
    let listen = |endpoint: &str| {
        let options = || RouterOptions { link: link.clone(), ..RouterOptions::default() };
        // The port may still be held for a moment.
        (0..1000).find_map(|_| {
            let router = Router::bind(&context, endpoint, options());
            router.map_err(|_| std::thread::sleep(Duration::from_millis(10))).ok()
        })
    };
    let mut router = listen("tcp://localhost:*");
    let endpoint = router.as_ref().expect("a router").endpoint();
    let options = DealerOptions { link: link.clone(), keys: None };
    let mut dealer = Dealer::connect(&context, &endpoint, b"w", options).expect("a dealer");
    let mut until = |router: &mut Option<Router>, done: &dyn Fn(&LinkStatus) -> bool| {
        for _ in 0..1000 {
            if let Some(router) = router {
                router.wait(Some(Duration::from_millis(1))).expect("it goes on");
            }
            dealer.wait(Some(Duration::from_millis(10)), false).expect("it goes on");
            assert_eq!(dealer.try_receive().expect("it goes on"), None);
            while let Some(status) = dealer.next_status() {
                if done(&status) {
                    return;
                }
            }
        }
        panic!("it never came");
    };
    until(&mut router, &|status| *status == LinkStatus::Connected);
    crate::dial::NO_THREADS.set(true);
    router = None;
    until(&mut router, &|status| matches!(status, LinkStatus::Unreachable { reason, .. } if reason.contains("thread")));
    router = listen(&endpoint);
    assert!(router.is_some(), "a router");
    crate::dial::NO_THREADS.set(false);
    until(&mut router, &|status| *status == LinkStatus::Connected);
}

#[test]
fn connections_that_another_peer_takes_are_made_anew_ever_later_unless_they_lasted() {
    use crate::LinkOptions;
    use crate::options::RouterOptions;
    use crate::router::Router;

    let context = Context::new();
    let link = LinkOptions { reconnect_delay_first: Duration::from_millis(5), ..LinkOptions::default() };
    let options = RouterOptions { link: link.clone(), ..RouterOptions::default() };
    let mut router = Router::bind(&context, "tcp://127.0.0.1:*", options).expect("a router");
    let endpoint = crate::RouterLink::endpoint(&router);
    let connect = || {
        let options = DealerOptions { link: link.clone(), keys: None };
        Dealer::connect(&context, &endpoint, b"name", options).expect("a dealer")
    };
    let mut until = |dealer: &mut Dealer, wanted: &LinkStatus| {
        for _ in 0..1000 {
            crate::RouterLink::wait(&mut router, Some(Duration::from_millis(1))).expect("it goes on");
            assert_eq!(crate::RouterLink::try_receive(&mut router).expect("it goes on"), None);
            dealer.wait(Some(Duration::from_millis(1)), false).expect("it goes on");
            assert_eq!(dealer.try_receive().expect("it goes on"), None);
            if std::iter::from_fn(|| dealer.next_status()).any(|status| status == *wanted) {
                return;
            }
        }
        panic!("never {wanted:?}");
    };
    let mut dealer = connect();
    for lost in 1..4 {
        until(&mut dealer, &LinkStatus::Connected);
        let mut rival = connect();
        until(&mut rival, &LinkStatus::Connected);
        until(&mut dealer, &LinkStatus::Disconnected);
        assert_eq!(dealer.failed_rounds, lost);
    }
    dealer.lasted();
    assert_eq!(dealer.failed_rounds, 1, "it begins with short pauses again");
    until(&mut dealer, &LinkStatus::Connected);
}

#[test]
fn an_owner_that_only_reads_must_wait_before_it_has_read_everything() {
    use std::io::Write;

    const MESSAGE_BYTES: usize = 200;
    /// More than is read without a wait, many times over.
    const MESSAGES: usize = 40_000;

    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let endpoint = format!("tcp://{}", listener.local_addr().expect("an address"));
    let (connected, is_connected) = std::sync::mpsc::sync_channel(0);
    let (stuck, is_stuck) = std::sync::mpsc::sync_channel(1);
    let flood = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().expect("a connection");
        let mut greeting = b"\xff\0\0\0\0\0\0\0\x01\x7f\x03\x01NULL".to_vec();
        greeting.resize(64, 0);
        stream.write_all(&greeting).expect("room");
        stream.write_all(b"\x04\x1c\x05READY\x0bSocket-Type\0\0\0\x06ROUTER").expect("room");
        is_connected.recv().expect("a word");
        let mut message = vec![0, MESSAGE_BYTES as u8 - 2];
        message.resize(MESSAGE_BYTES, b'x');
        let flood = message.repeat(MESSAGES);
        // As much as the system keeps, before anything is read.
        stream.set_nonblocking(true).expect("a socket");
        let mut sent = 0;
        while let Ok(count @ 1..) = stream.write(&flood[sent..]) {
            sent += count;
        }
        stuck.send(()).expect("the test listens");
        stream.set_nonblocking(false).expect("a socket");
        stream.write_all(&flood[sent..]).expect("it is read");
        stream
    });
    let mut dealer = Dealer::connect(&Context::new(), &endpoint, b"w", DealerOptions::default()).expect("a dealer");
    let end = clock::now() + Duration::from_secs(20);
    while dealer.next_status() != Some(LinkStatus::Connected) {
        assert!(clock::now() < end, "no connection");
        dealer.wait(Some(Duration::from_millis(100)), false).expect("a link");
    }
    connected.send(()).expect("it listens");
    is_stuck.recv().expect("a word");
    // What was read while it waited, and its reads since.
    let bound = (READS_BEFORE_WAIT as usize + 3) * SCRATCH_BYTES / MESSAGE_BYTES;
    let mut heard = 0;
    while heard < MESSAGES {
        assert!(clock::now() < end, "{heard} of {MESSAGES}");
        dealer.wait(Some(Duration::from_millis(100)), false).expect("a link");
        let before = heard;
        while dealer.try_receive().expect("a link").is_some() {
            heard += 1;
        }
        assert!(heard - before <= bound, "{} messages without a wait, {bound} are allowed", heard - before);
        assert_eq!(dealer.scratch.capacity(), SCRATCH_BYTES, "it reads into the same room");
    }
    drop(flood.join().expect("no panic"));
}
