//! Processes that are killed.

use rustix::process::Signal;

use crate::support::{FABRIC, Lab, eventually, held_by};

#[test]
fn a_worker_that_was_killed_tells_of_its_job_and_goes_on_with_those_that_waited() {
    let lab = Lab::new(&format!("{FABRIC}      max_concurrent_jobs: 1\n"));
    let _broker = lab.start(&["broker"]);
    let worker = lab.spawn(&["worker", "filesharing-worker-1"]);
    lab.registered(&["filesharing-worker-1"]);
    let marker = lab.path("held");
    let submit = |arguments: &[&str]| {
        let document = lab.json(&[&["run", "filesharing"], arguments, &["--nowait", "--json"]].concat());
        document["uuid"].as_str().expect("an id").to_owned()
    };
    let running = submit(&["run_shell_cmd", &held_by(&marker)]);
    eventually("the first job runs", || marker.exists());
    let waiting = submit(&["echo", "second=yes"]);
    eventually("the worker has the second job", || {
        let job = lab.run(&["jobs", &waiting, "--wait", "100ms", "--json"]).json();
        job["status"] == "STARTED"
    });
    drop(worker);
    // The shell that it started lives on until its file goes.
    std::fs::remove_file(&marker).expect("it is there");
    let worker = lab.spawn(&["worker", "filesharing-worker-1"]);
    worker.ready("worker filesharing-worker-1");

    let lost = lab.run(&["jobs", &running, "--wait", "1m", "--json"]);
    assert_eq!(lost.code, Some(1), "{lost:?}");
    let lost = lost.json();
    assert_eq!(lost["results"]["filesharing-worker-1"]["failed"], true, "{lost}");
    assert_eq!(
        lost["results"]["filesharing-worker-1"]["errors"][0],
        "worker restarted while the job ran, or before its end was stored",
        "{lost}"
    );
    let kept = lab.json(&["jobs", &waiting, "--wait", "1m", "--json"]);
    assert_eq!(kept["results"]["filesharing-worker-1"]["result"]["kwargs"]["second"], "yes", "{kept}");
    assert_eq!(worker.stop(Signal::TERM).code, Some(0));
}

#[test]
fn after_a_broker_was_killed_workers_serve_again_and_jobs_end() {
    let lab = Lab::new(FABRIC);
    let broker = lab.start(&["broker"]);
    let worker = lab.spawn(&["worker", "filesharing-worker-1"]);
    lab.registered(&["filesharing-worker-1"]);
    let marker = lab.path("held");
    let run = lab.spawn(&["run", "filesharing", "run_shell_cmd", &held_by(&marker), "--json"]);
    eventually("the job runs", || marker.exists());
    drop(broker);
    run.told_on_stderr("the connection to the broker was lost; trying again");
    worker.told_on_stderr("the connection to the broker was lost; trying again");
    assert!(!worker.stderr().contains("connected again"), "{}", worker.stderr());
    let _broker = lab.start(&["broker", "--endpoint", &lab.endpoint()]);
    lab.registered(&["filesharing-worker-1"]);
    worker.told_on_stderr("worker filesharing-worker-1 is connected again");
    run.told_on_stderr("is connected again");
    std::fs::remove_file(&marker).expect("it is there");
    let ended = run.end();
    assert_eq!(ended.code, Some(0), "{ended:?}");
    assert_eq!(ended.json()["results"]["filesharing-worker-1"]["result"]["stdout"], "released\n");
    assert_eq!(lab.run(&["run", "filesharing", "echo"]).code, Some(0));
    assert_eq!(worker.stop(Signal::TERM).code, Some(0));
}
