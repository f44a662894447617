//! A folder into which many files are written, whatever their paths say and whoever changes links in it meanwhile.
//!
//! Each folder is opened relative to the one above it, never through a link, and files are opened, made, moved and removed relative
//! to the handle of their folder. A path as a whole is given to the system once: that of the folder itself, which is its owner's.

use std::fs::File;
use std::io;
use std::path::Path;
use std::sync::Arc;

use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::{AtFlags, FileType, Mode, OFlags, Timespec, Timestamps, openat, statat};
use rustix::io::Errno;

use crate::part::{Part, open_folder};
use crate::path::RelativePath;
use crate::record::Facts;

/// The folder.
#[derive(Debug)]
pub struct Tree {
    root: OwnedFd,
}

/// What is under a name in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Standing {
    /// A file.
    File(Facts),
    /// A folder.
    Folder,
    /// A link, which is not followed.
    Link,
    /// A device, a pipe or a socket.
    Special,
}

/// One of the names in a folder.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Named {
    /// The name.
    pub name: String,
    /// What is there.
    pub standing: Standing,
    /// Seconds since 1970 of its last use.
    pub used: i64,
}

impl Tree {
    /// Opens a folder that is there. Its own path may go through links.
    pub fn open(folder: &Path) -> io::Result<Self> {
        Ok(Self { root: open_folder(folder)? })
    }

    /// Ways from it, which remember where the last one went.
    pub fn cursor(self: &Arc<Self>) -> Cursor {
        Cursor { tree: Arc::clone(self), passed: Vec::new() }
    }

    /// Waits until all that was written to its file system is on the disk: one wait for any number of files.
    pub fn sync(&self) -> io::Result<()> {
        #[cfg(target_os = "linux")]
        rustix::fs::syncfs(&self.root)?;
        #[cfg(not(target_os = "linux"))]
        rustix::fs::sync();
        Ok(())
    }
}

/// Goes to files of a [`Tree`]. Those of one folder cost one way to it. Its methods block.
#[derive(Debug)]
pub struct Cursor {
    tree: Arc<Tree>,
    passed: Vec<(String, OwnedFd)>,
}

