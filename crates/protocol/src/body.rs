//! The JSON documents inside messages, as types whose fields stand in the order of the wire.

mod asked;
mod cancellation;
mod posting;

use std::fmt;
use std::time::Duration;

use bytes::Bytes;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

pub use asked::{ASKED_BYTES_MAX, JOBS_ASKED_MAX, JobsAsked, StateReply};
pub use cancellation::{
    CANCEL_TEXT_BYTES_MAX, CANCELLATION_KEY, CANCELLED_WORD, CancelBody, bounded_cancel_text, cancel_text,
};

pub use posting::{Poster, Posting, check_job_request, posted_as};

use crate::message::DecodeError;
use crate::name::{Identity, JobId, ServiceName, TaskName};

/// Key of our extensions in JSON bodies, and the version of them that we speak. Peers that do not know the key ignore it.
pub const FABRIC_VERSION: u32 = 1;

/// Seconds a worker assumes when a POST names no time-out.
pub const DEFAULT_JOB_TIMEOUT_SECONDS: u64 = 60;

/// Body of POST: what to run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct JobRequestBody {
    /// Which task.
    pub task: TaskName,
    /// Named arguments.
    #[serde(default)]
    pub kwargs: Map<String, Value>,
    /// Positional arguments.
    #[serde(default)]
    pub args: Vec<Value>,
    /// Seconds from submission until nobody waits any more; absent from 0.21 clients.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout: Option<u64>,
    /// Ours: the version of the extensions that the sender speaks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fabric: Option<u32>,
    /// Ours, for the client itself after a restart: the job waits for workers that nobody knows.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wait: Option<bool>,
}

/// Whether a stored job request waits for workers that nobody knows: [`JobRequestBody::wait`].
pub fn waits(request: &[u8]) -> bool {
    #[derive(Deserialize)]
    struct Waits {
        #[serde(default)]
        wait: bool,
    }
    serde_json::from_slice(request).is_ok_and(|Waits { wait }| wait)
}

/// What of a POST must be known before it runs. Its arguments are looked at no further than that they are an object and a list.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct JobRequestHead {
    /// Which task.
    pub task: TaskName,
    /// As in [`JobRequestBody`].
    #[serde(default)]
    pub timeout: Option<u64>,
    /// They are an object.
    #[serde(default)]
    pub kwargs: Skipped<b'{'>,
    /// They are a list.
    #[serde(default)]
    pub args: Skipped<b'['>,
    /// As in [`JobRequestBody`].
    #[serde(default)]
    pub fabric: Option<u32>,
    /// Ours: seconds that are left of the time-out where the client sends the request later than it was submitted:
    /// [`posted_as`].
    #[serde(default)]
    pub remaining: Option<f64>,
    /// Ours: [`Posting::turn`].
    #[serde(default, deserialize_with = "posting::lenient_turn")]
    pub turn: u32,
}

impl JobRequestHead {
    /// How long the client goes on waiting. `None`: it does not say how long it waits.
    pub fn time_left(&self) -> Option<Duration> {
        let timeout = Duration::from_secs(self.timeout?.min(TIMEOUT_SECONDS_MAX));
        let remaining = self.remaining.and_then(|seconds| Duration::try_from_secs_f64(seconds.max(0.0)).ok());
        Some(remaining.map_or(timeout, |remaining| remaining.min(timeout)))
    }
}

/// Longest time-out that is counted: a hundred years, so that adding it to a clock cannot overflow.
pub const TIMEOUT_SECONDS_MAX: u64 = 100 * 365 * 86_400;

/// A JSON value that begins with this character and is not kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Skipped<const BEGIN: u8>;

impl<'de, const BEGIN: u8> Deserialize<'de> for Skipped<BEGIN> {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Skip<const BEGIN: u8>;
        impl<'de, const BEGIN: u8> serde::de::Visitor<'de> for Skip<BEGIN> {
            type Value = Skipped<BEGIN>;
            fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str(if BEGIN == b'{' { "an object" } else { "a list" })
            }
            fn visit_map<A: serde::de::MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                while map.next_entry::<serde::de::IgnoredAny, serde::de::IgnoredAny>()?.is_some() {}
                Ok(Skipped)
            }
            fn visit_seq<A: serde::de::SeqAccess<'de>>(self, mut list: A) -> Result<Self::Value, A::Error> {
                while list.next_element::<serde::de::IgnoredAny>()?.is_some() {}
                Ok(Skipped)
            }
        }
        if BEGIN == b'{' { deserializer.deserialize_map(Skip) } else { deserializer.deserialize_seq(Skip) }
    }
}

