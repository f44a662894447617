//! `norfab files sync`, and the files that `files get --cache` keeps.

use insta::assert_snapshot;
use serde_json::json;

use crate::support::Lab;

#[test]
fn a_folder_becomes_like_the_one_of_the_worker() {
    let (lab, _up) = Lab::up();
    lab.write("shared/d/a.txt", "a");
    lab.write("shared/d/e/b.txt", "bb");
    let would = lab.run(&["files", "sync", "nf://d", "copy", "--dry-run"]);
    assert_snapshot!(would.stdout, @r"
    fetch a.txt
    fetch e/b.txt
    copy: 2 files of worker filesharing-worker-1, 2 would be fetched (3 bytes), 0 unchanged, 0 would be removed, 0 failed
    ");
    assert!(!lab.path("copy").exists());
    let ended = lab.run(&["files", "sync", "nf://d", "copy"]);
    assert_eq!((ended.code, ended.stderr.as_str()), (Some(0), ""));
    assert_snapshot!(ended.stdout, @"copy: 2 files of worker filesharing-worker-1, 2 fetched (3 bytes), 0 unchanged, 0 removed, 0 failed");
    assert_eq!((lab.read("copy/a.txt"), lab.read("copy/e/b.txt")), ("a".to_owned(), "bb".to_owned()));
    std::fs::remove_file(lab.path("shared/d/e/b.txt")).expect("removed");
    lab.write("shared/d/a.txt", "new");
    let document = lab.json(&["files", "sync", "nf://d", "copy", "--delete", "--json"]);
    assert_eq!(document["fetched"], json!(["a.txt"]));
    assert_eq!(document["deleted"], json!(["e/b.txt"]));
    assert_eq!((&document["files"], &document["unchanged"], &document["bytes"]), (&json!(1), &json!(0), &json!(3)));
    assert_eq!(document["worker"], "filesharing-worker-1");
    assert_eq!(lab.read("copy/a.txt"), "new");
    let again = lab.run(&["files", "sync", "nf://d", "copy", "--checksum"]);
    assert_snapshot!(again.stdout, @"copy: 1 files of worker filesharing-worker-1, 0 fetched (0 bytes), 1 unchanged, 0 removed, 0 failed");
}

#[test]
fn what_cannot_be_synchronized_is_named() {
    let (lab, _up) = Lab::up();
    lab.write("shared/d/a.txt", "a");
    lab.write("shared/d/b.txt", "b");
    std::fs::create_dir_all(lab.path("copy/a.txt")).expect("made");
    let ended = lab.run(&["files", "sync", "nf://d", "copy"]);
    assert_eq!(ended.code, Some(1));
    assert_snapshot!(ended.stdout, @"copy: 2 files of worker filesharing-worker-1, 1 fetched (1 bytes), 0 unchanged, 0 removed, 1 failed");
    assert_snapshot!(ended.stderr, @"error: a.txt: it is a folder here");
    let of = |url: &str, code: i32| {
        let ended = lab.run(&["files", "sync", url, "other"]);
        assert_eq!((ended.code, ended.stdout.as_str()), (Some(code), ""), "{ended:?}");
        ended.stderr
    };
    assert_snapshot!(of("nf://nope", 1), @"error: no file sharing worker has 'nf://nope': 'nf://nope' file not found: 'norfab files ls nf://' lists files and folders there");
    assert_snapshot!(of("git://r/d", 2), @"error: 'git://r/d' is no URL of a folder of a worker: write nf://FOLDER");
}

#[test]
fn a_worker_is_named_and_what_is_asked_stands_among_no_jobs() {
    let (lab, _up) = Lab::up();
    lab.write("shared/d/a.txt", "a");
    lab.write("copy/old", "old");
    let of = |worker: &str| lab.run(&["files", "sync", "nf://d", "copy", "--delete", "--workers", worker]);
    let nobody = of("nobody");
    assert_eq!((nobody.code, lab.read("copy/old")), (Some(1), "old".to_owned()), "{nobody:?}");
    let any = of("any");
    assert_eq!(any.code, Some(1));
    assert_snapshot!(any.stderr, @"error: nothing was removed: other workers than filesharing-worker-1 may have other files in that folder: name one with --workers");
    let named = of("filesharing-worker-1");
    assert_eq!(named.code, Some(0), "{named:?}");
    assert!(!lab.path("copy/old").exists());
    assert_eq!(lab.json(&["jobs", "--json"]), json!([]));
}

#[test]
fn files_of_one_name_are_kept_and_those_that_are_told_are_there() {
    let (lab, _up) = Lab::up();
    let urls: Vec<String> = (0..6).map(|number| format!("nf://d{number}/f")).collect();
    for number in 0..6 {
        lab.write(&format!("shared/d{number}/f"), "content");
    }
    let words = ["files", "get", "--cache", "--cache-limit", "10"];
    let words: Vec<&str> = words.into_iter().chain(urls.iter().map(String::as_str)).collect();
    let ended = lab.run(&words);
    assert_eq!(ended.code, Some(0), "{ended:?}");
    assert!(ended.stderr.contains("these files have 42 bytes and the cache may have 10"), "{ended:?}");
    let kept = lab.json(&["files", "cache", "--json"]);
    assert_eq!(kept.as_array().expect("a list").len(), 6, "{kept:#}");
    let document = lab.json(&["files", "get", "--cache", "--cache-limit", "10", "nf://d0/f", "--json"]);
    assert_eq!(document["worker"], json!(null));
    assert_eq!(lab.json(&["files", "cache", "--json"]).as_array().expect("a list").len(), 1);
}

#[test]
fn files_are_kept_shown_and_removed() {
    let (lab, _up) = Lab::up();
    lab.write("shared/d/a.txt", "a");
    let kept = lab.json(&["files", "get", "nf://d/a.txt", "--cache", "--json"]);
    let path = kept["path"].as_str().expect("a path").to_owned();
    assert!(path.ends_with("/fetchedfiles/d/a.txt"), "{path}");
    assert_eq!(std::fs::read_to_string(&path).expect("there"), "a");
    assert_eq!(kept["worker"], "filesharing-worker-1");
    assert_eq!(lab.json(&["files", "get", "nf://d/a.txt", "--cache", "--json"])["worker"], json!(null));
    let listed = lab.json(&["files", "cache", "--json"]);
    assert_eq!(
        (&listed[0]["url"], &listed[0]["path"], &listed[0]["size_bytes"]),
        (&json!("nf://d/a.txt"), &json!(path), &json!(1))
    );
    assert_snapshot!(lab.run(&["files", "rm-cache", "nf://e"]).stdout, @"0 files removed, 0 bytes");
    assert_snapshot!(lab.run(&["files", "rm-cache"]).stdout, @"1 files removed, 1 bytes");
    assert_eq!(lab.json(&["files", "cache", "--json"]), json!([]));
    assert_eq!(lab.run(&["files", "get", "nf://d/a.txt", "x", "--cache"]).code, Some(2));
    assert_eq!(lab.run(&["files", "rm-cache", "d"]).code, Some(2));
}
