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

/// No more records fit into a journal.
const RECORDS_MAX: u64 = JOURNAL_BYTES_MAX / HEADER_BYTES as u64;

/// Bytes that are looked at for records behind one that cannot be read, where many seem to be some: a hundredth of a second.
const SEARCHED_BYTES_MAX: usize = 64 << 20;

/// Records as they were noted, in their order.
pub(super) type Records = Vec<Vec<u8>>;

/// Where a database stands: what it knows of its journal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Mark {
    /// Number of the last record that went into it.
    pub applied: u64,
    /// By which its own records are known.
    pub seed: i64,
}

/// What a journal holds.
#[derive(Debug, Default)]
struct Contents {
    /// The records that the database does not have, in their order.
    records: Records,
    /// Number of the last record that can be read; 0 for none.
    last: u64,
    /// Number of the first record that can be read; 0 for none.
    first: u64,
    /// Bytes up to the end of the last one.
    end: usize,
}

/// What was found when a journal was opened.
#[derive(Debug)]
pub(super) struct Found {
    /// The open journal.
    pub journal: Journal,
    /// The records that the database does not have, in their order.
    pub records: Records,
    /// What shows that other records were lost. The journal is as it was.
    pub damage: Option<String>,
}

/// An open journal, locked: one process at a time notes changes and takes over what another one left.
#[derive(Debug)]
pub(super) struct Journal {
    file: File,
    /// Where the next record goes.
    position: u64,
    /// Number of the last record.
    number: u64,
    seed: i64,
    buffer: Vec<u8>,
    /// It is damaged and could not be set aside: nothing is written into it.
    frozen: bool,
}

impl Journal {
    /// Opens or creates the file, readable for its owner only, and reads the records that the database does not have. `None`:
    /// another process holds it. With `wait`, one that may let go of it is waited for. `mark` is asked once the file is locked,
    /// because whoever had the lock before may have changed it.
    pub(super) fn open<Error>(
        path: &Path,
        wait: bool,
        failed: impl Fn(io::Error) -> Error,
        mark: impl FnOnce() -> Result<Mark, Error>,
    ) -> Result<Option<Found>, Error> {
        let Some(mut file) = lock(path, wait).map_err(&failed)? else { return Ok(None) };
        let Mark { applied, seed } = mark()?;
        let mut bytes = Vec::new();
        (&mut file).take(JOURNAL_BYTES_MAX).read_to_end(&mut bytes).map_err(&failed)?;
        let contents = read(&bytes, Mark { applied, seed });
        let damage = damage(&bytes, &contents, Mark { applied, seed });
        let Contents { records, last, end, .. } = contents;
        // What the database does not have stays where it is until it does; behind it there may be anything, which is overwritten.
        let position = if records.is_empty() { 0 } else { end as u64 };
        let journal = Self { file, position, number: last.max(applied), seed, buffer: Vec::new(), frozen: false };
        Ok(Some(Found { journal, records, damage }))
    }

    /// Leaves the file as it is: nothing is noted any more.
    pub(super) fn freeze(&mut self) {
        self.frozen = true;
    }

    /// Cuts off what stands behind the last record that can be read: it must not seem to follow what is noted next.
    pub(super) fn cut(&mut self) -> io::Result<()> {
        self.file.set_len(self.position)
    }

    /// Writes down a record. `false`: it does not fit any more. Errors: no space left; what was written before is untouched.
    pub(super) fn note(&mut self, encode: impl FnOnce(&mut Vec<u8>)) -> io::Result<bool> {
        self.buffer.clear();
        self.buffer.resize(HEADER_BYTES, 0);
        encode(&mut self.buffer);
        let end = self.position + self.buffer.len() as u64;
        if end > JOURNAL_BYTES_MAX || self.frozen {
            return Ok(false);
        }
        let number = self.number + 1;
        let length = self.buffer.len() - HEADER_BYTES;
        self.buffer[..8].copy_from_slice(&number.to_le_bytes());
        self.buffer[8..12].copy_from_slice(&u32::try_from(length).unwrap_or(u32::MAX).to_le_bytes());
        let checksum = checksum(self.seed, &self.buffer[..12], &self.buffer[HEADER_BYTES..]);
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
        if !self.frozen {
            drop(self.file.set_len(0));
        }
    }
}

