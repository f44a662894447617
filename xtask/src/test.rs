//! `cargo xtask test`: everything that must hold before a change goes in.

use std::time::{Duration, Instant};

use crate::process::{cargo, run, target, works};
use crate::{Failure, documents, duplicates, licences, peers, simulate, sources};

/// A step of the test command.
struct Step {
    name: &'static str,
    what: &'static str,
    run: fn() -> Result<(), Failure>,
}

/// The steps. The cheap ones come first; the tests come last, so that their summary ends the output.
const STEPS: &[Step] = &[
    Step { name: "format", what: "formatting", run: format },
    Step { name: "python", what: "Python for the environments", run: peers::check },
    Step { name: "sources", what: "rules for source files", run: sources::check },
    Step { name: "licences", what: "licences of dependencies", run: licences::check },
    Step { name: "duplicates", what: "versions of dependencies", run: duplicates::check },
    Step { name: "clippy", what: "clippy", run: clippy },
    Step { name: "build", what: "build", run: build },
    Step { name: "fuzz", what: "fuzz targets still build", run: fuzz },
    Step { name: "documents", what: "commands and links in documents", run: documents::check },
    Step { name: "rustdoc", what: "documentation of the code", run: rustdoc },
    Step { name: "peers", what: "Python environments", run: peers::make },
    Step { name: "simulation", what: "10,000 seeds of the simulation", run: simulate::check },
    Step { name: "doctests", what: "tests in the documentation", run: doctests },
    Step { name: "tests", what: "tests", run: tests },
];

/// Runs all steps, or the ones that `--only` names.
pub fn run_steps(only: &[&str], keep_going: bool) -> Result<(), Failure> {
    let steps: Vec<&Step> = STEPS.iter().filter(|step| only.is_empty() || only.contains(&step.name)).collect();
    let start = Instant::now();
    let mut failed = Vec::new();
    for (index, step) in steps.iter().enumerate() {
        println!("\n== {}/{} {} ({})", index + 1, steps.len(), step.what, step.name);
        let began = Instant::now();
        match (step.run)() {
            Ok(()) => println!("-- {} ok, {}", step.name, seconds(began.elapsed())),
            Err(failure) => {
                println!("-- {} failed, {}: {failure}", step.name, seconds(began.elapsed()));
                failed.push(step.name);
                if !keep_going {
                    break;
                }
            }
        }
    }
    if failed.is_empty() {
        println!("\nall {} steps passed in {}", steps.len(), seconds(start.elapsed()));
        return Ok(());
    }
    Err(format!("failed: {}; run one alone with `cargo xtask test --only STEP`", failed.join(", ")))
}

/// The command with its arguments.
pub fn command(arguments: &[String]) -> Result<(), Failure> {
    let mut keep_going = false;
    let mut only = Vec::new();
    let mut words = arguments.iter();
    while let Some(word) = words.next() {
        match word.as_str() {
            "--keep-going" => keep_going = true,
            "--only" => {
                let name = words.next().ok_or("--only needs the name of a step")?;
                if !STEPS.iter().any(|step| step.name == name) {
                    let names: Vec<&str> = STEPS.iter().map(|step| step.name).collect();
                    return Err(format!("there is no step {name:?}; the steps are {}", names.join(", ")));
                }
                only.push(name.as_str());
            }
            "--help" | "-h" => {
                println!("usage: cargo xtask test [--keep-going] [--only STEP]...\n\nsteps, in their order:");
                STEPS.iter().for_each(|step| println!("  {:<12} {}", step.name, step.what));
                return Ok(());
            }
            other => {
                return Err(format!("unknown argument {other:?}; known are --keep-going and --only STEP"));
            }
        }
    }
    run_steps(&only, keep_going)
}

fn format() -> Result<(), Failure> {
    run(&mut cargo(["fmt", "--all", "--check"]))
}

fn clippy() -> Result<(), Failure> {
    run(&mut cargo(["clippy", "--workspace", "--all-targets", "--locked", "--quiet", "--", "-D", "warnings"]))
}

fn build() -> Result<(), Failure> {
    // All targets, as the tests have them: another choice would build the dependencies a second time.
    run(&mut cargo(["build", "--workspace", "--all-targets", "--locked", "--quiet"]))
}

fn fuzz() -> Result<(), Failure> {
    // A workspace of its own, in a folder of its own: what it builds must not push out what the others have built.
    let mut command = cargo(["clippy", "--manifest-path", "fuzz/Cargo.toml", "--locked", "--quiet", "--target-dir"]);
    run(command.arg(target().join("fuzz-check")).args(["--", "-D", "warnings"]))
}

fn rustdoc() -> Result<(), Failure> {
    let mut command = cargo(["doc", "--workspace", "--no-deps", "--document-private-items", "--locked", "--quiet"]);
    run(command.env("RUSTDOCFLAGS", "-D warnings"))
}

fn doctests() -> Result<(), Failure> {
    run(&mut cargo(["test", "--workspace", "--doc", "--locked", "--quiet"]))
}

fn tests() -> Result<(), Failure> {
    let mut command = if works(&mut cargo(["nextest", "--version"])) {
        cargo(["nextest", "run", "--workspace", "--locked", "--cargo-quiet", "--no-fail-fast"])
    } else {
        println!("cargo nextest is not installed, so the tests run through cargo test, one binary after the other");
        cargo(["test", "--workspace", "--locked", "--quiet", "--no-fail-fast"])
    };
    // Not the benches: they measure, and know no list of tests.
    command.args(["--lib", "--bins", "--tests", "--examples"]);
    // Cargo tells the path of a binary only to the tests of its own package.
    run(command.env("NORFAB_BIN", target().join("debug/norfab")))
}

fn seconds(duration: Duration) -> String {
    format!("{:.1} s", duration.as_secs_f64())
}
