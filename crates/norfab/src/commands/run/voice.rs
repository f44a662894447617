//! How `norfab run` speaks on standard error: to people, in lines of JSON, or hardly.

use norfab_protocol::body::Event;
use serde_json::{Value, json};

use crate::args::Events;
use crate::commands::signalled;
use crate::exit::Code;
use crate::printer;

/// Who listens on standard error.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Voice {
    /// People.
    Text,
    /// Programs: every line is a JSON object.
    Json,
    /// Programs that want to hear of errors only.
    QuietJson,
    /// People who want to hear nothing of events.
    NoEvents,
    /// People who want to hear of errors only.
    Quiet,
}

impl Voice {
    /// What was asked for.
    pub fn new(events: Events, quiet: bool) -> Self {
        match events {
            Events::Json if quiet => Self::QuietJson,
            Events::Json => Self::Json,
            Events::Text | Events::None if quiet => Self::Quiet,
            Events::None => Self::NoEvents,
            Events::Text => Self::Text,
        }
    }

    /// Whether every line is a JSON object.
    pub fn is_json(self) -> bool {
        matches!(self, Self::Json | Self::QuietJson)
    }

    /// An event; the body as it came.
    pub fn event(self, event: &Event, body: &[u8]) {
        match self {
            Self::Text => printer::remark(&printer::event_text(event)),
            // Written anew, because a body may have line ends between its values.
            Self::Json => match serde_json::from_slice::<Value>(body) {
                Ok(value) => printer::json_remark(&value),
                Err(error) => self.warning(&format!("an event of worker {} cannot be shown: {error}", event.worker)),
            },
            Self::NoEvents | Self::Quiet | Self::QuietJson => {}
        }
    }

    /// Something that went wrong.
    pub fn error(self, text: &str) {
        match self {
            Self::Json | Self::QuietJson => level("ERROR", text),
            Self::Text | Self::NoEvents | Self::Quiet => printer::error(text),
        }
    }

    /// Something that may be wrong.
    pub fn warning(self, text: &str) {
        match self {
            Self::Json | Self::QuietJson => level("WARNING", text),
            Self::Text | Self::NoEvents | Self::Quiet => printer::warning(text),
        }
    }

    /// Something to know.
    pub fn information(self, text: &str) {
        match self {
            Self::Json => level("INFO", text),
            Self::Text | Self::NoEvents => printer::remark(text),
            Self::Quiet | Self::QuietJson => {}
        }
    }

    /// A line at the question that stands on the terminal: also for those who want to hear little.
    pub fn at_prompt(self, text: &str) {
        match self {
            // It would only end the line of the prompt, which is none here.
            Self::Json | Self::QuietJson if text.is_empty() => {}
            Self::Json | Self::QuietJson => level("INFO", text),
            Self::Text | Self::NoEvents | Self::Quiet => printer::remark(text),
        }
    }

    /// The last words after a signal; after Ctrl-C, below what the terminal shows of it.
    pub fn interrupted(self, code: Code, text: &str) {
        let word = signalled(code);
        let begin = if code == Code::Interrupted { "\n" } else { "" };
        match self {
            Self::Json | Self::QuietJson => level("WARNING", &format!("{word}: {text}")),
            Self::Text | Self::NoEvents | Self::Quiet => printer::remark(&format!("{begin}{word}: {text}")),
        }
    }
}

fn level(level: &str, text: &str) {
    printer::json_remark(&json!({ "level": level, "message": text }));
}
