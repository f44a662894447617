//! What becomes of POSTs that wait to leave when the connection is lost, and of words that are looked at when there is another one.

use super::losses::{run, unknown};
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
    bench.client.has_not_left(bench.now, &id("1"), &post);
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
    bench.client.has_not_left(bench.now, &id("1"), &post);
    bench.client.connected(bench.now);
    for _ in 0..20 {
        assert!(post_of(&mut bench, "1", 1.0).is_none(), "another worker may have it");
    }
}

#[test]
fn posts_that_did_not_leave_count_as_none_whichever_they_were() {
    let nobody = json!({"workers": null, "uuid": "1", "target": "any", "status": "FAILED", "service": "s", "errors": ["nobody"],
        "retry": true, "turn": 0});
    // One was refused, so that it went nowhere; or none left at all.
    for refused in [true, false] {
        let mut bench = Bench::new();
        let mut posts = vec![submitted(&mut bench, "1")];
        // So it may be posted again without a question.
        bench.client.learn_run(Some(1));
        if refused {
            bench.reply("0x05", "1", "400", nobody.clone());
            posts.clear();
        }
        posts.push(post_of(&mut bench, "1", 2.0).expect("it is posted again"));
        bench.client.disconnected();
        for post in posts {
            bench.client.has_not_left(bench.now, &id("1"), &post);
        }
        bench.client.connected(bench.now);
        let left = if refused { RETURN_TIME.as_secs_f64() + 1.0 } else { 1.0 };
        let post = post_of(&mut bench, "1", left).expect("nobody has to be asked who has it");
        let body: serde_json::Value = serde_json::from_slice(&post[6]).expect("JSON");
        assert_eq!(body["again"].as_bool(), refused.then_some(true), "{body}");
    }
}

#[test]
fn a_post_to_one_worker_that_did_not_leave_is_sent_when_the_worker_says_again_that_it_has_none() {
    let mut bench = Bench::new();
    bench.client.connected(bench.now);
    bench.posted("1", r#"["a","b"]"#);
    bench.reply("0x05", "1", "202", run("1", r#"["a","b"]"#, &["a", "b"], 1, false));
    bench.client_message("1", "404", unknown("1", "a"));
    let post = post_of(&mut bench, "1", 0.0).expect("it gets the job");
    assert_eq!(&post[4][..], br#"["a"]"#);
    bench.client.disconnected();
    bench.client.has_not_left(bench.now, &id("1"), &post);
    bench.client.connected(bench.now);
    bench.drain();
    let sent = bench.reply("0x05", "1", "404", unknown("1", "a")).sent;
    assert_eq!(sent.iter().map(|sent| sent.0).collect::<Vec<_>>(), [Command::Post]);
}

impl Bench {
    fn of_earlier(&mut self, status: &str, body: &serde_json::Value) -> Did {
        let frames = ["", "NFPB01", "0x05", "s", "1", status, &body.to_string()];
        let frames = frames.map(|part| Bytes::copy_from_slice(part.as_bytes()));
        self.client.message_of_earlier_connection(self.now, &frames);
        self.drain()
    }
}

#[test]
fn words_of_the_connection_before_do_not_say_which_broker_is_there_now_nor_who_has_a_job() {
    let mut bench = Bench::new();
    bench.client.connected(bench.now);
    bench.posted("0", "any");
    bench.reply("0x05", "0", "202", run("0", "any", &["a"], 1, false));
    bench.posted("1", "any");
    // The broker ends, and another one is there when this is looked at.
    bench.client.disconnected();
    bench.client.connected(bench.now);
    bench.drain();
    bench.of_earlier("202", &run("0", "any", &["a"], 1, false));
    let did = bench.after(RETURN_TIME.as_secs_f64());
    assert!(did.sent.iter().all(|sent| sent.0 == Command::Get), "it remembers nothing: {did:?}");
    // What was asked then is not what is asked now.
    let mut all = run("1", "all", &["a"], 2, false);
    bench.of_earlier("202", &all);
    assert!(bench.of_earlier("404", &unknown("1", "a")).sent.is_empty());
    all["workers"] = json!(["a", "b"]);
    bench.reply("0x05", "1", "202", all);
    assert!(bench.reply("0x05", "1", "404", unknown("1", "b")).sent.is_empty(), "the other one has not answered");
    let ended = bench.of_earlier("200", &json!({"a": {"result": 1}}));
    assert_eq!(ended.outcome.map(|outcome| outcome.state), Some(JobState::Completed), "a result is one");
}
