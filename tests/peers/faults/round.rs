//! One round: a fabric, its jobs, the fault in the middle of them, and the wait for their ends.

use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant};

use norfab_peer_tests::{Client, Peer, Security, Side, Site};
use serde_json::{Map, Value};

use crate::account::Account;
use crate::fault::{Fault, Prepared};

/// Jobs of a round.
pub const JOBS: usize = 500;

/// Seconds that a job's task takes, and that a job has.
const TASK_SECONDS: f64 = 0.1;
const TIMEOUT_SECONDS: u32 = 120;

/// How long ends are waited for: what has not ended by then is stuck.
const PATIENCE: Duration = Duration::from_secs(TIMEOUT_SECONDS as u64 + 20);

/// How often the ends are looked at.
const LOOK_INTERVAL: Duration = Duration::from_millis(250);

/// How often a job that was refused is submitted again.
const RESUBMISSIONS_MAX: usize = 60;

/// Workers of a round, each in a process of its own.
const WORKERS: [&str; 4] = ["w0", "w1", "w2", "w3"];

/// The parts of a round.
pub struct Fabric {
    side: Side,
    pub broker: Peer,
    pub workers: Vec<Peer>,
    pub client: Client,
    ids: Vec<String>,
    refused: Map<String, Value>,
    /// The last to go: the others have its folder.
    site: Site,
}

impl Fabric {
    fn start(side: Side, site: Site) -> Self {
        let site = WORKERS.into_iter().fold(site, |site, name| site.with_service(name, "bench"));
        let broker = site.start_broker(side);
        let workers = WORKERS.map(|name| site.start_worker(side, name)).into();
        let mut client = site.start_client(side, "client");
        client.wait_for_workers(&WORKERS);
        Self { side, broker, workers, client, ids: Vec::new(), refused: Map::new(), site }
    }

    /// Starts a worker again that was killed.
    pub fn restart_worker(&mut self, index: usize) {
        self.workers[index] = self.site.start_worker(self.side, WORKERS[index]);
    }

    /// Starts the broker again.
    pub fn restart_broker(&mut self) {
        self.broker = self.site.start_broker(self.side);
    }

    /// Starts the client again under its name.
    pub fn restart_client(&mut self) {
        self.client = self.site.start_client(self.side, "client");
    }

    /// Submits so many more jobs.
    pub fn submit(&mut self, count: usize) {
        let first = self.ids.len();
        let ids: Vec<String> = (first..first + count).map(|number| format!("{number:032x}")).collect();
        self.ids.extend_from_slice(&ids);
        let refused = self.submit_these(&ids);
        self.refused.extend(refused);
    }

    fn submit_these(&mut self, ids: &[String]) -> Map<String, Value> {
        let path = self.marks();
        let path = path.to_str().expect("a temporary folder has a plain name");
        let refused = self.client.submit_marked("bench", ids, path, TASK_SECONDS, TIMEOUT_SECONDS);
        refused.as_object().cloned().unwrap_or_default()
    }

    /// Submits again what was refused, until all is taken: whoever is told that there is no space tries later.
    fn submit_again(&mut self) {
        for _ in 0..RESUBMISSIONS_MAX {
            if self.refused.is_empty() {
                return;
            }
            let ids: Vec<String> = self.refused.keys().cloned().collect();
            self.refused = self.submit_these(&ids);
            if !self.refused.is_empty() {
                thread::sleep(LOOK_INTERVAL);
            }
        }
    }

    /// Where tasks write: not on the disk that is filled.
    fn marks(&self) -> PathBuf {
        self.site.folder().join("marks")
    }

    fn wait_for_ends(&mut self) -> Value {
        let end = Instant::now() + PATIENCE;
        loop {
            let states = self.client.states(false);
            let is_final =
                |id: &String| matches!(states[id][0].as_str(), Some("COMPLETED" | "FAILED" | "STALE" | "CANCELLED"));
            if self.ids.iter().all(is_final) || Instant::now() > end {
                return self.client.states(true);
            }
            thread::sleep(LOOK_INTERVAL);
        }
    }
}

/// Runs a round.
pub fn run(fault: &Fault, side: Side) -> Account {
    let Prepared { site, means } = (fault.prepare)(Site::new(Security::Curve));
    let mut fabric = Fabric::start(side, site);
    let start = Instant::now();
    fabric.submit(JOBS - fault.jobs_meanwhile);
    (fault.strike)(&mut fabric, &means);
    fabric.submit_again();
    let states = fabric.wait_for_ends();
    let seconds = start.elapsed().as_secs_f64();
    let refused = Value::Object(fabric.refused.clone());
    let account = Account::of(&fabric.ids, &refused, &states, &fabric.marks(), seconds);
    if !account.is_whole() && side == Side::Ours {
        let logs = fabric.workers.iter().chain([&fabric.broker]).map(Peer::log).collect::<String>();
        eprint!("{logs}{}", fabric.client.peer().log());
    }
    // Before the folder in which a disk may be mounted.
    drop(means);
    account
}
