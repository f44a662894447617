//! `norfab files`.

use insta::assert_snapshot;
use rustix::process::Signal;

use crate::support::{Lab, eventually};

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
fn a_file_goes_where_it_is_wanted() {
    let (lab, _up) = Lab::up();
    lab.write("shared/d/a.bin", content(5_000_000));
    let ended = lab.run(&["files", "get", "nf://d/a.bin", "copy.bin"]);
    assert_eq!((ended.code, ended.stderr.as_str()), (Some(0), ""));
    assert_snapshot!(ended.stdout, @"copy.bin (5000000 bytes, from filesharing-worker-1)");
    assert!(std::fs::read(lab.path("copy.bin")).expect("it is there") == content(5_000_000));

    let again = lab.run(&["files", "get", "nf://d/a.bin", "copy.bin"]);
    assert_snapshot!(again.stdout, @"copy.bin (5000000 bytes, it was there already)");

    assert_eq!(lab.run(&["files", "get", "nf://d/a.bin"]).stdout, "a.bin (5000000 bytes, from filesharing-worker-1)\n");
    std::fs::create_dir(lab.path("folder")).expect("a folder");
    for (dest, path) in [("folder", "folder/a.bin"), ("new/", "new/a.bin"), ("other/deep/b.bin", "other/deep/b.bin")] {
        let document = lab.json(&["files", "get", "nf://d/a.bin", dest, "--json"]);
        assert_eq!(document["path"], path);
        assert_eq!(document["size_bytes"], 5_000_000);
        assert_eq!(document["worker"], "filesharing-worker-1");
        assert!(lab.path(path).is_file(), "{path}");
    }
    assert_eq!(lab.names("folder"), ["a.bin"], "nothing else stays there");
}

#[test]
fn the_jobs_of_a_transfer_stand_among_no_others() {
    let (lab, _up) = Lab::up();
    for (name, bytes) in [("a.bin", 1_000_000), ("empty", 0)] {
        lab.write(&format!("shared/{name}"), content(bytes));
        assert_eq!(lab.run(&["files", "get", &format!("nf://{name}")]).code, Some(0));
    }
    let jobs = lab.json(&["jobs", "--json"]);
    assert_eq!(jobs, serde_json::json!([]));
}

#[test]
fn a_file_can_go_to_standard_output() {
    let (lab, _up) = Lab::up();
    lab.write("shared/a.bin", content(1_000_000));
    lab.write("shared/empty", "");
    let before = lab.names(".");
    let (ended, bytes) = lab.spawn(&["files", "get", "nf://a.bin", "-"]).end_with_bytes();
    assert_eq!((ended.code, ended.stderr.as_str()), (Some(0), ""));
    assert!(bytes == content(1_000_000));
    let (ended, bytes) = lab.spawn(&["files", "get", "nf://empty", "-"]).end_with_bytes();
    assert_eq!((ended.code, bytes.len()), (Some(0), 0), "{ended:?}");
    assert_eq!(lab.names("."), before);
}

#[test]
fn a_file_that_is_not_there_leaves_nothing_behind() {
    let (lab, _up) = Lab::up();
    std::fs::create_dir(lab.path("folder")).expect("a folder");
    lab.write("folder/mine", "mine");
    let of = |url: &str, code: i32| {
        let ended = lab.run(&["files", "get", url, "folder/mine"]);
        assert_eq!((ended.code, ended.stdout.as_str()), (Some(code), ""), "{ended:?}");
        ended.stderr
    };
    assert_snapshot!(of("nf://nope.txt", 1), @"error: no file sharing worker has 'nf://nope.txt': 'nf://nope.txt' file not found: 'norfab files ls nf://' lists files and folders there");
    assert_snapshot!(of("nf://../secret", 1), @"error: no file sharing worker has 'nf://../secret': 'nf://../secret' - invalid URL path: 'norfab files ls nf://' lists files and folders there");
    assert_snapshot!(of("http://a/b", 2), @"error: 'http://a/b' is no file URL: write nf://PATH or git://REMOTE/PATH");
    assert_snapshot!(of("nf://folder/", 2), @"error: 'nf://folder/' names no file: write nf://PATH/TO/FILE");
    assert_snapshot!(of("nf://..", 2), @"error: 'nf://..' names no file: write nf://PATH/TO/FILE");
    assert_eq!(lab.names("folder"), ["mine"]);
    assert_eq!(lab.read("folder/mine"), "mine");
}

#[test]
fn without_a_file_sharing_worker_nobody_has_it() {
    let lab = Lab::new(crate::support::FABRIC);
    let _broker = lab.start(&["broker"]);
    let ended = lab.run(&["files", "get", "nf://a"]);
    assert_eq!(ended.code, Some(1));
    assert_snapshot!(ended.stderr, @"error: no file sharing worker can be reached: 'norfab worker filesharing-worker-1' starts one, 'norfab workers' shows who is there");
}

