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
