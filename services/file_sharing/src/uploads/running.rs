//! Uploads that are under way: one for each place, and room for all of them.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use norfab_service::{Clock, Identity};
use rustix::io::Errno;
use tokio_util::sync::CancellationToken;

use super::census::{Census, Counted, Key};
use super::place::Place;
use super::refusal::UploadRefusal;
use super::room::{Room, signed};
use super::settings::UploadSettings;

/// Uploads at once, where the worker runs many jobs: each holds a window of content, and a thread.
pub const UPLOADS_AT_ONCE_MAX: usize = 16;

/// How many uploads a worker that runs so many jobs at once takes at once: fewer than half, at least one. As many more may wait for
/// an attempt before them to end, and still there is a place for other jobs.
pub const fn uploads_at_once(jobs_max: usize) -> usize {
    let fewer = jobs_max.saturating_sub(1) / 2;
    match fewer {
        0 => 1,
        fewer if fewer > UPLOADS_AT_ONCE_MAX => UPLOADS_AT_ONCE_MAX,
        fewer => fewer,
    }
}

/// An upload of which nothing came for so long may be gone on with by another client that has the same file: its own was killed. A client
/// that reads its file says so every 5 s.
pub const SILENT_MAX: Duration = Duration::from_secs(11);

/// Most transfers that an upload remembers to have taken the place of.
const DRIVEN_OUT_MAX: usize = 16;

/// How long an upload that is told to end may take: it may be waiting for its disk.
const END_WAIT: Duration = Duration::from_secs(10);

/// How long is waited for somebody else who counts what is in the folder: a disk may not answer at all.
const COUNT_WAIT: Duration = Duration::from_secs(20);

/// How often whoever waits for that looks whether it is still wanted.
const COUNT_LOOK: Duration = Duration::from_millis(100);

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
    /// Those that began earlier have smaller ones.
    number: u64,
    sign: Arc<Sign>,
    /// Tells it to end.
    stop: CancellationToken,
    /// Transfers of which it has taken the place. They do not take its own, or none would get on.
    driven_out: Vec<String>,
    part: Option<Key>,
    /// Bytes that it may come to have.
    reserved: u64,
    /// Files and folders that it adds.
    adds: u64,
}

/// What an upload tells while it runs. Nothing that takes long is done under its lock.
#[derive(Debug)]
struct Sign {
    /// When something came last.
    last: Mutex<Instant>,
    /// Bytes in its part.
    there: AtomicU64,
}

impl Sign {
    fn last(&self) -> Instant {
        *self.last.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[derive(Debug, Default)]
struct State {
    running: HashMap<Place, Running>,
    /// How many have begun so far.
    begun: u64,
    room: Room,
}

/// Uploads that are under way.
#[derive(Debug)]
pub(crate) struct Board {
    /// Uploads at once, and of one client.
    all_max: usize,
    each_max: usize,
    /// Those that wait for an attempt before them to end: each takes a job's place.
    waiting: AtomicUsize,
    /// Nobody does anything that takes long while it is locked.
    state: Mutex<State>,
    /// An upload has ended, or a count.
    ended: Condvar,
}

/// A turn at a place: nobody else uploads there as long as it lives.
pub(crate) struct Turn {
    board: Arc<Board>,
    place: Place,
    sign: Arc<Sign>,
    /// Told to end, as another one takes its place.
    pub(crate) stop: CancellationToken,
}

/// A place among those that wait.
struct Wait<'a>(&'a AtomicUsize);

impl Drop for Wait<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Board {
    /// Of a worker that runs so many jobs at once.
    pub(crate) fn of_jobs(jobs_max: usize) -> Self {
        let all_max = uploads_at_once(jobs_max);
        let each_max = (all_max / 2).max(1);
        Self { all_max, each_max, waiting: AtomicUsize::new(0), state: Mutex::default(), ended: Condvar::new() }
    }

