//! Opening what is below the shared folder, and nothing else.
//!
//! A path is never checked and then opened as a whole: between the two it may change. Every name is opened relative to
//! the handle of the directory before it, without following links, and links are read and followed here. `..` goes
//! back to the handle that was opened before, so that there is no way above the first one.
//!
//! Where the kernel can do the same in one call (`openat2`), and no link is on the way, it does.

use std::collections::VecDeque;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::{AtFlags, CWD, Dir, FileType, Mode, OFlags, Stat, fstat, openat, readlinkat, statat};
use rustix::io::Errno;

use crate::hidden::Hidden;

/// Links that are followed on one way, as many as Linux follows. More is a loop.
const LINKS_MAX: usize = 40;

/// Directories that are open on one way. Nobody nests deeper on purpose, and a URL must not use up the process's handles.
const STEPS_MAX: usize = 128;

/// How often a way may change under our feet before we say that it leads nowhere.
const SWAPS_MAX: usize = 64;

/// The flags that open a directory to go through it. It need not be readable for that.
#[cfg(target_os = "linux")]
const THROUGH: OFlags = OFlags::PATH.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);
#[cfg(not(target_os = "linux"))]
const THROUGH: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);

/// The flags that open a file to read it. A pipe that took the place of the file must not make us wait, nor a terminal
/// become ours.
const READ: OFlags =
    OFlags::RDONLY.union(OFlags::NOFOLLOW).union(OFlags::NONBLOCK).union(OFlags::NOCTTY).union(OFlags::CLOEXEC);

/// Why there is nothing to open.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Dead {
    /// The way leads out of the shared folder.
    Outside,
    /// Nothing is there, or nothing that is served.
    Missing,
    /// The system says no.
    Unreadable(Errno),
}

impl From<Errno> for Dead {
    fn from(errno: Errno) -> Self {
        match errno {
            Errno::NOENT | Errno::NOTDIR | Errno::NAMETOOLONG | Errno::LOOP => Self::Missing,
            errno => Self::Unreadable(errno),
        }
    }
}

/// What is at the end of a way.
#[derive(Debug)]
pub(crate) enum Found {
    /// A directory: its handle, for `entries` and [`open_below`], and its real place below the shared folder.
    Directory { handle: OwnedFd, place: Vec<Vec<u8>> },
    /// A regular file, open for reading, and what is known of it.
    File { handle: OwnedFd, stat: Box<Stat> },
    /// A device, a pipe or a socket. Never opened: opening alone does something to some of them.
    Special,
}

/// The shared folder.
#[derive(Debug)]
pub(crate) struct Folder {
    base_dir: PathBuf,
    /// Whether to try `openat2`: until the kernel, or a filter before it, says that it knows no such call.
    one_call: AtomicBool,
    hidden: Hidden,
}

impl Folder {
    pub(crate) fn new(base_dir: PathBuf, hidden: Hidden) -> Self {
        Self { base_dir, one_call: AtomicBool::new(cfg!(target_os = "linux")), hidden }
    }

    /// Follows names from the shared folder to what they lead to.
    ///
    /// The folder itself is opened anew every time: a path or a link that now leads to a newer folder does so for us, too.
    /// Whether nothing of this name is served.
    pub(crate) fn hides(&self, name: &[u8]) -> bool {
        self.hidden.is(name)
    }

    pub(crate) fn find(&self, names: &[String]) -> Result<Found, Dead> {
        let base = openat(CWD, &self.base_dir, THROUGH, Mode::empty())?;
        if self.one_call.load(Ordering::Relaxed)
            && let Some(found) = self.find_in_one_call(&base, names)?
        {
            return Ok(found);
        }
        let names = names.iter().map(|name| name.clone().into_bytes());
        self.walk(base, names.collect())
    }

