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
