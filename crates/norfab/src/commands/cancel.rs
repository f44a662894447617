//! `norfab cancel`: ends a job on its workers.

use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use norfab_fabric::client::{ClientHandle, JobHandle, WorkerReport};
use norfab_fabric::{LinkState, SystemClock};
use norfab_jobs::{ClientJob, ClientJobDetails, ClientState, ClientStore};
use norfab_protocol::broker::MANAGEMENT_SERVICE;
use norfab_protocol::client::{JobState, Lost};
use norfab_protocol::target::Target;
use norfab_protocol::{Identity, JobId};
use serde_json::{Map, Value, json};

use super::jobs::{WATCH_INTERVAL, open, stored};
use super::{ANSWER_PATIENCE, Connected, ask_broker, connected, job_of, workers};
use crate::args::{CancelArgs, Global};
use crate::exit::{Code, Failure};
use crate::printer;
use crate::site::{ClientSlot, Site};

/// Who cancels, for all who look at the job later: the user and the host.
pub(super) fn who() -> String {
    let user = ["USER", "LOGNAME"].iter().find_map(|name| std::env::var(name).ok().filter(|user| !user.is_empty()));
    let user = user.unwrap_or_else(|| {
        let uid = rustix::process::getuid().as_raw();
        // One that cannot be read names nobody.
        let users = std::fs::read_to_string(USERS_FILE).unwrap_or_default();
        name_of(uid, &users).unwrap_or_else(|| format!("uid {uid}"))
    });
    format!("{user}@{}", rustix::system::uname().nodename().to_string_lossy())
}

/// Where the system keeps the names of its users. Those of a directory service are not in it.
const USERS_FILE: &str = "/etc/passwd";

/// The name of a user in lines of `NAME:PASSWORD:UID:...`.
fn name_of(uid: u32, users: &str) -> Option<String> {
    let named = |line: &str| {
        let mut fields = line.split(':');
        let (name, number) = (fields.next()?, fields.nth(1)?);
        (!name.is_empty() && number.parse() == Ok(uid)).then(|| name.to_owned())
    };
    users.lines().find_map(named)
}

pub async fn run(global: &Global, words: CancelArgs) -> Result<Code, Failure> {
    let id = job_of(&words.uuid)?;
    let mut site = Site::load_worked_in(global)?;
    let (name, folder, details) = found(&site, &id)?;
    if details.job.state.is_final() {
        return Ok(tell(global, &details.job, &at_its_end(&details.job), Standing::Elsewhere));
    }
    let Some(slot) = site.take_slot(&name)? else {
        return elsewhere(global, site, &name, &folder, details.job, &words).await;
    };
    let _logs = site.start_logs(global, norfab_logs::Role::Client, &name, false)?;
    here(global, &site, slot, &folder, details.job, &words, words.wait).await
}

/// Cancels a job whose client does not run, and tells what became of it.
async fn here(
    global: &Global,
    site: &Site,
    slot: ClientSlot,
    folder: &Path,
    job: ClientJob,
    words: &CancelArgs,
    wait: Duration,
) -> Result<Code, Failure> {
    let Cancelled { problems, missing, mut standing } = own(site, &slot, &job.id, words, wait).await?;
    drop(slot);
    let job = stored(folder, &job.id)?.map_or(job, |details| details.job);
    if job.state != ClientState::Cancelling && !job.state.is_final() {
        standing = Standing::NotWritten;
    }
    for problem in problems {
        printer::warning(&printer::printable(&problem));
    }
    let mut workers = standings(&job, &missing);
    if job.state.is_final() {
        // It may have ended in another process, which has written down who has not confirmed it.
        let told = at_its_end(&job);
        workers.extend(told.into_iter().filter(|(_, standing)| *standing != CONFIRMED));
    }
    Ok(tell(global, &job, &workers, standing))
}