    /// Errors: as many wait as may.
    fn wait(&self) -> Result<Wait<'_>, UploadRefusal> {
        let one_more = |waiting| (waiting < self.all_max).then_some(waiting + 1);
        let waits = self.waiting.fetch_update(Ordering::SeqCst, Ordering::SeqCst, one_more);
        waits.map(|_| Wait(&self.waiting)).map_err(|max| UploadRefusal::TooMany { max })
    }

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
        let mut wait = None;
        let mut driven_out = Vec::new();
        while let Some(running) = state.running.get(place) {
            let now = clock.now();
            let is_silent = now.saturating_duration_since(running.sign.last()) >= SILENT_MAX;
            let is_same = running.uploader.transfer == uploader.transfer;
            let may_go_on = is_silent
                && running.uploader.subject == uploader.subject
                && !running.driven_out.contains(&uploader.transfer);
            let left = until.saturating_duration_since(now);
            if is_same && left.is_zero() {
                return Err(UploadRefusal::Slow { url: place.url(), waited: END_WAIT });
            }
            if !(is_same || may_go_on) || left.is_zero() {
                return Err(UploadRefusal::Busy { url: place.url(), client: running.uploader.client.clone() });
            }
            driven_out.clone_from(&running.driven_out);
            if !is_same {
                driven_out.push(running.uploader.transfer.clone());
                let beyond = driven_out.len().saturating_sub(DRIVEN_OUT_MAX);
                driven_out.drain(..beyond);
            }
            if wait.is_none() {
                wait = Some(self.wait()?);
            }
            running.stop.cancel();
            state = self.ended.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        if state.running.len() >= self.all_max {
            return Err(UploadRefusal::TooMany { max: self.all_max });
        }
        let client = &uploader.client;
        let of_client = state.running.values().filter(|running| running.uploader.client == *client).count();
        if of_client >= self.each_max {
            return Err(UploadRefusal::TooManyOfClient { client: client.clone(), max: self.each_max });
        }
        let stop = CancellationToken::new();
        let sign = Arc::new(Sign { last: Mutex::new(clock.now()), there: AtomicU64::new(0) });
        state.begun += 1;
        let running = Running {
            uploader: uploader.clone(),
            number: state.begun,
            sign: Arc::clone(&sign),
            stop: stop.clone(),
            driven_out,
            part: None,
            reserved: 0,
            adds: 0,
        };
        state.running.insert(place.clone(), running);
        Ok(Turn { board: Arc::clone(self), place: place.clone(), sign, stop })
    }
}

/// Counts what is in the folder, but for files of which it is told that they are under way.
pub(crate) type CountFolder<'a> = dyn Fn(&dyn Fn(Key) -> bool) -> Result<Counted, Errno> + 'a;

/// What an upload needs room for.
pub(crate) struct Need<'a> {
    pub(crate) size: u64,
    /// Files and folders that are not there yet.
    pub(crate) adds: u64,
    pub(crate) count: &'a CountFolder<'a>,
    /// Whether it is not needed any more.
    pub(crate) is_ended: &'a dyn Fn() -> bool,
}

impl Turn {
    /// Something came.
    pub(crate) fn goes_on(&self, clock: &dyn Clock) {
        *self.sign.last.lock().unwrap_or_else(PoisonError::into_inner) = clock.now();
    }

    /// So many bytes are in its part now.
    pub(crate) fn has(&self, bytes: u64) {
        self.sign.there.store(bytes, Ordering::SeqCst);
    }

    /// This is its part from now on. What is in it does not count as what nobody goes on with.
    pub(crate) fn takes_up(&self, part: Key, bytes: u64) {
        let mut state = self.board.lock();
        self.has(bytes);
        if let Some(running) = state.running.get_mut(&self.place) {
            running.part = Some(part);
            running.reserved = running.reserved.max(bytes);
        }
        state.room.is_taken_up(part, bytes);
    }

