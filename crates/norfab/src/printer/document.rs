//! What a job returned as a document, written as it is read: a tree of values takes many times the memory of the JSON that a
//! worker sent.

use std::cell::Cell;
use std::fmt;
use std::io::{self, Write};

use norfab_fabric::client::{JobReport, WorkerReport};
use norfab_protocol::worker::cancellation_of;
use norfab_protocol::{JobId, ResultView};
use serde::de::{self, DeserializeSeed, Deserializer, Error as _, MapAccess, SeqAccess, Visitor};
use serde::ser::{Error as _, Serialize, SerializeMap, SerializeSeq, Serializer};
use serde_json::ser::{Formatter, PrettyFormatter};
use serde_json::value::RawValue;

use super::{state, steers_in_json};
use crate::exit::{Failure, FailureDocument};

/// A job with what its workers returned.
#[derive(serde::Serialize)]
pub struct Document<'a> {
    uuid: &'a JobId,
    service: &'a str,
    task: &'a str,
    status: &'static str,
    errors: &'a [String],
    results: Results<'a>,
    /// What went wrong.
    #[serde(flatten)]
    failure: Option<FailureDocument<'a>>,
}

impl<'a> Document<'a> {
    pub fn new(service: &'a str, task: &'a str, report: &'a JobReport) -> Self {
        let JobReport { id, errors, .. } = report;
        Self { uuid: id, service, task, status: state(report.state), errors, results: Results(report), failure: None }
    }

    /// The same with what went wrong.
    pub fn with(self, failure: Option<&'a Failure>) -> Self {
        Self { failure: failure.map(Failure::document), ..self }
    }

    /// Writes it over several lines, indented, without characters that steer a terminal.
    pub fn write(&self, to: impl Write) -> io::Result<()> {
        let mut serializer = serde_json::Serializer::with_formatter(to, Plain(PrettyFormatter::new()));
        Ok(self.serialize(&mut serializer)?)
    }
}

struct Results<'a>(&'a JobReport);

impl Serialize for Results<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let views = self.0.views();
        let mut map = serializer.serialize_map(Some(views.len()))?;
        for (worker, view) in views {
            let cancelled = match self.0.workers.get(worker) {
                Some(WorkerReport::Returned(payload)) => cancellation_of(payload),
                Some(WorkerReport::Missing(_)) | None => None,
            };
            map.serialize_entry(worker, &ShownResult { cancelled, result: shown(view) })?;
        }
        map.end()
    }
}

/// A result with what its worker says of the job's cancellation, as it stands in what came.
#[derive(serde::Serialize)]
struct ShownResult<Result> {
    #[serde(skip_serializing_if = "Option::is_none")]
    cancelled: Option<String>,
    #[serde(flatten)]
    result: Result,
}

/// The result of one worker.
fn shown(view: ResultView<'_>) -> impl Serialize {
    view.map_value(Shown::new)
}

/// A value as it is; one that cannot be read, as it is nested too deeply or has halves of characters, as its text.
enum Shown<'a> {
    Value(&'a RawValue),
    Text(&'a str),
}

impl<'a> Shown<'a> {
    fn new(value: &'a RawValue) -> Self {
        // Looked at before anything of it is written.
        match Self::Value(value).serialize(&mut serde_json::Serializer::new(io::sink())) {
            Ok(()) => Self::Value(value),
            Err(_) => Self::Text(value.get()),
        }
    }
}

impl Serialize for Shown<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Text(text) => serializer.serialize_str(text),
            Self::Value(value) => {
                let mut reader = serde_json::Deserializer::from_str(value.get());
                reader.deserialize_any(Passed(serializer)).map_err(S::Error::custom)
            }
        }
    }
}

/// What is read goes to a writer.
struct Passed<S>(S);