/// Body of MMI and SID requests.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ManagementBody {
    /// What to tell.
    #[serde(default)]
    pub task: Option<String>,
    /// Named arguments.
    #[serde(default)]
    pub kwargs: Map<String, Value>,
    /// Positional arguments; none is defined.
    #[serde(default)]
    pub args: Vec<Value>,
}

/// Body of 202: the broker handed the request on.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Dispatched {
    /// To whom.
    pub workers: Vec<Identity>,
    /// Which job.
    pub uuid: JobId,
    /// The target frame as text.
    pub target: String,
    /// `DISPATCHED`.
    pub status: String,
    /// The service that the request named.
    pub service: ServiceName,
    /// Ours: the broker's version of the extensions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fabric: Option<u32>,
    /// Ours: who is registered and meant by the target, but could not be reached and does not have the job.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unreached: Vec<Identity>,
    /// Ours: which process the broker is. Another one remembers nothing of what was posted to this one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run: Option<u32>,
    /// Ours: the broker has begun so lately that workers may not have come back to it yet.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub young: bool,
    /// Ours, in the answer to a question that goes to all: of which age a job must be, in seconds, to have gone to a worker of the
    /// service that is not registered now and of which this broker does not know.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gone: Option<u64>,
    /// Ours: who is named by the target, is not registered, and may be back soon. It does not have the job yet.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub absent: Vec<Identity>,
    /// Ours, in the answer to DELETE only: whom the job went to as far as the broker remembers, whether they can be reached now
    /// or not. Empty: it remembers nothing of the job.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub holders: Option<Vec<Identity>>,
    /// Ours, in the answer to DELETE only: the first POST of the job came to this process, so nobody but `holders` has it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub whole: bool,
}

/// Body of the broker's 400.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Refused {
    /// Always null.
    pub workers: Option<Vec<Identity>>,
    /// Which job, as the request had it.
    pub uuid: String,
    /// The target frame as text.
    pub target: String,
    /// `FAILED`.
    pub status: String,
    /// The service frame as text.
    pub service: String,
    /// Why.
    #[serde(default)]
    pub errors: Vec<String>,
    /// Why, under the key that Python clients look at.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// Ours, for a POST that nobody can get: whoever it is for may be registered soon.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry: Option<bool>,
    /// Ours: the turn of the POST, [`Posting::turn`], where its client counts them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub turn: Option<u32>,
}

/// Body of 201: the worker stored the job.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Accepted {
    /// Which worker.
    pub worker: Identity,
    /// Which job.
    pub uuid: JobId,
    /// `ACCEPTED`.
    pub status: String,
    /// The worker's service.
    pub service: ServiceName,
    /// Ours: the worker sends its results without being asked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fabric: Option<u32>,
}

/// Body of 102: the job waits for input.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Waiting {
    /// Which worker.
    pub worker: Identity,
    /// Which job.
    pub uuid: JobId,
    /// Its service.
    pub service: ServiceName,
    /// `WAITING_CLIENT_INPUT`.
    pub status: String,
    /// The open question; absent when the worker no longer has it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub input_request: Option<InputRequest>,
}

/// A question of a running task to its client.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct InputRequest {
    /// Names the question; the answer must carry it.
    pub id: String,
    /// For people.
    pub question: String,
    /// What an answer without a value means.
    #[serde(default)]
    pub default: Value,
    /// Seconds the worker waits.
    #[serde(default)]
    pub timeout: Option<u64>,
    /// What helps to answer: choices, a preview.
    #[serde(default)]
    pub metadata: Value,
}

/// Body of PUT: the answer to a question.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct InputResponse {
    /// The question.
    pub input_id: String,
    /// The answer; a missing key means the default, null means null.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "some")]
    pub value: Option<Value>,
    /// No answer will come.
    #[serde(default)]
    pub cancel: bool,
    /// Remarks, echoed in the event.
    #[serde(default)]
    pub metadata: Value,
}

fn some<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Option<Value>, D::Error> {
    Value::deserialize(deserializer).map(Some)
}

/// Body of PUT: the client is ready for the chunk at this offset.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct StreamCredit {
    /// Bytes from the start of the file.
    pub offset: u64,
}

