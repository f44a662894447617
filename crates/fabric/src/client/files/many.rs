//! Fetching many files.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use norfab_protocol::target::Target;
use norfab_protocol::{Identity, TaskResult};
use serde::Deserialize;
use serde_json::json;

use super::super::ClientHandle;
use super::batch::{Tally, Wish};
use super::fetch::{Origin, Wanted};
use super::git::is_git;
use super::place::{Place, blocking, sync_beside};
use super::schedule::{FilesProgress, Item, Schedule, Tell};
use super::waiting::Work;
use super::{FetchError, Fetched, check_url, nobody_has};
use crate::clock::{SystemClock, TIMEOUT_MAX};

/// URLs of one question, as many as a worker answers.
const URLS_MAX: usize = 10_000;

/// Bytes of the URLs of one question: its worker and its client hold it several times.
const URLS_BYTES_MAX: usize = 1 << 20;

/// A file that is wanted, and where it goes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileTarget {
    /// `nf://PATH` or `git://REMOTE/PATH`.
    pub url: String,
    /// The file here. Folders on the way are made.
    pub target: PathBuf,
}

/// What a worker of ours tells of a URL.
#[derive(Deserialize)]
struct Standing {
    kind: String,
    size_bytes: Option<u64>,
    #[serde(default)]
    modified: Option<i64>,
    error: Option<String>,
}

/// What workers have of many URLs.
#[derive(Debug, Default)]
pub(super) struct Survey {
    /// Workers of ours that answered.
    pub(super) workers: Vec<Identity>,
    /// For each URL: who has it, by their place, with size and time; in the order in which they answered.
    pub(super) holders: Vec<Vec<(usize, u64, i64)>>,
    /// For each URL: what the last said who does not have it.
    reasons: Vec<Option<String>>,
    /// Those that do not know the question.
    others: Vec<Identity>,
    /// Why some said nothing.
    reason: String,
    /// Those that have not answered.
    silent: BTreeSet<Identity>,
    timed_out: bool,
}

/// A file that is to be fetched: its place among all, and what is known of it.
struct Open {
    index: usize,
    url: String,
    place: Place,
}

impl ClientHandle {
    /// Fetches files, each as [`ClientHandle::fetch_file`] does, many in one transfer and from several workers at the same time where
    /// several have them. What became of each stands in the order of `files`: one that fails does not keep the others. `progress` is told
    /// how far all of them are. When it returns, what came is on the disk.
    pub async fn fetch_files(
        &self,
        files: Vec<FileTarget>,
        timeout: Duration,
        mut progress: impl FnMut(FilesProgress) + Send,
    ) -> Vec<Result<Fetched, FetchError>> {
        let timeout = timeout.min(TIMEOUT_MAX);
        let deadline = SystemClock::now() + timeout;
        let tally = Arc::new(Tally::default());
        tally.files.store(files.len() as u64, Ordering::Relaxed);
        let mut outcomes: Vec<Option<Result<Fetched, FetchError>>> = files.iter().map(|_| None).collect();
        // Which worker is asked: all, or the one that said where it has a file of a git remote.
        let mut groups: BTreeMap<Option<Identity>, Vec<Open>> = BTreeMap::new();
        let mut of_git = Vec::new();
        for (index, FileTarget { url, target }) in files.into_iter().enumerate() {
            let place = check_url(&url)
                .and_then(|()| Place::of(&target).map_err(|error| FetchError::Write { path: target, error }));
            match place {
                Err(error) => outcomes[index] = Some(Err(error)),
                Ok(place) if is_git(&url) => of_git.push(Open { index, url, place }),
                Ok(place) => groups.entry(None).or_default().push(Open { index, url, place }),
            }
        }
        let urls: Vec<String> = of_git.iter().map(|open| open.url.clone()).collect();
        match self.resolve_many(&urls, deadline, timeout, &BTreeSet::new()).await {
            Ok(resolved) => {
                for (open, resolved) in of_git.into_iter().zip(resolved) {
                    match resolved {
                        Ok((url, worker)) => groups.entry(Some(worker)).or_default().push(Open { url, ..open }),
                        Err(error) => outcomes[open.index] = Some(Err(error)),
                    }
                }
            }
            Err(error) => {
                for Open { index, url, .. } in of_git {
                    outcomes[index] = Some(Err(FetchError::NotFound { url, reason: error.to_string() }));
                }
            }
        }
        for (worker, open) in groups {
            let target = worker.map_or(Target::All, |worker| Target::list([worker]));
            for (index, outcome) in self.fetch_group(open, target, deadline, timeout, &tally, &mut progress).await {
                outcomes[index] = Some(outcome);
            }
        }
        let came = outcomes.iter().flatten().flatten().filter(|fetched| fetched.worker.is_some());
        let came: Vec<PathBuf> = came.map(|fetched| fetched.path.clone()).collect();
        // Once for all of them: for each file it would take longer than all else together.
        if let Err(error) = blocking(move || sync_beside(came.iter().map(PathBuf::as_path))).await {
            tracing::warn!("client {}: nobody knows whether files that came are on the disk: {error}", self.identity());
        }
        outcomes.into_iter().map(|outcome| outcome.expect("each is in one group, or has its outcome")).collect()
    }

