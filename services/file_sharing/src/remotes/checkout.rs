//! From the objects of a commit to files. Whoever may push to a repository chooses the names in it, so none is trusted.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{self, Write};

use gix_hash::ObjectId;
use gix_object::bstr::ByteSlice;
use gix_object::tree::EntryKind;
use gix_object::{CommitRefIter, Find, FindHeader, Kind, TagRefIter, TreeRefIter};
use gix_validate::path::component;
use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::{Mode, OFlags, openat};
use rustix::io::Errno;

use super::error::SyncError;
use super::halt::Halt;
use super::repository::{OBJECT_BYTES_MAX, damaged};
use super::tree::make_folder;

/// Most files, folders and links of a commit. Small trees can name one another so often that they stand for more than any disk
/// holds.
pub(crate) const ENTRIES_MAX: u64 = 500_000;

/// Most bytes of all files of a commit, for the same reason.
pub(crate) const BYTES_MAX: u64 = 16 * 1024 * 1024 * 1024;

/// Deepest folder of a commit: what can be walked.
const DEPTH_MAX: usize = 64;

/// Tags that stand for tags, at most.
const TAGS_MAX: usize = 8;

/// Most bytes of a tree, a commit or a tag.
const META_BYTES_MAX: u64 = 64 * 1024 * 1024;

/// What is reserved in the folder of a checkout: see [`super::mount`].
pub(crate) const RESERVED: &str = "__norfab__";

/// How much of a commit may be written.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Limits {
    pub(crate) entries: u64,
    pub(crate) bytes: u64,
    pub(crate) depth: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self { entries: ENTRIES_MAX, bytes: BYTES_MAX, depth: DEPTH_MAX }
    }
}

/// What was not written.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(crate) struct LeftOut {
    /// Symbolic links.
    pub(crate) links: u64,
    /// Repositories in the repository.
    pub(crate) submodules: u64,
    /// Files and folders whose names could do harm.
    pub(crate) unsafe_names: u64,
}

impl LeftOut {
    /// What is said of it.
    pub(crate) fn messages(&self) -> Vec<String> {
        let told = [
            (self.links, "symbolic links are left out: they are not served"),
            (self.submodules, "submodules are left out: make remotes of them"),
            (self.unsafe_names, "files and folders are left out: their names are not safe on every system"),
        ];
        told.into_iter().filter(|(count, _)| *count > 0).map(|(count, what)| format!("{count} {what}")).collect()
    }
}

/// Writes the files of a commit, or of what a tag stands for, into an empty folder. Blocks.
pub(crate) fn write(
    objects: &gix_odb::Handle,
    tip: ObjectId,
    folder: OwnedFd,
    limits: Limits,
    halt: &Halt,
) -> Result<LeftOut, SyncError> {
    let mut checkout = Checkout { objects, halt, limits, entries: 0, bytes: 0, left_out: LeftOut::default() };
    let mut buffer = Vec::new();
    let tree = checkout.tree_of(tip, &mut buffer)?;
    // The folders that are still to be filled, each with its handle: the innermost are next, so few are open at a time.
    let mut levels = vec![Level { trees: vec![(tree, None)], folder }];
    while let Some(level) = levels.last_mut() {
        let Some((tree, name)) = level.trees.pop() else {
            levels.pop();
            continue;
        };
        let folder = match &name {
            None => level.folder.try_clone().map_err(SyncError::disk("open a folder"))?,
            Some(name) => make_folder(&level.folder, name).map_err(SyncError::errno("make a folder"))?,
        };
        let depth = levels.len();
        if depth > limits.depth {
            return Err(SyncError::TooLarge { bound: limits.depth as u64, what: "folders in one another" });
        }
        let trees = checkout.fill(tree, &folder, &mut buffer)?;
        levels.push(Level { trees, folder });
    }
    Ok(checkout.left_out)
}

