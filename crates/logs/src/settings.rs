//! What the inventory's `logging` section says.

use serde_json::Value;

use crate::level::Level;

/// Bytes of a log file before it is rotated, as Python NorFab has it.
pub const FILE_BYTES_DEFAULT: u64 = 1_024_000;

/// Rotated files that are kept, as Python NorFab has it.
pub const BACKUPS_DEFAULT: u32 = 30;

/// Rotated files that can be asked for: each rotation renames all of them.
pub const BACKUPS_MAX: u32 = 1_000;

/// What is logged, and where to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogSettings {
    /// The least grave level of the log files.
    pub file_level: Level,
    /// The least grave level on the terminal.
    pub terminal_level: Level,
    /// Bytes of a log file before it is rotated; 0: never.
    pub file_bytes_max: u64,
    /// Rotated files that are kept; 0: files are never rotated.
    pub backups: u32,
    /// Whether job events are copied into the log.
    pub log_events: bool,
}

impl Default for LogSettings {
    /// Files from INFO, the terminal from WARNING: people should see what went wrong, without the news.
    fn default() -> Self {
        Self {
            file_level: Level::Info,
            terminal_level: Level::Warning,
            file_bytes_max: FILE_BYTES_DEFAULT,
            backups: BACKUPS_DEFAULT,
            log_events: false,
        }
    }
}

/// What is wrong in the inventory's `logging` section.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SettingsError {
    /// Not a level.
    #[error("logging.{key}: {}", self.problem())]
    Level {
        /// Where, for example `handlers.file.level`.
        key: &'static str,
        /// What is there, as JSON.
        value: String,
    },
    /// Not a number, or one that is too large.
    #[error("logging.{key}: {}", self.problem())]
    Number {
        /// Where.
        key: &'static str,
        /// What is there, as JSON.
        value: String,
        /// The largest that is accepted.
        max: u64,
    },
    /// Not a boolean.
    #[error("logging.{key}: {}", self.problem())]
    Flag {
        /// Where.
        key: &'static str,
        /// What is there, as JSON.
        value: String,
    },
}

impl SettingsError {
    /// The key below `logging`, for example `handlers.file.level`.
    pub fn key(&self) -> &'static str {
        match self {
            Self::Level { key, .. } | Self::Number { key, .. } | Self::Flag { key, .. } => key,
        }
    }

    /// What is wrong there, without the key.
    pub fn problem(&self) -> String {
        match self {
            Self::Level { value, .. } => {
                format!("expected DEBUG, INFO, WARNING, ERROR or CRITICAL, found {value}")
            }
            Self::Number { value, max, .. } => format!("expected a whole number from 0 to {max}, found {value}"),
            Self::Flag { value, .. } => format!("expected true or false, found {value}"),
        }
    }
}

impl LogSettings {
    /// Reads the inventory's `logging` section: `handlers.file.level`, `.maxBytes` and `.backupCount`,
    /// `handlers.terminal.level`, `root.level`, `log_events`. Null stands for an absent section.
    ///
    /// A root level that is given bounds both handlers, as in Python. The rest of Python's logging configuration is passed
    /// over: other handlers, formatters, loggers.
    ///
    /// # Errors
    /// A value that is none: named with its key, so that nobody searches the log for records that a typing mistake keeps out.
    pub fn from_inventory(logging: &Value) -> Result<Self, SettingsError> {
        let mut settings = Self::default();
        if let Some(level) = level_at(logging, "/handlers/file/level", "handlers.file.level")? {
            settings.file_level = level;
        }
        if let Some(level) = level_at(logging, "/handlers/terminal/level", "handlers.terminal.level")? {
            settings.terminal_level = level;
        }
        if let Some(root) = level_at(logging, "/root/level", "root.level")? {
            settings.file_level = settings.file_level.max(root);
            settings.terminal_level = settings.terminal_level.max(root);
        }
        let bytes = number_at(logging, "/handlers/file/maxBytes", "handlers.file.maxBytes", u64::MAX)?;
        settings.file_bytes_max = bytes.unwrap_or(settings.file_bytes_max);
        let backups =
            number_at(logging, "/handlers/file/backupCount", "handlers.file.backupCount", u64::from(BACKUPS_MAX))?;
        settings.backups = backups.and_then(|count| u32::try_from(count).ok()).unwrap_or(settings.backups);
        match logging.pointer("/log_events") {
            None | Some(Value::Null) => {}
            Some(Value::Bool(flag)) => settings.log_events = *flag,
            Some(other) => return Err(SettingsError::Flag { key: "log_events", value: other.to_string() }),
        }
        Ok(settings)
    }

