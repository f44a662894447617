//! How much memory it takes to resolve a pack, found out while the pack passes by and before anything is resolved.
//!
//! Most objects of a pack are told as differences to others. Whoever resolves them keeps an object for as long as a second
//! difference to it waits. A pack of a few hundred bytes for each can make that as many large objects as it likes.

use std::collections::HashMap;
use std::io::{self, BufRead, Read};

use gix_hash::{ObjectId, oid};
use gix_zlib::{Decompress, FlushDecompress, Status};

use super::error::SyncError;
use super::repository::OBJECT_BYTES_MAX;

/// Most bytes of objects that are in memory at the same time: some of the largest ones that differ from one another.
pub(crate) const RESOLVING_BYTES_MAX: u64 = 512 * 1024 * 1024;

/// Most objects of a pack. One commit has no more than its files and folders; room is made for all of them at once.
const OBJECTS_MAX: u32 = 1_000_000;

/// The beginning of a pack: `PACK`, its version and the number of its objects.
const START_BYTES: usize = 12;

/// Bytes of the name of an object.
const ID_BYTES: usize = 20;

/// Bytes of a difference that are looked at: its two sizes.
const SIZES_BYTES: usize = 20;

/// Bytes that are inflated at once.
const INFLATED_BYTES: usize = 32 * 1024;

/// What is said of a pack that breaks the format.
const BROKEN: &str = "the pack is none";

/// A pack that is weighed while it is read. An error of [`Read`] that it makes itself is told by [`Self::refusal`].
pub(crate) struct Weighed<'a> {
    pack: &'a mut dyn BufRead,
    scale: Scale,
    is_known: &'a dyn Fn(&oid) -> bool,
    refusal: Option<SyncError>,
}

impl<'a> Weighed<'a> {
    /// `is_known` says whether an object is there already.
    pub(crate) fn new(pack: &'a mut dyn BufRead, is_known: &'a dyn Fn(&oid) -> bool) -> Self {
        Self { pack, scale: Scale::default(), is_known, refusal: None }
    }

    /// Why the pack was not read to its end, where that was here.
    pub(crate) fn refusal(self) -> Option<SyncError> {
        self.refusal
    }
}

impl Read for Weighed<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let refused = || io::Error::other("the pack is refused");
        if self.refusal.is_some() {
            return Err(refused());
        }
        let count = self.pack.read(buffer)?;
        self.scale.take(&buffer[..count], self.is_known).map_err(|error| {
            self.refusal = Some(error);
            refused()
        })?;
        Ok(count)
    }
}

/// What an object is told as a difference to.
#[derive(Clone, Copy)]
enum Parent {
    None,
    /// An object that was in the pack before.
    Object(u32),
    /// One that is only named.
    Named(u32),
}

#[derive(Clone, Copy)]
struct Weight {
    bytes: u64,
    /// More than one difference to it: it is kept for the second.
    is_kept: bool,
    has_child: bool,
}

impl Weight {
    fn new(bytes: u64) -> Self {
        Self { bytes, is_kept: false, has_child: false }
    }

    fn add_child(&mut self) {
        self.is_kept |= self.has_child;
        self.has_child = true;
    }
}

struct Object {
    /// Where it begins in the pack.
    start: u64,
    weight: Weight,
    parent: Parent,
}

/// What comes next.
#[derive(Clone, Copy, PartialEq)]
enum Stage {
    Start,
    Kind,
    Size,
    Distance,
    Name,
    Data,
    /// The hash at the end, and what follows.
    Over,
}

/// The object that is passing by.
#[derive(Default)]
struct Passing {
    start: u64,
    kind: u8,
    bytes: u64,
    shift: u32,
    distance: u64,
    name: Vec<u8>,
    /// Its first inflated bytes.
    sizes: Vec<u8>,
}

struct Scale {
    stage: Stage,
    start: Vec<u8>,
    left: u32,
    offset: u64,
    passing: Passing,
    inflate: Decompress,
    inflated: Vec<u8>,
    objects: Vec<Object>,
    named: Vec<(ObjectId, Weight)>,
    names: HashMap<ObjectId, u32>,
}

impl Default for Scale {
    fn default() -> Self {
        Self {
            stage: Stage::Start,
            start: Vec::new(),
            left: 0,
            offset: 0,
            passing: Passing::default(),
            inflate: Decompress::new(),
            inflated: vec![0; INFLATED_BYTES],
            objects: Vec::new(),
            named: Vec::new(),
            names: HashMap::new(),
        }
    }
}

