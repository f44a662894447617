//! Stock Python services that people run today, on a fabric whose broker is given.

use std::io::{Read, Write};
use std::net::TcpStream;

use norfab_peer_tests::{Devices, Environment, Job, Release, ReservedPort, Security, Side, Site, WAIT_LONG};
use serde_json::{Value, json};

#[test]
fn nornir_main_job_behind_the_python_broker() {
    nornir_main_job(Side::Python(Release::V0_25_0));
}

#[test]
fn nornir_main_job_behind_our_broker() {
    nornir_main_job(Side::Ours);
}

#[test]
fn stock_fastapi_worker_answers_with_results_behind_our_broker() {
    fastapi_job_run(Side::Ours);
}

#[test]
fn stock_fastapi_worker_answers_with_results_behind_the_python_broker() {
    fastapi_job_run(Side::Python(Release::V0_25_0));
}

/// The main job of NorFab: commands on network devices, through a stock `nornir` worker.
fn nornir_main_job(broker: Side) {
    let devices = Devices::start(&[("spine-1", "cisco_nxos"), ("edge-1", "cisco_xr")]);
    let site = Site::new(Security::Curve).with_worker("nornir-1", devices.nornir_inventory());
    let _broker = site.start_broker(broker);
    let _worker = site.start_python_worker(Environment::Services, "nornir-1");
    let mut client = site.start_client(Side::Python(Release::V0_25_0), "client-1");
    client.wait_for_workers(&["nornir-1"]);

    let results = client.run(Job::new("nornir", "cli").with("commands", json!(["show version"])));

    let answer = &results["nornir-1"];
    assert_eq!(answer["failed"], false, "{results}");
    let said = |host: &str| answer["result"][host]["show version"].as_str().expect("text").to_owned();
    assert!(said("spine-1").contains("Nexus"), "{}", said("spine-1"));
    assert!(said("edge-1").contains("Cisco IOS XR Software"), "{}", said("edge-1"));
}

/// The stock HTTP gateway runs a job and answers with the dictionary of results.
fn fastapi_job_run(broker: Side) {
    let http = ReservedPort::new();
    let listen = json!({"host": "127.0.0.1", "port": http.number()});
    let site = Site::new(Security::Curve)
        .with_service("dummy-1", "dummy")
        .with_worker("fastapi-1", json!({"service": "fastapi", "uvicorn": listen}));
    let _broker = site.start_broker(broker);
    let _dummy = site.start_worker(Side::Python(Release::V0_25_0), "dummy-1");
    let _gateway = site.start_python_worker(Environment::Services, "fastapi-1");
    let mut client = site.start_client(Side::Python(Release::V0_25_0), "client-1");
    client.wait_for_workers(&["dummy-1", "fastapi-1"]);
    let token = json!({"username": "tester", "token": "s3cret"});
    let mut store = Job::new("fastapi", "bearer_token_store");
    for (name, value) in token.as_object().expect("an object") {
        store = store.with(name, value.clone());
    }
    assert_eq!(client.run(store)["fastapi-1"]["result"], true);

    let (status, body) = post(http.number(), "s3cret", &json!({"service": "dummy", "task": "ok", "kwargs": {"a": 5}}));

    assert_eq!(status, 200, "{body}");
    assert_eq!(body["dummy-1"]["result"], json!({"a": 5, "b": "bee"}));
    assert_eq!(body["dummy-1"]["failed"], false);
}

/// `POST /api/job/run`: the status and the body.
fn post(port: u16, token: &str, job: &Value) -> (u16, Value) {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).expect("the gateway listens");
    stream.set_read_timeout(Some(WAIT_LONG)).expect("a time-out above zero");
    let body = job.to_string();
    let request = format!(
        "POST /api/job/run HTTP/1.1\r\nHost: gateway\r\nConnection: close\r\nAuthorization: Bearer {token}\r\n\
         Content-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    );
    stream.write_all(request.as_bytes()).expect("the gateway reads");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("the gateway answers");
    let (head, body) = answer.split_once("\r\n\r\n").expect("a head and a body");
    let status = head.split(' ').nth(1).and_then(|code| code.parse().ok()).expect("a status line");
    (status, serde_json::from_str(body).unwrap_or_else(|_| body.into()))
}
