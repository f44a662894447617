//! How much a machine holds, so that what watches it can tell whether it stays bounded.

/// How much of one kind there is, and how much there may be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Size {
    /// What is counted.
    pub what: &'static str,
    /// How much there is.
    pub count: usize,
    /// How much there may be.
    pub max: usize,
}

impl Size {
    pub(crate) fn new(what: &'static str, count: usize, max: usize) -> Self {
        Self { what, count, max }
    }

    /// Whether there is too much.
    pub fn is_exceeded(&self) -> bool {
        self.count > self.max
    }
}