fn found(site: &Site, id: &JobId) -> Result<(String, PathBuf, ClientJobDetails), Failure> {
    let mut unread = None;
    for (name, folder) in site.client_folders()? {
        let mut store = match open(&folder) {
            Ok(Some(store)) => store,
            Ok(None) => continue,
            Err(failure) => {
                printer::warning(&failure.text);
                unread = Some(folder);
                continue;
            }
        };
        if let Some(details) = store.job(id).map_err(Failure::configuration)? {
            return Ok((name, folder, details));
        }
    }
    match unread {
        // Nobody can say whether it is there.
        Some(folder) => Err(Failure::configuration(format!(
            "job {id} is in none of the job databases that can be read; that in {} cannot",
            folder.display()
        ))
        .hint("make it readable, and try again")),
        None => Err(Failure::failed(format!("job {id} is not known here")).hint("'norfab jobs' lists those that are")),
    }
}

/// What is told of a worker when the client's patience has ended and the command goes on waiting.
const NOT_YET: &str = "has not confirmed it yet and is waited for";

/// How it stands with a cancellation that not every worker has confirmed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Standing {
    /// Another command has the job, and writes down what becomes of it.
    Elsewhere,
    /// The job database has not taken it.
    NotWritten,
    /// It is written down, and no broker was reached.
    Unreached,
    /// It is written down and under way.
    UnderWay,
}

/// What became of a cancellation.
struct Cancelled {
    /// What its caller should know: that it could not be written down.
    problems: Vec<String>,
    /// Workers that returned nothing.
    missing: Vec<(Identity, Lost)>,
    standing: Standing,
}

/// Cancels a job of a client that does not run. It is written down before anybody is told: what cannot be told now is told
/// when a client of the name runs the next time.
async fn own(
    site: &Site,
    slot: &ClientSlot,
    id: &JobId,
    words: &CancelArgs,
    wait: Duration,
) -> Result<Cancelled, Failure> {
    // Whoever cancels a job does not mean to start others.
    let client = site.start_client_that_sends_no_jobs(slot)?;
    let mut cancelled = Cancelled { problems: Vec::new(), missing: Vec::new(), standing: Standing::NotWritten };
    let done = async {
        let watched = client.watch(id.clone()).await.map_err(Failure::failed)?;
        client.cancel(id.clone(), &who(), words.reason.clone()).await.map_err(Failure::failed)?;
        cancelled.standing = Standing::Unreached;
        tokio::select! {
            failed = confirmed(&client, id, watched, &mut cancelled) => failed,
            failed = warned(&client, site) => failed,
            () = wanted_by_others(&client, id, slot) => Ok(()),
        }
    };
    // That the time is over is told by what is known then.
    tokio::time::timeout(wait, done).await.unwrap_or(Ok(()))?;
    if cancelled.standing == Standing::Unreached && *client.state().borrow() == LinkState::Connected {
        cancelled.standing = Standing::UnderWay;
    }
    let asked = tokio::time::timeout(ANSWER_PATIENCE, client.missing(id.clone())).await;
    if let Ok(Ok(missing)) = asked
        && !missing.is_empty()
    {
        cancelled.missing = missing;
    }
    client.stop().await;
    Ok(cancelled)
}

/// Waits until every worker has confirmed it: longer than the client's own patience, if need be.
async fn confirmed(
    client: &ClientHandle,
    id: &JobId,
    watched: Option<JobHandle>,
    cancelled: &mut Cancelled,
) -> Result<(), Failure> {
    if let Some(job) = watched {
        let report = job.wait().await;
        if report.state == JobState::Cancelled {
            // Behind who cancelled it: that this could not be written down.
            cancelled.problems = report.errors.iter().skip(1).cloned().collect();
        }
        let lost = report.workers.into_iter().filter_map(|(worker, one)| match one {
            WorkerReport::Missing(lost) => Some((worker, lost)),
            WorkerReport::Returned(_) => None,
        });
        cancelled.missing = lost.collect();
    }
    let mut told = false;
    loop {
        let details = client.job(id.clone()).await.map_err(Failure::failed)?;
        // A database that has no answer now may have one later.
        match details {
            Ok(Some(details)) if details.job.state.is_final() => {
                // Who was silent when the client's patience ended may have confirmed it since then.
                let job = &details.job;
                cancelled.missing.retain(|(worker, lost)| lost.is_over() || unconfirmed_at_end(job, worker).is_some());
                return Ok(());
            }
            Ok(None) => return Ok(()),
            Ok(Some(_)) if !told => {
                told = true;
                for (worker, _) in cancelled.missing.iter().filter(|(_, lost)| !lost.is_over()) {
                    printer::warning(&format!("worker {worker} {NOT_YET}"));
                }
            }
            Ok(Some(_)) | Err(_) => {}
        }
        tokio::time::sleep(WATCH_INTERVAL).await;
    }
}

