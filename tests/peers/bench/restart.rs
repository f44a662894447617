//! How long a fabric is without workers after its broker crashed and came back.

use std::thread;
use std::time::{Duration, Instant};

use norfab_peer_tests::{Dealer, Security, Side, Site, WAIT_LONG};
use serde_json::{Value, json};

use crate::figure::Plan;

/// How long the broker is away: shorter than the hold time of the workers.
const OUTAGE: Duration = Duration::from_secs(1);

/// Workers that must come back.
const WORKERS: usize = 4;

/// Seconds from the moment the broker is back until it knows all workers.
pub fn until_workers_serve(_: &Plan, side: Side) -> f64 {
    let mut site = Site::new(Security::Curve);
    let share = site.folder().join("share");
    std::fs::create_dir(&share).expect("a new folder");
    let names: Vec<String> = (0..WORKERS).map(|number| format!("w{number}")).collect();
    for name in &names {
        site = site.with_worker(name, json!({"service": "filesharing", "base_dir": share}));
    }
    let mut broker = site.start_broker(side);
    let _workers = site.start_workers(side, &names);
    let mut dealer = site.start_dealer(site.broker_key().as_deref());
    dealer.connect("before", "watcher-before");
    wait_for_all(&mut dealer, "before");
    broker.kill();
    thread::sleep(OUTAGE);
    let _broker = site.start_broker(side);
    let back = Instant::now();
    dealer.connect("after", "watcher-after");
    wait_for_all(&mut dealer, "after");
    back.elapsed().as_secs_f64()
}

fn wait_for_all(dealer: &mut Dealer, socket: &str) {
    let body = r#"{"task":"show_workers","kwargs":{}}"#;
    let start = Instant::now();
    while start.elapsed() < WAIT_LONG {
        dealer.send(socket, json!(["", "NFPC01", "0x11", "mmi.service.broker", "all", "watch", body]));
        // Every answer comes twice, as RESPONSE and as MMI.
        let answers = [(); 2].map(|()| dealer.receive(socket, 10.0).expect("the broker answers"));
        let text = answers[1][6].as_str().expect("JSON is text");
        let workers: Value = serde_json::from_str(text).expect("the broker answers with JSON");
        let named = workers.as_array().expect("a list").iter().filter(|worker| worker["name"] != "");
        if named.count() == WORKERS {
            return;
        }
        thread::sleep(Duration::from_millis(20));
    }
    panic!("the workers do not come back");
}
