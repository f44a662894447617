//! What a worker's database promises, whatever it is made of.

mod samples;

use norfab_jobs::*;
use norfab_protocol::name::TaskName;
use samples::*;

/// Runs a test on each kind of store.
fn on_each(test: impl Fn(&mut dyn WorkerStore)) {
    test(&mut MemoryWorkerStore::new());
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("jobs.db");
    test(&mut SqliteWorkerStore::open(&path, STAMP).expect("a database"));
}

fn store_all(store: &mut dyn WorkerStore, operations: &[WorkerOperation]) {
    for (outcome, operation) in store.apply(operations).expect("a batch").into_iter().zip(operations) {
        assert_eq!(outcome, Ok(()), "{operation:?}");
    }
}

fn apply_one(store: &mut dyn WorkerStore, operation: WorkerOperation) -> Outcome {
    store.apply(&[operation]).expect("a batch").remove(0)
}

fn details(store: &mut dyn WorkerStore, number: usize) -> WorkerJobDetails {
    store.job(&id(number)).expect("a query").expect("a job")
}

#[test]
fn a_job_that_begins_anew_after_its_process_ended_with_a_question_counts_the_attempt() {
    on_each(|store| {
        let before = [state(1, WorkerState::Started, 2.0), state(1, WorkerState::WaitingClientInput, 3.0)];
        store_all(store, &[worker_insert(1)]);
        store_all(store, &before);
        store_all(store, &[state(1, WorkerState::Started, 4.0)]);
        let job = details(store, 1).job;
        assert_eq!((job.attempts, job.started, job.state), (2, Some(NOW + 4.0), WorkerState::Started));
        store_all(store, &[finish(1, WorkerState::Completed, b"{}")]);
        assert!(apply_one(store, WorkerOperation::Answered { id: id(1) }).is_err(), "it has ended");
        assert!(apply_one(store, WorkerOperation::Answered { id: id(2) }).is_err(), "there is no such job");
    });
}

#[test]
fn a_job_lives_from_pending_to_its_result() {
    on_each(|store| {
        store_all(store, &[worker_insert(1)]);
        assert_eq!(details(store, 1), WorkerJobDetails { job: worker_job(1), payload: None, events: Vec::new() });
        let operations = [
            state(1, WorkerState::Started, 2.0),
            worker_event(1, "begins"),
            state(1, WorkerState::WaitingClientInput, 3.0),
            WorkerOperation::Answered { id: id(1) },
            finish(1, WorkerState::Completed, b"{\"failed\":false}"),
            worker_event(1, "result ready"),
        ];
        store_all(store, &operations);
        let expected = WorkerJob {
            state: WorkerState::Completed,
            // Going on after an answer is no new attempt.
            attempts: 1,
            started: Some(NOW + 2.0),
            finished: Some(NOW + 2.0),
            ..worker_job(1)
        };
        let found = details(store, 1);
        assert_eq!(found.job, expected);
        assert_eq!(found.payload.as_deref(), Some(&b"{\"failed\":false}"[..]));
        assert_eq!(found.events, ["begins", "result ready"]);
        let bodiless = WorkerJob { body: bytes::Bytes::new(), ..expected };
        assert_eq!(store.result(&id(1)), Ok(Some((bodiless, found.payload))));
        assert_eq!(store.result(&id(2)), Ok(None));
    });
}

#[test]
fn each_attempt_is_counted() {
    on_each(|store| {
        store_all(
            store,
            &[
                worker_insert(1),
                state(1, WorkerState::Started, 1.0),
                // Its process died, and the task may run again.
                state(1, WorkerState::Pending, 5.0),
                state(1, WorkerState::Started, 6.0),
            ],
        );
        let job = details(store, 1).job;
        assert_eq!((job.attempts, job.started, job.state), (2, Some(NOW + 6.0), WorkerState::Started));
    });
}

#[test]
fn an_attempt_that_did_not_begin_is_counted_once_however_often_it_starts_anew() {
    on_each(|store| {
        let anew = |at: f64| WorkerOperation::StartedAnew { id: id(1), at: NOW + at };
        store_all(store, &[worker_insert(1), state(1, WorkerState::Started, 1.0), anew(5.0)]);
        store_all(store, &[anew(6.0)]);
        let job = details(store, 1).job;
        assert_eq!((job.attempts, job.started, job.state), (1, Some(NOW + 6.0), WorkerState::Started));
        assert!(apply_one(store, WorkerOperation::StartedAnew { id: id(1), at: f64::NAN }).is_err());
        store_all(store, &[finish(1, WorkerState::Completed, b"{}")]);
        assert!(apply_one(store, anew(7.0)).is_err(), "it has ended");
        assert!(apply_one(store, WorkerOperation::StartedAnew { id: id(2), at: NOW }).is_err(), "there is no such job");
    });
}