impl Scale {
    /// Takes the next bytes of the pack. Errors: it is none, or would take too much; the last before its end has passed.
    fn take(&mut self, mut bytes: &[u8], is_known: &dyn Fn(&oid) -> bool) -> Result<(), SyncError> {
        while let Some(byte) = bytes.first().copied() {
            if self.stage == Stage::Over {
                return Ok(());
            }
            if self.stage == Stage::Data {
                let taken = self.inflate(bytes)?;
                bytes = &bytes[taken..];
                self.offset += taken as u64;
                if self.stage == Stage::Over {
                    return self.weigh(is_known);
                }
                continue;
            }
            match self.stage {
                Stage::Start => self.begin(byte)?,
                Stage::Kind => {
                    let kind = (byte >> 4) & 7;
                    let bytes = u64::from(byte & 15);
                    self.passing = Passing { start: self.offset, kind, bytes, shift: 4, ..Passing::default() };
                    self.stage = Stage::Size;
                    self.end_size(byte)?;
                }
                Stage::Size => {
                    let passing = &mut self.passing;
                    if passing.shift > 56 {
                        return Err(broken());
                    }
                    passing.bytes |= u64::from(byte & 127) << passing.shift;
                    passing.shift += 7;
                    self.end_size(byte)?;
                }
                Stage::Distance => {
                    let distance = &mut self.passing.distance;
                    if *distance > u64::MAX >> 8 {
                        return Err(broken());
                    }
                    *distance = (*distance << 7) | u64::from(byte & 127);
                    if byte & 128 == 0 {
                        self.stage = Stage::Data;
                    } else {
                        *distance += 1;
                    }
                }
                Stage::Name => {
                    self.passing.name.push(byte);
                    if self.passing.name.len() == ID_BYTES {
                        self.stage = Stage::Data;
                    }
                }
                Stage::Data | Stage::Over => {}
            }
            self.offset += 1;
            bytes = &bytes[1..];
        }
        Ok(())
    }

    fn begin(&mut self, byte: u8) -> Result<(), SyncError> {
        self.start.push(byte);
        if self.start.len() < START_BYTES {
            return Ok(());
        }
        let count =
            self.start.last_chunk().map(|count| u32::from_be_bytes(*count)).filter(|_| self.start.starts_with(b"PACK"));
        self.left = count.ok_or_else(broken)?;
        if self.left > OBJECTS_MAX {
            return Err(SyncError::TooLarge { bound: OBJECTS_MAX.into(), what: "objects in a pack" });
        }
        self.stage = if self.left == 0 { Stage::Over } else { Stage::Kind };
        Ok(())
    }

    fn end_size(&mut self, byte: u8) -> Result<(), SyncError> {
        if byte & 128 != 0 {
            return Ok(());
        }
        check_object(self.passing.bytes)?;
        self.inflate.reset();
        self.stage = match self.passing.kind {
            1..=4 => Stage::Data,
            6 => Stage::Distance,
            7 => Stage::Name,
            _ => return Err(broken()),
        };
        Ok(())
    }

    /// Inflates what there is of an object. Gives how many bytes were of it.
    fn inflate(&mut self, bytes: &[u8]) -> Result<usize, SyncError> {
        // What cannot be made smaller becomes a little larger. Without a bound it could go on for ever: it is held in memory.
        let most = self.passing.bytes + self.passing.bytes / 8 + 4096;
        let mut taken = 0;
        loop {
            let (before_in, before_out) = (self.inflate.total_in(), self.inflate.total_out());
            let status = self.inflate.decompress(&bytes[taken..], &mut self.inflated, FlushDecompress::None);
            let status = status.map_err(|_| broken())?;
            let consumed = (self.inflate.total_in() - before_in) as usize;
            let made = (self.inflate.total_out() - before_out) as usize;
            taken += consumed;
            let missing = SIZES_BYTES.saturating_sub(self.passing.sizes.len()).min(made);
            self.passing.sizes.extend_from_slice(&self.inflated[..missing]);
            if self.inflate.total_out() > self.passing.bytes || self.inflate.total_in() > most {
                return Err(broken());
            }
            if status == Status::StreamEnd {
                self.end_object()?;
                return Ok(taken);
            }
            if made == self.inflated.len() {
                continue;
            }
            if taken == bytes.len() {
                return Ok(taken);
            }
            if consumed == 0 && made == 0 {
                return Err(broken());
            }
        }
    }

