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
