//! The worker's rules about results that cannot be stored.

use super::*;

fn full() -> Result<(), StoreFailure> {
    Err(StoreFailure::Failed("disk full".into()))
}

impl Bench {
    /// A job that ended and whose result could not be stored.
    fn unstored(&mut self, id: &str, reply: Bytes) -> Vec<Did> {
        self.accept(id);
        self.worker.finished(self.now, &job(id), Ending::Completed, reply, Bytes::from_static(b"{}"));
        self.drain();
        self.worker.stored(self.now, WorkerToken::Finish(job(id)), full());
        self.drain()
    }

    fn status_of(&mut self, command: &str, id: &str) -> String {
        match &self.told(&[command, "c", "", id, r#"{"task":"t"}"#])[..] {
            [Did::Sent(Command::Response, frames)] => frames[3].clone(),
            [Did::Load(_)] => "looked up".to_owned(),
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn a_result_that_cannot_be_stored_is_sent_and_answered_from_memory_until_it_is() {
    let mut bench = Bench::new(1);
    let reply = result_reply(&name("w"), b"{}");
    let did = bench.unstored("1", reply);
    assert!(did.iter().any(|did| matches!(did, Did::Sent(Command::Response, _))), "{did:?}");
    for command in ["0x06", "0x04", "0x07"] {
        assert_eq!(bench.status_of(command, "1"), "200", "{command}");
    }
    assert_eq!((bench.worker.unfinished(), bench.worker.running()), (0, 0), "nobody waits for it to stop");
    bench.worker.stored(bench.now, WorkerToken::Finish(job("1")), full());
    assert_eq!(bench.status_of("0x06", "1"), "200");
    bench.worker.stored(bench.now, WorkerToken::Finish(job("1")), Ok(()));
    assert_eq!(bench.drain(), [], "it was sent");
    assert_eq!(bench.status_of("0x06", "1"), "looked up");
}

#[test]
fn results_that_cannot_be_stored_are_kept_up_to_a_bound() {
    let mut bench = Bench::new(1);
    let large = result_reply(&name("w"), &vec![b' '; UNSTORED_BYTES_MAX / 2]);
    for (id, kept) in [("1", "200"), ("2", "looked up")] {
        bench.unstored(id, large.clone());
        assert_eq!(bench.status_of("0x06", id), kept);
    }
    bench.worker.stored(bench.now, WorkerToken::Finish(job("1")), Ok(()));
    bench.unstored("3", large);
    assert_eq!(bench.status_of("0x06", "3"), "200");
}

#[test]
fn an_end_that_the_store_gave_up_is_given_to_it_again_until_it_is_stored() {
    let given_up = || Err(StoreFailure::GivenUp("disk full".into()));
    let mut bench = Bench::new(1);
    bench.accept("1");
    let reply = result_reply(&name("w"), b"{}");
    bench.worker.finished(bench.now, &job("1"), Ending::Failed, reply, Bytes::from_static(b"{}"));
    bench.drain();
    bench.worker.stored(bench.now, WorkerToken::Finish(job("1")), given_up());
    bench.drain();
    for outcome in [given_up(), full()] {
        assert_eq!(bench.status_of("0x06", "1"), "200");
        assert_eq!(bench.worker.next_deadline(), Some(bench.now + FINISH_AGAIN));
        bench.worker.timeout(bench.now);
        assert_eq!(bench.drain(), [], "not at once");
        bench.now += FINISH_AGAIN;
        bench.worker.timeout(bench.now);
        let Some(WorkerOutput::Store(operation, token)) = bench.worker.poll_output() else { panic!("it is stored") };
        let WorkerStoreOperation::Finish { job: of, ending, payload } = operation else { panic!("{operation:?}") };
        assert_eq!((of, ending, &payload[..]), (job("1"), Ending::Failed, &b"{}"[..]));
        bench.drain();
        bench.worker.stored(bench.now, token.expect("it is confirmed"), outcome);
    }
    bench.now += FINISH_AGAIN;
    bench.worker.timeout(bench.now);
    assert!(!bench.drain().contains(&Did::Stored("finish")), "the store tries it itself now");
    bench.worker.stored(bench.now, WorkerToken::Finish(job("1")), Ok(()));
    assert_eq!(bench.status_of("0x06", "1"), "looked up");
}

#[test]
fn ends_that_the_store_gave_up_are_all_given_to_it_once_more_when_the_worker_stops() {
    let mut bench = Bench::new(1);
    let ends = FINISHES_AGAIN + 1;
    for number in 0..ends {
        let id = number.to_string();
        bench.accept(&id);
        let reply = result_reply(&name("w"), b"{}");
        bench.worker.finished(bench.now, &job(&id), Ending::Completed, reply, Bytes::from_static(b"{}"));
        bench.drain();
        let given_up = Err(StoreFailure::GivenUp("disk full".into()));
        bench.worker.stored(bench.now, WorkerToken::Finish(job(&id)), given_up);
        bench.drain();
    }
    bench.worker.stop();
    assert_eq!(bench.worker.unfinished(), 0, "nobody waits for them");
    bench.worker.store_last_ends();
    let did = bench.drain();
    assert!(did.len() == ends && did.iter().all(|did| *did == Did::Stored("finish")), "{did:?}");
    bench.worker.store_last_ends();
    assert_eq!(bench.drain(), [], "each once");
}
