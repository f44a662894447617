//! `cargo xtask faults`: kill, freeze, cut and fill what a fabric runs on, and see what became of its jobs.

use std::process::Command;

use crate::process::{cargo, run_quietly, target};
use crate::{Failure, peers};

/// Builds what is started and passes everything on to the program that knows its arguments. Standard output belongs to the figures.
pub fn run(arguments: &[String]) -> Result<(), Failure> {
    if arguments.iter().any(|word| word == "--python") {
        peers::make()?;
    }
    let packages = ["--package", "norfab", "--package", "norfab-peer-tests"];
    run_quietly(cargo(["build", "--release", "--locked", "--bins"]).args(packages))?;
    let folder = target();
    let mut faults = Command::new(folder.join("release/norfab-faults"));
    faults.args(arguments).env("NORFAB_BIN", folder.join("release/norfab")).env("NORFAB_PEERS", peers::folder());
    run_quietly(&mut faults)
}
