//! From the names and URLs that workers of Python NorFab tell to entries of a directory.

use std::cmp::Ordering;
use std::collections::BTreeSet;

use super::survey::{EntryKind, SharedEntry};

/// Two paths as their directories are told: those of a directory right behind it.
pub fn compare_paths(one: &str, other: &str) -> Ordering {
    one.split('/').cmp(other.split('/'))
}

/// The names in a directory. What they are is not told.
pub(super) fn of_list(mut names: Vec<String>) -> Vec<SharedEntry> {
    names.sort_unstable();
    names.into_iter().map(|name| SharedEntry::of_kind(name, EntryKind::Unknown)).collect()
}

/// The files below a directory from their URLs, and the directories that they are in, down to so many levels.
pub(super) fn of_walk(url: &str, urls: &[String], levels: usize) -> Vec<SharedEntry> {
    let above = segments(url);
    let (mut files, mut directories) = (BTreeSet::new(), BTreeSet::new());
    for url in urls {
        let names = segments(url);
        let Some(below) = names.strip_prefix(&above[..]) else { continue };
        for depth in 1..below.len().min(levels.saturating_add(1)) {
            directories.insert(below[..depth].join("/"));
        }
        if (1..=levels).contains(&below.len()) {
            files.insert(below.join("/"));
        }
    }
    let of = |kind| move |path| SharedEntry::of_kind(path, kind);
    let directories = directories.into_iter().map(of(EntryKind::Directory));
    let mut entries: Vec<SharedEntry> = directories.chain(files.into_iter().map(of(EntryKind::File))).collect();
    entries.sort_by(|one, other| compare_paths(&one.path, &other.path));
    entries
}

/// The names on the way, `..` followed as it is written.
fn segments(url: &str) -> Vec<&str> {
    let path = url.strip_prefix("nf://").unwrap_or(url);
    let mut names = Vec::new();
    for name in path.split(['/', '\\']).filter(|name| !name.is_empty() && *name != ".") {
        if name == ".." {
            names.pop();
        } else {
            names.push(name);
        }
    }
    names
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn directories_are_those_that_files_are_in() {
        let urls = ["nf://d/b/y", "nf:///d/b/x", "nf://d/a.txt", "nf://d/b/c/deep", "nf://other"].map(str::to_owned);
        let told = |levels| -> Vec<String> {
            let entries = of_walk("nf://d/", &urls, levels);
            entries.iter().map(|entry| format!("{}:{:?}", entry.path, entry.kind)).collect()
        };
        assert_eq!(told(1), ["a.txt:File", "b:Directory"]);
        assert_eq!(told(2), ["a.txt:File", "b:Directory", "b/c:Directory", "b/x:File", "b/y:File"]);
        assert_eq!(told(usize::MAX)[3], "b/c/deep:File");
    }

    #[test]
    fn what_is_in_a_directory_stands_behind_it() {
        let mut paths = ["a.txt", "a/1", "a", "a/1/x", "a b"];
        paths.sort_by(|one, other| compare_paths(one, other));
        assert_eq!(paths, ["a", "a/1", "a/1/x", "a b", "a.txt"]);
    }
}
