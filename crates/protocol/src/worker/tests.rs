//! The worker's rules, one sentence a test.

use super::*;
use crate::frame::Command;

mod asked;
mod looked_up;
mod starts;
mod turns;
mod unstored;
mod withdrawn;

struct Bench {
    worker: Worker,
    now: Instant,
}

#[derive(Debug, PartialEq)]
enum Did {
    Withdrew(String),
    Sent(Command, Vec<String>),
    Stored(&'static str),
    Started(String),
    Abandoned(Abandoned),
    Delivered,
    Cancelled,
    Reconnect,
    Load(String),
    Note,
}

fn name(text: &str) -> Identity {
    Identity::parse(text).expect("a name")
}

fn job(text: &str) -> JobId {
    JobId::parse(text).expect("a name")
}

impl Bench {
    fn new(max_concurrent_jobs: usize) -> Self {
        let now = Instant::now();
        let mut config = WorkerConfig::new(name("w"), ServiceName::parse("s").expect("a name"));
        config.max_concurrent_jobs = max_concurrent_jobs;
        let mut bench = Self { worker: Worker::new(config, now), now };
        bench.worker.connected(now);
        assert_eq!(bench.drain(), [Did::Sent(Command::Ready, vec!["s".into()])]);
        bench
    }

    fn drain(&mut self) -> Vec<Did> {
        let mut did = Vec::new();
        while let Some(output) = self.worker.poll_output() {
            did.push(match output {
                WorkerOutput::Withdraw(job) => Did::Withdrew(job.to_string()),
                WorkerOutput::Send(frames, _) | WorkerOutput::Announce(_, frames) => Did::Sent(
                    Command::from_frame(&frames[2]).expect("a command"),
                    frames[3..].iter().map(|frame| String::from_utf8_lossy(frame).into_owned()).collect(),
                ),
                WorkerOutput::Store(operation, _) => Did::Stored(match operation {
                    WorkerStoreOperation::Insert(_) => "insert",
                    WorkerStoreOperation::Started(_) => "started",
                    WorkerStoreOperation::StartedAnew(_) => "started anew",
                    WorkerStoreOperation::Waiting(_) => "waiting",
                    WorkerStoreOperation::Answered(_) => "answered",
                    WorkerStoreOperation::Finish { .. } => "finish",
                    WorkerStoreOperation::Event { .. } => "event",
                }),
                WorkerOutput::Load { job, .. } => Did::Load(job.to_string()),
                WorkerOutput::LookUp { question, .. } => Did::Load(question.to_string()),
                WorkerOutput::Start(start) => Did::Started(start.job.to_string()),
                WorkerOutput::Abandon { why, .. } => Did::Abandoned(why),
                WorkerOutput::Deliver { .. } => Did::Delivered,
                WorkerOutput::Cancel { .. } => Did::Cancelled,
                WorkerOutput::Reconnect => Did::Reconnect,
                WorkerOutput::Note(_) => Did::Note,
            });
        }
        did
    }

    fn told(&mut self, parts: &[&str]) -> Vec<Did> {
        let mut frames = vec![Bytes::new(), Bytes::from_static(b"NFPB01")];
        frames.extend(parts.iter().map(|part| Bytes::copy_from_slice(part.as_bytes())));
        self.worker.message(self.now, &frames);
        self.drain()
    }

