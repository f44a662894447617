//! The client's rules, one sentence a test.

use super::*;
use crate::body::InputResponse;
use crate::frame::Command;
use crate::name::Identity;
use crate::name::TaskName;
use serde_json::json;

mod asking;
mod cancel;
mod confirmed;
mod losses;
mod posting;
mod questions;
mod turned_away;
mod turns;

struct Bench {
    client: Client,
    now: Instant,
}

#[derive(Debug, Default)]
struct Did {
    sent: Vec<(Command, String, String)>,
    results: Vec<(String, String)>,
    questions: Vec<String>,
    outcome: Option<Outcome>,
    inserted: bool,
    rows: Vec<Progress>,
    management: Vec<Result<(Status, Bytes), ManagementFailure>>,
    reconnects: usize,
}

fn name(text: &str) -> Identity {
    Identity::parse(text).expect("a name")
}

fn id(text: &str) -> JobId {
    JobId::parse(text).expect("a name")
}

impl Bench {
    fn new() -> Self {
        Self { client: Client::new(ClientConfig::default()), now: Instant::now() }
    }

    fn request(&self, job: &str, target: &str) -> JobRequest {
        JobRequest {
            job: id(job),
            service: ServiceName::parse("s").expect("a name"),
            task: TaskName::parse("t").expect("a name"),
            target: Target::parse(target),
            body: Bytes::from_static(b"{}"),
            timeout: Duration::from_secs(60),
            deadline: self.now + Duration::from_secs(60),
            waits: false,
        }
    }

    fn drain(&mut self) -> Did {
        let mut did = Did::default();
        while let Some(output) = self.client.poll_output() {
            match output {
                ClientOutput::Send(frames, _) => did.sent.push((
                    Command::from_frame(&frames[2]).expect("a command"),
                    String::from_utf8_lossy(&frames[4]).into_owned(),
                    String::from_utf8_lossy(&frames[6]).into_owned(),
                )),
                ClientOutput::Store(ClientStoreOperation::Insert(_), token) => {
                    assert!(token.is_some());
                    did.inserted = true;
                }
                ClientOutput::Store(ClientStoreOperation::Progress(row), _) => did.rows.push(row),
                ClientOutput::Store(..) | ClientOutput::Note(_) | ClientOutput::Forget(_) => {}
                ClientOutput::Update(_, JobUpdate::Result(worker, payload)) => {
                    did.results.push((worker.to_string(), String::from_utf8_lossy(&payload).into_owned()));
                }
                ClientOutput::Update(_, JobUpdate::Question(_, question)) => did.questions.push(question.id),
                ClientOutput::Update(_, JobUpdate::Finished(outcome)) => did.outcome = Some(outcome),
                ClientOutput::Update(..) => {}
                ClientOutput::Reconnect => did.reconnects += 1,
                ClientOutput::Management(_, answer) => did.management.push(answer),
            }
        }
        did
    }

    /// Submits and sees the POST go out.
    fn posted(&mut self, job: &str, target: &str) {
        let request = self.request(job, target);
        self.client.submit(request);
        let did = self.drain();
        assert!(did.inserted && did.sent.is_empty(), "stored before it is posted");
        self.client.stored(self.now, ClientToken(id(job)), Ok(()));
        let did = self.drain();
        assert_eq!(did.sent.len(), 1);
        assert_eq!((did.sent[0].0, &*did.sent[0].1), (Command::Post, target));
    }

    fn reply(&mut self, command: &str, job: &str, status: &str, body: serde_json::Value) -> Did {
        self.raw(command, job, status, &body.to_string())
    }

    /// A response, without looking at what it makes the client do.
    fn client_message(&mut self, job: &str, status: &str, body: serde_json::Value) {
        let frames = ["", "NFPB01", "0x05", "s", job, status, &body.to_string()];
        self.client.message(self.now, &frames.map(|part| Bytes::copy_from_slice(part.as_bytes())));
    }

    fn raw(&mut self, command: &str, job: &str, status: &str, body: &str) -> Did {
        let frames: Vec<Bytes> = ["", "NFPB01", command, "s", job, status, body]
            .iter()
            .map(|part| Bytes::copy_from_slice(part.as_bytes()))
            .collect();
        self.client.message(self.now, &frames);
        self.drain()
    }

