//! The tasks that tell what is in a directory.

use std::sync::Arc;

use norfab_service::{Task, TaskContext, TaskError, TaskOutput};
use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::{Dir, FileType, Mode, OFlags, openat};
use rustix::io::Errno;
use schemars::JsonSchema;
use serde::Deserialize;

use crate::error::Refusal;
use crate::folder::{Below, Dead, Found, open_below, stat_below};
use crate::share::Share;
use crate::url::file_url;

/// Most entries of one directory that `list_files` tells: an answer of some megabytes.
pub const LIST_ENTRIES_MAX: usize = 100_000;

/// Most entries, files and directories, that one `walk` looks at: an answer of about ten megabytes.
pub const WALK_ENTRIES_MAX: usize = 100_000;

/// Deepest directory that `walk` enters, counted from where it starts. One handle is open for each on the way.
pub const WALK_DEPTH_MAX: usize = 64;

#[derive(Debug, Deserialize, JsonSchema)]
struct DirectoryInput {
    /// URL of a directory, nf://path.
    url: String,
}

pub(crate) fn list_task(share: &Arc<Share>) -> Task {
    let share = Arc::clone(share);
    Task::blocking(
        "list_files",
        "Lists the names in a shared directory.",
        move |_: TaskContext, input: DirectoryInput| Ok(answer(list(&share, &input.url, LIST_ENTRIES_MAX))),
    )
}

pub(crate) fn walk_task(share: &Arc<Share>) -> Task {
    let share = Arc::clone(share);
    Task::blocking(
        "walk",
        "Lists the URLs of all files in a shared directory and the directories in it. Hidden files are left out.",
        move |context: TaskContext, input: DirectoryInput| -> Result<TaskOutput, TaskError> {
            let limits = Limits { entries: WALK_ENTRIES_MAX, depth: WALK_DEPTH_MAX };
            Ok(answer(walk(&share, &input.url, limits, &|| context.is_cancelled())))
        },
    )
}

/// Names or URLs, and how much is not among them.
#[derive(Debug, Default, PartialEq)]
struct Listing {
    names: Vec<String>,
    unspeakable: usize,
    unreadable: usize,
}

fn answer(listing: Result<Listing, Refusal>) -> TaskOutput {
    let listing = match listing {
        Ok(listing) => listing,
        Err(refusal) => return TaskOutput::default().failed(refusal.to_string()),
    };
    let mut output = TaskOutput::new(&listing.names);
    if listing.unspeakable > 0 {
        let count = listing.unspeakable;
        output = output.message(format!("{count} names that no URL can hold are left out: rename these files"));
    }
    if listing.unreadable > 0 {
        let count = listing.unreadable;
        output = output.message(format!("{count} names could not be read: check the worker's permissions"));
    }
    output
}

fn list(share: &Share, url: &str, entries_max: usize) -> Result<Listing, Refusal> {
    let directory = share.directory(url)?;
    let mut left = entries_max;
    let entries = match entries(share, &directory.handle, &mut left) {
        Ok(entries) => entries,
        Err(Stop::TooMany) => return Err(Refusal::TooMany { url: url.to_owned(), entries: entries_max }),
        Err(Stop::Unreadable(errno)) => return Err(Refusal::Unreadable { url: url.to_owned(), errno }),
    };
    let names = entries.named.into_iter().map(|entry| entry.name).collect();
    Ok(Listing { names, unspeakable: entries.unspeakable, unreadable: entries.unreadable })
}

#[derive(Debug, Clone, Copy)]
struct Limits {
    entries: usize,
    depth: usize,
}

/// A directory that is being walked: the files in it are told, some of the directories in it are still to do.
struct Level {
    handle: OwnedFd,
    name: Option<String>,
    /// The last is next.
    directories: Vec<String>,
}

