//! What a client takes for the confirmation of a cancellation, and what not.

use super::cancel::{TEXT, delete, not_found};
use super::*;

#[test]
fn who_cancels_a_second_time_changes_nothing() {
    let mut bench = Bench::new();
    bench.posted("1", "any");
    bench.dispatched("1", &["a"]);
    bench.cancel("1", TEXT);
    assert!(bench.client.cancel(bench.now, &id("1"), "cancelled by another one".to_owned()));
    assert!(bench.client.poll_output().is_none());
    assert_eq!((bench.client.held(), bench.client.unfinished()), (0, 1), "it counts once");
    let outcome = bench.reply("0x05", "1", "404", not_found("a")).outcome.expect("the end");
    assert_eq!(outcome.errors, [TEXT]);
    assert_eq!((bench.client.held(), bench.client.unfinished()), (0, 0));
}

#[test]
fn what_waits_of_a_job_does_not_leave_any_more_once_it_is_cancelled() {
    let mut bench = Bench::new();
    bench.posted("1", "any");
    bench.client.cancel(bench.now, &id("1"), TEXT.to_owned());
    let Some(ClientOutput::Forget(job)) = bench.client.poll_output() else { panic!("its POST may wait in a queue") };
    assert_eq!(job, id("1"));
}

#[test]
fn that_a_cancellation_cannot_be_written_down_is_noted() {
    let mut bench = Bench::new();
    bench.posted("1", "any");
    bench.client.cancel(bench.now, &id("1"), TEXT.to_owned());
    bench.drain();
    bench.client.stored(bench.now, ClientToken(id("1")), Err("disk full".into()));
    let mut noted = Vec::new();
    while let Some(output) = bench.client.poll_output() {
        if let ClientOutput::Note(note) = output {
            noted.push(note);
        }
    }
    assert!(
        matches!(&noted[..], [ClientNote::CancelNotStored { job, error }] if *job == id("1") && error == "disk full"),
        "{noted:?}"
    );
    let outcome = bench.after(CANCEL_PATIENCE.as_secs_f64()).outcome.expect("nobody confirms");
    assert!(outcome.errors[1].contains("disk full"), "{:?}", outcome.errors);
}

