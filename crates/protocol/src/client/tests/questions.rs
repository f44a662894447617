//! Questions of workers, and their answers.

use super::*;

impl Bench {
    /// A worker's state says that it asks.
    pub(super) fn asked(&mut self, job: &str, worker: &str, question: &str) -> Did {
        let waiting = json!({"worker": worker, "uuid": job, "service": "s", "status": "WAITING_CLIENT_INPUT",
            "input_request": {"id": question, "question": "?"}});
        self.reply("0x05", job, "102", waiting)
    }
}

#[test]
fn restored_jobs_and_answers_fill_no_queue_while_there_is_no_connection() {
    let mut bench = Bench::new();
    bench.client.disconnected();
    let restored = RestoredClientJob {
        request: bench.request("1", "any"),
        state: JobState::Started,
        dispatched: vec![name("a")],
        started: vec![],
        completed: vec![],
        errors: vec![],
        ageless: false,
    };
    bench.client.restore(bench.now, restored);
    let response = InputResponse { input_id: "q".into(), value: None, cancel: false, metadata: json!({}) };
    bench.client.answer(&id("1"), None, &response);
    assert!(bench.drain().sent.is_empty());
    bench.client.connected(bench.now);
    let mut commands: Vec<Command> = bench.drain().sent.iter().map(|sent| sent.0).collect();
    commands.extend(bench.after(1.0).sent.iter().map(|sent| sent.0));
    assert_eq!(commands, [Command::Put, Command::Get]);
}

#[test]
fn open_questions_can_be_told_again() {
    let mut bench = Bench::new();
    bench.posted("1", "any");
    bench.dispatched("1", &["a"]);
    bench.asked("1", "a", "q1");
    assert_eq!(bench.client.open_questions(&id("1"))[0].1.id, "q1");
    bench.event("1", "a", "input_response", "received", json!({"input_response": {"input_id": "q1"}}));
    assert!(bench.client.open_questions(&id("1")).is_empty());
}

#[test]
fn a_worker_that_waits_without_its_question_shows_as_waiting() {
    let mut bench = Bench::new();
    bench.posted("1", "any");
    bench.dispatched("1", &["a"]);
    let waiting = json!({"worker":"a","uuid":"1","service":"s","status":"WAITING_CLIENT_INPUT"});
    bench.reply("0x05", "1", "102", waiting);
    assert_eq!(bench.client.state(&id("1")), Some(JobState::Waiting));
    assert_eq!(bench.result("1", "a").outcome.map(|outcome| outcome.state), Some(JobState::Completed));
}
