//! `norfab files put`.

use insta::assert_snapshot;
use rustix::process::Signal;

use crate::support::{FABRIC, Lab, Role, eventually};

/// A fabric whose worker takes uploads.
fn inventory(more: &str) -> String {
    format!("{FABRIC}      uploads:\n        folder: incoming\n{more}")
}

fn up(more: &str) -> (Lab, Role) {
    let lab = Lab::new(&inventory(more));
    let role = lab.start(&["up"]);
    role.ready("worker filesharing-worker-1");
    lab.registered(&["filesharing-worker-1"]);
    (lab, role)
}

/// Bytes that no encoding leaves as they are by chance.
fn content(bytes: usize) -> Vec<u8> {
    let mut state = 1_u32;
    std::iter::repeat_with(|| {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 24) as u8
    })
    .take(bytes)
    .collect()
}

#[test]
fn a_file_goes_to_the_worker_that_takes_it() {
    let (lab, _up) = up("");
    lab.write("a.bin", content(5_000_000));
    let ended = lab.run(&["files", "put", "a.bin", "nf://incoming/b.bin"]);
    assert_eq!((ended.code, ended.stderr.as_str()), (Some(0), ""), "{ended:?}");
    assert_snapshot!(ended.stdout, @"nf://incoming/b.bin (5000000 bytes, to filesharing-worker-1)");
    assert!(std::fs::read(lab.path("shared/incoming/b.bin")).expect("it is there") == content(5_000_000));
    let again = lab.run(&["files", "put", "a.bin", "nf://incoming/b.bin"]);
    assert_snapshot!(again.stdout, @"nf://incoming/b.bin (5000000 bytes, filesharing-worker-1 had it already)");
    let document =
        lab.json(&["files", "put", "a.bin", "nf://incoming/new/", "--workers", "filesharing-worker-1", "--json"]);
    assert_eq!((&document["url"], &document["path"]), (&"nf://incoming/new/a.bin".into(), &"a.bin".into()));
    assert_eq!((&document["size_bytes"], &document["had_bytes"]), (&5_000_000.into(), &0.into()));
    assert_eq!((&document["was_there"], &document["replaced"]), (&false.into(), &false.into()));
    let back = lab.json(&["files", "get", "nf://incoming/new/a.bin", "back.bin", "--json"]);
    assert_eq!(back["sha256"], document["sha256"]);
    // The jobs of an upload end with it; what is asked to fetch a file stands nowhere.
    let jobs = lab.json(&["jobs", "--json"]);
    let states: Vec<_> = jobs.as_array().expect("a list").iter().map(|job| &job["status"]).collect();
    assert_eq!(states, ["COMPLETED"; 6], "{jobs:#}");
}

#[test]
fn what_is_not_taken_says_why_and_leaves_nothing() {
    let (lab, _up) = up("        max_file_bytes: 1000\n");
    lab.write("a", "new");
    lab.write("large", content(1001));
    lab.write("shared/incoming/there", "old and longer");
    std::fs::create_dir(lab.path("folder")).expect("a folder");
    let of = |arguments: &[&str], code: i32| {
        let ended = lab.run(&[&["files", "put"], arguments].concat());
        assert_eq!((ended.code, ended.stdout.as_str()), (Some(code), ""), "{ended:?}");
        ended.stderr
    };
    assert_snapshot!(of(&["a", "nf://elsewhere/a"], 1), @"error: nobody takes 'nf://elsewhere/a': 'nf://elsewhere/a' is not below nf://incoming/, the folder for uploads: write nf://incoming/NAME, or change uploads.folder in the worker's inventory");
    assert_snapshot!(of(&["a", "nf://incoming/../a"], 1), @"error: nobody takes 'nf://incoming/../a': 'nf://incoming/../a' - invalid URL path");
    assert_snapshot!(of(&["large", "nf://incoming/"], 1), @"error: worker filesharing-worker-1 does not take it: 'nf://incoming/large' has 1001 bytes, and 1000 are the most that may be uploaded at once: uploads.max_file_bytes in the worker's inventory says so");
    assert_snapshot!(of(&["a", "nf://incoming/there", "--overwrite"], 1), @"error: worker filesharing-worker-1 does not take it: 'nf://incoming/there' is there already, with other content: upload under another name, or replace it where both sides allow that (--overwrite, and uploads.overwrite in the worker's inventory)");
    assert_snapshot!(of(&["a", "nf://incoming/a", "--workers", "nobody"], 1), @"error: no such file sharing worker can be reached: 'norfab worker filesharing-worker-1' starts one, 'norfab workers' shows who is there");
    assert_snapshot!(of(&["a", "http://incoming/a"], 2), @"error: 'http://incoming/a' is no file URL: write nf://PATH");
    assert_snapshot!(of(&["a", "nf://incoming/a", "--workers", ""], 2), @"error: --workers: identity is empty");
    assert_snapshot!(of(&["nothing", "nf://incoming/a"], 5), @"error: cannot read nothing: No such file or directory (os error 2)");
    assert_snapshot!(of(&["folder", "nf://incoming/a"], 5), @"error: cannot read folder: it is no regular file");
    assert_eq!(lab.names("shared/incoming"), ["there"]);
    assert_eq!(lab.read("shared/incoming/there"), "old and longer");
}

