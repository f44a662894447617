//! What a client does about what was lost, refused or not answered.

use super::*;

impl Bench {
    /// One that knows by the word on another job which process its broker is.
    pub(super) fn with_a_known_broker() -> Self {
        let mut bench = Self::new();
        bench.client.connected(bench.now);
        bench.posted("2", "all");
        bench.reply("0x05", "2", "202", run("2", "all", &["a"], 1, false));
        bench.result("2", "a");
        bench
    }
}

#[test]
fn a_job_for_one_worker_completes_although_its_dispatch_was_lost() {
    let mut bench = Bench::new();
    bench.posted("1", "any");
    bench.accepted("1", "a");
    assert!(bench.after(30.0).sent.iter().all(|sent| sent.0 == Command::Get), "it is with a, nobody else gets it");
    assert_eq!(bench.result("1", "a").outcome.map(|outcome| outcome.state), Some(JobState::Completed));
}

#[test]
fn when_nobody_says_who_has_the_job_everyone_is_asked_and_it_is_posted_again_if_nobody_has_it() {
    let missing = |worker: &str| json!({"worker":worker,"uuid":"1","service":"s","status":"JOB NOT FOUND"});
    let asked = |bench: &mut Bench| {
        let body = json!({"workers":["a","b"],"uuid":"1","target":"all","status":"DISPATCHED","service":"s"});
        bench.reply("0x05", "1", "202", body);
    };
    let mut bench = Bench::new();
    bench.posted("1", "any");
    let sent = bench.after(2.0).sent;
    assert_eq!((sent[0].0, &*sent[0].1), (Command::Get, "all"));
    asked(&mut bench);
    assert!(bench.reply("0x05", "1", "404", missing("a")).sent.is_empty());
    let sent = bench.reply("0x05", "1", "404", missing("b")).sent;
    assert_eq!((sent[0].0, &*sent[0].1), (Command::Post, "any"));
    // Lost again; this time one has it.
    let sent = bench.after(4.0).sent;
    assert_eq!(sent[0].0, Command::Get);
    asked(&mut bench);
    bench.reply("0x05", "1", "404", missing("a"));
    let started = json!({"worker":"b","uuid":"1","service":"s","status":"STARTED"});
    assert!(bench.reply("0x05", "1", "300", started).sent.is_empty());
    assert_eq!(bench.result("1", "b").outcome.map(|outcome| outcome.state), Some(JobState::Completed));
}

#[test]
fn without_a_connection_nothing_is_queued_and_afterwards_jobs_go_on() {
    let mut bench = Bench::new();
    bench.posted("1", "any");
    bench.dispatched("1", &["a"]);
    bench.client.disconnected();
    let request = bench.request("2", "any");
    bench.client.submit(request);
    bench.client.stored(bench.now, ClientToken(id("2")), Ok(()));
    bench.drain();
    assert!(bench.after(50.0).sent.is_empty(), "an outage fills no queue");
    bench.client.connected(bench.now);
    let sent = bench.drain().sent;
    assert_eq!((sent.len(), sent[0].0), (1, Command::Post), "{sent:?}");
    assert_eq!(bench.after(1.0).sent[0].0, Command::Get);
}

#[test]
fn a_job_that_ended_during_an_outage_is_not_sent_afterwards() {
    let mut bench = Bench::new();
    bench.posted("1", "a");
    bench.client.disconnected();
    bench.now += Duration::from_secs(60);
    bench.client.timeout(bench.now);
    let mut forgotten = false;
    while let Some(output) = bench.client.poll_output() {
        forgotten |= matches!(output, ClientOutput::Forget(job) if job == id("1"));
    }
    assert!(forgotten, "what waits of it must not leave");
    bench.client.connected(bench.now);
    assert!(bench.after(30.0).sent.is_empty());
}

#[test]
fn a_refusal_of_a_repeated_post_is_no_verdict() {
    let refused = json!({"workers":null,"uuid":"1","target":"a","status":"FAILED","service":"s","errors":["nobody"]});
    let mut bench = Bench::new();
    bench.posted("1", "a");
    bench.after(2.0);
    assert!(bench.reply("0x05", "1", "400", refused).outcome.is_none(), "the first may have arrived");
    assert_eq!(bench.result("1", "a").outcome.map(|outcome| outcome.state), Some(JobState::Completed));
}

