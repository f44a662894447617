//! Prints what the links cost here: wake-up latency, messages a second, megabytes a second. Run it with `--release`.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use bytes::Bytes;
use norfab_transport::{
    Context, Dealer, DealerKeys, DealerLink, DealerOptions, KeyPair, LinkStatus, Router, RouterLink, RouterOptions,
    SendError,
};

type Outcome = Result<(), Box<dyn std::error::Error>>;

/// Messages in flight: enough to keep both sides busy, as a client with many jobs does.
const IN_FLIGHT: usize = 500;

/// Until a peer that was full is tried again.
const FULL_PAUSE: Duration = Duration::from_millis(1);

fn main() -> Outcome {
    wake_up_latency()?;
    for encrypted in [false, true] {
        round_trips(encrypted, "short messages", &message(200), 200_000)?;
        round_trips(encrypted, "one at a time", &message(200), 0)?;
        round_trips(encrypted, "1 MB results", &message(1_000_000), 1_000)?;
        round_trips(encrypted, "10 MB results", &message(10_000_000), 100)?;
        behind(encrypted, 50_000_000)?;
    }
    Ok(())
}

/// Eight frames, as a job has, with a body of this size.
fn message(body: usize) -> Vec<Bytes> {
    let mut frames: Vec<Bytes> = ["", "NFPC01", "0x04", "nornir", "any", "", "0123456789abcdef0123456789abcdef"]
        .iter()
        .map(|f| Bytes::from(*f))
        .collect();
    frames.push(Bytes::from(vec![b'x'; body]));
    frames
}

fn wake_up_latency() -> Outcome {
    let context = Context::new();
    let mut router = Router::bind(&context, "tcp://127.0.0.1:0", RouterOptions::default())?;
    let waker = router.waker();
    let (queue, pushed) = mpsc::sync_channel::<Instant>(1);
    let done = Arc::new(AtomicBool::new(false));
    let is_done = done.clone();
    let producer = std::thread::spawn(move || {
        for _ in 0..2_000 {
            std::thread::sleep(Duration::from_micros(500));
            if queue.send(Instant::now()).is_err() {
                return;
            }
            waker.wake();
        }
        is_done.store(true, Ordering::Release);
        waker.wake();
    });
    let mut latencies = Vec::new();
    while !done.load(Ordering::Acquire) {
        if router.wait(None)?.woken {
            latencies.extend(pushed.try_iter().map(|pushed_at| pushed_at.elapsed()));
        }
    }
    producer.join().map_err(|_| "the producer panicked")?;
    latencies.sort();
    println!("wake-up: p50 {:?}, p99 {:?}", latencies[latencies.len() / 2], latencies[latencies.len() * 99 / 100]);
    Ok(())
}

/// How long a short message is under way behind a large one, and one of another peer beside it.
fn behind(encrypted: bool, bytes: usize) -> Outcome {
    let keys = encrypted.then(KeyPair::generate);
    let context = Context::new();
    let mut router =
        Router::bind(&context, "tcp://127.0.0.1:0", RouterOptions { keys: keys.clone(), ..Default::default() })?;
    let endpoint = router.endpoint();
    let (began, sent) = mpsc::channel::<Instant>();
    let sender = std::thread::spawn(move || -> Result<(), String> {
        let context = Context::new();
        let connect = |name: &[u8]| -> Result<Dealer, String> {
            let keys = keys.as_ref().map(|keys| DealerKeys { own: KeyPair::generate(), broker: keys.public });
            let options = DealerOptions { keys, ..Default::default() };
            let mut dealer = Dealer::connect(&context, &endpoint, name, options).map_err(|error| error.to_string())?;
            while dealer.next_status() != Some(LinkStatus::Connected) {
                dealer.wait(None, false).map_err(|error| error.to_string())?;
            }
            Ok(dealer)
        };
        let (mut one, mut other) = (connect(b"one")?, connect(b"other")?);
        let large = message(bytes);
        for _ in 0..5 {
            began.send(Instant::now()).map_err(|error| error.to_string())?;
            one.try_send(&large).map_err(|error| error.to_string())?;
            one.try_send(&message(200)).map_err(|error| error.to_string())?;
            other.try_send(&message(200)).map_err(|error| error.to_string())?;
            other.wait(Some(Duration::ZERO), false).map_err(|error| error.to_string())?;
            let pause = Instant::now() + Duration::from_secs(1);
            while let Some(left) = pause.checked_duration_since(Instant::now()).filter(|left| !left.is_zero()) {
                one.wait(Some(left), false).map_err(|error| error.to_string())?;
            }
        }
        Ok(())
    });
    let (mut behind, mut beside, mut start) = (Vec::new(), Vec::new(), Instant::now());
    while behind.len() < 5 || beside.len() < 5 {
        router.wait(None)?;
        while let Some(message) = router.try_receive()? {
            start = sent.try_iter().last().unwrap_or(start);
            let short = message.frames.last().is_some_and(|body| body.len() == 200);
            match (short, &*message.peer) {
                (true, b"one") => behind.push(start.elapsed()),
                (true, _) => beside.push(start.elapsed()),
                (false, _) => {}
            }
        }
    }
    sender.join().map_err(|_| "the sender panicked")??;
    behind.sort();
    beside.sort();
    let kind = if encrypted { "curve" } else { "plain" };
    println!("{kind}, a short message behind one of {bytes} bytes: {:?}, of another peer: {:?}", behind[2], beside[2]);
    Ok(())
}