/// Tells the files of a directory, then those of the directories in it, each in the order of their names.
fn walk(share: &Share, url: &str, limits: Limits, is_cancelled: &dyn Fn() -> bool) -> Result<Listing, Refusal> {
    let start = share.directory(url)?;
    let mut place = start.place;
    let mut left = limits.entries;
    let mut listing = Listing::default();
    let first = match enter(share, start.handle, None, &place, &mut left, &mut listing) {
        Ok(level) => level,
        Err(stop) => return Err(stop.refusal(url, limits)),
    };
    let mut levels = vec![first];
    while let Some(level) = levels.last_mut() {
        if is_cancelled() {
            return Err(Refusal::Ended { url: url.to_owned() });
        }
        let Some(name) = level.directories.pop() else {
            let done = levels.pop();
            if done.is_some_and(|level| level.name.is_some()) {
                place.pop();
            }
            continue;
        };
        let handle = match open_below(level.handle.as_fd(), name.as_bytes()) {
            Ok(Below::Directory(handle)) => handle,
            // Gone or something else since its parent was read: it is no directory to walk any more.
            Ok(_) | Err(Errno::NOENT) => continue,
            Err(_) => {
                listing.unreadable += 1;
                continue;
            }
        };
        if levels.len() > limits.depth {
            return Err(Refusal::TooDeep { url: url.to_owned(), levels: limits.depth });
        }
        place.push(name.clone());
        match enter(share, handle, Some(name), &place, &mut left, &mut listing) {
            Ok(level) => levels.push(level),
            Err(Stop::Unreadable(_)) => {
                listing.unreadable += 1;
                place.pop();
            }
            Err(stop) => return Err(stop.refusal(url, limits)),
        }
    }
    Ok(listing)
}

/// Reads a directory: tells its files, and gives what is to be done for its directories.
fn enter(
    share: &Share,
    handle: OwnedFd,
    name: Option<String>,
    place: &[String],
    left: &mut usize,
    listing: &mut Listing,
) -> Result<Level, Stop> {
    let entries = entries(share, &handle, left)?;
    listing.unspeakable += entries.unspeakable;
    listing.unreadable += entries.unreadable;
    let mut directories = Vec::new();
    for entry in entries.named {
        match entry.kind {
            FileType::Directory if is_internal(&entry.name) => {}
            FileType::Directory => directories.push(entry.name),
            FileType::RegularFile | FileType::Symlink if entry.name.starts_with('.') => {}
            FileType::RegularFile => listing.names.push(file_url(place, &entry.name)),
            FileType::Symlink if is_file_like(share, place, &entry.name) => {
                listing.names.push(file_url(place, &entry.name));
            }
            _ => {}
        }
    }
    directories.reverse();
    Ok(Level { handle, name, directories })
}

/// Whether a link is told among files: as the Python service does, also one that leads out or nowhere, which nobody is
/// served. Links to directories are not walked, so that no directory is told twice and no loop is endless.
fn is_file_like(share: &Share, place: &[String], name: &str) -> bool {
    match share.follow(place, name) {
        Ok(Found::File { .. }) | Err(Dead::Outside | Dead::Missing | Dead::Unreadable(_)) => true,
        Ok(Found::Directory { .. } | Found::Special) => false,
    }
}

/// `__pycache__` and the like: what programs keep for themselves. It is walked where somebody asks for it.
pub(crate) fn is_internal(name: &str) -> bool {
    name.len() > 4 && name.starts_with("__") && name.ends_with("__")
}

pub(crate) struct Entry {
    pub(crate) name: String,
    pub(crate) kind: FileType,
}

#[derive(Default)]
pub(crate) struct Entries {
    /// In the order of their names.
    pub(crate) named: Vec<Entry>,
    /// Names that no URL can hold.
    pub(crate) unspeakable: usize,
    /// Names of which nobody knows what they are.
    pub(crate) unreadable: usize,
}

pub(crate) enum Stop {
    TooMany,
    Unreadable(Errno),
}

impl From<Errno> for Stop {
    fn from(errno: Errno) -> Self {
        Self::Unreadable(errno)
    }
}

