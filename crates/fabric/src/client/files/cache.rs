//! Files that were fetched before, below the folder in which the clients of Python NorFab keep theirs, in the same places: the path of
//! a file's URL.
//!
//! A file there is used where its worker says that it has the same hash. The time of its last use is its own access time, so that
//! there is nothing beside the files that could be wrong. Who uses one has it locked, and it is not removed meanwhile.

use std::collections::BTreeSet;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use norfab_files::tree::{Cursor, Standing};
use norfab_files::{RelativePath, Tree};
use norfab_protocol::target::Target;
use rustix::fs::{FlockOperation, Timespec, Timestamps, UTIME_NOW, UTIME_OMIT};

use super::super::ClientHandle;
use super::fetch::{Origin, Wanted};
use super::git::is_git;
use super::place::{Place, blocking};
use super::{FetchError, Fetched, check_url};
use crate::clock::{SystemClock, TIMEOUT_MAX};

/// Bytes that a cache may have where nobody says otherwise: some firmware images, or all templates there ever were.
pub const CACHE_BYTES_DEFAULT: u64 = 1 << 30;

/// Most files of a cache that are looked at.
const ENTRIES_MAX: usize = 1_000_000;

/// How often a file is fetched that somebody removes before it is locked: in a cache that several commands fill, and that has room for
/// fewer files than there are commands, that happens several times in a row.
const ATTEMPTS_MAX: usize = 10;

/// A folder of files that were fetched before.
#[derive(Debug, Clone)]
pub struct FileCache {
    folder: PathBuf,
    bytes_max: u64,
    /// One after the other removes what is too much.
    shrinking: Arc<Mutex<()>>,
}

/// One file of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CacheEntry {
    /// Its path below the folder: that of its URL, or the name of a file that is not whole.
    pub path: String,
    /// Bytes.
    pub bytes: u64,
    /// Seconds since 1970 of its last use.
    pub used: i64,
}

/// What was removed.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Cleared {
    /// Files that are gone.
    pub files: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Files that stay, as somebody uses them.
    pub in_use: u64,
}

/// A file of the cache. It stays there as long as this lives.
#[derive(Debug)]
pub struct CachedFile {
    /// How it came, and where it is.
    pub fetched: Fetched,
    /// Open, and locked.
    pub file: File,
}

impl FileCache {
    /// A cache in a folder, which is made when it is used, with a bound on its bytes.
    pub fn new(folder: PathBuf, bytes_max: u64) -> Self {
        Self { folder, bytes_max, shrinking: Arc::default() }
    }

    /// Where it is.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// What is in it, that which was used last first. Blocks. Errors: it cannot be read.
    pub fn entries(&self) -> io::Result<Vec<CacheEntry>> {
        let Some(tree) = self.tree(false)? else { return Ok(Vec::new()) };
        let mut entries: Vec<CacheEntry> = list(&mut tree.cursor())?;
        entries.sort_by(|one, other| (other.used, &one.path).cmp(&(one.used, &other.path)));
        Ok(entries)
    }

    /// Removes the file of a URL or those below it, or all, and what is left of transfers that broke off; not what is in use. Blocks.
    /// Errors: it is no URL, or something cannot be removed.
    pub fn clear(&self, url: Option<&str>) -> io::Result<Cleared> {
        let Some(tree) = self.tree(false)? else { return Ok(Cleared::default()) };
        let below = match url {
            None => None,
            Some(url) => {
                let path = url
                    .strip_prefix("nf://")
                    .ok_or_else(|| io::Error::other(format!("'{url}' is no URL nf://PATH")))?;
                Some(plain_path(path)).filter(|path| !path.is_empty())
            }
        };
        let mut cursor = tree.cursor();
        let mut cleared = Cleared::default();
        for entry in list(&mut cursor)? {
            let is_meant = below.as_ref().is_none_or(|below| {
                entry.path.strip_prefix(below.as_str()).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
            });
            // What is left of a transfer of it is beside it.
            let is_part = || {
                let (above, name) = entry.path.rsplit_once('/').unwrap_or(("", &entry.path));
                let whole = name.strip_prefix('.').and_then(|name| name.strip_suffix(".part"));
                whole.zip(below.as_deref()).is_some_and(|(whole, below)| {
                    below.strip_prefix(above).map(|rest| rest.trim_start_matches('/')) == Some(whole)
                })
            };
            if is_meant || is_part() {
                cleared.remove(&mut cursor, &entry)?;
            }
        }
        Ok(cleared)
    }

