//! The worker's rules about jobs that it refused and that are posted to it once more.

use super::*;

/// A POST of a client that counts its turns; how it was answered, and with which body.
fn posted(bench: &mut Bench, id: &str, turn: u32) -> (Vec<Did>, String) {
    let body = format!(r#"{{"task":"t","timeout":30,"fabric":1,"turn":{turn}}}"#);
    let frames = ["", "NFPB01", "0x04", "c", "", id, &body];
    bench.worker.message(bench.now, &frames.map(|frame| Bytes::copy_from_slice(frame.as_bytes())));
    let Some(output) = bench.worker.poll_output() else { return (Vec::new(), String::new()) };
    let WorkerOutput::Load { asked, .. } = output else { return (bench.drain(), String::new()) };
    bench.worker.loaded(job(id), name("c"), asked, None);
    let did = bench.drain();
    let body = did.iter().find_map(|did| match did {
        Did::Sent(_, rest) => rest.last().cloned(),
        _ => None,
    });
    (did, body.unwrap_or_default())
}

#[test]
fn a_worker_that_refused_a_job_takes_no_other_post_of_the_same_turn_but_one_of_the_next() {
    let mut bench = Bench::new(1);
    bench.worker.config.jobs_max = 1;
    bench.accept("1");
    for turn in [0, 2] {
        let (did, body) = posted(&mut bench, "2", turn);
        assert_eq!(statuses(&did), ["400"]);
        assert!(body.contains(&format!(r#""retry":true,"turn":{turn}"#)), "{body}");
    }
    bench.finish("1");
    bench.store(WorkerToken::Finish(job("1")));
    for turn in [0, 1, 2] {
        let (did, body) = posted(&mut bench, "2", turn);
        assert_eq!(statuses(&did), ["400"], "another worker may have it by now");
        assert!(body.contains(r#""retry":true,"turn":2"#), "the last that it refused: {body}");
        // The job may be for this worker alone.
        assert!(body.contains("submit it anew") && !body.contains("another"), "{body}");
    }
    // It is stored, and the first of these outputs was looked at.
    assert_eq!(posted(&mut bench, "2", 3).0, [Did::Stored("started")]);
}

#[test]
fn a_job_that_could_not_be_stored_is_refused_in_its_turn_too() {
    let mut bench = Bench::new(1);
    assert_eq!(posted(&mut bench, "1", 1).0, [Did::Stored("started")]);
    bench.worker.stored(bench.now, WorkerToken::Insert(job("1")), Err(StoreFailure::Failed("full".to_owned())));
    assert_eq!(statuses(&bench.drain()), ["400"]);
    assert_eq!(statuses(&posted(&mut bench, "1", 1).0), ["400"]);
    assert_eq!(posted(&mut bench, "1", 2).0, [Did::Stored("started")]);
}

#[test]
fn a_client_that_counts_no_turns_may_come_again() {
    let mut bench = Bench::new(1);
    bench.worker.config.jobs_max = 1;
    bench.accept("1");
    let did = bench.post_that_is_unknown("2");
    let Did::Sent(_, rest) = &did[1] else { panic!("{did:?}") };
    assert!(rest[4].contains("\"retry\":true") && !rest[4].contains("turn"), "{rest:?}");
    bench.finish("1");
    bench.store(WorkerToken::Finish(job("1")));
    assert_eq!(bench.post("2")[0], Did::Stored("insert"));
}
