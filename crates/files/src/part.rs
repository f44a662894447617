//! Files that are not whole yet: written beside their place, and moved there when they are.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io;
#[cfg(target_os = "linux")]
use std::num::NonZeroU64;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::sync::LazyLock;

use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::{AtFlags, CWD, FileType, FlockOperation, Mode, OFlags, RenameFlags, Timespec, Timestamps};
use rustix::io::Errno;

use crate::hash::Prefix;
use crate::record::Facts;
use crate::source::{SourceError, hash_to};

/// The end of the name of a file that is not whole.
pub const PART_END: &str = ".part";

/// The longest name that file systems take.
const NAME_BYTES_MAX: usize = 255;

/// Digits of the hash of a name in that of its part, where that is cut.
const CUT_HASH_DIGITS: usize = 16;

/// How many files that are not whole one target has at most: one that can be continued, and others for those who fetch it at the
/// same time.
const AT_ONCE_MAX: usize = 64;

/// Bytes after which the disk begins to write them: where it is told only at the end, a large file waits for all of it then.
const BEGUN_BYTES: u64 = 8 << 20;

/// A file that is not whole. It stays where it is when it is dropped, so that another transfer goes on with it, unless it is empty.
/// Nobody else writes it: it is locked.
#[derive(Debug)]
pub struct Part {
    folder: OwnedFd,
    name: OsString,
    file: File,
    /// Whether the name is this file's no more.
    moved: bool,
}

/// Opens a folder, to put files into it.
pub fn open_folder(folder: &Path) -> io::Result<OwnedFd> {
    let folder = if folder.as_os_str().is_empty() { Path::new(".") } else { folder };
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    Ok(rustix::fs::openat(CWD, folder, flags, Mode::empty())?)
}

/// Waits until the names in a folder are on the disk.
pub fn sync_folder(folder: BorrowedFd<'_>) -> Result<(), Errno> {
    match rustix::fs::fsync(folder) {
        // Not of every file system: it has no more to offer.
        Err(Errno::INVAL | Errno::NOTSUP) => Ok(()),
        synced => synced,
    }
}

/// The name of the file beside a target in which it gathers: `.NAME.part`. A name that is too long for that is cut, with some of its hash
/// instead: others may begin like it.
pub fn part_name(name: &OsStr, number: usize) -> OsString {
    let mut end = if number == 0 { PART_END.to_owned() } else { format!(".{number}{PART_END}") };
    let mut kept = name.len();
    if kept > NAME_BYTES_MAX - 1 - end.len() {
        let mut prefix = Prefix::default();
        prefix.update(name.as_bytes());
        end.insert_str(0, &format!("~{}", &prefix.hash().to_string()[..CUT_HASH_DIGITS]));
        kept = NAME_BYTES_MAX - 1 - end.len();
    }
    let mut part = vec![b'.'];
    part.extend_from_slice(&name.as_bytes()[..kept]);
    part.extend_from_slice(end.as_bytes());
    OsString::from_vec(part)
}

/// Whether it is such a name.
pub fn is_part_name(name: &[u8]) -> bool {
    name.starts_with(b".") && name.ends_with(PART_END.as_bytes())
}

impl Part {
    /// The one of a target in an open folder: that of a transfer before this one, a new one where there is none, another one where it is
    /// in use. Errors: it cannot be made.
    pub fn open(folder: OwnedFd, target: &OsStr) -> io::Result<Self> {
        Self::open_of(folder, target, rustix::process::geteuid().as_raw())
    }

