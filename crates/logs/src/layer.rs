//! Events of `tracing` become records: whose they are, what they say, and where they were said.

use std::cell::OnceCell;
use std::error::Error;
use std::fmt;
use std::sync::Arc;
use std::time::SystemTime;

use jiff::Timestamp;
use tracing::field::{Field, Visit};
use tracing::level_filters::LevelFilter;
use tracing::span::{Attributes, Id};
use tracing::{Event, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::layer::Context;
use tracing_subscriber::registry::{LookupSpan, SpanRef};

use crate::event::EVENT_TARGET;
use crate::level::Level;
use crate::queue::Queue;
use crate::record::{
    BoundedText, EXCEPTION, EXCEPTION_BYTES_MAX, MESSAGE_BYTES_MAX, OPTIONAL_FIELDS, OptionalFields, Record,
};
use crate::role::{Owner, ROLE_TARGET, Role};

/// Libraries below us say much at DEBUG, payloads among it: their events are logged from this level on.
const FOREIGN_LEVEL: Level = Level::Info;

/// How the targets of our own crates begin.
const OWN_PREFIX: &str = "norfab";

/// The layer that turns events into records and hands them to the writers.
pub struct LogLayer {
    pub(crate) files: Option<Output>,
    pub(crate) terminal: Option<Output>,
    pub(crate) default_owner: Arc<Owner>,
    pub(crate) log_events: bool,
    pub(crate) wall_clock: fn() -> SystemTime,
}

/// One place that records go to.
pub(crate) struct Output {
    pub queue: Queue,
    pub level: Level,
}

impl<S: Subscriber + for<'a> LookupSpan<'a>> Layer<S> for LogLayer {
    fn max_level_hint(&self) -> Option<LevelFilter> {
        let level = self.outputs().map(|output| output.level).min();
        // Spans that carry roles are of the gravest level: they pass every filter but OFF.
        Some(level.map_or(LevelFilter::ERROR, Level::filter))
    }

    fn on_new_span(&self, attributes: &Attributes<'_>, id: &Id, context: Context<'_, S>) {
        let Some(span) = context.span(id) else { return };
        if attributes.metadata().target() == ROLE_TARGET {
            let mut role = RoleFields::default();
            attributes.record(&mut role);
            if let (Some(role), Some(name)) = (role.role, role.name) {
                span.extensions_mut().insert(Arc::new(Owner::new(role, &name)));
            }
        } else if attributes.metadata().fields().iter().any(|field| OPTIONAL_FIELDS.contains(&field.name())) {
            let mut fields = EventFields::default();
            attributes.record(&mut fields);
            span.extensions_mut().insert(SpanFields(fields.optional.map(|text| text.map(BoundedText::finish))));
        }
    }

    fn on_event(&self, event: &Event<'_>, context: Context<'_, S>) {
        let metadata = event.metadata();
        let gravest = match Level::from(*metadata.level()) {
            Level::Error => Level::Critical,
            level => level,
        };
        if !self.outputs().any(|output| gravest >= output.level)
            || (gravest < FOREIGN_LEVEL && !metadata.target().starts_with(OWN_PREFIX))
            || (metadata.target() == EVENT_TARGET && !self.log_events)
        {
            return;
        }
        let mut fields = EventFields::default();
        event.record(&mut fields);
        let level = if fields.critical { gravest } else { Level::from(*metadata.level()) };
        let terminal = self.terminal.iter().filter(|_| !fields.told);
        let wanted: Vec<&Output> = self.files.iter().chain(terminal).filter(|output| level >= output.level).collect();
        if wanted.is_empty() {
            return;
        }

        let mut owner = None;
        let mut function = "";
        let mut optional = std::mem::take(&mut fields.optional).map(|text| text.map(BoundedText::finish));
        for span in context.event_scope(event).into_iter().flatten() {
            if let Some(found) = owner_of(&span) {
                owner = owner.or(Some(found));
            } else if function.is_empty() {
                function = span.name();
            }
            if let Some(SpanFields(inherited)) = span.extensions().get() {
                for (value, inherited) in optional.iter_mut().zip(inherited) {
                    if value.is_none() {
                        value.clone_from(inherited);
                    }
                }
            }
        }
        let record = Arc::new(Record {
            at: Timestamp::try_from((self.wall_clock)()).unwrap_or(Timestamp::UNIX_EPOCH),
            level,
            target: metadata.target(),
            message: fields.message(),
            thread: thread_name(),
            owner: owner.unwrap_or_else(|| Arc::clone(&self.default_owner)),
            module: last_part(metadata.module_path().unwrap_or(metadata.target()), "::"),
            function,
            line: metadata.line().unwrap_or(0),
            source_file: metadata.file().map_or("", |path| last_part(path, std::path::MAIN_SEPARATOR_STR)),
            optional,
        });
        for output in wanted {
            output.queue.push(Arc::clone(&record));
        }
    }
}

impl LogLayer {
    fn outputs(&self) -> impl Iterator<Item = &Output> {
        self.files.iter().chain(&self.terminal)
    }
}

fn owner_of<'a, S: LookupSpan<'a>>(span: &SpanRef<'a, S>) -> Option<Arc<Owner>> {
    span.extensions().get::<Arc<Owner>>().cloned()
}

fn last_part(text: &'static str, separator: &str) -> &'static str {
    text.rsplit(separator).next().unwrap_or(text)
}

/// Name of this thread; the main one is called as Python calls it.
fn thread_name() -> Arc<str> {
    thread_local! {
        static NAME: OnceCell<Arc<str>> = const { OnceCell::new() };
    }
    let find = || {
        let thread = std::thread::current();
        match thread.name() {
            Some("main") => Arc::from("MainThread"),
            Some(name) => Arc::from(name),
            None => Arc::from(format!("{:?}", thread.id())),
        }
    };
    // While a thread ends its locals are gone already.
    NAME.try_with(|name| Arc::clone(name.get_or_init(find))).unwrap_or_else(|_| Arc::from("ending"))
}

/// Fields of a span that its events inherit.
struct SpanFields(OptionalFields);

#[derive(Default)]
struct RoleFields {
    role: Option<Role>,
    name: Option<String>,
}

impl Visit for RoleFields {
    fn record_str(&mut self, field: &Field, value: &str) {
        match field.name() {
            "role" => self.role = Role::from_word(value),
            "name" => self.name = Some(value.to_owned()),
            _ => {}
        }
    }

    fn record_debug(&mut self, _: &Field, _: &dyn fmt::Debug) {}
}

/// What an event says: its message, the fields with keys of their own, and the others as ` key=value`.
#[derive(Default)]
struct EventFields {
    message: BoundedText,
    others: BoundedText,
    optional: [Option<BoundedText>; OPTIONAL_FIELDS.len()],
    critical: bool,
    /// Whether the process has told it on the terminal itself.
    told: bool,
}

impl EventFields {
    fn take(&mut self, field: &Field, value: fmt::Arguments<'_>) {
        let name = field.name();
        if name == "message" {
            self.message.push(value, MESSAGE_BYTES_MAX);
        } else if let Some(index) = OPTIONAL_FIELDS.iter().position(|optional| *optional == name) {
            let bytes_max = if index == EXCEPTION { EXCEPTION_BYTES_MAX } else { MESSAGE_BYTES_MAX };
            self.optional[index].get_or_insert_default().push(value, bytes_max);
        } else {
            self.others.push(format_args!(" {name}={value}"), MESSAGE_BYTES_MAX);
        }
    }

    fn message(&mut self) -> String {
        let mut message = std::mem::take(&mut self.message);
        let others = std::mem::take(&mut self.others).finish();
        if message.is_empty() {
            message.push(format_args!("{}", others.trim_start()), MESSAGE_BYTES_MAX);
        } else {
            message.push(format_args!("{others}"), MESSAGE_BYTES_MAX);
        }
        message.finish()
    }
}

impl Visit for EventFields {
    fn record_str(&mut self, field: &Field, value: &str) {
        let plain = !value.is_empty() && !value.contains(|c: char| c.is_whitespace() || matches!(c, '"' | '='));
        if plain || field.name() == "message" || OPTIONAL_FIELDS.contains(&field.name()) {
            self.take(field, format_args!("{value}"));
        } else {
            self.take(field, format_args!("{value:?}"));
        }
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        match field.name() {
            "critical" => self.critical = value,
            "told" => self.told = value,
            _ => self.take(field, format_args!("{value}")),
        }
    }

    fn record_error(&mut self, field: &Field, value: &(dyn Error + 'static)) {
        self.take(field, format_args!("{}", Chain(value)));
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.take(field, format_args!("{value:?}"));
    }
}

/// An error with its causes.
struct Chain<'a>(&'a (dyn Error + 'static));

impl fmt::Display for Chain<'_> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}", self.0)?;
        let mut source = self.0.source();
        while let Some(cause) = source {
            out.write_str(": ")?;
            write!(out, "{cause}")?;
            source = cause.source();
        }
        Ok(())
    }
}