#[test]
fn a_worker_that_takes_none_says_how_they_are_allowed() {
    let (lab, _up) = Lab::up();
    lab.write("a", "new");
    let ended = lab.run(&["files", "put", "a", "nf://incoming/a", "--json"]);
    assert_eq!(ended.code, Some(1));
    assert_snapshot!(ended.json()["error"].as_str().expect("a text"), @"nobody takes 'nf://incoming/a': worker filesharing-worker-1 takes no uploads: to allow them, write the folder for them into its inventory, as in 'uploads: {folder: incoming}'");
}

#[test]
fn a_file_arrives_whole_although_client_worker_and_broker_are_killed_one_after_the_other() {
    let lab = Lab::new(&inventory(""));
    let broker = lab.start(&["broker"]);
    let worker = lab.spawn(&["worker", "filesharing-worker-1"]);
    lab.registered(&["filesharing-worker-1"]);
    let all = content(200_000_000);
    lab.write("large", &all);
    let there = || std::fs::metadata(lab.path("shared/incoming/.large.part")).map_or(0, |part| part.len());
    let put = || lab.spawn(&["files", "put", "large", "nf://incoming/", "--json"]);
    let client = put();
    eventually("something has come", || there() > 0);
    drop(client);
    let before = there();
    assert!(before > 0 && !lab.path("shared/incoming/large").exists());
    let client = put();
    eventually("more has come", || there() > before);
    drop(worker);
    let before = there();
    let worker = lab.spawn(&["worker", "filesharing-worker-1"]);
    eventually("more has come", || there() > before);
    drop(broker);
    let before = there();
    let _broker = lab.start(&["broker", "--endpoint", &lab.endpoint()]);
    let ended = client.end();
    assert_eq!(ended.code, Some(0), "{ended:?}");
    assert!(std::fs::read(lab.path("shared/incoming/large")).expect("it is there") == all);
    assert!(before > 0 && ended.json()["had_bytes"].as_u64() > Some(0), "{ended:?}");
    assert_eq!(lab.names("shared/incoming"), ["large"]);
    assert_eq!(worker.stop(Signal::TERM).code, Some(0));
}

#[test]
fn an_interrupted_upload_leaves_no_half_file_under_its_name() {
    let (lab, _up) = up("");
    let file = std::fs::File::create(lab.path("large")).expect("a file");
    // Sparse: it takes no room, and seconds to send.
    file.set_len(1 << 30).expect("room");
    let there = || std::fs::metadata(lab.path("shared/incoming/.large.part")).map_or(0, |part| part.len());
    let put = lab.spawn(&["files", "put", "large", "nf://incoming/"]);
    eventually("something has come", || there() > 0);
    let ended = put.stop(Signal::INT);
    assert_eq!((ended.code, ended.stdout.as_str()), (Some(130), ""), "{ended:?}");
    assert_eq!(lab.names("shared/incoming"), [".large.part"]);
    let ended = lab.run(&["files", "put", "large", "nf://incoming/", "-t", "1s"]);
    assert_eq!((ended.code, ended.stdout.as_str()), (Some(4), ""), "{ended:?}");
    assert!(ended.stderr.starts_with("error: 'nf://incoming/large' was not uploaded within 1 s: "), "{ended:?}");
}
