//! `norfab files ls`, `tree` and `stat`.

use std::fs::File;
use std::process::Command;
use std::time::{Duration, Instant, SystemTime};

use insta::assert_snapshot;
use rustix::process::Signal;
use serde_json::{Value, json};

use crate::support::{Ended, Lab, Role};

/// Two workers that share folders of their own.
const TWO: &str = r#"
broker: {endpoint: "tcp://127.0.0.1:*"}
topology: {broker: true}
workers:
  one: [{service: filesharing, base_dir: one}]
  two: [{service: filesharing, base_dir: two}]
"#;

/// Both of them, each in a process of its own.
fn two() -> (Lab, Role, [Role; 2]) {
    let lab = Lab::new(TWO);
    let broker = lab.start(&["broker"]);
    let workers = ["one", "two"].map(|name| {
        let worker = lab.spawn(&["worker", name]);
        worker.ready(&format!("worker {name}"));
        worker
    });
    lab.registered(&["one", "two"]);
    (lab, broker, workers)
}

/// A file of a certain time.
fn put(lab: &Lab, name: &str, content: &str) {
    lab.write(name, content);
    let file = File::options().write(true).open(lab.path(name)).expect("it is there");
    file.set_modified(SystemTime::UNIX_EPOCH + Duration::from_secs(1_796_000_000)).expect("set");
}

/// As [`Lab::run`], where clocks show the time of Greenwich.
fn run(lab: &Lab, arguments: &[&str]) -> Ended {
    let mut command = lab.command(&[&["files"], arguments].concat());
    command.env("TZ", "UTC");
    Role::spawn(command).end()
}

fn shown(lab: &Lab, arguments: &[&str]) -> String {
    let ended = run(lab, arguments);
    assert_eq!((ended.code, ended.stderr.as_str()), (Some(0), ""), "{arguments:?}: {ended:?}");
    ended.stdout
}

