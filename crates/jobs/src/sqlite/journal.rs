//! The file beside a database in which small changes are written down before they go into it, many at a time.
//!
//! A change of one job touches half a dozen pages of the database, and all of them go through its log; noting the change here
//! is one short write. What is noted survives the death of the process as the log does. Records are numbered without a gap,
//! and the database knows the number of the last record that went into it, so none counts twice and none is lost: a record
//! is passed over when its number is not above that one, and reading ends at the first record that is torn, or left over
//! from a time before the file was begun anew.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::Path;
use std::time::Duration;

/// Bytes of the file at most; the database takes all that is noted long before.
pub(super) const JOURNAL_BYTES_MAX: u64 = 1 << 20;

/// How often an owner asks for a journal that another process holds, and the pause in between: two seconds. One that only
/// reads holds it while it takes over what a dead owner left.
const LOCK_TRIES: u32 = 200;
const LOCK_PAUSE: Duration = Duration::from_millis(10);

/// Number, length and checksum.
const HEADER_BYTES: usize = 8 + 4 + 4;

/// An open journal, locked: one process at a time notes changes and takes over what another one left.
#[derive(Debug)]
pub(super) struct Journal {
    file: File,
    /// Where the next record goes.
    position: u64,
    /// Number of the last record.
    number: u64,
    buffer: Vec<u8>,
}

impl Journal {
    /// Opens or creates the file, readable for its owner only, and reads the records after number `applied`. `None`: another
    /// process holds it. With `wait`, one that may let go of it is waited for.
    pub(super) fn open(path: &Path, applied: u64, wait: bool) -> io::Result<Option<(Self, Vec<Vec<u8>>)>> {
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false);
        #[cfg(unix)]
        std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
        let mut file = options.open(path)?;
        let mut tries = if wait { LOCK_TRIES } else { 1 };
        loop {
            tries -= 1;
            match file.try_lock() {
                Ok(()) => break,
                Err(TryLockError::WouldBlock) if tries > 0 => std::thread::park_timeout(LOCK_PAUSE),
                Err(TryLockError::WouldBlock) => return Ok(None),
                Err(TryLockError::Error(error)) => return Err(error),
            }
        }
        let mut bytes = Vec::new();
        (&mut file).take(JOURNAL_BYTES_MAX).read_to_end(&mut bytes)?;
        let (records, number) = records(&bytes, applied);
        // What was read stays where it is until the database has it, so the next record goes to the beginning only then.
        let position = bytes.len() as u64;
        Ok(Some((Self { file, position, number: number.max(applied), buffer: Vec::new() }, records)))
    }

    /// Writes down a record. `false`: it does not fit any more. Errors: no space left; what was written before is untouched.
    pub(super) fn note(&mut self, encode: impl FnOnce(&mut Vec<u8>)) -> io::Result<bool> {
        self.buffer.clear();
        self.buffer.resize(HEADER_BYTES, 0);
        encode(&mut self.buffer);
        let end = self.position + self.buffer.len() as u64;
        if end > JOURNAL_BYTES_MAX {
            return Ok(false);
        }
        let number = self.number + 1;
        let length = self.buffer.len() - HEADER_BYTES;
        self.buffer[..8].copy_from_slice(&number.to_le_bytes());
        self.buffer[8..12].copy_from_slice(&u32::try_from(length).unwrap_or(u32::MAX).to_le_bytes());
        let checksum = checksum(&self.buffer[..12], &self.buffer[HEADER_BYTES..]);
        self.buffer[12..16].copy_from_slice(&checksum.to_le_bytes());
        self.file.seek(SeekFrom::Start(self.position))?;
        self.file.write_all(&self.buffer)?;
        (self.position, self.number) = (end, number);
        Ok(true)
    }

    /// Number of the last record.
    pub(super) fn number(&self) -> u64 {
        self.number
    }

    /// Bytes in use.
    pub(super) fn bytes(&self) -> u64 {
        self.position
    }

    /// The database has all records: the next one goes to the beginning.
    pub(super) fn begin_anew(&mut self) {
        self.position = 0;
    }

    /// The database has all records, and no more will come: leaves an empty file. It is not deleted, as another process may
    /// wait for its lock.
    pub(super) fn empty(&mut self) {
        // Records that stay do no harm: the database knows that it has them.
        drop(self.file.set_len(0));
    }
}

