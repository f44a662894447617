//! The task that tells what is in a directory page by page, with sizes and times: for trees of any size.

use std::sync::Arc;

use norfab_service::{Task, TaskContext, TaskError, TaskOutput};
use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::FileType;
use rustix::io::Errno;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::error::Refusal;
use crate::folder::{Below, Found, open_below, stat_below};
use crate::listing::{Stop, WALK_DEPTH_MAX, entries, is_internal};
use crate::share::Share;
use crate::sign::Sign;
use crate::stating::facts;

/// Most entries of one page: an answer of about a megabyte.
pub const PAGE_ENTRIES_MAX: usize = 10_000;

/// Most entries of one directory. Its names are held in memory while a page of it is made.
pub const DIRECTORY_ENTRIES_MAX: usize = 1_000_000;

#[derive(Debug, Deserialize, JsonSchema)]
struct Input {
    /// URL of a directory, nf://path.
    url: String,
    /// Whether to tell what is in the directories in it, too.
    #[serde(default)]
    recursive: bool,
    /// How many levels to tell where it is recursive: 1 is what is in the directory itself.
    #[serde(default)]
    depth: Option<usize>,
    /// The path of the last entry of the page before, as it stands there.
    #[serde(default)]
    after: Option<String>,
    /// Entries in a page.
    #[serde(default)]
    limit: Option<usize>,
}

/// What an entry is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum Kind {
    File,
    Directory,
    /// A link to a directory, which is not followed, or one that leads to nothing that is served.
    Link,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
struct Entry {
    /// Below the directory that was asked for.
    path: String,
    kind: Kind,
    #[serde(skip_serializing_if = "Option::is_none")]
    size_bytes: Option<u64>,
    /// Seconds since 1970 of its last change.
    #[serde(skip_serializing_if = "Option::is_none")]
    modified: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    mode: Option<u32>,
}

/// Entries in the order of their names, those of a directory right behind it.
#[derive(Debug, Default, Serialize)]
struct Page {
    entries: Vec<Entry>,
    /// Ask for what is behind this. Absent: there is no more.
    #[serde(skip_serializing_if = "Option::is_none")]
    next: Option<String>,
    /// Names that no URL can hold, in the directories that were read for this page.
    unspeakable: usize,
    /// Directories that could not be read, and names of which could not be told what they are: on a mount that is dead, for one. Who has
    /// this list does not know what is missing.
    unreadable: usize,
}

pub(crate) fn task(share: &Arc<Share>) -> Task {
    let share = Arc::clone(share);
    Task::blocking(
        "list_entries",
        "Lists what is in a shared directory, with sizes and times, page by page.",
        move |context: TaskContext, input: Input| answer(&share, &context, input),
    )
}

fn answer(share: &Share, context: &TaskContext, input: Input) -> Result<TaskOutput, TaskError> {
    let limit = input.limit.unwrap_or(PAGE_ENTRIES_MAX);
    if !(1..=PAGE_ENTRIES_MAX).contains(&limit) {
        let text = format!("argument 'limit': expected an integer from 1 to {PAGE_ENTRIES_MAX}, found {limit}");
        return Err(TaskError::new(text));
    }
    let depth = match (input.recursive, input.depth) {
        (_, Some(0)) => return Err(TaskError::new("argument 'depth': expected an integer from 1 on, found 0")),
        (true, Some(depth)) => depth,
        (true, None) => usize::MAX,
        (false, _) => 1,
    };
    let after: Vec<&str> = input.after.as_deref().map(|path| path.split('/').collect()).unwrap_or_default();
    let sign = Sign::new(context, "reading directories");
    Ok(match page(share, &input.url, depth, &after, limit, &|| sign.is_cancelled()) {
        Ok(page) => {
            let (unspeakable, unreadable) = (page.unspeakable, page.unreadable);
            let mut output = TaskOutput::new(page);
            if unspeakable > 0 {
                output = output
                    .message(format!("{unspeakable} names that no URL can hold are left out: rename these files"));
            }
            if unreadable > 0 {
                let text = format!("{unreadable} names could not be read: check the worker's permissions");
                output = output.message(text);
            }
            output
        }
        Err(refusal) => TaskOutput::default().failed(refusal.to_string()),
    })
}

