//! What a seed means: how many of each role, which jobs, which faults, how fast things are.

use std::time::Duration;

use norfab_protocol::Target;
use norfab_protocol::client::backlog::BacklogBounds;

/// Faults happen in this time; afterwards the fabric has peace to finish.
pub const FAULTS_UNTIL: Duration = Duration::from_secs(60);

/// Jobs are submitted in this time.
pub const SUBMITTED_UNTIL: Duration = Duration::from_secs(50);

/// Longest time-out of a job.
pub const TIMEOUT_MAX: Duration = Duration::from_secs(150);

/// Room for jobs at a worker where nobody asks for more.
const WORKER_JOBS_MAX: usize = 100_000;

/// A job that a client will submit.
#[derive(Debug, Clone)]
pub struct PlannedJob {
    /// Which client.
    pub client: usize,
    /// When.
    pub at: Duration,
    /// For whom.
    pub target: Target,
    /// Whether it says that its client is one of ours.
    pub fabric: bool,
    /// Whether its task may run again on a worker that was restarted.
    pub idempotent: bool,
    /// Whether it waits for workers that nobody knows.
    pub waits: bool,
    /// How long the client waits.
    pub timeout: Duration,
    /// When its caller loses interest, if it does.
    pub cancelled_after: Option<Duration>,
    /// Which client cancels it: its own or another one.
    pub cancelled_by: usize,
}

/// Whose host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// A client's.
    Client,
    /// A worker's.
    Worker,
}

/// Which way messages go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    /// From a peer to the broker.
    ToBroker,
    /// From the broker to a peer.
    ToPeer,
    /// Both.
    Both,
}

/// Something that goes wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// A client's connection is lost.
    DropClient(usize),
    /// A worker's connection is lost.
    DropWorker(usize),
    /// A client's process ends, and comes back after this time.
    CrashClient(usize, Duration),
    /// A worker's process ends, and comes back after this time.
    CrashWorker(usize, Duration),
    /// The broker's process ends, and comes back after this time.
    CrashBroker(Duration),
    /// A worker's process freezes for this time.
    FreezeWorker(usize, Duration),
    /// The wall clock of a host is set on or back by so many seconds.
    StepClock(Role, usize, i64),
    /// Nothing arrives in a direction for this time, on a connection that stays.
    Stall(Role, usize, Direction, Duration),
    /// The network between a peer and the broker is cut for this time, and the connection with it.
    Cut(Role, usize, Duration),
    /// The same between the broker and everybody.
    CutAll(Duration),
}

/// Everything that a seed decides beforehand.
#[derive(Debug, Clone)]
pub struct Scenario {
    /// Number of clients.
    pub clients: usize,
    /// Number of workers.
    pub workers: usize,
    /// Jobs that a worker runs at once.
    pub max_concurrent_jobs: usize,
    /// The jobs.
    pub jobs: Vec<PlannedJob>,
    /// The faults.
    pub faults: Vec<(Duration, Fault)>,
    /// Longest delay of a message.
    pub delay_max: Duration,
    /// Longest time of a batch in a store.
    pub store_delay_max: Duration,
    /// How many of 1,000 messages arrive twice.
    pub twice_per_mille: u32,
    /// How often of 1,000 the broker finds a peer's queue full.
    pub full_per_mille: u32,
    /// How often of 1,000 a worker's store cannot write down that a job starts.
    pub unwritten_starts_per_mille: u32,
    /// The same of a job's result, which it stores a while later.
    pub unwritten_results_per_mille: u32,
    /// How many of 1,000 results are large: stores take several batches for them, with what is of other jobs between.
    pub large_per_mille: u32,
    /// Most unfinished jobs of a worker.
    pub worker_jobs_max: usize,
    /// Whether the last worker takes a question about many jobs for one about a job that it does not know, as workers of Python NorFab
    /// do.
    pub last_is_plain: bool,
    /// How often of 10,000 a process ends between two of its outputs, or between two of its messages.
    pub strikes_per_10000: u32,
    /// Whether that happens to the broker, too.
    pub strikes_broker: bool,
    /// What a client's machine holds; the rest of its jobs waits in its database.
    pub backlog: BacklogBounds,
    /// How often of 1,000 a client cannot read back what waits.
    pub unread_per_mille: u32,
}