/// What a PUT body is.
#[derive(Debug, Clone, PartialEq)]
pub enum PutBody {
    /// An answer.
    Input(InputResponse),
    /// Credit.
    Credit(StreamCredit),
    /// Content that a client of ours sends to the task: what follows [`CONTENT_MARK`].
    Content(Bytes),
}

/// How a PUT body with content begins: an object of its own, which ends with the line. Content is no text and would only grow in JSON.
/// A Python worker that gets one cannot read it and drops it.
pub const CONTENT_MARK: &[u8] = b"{\"content\":1}\n";

/// The key in an event's extras that says that progress events of the job were dropped on the way. Its value is an object with
/// `count`.
pub const MISSED_KEY: &str = "missed_events";

/// What an event is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EventType {
    /// The task goes on.
    Progress,
    /// The result is stored: ask for it.
    ResultReady,
    /// The task asks.
    InputRequest,
    /// The question was answered, cancelled or timed out.
    InputResponse,
}

/// How bad it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum Severity {
    /// Detail.
    Debug,
    /// News.
    #[default]
    Info,
    /// Look at it.
    Warning,
    /// Something failed.
    Error,
    /// All failed.
    Critical,
}

impl fmt::Display for Severity {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.pad(match self {
            Self::Debug => "DEBUG",
            Self::Info => "INFO",
            Self::Warning => "WARNING",
            Self::Error => "ERROR",
            Self::Critical => "CRITICAL",
        })
    }
}

/// The state word of an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EventStatus {
    /// Not begun.
    Pending,
    /// Has a date.
    Scheduled,
    /// Has begun.
    Started,
    /// Goes on.
    #[default]
    Running,
    /// Ended well.
    Completed,
    /// Ended badly.
    Failed,
    /// Asked its client.
    WaitingClientInput,
    /// Got its answer.
    Received,
    /// Was cancelled.
    Cancelled,
    /// Waited too long.
    Timeout,
    /// Cannot say.
    Unknown,
}

/// What an event is about: one thing or several. Kept in the form that came.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Resource {
    /// One.
    One(String),
    /// Several, or none.
    Many(Vec<String>),
}

impl Default for Resource {
    fn default() -> Self {
        Self::Many(Vec::new())
    }
}

/// Body of EVENT.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Event {
    /// Which worker.
    pub worker: Identity,
    /// Its service.
    pub service: ServiceName,
    /// Which job.
    pub uuid: JobId,
    /// What it is about.
    pub event_type: EventType,
    /// For people.
    pub message: String,
    /// Which task.
    pub task: String,
    /// State word.
    #[serde(default)]
    pub status: EventStatus,
    /// On what.
    #[serde(default)]
    pub resource: Resource,
    /// How bad.
    #[serde(default)]
    pub severity: Severity,
    /// Local time with milliseconds, `30-Nov-2026 00:33:08.011`, or what the task wrote.
    pub timestamp: String,
    /// More, for programs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub extras: Option<Map<String, Value>>,
    /// Seconds that the worker waits, for questions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout: Option<u64>,
}

impl Event {
    /// The question in an `input_request` event.
    pub fn input_request(&self) -> Option<InputRequest> {
        let value = self.extras.as_ref()?.get("input_request")?;
        serde_json::from_value(value.clone()).ok()
    }

    /// The id of the question that an `input_response` event is about.
    pub fn input_response_id(&self) -> Option<&str> {
        self.extras.as_ref()?.get("input_response")?.get("input_id")?.as_str()
    }

    /// In the word of a broker that progress events were dropped: how many.
    pub fn missed(&self) -> Option<u64> {
        self.extras.as_ref()?.get(MISSED_KEY)?.get("count")?.as_u64()
    }

    /// In the event that a job was cancelled: who wanted that, when and why.
    pub fn cancellation(&self) -> Option<&str> {
        self.extras.as_ref()?.get(CANCELLATION_KEY)?.get("text")?.as_str()
    }
}

/// Reads a body, which is a JSON object: our types could be read from lists too, but no peer means that. `expected` says
/// what belongs there, for the error.
pub fn decode<Body: DeserializeOwned>(expected: &'static str, bytes: &[u8]) -> Result<Body, DecodeError> {
    if bytes.trim_ascii_start().first() != Some(&b'{') {
        return Err(DecodeError::Body { expected, error: "it does not begin with the brace of an object".to_owned() });
    }
    serde_json::from_slice(bytes).map_err(|error| DecodeError::Body { expected, error: error.to_string() })
}

