//! What a client's database promises, whatever it is made of.

mod samples;

use std::time::Duration;

use bytes::Bytes;
use norfab_jobs::*;
use norfab_protocol::name::{ServiceName, TaskName};
use samples::*;

/// Runs a test on each kind of store.
fn on_each(test: impl Fn(&mut dyn ClientStore)) {
    test(&mut MemoryClientStore::new());
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("jobs.db");
    test(&mut SqliteClientStore::open(&path, STAMP).expect("a database"));
}

fn store_all(store: &mut dyn ClientStore, operations: &[ClientOperation]) {
    for (outcome, operation) in store.apply(operations).expect("a batch").into_iter().zip(operations) {
        assert_eq!(outcome, Ok(()), "{operation:?}");
    }
}

fn apply_one(store: &mut dyn ClientStore, operation: ClientOperation) -> Outcome {
    store.apply(&[operation]).expect("a batch").remove(0)
}

fn details(store: &mut dyn ClientStore, number: usize) -> ClientJobDetails {
    store.job(&id(number)).expect("a query").expect("a job")
}

#[test]
fn a_job_comes_back_as_it_was_stored() {
    on_each(|store| {
        let job = ClientJob {
            target: "all \u{3a9}".to_owned(),
            dispatched: vec![identity("wörker")],
            errors: vec!["a \"quoted\"\nerror".to_owned()],
            timeout: u64::from(u32::MAX) * 10,
            ..client_job(1)
        };
        store_all(store, &[ClientOperation::Insert(job.clone())]);
        assert_eq!(details(store, 1), ClientJobDetails { job, results: Vec::new(), events: Vec::new() });
        assert_eq!(store.job(&id(2)), Ok(None));
    });
}

#[test]
fn a_second_insert_is_refused_without_disturbing_its_batch() {
    on_each(|store| {
        let outcomes = store.apply(&[client_insert(1), client_insert(1), client_insert(2)]).expect("a batch");
        assert_eq!(outcomes, [Ok(()), Err(OperationError::Duplicate { id: id(1) }), Ok(())]);
        assert_eq!(details(store, 2).job, client_job(2));
    });
}

#[test]
fn progress_replaces_what_was_known() {
    on_each(|store| {
        store_all(store, &[client_insert(1), progress(1, ClientState::Started)]);
        let job = details(store, 1).job;
        assert_eq!(job.state, ClientState::Started);
        assert_eq!(job.dispatched, [identity("worker-1"), identity("worker-2")]);
        assert_eq!(job.started, [identity("worker-2")]);
        assert_eq!(job.errors, ["line \"one\""]);
        assert_eq!(job.finished, None);
        assert_eq!(job.body, client_job(1).body);
    });
}

#[test]
fn a_final_state_never_changes() {
    for end in ClientState::ALL.into_iter().filter(|state| state.is_final()) {
        on_each(|store| {
            store_all(store, &[client_insert(1), progress(1, end)]);
            let before = details(store, 1);
            for state in ClientState::ALL {
                let refused = OperationError::Final { id: id(1), state: end.as_str() };
                assert_eq!(apply_one(store, progress(1, state)), Err(refused));
            }
            let refused = OperationError::Final { id: id(1), state: end.as_str() };
            assert_eq!(apply_one(store, result(1, "worker-1", b"{}")), Err(refused));
            assert_eq!(details(store, 1), before);
            assert_eq!(apply_one(store, client_event(1, "late news")), Ok(()));
        });
    }
}

#[test]
fn of_several_progresses_in_a_batch_the_last_that_is_taken_counts() {
    on_each(|store| {
        let no_time = ClientOperation::Progress {
            id: id(1),
            state: ClientState::Failed,
            dispatched: Vec::new(),
            started: Vec::new(),
            completed: Vec::new(),
            errors: Vec::new(),
            finished: None,
        };
        let operations = [
            progress(1, ClientState::Submitting),
            client_insert(1),
            progress(1, ClientState::Submitting),
            client_insert(2),
            progress(2, ClientState::Dispatched),
            progress(1, ClientState::Dispatched),
            progress(1, ClientState::Started),
            no_time,
            progress(2, ClientState::Completed),
            progress(2, ClientState::Started),
        ];
        let outcomes = store.apply(&operations).expect("a batch");
        let mut expected = vec![Ok(()); 10];
        expected[0] = Err(OperationError::Unknown { id: id(1) });
        expected[7] = Err(OperationError::Inconsistent { id: id(1), state: "FAILED" });
        expected[9] = Err(OperationError::Final { id: id(2), state: "COMPLETED" });
        assert_eq!(outcomes, expected);
        assert_eq!(details(store, 1).job.state, ClientState::Started);
        assert_eq!(details(store, 2).job.state, ClientState::Completed);
        let expected = [(ClientState::Started, 1), (ClientState::Completed, 1)];
        assert_eq!(store.statistics().expect("a query").jobs_by_state, expected.into());
    });
}