#[test]
fn a_target_that_cannot_be_written_is_named() {
    let (lab, _up) = Lab::up();
    lab.write("shared/a", "a");
    lab.write("file", "a file");
    let ended = lab.run(&["files", "get", "nf://a", "file/below"]);
    assert_eq!(ended.code, Some(5));
    assert!(ended.stderr.starts_with("error: cannot write file/below: "), "{}", ended.stderr);
    let ended = lab.run(&["files", "get", "nf://a", "/dev/null", "--json"]);
    assert_eq!((ended.code, &ended.json()["hint"]), (Some(5), &"'-' is standard output".into()), "{ended:?}");
}

#[test]
fn only_a_regular_file_is_replaced() {
    let (lab, _up) = Lab::up();
    lab.write("shared/a", "new");
    std::fs::create_dir_all(lab.path("folder/a")).expect("a folder");
    let socket = std::os::unix::net::UnixListener::bind(lab.path("socket")).expect("a socket");
    let link = |to: &str, name: &str| std::os::unix::fs::symlink(to, lab.path(name)).expect("a link");
    link("/dev/null", "to-device");
    link("nowhere", "to-nothing");
    for target in ["socket", "to-device", "to-nothing", "folder"] {
        let ended = lab.run(&["files", "get", "nf://a", target]);
        assert_eq!((ended.code, ended.stdout.as_str()), (Some(5), ""), "{target}: {ended:?}");
        assert!(ended.stderr.contains("not a regular file; '-' is standard output"), "{target}: {ended:?}");
    }
    let kind = |name: &str| lab.path(name).symlink_metadata().expect("it is there").file_type();
    assert!(kind("to-device").is_symlink() && kind("to-nothing").is_symlink() && kind("folder/a").is_dir());
    assert!(!kind("socket").is_file());
    drop(socket);
    lab.write("other/real", "old");
    link("other/real", "to-file");
    assert_eq!(
        lab.run(&["files", "get", "nf://a", "to-file"]).stdout,
        "to-file (3 bytes, from filesharing-worker-1)\n"
    );
    assert!(kind("to-file").is_symlink());
    assert_eq!((lab.read("other/real"), lab.names("other")), ("new".to_owned(), vec!["real".to_owned()]));
}

#[test]
fn a_worker_that_does_not_answer_is_a_time_out() {
    let lab = Lab::new(crate::support::FABRIC);
    let _broker = lab.start(&["broker"]);
    let worker = lab.spawn(&["worker", "filesharing-worker-1"]);
    worker.ready("worker filesharing-worker-1");
    lab.registered(&["filesharing-worker-1"]);
    worker.signal(Signal::STOP);
    let ended = lab.run(&["files", "get", "nf://a", "--timeout", "1s"]);
    assert_eq!((ended.code, ended.stdout.as_str()), (Some(4), ""), "{ended:?}");
    assert!(ended.stderr.starts_with("error: 'nf://a' did not come within 1 s: "), "{ended:?}");
}

#[test]
fn a_transfer_has_the_time_that_was_given_also_below_a_second() {
    let (lab, _up) = Lab::up();
    let file = std::fs::File::create(lab.path("shared/large")).expect("a file");
    // Sparse: it takes no room, and more than a second to send.
    file.set_len(1 << 30).expect("room");
    // Once its hash is known, it is found at once.
    assert_eq!(lab.run(&["run", "filesharing", "file_details", "url=nf://large"]).code, Some(0));
    let ended = lab.run(&["files", "get", "nf://large", "here", "-t", "600ms"]);
    assert_eq!((ended.code, ended.stdout.as_str()), (Some(4), ""), "{ended:?}");
    assert!(ended.stderr.starts_with("error: 'nf://large' did not come within 0.6 s: "), "{ended:?}");
    assert!(ended.stderr.contains(" bytes came from worker filesharing-worker-1"), "{ended:?}");
}

#[test]
fn json_and_the_file_do_not_share_standard_output() {
    let ended = Lab::empty().run(&["files", "get", "nf://a", "-", "--json"]);
    assert_eq!(ended.code, Some(2), "{ended:?}");
    assert_eq!(ended.json()["error"], "--json and '-' both take standard output");
}

#[test]
fn an_interrupted_transfer_leaves_no_half_file_under_its_name() {
    let (lab, _up) = Lab::up();
    let file = std::fs::File::create(lab.path("shared/large")).expect("a file");
    // Sparse: it takes no room, and a second or more to send.
    file.set_len(1 << 30).expect("room");
    std::fs::create_dir(lab.path("folder")).expect("a folder");
    for (signal, code) in [(Signal::INT, 130), (Signal::TERM, 143)] {
        let there = || std::fs::metadata(lab.path("folder/.large.part")).map_or(0, |part| part.len());
        // The second one finds what the first one left.
        let before = there();
        let get = lab.spawn(&["files", "get", "nf://large", "folder"]);
        eventually("something has come", || there() > before);
        let ended = get.stop(signal);
        assert_eq!((ended.code, ended.stdout.as_str()), (Some(code), ""), "{ended:?}");
        // The next one goes on with it.
        assert_eq!(lab.names("folder"), [".large.part"]);
    }
}

