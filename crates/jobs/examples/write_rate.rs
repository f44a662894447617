//! Measures a worker's database as its owner sees it: `cargo run --release -p norfab-jobs --example write_rate [FOLDER]`.

use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, sync_channel};
use std::time::{Duration, Instant};

use bytes::Bytes;
use norfab_jobs::{
    SqliteWorkerStore, Store, WorkerJob, WorkerOperation, WorkerState, WorkerStore, WorkerWriter, spawn_worker,
};
use norfab_protocol::name::{Identity, JobId, TaskName};

type Failure = Box<dyn std::error::Error>;

/// Operations per measurement.
const OPERATIONS: usize = 30_000;

/// Commits that may wait to be counted. The channel's memory is part of no database.
const CONFIRMATIONS: usize = 64;

/// Databases that are open at once when their memory is measured.
const STORES: usize = 100;

fn main() -> Result<(), Failure> {
    let folder = match std::env::args_os().nth(1) {
        Some(folder) => tempfile::tempdir_in(folder)?,
        None => tempfile::tempdir()?,
    };
    println!("the store alone, single operations without a thread:");
    alone(&folder.path().join("alone.db"))?;
    println!("single operations, each after the confirmation of the one before:");
    latency(&folder.path().join("latency.db"))?;
    println!("batches, each after the confirmation of the one before:");
    for batch in [1, 8, 64] {
        rate(&folder.path().join(format!("rate-{batch}.db")), batch)?;
    }
    println!("50 MB result, from submission to confirmation and back:");
    large(&folder.path().join("large.db"))?;
    println!("memory of {STORES} open databases with their threads:");
    memory(folder.path())
}

fn open(path: &Path) -> Result<(WorkerWriter<usize>, Receiver<usize>), Failure> {
    let (sender, receiver) = sync_channel(CONFIRMATIONS);
    let path = path.to_owned();
    let writer = spawn_worker(
        "jobs",
        move || Ok(Box::new(SqliteWorkerStore::open(&path, "bench")?) as Box<dyn WorkerStore>),
        move |confirmations| {
            for error in confirmations.iter().filter_map(|confirmation| confirmation.outcome.as_ref().err()) {
                eprintln!("not stored: {error}");
            }
            if sender.send(confirmations.len()).is_err() {
                eprintln!("nobody counts any more");
            }
        },
    )?;
    Ok((writer, receiver))
}

fn id(number: usize) -> Result<JobId, Failure> {
    // Spread like random ids, so that the index is not filled in order.
    let spread = (number as u128 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835);
    Ok(JobId::parse(&format!("{spread:032x}"))?)
}

fn insert(number: usize) -> Result<WorkerOperation, Failure> {
    Ok(WorkerOperation::Insert(WorkerJob {
        id: id(number)?,
        client: Identity::parse("client-1")?,
        task: TaskName::parse("cli")?,
        body: Bytes::from_static(
            br#"{"task":"cli","kwargs":{"commands":["show version"],"FB":"spine-*"},"args":[],"timeout":600}"#,
        ),
        timeout: 600,
        received: 1.8e9 + number as f64,
        deadline: 1.8e9 + number as f64 + 600.0,
        state: WorkerState::Pending,
        attempts: 0,
        started: None,
        finished: None,
    }))
}

fn started(number: usize) -> Result<WorkerOperation, Failure> {
    Ok(WorkerOperation::State { id: id(number)?, state: WorkerState::Started, at: 1.8e9 + number as f64 })
}

fn finish(number: usize) -> Result<WorkerOperation, Failure> {
    Ok(WorkerOperation::Finish {
        id: id(number)?,
        state: WorkerState::Completed,
        at: 1.8e9 + number as f64,
        payload: Bytes::from(vec![b'x'; 700]),
    })
}

fn alone(path: &Path) -> Result<(), Failure> {
    let mut store = SqliteWorkerStore::open(path, "bench")?;
    let mut measure = |name, operation: fn(usize) -> Result<WorkerOperation, Failure>| -> Result<(), Failure> {
        let mut times = Vec::with_capacity(OPERATIONS);
        for number in 0..OPERATIONS {
            let operation = [operation(number)?];
            let begin = Instant::now();
            let outcomes = store.apply(&operation)?;
            times.push(begin.elapsed());
            assert!(outcomes.iter().all(Result::is_ok));
            store.tidy()?;
        }
        print_times(name, times);
        Ok(())
    };
    measure("insert", insert)?;
    measure("started", started)?;
    measure("finish", finish)
}

fn one_by_one(
    writer: &WorkerWriter<usize>,
    confirmed: &Receiver<usize>,
    name: &str,
    operation: impl Fn(usize) -> Result<WorkerOperation, Failure>,
) -> Result<(), Failure> {
    let mut times = Vec::with_capacity(OPERATIONS);
    for number in 0..OPERATIONS {
        let operation = operation(number)?;
        let begin = Instant::now();
        writer.try_submit(vec![(operation, Some(number))])?;
        confirmed.recv()?;
        times.push(begin.elapsed());
    }
    print_times(name, times);
    Ok(())
}

