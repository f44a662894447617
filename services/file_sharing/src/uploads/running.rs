//! Uploads that are under way: one for each place, and room for all of them.

use std::collections::HashMap;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use norfab_service::{Clock, Identity};
use rustix::fd::OwnedFd;
use tokio_util::sync::CancellationToken;

use super::census::{self, Census};
use super::place::Place;
use super::refusal::UploadRefusal;
use super::settings::UploadSettings;

/// Uploads at once: each holds a window of content, and a thread.
pub const UPLOADS_AT_ONCE_MAX: usize = 16;

/// An upload of which nothing came for so long may be gone on with by another client that has the same file: its own was killed.
pub const SILENT_MAX: Duration = Duration::from_secs(3);

/// How long an upload that is told to end may take: it may be waiting for its disk.
const END_WAIT: Duration = Duration::from_secs(10);

/// How long a count of the folder is believed. Before anybody is refused it is counted anew.
const CENSUS_AGE_MAX: Duration = Duration::from_secs(10);

/// What an upload is of, as far as one can tell before it has come.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Subject {
    pub(crate) size: u64,
    pub(crate) modified: i64,
}

/// Who uploads what.
#[derive(Debug, Clone)]
pub(crate) struct Uploader {
    pub(crate) client: Identity,
    /// What the attempts of one upload have in common.
    pub(crate) transfer: String,
    pub(crate) subject: Subject,
}

#[derive(Debug)]
struct Running {
    uploader: Uploader,
    /// When something came last.
    last: Instant,
    /// Tells it to end.
    stop: CancellationToken,
    /// Its part, by device and number.
    part: Option<(u64, u64)>,
    /// Bytes that it may come to have.
    reserved: u64,
    /// Files that it adds.
    adds: u64,
}

#[derive(Debug, Default)]
struct State {
    running: HashMap<Place, Running>,
    /// What is in the folder beside their parts, and when that was counted.
    census: Option<(Census, Instant)>,
}

/// Uploads that are under way.
#[derive(Debug, Default)]
pub(crate) struct Board {
    state: Mutex<State>,
    ended: Condvar,
}

/// A turn at a place: nobody else uploads there as long as it lives.
pub(crate) struct Turn {
    board: Arc<Board>,
    place: Place,
    /// Told to end, as another one takes its place.
    pub(crate) stop: CancellationToken,
}

impl Board {
    fn lock(&self) -> MutexGuard<'_, State> {
        // Whoever panics leaves numbers that are counted anew.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a turn. One that another attempt of the same upload left, or that nobody goes on with, is ended. Blocks for a while then.
    /// Errors: somebody else uploads there, or too many do.
    pub(crate) fn turn(
        self: &Arc<Self>,
        place: &Place,
        uploader: &Uploader,
        clock: &dyn Clock,
    ) -> Result<Turn, UploadRefusal> {
        let mut state = self.lock();
        let until = clock.now() + END_WAIT;
        while let Some(running) = state.running.get(place) {
            let now = clock.now();
            let is_silent = now.saturating_duration_since(running.last) >= SILENT_MAX;
            let is_same = running.uploader.transfer == uploader.transfer
                || (is_silent && running.uploader.subject == uploader.subject);
            let left = until.saturating_duration_since(now);
            if !is_same || left.is_zero() {
                return Err(UploadRefusal::Busy { url: place.url(), client: running.uploader.client.clone() });
            }
            running.stop.cancel();
            state = self.ended.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        if state.running.len() >= UPLOADS_AT_ONCE_MAX {
            return Err(UploadRefusal::TooMany { max: UPLOADS_AT_ONCE_MAX });
        }
        let stop = CancellationToken::new();
        let running = Running {
            uploader: uploader.clone(),
            last: clock.now(),
            stop: stop.clone(),
            part: None,
            reserved: 0,
            adds: 0,
        };
        state.running.insert(place.clone(), running);
        Ok(Turn { board: Arc::clone(self), place: place.clone(), stop })
    }
}

/// What an upload needs room for.
pub(crate) struct Need<'a> {
    pub(crate) size: u64,
    /// Its part, by device and number, and how long it is already.
    pub(crate) part: ((u64, u64), u64),
    /// Whether there is no file yet where it goes.
    pub(crate) adds: bool,
    /// The upload folder.
    pub(crate) root: &'a OwnedFd,
    /// Seconds since 1970, by the clock of the file system.
    pub(crate) now: i64,
}