    /// As [`Self::find`] where neither a link nor `..` is on the way; `None` where one is.
    #[cfg(target_os = "linux")]
    fn find_in_one_call(&self, base: &OwnedFd, names: &[String]) -> Result<Option<Found>, Dead> {
        use rustix::fs::{ResolveFlags, openat2};

        let Some((last, above)) = names.split_last() else {
            return Ok(None);
        };
        if names.iter().any(|name| name == "..") {
            return Ok(None);
        }
        if names.iter().any(|name| may_be_short_form(name.as_bytes())) {
            return Ok(None);
        }
        // Without links, the names as written are the real ones.
        if names.iter().any(|name| self.hides(name.as_bytes())) {
            return Err(Dead::Missing);
        }
        let parent = if above.is_empty() {
            None
        } else {
            let beneath = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
            match openat2(base, above.join("/"), THROUGH, Mode::empty(), beneath) {
                Ok(parent) => Some(parent),
                // A link, or a tree that changes while the kernel looks.
                Err(Errno::LOOP | Errno::XDEV | Errno::AGAIN) => return Ok(None),
                Err(Errno::NOSYS | Errno::PERM | Errno::INVAL | Errno::TOOBIG) => {
                    self.one_call.store(false, Ordering::Relaxed);
                    return Ok(None);
                }
                Err(errno) => return Err(errno.into()),
            }
        };
        let parent = parent.as_ref().map_or(base.as_fd(), AsFd::as_fd);
        let mut place: Vec<Vec<u8>> = above.iter().map(|name| name.clone().into_bytes()).collect();
        match open_below(parent, last.as_bytes())? {
            Below::Directory(handle) => {
                place.push(last.clone().into_bytes());
                Ok(Some(Found::Directory { handle, place }))
            }
            Below::File(handle, stat) => Ok(Some(Found::File { handle, stat })),
            Below::Special => Ok(Some(Found::Special)),
            Below::Link | Below::Swapped => Ok(None),
        }
    }

    #[cfg(not(target_os = "linux"))]
    fn find_in_one_call(&self, _: &OwnedFd, _: &[String]) -> Result<Option<Found>, Dead> {
        Ok(None)
    }

    /// Follows names one by one, and links with them.
    fn walk(&self, base: OwnedFd, mut ahead: VecDeque<Vec<u8>>) -> Result<Found, Dead> {
        let mut passed: Vec<(OwnedFd, Vec<u8>)> = Vec::new();
        let (mut links, mut swaps) = (0, 0);
        while let Some(name) = ahead.pop_front() {
            if name == b".." {
                if passed.pop().is_none() {
                    return Err(Dead::Outside);
                }
                continue;
            }
            if self.hides(&name) {
                return Err(Dead::Missing);
            }
            let here = passed.last().map_or(base.as_fd(), |(handle, _)| handle.as_fd());
            if may_be_short_form(&name) && !is_listed(here, &name)? {
                return Err(Dead::Missing);
            }
            match open_below(here, &name)? {
                Below::Directory(_) if passed.len() >= STEPS_MAX => return Err(Dead::Missing),
                Below::Directory(handle) => passed.push((handle, name)),
                // Only a directory has something behind it.
                Below::File(..) | Below::Special if !ahead.is_empty() => return Err(Dead::Missing),
                Below::File(handle, stat) => return Ok(Found::File { handle, stat }),
                Below::Special => return Ok(Found::Special),
                Below::Link => {
                    links += 1;
                    if links > LINKS_MAX {
                        return Err(Dead::Missing);
                    }
                    match readlinkat(here, name.as_slice(), Vec::new()) {
                        Ok(target) => self.turn(target.as_bytes(), &mut passed, &mut ahead)?,
                        // No link any more: look again.
                        Err(Errno::INVAL) => ahead.push_front(name),
                        Err(errno) => return Err(errno.into()),
                    }
                }
                Below::Swapped => {
                    swaps += 1;
                    if swaps > SWAPS_MAX {
                        return Err(Dead::Missing);
                    }
                    ahead.push_front(name);
                }
            }
        }
        let place = passed.iter().map(|(_, name)| name.clone()).collect();
        let handle = passed.pop().map_or(base, |(handle, _)| handle);
        Ok(Found::Directory { handle, place })
    }

