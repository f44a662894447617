//! The broker's rules about cancellations.

use super::*;

const OURS: &str = r#"{"task":"t","fabric":1}"#;
const AGAIN: &str = r#"{"task":"t","fabric":1,"again":true}"#;
const ENDS: &str = r#"{"text":"cancelled by me at noon","ends":true}"#;

impl Bench {
    fn posts(&mut self, target: &str, job: &str, body: &str) -> Vec<Sent> {
        self.from("client", &["NFPC01", "0x04", "s", target, job, body])
    }

    fn deletes(&mut self, client: &str, target: &str, job: &str, body: &str) -> Vec<Sent> {
        self.from(client, &["NFPC01", "0x07", "s", target, job, body])
    }
}

fn answer(sent: &[Sent]) -> Value {
    let last = sent.last().expect("an answer");
    serde_json::from_str(&last.rest[3]).expect("an object")
}

#[test]
fn of_a_job_that_came_here_first_and_that_nobody_got_it_is_known_that_nobody_has_it() {
    let mut bench = Bench::new();
    assert_eq!(status(&bench.posts("any", "1", OURS)), "400");
    assert_eq!(status(&bench.posts("any", "1", AGAIN)), "400");
    bench.ready("a", "s");
    let sent = bench.deletes("client", "all", "1", ENDS);
    assert!(to_workers(&sent).is_empty(), "it is with nobody: {sent:?}");
    let told = answer(&sent);
    assert_eq!((&told["holders"], &told["whole"]), (&serde_json::json!([]), &Value::Bool(true)));
    // Another broker may have had what did not come here first.
    bench.posts("ghost", "2", AGAIN);
    let told = answer(&bench.deletes("client", "all", "2", ENDS));
    assert_eq!((&told["holders"], &told["whole"]), (&serde_json::json!([]), &Value::Null));
    // So it is where nobody could be reached.
    bench.input("client", &["NFPC01", "0x04", "s", "any", "3", OURS]);
    let unreached = |_: &Identity, purpose| (purpose == Purpose::Dispatch).then_some(Undelivered::Unroutable);
    assert_eq!(status(&bench.drain_with(unreached)), "400");
    let told = answer(&bench.deletes("client", "all", "3", ENDS));
    assert_eq!((&told["holders"], &told["whole"]), (&serde_json::json!([]), &Value::Bool(true)));
    // Nor is it known of a job that another client posted under this id.
    let told = answer(&bench.deletes("other", "all", "1", r#"{"text":"x"}"#));
    assert_eq!(&told["whole"], &Value::Null);
}

#[test]
fn of_a_job_that_came_here_first_those_who_got_it_are_all_who_have_it() {
    let mut bench = Bench::new();
    bench.ready("a", "s");
    bench.posts(r#"["a","b"]"#, "1", OURS);
    let told = answer(&bench.deletes("client", r#"["a","b"]"#, "1", ENDS));
    assert_eq!((&told["holders"], &told["whole"]), (&serde_json::json!(["a"]), &Value::Bool(true)));
    // A worker that did not take it has it no more.
    bench.posts("any", "2", OURS);
    let refused = r#"{"worker":"a","status":"REFUSED","retry":true}"#;
    bench.from("a", &["NFPW01", "0x05", "client", "", "2", "400", refused]);
    let told = answer(&bench.deletes("client", "all", "2", ENDS));
    assert_eq!((&told["holders"], &told["whole"]), (&serde_json::json!([]), &Value::Bool(true)));
}

#[test]
fn a_post_that_comes_behind_the_cancellation_of_its_job_goes_nowhere() {
    let mut bench = Bench::new();
    bench.ready("a", "s");
    for (job, body) in [("1", OURS), ("2", AGAIN)] {
        bench.deletes("client", "all", job, ENDS);
        let sent = bench.posts("any", job, body);
        assert!(to_workers(&sent).is_empty() && status(&sent) == "400", "{sent:?}");
        let told = answer(&sent);
        assert_eq!((&told["status"], &told["error"]), (&"CANCELLED".into(), &"cancelled by me at noon".into()));
    }
    // One worker alone was told to end it: the job may go on elsewhere.
    bench.deletes("client", r#"["b"]"#, "3", r#"{"text":"with another one"}"#);
    assert_eq!(to_workers(&bench.posts("any", "3", OURS)), ["a"]);
}

#[test]
fn a_client_is_told_that_another_one_cancels_its_job_also_where_nobody_has_it() {
    let mut bench = Bench::new();
    bench.posts("any", "1", OURS);
    let body = r#"{"text":"cancelled by somebody else","ends":true,"client":"client"}"#;
    let sent = bench.deletes("other", "all", "1", body);
    let told = &sent[0];
    assert_eq!((told.to.as_str(), told.rest[2].as_str()), ("client", "400"));
    assert_eq!(answer(&sent[..1])["error"], "cancelled by somebody else");
    assert_eq!(status(&bench.posts("any", "1", AGAIN)), "400");
    // Whom it went to is known by the name of its own client.
    bench.ready("a", "s");
    bench.ready("b", "s");
    bench.posts("a", "2", OURS);
    let body = r#"{"text":"cancelled by somebody else","ends":true,"client":"client"}"#;
    assert_eq!(to_workers(&bench.deletes("other", "all", "2", body)), ["a"]);
    let of_worker = bench.deletes("other", r#"["b"]"#, "3", r#"{"text":"so","ends":true,"client":"a"}"#);
    assert!(of_worker.iter().all(|sent| sent.to != "a"), "a worker is sent nothing that it does not understand");
}

#[test]
fn whose_job_it_is_gets_one_answer_to_its_cancellation() {
    let mut bench = Bench::new();
    bench.ready("a", "s");
    bench.posts("any", "1", OURS);
    let sent = bench.deletes("client", "all", "1", ENDS);
    let told: Vec<_> = sent.iter().filter(|sent| sent.to == "client").map(|sent| sent.rest[2].as_str()).collect();
    assert_eq!((to_workers(&sent), told), (vec!["a".into()], vec!["202"]), "a refusal would say that nobody has it");
}

#[test]
fn who_refused_one_post_of_a_job_and_has_another_before_it_is_told_that_it_is_cancelled() {
    let mut bench = Bench::new();
    bench.ready("a", "s");
    bench.ready("b", "s");
    bench.posts("a", "1", OURS);
    bench.posts("a", "1", AGAIN);
    let refused = r#"{"worker":"a","status":"REFUSED","retry":true}"#;
    bench.from("a", &["NFPW01", "0x05", "client", "", "1", "400", refused]);
    let sent = bench.deletes("client", "all", "1", ENDS);
    assert_eq!(to_workers(&sent), ["a"]);
    let told = answer(&sent);
    assert_eq!((&told["holders"], &told["whole"]), (&serde_json::json!(["a"]), &Value::Bool(true)));
}

#[test]
fn a_post_of_a_job_that_a_worker_refused_may_go_to_another() {
    let mut bench = Bench::new();
    bench.ready("a", "s");
    bench.posts("any", "1", OURS);
    bench.posts("any", "1", AGAIN);
    bench.ready("b", "s");
    let refused = r#"{"worker":"a","status":"REFUSED","retry":true}"#;
    bench.from("a", &["NFPW01", "0x05", "client", "", "1", "400", refused]);
    bench.from("a", &["NFPW01", "0x03", "s"]);
    assert_eq!(to_workers(&bench.posts("any", "1", AGAIN)), ["b"]);
    let told = answer(&bench.deletes("client", "all", "1", ENDS));
    assert_eq!((&told["holders"], &told["whole"]), (&serde_json::json!(["b", "a"]), &Value::Bool(true)));
}

#[test]
fn a_worker_that_takes_a_job_which_is_cancelled_is_told() {
    let mut bench = Bench::new();
    bench.ready("a", "s");
    let accepts = |bench: &mut Bench, client: &str, job: &str| {
        let body = format!(r#"{{"worker":"a","uuid":"{job}","status":"ACCEPTED","service":"s"}}"#);
        bench.from("a", &["NFPW01", "0x05", client, "", job, "201", &body])
    };
    bench.deletes("client", r#"["b"]"#, "1", ENDS);
    let sent = accepts(&mut bench, "client", "1");
    assert_eq!(status(&sent), "201", "its client hears of it: {sent:?}");
    assert_eq!(to_workers(&sent), ["a"]);
    let told: Value = serde_json::from_str(sent[1].rest.last().expect("a body")).expect("an object");
    assert_eq!((&told["text"], &told["ends"]), (&"cancelled by me at noon".into(), &Value::Bool(true)));
    let result = bench.from("a", &["NFPW01", "0x05", "client", "", "1", "200", "{}"]);
    assert!(to_workers(&result).is_empty(), "it has ended there");
    // Another client's job of this id, and one that goes on elsewhere.
    assert!(to_workers(&accepts(&mut bench, "other", "1")).is_empty());
    bench.deletes("client", r#"["b"]"#, "2", r#"{"text":"with another one"}"#);
    assert!(to_workers(&accepts(&mut bench, "client", "2")).is_empty());
}

#[test]
fn a_refusal_says_of_which_turn_it_is() {
    let mut bench = Bench::new();
    for (body, said) in
        [(OURS, Some(0)), (r#"{"task":"t","fabric":1,"again":true,"turn":3}"#, Some(3)), (r#"{"task":"t"}"#, None)]
    {
        let sent = bench.posts("any", "1", body);
        assert_eq!(answer(&sent)["turn"].as_u64(), said, "{body}");
    }
}
