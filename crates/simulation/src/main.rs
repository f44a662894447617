//! Runs seeds: `--seeds N --first S [--trace]`. Prints the first failure of each seed and how to see it again.

use std::process::ExitCode;
use std::time::Instant;

use norfab_simulation::trace::Trace;
use norfab_simulation::watch::Counts;

/// Seeds that are run when nobody says otherwise.
const SEEDS: u64 = 1000;

/// Failures after which the rest of the seeds is left out.
const FAILURES_MAX: u64 = 10;

fn main() -> ExitCode {
    match arguments() {
        Ok((first, seeds, trace)) => run(first, seeds, trace),
        Err(error) => {
            eprintln!("{error}\nusage: norfab-simulation [--seeds N] [--first S] [--trace]");
            ExitCode::from(2)
        }
    }
}

fn arguments() -> Result<(u64, u64, bool), String> {
    let (mut first, mut seeds, mut trace) = (0, SEEDS, false);
    let mut words = std::env::args().skip(1);
    while let Some(word) = words.next() {
        let mut number = || -> Result<u64, String> {
            let text = words.next().ok_or_else(|| format!("{word} needs a number"))?;
            text.parse().map_err(|_| format!("{word} needs a whole number, not {text:?}"))
        };
        match word.as_str() {
            "--seeds" => seeds = number()?,
            "--first" => first = number()?,
            "--trace" => trace = true,
            other => return Err(format!("unknown argument {other:?}")),
        }
    }
    Ok((first, seeds, trace))
}

fn run(first: u64, seeds: u64, trace: bool) -> ExitCode {
    let begun = Instant::now();
    let (mut failures, mut done, mut steps) = (0, 0, 0);
    let mut total = Counts::default();
    for seed in first..first.saturating_add(seeds) {
        let trace = if trace { Trace::Print } else { Trace::Off };
        done += 1;
        match norfab_simulation::run(seed, Instant::now(), trace) {
            Ok(summary) => {
                steps += summary.steps;
                total.add(&summary.counts);
            }
            Err(error) => {
                failures += 1;
                println!("FAILED {error}\n  again: cargo xtask simulate --seeds 1 --first {seed} --trace");
                if failures == FAILURES_MAX {
                    break;
                }
            }
        }
    }
    println!("{done} seeds, {failures} failed, {steps} steps in {:.1} s\n{total}", begun.elapsed().as_secs_f64());
    if failures == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