impl Turn {
    /// Something came.
    pub(crate) fn goes_on(&self, clock: &dyn Clock) {
        if let Some(running) = self.board.lock().running.get_mut(&self.place) {
            running.last = clock.now();
        }
    }

    /// Reserves room. Errors: there is none.
    pub(crate) fn reserve(
        &self,
        settings: &UploadSettings,
        need: &Need<'_>,
        clock: &dyn Clock,
    ) -> Result<(), UploadRefusal> {
        let mut state = self.board.lock();
        let now = clock.now();
        let (part, part_bytes) = need.part;
        let is_young = |then: &Instant| now.saturating_duration_since(*then) < CENSUS_AGE_MAX;
        // The part is one of those that are under way from now on.
        let mut census = state.census.filter(|(_, then)| is_young(then)).map(|(census, then)| {
            let had = u64::from(part_bytes > 0);
            let (bytes, entries) = (census.bytes.saturating_sub(part_bytes), census.entries.saturating_sub(had));
            (Census { bytes, entries }, then)
        });
        loop {
            let is_fresh = census.is_none();
            let (counted, then) = match census {
                Some(known) => known,
                None => {
                    let mut without: Vec<(u64, u64)> =
                        state.running.values().filter_map(|running| running.part).collect();
                    without.push(part);
                    let url = || settings.url();
                    let counted = census::take(need.root, &without, need.now)
                        .map_err(|errno| UploadRefusal::Unwritable { url: url(), errno })?;
                    (counted, now)
                }
            };
            match state.room(settings, &self.place, need, counted) {
                Ok(()) => {
                    state.census = Some((counted, then));
                    if let Some(running) = state.running.get_mut(&self.place) {
                        (running.part, running.reserved, running.adds) = (Some(part), need.size, u64::from(need.adds));
                    }
                    return Ok(());
                }
                Err(refusal) if is_fresh => {
                    // The part counts for itself again.
                    state.census = None;
                    return Err(refusal);
                }
                Err(_) => census = None,
            }
        }
    }

    /// The folder changed in a way that is not worth reckoning.
    pub(crate) fn count_anew(&self) {
        self.board.lock().census = None;
    }

    /// The file is in its place: it has become one of those that are counted, and may have replaced another one.
    pub(crate) fn is_kept(&self, size: u64, replaced: Option<u64>) {
        let mut state = self.board.lock();
        if let Some((census, _)) = &mut state.census {
            census.bytes = census.bytes.saturating_add(size).saturating_sub(replaced.unwrap_or_default());
            census.entries += u64::from(replaced.is_none());
        }
        if let Some(running) = state.running.get_mut(&self.place) {
            // It does not count twice, and its part is no more.
            (running.part, running.reserved, running.adds) = (None, 0, 0);
        }
    }
}

impl State {
    fn room(
        &self,
        settings: &UploadSettings,
        place: &Place,
        need: &Need<'_>,
        counted: Census,
    ) -> Result<(), UploadRefusal> {
        let others = self.running.iter().filter(|(at, _)| *at != place).map(|(_, running)| running);
        let (mut bytes, mut entries) = (counted.bytes, counted.entries);
        for running in others {
            bytes = bytes.saturating_add(running.reserved);
            entries += running.adds;
        }
        let left = settings.total_bytes_max.saturating_sub(bytes);
        if need.size > left {
            let (url, folder, max) = (place.url(), settings.url(), settings.total_bytes_max);
            return Err(UploadRefusal::NoRoom { url, folder, size: need.size, left, max });
        }
        if need.adds && entries >= settings.files_max {
            return Err(UploadRefusal::TooManyFiles { folder: settings.url(), max: settings.files_max });
        }
        Ok(())
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        let mut state = self.board.lock();
        // A part that stays counts for itself from now on.
        if state.running.remove(&self.place).is_some_and(|running| running.part.is_some()) {
            state.census = None;
        }
        self.board.ended.notify_all();
    }
}