#[test]
fn a_second_insert_is_refused_without_disturbing_its_batch() {
    on_each(|store| {
        let outcomes = store.apply(&[worker_insert(1), worker_insert(1), worker_insert(2)]).expect("a batch");
        assert_eq!(outcomes, [Ok(()), Err(OperationError::Duplicate { id: id(1) }), Ok(())]);
        assert_eq!(details(store, 2).job, worker_job(2));
    });
}

#[test]
fn a_final_state_never_changes() {
    for end in WorkerState::ALL.into_iter().filter(|state| state.is_final()) {
        on_each(|store| {
            store_all(store, &[worker_insert(1), state(1, end, 1.0)]);
            let before = details(store, 1);
            assert_eq!(before.job.finished, Some(NOW + 1.0));
            for late in WorkerState::ALL {
                let refused = OperationError::Final { id: id(1), state: end.as_str() };
                assert_eq!(apply_one(store, state(1, late, 9.0)), Err(refused.clone()));
                assert_eq!(apply_one(store, finish(1, late, b"late")), Err(refused));
            }
            assert_eq!(details(store, 1), before);
        });
    }
}

#[test]
fn only_a_final_state_takes_a_result() {
    on_each(|store| {
        store_all(store, &[worker_insert(1)]);
        for state in WorkerState::ALL.into_iter().filter(|state| !state.is_final()) {
            let refused = OperationError::Inconsistent { id: id(1), state: state.as_str() };
            assert_eq!(apply_one(store, finish(1, state, b"{}")), Err(refused));
        }
        assert_eq!(details(store, 1).payload, None);
        let refused = OperationError::Inconsistent { id: id(1), state: "STARTED" };
        assert_eq!(apply_one(store, state(1, WorkerState::Started, f64::NAN)), Err(refused));
        assert_eq!(details(store, 1).job, worker_job(1));
    });
}

#[test]
fn what_belongs_to_an_unknown_job_is_refused() {
    on_each(|store| {
        let operations =
            [state(9, WorkerState::Started, 1.0), finish(9, WorkerState::Failed, b"{}"), worker_event(9, "news")];
        for outcome in store.apply(&operations).expect("a batch") {
            assert_eq!(outcome, Err(OperationError::Unknown { id: id(9) }));
        }
    });
}

#[test]
fn payloads_of_every_size_come_back() {
    on_each(|store| {
        for (number, size) in [0, 1, 1024, 1025, 1 << 20, (1 << 20) + 1, 10 << 20].into_iter().enumerate() {
            let job = WorkerJob { body: large(size / 10).into(), ..worker_job(number) };
            let insert = WorkerOperation::Insert(job.clone());
            store_all(store, &[insert, finish(number, WorkerState::Completed, &large(size))]);
            let found = details(store, number);
            assert_eq!(found.job.body, job.body);
            assert!(found.payload.expect("a payload") == large(size));
        }
    });
}

#[test]
fn unfinished_jobs_come_in_pages_in_the_order_of_receipt() {
    on_each(|store| {
        store_all(store, &(0..10).rev().map(worker_insert).collect::<Vec<_>>());
        store_all(store, &[state(2, WorkerState::Cancelled, 1.0), state(3, WorkerState::Started, 1.0)]);
        let Page { jobs: first, end, .. } = store.unfinished(None, 4).expect("a query");
        assert_eq!(first.iter().map(|job| job.id.clone()).collect::<Vec<_>>(), [0, 1, 3, 4].map(id));
        assert_eq!(first[0], worker_job(0));
        let rest = store.unfinished(end, usize::MAX).expect("a query").jobs;
        assert_eq!(rest.iter().map(|job| job.id.clone()).collect::<Vec<_>>(), [5, 6, 7, 8, 9].map(id));
    });
}

