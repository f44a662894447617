//! What a worker says of many jobs at once.

use super::*;
use crate::body::JOBS_ASKED_MAX;

#[test]
fn a_question_about_many_jobs_is_answered_with_those_that_are_known() {
    let mut bench = Bench::new(1);
    bench.accept("runs");
    bench.accept("waits");
    let asked = r#"{"fabric":1,"jobs":["nowhere","runs","stored","waits"]}"#;
    assert_eq!(bench.told(&["0x06", "c", "", "question", asked]), [Did::Load("question".into())]);
    let jobs = ["nowhere", "runs", "stored", "waits"].map(job).to_vec();
    let stored = [job("runs"), job("stored")].into();
    bench.worker.looked_up(job("question"), name("c"), jobs, &stored);
    let did = bench.drain();
    assert_eq!((statuses(&did), did.len()), (vec!["404"], 1), "no result is loaded: {did:?}");
    let Did::Sent(_, first) = &did[0] else { panic!("{did:?}") };
    assert_eq!(first[2], "question");
    let body: serde_json::Value = serde_json::from_str(&first[4]).expect("JSON");
    assert_eq!(body["known"], serde_json::json!(["runs", "stored", "waits"]));
}

#[test]
fn a_get_that_asks_about_too_much_or_nothing_is_about_its_own_job() {
    let mut bench = Bench::new(1);
    bench.accept("1");
    let many: Vec<String> = (0..=JOBS_ASKED_MAX).map(|number| number.to_string()).collect();
    let many = serde_json::json!({"fabric": 1, "jobs": many}).to_string();
    for body in [&*many, r#"{"task":"t","kwargs":{},"args":[]}"#, r#"{"jobs":["x"]}"#, "{}", "", "no JSON"] {
        assert_eq!(statuses(&bench.told(&["0x06", "c", "", "1", body])), ["300"]);
    }
}
