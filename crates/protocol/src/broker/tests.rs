//! The broker's rules, one sentence a test.

mod missed;

use super::*;
use crate::frame::Command;
use serde_json::Value;

mod cancel;
mod unanswered;

struct Bench {
    broker: Broker,
    now: Instant,
}

/// One sent message: to whom, the command, and the frames after the command.
#[derive(Debug, Clone, PartialEq)]
struct Sent {
    to: String,
    command: Command,
    rest: Vec<String>,
}

impl Bench {
    fn new() -> Self {
        Self { broker: Broker::new(BrokerConfig::default()), now: Instant::now() }
    }

    fn drain(&mut self) -> Vec<Sent> {
        self.drain_with(|_, _| None)
    }

    fn drain_with(&mut self, mut fail: impl FnMut(&Identity, Purpose) -> Option<Undelivered>) -> Vec<Sent> {
        let mut sent = Vec::new();
        while let Some(output) = self.broker.poll_output() {
            let BrokerOutput::Send(outgoing) = output else {
                continue;
            };
            if let Some(reason) = fail(&outgoing.to, outgoing.purpose) {
                self.broker.undeliverable(&outgoing, reason);
                continue;
            }
            let Outgoing { to, frames, .. } = outgoing;
            sent.push(Sent {
                to: to.to_string(),
                command: Command::from_frame(&frames[2]).expect("a command"),
                rest: frames[3..].iter().map(|frame| String::from_utf8_lossy(frame).into_owned()).collect(),
            });
        }
        sent
    }

    fn from(&mut self, peer: &str, parts: &[&str]) -> Vec<Sent> {
        self.input(peer, parts);
        self.drain()
    }

    fn input(&mut self, peer: &str, parts: &[&str]) {
        let mut frames = vec![Bytes::new()];
        frames.extend(parts.iter().map(|part| Bytes::copy_from_slice(part.as_bytes())));
        self.broker.message(self.now, peer.as_bytes(), &frames);
    }

    fn ready(&mut self, worker: &str, service: &str) {
        assert_eq!(self.from(worker, &["NFPW01", "0x01", service]), vec![]);
    }

    fn post(&mut self, service: &str, target: &str, job: &str) -> Vec<Sent> {
        self.from("client", &["NFPC01", "0x04", service, target, job, "{\"task\":\"t\"}"])
    }

    fn after(&mut self, seconds: f64) -> Vec<Sent> {
        self.now += Duration::from_secs_f64(seconds);
        self.broker.timeout(self.now);
        self.drain()
    }
}

fn to_workers(sent: &[Sent]) -> Vec<String> {
    let mut workers: Vec<String> = sent
        .iter()
        .filter(|sent| matches!(sent.command, Command::Post | Command::Delete))
        .map(|sent| sent.to.clone())
        .collect();
    workers.sort();
    workers
}

fn status(sent: &[Sent]) -> &str {
    &sent.iter().find(|sent| sent.command == Command::Response).expect("an answer").rest[2]
}

