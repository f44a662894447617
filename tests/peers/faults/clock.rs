//! A wall clock that can be stepped without touching that of the machine: a few functions that are preloaded into all parts.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use norfab_peer_tests::source;
use tempfile::TempDir;

/// The variable that names the file with the step.
const VARIABLE: &str = "NORFAB_CLOCK_STEP";

/// Preloading is asked for by this one.
const PRELOAD: &str = "LD_PRELOAD";

/// The clock of the parts that are started while this exists.
pub struct Clock(TempDir);

impl Clock {
    /// Whether the functions can be built and preloaded here.
    pub fn possible() -> Result<(), String> {
        let folder = tempfile::tempdir().map_err(|error| error.to_string())?;
        build(folder.path())?;
        // A machine that does not preload shows the time of the machine.
        fs::write(folder.path().join("step"), (-86_400_i64 * 365 * 30).to_ne_bytes())
            .map_err(|error| error.to_string())?;
        let mut date = Command::new("date");
        date.arg("+%Y").env(PRELOAD, folder.path().join("clock.so")).env(VARIABLE, folder.path().join("step"));
        let output = date.output().map_err(|error| format!("date: {error}"))?;
        let year = String::from_utf8_lossy(&output.stdout).trim().to_owned();
        match year.parse::<u32>() {
            Ok(year) if year < 2010 => Ok(()),
            _ => Err(format!("preloading has no effect: the year is {year:?}")),
        }
    }

    /// The right time, for now. Parts that are started from now on have this clock.
    pub fn new() -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        build(folder.path()).unwrap_or_else(|error| panic!("{error}"));
        let clock = Self(folder);
        clock.set(0);
        clock
    }

    /// Commands that are to have this clock get these variables.
    pub fn variables(&self) -> [(&'static str, PathBuf); 2] {
        [(PRELOAD, self.0.path().join("clock.so")), (VARIABLE, self.0.path().join("step"))]
    }

    /// Adds to what the clock shows now.
    pub fn step(&self, seconds: i64) {
        let now = fs::read(self.0.path().join("step")).expect("it is there");
        let now = i64::from_ne_bytes(now.try_into().expect("eight bytes"));
        self.set(now + seconds);
    }

    /// In place, as it is mapped.
    fn set(&self, seconds: i64) {
        use std::io::Write;
        let file = fs::File::options().write(true).create(true).truncate(false).open(self.0.path().join("step"));
        file.expect("a file").write_all(&seconds.to_ne_bytes()).expect("eight bytes");
    }
}

fn build(folder: &Path) -> Result<(), String> {
    let mut compiler = Command::new("cc");
    compiler.args(["-shared", "-fPIC", "-O2", "-o"]).arg(folder.join("clock.so")).arg(source().join("faults/clock.c"));
    let output = compiler.output().map_err(|error| format!("cc: {error}"))?;
    if output.status.success() { Ok(()) } else { Err(String::from_utf8_lossy(&output.stderr).into_owned()) }
}