#[test]
fn a_job_for_any_goes_to_another_when_its_worker_cannot_take_it_and_fails_when_it_will_not() {
    let refused = |retry| json!({"worker":"a","uuid":"1","service":"s","status":"REFUSED","error":"no","retry":retry});
    let mut bench = Bench::new();
    bench.posted("1", "any");
    bench.dispatched("1", &["a"]);
    assert!(bench.reply("0x05", "1", "400", refused(true)).outcome.is_none());
    let sent = bench.after(0.2).sent;
    assert_eq!((sent[0].0, &*sent[0].1), (Command::Post, "any"));
    bench.dispatched("1", &["b"]);
    assert_eq!(bench.result("1", "b").outcome.map(|outcome| outcome.state), Some(JobState::Completed));
    bench.posted("2", "any");
    bench.dispatched("2", &["a"]);
    let mut no = refused(false);
    no["uuid"] = json!("2");
    assert_eq!(bench.reply("0x05", "2", "400", no).outcome.map(|outcome| outcome.state), Some(JobState::Failed));
}

#[test]
fn an_answer_is_given_again_until_the_worker_says_that_it_came() {
    let waiting = json!({"worker":"a","uuid":"1","service":"s","status":"WAITING_CLIENT_INPUT",
        "input_request": {"id": "q1", "question": "?"}});
    let mut bench = Bench::new();
    bench.posted("1", "any");
    bench.dispatched("1", &["a"]);
    assert_eq!(bench.reply("0x05", "1", "102", waiting.clone()).questions, ["q1"]);
    let response = InputResponse { input_id: "q1".into(), value: Some(json!(1)), cancel: false, metadata: json!({}) };
    bench.client.answer(&id("1"), Some(&name("a")), &response);
    assert_eq!(bench.drain().sent[0].0, Command::Put);
    assert_eq!(bench.reply("0x05", "1", "102", waiting.clone()).sent[0].0, Command::Put, "still open there");
    bench.client.disconnected();
    bench.client.connected(bench.now);
    assert_eq!(bench.drain().sent[0].0, Command::Put, "it may have been lost");
    bench.event("1", "a", "input_response", "received", json!({"input_response": {"input_id": "q1"}}));
    assert!(bench.reply("0x05", "1", "102", waiting).sent.is_empty());
}

#[test]
fn a_workers_name_may_have_characters_that_json_escapes() {
    let mut bench = Bench::new();
    bench.posted("1", "any");
    bench.dispatched("1", &["DOM\\w\"1"]);
    let results = bench.result("1", "DOM\\w\"1").results;
    assert_eq!(results[0].0, "DOM\\w\"1");
}

#[test]
fn an_answer_for_a_job_that_is_not_stored_yet_is_nobodys() {
    let mut bench = Bench::new();
    let request = bench.request("1", "any");
    bench.client.submit(request);
    bench.drain();
    let body = json!({"worker": "a", "uuid": "1", "service": "s", "status": "JOB NOT FOUND"});
    assert!(bench.reply("0x05", "1", "404", body).sent.is_empty(), "it would be posted before it is stored");
    assert!(bench.result("1", "a").results.is_empty());
}

#[test]
fn a_worker_that_lacks_a_job_does_not_get_it_before_its_turn() {
    let mut bench = Bench::new();
    bench.client = Client::new(ClientConfig { in_flight_max: 1, ..ClientConfig::default() });
    for job in ["1", "2"] {
        let request = bench.request(job, "any");
        bench.client.submit(request);
        bench.client.stored(bench.now, ClientToken(id(job)), Ok(()));
    }
    bench.drain();
    let body = json!({"worker": "a", "uuid": "2", "service": "s", "status": "JOB NOT FOUND"});
    assert!(bench.reply("0x05", "2", "404", body).sent.is_empty());
}