impl Scenario {
    /// Draws a scenario.
    pub fn draw(random: &mut fastrand::Rng) -> Self {
        let (clients, workers) = (random.usize(1..=3), random.usize(1..=4));
        let mut jobs = Vec::new();
        for _ in 0..random.usize(1..=25) {
            let any = random.u8(..3) == 0;
            let target = match (any, random.u8(..3)) {
                (true, _) => Target::Any,
                (false, 0) => Target::All,
                (false, 1) => Target::parse(&worker_name(random.usize(..workers))),
                (false, _) => Target::list((0..workers).filter(|_| random.bool()).map(worker_name)),
            };
            let longest = if random.bool() { TIMEOUT_MAX } else { Duration::from_secs(30) };
            let client = random.usize(..clients);
            jobs.push(PlannedJob {
                client,
                cancelled_by: if random.u8(..4) == 0 { random.usize(..clients) } else { client },
                at: up_to(random, SUBMITTED_UNTIL),
                target,
                fabric: random.u8(..4) > 0,
                idempotent: random.u8(..4) == 0,
                waits: random.u8(..4) == 0,
                timeout: Duration::from_secs(1 + random.u64(..longest.as_secs())),
                cancelled_after: (random.u8(..6) == 0).then(|| {
                    let longest = Duration::from_secs(if random.bool() { 5 } else { 40 });
                    up_to(random, longest)
                }),
            });
        }
        let delay_max = Duration::from_millis(if random.bool() { 2 } else { 800 });
        let store_delay_max = Duration::from_millis(if random.bool() { 5 } else { 400 });
        // Each seed has its weather: which kinds of faults there are, and how many. Every eighth has none.
        let kinds = if random.u8(..8) == 0 { 0 } else { random.u16(1..1024) };
        let mut faults = Vec::new();
        for kind in (0..10).filter(|kind| kinds & (1 << kind) != 0) {
            for _ in 0..random.usize(1..=4) {
                let longest = Duration::from_secs(if random.bool() { 3 } else { 25 });
                let away = up_to(random, longest);
                let fault = match kind {
                    0 => Fault::DropClient(random.usize(..clients)),
                    1 => Fault::DropWorker(random.usize(..workers)),
                    2 => Fault::CrashClient(random.usize(..clients), away),
                    3 => Fault::CrashWorker(random.usize(..workers), away),
                    4 => Fault::CrashBroker(away),
                    6 => {
                        let seconds = if random.bool() { 3600 } else { -3600 };
                        let (role, index) = someone(random, clients, workers);
                        Fault::StepClock(role, index, seconds)
                    }
                    5 => Fault::FreezeWorker(random.usize(..workers), away),
                    7 => {
                        let (role, index) = someone(random, clients, workers);
                        let direction = match random.u8(..3) {
                            0 => Direction::ToBroker,
                            1 => Direction::ToPeer,
                            _ => Direction::Both,
                        };
                        Fault::Stall(role, index, direction, away)
                    }
                    8 if random.u8(..4) == 0 => Fault::CutAll(away),
                    9 => {
                        // Who has it is known to nobody who is there, most likely.
                        let any = jobs.iter().filter(|job: &&PlannedJob| job.target == Target::Any);
                        let Some(job) = random.choice(any.collect::<Vec<_>>()) else { continue };
                        let at = job.at + (2 * delay_max + store_delay_max).mul_f64(random.f64());
                        faults.push((at, Fault::CrashBroker(away)));
                        let stays = random.usize(..workers);
                        for worker in (0..workers).filter(|worker| *worker != stays) {
                            faults.push((at, Fault::CrashWorker(worker, away + Duration::from_secs(10))));
                        }
                        continue;
                    }
                    _ => {
                        let (role, index) = someone(random, clients, workers);
                        Fault::Cut(role, index, away)
                    }
                };
                // Half of them strike while a job is on its way, where most can go wrong.
                let at = if random.bool() {
                    let job: &PlannedJob = &jobs[random.usize(..jobs.len())];
                    job.at + up_to(random, Duration::from_secs(1))
                } else {
                    up_to(random, FAULTS_UNTIL)
                };
                faults.push((at, fault));
            }
        }
        if random.u8(..8) == 0 {
            doubt_many(random, &mut jobs, &mut faults);
        }
        // Small enough that jobs wait in most seeds, and room for a page beside what is there.
        let page_jobs = random.usize(1..=3);
        let page_bytes = random.usize(50..=300);
        let backlog = BacklogBounds {
            page_jobs,
            page_bytes,
            jobs_max: page_jobs + random.usize(0..=3),
            bytes_max: if random.bool() { 100_000 } else { page_bytes + random.usize(0..=400) },
        };
        let mut scenario = Self {
            backlog,
            unread_per_mille: if random.u8(..4) == 0 { 100 } else { 0 },
            clients,
            workers,
            max_concurrent_jobs: random.usize(1..=5),
            jobs,
            faults,
            delay_max,
            store_delay_max,
            twice_per_mille: if random.u8(..4) == 0 { 20 } else { 0 },
            full_per_mille: if random.u8(..4) == 0 { 20 } else { 0 },
            unwritten_starts_per_mille: if random.u8(..4) == 0 { 300 } else { 0 },
            last_is_plain: random.u8(..4) == 0,
            strikes_per_10000: if random.u8(..3) == 0 { random.u32(1..=100) } else { 0 },
            strikes_broker: random.bool(),
            unwritten_results_per_mille: if random.u8(..4) == 0 { 300 } else { 0 },
            large_per_mille: 0,
            worker_jobs_max: if random.u8(..3) == 0 { random.usize(1..=4) } else { WORKER_JOBS_MAX },
        };
        if random.u8(..8) == 0 {
            scenario.crowd(random);
        }
        if random.u8(..4) == 0 {
            scenario.large_per_mille = 300;
        }
        if scenario.worker_jobs_max < WORKER_JOBS_MAX {
            // Who says nothing of turns posts a job that may be refused once.
            scenario.jobs.iter_mut().filter(|job| job.target == Target::Any).for_each(|job| job.fabric = true);
        }
        scenario
    }

