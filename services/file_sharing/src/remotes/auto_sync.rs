//! Synchronizes remotes by itself where the inventory says so, and removes checkouts that were replaced.

use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use norfab_service::on_blocking_thread;
use tokio::task::JoinSet;
use tokio::time;
use tracing::{Instrument, Span, info, warn};

use super::sync::{RemoteTurn, Voice, synchronize};
use super::{Remote, Remotes};

/// How long after its creation a remote is synchronized for the first time: the worker has other things to do while it starts.
pub(super) const FIRST_AFTER: Duration = Duration::from_secs(1);

/// Remotes that are synchronized by themselves at the same time. Each takes a thread, and some a core.
const AT_ONCE: usize = 4;

/// How long one may take. The next one begins anew.
const TIME_MAX: Duration = Duration::from_secs(1800);

/// How long to wait where no remote is due.
const IDLE: Duration = Duration::from_secs(3600);

/// Runs until nobody has these remotes any more.
pub(super) async fn run(remotes: Weak<Remotes>, span: Span) {
    let Some((over, changed)) = remotes.upgrade().map(|remotes| (remotes.over.clone(), Arc::clone(&remotes.changed)))
    else {
        return;
    };
    let mut running = JoinSet::new();
    loop {
        let wait = {
            let Some(remotes) = remotes.upgrade() else { return };
            let now = remotes.clock.now();
            for (remote, turn) in take_due(&remotes, now, AT_ONCE.saturating_sub(running.len())) {
                let remotes = Arc::clone(&remotes);
                let one = async move {
                    let before = remote.state().problem.clone();
                    let work = synchronize(&remotes, &remote, turn, &Voice::Log);
                    let ended = time::timeout(TIME_MAX, work).await;
                    tell(&remotes, &remote, before, ended.is_err());
                    set_due(&remote, remotes.clock.now());
                };
                running.spawn(one.instrument(span.clone()));
            }
            for remote in outdated(&remotes, now) {
                remote.state().old_until = None;
                // Whoever has it replaces this one, or removes it.
                let Ok(turn) = Arc::clone(&remote.turn).try_lock_owned() else { continue };
                let remotes = Arc::clone(&remotes);
                let one = async move {
                    let name = remote.definition.name.clone();
                    let removed = on_blocking_thread(move || {
                        let removed = remotes.mounts.forget_old(&remote.definition.name);
                        drop(turn);
                        removed
                    });
                    if let Ok(Err(error)) = removed.await {
                        warn!("the files that git remote '{name}' had before cannot be removed: {error}");
                    }
                };
                running.spawn(one.instrument(span.clone()));
            }
            // Where all turns are taken, one that ends is waited for.
            if running.len() >= AT_ONCE { IDLE } else { next(&remotes, now) }
        };
        tokio::select! {
            () = over.cancelled() => return,
            () = changed.notified() => {}
            () = time::sleep(wait) => {}
            Some(_) = running.join_next() => {}
        }
    }
}

/// Remotes that are due and that nobody has, so many at most: who has waited longest comes first. Others stay due.
fn take_due(remotes: &Remotes, now: Instant, free: usize) -> Vec<(Arc<Remote>, RemoteTurn)> {
    let mut due: Vec<_> = remotes
        .all()
        .into_iter()
        .map(|remote| {
            let due = remote.state().due;
            (due, remote)
        })
        .filter(|(due, remote)| remote.definition.auto_sync && *due <= now)
        .collect();
    due.sort_by_key(|(due, _)| *due);
    let mut taken = Vec::new();
    for (_, remote) in due {
        if taken.len() >= free {
            break;
        }
        // Until it has ended, after which the interval begins anew.
        set_due(&remote, now);
        // Whoever has it synchronizes it.
        if let Ok(turn) = Arc::clone(&remote.turn).try_lock_owned() {
            taken.push((remote, turn));
        }
    }
    taken
}

/// The interval of a remote begins.
fn set_due(remote: &Remote, now: Instant) {
    let interval = Duration::from_secs(remote.definition.sync_interval_seconds.unsigned_abs());
    remote.state().due = now + interval;
}

/// Remotes whose old checkout nobody reads any more.
fn outdated(remotes: &Remotes, now: Instant) -> Vec<Arc<Remote>> {
    remotes.all().into_iter().filter(|remote| remote.state().old_until.is_some_and(|until| until <= now)).collect()
}

fn next(remotes: &Remotes, now: Instant) -> Duration {
    let all = remotes.all().into_iter();
    let times = all.flat_map(|remote| {
        let state = remote.state();
        [remote.definition.auto_sync.then_some(state.due), state.old_until]
    });
    let waits = times.flatten().map(|time| time.saturating_duration_since(now));
    waits.min().unwrap_or(IDLE).min(IDLE)
}

/// Logs what is new: a host that is gone for a night is told once.
fn tell(remotes: &Remotes, remote: &Remote, before: Option<String>, late: bool) {
    let mut state = remote.state();
    if late {
        state.status = super::Status::Failed;
        state.problem = Some(super::error::SyncError::TooLong { seconds: TIME_MAX.as_secs() }.to_string());
    }
    let name = &remote.definition.name;
    match (&state.problem, before) {
        (Some(problem), before) if before.as_ref() != Some(problem) => {
            warn!("worker {}: git remote '{name}' cannot be synchronized: {problem}", remotes.worker);
        }
        (None, Some(_)) => info!("worker {}: git remote '{name}' can be synchronized again", remotes.worker),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use norfab_service::testing::TestClock;
    use serde_json::json;
    use tokio::runtime::Handle;

    use super::super::RemotesHome;
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn remotes_that_take_longer_than_their_interval_leave_none_out() {
        let folder = tempfile::tempdir().expect("a folder");
        let home = RemotesHome {
            worker: "w".to_owned(),
            folder: folder.path().join("w"),
            local_base: folder.path().to_owned(),
            clock: Arc::new(TestClock),
            runtime: Handle::current(),
            span: Span::none(),
        };
        let entries: Vec<_> = (0..6)
            .map(|number| {
                let name = format!("r{number}");
                json!({"name": name, "url": "u", "branch": "main", "auto_sync": true, "sync_interval": 5})
            })
            .collect();
        let definitions = super::super::read(&entries).expect("remotes");
        let remotes = Remotes::start(home, folder.path().to_owned(), definitions, None, &[]);
        // Nothing runs by itself here: the time does not go on.
        let mut now = remotes.clock.now() + FIRST_AFTER;
        let mut rounds = Vec::new();
        for _ in 0..3 {
            let taken = take_due(&remotes, now, AT_ONCE);
            assert!(take_due(&remotes, now, AT_ONCE - taken.len()).is_empty());
            now += Duration::from_secs(20);
            rounds.push(taken.iter().map(|(remote, _)| remote.definition.name.clone()).collect::<Vec<_>>());
            for (remote, turn) in taken {
                drop(turn);
                set_due(&remote, now);
            }
            now += Duration::from_secs(5);
        }
        assert_eq!(rounds, [vec!["r0", "r1", "r2", "r3"], vec!["r4", "r5", "r0", "r1"], vec!["r2", "r3", "r0", "r1"]]);
        remotes.over.cancel();
    }
}