#[test]
fn an_acceptance_that_names_only_its_worker_is_enough() {
    let mut bench = Bench::new();
    bench.posted("1", "any");
    bench.reply("0x05", "1", "201", json!({"worker": "a"}));
    assert_eq!(bench.client.state(&id("1")), Some(JobState::Started));
}

#[test]
fn a_worker_that_denies_a_job_after_a_round_is_taken_at_its_word() {
    let mut bench = Bench::with_a_known_broker();
    bench.posted("1", "any");
    // The 202 says who has it, and that one never got it.
    bench.reply("0x05", "1", "202", run("1", "any", &["a"], 1, false));
    let sent = bench.reply("0x05", "1", "404", unknown("1", "a")).sent;
    assert_eq!(
        sent.first().map(|sent| (sent.0, &*sent.1)),
        Some((Command::Post, "any")),
        "this broker knows where it is"
    );
    bench.reply("0x05", "1", "202", run("1", "any", &["b"], 1, false));
    assert_eq!(bench.result("1", "b").outcome.map(|outcome| outcome.state), Some(JobState::Completed));
}

#[test]
fn a_job_for_any_that_its_worker_denies_is_asked_for_everywhere_where_the_broker_may_not_know_where_it_is() {
    let mut bench = Bench::new();
    bench.posted("1", "any");
    let body = json!({"workers":["a"],"uuid":"1","target":"any","status":"DISPATCHED","service":"s"});
    bench.reply("0x05", "1", "202", body);
    bench.reply("0x05", "1", "404", unknown("1", "a"));
    let sent = bench.after(0.1).sent;
    assert_eq!(
        sent.first().map(|sent| (sent.0, &*sent.1)),
        Some((Command::Get, "all")),
        "it is posted nowhere: {sent:?}"
    );
}