    /// As [`Self::open`], for a user.
    fn open_of(folder: OwnedFd, target: &OsStr, user: u32) -> io::Result<Self> {
        let mut under_way = 0;
        for number in 0..AT_ONCE_MAX {
            let name = part_name(target, number);
            let Some((file, is_new)) = open_or_make(&folder, &name)? else { continue };
            let stat = rustix::fs::fstat(&file)?;
            let forget = || {
                if is_new {
                    // It is empty.
                    rustix::fs::unlinkat(&folder, &name, AtFlags::empty()).ok();
                }
            };
            // One of somebody else would be his when it is whole, and he could change it.
            let is_ours = stat.st_uid == user;
            if is_new && !is_ours {
                forget();
                let text = "files that are made in this folder belong to another user than the one who makes them: use a folder of a file \
                            system that keeps owners (no squashed NFS export, no uid= of a mount)";
                return Err(io::Error::new(io::ErrorKind::PermissionDenied, text));
            }
            if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile || stat.st_nlink != 1 || !is_ours {
                continue;
            }
            match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => {}
                Err(Errno::WOULDBLOCK) => {
                    under_way += 1;
                    continue;
                }
                Err(errno) => {
                    forget();
                    return Err(errno.into());
                }
            }
            // Whoever had it locked may have moved it to its place meanwhile.
            let is_there = rustix::fs::statat(&folder, &name, AtFlags::SYMLINK_NOFOLLOW)
                .is_ok_and(|there| (there.st_dev, there.st_ino) == (stat.st_dev, stat.st_ino));
            if !is_there {
                continue;
            }
            return Ok(Self { folder, name, file: File::from(file), moved: false });
        }
        let first = part_name(target, 0);
        let first = first.to_string_lossy();
        Err(io::Error::other(match under_way {
            AT_ONCE_MAX => format!("{AT_ONCE_MAX} transfers to it are under way already"),
            _ => format!("no part of it can be written: remove {first:?} and those with a number that are beside it"),
        }))
    }

    /// Its name in its folder.
    pub fn name(&self) -> &OsStr {
        &self.name
    }

    /// How long it is.
    pub fn bytes(&self) -> io::Result<u64> {
        Ok(self.file.metadata()?.len())
    }

    /// The hash of what is there, up to so many bytes. Blocks; `is_ended` is asked now and then.
    pub fn prefix(&self, bytes: u64, is_ended: &dyn Fn() -> bool) -> Result<Prefix, SourceError> {
        hash_to(&self.file, bytes, is_ended)
    }

    /// Forgets what is beyond so many bytes.
    pub fn cut(&self, bytes: u64) -> io::Result<()> {
        self.file.set_len(bytes)
    }

    /// Reads bytes that were written. Errors: there are not so many.
    pub fn read(&self, bytes: &mut [u8], offset: u64) -> io::Result<()> {
        self.file.read_exact_at(bytes, offset)
    }

    /// Writes bytes at their place. The disk is told now and then to begin with what was written.
    pub fn write(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        self.file.write_all_at(bytes, offset)?;
        let (before, after) = (offset / BEGUN_BYTES, (offset + bytes.len() as u64) / BEGUN_BYTES);
        if after > before {
            begin_to_sync(&self.file, before * BEGUN_BYTES, (after - before) * BEGUN_BYTES);
        }
        Ok(())
    }

    /// Waits until it is on the disk. Errors: it is not, and nothing is left of it.
    pub fn sync(&self) -> io::Result<()> {
        self.synced(self.file.sync_data())
    }

    /// A system tells only once that it could not write what is in its memory, and then may take it for written: nobody knows what of it is
    /// on the disk.
    fn synced(&self, synced: io::Result<()>) -> io::Result<()> {
        synced.inspect_err(|_| {
            // Where that is not possible either, the hash of what is there tells.
            self.cut(0).ok();
        })
    }

    /// Gives it the permissions and the time of what it is a copy of, and moves it to its place, where it takes the place of a file of that
    /// name. Errors: that is not possible; it stays what it is.
    pub fn keep(mut self, target: &OsStr, facts: Facts) -> io::Result<()> {
        self.dress(facts)?;
        rustix::fs::renameat(&self.folder, &self.name, self.folder.as_fd(), target)?;
        self.moved = true;
        Ok(())
    }

    /// As [`Self::keep`], and it is on the disk, under its name, when this returns. `replaces`: whether it may take the place of a file
    /// of that name. `Some`: it is in its place, and nobody knows whether it stays there. Errors: as there; something is in its place that
    /// it may not replace ([`io::ErrorKind::AlreadyExists`]); it cannot be brought to the disk, as with [`Self::sync`].
    pub fn keep_durably(mut self, target: &OsStr, facts: Facts, replaces: bool) -> io::Result<Option<io::Error>> {
        // While that takes, it is as old as what came last, and not as what it is a copy of.
        self.sync()?;
        let dressed = self.dress(facts).and_then(|()| self.synced(self.file.sync_all()));
        let renamed = dressed.and_then(|()| self.rename(target, replaces));
        let problem = renamed.inspect_err(|_| self.undress())?;
        self.moved = true;
        Ok(problem.or_else(|| sync_folder(self.folder.as_fd()).err().map(io::Error::from)))
    }

    /// `Some`: it has its name, and its old one, too.
    fn rename(&self, target: &OsStr, replaces: bool) -> io::Result<Option<io::Error>> {
        let folder = self.folder.as_fd();
        if replaces {
            rustix::fs::renameat(folder, &self.name, folder, target)?;
            return Ok(None);
        }
        match rustix::fs::renameat_with(folder, &self.name, folder, target, RenameFlags::NOREPLACE) {
            // A file system that knows no such renaming: a second name is not taken where there is one, either.
            Err(Errno::INVAL | Errno::NOSYS | Errno::NOTSUP) => {
                rustix::fs::linkat(folder, &self.name, folder, target, AtFlags::empty())?;
                Ok(rustix::fs::unlinkat(folder, &self.name, AtFlags::empty()).err().map(io::Error::from))
            }
            renamed => Ok(renamed.map(|()| None)?),
        }
    }

    /// It is what it was: nobody else's to read, and as old as it is.
    fn undress(&self) {
        // Where that is not possible, it is thrown away sooner.
        rustix::fs::fchmod(&self.file, Mode::from_raw_mode(0o600)).ok();
        self.touch().ok();
    }

    fn dress(&self, facts: Facts) -> io::Result<()> {
        // Bits that give the rights of somebody else are no part of a copy, and its owner can go on with it.
        rustix::fs::fchmod(&self.file, Mode::from_raw_mode(facts.mode & 0o777 & !umask() | 0o600))?;
        let time = Timespec { tv_sec: facts.modified, tv_nsec: 0 };
        Ok(rustix::fs::futimens(&self.file, &Timestamps { last_access: time, last_modification: time })?)
    }

    /// Gives it the time that it is by the clock of its file system, and tells that: seconds since 1970. So others see that somebody
    /// goes on with it.
    pub fn touch(&self) -> io::Result<i64> {
        let now = Timespec { tv_sec: 0, tv_nsec: rustix::fs::UTIME_NOW };
        rustix::fs::futimens(&self.file, &Timestamps { last_access: now, last_modification: now })?;
        Ok(self.file.metadata()?.mtime())
    }

    /// Which file it is: device and number, as long as it is open.
    pub fn identity(&self) -> io::Result<(u64, u64)> {
        let metadata = self.file.metadata()?;
        Ok((metadata.dev(), metadata.ino()))
    }

    /// Throws it away.
    pub fn remove(mut self) -> io::Result<()> {
        self.moved = true;
        Ok(rustix::fs::unlinkat(&self.folder, &self.name, AtFlags::empty())?)
    }
}

