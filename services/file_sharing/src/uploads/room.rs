//! How much is in the upload folder: counted once in a while, and reckoned on from there.

use std::collections::HashSet;
use std::time::{Duration, Instant};

use super::census::{Census, Counted, Key};

/// How long a count is believed where there is room.
const CENSUS_AGE_MAX: Duration = Duration::from_secs(10);

/// How long a count is believed where there is no room: somebody who asks again and again must not have the disk do nothing else.
/// One that took longer is believed for as long as it took.
pub const REFUSAL_AGE_MAX: Duration = Duration::from_secs(1);

/// What is in the folder beside the parts that are under way.
#[derive(Debug, Default)]
pub(super) struct Room {
    known: Option<Known>,
    counting: Option<Counting>,
}

/// A count, and what was reckoned since.
#[derive(Debug, Clone, Copy)]
struct Known {
    census: Census,
    /// When it was complete.
    at: Instant,
    lasted: Duration,
}

/// What changes while somebody counts, who may have come by there before or after it.
#[derive(Debug)]
struct Counting {
    since: Instant,
    /// Parts that are or were under way meanwhile.
    touched: HashSet<Key>,
    bytes: i64,
    entries: i64,
}

impl Room {
    /// What is there, as far as that is known. Whether it is so fresh that somebody may be refused for it.
    pub(super) fn known(&self, now: Instant) -> Option<(Census, bool)> {
        let known = self.known?;
        let age = now.saturating_duration_since(known.at);
        let is_fresh = age < known.lasted.clamp(REFUSAL_AGE_MAX, CENSUS_AGE_MAX);
        (age < CENSUS_AGE_MAX).then_some((known.census, is_fresh))
    }

    /// Somebody begins to count. Not where somebody is at it.
    pub(super) fn begins_to_count(&mut self, parts: impl Iterator<Item = Key>, now: Instant) -> bool {
        if self.counting.is_some() {
            return false;
        }
        self.counting = Some(Counting { since: now, touched: parts.collect(), bytes: 0, entries: 0 });
        true
    }

    /// Whether a file that is come upon while it is counted is a part under way.
    pub(super) fn is_under_way(&self, key: Key) -> bool {
        self.counting.as_ref().is_some_and(|counting| counting.touched.contains(&key))
    }

    /// It was counted, or could not be.
    pub(super) fn ends_to_count(&mut self, counted: Option<Counted>, now: Instant) {
        let (Some(counting), Some(Counted { mut census, parts })) = (self.counting.take(), counted) else { return };
        for bytes in parts.iter().filter(|(key, _)| counting.touched.contains(key)).map(|(_, bytes)| bytes) {
            census.bytes = census.bytes.saturating_sub(*bytes);
            census.entries = census.entries.saturating_sub(1);
        }
        change(&mut census, counting.bytes, counting.entries);
        self.known = Some(Known { census, at: now, lasted: now.saturating_duration_since(counting.since) });
    }

    /// A part is under way from now on, which was counted as one of those that nobody goes on with.
    pub(super) fn is_taken_up(&mut self, part: Key, bytes: u64) {
        if let Some(known) = &mut self.known {
            change(&mut known.census, -signed(bytes), -i64::from(bytes > 0));
        }
        if let Some(counting) = &mut self.counting {
            counting.touched.insert(part);
        }
    }

    /// A part has become a file, and may have replaced another one.
    pub(super) fn is_kept(&mut self, size: u64, replaced: Option<u64>) {
        if let Some(known) = &mut self.known {
            let bytes = signed(size).saturating_sub(signed(replaced.unwrap_or_default()));
            change(&mut known.census, bytes, i64::from(replaced.is_none()));
        }
        if let Some(counting) = &mut self.counting {
            // Nobody knows whether the old one was come upon: rather too much than too little.
            counting.bytes = counting.bytes.saturating_add(signed(size));
            counting.entries += 1;
        }
    }

    /// So much more or less is there.
    pub(super) fn changes(&mut self, bytes: i64, entries: i64) {
        if let Some(known) = &mut self.known {
            change(&mut known.census, bytes, entries);
        }
        if let Some(counting) = &mut self.counting {
            counting.bytes = counting.bytes.saturating_add(bytes);
            counting.entries = counting.entries.saturating_add(entries);
        }
    }
}

fn change(census: &mut Census, bytes: i64, entries: i64) {
    census.bytes = census.bytes.saturating_add_signed(bytes);
    census.entries = census.entries.saturating_add_signed(entries);
}

/// No file has more.
pub(super) fn signed(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;

    #[test]
    fn what_happens_while_it_is_counted_is_neither_lost_nor_counted_twice() {
        let now = Instant::now();
        let mut room = Room::default();
        assert!(room.begins_to_count([(1, 1)].into_iter(), now) && !room.begins_to_count([].into_iter(), now));
        assert!(room.is_under_way((1, 1)) && !room.is_under_way((1, 2)));
        // A part that was come upon already is gone on with, and one that was under way becomes a file of 5 bytes.
        room.is_taken_up((1, 2), 30);
        room.is_kept(5, None);
        let parts = HashMap::from([((1, 2), 30), ((1, 3), 40)]);
        let counted = Counted { census: Census { bytes: 170, entries: 4 }, parts };
        room.ends_to_count(Some(counted), now);
        assert_eq!(room.known(now), Some((Census { bytes: 145, entries: 4 }, true)));
        room.is_taken_up((1, 3), 40);
        room.is_kept(20, Some(15));
        room.changes(-10, -1);
        assert_eq!(room.known(now), Some((Census { bytes: 100, entries: 2 }, true)));
    }

    #[test]
    fn a_count_is_believed_for_longer_where_there_is_room_or_it_took_long() {
        let now = Instant::now();
        for (lasted, fresh) in [(0, 0.9), (4, 3.9), (100, 9.9)] {
            let mut room = Room::default();
            assert!(room.begins_to_count([].into_iter(), now));
            let end = now + Duration::from_secs(lasted);
            room.ends_to_count(Some(Counted::default()), end);
            let at = |seconds| room.known(end + Duration::from_secs_f64(seconds)).map(|(_, is_fresh)| is_fresh);
            assert_eq!(at(fresh), Some(true), "{lasted}");
            assert_eq!(at(fresh + 0.2), (lasted < 10).then_some(false), "{lasted}");
            assert_eq!((at(9.9).is_some(), at(10.1)), (true, None));
        }
    }
}
