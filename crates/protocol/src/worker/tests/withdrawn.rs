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
            bench.told(&["0x07", "c", "", "1", r#"{"text":"cancelled by me","ends":true}"#]);
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
