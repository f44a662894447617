//! Folders as a whole: made, compared and removed, each name opened in the folder before it and never through a link.

use std::fs::File;
use std::io::{self, Read};

use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, mkdirat, openat, statat, unlinkat};
use rustix::io::Errno;

use super::error::SyncError;
use super::halt::Halt;

/// Deepest folder that is compared or removed. Deeper ones are not ours.
const DEPTH_MAX: usize = 200;

/// Bytes that are compared at once.
const COMPARED_BYTES: usize = 64 * 1024;

/// The flags that open a folder and no link.
const FOLDER: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// Opens a folder in another.
pub(crate) fn open_folder(parent: impl AsFd, name: &[u8]) -> Result<OwnedFd, Errno> {
    openat(parent, name, FOLDER, Mode::empty())
}

/// As [`open_folder`]; it is made if it is missing.
pub(crate) fn make_folder(parent: impl AsFd, name: &[u8]) -> Result<OwnedFd, Errno> {
    match mkdirat(&parent, name, Mode::from_raw_mode(0o777)) {
        Ok(()) | Err(Errno::EXIST) => open_folder(parent, name),
        Err(errno) => Err(errno),
    }
}

/// The names in a folder and what they are.
pub(crate) fn entries(folder: impl AsFd) -> Result<Vec<(Vec<u8>, FileType)>, Errno> {
    let mut entries = Vec::new();
    for entry in Dir::read_from(&folder)? {
        let name = entry?.file_name().to_bytes().to_vec();
        if name != b"." && name != b".." {
            let stat = statat(&folder, name.as_slice(), AtFlags::SYMLINK_NOFOLLOW)?;
            entries.push((name, FileType::from_raw_mode(stat.st_mode)));
        }
    }
    entries.sort_unstable_by(|one, other| one.0.cmp(&other.0));
    Ok(entries)
}

/// Removes what has this name, whatever it is. Nothing there is fine, too. It is not ended early: it is what undoes work that was.
pub(crate) fn remove(parent: impl AsFd, name: &[u8]) -> Result<(), Errno> {
    remove_at_depth(parent.as_fd(), name, 0)
}

fn remove_at_depth(parent: BorrowedFd<'_>, name: &[u8], depth: usize) -> Result<(), Errno> {
    match unlinkat(parent, name, AtFlags::empty()) {
        Ok(()) | Err(Errno::NOENT) => return Ok(()),
        // The systems differ in what they say of a folder.
        Err(Errno::ISDIR | Errno::PERM) => {}
        Err(errno) => return Err(errno),
    }
    if depth > DEPTH_MAX {
        return Err(Errno::NAMETOOLONG);
    }
    let folder = open_folder(parent, name)?;
    for entry in Dir::read_from(&folder)?.collect::<Result<Vec<_>, _>>()? {
        let name = entry.file_name().to_bytes();
        if name != b"." && name != b".." {
            remove_at_depth(folder.as_fd(), name, depth + 1)?;
        }
    }
    drop(folder);
    unlinkat(parent, name, AtFlags::REMOVEDIR)
}

/// Whether two folders hold the same files with the same content, names in `ignored` aside. Errors: the disk, or it is to end.
pub(crate) fn is_same(one: impl AsFd, other: impl AsFd, ignored: &[u8], halt: &Halt) -> Result<bool, SyncError> {
    let same = is_same_at_depth(one.as_fd(), other.as_fd(), ignored, halt, 0);
    if halt.is_halted() {
        return Err(SyncError::Halted);
    }
    same.map_err(SyncError::disk("compare the folder in the place of the remote"))
}

/// Gives anything once it is to end.
fn is_same_at_depth(
    one: BorrowedFd<'_>,
    other: BorrowedFd<'_>,
    ignored: &[u8],
    halt: &Halt,
    depth: usize,
) -> io::Result<bool> {
    let told = |folder| -> io::Result<Vec<(Vec<u8>, FileType)>> {
        Ok(entries(folder)?.into_iter().filter(|(name, _)| name != ignored).collect())
    };
    let names = told(one)?;
    if depth > DEPTH_MAX || names != told(other)? {
        return Ok(false);
    }
    for (name, kind) in names {
        let same = match kind {
            FileType::Directory => {
                let (one, other) = (open_folder(one, &name)?, open_folder(other, &name)?);
                is_same_at_depth(one.as_fd(), other.as_fd(), ignored, halt, depth + 1)?
            }
            FileType::RegularFile => is_same_file(open_file(one, &name)?, open_file(other, &name)?, halt)?,
            // We make nothing else.
            _ => false,
        };
        if !same || halt.is_halted() {
            return Ok(false);
        }
    }
    Ok(true)
}

fn open_file(folder: BorrowedFd<'_>, name: &[u8]) -> io::Result<File> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    Ok(File::from(openat(folder, name, flags, Mode::empty())?))
}

fn is_same_file(mut one: File, mut other: File, halt: &Halt) -> io::Result<bool> {
    if one.metadata()?.len() != other.metadata()?.len() {
        return Ok(false);
    }
    let (mut left, mut right) = (vec![0; COMPARED_BYTES], vec![0; COMPARED_BYTES]);
    loop {
        let count = one.read(&mut left)?;
        if count == 0 || halt.is_halted() {
            return Ok(true);
        }
        match other.read_exact(&mut right[..count]) {
            Ok(()) if left[..count] == right[..count] => {}
            Ok(()) => return Ok(false),
            // It becomes shorter meanwhile.
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(false),
            Err(error) => return Err(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn folders_are_removed_and_links_in_them_are_not_followed() {
        let outer = tempfile::tempdir().expect("a folder");
        let path = outer.path();
        fs::create_dir_all(path.join("out")).expect("made");
        fs::write(path.join("out/kept"), "").expect("written");
        fs::create_dir_all(path.join("gone/deep/er")).expect("made");
        fs::write(path.join("gone/deep/file"), "").expect("written");
        symlink("../out", path.join("gone/link")).expect("linked");
        let folder = File::open(path).expect("open");
        remove(&folder, b"gone").expect("removed");
        remove(&folder, b"gone").expect("nothing there");
        assert!(!path.join("gone").exists() && path.join("out/kept").exists());
    }

    #[test]
    fn folders_are_the_same_where_names_and_contents_are() {
        let outer = tempfile::tempdir().expect("a folder");
        let halt = Halt::default();
        let open = |name: &str| File::open(outer.path().join(name)).expect("open");
        for folder in ["a", "b"] {
            fs::create_dir_all(outer.path().join(folder).join("d")).expect("made");
            fs::write(outer.path().join(folder).join("d/f"), "same").expect("written");
        }
        fs::write(outer.path().join("a/ignored"), "").expect("written");
        assert!(is_same(open("a"), open("b"), b"ignored", &halt).expect("compared"));
        assert!(!is_same(open("a"), open("b"), b"other", &halt).expect("compared"));
        fs::write(outer.path().join("b/d/f"), "sane").expect("written");
        assert!(!is_same(open("a"), open("b"), b"ignored", &halt).expect("compared"));
        fs::write(outer.path().join("b/d/f"), "same").expect("written");
        symlink("f", outer.path().join("b/d/g")).expect("linked");
        assert!(!is_same(open("a"), open("b"), b"ignored", &halt).expect("compared"));
        halt.halt();
        assert!(matches!(is_same(open("a"), open("a"), b"ignored", &halt), Err(SyncError::Halted)));
    }
}
