//! `cargo xtask simulate`: the seeded simulation of all three roles.

use crate::Failure;
use crate::process::{cargo, run as run_program};

/// Passes everything on to the simulation, which knows its arguments: `--seeds N --first S`.
pub fn run(arguments: &[String]) -> Result<(), Failure> {
    let mut command = cargo(["run", "--release", "--quiet", "--package", "norfab-simulation", "--"]);
    run_program(command.args(arguments))
}
