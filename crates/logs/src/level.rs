//! How grave a record is, in Python's words.

/// Levels of the log, from chatter to disaster.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Level {
    /// Detail for who looks for a fault. Events of `tracing`'s level TRACE are DEBUG as well.
    Debug,
    /// News.
    Info,
    /// Somebody should look at it.
    Warning,
    /// Something failed.
    Error,
    /// All failed: an ERROR event with the field `critical = true`.
    Critical,
}

impl Level {
    /// All levels, the chattiest first.
    pub const ALL: [Self; 5] = [Self::Debug, Self::Info, Self::Warning, Self::Error, Self::Critical];

    /// The word that is written to the log.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Debug => "DEBUG",
            Self::Info => "INFO",
            Self::Warning => "WARNING",
            Self::Error => "ERROR",
            Self::Critical => "CRITICAL",
        }
    }

    /// Reads a level as Python's logging knows it, in any case: the five words, and WARN, FATAL and NOTSET.
    pub fn from_name(name: &str) -> Option<Self> {
        match name.trim().to_ascii_uppercase().as_str() {
            "NOTSET" | "DEBUG" | "TRACE" => Some(Self::Debug),
            "INFO" => Some(Self::Info),
            "WARNING" | "WARN" => Some(Self::Warning),
            "ERROR" => Some(Self::Error),
            "CRITICAL" | "FATAL" => Some(Self::Critical),
            _ => None,
        }
    }

    /// Reads one of Python's numbers, where 10 is DEBUG and 50 CRITICAL: a number in between asks for the level above it.
    pub fn from_number(number: u64) -> Self {
        match number {
            0..=10 => Self::Debug,
            11..=20 => Self::Info,
            21..=30 => Self::Warning,
            31..=40 => Self::Error,
            _ => Self::Critical,
        }
    }

    /// The level that says `steps` kinds more (negative: fewer), as far as there are any.
    pub fn chattier(self, steps: i32) -> Self {
        let here = self as i32;
        let wanted = here.saturating_sub(steps).clamp(0, Self::Critical as i32);
        Self::ALL[usize::try_from(wanted).unwrap_or_default()]
    }

    /// The chattiest level of `tracing` that has to be looked at for records of this level.
    pub(crate) fn filter(self) -> tracing::level_filters::LevelFilter {
        use tracing::level_filters::LevelFilter;
        match self {
            Self::Debug => LevelFilter::TRACE,
            Self::Info => LevelFilter::INFO,
            Self::Warning => LevelFilter::WARN,
            Self::Error | Self::Critical => LevelFilter::ERROR,
        }
    }
}

impl From<tracing::Level> for Level {
    fn from(level: tracing::Level) -> Self {
        match level {
            tracing::Level::ERROR => Self::Error,
            tracing::Level::WARN => Self::Warning,
            tracing::Level::INFO => Self::Info,
            tracing::Level::DEBUG | tracing::Level::TRACE => Self::Debug,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels_are_read_as_python_writes_them() {
        for level in Level::ALL {
            assert_eq!(Level::from_name(level.as_str()), Some(level));
        }
        assert_eq!(Level::from_name(" warn "), Some(Level::Warning));
        assert_eq!(Level::from_name("LOUD"), None);
        assert_eq!(
            [10, 20, 25, 40, 50].map(Level::from_number).map(Level::as_str),
            ["DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL"]
        );
    }

    #[test]
    fn steps_stop_at_both_ends() {
        assert_eq!(Level::Warning.chattier(1), Level::Info);
        assert_eq!(Level::Warning.chattier(9), Level::Debug);
        assert_eq!(Level::Warning.chattier(-1), Level::Error);
        assert_eq!(Level::Warning.chattier(i32::MIN), Level::Critical);
    }
}