/// Opens the file and locks it. `None`: another process has it.
fn lock(path: &Path, wait: bool) -> io::Result<Option<File>> {
    // A pipe or a device under this name would block whoever opens it.
    if path.metadata().is_ok_and(|found| !found.is_file()) {
        return Err(io::Error::other("it is not a regular file"));
    }
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(false);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    let file = options.open(path)?;
    let mut tries = if wait { LOCK_TRIES } else { 1 };
    loop {
        tries -= 1;
        match file.try_lock() {
            Ok(()) => return Ok(Some(file)),
            Err(TryLockError::WouldBlock) if tries > 0 => std::thread::park_timeout(LOCK_PAUSE),
            Err(TryLockError::WouldBlock) => return Ok(None),
            Err(TryLockError::Error(error)) => return Err(error),
        }
    }
}

/// Reads the records that the database does not have from a journal that another process may be writing. Called while the
/// database is locked, so that none of them goes into it meanwhile.
pub(super) fn read_beside(path: &Path, mark: Mark) -> io::Result<Records> {
    Ok(contents_beside(path, mark)?.records)
}

/// The number of the last record that such a journal has and the database has not.
pub(super) fn last_beside(path: &Path, mark: Mark) -> io::Result<Option<u64>> {
    Ok(Some(contents_beside(path, mark)?.last).filter(|last| *last > mark.applied))
}

fn contents_beside(path: &Path, mark: Mark) -> io::Result<Contents> {
    let mut bytes = Vec::new();
    match File::open(path) {
        Ok(file) => file.take(JOURNAL_BYTES_MAX).read_to_end(&mut bytes)?,
        Err(error) if error.kind() == io::ErrorKind::NotFound => 0,
        Err(error) => return Err(error),
    };
    Ok(read(&bytes, mark))
}

fn read(all: &[u8], mark: Mark) -> Contents {
    let mut contents = Contents::default();
    let mut bytes = all;
    while let Some(claimed) = Claimed::at(bytes) {
        let Claimed { number, record, rest, .. } = claimed;
        let follows = contents.last == 0 || number == contents.last + 1;
        if !follows || !claimed.is_whole(mark.seed) {
            break;
        }
        if number > mark.applied {
            contents.records.push(record.to_vec());
        }
        bytes = rest;
        if contents.first == 0 {
            contents.first = number;
        }
        (contents.last, contents.end) = (number, all.len() - bytes.len());
    }
    contents
}

/// What shows that records between those that can be read were lost, as by a host that lost its power. A torn record at the end
/// shows nothing: it was not confirmed. Nor do leftovers from before the file was begun anew: they have lower numbers.
fn damage(all: &[u8], contents: &Contents, mark: Mark) -> Option<String> {
    if contents.first > mark.applied + 1 {
        return Some(format!("the database has change {}, and change {} follows it", mark.applied, contents.first));
    }
    let known = contents.last.max(mark.applied);
    let mut left = SEARCHED_BYTES_MAX;
    (contents.end..all.len()).find_map(|start| {
        let claimed = Claimed::at(&all[start..])?;
        if claimed.number <= known || claimed.number - known > RECORDS_MAX || claimed.record.len() > left {
            return None;
        }
        left -= claimed.record.len();
        let found = claimed.number;
        claimed.is_whole(mark.seed).then(|| format!("change {} cannot be read, and change {found} is there", known + 1))
    })
}

/// What bytes say that they are the beginning of.
struct Claimed<'a> {
    number: u64,
    header: &'a [u8],
    record: &'a [u8],
    /// What follows the record.
    rest: &'a [u8],
}

impl<'a> Claimed<'a> {
    /// `None`: the record would be longer than what is there.
    fn at(bytes: &'a [u8]) -> Option<Self> {
        let (header, rest) = bytes.split_at_checked(HEADER_BYTES)?;
        let number = header[..8].try_into().map_or(0, u64::from_le_bytes);
        let length = header[8..12].try_into().map_or(0, u32::from_le_bytes) as usize;
        let (record, rest) = rest.split_at_checked(length)?;
        Some(Self { number, header, record, rest })
    }

