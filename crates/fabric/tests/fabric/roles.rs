//! Broker, worker and client together, over real sockets with CURVE and real databases.

use std::time::Duration;

use crate::support::{Fabric, kwargs, runtime, spec};
use norfab_jobs::ClientJobFilter;
use norfab_protocol::client::{JobState, JobUpdate};
use norfab_protocol::target::Target;
use serde_json::{Value, json};

#[test]
fn a_job_runs_on_all_workers_of_a_service_and_every_result_comes_back() {
    runtime().block_on(async {
        let mut fabric = Fabric::start();
        fabric.worker("w1").await;
        fabric.worker("w2").await;
        let client = fabric.client("c").await;
        let mut job = spec("ok");
        job.target = Target::All;
        job.kwargs = kwargs(json!({"a": 5}));
        let report = client.run(job).await.expect("taken");
        assert_eq!(report.state, JobState::Completed, "{report:?}");
        let results = report.results();
        assert_eq!(results.keys().map(|worker| worker.as_str()).collect::<Vec<_>>(), ["w1", "w2"]);
        for result in results.values() {
            assert_eq!(result.value(), Some(json!({"a": 5})));
            assert!(!result.failed);
        }
        fabric.stop().await;
    });
}

#[test]
fn events_come_in_order_and_a_question_is_answered() {
    runtime().block_on(async {
        let mut fabric = Fabric::start();
        fabric.worker("w1").await;
        let client = fabric.client("c").await;
        let mut job = client.submit(spec("ask")).await.expect("taken");
        let mut messages = Vec::new();
        while let Some(update) = job.next().await {
            match update {
                JobUpdate::Event(event, _) => messages.push(event.message.clone()),
                JobUpdate::Question(worker, question) => {
                    let response = norfab_protocol::body::InputResponse {
                        input_id: question.id,
                        value: Some(json!("yes")),
                        cancel: false,
                        metadata: Value::Null,
                    };
                    job.answer(Some(worker), response).await.expect("room");
                }
                _ => {}
            }
        }
        let report = job.report();
        assert_eq!(report.state, JobState::Completed, "{report:?}");
        let results = report.results();
        assert_eq!(results.values().next().and_then(|result| result.value()), Some(json!("yes")));
        assert_eq!(messages[..2], ["starting", "proceed?"]);
        fabric.stop().await;
    });
}

#[test]
fn a_large_result_arrives_whole() {
    runtime().block_on(async {
        let mut fabric = Fabric::start();
        fabric.worker("w1").await;
        let client = fabric.client("c").await;
        let mut job = spec("big");
        job.kwargs = kwargs(json!({"bytes": 10_000_000}));
        let report = client.run(job).await.expect("taken");
        let results = report.results();
        let text = results.values().next().and_then(|result| result.value()).expect("a result");
        assert_eq!(text.as_str().map(str::len), Some(10_000_000));
        fabric.stop().await;
    });
}

#[test]
fn a_restarted_broker_has_its_workers_back_at_once() {
    runtime().block_on(async {
        let mut fabric = Fabric::start();
        fabric.worker("w1").await;
        let client = fabric.client("c").await;
        assert!(client.run(spec("ok")).await.expect("taken").succeeded());
        fabric.restart_broker().await;
        crate::support::eventually("the worker is back", async || {
            let mut job = spec("ok");
            job.timeout = Duration::from_secs(5);
            client.run(job).await.expect("taken").succeeded()
        })
        .await;
        fabric.stop().await;
    });
}

#[test]
fn a_job_for_nobody_fails_with_the_brokers_reason() {
    runtime().block_on(async {
        let fabric = Fabric::start();
        let client = fabric.client("c").await;
        let report = client.run(spec("ok")).await.expect("taken");
        assert_eq!(report.state, JobState::Failed);
        assert!(report.errors[0].contains("failed to target workers"), "{:?}", report.errors);
        fabric.stop().await;
    });
}

