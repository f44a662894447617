//! What the tasks of one worker have in common.

use std::path::PathBuf;
use std::sync::Arc;

use rustix::fd::OwnedFd;
use rustix::fs::Stat;

use crate::details::HASHES_AT_ONCE;
use crate::digest::DigestCache;
use crate::error::Refusal;
use crate::folder::{Dead, Folder, Found};
use crate::hidden::Hidden;
use crate::url::SharedPath;

/// What the tasks of one worker have in common: the folder, and what is known of files.
pub(crate) struct Share {
    folder: Folder,
    pub(crate) digests: DigestCache,
    /// Hashing takes a whole core: a turn for each.
    pub(crate) hash_turns: Arc<tokio::sync::Semaphore>,
}

/// A directory below the shared folder, and the names that really lead to it.
pub(crate) struct SharedDirectory {
    pub(crate) handle: OwnedFd,
    pub(crate) place: Vec<String>,
}

/// A regular file below the shared folder.
pub(crate) struct SharedFile {
    pub(crate) handle: OwnedFd,
    pub(crate) stat: Box<Stat>,
}

impl Share {
    #[cfg(test)]
    pub(crate) fn new(base_dir: PathBuf) -> Self {
        Self::hiding(base_dir, Hidden::default())
    }

    pub(crate) fn hiding(base_dir: PathBuf, hidden: Hidden) -> Self {
        Self {
            folder: Folder::new(base_dir, hidden),
            digests: DigestCache::default(),
            hash_turns: Arc::new(tokio::sync::Semaphore::new(HASHES_AT_ONCE)),
        }
    }

    /// Whether nothing of this name is served.
    pub(crate) fn hides(&self, name: &[u8]) -> bool {
        self.folder.hides(name)
    }

    /// Opens the file at a URL for reading. Blocks.
    pub(crate) fn file(&self, url: &str) -> Result<SharedFile, Refusal> {
        let url = || url.to_owned();
        match self.find(&url())? {
            Ok(Found::File { handle, stat }) => Ok(SharedFile { handle, stat }),
            Ok(Found::Directory { .. }) => Err(Refusal::IsDirectory { url: url() }),
            Ok(Found::Special) => Err(Refusal::Special { url: url() }),
            Err(Missing) => Err(Refusal::NoFile { url: url() }),
        }
    }

    /// Opens the directory at a URL. Blocks.
    pub(crate) fn directory(&self, url: &str) -> Result<SharedDirectory, Refusal> {
        let Ok(Found::Directory { handle, place }) = self.find(url)? else {
            return Err(Refusal::NoDirectory);
        };
        // A name that is no text can only have come from a link: no URL names what is below it.
        let place: Result<Vec<String>, _> = place.into_iter().map(String::from_utf8).collect();
        let place = place.map_err(|_| Refusal::NoDirectory)?;
        Ok(SharedDirectory { handle, place })
    }

    /// Whether a link leads to a directory that is served, or to nothing that is.
    pub(crate) fn follow(&self, place: &[String], name: &str) -> Result<Found, Dead> {
        let mut names = place.to_vec();
        names.push(name.to_owned());
        self.folder.find(&names)
    }

    fn find(&self, url: &str) -> Result<Result<Found, Missing>, Refusal> {
        let path = SharedPath::parse(url)?;
        match self.folder.find(&path.names) {
            Ok(found) => Ok(Ok(found)),
            // A way that would climb out, did all of its names exist, is as wrong as one that does.
            Err(Dead::Missing) if !path.climbs_out() => Ok(Err(Missing)),
            Err(Dead::Missing | Dead::Outside) => Err(Refusal::Path { url: url.to_owned() }),
            Err(Dead::Unreadable(errno)) => Err(Refusal::Unreadable { url: url.to_owned(), errno }),
        }
    }
}

struct Missing;
