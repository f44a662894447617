//! Large results keep nobody else waiting.

use norfab_fabric::client::{ClientHandle, JobSpec};
use norfab_protocol::target::Target;
use serde_json::json;

use crate::detour::{Detour, Held};
use crate::support::{Fabric, eventually, kwargs, runtime, spec};

/// Bytes of the result: more than the buffers of a connection take.
const LARGE: usize = 50_000_000;

/// What of it passes before it is held up.
const PASSES: usize = 1_000_000;

/// Jobs that go on meanwhile.
const JOBS: usize = 20;

fn at(worker: &str, task: &str) -> JobSpec {
    let mut job = spec(task);
    job.target = Target::parse(worker);
    if task == "big" {
        job.kwargs = kwargs(json!({"bytes": LARGE}));
    }
    job
}

/// Jobs of a client with events and results come to their end, and beats of the worker arrive.
async fn goes_on(fabric: &Fabric, clients: &[&ClientHandle], worker: &str) {
    let beats = fabric.beats(worker).await;
    for client in clients {
        for _ in 0..JOBS {
            let report = client.run(at(worker, "ok")).await.expect("taken");
            assert!(report.succeeded(), "{report:?}");
        }
    }
    eventually("the worker's beats arrive", async || fabric.beats(worker).await > beats).await;
}

#[test]
fn a_large_result_that_is_stuck_on_its_way_to_the_broker_holds_up_no_other_worker() {
    runtime().block_on(async {
        let mut fabric = Fabric::start();
        let detour = Detour::new(&fabric.endpoint, Held::ToBroker, PASSES);
        fabric.detour("w1", detour.endpoint());
        fabric.worker("w1").await;
        fabric.worker("w2").await;
        let (caller, other) = (fabric.client("caller").await, fabric.client("other").await);
        let job = caller.submit(at("w1", "big")).await.expect("taken");
        detour.wait_until_it_holds().await;
        goes_on(&fabric, &[&caller, &other], "w2").await;
        // Everything above happened before this.
        detour.open();
        let report = job.wait().await;
        assert!(report.succeeded() && report.views().into_values().all(|view| view.result.get().len() == LARGE + 2));
        fabric.stop().await;
    });
}

#[test]
fn a_large_result_that_its_caller_does_not_take_holds_up_neither_its_worker_nor_other_callers() {
    runtime().block_on(async {
        let mut fabric = Fabric::start();
        let detour = Detour::new(&fabric.endpoint, Held::FromBroker, PASSES);
        fabric.detour("caller", detour.endpoint());
        fabric.worker("w1").await;
        fabric.worker("w2").await;
        let (caller, other) = (fabric.client("caller").await, fabric.client("other").await);
        let job = caller.submit(at("w1", "big")).await.expect("taken");
        detour.wait_until_it_holds().await;
        goes_on(&fabric, &[&other], "w1").await;
        goes_on(&fabric, &[&other], "w2").await;
        detour.open();
        let report = job.wait().await;
        assert!(report.succeeded() && report.views().into_values().all(|view| view.result.get().len() == LARGE + 2));
        fabric.stop().await;
    });
}