#[test]
fn a_new_connection_tells_at_once_what_was_told_ever_more_seldom() {
    let mut bench = Bench::new();
    bench.posted("1", "a");
    bench.dispatched("1", &["a"]);
    bench.cancel("1", TEXT);
    (0..30).for_each(|_| drop(bench.after(1.0)));
    assert!(bench.after(1.0).sent.is_empty());
    bench.client.connected(bench.now);
    assert_eq!(bench.after(0.0).sent, [delete(r#"["a"]"#)]);
}

#[test]
fn a_worker_that_was_hardly_told_is_not_given_up_however_long_ago_that_was() {
    let mut bench = Bench::cancelled_with_time("a", &["a"]);
    bench.handed_on("1", &["a"], &["a"]);
    bench.client.disconnected();
    bench.after(CANCEL_ANSWER_MAX.as_secs_f64() + 1.0);
    bench.client.connected(bench.now);
    assert_eq!(bench.after(1.0).sent, [delete(r#"["a"]"#)]);
    bench.handed_on("1", &["a"], &["a"]);
    assert_eq!(bench.client.unfinished(), 1, "it had no time to answer");
    bench.handed_on("1", &["a"], &["a"]);
    assert_eq!(bench.client.unfinished(), 0);
}

#[test]
fn a_worker_of_which_a_broker_knows_nothing_may_have_the_job_unless_that_is_said_to_be_all() {
    let mut bench = Bench::new();
    bench.posted("1", "all");
    bench.dispatched("1", &["a", "b"]);
    bench.cancel("1", TEXT);
    bench.handed_on("1", &["a"], &["a"]);
    assert!(bench.result("1", "a").outcome.is_none(), "a broker that was restarted does not know b");
    assert!(bench.reply("0x05", "1", "404", not_found("b")).outcome.is_some());

    let mut bench = Bench::new();
    bench.posted("1", "all");
    bench.dispatched("1", &["a", "b"]);
    bench.accepted("1", "b");
    bench.cancel("1", TEXT);
    let all = json!({"workers": ["a"], "uuid": "1", "target": "x", "status": "DISPATCHED", "service": "s", "fabric": 1,
        "holders": ["a"], "whole": true});
    bench.reply("0x05", "1", "202", all);
    assert!(bench.result("1", "a").outcome.is_none(), "b said that it has it, whatever the broker says");
    assert!(bench.reply("0x05", "1", "404", not_found("b")).outcome.is_some());
}

#[test]
fn who_has_returned_its_result_is_not_given_up_afterwards() {
    let mut bench = Bench::cancelled_with_time("all", &["a", "b", "c"]);
    for _ in 0..3 {
        bench.handed_on("1", &["a", "b"], &["a", "b", "c"]);
    }
    bench.result("1", "a");
    bench.after(CANCEL_ANSWER_MAX.as_secs_f64());
    bench.handed_on("1", &["b"], &["a", "b", "c"]);
    let missing = [(name("c"), Lost::CancelUntold), (name("b"), Lost::CancelUnanswered)];
    assert_eq!(bench.client.missing(&id("1")), missing);
}

#[test]
fn that_nobody_is_there_to_be_told_confirms_nothing_where_somebody_may_have_the_job() {
    let nobody = || json!({"workers":null,"uuid":"1","target":"a","status":"FAILED","service":"s","errors":["nobody"]});
    // It went to one who has not said anything and is away.
    let mut bench = Bench::new();
    bench.posted("1", "a");
    bench.dispatched("1", &["a"]);
    bench.cancel("1", TEXT);
    assert!(bench.reply("0x05", "1", "400", nobody()).outcome.is_none());
    assert_eq!(bench.client.unfinished(), 1);
    // Another broker may have handed it on.
    let mut bench = Bench::new();
    bench.client.connected(bench.now);
    bench.posted("1", "a");
    bench.client.connected(bench.now);
    bench.cancel("1", TEXT);
    assert!(bench.reply("0x05", "1", "400", nobody()).outcome.is_none());
    assert_eq!(bench.client.unfinished(), 1);
}

#[test]
fn a_job_that_is_cancelled_before_it_turns_out_that_it_cannot_be_stored_ends_as_cancelled() {
    let mut bench = Bench::new();
    let request = bench.request("1", "any");
    bench.client.submit(request);
    bench.client.cancel(bench.now, &id("1"), TEXT.to_owned());
    bench.client.stored(bench.now, ClientToken(id("1")), Err("disk full".into()));
    let did = bench.drain();
    let outcome = did.outcome.expect("the end");
    assert_eq!((outcome.state, did.sent.len()), (JobState::Cancelled, 0));
    assert!(outcome.errors[0] == TEXT && outcome.errors[1].contains("disk full"), "{:?}", outcome.errors);
}

#[test]
fn an_answer_to_a_job_that_is_cancelled_goes_nowhere_and_its_question_is_closed() {
    let mut bench = Bench::new();
    bench.posted("1", "any");
    bench.dispatched("1", &["a"]);
    bench.asked("1", "a", "q1");
    // The cancellation waits for the store, and the answer would be there first.
    bench.client.cancel(bench.now, &id("1"), TEXT.to_owned());
    assert!(bench.client.open_questions(&id("1")).is_empty());
    let response =
        InputResponse { input_id: "q1".into(), value: Some(json!(true)), cancel: false, metadata: json!({}) };
    bench.client.answer(&id("1"), None, &response);
    bench.client.stored(bench.now, ClientToken(id("1")), Ok(()));
    assert_eq!(bench.drain().sent.iter().map(|sent| sent.0).collect::<Vec<_>>(), [Command::Delete]);
    bench.client.connected(bench.now);
    assert!(bench.drain().sent.iter().all(|sent| sent.0 == Command::Delete), "nor later");
}

#[test]
fn the_row_of_a_cancelled_job_names_who_has_not_confirmed_it_and_nobody_who_did_later() {
    for late in [true, false] {
        let mut bench = Bench::new();
        bench.posted("1", "all");
        bench.dispatched("1", &["a", "b"]);
        bench.cancel("1", TEXT);
        bench.handed_on("1", &["a", "b"], &["a", "b"]);
        bench.reply("0x05", "1", "404", not_found("a"));
        let told = bench.after(CANCEL_PATIENCE.as_secs_f64()).outcome.expect("its caller waits no longer");
        assert!(told.missing.contains(&(name("b"), Lost::CancelUnanswered)), "{told:?}");
        if late {
            bench.client_message("1", "404", not_found("b"));
        } else {
            bench.now += Duration::from_secs(60);
            bench.client.timeout(bench.now);
        }
        let mut last = None;
        while let Some(output) = bench.client.poll_output() {
            if let ClientOutput::Store(ClientStoreOperation::Progress(progress), _) = output {
                last = Some(progress);
            }
        }
        let last = last.expect("its end is stored");
        assert_eq!((last.state, &*last.errors[0]), (JobState::Cancelled, TEXT));
        let unconfirmed: Vec<bool> = last.errors[1..].iter().map(|error| error.starts_with("worker b: ")).collect();
        assert_eq!(unconfirmed, vec![true; usize::from(!late)], "{last:?}");
    }
}

#[test]
fn a_worker_that_refused_the_job_before_it_was_cancelled_has_nothing_to_confirm() {
    let mut bench = Bench::new();
    bench.posted("1", "all");
    bench.dispatched("1", &["a", "b"]);
    let full = json!({"worker": "b", "uuid": "1", "service": "s", "status": "REFUSED", "error": "full", "retry": true});
    bench.reply("0x05", "1", "400", full);
    bench.cancel("1", TEXT);
    let did = bench.reply("0x05", "1", "404", not_found("a"));
    assert_eq!(did.rows.last().expect("the end is stored").errors, [TEXT]);
    let outcome = did.outcome.expect("the end");
    assert_eq!(outcome.missing, [(name("a"), Lost::Cancelled), (name("b"), Lost::Refused("full".to_owned()))]);
}

#[test]
fn a_worker_that_was_away_has_its_time_to_confirm_anew() {
    for away in ["202", "400"] {
        let mut bench = Bench::cancelled_with_time("a", &["a"]);
        for _ in 0..2 {
            bench.handed_on("1", &["a"], &["a"]);
        }
        // Its process ended. When it is back it is told at once.
        match away {
            "202" => bench.handed_on("1", &[], &["a"]),
            _ => bench.reply(
                "0x05",
                "1",
                "400",
                json!({"workers":null,"uuid":"1","target":"a","status":"FAILED","service":"s"}),
            ),
        };
        bench.after(CANCEL_ANSWER_MAX.as_secs_f64());
        bench.handed_on("1", &["a"], &["a"]);
        assert_eq!(bench.client.unfinished(), 1, "it had no time to answer");
        assert_eq!(bench.client.missing(&id("1")), [(name("a"), Lost::CancelUnanswered)], "it was told before");
        bench.handed_on("1", &["a"], &["a"]);
        bench.after(CANCEL_ANSWER_MAX.as_secs_f64());
        bench.handed_on("1", &["a"], &["a"]);
        assert_eq!(bench.client.unfinished(), 0);
    }
}

#[test]
fn a_silent_worker_is_given_up_however_often_somebody_else_cancels_the_job_too() {
    let mut bench = Bench::cancelled_with_time("a", &["a"]);
    let word = json!({"workers": null, "uuid": "1", "target": "a", "status": "CANCELLED", "service": "s", "errors": ["by x"],
        "error": "by x"});
    for _ in 0..3 {
        bench.handed_on("1", &["a"], &["a"]);
        bench.reply("0x05", "1", "400", word.clone());
        bench.after(CANCEL_ANSWER_MAX.as_secs_f64() / 2.0);
    }
    bench.handed_on("1", &["a"], &["a"]);
    assert_eq!(bench.client.unfinished(), 0);
}

#[test]
fn the_end_of_a_cancelled_job_at_a_worker_that_knows_no_cancellations_is_asked_for() {
    let mut bench = Bench::cancelled_with_time("a", &["a"]);
    let sent = bench.event("1", "a", "result_ready", "completed", json!(null)).sent;
    assert_eq!(sent.iter().map(|sent| sent.0).collect::<Vec<_>>(), [Command::Get]);
    assert_eq!(bench.result("1", "a").outcome.map(|outcome| outcome.state), Some(JobState::Cancelled));
}

#[test]
fn of_a_cancelled_job_whose_deadline_passed_it_is_not_said_that_its_workers_are_away_and_will_be_told() {
    // A process before this one may have told them.
    let mut bench = Bench::new();
    let mut request = bench.request("1", "a");
    request.deadline = bench.now;
    let restored = RestoredClientJob {
        request,
        state: JobState::Cancelling,
        dispatched: vec![name("a")],
        started: vec![],
        completed: vec![],
        errors: vec![TEXT.to_owned()],
        ageless: false,
    };
    bench.client.restore(bench.now, restored);
    let outcome = bench.drain().outcome.expect("its deadline has passed");
    assert_eq!(outcome.missing, [(name("a"), Lost::CancelUnanswered)]);
}

#[test]
fn a_named_worker_that_was_away_when_a_job_was_posted_again_and_cancelled_may_have_it() {
    let mut bench = Bench::new();
    bench.client.connected(bench.now);
    bench.posted("1", r#"["a","b"]"#);
    bench.client.disconnected();
    bench.client.connected(bench.now);
    let mut sent = bench.drain().sent;
    sent.extend(bench.after(1.0).sent);
    assert_eq!(sent[0].0, Command::Post);
    bench.cancel("1", TEXT);
    bench.dispatched_of("1", r#"["a","b"]"#, &["a"]);
    assert!(bench.result("1", "a").outcome.is_none(), "b may have the first POST");
    assert!(bench.reply("0x05", "1", "404", not_found("b")).outcome.is_some());
}
