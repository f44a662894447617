//! The one file that reads clocks. Monotonic time for liveness, hold times, retries and deadlines; wall time only in what
//! people read and in what a database keeps across restarts.

use std::sync::OnceLock;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use jiff::Zoned;
use norfab_protocol::worker::TIMEOUT_SECONDS_MAX;

/// Longest time that is added to a clock: a hundred years, so that it cannot overflow.
pub(crate) const TIMEOUT_MAX: Duration = Duration::from_secs(TIMEOUT_SECONDS_MAX);

/// The system's clocks.
#[derive(Debug, Clone, Copy, Default)]
pub struct SystemClock;

impl SystemClock {
    /// Monotonic time.
    pub fn now() -> Instant {
        Instant::now()
    }

    /// Wall time.
    pub fn wall() -> SystemTime {
        SystemTime::now()
    }

    /// Wall time in Unix seconds; zero before 1970.
    pub fn unix() -> f64 {
        SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |since| since.as_secs_f64())
    }

    /// Unix seconds that go on steadily from what the wall clock said when this was first asked: for deadlines that a database keeps, which
    /// must not move when somebody sets the clock.
    pub(crate) fn steady_unix() -> f64 {
        static BEGIN: OnceLock<(Instant, f64)> = OnceLock::new();
        let (begin, unix) = BEGIN.get_or_init(|| (Instant::now(), Self::unix()));
        unix + begin.elapsed().as_secs_f64()
    }

    /// Local time for events: `30-Nov-2026 00:33:08.011`.
    pub fn event_timestamp() -> String {
        Zoned::now().strftime("%d-%b-%Y %H:%M:%S%.3f").to_string()
    }

    /// Local time in the form of C's `ctime`: `Mon Nov 30 00:33:08 2026`.
    pub fn ctime() -> String {
        Zoned::now().strftime("%a %b %e %H:%M:%S %Y").to_string()
    }

    /// A wall time in the form of C's `ctime`.
    pub fn ctime_of(unix: f64) -> String {
        match jiff::Timestamp::from_millisecond((unix * 1000.0) as i64) {
            Ok(at) => at.to_zoned(jiff::tz::TimeZone::system()).strftime("%a %b %e %H:%M:%S %Y").to_string(),
            Err(_) => String::new(),
        }
    }

    /// Local time for listings: `2026-11-30 00:33:08`; empty where there is no such time.
    pub fn local_of(unix: i64) -> String {
        match jiff::Timestamp::from_second(unix) {
            Ok(at) => at.to_zoned(jiff::tz::TimeZone::system()).strftime("%Y-%m-%d %H:%M:%S").to_string(),
            Err(_) => String::new(),
        }
    }

    /// Reads local time as Python peers write it down, `Mon Nov 30 00:33:08 2026` or `2026-11-30 00:35:35`; `None` for anything
    /// else.
    pub fn unix_of_local(text: &str) -> Option<f64> {
        let forms = ["%a %b %d %H:%M:%S %Y", "%Y-%m-%d %H:%M:%S"];
        let read = |form| jiff::civil::DateTime::strptime(form, text).ok();
        let local = forms.into_iter().find_map(read)?.to_zoned(jiff::tz::TimeZone::system()).ok()?;
        Some(local.timestamp().as_second() as f64)
    }

    /// UTC with microseconds: `2026-11-30T00:35:35.365206Z`.
    pub fn utc() -> String {
        jiff::Timestamp::now().strftime("%Y-%m-%dT%H:%M:%S%.6fZ").to_string()
    }

    /// For names of files that are set aside: `20261130-003535`.
    pub fn stamp() -> String {
        Zoned::now().strftime("%Y%m%d-%H%M%S").to_string()
    }
}

impl norfab_service::Clock for SystemClock {
    fn now(&self) -> Instant {
        Self::now()
    }

    fn event_timestamp(&self) -> String {
        Self::event_timestamp()
    }

    fn ctime(&self) -> String {
        Self::ctime()
    }

    fn utc(&self) -> String {
        jiff::Timestamp::now().strftime("%Y-%m-%dT%H:%M:%S%.6f+00:00").to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_for_people_have_the_recorded_forms() {
        assert_eq!(SystemClock::event_timestamp().len(), "30-Nov-2026 00:33:08.011".len());
        assert_eq!(SystemClock::ctime().len(), "Mon Nov 30 00:33:08 2026".len());
        assert_eq!(SystemClock::utc().len(), "2026-11-30T00:35:35.365206Z".len());
        let utc = norfab_service::Clock::utc(&SystemClock);
        assert_eq!(utc.len(), "2026-11-30T01:23:53.283543+00:00".len(), "{utc}");
        assert_eq!(SystemClock::ctime_of(f64::MAX), "");
        assert_eq!(SystemClock::local_of(i64::MAX), "");
    }

    #[test]
    fn times_that_were_written_down_are_read_back() {
        for unix in [0.0, 1_796_038_331.0, 1_785_628_801.0] {
            assert_eq!(SystemClock::unix_of_local(&SystemClock::ctime_of(unix)), Some(unix));
            assert_eq!(SystemClock::unix_of_local(&SystemClock::local_of(unix as i64)), Some(unix));
        }
        let both = ["Tue Dec  1 09:05:07 2026", "2026-12-01 09:05:07"].map(SystemClock::unix_of_local);
        assert!(both[0].is_some() && both[0] == both[1], "{both:?}");
        assert_eq!(SystemClock::unix_of_local("yesterday"), None);
    }
}
