//! A small complete service.
fn main() {}
