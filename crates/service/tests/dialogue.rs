//! What a running task says, asks and streams.

use std::time::Duration;

use norfab_protocol::body::{CONTENT_MARK, InputResponse, PutBody, decode_put};
use norfab_service::testing::{TestJob, TestWorker};
use norfab_service::{
    Bytes, CREDITS_MAX, CancelReason, ContentError, DeliverError, EventDraft, EventStatus, EventType, NoInput,
    Question, ResultStatus, Service, ServiceName, Severity, StreamCredit, Task, TaskContext, TaskError, TaskMessage,
};
use serde_json::{Map, Value, json};

fn worker(task: Task) -> TestWorker {
    TestWorker::new(Service::new(ServiceName::parse("dummy").expect("a name")).task(task))
}

fn asking() -> TestWorker {
    worker(Task::new("ask", "", async |context: TaskContext, _: NoInput| {
        let question = Question::new("Proceed?").default("dflt").timeout(20).metadata("m", 1);
        Ok(json!({"answer": context.ask(question).await?}))
    }))
}

fn put(job: &TestJob, body: Value) -> Result<(), DeliverError> {
    let body = Bytes::from(serde_json::to_vec(&body).expect("plain data"));
    let put = norfab_protocol::body::decode_put(&body).expect("a PUT body");
    job.port().deliver(put.expect("an answer or a credit"))
}

/// The event as its peers see it, with its id replaced.
fn wire(event: &norfab_service::Event, id: &str) -> String {
    serde_json::to_string(event).expect("plain data").replace(id, "ID")
}

const HEAD: &str = concat!(
    r#"{"worker":"test-worker","service":"dummy","uuid":"0123456789abcdef0123456789abcdef","#,
    r#""event_type":"input_"#
);

