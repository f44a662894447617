//! What becomes of a job for any worker that turns up at two.

use super::losses::{run, unknown};
use super::*;

impl Bench {
    /// A job is with `a` of a broker of ours, and `b` turns up with it, too, and is told.
    fn with_a_second_one() -> Self {
        let mut bench = Self::new();
        bench.client.connected(bench.now);
        bench.posted("1", "any");
        bench.reply("0x05", "1", "202", run("1", "any", &["a"], 1, false));
        let sent = bench.accepted("1", "b").sent;
        assert!(sent[0].0 == Command::Delete && sent[0].1 == r#"["b"]"#, "{sent:?}");
        bench
    }

    fn gives_up(&mut self, worker: &str) -> Did {
        self.reply("0x05", "1", "200", json!({ worker: {"taken_back": true, "failed": true} }))
    }

    fn refuses(&mut self, worker: &str) -> Did {
        let body =
            json!({"worker": worker, "uuid": "1", "service": "s", "status": "REFUSED", "error": "full", "retry": true});
        self.reply("0x05", "1", "400", body)
    }

    fn asked_all(&mut self) -> Did {
        self.reply("0x05", "1", "202", run("1", "all", &["a", "b"], 1, false))
    }
}

fn commands(did: &Did) -> Vec<Command> {
    did.sent.iter().map(|sent| sent.0).collect()
}

#[test]
fn the_result_of_one_that_was_turned_away_ends_a_job_that_nobody_else_has() {
    let mut bench = Bench::with_a_second_one();
    // The first never stored it. Whether the other one runs it is asked before it is posted anew.
    let did = bench.reply("0x05", "1", "404", unknown("1", "a"));
    assert!(!commands(&did).contains(&Command::Post), "{did:?}");
    assert_eq!(commands(&bench.after(0.0)), [Command::Get]);
    let did = bench.accepted("1", "b");
    assert!(did.sent.is_empty() && did.rows.is_empty(), "it may give it up: {did:?}");
    let did = bench.result("1", "b");
    assert_eq!(did.outcome.map(|outcome| outcome.state), Some(JobState::Completed));
}

#[test]
fn a_job_that_one_worker_gave_up_and_the_other_never_had_is_posted_anew() {
    let mut bench = Bench::with_a_second_one();
    bench.reply("0x05", "1", "404", unknown("1", "a"));
    assert_eq!(commands(&bench.after(0.0)), [Command::Get]);
    bench.asked_all();
    assert!(bench.reply("0x05", "1", "404", unknown("1", "a")).sent.is_empty(), "the other one may run it");
    let did = bench.gives_up("b");
    assert!(did.outcome.is_none() && did.results.is_empty(), "that is no result: {did:?}");
    assert_eq!(commands(&did), [Command::Post]);
    bench.reply("0x05", "1", "202", run("1", "any", &["a"], 1, false));
    assert_eq!(bench.result("1", "a").outcome.map(|outcome| outcome.state), Some(JobState::Completed));
}

#[test]
fn a_refused_job_is_not_posted_to_a_third_while_one_that_was_turned_away_may_run_it() {
    for gives_up in [false, true] {
        let mut bench = Bench::with_a_second_one();
        if gives_up {
            assert!(bench.gives_up("b").sent.is_empty(), "it is with the first");
        }
        bench.refuses("a");
        let expected = if gives_up { Command::Post } else { Command::Get };
        assert_eq!(commands(&bench.after(0.2)), [expected]);
        if !gives_up {
            bench.asked_all();
            bench.reply("0x05", "1", "404", unknown("1", "a"));
            bench.reply("0x05", "1", "300", json!({"worker": "b", "uuid": "1", "status": "PENDING", "service": "s"}));
            for _ in 0..20 {
                assert!(!commands(&bench.after(1.0)).contains(&Command::Post));
            }
            assert_eq!(bench.result("1", "b").outcome.map(|outcome| outcome.state), Some(JobState::Completed));
        }
    }
}

#[test]
fn one_that_was_turned_away_and_is_gone_holds_up_the_job_until_it_is_back() {
    let mut bench = Bench::with_a_second_one();
    bench.reply("0x05", "1", "404", unknown("1", "a"));
    bench.after(0.0);
    bench.reply("0x05", "1", "202", run("1", "all", &["a"], 1, false));
    assert!(bench.reply("0x05", "1", "404", unknown("1", "a")).sent.is_empty());
    assert_eq!(commands(&bench.after(2.0)), [Command::Get]);
    bench.asked_all();
    bench.reply("0x05", "1", "404", unknown("1", "a"));
    assert_eq!(commands(&bench.reply("0x05", "1", "404", unknown("1", "b"))), [Command::Post]);
}

#[test]
fn a_worker_that_the_broker_chose_and_that_gave_the_job_up_before_does_not_end_it() {
    let mut bench = Bench::with_a_second_one();
    bench.gives_up("b");
    bench.refuses("a");
    assert_eq!(commands(&bench.after(0.2)), [Command::Post]);
    bench.reply("0x05", "1", "202", run("1", "any", &["b"], 1, false));
    // It was about to give it up when the POST came.
    bench.accepted("1", "b");
    let did = bench.gives_up("b");
    assert!(did.outcome.is_none() && did.results.is_empty(), "{did:?}");
    assert!(did.sent[0].0 == Command::Post && did.sent[0].2.contains("\"turn\":2"), "{did:?}");
    bench.refuses("b");
    bench.reply("0x05", "1", "202", run("1", "any", &["a"], 1, false));
    assert_eq!(bench.result("1", "a").outcome.map(|outcome| outcome.state), Some(JobState::Completed));
}

#[test]
fn one_that_gave_a_job_up_has_confirmed_its_cancellation() {
    let mut bench = Bench::new();
    bench.client.connected(bench.now);
    bench.posted("1", "any");
    bench.reply("0x05", "1", "202", run("1", "any", &["a"], 1, false));
    bench.cancel("1", "cancelled by me");
    let did = bench.gives_up("a");
    assert!(did.results.is_empty(), "{did:?}");
    assert_eq!(did.outcome.map(|outcome| outcome.state), Some(JobState::Cancelled));
}

#[test]
fn one_that_goes_on_with_a_job_that_another_one_has_is_told_again_and_who_has_ended_it_is_not() {
    let mut bench = Bench::with_a_second_one();
    assert!(bench.accepted("1", "b").sent.is_empty(), "at most once a second");
    bench.now += Duration::from_secs(1);
    let sent = bench.event("1", "b", "progress", "running", json!({})).sent;
    assert!(sent[0].0 == Command::Delete && sent[0].1 == r#"["b"]"# && sent[0].2.contains("back"), "{sent:?}");
    bench.now += Duration::from_secs(1);
    assert!(bench.result("1", "b").sent.is_empty(), "nothing runs there any more");
}

#[test]
fn a_cancellation_is_told_to_one_that_was_to_give_the_job_up_and_waits_for_the_others_only() {
    let mut bench = Bench::with_a_second_one();
    let sent = bench.cancel("1", "cancelled by me").sent;
    assert!(sent[0].0 == Command::Delete && sent[0].1 == r#"["a","b"]"#, "{sent:?}");
    let answer = json!({"workers": ["a", "b"], "uuid": "1", "target": r#"["a","b"]"#, "status": "DISPATCHED", "service": "s",
        "holders": ["a"], "fabric": 1, "run": 1});
    assert!(bench.reply("0x05", "1", "202", answer).outcome.is_none());
    let did = bench.result("1", "a");
    assert_eq!(did.outcome.map(|outcome| outcome.state), Some(JobState::Cancelled));
    // One that turns up behind the cancellation is told of that.
    let mut bench = Bench::new();
    bench.client.connected(bench.now);
    bench.posted("1", "any");
    bench.reply("0x05", "1", "202", run("1", "any", &["a"], 1, false));
    bench.cancel("1", "cancelled by me");
    let sent = bench.accepted("1", "b").sent;
    assert!(sent[0].1 == r#"["b"]"# && sent[0].2.contains("cancelled by me"), "{sent:?}");
}
