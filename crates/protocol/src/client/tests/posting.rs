//! What becomes of POSTs that wait to leave when the connection is lost.

use super::*;
use crate::frame::Frames;

/// The frames of the POST that a job is sent with, which stay here.
fn post_of(bench: &mut Bench, job: &str, seconds: f64) -> Option<Frames> {
    bench.now += Duration::from_secs_f64(seconds);
    bench.client.timeout(bench.now);
    let mut post = None;
    while let Some(output) = bench.client.poll_output() {
        if let ClientOutput::Send(frames, _) = output
            && (Command::from_frame(&frames[2]), &frames[5][..]) == (Some(Command::Post), job.as_bytes())
        {
            post = Some(frames);
        }
    }
    post
}

fn submitted(bench: &mut Bench, job: &str) -> Frames {
    let request = JobRequest { body: Bytes::from_static(br#"{"fabric":1}"#), ..bench.request(job, "any") };
    bench.client.submit(request);
    bench.client.stored(bench.now, ClientToken(id(job)), Ok(()));
    post_of(bench, job, 0.0).expect("it is posted")
}

#[test]
fn a_first_post_that_did_not_leave_is_one_on_the_next_connection_and_says_what_is_left() {
    let mut bench = Bench::new();
    let post = submitted(&mut bench, "1");
    bench.client.disconnected();
    bench.after(3.0);
    bench.client.has_not_left(&id("1"), &post);
    bench.client.connected(bench.now);
    let post = post_of(&mut bench, "1", 1.0).expect("nobody has to be asked who has it");
    let body: serde_json::Value = serde_json::from_slice(&post[6]).expect("JSON");
    assert!(body["again"].is_null(), "{body}");
    assert!(body["remaining"].as_f64().is_some_and(|left| left <= 57.0), "{body}");
}

#[test]
fn a_repeated_post_that_did_not_leave_goes_to_no_broker_that_may_choose_again() {
    let mut bench = Bench::new();
    submitted(&mut bench, "1");
    bench.dispatched("2", &[]);
    // The broker that had the first POST says who it is; so the second one is safe there.
    bench.client.learn_run(Some(1));
    let post = post_of(&mut bench, "1", 12.0).expect("it is posted again to the broker that remembers it");
    bench.client.disconnected();
    bench.client.has_not_left(&id("1"), &post);
    bench.client.connected(bench.now);
    for _ in 0..20 {
        assert!(post_of(&mut bench, "1", 1.0).is_none(), "another worker may have it");
    }
}