    /// Takes the way that a link shows.
    fn turn(
        &self,
        target: &[u8],
        passed: &mut Vec<(OwnedFd, Vec<u8>)>,
        ahead: &mut VecDeque<Vec<u8>>,
    ) -> Result<(), Dead> {
        let inner = if target.starts_with(b"/") {
            // From the top, but into the shared folder: the rest of the way is gone from our own handle. What the texts
            // say only decides where to go on, not what may be opened.
            passed.clear();
            self.below_base(target).ok_or(Dead::Outside)?
        } else {
            target.to_vec()
        };
        let names = inner.split(|byte| *byte == b'/').filter(|name| !name.is_empty() && *name != b".");
        for name in names.rev() {
            ahead.push_front(name.to_vec());
        }
        Ok(())
    }

    /// The part of an absolute path that is below the shared folder.
    fn below_base(&self, target: &[u8]) -> Option<Vec<u8>> {
        use std::ffi::OsStr;
        use std::os::unix::ffi::{OsStrExt, OsStringExt};

        let target = Path::new(OsStr::from_bytes(target));
        let real = fs::canonicalize(&self.base_dir).ok();
        let bases = [real.as_deref(), Some(self.base_dir.as_path())];
        let below = bases.into_iter().flatten().find_map(|base| target.strip_prefix(base).ok())?;
        Some(below.as_os_str().to_owned().into_vec())
    }
}

/// Longest name of eight and three characters, with a dot between them.
const SHORT_FORM_BYTES_MAX: usize = 12;

/// Whether a name may be one that some file systems have beside the one by which a file is known: `GIT~1` is `.git`, too.
pub(crate) fn may_be_short_form(name: &[u8]) -> bool {
    let tilde = name.iter().position(|byte| *byte == b'~');
    name.len() <= SHORT_FORM_BYTES_MAX
        && tilde.and_then(|at| name.get(at + 1)).is_some_and(|byte| byte.is_ascii_alphanumeric())
}

