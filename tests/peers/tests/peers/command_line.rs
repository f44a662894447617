//! Our command line on fabrics with Python parts.

use std::process::Output;

use norfab_peer_tests::{Devices, Environment, Job, Release, Security, Side, Site};
use serde_json::{Value, json};

use crate::shapes::{Fabric, Roles};

#[test]
fn nornir_main_job_prints_what_the_devices_said() {
    let devices = Devices::start(&[("spine-1", "cisco_nxos"), ("edge-1", "cisco_xr")]);
    let site = Site::new(Security::Curve).with_worker("nornir-1", devices.nornir_inventory());
    let _broker = site.start_broker(Side::Ours);
    let _worker = site.start_python_worker(Environment::Services, "nornir-1");
    site.start_client(Side::Ours, "watcher").wait_for_workers(&["nornir-1"]);

    let output = site.run_norfab(["run", "nornir", "cli", r#"commands:=["show version"]"#]);

    let printed = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{output:?}");
    for said in ["spine-1", "Nexus", "edge-1", "Cisco IOS XR Software"] {
        assert!(printed.contains(said), "{said} is not in:\n{printed}");
    }
}

#[test]
fn run_prints_results_of_python_workers_and_tells_failure_by_its_exit_code() {
    for release in Release::ALL {
        let roles = Roles { worker: Side::Python(release), ..Roles::all(Side::Ours) };
        let fabric = Fabric::start(roles, Security::Curve);
        let run = |words: &[&str]| fabric.site.run_norfab(["run", "dummy", "--json"].iter().chain(words).copied());

        let output = run(&["ok", "a:=7", "b=text"]);
        assert_eq!(output.status.code(), Some(0), "{output:?}");
        for name in crate::shapes::WORKERS {
            assert_eq!(json_of(&output)["results"][name]["result"], json!({"a": 7, "b": "text"}), "{output:?}");
        }
        let output = run(&["ask", "--workers", "dummy-1", "--answer", "\"yes\""]);
        assert_eq!(json_of(&output)["results"]["dummy-1"]["result"], "yes", "{output:?}");
        let output = run(&["fails", "--workers", "any"]);
        assert_eq!(output.status.code(), Some(1), "{output:?}");
        let output = run(&["ok", "a:=7", "--workers", "nobody"]);
        assert_eq!(output.status.code(), Some(1), "{output:?}");
    }
}

#[test]
fn a_fabric_runs_on_ipv6_and_under_a_name_that_resolves_to_both_families() {
    for host in ["[::1]", "localhost"] {
        let site = Site::new(Security::Curve).at_host(host);
        let share = site.folder().join("share");
        std::fs::create_dir(&share).expect("a new folder");
        std::fs::write(share.join("router.cfg"), "hostname router").expect("a file");
        let site = site.with_worker("files-1", json!({"service": "filesharing", "base_dir": share}));
        let _broker = site.start_broker(Side::Ours);
        let _worker = site.start_worker(Side::Ours, "files-1");
        site.start_client(Side::Ours, "watcher").wait_for_workers(&["files-1"]);
        let output = site.run_norfab(["files", "get", "nf://router.cfg", "-"]);
        assert!(output.status.success(), "{host}: {output:?}");
        assert_eq!(String::from_utf8_lossy(&output.stdout), "hostname router", "{host}");
    }
}

#[test]
fn commands_work_with_a_python_broker() {
    for release in Release::ALL {
        let fabric = Fabric::start(Roles::all(Side::Python(release)), Security::Curve);
        let output = fabric.site.run_norfab(["workers", "--json"]);
        assert!(output.status.success(), "{output:?}");
        let listed = json_of(&output).to_string();
        for name in crate::shapes::WORKERS {
            assert!(listed.contains(name), "{name} is not in {listed}");
        }
        let output = fabric.site.run_norfab(["tasks", "dummy", "--json"]);
        assert!(json_of(&output).to_string().contains("stream_bytes"), "{output:?}");
        let output = fabric.site.run_norfab(["broker-key", "--json"]);
        assert_eq!(json_of(&output)["public_key"].as_str(), fabric.site.broker_key().as_deref(), "{output:?}");
    }
}

#[test]
fn a_job_on_python_workers_is_cancelled_here_and_says_that_they_go_on() {
    for (broker, why) in [
        (Side::Ours, "workers of Python NorFab do not know cancellations"),
        (Side::Python(Release::ALL[1]), "which hands no cancellations on"),
    ] {
        let roles = Roles { broker, worker: Side::Python(Release::ALL[1]), ..Roles::all(Side::Ours) };
        let fabric = Fabric::start(roles, Security::Curve);
        let submitted = ["run", "dummy", "slow", "seconds:=60", "--workers", "dummy-1", "--nowait"];
        let submitted = fabric.site.run_norfab(submitted);
        let id = String::from_utf8_lossy(&submitted.stdout).trim().to_owned();
        let output = fabric.site.run_norfab(["cancel", &id, "--reason", "typo", "--json"]);
        assert_eq!(output.status.code(), Some(4), "{output:?}");
        let said = json_of(&output);
        assert!(said["errors"][0].as_str().is_some_and(|text| text.ends_with(": typo")), "{said}");
        assert!(said["workers"]["dummy-1"].as_str().is_some_and(|text| text.contains(why)), "{said}");
    }
}

fn json_of(output: &Output) -> Value {
    serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {output:?}"))
}

#[test]
fn jobs_of_python_clients_and_workers_are_taken_over() {
    for release in Release::ALL {
        let mut fabric = Fabric::start(Roles::all(Side::Python(release)), Security::Plain);
        let id = fabric.client.submit(Job::new("dummy", "ok").with("a", 7).at("all"));
        fabric.client.wait(&id);
        fabric.client.peer().stop();
        let output = fabric.site.run_norfab(["jobs", "import", "--json"]);
        assert!(output.status.success(), "{output:?}");
        let imported = json_of(&output);
        let of = |role: &str| -> u64 {
            let rows = imported.as_array().expect("rows").iter().filter(|row| row["role"] == role);
            rows.map(|row| row["imported"].as_u64().expect("a number")).sum()
        };
        assert!(of("client") >= 1, "{imported}");
        assert_eq!(of("worker"), crate::shapes::WORKERS.len() as u64, "{imported}");
        let job = json_of(&fabric.site.run_norfab(["jobs", &id, "--json", "--offline"]));
        assert_eq!((&job["status"], &job["kwargs"]), (&json!("COMPLETED"), &json!({"a": 7})), "{job}");
        for name in crate::shapes::WORKERS {
            assert_eq!(job["results"][name]["result"]["a"], 7, "{job}");
        }
        let again = json_of(&fabric.site.run_norfab(["jobs", "import", "--json"]));
        assert!(again.as_array().expect("rows").iter().all(|row| row["imported"] == 0), "{again}");
    }
}

#[test]
fn python_workers_answer_a_probe_and_a_frozen_one_does_not() {
    for release in Release::ALL {
        let roles = Roles { worker: Side::Python(release), ..Roles::all(Side::Ours) };
        let fabric = Fabric::start(roles, Security::Plain);
        let output = fabric.site.run_norfab(["health", "--json", "--timeout", "20s"]);
        assert!(output.status.success(), "{output:?}");
        fabric.workers[0].freeze();
        let output = fabric.site.run_norfab(["health", "dummy", "--json"]);
        fabric.workers[0].thaw();
        assert_eq!(output.status.code(), Some(1), "{output:?}");
        let health = json_of(&output);
        let silent = health["workers"].as_array().expect("rows").iter().filter(|row| row["health"] == "silent");
        assert_eq!(silent.count(), 1, "{health}");
    }
}