/// Sends messages to an echoing router and counts what comes back. No count: one at a time, for a second.
fn round_trips(encrypted: bool, title: &str, message: &[Bytes], count: usize) -> Outcome {
    let keys = encrypted.then(KeyPair::generate);
    let context = Context::new();
    let router =
        Router::bind(&context, "tcp://127.0.0.1:0", RouterOptions { keys: keys.clone(), ..Default::default() })?;
    let endpoint = router.endpoint();
    let stop = Arc::new(AtomicBool::new(false));
    let (waker, stopped) = (router.waker(), stop.clone());
    let echo = std::thread::spawn(move || echo(router, &stopped));

    let context = Context::new();
    let keys = keys.map(|keys| DealerKeys { own: KeyPair::generate(), broker: keys.public });
    let mut dealer = Dealer::connect(&context, &endpoint, b"measure", DealerOptions { keys, ..Default::default() })?;
    while dealer.next_status() != Some(LinkStatus::Connected) {
        dealer.wait(None, false)?;
    }
    let bytes: usize = message.iter().map(Bytes::len).sum();
    let in_flight = if count == 0 { 1 } else { IN_FLIGHT.min((64 << 20) / bytes).max(2) };
    let cpu_before = cpu_time();
    let started = Instant::now();
    let (mut sent, mut received) = (0, 0);
    while if count == 0 { started.elapsed() < Duration::from_secs(1) } else { received < count } {
        let mut full = false;
        while sent - received < in_flight && !full && (count == 0 || sent < count) {
            match dealer.try_send(message) {
                Ok(()) => sent += 1,
                Err(SendError::Full) => full = true,
                Err(error) => return Err(error.into()),
            }
        }
        let before = received;
        while dealer.try_receive()?.is_some() {
            received += 1;
        }
        if received == before {
            dealer.wait(None, full)?;
        }
    }
    let elapsed = started.elapsed();
    let cpu = cpu_time() - cpu_before;
    let kind = if encrypted { "curve" } else { "plain" };
    if count == 0 {
        println!("{kind}, {title}: {:?} a round trip", elapsed / u32::try_from(received)?);
    } else {
        let seconds = elapsed.as_secs_f64();
        println!(
            "{kind}, {title}: {:.0} round trips a second, {:.0} MB/s each way, {:?} CPU a round trip on both sides",
            received as f64 / seconds,
            (received * bytes) as f64 / seconds / 1e6,
            cpu / u32::try_from(received)?,
        );
    }
    stop.store(true, Ordering::Release);
    waker.wake();
    echo.join().map_err(|_| "the echo panicked")?.map_err(Into::into)
}

fn echo(mut router: Router, stop: &AtomicBool) -> Result<(), norfab_transport::LinkError> {
    let mut stalled = None;
    while !stop.load(Ordering::Acquire) {
        while stalled.is_none()
            && let Some(message) = router.try_receive()?
        {
            stalled = (router.try_send(&message.peer, &message.frames) == Err(SendError::Full)).then_some(message);
        }
        // A peer that is full has room again soon: it reads all the time.
        router.wait(stalled.is_some().then_some(FULL_PAUSE))?;
        if let Some(message) = &stalled
            && router.try_send(&message.peer, &message.frames) != Err(SendError::Full)
        {
            stalled = None;
        }
    }
    Ok(())
}

/// The CPU time of this process so far.
fn cpu_time() -> Duration {
    let usage = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Duration::new(usage.tv_sec.unsigned_abs(), u32::try_from(usage.tv_nsec).unwrap_or(0))
}
