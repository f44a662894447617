//! Typed reading of one mapping of an inventory, with errors that name file, line and key.

use std::time::Duration;

use serde_json::{Map, Value};

use crate::error::{InventoryError, ValueProblem, shown_at};
use crate::key_path::{KeyPath, Lines};
use crate::location::{Location, Source};

/// Longest time that a setting can name: a day. Anything longer is a mistake, and no clock overflows on it.
const SECONDS_MAX: f64 = 86_400.0;

/// What all parts of one file share.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Origin<'file> {
    pub(crate) source: &'file Source,
    pub(crate) lines: &'file Lines,
}

impl Origin<'_> {
    pub(crate) fn location(&self, path: &KeyPath) -> Location {
        self.source.maybe_line(self.lines.line(path))
    }

    pub(crate) fn error(&self, path: &KeyPath, problem: ValueProblem) -> InventoryError {
        InventoryError::Value { location: self.location(path), key: path.clone(), problem: Box::new(problem) }
    }

    pub(crate) fn unexpected(&self, path: &KeyPath, expected: &'static str, found: &Value) -> InventoryError {
        self.error(path, ValueProblem::Unexpected { expected, found: shown_at(path, found) })
    }
}

/// A mapping and where it stands.
#[derive(Debug, Clone)]
pub(crate) struct Section<'file> {
    pub(crate) origin: Origin<'file>,
    pub(crate) path: KeyPath,
    pub(crate) entries: &'file Map<String, Value>,
}

impl<'file> Section<'file> {
    /// The mapping under `key`; nothing is `None`, and anything but a mapping an error.
    pub(crate) fn of(
        origin: Origin<'file>,
        root: &'file Map<String, Value>,
        key: &str,
    ) -> Result<Option<Self>, InventoryError> {
        let path = KeyPath::root().key(key);
        match root.get(key) {
            None => Ok(None),
            Some(Value::Object(entries)) => Ok(Some(Self { origin, path, entries })),
            Some(other) => Err(origin.unexpected(&path, "a mapping", other)),
        }
    }

    pub(crate) fn error(&self, key: &str, expected: &'static str, found: &Value) -> InventoryError {
        self.origin.unexpected(&self.path.key(key), expected, found)
    }

    /// True or false, not text that looks like it.
    pub(crate) fn flag(&self, key: &str) -> Result<Option<bool>, InventoryError> {
        match self.entries.get(key) {
            None => Ok(None),
            Some(Value::Bool(flag)) => Ok(Some(*flag)),
            Some(other) => Err(self.error(key, "true or false", other)),
        }
    }

    /// Text; nothing and empty text are `None`, because that is what an unset variable renders to.
    pub(crate) fn text(&self, key: &str, expected: &'static str) -> Result<Option<&'file str>, InventoryError> {
        match self.entries.get(key) {
            None | Some(Value::Null) => Ok(None),
            Some(Value::String(text)) if text.is_empty() => Ok(None),
            Some(Value::String(text)) => Ok(Some(text)),
            Some(other) => Err(self.error(key, expected, other)),
        }
    }

    /// A list of texts, none of them empty.
    pub(crate) fn texts(&self, key: &str, expected: &'static str) -> Result<Option<Vec<String>>, InventoryError> {
        let items = match self.entries.get(key) {
            None => return Ok(None),
            Some(Value::Array(items)) => items,
            Some(other) => return Err(self.error(key, expected, other)),
        };
        let texts = items.iter().enumerate().map(|(index, item)| match item {
            Value::String(text) if !text.is_empty() => Ok(text.clone()),
            other => Err(self.origin.unexpected(&self.path.key(key).item(index), "text that is not empty", other)),
        });
        texts.collect::<Result<_, _>>().map(Some)
    }

    /// A number of seconds from 0 to [`SECONDS_MAX`].
    pub(crate) fn seconds(&self, key: &str) -> Result<Option<Duration>, InventoryError> {
        match self.entries.get(key) {
            None => Ok(None),
            Some(value) => match value.as_f64() {
                Some(seconds) if (0.0..=SECONDS_MAX).contains(&seconds) => Ok(Some(Duration::from_secs_f64(seconds))),
                Some(_) | None => Err(self.error(key, "seconds as a number from 0 to 86400", value)),
            },
        }
    }
}
