//! The worker's rules about jobs that come while it is looked up whether they are there.

use super::*;

/// A worker that had no room when a job came, and has since.
fn with_one_that_is_looked_up() -> (Bench, Asked) {
    let mut bench = Bench::new(1);
    bench.worker.config.jobs_max = 1;
    bench.accept("before");
    let asked = bench.post_that_is_looked_up("1");
    bench.finish("before");
    bench.store(WorkerToken::Finish(job("before")));
    (bench, asked)
}

#[test]
fn a_job_that_was_taken_while_it_was_looked_up_is_not_refused() {
    let (mut bench, asked) = with_one_that_is_looked_up();
    assert_eq!(bench.post("1")[0], Did::Stored("insert"), "the repeated POST finds room");
    bench.worker.loaded(job("1"), name("c"), asked.clone(), None);
    assert_eq!(bench.drain(), [], "its 201 comes when it is stored");
    assert_eq!(statuses(&bench.store(WorkerToken::Insert(job("1")))), ["201"]);
    bench.worker.loaded(job("1"), name("c"), asked, None);
    assert_eq!(statuses(&bench.drain()), ["201"], "not a refusal");
}

#[test]
fn a_job_that_came_while_its_state_was_looked_up_is_known() {
    let mut bench = Bench::new(1);
    assert_eq!(bench.told(&["0x06", "c", "", "1", "{}"]), [Did::Load("1".into())]);
    bench.accept("1");
    bench.worker.loaded(job("1"), name("c"), Asked::State, None);
    assert_eq!(statuses(&bench.drain()), ["300"]);
}
