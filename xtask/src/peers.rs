//! `cargo xtask peers`: the Python environments of the peer tests.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::Instant;

use crate::Failure;
use crate::process::{root, target, works};

/// The environments, each with a file of pinned requirements in `tests/peers/python/requirements`.
const ENVIRONMENTS: &[&str] = &["py-0.21.2", "py-0.25.0", "py-nornir"];

/// What the pins were resolved for. The simulated devices have no release that takes 3.13.
const VERSIONS: &str = "Python 3.11 or 3.12";

/// Succeeds where an interpreter is one of [`VERSIONS`] and can make environments. `.ci/run` asks the same.
const FITS: &str = "import sys, venv, ensurepip; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 12))";

/// Interpreters that are tried in this order.
const INTERPRETERS: &[&str] = &["python3.11", "python3", "python3.12"];

/// The folder of the environments.
pub fn folder() -> PathBuf {
    target().join("peers")
}

/// The interpreter of an environment.
pub fn python(environment: &str) -> PathBuf {
    folder().join(environment).join("bin/python")
}

/// Makes the environments that are missing or that were made from other pins.
pub fn make() -> Result<(), Failure> {
    let folder = folder();
    fs::create_dir_all(&folder).map_err(|error| format!("cannot make {}: {error}", folder.display()))?;
    // Another test run may be at it: wait for it, and use what it made.
    let lock =
        File::create(folder.join("lock")).map_err(|error| format!("cannot lock {}: {error}", folder.display()))?;
    lock.lock().map_err(|error| format!("cannot lock {}: {error}", folder.display()))?;
    let mut missing = Vec::new();
    for name in ENVIRONMENTS {
        let environment = Environment::load(name)?;
        if environment.is_made() {
            eprintln!("{name} is there");
        } else {
            missing.push(environment);
        }
    }
    if missing.is_empty() {
        return Ok(());
    }
    let interpreter = interpreter()?;
    let results: Vec<Result<(), Failure>> = thread::scope(|scope| {
        let makers: Vec<_> = missing.iter().map(|one| scope.spawn(move || one.make(interpreter))).collect();
        makers.into_iter().map(|maker| maker.join().expect("no maker panics")).collect()
    });
    results.into_iter().collect()
}

/// An environment as it should be.
struct Environment {
    name: &'static str,
    requirements: PathBuf,
    /// What the environment depends on: if this changes it is made anew. An environment cannot be moved.
    stamp: String,
}

impl Environment {
    fn load(name: &'static str) -> Result<Self, Failure> {
        let requirements = root().join(format!("tests/peers/python/requirements/{name}.txt"));
        let pins = fs::read_to_string(&requirements)
            .map_err(|error| format!("cannot read {}: {error}", requirements.display()))?;
        let stamp = format!("{}\n{pins}", folder().join(name).display());
        Ok(Self { name, requirements, stamp })
    }

    fn is_made(&self) -> bool {
        let made = fs::read_to_string(self.stamp_file()).is_ok_and(|stamp| stamp == self.stamp);
        made && works(Command::new(python(self.name)).args(["-c", "import norfab.core.client"]))
    }

    fn make(&self, interpreter: &str) -> Result<(), Failure> {
        let began = Instant::now();
        let place = folder().join(self.name);
        eprintln!("making {} with {interpreter}", self.name);
        if place.exists() {
            fs::remove_dir_all(&place).map_err(|error| format!("cannot remove {}: {error}", place.display()))?;
        }
        let log = folder().join(format!("{}.log", self.name));
        logged(Command::new(interpreter).args(["-m", "venv"]).arg(&place), &log)?;
        let mut pip = Command::new(python(self.name));
        pip.args(["-m", "pip", "install", "--disable-pip-version-check", "--no-input", "--requirement"]);
        logged(pip.arg(&self.requirements), &log)?;
        let check = ["-m", "pip", "check", "--disable-pip-version-check"];
        logged(Command::new(python(self.name)).args(check), &log)?;
        fs::write(self.stamp_file(), &self.stamp).map_err(|error| format!("cannot write the stamp: {error}"))?;
        eprintln!("made {} in {:.0} s", self.name, began.elapsed().as_secs_f64());
        Ok(())
    }

    fn stamp_file(&self) -> PathBuf {
        folder().join(self.name).join("stamp")
    }
}

/// Whether the environments are there or could be made: known before anything long begins.
pub fn check() -> Result<(), Failure> {
    for name in ENVIRONMENTS {
        if !Environment::load(name)?.is_made() {
            return interpreter().map(|interpreter| println!("{interpreter} makes them"));
        }
    }
    println!("they are there");
    Ok(())
}

/// The first interpreter that can make environments.
fn interpreter() -> Result<&'static str, Failure> {
    let found = INTERPRETERS.iter().find(|name| works(Command::new(name).args(["-c", FITS])));
    found.copied().ok_or_else(|| {
        format!(
            "the peer tests need {VERSIONS} with venv, and none of {} is that: on Debian 12 `apt-get install python3-venv` \
             brings it; elsewhere install one beside the system's own, so that it is found under its name",
            INTERPRETERS.join(", ")
        )
    })
}

/// Runs a program that says a lot, and shows what it said only if it failed.
fn logged(command: &mut Command, log: &Path) -> Result<(), Failure> {
    let failure =
        |error: std::io::Error| format!("cannot run {:?} with its log at {}: {error}", command, log.display());
    let file = File::options().create(true).append(true).open(log).map_err(failure)?;
    let errors = file.try_clone().map_err(|error| error.to_string())?;
    let status = command.stdin(Stdio::null()).stdout(file).stderr(errors).status();
    let status = status.map_err(|error| format!("cannot run {command:?}: {error}"))?;
    if status.success() {
        return Ok(());
    }
    let said = fs::read_to_string(log).unwrap_or_default();
    let lines: Vec<&str> = said.lines().collect();
    let last = lines[lines.len().saturating_sub(20)..].join("\n  ");
    Err(format!("{command:?}: {status}\n  {last}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn documents_and_checks_name_the_interpreters_that_are_taken() {
        let text = |file: &str| fs::read_to_string(root().join(file)).expect("it is there");
        for file in ["README.md", "CONTRIBUTING.md"] {
            assert!(text(file).contains(VERSIONS), "{file}");
        }
        let named: Vec<String> = INTERPRETERS.iter().map(|name| format!("`{name}`")).collect();
        assert!(named.iter().all(|name| text("README.md").contains(name)));
        assert!(text(".ci/run").contains(VERSIONS));
        assert!(text(".ci/run").contains(FITS));
    }
}
