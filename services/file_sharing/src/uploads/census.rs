//! What is in the upload folder, and what is thrown away there: parts that nobody goes on with.

use std::collections::HashMap;
use std::ffi::CStr;

use norfab_files::part::is_part_name;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::{AtFlags, Dir, FileType, FlockOperation, Mode, OFlags, Stat, flock, fstat, openat, statat, unlinkat};
use rustix::io::Errno;

/// Seconds after which a part is removed that nobody has gone on with: somebody who was on a journey still can.
pub const PART_SECONDS_MAX: i64 = 7 * 24 * 3600;

/// Folders within each other that are looked into. Uploads do not make so many.
const LEVELS_MAX: usize = 64;

/// Which file: its device and number.
pub(crate) type Key = (u64, u64);

/// What is in a folder and the folders in it, links not followed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Census {
    /// Bytes of the files.
    pub(crate) bytes: u64,
    /// Files, folders and all else.
    pub(crate) entries: u64,
}

/// A census, and the bytes of each part in it: somebody may have begun to go on with one behind our back.
#[derive(Debug, Default)]
pub(crate) struct Counted {
    pub(crate) census: Census,
    pub(crate) parts: HashMap<Key, u64>,
}

/// Counts, except for files that are under way when they are come upon, and removes parts that are older at `now`, seconds since 1970 by
/// the clock of the file system, than [`PART_SECONDS_MAX`]. Folders that are gone meanwhile, or cannot be read, count nothing. Blocks.
pub(crate) fn take(folder: &OwnedFd, is_under_way: &dyn Fn(Key) -> bool, now: i64) -> Result<Counted, Errno> {
    let mut counted = Counted::default();
    count(folder.as_fd(), is_under_way, now, 0, &mut counted)?;
    Ok(counted)
}

fn count(
    folder: BorrowedFd<'_>,
    is_under_way: &dyn Fn(Key) -> bool,
    now: i64,
    level: usize,
    counted: &mut Counted,
) -> Result<(), Errno> {
    for entry in Dir::read_from(folder)? {
        let entry = entry?;
        let name = entry.file_name();
        if matches!(name.to_bytes(), b"." | b"..") {
            continue;
        }
        let Ok(stat) = statat(folder, name, AtFlags::SYMLINK_NOFOLLOW) else { continue };
        let kind = FileType::from_raw_mode(stat.st_mode);
        if kind == FileType::RegularFile {
            let key = key(&stat);
            if is_under_way(key) {
                continue;
            }
            let is_part = is_part_name(name.to_bytes());
            if is_part && is_old(&stat, now) && remove(folder, name, now) {
                tracing::info!("a part of an upload that nobody went on with was removed: {}", name.to_string_lossy());
                continue;
            }
            let bytes = u64::try_from(stat.st_size).unwrap_or_default();
            counted.census.bytes = counted.census.bytes.saturating_add(bytes);
            if is_part {
                counted.parts.insert(key, bytes);
            }
        }
        counted.census.entries += 1;
        if kind == FileType::Directory && level < LEVELS_MAX {
            let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            if let Ok(inner) = openat(folder, name, flags, Mode::empty()) {
                count(inner.as_fd(), is_under_way, now, level + 1, counted).ok();
            }
        }
    }
    Ok(())
}

#[allow(clippy::useless_conversion, reason = "the types of these fields differ between systems")]
fn key(stat: &Stat) -> Key {
    (u64::from(stat.st_dev), u64::from(stat.st_ino))
}

/// By the later of the time of its content, which a copy has from what it is a copy of and which may be in the future, and that of its
/// entry, which nobody can set, and which some file systems keep for when it was made.
#[allow(clippy::useless_conversion, reason = "the types of these fields differ between systems")]
fn is_old(stat: &Stat, now: i64) -> bool {
    let (content, entry) = (i64::from(stat.st_mtime), i64::from(stat.st_ctime));
    let last = if content > now { entry } else { content.max(entry) };
    now.saturating_sub(last) > PART_SECONDS_MAX
}

