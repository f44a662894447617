//! Files: how fast a large one comes, what memory that takes, and what jobs feel of it.
//!
//! Where libzmq is the limit of other figures, curl is here: it fetches the same file from Python's own web server, without
//! encryption.

use std::fs::{self, File};
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use norfab_peer_tests::{Client, Job, Peer, ReservedPort, Security, Side, Site, norfab};

use crate::figure::Plan;
use crate::machine::{peak_if_running, peak_megabytes};

/// Megabytes of the file.
const MEGABYTES: u32 = 500;

/// Megabytes of the one that Python fetches: it takes half a minute for the other, and its rate is the same.
const PYTHON_MEGABYTES: u32 = 100;

/// Jobs between two looks at whether the file still comes.
const JOBS: u32 = 50;

/// How often the memory of a command is looked at.
const LOOK_PAUSE: Duration = Duration::from_millis(5);

/// How long a web server may take to begin.
const SERVER_WAIT: Duration = Duration::from_secs(10);

/// Megabytes of a file in a second, with encryption.
pub fn rate_curve(plan: &Plan, side: Side) -> f64 {
    fetched(plan, side, Security::Curve).rate
}

/// The same without.
pub fn rate_plain(plan: &Plan, side: Side) -> f64 {
    fetched(plan, side, Security::Plain).rate
}

/// The most megabytes that the worker held, with encryption.
pub fn peak_worker(plan: &Plan, side: Side) -> f64 {
    fetched(plan, side, Security::Curve).worker
}

/// The most megabytes that the broker held.
pub fn peak_broker(plan: &Plan, side: Side) -> f64 {
    fetched(plan, side, Security::Curve).broker
}

/// The most megabytes that who fetches held: our command, the client of Python.
pub fn peak_client(plan: &Plan, side: Side) -> f64 {
    fetched(plan, side, Security::Curve).client
}

/// Megabytes of a file in a second the other way, from our command to a worker, with encryption. Python has no such way.
pub fn upload_rate_curve(plan: &Plan, side: Side) -> f64 {
    uploaded(plan, side, Security::Curve)
}

/// The same without.
pub fn upload_rate_plain(plan: &Plan, side: Side) -> f64 {
    uploaded(plan, side, Security::Plain)
}

fn uploaded(plan: &Plan, side: Side, security: Security) -> f64 {
    if side != Side::Ours {
        return f64::NAN;
    }
    let fabric = Fabric::start(side, security);
    let large = fabric.share().join("large");
    let one = |number: u32| {
        let began = Instant::now();
        let url = format!("nf://taken/{number}");
        run(&fabric.site, &["put", &large.to_string_lossy(), &url]);
        let rate = f64::from(MEGABYTES) / began.elapsed().as_secs_f64();
        fs::remove_file(fabric.share().join("taken").join(number.to_string())).expect("the file is there");
        rate
    };
    let mut rates: Vec<f64> = (0..plan.either(3, 7)).map(one).collect();
    rates.sort_by(f64::total_cmp);
    rates[rates.len() / 2]
}

/// Megabytes in a second with curl.
pub fn curl_rate(plan: &Plan) -> f64 {
    let folder = tempfile::tempdir().expect("a temporary folder");
    make_file(&folder.path().join("large"), MEGABYTES);
    let port = ReservedPort::new();
    let mut server = Command::new("python3");
    server.args(["-m", "http.server", &port.number().to_string(), "--bind", "127.0.0.1", "--directory"]);
    server.arg(folder.path()).stdout(Stdio::null()).stderr(Stdio::null());
    let mut server = server.spawn().expect("python3 is installed");
    let url = format!("http://127.0.0.1:{}/large", port.number());
    let fetch = || {
        let began = Instant::now();
        let mut curl = Command::new("curl");
        curl.args(["--silent", "--fail", "--output"]).arg(folder.path().join("copy")).arg(&url);
        let ended = curl.status().expect("curl is installed");
        ended.success().then(|| f64::from(MEGABYTES) / began.elapsed().as_secs_f64())
    };
    let begun = Instant::now();
    while fetch().is_none() {
        assert!(begun.elapsed() < SERVER_WAIT, "the web server does not serve");
        thread::sleep(LOOK_PAUSE);
    }
    let mut rates: Vec<f64> = (0..plan.either(3, 7)).filter_map(|_| fetch()).collect();
    server.kill().expect("the server is ours");
    server.wait().expect("the server is ours");
    rates.sort_by(f64::total_cmp);
    rates[rates.len() / 2]
}

/// By how much the slowest job of a hundred is slower while a file comes from another worker on the same broker.
pub fn jobs_beside(plan: &Plan, side: Side) -> f64 {
    if side != Side::Ours {
        return f64::NAN;
    }
    let fabric = Fabric::start(side, Security::Curve);
    let mut client = fabric.client("jobs");
    let job = Job::new("bench", "ok").with("a", 1).at("w0");
    client.run_one_by_one(job.clone(), JOBS);
    let quiet = client.run_one_by_one(job.clone(), plan.either(500, 3_000));
    let site = &fabric.site;
    let over = AtomicBool::new(false);
    let busy = thread::scope(|scope| {
        let fetching = scope.spawn(|| {
            for _ in 0..plan.either(3, 10) {
                fetch(site);
            }
            over.store(true, Ordering::Release);
        });
        let mut taken = Vec::new();
        while !over.load(Ordering::Acquire) && !fetching.is_finished() {
            taken.extend(client.run_one_by_one(job.clone(), JOBS));
        }
        taken
    });
    slowest_of_hundred(busy) / slowest_of_hundred(quiet)
}

