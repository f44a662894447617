//! Lists of operations on the client machine, with everything that must hold after each.
#![no_main]

use libfuzzer_sys::fuzz_target;
use machines::client::{self, ClientOperation};

#[path = "../../crates/protocol/tests/machines/mod.rs"]
mod machines;

fuzz_target!(|operations: Vec<ClientOperation>| {
    client::run(&operations);
});
