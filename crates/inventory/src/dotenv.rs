//! The `.env` file beside an inventory, read as python-dotenv reads it.
//!
//! `NAME=value` with an optional `export`; values plain, in single quotes (escapes `\\` and `\'`) or in double quotes
//! (also `\n`, `\t` and so on), both over several lines; ` #` begins a comment; `${NAME}` and `${NAME:-default}` are
//! replaced in every kind of value. The process's own environment is never changed: the result is a new map.

use std::path::Path;

use crate::location::Source;
use crate::template::Environment;
use crate::warning::{Warning, WarningKind};

/// The variables of `env` and of the file's text together, and a warning for each line that is no assignment.
///
/// With `env_override` the file wins over variables that exist already, which is what NorFab does by default.
pub fn merged(text: &str, file: &Path, env: &Environment, env_override: bool) -> (Environment, Vec<Warning>) {
    let mut reader = Reader { rest: text.strip_prefix('\u{feff}').unwrap_or(text), line: 1 };
    let source = Source::of_file(file);
    let mut own = Environment::new();
    let mut warnings = Vec::new();
    while let Some((line, statement)) = reader.statement() {
        match statement {
            Statement::Assignment { name, value } => {
                let value = replaced(&value, |variable| {
                    let (first, second) = if env_override { (&own, env) } else { (env, &own) };
                    first.get(variable).or_else(|| second.get(variable)).cloned()
                });
                own.insert(name, value);
            }
            Statement::Nothing => {}
            Statement::Unreadable => warnings.push(Warning {
                location: source.line(line),
                key: String::new(),
                kind: WarningKind::DotenvLineSkipped,
            }),
        }
    }
    let mut merged = env.clone();
    for (name, value) in own {
        if env_override {
            merged.insert(name, value);
        } else {
            merged.entry(name).or_insert(value);
        }
    }
    (merged, warnings)
}

/// One statement of the file.
enum Statement {
    Assignment {
        name: String,
        value: String,
    },
    /// A comment, or a name without a value.
    Nothing,
    Unreadable,
}

struct Reader<'text> {
    rest: &'text str,
    line: usize,
}

impl Reader<'_> {
    /// The next statement and its line; `None` at the end.
    fn statement(&mut self) -> Option<(usize, Statement)> {
        let blank = self.rest.len() - self.rest.trim_start().len();
        self.skip(blank);
        if self.rest.is_empty() {
            return None;
        }
        let line = self.line;
        let statement = match parse_statement(self.rest) {
            Some((statement, length)) => {
                self.skip(length);
                statement
            }
            None => {
                self.skip(line_end(self.rest));
                Statement::Unreadable
            }
        };
        Some((line, statement))
    }

    fn skip(&mut self, length: usize) {
        let (skipped, rest) = self.rest.split_at(length);
        // A carriage return alone ends a line too.
        self.line += skipped.matches('\n').count();
        self.line += skipped.replace("\r\n", "").matches('\r').count();
        self.rest = rest;
    }
}

/// Length of the text up to the end of its first line.
fn line_end(text: &str) -> usize {
    text.find(['\n', '\r']).unwrap_or(text.len())
}

/// The text without blanks at its start, which do not include line breaks.
fn after_blanks(text: &str) -> &str {
    text.trim_start_matches(|character: char| character.is_whitespace() && character != '\n' && character != '\r')
}

/// One statement and its length, `None` if the line is not one.
fn parse_statement(text: &str) -> Option<(Statement, usize)> {
    let mut rest = text;
    if let Some(after) = rest.strip_prefix("export") {
        let after_blank = after_blanks(after);
        if after_blank.len() < after.len() {
            rest = after_blank;
        }
    }
    if rest.starts_with('#') {
        return Some((Statement::Nothing, text.len() - rest.len() + line_end(rest)));
    }
    let (name, after_name) = parse_name(rest)?;
    rest = after_blanks(after_name);
    let value = match rest.strip_prefix('=') {
        Some(after) => {
            let (value, after) = parse_value(after)?;
            rest = after;
            Some(value)
        }
        None => None,
    };
    let rest = after_comment(rest)?;
    let statement = match value {
        Some(value) => Statement::Assignment { name, value },
        None => Statement::Nothing,
    };
    Some((statement, text.len() - rest.len()))
}

