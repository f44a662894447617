//! What a process uses, as `get_stats` tells it.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::clock::SystemClock;

/// How long figures that take a walk through the process's files are good for: with thousands of connections it takes
/// milliseconds, and anybody may ask as often as they like.
const WALK_INTERVAL: Duration = Duration::from_secs(1);

/// Remembers when it was last asked, to tell the share of a processor since then.
#[derive(Debug)]
pub struct ProcessFigures {
    started: Instant,
    last: (Instant, f64),
    walked: Option<(Instant, Walked)>,
}

/// What is counted by looking at all files of the process.
#[derive(Debug, Clone, Copy)]
struct Walked {
    descriptors: usize,
    sockets: usize,
    threads: usize,
}

impl Default for ProcessFigures {
    fn default() -> Self {
        let now = SystemClock::now();
        Self { started: now, last: (now, cpu_seconds()), walked: None }
    }
}

impl ProcessFigures {
    /// The figures now. Where the system does not tell one it is zero.
    pub fn read(&mut self, now: Instant) -> Value {
        let used = cpu_seconds();
        let (then, before) = self.last;
        let wall = now.saturating_duration_since(then).as_secs_f64();
        let percent = if wall > 0.0 { ((used - before) / wall * 1000.0).round() / 10.0 } else { 0.0 };
        self.last = (now, used);
        let Walked { descriptors, sockets, threads } = self.walk(now);
        json!({
            "cpu_percent": percent,
            "memory_rss_mbyte": resident_megabytes(),
            "uptime_seconds": now.saturating_duration_since(self.started).as_secs(),
            "open_file_descriptors": descriptors,
            "tcp_sockets": sockets,
            "threads": threads,
        })
    }

    fn walk(&mut self, now: Instant) -> Walked {
        match self.walked {
            Some((then, walked)) if now.saturating_duration_since(then) < WALK_INTERVAL => walked,
            _ => {
                let (descriptors, threads) = (entries("/proc/self/fd"), entries("/proc/self/task"));
                let walked = Walked { descriptors, sockets: tcp_sockets(), threads };
                self.walked = Some((now, walked));
                walked
            }
        }
    }

    /// Time since the process began its role.
    pub fn uptime(&self, now: Instant) -> Duration {
        now.saturating_duration_since(self.started)
    }
}

/// Resident memory in MiB.
pub fn resident_megabytes() -> f64 {
    let pages = std::fs::read_to_string("/proc/self/statm")
        .ok()
        .and_then(|text| text.split_whitespace().nth(1)?.parse::<f64>().ok())
        .unwrap_or(0.0);
    pages * rustix::param::page_size() as f64 / f64::from(1 << 20)
}

fn cpu_seconds() -> f64 {
    let clock = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    clock.tv_sec as f64 + clock.tv_nsec as f64 / 1e9
}

fn entries(path: &str) -> usize {
    std::fs::read_dir(path).map_or(0, Iterator::count)
}

fn tcp_sockets() -> usize {
    std::fs::read_dir("/proc/self/fd").map_or(0, |fds| {
        fds.flatten()
            .filter(|fd| std::fs::read_link(fd.path()).is_ok_and(|link| link.to_string_lossy().starts_with("socket:")))
            .count()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_files_of_the_process_are_counted_once_a_second_at_most() {
        let now = SystemClock::now();
        let mut figures = ProcessFigures::default();
        let before = figures.read(now)["open_file_descriptors"].clone();
        let opened: Vec<std::fs::File> =
            (0..100).map(|_| std::fs::File::open("/proc/self/statm").expect("a file")).collect();
        assert_eq!(figures.read(now + WALK_INTERVAL / 2)["open_file_descriptors"], before);
        let after = figures.read(now + WALK_INTERVAL)["open_file_descriptors"].as_u64().expect("a number");
        assert!(after >= opened.len() as u64, "{after}");
    }
}