#[test]
fn a_job_for_the_brokers_own_services_is_refused_with_the_reason() {
    runtime().block_on(async {
        let fabric = Fabric::start();
        let client = fabric.client("c").await;
        for service in ["mmi.service.broker", "sid.service.broker"] {
            let mut job = spec("get_stats");
            job.service = norfab_protocol::ServiceName::parse(service).expect("a name");
            let refused = client.run(job).await.expect_err("what it says of itself is no result");
            assert!(refused.to_string().contains("is the broker itself, which takes no jobs"), "{refused}");
        }
        assert_eq!(client.jobs(ClientJobFilter::default()).await.expect("room").expect("they can be read"), []);
        fabric.stop().await;
    });
}

#[test]
fn the_broker_answers_about_itself() {
    runtime().block_on(async {
        let mut fabric = Fabric::start();
        fabric.worker("w1").await;
        let client = fabric.client("c").await;
        for (task, key) in [("get_stats", "worker_count"), ("get_status", "endpoint"), ("show_broker", "workers count")]
        {
            let answer =
                client.management(crate::support::management(), task, kwargs(json!({})), Duration::from_secs(5)).await;
            let answer = answer.expect("room");
            assert!(answer.results.get(key).is_some(), "{task}: {answer:?}");
        }
        let inventory = norfab_protocol::ServiceName::parse("sid.service.broker").expect("a name");
        let answer = client
            .management(inventory.clone(), "get_inventory", kwargs(json!({"name": "w1"})), Duration::from_secs(5))
            .await
            .expect("room");
        assert_eq!(answer.results, json!({"service": "s"}));
        let answer = client.management(inventory, "get_inventory", kwargs(json!({})), Duration::from_secs(5)).await;
        assert!(answer.expect("room").status.is_error());
        fabric.stop().await;
    });
}

#[test]
fn the_built_in_tasks_tell_about_the_worker_and_its_jobs() {
    runtime().block_on(async {
        let mut fabric = Fabric::start();
        fabric.worker("w1").await;
        let client = fabric.client("c").await;
        let first = client.run(spec("ok")).await.expect("taken");
        for (task, arguments) in [
            ("job_list", json!({})),
            ("job_details", json!({"uuid": first.id})),
            ("get_stats", json!({})),
            ("get_worker_status", json!({})),
            ("get_watchdog_stats", json!({})),
            ("list_tasks", json!({"brief": true})),
            ("echo", json!({"x": 1})),
            ("get_version", json!({})),
        ] {
            let mut job = spec(task);
            job.kwargs = kwargs(arguments);
            let report = client.run(job).await.expect("taken");
            assert!(report.succeeded(), "{task}: {:?}", report.results());
        }
        fabric.stop().await;
    });
}

#[test]
fn a_worker_that_stops_lets_running_tasks_end_and_the_next_one_runs_what_was_queued() {
    runtime().block_on(async {
        let mut fabric = Fabric::start();
        fabric.worker_with("w1", 1).await;
        let client = fabric.client("c").await;
        let mut running = client.submit(spec("slow")).await.expect("taken");
        crate::support::slow_begins(&mut running, 1).await;
        let queued = client.submit(spec("ok")).await.expect("taken");
        crate::support::eventually("both are stored", async || fabric.stored_jobs("w1").await == 2).await;
        fabric.stop_worker("w1").await;
        fabric.worker_with("w1", 1).await;
        let report = queued.wait().await;
        assert_eq!(report.state, JobState::Completed, "{report:?}");
        let results = running.wait().await.results();
        assert_eq!(results.values().next().and_then(|result| result.value()), Some(json!("ended early")));
        fabric.stop().await;
    });
}

#[test]
fn a_thousand_jobs_at_once_all_complete() {
    runtime().block_on(async {
        let mut fabric = Fabric::start();
        fabric.worker("w1").await;
        let client = fabric.client("c").await;
        let mut jobs = Vec::new();
        for _ in 0..1000 {
            jobs.push(client.submit(spec("ok")).await.expect("taken"));
        }
        for job in jobs {
            let report = job.wait().await;
            assert!(report.succeeded(), "{report:?}");
        }
        fabric.stop().await;
    });
}