    fn is_whole(&self, seed: i64) -> bool {
        let expected = self.header[12..16].try_into().map_or(0, u32::from_le_bytes);
        self.number != 0 && checksum(seed, &self.header[..12], self.record) == expected
    }
}

fn checksum(seed: i64, header: &[u8], record: &[u8]) -> u32 {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(&seed.to_le_bytes());
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

    const SEED: i64 = -7;

    fn open(path: &Path, applied: u64) -> Option<Found> {
        Journal::open(path, false, |error| error, || Ok(Mark { applied, seed: SEED })).expect("a file")
    }

    fn read(path: &Path, applied: u64) -> (Journal, Vec<String>) {
        let Found { journal, records, damage } = open(path, applied).expect("nobody else has it");
        assert_eq!(damage, None);
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
        assert!(open(&path, 0).is_none(), "it is locked");
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
            assert!(open(&path, 0).expect("nobody else has it").records.len() < 2, "byte {position}");
        }
    }

    #[test]
    fn records_that_are_missing_between_others_are_damage_and_what_follows_them_is_cut_off() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("journal");
        let (mut journal, _) = read(&path, 0);
        for text in ["one", "two", "ten"] {
            noted(&mut journal, text);
        }
        drop(journal);
        let whole = std::fs::read(&path).expect("a file");
        let each = whole.len() / 3;
        for byte in 0..2 * each {
            let mut damaged = whole.clone();
            damaged[byte] ^= 0x80;
            std::fs::write(&path, &damaged).expect("a file");
            let found = open(&path, 0).expect("nobody else has it");
            assert_eq!(found.records.len(), byte / each, "byte {byte}");
            let known = byte / each + 1;
            let there = if known == 1 { 2 } else { 3 };
            let expected = format!("change {known} cannot be read, and change {there} is there");
            assert_eq!(found.damage, Some(expected), "byte {byte}");
        }
        // The last of them ended behind the first record. The next one is as long as the lost one.
        let mut found = open(&path, 0).expect("nobody else has it");
        found.journal.cut().expect("a file");
        noted(&mut found.journal, "six");
        drop(found);
        assert_eq!(read(&path, 0).1, ["one", "six"]);
        // The database has less than it had when the file was begun anew.
        std::fs::write(&path, &whole[each..]).expect("a file");
        let damage = open(&path, 0).expect("nobody else has it").damage;
        assert_eq!(damage.as_deref(), Some("the database has change 0, and change 2 follows it"));
        assert_eq!(read(&path, 1).1, ["two", "ten"]);
    }

    #[test]
    fn what_is_noted_after_a_crash_does_not_stand_behind_leftovers() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("journal");
        let (mut journal, _) = read(&path, 0);
        for text in ["one", "two", "three"] {
            noted(&mut journal, text);
        }
        journal.begin_anew();
        noted(&mut journal, "four");
        drop(journal);
        // The database has all; what lies behind "four" is from before.
        let (mut journal, found) = read(&path, 4);
        assert_eq!(found, [""; 0]);
        noted(&mut journal, "five");
        drop(journal);
        // And the same where it has not.
        let (mut journal, found) = read(&path, 4);
        assert_eq!(found, ["five"]);
        noted(&mut journal, "six");
        drop(journal);
        assert_eq!(read(&path, 4).1, ["five", "six"]);
        assert_eq!(read(&path, 5).1, ["six"]);
    }

    #[test]
    fn the_journal_of_another_database_counts_for_nothing() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("journal");
        let (mut journal, _) = read(&path, 0);
        noted(&mut journal, "one");
        drop(journal);
        let found = Journal::open(&path, false, |error| error, || Ok(Mark { applied: 0, seed: 1 }))
            .expect("a file")
            .expect("nobody else has it");
        assert_eq!((found.records.len(), found.damage), (0, None));
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
