//! One log record, and how it is written: as a line of JSON in Python NorFab's order, and as text for people.

use std::fmt::{self, Write as _};
use std::sync::Arc;

use jiff::Timestamp;
use jiff::tz::TimeZone;

use crate::level::Level;
use crate::role::Owner;

/// Bytes of a message with its fields. Longer ones are cut: a log is not the place for payloads, and the queues hold
/// thousands of records.
pub const MESSAGE_BYTES_MAX: usize = 8 * 1024;

/// Bytes of an exception: room for a long chain of causes or a traceback of Python's.
pub const EXCEPTION_BYTES_MAX: usize = 16 * 1024;

/// Field names that have a key of their own in the record, in the order in which they are written.
pub(crate) const OPTIONAL_FIELDS: [&str; 7] =
    ["service", "worker", "client", "task", "job_uuid", "event_type", "exception"];

/// Where `exception` is in [`OPTIONAL_FIELDS`].
pub(crate) const EXCEPTION: usize = 6;

/// Values of [`OPTIONAL_FIELDS`].
pub(crate) type OptionalFields = [Option<String>; OPTIONAL_FIELDS.len()];

/// Logger of what the log says about itself.
pub(crate) const OWN_LOGGER: &str = "norfab.logs";

/// One record, made on the thread that logs and written on another.
#[derive(Debug, Clone)]
pub(crate) struct Record {
    pub at: Timestamp,
    pub level: Level,
    /// Target of the event, with `::`.
    pub target: &'static str,
    pub message: String,
    pub thread: Arc<str>,
    pub owner: Arc<Owner>,
    pub module: &'static str,
    pub function: &'static str,
    pub line: u32,
    pub source_file: &'static str,
    pub optional: OptionalFields,
}

impl Record {
    /// A record of the log about itself.
    pub fn about_the_log(at: Timestamp, level: Level, owner: Arc<Owner>, message: String) -> Self {
        Self {
            at,
            level,
            target: OWN_LOGGER,
            message,
            thread: Arc::from("norfab-log"),
            owner,
            module: "logs",
            function: "",
            line: 0,
            source_file: "",
            optional: OptionalFields::default(),
        }
    }

    /// Appends the record as one line of JSON.
    pub fn write_json(&self, zone: &TimeZone, out: &mut Vec<u8>) {
        let time = record_time(self.at, zone);
        let logger = self.target.replace("::", ".");
        out.extend_from_slice(b"{\"ts\":");
        json_text(&time, out);
        for (key, value) in [("level", self.level.as_str()), ("logger", &logger), ("message", &self.message)] {
            json_field(key, value, out);
        }
        json_number("pid", std::process::id(), out);
        json_field("processName", "norfab", out);
        for (key, value) in [
            ("threadName", &*self.thread),
            ("role", self.owner.role.as_str()),
            ("name", &self.owner.name),
            ("module", self.module),
            ("function", self.function),
        ] {
            json_field(key, value, out);
        }
        json_number("line", self.line, out);
        json_field("filename", self.source_file, out);
        for (key, value) in OPTIONAL_FIELDS.iter().zip(&self.optional) {
            if let Some(value) = value {
                json_field(key, value, out);
            }
        }
        out.extend_from_slice(b"}\n");
    }

    /// Appends the record as text: `12:00:01.123 WARNING worker w1: message key=value`. What peers sent cannot steer the
    /// terminal: control characters are escaped.
    pub fn write_text(&self, zone: &TimeZone, colour: bool, out: &mut String) {
        let time = self.at.to_zoned(zone.clone()).strftime("%H:%M:%S%.3f").to_string();
        let (start, end) = match (colour, self.level) {
            (false, _) | (true, Level::Info) => ("", ""),
            (true, Level::Debug) => ("\x1b[2m", "\x1b[0m"),
            (true, Level::Warning) => ("\x1b[33m", "\x1b[0m"),
            (true, Level::Error) => ("\x1b[31m", "\x1b[0m"),
            (true, Level::Critical) => ("\x1b[1;31m", "\x1b[0m"),
        };
        for part in [&time, " ", start, self.level.as_str(), end, " "] {
            out.push_str(part);
        }
        let (noun, name) = (self.owner.role.noun(), &*self.owner.name);
        // Many messages name their speaker themselves.
        let named = self.message.strip_prefix(noun).and_then(|rest| rest.strip_prefix(' ')?.strip_prefix(name));
        if !named.is_some_and(|rest| rest.starts_with([':', ' '])) {
            out.push_str(noun);
            out.push(' ');
            escape_controls(name, out);
            out.push_str(": ");
        }
        escape_controls(&self.message, out);
        out.push('\n');
        for line in self.optional[EXCEPTION].iter().flat_map(|text| text.lines()) {
            out.push_str("    ");
            escape_controls(line, out);
            out.push('\n');
        }
    }
}

/// A time as records have it: `2026-11-30T01:19:36.305880+00:00`.
pub(crate) fn record_time(at: Timestamp, zone: &TimeZone) -> String {
    at.to_zoned(zone.clone()).strftime("%Y-%m-%dT%H:%M:%S%.6f%:z").to_string()
}

fn json_field(key: &str, value: &str, out: &mut Vec<u8>) {
    out.push(b',');
    json_text(key, out);
    out.push(b':');
    json_text(value, out);
}