#[test]
fn a_directory_is_listed_with_sizes_and_times() {
    let (lab, _up) = Lab::up();
    put(&lab, "shared/d/a.txt", "alpha\n");
    put(&lab, "shared/d/larger", "0123456789");
    put(&lab, "shared/top", "");
    std::os::unix::fs::symlink("d", lab.path("shared/link")).expect("a link");
    assert_snapshot!(shown(&lab, &["ls", "nf://d"]), @r"
    2026-11-30 00:53:20  6 a.txt
    2026-11-30 00:53:20 10 larger
    ");
    assert_snapshot!(shown(&lab, &["ls", "nf://d/a.txt", "-l"]), @"-rw-r--r-- 2026-11-30 00:53:20 6 a.txt");
    let all = shown(&lab, &["ls"]);
    let names: Vec<&str> = all.lines().filter_map(|line| line.split_whitespace().last()).collect();
    assert_eq!(names, ["d/", "link@", "top"]);
    assert_eq!(shown(&lab, &["list", "nf://"]), all, "its other name");
    let document = run(&lab, &["ls", "nf://d", "--json"]).json();
    let entry = json!({"path": "a.txt", "kind": "file", "size_bytes": 6, "modified": 1_796_000_000, "mode": 0o644, "workers": ["filesharing-worker-1"]});
    assert_eq!(document["entries"][0], entry);
    assert_eq!(document["workers"], json!(["filesharing-worker-1"]));
    std::fs::create_dir(lab.path("shared/empty")).expect("a folder");
    assert_eq!(shown(&lab, &["ls", "nf://empty"]), "");
}

#[test]
fn a_tree_is_shown_as_deep_as_it_is_wanted() {
    let (lab, _up) = Lab::up();
    for name in ["a/1/x", "a/2", "b"] {
        put(&lab, &format!("shared/{name}"), "");
    }
    assert_snapshot!(shown(&lab, &["tree"]), @r"
    nf://
    ├── a/
    │   ├── 1/
    │   │   └── x
    │   └── 2
    └── b

    2 directories, 3 files
    ");
    assert_snapshot!(shown(&lab, &["tree", "nf://a", "--depth", "1"]), @r"
    nf://a
    ├── 1/
    └── 2

    1 directory, 1 file
    ");
    let document = run(&lab, &["tree", "--json", "-d", "2"]).json();
    let paths: Vec<&Value> =
        document["entries"].as_array().expect("a list").iter().map(|entry| &entry["path"]).collect();
    assert_eq!(paths, ["a", "a/1", "a/2", "b"]);
    assert_eq!(run(&lab, &["tree", "--depth", "0"]).code, Some(2));
}

#[test]
fn where_workers_differ_it_is_said_whose_is_what() {
    let (lab, _broker, _workers) = two();
    for (name, content) in
        [("one/same", "same"), ("two/same", "same"), ("one/d/x", "1"), ("two/d/x", "22"), ("two/only", "")]
    {
        put(&lab, name, content);
    }
    assert_snapshot!(shown(&lab, &["tree"]), @r"
    nf://
    ├── d/
    │   ├── x  [one]
    │   └── x  [two]
    ├── only  [two]
    └── same

    1 directory, 4 files
    ");
    assert_snapshot!(shown(&lab, &["ls", "nf://d"]), @r"
    2026-11-30 00:53:20 1 x  [one]
    2026-11-30 00:53:20 2 x  [two]
    ");
    assert_snapshot!(shown(&lab, &["ls", "nf://d", "-w", "two"]), @"2026-11-30 00:53:20 2 x");
    assert_snapshot!(shown(&lab, &["stat", "nf://same", "nf://d/x", "nf://only", "nf://d"]), @r"
    nf://same
      kind      file
      size      4 bytes
      modified  2026-11-30 00:53:20
      mode      0644 -rw-r--r--
      md5       51037a4a37730f52c8732586d3aaa316
      sha256    0967115f2813a3541eaef77de9d9d5773f1c0c04314b0bbfe4ff3b3b1c55b5d5
      workers   one, two

    nf://d/x  (workers differ)
      kind      file
      size      1 bytes
      modified  2026-11-30 00:53:20
      mode      0644 -rw-r--r--
      md5       c4ca4238a0b923820dcc509a6f75849b
      sha256    6b86b273ff34fce19d6b804eff5a3f5747ada4eaa22f1d49c01e52ddb7875b4b
      workers   one

      kind      file
      size      2 bytes
      modified  2026-11-30 00:53:20
      mode      0644 -rw-r--r--
      md5       b6d767d2f8ed5d21a44b0e5886680cb9
      sha256    785f3ec7eb32f30b90cd0fcf3657d388b5ff4297f2f9716ff66e9b69c05ddd09
      workers   two

    nf://only
      kind      file
      size      0 bytes
      modified  2026-11-30 00:53:20
      mode      0644 -rw-r--r--
      md5       d41d8cd98f00b204e9800998ecf8427e
      sha256    e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855
      workers   two
      not on    one

    nf://d
      kind      directory
      workers   one, two
    ");
    // The same size, and other content: only hashes tell.
    put(&lab, "two/d/x", "2");
    let stat =
        |options: &[&str]| run(&lab, &[&["stat", "nf://d/x", "--json"], options].concat()).json()["files"][0].clone();
    assert_eq!((&stat(&[])["differs"], &stat(&["--no-hash"])["differs"]), (&json!(true), &json!(false)));
    assert_eq!(stat(&["-w", "one"])["copies"][0]["workers"], json!(["one"]));
}

#[test]
fn what_is_not_there_is_an_error_beside_what_is() {
    let (lab, _up) = Lab::up();
    put(&lab, "shared/a", "a");
    let ended = run(&lab, &["ls", "nf://nope"]);
    assert_eq!((ended.code, ended.stdout.as_str()), (Some(1), ""));
    assert_snapshot!(ended.stderr, @"error: no file sharing worker has 'nf://nope': Directory Not Found: 'norfab files ls nf://' lists files and folders there");
    assert_eq!(run(&lab, &["tree", "nf://a"]).code, Some(1));
    let ended = run(&lab, &["ls", "nf://../x", "--json"]);
    assert_eq!((ended.code, &ended.json()["exit_code"]), (Some(1), &json!(1)), "{ended:?}");
    let ended = run(&lab, &["stat", "nf://nope", "nf://a", "--no-hash"]);
    assert_eq!(ended.code, Some(1), "{ended:?}");
    assert!(ended.stdout.starts_with("nf://a\n"), "{ended:?}");
    assert_snapshot!(ended.stderr, @"error: no file sharing worker has 'nf://nope': 'nf://nope' file not found");
    let document = run(&lab, &["stat", "nf://nope", "nf://a", "--json"]).json();
    assert_eq!((&document["exit_code"], &document["files"][0]["exists"]), (&json!(1), &json!(false)));
    for words in [&["ls", "x"][..], &["tree", "http://x"], &["stat", "nf://a", "b"]] {
        assert_eq!(run(&lab, words).code, Some(2), "{words:?}");
    }
    let alone = Lab::new(crate::support::FABRIC);
    let _broker = alone.start(&["broker"]);
    assert_snapshot!(run(&alone, &["ls"]).stderr, @"error: no file sharing worker can be reached: 'norfab worker filesharing-worker-1' starts one, 'norfab workers' shows who is there");
}

#[test]
fn a_worker_that_does_not_answer_costs_a_second_beside_one_that_does() {
    let (lab, _broker, workers) = two();
    put(&lab, "one/a", "a");
    workers[1].signal(Signal::STOP);
    for words in [&["ls"][..], &["tree"], &["stat", "nf://a"]] {
        let began = Instant::now();
        let ended = run(&lab, &[words, &["-t", "50s"]].concat());
        assert!(began.elapsed() < Duration::from_secs(10), "{words:?}: {:?}", began.elapsed());
        assert_eq!(ended.code, Some(0), "{words:?}: {ended:?}");
        assert_eq!(ended.stderr, "warning: no answer from worker two: what is there is not shown\n");
        assert!(ended.stdout.contains('a'), "{ended:?}");
    }
    assert_eq!(run(&lab, &["ls", "--json"]).json()["silent"], json!(["two"]));
    let ended = run(&lab, &["ls", "nf://nope"]);
    assert!(
        ended.code == Some(1) && ended.stderr.contains("Directory Not Found; no answer from worker two: "),
        "{ended:?}"
    );
    let ended = run(&lab, &["ls", "-w", "two", "-t", "1s"]);
    assert_eq!(ended.code, Some(4), "{ended:?}");
    assert_snapshot!(ended.stderr, @"error: no worker told of 'nf://' within 1 s: give it longer with --timeout");
}

#[test]
fn names_do_not_steer_the_terminal_and_are_exact_for_programs() {
    let (lab, _up) = Lab::up();
    put(&lab, "shared/d/red\u{1b}[31m\nname", "");
    for words in [&["ls", "nf://d"][..], &["tree"], &["stat", "nf://d/red\u{1b}[31m\nname"]] {
        let text = shown(&lab, words);
        assert!(text.contains("red\\u{1b}[31m\\nname") && !text.contains('\u{1b}'), "{text:?}");
    }
    assert_eq!(run(&lab, &["ls", "nf://d", "--json"]).json()["entries"][0]["path"], "red\u{1b}[31m\nname");
}

#[test]
fn large_directories_come_whole_and_readers_may_leave() {
    let (lab, _up) = Lab::up();
    // More than two pages.
    for number in 0..21_000 {
        lab.write(&format!("shared/large/{number:05}"), "");
    }
    let all = shown(&lab, &["ls", "nf://large"]);
    let names: Vec<&str> = all.lines().filter_map(|line| line.split(' ').next_back()).collect();
    assert!(names.len() == 21_000 && names.is_sorted() && names[20_999] == "20999", "{}", names.len());
    for words in ["ls nf://large", "tree"] {
        let norfab = lab.command(&[]).get_program().to_owned();
        let mut shell = Command::new("bash");
        shell
            .arg("-c")
            .arg(format!("\"$0\" files {words} | head -n 2 >/dev/null; echo ${{PIPESTATUS[0]}}"))
            .arg(norfab);
        shell.current_dir(lab.path(".")).env("NORFAB_ENDPOINT", lab.endpoint());
        shell.stdout(std::process::Stdio::piped()).stderr(std::process::Stdio::piped());
        let ended = Role::spawn(shell).end();
        assert_eq!((ended.stdout.as_str(), ended.stderr.as_str()), ("0\n", ""), "{words}");
    }
}

#[test]
fn questions_are_not_kept_among_jobs() {
    let (lab, _up) = Lab::up();
    shown(&lab, &["ls"]);
    shown(&lab, &["tree"]);
    assert_eq!(lab.json(&["jobs", "--json"]), json!([]));
}