/// How often a part is opened anew that others make and move meanwhile.
const OPENINGS_MAX: usize = 8;

/// A file of this name, and whether it was made. `None`: there is something else, or it is not to be written.
fn open_or_make(folder: &OwnedFd, name: &OsStr) -> io::Result<Option<(OwnedFd, bool)>> {
    // A link or a pipe of that name must lead nowhere and keep nobody waiting, and a device is not even opened.
    let flags = OFlags::RDWR | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    for _ in 0..OPENINGS_MAX {
        let makes = flags | OFlags::CREATE | OFlags::EXCL;
        match rustix::fs::openat(folder, name, makes, Mode::from_raw_mode(0o600)) {
            Ok(file) => return Ok(Some((file, true))),
            Err(Errno::EXIST) => {}
            Err(errno) => return Err(errno.into()),
        }
        match rustix::fs::statat(folder, name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) if FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile => {}
            Ok(_) => return Ok(None),
            Err(Errno::NOENT) => continue,
            Err(errno) => return Err(errno.into()),
        }
        match rustix::fs::openat(folder, name, flags, Mode::empty()) {
            Ok(file) => return Ok(Some((file, false))),
            Err(Errno::NOENT) => {}
            Err(Errno::LOOP | Errno::NXIO | Errno::ISDIR | Errno::ACCESS | Errno::PERM) => return Ok(None),
            Err(errno) => return Err(errno.into()),
        }
    }
    Ok(None)
}

impl Drop for Part {
    fn drop(&mut self) {
        if !self.moved && self.bytes().is_ok_and(|bytes| bytes == 0) {
            // An empty one that cannot be removed does no harm.
            rustix::fs::unlinkat(&self.folder, &self.name, AtFlags::empty()).ok();
        }
    }
}

