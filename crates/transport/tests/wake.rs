//! No wake-up is lost, whatever the producers do.
#![allow(missing_docs)]

use std::sync::mpsc;
use std::time::{Duration, Instant};

use norfab_transport::memory::MemoryNetwork;
use norfab_transport::{Context, Router, RouterLink, RouterOptions};

const PRODUCERS: u32 = 4;
const PUSHES_EACH: u32 = 100_000;
/// A lost wake-up shows as a wait of this length.
const LOST: Duration = Duration::from_secs(20);

fn every_push_is_seen(mut router: Box<dyn RouterLink>) {
    // As an owner's queue is: bounded, and shorter than what is pushed.
    let (queue, pushed) = mpsc::sync_channel::<u32>(64);
    let producers: Vec<_> = (0..PRODUCERS)
        .map(|producer| {
            let (queue, waker) = (queue.clone(), router.waker());
            std::thread::spawn(move || {
                for push in 0..PUSHES_EACH {
                    // The way of a producer whose queue may be full: push, wake, push again.
                    while let Err(mpsc::TrySendError::Full(_)) = queue.try_send(push) {
                        std::thread::yield_now();
                    }
                    waker.wake();
                    if push % 1_000 == producer {
                        std::thread::yield_now();
                    }
                }
            })
        })
        .collect();
    drop(queue);
    let mut seen = 0;
    let mut wake_ups = 0;
    while seen < PRODUCERS * PUSHES_EACH {
        let started = Instant::now();
        let ready = router.wait(Some(LOST)).unwrap();
        assert!(started.elapsed() < LOST, "a wake-up was lost after {seen} pushes");
        if ready.woken {
            wake_ups += 1;
            seen += u32::try_from(pushed.try_iter().count()).unwrap();
        }
    }
    assert!(wake_ups <= seen, "{wake_ups} wake-ups for {seen} pushes");
    for producer in producers {
        producer.join().unwrap();
    }
}

#[test]
fn no_wake_up_of_a_socket_is_lost() {
    every_push_is_seen(Box::new(Router::bind(&Context::new(), "tcp://127.0.0.1:0", RouterOptions::default()).unwrap()));
}

#[test]
fn no_wake_up_of_a_memory_link_is_lost() {
    every_push_is_seen(Box::new(MemoryNetwork::new().router("memory").unwrap()));
}
