//! Making a folder here like one that a worker shares.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use norfab_files::Tree;
use norfab_protocol::Identity;
use norfab_protocol::target::Target;

use super::super::ClientHandle;
use super::batch::{Tally, Wish};
use super::compare::{self, Manner, Plan, Removed, WantedFile};
use super::fetch::{Origin, Wanted};
use super::listing::{Listing, url_below};
use super::place::{Place, blocking};
use super::schedule::{FilesProgress, Item, Schedule, Tell};
use super::{FetchError, Fetched};
use crate::clock::{SystemClock, TIMEOUT_MAX};

/// How to synchronize.
#[derive(Debug, Clone)]
pub struct SyncOptions {
    /// Which workers are asked: the first that has the folder tells what is in it, and others send what they have of the same.
    pub workers: Target,
    /// Whether files here that the worker does not have are removed, and folders that are empty then. Not where it told of less than
    /// it has, or of nothing, where something did not come, and where another worker may have other files in that folder, unless one is
    /// named.
    pub delete: bool,
    /// Whether it is only told what would be done.
    pub dry_run: bool,
    /// Whether files of the same size and time are compared by their hash, too.
    pub checksum: bool,
    /// How long all of it may take.
    pub timeout: Duration,
}

/// A file that was not synchronized.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unsynced {
    /// Its path below the folder, as the worker wrote it: any text.
    pub path: String,
    /// Why.
    pub reason: String,
    /// Whether time was over.
    pub timed_out: bool,
}

/// What was done, or would be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Synced {
    /// Who told what there is.
    pub worker: Identity,
    /// Files that it has.
    pub files: u64,
    /// Those of them that were here already, with the right content.
    pub unchanged: u64,
    /// Those that came, by their paths, in the order of these.
    pub fetched: Vec<String>,
    /// Their bytes.
    pub bytes: u64,
    /// Bytes of them that were here before.
    pub had: u64,
    /// Files here that were removed, by their paths.
    pub deleted: Vec<String>,
    /// Why nothing was removed although that was wanted.
    pub not_deleted: Option<String>,
    /// Files that are not here, or not removed, and why.
    pub failed: Vec<Unsynced>,
    /// Links that were not followed.
    pub links: u64,
    /// Names that the worker left out: those that no URL can hold, and folders that it could not read.
    pub left_out: u64,
}

impl ClientHandle {
    /// Makes a folder here like `nf://FOLDER` of a worker that has it: files that are missing or have another size or time are fetched,
    /// by as many workers as have them, and appear under their names when they are whole. Nothing is written through links below
    /// `target`, whoever puts them there, nor to paths that lead elsewhere. Files that fail do not keep the others. When it
    /// returns, what came is on the disk. `progress` is told how far the files are that have to be fetched. Errors: nobody has the
    /// folder, or `target` cannot be opened.
    pub async fn sync(
        &self,
        url: &str,
        target: &Path,
        options: SyncOptions,
        mut progress: impl FnMut(FilesProgress) + Send,
    ) -> Result<Synced, FetchError> {
        if !url.starts_with("nf://") {
            return Err(FetchError::Url(url.to_owned()));
        }
        let timeout = options.timeout.min(TIMEOUT_MAX);
        let deadline = SystemClock::now() + timeout;
        let cannot_write = |error| FetchError::Write { path: target.to_path_buf(), error };
        let listing = Arc::new(self.list_folder(url, options.workers.clone(), deadline, timeout).await?);
        let (folder, manner) = (target.to_path_buf(), Manner { checksum: options.checksum, dry_run: options.dry_run });
        let (listed, dry_run) = (Arc::clone(&listing), options.dry_run);
        let (tree, plan) = blocking(move || {
            let tree = compare::open(&folder, dry_run)?;
            let plan = compare::compare(tree.as_ref(), &listed, manner);
            Ok((tree, plan))
        })
        .await
        .map_err(cannot_write)?;
        let mut synced = Synced::new(&listing, &plan);
        let wanted = match &tree {
            Some(tree) if options.dry_run && options.checksum => {
                self.really_other(url, &listing, tree, plan.wanted, &mut synced, deadline).await?
            }
            _ => plan.wanted,
        };
        let run = Run { url, target, listing: &listing, deadline, timeout };
        match &tree {
            Some(tree) if !options.dry_run && !wanted.is_empty() => {
                self.fetch_wanted(&run, tree, wanted, &mut synced, &mut progress).await;
            }
            // What would be fetched.
            _ => {
                synced.bytes = wanted.iter().map(|file| file.listed.size).fold(0, u64::saturating_add);
                synced.fetched = wanted.into_iter().map(|file| file.path.to_string()).collect();
            }
        }
        if let Some(tree) = tree {
            self.finish(tree, listing, options, &mut synced).await.map_err(cannot_write)?;
        }
        Ok(synced)
    }