/// Waits until the job is written down as cancelled, nobody can be told, and another process waits for this client's name: it has
/// something to write down as well.
async fn wanted_by_others(client: &ClientHandle, id: &JobId, slot: &ClientSlot) {
    loop {
        tokio::time::sleep(WATCH_INTERVAL).await;
        if *client.state().borrow() != LinkState::Connected
            && slot.is_awaited()
            && let Ok(Ok(Some(details))) = client.job(id.clone()).await
            && details.job.state == ClientState::Cancelling
        {
            return;
        }
    }
}

/// Tells at once why there is no broker, and leaves the waiting to others: it may come.
async fn warned(client: &ClientHandle, site: &Site) -> Result<(), Failure> {
    if let Err(failure) = connected(client, site).await {
        printer::warning(&failure.text);
    }
    std::future::pending().await
}

/// Cancels a job that a running command waits for: its workers are told under another name, and so is that command. Where it ends before
/// the job, this one takes its place: it may have been one that had others to cancel, and nobody else writes down what became of the job.
async fn elsewhere(
    global: &Global,
    site: Site,
    name: &str,
    folder: &Path,
    mut job: ClientJob,
    words: &CancelArgs,
) -> Result<Code, Failure> {
    let target = match (job.dispatched.as_slice(), Target::parse(&job.target)) {
        ([], Target::Any) => Target::All,
        ([], target) => target,
        (workers, _) => Target::list(workers),
    };
    let owner = Identity::parse(name).map_err(Failure::configuration)?;
    let waits_until = SystemClock::now() + words.wait;
    let awaiting = site.await_slot(name);
    // It needs a name of its own, for which there may be no space.
    let connected = match Connected::started(site, global) {
        Ok(connected) => connected,
        Err(failure) => {
            let site = Site::load_worked_in(global)?;
            let free = freed(&site, name, waits_until, &failure).await?;
            drop(awaiting);
            return here(global, &site, free.0, folder, job, words, free.1).await;
        }
    };
    let reached = tokio::select! {
        reached = reached(&connected, waits_until) => reached,
        free = freed_quietly(&connected.site, name, waits_until) => {
            connected.client.stop().await;
            drop(awaiting);
            let (slot, wait) = free?;
            return here(global, &connected.site, slot, folder, job, words, wait).await;
        }
    };
    if let Err(failure) = reached {
        connected.client.stop().await;
        return Err(failure);
    }
    let (id, service, reason) = (job.id.clone(), job.service.clone(), words.reason.clone());
    connected.client.cancel_elsewhere(owner, id, service, target, &who(), reason).await.map_err(Failure::failed)?;
    let left = waits_until.saturating_duration_since(SystemClock::now());
    let ended = async {
        loop {
            if let Some(details) = stored(folder, &job.id)? {
                job = details.job;
            }
            if job.state.is_final() {
                return Ok(None);
            }
            if let Some(slot) = connected.site.take_slot(name)? {
                return Ok(Some(slot));
            }
            tokio::time::sleep(WATCH_INTERVAL).await;
        }
    };
    let mut registered = None;
    let asked = async {
        registered = names(&connected.client).await;
        std::future::pending().await
    };
    let done = async {
        tokio::select! {
            ended = ended => ended,
            failed = asked => failed,
        }
    };
    let slot = tokio::time::timeout(left, done).await.unwrap_or(Ok(None))?;
    connected.client.stop().await;
    drop(awaiting);
    if let Some(slot) = slot {
        let wait = waits_until.saturating_duration_since(SystemClock::now());
        return here(global, &connected.site, slot, folder, job, words, wait).await;
    }
    if job.state.is_final() {
        return Ok(tell(global, &job, &at_its_end(&job), Standing::Elsewhere));
    }
    let silent = job.dispatched.iter().filter(|worker| !job.completed.contains(worker));
    let missing: Vec<_> = silent.map(|worker| (worker.clone(), unconfirmed(worker, registered.as_ref()))).collect();
    let mut workers = standings(&job, &missing);
    if job.state != ClientState::Cancelling {
        // Nobody tells it later, as nothing is written down.
        let untold = missing.iter().filter(|(_, lost)| *lost == Lost::CancelUntold);
        workers.extend(untold.map(|(worker, _)| (worker.to_string(), UNTOLD.into())));
    }
    Ok(tell(global, &job, &workers, Standing::Elsewhere))
}