#[test]
fn an_end_and_its_time_go_together() {
    on_each(|store| {
        let refused = |state: ClientState| Err(OperationError::Inconsistent { id: id(1), state: state.as_str() });
        let no_time = ClientJob { state: ClientState::Failed, ..client_job(1) };
        assert_eq!(apply_one(store, ClientOperation::Insert(no_time)), refused(ClientState::Failed));
        let no_end = ClientJob { finished: Some(NOW), ..client_job(1) };
        assert_eq!(apply_one(store, ClientOperation::Insert(no_end)), refused(ClientState::New));
        let no_number = ClientJob { submitted: f64::NAN, ..client_job(1) };
        assert_eq!(apply_one(store, ClientOperation::Insert(no_number)), refused(ClientState::New));
        assert_eq!(store.job(&id(1)), Ok(None));
    });
}

#[test]
fn what_belongs_to_an_unknown_job_is_refused() {
    on_each(|store| {
        let operations = [progress(9, ClientState::Started), result(9, "worker-1", b"{}"), client_event(9, "news")];
        for outcome in store.apply(&operations).expect("a batch") {
            assert_eq!(outcome, Err(OperationError::Unknown { id: id(9) }));
        }
    });
}

#[test]
fn the_first_result_of_a_worker_stays() {
    on_each(|store| {
        store_all(store, &[client_insert(1), result(1, "worker-2", b"two"), result(1, "worker-1", b"one")]);
        let refused = OperationError::DuplicateResult { id: id(1), worker: identity("worker-2") };
        assert_eq!(apply_one(store, result(1, "worker-2", &large(3 << 20))), Err(refused));
        let expected =
            [(identity("worker-1"), Bytes::from_static(b"one")), (identity("worker-2"), Bytes::from_static(b"two"))];
        assert_eq!(details(store, 1).results, expected);
    });
}

#[test]
fn payloads_of_every_size_come_back() {
    on_each(|store| {
        let sizes = [0, 1, 1024, 1025, (1 << 20) - 1, 1 << 20, (1 << 20) + 1, 5 << 20];
        for (number, size) in sizes.into_iter().enumerate() {
            let job = ClientJob { body: large(size).into(), ..client_job(number) };
            let operations = [
                ClientOperation::Insert(job.clone()),
                result(number, "worker-1", &large(size)),
                result(number, "worker-2", b"small"),
                client_event(number, "news"),
            ];
            store_all(store, &operations);
            let found = details(store, number);
            assert_eq!(found.job, job);
            assert!(found.results[0].1 == large(size));
            assert_eq!(found.results[1].1, "small");
        }
        let bodies: Vec<usize> =
            store.unfinished(None, 100).expect("a query").jobs.iter().map(|job| job.body.len()).collect();
        assert_eq!(bodies, sizes);
    });
}

#[test]
fn events_keep_their_order_and_have_a_bound() {
    on_each(|store| {
        store_all(store, &[client_insert(1), client_insert(2)]);
        let events: Vec<_> = (0..EVENTS_PER_JOB_MAX).map(|number| client_event(1, &number.to_string())).collect();
        store_all(store, &events);
        assert_eq!(apply_one(store, client_event(1, "one too many")), Err(OperationError::TooManyEvents { id: id(1) }));
        assert_eq!(apply_one(store, client_event(2, "of another job")), Ok(()));
        let found = details(store, 1).events;
        assert_eq!(found.len(), EVENTS_PER_JOB_MAX);
        assert!(found.iter().enumerate().all(|(number, event)| *event == number.to_string()));
    });
}