    fn end_object(&mut self) -> Result<(), SyncError> {
        let passing = &self.passing;
        if self.inflate.total_out() != passing.bytes {
            return Err(broken());
        }
        let (bytes, parent) = if passing.kind <= 4 {
            (passing.bytes, Parent::None)
        } else {
            let mut sizes = passing.sizes.as_slice();
            let (base, made) = size(&mut sizes).zip(size(&mut sizes)).ok_or_else(broken)?;
            check_object(base)?;
            check_object(made)?;
            (made, if passing.kind == 6 { self.before()? } else { self.named(base)? })
        };
        self.objects.push(Object { start: self.passing.start, weight: Weight::new(bytes), parent });
        self.left -= 1;
        self.stage = if self.left == 0 { Stage::Over } else { Stage::Kind };
        Ok(())
    }

    /// The object that this one is a difference to, so many bytes before it.
    fn before(&mut self) -> Result<Parent, SyncError> {
        let start = self.passing.start.checked_sub(self.passing.distance).ok_or_else(broken)?;
        let index = self.objects.binary_search_by_key(&start, |object| object.start).map_err(|_| broken())?;
        self.objects[index].weight.add_child();
        Ok(Parent::Object(index as u32))
    }

    /// The object of a name that this one is a difference to.
    fn named(&mut self, bytes: u64) -> Result<Parent, SyncError> {
        let name = ObjectId::try_from(self.passing.name.as_slice()).map_err(|_| broken())?;
        let next = self.named.len() as u32;
        let index = *self.names.entry(name).or_insert(next);
        if index == next {
            self.named.push((name, Weight::new(bytes)));
        }
        let weight = &mut self.named[index as usize].1;
        // What it says of the size may be wrong. Then it is not resolved.
        weight.bytes = weight.bytes.max(bytes);
        weight.add_child();
        Ok(Parent::Named(index))
    }

    /// Whether there is enough memory for all.
    fn weigh(&self, is_known: &dyn Fn(&oid) -> bool) -> Result<(), SyncError> {
        // Named objects of the pack itself can be anywhere in it, with all that is kept there.
        let unplaced = self.named.iter().filter(|(name, _)| !is_known(name));
        let unplaced = unplaced.map(|(_, weight)| weight.bytes).fold(None, |sum, bytes| Some(sum.unwrap_or(0) + bytes));
        let anywhere = unplaced.map_or(0, |bytes| {
            let kept = self.objects.iter().map(|object| object.weight).filter(|weight| weight.is_kept);
            bytes + kept.map(|weight| weight.bytes).sum::<u64>()
        });
        let mut kept_above: Vec<u64> = Vec::with_capacity(self.objects.len());
        for object in &self.objects {
            let (above, parent) = match object.parent {
                Parent::None => (0, Weight::new(0)),
                // It was before this one.
                Parent::Object(index) => (kept_above[index as usize], self.objects[index as usize].weight),
                Parent::Named(index) => (0, self.named[index as usize].1),
            };
            let kept = if parent.is_kept { above + parent.bytes } else { above };
            kept_above.push(kept);
            let all = kept.max(anywhere) + parent.bytes + object.weight.bytes;
            if all > RESOLVING_BYTES_MAX {
                let what = "bytes of objects in memory at the same time, as they are told by their differences";
                return Err(SyncError::TooLarge { bound: RESOLVING_BYTES_MAX, what });
            }
        }
        Ok(())
    }
}

fn check_object(bytes: u64) -> Result<(), SyncError> {
    if bytes > OBJECT_BYTES_MAX as u64 {
        return Err(SyncError::TooLarge { bound: OBJECT_BYTES_MAX as u64, what: "bytes in one object" });
    }
    Ok(())
}

/// A size at the beginning of a difference.
fn size(bytes: &mut &[u8]) -> Option<u64> {
    let mut size = 0;
    for shift in (0..63).step_by(7) {
        let (first, rest) = bytes.split_first()?;
        *bytes = rest;
        size |= u64::from(first & 127) << shift;
        if first & 128 == 0 {
            return Some(size);
        }
    }
    None
}

