//! What became of the jobs: what their client says, beside what their tasks wrote down.

use std::collections::HashMap;
use std::fs;
use std::path::Path;

use serde_json::{Value, json};

/// Jobs by their fate. Each job is in exactly one of `completed`, `interrupted`, `refused`, `lost` and `stuck`.
#[derive(Debug, Clone, Default)]
pub struct Account {
    rounds: u32,
    jobs: u64,
    /// The client says so, and the task ran to its end.
    completed: u64,
    /// The client says that it failed, and so it was: its worker died while the task ran.
    interrupted: u64,
    /// The client was told at once that the job is not taken, also when it was asked again, and nothing ran.
    refused: u64,
    /// What the client says is not what happened, or it does not know the job.
    lost: u64,
    /// No end, or one by the deadline only.
    stuck: u64,
    /// Executions beyond the first of a job.
    doubled: u64,
    /// Seconds of the longest round, from the first submission to the last end.
    seconds: f64,
    /// Why the first job of those that should not be was lost or stuck.
    why: Option<String>,
}

/// The head of the table.
pub const HEADER: &str =
    "fault             side    rounds    jobs  completed  interrupted  refused    lost   stuck  doubled  seconds";

impl Account {
    /// Compares the client's states, id to state, first error and whether a result says that it failed, with the file of the tasks.
    pub fn of(ids: &[String], refused: &Value, states: &Value, file: &Path, seconds: f64) -> Self {
        let written = fs::read_to_string(file).unwrap_or_default();
        let mut begun: HashMap<&str, u64> = HashMap::new();
        let mut ended: HashMap<&str, u64> = HashMap::new();
        for line in written.lines() {
            match line.split_once(' ') {
                Some(("begin", id)) => *begun.entry(id).or_default() += 1,
                Some(("end", id)) => *ended.entry(id).or_default() += 1,
                _ => {}
            }
        }
        let mut account = Self { rounds: 1, jobs: ids.len() as u64, seconds, ..Self::default() };
        for id in ids {
            let begun = begun.get(id.as_str()).copied().unwrap_or_default();
            let ended = ended.get(id.as_str()).copied().unwrap_or_default();
            account.doubled += begun.saturating_sub(1);
            let state = states[id][0].as_str();
            // A worker that died just behind the last line knows no better than that the task was running.
            let interrupted = states[id][2] == true && begun > 0;
            let fate = match state {
                Some("COMPLETED") if interrupted => &mut account.interrupted,
                Some("COMPLETED") if ended > 0 => &mut account.completed,
                Some("FAILED") if begun > 0 && ended == 0 => &mut account.interrupted,
                Some("COMPLETED" | "FAILED") => &mut account.lost,
                None if refused.get(id).is_some() && begun == 0 => &mut account.refused,
                None => &mut account.lost,
                Some(_) => &mut account.stuck,
            };
            *fate += 1;
            if account.lost + account.stuck > 0 && account.why.is_none() {
                account.why = Some(format!("{id}: {}, begun {begun} times, ended {ended} times", states[id]));
            }
        }
        account
    }

    /// Nothing lost, stuck or run twice.
    pub fn is_whole(&self) -> bool {
        self.lost == 0 && self.stuck == 0 && self.doubled == 0
    }

    /// Adds another round.
    pub fn add(&mut self, other: Self) {
        self.rounds += other.rounds;
        self.jobs += other.jobs;
        self.completed += other.completed;
        self.interrupted += other.interrupted;
        self.refused += other.refused;
        self.lost += other.lost;
        self.stuck += other.stuck;
        self.doubled += other.doubled;
        self.seconds = self.seconds.max(other.seconds);
        self.why = self.why.take().or(other.why);
    }

    /// As an object.
    pub fn json(&self) -> Value {
        let mut value = json!({
            "rounds": self.rounds,
            "jobs": self.jobs,
            "completed": self.completed,
            "interrupted": self.interrupted,
            "refused": self.refused,
            "lost": self.lost,
            "stuck": self.stuck,
            "doubled": self.doubled,
            "seconds": (self.seconds * 10.0).round() / 10.0,
        });
        if let Some(why) = &self.why {
            value["first"] = why.as_str().into();
        }
        value
    }

    /// As a line of the table.
    pub fn row(&self, fault: &str, side: &str) -> String {
        format!(
            "{fault:<17} {side:<7} {:>6} {:>7} {:>10} {:>12} {:>8} {:>7} {:>7} {:>8} {:>8.1}",
            self.rounds,
            self.jobs,
            self.completed,
            self.interrupted,
            self.refused,
            self.lost,
            self.stuck,
            self.doubled,
            self.seconds
        )
    }
}