/// Removes an old part, unless somebody goes on with it at this moment, or has since it was looked at.
fn remove(folder: BorrowedFd<'_>, name: &CStr, now: i64) -> bool {
    let flags = OFlags::RDWR | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let Ok(file) = openat(folder, name, flags, Mode::empty()) else { return false };
    if flock(&file, FlockOperation::NonBlockingLockExclusive).is_err() {
        return false;
    }
    // The name may be that of another file by now.
    let is_it = match (fstat(&file), statat(folder, name, AtFlags::SYMLINK_NOFOLLOW)) {
        (Ok(open), Ok(there)) => key(&open) == key(&there) && is_old(&open, now),
        _ => false,
    };
    is_it && unlinkat(folder, name, AtFlags::empty()).is_ok()
}

#[cfg(test)]
mod tests {
    use std::fs::{self, File};
    use std::os::unix::fs::MetadataExt;
    use std::time::{Duration, SystemTime};

    use super::*;

    #[test]
    fn files_folders_and_links_count_and_what_is_left_out_does_not() {
        let folder = tempfile::tempdir().expect("a folder");
        fs::create_dir(folder.path().join("d")).expect("made");
        fs::write(folder.path().join("d/a"), "abc").expect("written");
        fs::write(folder.path().join(".a.part"), "12").expect("written");
        std::os::unix::fs::symlink("d", folder.path().join("link")).expect("linked");
        let handle = norfab_files::part::open_folder(folder.path()).expect("open");
        let counted = take(&handle, &|_| false, 0).expect("counted");
        assert_eq!(counted.census, Census { bytes: 5, entries: 4 });
        assert_eq!(counted.parts.values().copied().collect::<Vec<_>>(), [2]);
        let metadata = fs::metadata(folder.path().join("d/a")).expect("there");
        let without = take(&handle, &|key| key == (metadata.dev(), metadata.ino()), 0).expect("counted");
        assert_eq!(without.census, Census { bytes: 2, entries: 3 });
    }

    #[test]
    fn parts_that_nobody_goes_on_with_are_removed_when_they_are_old() {
        let folder = tempfile::tempdir().expect("a folder");
        let now = 2_000_000_000;
        let file = |name: &str, age: i64| {
            let file = File::create(folder.path().join(name)).expect("made");
            let time = SystemTime::UNIX_EPOCH + Duration::from_secs((now - age).unsigned_abs());
            file.set_modified(time).expect("changed");
            file
        };
        file(".old.part", PART_SECONDS_MAX + 1);
        file(".young.part", PART_SECONDS_MAX);
        file("old", 10 * PART_SECONDS_MAX);
        file(".ahead.part", -1_000_000);
        let in_use = file(".in_use.part", PART_SECONDS_MAX + 1);
        flock(&in_use, FlockOperation::LockExclusive).expect("locked");
        let handle = norfab_files::part::open_folder(folder.path()).expect("open");
        assert_eq!(take(&handle, &|_| false, now).expect("counted").census.entries, 3);
        let is_there = |name: &str| folder.path().join(name).exists();
        assert!(
            !is_there(".old.part")
                && !is_there(".ahead.part")
                && is_there(".young.part")
                && is_there("old")
                && is_there(".in_use.part")
        );
    }

    #[test]
    fn a_part_with_the_time_of_what_it_is_a_copy_of_is_no_old_one() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = File::create(folder.path().join(".a.part")).expect("made");
        file.set_modified(SystemTime::UNIX_EPOCH + Duration::from_secs(1_500_000_000)).expect("changed");
        let handle = norfab_files::part::open_folder(folder.path()).expect("open");
        let now = file.metadata().expect("there").ctime();
        assert_eq!(take(&handle, &|_| false, now).expect("counted").census.entries, 1);
    }
}
