//! `norfab demo`.

use rustix::process::Signal;

use crate::support::{Lab, Role};

#[test]
fn the_demo_shows_jobs_of_several_shapes_and_leaves_nothing() {
    let lab = Lab::empty();
    std::fs::create_dir(lab.path("tmp")).expect("a folder");
    let mut command = lab.command(&["demo"]);
    command.env("TMPDIR", lab.path("tmp"));
    let ended = Role::spawn(command).end();
    assert_eq!(ended.code, Some(0), "{ended:?}");
    for text in [
        "broker listens at tcp://127.0.0.1:",
        "$ norfab run lab show_version",
        "  core-1: LabOS 4.2",
        "    - ntp server 192.0.2.1",
        "This file came through the fabric.",
        "200 jobs, half of them within",
    ] {
        assert!(ended.stdout.contains(text), "{text:?} is not in {}", ended.stdout);
    }
    assert!(ended.stderr.contains("error: worker lab-3 failed: no device 'leaf-9' here"), "{}", ended.stderr);
    assert!(ended.stderr.contains("unknown argument 'x'"), "{}", ended.stderr);
    assert_eq!(lab.names("."), ["tmp"]);
    assert_eq!(lab.names("tmp"), Vec::<String>::new());
}

#[test]
fn the_demo_as_a_document_has_every_job() {
    let document = Lab::empty().json(&["demo", "--json"]);
    assert_eq!(document["workers"].as_array().map(Vec::len), Some(4), "{document}");
    let tasks: Vec<_> = document["jobs"].as_array().expect("jobs").iter().map(|job| job["task"].clone()).collect();
    assert_eq!(tasks, ["show_version", "deploy", "reload", "show_version"]);
    assert_eq!(document["file"]["size_bytes"], 35);
    assert!(document["timed_jobs"]["median_ms"].as_f64().is_some_and(|time| time > 0.0));
}

#[test]
fn the_demo_can_be_interrupted_and_leaves_nothing_then() {
    let lab = Lab::empty();
    std::fs::create_dir(lab.path("tmp")).expect("a folder");
    let mut command = lab.command(&["demo"]);
    command.env("TMPDIR", lab.path("tmp"));
    let demo = Role::spawn(command);
    demo.line(|line| line.starts_with("broker listens at"));
    let ended = demo.stop(Signal::INT);
    assert_eq!(ended.code, Some(130), "{ended:?}");
    assert_eq!(lab.names("tmp"), Vec::<String>::new());
}
