//! YAML 1.1 as PyYAML's `safe_load` answers it, as JSON values.
//!
//! Existing inventories were written against that loader, so `yes` is true and `0755` is 493. Where YAML 1.2 would
//! answer differently the document carries a [`Warning`] with file and line. What Python has and JSON has not:
//!
//! * dates and times are their ISO text, as Python's JSON writers spell them;
//! * keys are text: integers and floats as digits, booleans as `true` and `false`, null as `null`;
//! * infinities and not-a-number are null, integers beyond 64 bits are text, both with a warning;
//! * `!!binary`, `!!set`, `!!omap` and `!!pairs` are refused, as are tags of an application's own.
//!
//! Reading order: `scalar` (what one word means), `timestamp`, then `compose` (from events to a value).

mod compose;
mod scalar;
mod timestamp;

use std::sync::Arc;

use serde_json::Value;

use crate::error::InventoryError;
use crate::key_path::Lines;
use crate::location::Source;
use crate::warning::Warning;

/// Longest text in bytes. A worker file with 10,000 hosts of 400 bytes is 4 MB; four times that is a mistake.
pub const TEXT_BYTES_MAX: usize = 16 * 1024 * 1024;

/// Deepest nesting. JSON readers on the way of an inventory refuse 128 levels, and it travels in an envelope.
pub const DEPTH_MAX: usize = 100;

/// Most scalars, mappings and sequences, with all aliases expanded: some thirty times the largest real inventory,
/// and what a bomb of nested aliases may cost.
pub const NODES_MAX: usize = 1_000_000;

/// Most bytes of text with all aliases expanded: a long text can be repeated by few aliases.
pub const EXPANDED_BYTES_MAX: usize = 4 * TEXT_BYTES_MAX;

/// Most warnings that one document collects; a reader looks at the first few, and a file of `yes` has a million.
pub const WARNINGS_MAX: usize = 100;

/// A loaded text.
#[derive(Debug, Clone)]
pub struct Document {
    /// What it says; null for an empty text.
    pub value: Value,
    /// On which lines.
    pub lines: Arc<Lines>,
    /// What its author should know, in the order of the text.
    pub warnings: Vec<Warning>,
}

/// Loads a text that holds one document.
///
/// # Errors
///
/// [`InventoryError::Yaml`] with file and line, for everything that `safe_load` refuses as well and for texts beyond
/// the bounds of this module.
pub fn parse(text: &str, source: &Source) -> Result<Document, InventoryError> {
    compose::compose(text, source)
}