/// Reads the records after number `applied` of a journal that another process may be writing. Called while the database is
/// locked, so that none of them goes into it meanwhile.
pub(super) fn read_beside(path: &Path, applied: u64) -> io::Result<Vec<Vec<u8>>> {
    let mut bytes = Vec::new();
    match File::open(path) {
        Ok(file) => file.take(JOURNAL_BYTES_MAX).read_to_end(&mut bytes)?,
        Err(error) if error.kind() == io::ErrorKind::NotFound => 0,
        Err(error) => return Err(error),
    };
    Ok(records(&bytes, applied).0)
}

/// The records after number `applied`, and the number of the last one.
fn records(mut bytes: &[u8], applied: u64) -> (Vec<Vec<u8>>, u64) {
    let mut records = Vec::new();
    let mut last = 0;
    while let Some((header, rest)) = bytes.split_at_checked(HEADER_BYTES) {
        let number = header[..8].try_into().map_or(0, u64::from_le_bytes);
        let length = header[8..12].try_into().map_or(0, u32::from_le_bytes) as usize;
        let expected = header[12..16].try_into().map_or(0, u32::from_le_bytes);
        let Some((record, rest)) = rest.split_at_checked(length) else { break };
        if number == 0 || (last != 0 && number != last + 1) || checksum(&header[..12], record) != expected {
            break;
        }
        if number > applied {
            records.push(record.to_vec());
        }
        (last, bytes) = (number, rest);
    }
    (records, last)
}

fn checksum(header: &[u8], record: &[u8]) -> u32 {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(header);
    hasher.update(record);
    hasher.finalize()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn noted(journal: &mut Journal, text: &str) {
        assert!(journal.note(|buffer| buffer.extend_from_slice(text.as_bytes())).expect("space"));
    }

    fn read(path: &Path, applied: u64) -> (Journal, Vec<String>) {
        let (journal, records) = Journal::open(path, applied, false).expect("a file").expect("nobody else has it");
        let texts = records.into_iter().map(|record| String::from_utf8(record).expect("a text")).collect();
        (journal, texts)
    }

    #[test]
    fn what_was_noted_is_read_once_and_old_records_are_passed_over() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("journal");
        let (mut journal, found) = read(&path, 0);
        assert_eq!(found, [""; 0]);
        for text in ["one", "two", "three"] {
            noted(&mut journal, text);
        }
        assert!(Journal::open(&path, 0, false).expect("a file").is_none(), "it is locked");
        drop(journal);
        let (mut journal, found) = read(&path, 1);
        assert_eq!(found, ["two", "three"]);
        journal.begin_anew();
        noted(&mut journal, "four");
        drop(journal);
        let (journal, found) = read(&path, 3);
        assert_eq!((found, journal.number()), (vec!["four".to_owned()], 4), "what lies behind is from before");
    }

    #[test]
    fn a_torn_record_ends_what_is_read() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("journal");
        let (mut journal, _) = read(&path, 0);
        noted(&mut journal, "one");
        noted(&mut journal, "two");
        drop(journal);
        let whole = std::fs::read(&path).expect("a file");
        for length in 0..whole.len() {
            std::fs::write(&path, &whole[..length]).expect("a file");
            let count = usize::from(length >= HEADER_BYTES + 3);
            assert_eq!(read(&path, 0).1.len(), count, "{length} bytes");
        }
        for position in 0..whole.len() {
            let mut damaged = whole.clone();
            damaged[position] ^= 1;
            std::fs::write(&path, &damaged).expect("a file");
            assert!(read(&path, 0).1.len() < 2, "byte {position}");
        }
    }

    #[test]
    fn a_full_journal_says_so() {
        let folder = tempfile::tempdir().expect("a folder");
        let (mut journal, _) = read(&folder.path().join("journal"), 0);
        let large = "x".repeat(JOURNAL_BYTES_MAX as usize / 2);
        noted(&mut journal, &large);
        assert!(!journal.note(|buffer| buffer.extend_from_slice(large.as_bytes())).expect("space"));
        journal.begin_anew();
        noted(&mut journal, &large);
    }
}
