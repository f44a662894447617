//! The norfab command: broker, workers, client and tools in one binary.
fn main() {}