/// Whether a name is among those that a directory tells.
fn is_listed(directory: BorrowedFd<'_>, name: &[u8]) -> Result<bool, Errno> {
    // The handle that led here cannot be read from.
    let readable = openat(directory, c".", OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
    for entry in Dir::new(readable)? {
        if entry?.file_name().to_bytes() == name {
            return Ok(true);
        }
    }
    Ok(false)
}

/// What one name leads to.
pub(crate) enum Below {
    Directory(OwnedFd),
    File(OwnedFd, Box<Stat>),
    Special,
    Link,
    /// It became something else between two looks.
    Swapped,
}

/// What is known of one name in a directory, without following it.
pub(crate) fn stat_below(directory: BorrowedFd<'_>, name: &[u8]) -> Result<Stat, Errno> {
    #[cfg(test)]
    crate::faults::check(crate::faults::Call::Stat, name)?;
    statat(directory, name, AtFlags::SYMLINK_NOFOLLOW)
}

/// Opens one name in a directory, without following it.
pub(crate) fn open_below(directory: BorrowedFd<'_>, name: &[u8]) -> Result<Below, Errno> {
    let stat = stat_below(directory, name)?;
    let (flags, directory_expected) = match FileType::from_raw_mode(stat.st_mode) {
        FileType::Directory => (THROUGH | OFlags::NOFOLLOW, true),
        FileType::RegularFile => (READ, false),
        FileType::Symlink => return Ok(Below::Link),
        _ => return Ok(Below::Special),
    };
    #[cfg(test)]
    crate::faults::check(crate::faults::Call::Open, name)?;
    let handle = match openat(directory, name, flags, Mode::empty()) {
        Ok(handle) => handle,
        // A link now, or no directory any more, or something without a reader.
        Err(Errno::LOOP | Errno::NOTDIR | Errno::NXIO) => return Ok(Below::Swapped),
        Err(errno) => return Err(errno),
    };
    if directory_expected {
        return Ok(Below::Directory(handle));
    }
    let stat = fstat(&handle)?;
    match FileType::from_raw_mode(stat.st_mode) {
        FileType::RegularFile => Ok(Below::File(handle, Box::new(stat))),
        _ => Ok(Below::Swapped),
    }
}

#[cfg(test)]
mod races;

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;
    use std::os::unix::net::UnixListener;

    use tempfile::TempDir;

    use super::*;

    /// The shared folder `base`, and a secret beside it.
    fn tree() -> (TempDir, [Folder; 2]) {
        let outer = tempfile::tempdir().expect("a folder");
        let base = outer.path().join("base");
        fs::create_dir_all(base.join("d/sub")).expect("made");
        fs::create_dir_all(base.join("__norfab__/keys")).expect("made");
        fs::create_dir(outer.path().join("outside")).expect("made");
        let files = [
            "d/a.txt",
            "d/sub/b.txt",
            "__norfab__/keys/broker.key_secret",
            "__norfab__/jobs.db",
            ".env",
            "x.key_secret",
            "inventory.yaml",
            "../secret.txt",
            "../outside/secret.txt",
        ];
        for file in files {
            fs::write(base.join(file), file).expect("written");
        }
        let absolute = base.join("d/a.txt");
        let links = [
            ("up", "../secret.txt"),
            ("root", "/"),
            ("passwd", "/etc/passwd"),
            ("out", "../outside"),
            ("inside", "d/sub"),
            ("chain", "inside"),
            ("loop", "loop"),
            ("ping", "pong"),
            ("pong", "ping"),
            ("broken", "nowhere"),
            ("to_keys", "__norfab__/keys"),
            ("to_env", ".env"),
            ("self", "."),
            ("back", "d/sub/../../d/a.txt"),
            ("over", "d/../../base/d/a.txt"),
            ("proc", "/proc/self/root"),
            ("d/climb", "../../secret.txt"),
            ("d/sub/home", "../.."),
            ("absolute", absolute.to_str().expect("text")),
        ];
        for (name, target) in links {
            symlink(target, base.join(name)).expect("linked");
        }
        let pipe_made = rustix::fs::mknodat(CWD, base.join("pipe"), FileType::Fifo, Mode::RUSR, 0);
        pipe_made.expect("a pipe");
        drop(UnixListener::bind(base.join("socket")).expect("a socket"));
        let by_name = Folder::new(base.clone(), Hidden::default());
        by_name.one_call.store(false, Ordering::Relaxed);
        (outer, [Folder::new(base, Hidden::default()), by_name])
    }

    #[derive(Debug, PartialEq)]
    enum End {
        Directory(String),
        File(String),
        Special,
        Dead(Dead),
    }

    fn end(folder: &Folder, path: &str) -> End {
        let names: Vec<String> = path.split('/').filter(|name| !name.is_empty()).map(str::to_owned).collect();
        match folder.find(&names) {
            Ok(Found::Directory { place, .. }) => End::Directory(String::from_utf8(place.join(&b'/')).expect("text")),
            Ok(Found::File { handle, .. }) => {
                End::File(std::io::read_to_string(fs::File::from(handle)).expect("readable"))
            }
            Ok(Found::Special) => End::Special,
            Err(dead) => End::Dead(dead),
        }
    }

    #[test]
    fn ways_end_where_they_should_with_and_without_the_one_call() {
        let directory = |place: &str| End::Directory(place.to_owned());
        let file = |content: &str| End::File(content.to_owned());
        let (missing, outside) = (|| End::Dead(Dead::Missing), || End::Dead(Dead::Outside));
        let (_outer, folders) = tree();
        for folder in &folders {
            let rows = [
                ("", directory("")),
                ("d", directory("d")),
                ("d/sub", directory("d/sub")),
                ("self", directory("")),
                ("inside", directory("d/sub")),
                ("chain", directory("d/sub")),
                ("d/sub/home/d", directory("d")),
                ("d/..", directory("")),
                ("d/sub/..", directory("d")),
                ("inside/..", directory("d")),
                ("d/a.txt", file("d/a.txt")),
                ("chain/b.txt", file("d/sub/b.txt")),
                ("back", file("d/a.txt")),
                ("d/../d/a.txt", file("d/a.txt")),
                ("inside/../a.txt", file("d/a.txt")),
                ("absolute", file("d/a.txt")),
                ("self/self/d/a.txt", file("d/a.txt")),
                ("inventory.yaml", file("inventory.yaml")),
                ("pipe", End::Special),
                ("socket", End::Special),
                ("nope", missing()),
                ("d/nope/a.txt", missing()),
                ("d/a.txt/b", missing()),
                ("pipe/b", missing()),
                ("d/a.txt/../a.txt", missing()),
                ("broken", missing()),
                ("loop", missing()),
                ("ping", missing()),
                ("__norfab__", missing()),
                ("__norfab__/jobs.db", missing()),
                ("d/../__norfab__/jobs.db", missing()),
                ("self/__norfab__/jobs.db", missing()),
                ("to_keys", missing()),
                ("to_env", missing()),
                ("to_keys/broker.key_secret", missing()),
                ("x.key_secret", missing()),
                (".env", missing()),
                ("__norfab__/../d/a.txt", missing()),
                ("C:/d/a.txt", missing()),
                ("~/.ssh", missing()),
                ("..", outside()),
                ("../secret.txt", outside()),
                ("d/../../secret.txt", outside()),
                ("../base/d/a.txt", outside()),
                ("inside/../../../secret.txt", outside()),
                ("up", outside()),
                ("root", outside()),
                ("root/etc/passwd", outside()),
                ("passwd", outside()),
                ("out", outside()),
                ("out/secret.txt", outside()),
                ("over", outside()),
                ("proc/etc/passwd", outside()),
                ("d/climb", outside()),
                ("self/../up", outside()),
                ("d/sub/home/up", outside()),
                ("d/sub/home/../secret.txt", outside()),
            ];
            for (path, expected) in rows {
                let one_call = folder.one_call.load(Ordering::Relaxed);
                assert_eq!(end(folder, path), expected, "{path:?}, one call: {one_call}");
            }
            let long = "n".repeat(300);
            assert_eq!(end(folder, &long), missing());
        }
    }

    #[test]
    fn the_kernel_knows_the_one_call_after_many_ways() {
        let (_outer, [folder, _]) = tree();
        assert_eq!(end(&folder, "d/sub/b.txt"), End::File("d/sub/b.txt".to_owned()));
        assert_eq!(folder.one_call.load(Ordering::Relaxed), cfg!(target_os = "linux"));
    }

    #[test]
    fn a_shared_folder_that_is_a_link_leads_where_it_leads_now() {
        let (outer, _) = tree();
        let current = outer.path().join("current");
        symlink("base", &current).expect("linked");
        let folder = Folder::new(current.clone(), Hidden::default());
        assert_eq!(end(&folder, "d/a.txt"), End::File("d/a.txt".to_owned()));
        assert_eq!(end(&folder, "absolute"), End::File("d/a.txt".to_owned()));
        fs::remove_file(&current).expect("removed");
        assert_eq!(end(&folder, "d/a.txt"), End::Dead(Dead::Missing));
        symlink("outside", &current).expect("linked");
        assert_eq!(end(&folder, "secret.txt"), End::File("../outside/secret.txt".to_owned()));
    }
}
