//! libsodium is as fast as it was meant to be.
#![allow(missing_docs)]

use std::time::{Duration, Instant};

use bytes::Bytes;
use norfab_transport::{
    Context, Dealer, DealerKeys, DealerLink, DealerOptions, KeyPair, LinkStatus, Router, RouterLink, RouterOptions,
};

/// The portable fallbacks (no SIMD, or no optimisation) reach about 35 MB/s encrypted; what is built here does ten times that.
#[test]
fn encryption_is_fast_in_every_profile() {
    const BYTES: usize = 10_000_000;
    const ROUNDS: usize = 10;
    let context = Context::new();
    let keys = KeyPair::generate();
    let options = RouterOptions { keys: Some(keys.clone()), ..RouterOptions::default() };
    let mut router = Router::bind(&context, "tcp://127.0.0.1:0", options).unwrap();
    let dealer_keys = DealerKeys { own: KeyPair::generate(), broker: keys.public };
    let options = DealerOptions { keys: Some(dealer_keys), ..DealerOptions::default() };
    let mut dealer = Dealer::connect(&context, &router.endpoint(), b"fast", options).unwrap();
    let until = Instant::now() + Duration::from_secs(60);
    while dealer.next_status() != Some(LinkStatus::Connected) {
        assert!(Instant::now() < until);
        router.wait(Some(Duration::from_millis(1))).unwrap();
        dealer.wait(Some(Duration::ZERO), false).unwrap();
    }
    let frame = Bytes::from(vec![1; BYTES]);
    // CPU time, because other tests run beside this one; each byte is encrypted and decrypted.
    let before = cpu_seconds();
    for _ in 0..ROUNDS {
        dealer.try_send(std::slice::from_ref(&frame)).unwrap();
        while router.try_receive().unwrap().is_none() {
            assert!(Instant::now() < until);
            dealer.wait(Some(Duration::from_micros(100)), false).unwrap();
            router.wait(Some(Duration::from_micros(100))).unwrap();
        }
    }
    let rate = (BYTES * ROUNDS) as f64 / (cpu_seconds() - before) / 1e6;
    println!("{rate:.0} MB/s of CPU time, encrypted and decrypted");
    assert!(rate > 80.0, "only {rate:.0} MB/s");
}

fn cpu_seconds() -> f64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}
