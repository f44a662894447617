//! Lists of operations on the worker machine, with everything that must hold after each.
#![no_main]

use libfuzzer_sys::fuzz_target;
use machines::worker::{self, WorkerOperation};

#[path = "../../crates/protocol/tests/machines/mod.rs"]
mod machines;

fuzz_target!(|operations: Vec<WorkerOperation>| {
    worker::run(&operations);
});
