//! The receiving side: records are checked, and what is right is handed on to be written.

use std::collections::HashMap;

use bytes::Bytes;

use crate::hash::{ContentHash, Prefix};
use crate::record::{self, Facts, NoRecord, Record, What};

/// What arrived, and is right.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Arrival {
    /// A file begins. What is at hand beyond the offset does not belong to it.
    Began {
        /// Its place in the request.
        file: u32,
        /// From where on it comes: what the receiver has, or 0.
        offset: u64,
        /// What is known of it.
        facts: Facts,
    },
    /// Bytes of the file that began last.
    Content {
        /// Its place in the request.
        file: u32,
        /// Where they belong.
        offset: u64,
        /// The bytes.
        bytes: Bytes,
    },
    /// All of it has arrived.
    Whole {
        /// Its place in the request.
        file: u32,
        /// Its hash.
        hash: ContentHash,
        /// What is known of it.
        facts: Facts,
    },
    /// It does not come.
    Failed {
        /// Its place in the request.
        file: u32,
        /// Why, for people.
        why: String,
    },
}

/// Why a transfer cannot go on. What arrived before is right: another transfer goes on behind it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SinkError {
    /// It is no transfer.
    #[error(transparent)]
    NoRecord(#[from] NoRecord),
    /// Messages were lost.
    #[error("bytes from {expected} on were expected, and those from {found} on came")]
    Gap {
        /// Where it should go on.
        expected: u64,
        /// Where it went on.
        found: u64,
    },
    /// Bytes are not what was sent.
    #[error("the bytes from {offset} on are not those that were sent: their SHA-256 is another")]
    Corrupt {
        /// Where they begin.
        offset: u64,
    },
    /// Records that no sender sends in this order.
    #[error("{0}")]
    Order(&'static str),
}

#[derive(Debug)]
struct Current {
    file: u32,
    facts: Facts,
    prefix: Prefix,
}

/// Checks one transfer of one file or many, one behind the other.
#[derive(Debug)]
pub struct Sink {
    had: HashMap<u32, Prefix>,
    current: Option<Current>,
    records_max: usize,
}

/// Records of a message: more than there are in one of many empty files.
const RECORDS_MAX: usize = 64 << 10;

/// Records of a message of one file: it begins, some of it, the last of it, and some to spare.
const RECORDS_OF_ONE_MAX: usize = 64;

impl Default for Sink {
    fn default() -> Self {
        Self { had: HashMap::new(), current: None, records_max: RECORDS_MAX }
    }
}

impl Sink {
    /// One for a single file, whose messages have few records.
    pub fn of_one() -> Self {
        Self { records_max: RECORDS_OF_ONE_MAX, ..Self::default() }
    }

    /// The receiver has the beginning of a file.
    pub fn has(&mut self, file: u32, prefix: Prefix) {
        self.had.insert(file, prefix);
    }

    /// How much of a file is here, and its hash, where it is the one that comes at the moment.
    pub fn prefix(&self, file: u32) -> Option<&Prefix> {
        self.current.as_ref().filter(|current| current.file == file).map(|current| &current.prefix)
    }

    /// Takes a message. What is right in it before an error stands in `arrived`, too.
    pub fn take(&mut self, message: Bytes, arrived: &mut Vec<Arrival>) -> Result<(), SinkError> {
        for record in record::read_at_most(message, self.records_max)? {
            arrived.extend(self.record(record)?);
        }
        Ok(())
    }

    fn record(&mut self, Record { file, offset, what }: Record) -> Result<impl Iterator<Item = Arrival>, SinkError> {
        let mut whole = None;
        let arrival = match what {
            What::Begin(facts) => {
                if self.current.is_some() {
                    return Err(SinkError::Order("a file began before the one before it had ended"));
                }
                let prefix = match offset {
                    0 => Prefix::default(),
                    _ => {
                        let had = self.had.remove(&file).filter(|had| had.bytes() == offset && offset <= facts.size);
                        had.ok_or(SinkError::Order("a file began where nobody had asked for"))?
                    }
                };
                self.current = Some(Current { file, facts, prefix });
                Arrival::Began { file, offset, facts }
            }
            What::Content { bytes, hash, is_last } => {
                let current = self.current.as_mut().filter(|current| current.file == file);
                let current = current.ok_or(SinkError::Order("bytes of a file that had not begun"))?;
                let expected = current.prefix.bytes();
                if offset != expected {
                    return Err(SinkError::Gap { expected, found: offset });
                }
                let end = expected + bytes.len() as u64;
                if end > current.facts.size || is_last != (end == current.facts.size) {
                    return Err(SinkError::Order("a file had another size than was said when it began"));
                }
                let before = current.prefix.clone();
                current.prefix.update(&bytes);
                if current.prefix.hash() != hash {
                    current.prefix = before;
                    return Err(SinkError::Corrupt { offset });
                }
                if is_last {
                    whole = Some(Arrival::Whole { file, hash, facts: current.facts });
                    self.current = None;
                }
                Arrival::Content { file, offset, bytes }
            }
            What::Failed(why) => {
                self.current.take_if(|current| current.file == file);
                Arrival::Failed { file, why }
            }
        };
        Ok(std::iter::once(arrival).chain(whole))
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io::Write;

    use bytes::BytesMut;
    use proptest::prelude::*;

    use super::*;
    use crate::source::{Have, Source, SourceError, hash_to};

    fn file(content: &[u8]) -> File {
        let mut file = tempfile::tempfile().expect("a file");
        file.write_all(content).expect("written");
        file
    }

    fn content(bytes: usize) -> Vec<u8> {
        (0..bytes).map(|at| (at % 251) as u8).collect()
    }

    fn messages(source: &mut Source, room: usize) -> Vec<Bytes> {
        let mut messages = Vec::new();
        while !source.is_done() {
            let mut message = BytesMut::new();
            source.fill(&mut message, room).expect("it is read");
            messages.push(message.freeze());
        }
        messages
    }

    fn source(content: &[u8], have: Option<Have>) -> Source {
        Source::new(0, file(content), have, &|| false).expect("a source")
    }

    /// What a receiver has in the end, and where the transfer began.
    fn received(had: &[u8], messages: Vec<Bytes>) -> Result<(Vec<u8>, u64), SinkError> {
        let (mut sink, mut file, mut began) = (Sink::default(), had.to_vec(), None);
        let mut prefix = Prefix::default();
        prefix.update(had);
        sink.has(0, prefix);
        let mut is_whole = false;
        for message in messages {
            let mut arrived = Vec::new();
            let taken = sink.take(message, &mut arrived);
            for arrival in arrived {
                match arrival {
                    Arrival::Began { offset, .. } => {
                        began = Some(offset);
                        file.truncate(offset as usize);
                    }
                    Arrival::Content { offset, bytes, .. } => {
                        assert_eq!(offset, file.len() as u64);
                        file.extend_from_slice(&bytes);
                    }
                    Arrival::Whole { hash, .. } => {
                        let mut prefix = Prefix::default();
                        prefix.update(&file);
                        assert_eq!(prefix.hash(), hash);
                        is_whole = true;
                    }
                    Arrival::Failed { why, .. } => panic!("{why}"),
                }
            }
            taken?;
        }
        assert!(is_whole);
        Ok((file, began.expect("it began")))
    }

    fn have(content: &[u8]) -> Have {
        let mut prefix = Prefix::default();
        prefix.update(content);
        Have { bytes: prefix.bytes(), hash: prefix.hash() }
    }

    #[test]
    fn a_file_arrives_in_pieces_of_any_size() {
        for bytes in [0, 1, 4095, 4096, 100_000] {
            let all = content(bytes);
            for room in [0, 100, 5000, 1 << 20] {
                // Without room for content a record has none, and there would be endlessly many.
                if room < 5000 && bytes > 0 {
                    continue;
                }
                let sent = messages(&mut source(&all, None), room);
                assert_eq!(received(&[], sent), Ok((all.clone(), 0)), "{bytes} bytes in messages of {room}");
            }
        }
    }

    #[test]
    fn what_is_at_hand_is_not_sent_again_unless_it_is_something_else() {
        let all = content(50_000);
        for (had, began) in [(&all[..30_000], 30_000), (&all[..], 50_000), (&[9; 30_000][..], 0), (&[9; 60_000][..], 0)]
        {
            let sent = messages(&mut source(&all, Some(have(had))), 8 << 10);
            let bytes: usize = sent.iter().map(Bytes::len).sum();
            assert_eq!(received(had, sent), Ok((all.clone(), began)));
            assert!(bytes < all.len() - began as usize + 1000, "{bytes} were sent");
        }
    }

    #[test]
    fn a_file_that_changes_while_it_is_sent_does_not_arrive_as_whole() {
        for shorter in [false, true] {
            let file = file(&content(20_000));
            let mut writer = file.try_clone().expect("another handle");
            let mut source = Source::new(0, file, None, &|| false).expect("a source");
            source.fill(&mut BytesMut::new(), 8 << 10).expect("its beginning");
            if shorter {
                writer.set_len(100).expect("cut");
            } else {
                writer.write_all(b"more").expect("written");
            }
            let mut ended = Ok(());
            while ended.is_ok() && !source.is_done() {
                ended = source.fill(&mut BytesMut::new(), 8 << 10);
            }
            assert!(matches!(ended, Err(SourceError::Changed)), "{ended:?}");
        }
    }

    #[test]
    fn a_message_that_was_lost_twice_or_changed_on_its_way_is_found() {
        let all = content(50_000);
        let sent = messages(&mut source(&all, None), 8 << 10);
        let mut lost = sent.clone();
        lost.remove(2);
        assert!(matches!(received(&[], lost), Err(SinkError::Gap { .. })));
        let mut twice = sent.clone();
        twice.insert(2, sent[2].clone());
        assert!(matches!(received(&[], twice), Err(SinkError::Gap { .. })));
        let mut changed = sent.clone();
        let mut message = BytesMut::from(&changed[3][..]);
        message[100] ^= 1;
        changed[3] = message.freeze();
        let mut sink = Sink::default();
        let taken: Vec<_> = changed.into_iter().map(|message| sink.take(message, &mut Vec::new())).collect();
        let before = sink.prefix(0).map(|prefix| (prefix.bytes(), prefix.hash()));
        assert!(matches!(taken[3], Err(SinkError::Corrupt { .. })), "{:?}", taken[3]);
        let (bytes, hash) = before.expect("it is under way");
        assert_eq!(have(&all[..bytes as usize]), Have { bytes, hash }, "another transfer goes on behind what is right");
    }

    #[test]
    fn the_hash_of_a_beginning_needs_as_much_of_a_file() {
        let all = content(300_000);
        assert_eq!(hash_to(&file(&all), 299_999, &|| false).expect("a hash").hash(), have(&all[..299_999]).hash);
        assert!(matches!(hash_to(&file(&all), 300_001, &|| false), Err(SourceError::Changed)));
        assert!(matches!(hash_to(&file(&all), 1, &|| true), Err(SourceError::Ended)));
    }

    proptest! {
        #[test]
        fn no_message_makes_a_sink_panic_or_tell_bytes_out_of_order(
            cuts in proptest::collection::vec((0usize..8, 0usize..400, any::<u8>()), 0..12)
        ) {
            let sent = messages(&mut source(&content(20_000), None), 5000);
            let mut sink = Sink::default();
            let mut at = 0;
            for (which, byte, value) in cuts {
                let mut message = BytesMut::from(&sent[which % sent.len()][..]);
                let length = message.len();
                message[byte % length] = value;
                let mut arrived = Vec::new();
                drop(sink.take(message.freeze(), &mut arrived));
                for arrival in arrived {
                    match arrival {
                        Arrival::Began { offset, .. } => at = offset,
                        Arrival::Content { offset, bytes, .. } => {
                            prop_assert_eq!(offset, at);
                            at += bytes.len() as u64;
                        }
                        Arrival::Whole { .. } | Arrival::Failed { .. } => {}
                    }
                }
            }
        }
    }
}
