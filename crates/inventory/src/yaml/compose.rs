//! From the events of the parser to a value, its lines and its warnings.

use std::collections::HashMap;
use std::sync::Arc;

use norfab_secrets::MASK;
use saphyr_parser::{Event, Parser, ScalarStyle, ScanError, Span, StrInput, Tag};
use serde_json::{Map, Value};

use super::scalar::{self, Meaning};
use super::{DEPTH_MAX, Document, EXPANDED_BYTES_MAX, NODES_MAX, TEXT_BYTES_MAX, WARNINGS_MAX};
use crate::error::{InventoryError, YamlProblem, shown_at};
use crate::key_path::{Children, KeyPath, Lines};
use crate::location::Source;
use crate::warning::{Warning, WarningKind};

/// Prefix of the tags that YAML itself defines, which `!!` stands for.
const YAML_TAG: &str = "tag:yaml.org,2002:";

/// Loads `text`.
pub(super) fn compose(text: &str, source: &Source) -> Result<Document, InventoryError> {
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    if text.len() > TEXT_BYTES_MAX {
        return Err(InventoryError::Yaml {
            location: source.maybe_line(None),
            problem: YamlProblem::TextTooLong { bytes: text.len(), bytes_max: TEXT_BYTES_MAX },
        });
    }
    refuse_control_characters(text, source)?;
    let text = with_final_line_break(text);
    let mut composer = Composer {
        text: &text.text,
        parser: Parser::new_from_str(&text.text),
        source,
        open_end_index: text.open_end.then(|| text.text.chars().count()),
        anchors: HashMap::new(),
        size: Size::default(),
        path: KeyPath::root(),
        warnings: Vec::new(),
    };
    let (value, lines) = composer.document()?;
    Ok(Document { value, lines, warnings: composer.warnings })
}

/// PyYAML takes only printable characters, tabs and line breaks.
fn refuse_control_characters(text: &str, source: &Source) -> Result<(), InventoryError> {
    let printable = |character: char| matches!(character, '\t' | '\n' | '\r' | ' '..='~' | '\u{85}' | '\u{a0}'..='\u{fffd}' | '\u{10000}'..);
    for (index, line) in text.split('\n').enumerate() {
        if let Some(character) = line.chars().find(|character| !printable(*character)) {
            return Err(InventoryError::Yaml {
                location: source.line(index + 1),
                problem: YamlProblem::ControlCharacter { character },
            });
        }
    }
    Ok(())
}

/// A text that ends in a line break, and whether that had to be added.
struct Ended {
    text: String,
    open_end: bool,
}

/// Rendering drops the last line break, and a block scalar at the end must then not have one either. The parser
/// answers for a complete last line, so complete it and remember that the break is not the author's.
fn with_final_line_break(text: &str) -> Ended {
    let last_line = text.rfind(['\n', '\r']).map_or(0, |at| at + 1);
    let blank = text[last_line..].chars().all(|character| character == ' ');
    let mut text = if blank { text[..last_line].to_owned() } else { text.to_owned() };
    if !blank {
        text.push('\n');
    }
    Ended { text, open_end: !blank }
}

/// How much a value takes with its aliases expanded.
#[derive(Debug, Clone, Copy, Default)]
struct Size {
    nodes: usize,
    bytes: usize,
}

/// A value with all that its parent and its aliases need to know.
#[derive(Clone)]
struct Composed {
    value: Value,
    lines: Arc<Lines>,
    size: Size,
}

/// A mapping whose entries are merged into another one.
struct Merged {
    value: Value,
    lines: Arc<Lines>,
}

/// What an anchor names.
enum Anchor {
    /// The value around it is not complete: an alias to it would be endless.
    Open,
    Closed(Composed),
}

/// How many lines behind a tab an error may be that comes of it.
const TAB_LINES: usize = 2;

/// What cannot be part of an anchor's name.
fn is_end_of_name(character: char) -> bool {
    character.is_whitespace() || ",[]{}".contains(character)
}

/// A key as it was read.
enum Key {
    Merge,
    Name(String),
}

/// The entries of a mapping in their order.
type Entries = Vec<(String, usize, Composed)>;

struct Composer<'text, 'source> {
    text: &'text str,
    parser: Parser<'text, StrInput<'text>>,
    source: &'source Source,
    /// Index in characters of the end of the text if its last line break was added by us.
    open_end_index: Option<usize>,
    anchors: HashMap<usize, Anchor>,
    /// Of everything composed so far.
    size: Size,
    path: KeyPath,
    warnings: Vec<Warning>,
}