#[test]
fn listings_filter_and_begin_with_the_newest() {
    on_each(|store| {
        let other =
            WorkerJob { client: identity("client-2"), task: TaskName::parse("cfg").expect("a name"), ..worker_job(3) };
        let operations = [
            worker_insert(0),
            worker_insert(1),
            worker_insert(2),
            WorkerOperation::Insert(other.clone()),
            state(1, WorkerState::Started, 1.0),
            finish(2, WorkerState::Failed, b"{}"),
        ];
        store_all(store, &operations);
        let mut list = |filter: WorkerJobFilter| -> Vec<_> {
            let jobs = store.list(&filter).expect("a query");
            assert!(jobs.iter().all(|job| job.body.is_empty()));
            jobs.into_iter().map(|job| job.id).collect()
        };
        let all = WorkerJobFilter::default();
        let newest_first = [3, 2, 1, 0].map(id);
        assert_eq!(list(all.clone()), newest_first);
        assert_eq!(list(WorkerJobFilter { pending: true, completed: true, ..all.clone() }), newest_first);
        assert_eq!(list(WorkerJobFilter { pending: true, ..all.clone() }), [3, 1, 0].map(id));
        assert_eq!(list(WorkerJobFilter { completed: true, ..all.clone() }), [id(2)]);
        assert_eq!(list(WorkerJobFilter { last: Some(1), ..all.clone() }), [id(3)]);
        assert_eq!(list(WorkerJobFilter { task: Some(other.task), ..all.clone() }), [id(3)]);
        assert_eq!(list(WorkerJobFilter { client: Some(other.client), ..all.clone() }), [id(3)]);
        assert_eq!(list(WorkerJobFilter { uuid: Some(id(1)), ..all }), [id(1)]);
    });
}

#[test]
fn statistics_follow_every_change() {
    on_each(|store| {
        assert_eq!(store.statistics().expect("a query").total_jobs(), 0);
        store_all(store, &(0..4).map(worker_insert).collect::<Vec<_>>());
        store_all(store, &[state(0, WorkerState::Started, 1.0), finish(1, WorkerState::Completed, b"{}")]);
        let expected = [(WorkerState::Pending, 2), (WorkerState::Started, 1), (WorkerState::Completed, 1)];
        assert_eq!(store.statistics().expect("a query").jobs_by_state, expected.into());
    });
}

#[test]
fn retention_never_takes_unfinished_jobs() {
    on_each(|store| {
        let mut operations: Vec<_> = (0..30).map(worker_insert).collect();
        operations.extend((0..30).step_by(3).map(|number| finish(number, WorkerState::Completed, b"{}")));
        operations.extend((1..30).step_by(3).map(|number| state(number, WorkerState::Started, 1.0)));
        store_all(store, &operations);
        let rule = Retention { jobs_max: 0, bytes_max: 0, age_max: std::time::Duration::ZERO };
        let pruned = store.prune(&rule, NOW + 1e9).expect("a step");
        assert_eq!((pruned.jobs, pruned.more), (10, false));
        assert_eq!(store.unfinished(None, 100).expect("a query").jobs.len(), 20);
        assert_eq!(store.statistics().expect("a query").total_jobs(), 20);
    });
}

#[test]
fn of_many_jobs_those_that_are_there_are_known_in_whatever_state() {
    on_each(|store| {
        store_all(
            store,
            &[worker_insert(1), worker_insert(2), finish(2, WorkerState::Completed, b"{}"), worker_insert(4)],
        );
        let asked: Vec<_> = (0..1000).map(id).collect();
        let known = store.known(&asked).expect("a query");
        assert_eq!(known, [id(1), id(2), id(4)].into());
        assert!(store.known(&[]).expect("a query").is_empty());
    });
}

#[test]
fn a_start_is_written_although_a_change_that_would_replace_it_is_refused() {
    on_each(|store| {
        store_all(store, &[worker_insert(1)]);
        let operations = [state(1, WorkerState::Started, 1.0), state(1, WorkerState::WaitingClientInput, f64::NAN)];
        assert!(matches!(store.apply(&operations).expect("a batch")[..], [Ok(()), Err(_)]));
        let job = details(store, 1).job;
        assert_eq!((job.attempts, job.state), (1, WorkerState::Started));
        let after_the_end = [
            state(1, WorkerState::Pending, 2.0),
            finish(1, WorkerState::Failed, b"{}"),
            state(1, WorkerState::Started, 3.0),
        ];
        assert!(matches!(store.apply(&after_the_end).expect("a batch")[..], [Ok(()), Ok(()), Err(_)]));
        assert_eq!(details(store, 1).job.state, WorkerState::Failed);
    });
}

#[test]
fn of_finished_jobs_the_one_that_was_stored_first_is_forgotten_first() {
    on_each(|store| {
        let ends = |number: usize, at: f64| WorkerOperation::Finish {
            id: id(number),
            state: WorkerState::Completed,
            at: NOW + at,
            payload: b"{}".to_vec().into(),
        };
        store_all(store, &[worker_insert(1), worker_insert(2), ends(2, 10.0), ends(1, 20.0)]);
        let rule = Retention { jobs_max: 1, ..Retention::default() };
        assert_eq!(store.prune(&rule, NOW + 30.0).expect("a step").jobs, 1);
        assert!(store.job(&id(1)).expect("a query").is_none(), "though it ended last");
        assert!(store.job(&id(2)).expect("a query").is_some());
    });
}