/// Waits for a connection. Errors: there is none in time, and why.
async fn reached(connected: &Connected, until: Instant) -> Result<(), Failure> {
    let mut told = false;
    loop {
        let Err(failure) = super::connected(&connected.client, &connected.site).await else { return Ok(()) };
        if SystemClock::now() >= until {
            return Err(failure);
        }
        if !std::mem::replace(&mut told, true) {
            printer::warning(&failure.text);
        }
        tokio::time::sleep(WATCH_INTERVAL).await;
    }
}

/// Waits for a name, and says what is left of the time. Pending once that is over.
async fn freed_quietly(site: &Site, name: &str, until: Instant) -> Result<(ClientSlot, Duration), Failure> {
    loop {
        let left = until.saturating_duration_since(SystemClock::now());
        if let Some(slot) = site.take_slot(name)? {
            return Ok((slot, left));
        }
        if left.is_zero() {
            return std::future::pending().await;
        }
        tokio::time::sleep(WATCH_INTERVAL).await;
    }
}

/// As [`freed_quietly`], where nothing else can be done, and why. Errors: it is not free in time.
async fn freed(site: &Site, name: &str, until: Instant, why: &Failure) -> Result<(ClientSlot, Duration), Failure> {
    printer::warning(&why.text);
    let left = until.saturating_duration_since(SystemClock::now());
    match tokio::time::timeout(left, freed_quietly(site, name, until)).await {
        Ok(freed) => freed,
        Err(_) => Err(Failure::new(why.code, why.text.clone())),
    }
}

/// Who is registered, by the broker's word. `None`: it does not say so.
async fn names(client: &ClientHandle) -> Option<HashSet<String>> {
    let listed = ask_broker(client, MANAGEMENT_SERVICE, "show_workers", Map::new(), ANSWER_PATIENCE).await;
    let rows = workers::rows(listed.ok()?).ok()?;
    Some(rows.iter().filter_map(|row| row["name"].as_str()).map(str::to_owned).collect())
}

/// What is known of a worker that has not confirmed a cancellation. `registered`: who the broker named behind it; it reached nobody else.
fn unconfirmed(worker: &Identity, registered: Option<&HashSet<String>>) -> Lost {
    match registered {
        Some(registered) if !registered.contains(worker.as_str()) => Lost::CancelUntold,
        _ => Lost::CancelUnanswered,
    }
}

/// What a job that has ended says of a worker on which something of it may run.
fn unconfirmed_at_end<'a>(job: &'a ClientJob, worker: &Identity) -> Option<&'a str> {
    let said = format!("worker {worker}: ");
    job.errors.iter().find_map(|error| error.strip_prefix(&said)).filter(|why| Lost::may_go_on(why))
}