    /// These settings with what the command line says: each `-v` shows one level more on the terminal, counted from WARNING
    /// where the inventory keeps it quieter; each `-q` one less. What `-v` shows is in the file too.
    #[must_use]
    pub fn with_verbosity(mut self, verbose: u8, quiet: u8) -> Self {
        if verbose > 0 {
            self.terminal_level = self.terminal_level.min(Level::Warning);
        }
        self.terminal_level = self.terminal_level.chattier(i32::from(verbose) - i32::from(quiet));
        if verbose > 0 {
            self.file_level = self.file_level.min(self.terminal_level);
        }
        self
    }
}

fn level_at(logging: &Value, pointer: &str, key: &'static str) -> Result<Option<Level>, SettingsError> {
    let level = match logging.pointer(pointer) {
        None | Some(Value::Null) => return Ok(None),
        Some(Value::String(name)) => Level::from_name(name),
        Some(Value::Number(number)) => number.as_u64().map(Level::from_number),
        Some(_) => None,
    };
    match (level, logging.pointer(pointer)) {
        (None, Some(value)) => Err(SettingsError::Level { key, value: value.to_string() }),
        (level, _) => Ok(level),
    }
}

fn number_at(logging: &Value, pointer: &str, key: &'static str, max: u64) -> Result<Option<u64>, SettingsError> {
    match logging.pointer(pointer) {
        None | Some(Value::Null) => Ok(None),
        Some(value) => match value.as_u64().filter(|number| *number <= max) {
            Some(number) => Ok(Some(number)),
            None => Err(SettingsError::Number { key, value: value.to_string(), max }),
        },
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn an_absent_section_gives_the_defaults() {
        for absent in [json!(null), json!({})] {
            let settings = LogSettings::from_inventory(&absent).unwrap();
            assert_eq!(settings, LogSettings::default());
            assert_eq!((settings.file_level, settings.terminal_level), (Level::Info, Level::Warning));
            assert_eq!((settings.file_bytes_max, settings.backups), (1_024_000, 30));
        }
    }

    #[test]
    fn a_python_configuration_is_read_and_its_foreign_parts_are_passed_over() {
        let settings = LogSettings::from_inventory(&json!({
            "version": 1, "disable_existing_loggers": false,
            "formatters": {"default": {"class": "logging.Formatter", "format": "%(message)s"}},
            "handlers": {
                "terminal": {"class": "logging.StreamHandler", "formatter": "default", "level": "CRITICAL"},
                "file": {"class": "logging.handlers.RotatingFileHandler", "level": "DEBUG", "maxBytes": 2000, "backupCount": 3},
                "syslog": {"class": "logging.handlers.SysLogHandler", "level": 17}
            },
            "loggers": {"paramiko": {"level": "WARNING"}},
            "root": {"handlers": ["terminal", "file"], "level": "INFO"},
            "log_events": true
        }))
        .unwrap();
        assert_eq!(
            settings,
            LogSettings {
                file_level: Level::Info,
                terminal_level: Level::Critical,
                file_bytes_max: 2000,
                backups: 3,
                log_events: true,
            }
        );
    }

    #[test]
    fn a_file_level_alone_is_not_held_back_by_the_root() {
        let settings = LogSettings::from_inventory(&json!({"handlers": {"file": {"level": 10}}})).unwrap();
        assert_eq!(settings.file_level, Level::Debug);
    }

    #[test]
    fn a_wrong_value_is_named_with_its_key() {
        let wrong = |logging: Value| LogSettings::from_inventory(&logging).unwrap_err().to_string();
        assert_eq!(
            wrong(json!({"handlers": {"terminal": {"level": "LOUD"}}})),
            "logging.handlers.terminal.level: expected DEBUG, INFO, WARNING, ERROR or CRITICAL, found \"LOUD\""
        );
        assert_eq!(wrong(json!({"log_events": "yes"})), "logging.log_events: expected true or false, found \"yes\"");
        assert!(wrong(json!({"handlers": {"file": {"backupCount": 5000}}})).contains("from 0 to 1000"));
        assert!(wrong(json!({"handlers": {"file": {"maxBytes": -1}}})).contains("maxBytes: expected a whole number"));
    }

    #[test]
    fn the_command_line_raises_and_lowers_the_terminal_and_the_file_follows_it() {
        let with = |verbose, quiet| LogSettings::default().with_verbosity(verbose, quiet);
        assert_eq!(with(0, 0), LogSettings::default());
        assert_eq!((with(1, 0).terminal_level, with(1, 0).file_level), (Level::Info, Level::Info));
        assert_eq!((with(2, 0).terminal_level, with(2, 0).file_level), (Level::Debug, Level::Debug));
        assert_eq!((with(0, 1).terminal_level, with(0, 1).file_level), (Level::Error, Level::Info));
        assert_eq!(with(0, 9).terminal_level, Level::Critical);
        let quiet_inventory = LogSettings { terminal_level: Level::Critical, ..LogSettings::default() };
        assert_eq!(quiet_inventory.with_verbosity(1, 0).terminal_level, Level::Info);
    }
}