    fn post(&mut self, id: &str) -> Vec<Did> {
        self.told(&["0x04", "c", "", id, r#"{"task":"t","timeout":30}"#])
    }

    /// A job that cannot be taken and that the store does not know.
    fn post_that_is_unknown(&mut self, id: &str) -> Vec<Did> {
        let asked = self.post_that_is_looked_up(id);
        self.worker.loaded(job(id), name("c"), asked, None);
        self.drain()
    }

    fn post_that_is_looked_up(&mut self, id: &str) -> Asked {
        let frames = ["", "NFPB01", "0x04", "c", "", id, r#"{"task":"t"}"#];
        self.worker.message(self.now, &frames.map(|frame| Bytes::copy_from_slice(frame.as_bytes())));
        let Some(WorkerOutput::Load { asked, .. }) = self.worker.poll_output() else { panic!("it is looked up") };
        assert_eq!(self.drain(), []);
        asked
    }

    fn store(&mut self, token: WorkerToken) -> Vec<Did> {
        self.worker.stored(self.now, token, Ok(()));
        self.drain()
    }

    fn accept(&mut self, id: &str) -> Vec<Did> {
        let stored = self.post(id);
        assert_eq!(stored[0], Did::Stored("insert"), "stored before it is acknowledged");
        let mut did = self.store(WorkerToken::Insert(job(id)));
        if stored[1..] == [Did::Stored("started")] {
            assert!(!did.iter().any(|did| matches!(did, Did::Started(_))), "written down before it starts");
            did.extend(self.store(WorkerToken::Start(job(id))));
        }
        did
    }

    fn finish(&mut self, id: &str) -> Vec<Did> {
        let reply = result_reply(&name("w"), b"{}");
        self.worker.finished(self.now, &job(id), Ending::Completed, reply, Bytes::from_static(b"{}"));
        self.drain()
    }

    fn status_of_get(&mut self, id: &str) -> String {
        match self.told(&["0x06", "c", "", id, ""]).as_slice() {
            [Did::Sent(Command::Response, rest)] => rest[3].clone(),
            other => panic!("{other:?}"),
        }
    }
}

fn statuses(did: &[Did]) -> Vec<&str> {
    did.iter()
        .filter_map(|did| match did {
            Did::Sent(Command::Response, rest) => Some(rest[3].as_str()),
            _ => None,
        })
        .collect()
}

#[test]
fn a_job_is_stored_then_acknowledged_then_started_and_its_result_is_stored_then_sent() {
    let mut bench = Bench::new(5);
    let did = bench.accept("1");
    assert_eq!(statuses(&did), ["201"]);
    assert_eq!(did[1..], [Did::Started("1".into())]);
    assert_eq!(bench.finish("1"), [Did::Stored("finish"), Did::Stored("event")], "the last event in the same commit");
    assert_eq!(bench.status_of_get("1"), "300", "not before it is stored");
    let did = bench.store(WorkerToken::Finish(job("1")));
    let Did::Sent(Command::Response, rest) = &did[0] else { panic!("{did:?}") };
    assert_eq!((&*rest[3], &*rest[4]), ("200", r#"{"w":{}}"#));
    assert!(matches!(did[1..], [Did::Sent(Command::Event, _)]));
}

#[test]
fn no_more_jobs_run_at_once_than_allowed_and_the_rest_wait_in_order() {
    let mut bench = Bench::new(2);
    for id in ["1", "2", "3", "4"] {
        bench.accept(id);
    }
    assert_eq!(bench.worker.running(), 2);
    assert_eq!(bench.status_of_get("3"), "300");
    assert_eq!(bench.finish("2"), [Did::Stored("finish"), Did::Stored("event"), Did::Stored("started")]);
    assert_eq!(bench.store(WorkerToken::Start(job("3"))), [Did::Started("3".into())]);
    assert_eq!(bench.store(WorkerToken::Start(job("4"))), [], "it has no place");
}

#[test]
fn a_repeated_post_is_answered_and_not_run_again() {
    let mut bench = Bench::new(5);
    bench.accept("1");
    assert_eq!(statuses(&bench.post("1")), ["201"]);
    bench.finish("1");
    bench.store(WorkerToken::Finish(job("1")));
    assert_eq!(bench.post("1"), [Did::Stored("insert"), Did::Stored("started")]);
    bench.worker.stored(bench.now, WorkerToken::Insert(job("1")), Err(StoreFailure::Duplicate));
    assert_eq!(bench.drain(), [Did::Load("1".into())]);
    bench.worker.loaded(
        job("1"),
        name("c"),
        Asked::State,
        Some(LoadedJob { payload: Some(Bytes::from_static(b"{}")) }),
    );
    assert_eq!(statuses(&bench.drain()), ["200"]);
    assert_eq!(bench.worker.running(), 0);
}

#[test]
fn what_cannot_be_run_or_stored_is_refused_with_its_reason() {
    let mut bench = Bench::new(5);
    for body in ["", "{nope", "[]", "{}", r#"{"task":null}"#, r#"{"task":"t","args":1}"#] {
        let did = bench.told(&["0x04", "c", "", "1", body]);
        assert_eq!(statuses(&did), ["400"], "{body}");
    }
    bench.post("2");
    bench.worker.stored(bench.now, WorkerToken::Insert(job("2")), Err(StoreFailure::Failed("disk full".into())));
    let did = bench.drain();
    let Did::Sent(_, rest) = &did[1] else { panic!("{did:?}") };
    assert!(rest[4].contains("disk full"), "{rest:?}");
    assert_eq!(bench.worker.unfinished(), 0);
    bench.worker.stop();
    assert_eq!(statuses(&bench.post_that_is_unknown("3")), ["400"]);
}

#[test]
fn a_job_past_its_deadline_never_starts() {
    let mut bench = Bench::new(1);
    bench.accept("1");
    bench.accept("2");
    bench.now += Duration::from_secs(31);
    let did = bench.finish("1");
    assert!(did.contains(&Did::Abandoned(Abandoned::Expired)), "{did:?}");
    assert!(!did.iter().any(|did| matches!(did, Did::Started(_))), "{did:?}");
    bench.finish("2");
    assert_eq!(statuses(&bench.store(WorkerToken::Finish(job("2")))), ["200"]);
}

#[test]
fn a_job_that_was_sent_late_has_only_what_its_client_still_waits() {
    let mut bench = Bench::new(1);
    bench.accept("1");
    let late = r#"{"task":"t","timeout":3600,"remaining":5.0}"#;
    bench.told(&["0x04", "c", "", "2", late]);
    bench.store(WorkerToken::Insert(job("2")));
    bench.now += Duration::from_secs(5);
    let did = bench.finish("1");
    assert!(did.contains(&Did::Abandoned(Abandoned::Expired)), "{did:?}");
}

#[test]
fn after_a_restart_queued_jobs_run_and_started_ones_are_given_up() {
    let mut bench = Bench::new(5);
    let restored = |id: &str, given_up| RestoredJob {
        new: NewJob {
            job: job(id),
            client: name("c"),
            task: TaskName::parse("t").expect("a name"),
            asked_timeout: None,
            timeout: 60,
            time_left: None,
            body: Bytes::from_static(br#"{"task":"t"}"#),
        },
        given_up,
        remaining: Duration::from_secs(10),
        attempts: 1,
        counted: false,
    };
    bench.worker.restore(bench.now, restored("1", true));
    assert_eq!(bench.drain(), [Did::Abandoned(Abandoned::Restarted)]);
    bench.worker.restore(bench.now, restored("2", false));
    assert_eq!(bench.drain(), [Did::Stored("started")]);
    assert_eq!(bench.store(WorkerToken::Start(job("2"))), [Did::Started("2".into())]);
    assert_eq!(bench.finish("1"), [Did::Stored("finish"), Did::Stored("event")]);
    assert_eq!(bench.worker.running(), 1);
}

#[test]
fn questions_show_as_waiting_until_all_are_answered() {
    let mut bench = Bench::new(5);
    bench.accept("1");
    let question = |id: &str| InputRequest {
        id: id.into(),
        question: "?".into(),
        default: serde_json::Value::Null,
        timeout: None,
        metadata: serde_json::Value::Null,
    };
    for id in ["a", "b"] {
        let taken =
            bench.worker.event(&job("1"), EventType::InputRequest, Some(question(id)), None, Bytes::from_static(b"{}"));
        assert_eq!(taken, Ok(()));
    }
    bench.drain();
    assert_eq!(bench.status_of_get("1"), "102");
    for (id, after) in [("a", "102"), ("b", "300")] {
        let taken = bench.worker.event(&job("1"), EventType::InputResponse, None, Some(id), Bytes::from_static(b"{}"));
        assert_eq!(taken, Ok(()));
        bench.drain();
        assert_eq!(bench.status_of_get("1"), after);
    }
}

#[test]
fn puts_reach_running_jobs_only_and_bad_ones_are_refused() {
    let mut bench = Bench::new(1);
    bench.accept("1");
    bench.accept("2");
    assert_eq!(bench.told(&["0x10", "c", "", "1", r#"{"offset":5}"#]), [Did::Delivered]);
    assert_eq!(bench.told(&["0x10", "c", "", "2", r#"{"offset":5}"#]), []);
    // Of another client only answers to questions count.
    assert_eq!(bench.told(&["0x10", "other", "", "1", r#"{"offset":5}"#]), []);
    assert_eq!(bench.told(&["0x10", "other", "", "1", "{\"content\":1}\nbytes"]), []);
    assert_eq!(bench.told(&["0x10", "other", "", "1", r#"{"input_id":"a","value":1}"#]), [Did::Delivered]);
    assert_eq!(bench.told(&["0x10", "c", "", "1", "{}"]), []);
    assert_eq!(bench.told(&["0x10", "c", "", "1", "[1]"]), [Did::Note]);
    assert_eq!(bench.worker.counters().puts_ignored, 4);
}

#[test]
fn a_cancelled_job_ends_at_once_when_queued_and_is_told_when_running() {
    let mut bench = Bench::new(1);
    bench.accept("1");
    bench.accept("2");
    assert_eq!(bench.told(&["0x07", "c", "", "1", "{}"]), [Did::Cancelled]);
    let did = bench.told(&["0x07", "c", "", "2", r#"{"reason":"typo"}"#]);
    assert_eq!(
        did,
        [Did::Abandoned(Abandoned::Cancelled { by: name("c"), reason: Some("typo".into()), text: None, back: false })]
    );
    assert_eq!(bench.told(&["0x07", "c", "", "2", "{}"]), [], "once");
    let reply = result_reply(&name("w"), b"{}");
    bench.worker.finished(bench.now, &job("2"), Ending::Failed, reply, Bytes::from_static(b"{}"));
    let finish = bench.worker.poll_output();
    let Some(WorkerOutput::Store(WorkerStoreOperation::Finish { ending, .. }, _)) = finish else {
        panic!("{finish:?}")
    };
    assert_eq!(ending, Ending::Cancelled);
}

#[test]
fn a_cancelled_job_ends_as_cancelled_whatever_its_task_returns() {
    let mut bench = Bench::new(1);
    bench.accept("1");
    let text = r#"{"text":"cancelled by me at noon"}"#;
    assert_eq!(bench.told(&["0x07", "other", "", "1", text]), [Did::Cancelled]);
    bench
        .worker
        .announce_cancel(&job("1"), "cancelled by me at noon", Bytes::from_static(b"{}"))
        .expect("it is not finished");
    let did = bench.drain();
    assert_eq!(did[0], Did::Stored("event"));
    assert!(matches!(&did[1], Did::Sent(Command::Event, rest) if rest[0] == "c"), "whose job it is: {did:?}");
    assert_eq!(bench.told(&["0x07", "c", "", "1", "{}"]), [], "once");
    let reply = result_reply(&name("w"), b"{}");
    bench.worker.finished(bench.now, &job("1"), Ending::Completed, reply, Bytes::from_static(b"{}"));
    let finish = bench.worker.poll_output();
    let Some(WorkerOutput::Store(WorkerStoreOperation::Finish { ending: Ending::Cancelled, payload, .. }, Some(token))) =
        finish
    else {
        panic!("{finish:?}")
    };
    let said = br#"{"cancelled":"cancelled by me at noon"}"#;
    assert_eq!(payload.as_ref(), said, "its client may have missed the event");
    bench.worker.stored(bench.now, token, Ok(()));
    let did = bench.drain();
    assert!(did.iter().any(|did| matches!(did, Did::Sent(Command::Response, rest) if rest.last().is_some_and(|body| body.contains("by me at noon")))), "{did:?}");
}

#[test]
fn a_cancellation_is_confirmed_with_the_result_or_that_the_job_is_not_known() {
    let mut bench = Bench::new(1);
    let mut answer_of = |asked, loaded| {
        assert_eq!(bench.told(&["0x07", "c", "", "1", "{}"]), [Did::Load("1".into())]);
        bench.worker.loaded(job("1"), name("c"), asked, loaded);
        match &bench.drain()[..] {
            [Did::Sent(Command::Response, frames)] => (frames[3].clone(), frames[4].contains(CANCELLED_WORD)),
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(answer_of(Asked::ToCancel, None), ("404".into(), true), "nothing of it runs here, now or later");
    assert_eq!(answer_of(Asked::State, None), ("404".into(), false), "its POST may come");
    let stored = Some(LoadedJob { payload: Some(Bytes::from_static(b"{}")) });
    assert_eq!(answer_of(Asked::ToCancel, stored).0, "200");
}

#[test]
fn a_disconnect_brings_a_new_socket_and_ready_but_not_more_than_once_a_second() {
    let mut bench = Bench::new(1);
    bench.now += Duration::from_secs(2);
    assert_eq!(bench.told(&["0x03", "s"]), [Did::Note, Did::Reconnect]);
    bench.worker.connected(bench.now);
    assert_eq!(bench.drain(), [Did::Sent(Command::Ready, vec!["s".into()])]);
    assert_eq!(bench.told(&["0x03", "s"]), [Did::Note]);
    bench.now += RECONNECT_INTERVAL;
    assert_eq!(bench.worker.next_deadline(), Some(bench.now));
    bench.worker.timeout(bench.now);
    assert_eq!(bench.drain(), [Did::Reconnect]);
    assert_eq!(bench.worker.counters().reconnects, 1);
}

#[test]
fn a_silent_broker_is_asked_with_ready_after_two_beats_and_left_after_the_hold_time() {
    let mut bench = Bench::new(1);
    let mut commands = Vec::new();
    for _ in 0..5 {
        bench.now += Duration::from_millis(2500);
        bench.worker.timeout(bench.now);
        commands.extend(bench.drain().into_iter().map(|did| match did {
            Did::Sent(command, _) => command,
            other => panic!("{other:?}"),
        }));
    }
    use Command::{Keepalive, Ready};
    assert_eq!(commands, [Keepalive, Keepalive, Ready, Ready, Ready]);
    bench.now += Duration::from_millis(2500);
    bench.worker.timeout(bench.now);
    let did = bench.drain();
    assert_eq!(did, [Did::Note, Did::Sent(Command::Disconnect, vec!["s".into()]), Did::Reconnect]);
}

#[test]
fn a_job_that_is_cancelled_while_it_is_being_stored_does_not_run() {
    let mut bench = Bench::new(1);
    bench.post("1");
    assert_eq!(bench.told(&["0x07", "c", "", "1", "{}"]), []);
    let did = bench.store(WorkerToken::Insert(job("1")));
    assert!(matches!(did[0], Did::Sent(Command::Response, _)), "{did:?}");
    assert!(matches!(did[1], Did::Abandoned(Abandoned::Cancelled { .. })), "{did:?}");
    assert_eq!(did.len(), 2);
    assert_eq!(bench.finish("1"), [Did::Stored("finish"), Did::Stored("event")]);
}

#[test]
fn a_task_that_has_ended_can_report_nothing_more() {
    let mut bench = Bench::new(1);
    bench.accept("1");
    bench.finish("1");
    let body = Bytes::from_static(b"{}");
    assert_eq!(
        bench.worker.event(&job("1"), EventType::Progress, None, None, body.clone()),
        Err(NotTaken::NoSuchJob),
        "its row says that it is finished"
    );
    assert_eq!(bench.worker.stream(&job("1"), body), Err(NotTaken::NoSuchJob));
}

#[test]
fn without_a_connection_nothing_is_expected_and_nobody_wakes_up() {
    let mut bench = Bench::new(1);
    bench.worker.disconnected();
    assert_eq!(bench.worker.next_deadline(), None);
    bench.now += Duration::from_secs(60);
    bench.worker.timeout(bench.now);
    assert_eq!(bench.drain(), [], "the broker's silence is not its fault");
    bench.worker.connected(bench.now);
    assert_eq!(bench.drain(), [Did::Sent(Command::Ready, vec!["s".into()])]);
    assert_eq!(bench.worker.next_deadline(), Some(bench.now + Duration::from_millis(2500)));
}

#[test]
fn a_worker_that_could_not_listen_does_not_blame_the_broker() {
    let mut bench = Bench::new(1);
    for _ in 0..10 {
        bench.now += Duration::from_millis(2500);
        bench.worker.not_listening(bench.now);
        bench.worker.timeout(bench.now);
        assert_eq!(bench.drain(), [Did::Sent(Command::Keepalive, vec!["s".into()])]);
    }
}

#[test]
fn unfinished_jobs_take_a_bounded_number_of_bytes() {
    let mut bench = Bench::new(1);
    bench.worker.config.jobs_bytes_max = 60;
    bench.accept("1");
    bench.accept("2");
    let did = bench.post_that_is_unknown("3");
    let Did::Sent(_, rest) = &did[1] else { panic!("{did:?}") };
    assert!(rest[3] == "400" && rest[4].contains("\"retry\":true"), "{rest:?}");
    bench.finish("1");
    bench.store(WorkerToken::Finish(job("1")));
    assert_eq!(bench.post("3")[0], Did::Stored("insert"), "room again");
}

#[test]
fn a_job_whose_deadline_passes_while_its_start_is_written_down_does_not_start() {
    let mut bench = Bench::new(1);
    bench.post("1");
    bench.worker.stored(bench.now, WorkerToken::Insert(job("1")), Ok(()));
    bench.drain();
    bench.now += Duration::from_secs(30);
    assert_eq!(bench.store(WorkerToken::Start(job("1"))), [Did::Abandoned(Abandoned::Expired)]);
    bench.finish("1");
    assert_eq!(bench.worker.running(), 0);
}

#[test]
fn a_stopping_worker_answers_a_repeated_post_with_what_became_of_the_job() {
    let mut bench = Bench::new(1);
    bench.accept("1");
    bench.finish("1");
    bench.store(WorkerToken::Finish(job("1")));
    bench.worker.stop();
    let asked = bench.post_that_is_looked_up("1");
    let done = LoadedJob { payload: Some(Bytes::from_static(b"{}")) };
    bench.worker.loaded(job("1"), name("c"), asked, Some(done));
    assert_eq!(statuses(&bench.drain()), ["200"], "to refuse it would make it run elsewhere, too");
}

#[test]
fn nobody_is_told_of_a_state_before_a_job_is_stored() {
    let mut bench = Bench::new(1);
    bench.post("1");
    assert_eq!(bench.told(&["0x06", "c", "", "1", ""]), [], "it may still be refused");
    bench.worker.stored(bench.now, WorkerToken::Insert(job("1")), Err(StoreFailure::Failed("disk full".into())));
    assert_eq!(statuses(&bench.drain()), ["400"]);
}

#[test]
fn a_request_is_kept_as_it_came_and_read_when_it_starts() {
    let mut bench = Bench::new(1);
    let body = r#"{"task":"t","kwargs":{"a":[1,{"b":null}]},"args":["x"],"timeout":30,"fabric":1}"#;
    bench.told(&["0x04", "c", "", "1", body]);
    bench.store(WorkerToken::Insert(job("1")));
    bench.worker.stored(bench.now, WorkerToken::Start(job("1")), Ok(()));
    let Some(WorkerOutput::Start(start)) = bench.worker.poll_output() else { panic!("it starts") };
    assert_eq!(start.request, body::decode("a job request", body.as_bytes()).expect("a request"));
}

#[test]
fn a_request_whose_arguments_cannot_be_read_ends_with_the_reason() {
    let mut bench = Bench::new(1);
    bench.told(&["0x04", "c", "", "1", r#"{"task":"t","kwargs":{"a":"\ud800"}}"#]);
    bench.store(WorkerToken::Insert(job("1")));
    let did = bench.store(WorkerToken::Start(job("1")));
    assert!(matches!(&did[..], [Did::Abandoned(Abandoned::Unreadable(_))]), "{did:?}");
    bench.finish("1");
    assert_eq!((bench.worker.running(), bench.worker.bytes), (0, bench.worker.jobs[&job("1")].body.len()));
}

#[test]
fn whatever_the_broker_says_shows_that_it_is_there() {
    let mut bench = Bench::new(1);
    for round in 0..4 {
        bench.now += Duration::from_secs(10);
        bench.told(&["0x06", "c", "", &format!("{round}"), ""]);
        bench.worker.timeout(bench.now);
        assert!(!bench.drain().contains(&Did::Reconnect));
    }
}

#[test]
fn a_large_result_on_a_slow_line_is_not_cut_off() {
    let mut bench = Bench::new(1);
    bench.accept("1");
    let result = format!(r#""{}""#, "x".repeat(64 << 20));
    let reply = result_reply(&name("w"), result.as_bytes());
    bench.worker.finished(bench.now, &job("1"), Ending::Completed, reply, Bytes::from_static(b"{}"));
    bench.drain();
    bench.worker.stored(bench.now, WorkerToken::Finish(job("1")), Ok(()));
    while bench.worker.poll_output().is_some() {}
    let began = bench.now;
    // The broker has given the worker up and says nothing more.
    let left = loop {
        bench.now = bench.worker.next_deadline().expect("a deadline");
        bench.worker.timeout(bench.now);
        if bench.drain().contains(&Did::Reconnect) {
            break bench.now - began;
        }
    };
    // 64 MiB at 5 Mbit/s, and a hold time.
    assert!((120..130).contains(&left.as_secs()), "{left:?}");
}

/// Posts a job, lets its task say `said` and end, and gives what leaves with the result. `second`: who else posts it.
fn leaves_with_result(body: &str, said: bool, second: Option<&str>) -> Vec<Did> {
    let mut bench = Bench::new(5);
    bench.told(&["0x04", "c", "", "1", body]);
    assert_eq!(statuses(&bench.store(WorkerToken::Insert(job("1")))), ["201"]);
    bench.store(WorkerToken::Start(job("1")));
    bench.worker.announce_start(&job("1"), Bytes::from_static(b"{}")).expect("it runs");
    if said {
        bench.worker.event(&job("1"), EventType::Progress, None, None, Bytes::from_static(b"{}")).expect("it runs");
    }
    if let Some(second) = second {
        bench.told(&["0x04", second, "", "1", body]);
    }
    bench.drain();
    bench.finish("1");
    bench.store(WorkerToken::Finish(job("1")))
}

#[test]
fn a_result_for_a_client_of_ours_is_all_that_it_needs() {
    let withdrew = |did: &[Did]| did.first() == Some(&Did::Withdrew("1".into()));
    let events = |did: &[Did]| did.iter().filter(|did| matches!(did, Did::Sent(Command::Event, _))).count();
    let (ours, others) = (r#"{"task":"t","fabric":1}"#, r#"{"task":"t"}"#);
    for (body, said, second, withdrawn, announced) in [
        (ours, false, None, true, 0),
        // A task that has spoken has not begun in silence.
        (ours, true, None, false, 0),
        (ours, false, Some("c"), true, 0),
        // Who else asks may need the word that the job was taken.
        (ours, false, Some("d"), false, 1),
        (others, false, None, false, 1),
    ] {
        let did = leaves_with_result(body, said, second);
        assert_eq!((withdrew(&did), events(&did)), (withdrawn, announced), "{body}, {said}, {second:?}: {did:?}");
        assert_eq!(statuses(&did), ["200"]);
    }
}