fn print_times(name: &str, mut times: Vec<Duration>) {
    times.sort();
    let at = |part: f64| times[((times.len() - 1) as f64 * part) as usize];
    println!(
        "  {name:8} p50 {:>9.1?}  p99 {:>9.1?}  p99.9 {:>9.1?}  max {:>9.1?}",
        at(0.5),
        at(0.99),
        at(0.999),
        at(1.0)
    );
}

fn latency(path: &Path) -> Result<(), Failure> {
    let (writer, confirmed) = open(path)?;
    one_by_one(&writer, &confirmed, "insert", insert)?;
    one_by_one(&writer, &confirmed, "started", started)?;
    one_by_one(&writer, &confirmed, "finish", finish)?;
    let mut times = Vec::with_capacity(OPERATIONS);
    for number in 0..OPERATIONS {
        let id = id(number)?;
        let begin = Instant::now();
        let answer = writer.try_ask(move |store| store.result(&id))?.recv()??;
        times.push(begin.elapsed());
        assert!(answer.is_some_and(|(_, payload)| payload.is_some()));
    }
    print_times("result", times);
    Ok(())
}

fn rate(path: &Path, batch: usize) -> Result<(), Failure> {
    let (writer, confirmed) = open(path)?;
    let mut operations = Vec::new();
    for number in 0..OPERATIONS / 3 {
        operations.push(insert(number)?);
        operations.push(started(number)?);
        operations.push(finish(number)?);
    }
    let processor_begin = processor_seconds();
    let begin = Instant::now();
    let mut operations = operations.into_iter().peekable();
    let mut count = 0;
    while operations.peek().is_some() {
        let submission: Vec<_> = operations.by_ref().take(batch).map(|operation| (operation, Some(0))).collect();
        let submitted = submission.len();
        writer.try_submit(submission)?;
        let mut missing = submitted;
        while missing > 0 {
            missing -= confirmed.recv()?;
        }
        count += submitted;
    }
    let seconds = begin.elapsed().as_secs_f64();
    println!(
        "  {batch:3} per batch: {:>7.0} commits/s {:>8.0} operations/s, {:.1} microseconds of processor time each",
        writer.statistics().commits as f64 / seconds,
        count as f64 / seconds,
        (processor_seconds() - processor_begin) / count as f64 * 1e6,
    );
    Ok(())
}

fn large(path: &Path) -> Result<(), Failure> {
    let (writer, confirmed) = open(path)?;
    writer.try_submit(vec![(insert(0)?, Some(0))])?;
    confirmed.recv()?;
    let before = memory_kib("VmRSS")?;
    let payload = Bytes::from(vec![b'x'; 50 << 20]);
    let begin = Instant::now();
    let operation =
        WorkerOperation::Finish { id: id(0)?, state: WorkerState::Completed, at: 1.8e9, payload: payload.clone() };
    writer.try_submit(vec![(operation, Some(0))])?;
    confirmed.recv()?;
    let stored = begin.elapsed();
    let peak = memory_kib("VmHWM")?;
    let begin = Instant::now();
    let job = id(0)?;
    let answer = writer.try_ask(move |store| store.result(&job))?.recv()??;
    let read = begin.elapsed();
    assert_eq!(answer.and_then(|(_, payload)| payload), Some(payload));
    println!(
        "  stored in {stored:.1?}, read in {read:.1?}; peak memory {} KiB above the start when stored, the payload is 51200",
        peak.saturating_sub(before)
    );
    Ok(())
}

fn memory(folder: &Path) -> Result<(), Failure> {
    let paths: Vec<PathBuf> = (0..STORES).map(|number| folder.join(format!("memory-{number}.db"))).collect();
    let before = memory_kib("VmRSS")?;
    let stores = paths.iter().map(|path| open(path)).collect::<Result<Vec<_>, _>>()?;
    let opened = memory_kib("VmRSS")?;
    for (writer, confirmed) in &stores {
        for number in 0..500 {
            for operation in [insert(number)?, started(number)?, finish(number)?] {
                writer.try_submit(vec![(operation, Some(0))])?;
                confirmed.recv()?;
            }
        }
    }
    let used = memory_kib("VmRSS")?;
    println!(
        "  {} KiB each when opened, {} KiB each after 500 jobs",
        opened.saturating_sub(before) / STORES as u64,
        used.saturating_sub(before) / STORES as u64
    );
    Ok(())
}

/// What all threads of this process used, which other load does not change much; 0 where the system does not tell.
fn processor_seconds() -> f64 {
    let Ok(threads) = std::fs::read_dir("/proc/self/task") else { return 0.0 };
    let of_thread = |entry: std::io::Result<std::fs::DirEntry>| -> Option<f64> {
        let text = std::fs::read_to_string(entry.ok()?.path().join("schedstat")).ok()?;
        text.split_whitespace().next()?.parse().ok()
    };
    threads.filter_map(of_thread).sum::<f64>() / 1e9
}

/// A figure of this process from the system; 0 where it does not tell.
fn memory_kib(name: &str) -> Result<u64, Failure> {
    let status = match std::fs::read_to_string("/proc/self/status") {
        Ok(status) => status,
        Err(_) => return Ok(0),
    };
    let line = status.lines().find(|line| line.starts_with(name));
    let figure = line.and_then(|line| line.split_whitespace().nth(1));
    Ok(figure.unwrap_or("0").parse()?)
}
