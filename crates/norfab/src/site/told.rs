//! What was told already.

use std::collections::HashSet;
use std::sync::{Mutex, PoisonError};

/// Most texts that are remembered; files of workers' data that have more warnings are told of no further ones.
const TEXTS_MAX: usize = 10_000;

/// Texts that are told once while the process runs.
#[derive(Debug, Default)]
pub struct Told(Mutex<HashSet<String>>);

impl Told {
    /// Tells a text unless it was told before.
    pub fn once(&self, text: &str, tell: impl FnOnce(&str)) {
        // What is in the set is whole, whatever happened to another thread.
        let mut told = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if told.len() < TEXTS_MAX && told.insert(text.to_owned()) {
            drop(told);
            tell(text);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_is_told_once() {
        let told = Told::default();
        let mut count = 0;
        for text in ["a", "b", "a"] {
            told.once(text, |_| count += 1);
        }
        assert_eq!(count, 2);
    }
}
