//! Questions about many jobs at once.

use super::*;

/// The id of the first question of a client whose seed is 0.
const FIRST: &str = "00000000000000000000000000000001";
const SECOND: &str = "00000000000000000000000000000002";

fn word(workers: &[&str], young: bool) -> serde_json::Value {
    json!({"workers": workers, "uuid": FIRST, "target": "all", "status": "DISPATCHED", "service": "s", "fabric": 1, "run": 2,
        "young": young})
}

fn knows(worker: &str, known: &[&str]) -> serde_json::Value {
    json!({"worker": worker, "uuid": FIRST, "service": "s", "status": "JOB NOT FOUND", "known": known})
}

/// Two jobs for any worker were posted, and the broker ended before it said to whom they went.
fn in_doubt() -> Bench {
    let mut bench = Bench::new();
    bench.posted("1", "any");
    bench.posted("2", "any");
    bench.client.disconnected();
    bench.client.connected(bench.now);
    assert!(bench.drain().sent.is_empty(), "workers have to come back first");
    let sent = bench.after(RETURN_TIME.as_secs_f64()).sent;
    let body = r#"{"fabric":1,"jobs":["1","2"]}"#;
    assert_eq!(sent, [(Command::Get, "all".to_owned(), body.to_owned())]);
    bench
}

fn commands(did: &Did) -> Vec<Command> {
    did.sent.iter().map(|sent| sent.0).collect()
}

#[test]
fn many_jobs_in_doubt_are_asked_about_at_once_and_posted_when_no_worker_knows_them() {
    let mut bench = in_doubt();
    bench.reply("0x05", FIRST, "202", word(&["a", "b"], false));
    assert!(bench.reply("0x05", FIRST, "404", knows("a", &[])).sent.is_empty());
    assert!(bench.reply("0x05", FIRST, "404", knows("a", &[])).sent.is_empty(), "one may say it twice");
    let did = bench.reply("0x05", FIRST, "404", knows("b", &[]));
    assert_eq!(commands(&did), [Command::Post, Command::Post]);
    assert!(bench.reply("0x05", FIRST, "404", knows("b", &[])).sent.is_empty(), "it is answered");
}

