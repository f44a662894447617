//! A small file system of a test's own, which can be full.

use std::ffi::CStr;
use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};

use rustix::io::Errno;
use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};

/// Makes it a failure that the system does not let us mount: for machines that are to run all tests.
const REQUIRED_VARIABLE: &str = "NORFAB_TESTS_MUST_MOUNT";

/// A file system in memory; it goes away when this is dropped.
pub struct Mounted(tempfile::TempDir);

impl Mounted {
    /// `size`: its option. `None`, and a word about it: the system does not let us mount one.
    pub fn new(size: &CStr) -> Option<Self> {
        let folder = tempfile::tempdir().expect("a folder");
        let error = match mount("none", folder.path(), "tmpfs", MountFlags::empty(), Some(size)) {
            Ok(()) => return Some(Self(folder)),
            Err(error) => error,
        };
        assert!(error == Errno::PERM || error == Errno::ACCESS, "{error}");
        let is_required = std::env::var_os(REQUIRED_VARIABLE).is_some();
        assert!(!is_required, "{REQUIRED_VARIABLE} is set, and no file system can be mounted: {error}");
        eprintln!("left out, as no file system can be mounted: {error}");
        None
    }

    /// Where it is.
    pub fn folder(&self) -> &Path {
        self.0.path()
    }

    /// A file in it.
    pub fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// Something else takes all the space.
    pub fn fill(&self) {
        let mut file = File::create(self.path("filler")).expect("a file");
        while file.write_all(&[0; 4096]).is_ok() {}
    }

    /// It gives so many bytes back.
    pub fn leave(&self, bytes: u64) {
        let filler = File::options().write(true).open(self.path("filler")).expect("the filler");
        filler.set_len(filler.metadata().expect("a file").len() - bytes).expect("a shorter file");
    }

    /// It gives all back.
    pub fn empty(&self) {
        std::fs::remove_file(self.path("filler")).expect("space again");
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        unmount(self.0.path(), UnmountFlags::DETACH).expect("an unmount");
    }
}