fn broken() -> SyncError {
    SyncError::Damaged { problem: BROKEN.to_owned() }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;
    use std::iter;

    use gix_hash::Kind;
    use gix_zlib::Compression;
    use gix_zlib::stream::deflate;

    use super::super::halt::Halt;
    use super::super::repository::Repository;
    use super::*;

    const MIB: usize = 1024 * 1024;

    /// A pack as it is written.
    struct Pack {
        bytes: Vec<u8>,
        count: u32,
    }

    impl Pack {
        fn new() -> Self {
            Self { bytes: b"PACK\0\0\0\x02\0\0\0\0".to_vec(), count: 0 }
        }

        /// Adds an object and gives where it begins.
        fn add(&mut self, kind: u8, between: &[u8], content: &[u8]) -> usize {
            self.add_of_size(kind, content.len(), between, content)
        }

        fn add_of_size(&mut self, kind: u8, size: usize, between: &[u8], content: &[u8]) -> usize {
            let start = self.bytes.len();
            let mut rest = size >> 4;
            let mut byte = (kind << 4) | (size & 15) as u8;
            while rest > 0 {
                self.bytes.push(byte | 128);
                byte = (rest & 127) as u8;
                rest >>= 7;
            }
            self.bytes.push(byte);
            self.bytes.extend_from_slice(between);
            let mut deflated = deflate::Write::new(Vec::new(), Compression::BEST_SPEED);
            deflated.write_all(content).expect("memory");
            deflated.flush().expect("memory");
            self.bytes.extend(deflated.into_inner());
            self.count += 1;
            start
        }

        /// Adds a difference to the object that begins there.
        fn differ(&mut self, base: usize, content: &[u8]) -> usize {
            let mut distance = self.bytes.len() - base;
            let mut between = vec![(distance & 127) as u8];
            while distance > 127 {
                distance = (distance >> 7) - 1;
                between.insert(0, (distance & 127) as u8 | 128);
            }
            self.add(6, &between, content)
        }

        fn end(mut self) -> Vec<u8> {
            self.bytes[8..12].copy_from_slice(&self.count.to_be_bytes());
            let mut hasher = gix_hash::hasher(Kind::Sha1);
            hasher.update(&self.bytes);
            self.bytes.extend_from_slice(hasher.try_finalize().expect("a hash").as_slice());
            self.bytes
        }
    }

    fn varint(mut size: usize) -> Vec<u8> {
        let mut bytes = Vec::new();
        while size > 127 {
            bytes.push((size & 127) as u8 | 128);
            size >>= 7;
        }
        bytes.push(size as u8);
        bytes
    }

    /// The difference between an object of so many MiB and one with another byte at its end.
    fn difference(base: usize, mib: usize, last: u8) -> Vec<u8> {
        let mut bytes = varint(base);
        bytes.extend(varint(mib * MIB + 1));
        // Copies a MiB from the beginning.
        bytes.extend(iter::repeat_n([0b1100_0000, 0x10], mib).flatten());
        bytes.extend([1, last]);
        bytes
    }

    /// So many generations of objects of 16 MiB: each has so many differences to it, of which the last goes on.
    fn generations(count: usize, children: usize) -> Vec<u8> {
        let mut pack = Pack::new();
        let mut base = pack.add(3, b"", &vec![0; 16 * MIB]);
        let mut size = 16 * MIB;
        for generation in 0..count {
            let mut next = base;
            for child in 0..children {
                next = pack.differ(base, &difference(size, 16, (generation * children + child) as u8));
            }
            (base, size) = (next, 16 * MIB + 1);
        }
        pack.end()
    }

    fn weighed(pack: &[u8], piece: usize) -> Result<(), String> {
        let mut scale = Scale::default();
        pack.chunks(piece).try_for_each(|bytes| scale.take(bytes, &|_| false)).map_err(|error| error.to_string())
    }

    #[test]
    fn a_small_pack_that_takes_much_memory_is_refused_before_it_is_resolved() {
        let pack = generations(40, 2);
        assert!(pack.len() < 200_000, "{}", pack.len());
        let folder = tempfile::tempdir().expect("a folder");
        let repository = Repository::new(folder.path().to_owned());
        repository.prepare("url", "main").expect("made");
        let refused = repository.store(&mut pack.as_slice(), &Halt::default()).expect_err("refused");
        let expected = "the repository is too large: more than 536870912 bytes of objects in memory at the same time, as they \
                        are told by their differences";
        assert_eq!(refused.to_string(), expected);
        assert_eq!(std::fs::read_dir(folder.path().join("objects/pack")).expect("read").count(), 0);
    }

    #[test]
    fn long_chains_and_many_differences_to_one_object_take_little() {
        for pack in [generations(60, 1), generations(1, 60)] {
            for piece in [1, 7, 4096, pack.len()] {
                assert_eq!(weighed(&pack, piece), Ok(()), "{piece}");
            }
        }
    }

    #[test]
    fn what_is_stored_is_what_was_in_the_pack() {
        let folder = tempfile::tempdir().expect("a folder");
        let repository = Repository::new(folder.path().to_owned());
        repository.prepare("url", "main").expect("made");
        repository.store(&mut generations(2, 2).as_slice(), &Halt::default()).expect("stored");
        let objects = repository.objects().expect("opened");
        let mut content = vec![0; 16 * MIB];
        content.push(3);
        let id = gix_object::compute_hash(Kind::Sha1, gix_object::Kind::Blob, &content).expect("a hash");
        let mut found = Vec::new();
        gix_object::Find::try_find(&objects, &id, &mut found).expect("read").expect("there");
        assert!(found == content);
    }

    #[test]
    fn a_small_object_that_differs_from_a_large_one_is_not_read() {
        let folder = tempfile::tempdir().expect("a folder");
        let repository = Repository::new(folder.path().to_owned());
        repository.prepare("url", "main").expect("made");
        let mut pack = Pack::new();
        let base = pack.add(3, b"", &vec![0; OBJECT_BYTES_MAX + 1]);
        let mut small = varint(OBJECT_BYTES_MAX + 1);
        small.extend([1, 1, b'x']);
        pack.differ(base, &small);
        // As somebody else stored it, who has no bound.
        let packs = folder.path().join("objects/pack");
        let stored = gix_pack::Bundle::write_to_directory(
            &mut pack.end().as_slice(),
            Some(&packs),
            &mut gix_utils::progress::Discard,
            Halt::default().flag(),
            None::<gix_odb::Handle>,
            Kind::Sha1,
            gix_pack::bundle::write::Options::default(),
        );
        stored.expect("stored");
        let id = gix_object::compute_hash(Kind::Sha1, gix_object::Kind::Blob, b"x").expect("a hash");
        let objects = repository.objects().expect("opened");
        assert!(gix_object::Find::try_find(&objects, &id, &mut Vec::new()).is_err());
    }

    #[test]
    fn objects_that_are_named_count_all_together_unless_they_are_there() {
        let mut pack = Pack::new();
        for number in 0..40_u8 {
            for last in 0..2 {
                pack.add(7, &[number; 20], &difference(16 * MIB, 16, last));
            }
        }
        let pack = pack.end();
        assert!(weighed(&pack, 64).expect_err("refused").contains("in memory at the same time"));
        assert!(Scale::default().take(&pack, &|_| true).is_ok());
    }

    #[test]
    fn what_breaks_the_format_or_is_too_large_for_itself_is_refused() {
        let broken = format!("the stored repository cannot be read: {BROKEN}");
        let mut short = Pack::new();
        short.add_of_size(3, 5, b"", b"more than that");
        assert_eq!(weighed(&short.end(), 64), Err(broken.clone()));
        let mut nowhere = Pack::new();
        nowhere.add(6, &[1], &difference(1, 1, 0));
        assert_eq!(weighed(&nowhere.end(), 64), Err(broken.clone()));
        assert_eq!(weighed(b"PACKxxxx\0\0\0\x01\x05", 64), Err(broken.clone()));
        assert_eq!(weighed(b"no pack at all", 64), Err(broken.clone()));
        let mut large = Pack::new();
        large.add_of_size(3, OBJECT_BYTES_MAX + 1, b"", b"");
        let expected = format!("the repository is too large: more than {OBJECT_BYTES_MAX} bytes in one object");
        assert_eq!(weighed(&large.end(), 64), Err(expected.clone()));
        let mut from_small = Pack::new();
        let base = from_small.add(3, b"", b"x");
        from_small.differ(base, &difference(1, 200, 0));
        assert_eq!(weighed(&from_small.end(), 64), Err(expected));
        assert!(weighed(b"PACK\0\0\0\x02\xff\0\0\0", 64).expect_err("refused").contains("objects in a pack"));
        // Empty blocks without end.
        let mut endless = b"PACK\0\0\0\x02\0\0\0\x01\x30\x78\x01".to_vec();
        endless.extend(iter::repeat_n([0, 0, 0, 0xff, 0xff], 2000).flatten());
        assert_eq!(weighed(&endless, 64), Err(broken));
    }
}
