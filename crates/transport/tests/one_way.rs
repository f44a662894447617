//! Peers that hear nothing any more, or do not go: their ends are noticed, and nobody waits for them for long.
#![allow(missing_docs)]

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener};
use std::os::unix::net::{UnixListener, UnixStream};
use std::time::{Duration, Instant};

use bytes::Bytes;
use norfab_transport::{
    Context, Dealer, DealerLink, DealerOptions, LinkStatus, Router, RouterLink, RouterOptions, SendError,
};

const PATIENCE: Duration = Duration::from_secs(20);

/// How long a link may take to leave. Much longer than the other side has to go.
const LINGER: Duration = Duration::from_secs(10);

/// Says everything of a handshake in the clear, whatever the other side says.
fn shake_hands(stream: &mut (impl Read + Write), socket_type: &str, name: &str) {
    let mut greeting = b"\xff\0\0\0\0\0\0\0\x01\x7f\x03\x01NULL".to_vec();
    greeting.resize(64, 0);
    let mut ready = b"\x05READY".to_vec();
    for (property, value) in [("Socket-Type", socket_type), ("Identity", name)] {
        ready.push(u8::try_from(property.len()).unwrap());
        ready.extend_from_slice(property.as_bytes());
        ready.extend_from_slice(&u32::try_from(value.len()).unwrap().to_be_bytes());
        ready.extend_from_slice(value.as_bytes());
    }
    stream.write_all(&greeting).unwrap();
    stream.write_all(&[4, u8::try_from(ready.len()).unwrap()]).unwrap();
    stream.write_all(&ready).unwrap();
}

fn say(stream: &mut impl Write, word: &str) {
    stream.write_all(&[&[0, u8::try_from(word.len()).unwrap()], word.as_bytes()].concat()).unwrap();
}

#[test]
fn a_local_peer_that_hears_nothing_any_more_is_heard_to_its_end_and_forgotten() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("socket");
    let endpoint = format!("ipc://{}", path.display());
    let mut router = Router::bind(&Context::new(), &endpoint, RouterOptions::default()).unwrap();
    let mut peer = UnixStream::connect(&path).unwrap();
    shake_hands(&mut peer, "DEALER", "peer");
    say(&mut peer, "first");
    let end = Instant::now() + PATIENCE;
    while router.try_receive().unwrap().is_none() {
        assert!(Instant::now() < end, "it is not heard");
        router.wait(Some(Duration::from_millis(10))).unwrap();
    }
    say(&mut peer, "last");
    // It stays open for what it says, and there is no end to read.
    peer.shutdown(Shutdown::Read).unwrap();
    let mut heard = Vec::new();
    loop {
        assert!(Instant::now() < end, "it is kept, and can be told nothing");
        let sent = router.try_send(b"peer", &[Bytes::from("anybody there?")]);
        router.wait(Some(Duration::from_millis(10))).unwrap();
        while let Some(received) = router.try_receive().unwrap() {
            heard.extend(received.frames);
        }
        if sent == Err(SendError::Unroutable) {
            break;
        }
    }
    assert_eq!(heard, ["last"]);
}

#[test]
fn a_local_broker_that_hears_nothing_any_more_is_left() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("socket");
    let listener = UnixListener::bind(&path).unwrap();
    let endpoint = format!("ipc://{}", path.display());
    let mut dealer = Dealer::connect(&Context::new(), &endpoint, b"worker", DealerOptions::default()).unwrap();
    let (mut broker, _) = listener.accept().unwrap();
    shake_hands(&mut broker, "ROUTER", "");
    let end = Instant::now() + PATIENCE;
    let until = |dealer: &mut Dealer, wanted: LinkStatus| {
        let mut heard = Vec::new();
        while dealer.next_status() != Some(wanted.clone()) {
            assert!(Instant::now() < end, "never {wanted:?}");
            dealer.try_send(&[Bytes::from("anybody there?")]).ok();
            dealer.wait(Some(Duration::from_millis(10)), false).unwrap();
            while let Some(received) = dealer.try_receive().unwrap() {
                heard.extend(received.frames);
            }
        }
        heard
    };
    until(&mut dealer, LinkStatus::Connected);
    say(&mut broker, "last");
    broker.shutdown(Shutdown::Read).unwrap();
    assert_eq!(until(&mut dealer, LinkStatus::Disconnected), ["last"]);
}

#[test]
fn a_peer_that_does_not_go_keeps_nobody_who_has_said_everything() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let endpoint = format!("tcp://{}", listener.local_addr().unwrap());
    let context = Context::new();
    let mut dealer = Dealer::connect(&context, &endpoint, b"worker", DealerOptions::default()).unwrap();
    let (mut broker, _) = listener.accept().unwrap();
    shake_hands(&mut broker, "ROUTER", "");
    let end = Instant::now() + PATIENCE;
    while dealer.next_status() != Some(LinkStatus::Connected) {
        assert!(Instant::now() < end, "no connection");
        dealer.wait(Some(Duration::from_millis(10)), false).unwrap();
    }
    dealer.try_send(&[Bytes::from("goodbye")]).unwrap();
    let began = Instant::now();
    Box::new(dealer).close(LINGER);
    drop(context);
    assert!(began.elapsed() < LINGER / 2, "it was waited for: {:?}", began.elapsed());
    // What was said is there.
    broker.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut said = Vec::new();
    broker.read_to_end(&mut said).unwrap();
    assert!(said.ends_with(b"goodbye"));
}