    /// Removes what is to be removed, and waits for the disk.
    async fn finish(
        &self,
        tree: Arc<Tree>,
        listing: Arc<Listing>,
        options: SyncOptions,
        synced: &mut Synced,
    ) -> std::io::Result<()> {
        if options.delete {
            synced.not_deleted = why_not(&listing, &options.workers, synced.failed.len());
        }
        let deletes = options.delete && synced.not_deleted.is_none();
        let writes = !options.dry_run && !synced.fetched.is_empty();
        let removed = blocking(move || {
            if writes {
                // Once for all of them: for each file it would take longer than all else together. And before anything goes: what came
                // may be what is removed here under its old name.
                tree.sync()?;
            }
            Ok(if deletes { compare::remove_others(&tree, &listing, options.dry_run) } else { Removed::default() })
        })
        .await?;
        synced.deleted = removed.files;
        synced.failed.extend(removed.refused.into_iter().map(|(path, error)| Unsynced {
            path,
            reason: format!("cannot be removed: {error}"),
            timed_out: false,
        }));
        Ok(())
    }

    /// Those files that have another content here than there.
    async fn really_other(
        &self,
        url: &str,
        listing: &Listing,
        tree: &Arc<Tree>,
        wanted: Vec<WantedFile>,
        synced: &mut Synced,
        deadline: Instant,
    ) -> Result<Vec<WantedFile>, FetchError> {
        let (maybe, mut other): (Vec<_>, Vec<_>) = wanted.into_iter().partition(|file| file.may_be_there);
        let paths: Vec<String> = maybe.iter().map(|file| file.path.to_string()).collect();
        let details = self.details(&listing.worker, url, &paths, deadline).await?;
        let tree = Arc::clone(tree);
        let (same, rest) = blocking(move || {
            let mut cursor = tree.cursor();
            Ok(maybe.into_iter().partition::<Vec<_>, _>(|file| {
                let here = cursor.file(&file.path).ok().and_then(|mut file| super::python::md5_of(&mut file));
                here.is_some() && here.as_ref() == details.get(file.path.as_str()).map(|(_, md5)| md5)
            }))
        })
        .await
        .map_err(|error| FetchError::Write { path: Path::new("").to_path_buf(), error })?;
        synced.unchanged += same.len() as u64;
        other.extend(rest);
        other.sort_by(|one, two| one.path.cmp(&two.path));
        Ok(other)
    }

    async fn fetch_wanted(
        &self,
        run: &Run<'_>,
        tree: &Arc<Tree>,
        wanted: Vec<WantedFile>,
        synced: &mut Synced,
        tell: Tell<'_>,
    ) {
        let tally = Arc::new(Tally::default());
        tally.files.store(wanted.len() as u64, Ordering::Relaxed);
        let paths: Vec<String> = wanted.iter().map(|file| file.path.to_string()).collect();
        let place = |file: &WantedFile| Place::Below {
            tree: Arc::clone(tree),
            path: file.path.clone(),
            shown: run.target.join(file.path.as_str()),
        };
        let outcomes = if run.listing.is_python {
            let mut outcomes = Vec::new();
            for (index, file) in wanted.iter().enumerate() {
                let (url, place) = (url_below(run.url, file.path.as_str()), place(file));
                let shown = place.shown().to_path_buf();
                let worker = Target::list([&run.listing.worker]);
                let origin = Origin::Workers(worker.clone());
                let one = Wanted { url: &url, target: &shown, timeout: run.timeout, deadline: run.deadline, origin };
                outcomes.push((index, self.fetch_beside(&one, place, worker, &tally, tell).await));
            }
            outcomes
        } else {
            let wishes = wanted.iter().enumerate().map(|(index, file)| Wish {
                index,
                url: url_below(run.url, file.path.as_str()),
                place: place(file),
                size: file.listed.size,
                may_be_there: file.may_be_there,
            });
            let (workers, items) = self.with_peers(run, wishes.collect(), &wanted).await;
            let bytes = items.iter().map(|item| item.wish.size).fold(0, u64::saturating_add);
            tally.bytes.store(bytes, Ordering::Relaxed);
            tell(tally.now());
            Schedule::new(self, run.deadline, run.timeout, workers, items, tally).run(tell).await
        };
        for (index, outcome) in outcomes {
            synced.take(&paths[index], outcome);
        }
    }

