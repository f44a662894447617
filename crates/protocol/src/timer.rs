//! Deadlines of many things, the nearest first.

use std::collections::{BTreeMap, HashMap};
use std::hash::Hash;
use std::time::Instant;

/// At most one deadline for each key.
#[derive(Debug)]
pub struct Timers<Key> {
    order: BTreeMap<(Instant, u64), Key>,
    keys: HashMap<Key, (Instant, u64)>,
    next: u64,
}

impl<Key> Default for Timers<Key> {
    fn default() -> Self {
        Self { order: BTreeMap::new(), keys: HashMap::new(), next: 0 }
    }
}

impl<Key: Clone + Eq + Hash> Timers<Key> {
    /// Sets or moves the deadline of a key.
    pub fn set(&mut self, key: Key, at: Instant) {
        if let Some(old) = self.keys.get(&key) {
            if old.0 == at {
                return;
            }
            self.order.remove(old);
        }
        let entry = (at, self.next);
        self.next += 1;
        self.order.insert(entry, key.clone());
        self.keys.insert(key, entry);
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.keys.len().max(self.order.len())
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Forgets a key.
    pub fn remove(&mut self, key: &Key) {
        if let Some(entry) = self.keys.remove(key) {
            self.order.remove(&entry);
        }
    }

    /// The nearest deadline.
    pub fn next(&self) -> Option<Instant> {
        self.order.first_key_value().map(|((at, _), _)| *at)
    }

    /// Takes a key whose deadline has come.
    pub fn take_due(&mut self, now: Instant) -> Option<Key> {
        let entry = self.order.first_entry()?;
        if entry.key().0 > now {
            return None;
        }
        let key = entry.remove();
        self.keys.remove(&key);
        Some(key)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn keys_come_due_in_the_order_of_their_last_deadline() {
        let now = Instant::now();
        let mut timers = Timers::default();
        timers.set("a", now + Duration::from_secs(1));
        timers.set("b", now + Duration::from_secs(2));
        timers.set("a", now + Duration::from_secs(3));
        timers.set("c", now);
        timers.remove(&"c");
        assert_eq!(timers.next(), Some(now + Duration::from_secs(2)));
        assert_eq!(timers.take_due(now + Duration::from_secs(1)), None);
        assert_eq!(timers.take_due(now + Duration::from_secs(5)), Some("b"));
        assert_eq!(timers.take_due(now + Duration::from_secs(5)), Some("a"));
        assert_eq!(timers.take_due(now + Duration::from_secs(5)), None);
    }
}
