//! What a client holds in memory while its broker is away and jobs go on being submitted, and whether all of them are done once the
//! broker is back.

use norfab_peer_tests::{Job, Security, Side, Site};
use serde_json::json;

use crate::figure::Plan;
use crate::machine::peak_megabytes;

/// Jobs that are submitted while the broker is away.
const JOBS: u32 = 20_000;

/// Seconds that the jobs have, and that their end is waited for.
const PATIENCE_SECONDS: u32 = 300;

/// Megabytes at the most, from the first submission to the end of the last job. A Python client does not get so far: what counts for
/// it is the time of the submissions only.
pub fn resident(_: &Plan, side: Side) -> f64 {
    let mut site = Site::new(Security::Curve);
    for name in ["w0", "w1"] {
        site = site.with_service(name, "bench");
    }
    let mut broker = site.start_broker(side);
    let _workers = site.start_workers(side, &["w0".to_owned(), "w1".to_owned()]);
    let mut client = site.start_client(side, "client");
    client.wait_for_workers(&["w0", "w1"]);
    broker.kill();
    let data = json!({"host": "r1", "command": "show version", "pad": "x".repeat(250)});
    let job = Job::new("bench", "echo").with("data", data).at("any").within(PATIENCE_SECONDS);
    client.submit_many(job, JOBS);
    let submitted = peak_megabytes(client.peer().id());
    if side != Side::Ours {
        return submitted;
    }
    let _broker = site.start_broker(side);
    let states = client.wait_for_all(PATIENCE_SECONDS);
    assert_eq!(states, json!({"COMPLETED": JOBS}), "after {submitted} MB when all were submitted");
    peak_megabytes(client.peer().id())
}
