//! Sealing and opening of large boxes on a thread of its own, so that a result of many megabytes keeps no owner from
//! everybody else's messages and keepalives.

use std::collections::VecDeque;
use std::fmt;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Instant;

use bytes::Bytes;

use crate::clock;
use crate::waker::Waker;
use crate::zmtp::{Broken, Opening, Sealing};

/// What is to be done with a large box.
pub(crate) enum Work {
    Seal(Sealing),
    Open(Opening),
}

/// A large box with which it was done.
pub(crate) enum Done {
    Sealed(Vec<u8>),
    Opened(Result<(u8, Bytes), Broken>),
}

impl Work {
    pub(crate) fn perform(self) -> Done {
        match self {
            Self::Seal(sealing) => Done::Sealed(sealing.seal()),
            Self::Open(opening) => Done::Opened(opening.open()),
        }
    }
}

/// Where an owner finds what was done for its connections.
#[derive(Clone)]
pub(crate) struct Tray {
    shelf: Arc<Shelf>,
    waker: Waker,
}

/// What was done, each with the number of its connection.
#[derive(Default)]
struct Shelf {
    done: Mutex<Vec<(u64, Done)>>,
    news: Condvar,
}

impl Tray {
    pub(crate) fn new(waker: Waker) -> Self {
        Self { shelf: Arc::default(), waker }
    }

    /// What was done since the last time, each with the number of its connection.
    pub(crate) fn take(&self) -> Vec<(u64, Done)> {
        std::mem::take(&mut *lock(&self.shelf.done))
    }

    /// Waits for a frame that is being sealed for one connection. For those whose owner has gone.
    pub(crate) fn wait_for_sealed(&self, connection: u64, until: Instant) -> Option<Vec<u8>> {
        let mut done = lock(&self.shelf.done);
        loop {
            let is_it = |(number, done): &(u64, Done)| *number == connection && matches!(done, Done::Sealed(_));
            if let Some(found) = done.iter().position(is_it)
                && let (_, Done::Sealed(bytes)) = done.swap_remove(found)
            {
                return Some(bytes);
            }
            let left = until.checked_duration_since(clock::now())?;
            done = self.shelf.news.wait_timeout(done, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    fn put(&self, connection: u64, done: Done) {
        lock(&self.shelf.done).push((connection, done));
        self.shelf.news.notify_all();
        self.waker.wake();
    }
}

/// The thread, started when it is first needed.
#[derive(Default)]
pub(crate) struct Boxes {
    shared: Arc<Shared>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

#[derive(Default)]
struct Shared {
    queue: Mutex<Queue>,
    news: Condvar,
}

#[derive(Default)]
struct Queue {
    // A connection has one box to seal and one to open at most, so that their number bounds it.
    work: VecDeque<(u64, Work, Tray)>,
    stop: bool,
    /// A test wants the thread to do nothing for a while.
    #[cfg(test)]
    held: bool,
}

impl Queue {
    fn next(&mut self) -> Option<(u64, Work, Tray)> {
        #[cfg(test)]
        if self.held {
            return None;
        }
        self.work.pop_front()
    }
}

impl Boxes {
    /// Has something done. Where the system has no more threads, it is done at once.
    pub(crate) fn submit(&self, connection: u64, work: Work, tray: &Tray) {
        let mut thread = lock(&self.thread);
        if thread.is_none() {
            let shared = Arc::clone(&self.shared);
            *thread = std::thread::Builder::new().name("norfab-boxes".to_owned()).spawn(move || shared.run()).ok();
        }
        if thread.is_none() {
            tray.put(connection, work.perform());
            return;
        }
        lock(&self.shared.queue).work.push_back((connection, work, tray.clone()));
        self.shared.news.notify_one();
    }
}

#[cfg(test)]
impl Boxes {
    /// Lets work wait, or lets it be done again.
    pub(crate) fn hold(&self, held: bool) {
        lock(&self.shared.queue).held = held;
        self.shared.news.notify_one();
    }
}

impl Shared {
    fn run(&self) {
        let mut queue = lock(&self.queue);
        while !queue.stop {
            match queue.next() {
                Some((connection, work, tray)) => {
                    drop(queue);
                    tray.put(connection, work.perform());
                    queue = lock(&self.queue);
                }
                None => queue = self.news.wait(queue).unwrap_or_else(PoisonError::into_inner),
            }
        }
    }
}

impl Drop for Boxes {
    fn drop(&mut self) {
        lock(&self.shared.queue).stop = true;
        self.shared.news.notify_one();
        if let Some(thread) = lock(&self.thread).take() {
            // It does not panic; if it did, it has been printed, and there is nothing left to save.
            drop(thread.join());
        }
    }
}

impl fmt::Debug for Boxes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Boxes").finish_non_exhaustive()
    }
}

/// A lock that somebody held who panicked is as good as any: what it guards is changed in one step.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