    fn dispatched(&mut self, job: &str, workers: &[&str]) -> Did {
        let body = json!({"workers": workers, "uuid": job, "target": "x", "status": "DISPATCHED", "service": "s"});
        self.reply("0x05", job, "202", body)
    }

    fn dispatched_of(&mut self, job: &str, target: &str, workers: &[&str]) -> Did {
        let body = json!({"workers": workers, "uuid": job, "target": target, "status": "DISPATCHED", "service": "s"});
        self.reply("0x05", job, "202", body)
    }

    fn accepted(&mut self, job: &str, worker: &str) -> Did {
        self.reply("0x05", job, "201", json!({"worker": worker, "uuid": job, "status": "ACCEPTED", "service": "s"}))
    }

    fn result(&mut self, job: &str, worker: &str) -> Did {
        self.reply("0x05", job, "200", json!({ worker: {"result": 1} }))
    }

    fn event(&mut self, job: &str, worker: &str, kind: &str, status: &str, extras: serde_json::Value) -> Did {
        let body = json!({"worker": worker, "service": "s", "uuid": job, "event_type": kind, "message": "completed",
            "task": "t", "status": status, "timestamp": "now", "extras": extras});
        self.reply("0x08", job, "200", body)
    }

    /// The broker's answer to a cancellation: whom it reached, and whom it remembers.
    fn handed_on(&mut self, job: &str, reached: &[&str], holders: &[&str]) -> Did {
        let body = json!({"workers": reached, "uuid": job, "target": "x", "status": "DISPATCHED", "service": "s", "fabric": 1,
            "holders": holders});
        self.reply("0x05", job, "202", body)
    }

    fn cancel(&mut self, job: &str, text: &str) -> Did {
        assert!(self.client.cancel(self.now, &id(job), text.to_owned()));
        let did = self.drain();
        assert!(did.outcome.is_none(), "written down before anybody is told");
        assert!(did.sent.iter().all(|sent| sent.0 != Command::Delete), "written down before anybody is told");
        self.client.stored(self.now, ClientToken(id(job)), Ok(()));
        let mut then = self.drain();
        then.sent.splice(..0, did.sent);
        then
    }

    fn after(&mut self, seconds: f64) -> Did {
        self.now += Duration::from_secs_f64(seconds);
        self.client.timeout(self.now);
        self.drain()
    }
}

