//! Standard output carries data, standard error everything else.

mod bar;
mod document;

use std::borrow::Cow;
use std::io::{BufWriter, ErrorKind, Write};
use std::sync::{Mutex, PoisonError};

use comfy_table::{ContentArrangement, Table, presets};
use norfab_fabric::client::{JobReport, WorkerReport};
use norfab_protocol::body::{Event, Resource};
use norfab_protocol::client::{JobState, Lost};
use norfab_protocol::{Identity, ResultView};
use serde_json::Value;

use bar::beside;
pub use bar::{LogOutput, stand_below};
use document::Document;

use crate::exit::Failure;

/// One line of output. A reader that has gone away (`| head`) is no error; any other is kept for [`take_output_error`].
pub fn line(text: &str) {
    keep_error(beside(|| write_line(&mut std::io::stdout().lock(), text)));
}

/// Many lines of output. Nothing more is made once the reader has gone away.
pub fn lines(lines: impl IntoIterator<Item = String>) {
    let mut out = BufWriter::new(std::io::stdout().lock());
    let written =
        lines.into_iter().try_for_each(|line| out.write_all(line.as_bytes()).and_then(|()| out.write_all(b"\n")));
    keep_error(written.and_then(|()| out.flush()));
}

fn keep_error(written: std::io::Result<()>) {
    if let Err(error) = written
        && error.kind() != ErrorKind::BrokenPipe
    {
        keep_output_error(error);
    }
}

/// Keeps an error of standard output for [`take_output_error`]. The first one says what is wrong.
pub fn keep_output_error(error: std::io::Error) {
    OUTPUT_ERROR.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
}

/// Why a line could not be written to standard output.
static OUTPUT_ERROR: Mutex<Option<std::io::Error>> = Mutex::new(None);

/// What went wrong with standard output so far, as a sentence. Whoever takes it tells it.
pub fn take_output_error() -> Option<String> {
    let error = OUTPUT_ERROR.lock().unwrap_or_else(PoisonError::into_inner).take();
    error.map(|error| format!("cannot write to standard output: {error}"))
}

/// A text on standard error, one line or several; what steers the terminal is escaped.
pub fn remark(text: &str) {
    let lines: Vec<_> = text.split('\n').map(printable).collect();
    // Nobody is left to tell if that cannot be written.
    beside(|| write_line(&mut std::io::stderr().lock(), &lines.join("\n"))).ok();
}

/// What the command line should have been, on standard error, with what colours it.
pub fn usage(text: &str) {
    // As for a remark.
    std::io::stderr().lock().write_all(text.as_bytes()).ok();
}

/// A document on one line of standard error.
pub fn json_remark(value: &Value) {
    // As for a remark.
    beside(|| write_line(&mut std::io::stderr().lock(), &plain_json(value.to_string()))).ok();
}

/// What went wrong, on standard error.
pub fn error(text: &str) {
    remark(&format!("error: {text}"));
}

/// What may be wrong, on standard error.
pub fn warning(text: &str) {
    remark(&format!("warning: {text}"));
}

/// A question on standard error: what is typed stands behind it.
pub fn prompt(text: &str) {
    let mut err = std::io::stderr().lock();
    err.write_all(text.as_bytes()).and_then(|()| err.flush()).ok();
}

/// In one call, so that lines of several threads do not mix.
fn write_line(out: &mut impl Write, text: &str) -> std::io::Result<()> {
    out.write_all(format!("{text}\n").as_bytes()).and_then(|()| out.flush())
}

/// A text on one line, whatever it holds: what peers sent must not steer the terminal.
pub fn printable(text: &str) -> Cow<'_, str> {
    if !text.contains(is_steering) {
        return Cow::Borrowed(text);
    }
    text.chars()
        .flat_map(|character| {
            let escaped = is_steering(character).then(|| character.escape_default());
            let plain = escaped.is_none().then_some(character);
            escaped.into_iter().flatten().chain(plain)
        })
        .collect()
}

/// Control characters but the tabulator, line separators, and characters that turn the direction of what is read.
fn is_steering(character: char) -> bool {
    let turns = matches!(
        character,
        '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{2028}' | '\u{2029}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}'
    );
    turns || character.is_control() && character != '\t'
}

/// A document.
pub fn json(value: &Value) {
    let text = serde_json::to_string_pretty(value).expect("values with text keys can be written");
    line(&plain_json(text));
}

/// A document on one line.
pub fn json_line(value: &Value) {
    line(&plain_json(value.to_string()));
}

/// What went wrong, for programs: on one line, as roles that go on print lines.
pub fn failure(failure: &Failure) {
    line(&plain_json(serde_json::to_string(&failure.document()).expect("texts and a number can be written")));
}