/// The rights that this process gives nobody. Linux tells it; elsewhere it is taken to be the usual one, as asking means to change it.
fn umask() -> u32 {
    const USUAL: u32 = 0o022;
    static TOLD: LazyLock<u32> = LazyLock::new(|| {
        let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
        let told = status.lines().find_map(|line| line.strip_prefix("Umask:"));
        told.and_then(|digits| u32::from_str_radix(digits.trim(), 8).ok()).unwrap_or(USUAL)
    });
    *TOLD
}

/// Has the disk begin to write bytes of a file; nothing waits for that. On Linux this is what becomes of the advice that they are not
/// needed: what is not on the disk yet is sent there, and stays in memory.
#[cfg(target_os = "linux")]
fn begin_to_sync(file: &File, offset: u64, bytes: u64) {
    // Advice: where it is not taken, the end takes longer.
    rustix::fs::fadvise(file, offset, NonZeroU64::new(bytes), rustix::fs::Advice::DontNeed).ok();
}

#[cfg(not(target_os = "linux"))]
fn begin_to_sync(_file: &File, _offset: u64, _bytes: u64) {}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::*;

    const FACTS: Facts = Facts { size: 3, modified: 1_000_000, mode: 0o640 };

    fn open(folder: &Path, name: &str) -> Part {
        Part::open(open_folder(folder).expect("a folder"), OsStr::new(name)).expect("a part")
    }

    fn names(folder: &Path) -> Vec<String> {
        let entries = fs::read_dir(folder).expect("a folder");
        let mut names: Vec<String> =
            entries.map(|entry| entry.expect("an entry").file_name().into_string().expect("text")).collect();
        names.sort();
        names
    }

    #[test]
    fn a_file_appears_whole_with_the_time_and_rights_of_what_it_is_a_copy_of() {
        let folder = tempfile::tempdir().expect("a folder");
        fs::write(folder.path().join("a"), "old").expect("written");
        let part = open(folder.path(), "a");
        part.write(b"new", 0).expect("written");
        assert_eq!(names(folder.path()), [".a.part", "a"]);
        assert_eq!(fs::read(folder.path().join("a")).expect("read"), b"old");
        part.keep(OsStr::new("a"), FACTS).expect("kept");
        assert_eq!(names(folder.path()), ["a"]);
        let metadata = fs::metadata(folder.path().join("a")).expect("there");
        assert_eq!((metadata.mtime(), metadata.mode() & 0o7777), (1_000_000, 0o640));
        assert_eq!(fs::read(folder.path().join("a")).expect("read"), b"new");
    }

    #[test]
    fn what_came_before_is_gone_on_with_unless_somebody_else_does() {
        let folder = tempfile::tempdir().expect("a folder");
        let part = open(folder.path(), "a");
        part.write(b"abc", 0).expect("written");
        let other = open(folder.path(), "a");
        assert_eq!((part.name(), other.name()), (OsStr::new(".a.part"), OsStr::new(".a.1.part")));
        drop(other);
        assert_eq!(names(folder.path()), [".a.part"], "an empty one does not stay");
        drop(part);
        let part = open(folder.path(), "a");
        assert_eq!(part.bytes().expect("read"), 3);
        assert_eq!(part.prefix(2, &|| false).expect("read").bytes(), 2);
        part.remove().expect("removed");
        assert_eq!(names(folder.path()), Vec::<String>::new());
    }

    #[test]
    fn links_pipes_and_folders_of_its_name_are_left_alone() {
        let folder = tempfile::tempdir().expect("a folder");
        let outside = folder.path().join("outside");
        fs::write(&outside, "kept").expect("written");
        symlink(&outside, folder.path().join(".a.part")).expect("linked");
        rustix::fs::mknodat(CWD, folder.path().join(".a.1.part"), FileType::Fifo, Mode::RUSR | Mode::WUSR, 0)
            .expect("a pipe");
        fs::create_dir(folder.path().join(".a.2.part")).expect("made");
        fs::hard_link(&outside, folder.path().join(".a.3.part")).expect("linked");
        let part = open(folder.path(), "a");
        assert_eq!(part.name(), OsStr::new(".a.4.part"));
        part.write(b"new", 0).expect("written");
        assert_eq!(fs::read(&outside).expect("read"), b"kept");
    }

    #[test]
    fn a_file_takes_the_place_of_another_only_where_it_may() {
        let folder = tempfile::tempdir().expect("a folder");
        let target = OsStr::new("a");
        for (replaces, kept) in [(false, true), (false, false), (true, true)] {
            let part = open(folder.path(), "a");
            part.write(if replaces { b"new" } else { b"old" }, 0).expect("written");
            match part.keep_durably(target, FACTS, replaces) {
                Ok(problem) => assert!(kept && problem.is_none(), "{problem:?}"),
                Err(error) => {
                    assert!(!kept && error.kind() == io::ErrorKind::AlreadyExists, "{error}");
                    assert_eq!(names(folder.path()), [".a.part", "a"]);
                    let part = fs::metadata(folder.path().join(".a.part")).expect("there");
                    assert_eq!(part.mode() & 0o777, 0o600, "it is nobody else's to read");
                    assert!(part.mtime() > FACTS.modified, "and not as old as what it is a copy of");
                }
            }
        }
        assert_eq!(names(folder.path()), ["a"]);
        assert_eq!(fs::read(folder.path().join("a")).expect("read"), b"new");
    }

    #[test]
    fn a_part_that_somebody_goes_on_with_is_as_old_as_that() {
        let folder = tempfile::tempdir().expect("a folder");
        let part = open(folder.path(), "a");
        part.dress(FACTS).expect("dressed");
        let now = part.touch().expect("touched");
        assert!(now > FACTS.modified && fs::metadata(folder.path().join(".a.part")).expect("there").mtime() == now);
        assert!(is_part_name(part.name().as_bytes()) && !is_part_name(b"a.part") && !is_part_name(b".a.parts"));
    }

    #[test]
    fn what_the_umask_takes_a_copy_does_not_give() {
        let folder = tempfile::tempdir().expect("a folder");
        let mode = |name: &str| fs::metadata(folder.path().join(name)).expect("there").mode() & 0o777;
        // It is made with all rights to read and write that the umask leaves.
        File::create_new(folder.path().join("own")).expect("made");
        let part = open(folder.path(), "copy");
        part.write(b"abc", 0).expect("written");
        part.keep(OsStr::new("copy"), Facts { mode: 0o666, ..FACTS }).expect("kept");
        assert_eq!(mode("copy"), mode("own"));
    }

    #[test]
    fn the_longest_name_has_a_part_too() {
        let folder = tempfile::tempdir().expect("a folder");
        let name = "n".repeat(255);
        let part = open(folder.path(), &name);
        part.write(b"abc", 0).expect("written");
        part.keep(OsStr::new(&name), FACTS).expect("kept");
        assert_eq!(names(folder.path()), [name]);
    }

    #[test]
    fn names_that_differ_only_behind_what_fits_have_parts_of_their_own() {
        let long = |end: char| OsString::from(format!("{}{end}", "n".repeat(254)));
        for number in [0, 7] {
            let (one, other) = (part_name(&long('1'), number), part_name(&long('2'), number));
            assert!(one != other && one.len() == 255 && is_part_name(one.as_bytes()), "{one:?}");
        }
        assert_eq!(part_name(&OsString::from("n".repeat(249)), 0).len(), 255, "it is not cut where it fits");
    }

    #[test]
    fn nothing_is_gone_on_with_of_which_nobody_knows_whether_it_is_on_the_disk() {
        let folder = tempfile::tempdir().expect("a folder");
        let part = open(folder.path(), "a");
        part.write(b"abc", 0).expect("written");
        part.sync().expect("it is on the disk");
        assert_eq!(part.bytes().expect("read"), 3);
        part.synced(Err(Errno::IO.into())).expect_err("told");
        assert_eq!(part.bytes().expect("read"), 0);
    }

    #[test]
    fn where_files_belong_to_somebody_else_one_attempt_says_so_and_leaves_nothing() {
        let folder = tempfile::tempdir().expect("a folder");
        let somebody = rustix::process::geteuid().as_raw() + 1;
        let handle = || open_folder(folder.path()).expect("a folder");
        let error = Part::open_of(handle(), OsStr::new("a"), somebody).expect_err("refused");
        assert!(error.to_string().contains("belong to another user"), "{error}");
        assert_eq!(names(folder.path()), Vec::<String>::new());
        for number in 0..AT_ONCE_MAX {
            fs::write(folder.path().join(part_name(OsStr::new("a"), number)), "theirs").expect("written");
        }
        let error = Part::open_of(handle(), OsStr::new("a"), somebody).expect_err("refused").to_string();
        assert!(error.contains("remove \".a.part\""), "{error}");
    }
}
