//! An idle link sleeps, and a connected role has one socket. One test alone in its process: it counts what the process does.
#![cfg(target_os = "linux")]
#![allow(missing_docs)]

use std::collections::BTreeMap;
use std::fs;
use std::time::{Duration, Instant};

use norfab_transport::{
    Context, Dealer, DealerKeys, DealerLink, DealerOptions, KeyPair, LinkStatus, Router, RouterLink, RouterOptions,
};

const IDLE: Duration = Duration::from_secs(3);
const DEADLINE: Duration = Duration::from_secs(20);

/// Voluntary context switches of every thread but the one that looks.
fn switches() -> BTreeMap<String, u64> {
    let own = rustix::thread::gettid().as_raw_nonzero().to_string();
    fs::read_dir("/proc/self/task")
        .unwrap()
        .map(|task| task.unwrap().file_name().into_string().unwrap())
        .filter(|task| *task != own)
        .map(|task| {
            let status = fs::read_to_string(format!("/proc/self/task/{task}/status")).unwrap();
            let name = status.lines().next().unwrap().trim_start_matches("Name:\t").to_owned();
            let count = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:")).unwrap();
            (format!("{name} {task}"), count.trim().parse().unwrap())
        })
        .collect()
}

/// What the descriptors of this process are, without their numbers.
fn descriptors() -> BTreeMap<String, usize> {
    let mut kinds = BTreeMap::new();
    for entry in fs::read_dir("/proc/self/fd").unwrap().flatten() {
        let Ok(target) = fs::read_link(entry.path()) else { continue };
        let kind = target.to_string_lossy().split([':', '/']).next().unwrap().to_owned();
        let kind = if target.to_string_lossy().contains("eventfd") { "eventfd".to_owned() } else { kind };
        *kinds.entry(kind).or_insert(0) += 1;
    }
    kinds
}

#[test]
fn idle_links_make_no_wake_ups_and_have_one_socket_each() {
    let keys = KeyPair::generate();
    let context = Context::new();
    let options = RouterOptions { keys: Some(keys.clone()), ..RouterOptions::default() };
    let mut router = Router::bind(&context, "tcp://127.0.0.1:0", options).unwrap();
    let endpoint = router.endpoint();
    let before = descriptors();
    let dealer_keys = DealerKeys { own: KeyPair::generate(), broker: keys.public };
    let options = DealerOptions { keys: Some(dealer_keys), ..DealerOptions::default() };
    let mut dealer = Dealer::connect(&context, &endpoint, b"idle", options).unwrap();
    let until = Instant::now() + DEADLINE;
    while dealer.next_status() != Some(LinkStatus::Connected) {
        assert!(Instant::now() < until);
        router.wait(Some(Duration::from_millis(1))).unwrap();
        dealer.wait(Some(Duration::from_millis(1)), false).unwrap();
    }

    // The eventfd of its waker, and the two ends of the connection. No thread but the owners' moves the messages.
    let now = descriptors();
    assert_eq!((now["eventfd"] - before["eventfd"], now["socket"] - before["socket"]), (1, 2));
    assert_eq!(switches().len(), 1, "the test's own main thread: {:?}", switches());

    let wakers = [router.waker(), dealer.waker()];
    let owners = [
        std::thread::Builder::new().name("router-owner".to_owned()).spawn(move || {
            while !router.wait(None).unwrap().woken {
                while router.try_receive().unwrap().is_some() {}
            }
        }),
        std::thread::Builder::new().name("dealer-owner".to_owned()).spawn(move || {
            while !dealer.wait(None, false).unwrap().woken {
                while dealer.try_receive().unwrap().is_some() {}
            }
        }),
    ];
    // Until both sleep: the counts do not change for a while.
    let mut counts = switches();
    loop {
        std::thread::sleep(Duration::from_millis(200));
        let now = switches();
        if now == counts {
            break;
        }
        counts = now;
        assert!(Instant::now() < until, "never idle: {counts:?}");
    }
    std::thread::sleep(IDLE);
    assert_eq!(switches(), counts);

    for waker in wakers {
        waker.wake();
    }
    for owner in owners {
        owner.unwrap().join().unwrap();
    }
}