impl<'de, S: Serializer> Visitor<'de> for Passed<S> {
    type Value = S::Ok;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("any JSON")
    }

    fn visit_unit<E: de::Error>(self) -> Result<S::Ok, E> {
        self.0.serialize_unit().map_err(E::custom)
    }

    fn visit_bool<E: de::Error>(self, value: bool) -> Result<S::Ok, E> {
        self.0.serialize_bool(value).map_err(E::custom)
    }

    fn visit_u64<E: de::Error>(self, value: u64) -> Result<S::Ok, E> {
        self.0.serialize_u64(value).map_err(E::custom)
    }

    fn visit_i64<E: de::Error>(self, value: i64) -> Result<S::Ok, E> {
        self.0.serialize_i64(value).map_err(E::custom)
    }

    fn visit_f64<E: de::Error>(self, value: f64) -> Result<S::Ok, E> {
        self.0.serialize_f64(value).map_err(E::custom)
    }

    fn visit_str<E: de::Error>(self, value: &str) -> Result<S::Ok, E> {
        self.0.serialize_str(value).map_err(E::custom)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut elements: A) -> Result<S::Ok, A::Error> {
        let mut list = self.0.serialize_seq(elements.size_hint()).map_err(A::Error::custom)?;
        while elements.next_element_seed(Element(&mut list))?.is_some() {}
        list.end().map_err(A::Error::custom)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<S::Ok, A::Error> {
        let mut map = self.0.serialize_map(entries.size_hint()).map_err(A::Error::custom)?;
        while entries.next_key_seed(Key(&mut map))?.is_some() {
            entries.next_value_seed(Entry(&mut map))?;
        }
        map.end().map_err(A::Error::custom)
    }
}

/// The next thing of a reader, which can be written once.
struct Next<Reader>(Cell<Option<Reader>>);

impl<Reader> Next<Reader> {
    fn new(reader: Reader) -> Self {
        Self(Cell::new(Some(reader)))
    }
}

impl<'de, Reader: Deserializer<'de>> Serialize for Next<Reader> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let reader = self.0.take().ok_or_else(|| S::Error::custom("it was read before"))?;
        reader.deserialize_any(Passed(serializer)).map_err(S::Error::custom)
    }
}

struct Element<'a, List>(&'a mut List);

impl<'de, List: SerializeSeq> DeserializeSeed<'de> for Element<'_, List> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, reader: D) -> Result<(), D::Error> {
        self.0.serialize_element(&Next::new(reader)).map_err(D::Error::custom)
    }
}

struct Key<'a, Map>(&'a mut Map);

impl<'de, Map: SerializeMap> DeserializeSeed<'de> for Key<'_, Map> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, reader: D) -> Result<(), D::Error> {
        self.0.serialize_key(&Next::new(reader)).map_err(D::Error::custom)
    }
}

struct Entry<'a, Map>(&'a mut Map);

impl<'de, Map: SerializeMap> DeserializeSeed<'de> for Entry<'_, Map> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, reader: D) -> Result<(), D::Error> {
        self.0.serialize_value(&Next::new(reader)).map_err(D::Error::custom)
    }
}

