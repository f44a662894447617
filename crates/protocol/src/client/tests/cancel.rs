//! The client's rules about cancellations.

use super::*;

pub(super) const TEXT: &str = "cancelled by me at noon: typo";

pub(super) fn delete(target: &str) -> (Command, String, String) {
    (Command::Delete, target.to_owned(), json!({ "text": TEXT, "ends": true }).to_string())
}

pub(super) fn not_found(worker: &str) -> serde_json::Value {
    json!({"worker": worker, "uuid": "1", "service": "s", "status": "CANCELLED"})
}

impl Bench {
    /// A job with more time than it takes to give workers up, which these got, and which was cancelled.
    pub(super) fn cancelled_with_time(target: &str, workers: &[&str]) -> Self {
        let mut bench = Self::new();
        let mut request = bench.request("1", target);
        request.deadline += Duration::from_secs(600);
        bench.client.submit(request);
        bench.client.stored(bench.now, ClientToken(id("1")), Ok(()));
        bench.dispatched("1", workers);
        bench.cancel("1", TEXT);
        bench
    }
}

#[test]
fn a_cancelled_job_ends_when_its_workers_have_confirmed_and_keeps_what_they_returned() {
    let mut bench = Bench::new();
    bench.posted("1", "all");
    bench.dispatched("1", &["a", "b", "c"]);
    bench.result("1", "a");
    let did = bench.cancel("1", TEXT);
    assert_eq!(did.sent, [delete(r#"["b","c"]"#)]);
    assert!(did.outcome.is_none());
    assert_eq!(bench.client.state(&id("1")), Some(JobState::Cancelling));
    bench.handed_on("1", &["b", "c"], &["a", "b", "c"]);
    let did = bench.result("1", "b");
    assert_eq!((did.results.len(), did.outcome.is_some()), (1, false), "what it did is kept");
    let outcome = bench.reply("0x05", "1", "404", not_found("c")).outcome.expect("the end");
    assert_eq!((outcome.state, outcome.errors), (JobState::Cancelled, vec![TEXT.to_owned()]));
    assert_eq!(outcome.missing, [(name("c"), Lost::Cancelled)]);
    assert!(bench.result("1", "c").results.is_empty(), "nothing comes after the end");
}

#[test]
fn a_worker_that_did_not_find_the_job_for_an_earlier_question_has_confirmed_nothing() {
    let mut bench = Bench::new();
    bench.posted("1", "any");
    bench.dispatched("1", &["a"]);
    bench.cancel("1", TEXT);
    let unknown = json!({"worker": "a", "uuid": "1", "service": "s", "status": "JOB NOT FOUND"});
    assert!(bench.reply("0x05", "1", "404", unknown).outcome.is_none(), "the POST may have come after it");
    assert!(bench.reply("0x05", "1", "404", not_found("a")).outcome.is_some());
}

#[test]
fn a_late_result_never_makes_a_cancelled_job_complete() {
    let mut bench = Bench::new();
    bench.posted("1", "any");
    bench.dispatched("1", &["a"]);
    bench.cancel("1", TEXT);
    let did = bench.result("1", "a");
    assert_eq!((did.results.len(), did.outcome.map(|outcome| outcome.state)), (1, Some(JobState::Cancelled)));
}

#[test]
fn a_job_that_can_be_nowhere_ends_at_once_when_it_is_cancelled() {
    let mut bench = Bench::new();
    bench.client.disconnected();
    let request = bench.request("1", "any");
    bench.client.submit(request);
    bench.client.stored(bench.now, ClientToken(id("1")), Ok(()));
    bench.drain();
    let did = bench.cancel("1", TEXT);
    assert_eq!((did.sent.len(), did.outcome.map(|outcome| outcome.state)), (0, Some(JobState::Cancelled)));
    bench.client.connected(bench.now);
    assert!(bench.drain().sent.is_empty(), "and it is not posted");
    assert!(!bench.client.cancel(bench.now, &id("ghost"), TEXT.to_owned()));
}

#[test]
fn nobody_is_told_of_a_cancellation_before_it_is_written_down() {
    let mut bench = Bench::new();
    bench.posted("1", "any");
    bench.client.cancel(bench.now, &id("1"), TEXT.to_owned());
    assert!(bench.drain().sent.is_empty());
    bench.client.connected(bench.now);
    assert!(bench.after(20.0).sent.is_empty(), "nor is it posted again");
    // Everything that would end it comes meanwhile.
    bench.dispatched("1", &["a"]);
    let did = bench.result("1", "a");
    assert_eq!((did.results.len(), did.outcome.is_some()), (1, false));
    assert_eq!(bench.client.unconfirmed(), 1, "a process that stops waits for it");
    bench.client.stored(bench.now, ClientToken(id("1")), Ok(()));
    assert_eq!(bench.drain().outcome.map(|outcome| outcome.state), Some(JobState::Cancelled));
    assert_eq!(bench.client.unfinished(), 0);
}

#[test]
fn a_cancellation_that_cannot_be_written_down_is_told_to_workers_and_its_end_says_so() {
    for target in ["a", "nobody"] {
        let mut bench = Bench::new();
        bench.client.disconnected();
        let request = bench.request("1", target);
        bench.client.submit(request);
        bench.client.stored(bench.now, ClientToken(id("1")), Ok(()));
        if target == "a" {
            bench.client.connected(bench.now);
            bench.dispatched("1", &["a"]);
        }
        bench.drain();
        bench.client.cancel(bench.now, &id("1"), TEXT.to_owned());
        assert!(bench.drain().sent.is_empty());
        bench.client.stored(bench.now, ClientToken(id("1")), Err("disk full".into()));
        let mut did = bench.drain();
        if target == "a" {
            assert_eq!(did.sent, [delete(r#"["a"]"#)], "to stop what runs is worth more");
            did = bench.reply("0x05", "1", "404", not_found("a"));
        }
        let outcome = did.outcome.expect("the end");
        assert_eq!((outcome.state, outcome.errors[0].as_str()), (JobState::Cancelled, TEXT));
        assert!(outcome.errors[1].contains("disk full"), "{:?}", outcome.errors);
    }
}

#[test]
fn a_worker_that_is_away_is_told_until_it_confirms_and_the_caller_does_not_wait_for_that() {
    let mut bench = Bench::new();
    bench.posted("1", "all");
    bench.dispatched("1", &["a", "b"]);
    bench.cancel("1", TEXT);
    bench.handed_on("1", &["a"], &["a", "b"]);
    bench.result("1", "a");
    let mut told = 0;
    let mut outcome = None;
    for _ in 0..10 {
        let did = bench.after(1.0);
        told += did.sent.iter().filter(|sent| **sent == delete(r#"["b"]"#)).count();
        outcome = outcome.or(did.outcome);
    }
    assert_eq!(told, 3, "after one, three and seven seconds");
    let outcome = outcome.expect("the caller's patience has ended");
    assert_eq!((outcome.state, outcome.missing), (JobState::Cancelled, vec![(name("b"), Lost::CancelUntold)]));
    assert!(bench.client.end_was_told(&id("1")));
    assert_eq!(bench.client.unfinished(), 1, "but it is not forgotten");
    // It returns.
    assert_eq!(bench.after(10.0).sent, [delete(r#"["b"]"#)]);
    let did = bench.result("1", "b");
    assert!(did.results.is_empty() && did.outcome.is_none(), "nothing is told after the end");
    assert_eq!((bench.client.unfinished(), bench.client.next_deadline()), (0, None));
}

#[test]
fn a_cancellation_survives_a_restart_and_ends_with_the_deadline() {
    let mut bench = Bench::new();
    bench.client.disconnected();
    let restored = RestoredClientJob {
        request: bench.request("1", "all"),
        state: JobState::Cancelling,
        dispatched: vec![name("a"), name("b")],
        started: vec![],
        completed: vec![name("a")],
        errors: vec![TEXT.to_owned()],
        ageless: false,
    };
    bench.client.restore(bench.now, restored);
    assert!(bench.drain().sent.is_empty());
    bench.client.connected(bench.now);
    let mut sent = bench.drain().sent;
    sent.extend(bench.after(1.0).sent);
    assert_eq!(sent, [delete(r#"["b"]"#)]);
    assert_eq!(bench.client.state(&id("1")), Some(JobState::Cancelling));
    let did = bench.after(60.0);
    assert_eq!(did.outcome.map(|outcome| outcome.state), Some(JobState::Cancelled), "not stale");
    assert_eq!(bench.client.unfinished(), 0);
}

#[test]
fn a_worker_that_never_confirms_is_given_up_by_name() {
    let mut bench = Bench::cancelled_with_time("a", &["a"]);
    let mut outcome = bench.handed_on("1", &["a"], &["a"]).outcome;
    for _ in 0..70 {
        let did = bench.after(1.0);
        outcome = outcome.or(did.outcome);
        for _ in did.sent {
            bench.handed_on("1", &["a"], &["a"]);
        }
    }
    let outcome = outcome.expect("the end");
    assert_eq!(outcome.missing, [(name("a"), Lost::CancelUnanswered)]);
    assert_eq!(bench.client.unfinished(), 0, "before its deadline");
}

#[test]
fn a_cancellation_before_it_is_known_who_has_the_job_goes_where_the_broker_remembers() {
    let mut bench = Bench::new();
    bench.posted("1", "any");
    assert_eq!(bench.cancel("1", TEXT).sent, [delete("all")]);
    assert!(bench.handed_on("1", &["a"], &["a"]).outcome.is_none());
    assert_eq!(bench.after(1.0).sent, [delete(r#"["a"]"#)]);
    assert_eq!(bench.result("1", "a").outcome.map(|outcome| outcome.state), Some(JobState::Cancelled));
}

#[test]
fn a_broker_that_had_the_post_and_remembers_nothing_says_that_nobody_has_the_job() {
    let mut bench = Bench::new();
    bench.posted("1", "any");
    bench.cancel("1", TEXT);
    let outcome = bench.handed_on("1", &["a", "b"], &[]).outcome.expect("the end");
    assert_eq!((outcome.state, outcome.missing.len()), (JobState::Cancelled, 0));
    // Another broker may have had it: whoever is away may have the job.
    bench.posted("2", "any");
    bench.client.connected(bench.now);
    bench.drain();
    bench.cancel("2", TEXT);
    assert!(bench.handed_on("2", &["a", "b"], &[]).outcome.is_none());
    assert_eq!(bench.after(1.0).sent, [delete("all")]);
    assert_eq!(bench.result("2", "c").outcome.map(|outcome| outcome.state), Some(JobState::Cancelled));
}

#[test]
fn a_refusal_of_the_post_ends_a_job_that_is_being_cancelled() {
    let mut bench = Bench::new();
    bench.posted("1", "x");
    bench.cancel("1", TEXT);
    let refused = json!({"workers":null,"uuid":"1","target":"x","status":"FAILED","service":"s","errors":["nobody"]});
    let outcome = bench.reply("0x05", "1", "400", refused).outcome.expect("the end");
    assert_eq!(outcome.state, JobState::Cancelled);
}

#[test]
fn questions_and_acceptances_do_not_bring_a_cancelled_job_back() {
    let mut bench = Bench::new();
    bench.posted("1", "any");
    bench.dispatched("1", &["a"]);
    bench.cancel("1", TEXT);
    bench.accepted("1", "a");
    let question = json!({"input_request": {"id": "q", "question": "?"}});
    assert!(bench.event("1", "a", "input_request", "waiting_client_input", question).questions.is_empty());
    bench.dispatched("1", &["a"]);
    assert_eq!(bench.client.state(&id("1")), Some(JobState::Cancelling));
}

#[test]
fn a_job_that_somebody_else_cancelled_ends_as_cancelled() {
    let mut bench = Bench::new();
    bench.posted("1", "all");
    bench.dispatched("1", &["a", "b"]);
    bench.result("1", "a");
    bench.event("1", "b", "progress", "cancelled", json!({"cancellation": {"text": TEXT}}));
    let outcome = bench.result("1", "b").outcome.expect("the end");
    assert_eq!((outcome.state, outcome.errors), (JobState::Cancelled, vec![TEXT.to_owned()]));
}

#[test]
fn a_result_tells_that_somebody_else_cancelled_the_job_where_the_event_was_missed() {
    let mut bench = Bench::new();
    bench.posted("1", "all");
    bench.dispatched("1", &["a", "b", "c"]);
    let did = bench.reply("0x05", "1", "200", json!({"a": {"cancelled": TEXT, "result": null}}));
    let row = did.rows.last().expect("it is written down at once, for the next process");
    assert_eq!((row.state, &row.errors), (JobState::Dispatched, &vec![TEXT.to_owned()]));
    bench.reply("0x05", "1", "200", json!({"b": {"cancelled": "by another one"}}));
    let outcome =
        bench.reply("0x05", "1", "200", json!({"c": {"result": {"cancelled": "9"}}})).outcome.expect("the end");
    assert_eq!((outcome.state, outcome.errors), (JobState::Cancelled, vec![TEXT.to_owned()]));
}

#[test]
fn a_job_that_somebody_else_cancelled_ends_as_cancelled_in_the_next_process_too() {
    let mut bench = Bench::new();
    let restored = RestoredClientJob {
        request: bench.request("1", "all"),
        state: JobState::Started,
        dispatched: vec![name("a"), name("b")],
        started: vec![],
        completed: vec![name("a")],
        errors: vec![TEXT.to_owned()],
        ageless: false,
    };
    bench.client.restore(bench.now, restored);
    let outcome = bench.result("1", "b").outcome.expect("the end");
    assert_eq!((outcome.state, outcome.errors), (JobState::Cancelled, vec![TEXT.to_owned()]));
}

#[test]
fn what_a_task_calls_cancelled_cancels_nothing() {
    for result in
        [json!({"cancelled": 1}), json!({"result": {"cancelled": TEXT}}), json!({"failed": true, "cancelled": TEXT})]
    {
        let mut bench = Bench::new();
        bench.posted("1", "all");
        bench.dispatched("1", &["a"]);
        let outcome = bench.reply("0x05", "1", "200", json!({ "a": result })).outcome.expect("the end");
        assert_eq!(outcome.state, JobState::Completed);
    }
}

#[test]
fn jobs_that_are_being_cancelled_hold_up_no_others() {
    let mut bench = Bench::new();
    bench.client = Client::new(ClientConfig { in_flight_max: 1, ..ClientConfig::default() });
    bench.posted("1", "any");
    bench.dispatched("1", &["a"]);
    let request = bench.request("2", "any");
    bench.client.submit(request);
    bench.client.stored(bench.now, ClientToken(id("2")), Ok(()));
    assert!(bench.drain().sent.is_empty());
    let sent = bench.cancel("1", TEXT).sent;
    assert!(sent.iter().any(|sent| sent.0 == Command::Post), "{sent:?}");
}

#[test]
fn jobs_that_are_being_cancelled_take_no_other_jobs_place_up_to_a_bound() {
    let mut bench = Bench::new();
    for number in 0..CANCELLING_MAX + 1 {
        let job = number.to_string();
        let request = bench.request(&job, "any");
        bench.client.submit(request);
        bench.client.stored(bench.now, ClientToken(id(&job)), Ok(()));
    }
    bench.client.timeout(bench.now);
    bench.drain();
    assert_eq!(bench.client.held(), CANCELLING_MAX + 1);
    for number in 0..CANCELLING_MAX {
        bench.client.cancel(bench.now, &id(&number.to_string()), TEXT.to_owned());
        bench.client.stored(bench.now, ClientToken(id(&number.to_string())), Ok(()));
        bench.drain();
    }
    assert_eq!((bench.client.unfinished(), bench.client.held()), (CANCELLING_MAX + 1, 1));
    bench.cancel(&CANCELLING_MAX.to_string(), TEXT);
    assert_eq!(bench.client.held(), 1, "the memory that they take is bounded");
    assert!(bench.after(61.0).outcome.is_some());
    assert_eq!((bench.client.unfinished(), bench.client.held()), (0, 0));
}

#[test]
fn a_job_whose_deadline_passes_is_withdrawn_from_whom_it_may_still_reach() {
    let mut bench = Bench::new();
    bench.posted("1", "any");
    // The broker stands still, with the POST in its hands: it will hand this on behind it.
    let did = bench.after(60.0);
    assert_eq!(did.outcome.map(|outcome| outcome.state), Some(JobState::Stale));
    let (command, target, body) = did.sent.last().expect("a message");
    assert_eq!((*command, target.as_str()), (Command::Delete, "all"));
    assert!(body.contains("deadline of job 1 has passed"), "{body}");
    // Who has it keeps the deadline itself.
    bench.posted("2", "all");
    bench.dispatched("2", &["a", "b", "c"]);
    bench.accepted("2", "a");
    bench.result("2", "b");
    let sent = bench.after(60.0).sent;
    assert_eq!(sent.last().map(|sent| (sent.0, sent.1.as_str())), Some((Command::Delete, r#"["c"]"#)));
    // It is nowhere.
    bench.posted("3", "x");
    let refused = json!({"workers":null,"uuid":"3","target":"x","status":"FAILED","service":"s","errors":["nobody"],
        "retry": true});
    bench.reply("0x05", "3", "400", refused);
    bench.client.disconnected();
    bench.drain();
    assert!(bench.after(60.0).sent.is_empty());
}

#[test]
fn a_client_that_may_have_no_job_in_flight_posts_none_that_it_finds_and_cancels_all_the_same() {
    let mut bench = Bench::new();
    bench.client = Client::new(ClientConfig { in_flight_max: 0, ..ClientConfig::default() });
    bench.client.disconnected();
    for job in ["1", "2"] {
        let restored = RestoredClientJob {
            request: bench.request(job, "any"),
            state: JobState::New,
            dispatched: vec![],
            started: vec![],
            completed: vec![],
            errors: vec![],
            ageless: false,
        };
        bench.client.restore(bench.now, restored);
    }
    bench.client.connected(bench.now);
    assert!(bench.drain().sent.is_empty());
    assert_eq!(bench.cancel("1", TEXT).sent, [delete("all")], "a process before may have posted it");
    assert!(bench.after(5.0).sent.iter().all(|sent| sent.0 == Command::Delete));
}

#[test]
fn a_worker_that_was_away_to_the_deadline_is_named_as_vanished() {
    let mut bench = Bench::new();
    bench.posted("1", "all");
    bench.dispatched("1", &["a", "b"]);
    bench.after(1.0);
    let asked =
        json!({"workers": ["a"], "uuid": "1", "target": r#"["a","b"]"#, "status": "DISPATCHED", "service": "s"});
    bench.reply("0x05", "1", "202", asked);
    let outcome = bench.after(60.0).outcome.expect("the end");
    assert_eq!(outcome.missing, [(name("a"), Lost::Expired), (name("b"), Lost::Vanished)]);
}

#[test]
fn a_job_that_comes_back_from_the_store_to_be_cancelled_is_never_sent() {
    let mut bench = Bench::new();
    let request = bench.request("1", "all");
    bench.client.submit_stored(request);
    let did = bench.cancel("1", "not any more");
    assert_eq!((did.sent, did.outcome.map(|outcome| outcome.state)), (Vec::new(), Some(JobState::Cancelled)));
    assert!(bench.after(0.0).sent.is_empty());
    let request = bench.request("2", "all");
    bench.client.submit_stored(request);
    assert_eq!(bench.after(0.0).sent.len(), 1, "one that is not cancelled is posted");
}

#[test]
fn jobs_that_end_while_there_is_no_connection_leave_nothing_behind() {
    let mut bench = Bench::new();
    bench.client.disconnected();
    for number in 0..10_000 {
        let job = number.to_string();
        let request = bench.request(&job, "any");
        bench.client.submit(request);
        bench.client.stored(bench.now, ClientToken(id(&job)), Ok(()));
        bench.cancel(&job, "not any more");
    }
    assert_eq!((bench.client.unfinished(), bench.client.held_bytes()), (0, 0));
    assert!(bench.client.waiting.len() < 2000, "{} ids wait", bench.client.waiting.len());
}

impl Bench {
    /// A job that a process before this one left, with who had it.
    fn restored(&mut self, job: &str, target: &str, dispatched: &[&str]) {
        let restored = RestoredClientJob {
            request: self.request(job, target),
            state: if dispatched.is_empty() { JobState::New } else { JobState::Dispatched },
            dispatched: dispatched.iter().map(|worker| name(worker)).collect(),
            started: vec![],
            completed: vec![],
            errors: vec![],
            ageless: false,
        };
        self.client.restore(self.now, restored);
        self.drain();
    }

    /// As [`Bench::handed_on`], of a broker that had the first POST.
    fn whole(&mut self, job: &str, reached: &[&str], holders: &[&str]) -> Did {
        let body = json!({"workers": reached, "uuid": job, "target": "x", "status": "DISPATCHED", "service": "s", "fabric": 1,
            "holders": holders, "whole": true});
        self.reply("0x05", job, "202", body)
    }
}

#[test]
fn a_job_of_a_process_before_ends_at_once_where_the_broker_knows_that_nobody_has_it() {
    let mut bench = Bench::new();
    for target in ["any", "all", "a", r#"["a","b"]"#] {
        bench.restored("1", target, &[]);
        bench.cancel("1", TEXT);
        let outcome = bench.whole("1", &[], &[]).outcome.expect("the end");
        assert_eq!((outcome.state, outcome.errors), (JobState::Cancelled, vec![TEXT.to_owned()]), "{target}");
        assert_eq!((outcome.missing.len(), bench.client.unfinished()), (0, 0), "{target}");
    }
    // Not where a worker has shown that it has it.
    bench.restored("2", "all", &[]);
    bench.accepted("2", "a");
    bench.cancel("2", TEXT);
    assert!(bench.whole("2", &[], &[]).outcome.is_none());
}

#[test]
fn workers_that_were_waited_for_and_never_got_the_job_need_not_confirm_its_end() {
    let mut bench = Bench::new();
    bench.restored("1", r#"["a","b"]"#, &["a", "b"]);
    bench.cancel("1", TEXT);
    assert!(bench.whole("1", &["a"], &["a"]).outcome.is_none());
    let outcome = bench.reply("0x05", "1", "404", not_found("a")).outcome.expect("the end");
    assert_eq!(outcome.missing, [(name("a"), Lost::Cancelled), (name("b"), Lost::Cancelled)]);
}

#[test]
fn a_job_that_the_broker_says_is_cancelled_is_cancelled_by_its_client() {
    let refused = json!({"workers":null,"uuid":"1","target":"any","status":"CANCELLED","service":"s","errors":[TEXT],
        "error": TEXT});
    // Nobody has it: it waits.
    let mut bench = Bench::new();
    let mut request = bench.request("1", "any");
    request.waits = true;
    bench.client.submit(request);
    bench.client.stored(bench.now, ClientToken(id("1")), Ok(()));
    bench.drain();
    let nobody = json!({"workers":null,"uuid":"1","target":"any","status":"FAILED","service":"s","errors":["nobody"]});
    bench.reply("0x05", "1", "400", nobody);
    assert!(bench.reply("0x05", "1", "400", refused.clone()).outcome.is_none(), "it is written down first");
    bench.client.stored(bench.now, ClientToken(id("1")), Ok(()));
    let outcome = bench.drain().outcome.expect("the end");
    assert_eq!((outcome.state, outcome.errors), (JobState::Cancelled, vec![TEXT.to_owned()]));
    // One that has it is told as of any cancellation.
    bench.posted("1", "all");
    bench.dispatched("1", &["a"]);
    bench.reply("0x05", "1", "400", refused);
    bench.client.stored(bench.now, ClientToken(id("1")), Ok(()));
    assert_eq!(bench.drain().sent, [delete(r#"["a"]"#)]);
}

#[test]
fn only_the_first_post_of_a_job_looks_like_one() {
    let mut bench = Bench::new();
    bench.posted("1", "all");
    let sent = bench.after(2.0).sent;
    assert!(sent[0].0 == Command::Post && sent[0].2.contains(r#""again":true"#), "{sent:?}");
    bench.restored("2", "all", &[]);
    bench.client.timeout(bench.now);
    bench.restored("3", "all", &[]);
    let sent = bench.after(2.0).sent;
    assert!(
        sent.iter().filter(|sent| sent.0 == Command::Post).all(|sent| sent.2.contains(r#""again":true"#)),
        "{sent:?}"
    );
}