/// The names in the outermost folder of a commit. Errors: as [`write()`], which would write more than that. Blocks.
pub(crate) fn names(
    objects: &gix_odb::Handle,
    tip: ObjectId,
    limits: Limits,
    halt: &Halt,
) -> Result<BTreeSet<Vec<u8>>, SyncError> {
    let checkout = Checkout { objects, halt, limits, entries: 0, bytes: 0, left_out: LeftOut::default() };
    let mut buffer = Vec::new();
    checkout.tree_of(tip, &mut buffer)?;
    let mut names = BTreeSet::new();
    // The tree was read last.
    for (count, entry) in (1..).zip(TreeRefIter::from_bytes(&buffer, gix_hash::Kind::Sha1)) {
        checkout.go_on()?;
        checkout.check_entries(count)?;
        names.insert(entry.map_err(|error| damaged(&error))?.filename.to_vec());
    }
    Ok(names)
}

/// A tree, and the name of its folder; none for the outermost.
type Subtree = (ObjectId, Option<Vec<u8>>);

struct Level {
    /// What is still to be filled in this folder.
    trees: Vec<Subtree>,
    folder: OwnedFd,
}

struct Checkout<'a> {
    objects: &'a gix_odb::Handle,
    halt: &'a Halt,
    limits: Limits,
    entries: u64,
    bytes: u64,
    left_out: LeftOut,
}

impl Checkout<'_> {
    fn tree_of(&self, tip: ObjectId, buffer: &mut Vec<u8>) -> Result<ObjectId, SyncError> {
        let mut id = tip;
        for _ in 0..=TAGS_MAX {
            match self.read(id, META_BYTES_MAX, buffer)? {
                Kind::Tree => return Ok(id),
                Kind::Commit => {
                    id = CommitRefIter::from_bytes(buffer, gix_hash::Kind::Sha1).tree_id().map_err(|e| damaged(&e))?;
                }
                Kind::Tag => {
                    id = TagRefIter::from_bytes(buffer, gix_hash::Kind::Sha1).target_id().map_err(|e| damaged(&e))?;
                }
                Kind::Blob => break,
            }
        }
        Err(SyncError::Damaged { problem: format!("{tip} stands for no folder") })
    }

    /// Writes the files of one tree, and gives the trees in it.
    fn fill(&mut self, tree: ObjectId, folder: &OwnedFd, buffer: &mut Vec<u8>) -> Result<Vec<Subtree>, SyncError> {
        if self.read(tree, META_BYTES_MAX, buffer)? != Kind::Tree {
            return Err(SyncError::Damaged { problem: format!("{tree} is no tree") });
        }
        let mut content = Vec::new();
        let mut trees: Vec<Subtree> = Vec::new();
        for entry in TreeRefIter::from_bytes(buffer, gix_hash::Kind::Sha1) {
            self.go_on()?;
            let entry = entry.map_err(|error| damaged(&error))?;
            self.entries += 1;
            self.check_entries(self.entries)?;
            let kind = entry.mode.kind();
            match kind {
                EntryKind::Link => self.left_out.links += 1,
                EntryKind::Commit => self.left_out.submodules += 1,
                _ if !is_safe(entry.filename) => self.left_out.unsafe_names += 1,
                EntryKind::Tree => trees.push((entry.oid.to_owned(), Some(entry.filename.to_vec()))),
                EntryKind::Blob | EntryKind::BlobExecutable => {
                    let executable = kind == EntryKind::BlobExecutable;
                    self.write_file(entry.oid.to_owned(), folder, entry.filename, executable, &mut content)?;
                }
            }
        }
        // A name that comes twice, which git does not write, or names that are one to this file system.
        let mut made = Vec::new();
        for (id, name) in trees {
            self.go_on()?;
            let bytes = name.as_deref().unwrap_or_default();
            match rustix::fs::mkdirat(folder, bytes, Mode::from_raw_mode(0o777)) {
                Ok(()) => made.push((id, name)),
                Err(Errno::EXIST | Errno::ILSEQ | Errno::NAMETOOLONG) => self.left_out.unsafe_names += 1,
                Err(errno) => return Err(SyncError::errno("make a folder")(errno)),
            }
        }
        made.reverse();
        Ok(made)
    }

    fn write_file(
        &mut self,
        id: ObjectId,
        folder: &OwnedFd,
        name: &[u8],
        executable: bool,
        content: &mut Vec<u8>,
    ) -> Result<(), SyncError> {
        if self.read(id, OBJECT_BYTES_MAX as u64, content)? != Kind::Blob {
            return Err(SyncError::Damaged { problem: format!("{id} is no file") });
        }
        self.bytes += content.len() as u64;
        if self.bytes > self.limits.bytes {
            return Err(SyncError::TooLarge { bound: self.limits.bytes, what: "bytes of files" });
        }
        let mode = Mode::from_raw_mode(if executable { 0o777 } else { 0o666 });
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        match openat(folder.as_fd(), name, flags, mode) {
            Ok(file) => File::from(file).write_all(content).map_err(SyncError::disk("write a file")),
            Err(Errno::EXIST | Errno::ILSEQ | Errno::NAMETOOLONG) => {
                self.left_out.unsafe_names += 1;
                Ok(())
            }
            Err(errno) => Err(SyncError::errno("write a file")(errno)),
        }
    }

    fn check_entries(&self, entries: u64) -> Result<(), SyncError> {
        if entries > self.limits.entries {
            return Err(SyncError::TooLarge { bound: self.limits.entries, what: "files and folders" });
        }
        Ok(())
    }

    fn go_on(&self) -> Result<(), SyncError> {
        if self.halt.is_halted() { Err(SyncError::Halted) } else { Ok(()) }
    }

    /// Reads an object. Its size is looked at before memory is taken for it.
    fn read(&self, id: ObjectId, bytes_max: u64, buffer: &mut Vec<u8>) -> Result<Kind, SyncError> {
        let missing = || SyncError::Damaged { problem: format!("the object {id} is missing") };
        let header = self.objects.try_header(&id).map_err(|error| damaged(&error))?.ok_or_else(missing)?;
        if header.size > bytes_max {
            return Err(SyncError::TooLarge { bound: bytes_max, what: "bytes in one object" });
        }
        buffer.clear();
        let found = self.objects.try_find(&id, buffer).map_err(|error| damaged(&error))?.ok_or_else(missing)?;
        Ok(found.kind)
    }
}

