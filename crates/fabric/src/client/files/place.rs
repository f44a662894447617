//! Where a file goes.

use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use norfab_files::part::open_folder;
use norfab_files::record::Facts;
use norfab_files::tree::{Cursor, Standing};
use norfab_files::{Part, RelativePath, Tree};

/// Where a file goes. Its methods block.
#[derive(Debug, Clone)]
pub(super) enum Place {
    /// Where its caller says, through whatever links.
    Path(PathPlace),
    /// Below a folder, where a worker says: through none.
    Below {
        /// The folder.
        tree: Arc<Tree>,
        /// The way.
        path: RelativePath,
        /// Both, for people.
        shown: PathBuf,
    },
}

/// A folder and a name there, which is another one than that of the target where the target is a link to a file.
#[derive(Debug, Clone)]
pub(super) struct PathPlace {
    target: PathBuf,
    path: PathBuf,
    folder: PathBuf,
    name: OsString,
}

/// The way to the last place below a folder, from which that to the next is short. For places below the same folder.
#[derive(Debug, Default)]
pub(super) struct Ways(Option<Cursor>);

impl Ways {
    fn of(&mut self, tree: &Arc<Tree>) -> &mut Cursor {
        self.0.get_or_insert_with(|| tree.cursor())
    }
}

impl Place {
    /// The place that a caller names. Errors: something is there that is no file, which a file would take the place of.
    pub(super) fn of(target: &Path) -> io::Result<Self> {
        let path = regular(target)?;
        let name = path.file_name().ok_or_else(|| io::Error::other("it names no file"))?.to_owned();
        let folder = path.parent().unwrap_or(Path::new("")).to_path_buf();
        Ok(Self::Path(PathPlace { target: target.to_path_buf(), path, folder, name }))
    }

    /// What to call it.
    pub(super) fn shown(&self) -> &Path {
        match self {
            Self::Path(place) => &place.target,
            Self::Below { shown, .. } => shown,
        }
    }

    /// The file in which it gathers.
    pub(super) fn part(&self, ways: &mut Ways) -> io::Result<Part> {
        match self {
            Self::Path(place) => {
                if !place.folder.as_os_str().is_empty() {
                    std::fs::create_dir_all(&place.folder)?;
                }
                Part::open(open_folder(&place.folder)?, &place.name)
            }
            Self::Below { tree, path, .. } => ways.of(tree).part(path),
        }
    }

    /// The file that is there, if it has so many bytes and so may be the one that is wanted.
    pub(super) fn file(&self, size: u64, ways: &mut Ways) -> Option<File> {
        match self {
            Self::Path(place) => {
                let metadata = std::fs::symlink_metadata(&place.path).ok()?;
                (metadata.is_file() && metadata.len() == size).then(|| File::open(&place.path).ok()).flatten()
            }
            Self::Below { tree, path, .. } => {
                let cursor = ways.of(tree);
                match cursor.look(path).ok()? {
                    Some(Standing::File(facts)) if facts.size == size => cursor.file(path).ok(),
                    _ => None,
                }
            }
        }
    }

    /// Moves what has gathered there.
    pub(super) fn keep(&self, part: Part, facts: Facts, ways: &mut Ways) -> io::Result<()> {
        match self {
            // Once more: a transfer takes its time.
            Self::Path(place) => match Self::of(&place.target)? {
                Self::Path(now) if now.path != place.path => {
                    Err(io::Error::other("it has led to another place since the transfer began"))
                }
                Self::Path(now) => part.keep(&now.name, facts),
                Self::Below { .. } => unreachable!("a path is one"),
            },
            Self::Below { tree, path, .. } => ways.of(tree).keep(part, path, facts),
        }
    }

    /// The file that is there has the content: below a folder it gets the time and the permissions, too, so that it need not be read next
    /// time.
    pub(super) fn is_right(&self, facts: Facts, ways: &mut Ways) -> io::Result<()> {
        match self {
            Self::Path(_) => Ok(()),
            Self::Below { tree, path, .. } => ways.of(tree).dress(path, facts),
        }
    }
}

/// Runs what blocks on a thread that may.
pub(super) async fn blocking<T: Send + 'static>(run: impl FnOnce() -> io::Result<T> + Send + 'static) -> io::Result<T> {
    match tokio::task::spawn_blocking(run).await {
        Ok(done) => done,
        Err(error) => std::panic::resume_unwind(error.into_panic()),
    }
}

/// Waits until what was written beside or below these files is on the disk: once for each of their file systems. Errors: of one of them
/// nobody knows.
pub(super) fn sync_beside<'a>(files: impl Iterator<Item = &'a Path>) -> io::Result<()> {
    use std::os::unix::fs::MetadataExt;

    let (mut devices, mut last) = (std::collections::BTreeSet::new(), None);
    for file in files {
        let folder = file.parent();
        if last == folder {
            continue;
        }
        last = folder;
        let folder = folder.filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
        if devices.insert(std::fs::metadata(folder)?.dev()) {
            Tree::open(folder)?.sync()?;
        }
    }
    Ok(())
}

/// Where a file goes whose target is `target`: there, or where a link there leads to. Errors: something is there that is no
/// file, which a file would take the place of.
fn regular(target: &Path) -> io::Result<PathBuf> {
    let refused = || io::Error::other("it is there and not a regular file; '-' is standard output");
    let kind = match std::fs::symlink_metadata(target) {
        Ok(metadata) => metadata.file_type(),
        // Whatever else is wrong shows when it is written.
        Err(_) => return Ok(target.to_path_buf()),
    };
    if kind.is_file() {
        return Ok(target.to_path_buf());
    }
    let leads_to = if kind.is_symlink() { target.canonicalize().ok() } else { None };
    leads_to.filter(|path| path.is_file()).ok_or_else(refused)
}