/// Indented, and without the characters that JSON allows but terminals obey.
struct Plain(PrettyFormatter<'static>);

impl Formatter for Plain {
    fn write_string_fragment<W: ?Sized + Write>(&mut self, writer: &mut W, fragment: &str) -> io::Result<()> {
        let mut rest = fragment;
        while let Some(at) = rest.find(steers_in_json) {
            let (plain, steering) = rest.split_at(at);
            let Some(character) = steering.chars().next() else { break };
            writer.write_all(plain.as_bytes())?;
            writer.write_all(format!("\\u{:04x}", u32::from(character)).as_bytes())?;
            rest = &steering[character.len_utf8()..];
        }
        writer.write_all(rest.as_bytes())
    }

    fn begin_array<W: ?Sized + Write>(&mut self, writer: &mut W) -> io::Result<()> {
        self.0.begin_array(writer)
    }

    fn end_array<W: ?Sized + Write>(&mut self, writer: &mut W) -> io::Result<()> {
        self.0.end_array(writer)
    }

    fn begin_array_value<W: ?Sized + Write>(&mut self, writer: &mut W, first: bool) -> io::Result<()> {
        self.0.begin_array_value(writer, first)
    }

    fn end_array_value<W: ?Sized + Write>(&mut self, writer: &mut W) -> io::Result<()> {
        self.0.end_array_value(writer)
    }

    fn begin_object<W: ?Sized + Write>(&mut self, writer: &mut W) -> io::Result<()> {
        self.0.begin_object(writer)
    }

    fn end_object<W: ?Sized + Write>(&mut self, writer: &mut W) -> io::Result<()> {
        self.0.end_object(writer)
    }

    fn begin_object_key<W: ?Sized + Write>(&mut self, writer: &mut W, first: bool) -> io::Result<()> {
        self.0.begin_object_key(writer, first)
    }

    fn begin_object_value<W: ?Sized + Write>(&mut self, writer: &mut W) -> io::Result<()> {
        self.0.begin_object_value(writer)
    }

    fn end_object_value<W: ?Sized + Write>(&mut self, writer: &mut W) -> io::Result<()> {
        self.0.end_object_value(writer)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use norfab_protocol::Identity;
    use norfab_protocol::client::JobState;
    use serde_json::{Value, json};

    use super::*;

    fn report(result: &str) -> JobReport {
        let worker = Identity::parse("w1").expect("a name");
        let payload = format!(r#"{{"result":{result},"failed":false}}"#);
        JobReport {
            id: JobId::parse("1").expect("a name"),
            state: JobState::Completed,
            workers: BTreeMap::from([(worker, WorkerReport::Returned(payload.into()))]),
            errors: Vec::new(),
            events_dropped: 0,
        }
    }

    fn written(result: &str) -> String {
        let mut text = Vec::new();
        Document::new("s", "t", &report(result)).write(&mut text).expect("memory");
        String::from_utf8(text).expect("text")
    }

    #[test]
    fn a_document_is_what_a_tree_of_its_values_would_be_written_as() {
        for result in [r#"{"a":[1,-2,3.50,1e3,true,null,{},[]],"b":{"c":"x\u00e4\"y\n"}}"#, "[]", "null", r#""text""#] {
            let text = written(result);
            let value: Value = serde_json::from_str(&text).expect("JSON");
            assert_eq!(value["results"]["w1"]["result"], serde_json::from_str::<Value>(result).expect("JSON"));
            assert_eq!(text, serde_json::to_string_pretty(&value).expect("JSON"));
        }
    }

    #[test]
    fn characters_that_steer_a_terminal_are_escaped_in_a_document() {
        let text = written("{\"a\u{9b}\u{7f}ü\":\"\u{85}\"}");
        assert!(text.contains("\"a\\u009b\\u007fü\": \"\\u0085\""), "{text}");
    }

    #[test]
    fn a_result_of_a_cancelled_job_says_so_first_as_it_came() {
        let mut report = report("1");
        let payload = r#"{"cancelled":"cancelled by me","result":[1],"failed":false}"#;
        report.workers.values_mut().for_each(|worker| *worker = WorkerReport::Returned(payload.into()));
        let mut text = Vec::new();
        Document::new("s", "t", &report).write(&mut text).expect("memory");
        let value: Value = serde_json::from_slice(&text).expect("JSON");
        let result = &value["results"]["w1"];
        assert_eq!((&result["cancelled"], &result["result"]), (&json!("cancelled by me"), &json!([1])));
        assert_eq!(result.as_object().map(serde_json::Map::len), Some(15));
        let text = String::from_utf8(text).expect("text");
        assert!(text.find("\"cancelled\"") < text.find("\"failed\""), "{text}");
    }

    #[test]
    fn a_value_that_cannot_be_read_is_its_text() {
        let deep = format!("{}{}", "[".repeat(200), "]".repeat(200));
        for result in [deep.as_str(), r#"["\ud800"]"#] {
            let value: Value = serde_json::from_str(&written(result)).expect("JSON");
            assert_eq!(value["results"]["w1"]["result"], json!(result));
        }
    }
}
