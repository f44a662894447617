//! The sending side: a file, as records.

use std::fs::File;
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt};

use bytes::{BufMut, BytesMut};

use crate::hash::{ContentHash, HASH_BYTES, Prefix};
use crate::record::{self, CONTENT_FRAME_BYTES, Facts};

/// Bytes that are read at once where only their hash is wanted.
const HASHED_AT_ONCE: usize = 256 << 10;

/// Least room for content that is worth a record of its own.
const WORTH_A_RECORD: usize = 4 << 10;

/// Why a file cannot be sent, or not whole.
#[derive(Debug, thiserror::Error)]
pub enum SourceError {
    /// The system says no.
    #[error("cannot be read: {0}")]
    Read(#[from] io::Error),
    /// Somebody writes it.
    #[error("changed while it was read: fetch it again")]
    Changed,
    /// Whoever waits for it has gone.
    #[error("is not read any more, as the job ends")]
    Ended,
}

/// A beginning of a file that the receiver has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Have {
    /// How long.
    pub bytes: u64,
    /// Its hash.
    pub hash: ContentHash,
}

/// How a file looked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Look {
    size: u64,
    modified: (i64, i64),
    changed: (i64, i64),
}

impl Look {
    fn of(file: &File) -> io::Result<(Self, u32)> {
        let metadata = file.metadata()?;
        let look = Self {
            size: metadata.size(),
            modified: (metadata.mtime(), metadata.mtime_nsec()),
            changed: (metadata.ctime(), metadata.ctime_nsec()),
        };
        Ok((look, metadata.mode() & 0o777))
    }
}

/// A file that is being sent. Its methods block.
#[derive(Debug)]
pub struct Source {
    file: File,
    index: u32,
    look: Look,
    mode: u32,
    prefix: Prefix,
    begun: bool,
    ended: bool,
}

impl Source {
    /// Takes an open file, which is read from the beginning or behind what the receiver has. For the latter its beginning is read
    /// once; `is_ended` is asked now and then whether that is still wanted. Where the beginnings differ, all of it is sent.
    pub fn new(index: u32, file: File, have: Option<Have>, is_ended: &dyn Fn() -> bool) -> Result<Self, SourceError> {
        let (look, mode) = Look::of(&file)?;
        let mut source = Self { file, index, look, mode, prefix: Prefix::default(), begun: false, ended: false };
        if let Some(have) = have.filter(|have| (1..=look.size).contains(&have.bytes)) {
            let prefix = hash_to(&source.file, have.bytes, is_ended)?;
            if prefix.hash() == have.hash {
                source.prefix = prefix;
            }
        }
        Ok(source)
    }

    /// Bytes of the file.
    pub fn size(&self) -> u64 {
        self.look.size
    }

    /// Whether all of it was written into messages.
    pub fn is_done(&self) -> bool {
        self.ended
    }

    /// The hash of the file up to where it is.
    pub fn hash(&self) -> ContentHash {
        self.prefix.hash()
    }

    /// Where in the file it is.
    pub fn offset(&self) -> u64 {
        self.prefix.bytes()
    }

    /// Adds records of it to a message, which gets `room` bytes in all, about. Nothing is added where it is full. Errors: the file
    /// does not come whole; a record that says so belongs into the message.
    pub fn fill(&mut self, message: &mut BytesMut, room: usize) -> Result<(), SourceError> {
        if self.ended {
            return Ok(());
        }
        if !self.begun {
            self.begun = true;
            let facts = Facts { size: self.look.size, modified: self.look.modified.0, mode: self.mode };
            record::write_begin(message, self.index, self.prefix.bytes(), facts);
        }
        let offset = self.prefix.bytes();
        let left = self.look.size - offset;
        let fits = room.saturating_sub(message.len() + CONTENT_FRAME_BYTES);
        let bytes = usize::try_from(left).unwrap_or(usize::MAX).min(fits);
        let is_last = bytes as u64 == left;
        if !is_last && bytes < WORTH_A_RECORD && !message.is_empty() {
            return Ok(());
        }
        let before = message.len();
        record::write_content_head(message, self.index, offset, bytes, is_last);
        let start = message.len();
        message.resize(start + bytes, 0);
        let read = self.file.read_exact_at(&mut message[start..], offset);
        let problem = match read {
            Ok(()) if is_last && Look::of(&self.file)?.0 != self.look => Some(SourceError::Changed),
            Ok(()) => None,
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Some(SourceError::Changed),
            Err(error) => Some(SourceError::Read(error)),
        };
        if let Some(problem) = problem {
            message.truncate(before);
            self.ended = true;
            return Err(problem);
        }
        self.prefix.update(&message[start..]);
        message.reserve(HASH_BYTES);
        message.put_slice(&self.prefix.hash().0);
        self.ended = is_last;
        Ok(())
    }
}

/// The hash of the first bytes of a file. Blocks; `is_ended` is asked now and then. Errors: it has less, cannot be read, or nobody waits
/// for it any more.
pub fn hash_to(file: &File, bytes: u64, is_ended: &dyn Fn() -> bool) -> Result<Prefix, SourceError> {
    let mut prefix = Prefix::default();
    let mut buffer = vec![0; HASHED_AT_ONCE.min(usize::try_from(bytes).unwrap_or(HASHED_AT_ONCE))];
    while prefix.bytes() < bytes {
        if is_ended() {
            return Err(SourceError::Ended);
        }
        let wanted = usize::try_from(bytes - prefix.bytes()).unwrap_or(usize::MAX).min(buffer.len());
        file.read_exact_at(&mut buffer[..wanted], prefix.bytes()).map_err(|error| match error.kind() {
            io::ErrorKind::UnexpectedEof => SourceError::Changed,
            _ => SourceError::Read(error),
        })?;
        prefix.update(&buffer[..wanted]);
    }
    Ok(prefix)
}