/// Whether a name leads nowhere but into its folder, on any system, and is none of git's own or of ours.
fn is_safe(name: &[u8]) -> bool {
    let name = name.as_bstr();
    let reserved = name.to_str_lossy().to_lowercase() == RESERVED;
    !reserved && !name.contains(&0) && gix_validate::path::component(name, None, component::Options::default()).is_ok()
}

impl From<Errno> for SyncError {
    fn from(errno: Errno) -> Self {
        Self::Disk { what: "write the checkout", source: io::Error::from(errno) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_lead_elsewhere_on_any_system_are_not_safe() {
        let harmful = [
            "",
            ".",
            "..",
            ".git",
            ".GIT",
            ".git ",
            "git~1",
            ".g\u{200c}it",
            "a/b",
            "a\\b",
            "/etc",
            "c:",
            "c:x",
            "con",
            "NUL.txt",
            "aux",
            "a:stream",
            "end.",
            "a\u{1}",
            "__norfab__",
            "__NORFAB__",
            "a\0b",
        ];
        for name in harmful {
            assert!(!is_safe(name.as_bytes()), "{name:?}");
        }
        for name in ["a", ".env", ".gitignore", "größe", "a b", "__pycache__", "console", "\u{65b0}"] {
            assert!(is_safe(name.as_bytes()), "{name:?}");
        }
        assert!(is_safe(b"\xff"));
    }

    /// A repository in which trees of ten entries name one another in so many levels.
    fn bomb(folder: &std::path::Path, levels: usize) -> (gix_odb::Handle, ObjectId) {
        use gix_object::Write as _;

        std::fs::create_dir_all(folder.join("pack")).expect("made");
        let objects = gix_odb::at(folder, gix_hash::Kind::Sha1).expect("objects");
        let mut id = objects.write_buf(Kind::Blob, b"content").expect("written");
        let mut mode = "100644";
        for _ in 0..levels {
            let mut tree = Vec::new();
            for number in 0..10 {
                tree.extend_from_slice(format!("{mode} {number}\0").as_bytes());
                tree.extend_from_slice(id.as_bytes());
            }
            id = objects.write_buf(Kind::Tree, &tree).expect("written");
            mode = "40000";
        }
        (objects, id)
    }

    #[test]
    fn a_small_repository_that_stands_for_much_is_refused_before_it_fills_the_disk() {
        let outer = tempfile::tempdir().expect("a folder");
        let (objects, tree) = bomb(&outer.path().join("objects"), 9);
        let refused = |limits: Limits| {
            let target = tempfile::tempdir().expect("a folder");
            let folder = OwnedFd::from(File::open(target.path()).expect("open"));
            write(&objects, tree, folder, limits, &Halt::default()).expect_err("refused").to_string()
        };
        let limits = |entries, bytes, depth| Limits { entries, bytes, depth };
        let expected = "the repository is too large: more than 200 files and folders";
        assert_eq!(refused(limits(200, 1_000_000, 64)), expected);
        let expected = "the repository is too large: more than 700 bytes of files";
        assert_eq!(refused(limits(100_000, 700, 64)), expected);
        let expected = "the repository is too large: more than 3 folders in one another";
        assert_eq!(refused(limits(100_000, 1_000_000, 3)), expected);
    }

    #[test]
    fn all_files_are_written_and_nothing_once_it_is_to_end() {
        let outer = tempfile::tempdir().expect("a folder");
        let (objects, tree) = bomb(&outer.path().join("objects"), 3);
        let target = tempfile::tempdir().expect("a folder");
        let folder = || OwnedFd::from(File::open(target.path()).expect("open"));
        let halt = Halt::default();
        let left_out = write(&objects, tree, folder(), Limits::default(), &halt).expect("written");
        assert_eq!(left_out, LeftOut::default());
        assert_eq!(std::fs::read(target.path().join("9/0/9")).expect("there"), b"content");
        let names = |limits| names(&objects, tree, limits, &halt).map_err(|error| error.to_string());
        assert_eq!(names(Limits::default()).expect("read").len(), 10);
        let few = Limits { entries: 9, ..Limits::default() };
        assert_eq!(names(few), Err("the repository is too large: more than 9 files and folders".to_owned()));
        halt.halt();
        assert_eq!(names(Limits::default()), Err(SyncError::Halted.to_string()));
        let target = tempfile::tempdir().expect("a folder");
        let folder = OwnedFd::from(File::open(target.path()).expect("open"));
        let ended = write(&objects, tree, folder, Limits::default(), &halt);
        assert!(matches!(ended, Err(SyncError::Halted)));
    }

    #[test]
    fn a_folder_of_very_many_folders_is_written_until_it_is_to_end() {
        use gix_object::Write as _;

        let outer = tempfile::tempdir().expect("a folder");
        let (objects, _) = bomb(&outer.path().join("objects"), 0);
        let none = objects.write_buf(Kind::Tree, b"").expect("written");
        let mut tree = Vec::new();
        for number in 0..400_000 {
            tree.extend_from_slice(format!("40000 {number:06}\0").as_bytes());
            tree.extend_from_slice(none.as_bytes());
        }
        let tree = objects.write_buf(Kind::Tree, &tree).expect("written");
        let target = tempfile::tempdir().expect("a folder");
        let folder = OwnedFd::from(File::open(target.path()).expect("open"));
        let halt = Halt::default();
        let (later, place) = (halt.clone(), target.path().to_owned());
        // It begins to make folders: so much work for each that it does not come to that within a minute is too much.
        let ends = std::thread::spawn(move || {
            let began = std::time::Instant::now();
            while std::fs::read_dir(&place).expect("read").next().is_none() && began.elapsed().as_secs() < 60 {
                std::thread::yield_now();
            }
            later.halt();
            began.elapsed()
        });
        let ended = write(&objects, tree, folder, Limits::default(), &halt);
        assert!(matches!(ended, Err(SyncError::Halted)), "{ended:?}");
        assert!(ends.join().expect("no panic").as_secs() < 60);
        assert!(std::fs::read_dir(target.path()).expect("read").count() < 400_000);
    }

    #[test]
    fn what_is_left_out_is_counted_in_words() {
        assert_eq!(LeftOut::default().messages(), Vec::<String>::new());
        let left_out = LeftOut { links: 2, submodules: 0, unsafe_names: 1 };
        assert_eq!(left_out.messages().len(), 2);
        assert!(left_out.messages()[0].starts_with("2 symbolic links"));
    }
}