/// A name in single quotes, or up to a blank, `=` or `#`.
fn parse_name(text: &str) -> Option<(String, &str)> {
    if let Some(quoted) = text.strip_prefix('\'') {
        let (name, rest) = quoted.split_once('\'')?;
        return (!name.is_empty()).then(|| (name.to_owned(), rest));
    }
    let end =
        text.find(|character: char| character.is_whitespace() || matches!(character, '=' | '#')).unwrap_or(text.len());
    (end > 0).then(|| (text[..end].to_owned(), &text[end..]))
}

fn parse_value(text: &str) -> Option<(String, &str)> {
    let unblanked = after_blanks(text);
    match unblanked.chars().next() {
        Some(quote @ ('\'' | '"')) => quoted(&unblanked[1..], quote),
        Some(_) | None => {
            let end = line_end(text);
            Some((uncommented(&text[..end]).trim().to_owned(), &text[end..]))
        }
    }
}

/// The text before a blank with `#`.
fn uncommented(text: &str) -> &str {
    let mut after_blank = false;
    for (at, character) in text.char_indices() {
        if character == '#' && after_blank {
            return &text[..at];
        }
        after_blank = character.is_whitespace();
    }
    text
}

/// A value up to its closing quote, with its escapes replaced.
fn quoted(text: &str, quote: char) -> Option<(String, &str)> {
    let mut value = String::new();
    let mut characters = text.char_indices();
    while let Some((at, character)) = characters.next() {
        if character == quote {
            return Some((value, &text[at + 1..]));
        }
        if character != '\\' {
            value.push(character);
            continue;
        }
        let (_, escaped) = characters.next()?;
        match (quote, escaped) {
            (_, '\\' | '\'') => value.push(escaped),
            ('"', '"') => value.push('"'),
            ('"', 'a') => value.push('\u{7}'),
            ('"', 'b') => value.push('\u{8}'),
            ('"', 'f') => value.push('\u{c}'),
            ('"', 'n') => value.push('\n'),
            ('"', 'r') => value.push('\r'),
            ('"', 't') => value.push('\t'),
            ('"', 'v') => value.push('\u{b}'),
            (_, other) => value.extend(['\\', other]),
        }
    }
    None
}

/// What follows the value must be nothing or a comment; the rest begins at the line's end.
fn after_comment(text: &str) -> Option<&str> {
    let rest = after_blanks(text);
    if rest.is_empty() || rest.starts_with(['\n', '\r']) {
        return Some(rest);
    }
    rest.starts_with('#').then(|| &rest[line_end(rest)..])
}

/// The value with each `${NAME}` and `${NAME:-default}` replaced.
fn replaced(value: &str, variable: impl Fn(&str) -> Option<String>) -> String {
    let mut result = String::new();
    let mut rest = value;
    while let Some(start) = rest.find("${") {
        let (before, reference) = rest.split_at(start);
        let Some((inner, after)) = reference[2..].split_once('}') else {
            break;
        };
        let (name, default) = match inner.split_once(':') {
            None => (inner, Some("")),
            Some((name, default)) => (name, default.strip_prefix('-')),
        };
        result.push_str(before);
        match default {
            Some(default) => result.push_str(&variable(name).unwrap_or_else(|| default.to_owned())),
            // A colon without its dash is no reference.
            None => {
                result.push_str("${");
                rest = &reference[2..];
                continue;
            }
        }
        rest = after;
    }
    result.push_str(rest);
    result
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn any_text_gives_variables_or_warnings(text in "[A-C='\"#$:{}\\\\ \\-é\r\nexport]{0,60}", env_override in any::<bool>()) {
            let (env, warnings) = merged(&text, Path::new(".env"), &Environment::new(), env_override);
            let lines = text.split(['\n', '\r']).count();
            prop_assert!(env.len() + warnings.len() <= lines);
            for warning in warnings {
                prop_assert!(warning.location.line.is_some_and(|line| line <= lines));
            }
        }
    }
}
