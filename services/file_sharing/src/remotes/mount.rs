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
use super::halt::Halt;
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
    /// Who put it there.
    #[serde(default)]
    pub(crate) worker: String,
}

impl Label {
    /// Whether both are of the same files, whoever put them there.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        self.is_of(other) && self.commit == other.commit
    }

    /// Whether both follow the same branch under the same name.
    fn is_of(&self, other: &Self) -> bool {
        (&self.remote, &self.url, &self.branch) == (&other.remote, &other.url, &other.branch)
    }

    /// Whether the one that is there may be replaced by this one. Within one worker no two remotes have one place. Workers that
    /// share a folder may follow the same branch there, but do not replace what another put there.
    fn may_replace(&self, there: &Self) -> bool {
        there.worker == self.worker
            || self.is_of(there)
            // From before workers were named.
            || (there.worker.is_empty() && there.remote == self.remote)
    }
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
    /// Lets the disk have all that was written to a folder's file system.
    settle: fn(&OwnedFd) -> Result<(), Errno>,
    /// Held while folders for checkouts are made, or removed where they are empty.
    stages: Mutex<()>,
}

impl Mounts {
    pub(crate) fn new(base_dir: PathBuf, worker: String) -> Self {
        Self { base_dir, worker, settle, stages: Mutex::new(()) }
    }

    /// Who puts checkouts there.
    pub(crate) fn worker(&self) -> &str {
        &self.worker
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
        if matches!(open_folder(self.base()?, RESERVED.as_bytes()), Err(errno) if is_no_folder(errno)) {
            return Err(SyncError::ReservedLink);
        }
        let Some(parent) = self.parent(mount, false)? else { return Ok(()) };
        match standing(&parent, mount.name())? {
            Standing::NoFolder => Err(no_folder(mount, mount.name())),
            _ => Ok(()),
        }
    }

