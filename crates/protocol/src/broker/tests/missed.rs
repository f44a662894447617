//! Progress that a client does not take.

use super::*;

#[test]
fn progress_that_a_client_does_not_take_is_counted_and_told_before_what_comes_next() {
    let mut bench = Bench::new();
    bench.ready("a", "s");
    let event = |number: u32, event_type: &str| {
        format!(
            r#"{{"worker":"a","service":"s","uuid":"1","event_type":"{event_type}","message":"{number}","task":"t","timestamp":"now"}}"#
        )
    };
    let mut say = |command: &str, body: &str, full: &[Purpose]| {
        bench.input("a", &["NFPW01", command, "c", "", "1", "200", body]);
        bench.drain_with(|_, purpose| full.contains(&purpose).then_some(Undelivered::Full))
    };
    for number in 0..3 {
        assert_eq!(say("0x08", &event(number, "progress"), &[Purpose::Progress]), []);
    }
    // What may not be dropped goes as anything else, and what is missing is told first, as soon as that finds room.
    let question = say("0x08", &event(3, "input_request"), &[Purpose::Progress, Purpose::Missed]);
    assert_eq!(question.len(), 1);
    let sent = say("0x05", r#"{"a":{}}"#, &[Purpose::Progress]);
    let commands: Vec<Command> = sent.iter().map(|sent| sent.command).collect();
    assert_eq!(commands, [Command::Event, Command::Response]);
    let word: crate::body::Event = serde_json::from_str(&sent[0].rest[3]).expect("an event");
    assert_eq!((word.missed(), word.uuid.as_str(), word.worker.as_str()), (Some(3), "1", "a"));
    assert_eq!(say("0x08", &event(4, "progress"), &[]).len(), 1, "it is told once");
}

#[test]
fn a_client_is_told_whether_it_was_away_or_slow() {
    let client = Identity::parse("c").expect("a name");
    let event = br#"{"worker":"a","service":"s","uuid":"1","event_type":"progress","message":"m","task":"t","timestamp":"now"}"#;
    let mut missed = Missed::default();
    let mut told = |reasons: &[Undelivered]| {
        reasons.iter().for_each(|reason| missed.add(&client, event, *reason));
        missed.take(&client, &JobId::parse("1").expect("a name")).expect("a word").message
    };
    let (away, slow) = (Undelivered::Unroutable, Undelivered::Full);
    assert_eq!(told(&[away]), "1 progress event of this job did not arrive: this client was not connected");
    assert_eq!(told(&[slow; 2]), "2 progress events of this job did not arrive: this client takes them too slowly");
    let both = told(&[away, slow]);
    assert!(both.ends_with(": this client was not connected, and takes them too slowly"), "{both}");
}

#[test]
fn events_of_kinds_that_are_not_known_pass_and_are_not_dropped() {
    let mut bench = Bench::new();
    bench.ready("a", "s");
    for body in [
        r#"{"event_type":"heat","status":"running"}"#,
        r#"{"event_type":"progress","status":"melting"}"#,
        r#"{"event_type":"progress","status":null}"#,
        r#"{"event_type":"progress","event_type":"progress"}"#,
        r#"{"event_type":7}"#,
        r#"{"\ud800":1}"#,
        "{}",
    ] {
        bench.input("a", &["NFPW01", "0x08", "c", "", "1", "200", body]);
        let sent = bench.drain_with(|_, purpose| (purpose == Purpose::Progress).then_some(Undelivered::Full));
        assert_eq!(sent.len(), 1, "{body}");
        assert_eq!(sent[0].rest[3], body);
    }
    for body in ["[]", r#"{"event_type":"progress""#, r#"{"event_type":}"#] {
        assert!(bench.from("a", &["NFPW01", "0x08", "c", "", "1", "200", body]).is_empty(), "{body} is no object");
    }
}

#[test]
fn the_oldest_count_of_dropped_events_is_given_up_and_one_that_was_told_leaves_nothing() {
    let name = |text: &str| Identity::parse(text).expect("a name");
    let event = |job: &str| {
        format!(
            r#"{{"worker":"a","service":"s","uuid":"{job}","event_type":"progress","message":"m","task":"t","timestamp":"now"}}"#
        )
    };
    let mut missed = Missed::default();
    let size = |missed: &Missed| missed.size().count;
    let most = missed.size().max;
    let job = |number: usize| JobId::parse(&number.to_string()).expect("a name");
    missed.add(&name("c"), event("0").as_bytes(), Undelivered::Full);
    assert!(missed.take(&name("c"), &job(0)).is_some());
    assert_eq!(size(&missed), 0);
    for number in 1..=most {
        missed.add(&name("c"), event(&number.to_string()).as_bytes(), Undelivered::Full);
    }
    missed.add(&name("c"), event("0").as_bytes(), Undelivered::Full);
    assert_eq!(size(&missed), most);
    assert!(missed.take(&name("c"), &job(1)).is_none(), "it was the oldest");
    assert!(missed.take(&name("c"), &job(2)).is_some() && missed.take(&name("c"), &job(0)).is_some());
    assert_eq!(size(&missed), most - 2);
}
