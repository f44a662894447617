//! Rendering: inventory and worker files are Jinja2 templates with one variable, `env`.
//!
//! As in NorFab, which renders with Jinja2's defaults: what is undefined prints nothing (`"{{ env.X }}"` is empty
//! text and `{{ env.X }}` is null once it is YAML), `env.get('X')` prints `None`, and one line break at the end of
//! the file is dropped. Other files cannot be included.

use std::collections::BTreeMap;
use std::path::Path;

use minijinja::value::Value;
use minijinja_contrib::pycompat::unknown_method_callback;

use crate::error::InventoryError;
use crate::location::{Location, Source};

/// Environment variables by name.
pub type Environment = BTreeMap<String, String>;

/// Longest part of an engine's message that an error shows, in characters.
const REASON_CHARACTERS_MAX: usize = 300;

/// A rendered text and the source to name in errors about it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rendered {
    /// The text.
    pub text: String,
    /// Knows whether lines still count as in the file.
    pub source: Source,
}

/// Renders the text of `file`.
///
/// # Errors
///
/// [`InventoryError::Template`] with the line in the file.
pub fn render(text: &str, file: &Path, env: &Environment) -> Result<Rendered, InventoryError> {
    let mut engine = minijinja::Environment::new();
    // Else only builds for debugging say what is undefined.
    engine.set_debug(true);
    // Python's methods, such as `env.get('X', 'default')` and `env.X.upper()`.
    engine.set_unknown_method_callback(unknown_method_callback);
    // The name would otherwise decide about HTML escaping.
    engine.set_auto_escape_callback(|_| minijinja::AutoEscape::None);
    let variables = Value::from_pairs(env.iter().map(|(name, value)| (name.as_str(), value.as_str())));
    let context = Value::from_pairs([("env", variables)]);
    let rendered = engine.render_str(text, context).map_err(|error| {
        let reason = match error.detail() {
            Some(detail) => format!("{}: {detail}", error.kind()),
            None => error.kind().to_string(),
        };
        InventoryError::Template {
            location: Location { file: file.to_path_buf(), line: error.line(), rendered: false },
            reason: reason.chars().take(REASON_CHARACTERS_MAX).collect(),
        }
    })?;
    let lines = |text: &str| text.trim_end_matches(['\n', '\r']).matches('\n').count();
    let source = Source { file: file.to_path_buf(), rendered: lines(text) != lines(&rendered) };
    Ok(Rendered { text: rendered, source })
}
