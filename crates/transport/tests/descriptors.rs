//! A router whose process has no more descriptors. It changes the limit of its process, so it is alone in its file.
#![allow(missing_docs)]

use std::fs::File;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use norfab_transport::{Context, Router, RouterLink, RouterOptions};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use rustix::time::{ClockId, Timespec, clock_gettime};

const PATIENCE: Duration = Duration::from_secs(20);

/// How long the router is watched while it cannot accept.
const WATCHED: Duration = Duration::from_millis(400);

/// Few enough to use them all up.
const DESCRIPTORS: u64 = 128;

/// Time that this thread has computed.
fn computed() -> Duration {
    let Timespec { tv_sec, tv_nsec } = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(tv_sec.try_into().unwrap(), tv_nsec.try_into().unwrap())
}

#[test]
fn a_listener_without_descriptors_pauses_and_accepts_when_there_are_some() {
    let mut router = Router::bind(&Context::new(), "tcp://127.0.0.1:0", RouterOptions::default()).unwrap();
    let limit = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: Some(DESCRIPTORS), maximum: limit.maximum }).unwrap();
    let mut used = Vec::new();
    while let Ok(file) = File::open("/dev/null") {
        used.push(file);
    }
    // One for the peer, none for the router's end of it.
    used.pop();
    let mut peer = TcpStream::connect(router.endpoint().trim_start_matches("tcp://")).unwrap();
    peer.write_all(b"\xff\0\0\0\0\0\0\0\x01\x7f").unwrap();

    let (began, before) = (Instant::now(), computed());
    while began.elapsed() < WATCHED {
        assert_eq!(router.try_receive().unwrap(), None);
        router.wait(Some(WATCHED - began.elapsed().min(WATCHED))).unwrap();
    }
    let busy = computed() - before;
    assert!(busy < WATCHED / 4, "it computed for {busy:?} of {WATCHED:?}: it tries again and again");
    peer.set_nonblocking(true).unwrap();
    assert!(peer.read(&mut [0]).is_err(), "nobody can have accepted it");

    drop(used);
    let mut greeting = [0; 10];
    let mut read = 0;
    let end = Instant::now() + PATIENCE;
    while read < greeting.len() {
        assert!(Instant::now() < end, "it was not accepted after the pause");
        // As long as it wants: nothing else wakes it.
        router.wait(Some(Duration::from_millis(100))).unwrap();
        read += peer.read(&mut greeting[read..]).unwrap_or(0);
    }
    assert_eq!(greeting[0], 0xff);
}