impl Stop {
    fn refusal(self, url: &str, limits: Limits) -> Refusal {
        let url = url.to_owned();
        match self {
            Self::TooMany => Refusal::TooMany { url, entries: limits.entries },
            Self::Unreadable(errno) => Refusal::Unreadable { url, errno },
        }
    }
}

/// What a name is. `None`: it is gone. Errors: nobody knows.
fn kind_of(directory: &OwnedFd, name: &str) -> Result<Option<FileType>, Errno> {
    match stat_below(directory.as_fd(), name.as_bytes()) {
        Ok(stat) => Ok(Some(FileType::from_raw_mode(stat.st_mode))),
        Err(Errno::NOENT) => Ok(None),
        Err(errno) => Err(errno),
    }
}

/// What is in a directory, without what is hidden. Each entry takes one of those that are left.
pub(crate) fn entries(share: &Share, directory: &OwnedFd, left: &mut usize) -> Result<Entries, Stop> {
    // The handle that led here cannot be read from.
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let readable = openat(directory, c".", flags, Mode::empty())?;
    let mut found = Entries::default();
    for entry in Dir::new(readable)? {
        let entry = entry?;
        let name = entry.file_name().to_bytes();
        if name == b"." || name == b".." {
            continue;
        }
        *left = left.checked_sub(1).ok_or(Stop::TooMany)?;
        if share.hides(name) {
            continue;
        }
        let name = match str::from_utf8(name) {
            Ok(name) if !name.contains('\\') => name.to_owned(),
            _ => {
                found.unspeakable += 1;
                continue;
            }
        };
        let kind = match entry.file_type() {
            // Some file systems do not tell.
            FileType::Unknown => match kind_of(directory, &name) {
                Ok(Some(kind)) => kind,
                Ok(None) => continue,
                Err(_) => {
                    found.unreadable += 1;
                    continue;
                }
            },
            kind => kind,
        };
        found.named.push(Entry { name, kind });
    }
    found.named.sort_unstable_by(|one, other| one.name.cmp(&other.name));
    Ok(found)
}

#[cfg(test)]
mod tests {
    use std::ffi::OsStr;
    use std::fs;
    use std::os::unix::ffi::OsStrExt;
    use std::os::unix::fs::symlink;

    use glob::Pattern;
    use tempfile::TempDir;

    use super::*;
    use crate::hidden::Hidden;

    const LIMITS: Limits = Limits { entries: 20, depth: 3 };

    fn share(files: &[&str]) -> (TempDir, Share) {
        let base = tempfile::tempdir().expect("a folder");
        for file in files {
            let path = base.path().join(file);
            fs::create_dir_all(path.parent().expect("a parent")).expect("made");
            fs::write(path, b"").expect("written");
        }
        let share = Share::new(base.path().to_owned());
        (base, share)
    }

    fn walked(share: &Share, url: &str) -> Result<Vec<String>, String> {
        walk(share, url, LIMITS, &|| false).map(|listing| listing.names).map_err(|refusal| refusal.to_string())
    }

    #[test]
    fn files_come_before_directories_and_all_in_the_order_of_names() {
        let (_base, share) = share(&["z", "b/2", "b/1", "a/x/1", "a/1"]);
        let expected = ["nf://z", "nf://a/1", "nf://a/x/1", "nf://b/1", "nf://b/2"];
        assert_eq!(walked(&share, "nf://"), Ok(expected.map(str::to_owned).to_vec()));
    }

