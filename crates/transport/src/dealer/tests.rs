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
