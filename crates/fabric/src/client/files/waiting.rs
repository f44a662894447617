//! Until when those are waited for that were asked something. One that is gone or silent costs seconds, not all the time there is.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use norfab_protocol::broker::MANAGEMENT_SERVICE;
use norfab_protocol::client::JobUpdate;
use norfab_protocol::{Identity, ServiceName};
use serde_json::{Map, Value};

use super::super::{ClientHandle, JobHandle};
use super::SERVICE;
use super::find::GRACE;
use crate::LinkState;
use crate::clock::SystemClock;

/// How long a question may be with workers of which none shows that it has it.
pub(super) const SILENT_MAX: Duration = Duration::from_secs(5);

/// How long one that has taken a question may show nothing more. Workers of ours show that they are at it.
const STILL_MAX: Duration = Duration::from_secs(20);

/// How often the broker is asked whether workers are there that show nothing.
const CHECKED_EVERY: Duration = Duration::from_secs(5);

/// How long the broker may take for that.
const CHECK_MAX: Duration = Duration::from_secs(5);

/// What is to be expected of those that have taken a question.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Work {
    /// They answer, or show that they are at it.
    Shown,
    /// They may be at it for long without a sign: workers of Python NorFab that read files, or a repository that is fetched. As long as
    /// the broker knows them they are waited for.
    Unseen,
}

/// Who of those that were asked is waited for.
#[derive(Debug)]
pub(super) struct Waiting {
    work: Work,
    /// Those that have not answered and are waited for.
    asked: BTreeSet<Identity>,
    /// Those that have shown that they have the question.
    at_work: BTreeSet<Identity>,
    /// Those that are not waited for any more.
    silent: BTreeSet<Identity>,
    dispatched: Option<Instant>,
    /// When the first showed that it has the question.
    first: Option<Instant>,
    /// When what was wanted was known.
    enough: Option<Instant>,
    /// When the last sign came.
    last: Instant,
    checked: Option<Instant>,
}

impl Waiting {
    pub(super) fn new(work: Work) -> Self {
        Self {
            work,
            asked: BTreeSet::new(),
            at_work: BTreeSet::new(),
            silent: BTreeSet::new(),
            dispatched: None,
            first: None,
            enough: None,
            last: SystemClock::now(),
            checked: None,
        }
    }

    fn heard(&mut self, update: &JobUpdate) {
        let now = SystemClock::now();
        match update {
            JobUpdate::Dispatched(workers) => {
                self.asked.extend(workers.iter().cloned());
                self.dispatched.get_or_insert(now);
            }
            JobUpdate::Accepted(worker) => drop(self.at_work.insert(worker.clone())),
            JobUpdate::Event(event, _) => drop(self.at_work.insert(event.worker.clone())),
            JobUpdate::Result(worker, _) => {
                self.asked.remove(worker);
                self.silent.remove(worker);
            }
            _ => return,
        }
        self.last = now;
        if !matches!(update, JobUpdate::Dispatched(_)) {
            self.first.get_or_insert(now);
        }
    }

    /// What was wanted is known: others are waited for no longer than the grace.
    pub(super) fn is_enough(&mut self) {
        self.enough.get_or_insert_with(SystemClock::now);
    }

    /// Those that have not answered.
    pub(super) fn into_silent(mut self) -> Vec<Identity> {
        self.silent.append(&mut self.asked);
        self.silent.into_iter().collect()
    }

    /// Until when the next sign is waited for. `None`: as long as the job may take, as nobody has the question.
    fn until(&self) -> Option<Instant> {
        let dispatched = self.dispatched?;
        Some(match (self.enough, self.first) {
            (Some(enough), _) => enough + GRACE,
            (None, None) => dispatched + SILENT_MAX,
            (None, Some(first)) if self.asked.iter().any(|worker| !self.at_work.contains(worker)) => first + GRACE,
            // The end of the job is on its way.
            (None, Some(_)) if self.asked.is_empty() => self.last + GRACE,
            (None, Some(_)) => {
                let checked = self.checked.map_or(self.last, |checked| checked + CHECKED_EVERY);
                checked.max(self.last + STILL_MAX)
            }
        })
    }

    /// Nothing came until then. Whether somebody is waited for.
    fn expired(&mut self) -> Expired {
        if self.enough.is_some() || self.first.is_none() || self.asked.is_empty() {
            return Expired::Ends;
        }
        let (at_work, others): (BTreeSet<Identity>, _) =
            std::mem::take(&mut self.asked).into_iter().partition(|worker| self.at_work.contains(worker));
        self.asked = at_work;
        if !others.is_empty() {
            self.silent.extend(others);
            return if self.asked.is_empty() { Expired::Ends } else { Expired::GoesOn };
        }
        if self.work == Work::Shown { Expired::Ends } else { Expired::Check }
    }
}

enum Expired {
    Ends,
    GoesOn,
    Check,
}

impl ClientHandle {
    /// The next news of a job. `None`: there is none any more, or nobody is waited for.
    pub(super) async fn next_of(&self, job: &mut JobHandle, waiting: &mut Waiting) -> Option<JobUpdate> {
        loop {
            if waiting.asked.is_empty() && !waiting.silent.is_empty() {
                return None;
            }
            let until = waiting.until();
            let update = match until {
                None => job.next().await,
                Some(until) => {
                    let wait = until.saturating_duration_since(SystemClock::now());
                    match tokio::time::timeout(wait, job.next()).await {
                        Ok(update) => update,
                        Err(_) => {
                            if !self.is_waited_for(waiting).await {
                                return None;
                            }
                            continue;
                        }
                    }
                }
            };
            return update.inspect(|update| waiting.heard(update));
        }
    }

    async fn is_waited_for(&self, waiting: &mut Waiting) -> bool {
        if *self.state().borrow() != LinkState::Connected {
            // Nobody can show anything until it is there again.
            let now = SystemClock::now();
            waiting.last = now;
            waiting.dispatched = Some(now);
            waiting.first = waiting.first.map(|_| now);
            return waiting.enough.is_none() && !waiting.asked.is_empty();
        }
        match waiting.expired() {
            Expired::Ends => false,
            Expired::GoesOn => true,
            Expired::Check => {
                if let Some(registered) = self.registered().await {
                    let asked = std::mem::take(&mut waiting.asked);
                    let (there, gone): (BTreeSet<Identity>, _) =
                        asked.into_iter().partition(|worker| registered.contains(worker.as_str()));
                    waiting.asked = there;
                    waiting.silent.extend(gone);
                }
                waiting.checked = Some(SystemClock::now());
                !waiting.asked.is_empty()
            }
        }
    }

    /// Names of the workers that the broker knows. `None`: it does not say.
    async fn registered(&self) -> Option<BTreeSet<String>> {
        let of_files = Map::from_iter([("service".to_owned(), Value::from(SERVICE))]);
        let service = ServiceName::parse(MANAGEMENT_SERVICE).ok()?;
        let answer = self.management(service, "show_workers", of_files, CHECK_MAX).await.ok()?;
        let rows = answer.results.as_array().filter(|_| answer.status.code() == 200)?;
        let alive = rows.iter().filter(|row| row["status"] != "dead");
        Some(alive.filter_map(|row| row["name"].as_str().map(str::to_owned)).collect())
    }
}
