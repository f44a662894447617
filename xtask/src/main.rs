//! Commands for those who work on the project: `cargo xtask COMMAND`.
//!
//! One file for each command; `test` runs most of the others as its steps. What a step has to say goes to standard
//! output, and the exit code is 0 only if nothing is wrong.

mod bench;
mod documents;
mod duplicates;
mod faults;
mod fuzz;
mod licences;
mod metadata;
mod peers;
mod process;
mod simulate;
mod sources;
mod spdx;
mod test;

use std::env;
use std::process::ExitCode;

/// What went wrong, for whoever ran the command.
type Failure = String;

/// The commands, with their arguments and what they do. Documents may name only these.
const COMMANDS: &[(&str, &str, &str)] = &[
    ("test", "[--keep-going] [--only STEP]", "everything that must hold before a change goes in, step by step"),
    ("licences", "", "the licence of every dependency is one that we accept"),
    (
        "duplicates",
        "",
        "the shipped binary has no dependency in two versions, but for those that are listed with a reason",
    ),
    ("sources", "", "rules for source files that no compiler checks"),
    ("documents", "", "documents name commands and files that exist"),
    ("peers", "", "make the Python environments of the peer tests in target/peers"),
    ("bench", "[--quick] [--ours] [--json] [FIGURE...]", "our figures beside those of Python NorFab, in one run"),
    (
        "faults",
        "[--quick] [--json] [--python] [--rounds N] [--seed N] [FAULT...]",
        "real faults under a running fabric, and what became of its jobs",
    ),
    ("simulate", "[--seeds N] [--first S] [ARGUMENT...]", "the seeded simulation of all three roles"),
    ("fuzz", "[TARGET] [--seconds N]", "fuzz one target, or each in turn"),
];

fn main() -> ExitCode {
    let mut words = env::args().skip(1);
    let command = words.next().unwrap_or_default();
    let arguments: Vec<String> = words.collect();
    // `test` lists its steps itself, and the simulation its arguments.
    let asks_help = arguments.iter().any(|word| matches!(word.as_str(), "--help" | "-h"));
    let done = match command.as_str() {
        known
            if asks_help
                && !matches!(known, "test" | "simulate")
                && COMMANDS.iter().any(|(name, ..)| *name == known) =>
        {
            print!("{}", usage_of(known));
            Ok(())
        }
        "test" => test::command(&arguments),
        "licences" => no_arguments(&arguments).and_then(|()| licences::check()),
        "duplicates" => no_arguments(&arguments).and_then(|()| duplicates::check()),
        "sources" => no_arguments(&arguments).and_then(|()| sources::check()),
        "documents" => no_arguments(&arguments).and_then(|()| documents::check()),
        "peers" => no_arguments(&arguments).and_then(|()| peers::make()),
        "bench" => bench::run(&arguments),
        "faults" => faults::run(&arguments),
        "simulate" => simulate::run(&arguments),
        "fuzz" => fuzz::run(&arguments),
        "help" | "--help" | "-h" => {
            print!("{}", usage());
            Ok(())
        }
        "" => Err(format!("no command given\n{}", usage())),
        other => Err(format!("there is no command {other:?}\n{}", usage())),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("error: {failure}");
            ExitCode::FAILURE
        }
    }
}

fn usage() -> String {
    let mut text = String::from("usage: cargo xtask COMMAND\n");
    for (name, arguments, purpose) in COMMANDS {
        text += &format!("  {:<44} {purpose}\n", format!("{name} {arguments}"));
    }
    text
}

fn usage_of(command: &str) -> String {
    let shown = COMMANDS.iter().filter(|(name, ..)| *name == command);
    shown.map(|(name, arguments, purpose)| format!("usage: cargo xtask {name} {arguments}\n  {purpose}\n")).collect()
}

fn no_arguments(arguments: &[String]) -> Result<(), Failure> {
    match arguments.first() {
        Some(word) => Err(format!("this command takes no arguments, but {word:?} was given")),
        None => Ok(()),
    }
}
