//! The result of a task: fourteen keys, always all of them, always in this order.

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

/// How a task ended, as the recorded peers name it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ResultStatus {
    /// Ran to its end.
    Completed,
    /// Nothing matched what was asked for.
    NoMatch,
    /// Ran and failed.
    Failed,
    /// Was not needed.
    Skipped,
    /// Raised an error.
    Error,
    /// Made something.
    Created,
    /// Changed something.
    Updated,
    /// Found nothing to change.
    Unchanged,
    /// Took longer than it may.
    Timeout,
}

/// The result of a task on one worker. The value is kept as the JSON text that it is on the wire, so that a large one is
/// written once and copied, never rebuilt.
pub type TaskResult = ResultOf<Box<RawValue>>;

/// A result whose value lies in the JSON text that it was read from: to look at a large one without a copy.
pub type ResultView<'a> = ResultOf<&'a RawValue>;

/// A result with a value of a certain kind: [`TaskResult`], [`ResultView`].
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(bound(deserialize = "Held: HeldValue + Deserialize<'de>"))]
pub struct ResultOf<Held> {
    /// What the task returned: any JSON.
    #[serde(default = "HeldValue::null")]
    pub result: Held,
    /// Whether it failed.
    #[serde(default)]
    pub failed: bool,
    /// Why, for people.
    #[serde(default)]
    pub errors: Vec<String>,
    /// `worker:task` unless the task says otherwise.
    #[serde(default)]
    pub task: Option<String>,
    /// Remarks.
    #[serde(default)]
    pub messages: Vec<String>,
    /// The job's id.
    #[serde(default)]
    pub juuid: Option<String>,
    /// What the task worked on.
    #[serde(default)]
    pub resources: Vec<String>,
    /// What of that failed.
    #[serde(default)]
    pub resources_failed: Vec<String>,
    /// How it ended.
    #[serde(default)]
    pub status: Option<ResultStatus>,
    /// Local time, in the form of C's `ctime`.
    #[serde(default)]
    pub task_started: Option<String>,
    /// Local time, in the form of C's `ctime`.
    #[serde(default)]
    pub task_completed: Option<String>,
    /// The worker's service.
    #[serde(default)]
    pub service: Option<String>,
    /// What changed: an object, a text, or nothing.
    #[serde(default)]
    pub diff: Option<serde_json::Value>,
    /// Whether nothing was to be changed.
    #[serde(default)]
    pub dry_run: bool,
}

/// How a result holds its value.
pub trait HeldValue {
    /// No value.
    fn null() -> Self;

    /// The JSON text.
    fn text(&self) -> &str;
}

impl HeldValue for Box<RawValue> {
    fn null() -> Self {
        RawValue::NULL.to_owned()
    }

    fn text(&self) -> &str {
        self.get()
    }
}

impl HeldValue for &RawValue {
    fn null() -> Self {
        RawValue::NULL
    }

    fn text(&self) -> &str {
        self.get()
    }
}

impl<Held: HeldValue> Default for ResultOf<Held> {
    fn default() -> Self {
        Self {
            result: Held::null(),
            failed: false,
            errors: Vec::new(),
            task: None,
            messages: Vec::new(),
            juuid: None,
            resources: Vec::new(),
            resources_failed: Vec::new(),
            status: None,
            task_started: None,
            task_completed: None,
            service: None,
            diff: None,
            dry_run: false,
        }
    }
}

impl TaskResult {
    /// A result that holds a value. Errors: the value cannot be written as JSON (a map whose keys are no texts, say).
    pub fn completed(value: &impl Serialize) -> Result<Self, serde_json::Error> {
        Ok(Self {
            result: serde_json::value::to_raw_value(value)?,
            status: Some(ResultStatus::Completed),
            ..Self::default()
        })
    }
}

impl<Held: HeldValue> ResultOf<Held> {
    /// A result that says why there is none.
    pub fn failed(status: ResultStatus, error: impl Into<String>) -> Self {
        Self { failed: true, errors: vec![error.into()], status: Some(status), ..Self::default() }
    }

    /// The value, read as JSON. `None` where it is too deep for the reader.
    pub fn value(&self) -> Option<serde_json::Value> {
        serde_json::from_str(self.result.text()).ok()
    }
}

impl<Held> ResultOf<Held> {
    /// The same with another value.
    pub fn map_value<Other>(self, other: impl FnOnce(Held) -> Other) -> ResultOf<Other> {
        ResultOf {
            result: other(self.result),
            failed: self.failed,
            errors: self.errors,
            task: self.task,
            messages: self.messages,
            juuid: self.juuid,
            resources: self.resources,
            resources_failed: self.resources_failed,
            status: self.status,
            task_started: self.task_started,
            task_completed: self.task_completed,
            service: self.service,
            diff: self.diff,
            dry_run: self.dry_run,
        }
    }
}

impl ResultView<'_> {
    /// A copy that needs nothing else.
    pub fn to_owned(self) -> TaskResult {
        self.map_value(RawValue::to_owned)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_fourteen_keys_are_sent_in_the_recorded_order() {
        let text = serde_json::to_string(&TaskResult::default()).expect("plain data");
        assert_eq!(
            text,
            r#"{"result":null,"failed":false,"errors":[],"task":null,"messages":[],"juuid":null,"resources":[],"resources_failed":[],"status":null,"task_started":null,"task_completed":null,"service":null,"diff":null,"dry_run":false}"#
        );
    }

    #[test]
    fn a_view_of_a_result_has_its_value_where_the_text_is() {
        let text = r#"{"result":{"a": [1]},"failed":true,"errors":["e"]}"#;
        let view: ResultView<'_> = serde_json::from_str(text).expect("a result");
        assert_eq!(view.result.get().as_ptr(), text[10..].as_ptr());
        let owned = view.to_owned();
        assert_eq!(
            (owned.result.get(), owned.failed, &owned.errors[..]),
            (r#"{"a": [1]}"#, true, &["e".to_owned()][..])
        );
        let none: ResultView<'_> = serde_json::from_str("{}").expect("a result");
        assert_eq!(none.result.get(), "null");
    }
}
