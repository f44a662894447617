//! The place of a checkout in the shared folder.
//!
//! A checkout is written to `__norfab__/checkouts/WORKER/new-REMOTE` below the shared folder, where nothing is served, and takes
//! its place in one step. The one before is kept for a while as `old-REMOTE`: who reads it sees all of it. In every checkout is a file `__norfab__` that says what it is: a folder without it that has content
//! of its own is never touched.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{self, Read, Write};
use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, PoisonError};

use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::{AtFlags, CWD, Mode, OFlags, openat, renameat, unlinkat};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use super::checkout::RESERVED;
use super::definition::MountPath;
use super::error::SyncError;
use super::tree::{self, entries, make_folder, open_folder};

/// The folder of checkouts that are not in their places, below [`RESERVED`].
const CHECKOUTS: &str = "checkouts";

/// What the names of checkouts begin with that are to come.
const NEW: &str = "new-";

/// What the names of checkouts begin with that were replaced. Whoever reads one goes on for a while.
const OLD: &str = "old-";

/// How often a folder is made that others remove.
const TRIES: usize = 10;

/// Most bytes of what a checkout says of itself.
const LABEL_BYTES_MAX: u64 = 64 * 1024;

/// What a checkout says of itself.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Label {
    pub(crate) remote: String,
    pub(crate) url: String,
    pub(crate) branch: String,
    pub(crate) commit: String,
}

/// What is in the place of a checkout.
#[derive(Debug)]
enum Standing {
    Nothing,
    /// A folder without content.
    Empty,
    /// A checkout.
    Checkout(Label),
    /// A folder with content of its own.
    Foreign(OwnedFd),
    /// A file or a link.
    NoFolder,
}

/// The shared folder as checkouts see it.
#[derive(Debug)]
pub(crate) struct Mounts {
    base_dir: PathBuf,
    worker: String,
    /// Held while folders for checkouts are made, or removed where they are empty.
    stages: Mutex<()>,
}

impl Mounts {
    pub(crate) fn new(base_dir: PathBuf, worker: String) -> Self {
        Self { base_dir, worker, stages: Mutex::new(()) }
    }

    /// What the checkout in this place says of itself; `None` where there is none. Blocks.
    pub(crate) fn label(&self, mount: &MountPath) -> Option<Label> {
        let parent = self.parent(mount, false).ok()??;
        match standing(&parent, mount.name()) {
            Ok(Standing::Checkout(label)) => Some(label),
            _ => None,
        }
    }

    /// Errors: what is in the place can be no checkout. Whether a folder there may be replaced is only known with its content:
    /// see [`Self::check_names`] and [`Self::publish`].
    pub(crate) fn check(&self, mount: &MountPath) -> Result<(), SyncError> {
        let Some(parent) = self.parent(mount, false)? else { return Ok(()) };
        match standing(&parent, mount.name())? {
            Standing::NoFolder => Err(no_folder(mount, mount.name())),
            _ => Ok(()),
        }
    }

    /// Errors: a folder in the place holds something that the checkout which is to come does not, so that it is none. Spares the
    /// writing of one that could not take its place.
    pub(crate) fn check_names(&self, mount: &MountPath, names: &BTreeSet<Vec<u8>>) -> Result<(), SyncError> {
        let Some(parent) = self.parent(mount, false)? else { return Ok(()) };
        let Standing::Foreign(folder) = standing(&parent, mount.name())? else { return Ok(()) };
        let found = entries(&folder).map_err(SyncError::errno("read the folder in the place of the remote"))?;
        if found.iter().all(|(name, _)| names.contains(name)) {
            return Ok(());
        }
        Err(SyncError::Taken { mount: mount.text() })
    }

    /// Makes an empty folder for a checkout that is to come. One that is left is removed.
    pub(crate) fn stage(&self, remote: &str) -> Result<OwnedFd, SyncError> {
        let _held = self.hold();
        let mut tries = 0;
        loop {
            tries += 1;
            let made = self.stages().and_then(|stages| {
                tree::remove(&stages, new(remote).as_bytes())?;
                Ok(make_folder(&stages, new(remote).as_bytes())?)
            });
            match made {
                // Another process removes it, as it is empty.
                Err(SyncError::Disk { source, .. }) if source.kind() == io::ErrorKind::NotFound && tries < TRIES => {}
                made => return made,
            }
        }
    }

