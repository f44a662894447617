//! What is in the upload folder, and what is thrown away there: parts that nobody goes on with.

use std::ffi::CStr;

use norfab_files::part::is_part_name;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::{AtFlags, Dir, FileType, FlockOperation, Mode, OFlags, flock, openat, statat, unlinkat};
use rustix::io::Errno;

/// Seconds after which a part is removed that nobody has gone on with: somebody who was on a journey still can.
pub const PART_SECONDS_MAX: i64 = 7 * 24 * 3600;

/// Folders within each other that are looked into. Uploads do not make so many.
const LEVELS_MAX: usize = 64;

/// What is in a folder and the folders in it, links not followed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Census {
    /// Bytes of the files.
    pub(crate) bytes: u64,
    /// Files, folders and all else.
    pub(crate) entries: u64,
}

/// Counts, except for some files by device and number, and removes parts that are older at `now`, seconds since 1970 by the clock of the
/// file system, than [`PART_SECONDS_MAX`]. Folders that are gone meanwhile, or cannot be read, count nothing. Blocks.
pub(crate) fn take(folder: &OwnedFd, without: &[(u64, u64)], now: i64) -> Result<Census, Errno> {
    let mut census = Census::default();
    count(folder.as_fd(), without, now, 0, &mut census)?;
    Ok(census)
}

fn count(
    folder: BorrowedFd<'_>,
    without: &[(u64, u64)],
    now: i64,
    level: usize,
    census: &mut Census,
) -> Result<(), Errno> {
    for entry in Dir::read_from(folder)? {
        let entry = entry?;
        let name = entry.file_name();
        if matches!(name.to_bytes(), b"." | b"..") {
            continue;
        }
        let Ok(stat) = statat(folder, name, AtFlags::SYMLINK_NOFOLLOW) else { continue };
        #[allow(clippy::useless_conversion, reason = "the types of these fields differ between systems")]
        let key = (u64::from(stat.st_dev), u64::from(stat.st_ino));
        let kind = FileType::from_raw_mode(stat.st_mode);
        if without.contains(&key) {
            continue;
        }
        if kind == FileType::RegularFile {
            let is_old = is_part_name(name.to_bytes()) && now.saturating_sub(stat.st_mtime) > PART_SECONDS_MAX;
            if is_old && remove(folder, name) {
                tracing::info!("a part of an upload that nobody went on with was removed: {}", name.to_string_lossy());
                continue;
            }
            census.bytes = census.bytes.saturating_add(u64::try_from(stat.st_size).unwrap_or_default());
        }
        census.entries += 1;
        if kind == FileType::Directory && level < LEVELS_MAX {
            let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            if let Ok(inner) = openat(folder, name, flags, Mode::empty()) {
                count(inner.as_fd(), without, now, level + 1, census).ok();
            }
        }
    }
    Ok(())
}

/// Removes a part, unless somebody goes on with it at this moment.
fn remove(folder: BorrowedFd<'_>, name: &CStr) -> bool {
    let flags = OFlags::RDWR | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let Ok(file) = openat(folder, name, flags, Mode::empty()) else { return false };
    flock(&file, FlockOperation::NonBlockingLockExclusive).is_ok() && unlinkat(folder, name, AtFlags::empty()).is_ok()
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
        assert_eq!(take(&handle, &[], 0), Ok(Census { bytes: 5, entries: 4 }));
        let metadata = fs::metadata(folder.path().join("d/a")).expect("there");
        assert_eq!(take(&handle, &[(metadata.dev(), metadata.ino())], 0), Ok(Census { bytes: 2, entries: 3 }));
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
        let in_use = file(".in_use.part", PART_SECONDS_MAX + 1);
        flock(&in_use, FlockOperation::LockExclusive).expect("locked");
        let handle = norfab_files::part::open_folder(folder.path()).expect("open");
        assert_eq!(take(&handle, &[], now).expect("counted").entries, 3);
        let is_there = |name: &str| folder.path().join(name).exists();
        assert!(!is_there(".old.part") && is_there(".young.part") && is_there("old") && is_there(".in_use.part"));
    }
}