/// A directory that is being told.
struct Level {
    handle: OwnedFd,
    /// Its name in the one above; empty for the first.
    name: String,
    /// The last is next.
    ahead: Vec<(String, FileType)>,
    /// Names in it that no URL can hold, until they are told with the first of the others.
    unspeakable: usize,
}

fn page(
    share: &Share,
    url: &str,
    levels_max: usize,
    after: &[&str],
    limit: usize,
    is_cancelled: &dyn Fn() -> bool,
) -> Result<Page, Refusal> {
    let start = share.directory(url)?;
    let mut page = Page::default();
    let first = enter(share, start.handle, String::new(), after, &mut page).map_err(|stop| refusal(stop, url))?;
    let mut levels = vec![first];
    // How much of `after` still is on the way.
    let mut followed = 0;
    while let Some(level) = levels.last_mut() {
        if is_cancelled() {
            return Err(Refusal::Ended { url: url.to_owned() });
        }
        let Some((name, kind)) = level.ahead.pop() else {
            page.unspeakable += levels.pop().map_or(0, |level| level.unspeakable);
            continue;
        };
        let depth = levels.len() - 1;
        let was_told = followed == depth && after.get(depth) == Some(&name.as_str());
        if was_told {
            followed += 1;
        }
        let path: Vec<&str> = levels.iter().map(|level| level.name.as_str()).filter(|name| !name.is_empty()).collect();
        let path = path.into_iter().chain([name.as_str()]).collect::<Vec<_>>().join("/");
        if !was_told {
            if page.entries.len() == limit {
                page.next = page.entries.last().map(|entry| entry.path.clone());
                return Ok(page);
            }
            page.unspeakable += std::mem::take(&mut levels[depth].unspeakable);
            let mut place = start.place.clone();
            place.extend(path.split('/').map(str::to_owned));
            let handle = &levels[depth].handle;
            match entry(share, handle, &place, &name, kind, path) {
                Ok(entry) => page.entries.extend(entry),
                Err(_) => {
                    page.unreadable += 1;
                    continue;
                }
            }
        }
        if kind != FileType::Directory || levels.len() >= levels_max || is_internal(&name) {
            continue;
        }
        if levels.len() > WALK_DEPTH_MAX {
            return Err(Refusal::TooDeep { url: url.to_owned(), levels: WALK_DEPTH_MAX });
        }
        let handle = match open_below(levels[depth].handle.as_fd(), name.as_bytes()) {
            Ok(Below::Directory(handle)) => handle,
            // Gone, or something else now.
            Ok(_) | Err(Errno::NOENT) => continue,
            Err(_) => {
                page.unreadable += 1;
                continue;
            }
        };
        let rest = if was_told { after.get(depth + 1..).unwrap_or_default() } else { &[] };
        match enter(share, handle, name, rest, &mut page) {
            Ok(level) => levels.push(level),
            Err(Stop::Unreadable(_)) => page.unreadable += 1,
            Err(stop) => return Err(refusal(stop, url)),
        }
    }
    Ok(page)
}

fn refusal(stop: Stop, url: &str) -> Refusal {
    let url = url.to_owned();
    match stop {
        Stop::TooMany => Refusal::TooMany { url, entries: DIRECTORY_ENTRIES_MAX },
        Stop::Unreadable(errno) => Refusal::Unreadable { url, errno },
    }
}

/// Reads a directory, without what comes before the next of the names that were told last.
fn enter(share: &Share, handle: OwnedFd, name: String, after: &[&str], page: &mut Page) -> Result<Level, Stop> {
    let mut left = DIRECTORY_ENTRIES_MAX;
    let found = entries(share, &handle, &mut left)?;
    // A page before told of them where this one goes on in the directory.
    let unspeakable = if after.is_empty() { found.unspeakable } else { 0 };
    page.unreadable += found.unreadable;
    let mut ahead: Vec<(String, FileType)> = found.named.into_iter().map(|entry| (entry.name, entry.kind)).collect();
    if let Some(last) = after.first() {
        ahead.retain(|(name, _)| name.as_str() >= *last);
    }
    ahead.reverse();
    Ok(Level { handle, name, ahead, unspeakable })
}