    #[test]
    fn dot_files_and_internal_directories_are_left_out_unless_asked_for() {
        let (base, share) = share(&[
            ".dot",
            ".dir/f",
            ".dir/.g",
            "a__b__c/f",
            "__pycache__/f",
            "____/f",
            "__norfab__/f",
            "d/__norfab__/f",
            "x.key_secret",
            ".env",
        ]);
        let expected = ["nf://____/f", "nf://a__b__c/f"];
        assert_eq!(walked(&share, "nf://"), Ok(expected.map(str::to_owned).to_vec()));
        let listed = Hidden::but(vec![Pattern::new(".d*").expect("a pattern")]);
        let share = Share::hiding(base.path().to_owned(), listed);
        let expected = ["nf://.dir/f", "nf://____/f", "nf://a__b__c/f"];
        assert_eq!(walked(&share, "nf://"), Ok(expected.map(str::to_owned).to_vec()), "as in Python, listed or not");
        assert_eq!(walked(&share, "nf://__pycache__"), Ok(vec!["nf://__pycache__/f".to_owned()]));
        assert_eq!(walked(&share, "nf://__norfab__"), Err("Directory Not Found".to_owned()));
    }

    #[test]
    fn links_are_told_but_not_those_to_directories() {
        let (base, share) = share(&["d/f"]);
        let links = [("file", "d/f"), ("directory", "d"), ("out", "/etc/passwd"), ("broken", "x"), ("up", "..")];
        for (name, target) in links {
            symlink(target, base.path().join(name)).expect("linked");
        }
        let expected = ["nf://broken", "nf://file", "nf://out", "nf://up", "nf://d/f"];
        assert_eq!(walked(&share, "nf://"), Ok(expected.map(str::to_owned).to_vec()));
        assert_eq!(walked(&share, "nf://directory"), Ok(vec!["nf://d/f".to_owned()]));
    }

    #[test]
    fn too_many_entries_are_refused_with_their_number() {
        let names: Vec<String> = (0..21).map(|number| format!("big/{number}")).collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let (_base, share) = share(&names);
        let expected = "'nf://big' holds more than 20 entries: ask for its folders one by one";
        assert_eq!(walked(&share, "nf://big"), Err(expected.to_owned()));
        let refused = list(&share, "nf://big", 20).expect_err("refused").to_string();
        assert_eq!(refused, expected);
        assert_eq!(list(&share, "nf://big", 21).expect("listed").names.len(), 21);
    }

    #[test]
    fn entries_of_all_directories_count_together() {
        let names: Vec<String> = (0..18).map(|number| format!("{}/{number}", number % 2)).collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let (base, share) = share(&names);
        assert_eq!(walked(&share, "nf://").expect("20 entries").len(), 18);
        fs::write(base.path().join("one_more"), b"").expect("written");
        assert!(walked(&share, "nf://").expect_err("21 entries").contains("more than 20 entries"));
    }

    #[test]
    fn directories_nested_too_deep_are_refused() {
        let (_base, share) = share(&["1/2/3/f", "a/b/c/d/f"]);
        assert_eq!(walked(&share, "nf://1").expect("walked").len(), 1);
        let expected = "'nf://' holds folders nested deeper than 3 levels: ask for one of the inner folders";
        assert_eq!(walked(&share, "nf://"), Err(expected.to_owned()));
        assert_eq!(walked(&share, "nf://a/b").expect("walked").len(), 1);
    }

    #[test]
    fn names_that_no_url_can_hold_are_counted() {
        let (base, share) = share(&["größe.txt", "新しい/ファイル", "back\\slash"]);
        fs::write(base.path().join(OsStr::from_bytes(b"\xff\xfe")), b"").expect("written");
        let listing = list(&share, "nf://", 10).expect("listed");
        assert_eq!(listing.names, ["größe.txt", "新しい"]);
        assert_eq!(listing.unspeakable, 2);
        let listing = walk(&share, "nf://", LIMITS, &|| false).expect("walked");
        assert_eq!(listing.names, ["nf://größe.txt", "nf://新しい/ファイル"]);
        assert_eq!(listing.unspeakable, 2);
    }

    #[test]
    fn a_walk_ends_with_its_job() {
        let (_base, share) = share(&["d/f"]);
        let refused = walk(&share, "nf://", LIMITS, &|| true).expect_err("refused");
        assert_eq!(refused.to_string(), "'nf://' was not read to its end because the job ends");
    }
}
