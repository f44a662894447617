//! Nothing: what counts is the `libzmq.a` that the build script leaves behind. `tests/peers/bench/router.rs` links it.
