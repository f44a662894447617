//! A disk that can be filled: a small file system in memory, for keys and databases of all parts.

use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};

use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};

/// Its size: the databases of 500 jobs take less.
const SIZE: &std::ffi::CStr = c"size=24m";

/// A mounted file system; it goes away when this is dropped.
pub struct SmallDisk(PathBuf);

impl SmallDisk {
    /// Whether this machine lets us mount one.
    pub fn possible() -> Result<(), String> {
        let folder = tempfile::tempdir().map_err(|error| error.to_string())?;
        mount("none", folder.path(), "tmpfs", MountFlags::empty(), Some(SIZE))
            .map_err(|error| format!("no file systems of our own: {error}"))?;
        unmount(folder.path(), UnmountFlags::DETACH).map_err(|error| error.to_string())
    }

    /// Mounts one in a folder, which is made.
    pub fn mount(folder: &Path) -> Self {
        fs::create_dir(folder).expect("a new folder");
        mount("none", folder, "tmpfs", MountFlags::empty(), Some(SIZE)).expect("it was tried before");
        Self(folder.to_path_buf())
    }

    /// Leaves no space.
    pub fn fill(&self) {
        let mut file = File::create(self.filler()).expect("a file");
        let chunk = [0; 4096];
        while file.write_all(&chunk).is_ok() {}
    }

    /// Gives the space back.
    pub fn free(&self) {
        fs::remove_file(self.filler()).expect("it is there");
    }

    fn filler(&self) -> PathBuf {
        self.0.join("filler")
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        // Files that are still open keep it alive, and it goes with them.
        if let Err(error) = unmount(&self.0, UnmountFlags::DETACH) {
            eprintln!("{}: {error}", self.0.display());
        }
    }
}
