//! `cargo xtask fuzz`: fuzzes one target, or each in turn.

use std::fs;

use crate::Failure;
use crate::process::{cargo, root, run as run_program, works};

/// How long a target is fuzzed when nobody says otherwise.
const SECONDS: u32 = 60;

/// The command with its arguments: `[TARGET] [--seconds N]`.
pub fn run(arguments: &[String]) -> Result<(), Failure> {
    let mut seconds = SECONDS;
    let mut wanted = Vec::new();
    let mut words = arguments.iter();
    while let Some(word) = words.next() {
        if word == "--seconds" {
            let number = words.next().ok_or("--seconds needs a number")?;
            seconds = number.parse().map_err(|_| format!("--seconds needs a whole number, not {number:?}"))?;
        } else {
            wanted.push(word.clone());
        }
    }
    let targets = targets()?;
    if let Some(unknown) = wanted.iter().find(|name| !targets.contains(name)) {
        return Err(format!("there is no fuzz target {unknown:?}; there are {}", targets.join(", ")));
    }
    if !works(&mut cargo(["fuzz", "--version"])) {
        return Err("cargo fuzz is not installed; install it with `cargo install cargo-fuzz`".to_owned());
    }
    for target in if wanted.is_empty() { &targets } else { &wanted } {
        let mut command = cargo(["fuzz", "run", target, "--", &format!("-max_total_time={seconds}")]);
        // The sanitizers of a stable compiler are behind this switch.
        run_program(command.env("RUSTC_BOOTSTRAP", "1"))?;
    }
    Ok(())
}

fn targets() -> Result<Vec<String>, Failure> {
    let folder = root().join("fuzz/fuzz_targets");
    let entries = fs::read_dir(&folder).map_err(|error| format!("cannot list fuzz/fuzz_targets: {error}"))?;
    let mut names: Vec<String> =
        entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.strip_suffix(".rs").map(str::to_owned)).collect();
    names.sort();
    Ok(names)
}
