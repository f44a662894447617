//! The limit: a bare ROUTER in C in the place of the broker.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use norfab_peer_tests::{Peer, ReservedPort, source};

use crate::figure::Plan;
use crate::route;

/// Microseconds of CPU that the bare ROUTER needs for a job.
pub fn cpu_per_job(plan: &Plan, workers: u32) -> f64 {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let port = ReservedPort::new();
    let mut command = Command::new(build(folder.path()));
    command.args([&port.endpoint(), "--curve"]);
    let router = Peer::start_binary("router", command);
    let key = router.ready()["name"].as_str().expect("the router prints its key").to_owned();
    route::drive(plan, &port.endpoint(), &key, router.id(), workers)
}

/// Compiles the router against a libzmq with the libsodium that our own broker has (`tests/libzmq`), or else the system's.
fn build(folder: &Path) -> PathBuf {
    let program = folder.join("router");
    let mut compiler = Command::new("cc");
    compiler.args(["-O2", "-o"]).arg(&program).arg(source().join("bench/router.c"));
    match our_libraries() {
        Some((zmq, sodium)) => {
            let mut folders = zmq.ancestors().map(|folder| folder.join("source/include"));
            let include = folders.find(|folder| folder.join("zmq.h").exists());
            compiler.arg("-I").arg(include.expect("the headers are near the library"));
            compiler.args([&zmq, &sodium]).args(["-lstdc++", "-lm", "-lpthread"]);
        }
        None => {
            compiler.arg("-lzmq");
        }
    }
    let output = compiler.output().expect("a C compiler is installed");
    assert!(output.status.success(), "{compiler:?}: {}", String::from_utf8_lossy(&output.stderr));
    program
}

/// The newest `libzmq.a` and `libsodium.a` of the build that this program is part of.
fn our_libraries() -> Option<(PathBuf, PathBuf)> {
    let program = std::env::current_exe().ok()?;
    let builds = program.parent()?.join("build");
    let mut found = Vec::new();
    list(&builds, 0, &mut found);
    let newest = |name: &str| {
        let files = found.iter().filter(|file| file.file_name().is_some_and(|other| other == name));
        files.max_by_key(|file| file.metadata().and_then(|data| data.modified()).ok()).cloned()
    };
    Some((newest("libzmq.a")?, newest("libsodium.a")?))
}

/// All static libraries below a folder, not too deep: build scripts put them a few folders down.
fn list(folder: &Path, depth: usize, found: &mut Vec<PathBuf>) {
    const DEPTH_MAX: usize = 6;
    let Ok(entries) = fs::read_dir(folder) else { return };
    for path in entries.filter_map(|entry| Some(entry.ok()?.path())) {
        if path.extension().is_some_and(|extension| extension == "a") {
            found.push(path);
        } else if path.is_dir() && depth < DEPTH_MAX {
            list(&path, depth + 1, found);
        }
    }
}
