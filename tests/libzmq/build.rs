//! Builds libzmq 4.3.5 with CURVE on top of the libsodium that `libsodium-sys-stable` built.

use std::env;

/// What libzmq's own configure script finds out on Linux. The crate that carries its sources does not ask, and libzmq then
/// falls back to slower ways, such as a socket pair instead of an eventfd for each wake-up.
const FOUND: &[&str] =
    &["HAVE_ACCEPT4", "HAVE_CLOCK_GETTIME", "ZMQ_HAVE_EVENTFD", "ZMQ_HAVE_EVENTFD_CLOEXEC", "ZMQ_HAVE_SOCK_CLOEXEC"];

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    let include = env::var("DEP_SODIUM_INCLUDE").expect("libsodium-sys-stable tells where its headers are");
    let lib = env::var("DEP_SODIUM_LIB").expect("libsodium-sys-stable tells where its library is");
    let mut flags = env::var("CXXFLAGS").unwrap_or_default();
    for define in FOUND {
        flags.push_str(&format!(" -D{define}=1"));
    }
    env::set_var("CXXFLAGS", flags);
    env::set_var("OPT_LEVEL", "3");
    env::set_var("DEBUG", "false");
    zeromq_src::Build::new().with_libsodium(Some(zeromq_src::LibLocation::new(lib, include))).build();
}
