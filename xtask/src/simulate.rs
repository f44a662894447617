//! `cargo xtask simulate`: the seeded simulation of all three roles.

use crate::Failure;
use crate::process::{cargo, run as run_program};

/// Passes everything on to the simulation, which knows its arguments: `--seeds N --first S`.
pub fn run(arguments: &[String]) -> Result<(), Failure> {
    let mut command = cargo(["run", "--release", "--quiet", "--package", "norfab-simulation", "--"]);
    run_program(command.args(arguments))
}

/// Seeds that are run before a change goes in: some twenty seconds, beside the build.
const SEEDS: &str = "10000";

/// What must hold before a change goes in.
pub fn check() -> Result<(), Failure> {
    run(&["--seeds".to_owned(), SEEDS.to_owned()])
}