#[test]
fn unfinished_jobs_come_in_pages_in_the_order_of_submission() {
    on_each(|store| {
        let mut operations: Vec<_> = (0..20).rev().map(client_insert).collect();
        // Two that were submitted at the same moment are told apart by their ids.
        operations.push(ClientOperation::Insert(ClientJob { submitted: NOW + 5.0, ..client_job(100) }));
        operations.extend([progress(3, ClientState::Completed), progress(4, ClientState::WaitingClientInput)]);
        store_all(store, &operations);
        let mut after = None;
        let mut found = Vec::new();
        loop {
            let Page { jobs, end, .. } = store.unfinished(after, 3).expect("a query");
            if end.is_none() {
                break;
            }
            assert!((1..=3).contains(&jobs.len()));
            after = end;
            found.extend(jobs.into_iter().map(|job| job.id));
        }
        let expected: Vec<_> = [0, 1, 2, 4, 5, 100].into_iter().chain(6..20).map(id).collect();
        assert_eq!(found, expected);
    });
}

#[test]
fn jobs_past_their_deadline_are_found_unless_they_have_ended() {
    on_each(|store| {
        store_all(store, &[client_insert(1), client_insert(2), client_insert(3), progress(1, ClientState::Failed)]);
        let late = |store: &mut dyn ClientStore, before: f64, limit: usize| {
            let page = store.late(NOW + before, limit).expect("a query");
            page.jobs.into_iter().map(|job| job.id).collect::<Vec<_>>()
        };
        assert!(late(store, 602.0, 10).is_empty());
        assert_eq!(late(store, 602.5, 10), [id(2)]);
        assert_eq!(late(store, 700.0, 10), [id(2), id(3)]);
        assert_eq!(late(store, 700.0, 1), [id(2)]);
    });
}

#[test]
fn pages_end_when_their_requests_are_many_bytes() {
    on_each(|store| {
        let body = bytes::Bytes::from(vec![b' '; PAGE_BYTES_MAX / 4]);
        let large = |number| ClientOperation::Insert(ClientJob { body: body.clone(), ..client_job(number) });
        store_all(store, &(0..6).map(large).collect::<Vec<_>>());
        let first = store.unfinished(None, 100).expect("a query");
        assert_eq!(first.jobs.len(), 4);
        let rest = store.unfinished(first.end, 100).expect("a query");
        assert_eq!(rest.jobs.iter().map(|job| job.id.clone()).collect::<Vec<_>>(), [id(4), id(5)]);
        assert_eq!(store.late(NOW + 1e6, 100).expect("a query").jobs.len(), 4);
        let huge = bytes::Bytes::from(vec![b' '; PAGE_BYTES_MAX + 1]);
        store_all(store, &[ClientOperation::Insert(ClientJob { body: huge, ..client_job(9) })]);
        let alone = store.unfinished(rest.end, 100).expect("a query");
        assert_eq!(alone.jobs.len(), 1, "one that is larger is a page");
    });
}

#[test]
fn a_job_that_is_stored_later_has_a_higher_number() {
    on_each(|store| {
        assert_eq!(store.last_number(), Ok(None));
        store_all(store, &[client_insert(2), client_insert(1)]);
        let last = store.last_number().expect("a query");
        assert_eq!(store.number(&id(1)), Ok(last));
        assert_eq!(store.number(&id(3)), Ok(None));
        store_all(store, &[client_insert(0)]);
        assert!(store.number(&id(0)).expect("a query") > last);
    });
}

#[test]
fn listings_filter_and_begin_with_the_newest() {
    on_each(|store| {
        let mut operations: Vec<_> = (0..10).map(client_insert).collect();
        let other = ClientJob {
            service: ServiceName::parse("workflow").expect("a name"),
            task: TaskName::parse("run").expect("a name"),
            ..client_job(10)
        };
        operations.push(ClientOperation::Insert(other.clone()));
        operations.push(progress(4, ClientState::Failed));
        store_all(store, &operations);
        let mut list = |filter: ClientJobFilter| -> Vec<_> {
            let jobs = store.list(&filter).expect("a query");
            assert!(jobs.iter().all(|job| job.body.is_empty()));
            jobs.into_iter().map(|job| job.id).collect()
        };
        let all = ClientJobFilter::default();
        assert_eq!(list(all.clone()), (0..=10).rev().map(id).collect::<Vec<_>>());
        assert_eq!(list(ClientJobFilter { last: Some(2), ..all.clone() }), [id(10), id(9)]);
        assert_eq!(list(ClientJobFilter { state: Some(ClientState::Failed), ..all.clone() }), [id(4)]);
        assert_eq!(list(ClientJobFilter { service: Some(other.service), ..all.clone() }), [id(10)]);
        assert_eq!(list(ClientJobFilter { task: Some(other.task), ..all.clone() }), [id(10)]);
        assert_eq!(list(ClientJobFilter { since: Some(NOW + 9.0), ..all }), [id(10), id(9)]);
    });
}