/// How it stands on the workers of a job that has ended. One that is cancelled names in its errors who has not confirmed it.
fn at_its_end(job: &ClientJob) -> Map<String, Value> {
    let confirmed = if job.state == ClientState::Cancelled { &job.dispatched } else { &job.completed };
    let confirmed = confirmed.iter().map(|worker| (worker.to_string(), CONFIRMED.into()));
    let told = |worker: &Identity| unconfirmed_at_end(job, worker).map(|why| (worker.to_string(), why.into()));
    confirmed.chain(job.dispatched.iter().filter_map(told)).collect()
}

/// How it stands with the cancellation on each worker that is known to have got the job. Who is not missing has ended.
fn standings(job: &ClientJob, missing: &[(Identity, Lost)]) -> Map<String, Value> {
    let ended = job.dispatched.iter().map(|worker| (worker.to_string(), CONFIRMED.into()));
    // One that refused the job has nothing to confirm.
    let standing = |lost: &Lost| if lost.is_over() { CONFIRMED.to_owned() } else { lost.to_string() };
    ended.chain(missing.iter().map(|(worker, lost)| (worker.to_string(), standing(lost).into()))).collect()
}

/// The standing of a worker on which nothing of the job runs any more.
const CONFIRMED: &str = "ended";

/// The standing of a worker that was away, where nobody has written down that it is to be told.
const UNTOLD: &str = "the worker was not told: it is away, and nobody tells it later as long as the command that waits for the job has \
                      not heard of the cancellation";

/// What is to be said of a cancellation that is not confirmed, beside the workers.
fn pending(job: &ClientJob, standing: Standing) -> Failure {
    let delivered = format!(
        "it is written down and is delivered by every command of this client's name while it runs: 'norfab cancel {}' is one",
        job.id
    );
    let (text, hint) = match standing {
        Standing::NotWritten => {
            let text = "the cancellation is not written down, as the job database has not taken it, and ends with this command";
            (text.to_owned(), "try again".to_owned())
        }
        Standing::Unreached => ("nobody was told of the cancellation, as no broker was reached".to_owned(), delivered),
        Standing::Elsewhere if job.state != ClientState::Cancelling => (
            format!(
                "job {} has not ended: another command waits for it and has not heard of the cancellation, of which nothing is \
                 written down",
                job.id
            ),
            "Ctrl-C in that command cancels it, too".to_owned(),
        ),
        Standing::Elsewhere | Standing::UnderWay => (UNCONFIRMED.to_owned(), delivered),
    };
    Failure::new(Code::TimedOut, text).hint(hint)
}

/// What is said where a worker has not confirmed it. Which, and why, is told of each.
const UNCONFIRMED: &str = "not every worker has confirmed the cancellation";

fn tell(global: &Global, job: &ClientJob, workers: &Map<String, Value>, standing: Standing) -> Code {
    let missing: Vec<_> = workers.iter().filter(|(_, standing)| *standing != CONFIRMED).collect();
    let cancelled = matches!(job.state, ClientState::Cancelled | ClientState::Cancelling);
    // Of a final one nothing is delivered any more.
    let pending = (!job.state.is_final()).then(|| pending(job, standing));
    let told = pending.as_ref().map(|failure| failure.text.clone());
    let failure = pending.or_else(|| failure(job, cancelled, !missing.is_empty()));
    if global.json {
        let mut document = json!({
            "uuid": job.id,
            "service": job.service,
            "task": job.task,
            "status": job.state.as_str(),
            "errors": job.errors,
            "workers": workers,
            "pending": told,
        });
        if let Some(failure) = &failure {
            failure.put_into(&mut document);
        }
        printer::json(&document);
    } else if cancelled {
        let text = job.errors.first().map(|text| printer::printable(text).into_owned()).unwrap_or_default();
        // That one is still being cancelled must not read like the end of it.
        let state = if job.state.is_final() { String::new() } else { format!(" ({})", job.state) };
        printer::line(&format!("job {}{state}: {text}", job.id));
    }
    let Some(failure) = failure else { return Code::Ok };
    if failure.code == Code::TimedOut {
        for (worker, standing) in &missing {
            printer::warning(&format!("worker {worker}: {}", printer::plain(standing)));
        }
    }
    printer::error(&failure.text);
    failure.code
}