#[tokio::test]
async fn a_question_is_asked_and_answered_in_the_recorded_form() {
    let mut job = asking().start("ask", json!({}));
    let event = job.event().await;
    let request = event.input_request().expect("a question");
    assert_eq!(request.id.len(), 32);
    assert!(request.id.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f')));
    assert_eq!(
        wire(&event, &request.id),
        format!(
            r#"{HEAD}request","message":"Proceed?","task":"ask","status":"waiting_client_input","resource":[],"severity":"INFO","timestamp":"30-Nov-2026 00:33:08.011","extras":{{"input_request":{{"id":"ID","question":"Proceed?","default":"dflt","timeout":20,"metadata":{{"m":1}}}}}},"timeout":20}}"#
        )
    );
    assert_eq!(job.port().open_questions(), std::slice::from_ref(&request));
    let answer = json!({"input_id": request.id, "value": {"yes": true}, "metadata": {"who": "me"}});
    put(&job, answer.clone()).expect("the question is open");
    assert_eq!(
        wire(&job.event().await, &request.id),
        format!(
            r#"{HEAD}response","message":"Proceed?","task":"ask","status":"received","resource":[],"severity":"INFO","timestamp":"30-Nov-2026 00:33:08.011","extras":{{"input_response":{{"input_id":"ID","metadata":{{"who":"me"}}}}}}}}"#
        )
    );
    assert!(job.port().open_questions().is_empty());
    let unknown = DeliverError::UnknownQuestion { id: request.id };
    assert_eq!(put(&job, answer), Err(unknown));
    assert_eq!(job.result().await.value(), Some(json!({"answer": {"yes": true}})));
}

#[tokio::test]
async fn an_answer_without_a_value_is_the_default_and_null_stays_null() {
    for (answer, expected) in [(json!({}), json!("dflt")), (json!({"value": null}), Value::Null)] {
        let mut job = asking().start("ask", json!({}));
        let mut answer = answer;
        answer["input_id"] = json!(job.question().await.id);
        put(&job, answer).expect("the question is open");
        let told = job.event().await;
        assert_eq!(told.extras.expect("extras")["input_response"]["metadata"], json!({}));
        assert_eq!(job.result().await.value(), Some(json!({"answer": expected})));
    }
}

#[tokio::test]
async fn an_answer_to_another_question_is_refused_and_the_right_one_still_taken() {
    let mut job = asking().start("ask", json!({}));
    let id = job.question().await.id;
    let other = "0".repeat(32);
    let unknown = DeliverError::UnknownQuestion { id: other.clone() };
    assert_eq!(put(&job, json!({"input_id": other, "value": "wrong"})), Err(unknown));
    put(&job, json!({"input_id": id, "value": "right"})).expect("the question is open");
    assert_eq!(job.result().await.value(), Some(json!({"answer": "right"})));
}

#[tokio::test]
async fn a_cancelled_question_fails_the_task() {
    let mut job = asking().start("ask", json!({}));
    let id = job.question().await.id;
    put(&job, json!({"input_id": id, "value": null, "cancel": true})).expect("open");
    let event = job.event().await;
    assert_eq!(event.status, EventStatus::Cancelled);
    assert_eq!(json!(event.extras), json!({"input_response": {"input_id": id, "metadata": {}}}));
    let result = job.result().await;
    assert_eq!(result.errors, [r#"the client cancelled the question "Proceed?""#]);
    assert_eq!(result.status, Some(ResultStatus::Error));
}

#[tokio::test(start_paused = true)]
async fn a_question_that_nobody_answers_fails_the_task_when_its_time_is_over() {
    let mut job = asking().start("ask", json!({}));
    let began = tokio::time::Instant::now();
    let id = job.question().await.id;
    let event = job.event().await;
    assert_eq!(event.event_type, EventType::InputResponse);
    assert_eq!(event.status, EventStatus::Timeout);
    assert_eq!(json!(event.extras), json!({"input_response": {"input_id": id}}));
    assert_eq!(began.elapsed().as_secs(), 20);
    let late = put(&job, json!({"input_id": id, "value": 1}));
    assert_eq!(late, Err(DeliverError::UnknownQuestion { id }));
    let result = job.result().await;
    assert_eq!(result.errors, [r#"nobody answered the question "Proceed?" within 20 s"#]);
}

#[tokio::test]
async fn a_job_that_is_cancelled_while_it_asks_closes_its_question() {
    let mut job = asking().start("ask", json!({}));
    let id = job.question().await.id;
    job.port().cancel(CancelReason::Requested("enough".to_owned()));
    let event = job.event().await;
    assert_eq!(event.status, EventStatus::Cancelled);
    assert_eq!(event.input_response_id(), Some(id.as_str()));
    let result = job.result().await;
    let error = r#"the question "Proceed?" has no answer because the job ends: cancelled: enough"#;
    assert_eq!(result.errors, [error]);
    assert_eq!(result.status, Some(ResultStatus::Failed));
}

#[tokio::test]
async fn two_questions_at_once_each_get_their_own_answer() {
    let task = Task::new("ask", "", async |context: TaskContext, _: NoInput| {
        let ask = |text: &str| context.ask(Question::new(text));
        let (first, second) = tokio::try_join!(ask("first?"), ask("second?"))?;
        Ok(json!([first, second]))
    });
    let mut job = worker(task).start("ask", json!({}));
    let first = job.question().await;
    let second = job.question().await;
    assert_eq!(job.port().open_questions(), [first.clone(), second.clone()]);
    job.answer(&second, "to second").expect("open");
    job.answer(&first, "to first").expect("open");
    assert_eq!(job.result().await.value(), Some(json!(["to first", "to second"])));
}

#[tokio::test]
async fn a_blocking_task_asks_and_sends_too() {
    let task = Task::blocking("ask", "", |context: TaskContext, _: NoInput| {
        context.stream_blocking(Bytes::from_static(b"\x00\xff"))?;
        let credit = context.next_credit_blocking(Duration::from_secs(5))?;
        let answer = context.ask_blocking(Question::new("sure?"))?;
        Ok(json!([credit.offset, answer]))
    });
    let mut job = worker(task).start("ask", json!({}));
    let chunk = TaskMessage::Stream(Bytes::from_static(b"\x00\xff"));
    assert_eq!(job.message().await, chunk);
    put(&job, json!({"offset": 2})).expect("there is room");
    let question = job.question().await;
    job.answer(&question, "sûr").expect("open");
    assert_eq!(job.result().await.value(), Some(json!([2, "sûr"])));
}

#[tokio::test]
async fn an_event_has_the_recorded_form_with_all_and_with_few_fields() {
    let task = Task::new("progress", "", async |context: TaskContext, _: NoInput| {
        context.event("minimal").await?;
        let extras = Map::from_iter([("k".to_owned(), json!([1, {"z": null}]))]);
        let draft = EventDraft::new("all fields")
            .status(EventStatus::Scheduled)
            .resources(["res-1", "res-2"])
            .severity(Severity::Warning)
            .timestamp("my-own-timestamp")
            .extras(extras)
            .timeout(33);
        context.event(draft).await?;
        context.event(EventDraft::new("one").resource("ü").task("renamed")).await?;
        Ok(())
    });
    let mut job = worker(task).start("progress", json!({}));
    let head = r#"{"worker":"test-worker","service":"dummy","uuid":"0123456789abcdef0123456789abcdef","event_type":"progress","message":"#;
    let expected = [
        r#""minimal","task":"progress","status":"running","resource":[],"severity":"INFO","timestamp":"30-Nov-2026 00:33:08.011"}"#,
        r#""all fields","task":"progress","status":"scheduled","resource":["res-1","res-2"],"severity":"WARNING","timestamp":"my-own-timestamp","extras":{"k":[1,{"z":null}]},"timeout":33}"#,
        r#""one","task":"renamed","status":"running","resource":"ü","severity":"INFO","timestamp":"30-Nov-2026 00:33:08.011"}"#,
    ];
    for tail in expected {
        assert_eq!(wire(&job.event().await, "no id here"), format!("{head}{tail}"));
    }
}

#[tokio::test]
async fn a_full_queue_is_told_to_the_task_after_a_short_wait() {
    let task = Task::new("flood", "", async |context: TaskContext, _: NoInput| {
        for _ in 0..3 {
            context.event("more").await?;
        }
        Ok(())
    });
    let job = worker(task).outlet_messages(2).start("flood", json!({}));
    let result = job.result().await;
    let error = "the outbound queue of 2 messages was full for 100ms: the broker does not take messages fast enough, send \
                 less often or try again";
    assert_eq!(result.errors, [error]);
    assert!(result.failed);
}

#[tokio::test]
async fn a_question_that_cannot_be_sent_is_not_open() {
    let worker = asking();
    let (context, port, messages) = worker.context("ask");
    drop(messages);
    let error = context.ask(Question::new("?")).await.expect_err("the worker has stopped");
    assert_eq!(error.to_string(), "the worker has stopped and sends nothing any more");
    assert!(port.open_questions().is_empty());
}

#[tokio::test]
async fn questions_of_one_job_are_bounded() {
    let worker = asking();
    let (context, port, _messages) = worker.context("ask");
    let mut asked = tokio::task::JoinSet::new();
    for _ in 0..=norfab_service::QUESTIONS_MAX {
        let context = context.clone();
        asked.spawn(async move { context.ask(Question::new("?")).await });
    }
    let error = asked.join_next().await.expect("one").expect("no panic");
    let error = error.expect_err("too many").to_string();
    assert_eq!(error, "64 questions of this job are open already: wait for an answer first");
    assert_eq!(port.open_questions().len(), norfab_service::QUESTIONS_MAX);
    asked.shutdown().await;
    assert!(port.open_questions().is_empty());
}

fn streaming() -> TestWorker {
    worker(Task::new("fetch", "", async |context: TaskContext, _: NoInput| {
        let file = Bytes::from_static(b"0123456789");
        let mut sent = 4;
        context.stream(file.slice(..4)).await?;
        while sent < file.len() {
            let credit = context.next_credit(Duration::from_secs(5)).await?;
            let from = usize::try_from(credit.offset)?;
            let to = (from + 4).min(file.len());
            context.stream(file.slice(from..to)).await?;
            sent = to;
        }
        Ok(true)
    }))
}

#[tokio::test]
async fn a_stream_goes_on_with_each_credit() {
    let mut job = streaming().start("fetch", json!({}));
    for offset in [4, 8] {
        put(&job, json!({"offset": offset})).expect("there is room");
    }
    let mut received = Vec::new();
    for _ in 0..3 {
        match job.message().await {
            TaskMessage::Stream(chunk) => received.extend_from_slice(&chunk),
            TaskMessage::Event(event) => panic!("{event:?} instead of bytes"),
        }
    }
    assert_eq!(received, b"0123456789");
    assert_eq!(job.result().await.value(), Some(json!(true)));
}

#[tokio::test(start_paused = true)]
async fn a_stream_without_credit_ends_with_an_error() {
    let result = streaming().run("fetch", json!({})).await;
    assert_eq!(result.errors, ["the client asked for no further chunk within 5 s"]);
}

#[tokio::test]
async fn a_cancelled_job_waits_for_no_credit() {
    let mut job = streaming().start("fetch", json!({}));
    job.message().await;
    job.port().cancel(CancelReason::WorkerStops);
    let result = job.result().await;
    let error = "no further chunk is sent because the job ends: the worker stops";
    assert_eq!(result.errors, [error]);
}

#[tokio::test]
async fn credits_are_bounded_and_refused_once_the_task_has_ended() {
    let worker = streaming();
    let (context, port, _messages) = worker.context("fetch");
    let credit = |offset| port.deliver(PutBody::Credit(StreamCredit { offset }));
    for offset in 0..CREDITS_MAX as u64 {
        credit(offset).expect("there is room");
    }
    assert_eq!(credit(7), Err(DeliverError::CreditsFull { offset: 7 }));
    assert!(!port.has_ended());
    drop(context);
    assert!(port.has_ended());
    assert_eq!(credit(7), Err(DeliverError::Ended));
}

#[tokio::test]
async fn a_wait_in_an_asynchronous_task_that_blocks_is_a_failed_result() {
    let task =
        Task::new("ask", "", async |context: TaskContext, _: NoInput| Ok(context.ask_blocking(Question::new("?"))?));
    let result = worker(task).run("ask", json!({})).await;
    let error = result.errors.join("");
    assert!(error.starts_with("the task panicked: Cannot start a runtime from within"), "{error}");
}

#[test]
fn a_response_whose_metadata_is_missing_reads_as_nothing() {
    let body = norfab_protocol::body::decode_put(&Bytes::from_static(br#"{"input_id":"x"}"#));
    let expected = InputResponse { input_id: "x".to_owned(), value: None, cancel: false, metadata: Value::Null };
    assert_eq!(body, Ok(Some(PutBody::Input(expected))));
    // What an error type of a task may be made from.
    assert_eq!(TaskError::from(DeliverError::Ended).to_string(), "the task has ended");
}

fn taking(bytes_max: usize) -> TestWorker {
    worker(Task::blocking("take", "", move |context: TaskContext, _: NoInput| {
        let mut content = context.content(bytes_max);
        context.event_blocking("ready")?;
        let mut taken = Vec::new();
        loop {
            match content.next_blocking(Duration::from_secs(20)) {
                Ok(piece) if piece.is_empty() => return Ok(json!(taken)),
                Ok(piece) => taken.push(String::from_utf8_lossy(&piece[..1]).into_owned()),
                Err(error) => return Ok(json!(error.to_string())),
            }
        }
    }))
}

fn piece(bytes: usize) -> PutBody {
    PutBody::Content(Bytes::from(vec![b'x'; bytes]))
}

#[tokio::test]
async fn content_comes_to_a_task_in_its_order_once_it_takes_some() {
    let mut job = taking(1 << 20).start("take", json!({}));
    job.event().await;
    let body = Bytes::from([CONTENT_MARK, b"abc"].concat());
    assert_eq!(decode_put(&body), Ok(Some(PutBody::Content(Bytes::from_static(b"abc")))));
    for text in ["a", "b", "c", ""] {
        job.port().deliver(PutBody::Content(Bytes::from(text))).expect("there is room");
    }
    assert_eq!(job.result().await.value(), Some(json!(["a", "b", "c"])));
    let (context, port, _messages) = taking(1).context("take");
    assert_eq!(port.deliver(piece(1)), Err(DeliverError::NoContent));
    drop(context.content(1));
    assert_eq!(port.deliver(piece(1)), Err(DeliverError::Ended));
}

#[tokio::test]
async fn content_beyond_what_may_wait_is_refused_and_the_task_is_told_behind_what_came_before() {
    let (context, port, _messages) = taking(1).context("take");
    let mut content = context.content(64 << 10);
    port.deliver(piece(40 << 10)).expect("there is room");
    let full = Err(DeliverError::ContentFull { bytes_max: 64 << 10 });
    assert_eq!(port.deliver(piece(30 << 10)), full.clone());
    assert_eq!(port.deliver(piece(1)), full.clone(), "behind a gap nothing is of use");
    assert_eq!(content.next(Duration::ZERO).await.map(|piece| piece.len()), Ok(40 << 10));
    assert_eq!(content.next(Duration::from_secs(20)).await, Err(ContentError::TooMuch { bytes_max: 64 << 10 }));
    // So is one that waits already when the first piece is too large.
    let mut content = context.content(64 << 10);
    let waits = tokio::time::timeout(Duration::from_secs(20), content.next(Duration::from_secs(600)));
    let (told, refused) = tokio::join!(waits, async { port.deliver(piece(65 << 10)) });
    assert_eq!((told, refused), (Ok(Err(ContentError::TooMuch { bytes_max: 64 << 10 })), full));
    // Small ones have a cost of their own.
    let mut content = context.content(64 << 10);
    let taken = (0..1000).take_while(|_| port.deliver(piece(0)).is_ok()).count();
    assert_eq!(taken, 16);
    // Room comes back.
    let mut other = context.content(64 << 10);
    for _ in 0..100 {
        port.deliver(piece(64 << 10)).expect("there is room");
        other.next(Duration::from_secs(20)).await.expect("a piece");
    }
    assert_eq!(other.next(Duration::ZERO).await, Err(ContentError::TimedOut { seconds: 0 }));
    port.cancel(CancelReason::Deadline);
    let ends = Err(ContentError::JobCancelled(CancelReason::Deadline));
    assert_eq!((other.next(Duration::ZERO).await, content.next(Duration::ZERO).await), (ends.clone(), ends));
}
