//! Logs of the fabric: JSON lines, one file per role, in the record shape of Python NorFab; human text on the terminal; and
//! a reader that serves the files of both.
//!
//! The rest of the fabric only uses the macros of `tracing`. The binary calls [`init`] once and keeps the [`LogGuard`]; each
//! owner of a role enters the span of [`role_span`], which says whose file its events go to.
//!
//! Nothing here holds up who logs: events are put into bounded queues, and two threads of their own write the files and the
//! terminal. What does not fit is counted, and a record says how many were lost. A full disk takes nothing down.
//!
//! Two fields of an event are orders: `critical = true` makes an ERROR CRITICAL, and `told = true` keeps it from the terminal,
//! where the process has told it in its own words.
//!
//! Reading order: [`role`] and [`level`]; `layer` (an event becomes a `record`), `queue`, `file_writer` with
//! `rotating_file`, [`terminal`]; [`mod@start`] (puts them together); [`settings`]; [`read`] with `lines_backwards`.
#![warn(missing_docs)]

pub mod event;
mod file_writer;
mod layer;
pub mod level;
mod lines_backwards;
mod queue;
pub mod read;
mod record;
pub mod role;
mod rotating_file;
pub mod settings;
pub mod start;
pub mod terminal;

pub use event::{EventLine, log_event};
pub use layer::LogLayer;
pub use level::Level;
pub use queue::QUEUE_RECORDS_MAX;
pub use read::{LogQuery, read_logs};
pub use record::{EXCEPTION_BYTES_MAX, MESSAGE_BYTES_MAX};
pub use role::{Role, role_span};
pub use settings::{LogSettings, SettingsError};
pub use start::{LogConfig, LogGuard, LogHandle, StartError, init, start};
pub use terminal::{Terminal, is_coloured};