#[test]
fn a_worker_whose_connection_is_being_made_anew_gets_the_job_when_it_is_back() {
    let mut bench = Bench::new();
    bench.posted("1", "all");
    let mut body = run("1", "all", &["a"], 1, false);
    body["unreached"] = json!(["b"]);
    bench.reply("0x05", "1", "202", body.clone());
    assert!(bench.result("1", "a").outcome.is_none(), "b is waited for");
    assert_eq!(bench.after(1.0).sent[0].0, Command::Get);
    let sent = bench.reply("0x05", "1", "404", unknown("1", "b")).sent;
    assert_eq!((sent[0].0, &*sent[0].1), (Command::Post, r#"["b"]"#));
    assert_eq!(bench.result("1", "b").outcome.map(|outcome| outcome.state), Some(JobState::Completed));
    // The only one that it is for.
    bench.posted("2", "b");
    let mut refused = refused("2", true);
    refused["target"] = "b".into();
    assert!(bench.reply("0x05", "2", "400", refused).outcome.is_none());
    assert_eq!(bench.after(1.0).sent[0].0, Command::Post);
}

#[test]
fn a_worker_that_could_not_be_reached_is_named_at_the_end() {
    let mut bench = Bench::new();
    bench.posted("1", "all");
    let mut body = run("1", "all", &["a"], 1, false);
    body["unreached"] = json!(["b"]);
    bench.reply("0x05", "1", "202", body);
    bench.result("1", "a");
    bench.after(1.0);
    // It was found gone, and does not come back.
    let mut gone = refused("1", false);
    gone["target"] = r#"["b"]"#.into();
    let outcome = bench.reply("0x05", "1", "400", gone).outcome.expect("the end");
    assert_eq!((outcome.state, outcome.missing), (JobState::Failed, vec![(name("b"), Lost::Unreached)]));
    assert!(outcome.errors[0].contains("could not reach"), "{:?}", outcome.errors);
}

#[test]
fn a_broker_that_owes_a_word_too_long_is_connected_to_anew() {
    let mut bench = Bench::new();
    let mut request = bench.request("1", "a");
    request.deadline = bench.now + Duration::from_secs(3600);
    bench.client.submit(request);
    bench.client.stored(bench.now, ClientToken(id("1")), Ok(()));
    bench.drain();
    let mut repeated = 0;
    for _ in 1..SILENCE_MAX.as_secs() {
        let did = bench.after(1.0);
        assert_eq!(did.reconnects, 0, "a large message may be under way");
        repeated += did.sent.len();
    }
    assert!(repeated > 1, "the POST was repeated {repeated} times");
    assert_eq!(bench.after(1.0).reconnects, 1);
    assert_eq!(bench.after(20.0).reconnects, 0, "once; the link says when there is a connection");
    bench.client.connected(bench.now);
    bench.drain();
    assert_eq!(bench.after(1.0).sent.first().map(|sent| sent.0), Some(Command::Post));
    // It answers, and the job takes its time: nothing is owed.
    bench.dispatched("1", &["a"]);
    assert_eq!(bench.client.silent_since, None);
}

#[test]
fn a_job_for_any_worker_waits_until_workers_are_back_before_it_is_given_to_another() {
    let mut bench = Bench::new();
    bench.posted("1", "any");
    bench.client.disconnected();
    bench.client.connected(bench.now);
    bench.drain();
    assert!(bench.after(RETURN_TIME.as_secs_f64() - 0.1).sent.is_empty(), "its worker may not be back yet");
    let sent = bench.after(1.0).sent;
    assert_eq!((sent[0].0, &*sent[0].1), (Command::Get, "all"));
}

#[test]
fn a_worker_that_has_the_job_is_counted_although_a_restarted_broker_did_not_name_it() {
    let mut bench = Bench::new();
    bench.posted("1", "all");
    bench.accepted("1", "a");
    // The broker was restarted, and only b had come back when the POST was repeated.
    bench.dispatched("1", &["b"]);
    assert_eq!(bench.result("1", "a").results.len(), 1);
    assert_eq!(bench.result("1", "b").outcome.map(|outcome| outcome.state), Some(JobState::Completed));
    // A name that the target does not have is a stranger's.
    bench.posted("2", r#"["a","b"]"#);
    bench.dispatched("2", &["a"]);
    assert!(bench.result("2", "c").results.is_empty());
    assert_eq!(bench.result("2", "b").results.len(), 1);
}

#[test]
fn a_second_worker_with_a_job_for_any_is_told_not_to_begin() {
    let mut bench = Bench::new();
    bench.posted("1", "any");
    bench.accepted("1", "a");
    let did = bench.accepted("1", "b");
    assert_eq!((did.sent[0].0, &*did.sent[0].1), (Command::Delete, r#"["b"]"#));
    assert!(bench.accepted("1", "b").sent.is_empty(), "once");
    assert!(bench.result("1", "b").results.is_empty());
    assert_eq!(bench.result("1", "a").outcome.map(|outcome| outcome.state), Some(JobState::Completed));
}

pub(super) fn run(job: &str, target: &str, workers: &[&str], run: u32, young: bool) -> serde_json::Value {
    json!({"workers": workers, "uuid": job, "target": target, "status": "DISPATCHED", "service": "s", "fabric": 1, "run": run,
        "young": young})
}

pub(super) fn unknown(job: &str, worker: &str) -> serde_json::Value {
    json!({"worker": worker, "uuid": job, "service": "s", "status": "JOB NOT FOUND"})
}

#[test]
fn another_broker_is_not_taken_for_the_one_that_remembers() {
    let mut bench = Bench::new();
    bench.client.connected(bench.now);
    bench.posted("1", "any");
    bench.posted("2", "all");
    bench.reply("0x05", "2", "202", run("2", "all", &["a"], 1, false));
    // The same process at the other end of a new connection sends it where it went.
    bench.client.connected(bench.now);
    bench.drain();
    bench.posted("3", "all");
    bench.reply("0x05", "3", "202", run("3", "all", &["a"], 1, false));
    let sent = bench.after(6.0).sent;
    assert!(sent.iter().any(|sent| (sent.0, &*sent.1) == (Command::Post, "any")), "{sent:?}");
    // Another one would choose anew, however much it says about other jobs.
    bench.client.connected(bench.now);
    bench.drain();
    bench.posted("4", "all");
    bench.reply("0x05", "4", "202", run("4", "all", &["a"], 2, false));
    let sent = bench.after(6.0).sent;
    assert!(sent.iter().all(|sent| (sent.0, &*sent.1) != (Command::Post, "any")), "{sent:?}");
    assert!(sent.iter().any(|sent| (sent.0, &*sent.1) == (Command::Get, "all")), "{sent:?}");
}

#[test]
fn a_job_for_any_is_not_posted_again_while_a_worker_is_away_that_may_have_it() {
    let mut bench = Bench::new();
    bench.client.connected(bench.now);
    bench.posted("1", "any");
    bench.reply("0x05", "1", "202", run("1", "any", &["b"], 1, false));
    bench.posted("2", "any");
    // The broker is another one after that, and b is not back.
    bench.client.connected(bench.now);
    bench.drain();
    let sent = bench.after(6.0).sent;
    assert!(sent.iter().any(|sent| (sent.0, &*sent.1) == (Command::Get, "all")), "{sent:?}");
    bench.reply("0x05", "2", "202", run("2", "all", &["a"], 2, false));
    assert!(bench.reply("0x05", "2", "404", unknown("2", "a")).sent.is_empty(), "b may have it");
    bench.after(10.0);
    // Nor while the broker is so young that others may come.
    bench.reply("0x05", "2", "202", run("2", "all", &["a", "b"], 2, true));
    bench.reply("0x05", "2", "404", unknown("2", "a"));
    assert!(bench.reply("0x05", "2", "404", unknown("2", "b")).sent.is_empty());
    bench.after(10.0);
    bench.reply("0x05", "2", "202", run("2", "all", &["a", "b"], 2, false));
    bench.reply("0x05", "2", "404", unknown("2", "a"));
    let sent = bench.reply("0x05", "2", "404", unknown("2", "b")).sent;
    assert_eq!((sent[0].0, &*sent[0].1), (Command::Post, "any"));
    assert!(bench.reply("0x05", "2", "404", unknown("2", "a")).sent.is_empty(), "a late answer posts nothing");
}

#[test]
fn a_job_in_doubt_waits_for_a_worker_that_went_after_its_submission_and_for_no_other() {
    let gone = |seconds: u64| {
        let mut body = run("1", "all", &["a"], 2, false);
        body["gone"] = seconds.into();
        body
    };
    let mut bench = Bench::new();
    bench.client.connected(bench.now);
    bench.posted("1", "any");
    bench.client.connected(bench.now);
    bench.drain();
    bench.after(6.0);
    bench.reply("0x05", "1", "202", gone(6));
    assert!(bench.reply("0x05", "1", "404", unknown("1", "a")).sent.is_empty(), "the one that went may have it");
    assert_eq!(bench.after(10.0).sent[0].0, Command::Get);
    bench.reply("0x05", "1", "202", gone(60));
    let sent = bench.reply("0x05", "1", "404", unknown("1", "a")).sent;
    assert_eq!((sent[0].0, &*sent[0].1), (Command::Post, "any"), "it went long before the job was there");
}

#[test]
fn a_job_of_unknown_age_waits_for_whoever_went() {
    // Its row says more than its whole time, as the clock was set back; or said so when its process began, and waited since.
    for (more, ageless, waits) in [(1, false, true), (0, true, true), (0, false, false)] {
        let mut bench = Bench::new();
        bench.client.connected(bench.now);
        let mut request = bench.request("1", "any");
        request.deadline += Duration::from_secs(more);
        let restored = RestoredClientJob {
            request,
            state: JobState::New,
            dispatched: Vec::new(),
            started: Vec::new(),
            completed: Vec::new(),
            errors: Vec::new(),
            ageless,
        };
        bench.client.restore(bench.now, restored);
        assert_eq!(bench.after(0.0).sent[0].0, Command::Get);
        let mut body = run("1", "all", &["a"], 2, false);
        body["gone"] = 600.into();
        bench.reply("0x05", "1", "202", body);
        assert_eq!(bench.reply("0x05", "1", "404", unknown("1", "a")).sent.is_empty(), waits, "{more} {ageless}");
    }
}

#[test]
fn a_refusal_that_comes_twice_counts_once() {
    let mut bench = Bench::new();
    bench.client.connected(bench.now);
    bench.posted("1", "any");
    bench.reply("0x05", "1", "400", refused("1", true));
    bench.reply("0x05", "1", "400", refused("1", true));
    assert_eq!(bench.after(1.0).sent[0].0, Command::Post);
    assert!(bench.client.cancel(bench.now, &id("1"), "enough".to_owned()));
    bench.client.stored(bench.now, ClientToken(id("1")), Ok(()));
    let did = bench.drain();
    assert!(did.outcome.is_none(), "the second POST was not refused, and somebody may have it");
    assert_eq!(did.sent[0].0, Command::Delete);
}

fn refused(job: &str, retry: bool) -> serde_json::Value {
    let mut body = json!({"workers":null,"uuid":job,"target":"x","status":"FAILED","service":"s","errors":["nobody"]});
    if retry {
        body["retry"] = true.into();
    }
    body
}

#[test]
fn a_job_waits_for_workers_that_are_expected_and_fails_when_they_are_not_any_more() {
    let mut bench = Bench::new();
    bench.posted("1", "any");
    for _ in 0..5 {
        assert!(bench.reply("0x05", "1", "400", refused("1", true)).outcome.is_none());
        let sent = bench.after(4.0).sent;
        assert_eq!((sent.len(), sent[0].0, &*sent[0].1), (1, Command::Post, "any"), "{sent:?}");
    }
    let outcome = bench.reply("0x05", "1", "400", refused("1", false)).outcome.expect("the end");
    assert_eq!((outcome.state, outcome.errors), (JobState::Failed, vec!["nobody".to_owned()]));
}

#[test]
fn a_job_that_is_to_wait_does_so_to_its_deadline_and_says_for_whom() {
    let mut bench = Bench::new();
    let mut request = bench.request("1", "ghost");
    request.waits = true;
    bench.client.submit(request);
    bench.client.stored(bench.now, ClientToken(id("1")), Ok(()));
    bench.drain();
    assert!(bench.reply("0x05", "1", "400", refused("1", false)).outcome.is_none());
    assert_eq!(bench.after(0.5).sent.len(), 1);
    assert!(bench.reply("0x05", "1", "400", refused("1", false)).outcome.is_none());
    let outcome = bench.after(60.0).outcome.expect("the end");
    assert_eq!((outcome.state, outcome.errors[1].as_str()), (JobState::Stale, "nobody"));
}

#[test]
fn of_a_job_that_a_worker_may_have_it_is_not_said_that_nobody_was_there_for_it() {
    // The broker ended before it said who got the POST, and the next one does not know that worker yet.
    let mut bench = Bench::new();
    bench.client.connected(bench.now);
    bench.posted("1", "a");
    bench.client.connected(bench.now);
    assert_eq!(bench.after(RETURN_TIME.as_secs_f64()).sent[0].0, Command::Post);
    bench.reply("0x05", "1", "400", refused("1", true));
    let mut ends = vec![bench.after(60.0).outcome.expect("the end")];
    // Nobody was there for the first POST, and nobody says what became of the second.
    let mut bench = Bench::new();
    bench.posted("1", "a");
    bench.reply("0x05", "1", "400", refused("1", true));
    assert_eq!(bench.after(0.5).sent[0].0, Command::Post);
    ends.push(bench.after(60.0).outcome.expect("the end"));
    for Outcome { state, errors, .. } in ends {
        assert!(state == JobState::Stale && errors[0].ends_with("worker execution may continue"), "{errors:?}");
        assert!(errors.len() == 2 && errors[1].contains("a worker may have got it"), "{errors:?}");
    }
}

#[test]
fn a_named_worker_that_is_expected_gets_the_job_when_it_is_back() {
    let mut bench = Bench::new();
    bench.posted("1", r#"["a","b"]"#);
    let mut body = run("1", r#"["a","b"]"#, &["a"], 1, false);
    body["absent"] = json!(["b"]);
    bench.reply("0x05", "1", "202", body);
    assert!(bench.result("1", "a").outcome.is_none());
    assert_eq!(bench.after(1.0).sent[0].0, Command::Get);
    let sent = bench.reply("0x05", "1", "404", unknown("1", "b")).sent;
    assert_eq!((sent[0].0, &*sent[0].1), (Command::Post, r#"["b"]"#));
    assert_eq!(bench.result("1", "b").outcome.map(|outcome| outcome.state), Some(JobState::Completed));
    // One that is not expected any more is given up; it never had the job.
    bench.posted("3", r#"["a","b"]"#);
    let mut body = run("3", r#"["a","b"]"#, &["a"], 1, false);
    body["absent"] = json!(["b"]);
    bench.reply("0x05", "3", "202", body);
    bench.result("3", "a");
    bench.after(1.0);
    let of_b = |retry| {
        let mut body = refused("3", retry);
        body["target"] = r#"["b"]"#.into();
        body
    };
    assert!(bench.reply("0x05", "3", "400", of_b(true)).outcome.is_none());
    assert!(bench.reply("0x05", "3", "400", refused("3", false)).outcome.is_none(), "that was about somebody else");
    let outcome = bench.reply("0x05", "3", "400", of_b(false)).outcome.expect("the end");
    assert_eq!((outcome.state, outcome.missing.len()), (JobState::Completed, 0), "as if b had been unknown at once");
    // One that stays away is named with what the others returned.
    bench.posted("2", r#"["a","b"]"#);
    let mut body = run("2", r#"["a","b"]"#, &["a"], 1, false);
    body["absent"] = json!(["b"]);
    bench.reply("0x05", "2", "202", body);
    bench.result("2", "a");
    let outcome = bench.after(60.0).outcome.expect("the end");
    assert_eq!((outcome.state, outcome.missing), (JobState::Stale, vec![(name("b"), Lost::Vanished)]));
}

#[test]
fn a_job_that_is_posted_late_says_how_much_of_its_time_is_left() {
    let mut bench = Bench::new();
    bench.client.disconnected();
    let request = bench.request("1", "a");
    bench.client.submit(request);
    bench.client.stored(bench.now, ClientToken(id("1")), Ok(()));
    bench.drain();
    bench.now += Duration::from_secs(45);
    bench.client.connected(bench.now);
    assert_eq!(bench.drain().sent, [(Command::Post, "a".to_owned(), r#"{"remaining":15.000}"#.to_owned())]);
}

#[test]
fn answers_from_before_a_job_was_posted_do_not_end_it_however_many_come() {
    let unknown = json!({"worker": "a", "uuid": "1", "service": "s", "status": "JOB NOT FOUND"});
    let mut bench = Bench::new();
    bench.posted("1", "a");
    bench.dispatched("1", &["a"]);
    let mut posts = 0;
    for _ in 0..20 {
        let did = bench.reply("0x05", "1", "404", unknown.clone());
        assert!(did.outcome.is_none());
        posts += did.sent.iter().filter(|sent| sent.0 == Command::Post).count();
    }
    assert_eq!(posts, 1, "the others may be older than this POST");
    bench.after(2.0);
    assert_eq!(bench.reply("0x05", "1", "404", unknown).sent[0].0, Command::Post, "it was lost");
    assert_eq!(bench.result("1", "a").outcome.expect("the end").state, JobState::Completed);
}

#[test]
fn a_broker_that_is_behind_is_not_asked_more_and_more() {
    let mut bench = Bench::new();
    let job = RestoredClientJob {
        request: bench.request("1", "any"),
        state: JobState::New,
        dispatched: vec![],
        started: vec![],
        completed: vec![],
        errors: vec![],
        ageless: false,
    };
    bench.client.restore(bench.now, job);
    let mut questions = bench.drain().sent.len();
    for _ in 0..90 {
        questions += bench.after(0.5).sent.len();
        bench.result("of another", "a");
    }
    assert!((5..=8).contains(&questions), "{questions} questions in 45 s");
}
