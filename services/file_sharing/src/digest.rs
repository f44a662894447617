//! Hashes of files, and what is remembered of them.
//!
//! A file is known by its place on the disk, its size, and when it and its entry last changed. These times move in
//! steps: a file that is written twice within one step looks the same. So what was read of a file is believed only if
//! the file had looked the same for a while before the reading began.

use std::collections::{HashMap, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use md5::{Digest, Md5};
use norfab_files::{ContentHash, Prefix};
use rustix::fd::AsFd;
use rustix::fs::{Stat, fstat};
use rustix::io::{Errno, pread};

/// How long a file must have looked the same before what was read of it is remembered: two of the longest steps in which
/// kernels count the time of files.
pub(crate) const SETTLE: Duration = Duration::from_millis(20);

/// Files that are remembered: some megabytes.
const FILES_MAX: usize = 50_000;

/// Bytes that are read at once: enough to make calls cheap, small enough for the processor's cache.
const READ_BYTES: usize = 256 * 1024;

/// How a file looks from outside.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct FileKey {
    device: u64,
    inode: u64,
    pub(crate) size: u64,
    /// Seconds and nanoseconds.
    modified: (i64, i64),
    /// As `modified`, and nobody can set it: a copy that keeps its times has another.
    changed: (i64, i64),
}

impl FileKey {
    #[allow(
        clippy::unnecessary_cast,
        clippy::useless_conversion,
        reason = "the types of these fields differ between systems"
    )]
    pub(crate) fn of(stat: &Stat) -> Self {
        Self {
            device: stat.st_dev as u64,
            inode: stat.st_ino as u64,
            size: u64::try_from(stat.st_size).unwrap_or(0),
            modified: (stat.st_mtime as i64, stat.st_mtime_nsec as i64),
            changed: (stat.st_ctime as i64, stat.st_ctime_nsec as i64),
        }
    }

    /// Seconds since 1970 of the last change of its content.
    pub(crate) fn modified_seconds(&self) -> i64 {
        self.modified.0
    }

    /// Whether the file system counts in whole seconds: too coarse to tell one content from the next.
    fn is_coarse(&self) -> bool {
        self.changed.1 == 0
    }
}

/// An MD5 hash.
pub(crate) type Md5Hash = [u8; 16];

/// The hash as it travels.
pub(crate) fn hexadecimal(hash: &Md5Hash) -> String {
    hash.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// What is known of the content of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Hashes {
    pub(crate) md5: Md5Hash,
    /// Where somebody asked for it: to know both takes twice as long.
    pub(crate) sha256: Option<ContentHash>,
}

#[derive(Debug, Clone, Copy)]
struct Known {
    since: Instant,
    hashes: Option<Hashes>,
}

#[derive(Debug, Default)]
struct Files {
    known: HashMap<FileKey, Known>,
    /// The oldest first.
    order: VecDeque<FileKey>,
}

/// What is remembered of files.
#[derive(Debug, Default)]
pub(crate) struct DigestCache {
    files: Mutex<Files>,
}

impl DigestCache {
    /// The hashes, if they are known; with SHA-256, if that is.
    pub(crate) fn get(&self, key: &FileKey, sha256: bool) -> Option<Hashes> {
        let hashes = self.lock().known.get(key).and_then(|known| known.hashes);
        hashes.filter(|hashes| !sha256 || hashes.sha256.is_some())
    }

    /// Says that a file looks so now. Gives since when it has.
    pub(crate) fn see(&self, key: FileKey, now: Instant) -> Instant {
        let mut files = self.lock();
        if let Some(known) = files.known.get(&key) {
            return known.since;
        }
        if files.known.len() >= FILES_MAX
            && let Some(oldest) = files.order.pop_front()
        {
            files.known.remove(&oldest);
        }
        files.known.insert(key, Known { since: now, hashes: None });
        files.order.push_back(key);
        now
    }

    /// Remembers what was read of a file, from `began` on, if that can be believed.
    pub(crate) fn remember(&self, key: &FileKey, began: Instant, hashes: Hashes) {
        if key.is_coarse() {
            return;
        }
        if let Some(known) = self.lock().known.get_mut(key)
            && began.saturating_duration_since(known.since) >= SETTLE
        {
            known.hashes = Some(hashes);
        }
    }