#[test]
fn statistics_follow_every_change() {
    on_each(|store| {
        let mut expected = std::collections::BTreeMap::new();
        assert_eq!(store.statistics().expect("a query").jobs_by_state, expected);
        store_all(store, &(0..5).map(client_insert).collect::<Vec<_>>());
        store_all(store, &[progress(0, ClientState::Started), progress(1, ClientState::Completed)]);
        assert!(apply_one(store, client_insert(0)).is_err());
        assert!(apply_one(store, progress(1, ClientState::Failed)).is_err());
        expected.extend([(ClientState::New, 3), (ClientState::Started, 1), (ClientState::Completed, 1)]);
        let statistics = store.statistics().expect("a query");
        assert_eq!(statistics.jobs_by_state, expected);
        assert_eq!(statistics.total_jobs(), 5);
        assert!(statistics.bytes > 0);
        store.prune(&Retention { jobs_max: 0, ..Retention::default() }, NOW).expect("a step");
        expected.remove(&ClientState::Completed);
        assert_eq!(store.statistics().expect("a query").jobs_by_state, expected);
    });
}

#[test]
fn retention_by_age_number_and_bytes_never_takes_unfinished_jobs() {
    let keep_all = Retention { age_max: Duration::MAX, jobs_max: u64::MAX, bytes_max: u64::MAX };
    let rules = [
        Retention { age_max: Duration::ZERO, ..keep_all },
        Retention { jobs_max: 0, ..keep_all },
        Retention { bytes_max: 0, ..keep_all },
    ];
    for rule in rules {
        on_each(|store| {
            let mut operations: Vec<_> = (0..600).map(client_insert).collect();
            // One in three ends.
            operations.extend((0..600).step_by(3).map(|number| result(number, "worker-1", b"{}")));
            operations.extend((0..600).step_by(3).map(|number| client_event(number, "news")));
            operations.extend((0..600).step_by(3).map(|number| progress(number, ClientState::Stale)));
            store_all(store, &operations);
            assert_eq!(store.prune(&keep_all, NOW + 1e6), Ok(Pruned::default()));
            let mut pruned = 0;
            loop {
                let step = store.prune(&rule, NOW + 1e6).expect("a step");
                pruned += step.jobs;
                if !step.more {
                    break;
                }
            }
            assert_eq!(pruned, 200, "{rule:?}");
            assert_eq!(store.unfinished(None, 1000).expect("a query").jobs.len(), 400);
            assert_eq!(store.list(&ClientJobFilter::default()).expect("a query").len(), 400);
            // The id is free again, and nothing of the old job is left.
            store_all(store, &[client_insert(0)]);
            assert_eq!(details(store, 0).results, []);
            assert!(details(store, 0).events.is_empty());
        });
    }
}

#[test]
fn retention_keeps_what_is_within_its_bounds() {
    on_each(|store| {
        let mut operations: Vec<_> = (0..20).map(client_insert).collect();
        operations.extend((0..20).map(|number| result(number, "worker-1", &large(200_000))));
        operations.extend((0..20).map(|number| progress(number, ClientState::Completed)));
        store_all(store, &operations);
        let left = |store: &mut dyn ClientStore| store.list(&ClientJobFilter::default()).expect("a query").len();
        // Job n ended at NOW + n + 1.
        let by_age = Retention { age_max: Duration::from_secs(100), ..Retention::default() };
        store.prune(&by_age, NOW + 103.5).expect("a step");
        assert_eq!(left(store), 17);
        store.prune(&Retention { jobs_max: 15, ..Retention::default() }, NOW + 20.0).expect("a step");
        assert_eq!(left(store), 15);
        store.prune(&Retention { bytes_max: 2_000_000, ..Retention::default() }, NOW + 20.0).expect("a step");
        assert!((7..=10).contains(&left(store)), "{} left", left(store));
        assert!(details(store, 19).results[0].1 == large(200_000));
    });
}