    /// Most jobs are for any worker, come at one time, and there is hardly room for any: they are refused, and what is posted of them
    /// comes twice.
    fn crowd(&mut self, random: &mut fastrand::Rng) {
        let at = up_to(random, SUBMITTED_UNTIL);
        for job in &mut self.jobs {
            if random.u8(..8) > 0 {
                job.target = Target::Any;
                job.at = at + up_to(random, Duration::from_secs(3));
            }
        }
        self.worker_jobs_max = random.usize(1..=2);
        self.twice_per_mille = 100;
        for _ in 0..random.usize(0..=4) {
            let (role, index) = someone(random, self.clients, self.workers);
            let fault = if role == Role::Client { Fault::DropClient(index) } else { Fault::DropWorker(index) };
            self.faults.push((at + up_to(random, Duration::from_secs(4)), fault));
        }
    }

    /// Whether wall clocks are set in it.
    pub fn steps_clocks(&self) -> bool {
        self.faults.iter().any(|(_, fault)| matches!(fault, Fault::StepClock(..)))
    }
}

fn someone(random: &mut fastrand::Rng, clients: usize, workers: usize) -> (Role, usize) {
    if random.bool() { (Role::Client, random.usize(..clients)) } else { (Role::Worker, random.usize(..workers)) }
}

/// Most jobs are for any worker, come at one time, and the broker ends before it said who has them.
fn doubt_many(random: &mut fastrand::Rng, jobs: &mut [PlannedJob], faults: &mut Vec<(Duration, Fault)>) {
    let at = up_to(random, SUBMITTED_UNTIL);
    for job in jobs {
        if random.u8(..4) > 0 {
            job.target = Target::Any;
            job.at = at + up_to(random, Duration::from_millis(200));
        }
    }
    let away = up_to(random, Duration::from_secs(10));
    faults.push((at + up_to(random, Duration::from_millis(400)), Fault::CrashBroker(away)));
}

/// A random time, shorter ones more often.
pub fn up_to(random: &mut fastrand::Rng, longest: Duration) -> Duration {
    let share = random.f64();
    longest.mul_f64(if random.bool() { share } else { share * share * share })
}

/// The name of a worker.
pub fn worker_name(index: usize) -> String {
    format!("worker-{index}")
}

/// The name of a client.
pub fn client_name(index: usize) -> String {
    format!("client-{index}")
}