/// JSON in which control characters are escaped that its grammar allows but terminals obey: those from 127 to 159. They can
/// only stand in texts.
pub fn plain_json(text: String) -> String {
    if !text.contains(steers_in_json) {
        return text;
    }
    text.chars().fold(String::with_capacity(text.len()), |mut plain, character| {
        if steers_in_json(character) {
            plain.push_str(&format!("\\u{:04x}", u32::from(character)));
        } else {
            plain.push(character);
        }
        plain
    })
}

/// Terminals obey it, and the grammar of JSON allows it as it is.
fn steers_in_json(character: char) -> bool {
    matches!(character, '\u{7f}'..='\u{9f}')
}

/// Blanks between two columns.
const COLUMN_GAP: u16 = 2;

/// Rows with these columns. No rows: a remark on standard error, so that scripts read nothing.
pub fn table(columns: &[&str], rows: &[Value]) {
    if rows.is_empty() {
        remark("nothing to show");
        return;
    }
    let mut table = Table::new();
    table.load_style(presets::NOTHING).set_content_arrangement(ContentArrangement::Disabled);
    table.set_header(columns.iter().map(|column| column.to_uppercase()));
    for row in rows {
        table.add_row(columns.iter().map(|column| plain(&row[*column])));
    }
    for column in table.column_iter_mut() {
        column.set_padding((0, COLUMN_GAP));
    }
    for text in table.to_string().lines() {
        line(text.trim_end());
    }
}

/// A value as people read it, on one line.
pub fn plain(value: &Value) -> String {
    match value {
        Value::String(text) => printable(text).into_owned(),
        Value::Null => String::new(),
        other => other.to_string(),
    }
}

/// Nested data for people: keys, indented, texts of several lines as they are.
pub fn nested(value: &Value, indent: usize) {
    let pad = " ".repeat(indent);
    for text in nested_lines(value) {
        let padded = format!("{pad}{text}");
        line(if text.is_empty() { "" } else { &padded });
    }
}

fn nested_lines(value: &Value) -> Vec<String> {
    match value {
        Value::Object(map) if map.is_empty() => vec!["{}".to_owned()],
        Value::Array(list) if list.is_empty() => vec!["[]".to_owned()],
        Value::Object(map) => map.iter().flat_map(|(key, value)| entry(&printable(key), value)).collect(),
        Value::Array(list) => list.iter().flat_map(item).collect(),
        Value::String(text) => text.lines().map(|text| printable(text).into_owned()).collect(),
        other => vec![other.to_string()],
    }
}

/// `key: value` on one line, or the value below it.
fn entry(key: &str, value: &Value) -> Vec<String> {
    let mut lines = nested_lines(value);
    let below = match value {
        Value::Object(map) => !map.is_empty(),
        Value::Array(list) => !list.is_empty(),
        Value::String(_) => lines.len() > 1,
        Value::Null | Value::Bool(_) | Value::Number(_) => false,
    };
    if !below {
        let value = lines.pop().unwrap_or_default();
        return vec![if value.is_empty() { format!("{key}:") } else { format!("{key}: {value}") }];
    }
    lines.iter_mut().for_each(|line| line.insert_str(0, "  "));
    lines.insert(0, format!("{key}:"));
    lines
}

/// A dash before the first line, and room for it before the others.
fn item(value: &Value) -> Vec<String> {
    let mut lines = nested_lines(value);
    if lines.is_empty() {
        return vec!["-".to_owned()];
    }
    for (number, line) in lines.iter_mut().enumerate() {
        line.insert_str(0, if number == 0 { "- " } else { "  " });
    }
    lines
}

/// An event as a line: time, severity, worker, state, task, what it is about, message.
pub fn event_text(event: &Event) -> String {
    let time = event.timestamp.rsplit(' ').next().unwrap_or_default();
    let status = serde_json::to_value(event.status).map(|status| plain(&status)).unwrap_or_default();
    let resource = match &event.resource {
        Resource::One(one) => format!(" [{}]", printable(one)),
        Resource::Many(many) if many.is_empty() => String::new(),
        Resource::Many(many) => format!(" [{}]", printable(&many.join(", "))),
    };
    format!(
        "{} {:8} {:16} {status} {}.{}{resource} {}",
        printable(time),
        event.severity,
        event.worker,
        event.service,
        printable(&event.task),
        printable(&event.message)
    )
}

/// Names with commas.
pub fn names(names: &[Identity]) -> String {
    names.iter().map(Identity::as_str).collect::<Vec<_>>().join(", ")
}

/// What a job returned, as one document.
pub fn report_document(service: &str, task: &str, report: &JobReport) -> Value {
    serde_json::to_value(Document::new(service, task, report)).expect("what can be written has been read before")
}

/// The same on standard output, without a copy of what workers returned, with what went wrong.
pub fn report(service: &str, task: &str, report: &JobReport, failure: Option<&Failure>) {
    let mut out = BufWriter::new(std::io::stdout().lock());
    let written = Document::new(service, task, report).with(failure).write(&mut out);
    keep_error(written.and_then(|()| out.write_all(b"\n")).and_then(|()| out.flush()));
}

