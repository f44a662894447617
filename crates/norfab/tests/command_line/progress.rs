//! How far a transfer is, on a terminal.

use rustix::process::Signal;

use crate::support::{Lab, OnTerminal, Role};

/// How a line is taken away.
const CLEARED: &str = "\r\u{1b}[2K";

/// What stays on the screen: each line without what was taken away or written over.
fn left(shown: &str) -> String {
    let lines = shown.split('\n').map(|line| line.rsplit(CLEARED).next().unwrap_or_default());
    lines.collect::<Vec<_>>().join("\n")
}

fn large(lab: &Lab, name: &str) {
    let file = std::fs::File::create(lab.path(name)).expect("a file");
    // Sparse: it takes no room, and more than a moment to send.
    file.set_len(100 << 20).expect("room");
}

#[test]
fn a_terminal_shows_how_far_a_file_is_and_nothing_of_it_stays() {
    let (lab, _up) = Lab::up();
    large(&lab, "shared/la\u{1b}rge");
    let terminal = OnTerminal::start(&lab, &["files", "get", "nf://la\u{1b}rge", "here"]);
    terminal.shows("here ");
    terminal.shows("MiB/100.00 MiB ");
    terminal.shows("MiB/s ");
    let (ended, shown) = terminal.end();
    assert_eq!((ended.code, ended.stdout.as_str()), (Some(0), "here (104857600 bytes, from filesharing-worker-1)\n"));
    assert_eq!(left(&shown), "", "{shown:?}");
}

#[test]
fn an_error_stands_on_a_line_of_its_own_beside_other_files() {
    let (lab, _up) = Lab::up();
    large(&lab, "shared/large");
    let terminal = OnTerminal::start(&lab, &["files", "get", "nf://large", "nf://nope", "--to", "here"]);
    terminal.shows("1/2 files large ");
    let (ended, shown) = terminal.end();
    assert_eq!(ended.code, Some(1), "{ended:?}");
    let left = left(&shown);
    assert!(left.starts_with("error: no file sharing worker has 'nf://nope': "), "{left:?} of {shown:?}");
    assert!(left.ends_with("there\n") && left.lines().count() == 1, "{left:?} of {shown:?}");
}

#[test]
fn ctrl_c_takes_the_line_away() {
    let (lab, _up) = Lab::up();
    large(&lab, "shared/large");
    let terminal = OnTerminal::start(&lab, &["files", "get", "nf://large"]);
    terminal.shows("MiB/100.00 MiB ");
    terminal.role.signal(Signal::INT);
    let (ended, shown) = terminal.end();
    assert_eq!(ended.code, Some(130), "{shown:?}");
    assert_eq!(left(&shown), "", "{shown:?}");
}

#[test]
fn nothing_is_shown_where_nobody_looks() {
    let (lab, _up) = Lab::up();
    lab.write("shared/a", vec![0; 3_000_000]);
    for option in ["--json", "-q"] {
        let terminal = OnTerminal::start(&lab, &["files", "get", "nf://a", option]);
        let (ended, shown) = terminal.end();
        assert_eq!((ended.code, shown.as_str()), (Some(0), ""), "{option}");
        std::fs::remove_file(lab.path("a")).expect("it came");
    }
    let ended = Role::spawn(lab.command(&["files", "get", "nf://a"])).end();
    assert_eq!((ended.code, ended.stderr.as_str()), (Some(0), ""));
}
