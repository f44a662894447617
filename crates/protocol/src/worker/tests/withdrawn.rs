//! The worker's rules about jobs that were cancelled before they came.

use super::*;

#[test]
fn a_post_that_comes_behind_the_cancellation_of_its_job_does_not_run() {
    let mut bench = Bench::new(1);
    for (id, by, body) in [
        ("1", "c", r#"{"text":"cancelled by me","ends":true}"#),
        ("2", "other", r#"{"text":"cancelled by me","ends":true,"client":"c"}"#),
    ] {
        assert_eq!(bench.told(&["0x07", by, "", id, body]), [Did::Load(id.into())]);
        let asked = bench.post_that_is_looked_up(id);
        assert_eq!(asked, Asked::ToRun(Refusal { reason: "cancelled by me".into(), retry: false, turn: None }));
        bench.worker.loaded(job(id), name("c"), asked, None);
        let refused = bench.drain();
        assert!(format!("{refused:?}").contains("cancelled by me"), "{refused:?}");
        assert_eq!(bench.worker.unfinished(), 0);
    }
    // This one goes on elsewhere, and may come here as well.
    bench.told(&["0x07", "c", "", "3", r#"{"text":"with another one"}"#]);
    assert_eq!(bench.post("3")[0], Did::Stored("insert"));
    // Another client's job of this id is another job.
    bench.told(&["0x07", "other", "", "4", r#"{"ends":true}"#]);
    assert_eq!(bench.post("4")[0], Did::Stored("insert"));
}

#[test]
fn a_job_that_is_taken_back_from_one_worker_is_not_told_as_cancelled_unless_somebody_cancels_it_then() {
    for cancelled in [false, true] {
        let mut bench = Bench::new(1);
        bench.accept("1");
        let text = r#"{"text":"cancelled by the fabric: another one has it","back":true}"#;
        assert_eq!(bench.told(&["0x07", "c", "", "1", text]), [Did::Cancelled]);
        bench.worker.announce_cancel(&job("1"), "cancelled by the fabric", Bytes::from_static(b"{}")).expect("it runs");
        if cancelled {
            let did = bench.told(&["0x07", "c", "", "1", r#"{"text":"cancelled by me","ends":true}"#]);
            assert_eq!(did.last(), Some(&Did::Cancelled));
        }
        let reply = result_reply(&name("w"), br#"{"failed":true}"#);
        bench.worker.finished(bench.now, &job("1"), Ending::Completed, reply, Bytes::from_static(b"{}"));
        let payload = std::iter::from_fn(|| bench.worker.poll_output()).find_map(|output| match output {
            WorkerOutput::Store(WorkerStoreOperation::Finish { payload, .. }, _) => Some(payload),
            _ => None,
        });
        let payload = String::from_utf8(payload.expect("its end").to_vec()).expect("text");
        assert_eq!(payload.contains("cancelled by me"), cancelled, "{payload}");
        assert!(!payload.contains("by the fabric"), "{payload}");
    }
}

/// What is written down of a job when the task that it began, if it did, has ended behind a taking back.
fn taken_back(bench: &mut Bench, id: &str) -> Bytes {
    bench.told(&["0x07", "c", "", id, r#"{"text":"cancelled by the fabric: another one has it","back":true}"#]);
    let reply = result_reply(&name("w"), br#"{"failed":true}"#);
    bench.worker.finished(bench.now, &job(id), Ending::Failed, reply, Bytes::from_static(b"{}"));
    let ends = std::iter::from_fn(|| bench.worker.poll_output()).find_map(|output| match output {
        WorkerOutput::Store(WorkerStoreOperation::Finish { payload, .. }, _) => Some(payload),
        _ => None,
    });
    ends.expect("its end")
}

#[test]
fn only_what_never_began_says_that_it_was_taken_back() {
    let mut bench = Bench::new(1);
    bench.accept("1");
    bench.accept("2");
    assert!(is_taken_back(&taken_back(&mut bench, "2")), "it was queued");
    assert!(!is_taken_back(&taken_back(&mut bench, "1")), "it runs, and no other may run it");
    // One that a process before this one began, and that may begin again.
    let mut bench = Bench::new(0);
    for (id, attempts) in [("3", 1), ("4", 0)] {
        let new = NewJob {
            job: job(id),
            client: name("c"),
            task: TaskName::parse("t").expect("a name"),
            asked_timeout: Some(30),
            timeout: 30,
            time_left: Some(Duration::from_secs(30)),
            body: Bytes::from_static(br#"{"task":"t"}"#),
        };
        let remaining = Duration::from_secs(30);
        let restored = RestoredJob { new, given_up: false, remaining, attempts, counted: false };
        bench.worker.restore(bench.now, restored);
        assert_eq!(is_taken_back(&taken_back(&mut bench, id)), attempts == 0);
    }
}

#[test]
fn a_job_that_was_given_up_is_not_taken_again_but_refused_so_that_another_one_may_have_it() {
    let mut bench = Bench::new(1);
    let given_up = || Some(LoadedJob { payload: Some(Bytes::from_static(br#"{"taken_back":true}"#)) });
    let frames = ["", "NFPB01", "0x04", "c", "", "1", r#"{"task":"t","fabric":1,"turn":3}"#];
    bench.worker.message(bench.now, &frames.map(|frame| Bytes::copy_from_slice(frame.as_bytes())));
    bench.drain();
    bench.worker.stored(bench.now, WorkerToken::Insert(job("1")), Err(StoreFailure::Duplicate));
    let Some(WorkerOutput::Load { asked, .. }) = bench.worker.poll_output() else { panic!("it is looked up") };
    bench.worker.loaded(job("1"), name("c"), asked.clone(), given_up());
    let refused = format!("{:?}", bench.drain());
    assert!(refused.contains("gave the job up") && refused.contains(r#"\"retry\":true,\"turn\":3"#), "{refused}");
    bench.worker.loaded(job("1"), name("c"), asked, Some(LoadedJob { payload: Some(Bytes::from_static(b"{}")) }));
    assert_eq!(statuses(&bench.drain()), ["200"], "that is a result");
    // So it is while nothing new is taken.
    bench.worker.stop();
    let asked = bench.post_that_is_looked_up("1");
    bench.worker.loaded(job("1"), name("c"), asked, given_up());
    assert_eq!(statuses(&bench.drain()), ["400"]);
    // Who asks is told.
    for asked in [Asked::State, Asked::ToCancel] {
        bench.worker.loaded(job("1"), name("c"), asked, given_up());
        assert_eq!(statuses(&bench.drain()), ["200"]);
    }
}

#[test]
fn that_a_job_was_given_up_is_not_said_before_it_is_stored() {
    let mut bench = Bench::new(0);
    bench.accept("1");
    taken_back(&mut bench, "1");
    let full = || Err(StoreFailure::Failed("disk full".into()));
    bench.worker.stored(bench.now, WorkerToken::Finish(job("1")), full());
    assert_eq!(statuses(&bench.drain()), [""; 0], "the next process would begin it");
    assert_eq!(bench.status_of_get("1"), "300");
    bench.worker.stored(bench.now, WorkerToken::Finish(job("1")), Ok(()));
    assert_eq!(bench.told(&["0x06", "c", "", "1", ""]), [Did::Load("1".into())]);
}

#[test]
fn who_cancels_what_is_being_taken_back_is_named_in_the_words_of_the_worker_where_it_has_none() {
    let mut bench = Bench::new(1);
    bench.accept("1");
    bench.told(&["0x07", "c", "", "1", r#"{"text":"cancelled by the fabric: another one has it","back":true}"#]);
    bench.worker.announce_cancel(&job("1"), "cancelled by the fabric", Bytes::from_static(b"{}")).expect("it runs");
    bench.drain();
    let frames = ["", "NFPB01", "0x07", "other", "", "1", r#"{"reason":"typo"}"#];
    bench.worker.message(bench.now, &frames.map(|frame| Bytes::copy_from_slice(frame.as_bytes())));
    let Some(WorkerOutput::Cancel { why, .. }) = bench.worker.poll_output() else { panic!("it is announced") };
    let by_other = Abandoned::Cancelled { by: name("other"), reason: Some("typo".into()), text: None, back: false };
    assert_eq!(why, by_other);
    assert_eq!(bench.worker.cancelled(&job("1")).map(|(_, why)| why), Some(by_other));
    assert_eq!(bench.told(&["0x07", "c", "", "1", r#"{"back":true}"#]), [], "nobody takes back what is cancelled");
}