    /// Reserves room. Errors: there is none, or that cannot be told.
    pub(crate) fn reserve(
        &self,
        settings: &UploadSettings,
        need: &Need<'_>,
        clock: &dyn Clock,
    ) -> Result<(), UploadRefusal> {
        let mut state = self.board.lock();
        let began = clock.now();
        loop {
            let now = clock.now();
            if let Some((census, is_fresh)) = state.room.known(now) {
                match state.fits(settings, &self.place, need, census) {
                    Ok(()) => {
                        if let Some(running) = state.running.get_mut(&self.place) {
                            (running.reserved, running.adds) = (need.size, need.adds);
                        }
                        return Ok(());
                    }
                    Err(refusal) if is_fresh => return Err(refusal),
                    Err(_) => {}
                }
            }
            let State { running, room, .. } = &mut *state;
            if room.begins_to_count(running.values().filter_map(|running| running.part), now) {
                drop(state);
                let mut count = Count { board: &self.board, counted: None, now };
                let counted = (need.count)(&|key| self.board.lock().room.is_under_way(key));
                let url = || settings.url();
                count.counted = Some(counted.map_err(|errno| UploadRefusal::Unwritable { url: url(), errno })?);
                count.now = clock.now();
                drop(count);
                state = self.board.lock();
                continue;
            }
            if now.saturating_duration_since(began) >= COUNT_WAIT || (need.is_ended)() {
                return Err(UploadRefusal::Uncounted { folder: settings.url(), waited: COUNT_WAIT });
            }
            // Its result is as good as one of our own.
            state = self.board.ended.wait_timeout(state, COUNT_LOOK).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Bytes that uploads which began before this one have room for and that are not there yet.
    pub(crate) fn others_lack(&self) -> u64 {
        let state = self.board.lock();
        let number = state.running.get(&self.place).map_or(u64::MAX, |running| running.number);
        let others = state.running.values().filter(|running| running.number < number);
        let lacks = |running: &Running| running.reserved.saturating_sub(running.sign.there.load(Ordering::SeqCst));
        others.map(lacks).fold(0, u64::saturating_add)
    }

    /// Of the folders for which it reserved room all are there now, and it has made some of them.
    pub(crate) fn made(&self, missing: u64, made: u64) {
        let mut state = self.board.lock();
        if let Some(running) = state.running.get_mut(&self.place) {
            running.adds = running.adds.saturating_sub(missing);
        }
        state.room.changes(0, signed(made));
    }

    /// It has removed so many folders.
    pub(crate) fn removed(&self, folders: u64) {
        self.board.lock().room.changes(0, -signed(folders));
    }

    /// The file is in its place: it has become one of those that are counted, and may have replaced another one.
    pub(crate) fn is_kept(&self, size: u64, replaced: Option<u64>) {
        let mut state = self.board.lock();
        state.room.is_kept(size, replaced);
        if let Some(running) = state.running.get_mut(&self.place) {
            // It does not count twice, and its part is no more.
            (running.part, running.reserved, running.adds) = (None, 0, 0);
        }
    }
}

/// Somebody counts, and nobody else does as long as it lives.
struct Count<'a> {
    board: &'a Board,
    counted: Option<Counted>,
    now: Instant,
}

impl Drop for Count<'_> {
    fn drop(&mut self) {
        // Also where counting went wrong or panicked: others try it then.
        self.board.lock().room.ends_to_count(self.counted.take(), self.now);
        self.board.ended.notify_all();
    }
}

impl State {
    fn fits(
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
        if need.adds > 0 && entries.saturating_add(need.adds) > settings.files_max {
            let (url, folder, max) = (place.url(), settings.url(), settings.files_max);
            return Err(UploadRefusal::TooManyFiles { url, folder, found: entries, adds: need.adds, max });
        }
        Ok(())
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        let mut state = self.board.lock();
        // A part that stays counts for itself from now on.
        if state.running.remove(&self.place).is_some_and(|running| running.part.is_some()) {
            let there = self.sign.there.load(Ordering::SeqCst);
            state.room.changes(signed(there), i64::from(there > 0));
        }
        self.board.ended.notify_all();
    }
}

#[cfg(test)]
mod tests;