#[test]
fn folders_on_the_way_to_a_file_are_made() {
    let (lab, _up) = Lab::up();
    lab.write("shared/a.txt", "a");
    let ended = lab.run(&["files", "get", "nf://a.txt", "new/folder/copy.txt"]);
    assert_eq!(ended.code, Some(0), "{ended:?}");
    assert_eq!(lab.read("new/folder/copy.txt"), "a");
}

#[test]
fn a_full_disk_behind_standard_output_is_named() {
    let full = || std::fs::File::options().write(true).open("/dev/full").expect("it is there");
    let (lab, _up) = Lab::up();
    lab.write("shared/a.txt", "a");
    for arguments in [&["files", "get", "nf://a.txt", "-"][..], &["-h"], &["files", "--help"], &["--version"]] {
        let mut command = lab.command(arguments);
        command.stdout(full());
        let ended = crate::support::Role::spawn(command).end();
        assert_eq!(ended.code, Some(1), "{arguments:?}: {ended:?}");
        assert!(ended.stderr.starts_with("error: cannot write to standard output: No space left"), "{ended:?}");
    }
}

#[test]
fn several_files_go_into_a_folder() {
    let (lab, _up) = Lab::up();
    for (name, bytes) in [("d/a.bin", 300_000), ("b.bin", 200_000), ("c.bin", 0)] {
        lab.write(&format!("shared/{name}"), content(bytes));
    }
    let urls = ["nf://d/a.bin", "nf://b.bin", "nf://c.bin"];
    let get = |options: &[&str]| lab.run(&[&["files", "get"], &urls[..], options].concat());
    for (options, folder) in [(&["--to", "one/deep"][..], "one/deep"), (&["two/"], "two"), (&[], ".")] {
        let ended = get(options);
        assert_eq!((ended.code, ended.stderr.as_str()), (Some(0), ""), "{options:?}: {ended:?}");
        let mut lines: Vec<_> = ended.stdout.lines().map(|line| line.split(' ').next().unwrap_or_default()).collect();
        lines.sort_unstable();
        let name = |name: &str| if folder == "." { name.to_owned() } else { format!("{folder}/{name}") };
        assert_eq!(lines, ["a.bin", "b.bin", "c.bin"].map(name));
        assert!(std::fs::read(lab.path(folder).join("a.bin")).expect("it is there") == content(300_000));
    }
    let document = get(&["--to", "one/deep", "--json"]).json();
    let told: Vec<_> = document["files"].as_array().expect("a list").iter().map(|file| &file["url"]).collect();
    assert_eq!(told, urls);
}

#[test]
fn files_that_are_there_come_although_others_are_not() {
    let (lab, _up) = Lab::up();
    lab.write("shared/a", "a");
    let ended = lab.run(&["files", "get", "nf://nope", "nf://a", "--to", "here"]);
    assert_eq!(
        (ended.code, ended.stdout.as_str()),
        (Some(1), "here/a (1 bytes, from filesharing-worker-1)\n"),
        "{ended:?}"
    );
    assert!(ended.stderr.starts_with("error: no file sharing worker has 'nf://nope': "), "{ended:?}");
    let ended = lab.run(&["files", "get", "nf://nope", "nf://a", "--to", "here", "--json"]);
    let document = ended.json();
    assert_eq!(
        (ended.code, &document["exit_code"], &document["error"]),
        (Some(1), &1.into(), &"1 of 2 files did not come".into())
    );
    assert_eq!((&document["files"][0]["exit_code"], &document["files"][1]["size_bytes"]), (&1.into(), &1.into()));
}

#[test]
fn what_cannot_be_meant_of_several_files_is_refused() {
    let lab = Lab::empty();
    let of = |arguments: &[&str]| {
        let ended = lab.run(&[&["files", "get"], arguments].concat());
        assert_eq!((ended.code, ended.stdout.as_str()), (Some(2), ""), "{arguments:?}: {ended:?}");
        ended.stderr
    };
    assert_snapshot!(of(&["nf://a/x", "nf://b/x"]), @"error: 'nf://a/x' and 'nf://b/x' would both become 'x': fetch them one after the other, with a name for each");
    assert_snapshot!(of(&["nf://a", "nf://b", "-"]), @"error: standard output is for one file: name a folder with --to DIR");
    assert_snapshot!(of(&["nf://a", "b", "c"]), @"error: 'b' is no file URL: write nf://PATH or git://REMOTE/PATH");
    assert_snapshot!(of(&["a", "--to", "b"]), @"error: 'a' is no file URL: write nf://PATH or git://REMOTE/PATH");
}
