//! Which workers a job went to, so that a repeated POST goes where the first went.

use std::collections::{BTreeMap, HashMap, HashSet};

use crate::name::{Identity, JobId};

/// Workers that are remembered for each job on average: beyond it old jobs are forgotten early, so that jobs for thousands
/// of workers do not fill the memory.
const WORKERS_PER_JOB: usize = 4;

/// A bounded memory, oldest forgotten first. A job is known by its client and its id: two clients may use one id.
#[derive(Debug)]
pub(super) struct JobMemory {
    jobs_max: usize,
    jobs: HashMap<(Identity, JobId), Remembered>,
    /// By number, so the oldest first.
    order: BTreeMap<u64, (Identity, JobId)>,
    next: u64,
    workers: usize,
}

/// How a job was posted.
#[derive(Debug, Clone, Copy)]
pub(super) struct Posted {
    /// No other broker had a POST of it before.
    pub(super) first: bool,
    /// As in [`Remembered`].
    pub(super) moves: bool,
    /// As in [`Remembered`].
    pub(super) turn: u32,
}

#[derive(Debug)]
struct Remembered {
    number: u64,
    /// Where a repeated POST goes.
    workers: Box<[Identity]>,
    /// It is for any worker: one that refuses it is none of its workers.
    moves: bool,
    /// The turn in which it was posted last: [`crate::body::Posting::turn`].
    turn: u32,
    /// It was posted more than once to its workers: one that refuses it may have another POST before it still, unless it says that
    /// it refuses that too.
    repeated: bool,
    /// Who refused it then: no repeated POST goes there, but a cancellation does.
    refused: Box<[Identity]>,
    /// Its first POST came here, so that these are all that can have it.
    whole: bool,
}

impl JobMemory {
    pub(super) fn new(jobs_max: usize) -> Self {
        Self { jobs_max, jobs: HashMap::new(), order: BTreeMap::new(), next: 0, workers: 0 }
    }

    /// Jobs, workers of jobs, and most of these.
    pub(super) fn sizes(&self) -> (usize, usize, usize) {
        let most = (self.jobs_max * WORKERS_PER_JOB).max(self.order.values().next_back().map_or(0, |_| self.workers));
        let most = if self.order.len() > 1 { self.jobs_max * WORKERS_PER_JOB } else { most };
        (self.jobs.len().max(self.order.len()), self.workers, most)
    }

    pub(super) fn get(&self, client: &Identity, job: &JobId) -> Option<&[Identity]> {
        let remembered = self.jobs.get(&(client.clone(), job.clone()))?;
        (!remembered.workers.is_empty()).then_some(&*remembered.workers)
    }

    /// Who may have a job, as far as that is remembered: also who refused one POST of it and may take another.
    pub(super) fn holders(&self, client: &Identity, job: &JobId) -> Vec<Identity> {
        let Some(remembered) = self.jobs.get(&(client.clone(), job.clone())) else { return Vec::new() };
        let refused = remembered.refused.iter().filter(|worker| !remembered.workers.contains(worker));
        remembered.workers.iter().chain(refused).cloned().collect()
    }

    /// Whether nobody but the remembered workers can have a job.
    pub(super) fn is_whole(&self, client: &Identity, job: &JobId) -> bool {
        self.jobs.get(&(client.clone(), job.clone())).is_some_and(|remembered| remembered.whole)
    }

    /// Remembers; the first choice of a job stays, and workers that its client named later are added.
    pub(super) fn insert(&mut self, client: &Identity, job: &JobId, workers: &[Identity], posted: Posted) {
        let Posted { first, moves, turn } = posted;
        let key = (client.clone(), job.clone());
        if self.jobs_max == 0 {
            return;
        }
        if let Some(remembered) = self.jobs.get_mut(&key) {
            // Not the latest of all: a client that was restarted begins anew.
            remembered.turn = turn;
            // Thousands may have it, and each repeated POST names them all.
            let known: HashSet<&Identity> = remembered.workers.iter().collect();
            remembered.repeated |= workers.iter().any(|worker| known.contains(worker));
            let new: Vec<&Identity> = workers.iter().filter(|worker| !known.contains(worker)).collect();
            if !new.is_empty() {
                self.workers += new.len();
                remembered.workers = remembered.workers.iter().chain(new).cloned().collect();
            }
        } else {
            self.workers += workers.len();
            self.order.insert(self.next, key.clone());
            let (number, workers, refused) = (self.next, workers.into(), Box::default());
            let (repeated, whole) = (false, first);
            self.jobs.insert(key, Remembered { number, workers, moves, turn, repeated, refused, whole });
            self.next += 1;
        }
        while self.order.len() > self.jobs_max
            || (self.workers > self.jobs_max * WORKERS_PER_JOB && self.order.len() > 1)
        {
            let Some((_, oldest)) = self.order.pop_first() else { return };
            if let Some(forgotten) = self.jobs.remove(&oldest) {
                self.workers -= forgotten.workers.len() + forgotten.refused.len();
            }
        }
    }