    /// Who sends what: the worker that told of it, and others that have the same.
    async fn with_peers(&self, run: &Run<'_>, wishes: Vec<Wish>, wanted: &[WantedFile]) -> (Vec<Identity>, Vec<Item>) {
        let mut workers = vec![run.listing.worker.clone()];
        let mut survey = None;
        if !run.listing.peers.is_empty() {
            let urls: Vec<&str> = wishes.iter().map(|wish| wish.url.as_str()).collect();
            // Without them it goes, too.
            let until = run.deadline.min(SystemClock::now() + PEERS_MAX);
            survey = self.survey_urls(&urls, Target::list(&run.listing.peers), until).await.ok();
        }
        workers.extend(survey.iter().flat_map(|survey| survey.workers.clone()));
        let items = wishes.into_iter().enumerate().map(|(at, wish)| {
            let file = &wanted[at].listed;
            let (same, other) = match &survey {
                Some(survey) => survey.split(at, file.size, file.modified.unwrap_or_default()),
                None => Default::default(),
            };
            // The first is the one that told.
            let holders = same.into_iter().map(|worker| worker + 1).chain([0]).collect();
            Item { wish, holders, spares: other.into_iter().map(|worker| worker + 1).collect() }
        });
        (workers, items.collect())
    }
}

/// Why nothing may be removed here.
fn why_not(listing: &Listing, workers: &Target, failed: usize) -> Option<String> {
    let is_named = workers.names().is_some_and(|names| names.len() == 1);
    if listing.entries.is_empty() {
        return Some("the folder there is empty: remove the one here by hand if that is meant".to_owned());
    }
    if let Some(why) = listing.incomplete() {
        return Some(why);
    }
    if failed > 0 {
        return Some(format!("{failed} files did not come, or cannot be written"));
    }
    if is_named {
        return None;
    }
    let Listing { worker, rivals, .. } = listing;
    if *workers == Target::Any {
        return Some(format!(
            "other workers than {worker} may have other files in that folder: name one with --workers"
        ));
    }
    let (first, more) = rivals.split_first()?;
    let names = more.iter().fold(format!("{worker}, {first}"), |names, name| format!("{names}, {name}"));
    Some(format!("workers {names} may each have other files in that folder: name one with --workers"))
}

/// How long other workers may take to say what they have, while nothing is fetched.
const PEERS_MAX: Duration = Duration::from_secs(5);

/// What one synchronization is about.
struct Run<'a> {
    url: &'a str,
    target: &'a Path,
    listing: &'a Listing,
    deadline: Instant,
    timeout: Duration,
}

impl Synced {
    fn new(listing: &Listing, plan: &Plan) -> Self {
        let refused = listing.refused.iter().map(|(path, why)| (path.clone(), format!("it is not written: {why}")));
        let here = plan.refused.iter().map(|(path, error)| (path.to_string(), error.to_string()));
        Self {
            worker: listing.worker.clone(),
            files: plan.files,
            unchanged: plan.unchanged,
            fetched: Vec::new(),
            bytes: 0,
            had: 0,
            deleted: Vec::new(),
            not_deleted: None,
            failed: refused.chain(here).map(|(path, reason)| Unsynced { path, reason, timed_out: false }).collect(),
            links: plan.links,
            left_out: listing.left_out,
        }
    }

    fn take(&mut self, path: &str, outcome: Result<Fetched, FetchError>) {
        match outcome {
            Ok(fetched) if fetched.worker.is_none() => self.unchanged += 1,
            Ok(fetched) => {
                self.bytes += fetched.bytes;
                self.had += fetched.had;
                self.fetched.push(path.to_owned());
            }
            Err(error) => self.failed.push(Unsynced {
                path: path.to_owned(),
                timed_out: matches!(error, FetchError::TimedOut { .. }),
                reason: match error {
                    FetchError::NotFound { reason, .. } => reason,
                    FetchError::Write { error, .. } => format!("cannot be written: {error}"),
                    error => error.to_string(),
                },
            }),
        }
    }
}
