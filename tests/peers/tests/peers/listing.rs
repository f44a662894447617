//! What our commands show of files that workers of each side share.

use std::fs;
use std::path::Path;

use norfab_peer_tests::{Release, Security, Side, Site};
use serde_json::{Value, json};

const SIDES: [Side; 3] = [Side::Ours, Side::Python(Release::V0_21_2), Side::Python(Release::V0_25_0)];

fn put(folder: &Path, name: &str, content: &str) {
    let path = folder.join(name);
    fs::create_dir_all(path.parent().expect("a folder")).expect("a folder");
    fs::write(path, content).expect("a file");
}

fn document(site: &Site, words: &[&str], code: i32) -> Value {
    let output = site.run_norfab([&["files"], words, &["--json"]].concat());
    let text = String::from_utf8_lossy(&output.stdout);
    assert_eq!(output.status.code(), Some(code), "{words:?}: {text} {}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_str(&text).unwrap_or_else(|error| panic!("{words:?}: {error} in {text:?}"))
}

/// One key of each entry.
fn told(document: &Value, key: &str) -> Vec<Value> {
    document["entries"].as_array().expect("a list").iter().map(|entry| entry[key].clone()).collect()
}

#[test]
fn our_commands_list_and_look_at_files_of_workers_of_all_sides() {
    for side in SIDES {
        let site = Site::new(Security::Curve);
        let share = site.folder().join("share");
        for (name, content) in [("d/a.txt", "alpha\n"), ("d/sub/b c", "beta"), ("top", "")] {
            put(&share, name, content);
        }
        let site = site.with_worker("files-1", json!({"service": "filesharing", "base_dir": share}));
        let _broker = site.start_broker(Side::Ours);
        let _worker = site.start_worker(side, "files-1");
        site.start_client(Side::Ours, "client-1").wait_for_workers(&["files-1"]);

        let listed = document(&site, &["ls", "nf://d", "--long"], 0);
        assert_eq!(told(&listed, "path"), ["a.txt", "sub"], "{side:?}");
        assert_eq!(told(&listed, "size_bytes"), [json!(6), Value::Null], "{side:?}");
        assert_eq!(told(&document(&site, &["ls"], 0), "path"), ["d", "top"], "{side:?}");
        let one = document(&site, &["ls", "nf://d/a.txt"], 0);
        assert_eq!(told(&one, "path"), ["a.txt"], "{side:?}");
        assert_eq!(told(&one, "size_bytes"), [6], "{side:?}");

        let tree = document(&site, &["tree"], 0);
        assert_eq!(told(&tree, "path"), ["d", "d/a.txt", "d/sub", "d/sub/b c", "top"], "{side:?}");
        let kinds = ["directory", "file", "directory", "file", "file"];
        assert_eq!(told(&tree, "kind"), kinds, "{side:?}");
        assert_eq!(told(&document(&site, &["tree", "--depth", "1"], 0), "path"), ["d", "top"], "{side:?}");
        assert_eq!(told(&document(&site, &["tree", "nf://d/"], 0), "path"), ["a.txt", "sub", "sub/b c"], "{side:?}");

        let stat = document(&site, &["stat", "nf://d/a.txt", "nf://d", "nf://nope"], 1);
        let copies = |at: usize| &stat["files"][at]["copies"];
        assert_eq!(copies(0)[0]["md5hash"], "9f9f90dbe3e5ee1218c86b8839db1995", "{side:?}: {stat}");
        assert_eq!((&copies(0)[0]["size_bytes"], &copies(1)[0]["kind"]), (&json!(6), &json!("directory")), "{side:?}");
        assert_eq!((copies(0)[0]["sha256"].is_string(), copies(2)), (side == Side::Ours, &json!([])), "{side:?}");

        for words in [&["ls", "nf://nope"][..], &["tree", "nf://nope"], &["ls", "nf://../x"], &["stat", "nf://../x"]] {
            let refused = document(&site, words, 1);
            assert!(refused["error"].as_str().is_some_and(|error| error.contains(words[1])), "{side:?}: {refused}");
        }
    }
}

#[test]
fn a_worker_of_python_and_one_of_ours_are_shown_together_and_told_apart() {
    for release in Release::ALL {
        let site = Site::new(Security::Curve);
        let [ours, theirs] = ["ours", "theirs"].map(|name| site.folder().join(name));
        for folder in [&ours, &theirs] {
            put(folder, "same", "same");
            put(folder, "d/differs", &folder.display().to_string());
        }
        put(&ours, "d/only", "");
        let of = |folder: &Path| json!({"service": "filesharing", "base_dir": folder});
        let site = site.with_worker("files-1", of(&ours)).with_worker("files-2", of(&theirs));
        let _broker = site.start_broker(Side::Ours);
        let _ours = site.start_worker(Side::Ours, "files-1");
        let _theirs = site.start_worker(Side::Python(release), "files-2");
        site.start_client(Side::Ours, "client-1").wait_for_workers(&["files-1", "files-2"]);

        let listed = document(&site, &["ls", "nf://d", "-l"], 0);
        assert_eq!(told(&listed, "path"), ["differs", "differs", "only"], "{release:?}: {listed}");
        assert_eq!(
            told(&listed, "workers"),
            [json!(["files-1"]), json!(["files-2"]), json!(["files-1"])],
            "{release:?}"
        );
        let tree = document(&site, &["tree"], 0);
        // Of sizes the Python worker says nothing here.
        assert_eq!(told(&tree, "path"), ["d", "d/differs", "d/only", "same"], "{release:?}: {tree}");
        let stat = document(&site, &["stat", "nf://same", "nf://d/differs"], 0);
        let differs: Vec<&Value> =
            stat["files"].as_array().expect("a list").iter().map(|file| &file["differs"]).collect();
        assert_eq!(differs, [false, true], "{release:?}: {stat}");
        assert_eq!(stat["files"][0]["copies"][0]["workers"], json!(["files-1", "files-2"]), "{release:?}");
    }
}
