//! What the kernel says about processes and about the machine.

use std::fs;
use std::time::Instant;

/// Clock ticks of a second in `/proc`; Linux shows user space this number on every machine.
const TICKS_PER_SECOND: f64 = 100.0;

/// CPU seconds of a process from the scheduler's own account, which has no ticks: exact also for one that seldom runs.
pub fn cpu_seconds(process: u32) -> f64 {
    let tasks = fs::read_dir(format!("/proc/{process}/task")).expect("the process runs");
    let nanoseconds: u64 = tasks
        .filter_map(|task| fs::read_to_string(task.ok()?.path().join("schedstat")).ok())
        .filter_map(|stat| stat.split_whitespace().next()?.parse::<u64>().ok())
        .sum();
    nanoseconds as f64 / 1e9
}

/// How often threads of a process went to sleep by themselves, and so were woken, since they began.
pub fn wake_ups(process: u32) -> f64 {
    let tasks = fs::read_dir(format!("/proc/{process}/task")).expect("the process runs");
    let switches: u64 = tasks
        .filter_map(|task| fs::read_to_string(task.ok()?.path().join("status")).ok())
        .filter_map(|status| {
            let line = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"))?;
            line.trim().parse::<u64>().ok()
        })
        .sum();
    switches as f64
}

/// Memory in megabytes that would be freed if the process ended: what it shares with no other process.
pub fn private_megabytes(process: u32) -> f64 {
    let map = fs::read_to_string(format!("/proc/{process}/smaps_rollup")).expect("the process runs");
    let kilobytes: u64 = map
        .lines()
        .filter(|line| line.starts_with("Private_Clean:") || line.starts_with("Private_Dirty:"))
        .filter_map(|line| line.split_whitespace().nth(1)?.parse::<u64>().ok())
        .sum();
    kilobytes as f64 / 1024.0
}

/// Memory in megabytes that the process holds, shared or not.
pub fn resident_megabytes(process: u32) -> f64 {
    status_kilobytes(process, "VmRSS:") / 1024.0
}

/// The most memory in megabytes that the process ever held, shared or not.
pub fn peak_megabytes(process: u32) -> f64 {
    status_kilobytes(process, "VmHWM:") / 1024.0
}

/// As [`peak_megabytes`]; `None` for a process that has ended.
pub fn peak_if_running(process: u32) -> Option<f64> {
    kilobytes_if_running(process, "VmHWM:").map(|kilobytes| kilobytes / 1024.0)
}

fn status_kilobytes(process: u32, key: &str) -> f64 {
    kilobytes_if_running(process, key).expect("the process runs, and the kernel tells its memory")
}

fn kilobytes_if_running(process: u32, key: &str) -> Option<f64> {
    let status = fs::read_to_string(format!("/proc/{process}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix(key))?;
    line.split_whitespace().next()?.parse().ok()
}

/// How many of the machine's cores were busy, with everything that ran on it. Near the number of cores, wall-clock
/// figures are pessimistic.
pub struct BusyCores {
    since: Instant,
    ticks: f64,
}

impl BusyCores {
    /// Begins to count.
    pub fn start() -> Self {
        Self { since: Instant::now(), ticks: busy_ticks() }
    }

    /// The average since the start.
    pub fn stop(self) -> f64 {
        (busy_ticks() - self.ticks) / TICKS_PER_SECOND / self.since.elapsed().as_secs_f64()
    }
}

fn busy_ticks() -> f64 {
    let stat = fs::read_to_string("/proc/stat").expect("/proc is there");
    let fields = stat.lines().next().expect("the first line is for all cores").split_whitespace().skip(1);
    let ticks: Vec<f64> = fields.filter_map(|field| field.parse().ok()).collect();
    // user, nice, system, idle, waiting for disks, interrupts, soft interrupts, stolen; the rest is in the first two.
    ticks[0] + ticks[1] + ticks[2] + ticks[5] + ticks[6] + ticks[7]
}
