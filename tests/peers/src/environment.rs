//! Where the Python environments and our binary are.

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A Python environment with pinned packages, made by `cargo xtask peers`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Environment {
    /// NorFab 0.21.2.
    NorFab0212,
    /// NorFab 0.25.0.
    NorFab0250,
    /// NorFab 0.25.0 with what its `nornir` and `fastapi` services need, and simulated devices.
    Services,
}

impl Environment {
    /// Folder of the environment below `target/peers`.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::NorFab0212 => "py-0.21.2",
            Self::NorFab0250 => "py-0.25.0",
            Self::Services => "py-nornir",
        }
    }

    /// A command that runs a file of `tests/peers`, as `python/client.py`, in this environment.
    ///
    /// # Panics
    ///
    /// When the environment was not made; the text says how to make it.
    #[must_use]
    pub fn script(self, script: &str) -> Command {
        let python = environments().join(self.name()).join("bin/python");
        assert!(
            python.exists(),
            "no Python environment {} at {}; make it with `cargo xtask peers`",
            self.name(),
            python.display()
        );
        let mut command = Command::new(python);
        command.arg("-u").arg(source().join(script));
        // Byte code beside the sources would be found by whoever looks at the tree.
        command.env("PYTHONDONTWRITEBYTECODE", "1").env("PYTHONUTF8", "1");
        command
    }
}

/// A command that runs our binary: `NORFAB_BIN`, or else `norfab` of the debug build.
///
/// # Panics
///
/// When the binary is missing; the text says how to build it.
#[must_use]
pub fn norfab() -> Command {
    let binary = env::var_os("NORFAB_BIN").map_or_else(|| target().join("debug/norfab"), PathBuf::from);
    assert!(
        binary.exists(),
        "no binary at {}; build it with `cargo build -p norfab`, or set NORFAB_BIN",
        binary.display()
    );
    let mut command = Command::new(binary);
    // What the user who runs the tests has set for a fabric of their own must not reach the tests.
    for (name, _) in env::vars_os() {
        if name.to_string_lossy().starts_with("NORFAB_") {
            command.env_remove(name);
        }
    }
    command
}

/// A command that runs our crates in a role of the fabric: the program `norfab-peer` of this package.
///
/// # Panics
///
/// When the program was not built, which happens if only a part of the package was.
#[must_use]
pub fn ours(role: &str) -> Command {
    let running = env::current_exe().expect("the path of the running program is known");
    let folders = running.ancestors().skip(1).take(2);
    let program = folders.map(|folder| folder.join("norfab-peer")).find(|program| program.exists());
    let mut command = Command::new(program.expect("norfab-peer is built with the tests of its package"));
    command.arg(role);
    command
}

/// The folder of the environments: `NORFAB_PEERS`, or else `target/peers`.
fn environments() -> PathBuf {
    env::var_os("NORFAB_PEERS").map_or_else(|| target().join("peers"), PathBuf::from)
}

/// The build folder: the one that this test was built into, wherever that was set to be.
fn target() -> PathBuf {
    let test = env::current_exe().expect("the path of the running test is known");
    test.ancestors()
        .find(|folder| folder.join("CACHEDIR.TAG").exists())
        .map_or_else(|| source().join("../../target"), Path::to_path_buf)
}

/// The folder `tests/peers`.
#[must_use]
pub fn source() -> PathBuf {
    // Not from the environment: a program that cargo runs inherits what was set for another package.
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}