#[test]
fn a_job_goes_to_the_workers_that_its_target_names() {
    let mut bench = Bench::new();
    for (worker, service) in [("a", "s"), ("b", "s"), ("c", "other")] {
        bench.ready(worker, service);
    }
    assert_eq!(to_workers(&bench.post("s", "all", "1")), ["a", "b"]);
    assert_eq!(to_workers(&bench.post("s", "c", "2")), ["c"], "a registered name of another service");
    assert_eq!(to_workers(&bench.post("s", r#"["b","ghost","b","c"]"#, "3")), ["b", "c"]);
    assert_eq!(to_workers(&bench.post("all", "all", "4")), ["a", "b", "c"]);
    assert_eq!(to_workers(&bench.post("all", "any", "5")).len(), 2);
    assert_eq!(to_workers(&bench.post("s", "any", "6")).len(), 1);
    for (job, target) in [("7", "ghost"), ("8", "[]"), ("9", "\"a\""), ("10", "")] {
        assert_eq!(status(&bench.post("s", target, job)), "400", "{target}");
    }
    assert_eq!(status(&bench.post("nobody", "a", "11")), "400");
}

#[test]
fn services_that_nobody_registers_are_not_remembered() {
    let mut bench = Bench::new();
    bench.post("ghost", "any", "1");
    assert_eq!(bench.broker.counts(), (0, 0));
    bench.ready("a", "s");
    bench.from("a", &["NFPW01", "0x03", "s"]);
    assert_eq!(bench.broker.counts(), (0, 0));
}

#[test]
fn a_worker_that_cannot_be_reached_is_left_out_and_any_goes_to_another() {
    let mut bench = Bench::new();
    bench.ready("a", "s");
    bench.ready("b", "s");
    for job in ["1", "2", "3", "4"] {
        bench.input("client", &["NFPC01", "0x04", "s", "any", job, "{}"]);
        let sent = bench.drain_with(|to, purpose| {
            (purpose == Purpose::Dispatch && to.as_str() == "a").then_some(Undelivered::Unroutable)
        });
        assert_eq!(to_workers(&sent), ["b"]);
        assert_eq!(status(&sent), "202");
    }
    bench.input("client", &["NFPC01", "0x04", "s", "all", "5", "{}"]);
    let sent = bench
        .drain_with(|to, purpose| (purpose == Purpose::Dispatch && to.as_str() == "a").then_some(Undelivered::Full));
    let body: Value = serde_json::from_str(&sent.last().expect("an answer").rest[3]).expect("JSON");
    assert_eq!(body["workers"], serde_json::json!(["b"]));
    bench.input("client", &["NFPC01", "0x04", "s", "a", "6", "{}"]);
    let sent = bench.drain_with(|_, purpose| (purpose == Purpose::Dispatch).then_some(Undelivered::Unroutable));
    assert_eq!(status(&sent), "400");
    assert!(
        sent[0].rest[3].contains(r#""retry":true"#),
        "it is registered: it connects anew, or is found gone: {sent:?}"
    );
    assert!(bench.broker.counters().unroutable >= 1 && bench.broker.counters().full == 1);
}

#[test]
fn a_repeated_post_goes_where_the_first_went() {
    let mut bench = Bench::new();
    for worker in ["a", "b", "c", "d", "e"] {
        bench.ready(worker, "s");
    }
    let first = to_workers(&bench.post("s", "any", "1"));
    for _ in 0..20 {
        assert_eq!(to_workers(&bench.post("s", "any", "1")), first);
    }
}

#[test]
fn a_repeated_post_goes_to_nobody_else_while_its_worker_is_away() {
    let mut bench = Bench::new();
    bench.ready("a", "s");
    assert_eq!(to_workers(&bench.post("s", "any", "1")), ["a"]);
    bench.ready("b", "s");
    bench.from("a", &["NFPW01", "0x03", "s"]);
    let sent = bench.post("s", "any", "1");
    assert_eq!((to_workers(&sent), status(&sent)), (vec![], "202"), "it may run at a: {sent:?}");
    assert!(sent[0].rest[3].contains(r#""workers":["a"]"#), "{sent:?}");
    bench.ready("a", "s");
    bench.input("client", &["NFPC01", "0x04", "s", "any", "1", "{}"]);
    let sent = bench.drain_with(|_, purpose| (purpose == Purpose::Dispatch).then_some(Undelivered::Unroutable));
    assert_eq!(status(&sent), "202", "also while it cannot be reached: {sent:?}");
}

#[test]
fn an_unregistered_worker_is_told_to_register_once_a_second() {
    let mut bench = Bench::new();
    let sent = bench.from("a", &["NFPW01", "0x02", "s"]);
    assert_eq!(sent, vec![Sent { to: "a".into(), command: Command::Disconnect, rest: vec!["s".into()] }]);
    assert_eq!(bench.from("a", &["NFPW01", "0x02", "s"]), vec![]);
    bench.now += DISCONNECT_INTERVAL;
    assert_eq!(bench.from("a", &["NFPW01", "0x02", "s"]).len(), 1);
    assert_eq!(bench.from("a", &["NFPW01", "0x03", "s"]), vec![], "a good-bye needs no answer");
}

#[test]
fn a_worker_beats_every_interval_and_silence_ends_it_after_the_hold_time() {
    let mut bench = Bench::new();
    bench.ready("a", "s");
    for _ in 0..5 {
        let sent = bench.after(2.5);
        assert_eq!(sent.len(), 1);
        assert_eq!(sent[0].command, Command::Keepalive);
    }
    bench.from("a", &["NFPW01", "0x02", "s"]);
    assert_eq!(bench.after(2.5).len(), 1);
    assert_eq!(bench.broker.counts().0, 1, "the beat renewed the hold time");
    bench.after(12.4);
    assert_eq!(bench.broker.counts().0, 1);
    bench.after(0.1);
    assert_eq!(bench.broker.counts().0, 0, "15 s after the last beat");
    assert_eq!(bench.broker.next_deadline(), None, "nobody registered, nothing to wake up for");
}

#[test]
fn a_second_ready_renews_the_hold_time_and_moves_the_worker_to_its_new_service() {
    let mut bench = Bench::new();
    bench.ready("a", "s");
    bench.now += Duration::from_secs(14);
    bench.ready("a", "t");
    assert_eq!(bench.broker.workers(bench.now)[0].service.as_str(), "t");
    assert_eq!(status(&bench.post("s", "any", "1")), "400");
    bench.after(14.0);
    assert_eq!(bench.broker.counts(), (1, 1));
}

#[test]
fn malformed_messages_are_counted_and_clients_that_can_be_answered_are() {
    let mut bench = Bench::new();
    bench.ready("a", "s");
    bench.from("bad", &["NFPW01", "0x01"]);
    bench.from("bad", &["NFPW01"]);
    bench.from("bad", &["NOPE", "0x01", "s"]);
    bench.from("client", &["NFPC01", "0x04", "s"]);
    bench.broker.message(bench.now, &[0xff, 0], &[]);
    let sent = bench.from("client", &["NFPC01", "0x05", "s", "a", "j", "{}"]);
    assert_eq!(sent[0].rest.len(), 4, "service, job, status, body");
    assert_eq!((&*sent[0].rest[1], &*sent[0].rest[2]), ("j", "400"));
    let sent = bench.from("client", &["NFPC01", "0x04", "s", "a", "j", "{nope"]);
    assert_eq!((sent.len(), status(&sent)), (1, "400"), "the worker never sees it");
    let refused = &bench.broker.counters().refused;
    assert_eq!(refused.values().sum::<u64>(), 7, "{refused:?}");
    assert_eq!(bench.broker.counts().0, 1);
}

#[test]
fn bodies_that_end_python_clients_are_not_relayed() {
    let mut bench = Bench::new();
    bench.ready("a", "s");
    for (command, status, body) in [
        ("0x05", "404", "[]"),
        ("0x05", "201", "{}"),
        ("0x08", "200", "[1]"),
        ("0x05", "200", "{nope}"),
        ("0x05", "20", "{}"),
    ] {
        assert_eq!(bench.from("a", &["NFPW01", command, "client", "", "1", status, body]), vec![], "{body}");
    }
    let sent = bench.from("a", &["NFPW01", "0x05", "client", "", "1", "201", r#"{"worker":"a"}"#]);
    assert_eq!(sent[0].rest, ["s", "1", "201", r#"{"worker":"a"}"#]);
}

#[test]
fn management_always_answers_twice() {
    let mut bench = Bench::new();
    for (service, body) in [
        (MANAGEMENT_SERVICE, "{nope"),
        (MANAGEMENT_SERVICE, "[]"),
        (MANAGEMENT_SERVICE, "{}"),
        (MANAGEMENT_SERVICE, r#"{"task":"show_workers"}"#),
        (INVENTORY_SERVICE, r#"{"task":"nope"}"#),
        ("ghost", "{}"),
    ] {
        let sent = bench.from("client", &["NFPC01", "0x11", service, "any", "1", body]);
        let commands: Vec<Command> = sent.iter().map(|sent| sent.command).collect();
        assert_eq!(commands, [Command::Response, Command::Mmi], "{service} {body}");
    }
    for (service, body, takes) in [
        (
            MANAGEMENT_SERVICE,
            r#"{"task":"get_logs","kwargs":{"last":1,"lats":2}}"#,
            "last, level, logger, since, until",
        ),
        (MANAGEMENT_SERVICE, r#"{"task":"get_stats","kwargs":{"lats":2}}"#, "no arguments"),
        (INVENTORY_SERVICE, r#"{"task":"get_inventory","kwargs":{"lats":2}}"#, "name"),
    ] {
        let sent = bench.from("client", &["NFPC01", "0x11", service, "any", "1", body]);
        assert_eq!((sent.len(), &*sent[1].rest[2]), (2, "400"), "{body}");
        assert!(sent[1].rest[3].contains("unknown argument 'lats': get_"), "{sent:?}");
        assert!(sent[1].rest[3].contains(&format!(" takes {takes}")), "{sent:?}");
    }
    bench.input("client", &["NFPC01", "0x11", MANAGEMENT_SERVICE, "any", "2", r#"{"task":"get_stats"}"#]);
    let Some(BrokerOutput::Ask(ask)) = bench.broker.poll_output() else { panic!("a question to the owner") };
    assert_eq!(ask.kind, AskKind::Stats);
    bench.broker.answer(ask.id, Err("disk on fire".to_owned()));
    let sent = bench.drain();
    assert_eq!((sent.len(), &*sent[1].rest[2]), (2, "500"));
}

#[test]
fn a_stop_tells_every_worker_in_an_order_that_they_understand() {
    let mut bench = Bench::new();
    bench.ready("a", "s");
    bench.ready("b", "t");
    bench.broker.stop();
    let sent = bench.drain();
    assert_eq!(sent.len(), 2);
    assert!(sent.iter().all(|sent| sent.command == Command::Disconnect));
    assert_eq!(bench.from("a", &["NFPW01", "0x01", "s"]), vec![], "a READY during the stop changes nothing");
    assert_eq!(bench.broker.counts().0, 0);
}

#[test]
fn random_operations_keep_the_registry_consistent() {
    for seed in 0..200 {
        let mut random = fastrand::Rng::with_seed(seed);
        let mut bench = Bench::new();
        for _ in 0..300 {
            let worker = format!("w{}", random.u8(..8));
            let service = format!("s{}", random.u8(..3));
            match random.u8(..6) {
                0 | 1 => bench.ready(&worker, &service),
                2 => drop(bench.from(&worker, &["NFPW01", "0x02", &service])),
                3 => drop(bench.from(&worker, &["NFPW01", "0x03", &service])),
                4 => drop(bench.after(f64::from(random.u8(..80)) / 10.0)),
                _ => drop(bench.post(&service, "all", "1")),
            }
            let views = bench.broker.workers(bench.now);
            assert_eq!(views.len(), bench.broker.counts().0);
            for view in &views {
                assert!(bench.broker.registry.members(&view.service).contains(&view.name), "seed {seed}");
                assert!(!view.hold_time_left.is_zero(), "seed {seed}");
            }
            let members: usize = (0..3)
                .map(|n| bench.broker.registry.members(&ServiceName::parse(&format!("s{n}")).expect("ok")).len())
                .sum();
            assert_eq!(members, views.len(), "seed {seed}");
        }
    }
}

#[test]
fn a_question_about_a_job_whose_worker_is_away_for_a_moment_is_no_refusal() {
    let mut bench = Bench::new();
    bench.ready("a", "s");
    for (command, answers) in [("0x06", 1), ("0x10", 0), ("0x07", 1)] {
        bench.input("client", &["NFPC01", command, "s", "a", "1", "{}"]);
        let sent = bench.drain_with(|_, purpose| (purpose == Purpose::Dispatch).then_some(Undelivered::Unroutable));
        assert_eq!(sent.len(), answers, "{sent:?}");
        assert!(sent.iter().all(|sent| sent.rest[2] == "202"));
    }
}

#[test]
fn a_busy_worker_is_alive_although_its_beats_are_late() {
    let mut bench = Bench::new();
    bench.ready("a", "s");
    for _ in 0..4 {
        bench.after(10.0);
        bench.from("a", &["NFPW01", "0x08", "client", "", "1", "200", "{}"]);
    }
    assert_eq!(bench.broker.counts().0, 1);
}

#[test]
fn a_repeated_post_for_a_named_worker_goes_to_that_one_only() {
    let mut bench = Bench::new();
    for worker in ["a", "b", "c"] {
        bench.ready(worker, "s");
    }
    assert_eq!(to_workers(&bench.post("s", "all", "1")), ["a", "b", "c"]);
    assert_eq!(to_workers(&bench.post("s", r#"["b"]"#, "1")), ["b"]);
    assert_eq!(to_workers(&bench.post("s", "all", "1")), ["a", "b", "c"]);
}

#[test]
fn a_job_that_its_worker_did_not_take_may_go_to_another() {
    let mut bench = Bench::new();
    for worker in ["a", "b", "c", "d"] {
        bench.ready(worker, "s");
    }
    let first = to_workers(&bench.post("s", "any", "1"));
    let mut others = 0;
    for _ in 0..40 {
        bench.from(&first[0], &["NFPW01", "0x05", "client", "", "1", "400", "{}"]);
        others += usize::from(to_workers(&bench.post("s", "any", "1")) != first);
    }
    assert!(others > 0);
}

#[test]
fn what_an_unregistered_worker_says_reaches_its_client_and_the_worker_is_told_to_register() {
    let mut bench = Bench::new();
    bench.ready("a", "s");
    bench.after(15.0);
    assert_eq!(bench.broker.counts().0, 0, "it sends a large result for longer than its hold time");
    for (command, told) in [("0x05", 1), ("0x08", 0), ("0x09", 0)] {
        let sent = bench.from("a", &["NFPW01", command, "client", "", "1", "200", "{}"]);
        assert_eq!(sent.len(), 1 + told, "{sent:?}");
        assert_eq!(
            (&*sent[told].to, sent[told].rest.clone()),
            ("client", ["unknown", "1", "200", "{}"].map(str::to_owned).to_vec())
        );
        assert!(sent[..told].iter().all(|sent| sent.command == Command::Disconnect && sent.to == "a"));
    }
    assert_eq!(bench.from("a", &["NFPW01", "0x05", "client", "", "1", "200", "[]"]), vec![], "malformed all the same");
}

#[test]
fn a_job_for_any_of_thousands_that_cannot_be_reached_tries_each_once_and_soon() {
    let mut bench = Bench::new();
    for worker in 0..5000 {
        bench.ready(&format!("w{worker}"), "s");
    }
    bench.input("client", &["NFPC01", "0x04", "s", "any", "1", "{}"]);
    let mut tried = std::collections::HashSet::new();
    let began = Instant::now();
    let sent = bench.drain_with(|to, purpose| {
        (purpose == Purpose::Dispatch).then(|| assert!(tried.insert(to.clone()), "{to} twice"));
        (purpose == Purpose::Dispatch).then_some(Undelivered::Unroutable)
    });
    assert_eq!((status(&sent), tried.len()), ("400", 5000));
    // Milliseconds; what grows with the cube of the workers takes minutes.
    assert!(began.elapsed() < Duration::from_secs(5), "{:?}", began.elapsed());
}

#[test]
fn a_refusal_repeats_little_of_a_large_target() {
    let mut bench = Bench::new();
    bench.ready("a", "s");
    let large = "ä".repeat(400_000);
    let too_large = "x".repeat(2 << 20);
    for (target, body) in [(&large, "{}"), (&large, "{nope"), (&too_large, "{}")] {
        let sent = bench.from("client", &["NFPC01", "0x04", "s", target, "1", body]);
        assert_eq!(status(&sent), "400");
        assert!(sent[0].rest[3].len() < 4096, "{} bytes", sent[0].rest[3].len());
        let body: Value = serde_json::from_str(&sent[0].rest[3]).expect("JSON");
        assert!(!body["target"].as_str().expect("a text").contains(char::REPLACEMENT_CHARACTER));
    }
}

#[test]
fn the_word_that_a_job_went_on_names_who_could_not_be_reached() {
    let mut bench = Bench::new();
    for worker in ["a", "b", "c"] {
        bench.ready(worker, "s");
    }
    let mut post = |target: &str, job: &str| {
        bench.input("client", &["NFPC01", "0x04", "s", target, job, "{}"]);
        let sent = bench.drain_with(|to, purpose| {
            (purpose == Purpose::Dispatch && to.as_str() == "b").then_some(Undelivered::Unroutable)
        });
        let body: Value = serde_json::from_str(&sent.last().expect("an answer").rest[3]).expect("JSON");
        body["unreached"].clone()
    };
    assert_eq!(post("all", "1"), serde_json::json!(["b"]));
    assert_eq!(post("all", "1"), Value::Null, "a repetition is for those that have it");
    assert_eq!(post(r#"["a", "b"]"#, "2"), serde_json::json!(["b"]));
    assert_eq!(post("any", "3"), Value::Null);
    assert_eq!(post("c", "4"), Value::Null);
    // Whoever is asked about the job is not gone because it was not reached.
    bench.after(YOUNG_TIME.as_secs_f64());
    for worker in ["a", "b"] {
        bench.ready(worker, "s");
    }
    bench.input("client", &["NFPC01", "0x06", "s", r#"["a","b"]"#, "2", "{}"]);
    let sent = bench.drain_with(|to, purpose| {
        (purpose == Purpose::Dispatch && to.as_str() == "b").then_some(Undelivered::Unroutable)
    });
    assert!(sent.last().is_some_and(|sent| sent.rest[3].contains(r#""absent":["b"]"#)), "{sent:?}");
}

#[test]
fn an_acceptance_is_not_read_beyond_a_bound() {
    let mut bench = Bench::new();
    bench.ready("a", "s");
    let body = format!(r#"{{"worker":"a","x":"{}"}}"#, "x".repeat(body::CHECKED_BYTES_MAX));
    assert_eq!(bench.from("a", &["NFPW01", "0x05", "client", "", "1", "201", &body]), vec![]);
}

#[test]
fn nobody_is_given_up_while_signs_of_life_wait_unread() {
    let mut bench = Bench::new();
    bench.ready("a", "s");
    bench.now += Duration::from_secs(20);
    bench.broker.timeout_behind(bench.now);
    assert_eq!(bench.drain().len(), 1, "a beat is due all the same");
    assert_eq!(bench.broker.counts().0, 1);
    assert!(bench.broker.next_deadline().is_some_and(|at| at > bench.now), "all that was due is done");
    bench.after(2.5);
    assert_eq!(bench.broker.counts().0, 0, "it was not heard");
}

#[test]
fn a_client_under_the_name_of_a_worker_is_noticed() {
    let mut bench = Bench::new();
    bench.ready("a", "s");
    for (peer, noticed) in [("client", false), ("a", true)] {
        bench.input(peer, &["NFPC01", "0x04", "s", "all", peer, "{\"task\":\"t\"}"]);
        let mut notes = 0;
        while let Some(output) = bench.broker.poll_output() {
            notes += usize::from(matches!(output, BrokerOutput::Note(BrokerNote::NameTaken { .. })));
        }
        assert_eq!(notes, usize::from(noticed), "{peer}");
    }
}

#[test]
fn a_result_replaces_the_word_that_the_request_of_a_client_of_ours_went_on() {
    let (ours, others) = (r#"{"task":"t","fabric":1}"#, r#"{"task":"t"}"#);
    for (target, body, replaced) in [
        ("any", ours, true),
        ("w", ours, true),
        ("any", others, false),
        // Who has it is not clear before the broker says so.
        ("all", ours, false),
        (r#"["w"]"#, ours, false),
    ] {
        let mut bench = Bench::new();
        bench.ready("w", "s");
        bench.input("c", &["NFPC01", "0x04", "s", target, "1", body]);
        let mut until = Vec::new();
        while let Some(output) = bench.broker.poll_output() {
            if let BrokerOutput::Send(outgoing) = output
                && outgoing.purpose == Purpose::Dispatched
            {
                until.push(outgoing.until_result.map(|job| job.to_string()));
            }
        }
        assert_eq!(until, [replaced.then(|| "1".to_owned())], "{target}, {body}");
        let mut outputs = Vec::new();
        for status in ["201", "200"] {
            bench.input("w", &["NFPW01", "0x05", "c", "", "1", status, r#"{"worker":"w"}"#]);
            outputs.push(bench.broker.poll_output());
            bench.drain();
        }
        assert!(
            matches!(&outputs[..], [Some(BrokerOutput::Send(_)), Some(BrokerOutput::Withdraw(client, job))]
                if client.as_str() == "c" && job.as_str() == "1"),
            "{outputs:?}"
        );
    }
}

#[test]
fn a_cancellation_goes_where_the_job_went_and_its_answer_names_who_has_it() {
    let mut bench = Bench::new();
    for worker in ["a", "b", "c"] {
        bench.ready(worker, "s");
    }
    bench.post("s", r#"["a","b"]"#, "1");
    bench.from("b", &["NFPW01", "0x03", "s"]);
    let sent = bench.from("client", &["NFPC01", "0x07", "s", "all", "1", "{}"]);
    assert_eq!(to_workers(&sent), ["a"], "not to c, and b is away");
    let answer: serde_json::Value = serde_json::from_str(&sent[1].rest[3]).expect("an object");
    assert_eq!((&answer["workers"], &answer["holders"]), (&serde_json::json!(["a"]), &serde_json::json!(["a", "b"])));
    let sent = bench.from("client", &["NFPC01", "0x07", "s", r#"["c"]"#, "1", "{}"]);
    assert_eq!(to_workers(&sent), ["c"], "whoever is named");
    // Of another client's job nothing is remembered: it goes where it says.
    let sent = bench.from("other", &["NFPC01", "0x07", "s", "all", "1", "{}"]);
    assert_eq!(to_workers(&sent), ["a", "c"]);
    assert!(sent.last().is_some_and(|sent| sent.rest[3].ends_with(r#""holders":[]}"#)), "{sent:?}");
    // Nobody is there any more, but it is known who has it.
    for worker in ["a", "c"] {
        bench.from(worker, &["NFPW01", "0x03", "s"]);
    }
    let sent = bench.from("client", &["NFPC01", "0x07", "s", "all", "1", "{}"]);
    assert!(to_workers(&sent).is_empty() && status(&sent) == "202" && sent[0].rest[3].contains(r#""workers":[]"#));
}

#[test]
fn workers_that_went_a_moment_ago_are_expected_back_and_others_are_not() {
    let mut bench = Bench::new();
    let refused = |sent: &[Sent]| sent[0].rest[3].contains(r#""retry":true"#);
    assert!(refused(&bench.post("s", "any", "1")), "the broker has just begun: anybody may come");
    bench.after(YOUNG_TIME.as_secs_f64());
    assert!(!refused(&bench.post("s", "any", "1")));
    bench.ready("a", "s");
    bench.ready("b", "s");
    bench.from("b", &["NFPW01", "0x03", "s"]);
    let sent = bench.post("s", r#"["a","b","ghost"]"#, "2");
    assert_eq!(to_workers(&sent), ["a"]);
    assert!(sent[1].rest[3].contains(r#""absent":["b"]"#), "{sent:?}");
    bench.from("a", &["NFPW01", "0x03", "s"]);
    for (target, expected) in [("any", true), ("b", true), (r#"["ghost","b"]"#, true), ("ghost", false)] {
        assert_eq!(refused(&bench.post("s", target, "3")), expected, "{target}");
    }
    bench.after(EXPECTED_BACK.as_secs_f64());
    assert!(!refused(&bench.post("s", "any", "3")));
}

#[test]
fn a_repeated_post_that_names_a_worker_reaches_it_also_where_it_was_away_before() {
    let mut bench = Bench::new();
    bench.ready("a", "s");
    bench.post("s", r#"["a","b"]"#, "1");
    bench.ready("b", "s");
    assert_eq!(to_workers(&bench.post("s", r#"["b"]"#, "1")), ["b"]);
    let sent = bench.post("s", "all", "1");
    assert_eq!(to_workers(&sent), ["a", "b"], "it is remembered with the others");
}
