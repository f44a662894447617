//! Trees that change while something in them is opened.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::symlink;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use rustix::fs::{CWD, RenameFlags, renameat_with};
use tempfile::TempDir;

use super::{Dead, Folder, Found};
use crate::hidden::Hidden;

/// How long each race is run, at least.
const RACE: Duration = Duration::from_millis(800);

/// How long it is run where a busy machine shows one side of the change only.
const PATIENCE: Duration = Duration::from_secs(20);

/// A shared folder with `file` and `dir/file`, and what must not be reached beside it. `file_link` and `dir_link` lead
/// there.
fn tree() -> TempDir {
    let outer = tempfile::tempdir().expect("a folder");
    for place in ["base", "outside"] {
        let dir = outer.path().join(place).join("dir");
        fs::create_dir_all(&dir).expect("made");
        for file in [dir.join("file"), dir.with_file_name("file")] {
            fs::write(file, place).expect("written");
        }
    }
    symlink("../outside/file", outer.path().join("base/file_link")).expect("linked");
    symlink("../outside/dir", outer.path().join("base/dir_link")).expect("linked");
    outer
}

/// Exchanges two names of the shared folder without a pause, and meanwhile opens `path` as often as possible.
fn race(one: &str, other: &str, path: &[&str], one_call: bool) {
    let outer = tree();
    let base = outer.path().join("base");
    let folder = Folder::new(base.clone(), Hidden::default());
    folder.one_call.store(one_call, Ordering::Relaxed);
    let names: Vec<String> = path.iter().map(|name| (*name).to_owned()).collect();
    let (mut found, mut refused) = (0_u64, 0_u64);
    let over = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            while !over.load(Ordering::Relaxed) {
                renameat_with(CWD, base.join(one), CWD, base.join(other), RenameFlags::EXCHANGE).expect("exchanged");
            }
        });
        let began = Instant::now();
        let mut leak = None;
        while leak.is_none() {
            let enough = if found > 0 && refused > 0 { RACE } else { PATIENCE };
            if began.elapsed() > enough {
                break;
            }
            match folder.find(&names) {
                Ok(Found::File { handle, .. }) => {
                    let content = io::read_to_string(File::from(handle)).expect("readable");
                    leak = (content != "base").then_some(content);
                    found += 1;
                }
                // A name that is exchanged all the time may look as if it were not there.
                Err(Dead::Outside | Dead::Missing) => refused += 1,
                other => leak = Some(format!("{other:?}")),
            }
        }
        // Before any panic: the scope waits for the other thread.
        over.store(true, Ordering::Relaxed);
        assert_eq!(leak, None);
    });
    assert!(found > 0 && refused > 0, "found {found}, refused {refused}");
}

#[test]
fn a_file_that_becomes_a_link_does_not_lead_out() {
    race("file", "file_link", &["file"], true);
    race("file", "file_link", &["file"], false);
}

#[test]
fn a_directory_that_becomes_a_link_does_not_lead_out() {
    race("dir", "dir_link", &["dir", "file"], true);
    race("dir", "dir_link", &["dir", "file"], false);
}
