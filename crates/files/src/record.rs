//! The records of a transfer.
//!
//! A message is one record or several, none of which goes on in the next message. Numbers are big-endian.
//!
//! | bytes | what |
//! |---|---|
//! | 1 | kind |
//! | 4 | which file: its place in the request |
//! | 8 | offset in the file |
//! | 4 | bytes of the rest |
//! | | the rest |
//!
//! | kind | rest |
//! |---|---|
//! | 1, a file begins at the offset | 8 bytes: its size; 8: seconds since 1970 of its last change; 4: its permissions |
//! | 2, bytes of it | the bytes, then 32: SHA-256 of the file up to their end |
//! | 3, the last of its bytes, perhaps none | as 2; the hash is that of the file |
//! | 4, it does not come, or not whole | why, for people |

use bytes::{Buf, BufMut, Bytes, BytesMut};

use crate::hash::{ContentHash, HASH_BYTES};

/// Bytes before the rest.
pub const HEAD_BYTES: usize = 17;

/// Bytes around the content in a record with content.
pub const CONTENT_FRAME_BYTES: usize = HEAD_BYTES + HASH_BYTES;

/// Most bytes of the text of a failure.
pub const FAILURE_BYTES_MAX: usize = 4 << 10;

const FACTS_BYTES: usize = 20;

/// What is known of a file beside its content.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Facts {
    /// Bytes.
    pub size: u64,
    /// Seconds since 1970 of its last change.
    pub modified: i64,
    /// Permissions: the low nine bits.
    pub mode: u32,
}

/// One record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Record {
    /// The file's place in the request.
    pub file: u32,
    /// Where in it.
    pub offset: u64,
    /// What.
    pub what: What,
}

/// What a record says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum What {
    /// The file comes, from the offset on.
    Begin(Facts),
    /// Bytes of it.
    Content {
        /// The bytes.
        bytes: Bytes,
        /// The hash of the file up to their end.
        hash: ContentHash,
        /// Whether nothing follows: then the hash is that of the file.
        is_last: bool,
    },
    /// It does not come, or not whole: why.
    Failed(String),
}

/// Bytes are no records.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{problem} at byte {at} of a message of a transfer")]
pub struct NoRecord {
    /// What is wrong.
    pub problem: &'static str,
    /// Where.
    pub at: usize,
}

const BEGIN: u8 = 1;
const CONTENT: u8 = 2;
const LAST: u8 = 3;
const FAILED: u8 = 4;

/// Reads a message. Contents are slices of it.
pub fn read(message: Bytes) -> Result<Vec<Record>, NoRecord> {
    read_at_most(message, usize::MAX)
}

/// As [`read`], a message of at most so many records: small ones take several times the memory of the message that they come in.
pub fn read_at_most(mut message: Bytes, records_max: usize) -> Result<Vec<Record>, NoRecord> {
    let whole = message.len();
    let mut records = Vec::new();
    while !message.is_empty() {
        let at = whole - message.len();
        let wrong = |problem| NoRecord { problem, at };
        if records.len() >= records_max {
            return Err(wrong("more records than one message may have"));
        }
        if message.len() < HEAD_BYTES {
            return Err(wrong("half a record"));
        }
        let kind = message.get_u8();
        let (file, offset, length) = (message.get_u32(), message.get_u64(), message.get_u32() as usize);
        if message.len() < length {
            return Err(wrong("a record that is longer than its message"));
        }
        let mut rest = message.split_to(length);
        let what = match kind {
            BEGIN if rest.len() == FACTS_BYTES => {
                What::Begin(Facts { size: rest.get_u64(), modified: rest.get_i64(), mode: rest.get_u32() & 0o777 })
            }
            CONTENT | LAST if rest.len() >= HASH_BYTES => {
                let bytes = rest.split_to(rest.len() - HASH_BYTES);
                let mut hash = [0; HASH_BYTES];
                rest.copy_to_slice(&mut hash);
                if offset.checked_add(bytes.len() as u64).is_none() {
                    return Err(wrong("an offset beyond all files"));
                }
                What::Content { bytes, hash: ContentHash(hash), is_last: kind == LAST }
            }
            FAILED if rest.len() <= FAILURE_BYTES_MAX => What::Failed(String::from_utf8_lossy(&rest).into_owned()),
            BEGIN | CONTENT | LAST | FAILED => return Err(wrong("a record of a wrong length")),
            _ => return Err(wrong("a record of an unknown kind")),
        };
        records.push(Record { file, offset, what });
    }
    Ok(records)
}

