//! `cargo xtask bench`: our figures beside those of Python NorFab, in one run.

use std::process::Command;

use crate::process::{cargo, run_quietly, target};
use crate::{Failure, peers};

/// Builds what is measured and passes everything on to the bench program, which knows its arguments. Standard output
/// belongs to the figures.
pub fn run(arguments: &[String]) -> Result<(), Failure> {
    peers::make()?;
    let packages = ["--package", "norfab", "--package", "norfab-peer-tests"];
    run_quietly(cargo(["build", "--release", "--locked", "--bins"]).args(packages))?;
    // For the bare ROUTER that we are compared with.
    let libzmq = ["build", "--release", "--locked", "--manifest-path", "tests/libzmq/Cargo.toml", "--target-dir"];
    run_quietly(cargo(libzmq).arg(target()))?;
    let folder = target();
    let mut bench = Command::new(folder.join("release/norfab-bench"));
    bench.args(arguments).env("NORFAB_BIN", folder.join("release/norfab")).env("NORFAB_PEERS", peers::folder());
    run_quietly(&mut bench)
}