/// Why the cancellation of a job that has ended is not what was wanted. `None`: nothing of the job runs any more.
fn failure(job: &ClientJob, cancelled: bool, unconfirmed: bool) -> Option<Failure> {
    if !cancelled {
        return Some(Failure::failed(format!("job {} has ended already: {}", job.id, job.state)));
    }
    unconfirmed
        .then(|| Failure::new(Code::TimedOut, UNCONFIRMED).hint("it has ended here, and nobody is told any more"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ended_job() -> ClientJob {
        let name = |text: &str| Identity::parse(text).expect("a name");
        ClientJob {
            id: JobId::parse("1").expect("an id"),
            service: norfab_protocol::ServiceName::parse("s").expect("a name"),
            task: norfab_protocol::TaskName::parse("t").expect("a name"),
            target: "all".to_owned(),
            body: bytes::Bytes::new(),
            timeout: 60,
            submitted: 0.0,
            deadline: 60.0,
            state: ClientState::Cancelled,
            dispatched: vec![name("a"), name("b")],
            started: Vec::new(),
            completed: vec![name("a")],
            errors: vec!["cancelled by me".to_owned()],
            finished: Some(1.0),
        }
    }

    #[test]
    fn a_worker_that_was_given_up_keeps_a_cancellation_from_being_a_success() {
        let (job, name) = (ended_job(), |text: &str| Identity::parse(text).expect("a name"));
        let told = |missing: &[(Identity, Lost)]| {
            let workers = standings(&job, missing);
            let unconfirmed = workers.values().any(|standing| standing != CONFIRMED);
            failure(&job, true, unconfirmed).map(|failure| (failure.code, failure.text, workers))
        };
        for nothing_runs in [Lost::Cancelled, Lost::Refused("full".to_owned()), Lost::Unreached, Lost::Forgotten] {
            assert_eq!(told(&[(name("b"), nothing_runs)]), None);
        }
        let (code, text, workers) = told(&[(name("b"), Lost::CancelUnanswered)]).expect("it may go on");
        assert!(code == Code::TimedOut && text.starts_with(UNCONFIRMED), "{text}");
        let standing = workers["b"].as_str().expect("a text");
        assert!(standing.starts_with("cancelled, but the worker has not confirmed it"), "{standing}");
    }

    #[test]
    fn who_has_not_confirmed_the_cancellation_of_a_job_that_has_ended_is_in_its_errors() {
        let mut job = ended_job();
        job.errors.push(Lost::CancelUnanswered.of_worker(&Identity::parse("b").expect("a name")));
        let workers = at_its_end(&job);
        assert_eq!(workers["a"], CONFIRMED);
        let standing = workers["b"].as_str().expect("a text");
        assert!(standing.starts_with("cancelled, but the worker has not confirmed it"), "{standing}");
        let nothing_runs = Lost::Refused("full".to_owned()).of_worker(&Identity::parse("b").expect("a name"));
        for errors in [Vec::new(), vec![nothing_runs]] {
            job.errors.truncate(job.errors.len() - 1);
            job.errors.extend(errors);
            assert_eq!(at_its_end(&job)["b"], CONFIRMED, "{:?}", job.errors);
        }
        job.errors = vec!["worker b: cancelled, but in the words of another version".to_owned()];
        assert_eq!(at_its_end(&job)["b"], "cancelled, but in the words of another version");
    }

    #[test]
    fn whoever_cancels_is_named() {
        let users = "root:x:0:0::/root:/bin/sh\n\nbroken\n:x:7::\nann:x:1000:1000:Ann:/home/ann:\n";
        assert_eq!(name_of(1000, users).as_deref(), Some("ann"));
        assert_eq!((name_of(7, users), name_of(1, users)), (None, None));
        let (user, host) = who().rsplit_once('@').map(|(user, host)| (user.to_owned(), host.to_owned())).expect("both");
        assert!(!user.is_empty() && !host.is_empty());
    }
}