/// Writes that a file begins.
pub fn write_begin(message: &mut BytesMut, file: u32, offset: u64, facts: Facts) {
    write_head(message, BEGIN, file, offset, FACTS_BYTES);
    message.put_u64(facts.size);
    message.put_i64(facts.modified);
    message.put_u32(facts.mode & 0o777);
}

/// Writes why a file does not come. A long text is cut.
pub fn write_failed(message: &mut BytesMut, file: u32, offset: u64, why: &str) {
    let end = (0..=why.len().min(FAILURE_BYTES_MAX)).rev().find(|at| why.is_char_boundary(*at)).unwrap_or_default();
    write_head(message, FAILED, file, offset, end);
    message.put_slice(&why.as_bytes()[..end]);
}

/// Writes the head of a record with so many bytes of content, which its writer puts behind it, then the hash.
///
/// # Panics
///
/// The content does not fit a message: more than 4 GiB.
pub fn write_content_head(message: &mut BytesMut, file: u32, offset: u64, bytes: usize, is_last: bool) {
    write_head(message, if is_last { LAST } else { CONTENT }, file, offset, bytes + HASH_BYTES);
}

fn write_head(message: &mut BytesMut, kind: u8, file: u32, offset: u64, length: usize) {
    message.put_u8(kind);
    message.put_u32(file);
    message.put_u64(offset);
    message.put_u32(u32::try_from(length).expect("a record fits a message"));
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn records() -> (Bytes, Vec<Record>) {
        let facts = Facts { size: 5, modified: -1, mode: 0o640 };
        let hash = ContentHash([7; HASH_BYTES]);
        let mut message = BytesMut::new();
        write_begin(&mut message, 3, 2, facts);
        write_content_head(&mut message, 3, 2, 2, false);
        message.put_slice(b"ab");
        message.put_slice(&hash.0);
        write_content_head(&mut message, 3, 4, 0, true);
        message.put_slice(&hash.0);
        write_failed(&mut message, 4, 9, "why");
        let content = |offset, bytes: &'static [u8], is_last| Record {
            file: 3,
            offset,
            what: What::Content { bytes: Bytes::from_static(bytes), hash, is_last },
        };
        let expected = vec![
            Record { file: 3, offset: 2, what: What::Begin(facts) },
            content(2, b"ab", false),
            content(4, b"", true),
            Record { file: 4, offset: 9, what: What::Failed("why".to_owned()) },
        ];
        (message.freeze(), expected)
    }

    #[test]
    fn records_are_read_as_they_are_written() {
        let (message, expected) = records();
        assert_eq!(read_at_most(message.clone(), expected.len()), Ok(expected.clone()));
        assert!(read_at_most(message, expected.len() - 1).is_err());
        assert_eq!(read(Bytes::new()), Ok(Vec::new()));
    }

    #[test]
    fn what_is_cut_anywhere_is_no_message_but_between_records() {
        let (message, expected) = records();
        let mut whole = 0;
        for end in 0..message.len() {
            match read(message.slice(..end)) {
                Ok(records) => {
                    assert_eq!(records[..], expected[..records.len()]);
                    whole += 1;
                }
                Err(error) => assert!(error.at <= end, "{error}"),
            }
        }
        assert_eq!(whole, expected.len(), "at the start and behind each record but the last");
    }

    #[test]
    fn a_long_reason_is_cut_between_two_characters() {
        let mut message = BytesMut::new();
        write_failed(&mut message, 0, 0, &"ä".repeat(FAILURE_BYTES_MAX));
        let records = read(message.freeze()).expect("a record");
        assert_eq!(records[0].what, What::Failed("ä".repeat(FAILURE_BYTES_MAX / 2)));
    }

    proptest! {
        #[test]
        fn anything_is_read_or_refused(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            drop(read(Bytes::from(bytes)));
        }
    }
}