#[test]
fn a_job_completes_when_every_dispatched_worker_has_answered() {
    let mut bench = Bench::new();
    bench.posted("1", "all");
    bench.dispatched("1", &["a", "b"]);
    bench.accepted("1", "a");
    assert_eq!(bench.client.state(&id("1")), Some(JobState::Started));
    let did = bench.result("1", "a");
    assert_eq!(did.results, [("a".to_owned(), r#"{"result":1}"#.to_owned())]);
    assert!(did.outcome.is_none());
    assert!(bench.result("1", "a").results.is_empty(), "a second result of one worker changes nothing");
    let outcome = bench.result("1", "b").outcome.expect("the end");
    assert!(bench.result("1", "stranger").results.is_empty());
    assert_eq!((outcome.state, outcome.missing.len()), (JobState::Completed, 0));
    assert_eq!(bench.client.unfinished(), 0);
    assert_eq!(bench.client.next_deadline(), None);
}

#[test]
fn a_result_before_the_dispatch_counts() {
    let mut bench = Bench::new();
    bench.posted("1", "all");
    assert_eq!(bench.result("1", "a").results.len(), 1);
    assert_eq!(bench.dispatched("1", &["a"]).outcome.map(|outcome| outcome.state), Some(JobState::Completed));
}

#[test]
fn later_dispatches_do_not_change_who_has_the_job() {
    let mut bench = Bench::new();
    bench.posted("1", "all");
    bench.dispatched("1", &["a", "b"]);
    bench.accepted("1", "a");
    bench.dispatched("1", &["a"]);
    assert_eq!(bench.client.state(&id("1")), Some(JobState::Started));
    assert!(bench.result("1", "a").outcome.is_none(), "b is still missing");
}

#[test]
fn an_announced_result_is_asked_for_at_once_unless_the_worker_sends_it_unasked() {
    for (kind, status) in [("result_ready", "completed"), ("progress", "completed")] {
        let mut bench = Bench::new();
        bench.posted("1", "any");
        bench.dispatched("1", &["a"]);
        bench.accepted("1", "a");
        let did = bench.event("1", "a", kind, status, json!({}));
        assert_eq!(did.sent, [(Command::Get, r#"["a"]"#.to_owned(), "{}".to_owned())]);
        assert!(bench.event("1", "a", kind, status, json!({})).sent.is_empty(), "not for each announcement");
    }
    let mut bench = Bench::new();
    bench.posted("1", "any");
    bench.dispatched("1", &["a"]);
    bench.reply("0x05", "1", "201", json!({"worker":"a","uuid":"1","status":"ACCEPTED","service":"s","fabric":1}));
    assert!(bench.event("1", "a", "result_ready", "completed", json!({})).sent.is_empty());
    let did = bench.after(1.0);
    assert_eq!(did.sent[0].0, Command::Get, "the safety net");
}

#[test]
fn workers_that_say_nothing_are_asked_less_and_less_often() {
    let mut bench = Bench::new();
    bench.posted("1", "all");
    bench.dispatched("1", &["a", "b"]);
    bench.result("1", "a");
    let mut asked = Vec::new();
    for second in 1..=35 {
        for (command, target, _) in bench.after(1.0).sent {
            assert_eq!((command, &*target), (Command::Get, r#"["b"]"#));
            asked.push(second);
            // The broker says that it passed the question on; the worker says nothing.
            assert!(bench.dispatched("1", &["b"]).sent.is_empty());
        }
    }
    assert_eq!(asked, [1, 3, 7, 15, 25, 35]);
}

#[test]
fn a_deadline_ends_the_job_with_what_arrived_and_names_who_is_missing() {
    let mut bench = Bench::new();
    bench.posted("1", "all");
    bench.dispatched("1", &["a", "b"]);
    bench.result("1", "a");
    let outcome = bench.after(60.0).outcome.expect("the end");
    assert_eq!(outcome.state, JobState::Stale);
    assert_eq!(outcome.missing, [(name("b"), Lost::Expired)]);
    assert!(outcome.errors[0].contains("timeout expired after 60 seconds"), "{:?}", outcome.errors);
}

#[test]
fn a_job_that_the_broker_never_answers_is_posted_again_only_where_that_is_safe() {
    let mut bench = Bench::new();
    bench.posted("1", "a");
    assert_eq!(bench.after(2.0).sent[0].0, Command::Post);
    assert!(bench.after(3.9).sent.is_empty());
    assert_eq!(bench.after(0.1).sent.len(), 1);
    bench.posted("2", "any");
    assert!(bench.after(20.0).sent.iter().all(|sent| sent.1 != "any"));
    let body = json!({"workers":["a"],"uuid":"1","target":"a","status":"DISPATCHED","service":"s","fabric":1,"run":7});
    bench.reply("0x05", "1", "202", body);
    let sent = bench.after(30.0).sent;
    assert!(sent.iter().any(|sent| sent.1 == "any"), "a broker that remembers: {sent:?}");
}

#[test]
fn a_refusal_of_the_post_is_the_verdict_but_one_of_a_question_is_not() {
    let mut bench = Bench::new();
    let refused =
        json!({"workers":null,"uuid":"1","target":"x","status":"FAILED","service":"s","errors":["no such worker"]});
    bench.posted("1", "x");
    let outcome = bench.reply("0x05", "1", "400", refused.clone()).outcome.expect("the end");
    assert_eq!((outcome.state, outcome.errors), (JobState::Failed, vec!["no such worker".to_owned()]));
    bench.posted("2", "x");
    bench.dispatched("2", &["x"]);
    assert!(bench.reply("0x05", "2", "400", refused).outcome.is_none());
    assert_eq!(bench.result("2", "x").outcome.map(|outcome| outcome.state), Some(JobState::Completed));
}

#[test]
fn a_worker_that_never_had_the_job_gets_it_again_and_one_that_lost_it_is_named() {
    let missing = |worker: &str| json!({"worker":worker,"uuid":"1","service":"s","status":"JOB NOT FOUND"});
    let mut bench = Bench::new();
    bench.posted("1", "all");
    bench.dispatched("1", &["a", "b"]);
    let did = bench.reply("0x05", "1", "404", missing("a"));
    assert_eq!((did.sent[0].0, &*did.sent[0].1), (Command::Post, r#"["a"]"#));
    bench.accepted("1", "a");
    bench.result("1", "b");
    let outcome = bench.reply("0x05", "1", "404", missing("a")).outcome.expect("the end");
    assert_eq!((outcome.state, outcome.missing), (JobState::Failed, vec![(name("a"), Lost::Forgotten)]));
}

#[test]
fn a_question_is_told_once_and_several_workers_may_ask() {
    let question =
        |id: &str| json!({"input_request": {"id": id, "question": "?", "default": null, "timeout": 5, "metadata": {}}});
    let mut bench = Bench::new();
    bench.posted("1", "all");
    bench.dispatched("1", &["a", "b"]);
    assert_eq!(bench.event("1", "a", "input_request", "waiting_client_input", question("q1")).questions, ["q1"]);
    let waiting = json!({"worker":"a","uuid":"1","service":"s","status":"WAITING_CLIENT_INPUT",
        "input_request": {"id": "q1", "question": "?"}});
    assert!(bench.reply("0x05", "1", "102", waiting).questions.is_empty());
    assert_eq!(bench.event("1", "b", "input_request", "waiting_client_input", question("q2")).questions, ["q2"]);
    let answered = |id: &str| json!({"input_response": {"input_id": id, "metadata": {}}});
    bench.event("1", "a", "input_response", "received", answered("q1"));
    assert_eq!(bench.client.state(&id("1")), Some(JobState::Waiting));
    bench.event("1", "b", "input_response", "timeout", answered("q2"));
    assert_eq!(bench.client.state(&id("1")), Some(JobState::Started));
    let response = InputResponse { input_id: "q1".into(), value: Some(json!(1)), cancel: false, metadata: json!({}) };
    bench.client.answer(&id("1"), None, &response);
    let did = bench.drain();
    assert_eq!((did.sent[0].0, &*did.sent[0].1), (Command::Put, r#"["a","b"]"#));
}

#[test]
fn malformed_messages_are_counted_and_end_nothing() {
    let mut bench = Bench::new();
    bench.posted("1", "any");
    bench.dispatched("1", &["a"]);
    for (command, status, body) in [
        ("0x05", "404", "[]"),
        ("0x05", "201", "{}"),
        ("0x08", "200", "[1]"),
        ("0x05", "200", "{nope"),
        ("0x05", "abc", "{}"),
        ("0x05", "299", "{}"),
        ("0x77", "200", "{}"),
    ] {
        assert!(bench.raw(command, "1", status, body).outcome.is_none());
    }
    bench.client.message(bench.now, &[Bytes::new()]);
    assert_eq!(bench.client.counters().refused, 8);
    assert!(bench.result("1", "a").outcome.is_some());
}

#[test]
fn a_management_answer_that_comes_too_late_is_forgotten() {
    let mut bench = Bench::new();
    let request = ManagementBody { task: Some("x".into()), kwargs: Default::default(), args: vec![] };
    let service = ServiceName::parse("mmi.service.broker").expect("a name");
    let deadline = bench.now + Duration::from_secs(1);
    bench.client.management(id("m"), service.clone(), &request, deadline);
    assert_eq!(bench.drain().sent[0].0, Command::Mmi);
    assert_eq!(bench.after(1.0).management, [Err(ManagementFailure::TimedOut)]);
    assert!(bench.reply("0x11", "m", "200", json!([])).management.is_empty());
    let deadline = bench.now + Duration::from_secs(1);
    bench.client.management(id("n"), service, &request, deadline);
    bench.drain();
    assert!(bench.reply("0x05", "n", "200", json!([])).management.is_empty(), "the other one counts");
    assert_eq!(bench.reply("0x11", "n", "200", json!([])).management.len(), 1);
}

#[test]
fn after_a_restart_posted_jobs_are_asked_about_and_others_posted_with_their_old_id() {
    let mut bench = Bench::new();
    let restored = |bench: &Bench, job: &str, state, dispatched: &[&str]| RestoredClientJob {
        request: bench.request(job, "any"),
        state,
        dispatched: dispatched.iter().map(|worker| name(worker)).collect(),
        started: vec![],
        completed: vec![],
        errors: vec![],
        ageless: false,
    };
    let job = restored(&bench, "1", JobState::Started, &["a"]);
    bench.client.restore(bench.now, job);
    assert_eq!(bench.drain().sent[0].0, Command::Get);
    let mut job = restored(&bench, "2", JobState::Submitting, &[]);
    job.request.target = Target::All;
    bench.client.restore(bench.now, job);
    assert_eq!(bench.drain().sent[0].0, Command::Post);
    // That for any worker may be with one already: it goes on when nobody has it.
    let job = restored(&bench, "4", JobState::New, &[]);
    bench.client.restore(bench.now, job);
    assert_eq!((bench.after(0.0).sent[0].0, bench.client.state(&id("4"))), (Command::Get, Some(JobState::New)));
    bench.dispatched_of("4", "all", &["a"]);
    let unknown = json!({"worker": "a", "uuid": "4", "service": "s", "status": "JOB NOT FOUND"});
    assert_eq!(bench.reply("0x05", "4", "404", unknown).sent[0].0, Command::Post);
    let mut job = restored(&bench, "3", JobState::New, &[]);
    job.request.deadline = bench.now;
    bench.client.restore(bench.now, job);
    assert_eq!(bench.drain().outcome.map(|outcome| outcome.state), Some(JobState::Stale));
}

#[test]
fn a_job_that_cannot_be_stored_is_an_error_and_never_sent() {
    let mut bench = Bench::new();
    let request = bench.request("1", "any");
    bench.client.submit(request);
    bench.drain();
    bench.client.stored(bench.now, ClientToken(id("1")), Err("disk full".into()));
    let did = bench.drain();
    assert!(did.sent.is_empty());
    assert!(did.outcome.expect("the end").errors[0].contains("disk full"));
}

#[test]
fn no_more_jobs_are_in_flight_than_allowed() {
    let mut bench = Bench::new();
    bench.client = Client::new(ClientConfig { in_flight_max: 2, ..ClientConfig::default() });
    for job in ["1", "2", "3"] {
        let request = bench.request(job, "any");
        bench.client.submit(request);
        bench.client.stored(bench.now, ClientToken(id(job)), Ok(()));
    }
    assert_eq!(bench.drain().sent.len(), 2);
    bench.dispatched("1", &["a"]);
    let did = bench.result("1", "a");
    assert_eq!(did.sent.len(), 1, "{did:?}");
}

#[test]
fn a_job_that_ended_while_it_waited_for_its_turn_does_not_post_its_successor_too_early() {
    let mut bench = Bench::new();
    bench.client = Client::new(ClientConfig { in_flight_max: 1, ..ClientConfig::default() });
    for job in ["1", "2"] {
        let request = bench.request(job, "any");
        bench.client.submit(request);
        bench.client.stored(bench.now, ClientToken(id(job)), Ok(()));
    }
    bench.drain();
    bench.cancel("2", "cancelled");
    let request = bench.request("2", "any");
    bench.client.submit(request);
    bench.drain();
    bench.client.cancel(bench.now, &id("1"), "cancelled".into());
    assert!(bench.drain().sent.iter().all(|sent| sent.0 != Command::Post), "the store does not have it yet");
    bench.client.stored(bench.now, ClientToken(id("2")), Ok(()));
    assert_eq!(bench.drain().sent.len(), 1);
}

#[test]
fn the_dispatch_of_a_question_does_not_say_who_has_the_job() {
    let mut bench = Bench::new();
    bench.posted("1", "all");
    // The 202 of the POST is lost; a worker announces its result and is asked.
    let did = bench.event("1", "a", "result_ready", "completed", json!({}));
    assert_eq!((did.sent[0].0, &*did.sent[0].1), (Command::Get, r#"["a"]"#));
    let dispatch = |target: &str, workers: &[&str]| json!({"workers": workers, "uuid": "1", "target": target, "status": "DISPATCHED", "service": "s"});
    bench.reply("0x05", "1", "202", dispatch(r#"["a"]"#, &["a"]));
    assert!(bench.result("1", "a").outcome.is_none(), "others may have the job too");
    bench.reply("0x05", "1", "202", dispatch("all", &["a", "b"]));
    assert_eq!(bench.result("1", "b").outcome.map(|outcome| outcome.state), Some(JobState::Completed));
}

#[test]
fn a_dispatch_to_nobody_completes_nothing() {
    let mut bench = Bench::new();
    bench.posted("1", "all");
    assert!(bench.dispatched("1", &[]).outcome.is_none());
    bench.dispatched("1", &["a"]);
    assert_eq!(bench.result("1", "a").outcome.map(|outcome| outcome.state), Some(JobState::Completed));
}

#[test]
fn a_job_whose_results_are_all_stored_completes_at_the_restart() {
    let mut bench = Bench::new();
    let request = bench.request("1", "all");
    let workers = vec![name("a"), name("b")];
    bench.client.restore(
        bench.now,
        RestoredClientJob {
            request,
            state: JobState::Started,
            dispatched: workers.clone(),
            started: workers.clone(),
            completed: workers,
            errors: vec![],
            ageless: false,
        },
    );
    assert_eq!(bench.drain().outcome.map(|outcome| outcome.state), Some(JobState::Completed));
}

#[test]
fn a_job_whose_deadline_passed_while_the_process_was_away_is_not_posted() {
    let mut bench = Bench::new();
    let mut request = bench.request("1", "any");
    request.deadline = bench.now;
    bench.client.restore(
        bench.now,
        RestoredClientJob {
            request,
            state: JobState::New,
            dispatched: vec![],
            started: vec![],
            completed: vec![],
            errors: vec![],
            ageless: false,
        },
    );
    let did = bench.drain();
    assert!(did.sent.is_empty());
    assert_eq!(did.outcome.map(|outcome| outcome.state), Some(JobState::Stale));
}

#[test]
fn a_job_that_is_cancelled_while_it_is_being_stored_is_not_found_unfinished_later() {
    let mut bench = Bench::new();
    let request = bench.request("1", "any");
    bench.client.submit(request);
    bench.drain();
    bench.client.cancel(bench.now, &id("1"), "cancelled".into());
    let stored = std::iter::from_fn(|| bench.client.poll_output()).any(|output| {
        matches!(
            output,
            ClientOutput::Store(ClientStoreOperation::Progress(Progress { state: JobState::Cancelled, .. }), Some(_))
        )
    });
    assert!(stored, "the row says cancelled as soon as there is one");
    bench.client.stored(bench.now, ClientToken(id("1")), Ok(()));
    let did = bench.drain();
    assert!(did.sent.is_empty() && did.outcome.is_none(), "and it is not posted");
    bench.client.stored(bench.now, ClientToken(id("1")), Ok(()));
    assert_eq!(bench.drain().outcome.map(|outcome| outcome.state), Some(JobState::Cancelled));
}

#[test]
fn a_management_request_waits_for_a_connection_and_leaves_no_trace_when_it_is_too_late() {
    let mut bench = Bench::new();
    bench.client.disconnected();
    let request = ManagementBody { task: Some("x".into()), kwargs: Default::default(), args: vec![] };
    let service = ServiceName::parse("mmi.service.broker").expect("a name");
    for (id_text, seconds) in [("m", 1), ("n", 60)] {
        let deadline = bench.now + Duration::from_secs(seconds);
        bench.client.management(id(id_text), service.clone(), &request, deadline);
    }
    assert!(bench.drain().sent.is_empty(), "an outage fills no queue");
    bench.now += Duration::from_secs(1);
    bench.client.timeout(bench.now);
    let mut forgotten = false;
    while let Some(output) = bench.client.poll_output() {
        forgotten |= matches!(output, ClientOutput::Forget(job) if job == id("m"));
    }
    assert!(forgotten, "one that was sent on a slow link must not leave any more");
    bench.client.connected(bench.now);
    assert_eq!(bench.drain().sent.len(), 1, "the other one is still wanted");
}

#[test]
fn results_of_thousands_of_workers_cost_the_same_each() {
    let mut bench = Bench::new();
    bench.posted("1", "all");
    let workers: Vec<String> = (0..5000).map(|number| format!("w{number}")).collect();
    let names: Vec<&str> = workers.iter().map(String::as_str).collect();
    bench.dispatched("1", &names);
    let began = Instant::now();
    let mut outcome = None;
    for worker in &workers {
        outcome = bench.result("1", worker).outcome;
    }
    assert_eq!(outcome.map(|outcome| outcome.state), Some(JobState::Completed));
    // Tenths of a second, rows included; what grows with the square takes ten times as long.
    assert!(began.elapsed() < Duration::from_secs(5), "{:?}", began.elapsed());
}
