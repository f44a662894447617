//! What is in a folder here, beside what a worker has.

use std::io;
use std::path::Path;
use std::sync::Arc;

use norfab_files::names::{fold, may_be_hidden};
use norfab_files::record::Facts;
use norfab_files::tree::{Cursor, Standing, local_mode};
use norfab_files::{RelativePath, Tree};

use super::listing::{Listed, ListedFile, Listing};
use super::python::md5_of;

/// What is to be done.
#[derive(Debug, Default)]
pub(super) struct Plan {
    pub(super) wanted: Vec<WantedFile>,
    pub(super) files: u64,
    pub(super) unchanged: u64,
    pub(super) links: u64,
    pub(super) refused: Vec<(RelativePath, io::Error)>,
}

/// A file that is not here, or may be another one here.
#[derive(Debug)]
pub(super) struct WantedFile {
    pub(super) path: RelativePath,
    pub(super) listed: ListedFile,
    /// Whether a file of that size is here.
    pub(super) may_be_there: bool,
}

/// How to look.
#[derive(Debug, Clone, Copy)]
pub(super) struct Manner {
    /// Whether files of the same size and time are read, too.
    pub(super) checksum: bool,
    /// Whether nothing may be changed.
    pub(super) dry_run: bool,
}

/// Looks at all that is listed; makes folders. Blocks. `None`: there is no folder here yet, and none is to be made.
pub(super) fn compare(tree: Option<&Arc<Tree>>, listing: &Listing, manner: Manner) -> Plan {
    let mut plan = Plan::default();
    let mut cursor = tree.map(Tree::cursor);
    for (path, listed) in &listing.entries {
        let standing = match cursor.as_mut().map_or(Ok(None), |cursor| cursor.look(path)) {
            Ok(standing) => standing,
            Err(error) => {
                plan.files += u64::from(matches!(listed, Listed::File(_)));
                plan.refused.push((path.clone(), error));
                continue;
            }
        };
        match listed {
            Listed::Link => plan.links += 1,
            Listed::Folder => {
                if let Some(cursor) = cursor.as_mut().filter(|_| !manner.dry_run && standing != Some(Standing::Folder))
                    && let Err(error) = cursor.make_folder(path)
                {
                    plan.refused.push((path.clone(), error));
                }
            }
            Listed::File(file) => {
                plan.files += 1;
                plan.file(cursor.as_mut(), path, file, standing, manner);
            }
        }
    }
    plan
}

impl Plan {
    fn file(
        &mut self,
        cursor: Option<&mut Cursor>,
        path: &RelativePath,
        file: &ListedFile,
        standing: Option<Standing>,
        manner: Manner,
    ) {
        let mut may_be_there = false;
        match (standing, cursor) {
            (Some(Standing::Folder), _) => {
                return self.refused.push((path.clone(), io::Error::other("it is a folder here")));
            }
            (Some(Standing::Special), _) => {
                return self.refused.push((path.clone(), io::Error::other("it is here and not a regular file")));
            }
            (Some(Standing::File(here)), Some(cursor)) if here.size == file.size => {
                let is_same = match (&file.md5, file.modified) {
                    (Some(md5), _) => {
                        cursor.file(path).ok().and_then(|mut file| md5_of(&mut file)).as_ref() == Some(md5)
                    }
                    (None, modified) => modified == Some(here.modified) && !manner.checksum,
                };
                if is_same {
                    self.unchanged += 1;
                    let mode = file.mode.map_or(here.mode, local_mode);
                    if mode != here.mode
                        && !manner.dry_run
                        && let Err(error) = cursor.dress(path, Facts { mode, ..here })
                    {
                        self.refused.push((path.clone(), error));
                    }
                    return;
                }
                may_be_there = true;
            }
            _ => {}
        }
        self.wanted.push(WantedFile { path: path.clone(), listed: file.clone(), may_be_there });
    }
}

/// What was removed here.
#[derive(Debug, Default)]
pub(super) struct Removed {
    pub(super) files: Vec<String>,
    pub(super) refused: Vec<(String, io::Error)>,
}

/// Removes files here that are not listed, and folders that are empty then. Blocks. What no worker would list stays: names that begin
/// with a dot, and folders such as `__pycache__` with what is in them.
pub(super) fn remove_others(tree: &Arc<Tree>, listing: &Listing, dry_run: bool) -> Removed {
    let mut removed = Removed::default();
    let folders = listing.folders();
    let mut cursor = tree.cursor();
    // Folders whose names are to be read, and those to be removed if they are empty when all above them on the list are done.
    let mut ahead = vec![Step::Enter(String::new())];
    while let Some(step) = ahead.pop() {
        let folder = match step {
            Step::Enter(folder) => folder,
            Step::Leave(folder) => {
                if !dry_run && let Err(error) = cursor.remove_empty(&folder) {
                    removed.refused.push((folder.to_string(), error));
                }
                continue;
            }
        };
        let names = match cursor.names(&folder) {
            Ok(names) => names,
            Err(error) => {
                removed.refused.push((folder, error));
                continue;
            }
        };
        for named in names {
            let path = if folder.is_empty() { named.name.clone() } else { format!("{folder}/{}", named.name) };
            let Ok(path) = RelativePath::parse(&path) else { continue };
            if is_never_listed(&named.name, listing.is_python) {
                continue;
            }
            match named.standing {
                Standing::Folder => {
                    if folders.contains(path.as_str()) {
                        ahead.push(Step::Enter(path.as_str().to_owned()));
                    } else if !listing.entries.contains_key(&path) {
                        ahead.push(Step::Leave(path.clone()));
                        ahead.push(Step::Enter(path.as_str().to_owned()));
                    }
                }
                Standing::File(_) | Standing::Link
                    if !listing.entries.contains_key(&path) && !folders.contains(path.as_str()) =>
                {
                    match if dry_run { Ok(()) } else { cursor.remove(&path) } {
                        Ok(()) => removed.files.push(path.to_string()),
                        Err(error) => removed.refused.push((path.to_string(), error)),
                    }
                }
                _ => {}
            }
        }
    }
    removed.files.sort_unstable();
    removed
}

enum Step {
    Enter(String),
    Leave(RelativePath),
}

/// Whether a worker would not list a name, or not what is below it. Python NorFab lists no path with two underscores behind each other.
fn is_never_listed(name: &str, is_python: bool) -> bool {
    let is_internal = name.len() > 4 && name.starts_with("__") && name.ends_with("__");
    let is_hidden = may_be_hidden(name.as_bytes()) && fold(name).starts_with('.');
    is_hidden || is_internal || is_python && name.contains("__")
}

/// Opens the folder here, which is made if it may be. `None`: it is not there, and is not made.
pub(super) fn open(target: &Path, dry_run: bool) -> io::Result<Option<Arc<Tree>>> {
    if !dry_run {
        std::fs::create_dir_all(target)?;
    }
    match Tree::open(target) {
        Ok(tree) => Ok(Some(Arc::new(tree))),
        Err(error) if dry_run && error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}