/// What is known of a name. `None`: it is gone, or nobody can fetch it. Errors: nobody knows whether it is there.
fn entry(
    share: &Share,
    directory: &OwnedFd,
    place: &[String],
    name: &str,
    kind: FileType,
    path: String,
) -> Result<Option<Entry>, Errno> {
    let known = |kind, facts: Option<(u64, i64, u32)>| Entry {
        path,
        kind,
        size_bytes: facts.filter(|_| kind == Kind::File).map(|facts| facts.0),
        modified: facts.map(|facts| facts.1),
        mode: facts.map(|facts| facts.2),
    };
    let stat = |kind| {
        let stat = match stat_below(directory.as_fd(), name.as_bytes()) {
            Ok(stat) => stat,
            Err(Errno::NOENT) => return Ok(None),
            Err(errno) => return Err(errno),
        };
        // Something else has taken its place.
        Ok((FileType::from_raw_mode(stat.st_mode) == kind).then(|| facts(&stat)))
    };
    Ok(match kind {
        FileType::RegularFile => stat(kind)?.map(|facts| known(Kind::File, Some(facts))),
        FileType::Directory => stat(kind)?.map(|facts| known(Kind::Directory, Some(facts))),
        FileType::Symlink => {
            let (above, last) = place.split_at(place.len() - 1);
            Some(match share.follow(above, &last[0]) {
                Ok(Found::File { stat, .. }) => known(Kind::File, Some(facts(&stat))),
                // Whoever has this list knows that something is there, also where it cannot be read.
                _ => known(Kind::Link, None),
            })
        }
        _ => None,
    })
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use tempfile::TempDir;

    use super::*;
    use crate::faults::{self, Call};

    fn share(files: &[&str]) -> (TempDir, Share) {
        let base = tempfile::tempdir().expect("a folder");
        for file in files {
            let path = base.path().join(file);
            fs::create_dir_all(path.parent().expect("a parent")).expect("made");
            fs::write(path, file).expect("written");
        }
        let share = Share::new(base.path().to_owned());
        (base, share)
    }

    /// All pages of so many entries, as `path:kind`.
    fn all(share: &Share, url: &str, levels_max: usize, limit: usize) -> Vec<String> {
        let mut told = Vec::new();
        let mut after: Option<String> = None;
        loop {
            let names: Vec<&str> = after.as_deref().map(|path| path.split('/').collect()).unwrap_or_default();
            let page = page(share, url, levels_max, &names, limit, &|| false).expect("a page");
            assert!(page.entries.len() <= limit);
            told.extend(page.entries.iter().map(|entry| format!("{}:{:?}", entry.path, entry.kind)));
            match page.next {
                Some(next) => after = Some(next),
                None => return told,
            }
        }
    }

    #[test]
    fn pages_of_any_size_tell_the_same_in_the_same_order() {
        let (base, share) = share(&["b", "a/2", "a/1/x", "a/1/y", "c/z", "a.txt", "e/__pycache__/f"]);
        fs::create_dir(base.path().join("d")).expect("made");
        let whole = all(&share, "nf://", usize::MAX, 100);
        let expected = [
            "a:Directory",
            "a/1:Directory",
            "a/1/x:File",
            "a/1/y:File",
            "a/2:File",
            "a.txt:File",
            "b:File",
            "c:Directory",
            "c/z:File",
            "d:Directory",
            "e:Directory",
            "e/__pycache__:Directory",
        ];
        assert_eq!(whole, expected);
        for limit in 1..=whole.len() {
            assert_eq!(all(&share, "nf://", usize::MAX, limit), whole, "pages of {limit}");
        }
        assert_eq!(all(&share, "nf://a", 1, 1), ["1:Directory", "2:File"]);
        let two_levels = |path: &&&str| path.matches('/').count() < 2;
        assert_eq!(all(&share, "nf://", 2, 3), expected.iter().filter(two_levels).copied().collect::<Vec<_>>());
        assert_eq!(all(&share, "nf://a", usize::MAX, 2), ["1:Directory", "1/x:File", "1/y:File", "2:File"]);
    }

    #[test]
    fn a_page_goes_on_where_the_last_one_ended_although_that_is_gone() {
        let (base, share) = share(&["a/1", "a/2", "b", "c"]);
        let first = page(&share, "nf://", usize::MAX, &[], 2, &|| false).expect("a page");
        assert_eq!(first.next.as_deref(), Some("a/1"));
        fs::remove_file(base.path().join("a/1")).expect("removed");
        assert_eq!(
            page(&share, "nf://", usize::MAX, &["a", "1"], 9, &|| false).expect("a page").entries[0].path,
            "a/2"
        );
        fs::remove_dir_all(base.path().join("a")).expect("removed");
        let rest = page(&share, "nf://", usize::MAX, &["a", "1"], 9, &|| false).expect("a page");
        assert_eq!(rest.entries.iter().map(|entry| entry.path.as_str()).collect::<Vec<_>>(), ["b", "c"]);
    }

    #[test]
    fn names_that_no_url_holds_are_counted_once() {
        let (_base, share) = share(&["d/1", "d/2", "d/3", "d/x\\y"]);
        let (mut after, mut unspeakable): (Option<String>, usize) = (None, 0);
        loop {
            let names: Vec<&str> = after.as_deref().map(|path| path.split('/').collect()).unwrap_or_default();
            let page = page(&share, "nf://", usize::MAX, &names, 1, &|| false).expect("a page");
            unspeakable += page.unspeakable;
            after = page.next;
            if after.is_none() {
                break;
            }
        }
        assert_eq!(unspeakable, 1);
    }

    #[test]
    fn what_cannot_be_looked_at_is_counted_and_not_taken_for_gone() {
        let (base, share) = share(&["a/1", "dead/1", "f"]);
        symlink("dead", base.path().join("to_dead")).expect("linked");
        let told = || {
            let page = page(&share, "nf://", usize::MAX, &[], 99, &|| false).expect("a page");
            let paths: Vec<String> = page.entries.into_iter().map(|entry| entry.path).collect();
            (paths.join(" "), page.unreadable)
        };
        let all = "a a/1 dead dead/1 f to_dead";
        assert_eq!(told(), (all.to_owned(), 0));
        // What dead mounts, broken disks and mounts of somebody else say.
        for errno in [Errno::NOTCONN, Errno::STALE, Errno::IO, Errno::ACCESS] {
            for (call, name, rest, untold) in [
                (Call::Stat, "dead", "a a/1 f to_dead", 1),
                (Call::Open, "dead", "a a/1 dead f to_dead", 1),
                (Call::Stat, "f", "a a/1 dead dead/1 to_dead", 1),
            ] {
                faults::set(call, name, Some(errno));
                assert_eq!(told(), (rest.to_owned(), untold), "{call:?} of {name}: {errno}");
                faults::set(call, name, None);
            }
        }
        faults::set(Call::Stat, "f", Some(Errno::NOENT));
        assert_eq!(told(), ("a a/1 dead dead/1 to_dead".to_owned(), 0), "it is gone");
        faults::set(Call::Stat, "f", None);
        faults::set(Call::Open, "dead", Some(Errno::NOENT));
        assert_eq!(told().1, 0, "it is gone");
    }

    #[test]
    fn links_to_files_are_files_and_others_are_not_followed() {
        let (base, share) = share(&["d/f"]);
        for (name, target) in [("file", "d/f"), ("directory", "d"), ("out", "/etc/passwd"), ("broken", "x")] {
            symlink(target, base.path().join(name)).expect("linked");
        }
        let told = all(&share, "nf://", usize::MAX, 100);
        let expected = ["broken:Link", "d:Directory", "d/f:File", "directory:Link", "file:File", "out:Link"];
        assert_eq!(told, expected);
        let page = page(&share, "nf://", usize::MAX, &[], 9, &|| false).expect("a page");
        let sizes: Vec<_> = page.entries.iter().map(|entry| entry.size_bytes).collect();
        assert_eq!(sizes, [None, None, Some(3), None, Some(3), None]);
    }
}
