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

#[derive(Debug)]
struct Remembered {
    number: u64,
    /// Where a repeated POST goes.
    workers: Box<[Identity]>,
    /// It was posted more than once to its workers: one that refuses it may have another POST before it still.
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

    /// Remembers; the first choice of a job stays, and workers that its client named later are added. `first`: no other broker
    /// had a POST of it before.
    pub(super) fn insert(&mut self, client: &Identity, job: &JobId, workers: &[Identity], first: bool) {
        let key = (client.clone(), job.clone());
        if self.jobs_max == 0 {
            return;
        }
        if let Some(remembered) = self.jobs.get_mut(&key) {
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
            self.jobs.insert(key, Remembered { number, workers, repeated: false, refused, whole: first });
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

    /// A worker refused a job: it is not remembered as its worker any more; who else has it still does. `true`: it is known now that
    /// nobody has it.
    pub(super) fn forget(&mut self, client: &Identity, job: &JobId, worker: &Identity) -> bool {
        let key = (client.clone(), job.clone());
        let Some(remembered) = self.jobs.get_mut(&key) else { return false };
        let left: Box<[Identity]> = remembered.workers.iter().filter(|one| *one != worker).cloned().collect();
        self.workers -= remembered.workers.len() - left.len();
        if remembered.repeated && left.len() < remembered.workers.len() && !remembered.refused.contains(worker) {
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

    #[test]
    fn the_oldest_job_is_forgotten_first_and_the_first_choice_stays() {
        let name = |text: &str| Identity::parse(text).expect("a name");
        let job = |text: &str| JobId::parse(text).expect("a name");
        let mut memory = JobMemory::new(2);
        memory.insert(&name("c"), &job("1"), &[name("a")], true);
        memory.insert(&name("c"), &job("1"), &[name("a")], true);
        memory.insert(&name("c"), &job("2"), &[name("a")], true);
        assert_eq!(memory.get(&name("c"), &job("1")), Some(&[name("a")][..]));
        memory.insert(&name("c"), &job("3"), &[name("a")], true);
        assert_eq!(memory.get(&name("c"), &job("1")), None);
        assert!(memory.get(&name("c"), &job("2")).is_some());
    }

    #[test]
    fn only_who_did_not_take_a_job_is_forgotten_and_a_job_without_workers_takes_no_place() {
        let name = |text: &str| Identity::parse(text).expect("a name");
        let job = |text: &str| JobId::parse(text).expect("a name");
        let mut memory = JobMemory::new(2);
        memory.insert(&name("c"), &job("1"), &[name("a"), name("b")], true);
        memory.forget(&name("c"), &job("1"), &name("stranger"));
        memory.forget(&name("c"), &job("1"), &name("a"));
        assert_eq!(memory.get(&name("c"), &job("1")), Some(&[name("b")][..]));
        memory.insert(&name("c"), &job("2"), &[name("a")], true);
        assert!(memory.is_whole(&name("c"), &job("2")));
        assert!(memory.forget(&name("c"), &job("2"), &name("a")), "nobody has it");
        assert_eq!(memory.get(&name("c"), &job("2")), None);
        memory.insert(&name("c"), &job("3"), &[name("a")], true);
        assert!(memory.get(&name("c"), &job("1")).is_some(), "there is room for two");
        assert_eq!((memory.order.len(), memory.workers), (2, 2));
    }
}
