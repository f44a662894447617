//! The worker's rules about the start of a job.

use super::*;

#[test]
fn a_job_whose_start_cannot_be_written_down_waits_and_starts_when_it_can_be() {
    for connected in [true, false] {
        let mut bench = Bench::new(1);
        bench.post("1");
        bench.store(WorkerToken::Insert(job("1")));
        bench.accept("2");
        if !connected {
            bench.worker.disconnected();
        }
        let full = || Err(StoreFailure::Failed("disk full".into()));
        bench.worker.stored(bench.now, WorkerToken::Start(job("1")), full());
        assert_eq!(bench.drain(), [Did::Note], "the next process would run it again");
        assert_eq!(bench.worker.running(), 0);
        assert_eq!(bench.worker.next_deadline(), Some(bench.now + START_AGAIN));
        bench.now += START_AGAIN;
        bench.worker.timeout(bench.now);
        assert_eq!(bench.drain(), [Did::Stored("started")], "in their order, and as many as may run");
        bench.worker.stored(bench.now, WorkerToken::Start(job("1")), full());
        bench.drain();
        bench.now += START_AGAIN;
        bench.worker.timeout(bench.now);
        bench.drain();
        let outcome = if connected { Ok(()) } else { Err(StoreFailure::Refused("there is no such job".into())) };
        bench.worker.stored(bench.now, WorkerToken::Start(job("1")), outcome);
        assert_eq!(bench.drain(), [Did::Started("1".into())]);
        assert_eq!(bench.finish("1").last(), Some(&Did::Stored("started")), "then the other one");
    }
}

#[test]
fn a_job_whose_start_cannot_be_written_down_stays_for_the_next_process_when_this_one_stops() {
    let mut bench = Bench::new(1);
    bench.post("1");
    bench.store(WorkerToken::Insert(job("1")));
    bench.worker.stop();
    bench.worker.stored(bench.now, WorkerToken::Start(job("1")), Err(StoreFailure::Failed("disk full".into())));
    assert_eq!((bench.drain(), bench.worker.unfinished()), (vec![Did::Note], 0));
}

#[test]
fn an_attempt_that_did_not_begin_is_none_however_many_processes_end_before_it() {
    for (attempts_before, attempts_max) in [(0, 1), (1, 3), (2, 3)] {
        // What the row says of how often it started.
        let mut row = attempts_before + 1;
        for _ in 0..3 {
            let mut bench = Bench::new(1);
            bench.worker.restore(bench.now, of_row(row, false, attempts_max));
            let did = bench.drain();
            row += u32::from(did == [Did::Stored("started")]);
            assert_eq!(row, attempts_before + 1, "it is not counted again");
            bench.worker.stored(bench.now, WorkerToken::Start(job("1")), Ok(()));
            let Some(WorkerOutput::Start(start)) = bench.worker.poll_output() else { panic!("it starts") };
            assert_eq!(start.attempt, attempts_before + 1);
        }
    }
}

#[test]
fn a_task_that_has_begun_as_often_as_it_may_is_given_up_and_one_that_may_begin_again_is_counted() {
    for (row, may_have_begun, attempts_max, did) in [
        (1, true, 1, Did::Abandoned(Abandoned::Restarted)),
        (3, true, 3, Did::Abandoned(Abandoned::Restarted)),
        (2, true, 3, Did::Stored("started")),
        (3, false, 3, Did::Stored("started anew")),
        // It began once, and could begin again then.
        (2, false, 1, Did::Abandoned(Abandoned::Restarted)),
    ] {
        let mut bench = Bench::new(1);
        bench.worker.restore(bench.now, of_row(row, may_have_begun, attempts_max));
        assert_eq!(bench.drain(), [did], "{row} {may_have_begun} {attempts_max}");
    }
}

/// A job whose row says that it was started so often.
fn of_row(attempts: u32, may_have_begun: bool, attempts_max: u32) -> RestoredJob {
    let new = NewJob {
        job: job("1"),
        client: name("c"),
        task: TaskName::parse("t").expect("a name"),
        asked_timeout: None,
        timeout: 60,
        time_left: None,
        body: Bytes::from_static(br#"{"task":"t"}"#),
    };
    RestoredJob::of_row(new, Duration::from_secs(10), true, attempts, may_have_begun, attempts_max)
}
