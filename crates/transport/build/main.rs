//! Builds libzmq 4.3.5 with CURVE on top of the libsodium that `libsodium-sys-stable` built, and links it statically.
//!
//! The sources come with the crate `zeromq-src`, which compiles them from where cargo put them. Some of them are changed on the
//! way (`patch.rs`): this program also stands in for the C++ compiler, hands everything on to the real one, and puts the
//! changed text in the place of the original. So the changed files are compiled with the very flags of all others.
#![allow(missing_docs, unsafe_code)]

mod patch;

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::process::{Command, exit};
use std::{env, fs};

/// Names the real compiler to this program where it stands in for it.
const COMPILER: &str = "NORFAB_TRANSPORT_COMPILER";

/// The folder of the changed sources, below `OUT_DIR`.
const PATCHED: &str = "patched";

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
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo names the folder for what is built"));
    if let Some(compiler) = env::var_os(COMPILER) {
        exit(compile(&compiler, &out.join(PATCHED)));
    }
    println!("cargo:rerun-if-changed=build/main.rs");
    println!("cargo:rerun-if-changed=build/patch.rs");
    let include = env::var("DEP_SODIUM_INCLUDE").expect("libsodium-sys-stable tells where its headers are");
    let lib = env::var("DEP_SODIUM_LIB").expect("libsodium-sys-stable tells where its library is");
    let system = env::var("CARGO_CFG_TARGET_OS").expect("cargo names the target system");
    let target = env::var("TARGET").expect("cargo names the target");

    let mut flags = env::var("CXXFLAGS").unwrap_or_default();
    let defines = UNIX.iter().chain(if system == "linux" { LINUX } else { &[] });
    for define in defines {
        flags.push_str(&format!(" -D{define}=1"));
    }
    let patched = out.join(PATCHED);
    // What an earlier build left would hide that a file was not compiled now.
    fs::remove_dir_all(&patched).ok();
    fs::create_dir_all(&patched).expect("a folder for the changed sources");
    let compiler = cc::Build::new().cpp(true).get_compiler();
    let stand_in = env::current_exe().expect("this program has a path");
    // SAFETY: a build script has one thread at this point.
    unsafe {
        env::set_var("CXXFLAGS", flags);
        // A debug build of the fabric still moves its bytes at full speed: an unoptimised libzmq would make every
        // figure and every time-out of the tests meaningless.
        env::set_var("OPT_LEVEL", "3");
        env::set_var("DEBUG", "false");
        // Of all the ways to name a compiler, the one that goes before the others.
        env::set_var(format!("CXX_{target}"), stand_in);
        env::set_var(COMPILER, compiler.path());
        // A compiler cache does not know the stand-in as a compiler.
        env::remove_var("RUSTC_WRAPPER");
    }

    zeromq_src::Build::new()
        .with_libsodium(Some(zeromq_src::LibLocation::new(lib, include)))
        // The DRAFT interface is needed for one option: ZMQ_HICCUP_MSG, by which a DEALER learns in the order of its
        // messages that its connection was lost.
        .enable_draft(true)
        .build();

    for patch in patch::PATCHES {
        let file = patch.file;
        assert!(patched.join(file).exists(), "libzmq was built without the change of its {file} (build/patch.rs)");
    }
}

/// Calls the real compiler with the arguments of this program, but for a source that is to be changed; the exit code.
fn compile(compiler: &OsStr, patched: &Path) -> i32 {
    let arguments: Result<Vec<OsString>, String> = env::args_os()
        .skip(1)
        .map(|argument| Ok(changed(Path::new(&argument), patched)?.unwrap_or(argument)))
        .collect();
    let done = arguments.and_then(|arguments| {
        Command::new(compiler).args(arguments).status().map_err(|error| format!("{}: {error}", compiler.display()))
    });
    match done {
        Ok(status) => status.code().unwrap_or(1),
        Err(error) => {
            eprintln!("{error}");
            1
        }
    }
}

/// Writes a source that is to be changed and tells where; `None` for any other argument.
fn changed(source: &Path, patched: &Path) -> Result<Option<OsString>, String> {
    let Some(name) = source.file_name().and_then(OsStr::to_str) else { return Ok(None) };
    if !patch::PATCHES.iter().any(|patch| patch.file == name) {
        return Ok(None);
    }
    let text = fs::read_to_string(source).map_err(|error| format!("{}: {error}", source.display()))?;
    let Some(text) = patch::patched(name, &text)? else { return Ok(None) };
    let path = patched.join(name);
    fs::write(&path, text).map_err(|error| format!("{}: {error}", path.display()))?;
    Ok(Some(path.into()))
}