impl Cursor {
    /// What is under a path. `None`: nothing, or no way leads there. Links on the way are none.
    pub fn look(&mut self, path: &RelativePath) -> io::Result<Option<Standing>> {
        let (above, name) = path.split();
        match self.folder(above, false) {
            Ok(folder) => standing(folder, name),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Opens a file for reading. Errors: there is none, or a link.
    pub fn file(&mut self, path: &RelativePath) -> io::Result<File> {
        self.file_named(path.as_str())
    }

    /// As [`Self::file`], of a path that was put together from [`Self::names`].
    pub fn file_named(&mut self, path: &str) -> io::Result<File> {
        let (above, name) = path.rsplit_once('/').unwrap_or(("", path));
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
        let file = File::from(openat(self.folder(above, false)?, name, flags, Mode::empty())?);
        if file.metadata()?.is_file() { Ok(file) } else { Err(io::Error::other(format!("'{path}' is no file here"))) }
    }

    /// The file in which one gathers, with the folders on the way to it. Errors: something else is in its place or on the way, or the
    /// system says no.
    pub fn part(&mut self, path: &RelativePath) -> io::Result<Part> {
        let (above, name) = path.split();
        let folder = self.folder(above, true)?;
        match standing(folder, name)? {
            // A link is replaced, and what it points to is left alone.
            None | Some(Standing::File(_) | Standing::Link) => {}
            Some(Standing::Folder) => return Err(io::Error::other(format!("'{path}' is a folder here"))),
            Some(Standing::Special) => {
                return Err(io::Error::other(format!("'{path}' is here and not a regular file")));
            }
        }
        Part::open(folder.try_clone_to_owned()?, name.as_ref())
    }

    /// Moves a part of a path to its place. Errors: as [`Part::keep`].
    pub fn keep(&mut self, part: Part, path: &RelativePath, facts: Facts) -> io::Result<()> {
        part.keep(path.split().1.as_ref(), facts)
    }

    /// Makes a folder, and those on the way to it.
    pub fn make_folder(&mut self, path: &RelativePath) -> io::Result<()> {
        self.folder(path.as_str(), true).map(drop)
    }

    /// Gives a file another time and other permissions.
    pub fn dress(&mut self, path: &RelativePath, facts: Facts) -> io::Result<()> {
        let file = self.file(path)?;
        rustix::fs::fchmod(&file, Mode::from_raw_mode(local_mode(facts.mode)))?;
        let time = Timespec { tv_sec: facts.modified, tv_nsec: 0 };
        Ok(rustix::fs::futimens(&file, &Timestamps { last_access: time, last_modification: time })?)
    }

    /// Removes a file or a link, not what that points to. Errors: it is a folder.
    pub fn remove(&mut self, path: &RelativePath) -> io::Result<()> {
        self.remove_name(path.as_str())
    }

    /// As [`Self::remove`], of a path that was put together from [`Self::names`].
    pub fn remove_name(&mut self, path: &str) -> io::Result<()> {
        let (above, name) = path.rsplit_once('/').unwrap_or(("", path));
        Ok(rustix::fs::unlinkat(self.folder(above, false)?, name, AtFlags::empty())?)
    }

    /// Removes a folder if it is empty; whether it was.
    pub fn remove_empty(&mut self, path: &RelativePath) -> io::Result<bool> {
        let (above, name) = path.split();
        match rustix::fs::unlinkat(self.folder(above, false)?, name, AtFlags::REMOVEDIR) {
            Ok(()) => Ok(true),
            Err(Errno::NOTEMPTY | Errno::EXIST) => Ok(false),
            Err(errno) => Err(errno.into()),
        }
    }

    /// What is in a folder, in the order of names; `""` is the first. Names that are no text are left out.
    pub fn names(&mut self, folder: &str) -> io::Result<Vec<Named>> {
        let folder = self.folder(folder, false)?;
        let mut names = Vec::new();
        for entry in rustix::fs::Dir::read_from(folder)? {
            let entry = entry?;
            let Ok(name) = entry.file_name().to_str() else { continue };
            if !matches!(name, "." | "..")
                && let Some((standing, used)) = look(folder, name)?
            {
                names.push(Named { name: name.to_owned(), standing, used });
            }
        }
        names.sort_by(|one, other| one.name.cmp(&other.name));
        Ok(names)
    }

    /// Goes to a folder: back from where the last way went as far as it must, then down. `path` was checked, or is empty.
    fn folder(&mut self, path: &str, makes: bool) -> io::Result<BorrowedFd<'_>> {
        let mut same = 0;
        let mut names = path.split('/').filter(|name| !name.is_empty()).peekable();
        while let (Some(name), Some((passed, _))) = (names.peek(), self.passed.get(same))
            && name == passed
        {
            same += 1;
            names.next();
        }
        self.passed.truncate(same);
        for name in names {
            let here = self.passed.last().map_or(self.tree.root.as_fd(), |(_, folder)| folder.as_fd());
            let folder = down(here, name, makes)?;
            self.passed.push((name.to_owned(), folder));
        }
        Ok(self.passed.last().map_or(self.tree.root.as_fd(), |(_, folder)| folder.as_fd()))
    }
}

/// The permissions that a copy gets: bits that give the rights of somebody else are no part of it, and its owner can go on with it.
pub fn local_mode(mode: u32) -> u32 {
    mode & 0o777 | 0o600
}

fn down(here: BorrowedFd<'_>, name: &str, makes: bool) -> io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    for _ in 0..2 {
        match openat(here, name, flags, Mode::empty()) {
            Ok(folder) => return Ok(folder),
            Err(Errno::NOENT) if makes => match rustix::fs::mkdirat(here, name, Mode::from_raw_mode(0o777)) {
                // Somebody else may have made it, or something else.
                Ok(()) | Err(Errno::EXIST) => {}
                Err(errno) => return Err(errno.into()),
            },
            Err(Errno::NOTDIR | Errno::LOOP) => break,
            Err(errno) => return Err(errno.into()),
        }
    }
    Err(io::Error::new(io::ErrorKind::NotADirectory, format!("'{name}' on the way to it is here and no folder")))
}

fn standing(folder: BorrowedFd<'_>, name: &str) -> io::Result<Option<Standing>> {
    Ok(look(folder, name)?.map(|(standing, _)| standing))
}

