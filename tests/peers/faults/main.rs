//! Real faults under a running fabric: 500 jobs each time, and each of them accounted for.
//!
//! `cargo xtask faults` builds what is started and runs this. A round is a broker, four workers in processes of their own and a
//! client, all over CURVE, with 500 jobs for `any` that take a tenth of a second each. The task itself writes down where each
//! execution begins and ends, so what a client is told can be compared with what happened:
//!
//! 1. [`fault`]: the faults, each with how it is done and undone.
//! 2. [`round`]: the fabric of one round.
//! 3. [`account`]: what became of the jobs.
//!
//! [`cut`], [`disk`] and [`clock`] are the means of three faults that need more than a signal. Where the machine does not let us
//! have them, that is said and the fault is left out.

mod account;
mod clock;
mod cut;
mod disk;
mod fault;
mod round;

use std::env;
use std::panic::{self, AssertUnwindSafe, catch_unwind};
use std::process::ExitCode;

use norfab_peer_tests::{Release, Side};
use serde_json::{Value, json};

use crate::account::Account;
use crate::fault::{FAULTS, Fault};

/// The Python release that we compare with.
const PYTHON: Side = Side::Python(Release::V0_25_0);

/// Rounds of a fault at a random time, unless told otherwise; the second number is for a quick run.
const ROUNDS: (u32, u32) = (30, 2);

/// Rounds of Python: what it loses shows soon, and its parts start slowly.
const PYTHON_ROUNDS_MAX: u32 = 3;

/// What was asked for.
struct Plan {
    rounds: u32,
    json: bool,
    python: bool,
    seed: u64,
    wanted: Vec<String>,
}

fn main() -> ExitCode {
    let plan = match plan(env::args().skip(1)) {
        Ok(plan) => plan,
        Err(problem) => {
            let names: Vec<&str> = FAULTS.iter().map(|fault| fault.name).collect();
            eprintln!("error: {problem}\nfaults: {}", names.join(", "));
            return ExitCode::FAILURE;
        }
    };
    fastrand::seed(plan.seed);
    eprintln!("seed {}: --seed {0} repeats the random times", plan.seed);
    // A round that cannot be run is told in one piece, not with the stack of this program.
    panic::set_hook(Box::new(|failure| eprintln!("{failure}")));
    let mut held = true;
    let mut rows = Vec::new();
    for fault in FAULTS.iter().filter(|fault| plan.wanted.is_empty() || plan.wanted.iter().any(|one| one == fault.name))
    {
        if let Err(missing) = (fault.possible)() {
            eprintln!("{}: not possible here: {missing}", fault.name);
            continue;
        }
        let ours = rounds(fault, Side::Ours, if fault.is_random { plan.rounds } else { 1 });
        held &= ours.as_ref().is_some_and(Account::is_whole);
        let python = if plan.python {
            rounds(fault, PYTHON, if fault.is_random { plan.rounds.min(PYTHON_ROUNDS_MAX) } else { 1 })
        } else {
            None
        };
        if plan.json {
            println!("{}", line(fault, ours.as_ref(), python.as_ref()));
        } else {
            for (side, account) in [("ours", &ours), ("python", &python)] {
                rows.extend(account.as_ref().map(|account| account.row(fault.name, side)));
            }
            eprintln!("{}", line(fault, ours.as_ref(), python.as_ref()));
        }
    }
    if !plan.json {
        println!("{}", account::HEADER);
        rows.iter().for_each(|row| println!("{row}"));
    }
    if held { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn plan(words: impl Iterator<Item = String>) -> Result<Plan, String> {
    let mut plan = Plan { rounds: ROUNDS.0, json: false, python: false, seed: fastrand::u64(..), wanted: Vec::new() };
    let mut words = words;
    let number = |word: Option<String>, option: &str| -> Result<u64, String> {
        let word = word.ok_or_else(|| format!("{option} needs a number"))?;
        word.parse().map_err(|_| format!("{option}: {word:?} is no number"))
    };
    while let Some(word) = words.next() {
        match word.as_str() {
            "--quick" => plan.rounds = plan.rounds.min(ROUNDS.1),
            "--json" => plan.json = true,
            "--python" => plan.python = true,
            "--rounds" => {
                let rounds = number(words.next(), "--rounds")?;
                plan.rounds = u32::try_from(rounds).map_err(|_| format!("--rounds: {rounds} is too much"))?;
            }
            "--seed" => plan.seed = number(words.next(), "--seed")?,
            name if FAULTS.iter().any(|fault| fault.name == name) => plan.wanted.push(word),
            other => {
                return Err(format!("neither --quick, --json, --python, --rounds N, --seed N nor a fault: {other:?}"));
            }
        }
    }
    Ok(plan)
}

/// All rounds of a fault on one side. `None`: one of them could not be run to its end, which was told.
fn rounds(fault: &Fault, side: Side, count: u32) -> Option<Account> {
    let mut all = Account::default();
    for number in 1..=count {
        let account = catch_unwind(AssertUnwindSafe(|| round::run(fault, side))).ok()?;
        if !account.is_whole() && side == Side::Ours {
            eprintln!("{} round {number}: {account:?}", fault.name);
        }
        all.add(account);
    }
    Some(all)
}

/// One line of JSON.
fn line(fault: &Fault, ours: Option<&Account>, python: Option<&Account>) -> Value {
    let mut line = json!({"fault": fault.name});
    if let (Value::Object(line), Some(Value::Object(figures))) = (&mut line, ours.map(Account::json)) {
        line.extend(figures);
    }
    if let Some(python) = python {
        line["python"] = python.json();
    }
    line
}