    /// Removes what was not used for the longest time until so many bytes are left, or only what is in use. Blocks.
    pub fn shrink(&self, bytes_max: u64) -> io::Result<Cleared> {
        let _turn = self.shrinking.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(tree) = self.tree(false)? else { return Ok(Cleared::default()) };
        let mut cursor = tree.cursor();
        let mut entries = list(&mut cursor)?;
        entries.sort_by_key(|entry| entry.used);
        let mut bytes: u64 = entries.iter().map(|entry| entry.bytes).sum();
        let mut cleared = Cleared::default();
        for entry in entries {
            if bytes <= bytes_max {
                break;
            }
            if cleared.remove(&mut cursor, &entry)? {
                bytes -= entry.bytes;
            }
        }
        Ok(cleared)
    }

    fn tree(&self, makes: bool) -> io::Result<Option<Arc<Tree>>> {
        if makes {
            std::fs::create_dir_all(&self.folder)?;
        }
        match Tree::open(&self.folder) {
            Ok(tree) => Ok(Some(Arc::new(tree))),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }
}

impl Cleared {
    /// Removes a file that nobody uses, with folders that are empty then. Whether it is gone.
    fn remove(&mut self, cursor: &mut Cursor, entry: &CacheEntry) -> io::Result<bool> {
        let name = entry.path.as_str();
        let Some(locked) = lock(cursor, name, FlockOperation::NonBlockingLockExclusive)? else {
            self.in_use += 1;
            return Ok(false);
        };
        cursor.remove_name(name)?;
        drop(locked);
        (self.files, self.bytes) = (self.files + 1, self.bytes + entry.bytes);
        let mut above = name.rsplit_once('/').map(|(above, _)| above);
        while let Some(folder) = above {
            let removed = RelativePath::parse(folder).map(|path| cursor.remove_empty(&path));
            if !matches!(removed, Ok(Ok(true))) {
                break;
            }
            above = folder.rsplit_once('/').map(|(above, _)| above);
        }
        Ok(true)
    }
}

/// Locks a file. `None`: somebody else has, or it is gone.
fn lock(cursor: &mut Cursor, path: &str, how: FlockOperation) -> io::Result<Option<File>> {
    use std::os::unix::fs::MetadataExt;

    let file = match cursor.file_named(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    match rustix::fs::flock(&file, how) {
        Ok(()) => {}
        Err(rustix::io::Errno::WOULDBLOCK) => return Ok(None),
        Err(errno) => return Err(errno.into()),
    }
    Ok((file.metadata()?.nlink() > 0).then_some(file))
}

/// Removes what is in the way of a file: a file where there is a folder now on its way, or files in a folder in its place. They are
/// copies. Errors: something is in use.
fn make_way(cursor: &mut Cursor, path: &RelativePath) -> io::Result<()> {
    let mut cleared = Cleared::default();
    for (at, _) in path.as_str().match_indices('/') {
        let above = RelativePath::parse(&path.as_str()[..at]).map_err(io::Error::other)?;
        match cursor.look(&above)? {
            None => return Ok(()),
            Some(Standing::File(facts)) => {
                let entry = CacheEntry { path: above.to_string(), bytes: facts.size, used: 0 };
                return remove_from_way(&mut cleared, cursor, &entry);
            }
            Some(_) => {}
        }
    }
    if cursor.look(path)? == Some(Standing::Folder) {
        for entry in list_below(cursor, path.to_string())? {
            remove_from_way(&mut cleared, cursor, &entry)?;
        }
        match cursor.remove_empty(path) {
            // It went with the last of its files.
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
    }
    Ok(())
}

fn remove_from_way(cleared: &mut Cleared, cursor: &mut Cursor, entry: &CacheEntry) -> io::Result<()> {
    match cleared.remove(cursor, entry)? {
        true => Ok(()),
        false => Err(io::Error::other(format!("'{}' is in its way in the cache, and in use: try again", entry.path))),
    }
}

/// All files, in no order.
fn list(cursor: &mut Cursor) -> io::Result<Vec<CacheEntry>> {
    list_below(cursor, String::new())
}

/// All files below a folder, in no order.
fn list_below(cursor: &mut Cursor, folder: String) -> io::Result<Vec<CacheEntry>> {
    let (mut entries, mut ahead) = (Vec::new(), vec![folder]);
    while let Some(folder) = ahead.pop() {
        let names = match cursor.names(&folder) {
            Ok(names) => names,
            // Another command has removed it.
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            Err(error) => return Err(error),
        };
        for named in names {
            let path = if folder.is_empty() { named.name.clone() } else { format!("{folder}/{}", named.name) };
            match named.standing {
                Standing::Folder => ahead.push(path),
                Standing::File(facts) => entries.push(CacheEntry { path, bytes: facts.size, used: named.used }),
                // Nobody put them there who fetched a file.
                Standing::Link | Standing::Special => {}
            }
        }
        if entries.len() + ahead.len() > ENTRIES_MAX {
            return Err(io::Error::other(format!("there are more than {ENTRIES_MAX} files in it: remove it by hand")));
        }
    }
    Ok(entries)
}

/// The path of a URL as workers read it: slashes at its ends and doubled ones do not count, and a backslash is one.
pub(super) fn plain_path(path: &str) -> String {
    path.split(['/', '\\']).filter(|name| !matches!(*name, "" | ".")).collect::<Vec<_>>().join("/")
}

impl ClientHandle {
    /// Fetches `nf://PATH` or `git://REMOTE/PATH` into a cache, unless it has the file with the hash that its worker tells. It is removed
    /// when it was not used for the longest time and the cache has more bytes than it may, but not while what this returns lives.
    /// `progress` and errors: as [`ClientHandle::fetch_file`].
    pub async fn fetch_cached(
        &self,
        url: &str,
        cache: &FileCache,
        timeout: Duration,
        mut progress: impl FnMut(u64, u64) + Send,
    ) -> Result<CachedFile, FetchError> {
        check_url(url)?;
        let timeout = timeout.min(TIMEOUT_MAX);
        let deadline = SystemClock::now() + timeout;
        let (served, target) = if is_git(url) {
            let (served, worker) = self.resolve_git(url, deadline, timeout, &BTreeSet::new()).await?;
            (served, Target::list([worker]))
        } else {
            (url.to_owned(), Target::All)
        };
        let path = served.strip_prefix("nf://").map(plain_path).unwrap_or_default();
        let shown = cache.folder.join(&path);
        let cannot_write = |error| FetchError::Write { path: shown.clone(), error };
        let path = RelativePath::parse(&path).map_err(|why| cannot_write(io::Error::other(why)))?;
        let opened = cache.clone();
        let tree = blocking(move || opened.tree(true)).await.map_err(cannot_write)?;
        let tree = tree.ok_or_else(|| cannot_write(io::Error::other("the folder of the cache is gone")))?;
        let (cleared, way) = (Arc::clone(&tree), path.clone());
        blocking(move || make_way(&mut cleared.cursor(), &way)).await.map_err(cannot_write)?;
        for _ in 0..ATTEMPTS_MAX {
            let place = Place::Below { tree: Arc::clone(&tree), path: path.clone(), shown: shown.clone() };
            let origin = if is_git(url) { Origin::Git(url) } else { Origin::Workers(Target::All) };
            let wanted = Wanted { url: &served, target: &shown, timeout, deadline, origin };
            let fetched = match self.fetch_placed(&wanted, place, target.clone(), &mut progress).await {
                // A folder on the way to it was removed, as it was empty for a moment.
                Err(FetchError::Write { error, .. }) if error.kind() == io::ErrorKind::NotFound => continue,
                fetched => fetched?,
            };
            let (tree, path, cache) = (Arc::clone(&tree), path.clone(), cache.clone());
            let file = blocking(move || {
                let Some(file) = lock(&mut tree.cursor(), path.as_str(), FlockOperation::NonBlockingLockShared)? else {
                    return Ok(None);
                };
                let (now, same) =
                    (Timespec { tv_sec: 0, tv_nsec: UTIME_NOW }, Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT });
                rustix::fs::futimens(&file, &Timestamps { last_access: now, last_modification: same })?;
                if let Err(error) = cache.shrink(cache.bytes_max) {
                    // What was fetched is there all the same.
                    tracing::warn!("the cache {} cannot be made smaller: {error}", cache.folder.display());
                }
                Ok(Some(file))
            });
            if let Some(file) = file.await.map_err(cannot_write)? {
                return Ok(CachedFile { fetched, file });
            }
        }
        Err(cannot_write(io::Error::other("somebody removes it whenever it is fetched")))
    }
}