/// What is to be said on standard error of a worker's result.
#[derive(Debug, PartialEq, Eq)]
pub enum Said {
    /// It failed, or there is none.
    Error(String),
    /// It did not fail and has errors all the same.
    Warning(String),
    /// What the worker adds.
    Message(String),
}

/// What workers returned, for people. What is for standard error comes back.
pub fn results(report: &JobReport) -> Vec<Said> {
    let mut said = Vec::new();
    for (worker, result) in report.views() {
        let value = result.value().unwrap_or_else(|| result.result.get().into());
        if !(result.failed && value.is_null()) {
            line(&format!("{worker}:"));
            nested(&value, 2);
        }
        let lines = result.messages.iter().flat_map(|message| message.lines());
        said.extend(lines.map(|text| Said::Message(format!("{worker}: {}", printable(text)))));
        match report.workers.get(worker) {
            Some(WorkerReport::Missing(Lost::Expired)) => said.push(Said::Error(late(worker, report))),
            _ if result.failed => said.push(Said::Error(with_errors(worker, " failed", &result))),
            _ if !result.errors.is_empty() => said.push(Said::Warning(with_errors(worker, "", &result))),
            _ => {}
        }
    }
    said
}

/// What is said of each worker that failed or returned nothing, and the errors of all of them as they came.
pub fn failures(report: &JobReport) -> (Vec<String>, Vec<String>) {
    let (mut texts, mut errors) = (Vec::new(), Vec::new());
    for (worker, result) in report.views().into_iter().filter(|(_, result)| result.failed) {
        texts.push(match report.workers.get(worker) {
            Some(WorkerReport::Missing(Lost::Expired)) => late(worker, report),
            _ => with_errors(worker, " failed", &result),
        });
        errors.extend(result.errors);
    }
    (texts, errors)
}

fn late(worker: &Identity, report: &JobReport) -> String {
    format!("worker {worker} returned no result in time; it may still be at work on job {}", report.id)
}

/// What happened to a worker's task, and its errors.
fn with_errors(worker: &Identity, happened: &str, result: &ResultView<'_>) -> String {
    let lines: Vec<_> = result.errors.iter().flat_map(|error| error.lines()).map(printable).collect();
    match &lines[..] {
        [] => format!("worker {worker}{happened} and gives no reason"),
        [only] => format!("worker {worker}{happened}: {only}"),
        several => format!("worker {worker}{happened}:\n  {}", several.join("\n  ")),
    }
}

/// A job's state in the words of the recorded clients.
pub fn state(state: JobState) -> &'static str {
    match state {
        JobState::New => "NEW",
        JobState::Submitting => "SUBMITTING",
        JobState::Dispatched => "DISPATCHED",
        JobState::Started => "STARTED",
        JobState::Waiting => "WAITING_CLIENT_INPUT",
        JobState::Completed => "COMPLETED",
        JobState::Failed => "FAILED",
        JobState::Stale => "STALE",
        JobState::Cancelling => "CANCELLING",
        JobState::Cancelled => "CANCELLED",
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_peers_sent_cannot_steer_the_terminal() {
        assert_eq!(printable("plain\tünï"), "plain\tünï");
        assert_eq!(printable("a\u{1b}[2Jb\r\nc"), "a\\u{1b}[2Jb\\r\\nc");
    }

    #[test]
    fn json_has_no_character_that_steers_the_terminal_and_says_the_same() {
        let value = json!({"a\u{9b}31m": "b\u{7f}\u{1b}[2J\u{a0}ü"});
        let text = plain_json(value.to_string());
        assert!(!text.contains(is_steering), "{text:?}");
        assert_eq!(serde_json::from_str::<Value>(&text).expect("JSON"), value);
    }

    #[test]
    fn nested_data_is_indented_and_lists_have_dashes() {
        let value = json!({
            "text": "one line", "texts": "a\nb", "empty": "", "none": null, "nothing": {}, "number": 1.5,
            "list": ["x", {"k": 1, "l": [2]}, [], "m\nn", ""],
        });
        let expected = "text: one line|texts:|  a|  b|empty:|none: null|nothing: {}|number: 1.5|list:|  - x|  - k: 1|    l:\
                        |      - 2|  - []|  - m|    n|  -";
        assert_eq!(nested_lines(&value).join("|"), expected);
    }

    #[test]
    fn several_lines_of_an_error_stay_together() {
        let worker = Identity::parse("w1").expect("a name");
        let of = |errors: &[&str]| {
            let mut result = ResultView::failed(norfab_protocol::ResultStatus::Error, "");
            result.errors = errors.iter().map(|error| (*error).to_owned()).collect();
            with_errors(&worker, " failed", &result)
        };
        assert_eq!(of(&[]), "worker w1 failed and gives no reason");
        assert_eq!(of(&["no"]), "worker w1 failed: no");
        assert_eq!(of(&["Traceback:\n  line 1", "no"]), "worker w1 failed:\n  Traceback:\n    line 1\n  no");
    }
}