fn slowest_of_hundred(mut seconds: Vec<f64>) -> f64 {
    seconds.sort_by(f64::total_cmp);
    seconds[seconds.len() * 99 / 100]
}

/// What one side did.
#[derive(Clone, Copy)]
struct Fetched {
    rate: f64,
    worker: f64,
    broker: f64,
    client: f64,
}

/// One run serves all figures of a side.
fn fetched(plan: &Plan, side: Side, security: Security) -> Fetched {
    static MEASURED: Mutex<Vec<(Side, Security, Fetched)>> = Mutex::new(Vec::new());
    let mut known = MEASURED.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some((.., found)) = known.iter().find(|(of, with, _)| (*of, *with) == (side, security)) {
        return *found;
    }
    let fabric = Fabric::start(side, security);
    let found = if side == Side::Ours { fabric.ours(plan) } else { fabric.python(side) };
    known.push((side, security, found));
    found
}

struct Fabric {
    workers: [Peer; 2],
    broker: Peer,
    site: Site,
    side: Side,
}

impl Fabric {
    fn start(side: Side, security: Security) -> Self {
        let site = Site::new(security).with_service("w0", "bench");
        let share = site.folder().join("share");
        fs::create_dir_all(share.join("taken")).expect("a folder");
        make_file(&share.join("large"), if side == Side::Ours { MEGABYTES } else { PYTHON_MEGABYTES });
        let uploads = serde_json::json!({ "folder": "taken" });
        let shared = serde_json::json!({"service": "filesharing", "base_dir": share, "uploads": uploads});
        let site = site.with_worker("files-1", shared);
        let broker = site.start_broker(side);
        let workers = [site.start_worker(side, "files-1"), site.start_worker(side, "w0")];
        let fabric = Self { workers, broker, site, side };
        drop(fabric.client("first"));
        fabric
    }

    fn share(&self) -> PathBuf {
        self.site.folder().join("share")
    }

    /// A client that has seen the workers.
    fn client(&self, name: &str) -> Client {
        let mut client = self.site.start_client(self.side, name);
        client.wait_for_workers(&["files-1", "w0"]);
        client
    }

    fn ours(&self, plan: &Plan) -> Fetched {
        let mut client = 0.0;
        // The first one computes the hash of the file.
        fetch(&self.site);
        let one = |_| {
            let began = Instant::now();
            client = fetch(&self.site).max(client);
            f64::from(MEGABYTES) / began.elapsed().as_secs_f64()
        };
        let mut rates: Vec<f64> = (0..plan.either(5, 9)).map(one).collect();
        rates.sort_by(f64::total_cmp);
        self.peaks(rates[rates.len() / 2], client)
    }

    fn python(&self, side: Side) -> Fetched {
        assert_eq!(side, self.side);
        let mut client = self.client("files");
        let began = Instant::now();
        let fetched = client.fetch_file("nf://large");
        let rate = f64::from(PYTHON_MEGABYTES) / began.elapsed().as_secs_f64();
        assert_eq!(fetched["status"], "200", "{fetched}");
        self.peaks(rate, peak_megabytes(client.peer().id()))
    }

    fn peaks(&self, rate: f64, client: f64) -> Fetched {
        Fetched { rate, worker: peak_megabytes(self.workers[0].id()), broker: peak_megabytes(self.broker.id()), client }
    }
}

/// Fetches the file with our command; the most megabytes that it held.
fn fetch(site: &Site) -> f64 {
    let copy = site.folder().join("copy");
    let peak = run(site, &["get", "nf://large", &copy.to_string_lossy()]);
    fs::remove_file(copy).expect("the copy is there");
    peak
}

/// Runs a command about files; the most megabytes that it held.
pub fn run(site: &Site, words: &[&str]) -> f64 {
    let mut command = norfab();
    command.arg("files").args(words).arg("-i").arg(site.inventory());
    let mut command = command.stdin(Stdio::null()).stdout(Stdio::null()).spawn().expect("the binary starts");
    let mut peak = 0.0;
    let ended = loop {
        peak = peak_if_running(command.id()).map_or(peak, |megabytes| megabytes.max(peak));
        if let Some(ended) = command.try_wait().expect("the command is ours") {
            break ended;
        }
        thread::sleep(LOOK_PAUSE);
    };
    assert!(ended.success(), "the command failed: {ended}");
    peak
}

/// Bytes that no file system and no peer can make smaller.
fn make_file(path: &Path, megabytes: u32) {
    const STEP: u64 = 0x9E37_79B9_7F4A_7C15;
    let mut file = BufWriter::new(File::create_new(path).expect("a new file"));
    let mut state = STEP;
    for _ in 0..u64::from(megabytes) * 1_000_000 / 8 {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        file.write_all(&state.to_le_bytes()).expect("written");
    }
    file.flush().expect("written");
}
