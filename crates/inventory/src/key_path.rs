//! Paths of keys into a loaded file, and the lines they stand on.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

/// One step of a path.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Step {
    Key(String),
    Item(usize),
}

/// A path such as `topology.workers[0].depends_on`; displays as that.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct KeyPath {
    steps: Vec<Step>,
}

impl KeyPath {
    /// The path of the whole file.
    pub fn root() -> Self {
        Self::default()
    }

    /// The path of `key` in the mapping at this path.
    #[must_use]
    pub fn key(&self, key: &str) -> Self {
        let mut path = self.clone();
        path.push_key(key);
        path
    }

    /// The path of the item at `index`, counted from 0, in the sequence at this path.
    #[must_use]
    pub fn item(&self, index: usize) -> Self {
        let mut path = self.clone();
        path.push_item(index);
        path
    }

    /// Whether what stands at this path is a secret: because of its key, or of one around it. The broker's public key is none
    /// under its older name either.
    pub fn is_secret(&self) -> bool {
        let public = self.to_string() == "broker.shared_key";
        !public && self.steps.iter().any(|step| matches!(step, Step::Key(key) if norfab_secrets::is_secret(key)))
    }

    pub(crate) fn push_key(&mut self, key: &str) {
        self.steps.push(Step::Key(key.to_owned()));
    }

    pub(crate) fn push_item(&mut self, index: usize) {
        self.steps.push(Step::Item(index));
    }

    pub(crate) fn pop(&mut self) {
        self.steps.pop();
    }
}

impl fmt::Display for KeyPath {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (position, step) in self.steps.iter().enumerate() {
            match step {
                Step::Item(index) => write!(formatter, "[{index}]")?,
                Step::Key(key) => {
                    if position > 0 {
                        formatter.write_str(".")?;
                    }
                    let readable = !key.is_empty()
                        && !key.contains(|character: char| {
                            character.is_whitespace() || character.is_control() || ".[]\"".contains(character)
                        });
                    if readable {
                        formatter.write_str(key)?;
                    } else {
                        write!(formatter, "{key:?}")?;
                    }
                }
            }
        }
        Ok(())
    }
}

/// The lines of a loaded value, in its shape.
///
/// A key stands on the line of its key, an item of a sequence where it begins. Parts that come from an alias are
/// shared, so the table does not grow when the value does.
#[derive(Debug, Clone, Default)]
pub struct Lines {
    pub(crate) line: usize,
    pub(crate) children: Children,
}

/// The parts of a [`Lines`].
#[derive(Debug, Clone, Default)]
pub(crate) enum Children {
    /// A scalar.
    #[default]
    None,
    /// The items in order.
    Sequence(Vec<Arc<Lines>>),
    /// Line of the key, and the value.
    Mapping(HashMap<String, (usize, Arc<Lines>)>),
}

impl Lines {
    /// The line of what stands at `path`, counted from 1; of the nearest mapping or sequence around it when there is
    /// nothing at `path`; `None` for a value that does not come from a file.
    pub fn line(&self, path: &KeyPath) -> Option<usize> {
        let mut at = self;
        let mut line = self.line;
        for step in &path.steps {
            match (step, &at.children) {
                (Step::Item(index), Children::Sequence(items)) => {
                    let Some(item) = items.get(*index) else { break };
                    at = item;
                    line = item.line;
                }
                (Step::Key(key), Children::Mapping(entries)) => {
                    let Some((key_line, value)) = entries.get(key) else {
                        break;
                    };
                    at = value;
                    line = *key_line;
                }
                (Step::Item(_) | Step::Key(_), _) => break,
            }
        }
        (line > 0).then_some(line)
    }
}