    fn hold(&self) -> MutexGuard<'_, ()> {
        // There is nothing in it that could be half done.
        self.stages.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Puts the staged checkout into its place. Whoever reads there sees the old one or the new one. The old one is to be removed
    /// later: see [`Self::forget_old`].
    pub(crate) fn publish(&self, mount: &MountPath, staged: &OwnedFd, label: &Label) -> Result<(), SyncError> {
        let stages = self.stages()?;
        write_label(staged, label)?;
        let parent = self.parent(mount, true)?.ok_or_else(|| no_folder(mount, mount.name()))?;
        match standing(&parent, mount.name())? {
            Standing::NoFolder => return Err(no_folder(mount, mount.name())),
            Standing::Foreign(folder) => {
                // A checkout of the Python service has no label, and is ours if it is what we would put there.
                let same = tree::is_same(&folder, staged, RESERVED.as_bytes());
                if !same.map_err(SyncError::disk("compare the folder in the place of the remote"))? {
                    return Err(SyncError::Taken { mount: mount.text() });
                }
            }
            Standing::Nothing => {
                let renamed = renameat(&stages, new(&label.remote), &parent, mount.name());
                renamed.map_err(|errno| not_renamed(errno, mount))?;
                self.tidy();
                return Ok(());
            }
            Standing::Empty | Standing::Checkout(_) => {}
        }
        exchange(&stages, &label.remote, &parent, mount)
    }

    /// Removes a staged checkout that is not to be.
    pub(crate) fn discard(&self, remote: &str) -> Result<(), SyncError> {
        if let Some(stages) = self.existing_stages()? {
            tree::remove(&stages, new(remote).as_bytes())?;
        }
        self.tidy();
        Ok(())
    }

    /// Removes the checkout that was replaced, and the folders for checkouts where nothing is left in them.
    pub(crate) fn forget_old(&self, remote: &str) -> Result<(), SyncError> {
        if let Some(stages) = self.existing_stages()? {
            tree::remove(&stages, old(remote).as_bytes())?;
        }
        self.tidy();
        Ok(())
    }

    /// Removes the checkout in this place, and the folders on the way to it that are empty then. A folder with content of its
    /// own stays: then this is false.
    pub(crate) fn remove(&self, mount: &MountPath, remote: &str) -> Result<bool, SyncError> {
        if let Some(parent) = self.parent(mount, false)? {
            match standing(&parent, mount.name())? {
                Standing::Checkout(_) => {
                    // Out of sight in one step.
                    drop(self.stage(remote)?);
                    let stages = self.stages()?;
                    match renameat(&parent, mount.name(), &stages, new(remote)) {
                        Ok(()) => {}
                        Err(Errno::XDEV) => tree::remove(&parent, mount.name().as_bytes())?,
                        Err(errno) => return Err(SyncError::errno("remove the checkout")(errno)),
                    }
                }
                Standing::Nothing | Standing::Empty => {}
                Standing::Foreign(_) | Standing::NoFolder => {
                    self.forget_old(remote)?;
                    return Ok(false);
                }
            }
            self.prune(mount)?;
        }
        self.discard(remote)?;
        self.forget_old(remote)?;
        Ok(true)
    }

    /// Removes what a process left that was killed. Blocks.
    pub(crate) fn clean(&self) -> Result<(), SyncError> {
        if self.existing_stages()?.is_none() {
            return Ok(());
        }
        let base = self.base()?;
        let reserved = open_folder(&base, RESERVED.as_bytes())?;
        let checkouts = open_folder(&reserved, CHECKOUTS.as_bytes())?;
        tree::remove(&checkouts, self.worker.as_bytes())?;
        self.tidy();
        Ok(())
    }

    fn base(&self) -> Result<OwnedFd, SyncError> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        openat(CWD, &self.base_dir, flags, Mode::empty()).map_err(SyncError::errno("open the shared folder"))
    }

    /// The folder of checkouts that are not in their places. It is made.
    fn stages(&self) -> Result<OwnedFd, SyncError> {
        let mut folder = self.base()?;
        for name in [RESERVED, CHECKOUTS, &self.worker] {
            folder =
                make_folder(&folder, name.as_bytes()).map_err(SyncError::errno("make a folder for the checkout"))?;
        }
        Ok(folder)
    }

    fn existing_stages(&self) -> Result<Option<OwnedFd>, SyncError> {
        let mut folder = self.base()?;
        for name in [RESERVED, CHECKOUTS, &self.worker] {
            folder = match open_folder(&folder, name.as_bytes()) {
                Ok(folder) => folder,
                Err(Errno::NOENT) => return Ok(None),
                Err(errno) => return Err(SyncError::errno("open the folder for checkouts")(errno)),
            };
        }
        Ok(Some(folder))
    }

    /// Removes the folders for checkouts where they are empty.
    fn tidy(&self) {
        let _held = self.hold();
        let Ok(base) = self.base() else { return };
        let Ok(reserved) = open_folder(&base, RESERVED.as_bytes()) else { return };
        let Ok(checkouts) = open_folder(&reserved, CHECKOUTS.as_bytes()) else { return };
        // One that is in use stays.
        unlinkat(&checkouts, self.worker.as_str(), AtFlags::REMOVEDIR).ok();
        unlinkat(&reserved, CHECKOUTS, AtFlags::REMOVEDIR).ok();
        unlinkat(&base, RESERVED, AtFlags::REMOVEDIR).ok();
    }

    /// The folder that the checkout is in; `None` where it is not there and not to be made.
    fn parent(&self, mount: &MountPath, make: bool) -> Result<Option<OwnedFd>, SyncError> {
        let mut folder = self.base()?;
        for name in mount.above() {
            let opened =
                if make { make_folder(&folder, name.as_bytes()) } else { open_folder(&folder, name.as_bytes()) };
            folder = match opened {
                Ok(folder) => folder,
                Err(Errno::NOENT) => return Ok(None),
                Err(Errno::NOTDIR | Errno::LOOP | Errno::MLINK) => return Err(no_folder(mount, name)),
                Err(errno) => return Err(SyncError::errno("open the folder of the remote")(errno)),
            };
        }
        Ok(Some(folder))
    }

    /// Removes the folders on the way that are empty.
    fn prune(&self, mount: &MountPath) -> Result<(), SyncError> {
        let mut way = mount.clone();
        // An empty folder in the place of the checkout is one on the way to nothing, too.
        loop {
            if let Some(parent) = self.parent(&way, false)? {
                match unlinkat(&parent, way.name(), AtFlags::REMOVEDIR) {
                    Ok(()) | Err(Errno::NOENT) => {}
                    // In use, or not ours to remove.
                    Err(_) => return Ok(()),
                }
            }
            match way.parent() {
                Some(parent) => way = parent,
                None => return Ok(()),
            }
        }
    }
}

