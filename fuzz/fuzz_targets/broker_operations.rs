//! Lists of operations on the broker machine, with everything that must hold after each.
#![no_main]

use libfuzzer_sys::fuzz_target;
use machines::broker::{self, BrokerOperation};

#[path = "../../crates/protocol/tests/machines/mod.rs"]
mod machines;

fuzz_target!(|operations: Vec<BrokerOperation>| {
    broker::run(&operations);
});