    /// A worker refused a job for any: it is not remembered as its worker any more; who else has it still is. A job for certain
    /// workers stays with them: its client, or the process that comes after it, has to hear of each. `turn`: this one and those before
    /// are what it refuses, whatever comes yet. `true`: it is known now that nobody has the job.
    pub(super) fn forget(&mut self, client: &Identity, job: &JobId, worker: &Identity, turn: Option<u32>) -> bool {
        let key = (client.clone(), job.clone());
        let Some(remembered) = self.jobs.get_mut(&key).filter(|remembered| remembered.moves) else { return false };
        if turn.is_some_and(|turn| turn < remembered.turn) {
            // Word of an earlier turn: the job may have come back to this worker since.
            return false;
        }
        let left: Box<[Identity]> = remembered.workers.iter().filter(|one| *one != worker).cloned().collect();
        self.workers -= remembered.workers.len() - left.len();
        if turn.is_none()
            && remembered.repeated
            && left.len() < remembered.workers.len()
            && !remembered.refused.contains(worker)
        {
            self.workers += 1;
            remembered.refused = remembered.refused.iter().chain([worker]).cloned().collect();
        }
        if left.is_empty() && remembered.refused.is_empty() {
            let whole = remembered.whole;
            self.order.remove(&remembered.number);
            self.jobs.remove(&key);
            return whole;
        }
        remembered.workers = left;
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ANY: Posted = Posted { first: true, moves: true, turn: 0 };

    #[test]
    fn the_oldest_job_is_forgotten_first_and_the_first_choice_stays() {
        let name = |text: &str| Identity::parse(text).expect("a name");
        let job = |text: &str| JobId::parse(text).expect("a name");
        let mut memory = JobMemory::new(2);
        memory.insert(&name("c"), &job("1"), &[name("a")], ANY);
        memory.insert(&name("c"), &job("1"), &[name("a")], ANY);
        memory.insert(&name("c"), &job("2"), &[name("a")], ANY);
        assert_eq!(memory.get(&name("c"), &job("1")), Some(&[name("a")][..]));
        memory.insert(&name("c"), &job("3"), &[name("a")], ANY);
        assert_eq!(memory.get(&name("c"), &job("1")), None);
        assert!(memory.get(&name("c"), &job("2")).is_some());
    }

    #[test]
    fn only_who_did_not_take_a_job_is_forgotten_and_a_job_without_workers_takes_no_place() {
        let name = |text: &str| Identity::parse(text).expect("a name");
        let job = |text: &str| JobId::parse(text).expect("a name");
        let mut memory = JobMemory::new(2);
        memory.insert(&name("c"), &job("1"), &[name("a"), name("b")], ANY);
        memory.forget(&name("c"), &job("1"), &name("stranger"), None);
        memory.forget(&name("c"), &job("1"), &name("a"), None);
        assert_eq!(memory.get(&name("c"), &job("1")), Some(&[name("b")][..]));
        memory.insert(&name("c"), &job("2"), &[name("a")], ANY);
        assert!(memory.is_whole(&name("c"), &job("2")));
        assert!(memory.forget(&name("c"), &job("2"), &name("a"), None), "nobody has it");
        assert_eq!(memory.get(&name("c"), &job("2")), None);
        memory.insert(&name("c"), &job("3"), &[name("a")], ANY);
        assert!(memory.get(&name("c"), &job("1")).is_some(), "there is room for two");
        assert_eq!((memory.order.len(), memory.workers), (2, 2));
    }

    #[test]
    fn who_refuses_a_job_for_certain_workers_is_one_of_them_still() {
        let name = |text: &str| Identity::parse(text).expect("a name");
        let job = JobId::parse("1").expect("a name");
        let mut memory = JobMemory::new(2);
        memory.insert(&name("c"), &job, &[name("a"), name("b")], Posted { moves: false, ..ANY });
        assert!(!memory.forget(&name("c"), &job, &name("a"), Some(0)));
        assert_eq!(memory.get(&name("c"), &job), Some(&[name("a"), name("b")][..]));
    }

    #[test]
    fn a_refusal_of_an_earlier_turn_says_nothing_of_where_the_job_is_now() {
        let name = |text: &str| Identity::parse(text).expect("a name");
        let job = JobId::parse("1").expect("a name");
        let mut memory = JobMemory::new(2);
        for turn in [0, 1] {
            memory.insert(&name("c"), &job, &[name("a")], Posted { turn, ..ANY });
        }
        assert!(!memory.forget(&name("c"), &job, &name("a"), Some(0)));
        assert_eq!(memory.get(&name("c"), &job), Some(&[name("a")][..]));
        assert!(memory.forget(&name("c"), &job, &name("a"), Some(1)), "posted twice, and it takes neither");
    }
}
