//! What a client does with a job for any worker that one of them did not take.

use super::losses::{run, unknown};
use super::*;

fn has_no_room(job: &str, worker: &str) -> serde_json::Value {
    json!({"worker": worker, "uuid": job, "service": "s", "status": "REFUSED", "error": "full", "retry": true})
}

#[test]
fn the_word_on_a_question_to_a_worker_that_refused_a_job_is_not_taken_for_the_one_on_its_next_post() {
    // The worker's own answer to the question comes before or behind the word on the POST.
    for denies_first in [true, false] {
        let mut bench = Bench::new();
        bench.client.connected(bench.now);
        bench.posted("1", "any");
        bench.reply("0x05", "1", "202", run("1", "any", &["a"], 1, false));
        assert_eq!(bench.after(2.0).sent[0].0, Command::Get);
        bench.reply("0x05", "1", "400", has_no_room("1", "a"));
        assert_eq!(bench.after(1.0).sent[0].0, Command::Post);
        bench.reply("0x05", "1", "202", run("1", r#"["a"]"#, &["a"], 1, false));
        let denied = |bench: &mut Bench| bench.reply("0x05", "1", "404", unknown("1", "a")).sent;
        if denies_first {
            assert!(denied(&mut bench).is_empty(), "it is on its way to another one");
        }
        bench.reply("0x05", "1", "202", run("1", "any", &["b"], 1, false));
        if !denies_first {
            assert!(denied(&mut bench).is_empty(), "it is with the other one");
        }
        assert!(bench.accepted("1", "b").sent.is_empty());
        assert_eq!(bench.result("1", "b").outcome.map(|outcome| outcome.state), Some(JobState::Completed));
    }
}

#[test]
fn a_broker_that_remembers_a_job_and_names_another_worker_for_it_is_believed() {
    let mut bench = Bench::with_a_known_broker();
    bench.posted("1", "any");
    assert_eq!(bench.after(2.0).sent[0].0, Command::Post);
    bench.reply("0x05", "1", "202", run("1", "any", &["a"], 1, false));
    // That the first refused it was lost.
    bench.reply("0x05", "1", "202", run("1", "any", &["b"], 1, false));
    assert!(bench.accepted("1", "b").sent.is_empty(), "it is not turned away");
    bench.reply("0x05", "1", "202", run("1", "any", &["c"], 1, false));
    assert_eq!(bench.result("1", "b").outcome.map(|outcome| outcome.state), Some(JobState::Completed));
}

#[test]
fn other_words_of_a_broker_do_not_move_a_job() {
    let b_is_turned_away = |bench: &mut Bench| {
        assert_eq!(bench.accepted("1", "b").sent[0].0, Command::Delete);
        assert_eq!(bench.result("1", "a").outcome.map(|outcome| outcome.state), Some(JobState::Completed));
    };
    let with_a = |target: &str| {
        let mut bench = Bench::new();
        bench.client.connected(bench.now);
        bench.posted("1", target);
        bench.reply("0x05", "1", "202", run("1", target, &["a"], 1, false));
        bench
    };
    // That on a question to the other one.
    let mut bench = with_a("any");
    bench.reply("0x05", "1", "202", run("1", r#"["b"]"#, &["b"], 1, false));
    b_is_turned_away(&mut bench);
    // That of another broker, which remembers nothing of the first POST.
    let mut bench = with_a("any");
    bench.client.connected(bench.now);
    bench.drain();
    bench.reply("0x05", "1", "202", run("1", "any", &["b"], 2, false));
    b_is_turned_away(&mut bench);
    // A job for all is with those of its first POST.
    let mut bench = with_a("all");
    bench.reply("0x05", "1", "202", run("1", "all", &["b"], 1, false));
    assert_eq!(bench.result("1", "a").outcome.map(|outcome| outcome.state), Some(JobState::Completed));
}

/// As [`has_no_room`], of a worker that says which turn it refuses.
fn refuses_turn(job: &str, worker: &str, turn: u32) -> serde_json::Value {
    let mut body = has_no_room(job, worker);
    body["turn"] = turn.into();
    body
}

#[test]
fn a_refused_job_is_posted_in_a_later_turn_than_its_worker_refused() {
    let mut bench = Bench::new();
    bench.client.connected(bench.now);
    bench.posted("1", "any");
    bench.reply("0x05", "1", "202", run("1", "any", &["a"], 1, false));
    // A process before this one had come so far.
    bench.reply("0x05", "1", "400", refuses_turn("1", "a", 4));
    let sent = bench.after(0.2).sent;
    assert!(sent[0].0 == Command::Post && sent[0].2.contains("\"turn\":5"), "{sent:?}");
}

#[test]
fn a_job_that_nobody_has_room_for_is_posted_again_eight_times_ever_later() {
    let mut bench = Bench::new();
    bench.client.connected(bench.now);
    bench.posted("1", "any");
    let refused = |bench: &mut Bench, turn| {
        bench.reply("0x05", "1", "202", run("1", "any", &["a"], 1, false));
        bench.reply("0x05", "1", "400", refuses_turn("1", "a", turn))
    };
    for turn in 0..8 {
        assert!(refused(&mut bench, turn).outcome.is_none());
        assert!(bench.after(0.2 * f64::from(turn) + 0.1).sent.is_empty(), "{turn}");
        assert_eq!(bench.after(0.1).sent.iter().map(|sent| sent.0).collect::<Vec<_>>(), [Command::Post], "{turn}");
    }
    assert_eq!(refused(&mut bench, 8).outcome.map(|outcome| outcome.state), Some(JobState::Failed));
}

#[test]
fn a_refusal_of_a_turn_that_has_passed_is_no_refusal_of_the_job() {
    let mut bench = Bench::new();
    bench.client.connected(bench.now);
    bench.posted("1", "any");
    bench.reply("0x05", "1", "202", run("1", "any", &["a"], 1, false));
    bench.reply("0x05", "1", "400", refuses_turn("1", "a", 0));
    assert_eq!(bench.after(0.2).sent[0].0, Command::Post);
    bench.reply("0x05", "1", "202", run("1", "any", &["a"], 1, false));
    // It was posted twice in the first turn, and both were refused. In the second the same worker takes it.
    bench.reply("0x05", "1", "400", refuses_turn("1", "a", 0));
    assert!(bench.after(0.9).sent.iter().all(|sent| sent.0 == Command::Get), "it is not posted elsewhere");
    assert_eq!(bench.client.state(&id("1")), Some(JobState::Dispatched));
    bench.client.cancel(bench.now, &id("1"), "cancelled by me".to_owned());
    bench.client.stored(bench.now, ClientToken(id("1")), Ok(()));
    bench.drain();
    let ended = bench.reply("0x05", "1", "400", refuses_turn("1", "a", 0));
    assert!(ended.outcome.is_none(), "nor is it a confirmation that the job does not run");
}

#[test]
fn who_refuses_its_part_of_a_job_for_one_of_each_service_is_named_and_the_others_keep_theirs() {
    let mut bench = Bench::new();
    bench.client.connected(bench.now);
    let request = JobRequest { service: ServiceName::parse("all").expect("a name"), ..bench.request("1", "any") };
    bench.client.submit(request);
    bench.client.stored(bench.now, ClientToken(id("1")), Ok(()));
    bench.drain();
    bench.reply("0x05", "1", "202", run("1", "any", &["of-one", "of-another"], 1, false));
    assert!(bench.reply("0x05", "1", "400", refuses_turn("1", "of-one", 0)).outcome.is_none());
    assert!(bench.after(0.5).sent.is_empty(), "nobody else has what it would have returned");
    let outcome = bench.result("1", "of-another").outcome.expect("all have said something");
    assert_eq!(outcome.state, JobState::Failed);
    assert_eq!(outcome.missing, [(name("of-one"), Lost::Refused("full".to_owned()))]);
}

#[test]
fn the_brokers_word_on_a_post_is_not_taken_for_that_on_a_later_one() {
    let refused = |turn: u32| {
        json!({"workers": null, "uuid": "1", "target": "any", "status": "FAILED", "service": "s", "errors": ["nobody"], "retry": true,
            "turn": turn})
    };
    let mut bench = Bench::new();
    bench.client.connected(bench.now);
    bench.posted("1", "any");
    bench.reply("0x05", "1", "400", refused(0));
    let sent = bench.after(0.5).sent;
    assert!(sent.len() == 1 && sent[0].2.contains("\"turn\":1"), "{sent:?}");
    // The first was on its way twice. Whoever has the second may run it already: on another connection it is asked who does.
    bench.reply("0x05", "1", "400", refused(0));
    bench.client.disconnected();
    bench.client.connected(bench.now);
    bench.drain();
    let sent = bench.after(RETURN_TIME.as_secs_f64()).sent;
    assert_eq!(sent.iter().map(|sent| sent.0).collect::<Vec<_>>(), [Command::Get], "{sent:?}");
}

#[test]
fn a_named_worker_whose_refusal_was_lost_is_posted_the_job_in_a_later_turn() {
    let mut bench = Bench::new();
    bench.client.connected(bench.now);
    bench.posted("1", r#"["a","b"]"#);
    bench.reply("0x05", "1", "202", run("1", r#"["a","b"]"#, &["a", "b"], 1, false));
    // The first POST was refused, and nobody heard of it.
    let sent = bench.reply("0x05", "1", "404", unknown("1", "a")).sent;
    assert!(sent.len() == 1 && sent[0].1 == r#"["a"]"# && sent[0].2.contains("\"turn\":1"), "{sent:?}");
    // The lost word is only late, which says nothing of the second POST. That of another worker on the first counts.
    bench.reply("0x05", "1", "400", refuses_turn("1", "a", 0));
    bench.reply("0x05", "1", "400", refuses_turn("1", "b", 0));
    bench.accepted("1", "a");
    let outcome = bench.result("1", "a").outcome.expect("both have said something");
    assert_eq!(outcome.missing, [(name("b"), Lost::Refused("full".to_owned()))]);
}

#[test]
fn a_worker_whose_refusal_is_of_a_turn_that_has_passed_is_asked_whether_it_has_the_job() {
    let mut bench = Bench::new();
    bench.client.connected(bench.now);
    bench.posted("1", "any");
    bench.reply("0x05", "1", "202", run("1", "any", &["a"], 1, false));
    bench.reply("0x05", "1", "400", refuses_turn("1", "a", 0));
    // The twin of the first POST went to another one, which has no room either.
    bench.reply("0x05", "1", "202", run("1", "any", &["b"], 1, false));
    bench.reply("0x05", "1", "400", refuses_turn("1", "b", 0));
    let sent = bench.after(0.0).sent;
    assert_eq!(sent.first().map(|sent| (sent.0, &*sent.1)), Some((Command::Get, r#"["b"]"#)), "{sent:?}");
}

#[test]
fn who_refused_a_job_for_all_is_not_posted_it_again_because_it_does_not_know_it() {
    let mut bench = Bench::new();
    bench.client.connected(bench.now);
    bench.posted("1", "all");
    bench.reply("0x05", "1", "202", run("1", "all", &["a", "b"], 1, false));
    assert_eq!(bench.after(1.0).sent[0].0, Command::Get);
    bench.reply("0x05", "1", "400", refuses_turn("1", "a", 0));
    assert!(bench.reply("0x05", "1", "404", unknown("1", "a")).sent.is_empty(), "it is told as refused");
    let outcome = bench.result("1", "b").outcome.expect("both have said something");
    assert_eq!(outcome.missing, [(name("a"), Lost::Refused("full".to_owned()))]);
}

#[test]
fn the_brokers_word_on_a_post_is_not_taken_for_that_on_the_cancellation() {
    let mut bench = Bench::new();
    bench.client.connected(bench.now);
    bench.posted("1", "a");
    assert_eq!(bench.after(2.0).sent[0].0, Command::Post);
    bench.cancel("1", "cancelled by me at noon");
    // Nobody was there for the first POST. There was for the second.
    let refused =
        json!({"workers": null, "uuid": "1", "target": "a", "status": "FAILED", "service": "s", "errors": ["nobody"]});
    let mut of_a_post = refused.clone();
    of_a_post["turn"] = 0.into();
    assert!(bench.reply("0x05", "1", "400", of_a_post).outcome.is_none());
    assert_eq!(bench.client.unfinished(), 1);
    assert!(bench.reply("0x05", "1", "400", refused).outcome.is_some(), "nobody is there to have it");
}

#[test]
fn a_refusal_whose_turn_is_none_is_a_refusal() {
    for turn in [json!(-1), json!(1e99), json!("x"), json!(null)] {
        let mut bench = Bench::new();
        bench.client.connected(bench.now);
        bench.posted("1", "any");
        bench.reply("0x05", "1", "202", run("1", "any", &["a"], 1, false));
        let mut body = has_no_room("1", "a");
        body["turn"] = turn.clone();
        bench.reply("0x05", "1", "400", body);
        assert_eq!(bench.after(0.2).sent[0].0, Command::Post, "{turn}");
    }
}