    async fn fetch_group(
        &self,
        open: Vec<Open>,
        target: Target,
        deadline: Instant,
        timeout: Duration,
        tally: &Arc<Tally>,
        tell: Tell<'_>,
    ) -> Vec<(usize, Result<Fetched, FetchError>)> {
        let urls: Vec<&str> = open.iter().map(|open| open.url.as_str()).collect();
        let survey = match self.survey_urls(&urls, target.clone(), deadline).await {
            Ok(survey) => survey,
            Err(reason) => {
                let failed =
                    |Open { index, url, .. }| (index, Err(FetchError::NotFound { url, reason: reason.clone() }));
                return open.into_iter().map(failed).collect();
            }
        };
        let (mut items, mut rest) = (Vec::new(), Vec::new());
        for (at, open) in open.into_iter().enumerate() {
            match survey.holders[at].first() {
                Some((_, size, modified)) => items.push(survey.item(at, open, *size, *modified)),
                None => rest.push((at, open)),
            }
        }
        let bytes = items.iter().map(|item| item.wish.size).fold(0, u64::saturating_add);
        tally.bytes.fetch_add(bytes, Ordering::Relaxed);
        let workers = survey.workers.clone();
        let schedule = Schedule::new(self, deadline, timeout, workers, items, Arc::clone(tally));
        let mut outcomes = schedule.run(tell).await;
        for (at, Open { index, url, place }) in rest {
            let outcome = if survey.others.is_empty() {
                Err(survey.not_found(at, url, timeout))
            } else {
                // Workers of Python NorFab send one file after the other.
                let shown = place.shown().to_path_buf();
                let others = Target::list(survey.others.clone());
                let origin = Origin::Workers(target.clone());
                let wanted = Wanted { url: &url, target: &shown, timeout, deadline, origin };
                self.fetch_beside(&wanted, place, others, tally, tell).await
            };
            outcomes.push((index, outcome));
        }
        outcomes
    }

    /// One file, of many.
    pub(super) async fn fetch_beside(
        &self,
        wanted: &Wanted<'_>,
        place: Place,
        target: Target,
        tally: &Arc<Tally>,
        tell: Tell<'_>,
    ) -> Result<Fetched, FetchError> {
        let (mut told, mut known) = (0, 0);
        let mut progress = |bytes: u64, size: u64| {
            tally.bytes.fetch_add(size.saturating_sub(known), Ordering::Relaxed);
            tally.bytes_done.fetch_add(bytes.saturating_sub(told), Ordering::Relaxed);
            (told, known) = (told.max(bytes), known.max(size));
            tell(tally.now());
        };
        let outcome = self.fetch_placed(wanted, place, target, &mut progress).await;
        if outcome.is_ok() {
            tally.file_done();
            tell(tally.now());
        }
        outcome
    }