fn new(remote: &str) -> String {
    format!("{NEW}{remote}")
}

fn old(remote: &str) -> String {
    format!("{OLD}{remote}")
}

/// Lets the staged checkout and what is in its place change places, and sets what was there aside.
fn exchange(stages: &OwnedFd, remote: &str, parent: &OwnedFd, mount: &MountPath) -> Result<(), SyncError> {
    let (new, old) = (new(remote), old(remote));
    tree::remove(stages, old.as_bytes())?;
    match swap(stages, &new, parent, mount.name()) {
        Ok(()) => renameat(stages, &new, stages, &old).map_err(|errno| not_renamed(errno, mount)),
        // This file system cannot exchange names: for a moment there is nothing.
        Err(Errno::INVAL | Errno::NOSYS | Errno::NOTSUP) => renameat(parent, mount.name(), stages, &old)
            .and_then(|()| renameat(stages, &new, parent, mount.name()))
            .map_err(|errno| not_renamed(errno, mount)),
        Err(errno) => Err(not_renamed(errno, mount)),
    }
}

#[cfg(any(target_os = "linux", target_os = "android", target_vendor = "apple"))]
fn swap(stages: &OwnedFd, new: &str, parent: &OwnedFd, name: &str) -> Result<(), Errno> {
    rustix::fs::renameat_with(stages, new, parent, name, rustix::fs::RenameFlags::EXCHANGE)
}

#[cfg(not(any(target_os = "linux", target_os = "android", target_vendor = "apple")))]
fn swap(_: &OwnedFd, _: &str, _: &OwnedFd, _: &str) -> Result<(), Errno> {
    Err(Errno::NOSYS)
}

fn write_label(staged: &OwnedFd, label: &Label) -> Result<(), SyncError> {
    let text = serde_json::to_vec(label).map_err(SyncError::disk("write the checkout"))?;
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let file = openat(staged, RESERVED, flags, Mode::from_raw_mode(0o644))?;
    File::from(file).write_all(&text).map_err(SyncError::disk("write the checkout"))
}

fn not_renamed(errno: Errno, mount: &MountPath) -> SyncError {
    match errno {
        Errno::XDEV => SyncError::OtherFileSystem { mount: mount.text() },
        errno => SyncError::errno("put the checkout into its place")(errno),
    }
}

fn no_folder(mount: &MountPath, name: &str) -> SyncError {
    SyncError::NoFolder { mount: mount.text(), name: name.to_owned() }
}

fn standing(parent: &OwnedFd, name: &str) -> Result<Standing, SyncError> {
    let folder = match open_folder(parent, name.as_bytes()) {
        Ok(folder) => folder,
        Err(Errno::NOENT) => return Ok(Standing::Nothing),
        Err(Errno::NOTDIR | Errno::LOOP | Errno::MLINK) => return Ok(Standing::NoFolder),
        Err(errno) => return Err(SyncError::errno("open the folder in the place of the remote")(errno)),
    };
    if let Some(label) = read_label(&folder) {
        return Ok(Standing::Checkout(label));
    }
    let empty = entries(&folder).map_err(SyncError::errno("read the folder in the place of the remote"))?.is_empty();
    Ok(if empty { Standing::Empty } else { Standing::Foreign(folder) })
}

fn read_label(folder: &OwnedFd) -> Option<Label> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = openat(folder.as_fd(), RESERVED, flags, Mode::empty()).ok()?;
    let mut text = Vec::new();
    File::from(file).take(LABEL_BYTES_MAX).read_to_end(&mut text).ok()?;
    serde_json::from_slice(&text).ok()
}
