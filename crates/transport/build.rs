//! Builds libzmq 4.3.5 with CURVE on top of the libsodium that `libsodium-sys-stable` built, and links it statically.
#![allow(missing_docs, unsafe_code)]

use std::env;

/// What libzmq's own configure script finds out on Linux. The crate that carries its sources does not ask, and libzmq then
/// falls back to slower ways (a socket pair instead of an eventfd for each wake-up) or, silently, to none at all
/// (TCP keepalive settings are ignored; heartbeat timers follow the wall clock).
const LINUX: &[&str] = &[
    "HAVE_ACCEPT4",
    "ZMQ_HAVE_EVENTFD",
    "ZMQ_HAVE_EVENTFD_CLOEXEC",
    "ZMQ_HAVE_PTHREAD_SETNAME_2",
    "ZMQ_HAVE_SOCK_CLOEXEC",
    "ZMQ_HAVE_TCP_KEEPIDLE",
];

/// The same for every Unix.
const UNIX: &[&str] = &[
    "HAVE_CLOCK_GETTIME",
    "HAVE_IF_NAMETOINDEX",
    "ZMQ_HAVE_IFADDRS",
    "ZMQ_HAVE_O_CLOEXEC",
    "ZMQ_HAVE_SO_KEEPALIVE",
    "ZMQ_HAVE_TCP_KEEPCNT",
    "ZMQ_HAVE_TCP_KEEPINTVL",
];

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    let include = env::var("DEP_SODIUM_INCLUDE").expect("libsodium-sys-stable tells where its headers are");
    let lib = env::var("DEP_SODIUM_LIB").expect("libsodium-sys-stable tells where its library is");
    let system = env::var("CARGO_CFG_TARGET_OS").expect("cargo names the target system");

    let mut flags = env::var("CXXFLAGS").unwrap_or_default();
    let defines = UNIX.iter().chain(if system == "linux" { LINUX } else { &[] });
    for define in defines {
        flags.push_str(&format!(" -D{define}=1"));
    }
    // SAFETY: a build script has one thread at this point.
    unsafe {
        env::set_var("CXXFLAGS", flags);
        // A debug build of the fabric still moves its bytes at full speed: an unoptimised libzmq would make every
        // figure and every time-out of the tests meaningless.
        env::set_var("OPT_LEVEL", "3");
        env::set_var("DEBUG", "false");
    }

    zeromq_src::Build::new()
        .with_libsodium(Some(zeromq_src::LibLocation::new(lib, include)))
        // The DRAFT interface is needed for one option: ZMQ_HICCUP_MSG, by which a DEALER learns in the order of its
        // messages that its connection was lost.
        .enable_draft(true)
        .build();
}
