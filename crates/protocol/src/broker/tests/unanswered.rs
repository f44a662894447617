//! Workers that are alive and do no work.

use super::*;

/// For how many seconds each worker has left requests unanswered.
fn unanswered(bench: &Bench) -> Vec<(String, Option<f64>)> {
    let views = bench.broker.workers(bench.now);
    views.iter().map(|view| (view.name.to_string(), view.unanswered.map(|time| time.as_secs_f64()))).collect()
}

#[test]
fn a_worker_that_beats_and_says_nothing_about_its_jobs_is_seen() {
    let mut bench = Bench::new();
    bench.ready("a", "s");
    bench.ready("b", "s");
    bench.post("s", "all", "1");
    for worker in ["a", "b"] {
        bench.from(worker, &["NFPW01", "0x02", "s"]);
    }
    bench.from("a", &["NFPW01", "0x05", "client", "", "1", "201", r#"{"worker":"a","uuid":"1"}"#]);
    bench.after(2.0);
    assert!(unanswered(&bench).iter().all(|(_, time)| time.is_none()), "an answer may take as long as a beat");
    bench.post("s", "b", "2");
    bench.after(2.0);
    assert_eq!(unanswered(&bench), [("a".to_owned(), None), ("b".to_owned(), Some(4.0))], "from the first on");
    bench.input("client", &["NFPC01", "0x11", MANAGEMENT_SERVICE, "", "3", r#"{"task":"show_workers"}"#]);
    let rows: Value = serde_json::from_str(&bench.drain()[0].rest[3]).expect("rows");
    assert_eq!((&rows[0][UNANSWERED_KEY], &rows[1][UNANSWERED_KEY]), (&Value::Null, &"4.0".into()), "{rows}");
    bench.from("b", &["NFPW01", "0x05", "client", "", "2", "200", r#"{"b":{}}"#]);
    assert!(unanswered(&bench).iter().all(|(_, time)| time.is_none()), "it works again");
}

#[test]
fn a_worker_that_was_not_reached_or_registers_anew_owes_nothing() {
    let mut bench = Bench::new();
    bench.ready("a", "s");
    bench.input("client", &["NFPC01", "0x04", "s", "any", "1", "{}"]);
    bench.drain_with(|_, purpose| (purpose == Purpose::Dispatch).then_some(Undelivered::Unroutable));
    bench.after(4.0);
    assert_eq!(unanswered(&bench), [("a".to_owned(), None)]);
    bench.post("s", "any", "2");
    bench.after(4.0);
    assert_eq!(unanswered(&bench), [("a".to_owned(), Some(4.0))]);
    bench.ready("a", "s");
    assert_eq!(unanswered(&bench), [("a".to_owned(), None)], "what it was given before is asked for again");
}