#[test]
fn a_job_that_a_worker_knows_is_not_posted_again_and_those_that_none_knows_are() {
    let mut bench = in_doubt();
    bench.reply("0x05", FIRST, "202", word(&["a", "b"], false));
    let did = bench.reply("0x05", FIRST, "404", knows("a", &["1", "1", "of nobody"]));
    assert_eq!(did.sent, [(Command::Get, r#"["a"]"#.to_owned(), "{}".to_owned())], "what became of it");
    let did = bench.reply("0x05", FIRST, "404", knows("b", &[]));
    assert_eq!(commands(&did), [Command::Post], "for the other one");
    // What the worker said of the job itself was lost: it is asked again, by itself.
    let sent = bench.after(4.0).sent;
    assert!(sent.iter().any(|sent| sent.0 == Command::Get && sent.1 == "all" && sent.2 == "{}"), "{sent:?}");
    assert!(sent.iter().all(|sent| sent.0 == Command::Get || sent.1 == "any"), "{sent:?}");
    assert_eq!(bench.result("1", "a").outcome.map(|outcome| outcome.state), Some(JobState::Completed));
}

#[test]
fn a_job_whose_worker_spoke_meanwhile_is_not_posted_again() {
    let mut bench = in_doubt();
    bench.reply("0x05", FIRST, "202", word(&["a", "b"], false));
    bench.accepted("1", "b");
    bench.reply("0x05", FIRST, "404", knows("a", &[]));
    assert_eq!(commands(&bench.reply("0x05", FIRST, "404", knows("b", &[]))), [Command::Post], "that of the other");
}

#[test]
fn of_many_jobs_those_that_may_be_with_a_worker_that_is_away_are_asked_about_again() {
    let mut bench = in_doubt();
    bench.after(20.0);
    bench.posted("3", "any");
    bench.client.disconnected();
    bench.client.connected(bench.now);
    bench.after(RETURN_TIME.as_secs_f64());
    let mut body = word(&["a"], false);
    // Older than the third job, younger than the others.
    body["gone"] = 15.into();
    let question = "00000000000000000000000000000003";
    bench.reply("0x05", question, "202", body);
    let did = bench.reply("0x05", question, "404", knows("a", &[]));
    assert_eq!(commands(&did), [Command::Post], "that of the third");
    let again = bench.after(10.0).sent;
    assert!(again.iter().any(|sent| sent.2 == r#"{"fabric":1,"jobs":["1","2"]}"#), "{again:?}");
}

#[test]
fn nothing_is_posted_while_a_worker_may_be_on_its_way_back_or_says_nothing() {
    for (young, silent) in [(true, false), (false, true)] {
        let mut bench = in_doubt();
        bench.reply("0x05", FIRST, "202", word(&["a", "b"], young));
        bench.reply("0x05", FIRST, "404", knows("a", &[]));
        if !silent {
            assert!(bench.reply("0x05", FIRST, "404", knows("b", &[])).sent.is_empty());
        }
        let sent = bench.after(10.0).sent;
        assert_eq!(sent.len(), 1, "{sent:?}");
        assert_eq!((sent[0].0, &*sent[0].1), (Command::Get, "all"), "it is asked again");
        // The second question has an id of its own: a late answer to the first says nothing about it.
        bench.reply("0x05", SECOND, "202", word(&["a", "b"], false));
        bench.reply("0x05", FIRST, "404", knows("b", &[]));
        assert!(bench.reply("0x05", SECOND, "404", knows("a", &[])).sent.is_empty());
        assert_eq!(bench.reply("0x05", SECOND, "404", knows("b", &[])).sent.len(), 2);
    }
}

#[test]
fn as_long_as_answers_come_it_is_not_asked_again() {
    let mut bench = in_doubt();
    bench.reply("0x05", FIRST, "202", word(&["a", "b", "c", "d", "e", "f"], false));
    for worker in ["a", "b", "c", "d", "e"] {
        assert!(bench.after(1.5).sent.is_empty());
        bench.reply("0x05", FIRST, "404", knows(worker, &[]));
    }
    assert_eq!(commands(&bench.reply("0x05", FIRST, "404", knows("f", &[]))), [Command::Post, Command::Post]);
}

#[test]
fn what_a_worker_knows_but_gave_up_is_nowhere_to_the_next_question() {
    let mut bench = in_doubt();
    bench.reply("0x05", FIRST, "202", word(&["a"], false));
    let did = bench.reply("0x05", FIRST, "404", knows("a", &["1", "2"]));
    assert_eq!(commands(&did), [Command::Get, Command::Get]);
    for job in ["1", "2"] {
        let did = bench.reply("0x05", job, "200", json!({"a": {"taken_back": true}}));
        assert!(did.results.is_empty() && did.sent.is_empty(), "there may be others: {did:?}");
    }
    assert_eq!(commands(&bench.after(4.0)), [Command::Get]);
    bench.reply("0x05", SECOND, "202", word(&["a"], false));
    let did = bench.reply("0x05", SECOND, "404", knows("a", &["1", "2"]));
    assert_eq!(commands(&did), [Command::Post, Command::Post]);
}

#[test]
fn where_a_worker_does_not_understand_the_question_jobs_are_asked_about_one_by_one() {
    let mut bench = in_doubt();
    bench.reply("0x05", FIRST, "202", word(&["a", "python"], false));
    let plain = json!({"worker": "python", "uuid": FIRST, "service": "s", "status": "JOB NOT FOUND"});
    let sent = bench.reply("0x05", FIRST, "404", plain.clone()).sent;
    assert_eq!(sent, vec![(Command::Get, "all".to_owned(), "{}".to_owned()); 2]);
    assert!(bench.reply("0x05", FIRST, "404", knows("a", &[])).sent.is_empty());
    for job in ["1", "2"] {
        let denies = |worker: &str| json!({"worker": worker, "uuid": job, "service": "s", "status": "JOB NOT FOUND"});
        bench.dispatched_of(job, "all", &["a", "python"]);
        bench.reply("0x05", job, "404", denies("a"));
        assert_eq!(commands(&bench.reply("0x05", job, "404", denies("python"))), [Command::Post]);
    }
    // From now on at once.
    assert!(bench.after(10.0).sent.iter().all(|sent| sent.0 == Command::Post || sent.2 == "{}"));
}

#[test]
fn an_answer_to_a_question_of_the_connection_before_counts_for_nothing() {
    let mut bench = in_doubt();
    bench.reply("0x05", FIRST, "202", word(&["a"], false));
    bench.client.disconnected();
    bench.client.connected(bench.now);
    assert!(bench.reply("0x05", FIRST, "404", knows("a", &[])).sent.is_empty());
    assert_eq!(commands(&bench.after(RETURN_TIME.as_secs_f64())), [Command::Get]);
}

#[test]
fn a_job_that_ends_while_it_is_asked_about_stays_ended() {
    let mut bench = in_doubt();
    bench.reply("0x05", FIRST, "202", word(&["a", "b"], false));
    bench.reply("0x05", FIRST, "404", knows("a", &[]));
    bench.cancel("1", "no");
    assert_eq!(commands(&bench.reply("0x05", FIRST, "404", knows("b", &[]))), [Command::Post], "that of the other");
    assert!(bench.after(60.0).sent.iter().all(|sent| sent.0 != Command::Post));
    assert_eq!(bench.client.next_deadline(), None);
}

#[test]
fn a_broker_without_workers_says_so_for_all_jobs_and_they_are_asked_about_again() {
    let mut bench = in_doubt();
    let refused = json!({"workers": null, "uuid": FIRST, "target": "all", "status": "FAILED", "service": "s", "errors": ["gone"]});
    assert!(bench.reply("0x05", FIRST, "400", refused).outcome.is_none());
    assert_eq!(commands(&bench.after(4.0)), [Command::Get]);
    assert!(bench.after(60.0).outcome.expect("the end").errors.contains(&FOUND_NOBODY_ONCE.to_owned()));
}

#[test]
fn a_question_names_a_bounded_number_of_jobs() {
    let mut bench = Bench::new();
    let count = 2 * crate::body::JOBS_ASKED_MAX + 1;
    for number in 0..count {
        bench.posted(&format!("j{number:05}"), "any");
    }
    bench.client.disconnected();
    bench.client.connected(bench.now);
    let sent = bench.after(RETURN_TIME.as_secs_f64()).sent;
    let asked = sent.iter().map(|sent| sent.2.matches("\"j0").count()).collect::<Vec<_>>();
    assert_eq!(asked, [crate::body::JOBS_ASKED_MAX, crate::body::JOBS_ASKED_MAX, 0], "the last as a plain GET");
}

#[test]
fn who_answers_without_being_asked_takes_no_memory_and_counts_for_nothing() {
    let mut bench = in_doubt();
    for number in 0..3 {
        bench.reply("0x05", FIRST, "404", knows(&format!("early-{number}"), &[]));
    }
    bench.reply("0x05", FIRST, "202", word(&["a", "b"], false));
    bench.reply("0x05", FIRST, "404", knows("a", &[]));
    for number in 0..100 {
        assert!(bench.reply("0x05", FIRST, "404", knows(&format!("stranger-{number}"), &[])).sent.is_empty());
    }
    let held = bench.client.sizes().find(|size| size.what.contains("none of the jobs")).expect("a size");
    assert_eq!((held.count, held.max), (1, 2));
    assert_eq!(commands(&bench.reply("0x05", FIRST, "404", knows("b", &[]))), [Command::Post, Command::Post]);
}

#[test]
fn a_round_that_was_answered_is_followed_by_the_next_as_soon_as_the_first_was() {
    let refused = |id: &str| json!({"workers": null, "uuid": id, "target": "all", "status": "FAILED", "service": "s", "errors": ["gone"]});
    for has_workers in [true, false] {
        let mut bench = in_doubt();
        for round in 1..=8 {
            let id = format!("{round:032x}");
            if has_workers {
                let mut body = word(&["a"], false);
                // Both may be with a worker that went.
                body["gone"] = 0.into();
                bench.reply("0x05", &id, "202", body);
                assert!(bench.reply("0x05", &id, "404", knows("a", &[])).sent.is_empty());
            } else {
                bench.reply("0x05", &id, "400", refused(&id));
            }
            let sent = bench.after(2.0).sent;
            assert_eq!(sent.len(), 1, "round {round}, workers: {has_workers}: {sent:?}");
        }
    }
}

#[test]
fn one_job_in_doubt_is_asked_about_again_as_soon_after_each_answer() {
    let mut bench = Bench::new();
    bench.posted("1", "any");
    bench.client.disconnected();
    bench.client.connected(bench.now);
    assert_eq!(commands(&bench.after(RETURN_TIME.as_secs_f64())), [Command::Get]);
    for round in 0..8 {
        let refused = json!({"workers": null, "uuid": "1", "target": "all", "status": "FAILED", "service": "s", "errors": ["gone"]});
        bench.reply("0x05", "1", "400", refused);
        assert_eq!(commands(&bench.after(2.0)), [Command::Get], "round {round}");
    }
}

#[test]
fn many_jobs_that_the_broker_remembers_are_posted_again_one_after_the_other() {
    let mut bench = Bench::new();
    bench.client.connected(bench.now);
    for number in 0..160 {
        bench.posted(&format!("j{number:03}"), "any");
    }
    let of_all = |bench: &mut Bench, job: &str| {
        bench.posted(job, "all");
        let mut body = word(&["a"], false);
        body["uuid"] = job.into();
        bench.reply("0x05", job, "202", body);
    };
    of_all(&mut bench, "k1");
    bench.client.disconnected();
    bench.client.connected(bench.now);
    bench.drain();
    of_all(&mut bench, "k2");
    bench.now += RETURN_TIME;
    let mut posts = Vec::new();
    for _ in 0..16 {
        let sent = bench.after(0.0).sent;
        posts.push(sent.iter().filter(|sent| sent.0 == Command::Post).count());
        bench.now += Duration::from_micros(62_500);
    }
    assert_eq!(posts.iter().sum::<usize>(), 160);
    assert!(posts.iter().all(|posts| *posts <= 10), "{posts:?}");
}

/// A thousand jobs for any worker whose broker ended, and of which the workers are asked.
fn thousand_in_doubt() -> (Bench, Vec<String>) {
    let mut bench = Bench::new();
    bench.client.connected(bench.now);
    let ids: Vec<String> = (0..1000).map(|number| format!("{number:04}")).collect();
    for id in &ids {
        bench.posted(id, "any");
    }
    bench.client.disconnected();
    bench.client.connected(bench.now);
    bench.drain();
    assert_eq!(bench.after(RETURN_TIME.as_secs_f64()).sent.len(), 1, "one question about all of them");
    bench.reply("0x05", FIRST, "202", word(&["a"], false));
    (bench, ids)
}

/// What leaves in how many turns of five milliseconds, until no more leaves; the most in one.
fn turns(bench: &mut Bench, first: Did) -> (Vec<(Command, String, String)>, usize) {
    let (mut most, mut all) = (first.sent.len(), first.sent);
    loop {
        let sent = bench.after(0.005).sent;
        if sent.is_empty() {
            return (all, most);
        }
        most = most.max(sent.len());
        all.extend(sent);
    }
}

#[test]
fn a_thousand_jobs_that_a_worker_knows_are_asked_about_in_turns() {
    let (mut bench, ids) = thousand_in_doubt();
    let known: Vec<&str> = ids.iter().map(String::as_str).collect();
    let first = bench.reply("0x05", FIRST, "404", knows("a", &known));
    let (sent, most) = turns(&mut bench, first);
    assert!(sent.len() == 1000 && most <= 16, "{} in all, {most} at once", sent.len());
    assert!(sent.iter().all(|sent| sent.0 == Command::Get && sent.1 == r#"["a"]"#));
}

#[test]
fn a_thousand_jobs_that_nobody_has_are_posted_in_turns() {
    let (mut bench, _) = thousand_in_doubt();
    let first = bench.reply("0x05", FIRST, "404", knows("a", &[]));
    let (sent, most) = turns(&mut bench, first);
    assert!(sent.len() == 1000 && most <= 16, "{} in all, {most} at once", sent.len());
    assert!(sent.iter().all(|sent| sent.0 == Command::Post && sent.1 == "any"));
}

#[test]
fn jobs_that_wait_for_their_turn_to_be_asked_about_wake_nobody_without_a_connection() {
    let (mut bench, ids) = thousand_in_doubt();
    let known: Vec<&str> = ids.iter().map(String::as_str).collect();
    bench.reply("0x05", FIRST, "404", knows("a", &known));
    bench.client.disconnected();
    assert!(bench.after(0.005).sent.is_empty());
    let next = bench.client.next_deadline().expect("the jobs have deadlines");
    assert!(next > bench.now + Duration::from_secs(1), "{:?}", next - bench.now);
}

#[test]
fn a_worker_that_was_not_asked_neither_keeps_a_question_open_nor_takes_jobs_out_of_it() {
    let mut bench = in_doubt();
    bench.reply("0x05", FIRST, "202", word(&["a"], false));
    assert!(bench.reply("0x05", FIRST, "404", knows("stranger", &["1", "2"])).sent.is_empty());
    let did = bench.reply("0x05", FIRST, "404", knows("a", &[]));
    assert_eq!(commands(&did), [Command::Post, Command::Post]);

    let asked_again = |who: Option<&str>| {
        let mut bench = in_doubt();
        bench.reply("0x05", FIRST, "202", word(&["a", "b"], false));
        let mut sent = 0;
        for _ in 0..30 {
            sent += bench.after(1.0).sent.len();
            if let Some(who) = who {
                bench.reply("0x05", FIRST, "404", knows(who, &[]));
            }
        }
        sent
    };
    let alone = asked_again(None);
    assert!(alone > 0);
    assert_eq!(asked_again(Some("stranger")), alone);
    assert_eq!(asked_again(Some("a")), alone, "nor does one that says nothing new");
}