/// What is under a name, and when it was used.
fn look(folder: BorrowedFd<'_>, name: &str) -> io::Result<Option<(Standing, i64)>> {
    let stat = match statat(folder, name, AtFlags::SYMLINK_NOFOLLOW) {
        Ok(stat) => stat,
        Err(Errno::NOENT) => return Ok(None),
        Err(errno) => return Err(errno.into()),
    };
    #[allow(
        clippy::useless_conversion,
        clippy::unnecessary_cast,
        reason = "the types of these fields differ between systems"
    )]
    let facts =
        Facts { size: stat.st_size as u64, modified: i64::from(stat.st_mtime), mode: u32::from(stat.st_mode) & 0o777 };
    let standing = match FileType::from_raw_mode(stat.st_mode) {
        FileType::RegularFile => Standing::File(facts),
        FileType::Directory => Standing::Folder,
        FileType::Symlink => Standing::Link,
        _ => Standing::Special,
    };
    #[allow(clippy::useless_conversion, reason = "the type of this field differs between systems")]
    Ok(Some((standing, i64::from(stat.st_atime))))
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;

    const FACTS: Facts = Facts { size: 3, modified: 1_000_000, mode: 0o640 };

    fn path(text: &str) -> RelativePath {
        RelativePath::parse(text).expect("a path")
    }

    fn write(cursor: &mut Cursor, to: &str) -> io::Result<()> {
        let part = cursor.part(&path(to))?;
        part.write(b"new", 0)?;
        cursor.keep(part, &path(to), FACTS)
    }

    #[test]
    fn files_go_where_their_paths_say_with_the_folders_on_the_way() {
        let folder = tempfile::tempdir().expect("a folder");
        let tree = Arc::new(Tree::open(folder.path()).expect("a tree"));
        let mut cursor = tree.cursor();
        let paths = ["a", "b/c", "b/d/e", "b/d/f", "b/g", "h/i/j"];
        for to in paths {
            assert_eq!(cursor.look(&path(to)).expect("looked"), None);
            write(&mut cursor, to).expect("written");
        }
        for to in paths {
            assert_eq!(fs::read(folder.path().join(to)).expect("there"), b"new");
            assert_eq!(cursor.look(&path(to)).expect("looked"), Some(Standing::File(FACTS)));
        }
        assert_eq!(cursor.look(&path("b/d")).expect("looked"), Some(Standing::Folder));
        let names: Vec<_> = cursor.names("b").expect("listed").into_iter().map(|named| named.name).collect();
        assert_eq!(names, ["c", "d", "g"]);
        assert!(!cursor.remove_empty(&path("h/i")).expect("looked at"));
        cursor.remove(&path("h/i/j")).expect("removed");
        assert!(cursor.remove_empty(&path("h/i")).expect("removed"));
        tree.sync().expect("on the disk");
    }

    #[test]
    fn links_are_neither_followed_nor_written_through() {
        let (folder, outside) = (tempfile::tempdir().expect("a folder"), tempfile::tempdir().expect("a folder"));
        fs::write(outside.path().join("f"), "kept").expect("written");
        symlink(outside.path(), folder.path().join("d")).expect("linked");
        symlink(outside.path().join("f"), folder.path().join("f")).expect("linked");
        let tree = Arc::new(Tree::open(folder.path()).expect("a tree"));
        let mut cursor = tree.cursor();
        assert!(write(&mut cursor, "d/f").is_err_and(|error| error.to_string().contains("no folder")));
        assert!(write(&mut cursor, "d/e/f").is_err());
        assert!(cursor.make_folder(&path("d/e")).is_err());
        assert!(cursor.file(&path("f")).is_err() && cursor.file(&path("d/f")).is_err());
        assert!(cursor.dress(&path("f"), FACTS).is_err());
        assert!(cursor.remove(&path("d/f")).is_err() && cursor.names("d").is_err());
        write(&mut cursor, "f").expect("the link is replaced");
        assert!(fs::symlink_metadata(folder.path().join("f")).expect("there").is_file());
        assert_eq!(fs::read(outside.path().join("f")).expect("there"), b"kept");
        assert_eq!(fs::read_dir(outside.path()).expect("there").count(), 1);
        fs::create_dir(folder.path().join("x")).expect("made");
        assert!(write(&mut cursor, "x").is_err(), "a folder is in its place");
    }

    #[test]
    fn a_folder_that_becomes_a_link_while_files_are_written_leads_nothing_out() {
        let (folder, outside) = (tempfile::tempdir().expect("a folder"), tempfile::tempdir().expect("a folder"));
        let (inside, away) = (folder.path().join("d"), folder.path().join("away"));
        fs::create_dir(&inside).expect("made");
        symlink(outside.path(), folder.path().join("link")).expect("linked");
        let ended = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !ended.load(Ordering::Relaxed) {
                    // A folder and a link change places.
                    fs::rename(&inside, &away).ok();
                    fs::rename(folder.path().join("link"), &inside).ok();
                    fs::rename(&inside, folder.path().join("link")).ok();
                    fs::rename(&away, &inside).ok();
                }
            });
            let tree = Arc::new(Tree::open(folder.path()).expect("a tree"));
            let mut written = 0;
            for number in 0..3000 {
                written += u32::from(write(&mut tree.cursor(), &format!("d/f{number}")).is_ok());
            }
            ended.store(true, Ordering::Relaxed);
            assert!(written > 0);
        });
        assert_eq!(fs::read_dir(outside.path()).expect("there").count(), 0);
    }
}
