//! What a task says while it runs.

use norfab_protocol::Severity;
use norfab_protocol::body::{EventStatus, Resource};
use serde_json::{Map, Value};

/// A progress event before it is sent. Who says it, of which job and when is added by the context.
///
/// ```
/// use norfab_service::{EventDraft, Severity};
/// let draft = EventDraft::new("interface is down").severity(Severity::Warning).resource("switch-1");
/// # let _ = draft;
/// ```
#[derive(Debug, Clone, PartialEq)]
pub struct EventDraft {
    pub(crate) message: String,
    pub(crate) task: Option<String>,
    pub(crate) status: EventStatus,
    pub(crate) resource: Resource,
    pub(crate) severity: Severity,
    pub(crate) timestamp: Option<String>,
    pub(crate) extras: Option<Map<String, Value>>,
    pub(crate) timeout: Option<u64>,
}

impl EventDraft {
    /// An event with a text for people: status `running`, severity INFO, about nothing in particular.
    pub fn new(message: impl Into<String>) -> Self {
        Self {
            message: message.into(),
            task: None,
            status: EventStatus::default(),
            resource: Resource::default(),
            severity: Severity::default(),
            timestamp: None,
            extras: None,
            timeout: None,
        }
    }

    /// The state word.
    pub fn status(mut self, status: EventStatus) -> Self {
        self.status = status;
        self
    }

    /// How bad it is.
    pub fn severity(mut self, severity: Severity) -> Self {
        self.severity = severity;
        self
    }

    /// The one thing it is about.
    pub fn resource(mut self, resource: impl Into<String>) -> Self {
        self.resource = Resource::One(resource.into());
        self
    }

    /// The things it is about.
    pub fn resources(mut self, resources: impl IntoIterator<Item = impl Into<String>>) -> Self {
        self.resource = Resource::Many(resources.into_iter().map(Into::into).collect());
        self
    }

    /// One more value for programs. A second one under the same key replaces the first.
    pub fn extra(mut self, key: impl Into<String>, value: impl Into<Value>) -> Self {
        self.extras.get_or_insert_default().insert(key.into(), value.into());
        self
    }

    /// All values for programs.
    pub fn extras(mut self, extras: Map<String, Value>) -> Self {
        self.extras = Some(extras);
        self
    }

    /// Another name of the task than its own, for what runs on behalf of another.
    pub fn task(mut self, task: impl Into<String>) -> Self {
        self.task = Some(task.into());
        self
    }

    /// Another time than now, in any form.
    pub fn timestamp(mut self, timestamp: impl Into<String>) -> Self {
        self.timestamp = Some(timestamp.into());
        self
    }

    /// Seconds that the event is about.
    pub fn timeout(mut self, seconds: u64) -> Self {
        self.timeout = Some(seconds);
        self
    }
}

impl From<&str> for EventDraft {
    fn from(message: &str) -> Self {
        Self::new(message)
    }
}

impl From<String> for EventDraft {
    fn from(message: String) -> Self {
        Self::new(message)
    }
}
