//! Questions about jobs that have ended: their results are read from the database, and no more of them than fit into memory.
//!
//! A question has a hundred bytes and its answer up to 64 MiB. Clients repeat theirs until they are answered, and a client that is
//! started again asks about all its jobs: so nobody is asked about twice while the first answer is under way, and results are read one
//! after the other as they leave.

use std::collections::{HashSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use norfab_jobs::QueryError;
use norfab_protocol::worker::{Asked, LoadedJob};
use norfab_protocol::{Identity, JobId};
use tracing::warn;

use super::run::{Run, StoreAnswer};

/// Questions that wait for their turn. A client asks about a thousand jobs at once; one whose question finds no room asks again.
const WAITING_MAX: usize = 50_000;

/// Questions that are with the store's thread at once, so that it does not wait for the owner between two small ones.
const UNDER_WAY_MAX: usize = 64;

/// Bytes of results that were read and not yet taken by the owner, and those that wait for the network, from which on no more are read.
const BYTES_HIGH: usize = 64 << 20;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Load {
    pub(super) job: JobId,
    pub(super) client: Identity,
    pub(super) asked: Asked,
}

/// Which of a client's questions about a job it is. One that does not want it any more is answered otherwise than one that asks.
type Key = (JobId, Identity, std::mem::Discriminant<Asked>);

impl Load {
    fn key(&self) -> Key {
        (self.job.clone(), self.client.clone(), std::mem::discriminant(&self.asked))
    }
}

/// Questions about jobs that are not in memory.
#[derive(Debug, Default)]
pub(super) struct Loads {
    waiting: VecDeque<Load>,
    /// Those that wait and those under way.
    known: HashSet<Key>,
    under_way: usize,
    /// Bytes that the store's thread has read and the owner has not taken.
    read: Arc<AtomicUsize>,
}

impl Loads {
    /// `false`: there is no room.
    fn push(&mut self, load: Load) -> bool {
        if self.known.contains(&load.key()) {
            return true;
        }
        if self.waiting.len() >= WAITING_MAX {
            return false;
        }
        self.known.insert(load.key());
        self.waiting.push_back(load);
        true
    }

    /// The next one that may be read now, when so many bytes wait for the network.
    fn next(&mut self, outbox_bytes: usize) -> Option<Load> {
        let read = self.read.load(Ordering::Relaxed);
        if self.under_way >= UNDER_WAY_MAX || outbox_bytes + read >= BYTES_HIGH {
            return None;
        }
        let load = self.waiting.pop_front()?;
        self.under_way += 1;
        Some(load)
    }

    fn answered(&mut self, load: &Load, bytes: usize) {
        self.under_way -= 1;
        self.known.remove(&load.key());
        self.read.fetch_sub(bytes, Ordering::Relaxed);
    }

    /// It was not read, as there was too much by then.
    fn put_off(&mut self, load: Load) {
        self.under_way -= 1;
        self.waiting.push_front(load);
    }
}

/// What became of a question.
pub(super) enum Loaded {
    /// The job, if it is there.
    Read(Option<LoadedJob>),
    /// Too much is in memory.
    PutOff,
    /// The database has no answer. Its client asks again.
    Failed(norfab_jobs::StoreError),
}

fn bytes_of(loaded: &Option<LoadedJob>) -> usize {
    loaded.as_ref().and_then(|loaded| loaded.payload.as_ref()).map_or(0, bytes::Bytes::len)
}

impl Run {
    pub(super) fn load(&mut self, job: JobId, client: Identity, asked: Asked) {
        if !self.loads.push(Load { job, client, asked }) && self.throttle.admit() {
            warn!(
                "worker {}: {WAITING_MAX} questions about jobs wait, one more is not answered; its client asks again",
                self.runner.identity
            );
        }
        self.read_loads();
    }

    /// Reads what may be read now. To be called when bytes have left.
    pub(super) fn read_loads(&mut self) {
        while let Some(load) = self.loads.next(self.outbox.bytes()) {
            let (inbox, read, asked) = (self.inbox.clone(), Arc::clone(&self.loads.read), load.clone());
            let outcome = self.storing.ask(move |store, is_whole| {
                let loaded = if read.load(Ordering::Relaxed) >= BYTES_HIGH {
                    Loaded::PutOff
                } else {
                    match store.result(&load.job) {
                        // The end of the job may be among what is missing: no answer is better than that it runs. Its client asks again.
                        Ok(Some((_, None))) if !is_whole => Loaded::Failed(QueryError::Behind.into()),
                        Ok(found) => Loaded::Read(found.map(|(_, payload)| LoadedJob { payload })),
                        Err(error) => Loaded::Failed(error),
                    }
                };
                if let Loaded::Read(loaded) = &loaded {
                    read.fetch_add(bytes_of(loaded), Ordering::Relaxed);
                }
                inbox.push([StoreAnswer::Loaded { load, loaded }]);
            });
            if outcome.is_err() {
                self.loads.answered(&asked, 0);
                self.told_whether_asked(outcome);
                return;
            }
        }
    }

    pub(super) fn loaded(&mut self, load: Load, loaded: Loaded) {
        match loaded {
            Loaded::Read(loaded) => {
                self.loads.answered(&load, bytes_of(&loaded));
                let Load { job, client, asked } = load;
                self.machine.loaded(job, client, asked, loaded);
            }
            Loaded::PutOff => self.loads.put_off(load),
            Loaded::Failed(error) => {
                self.loads.answered(&load, 0);
                self.is_unreadable(&load.job, &error);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn load(job: u32, client: &str, asked: Asked) -> Load {
        let job = JobId::parse(&job.to_string()).expect("an id");
        Load { job, client: Identity::parse(client).expect("a name"), asked }
    }

    #[test]
    fn a_question_that_waits_or_is_under_way_is_not_asked_twice() {
        let mut loads = Loads::default();
        for _ in 0..3 {
            assert!(loads.push(load(1, "c", Asked::State)));
        }
        assert!(loads.push(load(1, "c", Asked::ToCancel)) && loads.push(load(1, "d", Asked::State)));
        let first = loads.next(0).expect("one");
        assert!(loads.push(first.clone()));
        assert_eq!(loads.next(0), Some(load(1, "c", Asked::ToCancel)));
        assert_eq!(loads.next(0), Some(load(1, "d", Asked::State)));
        assert_eq!(loads.next(0), None);
        loads.answered(&first, 0);
        assert!(loads.push(first.clone()));
        assert_eq!(loads.next(0), Some(first));
    }

    #[test]
    fn no_more_is_read_than_fits() {
        let mut loads = Loads::default();
        for number in 0..100 {
            assert!(loads.push(load(number, "c", Asked::State)));
        }
        assert_eq!(loads.next(BYTES_HIGH), None, "the network is slow");
        loads.read.store(BYTES_HIGH, Ordering::Relaxed);
        assert_eq!(loads.next(0), None, "the owner has not taken what was read");
        loads.read.store(0, Ordering::Relaxed);
        let under_way: Vec<_> = std::iter::from_fn(|| loads.next(0)).collect();
        assert_eq!(under_way.len(), UNDER_WAY_MAX);
        loads.put_off(under_way[0].clone());
        assert_eq!(loads.next(0).as_ref(), Some(&under_way[0]), "it is the first again");
    }

    #[test]
    fn questions_beyond_the_bound_are_not_taken() {
        let mut loads = Loads::default();
        for number in 0..WAITING_MAX as u32 {
            assert!(loads.push(load(number, "c", Asked::State)));
        }
        assert!(!loads.push(load(u32::MAX, "c", Asked::State)));
        assert_eq!(loads.known.len(), WAITING_MAX);
    }
}