/// Writes a body, without spaces. Our bodies are plain data with text keys, which always can be written.
pub fn encode(body: &impl Serialize) -> Bytes {
    Bytes::from(serde_json::to_vec(body).expect("bodies are plain data with text keys"))
}

/// Reads a PUT body. An object without a known key is nothing of these: `Ok(None)`, as peers send empty ones. Content is a slice of the
/// body.
pub fn decode_put(bytes: &Bytes) -> Result<Option<PutBody>, DecodeError> {
    if bytes.starts_with(CONTENT_MARK) {
        return Ok(Some(PutBody::Content(bytes.slice(CONTENT_MARK.len()..))));
    }
    let object: Map<String, Value> = decode("a JSON object", bytes)?;
    if object.contains_key("input_id") {
        let input = serde_json::from_value(Value::Object(object))
            .map_err(|error| DecodeError::Body { expected: "an input answer", error: error.to_string() })?;
        return Ok(Some(PutBody::Input(input)));
    }
    if object.contains_key("offset") {
        let credit = serde_json::from_value(Value::Object(object))
            .map_err(|error| DecodeError::Body { expected: "a stream credit", error: error.to_string() })?;
        return Ok(Some(PutBody::Credit(credit)));
    }
    Ok(None)
}

/// Whether a PUT body is one: a JSON object, or content.
pub fn check_put(bytes: &[u8]) -> Result<(), DecodeError> {
    if bytes.starts_with(CONTENT_MARK) { Ok(()) } else { check_object(bytes) }
}

/// Replies up to this size are read completely to check that they are JSON; of larger ones only the outer braces and the
/// encoding are looked at, so that large results do not hold up the broker's loop.
pub const CHECKED_BYTES_MAX: usize = 64 << 10;

/// Whether bytes are a JSON object in UTF-8. Halves of surrogate pairs are let through, as Python writes and reads them.
pub fn check_object(bytes: &[u8]) -> Result<(), DecodeError> {
    let text = object_text(bytes)?;
    serde_json::from_str::<serde::de::IgnoredAny>(text).map_err(|error| not_an_object(error.to_string()))?;
    Ok(())
}

/// As [`check_object`], and reads of it what `Part` names.
pub fn check_and_read<Part: DeserializeOwned>(bytes: &[u8]) -> Result<Part, DecodeError> {
    serde_json::from_str(object_text(bytes)?).map_err(|error| not_an_object(error.to_string()))
}

/// As [`check_object`], as far as is cheap to say: see [`CHECKED_BYTES_MAX`].
pub fn check_relayed(bytes: &[u8]) -> Result<(), DecodeError> {
    if bytes.len() <= CHECKED_BYTES_MAX { check_object(bytes) } else { object_text(bytes).map(drop) }
}

/// The text between and with the outer braces. Checked as a whole, because the JSON reader skips over strings.
fn object_text(bytes: &[u8]) -> Result<&str, DecodeError> {
    let trimmed = bytes.trim_ascii();
    if trimmed.first() != Some(&b'{') || trimmed.last() != Some(&b'}') {
        return Err(not_an_object(format!("{} bytes without the braces of an object", bytes.len())));
    }
    std::str::from_utf8(trimmed).map_err(|error| not_an_object(error.to_string()))
}

fn not_an_object(error: String) -> DecodeError {
    DecodeError::Body { expected: "a JSON object", error }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_object_is_in_utf_8_and_checked_to_its_end_at_any_size() {
        assert!(check_object(br#" {"a": "\u00e4"} "#).is_ok());
        for checked in [check_object, check_relayed] {
            assert!(checked(b"{\"a\": \"\xff\"}").is_err(), "no UTF-8 ends threads of Python peers");
        }
        let long = "x".repeat(CHECKED_BYTES_MAX);
        assert!(check_object(format!(r#"{{"a": "{long}", nope}}"#).as_bytes()).is_err());
        assert!(check_relayed(format!(r#"{{"a": "{long}"}}"#).as_bytes()).is_ok());
        let wrong = [format!(r#"{{"a": "{long}"#).as_bytes(), b"\xff\"}"].concat();
        assert!(check_relayed(&wrong).is_err(), "the encoding of large replies, too");
    }

    #[test]
    fn a_list_is_no_body_even_where_its_elements_would_fit() {
        assert!(decode::<JobRequestBody>("a job request", br#"["echo"]"#).is_err());
        assert!(decode::<ManagementBody>("a management request", b"[]").is_err());
        assert!(decode::<ManagementBody>("a management request", b" {}").is_ok());
    }
}