impl<'text> Composer<'text, '_> {
    fn document(&mut self) -> Result<(Value, Arc<Lines>), InventoryError> {
        let mut root = None;
        loop {
            let (event, span) = self.next()?;
            match event {
                Event::StreamStart | Event::DocumentEnd | Event::Nothing => {}
                Event::StreamEnd => break,
                Event::DocumentStart(_) => {
                    if root.is_some() {
                        return Err(self.error(line_of(&span), YamlProblem::SecondDocument));
                    }
                    let (event, span) = self.next()?;
                    root = Some(self.node(event, &span, 0)?);
                }
                Event::Alias(_)
                | Event::Scalar(..)
                | Event::SequenceStart(..)
                | Event::SequenceEnd
                | Event::MappingStart(..)
                | Event::MappingEnd => return Err(self.error(line_of(&span), YamlProblem::SecondDocument)),
            }
        }
        Ok(match root {
            Some(root) => (root.value, root.lines),
            None => (Value::Null, Arc::new(Lines::default())),
        })
    }

    fn next(&mut self) -> Result<(Event<'text>, Span), InventoryError> {
        match self.parser.next_event() {
            Some(Ok(event)) => Ok(event),
            Some(Err(error)) => Err(self.syntax(&error)),
            None => {
                Err(self
                    .error(1, YamlProblem::Syntax { reason: "the text ends in the middle of a document".to_owned() }))
            }
        }
    }

    fn syntax(&self, error: &ScanError) -> InventoryError {
        let line = error.marker().line();
        // The parser may notice a tab lines before or behind the one that has it.
        let indented = |text: &&str| text.trim_start_matches(' ').starts_with('\t') && !text.trim().is_empty();
        let tab = self.text.lines().enumerate().take(line + 1).filter(|(_, text)| indented(text)).last();
        if let Some((index, _)) = tab
            && (index + TAB_LINES > line || error.info().contains("tab"))
        {
            return self.error(index + 1, YamlProblem::TabIndents);
        }
        if error.info().contains("unknown anchor") {
            let from = self.text.lines().nth(line.saturating_sub(1)).map(|text| (text, error.marker().col()));
            let alias = from.map(|(text, column)| text.chars().skip(column).skip_while(|next| *next == '*'));
            let name: String = alias.into_iter().flatten().take_while(|next| !is_end_of_name(*next)).collect();
            return self.error(line, YamlProblem::UnknownAnchor { name });
        }
        self.error(line, YamlProblem::Syntax { reason: error.info().to_owned() })
    }

    fn error(&self, line: usize, problem: YamlProblem) -> InventoryError {
        InventoryError::Yaml { location: self.source.line(line), problem }
    }

    fn warn(&mut self, line: usize, kind: WarningKind) {
        if self.warnings.len() > WARNINGS_MAX {
            return;
        }
        let kind = if self.warnings.len() == WARNINGS_MAX { WarningKind::More } else { kind };
        self.warnings.push(Warning { location: self.source.line(line), key: self.path.to_string(), kind });
    }

    /// Counts what was read or repeated, and refuses what is too much.
    fn count(&mut self, line: usize, size: Size) -> Result<(), InventoryError> {
        self.size.nodes = self.size.nodes.saturating_add(size.nodes);
        self.size.bytes = self.size.bytes.saturating_add(size.bytes);
        if self.size.nodes > NODES_MAX || self.size.bytes > EXPANDED_BYTES_MAX {
            return Err(self.error(line, YamlProblem::TooLarge { nodes_max: NODES_MAX, bytes_max: EXPANDED_BYTES_MAX }));
        }
        Ok(())
    }

    /// The node that begins with `event`, `depth` levels below the root.
    fn node(&mut self, event: Event<'text>, span: &Span, depth: usize) -> Result<Composed, InventoryError> {
        let line = line_of(span);
        if depth > DEPTH_MAX {
            return Err(self.error(line, YamlProblem::TooDeep { depth_max: DEPTH_MAX }));
        }
        match event {
            Event::Alias(anchor) => self.alias(anchor, line),
            Event::Scalar(text, style, anchor, tag) => {
                let text = self.block_text(&text, style, span);
                let tag = tag_text(tag.as_deref());
                let meaning = self.scalar_meaning(&text, style, tag.as_deref(), line)?;
                let value = self.value_of(&text, meaning, line)?;
                self.scalar(value, anchor, line)
            }
            Event::SequenceStart(anchor, tag) => {
                self.check_collection_tag(tag_text(tag.as_deref()), "seq", line)?;
                self.open(anchor);
                let composed = self.sequence(line, depth)?;
                self.close(anchor, composed, line)
            }
            Event::MappingStart(anchor, tag) => {
                self.check_collection_tag(tag_text(tag.as_deref()), "map", line)?;
                self.open(anchor);
                let composed = self.mapping(line, depth)?;
                self.close(anchor, composed, line)
            }
            Event::Nothing
            | Event::StreamStart
            | Event::StreamEnd
            | Event::DocumentStart(_)
            | Event::DocumentEnd
            | Event::SequenceEnd
            | Event::MappingEnd => Err(self.error(line, YamlProblem::Syntax { reason: "expected a value".to_owned() })),
        }
    }

    fn scalar(&mut self, value: Value, anchor: usize, line: usize) -> Result<Composed, InventoryError> {
        let size = Size { nodes: 1, bytes: value.as_str().map_or(0, str::len) };
        self.count(line, size)?;
        let lines = Arc::new(Lines { line, children: Children::None });
        self.close(anchor, Composed { value, lines, size }, line)
    }

    fn alias(&mut self, anchor: usize, line: usize) -> Result<Composed, InventoryError> {
        let size = match self.anchors.get(&anchor) {
            Some(Anchor::Closed(composed)) => composed.size,
            Some(Anchor::Open) => return Err(self.error(line, YamlProblem::AliasInsideItself)),
            None => return Err(self.error(line, YamlProblem::UnknownAlias)),
        };
        // Counted before the copy is made: a bomb is refused before it explodes.
        self.count(line, size)?;
        match self.anchors.get(&anchor) {
            Some(Anchor::Closed(composed)) => Ok(composed.clone()),
            Some(Anchor::Open) | None => Err(self.error(line, YamlProblem::UnknownAlias)),
        }
    }

    fn open(&mut self, anchor: usize) {
        // The parser numbers anchors from 1; 0 is no anchor.
        if anchor > 0 {
            self.anchors.insert(anchor, Anchor::Open);
        }
    }

    /// Keeps a copy of what an alias may name later. The copy counts, or nested anchors would keep as many of them as
    /// there are levels.
    fn close(&mut self, anchor: usize, composed: Composed, line: usize) -> Result<Composed, InventoryError> {
        if anchor > 0 {
            self.count(line, composed.size)?;
            self.anchors.insert(anchor, Anchor::Closed(composed.clone()));
        }
        Ok(composed)
    }

    fn sequence(&mut self, line: usize, depth: usize) -> Result<Composed, InventoryError> {
        let mut size = Size { nodes: 1, bytes: 0 };
        self.count(line, size)?;
        let mut items = Vec::new();
        let mut lines = Vec::new();
        loop {
            let (event, span) = self.next()?;
            if matches!(event, Event::SequenceEnd) {
                break;
            }
            self.path.push_item(items.len());
            let item = self.node(event, &span, depth + 1)?;
            self.path.pop();
            size.add(item.size);
            items.push(item.value);
            lines.push(item.lines);
        }
        let lines = Arc::new(Lines { line, children: Children::Sequence(lines) });
        Ok(Composed { value: Value::Array(items), lines, size })
    }

    fn mapping(&mut self, line: usize, depth: usize) -> Result<Composed, InventoryError> {
        let mut size = Size { nodes: 1, bytes: 0 };
        self.count(line, size)?;
        let mut merged: Vec<Merged> = Vec::new();
        let mut own: Entries = Vec::new();
        let mut first_lines: HashMap<String, usize> = HashMap::new();
        loop {
            let (event, span) = self.next()?;
            if matches!(event, Event::MappingEnd) {
                break;
            }
            let key_line = line_of(&span);
            let key = self.key(event, &span)?;
            match key {
                Key::Merge => {
                    self.path.push_key("<<");
                    let (event, span) = self.next()?;
                    let value = self.node(event, &span, depth + 1)?;
                    self.path.pop();
                    size.add(value.size);
                    self.merge_into(&mut merged, value, key_line)?;
                }
                Key::Name(name) => {
                    self.path.push_key(&name);
                    if let Some(first_line) = first_lines.insert(name.clone(), key_line) {
                        self.warn(key_line, WarningKind::DuplicateKey { first_line });
                    }
                    let (event, span) = self.next()?;
                    let value = self.node(event, &span, depth + 1)?;
                    self.path.pop();
                    own.push((name, key_line, value));
                }
            }
        }
        let mut map = Map::new();
        let mut lines = HashMap::new();
        // What is merged comes first, so that what the mapping says itself replaces it, as in Python.
        for from in merged {
            let Value::Object(entries) = from.value else { continue };
            if let Children::Mapping(children) = &from.lines.children {
                lines.extend(children.iter().map(|(key, child)| (key.clone(), child.clone())));
            }
            map.extend(entries);
        }
        for (name, key_line, value) in own {
            size.add(value.size);
            size.bytes += name.len();
            lines.insert(name.clone(), (key_line, value.lines));
            map.insert(name, value.value);
        }
        let lines = Arc::new(Lines { line, children: Children::Mapping(lines) });
        Ok(Composed { value: Value::Object(map), lines, size })
    }

    /// Adds what `<<` names: a mapping, or several of which the first one wins.
    fn merge_into(&self, merged: &mut Vec<Merged>, value: Composed, line: usize) -> Result<(), InventoryError> {
        let refuse =
            |found: &Value| Err(self.error(line, YamlProblem::MergeOfNoMapping { found: shown_at(&self.path, found) }));
        match value.value {
            Value::Object(_) => merged.push(Merged { value: value.value, lines: value.lines }),
            Value::Array(items) => {
                if let Some(other) = items.iter().find(|item| !item.is_object()) {
                    return refuse(other);
                }
                let lines = match &value.lines.children {
                    Children::Sequence(lines) => lines.as_slice(),
                    Children::None | Children::Mapping(_) => &[],
                };
                let mut from: Vec<_> = items
                    .into_iter()
                    .zip(lines.iter().cloned())
                    .map(|(value, lines)| Merged { value, lines })
                    .collect();
                from.reverse();
                merged.append(&mut from);
            }
            other => return refuse(&other),
        }
        Ok(())
    }

    /// A key: always a scalar, or an alias of one.
    fn key(&mut self, event: Event<'text>, span: &Span) -> Result<Key, InventoryError> {
        let line = line_of(span);
        match event {
            Event::Scalar(text, style, anchor, tag) => {
                let text = self.block_text(&text, style, span);
                let tag = tag_text(tag.as_deref());
                let meaning = self.scalar_meaning(&text, style, tag.as_deref(), line)?;
                let value = match meaning {
                    Meaning::Merge => return Ok(Key::Merge),
                    Meaning::DefaultValue | Meaning::NotFinite | Meaning::IntegerTooLarge => Value::String(text),
                    Meaning::Value(_) | Meaning::Broken(_) => self.value_of(&text, meaning, line)?,
                };
                let name = key_text(&value).unwrap_or_default();
                self.count(line, Size { nodes: 1, bytes: name.len() })?;
                self.scalar(value, anchor, line)?;
                Ok(Key::Name(name))
            }
            Event::Alias(anchor) => {
                let composed = self.alias(anchor, line)?;
                match key_text(&composed.value) {
                    Some(name) => Ok(Key::Name(name)),
                    None => Err(self.error(line, YamlProblem::KeyNoScalar)),
                }
            }
            Event::SequenceStart(..) | Event::MappingStart(..) => Err(self.error(line, YamlProblem::KeyNoScalar)),
            Event::Nothing
            | Event::StreamStart
            | Event::StreamEnd
            | Event::DocumentStart(_)
            | Event::DocumentEnd
            | Event::SequenceEnd
            | Event::MappingEnd => Err(self.error(line, YamlProblem::Syntax { reason: "expected a key".to_owned() })),
        }
    }

    /// The text of a scalar, without the line break that was added at the end of the file.
    fn block_text(&self, text: &str, style: ScalarStyle, span: &Span) -> String {
        let block = matches!(style, ScalarStyle::Literal | ScalarStyle::Folded);
        let at_open_end = self.open_end_index.is_some_and(|end| span.end.index() >= end);
        match text.strip_suffix('\n') {
            Some(shorter) if block && at_open_end => shorter.to_owned(),
            Some(_) | None => text.to_owned(),
        }
    }

    fn scalar_meaning(
        &mut self,
        text: &str,
        style: ScalarStyle,
        tag: Option<&str>,
        line: usize,
    ) -> Result<Meaning, InventoryError> {
        let Some(tag) = tag else {
            if style != ScalarStyle::Plain {
                return Ok(Meaning::Value(Value::String(text.to_owned())));
            }
            return Ok(self.plain_meaning(text, line));
        };
        if tag == "!" {
            return Ok(self.plain_meaning(text, line));
        }
        let of = |value: Option<Value>| value.map(Meaning::Value);
        let meaning = match tag.strip_prefix(YAML_TAG) {
            Some("str") => Some(Meaning::Value(Value::String(text.to_owned()))),
            Some("null") => Some(Meaning::Value(Value::Null)),
            Some("bool") => of(scalar::tagged_boolean(text)),
            Some("int") => scalar::tagged_integer(text),
            Some("float") => scalar::tagged_float(text),
            Some("timestamp") => of(scalar::tagged_timestamp(text)),
            Some("merge") => Some(Meaning::Merge),
            Some("value") => Some(Meaning::DefaultValue),
            Some("seq" | "map") => None,
            Some(_) | None => return Err(self.unknown_tag(tag, line)),
        };
        meaning.ok_or_else(|| {
            let found = format!("{:?}", self.shown(text));
            self.error(line, YamlProblem::TagDoesNotFit { tag: shown_tag(tag), found })
        })
    }

    fn plain_meaning(&mut self, text: &str, line: usize) -> Meaning {
        let meaning = scalar::yaml_1_1(text);
        let newer = scalar::yaml_1_2(text);
        if meaning != newer && !matches!(meaning, Meaning::Broken(_)) {
            let kind = if self.path.is_secret() {
                WarningKind::SecretYaml12Differs
            } else {
                WarningKind::Yaml12Differs {
                    text: text.to_owned(),
                    meaning: scalar::shown(text, &meaning),
                    yaml_1_2: scalar::shown(text, &newer),
                }
            };
            self.warn(line, kind);
        }
        meaning
    }

    /// A scalar as warnings and errors may show it: secrets end in logs otherwise.
    fn shown<'scalar>(&self, text: &'scalar str) -> &'scalar str {
        if self.path.is_secret() { MASK } else { text }
    }

    fn value_of(&mut self, text: &str, meaning: Meaning, line: usize) -> Result<Value, InventoryError> {
        match meaning {
            Meaning::Value(value) => Ok(value),
            Meaning::NotFinite => {
                self.warn(line, WarningKind::NotFinite { text: self.shown(text).to_owned() });
                Ok(Value::Null)
            }
            Meaning::IntegerTooLarge => {
                self.warn(line, WarningKind::IntegerTooLarge { text: self.shown(text).to_owned() });
                Ok(Value::String(text.to_owned()))
            }
            Meaning::Merge | Meaning::DefaultValue => Err(self.error(
                line,
                YamlProblem::BadScalar {
                    text: self.shown(text).to_owned(),
                    expected: "a value, this is a key of its own kind",
                },
            )),
            Meaning::Broken(expected) => {
                Err(self.error(line, YamlProblem::BadScalar { text: self.shown(text).to_owned(), expected }))
            }
        }
    }

    fn check_collection_tag(&self, tag: Option<String>, own: &str, line: usize) -> Result<(), InventoryError> {
        let Some(tag) = tag.filter(|tag| tag != "!") else {
            return Ok(());
        };
        match tag.strip_prefix(YAML_TAG) {
            Some(name) if name == own => Ok(()),
            Some("str" | "null" | "bool" | "int" | "float" | "timestamp" | "seq" | "map") => Err(self.error(
                line,
                YamlProblem::TagDoesNotFit {
                    tag: shown_tag(&tag),
                    found: if own == "seq" { "a list".to_owned() } else { "a mapping".to_owned() },
                },
            )),
            Some(_) | None => Err(self.unknown_tag(&tag, line)),
        }
    }

    fn unknown_tag(&self, tag: &str, line: usize) -> InventoryError {
        self.error(line, YamlProblem::UnknownTag { tag: shown_tag(tag) })
    }
}

impl Size {
    fn add(&mut self, other: Size) {
        self.nodes = self.nodes.saturating_add(other.nodes);
        self.bytes = self.bytes.saturating_add(other.bytes);
    }
}

fn line_of(span: &Span) -> usize {
    span.start.line()
}

/// The whole tag, `!` for the non-specific one.
fn tag_text(tag: Option<&Tag>) -> Option<String> {
    tag.map(|tag| format!("{}{}", tag.handle, tag.suffix))
}

/// The tag as its author wrote it.
fn shown_tag(tag: &str) -> String {
    match tag.strip_prefix(YAML_TAG) {
        Some(name) => format!("!!{name}"),
        None => tag.to_owned(),
    }
}

/// A scalar as the key of a JSON object, spelled as Python's JSON writers do; `None` for lists and mappings.
fn key_text(value: &Value) -> Option<String> {
    match value {
        Value::String(text) => Some(text.clone()),
        Value::Null | Value::Bool(_) | Value::Number(_) => Some(value.to_string()),
        Value::Array(_) | Value::Object(_) => None,
    }
}
