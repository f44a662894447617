//! Job events in the log.

use crate::level::Level;

/// Target of the records of job events: they are logged only where the inventory's `logging.log_events` is true.
pub(crate) const EVENT_TARGET: &str = "norfab::events";

/// One job event as the log shows it.
#[derive(Debug, Clone, Copy)]
pub struct EventLine<'a> {
    /// The worker that told it.
    pub worker: &'a str,
    /// The task that runs.
    pub task: &'a str,
    /// The job.
    pub job_uuid: &'a str,
    /// Kind of event, for example `progress`.
    pub event_type: &'a str,
    /// How grave it is.
    pub severity: Level,
    /// What it says.
    pub message: &'a str,
}

/// Copies a job event into the log: `EVENT worker:task - message`, with the fields worker, task, job_uuid and event_type.
///
/// Call it for every event: where the inventory does not ask for events in the log, nothing is formatted.
pub fn log_event(line: &EventLine<'_>) {
    let EventLine { worker, task, job_uuid, event_type, severity, message } = *line;
    macro_rules! say {
        ($level:expr $(, $field:ident = $value:expr)*) => {
            tracing::event!(
                target: EVENT_TARGET, $level, $($field = $value,)* worker, task, job_uuid, event_type,
                "EVENT {worker}:{task} - {message}"
            )
        };
    }
    match severity {
        Level::Debug => say!(tracing::Level::DEBUG),
        Level::Info => say!(tracing::Level::INFO),
        Level::Warning => say!(tracing::Level::WARN),
        Level::Error => say!(tracing::Level::ERROR),
        Level::Critical => say!(tracing::Level::ERROR, critical = true),
    }
}