    fn lock(&self) -> MutexGuard<'_, Files> {
        // Nothing panics while the lock is held.
        self.files.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Why there is no hash.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum HashError {
    /// The file is shorter than it was.
    Shrunk,
    /// Nobody waits for it any more.
    Ended,
    /// The system says no.
    Unreadable(Errno),
}

/// The hashes of the first `key.size` bytes, with SHA-256 where that is wanted, and whether the file looks the same after it was read. Blocks.
pub(crate) fn hash_file(
    file: impl AsFd,
    key: &FileKey,
    sha256: bool,
    is_cancelled: impl Fn() -> bool,
) -> Result<(Hashes, bool), HashError> {
    let mut hasher = Md5::new();
    let mut prefix = sha256.then(Prefix::default);
    let mut buffer = vec![0; READ_BYTES.min(usize::try_from(key.size).unwrap_or(READ_BYTES))];
    let mut position = 0;
    while position < key.size {
        if is_cancelled() {
            return Err(HashError::Ended);
        }
        let left = usize::try_from(key.size - position).unwrap_or(READ_BYTES);
        let wanted = left.min(READ_BYTES);
        match pread(&file, &mut buffer[..wanted], position) {
            Ok(0) => return Err(HashError::Shrunk),
            Ok(count) => {
                hasher.update(&buffer[..count]);
                if let Some(prefix) = &mut prefix {
                    prefix.update(&buffer[..count]);
                }
                position += count as u64;
            }
            Err(Errno::INTR) => {}
            Err(errno) => return Err(HashError::Unreadable(errno)),
        }
    }
    let stat = fstat(&file).map_err(HashError::Unreadable)?;
    let hashes = Hashes { md5: hasher.finalize().into(), sha256: prefix.map(|prefix| prefix.hash()) };
    Ok((hashes, FileKey::of(&stat) == *key))
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io::Write;

    use super::*;

    fn key(inode: u64) -> FileKey {
        FileKey { device: 1, inode, size: 3, modified: (7, 0), changed: (7, 1) }
    }

    fn hashes(byte: u8) -> Hashes {
        Hashes { md5: [byte; 16], sha256: None }
    }

    #[test]
    fn a_hash_is_remembered_once_the_file_has_looked_the_same_for_a_while() {
        let cache = DigestCache::default();
        let start = Instant::now();
        assert_eq!(cache.see(key(1), start), start);
        cache.remember(&key(1), start, hashes(1));
        assert_eq!(cache.get(&key(1), false), None);
        let later = start + SETTLE;
        assert_eq!(cache.see(key(1), later), start);
        cache.remember(&key(1), later, hashes(2));
        assert_eq!(cache.get(&key(1), false), Some(hashes(2)));
        assert_eq!(cache.get(&key(1), true), None, "nobody asked for SHA-256");
        cache.remember(&key(1), later, Hashes { sha256: Some(ContentHash([3; 32])), ..hashes(2) });
        assert!(cache.get(&key(1), true).is_some());
        assert_eq!(cache.get(&FileKey { size: 4, ..key(1) }, false), None);
        assert_eq!(cache.get(&FileKey { changed: (7, 2), ..key(1) }, false), None);
    }

    #[test]
    fn files_whose_times_are_whole_seconds_are_not_remembered() {
        let cache = DigestCache::default();
        let coarse = FileKey { changed: (7, 0), ..key(1) };
        let start = Instant::now();
        cache.see(coarse, start);
        cache.remember(&coarse, start + SETTLE, hashes(1));
        assert_eq!(cache.get(&coarse, false), None);
    }

    #[test]
    fn the_oldest_files_are_forgotten_first() {
        let cache = DigestCache::default();
        let start = Instant::now();
        for inode in 0..=FILES_MAX as u64 {
            cache.see(key(inode), start);
            cache.remember(&key(inode), start + SETTLE, hashes(1));
        }
        assert_eq!(cache.get(&key(0), false), None);
        assert!(cache.get(&key(1), false).is_some() && cache.get(&key(FILES_MAX as u64), false).is_some());
        assert_eq!(cache.lock().known.len(), FILES_MAX);
    }

    #[test]
    fn a_file_that_changes_is_noticed() {
        let mut file = tempfile::tempfile().expect("a file");
        file.write_all(b"alpha\n").expect("written");
        let known = |file: &File| FileKey::of(&fstat(file).expect("there"));
        let before = known(&file);
        let (hashes, same) = hash_file(&file, &before, true, || false).expect("read");
        assert_eq!((hexadecimal(&hashes.md5).as_str(), same), ("9f9f90dbe3e5ee1218c86b8839db1995", true));
        let sha256 = "b6a98d9ce9a2d9149288fa3df42d377c3e42737afdcdaf714e33c0a100b51060";
        assert_eq!(hashes.sha256.map(|hash| hash.to_string()).as_deref(), Some(sha256));
        file.write_all(b"more").expect("written");
        let (hashes, same) = hash_file(&file, &before, false, || false).expect("read");
        assert_eq!((hexadecimal(&hashes.md5).as_str(), same), ("9f9f90dbe3e5ee1218c86b8839db1995", false));
        file.set_len(3).expect("cut");
        assert_eq!(hash_file(&file, &before, false, || false), Err(HashError::Shrunk));
        assert_eq!(hash_file(&file, &before, false, || true), Err(HashError::Ended));
    }
}