    /// Asks workers of ours what is under URLs. Errors: why nobody could be asked.
    pub(super) async fn survey_urls(&self, urls: &[&str], target: Target, deadline: Instant) -> Result<Survey, String> {
        let mut survey =
            Survey { holders: vec![Vec::new(); urls.len()], reasons: vec![None; urls.len()], ..Survey::default() };
        let mut others = BTreeSet::new();
        let (mut first, mut target) = (0, target);
        while first < urls.len() {
            let mut bytes = 0;
            let fits = urls[first..].iter().take(URLS_MAX).take_while(|url| {
                bytes += url.len();
                bytes <= URLS_BYTES_MAX
            });
            let some = &urls[first..first + fits.count().max(1)];
            let mut open: BTreeSet<usize> = (0..some.len()).collect();
            let is_enough = |result: &TaskResult| {
                for (at, standing) in standings(result, some.len()).into_iter().flatten().enumerate() {
                    if standing.kind == "file" {
                        open.remove(&at);
                    }
                }
                open.is_empty()
            };
            let question = json!({ "urls": some });
            let answers = self.ask_until("stat_files", question, target, deadline, Work::Shown, is_enough).await;
            let answers = answers.map_err(|error| error.to_string())?;
            survey.timed_out |= answers.timed_out;
            survey.reason = answers.reason();
            survey.silent.extend(answers.silent);
            // Who is silent costs a while once, and not for each question.
            let answering: Vec<Identity> = answers.said.iter().map(|(worker, _)| worker.clone()).collect();
            for (worker, result) in answers.said {
                let Some(standings) = standings(&result, some.len()) else {
                    others.insert(worker);
                    continue;
                };
                let known = survey.workers.iter().position(|known| *known == worker);
                let place = known.unwrap_or_else(|| {
                    survey.workers.push(worker);
                    survey.workers.len() - 1
                });
                for (at, standing) in (first..).zip(standings) {
                    match standing {
                        Standing { kind, size_bytes: Some(size), modified, .. } if kind == "file" => {
                            survey.holders[at].push((place, size, modified.unwrap_or_default()));
                        }
                        Standing { kind, .. } if kind == "directory" => {
                            survey.reasons[at] = Some("it is a directory".to_owned());
                        }
                        Standing { error, .. } => survey.reasons[at] = error,
                    }
                }
            }
            first += some.len();
            if answering.is_empty() {
                break;
            }
            target = Target::list(answering);
        }
        survey.others = others.into_iter().collect();
        Ok(survey)
    }
}

/// What a worker says of so many URLs. `None`: it does not know the question.
fn standings(result: &TaskResult, urls: usize) -> Option<Vec<Standing>> {
    let standings: Vec<Standing> =
        if result.failed { return None } else { serde_json::from_str(result.result.get()).ok()? };
    (standings.len() == urls).then_some(standings)
}

impl Survey {
    /// A version of a file that somebody has.
    fn item(&self, at: usize, open: Open, size: u64, modified: i64) -> Item {
        let Open { index, url, place } = open;
        let (holders, spares) = self.split(at, size, modified);
        Item { wish: Wish { index, url, place, size, may_be_there: true }, holders, spares }
    }

    /// Who has a version of a file, and who has another one.
    pub(super) fn split(&self, at: usize, size: u64, modified: i64) -> (BTreeSet<usize>, BTreeSet<usize>) {
        let (same, other): (Vec<_>, Vec<_>) =
            self.holders[at].iter().partition(|(_, its_size, its_time)| (*its_size, *its_time) == (size, modified));
        let places = |of: Vec<&(usize, u64, i64)>| of.into_iter().map(|(place, ..)| *place).collect();
        (places(same), places(other))
    }

    fn not_found(&self, at: usize, url: String, timeout: Duration) -> FetchError {
        let reason = match (&self.reasons[at], self.reason.as_str()) {
            (Some(said), "") => said.clone(),
            (Some(said), reason) => format!("{said}; {reason}"),
            (None, "") => "no worker has it".to_owned(),
            (None, reason) => reason.to_owned(),
        };
        nobody_has(url, timeout, self.timed_out, !self.silent.is_empty(), reason)
    }
}