    /// Errors: a folder in the place holds something that the checkout which is to come does not, so that it is none. Spares the
    /// writing of one that could not take its place.
    pub(crate) fn check_names(
        &self,
        mount: &MountPath,
        label: &Label,
        names: &BTreeSet<Vec<u8>>,
    ) -> Result<(), SyncError> {
        let Some(parent) = self.parent(mount, false)? else { return Ok(()) };
        let folder = match standing(&parent, mount.name())? {
            Standing::Foreign(folder) => folder,
            Standing::Checkout(there) if !label.may_replace(&there) => return Err(of_other(mount, there)),
            _ => return Ok(()),
        };
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
    /// later: see [`Self::forget_old`]. Everything is on the disk before: after a loss of power, what is in its place is whole.
    pub(crate) fn publish(
        &self,
        mount: &MountPath,
        staged: &OwnedFd,
        label: &Label,
        halt: &Halt,
    ) -> Result<(), SyncError> {
        let stages = self.stages()?;
        // The label says that the files are there: it comes after them.
        (self.settle)(staged).map_err(SyncError::errno("write the checkout"))?;
        write_label(staged, label)?;
        if halt.is_halted() {
            return Err(SyncError::Halted);
        }
        let parent = self.parent(mount, true)?.ok_or_else(|| no_folder(mount, mount.name()))?;
        match standing(&parent, mount.name())? {
            Standing::NoFolder => return Err(no_folder(mount, mount.name())),
            Standing::Foreign(folder) => {
                // A checkout of the Python service has no label, and is ours if it is what we would put there.
                if !tree::is_same(&folder, staged, RESERVED.as_bytes(), halt)? {
                    return Err(SyncError::Taken { mount: mount.text() });
                }
            }
            Standing::Nothing => {
                let renamed = renameat(&stages, new(&label.remote), &parent, mount.name());
                renamed.map_err(|errno| not_renamed(errno, mount))?;
                self.tidy();
                return Ok(());
            }
            Standing::Checkout(there) if !label.may_replace(&there) => return Err(of_other(mount, there)),
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
    /// own stays, and so does one that another worker put there: then this is false.
    pub(crate) fn remove(&self, mount: &MountPath, remote: &str) -> Result<bool, SyncError> {
        if let Some(parent) = self.parent(mount, false)? {
            match standing(&parent, mount.name())? {
                Standing::Checkout(there) if there.worker == self.worker || there.worker.is_empty() => {
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
                Standing::Checkout(_) | Standing::Foreign(_) | Standing::NoFolder => {
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
            folder = match make_folder(&folder, name.as_bytes()) {
                Ok(folder) => folder,
                Err(errno) if name == RESERVED && is_no_folder(errno) => return Err(SyncError::ReservedLink),
                Err(errno) => return Err(SyncError::errno("make a folder for the checkout")(errno)),
            };
        }
        Ok(folder)
    }

    fn existing_stages(&self) -> Result<Option<OwnedFd>, SyncError> {
        let mut folder = self.base()?;
        for name in [RESERVED, CHECKOUTS, &self.worker] {
            folder = match open_folder(&folder, name.as_bytes()) {
                Ok(folder) => folder,
                // A link, too: nothing was made behind it.
                Err(errno) if errno == Errno::NOENT || is_no_folder(errno) => return Ok(None),
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
                Err(errno) if is_no_folder(errno) => return Err(no_folder(mount, name)),
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
    let mut file = File::from(openat(staged, RESERVED, flags, Mode::from_raw_mode(0o644))?);
    let written = file.write_all(&text).and_then(|()| file.sync_all());
    written.map_err(SyncError::disk("write the checkout"))?;
    rustix::fs::fsync(staged).map_err(SyncError::errno("write the checkout"))
}

/// One call for all files: there may be half a million of them.
#[cfg(any(target_os = "linux", target_os = "android"))]
fn settle(folder: &OwnedFd) -> Result<(), Errno> {
    rustix::fs::syncfs(folder)
}

#[cfg(not(any(target_os = "linux", target_os = "android")))]
fn settle(_: &OwnedFd) -> Result<(), Errno> {
    rustix::fs::sync();
    Ok(())
}

/// Whether it says that something else than a folder has the name.
fn is_no_folder(errno: Errno) -> bool {
    matches!(errno, Errno::NOTDIR | Errno::LOOP | Errno::MLINK)
}

fn of_other(mount: &MountPath, there: Label) -> SyncError {
    SyncError::OfOther { mount: mount.text(), remote: there.remote, worker: there.worker }
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
        Err(errno) if is_no_folder(errno) => return Ok(Standing::NoFolder),
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

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use serde_json::json;

    use super::super::definition::{Definition, RemoteInput};
    use super::*;

    fn mount() -> MountPath {
        let input: RemoteInput =
            serde_json::from_value(json!({"name": "r", "url": "u", "branch": "main"})).expect("a remote");
        Definition::check(input).expect("fits").mount
    }

    fn label(worker: &str, branch: &str) -> Label {
        Label {
            remote: "r".to_owned(),
            url: "u".to_owned(),
            branch: branch.to_owned(),
            commit: "1".to_owned(),
            worker: worker.to_owned(),
        }
    }

    /// Publishes a checkout with one file.
    fn publish(mounts: &Mounts, label: &Label, content: &str) -> Result<(), SyncError> {
        let staged = mounts.stage("r").expect("made");
        let file = openat(&staged, "f", OFlags::WRONLY | OFlags::CREATE, Mode::RUSR | Mode::WUSR).expect("made");
        File::from(file).write_all(content.as_bytes()).expect("written");
        mounts.publish(&mount(), &staged, label, &Halt::default())
    }

    fn mounts(base: &Path, worker: &str) -> Mounts {
        Mounts::new(base.to_owned(), worker.to_owned())
    }

    #[test]
    fn the_files_are_on_the_disk_before_their_label_and_before_they_are_in_their_place() {
        static SETTLED: AtomicUsize = AtomicUsize::new(0);

        fn settles(staged: &OwnedFd) -> Result<(), Errno> {
            let names: Vec<_> = entries(staged)?.into_iter().map(|(name, _)| name).collect();
            assert_eq!(names, [b"f".to_vec()], "all files and no label");
            SETTLED.fetch_add(1, Ordering::Relaxed);
            settle(staged)
        }

        fn fails(_: &OwnedFd) -> Result<(), Errno> {
            Err(Errno::IO)
        }

        let base = tempfile::tempdir().expect("a folder");
        let mounts = Mounts { settle: settles, ..mounts(base.path(), "w") };
        publish(&mounts, &label("w", "main"), "v1").expect("published");
        assert_eq!(SETTLED.load(Ordering::Relaxed), 1);
        let mounts = Mounts { settle: fails, ..mounts };
        let failed = publish(&mounts, &label("w", "main"), "v2").expect_err("a broken disk");
        assert!(failed.to_string().starts_with("cannot write the checkout"), "{failed}");
        assert_eq!(fs::read_to_string(base.path().join("r/f")).expect("there"), "v1");
    }

    #[test]
    fn what_another_worker_put_there_is_replaced_only_by_the_same_branch_and_never_removed() {
        let base = tempfile::tempdir().expect("a folder");
        let content = || fs::read_to_string(base.path().join("r/f")).expect("there");
        let (one, other) = (mounts(base.path(), "one"), mounts(base.path(), "other"));
        publish(&one, &label("one", "main"), "v1").expect("published");
        let expected = "the folder 'nf://r' is git remote 'r' of worker 'one': mount elsewhere";
        let names = BTreeSet::from([b"f".to_vec()]);
        let refused = other.check_names(&mount(), &label("other", "side"), &names).expect_err("refused");
        assert_eq!(refused.to_string(), expected);
        let refused = publish(&other, &label("other", "side"), "side").expect_err("refused");
        assert_eq!((refused.to_string().as_str(), content().as_str()), (expected, "v1"));
        assert!(!other.remove(&mount(), "r").expect("looked at"));
        assert_eq!(content(), "v1");
        publish(&other, &label("other", "main"), "v2").expect("published");
        // The branch of a remote may change, and its worker removes it.
        publish(&other, &label("other", "side"), "v3").expect("published");
        assert_eq!(content(), "v3");
        assert!(!one.remove(&mount(), "r").expect("looked at") && other.remove(&mount(), "r").expect("removed"));
        assert!(!base.path().join("r").exists());
    }
}