fn json_number(key: &str, value: u32, out: &mut Vec<u8>) {
    out.push(b',');
    json_text(key, out);
    out.push(b':');
    out.extend_from_slice(value.to_string().as_bytes());
}

fn json_text(text: &str, out: &mut Vec<u8>) {
    serde_json::to_writer(out, text).expect("text is JSON, and a Vec takes all of it");
}

fn escape_controls(text: &str, out: &mut String) {
    for character in text.chars() {
        if character.is_control() {
            out.extend(character.escape_default());
        } else {
            out.push(character);
        }
    }
}

/// Text that takes so many bytes and refuses the rest, which stops the formatting of what is too long.
#[derive(Debug, Default)]
pub(crate) struct BoundedText {
    text: String,
    cut: bool,
}

/// What a text ends with that was cut.
const CUT_MARK: &str = "... (cut)";

impl BoundedText {
    /// Appends as much of the value as fits into `bytes_max` in all.
    pub fn push(&mut self, value: fmt::Arguments<'_>, bytes_max: usize) {
        let mut room = Room { text: self, bytes_max };
        // An error says that the text is full, or that a value could not be formatted: either way the mark tells.
        if !room.text.cut && room.write_fmt(value).is_err() {
            self.cut = true;
        }
    }

    pub fn is_empty(&self) -> bool {
        self.text.is_empty()
    }

    /// The text, with a mark where something is missing.
    pub fn finish(mut self) -> String {
        if self.cut {
            self.text.push_str(CUT_MARK);
        }
        self.text
    }
}

struct Room<'a> {
    text: &'a mut BoundedText,
    bytes_max: usize,
}

impl fmt::Write for Room<'_> {
    fn write_str(&mut self, part: &str) -> fmt::Result {
        let room = self.bytes_max.saturating_sub(self.text.text.len());
        if part.len() <= room {
            self.text.text.push_str(part);
            return Ok(());
        }
        self.text.text.push_str(&part[..part.floor_char_boundary(room)]);
        Err(fmt::Error)
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::role::Role;

    pub fn sample(at: Timestamp, owner: &Arc<Owner>, message: &str) -> Record {
        Record {
            at,
            level: Level::Warning,
            target: "norfab_fabric::worker",
            message: message.to_owned(),
            thread: Arc::from("w1-owner"),
            owner: Arc::clone(owner),
            module: "worker",
            function: "reconnect",
            line: 17,
            source_file: "worker.rs",
            optional: OptionalFields::default(),
        }
    }

    #[test]
    fn a_record_has_pythons_fields_in_pythons_order() {
        let owner = Arc::new(Owner::new(Role::Worker, "w1"));
        let at: Timestamp = "2026-11-30T01:19:36.305880Z".parse().unwrap();
        let mut record = sample(at, &owner, "say \"hi\"\nand more");
        record.optional[4] = Some("abc".to_owned());
        record.optional[EXCEPTION] = Some("first\nsecond".to_owned());
        let mut line = Vec::new();
        record.write_json(&TimeZone::fixed(jiff::tz::offset(2)), &mut line);
        let expected = format!(
            r#"{{"ts":"2026-11-30T03:19:36.305880+02:00","level":"WARNING","logger":"norfab_fabric.worker","message":"say \"hi\"\nand more","pid":{},"processName":"norfab","threadName":"w1-owner","role":"worker","name":"w1","module":"worker","function":"reconnect","line":17,"filename":"worker.rs","job_uuid":"abc","exception":"first\nsecond"}}"#,
            std::process::id()
        );
        assert_eq!(String::from_utf8(line).unwrap(), expected + "\n");
    }

    #[test]
    fn whole_seconds_are_written_with_six_digits_and_utc_with_its_offset() {
        let owner = Arc::new(Owner::new(Role::Worker, "w1"));
        let mut line = Vec::new();
        sample(Timestamp::UNIX_EPOCH, &owner, "").write_json(&TimeZone::UTC, &mut line);
        assert!(line.starts_with(br#"{"ts":"1970-01-01T00:00:00.000000+00:00","#));
    }

    #[test]
    fn text_for_people_is_short_and_cannot_steer_the_terminal() {
        let owner = Arc::new(Owner::new(Role::Worker, "w1"));
        let mut record = sample("2026-11-30T12:00:01.1239Z".parse().unwrap(), &owner, "name \x1b[2J\nfake key=1");
        let mut text = String::new();
        record.write_text(&TimeZone::UTC, false, &mut text);
        assert_eq!(text, "12:00:01.123 WARNING worker w1: name \\u{1b}[2J\\nfake key=1\n");
        text.clear();
        sample(Timestamp::UNIX_EPOCH, &owner, "worker w1: gone").write_text(&TimeZone::UTC, false, &mut text);
        assert_eq!(text, "00:00:00.000 WARNING worker w1: gone\n");
        record.optional[EXCEPTION] = Some("one\ntwo".to_owned());
        text.clear();
        record.write_text(&TimeZone::UTC, true, &mut text);
        assert!(text.contains("\x1b[33mWARNING\x1b[0m worker"));
        assert!(text.ends_with("\n    one\n    two\n"));
    }

    #[test]
    fn what_is_too_long_is_cut_at_a_character_and_marked() {
        let mut text = BoundedText::default();
        text.push(format_args!("{}", "ö".repeat(100)), 9);
        text.push(format_args!("more"), 9);
        assert_eq!(text.finish(), "öööö... (cut)");
    }
}
